//! Turns: at each thing one at a time, and none waits for another thing.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::edge::locked;
use crate::edge::progress::Progress;

/// How often who waits looks whether whoever has the turn gets on.
const FOLLOWED_EVERY: Duration = Duration::from_secs(1);

/// Things at which somebody has the turn, and what that one has got done.
#[derive(Debug)]
pub(in crate::edge) struct Turns<T: Eq + Hash> {
    taken: Mutex<HashMap<T, Progress>>,
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
    /// Waits until nobody else has the turn at this thing. The steps of whoever has it are steps of who waits for it.
    pub(in crate::edge) fn take(&self, thing: T) -> Turn<'_, T> {
        let (mut taken, mut steps) = (locked(&self.taken), 0);
        while let Some(other) = taken.get(&thing) {
            if steps != other.steps() {
                steps = other.steps();
                Progress::step();
            }
            let waited = self.free.wait_timeout(taken, FOLLOWED_EVERY);
            taken = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        taken.insert(thing.clone(), Progress::ours().unwrap_or_default());
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

    #[test]
    fn who_waits_gets_on_as_whoever_has_the_turn_does() {
        let (turns, ours) = (Turns::default(), Progress::default());
        Progress::count(Some(Progress::default()));
        let first = turns.take(epoch(1));
        std::thread::scope(|scope| {
            let waiting = ours.clone();
            scope.spawn(|| {
                Progress::count(Some(waiting));
                drop(turns.take(epoch(1)));
            });
            std::thread::sleep(2 * FOLLOWED_EVERY);
            assert_eq!(ours.steps(), 0, "that one hangs");
            Progress::step();
            std::thread::sleep(2 * FOLLOWED_EVERY);
            assert_eq!(ours.steps(), 1);
            drop(first);
        });
        Progress::count(None);
    }
}
