//! What Spark has committed, as agents are told with their beats.

use std::sync::Arc;

use super::Registry;
use crate::agent::protocol::Commit;
use crate::id::{Epoch, EpochKey, TaskId};

/// Commits kept for agents that have not heard of them; one that missed more keeps some memory too long.
const COMMITS_MAX: usize = 4_096;

impl Registry {
    /// Commits after the first `seen`, and how many there are.
    #[must_use]
    pub fn commits_since(&self, seen: u64) -> (Vec<Commit>, u64) {
        let first = usize::try_from(seen.saturating_sub(self.commits_dropped)).unwrap_or(usize::MAX);
        let new = self.commits.iter().skip(first).cloned().collect();
        (new, self.commits_dropped + self.commits.len() as u64)
    }

    /// A query's next micro-batch begins only when Spark has committed the one before.
    pub(super) fn begin_batch(&mut self, task: &TaskId) {
        let Epoch::Batch(batch) = task.epoch else { return };
        self.states.seen(&task.query, batch);
        let newest = self.batches.entry(Arc::clone(&task.query)).or_insert(0);
        if batch > *newest {
            *newest = batch;
            let query = Arc::clone(&task.query);
            self.commit(&EpochKey { query, epoch: Epoch::Batch(batch - 1) });
        }
    }

    /// Spark has committed an epoch: its logs are forgotten, and agents are told with their next beat.
    pub fn commit(&mut self, key: &EpochKey) {
        if let Epoch::Batch(batch) = key.epoch {
            self.states.commit(&key.query, batch);
        }
        let epochs = self.covered(key);
        // An RDD that was made may never have been computed.
        self.uses.retain(|epoch, _| !key.covers(epoch));
        if epochs.is_empty() {
            return;
        }
        self.tasks.retain(|task, _| !key.covers(&task.epoch_key()));
        self.places.forget(|epoch| key.covers(epoch));
        let below = self.newest.next();
        // Nobody runs an execution again, and many of them would crowd out names.
        if !key.is_execution() {
            self.over.insert(key, below);
        }
        self.commits.push_back(Commit { key: key.clone(), below, epochs });
        if self.commits.len() > COMMITS_MAX {
            self.commits.pop_front();
            self.commits_dropped += 1;
        }
        self.totals.commits += 1;
    }

    /// Epochs with logs that committing `key` commits.
    #[must_use]
    pub fn covered(&self, key: &EpochKey) -> Vec<EpochKey> {
        self.epochs().into_iter().filter(|epoch| key.covers(epoch)).collect()
    }

    /// Epochs of which some log is known.
    #[must_use]
    pub fn epochs(&self) -> Vec<EpochKey> {
        // Most tasks stand beside others of their epoch, and there may be many.
        let mut epochs: Vec<_> = self.tasks.keys().map(|task| (&task.query, &task.epoch)).collect();
        epochs.dedup();
        epochs.sort();
        epochs.dedup();
        epochs
            .into_iter()
            .map(|(query, epoch)| EpochKey { query: Arc::clone(query), epoch: epoch.clone() })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::protocol::{AgentInfo, OpenTask, Sent, Use};
    use crate::agent::registry::Granted;
    use crate::id::{AgentId, Generation, Partition, application_query};

    fn over(registry: &mut Registry, epoch: &str) -> Generation {
        let query = application_query("app").into();
        let epoch = Epoch::Named(epoch.into());
        let task = TaskId { query, operator: "f".into(), epoch, partition: Partition(0) };
        let number = registry.totals.opens + 1;
        let open = OpenTask {
            task,
            used: Use::default(),
            execution: None,
            app: 1,
            stage: 1,
            attempt: number,
            worker: number,
            inside: false,
            stamp: 0,
            of_rdd: None,
        };
        match registry.grant(&open, Sent { by: AgentId(1), number }, u64::MAX, None, 0) {
            Granted::Yes(grant) => {
                registry.commit(&open.task.epoch_key());
                grant.over
            }
            refused => panic!("{refused:?}"),
        }
    }

    #[test]
    fn a_name_is_known_to_be_used_again_however_many_executions_came_between() {
        let mut registry = Registry::new();
        registry.register(
            AgentInfo { id: AgentId(1), addr: "1".into(), host: "1".into(), driver: false },
            "",
            0,
        );
        assert_eq!(over(&mut registry, "daily"), Generation::NONE);
        let first = registry.newest;
        for number in 0..3_000 {
            assert_eq!(over(&mut registry, &format!("sql-{number}")), Generation::NONE);
        }
        assert_eq!(over(&mut registry, "daily"), first.next());
    }
}
