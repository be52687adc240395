//! Turns: in each epoch one at a time, and no epoch waits for another.

use std::collections::HashSet;
use std::sync::{Condvar, Mutex, PoisonError};

use crate::edge::locked;
use crate::id::EpochKey;

/// Epochs in which somebody has the turn.
#[derive(Debug, Default)]
pub(in crate::edge) struct Turns {
    taken: Mutex<HashSet<EpochKey>>,
    free: Condvar,
}

/// Somebody's turn in an epoch; it ends when dropped.
#[derive(Debug)]
pub(in crate::edge) struct Turn<'a> {
    turns: &'a Turns,
    epoch: EpochKey,
}

impl Turns {
    /// Waits until nobody else has the turn in this epoch.
    pub(in crate::edge) fn take(&self, epoch: EpochKey) -> Turn<'_> {
        let taken = locked(&self.taken);
        let free = self.free.wait_while(taken, |taken| taken.contains(&epoch));
        free.unwrap_or_else(PoisonError::into_inner).insert(epoch.clone());
        Turn { turns: self, epoch }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        locked(&self.turns.taken).remove(&self.epoch);
        self.turns.free.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;
    use crate::id::Epoch;

    fn epoch(number: u64) -> EpochKey {
        EpochKey { query: "q".into(), epoch: Epoch::Batch(number) }
    }

    #[test]
    fn nobody_goes_ahead_in_an_epoch_and_none_waits_for_another() {
        let turns = Turns::default();
        let first = turns.take(epoch(1));
        // At once.
        drop(turns.take(epoch(2)));
        let (done, heard) = channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _turn = turns.take(epoch(1));
                done.send(()).unwrap();
            });
            assert!(heard.recv_timeout(Duration::from_millis(200)).is_err(), "it waits");
            drop(first);
            heard.recv_timeout(Duration::from_secs(5)).unwrap();
        });
        assert!(locked(&turns.taken).is_empty());
    }
}
