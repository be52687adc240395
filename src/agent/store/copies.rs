//! Copies of other tasks' logs, absorbed from frames.

use bytes::Bytes;

use super::{Absorbed, Held, Store};
use crate::agent::protocol::Layout;
use crate::causal_log::CausalLog;
use crate::error::{Error, Result};
use crate::id::{EpochKey, Generation, LogOffset, TaskId};

/// A copy's layout: of no stage, until the task is opened here.
const NO_LAYOUT: Layout = Layout { app: 0, stage: 0, tasks: None };

impl Store {
    /// Holds a block that came with a frame. Whoever delivered the frame has decided that it counts, so no
    /// fence is asked.
    ///
    /// # Errors
    /// [`Error::LogGap`]; [`Error::LogFork`] if the copy here is of another run of the task: it is dropped,
    /// so that a second try takes the new one.
    pub fn absorb_copy(&mut self, task: &TaskId, from: LogOffset, block: &Bytes) -> Result<Absorbed> {
        if !self.held.contains_key(task) {
            self.versions += 1;
            let mut held = Held::new(CausalLog::new(), task, Generation::NONE, NO_LAYOUT, self.versions);
            held.absorbed = true;
            self.held.insert(task.clone(), held);
        }
        let generation = self.generation(task).unwrap_or(Generation::NONE);
        let before = self.end(task);
        let absorbed = self.absorb(task, generation, from, block);
        if matches!(absorbed, Err(Error::LogFork { .. })) {
            self.remove(task);
        }
        if self.end(task) > before {
            self.fresh.entry(task.epoch_key()).or_default().insert(task.clone());
        }
        absorbed
    }

    /// Drops what is here of a log that was discarded.
    pub fn forget(&mut self, task: &TaskId) {
        self.remove(task);
        self.remove(&task.in_flight());
    }

    /// Absorbed logs of an epoch with blocks that were not shared yet; they count as shared from now on.
    pub fn take_fresh(&mut self, epoch: &EpochKey) -> Vec<TaskId> {
        self.fresh.remove(epoch).unwrap_or_default().into_iter().collect()
    }

    /// They could not be shared.
    pub fn not_shared(&mut self, epoch: &EpochKey, tasks: Vec<TaskId>) {
        self.fresh.entry(epoch.clone()).or_default().extend(tasks);
    }

    /// Whether some absorbed log of the epoch was not shared yet.
    #[must_use]
    pub fn has_fresh(&self, epoch: &EpochKey) -> bool {
        self.fresh.contains_key(epoch)
    }

    pub(super) fn forget_fresh(&mut self, key: &EpochKey) {
        self.fresh.retain(|epoch, _| !key.covers(epoch));
    }
}
