//! Turns: at each thing one at a time, and none waits for another thing.

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::{Condvar, Mutex, PoisonError};

use crate::edge::locked;

/// Things at which somebody has the turn.
#[derive(Debug)]
pub(in crate::edge) struct Turns<T: Eq + Hash> {
    taken: Mutex<HashSet<T>>,
    free: Condvar,
}

/// Somebody's turn at a thing; it ends when dropped.
#[derive(Debug)]
pub(in crate::edge) struct Turn<'a, T: Eq + Hash> {
    turns: &'a Turns<T>,
    thing: T,
}

impl<T: Eq + Hash> Default for Turns<T> {
    fn default() -> Self {
        Self { taken: Mutex::default(), free: Condvar::new() }
    }
}

impl<T: Eq + Hash + Clone> Turns<T> {
    /// Waits until nobody else has the turn at this thing.
    pub(in crate::edge) fn take(&self, thing: T) -> Turn<'_, T> {
        let taken = locked(&self.taken);
        let free = self.free.wait_while(taken, |taken| taken.contains(&thing));
        free.unwrap_or_else(PoisonError::into_inner).insert(thing.clone());
        Turn { turns: self, thing }
    }
}

impl<T: Eq + Hash> Drop for Turn<'_, T> {
    fn drop(&mut self) {
        locked(&self.turns.taken).remove(&self.thing);
        self.turns.free.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;
    use crate::id::{Epoch, EpochKey};

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
