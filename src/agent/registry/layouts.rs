//! How the tasks of an operator were cut when its logs were recorded, and where rows are if that was otherwise.

use std::sync::Arc;

use super::parts::{first_part, parts_of};
use super::{Entry, Registry};
use crate::agent::protocol::{Layout, PoolEntry};
use crate::id::{LogOffset, Partition, TaskId};

impl Registry {
    /// Logs of other partitions that were recorded under another layout than `layout`.
    #[must_use]
    pub fn pool(&self, task: &TaskId, layout: &Layout) -> Vec<PoolEntry> {
        let other = |(id, entry): &(&TaskId, &Entry)| {
            **id != *task
                && entry.published
                && (!entry.layout.same_stage(layout) || entry.before_layout > LogOffset::START)
        };
        let entry = self.tasks.get(task);
        let pooled = entry.into_iter().flat_map(|entry| &entry.pooled).flat_map(|operator| {
            let task = TaskId { operator: Arc::clone(operator), ..task.clone() };
            let logs = self.siblings(&task).filter(|(_, entry)| entry.published);
            logs.map(|(id, entry)| self.whole(id, entry)).collect::<Vec<_>>()
        });
        // In the order of partitions, as the tasks are.
        self.siblings(task)
            .filter(other)
            .map(|(id, entry)| PoolEntry {
                task: id.clone(),
                holders: self.infos(&entry.holders),
                until: if entry.layout.same_stage(layout) {
                    entry.before_layout
                } else {
                    LogOffset(u64::MAX)
                },
            })
            .chain(pooled)
            .collect()
    }

    fn whole(&self, id: &TaskId, entry: &Entry) -> PoolEntry {
        PoolEntry { task: id.clone(), holders: self.infos(&entry.holders), until: LogOffset(u64::MAX) }
    }

    /// Whether the operator's epoch was recorded by a stage whose tasks were as many and, as far as plans tell,
    /// had other rows each.
    pub(super) fn has_other_borders(&self, task: &TaskId, layout: &Layout) -> bool {
        let is_other = |entry: &Entry| entry.published && entry.layout.has_other_borders(layout);
        self.siblings(task).any(|(_, entry)| is_other(entry) || entry.has_moved)
    }

    /// Whether the operator's epoch was recorded by a stage with another number of tasks, or by one whose
    /// tasks computed fewer partitions each.
    pub(super) fn recorded_otherwise(&self, task: &TaskId, layout: &Layout) -> bool {
        let Some(tasks) = layout.tasks else { return false };
        let is_recorded = self.tasks.get(task).is_some_and(|entry| entry.published);
        let is_another_part = !is_recorded && first_part(&task.operator) != &*task.operator;
        self.siblings(task).any(|(_, entry)| {
            entry.published
                && !entry.layout.same_stage(layout)
                && (is_another_part || entry.layout.tasks.is_some_and(|other| other != tasks))
        }) || self.siblings(task).any(|(_, entry)| {
            entry.layout.same_stage(layout) && entry.before_layout > LogOffset::START && entry.relaid
        })
    }

    /// Logs of all parts of the task's operator in all partitions of the epoch.
    pub(super) fn siblings<'a>(
        &'a self,
        task: &TaskId,
    ) -> impl Iterator<Item = (&'a TaskId, &'a Entry)> + use<'a> {
        let (first, parts) = parts_of(task);
        let epoch = task.epoch.clone();
        let of_epoch = move |(id, _): &(&TaskId, &Entry)| id.epoch == epoch && !id.is_in_flight();
        self.logs_of(&first).chain(self.tasks.range(parts).filter(of_epoch))
    }

    /// Logs of the task's operator in all partitions of the epoch.
    pub(super) fn logs_of<'a>(
        &'a self,
        task: &TaskId,
    ) -> impl Iterator<Item = (&'a TaskId, &'a Entry)> + use<'a> {
        // A partition is the last part of a task's order.
        let at = |partition| TaskId { partition: Partition(partition), ..task.clone() };
        self.tasks.range(at(0)..=at(u32::MAX))
    }
}
