//! Which frames leave memory before it runs out.

use super::{Store, Victims};
use crate::config::SpillPolicy;
use crate::id::{Epoch, EpochKey};

impl Store {
    /// Frames that the policy wants on disk now, oldest first.
    pub fn overdue(&mut self, policy: SpillPolicy, newest: Option<&EpochKey>) -> Vec<Victims> {
        match policy {
            SpillPolicy::Off => Vec::new(),
            // Below half of the budget nothing is written; then down to a quarter, in large strokes.
            SpillPolicy::Availability if !self.is_half_full() => Vec::new(),
            SpillPolicy::Availability => self.frames(self.room() / 4, |_| true),
            SpillPolicy::Eager => self.frames(0, |_| true),
            SpillPolicy::Epoch => self.frames(0, |epoch| newest.is_some_and(|newest| earlier(epoch, newest))),
        }
    }

    /// Whether half of the budget is in use.
    #[must_use]
    pub fn is_half_full(&self) -> bool {
        self.memory_bytes > self.room() / 2
    }

    /// Bytes of frames in memory.
    #[must_use]
    pub const fn in_flight_bytes(&self) -> u64 {
        self.in_flight_bytes
    }

    /// Frames of the epochs that are `meant`, until no more than `keep` bytes of all are in memory.
    fn frames(&mut self, keep: u64, meant: impl Fn(&EpochKey) -> bool) -> Vec<Victims> {
        let mut victims = Vec::new();
        let mut leaving = 0;
        let mut others = std::collections::VecDeque::new();
        while self.in_flight_bytes > 0 && self.memory_bytes - leaving > keep {
            let Some((version, index)) = self.queue.pop_front() else { break };
            // One that is gone needs no place any more.
            let Some(task) = self.versions_of.get(&version) else { continue };
            if task.is_in_flight() && meant(&task.epoch_key()) {
                leaving += self.evict(version, index, &mut victims);
            } else {
                others.push_back((version, index));
            }
        }
        others.append(&mut self.queue);
        self.queue = others;
        victims
    }
}

/// Whether an epoch of the same query is over: micro-batches come one after the other.
fn earlier(epoch: &EpochKey, newest: &EpochKey) -> bool {
    match (&epoch.epoch, &newest.epoch) {
        (Epoch::Batch(mine), Epoch::Batch(newest_batch)) => {
            epoch.query == newest.query && mine < newest_batch
        }
        (mine, newest_name) => epoch.query == newest.query && mine != newest_name,
    }
}
