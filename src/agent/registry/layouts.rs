//! How the tasks of an operator were cut when its logs were recorded, and where rows are if that was otherwise.

use std::collections::{HashMap, HashSet};
use std::ops::Bound;
use std::sync::Arc;

use super::parts::{first_part, parts_of};
use super::{Entry, Live, Registry};
use crate::agent::protocol::{Borders, Layout, OpenTask, Plan, PoolEntry, Use};
use crate::error::{Error, Result};
use crate::id::{AgentId, Generation, LogOffset, Partition, TaskId};
use crate::task::Ended;

/// How the rows of a use are cut into the tasks of a stage, as far as Spark tells.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StageCut {
    /// How many there are.
    pub tasks: Option<u32>,
    /// By what.
    pub borders: Borders,
}

impl From<Option<u32>> for StageCut {
    fn from(tasks: Option<u32>) -> Self {
        Self { tasks, borders: Borders::UNKNOWN }
    }
}

impl StageCut {
    /// The layout of a task that a stage opens.
    pub(super) fn layout(self, open: &OpenTask, plan: Option<Plan>) -> Layout {
        let OpenTask { app, stage, used: Use { code, .. }, .. } = *open;
        Layout { app, stage, tasks: self.tasks, code, plan, borders: self.borders }
    }
}

/// Logs that are told of in one answer: about a megabyte.
pub(super) const POOL_PAGE: usize = 1 << 12;

/// What an operator's logs of one epoch say together of how its tasks were cut: each open asks for it, and
/// there may be a hundred thousand of them.
#[derive(Debug, Default)]
pub(super) struct Cuts {
    /// Published logs by their last layouts.
    published: HashMap<Layout, usize>,
    /// Logs of which some was recorded by another number of tasks than the last.
    relaid: usize,
    /// Logs whose borders were others before.
    moved: usize,
    /// Logs of which a stage before the last has published some.
    older: usize,
    /// Logs that are open, by the layouts and shifts of those who have them open.
    pub(super) open: HashMap<(Layout, u32), HashSet<TaskId>>,
}

/// What one log adds to that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cut {
    published: Option<Layout>,
    relaid: bool,
    moved: bool,
    older: bool,
    open: Option<(Layout, u32)>,
}

impl Entry {
    fn cut(&self) -> Cut {
        let published = self.published.then_some(self.layout);
        let open = self.live.filter(|live| !live.is_over).map(|live| (live.layout, live.shift));
        let older = self.published && self.before_layout > LogOffset::START;
        Cut { published, relaid: self.relaid, moved: self.has_moved, older, open }
    }
}

impl Cuts {
    fn remove(&mut self, task: &TaskId, cut: Cut) {
        self.relaid -= usize::from(cut.relaid);
        self.moved -= usize::from(cut.moved);
        self.older -= usize::from(cut.older);
        if let Some(opened) = cut.open
            && let Some(logs) = self.open.get_mut(&opened)
        {
            logs.remove(task);
            if logs.is_empty() {
                self.open.remove(&opened);
            }
        }
        if let Some(layout) = cut.published
            && let Some(count) = self.published.get_mut(&layout)
        {
            *count -= 1;
            if *count == 0 {
                self.published.remove(&layout);
            }
        }
    }

    fn add(&mut self, task: &TaskId, cut: Cut) {
        self.relaid += usize::from(cut.relaid);
        self.moved += usize::from(cut.moved);
        self.older += usize::from(cut.older);
        if let Some(opened) = cut.open {
            self.open.entry(opened).or_default().insert(task.clone());
        }
        if let Some(layout) = cut.published {
            *self.published.entry(layout).or_default() += 1;
        }
    }
}

/// The agent at which an attempt of the layout opens a log of another one.
fn taker(entry: &Entry, layout: &Layout) -> Option<AgentId> {
    let is_opening = |live: &&Live| live.layout.same_stage(layout) && !entry.layout.same_stage(layout);
    entry.live.as_ref().filter(is_opening).filter(|live| !live.is_over).map(|live| live.agent)
}

impl Registry {
    /// Changes what is known of a log; `None` if nothing is. All changes of a layout, of whether something was
    /// published, and of who has it open, are made here.
    pub(super) fn change<T>(&mut self, task: &TaskId, change: impl FnOnce(&mut Entry) -> T) -> Option<T> {
        let entry = self.tasks.get_mut(task)?;
        let (before, opener_before) = (entry.cut(), entry.live.map(|live| live.agent));
        let changed = change(entry);
        let (after, opener) = (entry.cut(), entry.live.map(|live| live.agent));
        if let Some(opener) = opener.filter(|_| opener != opener_before) {
            self.places.are(task, &[opener]);
        }
        if before != after && !task.is_in_flight() {
            let cuts = self.uses_of(task).cuts.entry(first_part(&task.operator).into()).or_default();
            cuts.remove(task, before);
            cuts.add(task, after);
        }
        Some(changed)
    }

