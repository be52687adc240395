//! From what an epoch's tasks have decided to the next version.

use super::{POINTS_MAX, Pending, State, States};
use crate::error::{Error, Result};
use crate::state::{CommitPoint, StateId, Version};

/// Partitions that are named in a message.
const NAMED_MAX: usize = 8;

impl States {
    /// Spark has committed an epoch of a query, and all before it.
    pub(crate) fn commit(&mut self, query: &str, epoch: u64) {
        for (id, state) in self.states.iter_mut().filter(|(id, _)| &*id.query == query) {
            state.commit(id, epoch);
        }
    }
}

impl State {
    fn commit(&mut self, id: &StateId, until: u64) {
        while let Some((epoch, pending)) = self.pending.pop_first() {
            if epoch > until {
                self.pending.insert(epoch, pending);
                return;
            }
            match pending.check(id, epoch) {
                Ok(()) => self.advance(epoch, pending),
                Err(error) => {
                    self.broken.get_or_insert((error, Some(epoch)));
                }
            }
        }
    }

    fn advance(&mut self, epoch: u64, pending: Pending) {
        let tasks = pending.decided.iter().map(|(partition, decided)| (*partition, decided.generation));
        self.points.push_back(CommitPoint { epoch, partitions: pending.partitions, tasks: tasks.collect() });
        if self.points.len() > POINTS_MAX
            && let Some(first) = self.points.pop_front()
        {
            self.before_points = Version(Some(first.epoch));
        }
        self.basing.committed(pending.decided.values().map(|decided| decided.bytes).sum());
        self.due_ms = pending.due_ms();
        self.version = Version(Some(epoch));
        if let Some(catalog) = pending.catalog {
            self.catalog = catalog;
        }
    }

    /// What was committed after a version; `None` if that is not known any more.
    pub(super) fn points(&self, after: Version) -> Option<Vec<CommitPoint>> {
        let first = if after == self.before_points {
            0
        } else {
            1 + self.points.iter().position(|point| Version(Some(point.epoch)) == after)?
        };
        Some(self.points.range(first..).cloned().collect())
    }

    /// Whether an epoch may read it.
    ///
    /// # Errors
    /// Why nobody may; if an epoch was not all there and its query goes back to that, it may.
    pub(super) fn readable(&self, epoch: u64) -> Result<()> {
        match &self.broken {
            Some((_, Some(since))) if self.may_go_back && epoch <= *since => Ok(()),
            Some((error, _)) => Err(error.clone()),
            None => Ok(()),
        }
    }

    /// Whether the query has gone back to an epoch: that or a later one was committed, or a later one decided.
    pub(super) fn goes_back(&self, epoch: u64) -> bool {
        let is_later = |decided: &u64| *decided > epoch;
        self.may_go_back && (self.version >= Version(Some(epoch)) || self.pending.keys().any(is_later))
    }
}

impl Pending {
    /// When the first timer is due once that is committed: each task has told that of its partition.
    pub(super) fn due_ms(&self) -> Option<i64> {
        self.decided.values().filter_map(|decided| decided.due_ms).min()
    }

    /// Whether all tasks have come to their end.
    pub(super) fn check(&self, id: &StateId, epoch: u64) -> Result<()> {
        let missing: Vec<u32> = (0..self.partitions).filter(|at| !self.decided.contains_key(at)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let named: Vec<String> = missing.iter().take(NAMED_MAX).map(u32::to_string).collect();
        let more = missing.len() - named.len();
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        Err(Error::StateIncomplete {
            operator: id.operator.to_string(),
            epoch: format!("{}/{epoch}", id.query),
            missing: format!("{}{more} of {}", named.join(", "), self.partitions),
        })
    }
}
