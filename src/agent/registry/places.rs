//! Which logs each agent has to do with: when one falls silent, dies or is back, these are looked at, and not all there
//! are. A switch that is away for some seconds makes a thousand agents silent at once.

use std::collections::{HashMap, HashSet};

use crate::id::{AgentId, EpochKey, TaskId};

/// Logs that each agent holds or has open, by epoch. An epoch's go together: which of its logs an agent holds no more is
/// not followed.
#[derive(Debug, Default)]
pub(super) struct Places(HashMap<EpochKey, HashMap<AgentId, HashSet<TaskId>>>);

impl Places {
    /// These agents hold a log from now on, or have it open.
    pub(super) fn are(&mut self, task: &TaskId, agents: &[AgentId]) {
        let places = self.0.entry(task.epoch_key()).or_default();
        for agent in agents {
            let logs = places.entry(*agent).or_default();
            if !logs.contains(task) {
                logs.insert(task.clone());
            }
        }
    }

    /// Logs that an agent holds or has open, and perhaps some that it had before.
    pub(super) fn of(&self, agent: AgentId) -> impl Iterator<Item = &TaskId> {
        self.0.values().filter_map(move |places| places.get(&agent)).flatten()
    }

    /// Nobody asks about an agent any more.
    pub(super) fn died(&mut self, agent: AgentId) {
        for places in self.0.values_mut() {
            places.remove(&agent);
        }
    }

    /// The logs of these epochs are gone.
    pub(super) fn forget(&mut self, is_gone: impl Fn(&EpochKey) -> bool) {
        self.0.retain(|epoch, _| !is_gone(epoch));
    }
}