    fn cuts(&self, task: &TaskId) -> Option<&Cuts> {
        self.uses.get(&task.epoch_key())?.cuts.get(first_part(&task.operator))
    }

    /// Logs of a task's operator that were recorded under another layout than `layout`, its own among them: the
    /// next [`POOL_PAGE`] behind `after`, in an order to which others are only added. `waits`: whoever asks goes on once the
    /// first of them is not being taken over any more.
    ///
    /// # Errors
    /// [`Error::Misuse`] if `after` is none of them: what is behind it is not known then.
    pub fn pool(
        &mut self,
        task: &TaskId,
        layout: &Layout,
        after: Option<&TaskId>,
        waits: bool,
        now_ms: u64,
    ) -> Result<Vec<PoolEntry>> {
        if waits && let Some(first) = self.pool_behind(task, layout, after, 1)?.first() {
            self.look_for_taker(&first.task, layout, now_ms);
        }
        self.pool_behind(task, layout, after, POOL_PAGE)
    }

    fn pool_behind(
        &self,
        task: &TaskId,
        layout: &Layout,
        after: Option<&TaskId>,
        count: usize,
    ) -> Result<Vec<PoolEntry>> {
        let until = |entry: &Entry| match entry.layout.same_stage(layout) {
            true => entry.before_layout,
            false => LogOffset(u64::MAX),
        };
        let is_own = |id: &TaskId| first_part(&id.operator) == first_part(&task.operator);
        let is_in = |id: &TaskId, entry: &Entry| match is_own(id) {
            true => entry.was_published_by_others(layout),
            false => entry.published,
        };
        let pooled = self.tasks.get(task).into_iter().flat_map(|entry| &entry.pooled);
        let of = |operator| TaskId { operator: Arc::clone(operator), ..task.clone() };
        let mut operators = std::iter::once(task.clone()).chain(pooled.map(of)).peekable();
        if let Some(after) = after {
            let is_its = |of: &TaskId| first_part(&of.operator) == first_part(&after.operator);
            while operators.next_if(|of| !is_its(of)).is_some() {}
            if operators.peek().is_none() || !self.tasks.get(after).is_some_and(|entry| is_in(after, entry)) {
                return Err(Error::Misuse { what: format!("{after} is in no pool of {task} any more") });
            }
        }
        // In the order of partitions, as the tasks are. Nobody looks again at what was told before.
        let mut behind = after;
        let logs = operators.flat_map(|of| {
            let begins = behind.is_none();
            let logs = self.siblings_behind(&of, behind.take()).filter(|(id, entry)| is_in(id, entry));
            logs.zip(std::iter::once(begins).chain(std::iter::repeat(false)))
        });
        let page = logs
            .take(count)
            .map(|((id, entry), is_first)| PoolEntry {
                task: id.clone(),
                holders: self.infos(&entry.holders),
                until: if is_own(id) { until(entry) } else { LogOffset(u64::MAX) },
                // Whoever reads them all is told once.
                may_lack_rows: is_first && self.has_gaps(id, layout),
                generation: match entry.ended_in.same_stage(layout) {
                    true => entry.before,
                    false => entry.generation,
                },
                newest: match self.is_being_taken_over(entry, layout) {
                    true => Generation(entry.generation.0.saturating_sub(1)),
                    false => entry.generation,
                },
            })
            .collect();
        Ok(page)
    }

    /// Whether an attempt of the layout is opening a log of another one: it will say how much of it that has recorded.
    fn is_being_taken_over(&self, entry: &Entry, layout: &Layout) -> bool {
        taker(entry, layout).is_some_and(|agent| self.agents.info(agent).is_some())
    }

    /// Nobody waits in vain for who takes over a log: it is asked whether it is at it, and if it is silent it is dead, as it
    /// is gone on without.
    fn look_for_taker(&mut self, log: &TaskId, layout: &Layout, now_ms: u64) {
        let agent = self.tasks.get(log).and_then(|entry| taker(entry, layout));
        if agent.is_some_and(|agent| !self.is_dead(agent, false, now_ms)) {
            self.waits_for(log);
        }
    }

    /// Whether rows may be missing in the operator's logs of other layouts than `layout`: no stage of this application came to its
    /// end. Of what an earlier one left nobody knows.
    fn has_gaps(&self, task: &TaskId, layout: &Layout) -> bool {
        if self.uses.get(&task.epoch_key()).is_some_and(|uses| uses.moved.is_whole(task, layout)) {
            return false;
        }
        let ends = |entry: &Entry| match entry.ended_in.same_stage(layout) {
            true => entry.ended_before,
            false => entry.ended,
        };
        let of_others = || {
            let opened = |entry: &&Entry| entry.published || !entry.layout.same_stage(layout);
            self.siblings(task).map(|(_, entry)| entry).filter(opened)
        };
        of_others().any(|entry| ends(entry) == Ended::Never)
            || !of_others().any(|entry| ends(entry) == Ended::Unknown)
    }

    /// Whether the operator's epoch was recorded by a stage whose tasks were as many and, as far as Spark tells,
    /// had other rows each.
    pub(super) fn has_other_borders(&self, task: &TaskId, layout: &Layout) -> bool {
        self.cuts(task).is_some_and(|cuts| {
            cuts.moved > 0 || cuts.published.keys().any(|known| known.has_other_borders(layout))
        })
    }

    /// Whether the operator's epoch was recorded by another stage, which may have had other rows in each task though nothing
    /// tells that: rows of one of the two may be elsewhere each time.
    pub(super) fn may_be_dealt_otherwise(&self, task: &TaskId, layout: &Layout) -> bool {
        let deals = layout.borders.deals();
        self.cuts(task).is_some_and(|cuts| {
            // Those that stand in two sides of a union may have changed places.
            let is_rechosen = |known: &Layout| known.borders.choice().is_another(layout.borders.choice());
            let is_other = |known: &Layout| {
                is_rechosen(known) || (!known.same_stage(layout) && (deals || known.borders.deals()))
            };
            (deals && cuts.older > 0) || cuts.published.keys().any(is_other)
        })
    }

    /// Whether the operator's epoch was recorded by a stage with another number of tasks, or by one whose
    /// tasks computed fewer partitions each.
    pub(super) fn recorded_otherwise(&self, task: &TaskId, layout: &Layout) -> bool {
        let Some(tasks) = layout.tasks else { return false };
        let is_recorded = self.tasks.get(task).is_some_and(|entry| entry.published);
        let is_another_part = !is_recorded && first_part(&task.operator) != &*task.operator;
        let is_other = |known: &Layout| {
            // Where all is cut alike, tasks that computed fewer partitions were ended before they came to the others.
            !known.same_stage(layout)
                && (known.tasks.is_some_and(|other| other != tasks)
                    || (is_another_part && !known.is_cut_alike(layout)))
        };
        self.cuts(task).is_some_and(|cuts| cuts.relaid > 0 || cuts.published.keys().any(is_other))
    }

    /// Whether others can see what tasks of another number have recorded of the operator's epoch, and nothing of
    /// this log, which rides in frames alone: then it is perhaps of an earlier run, by as many tasks as now, for
    /// rows that have other answers since.
    pub(super) fn is_superseded(&self, task: &TaskId, layout: &Layout) -> bool {
        let is_shown = self.tasks.get(task).is_none_or(|entry| entry.published);
        let is_other = |known: &Layout| known.has_another_number(layout);
        !is_shown && self.cuts(task).is_some_and(|cuts| cuts.published.keys().any(is_other))
    }

    /// Logs of all parts of the task's operator in all partitions of the epoch.
    pub(super) fn siblings<'a>(
        &'a self,
        task: &TaskId,
    ) -> impl Iterator<Item = (&'a TaskId, &'a Entry)> + use<'a> {
        self.siblings_behind(task, None)
    }

    /// Those behind one of them.
    fn siblings_behind<'a>(
        &'a self,
        task: &TaskId,
        after: Option<&TaskId>,
    ) -> impl Iterator<Item = (&'a TaskId, &'a Entry)> + use<'a> {
        let (first, parts) = parts_of(task);
        let epoch = task.epoch.clone();
        let of_epoch = move |(id, _): &(&TaskId, &Entry)| id.epoch == epoch && !id.is_in_flight();
        let is_in_first = after.is_none_or(|after| after.operator == first.operator);
        let logs = is_in_first.then(|| self.logs_of(&first, after)).into_iter().flatten();
        let begin = after
            .filter(|_| !is_in_first)
            .map_or(Bound::Included(parts.start), |after| Bound::Excluded(after.clone()));
        logs.chain(self.tasks.range((begin, Bound::Excluded(parts.end))).filter(of_epoch))
    }

    /// Logs of the task's operator in all partitions of the epoch, or those behind one.
    pub(super) fn logs_of<'a>(
        &'a self,
        task: &TaskId,
        after: Option<&TaskId>,
    ) -> impl Iterator<Item = (&'a TaskId, &'a Entry)> + use<'a> {
        // A partition is the last part of a task's order.
        let at = |partition| TaskId { partition: Partition(partition), ..task.clone() };
        let begin = after.map_or(Bound::Included(at(0)), |after| Bound::Excluded(after.clone()));
        self.tasks.range((begin, Bound::Included(at(u32::MAX))))
    }
}

#[cfg(test)]
mod tests;
