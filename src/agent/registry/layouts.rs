//! How the tasks of an operator were cut when its logs were recorded, and where rows are if that was otherwise.

use std::collections::{HashMap, HashSet};
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
    /// Logs that are open, by the layouts of those who have them open.
    pub(super) open: HashMap<Layout, HashSet<TaskId>>,
}

/// What one log adds to that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cut {
    published: Option<Layout>,
    relaid: bool,
    moved: bool,
    older: bool,
    open: Option<Layout>,
}

impl Entry {
    fn cut(&self) -> Cut {
        let published = self.published.then_some(self.layout);
        let open = self.live.filter(|live| !live.is_over).map(|live| live.layout);
        let older = self.published && self.before_layout > LogOffset::START;
        Cut { published, relaid: self.relaid, moved: self.has_moved, older, open }
    }
}

impl Cuts {
    fn remove(&mut self, task: &TaskId, cut: Cut) {
        self.relaid -= usize::from(cut.relaid);
        self.moved -= usize::from(cut.moved);
        self.older -= usize::from(cut.older);
        if let Some(layout) = cut.open
            && let Some(logs) = self.open.get_mut(&layout)
        {
            logs.remove(task);
            if logs.is_empty() {
                self.open.remove(&layout);
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
        if let Some(layout) = cut.open {
            self.open.entry(layout).or_default().insert(task.clone());
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
        let before = entry.cut();
        let changed = change(entry);
        let after = entry.cut();
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
        let other = |(_, entry): &(&TaskId, &Entry)| entry.was_published_by_others(layout);
        let until = |entry: &Entry| match entry.layout.same_stage(layout) {
            true => entry.before_layout,
            false => LogOffset(u64::MAX),
        };
        let lacks = self.has_gaps(task, layout);
        let others = self.siblings(task).filter(other).map(|(id, entry)| (id, entry, until(entry), lacks));
        let entry = self.tasks.get(task);
        let pooled = entry.into_iter().flat_map(|entry| &entry.pooled).flat_map(|operator| {
            let task = TaskId { operator: Arc::clone(operator), ..task.clone() };
            let logs = self.siblings(&task).filter(|(_, entry)| entry.published);
            let lacks = self.has_gaps(&task, layout);
            logs.map(move |(id, entry)| (id, entry, LogOffset(u64::MAX), lacks))
        });
        // In the order of partitions, as the tasks are.
        let mut logs = others.chain(pooled);
        if let Some(after) = after
            && !logs.by_ref().any(|(id, ..)| id == after)
        {
            return Err(Error::Misuse { what: format!("{after} is in no pool of {task} any more") });
        }
        let page = logs
            .take(count)
            .map(|(id, entry, until, may_lack_rows)| PoolEntry {
                task: id.clone(),
                holders: self.infos(&entry.holders),
                until,
                may_lack_rows,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::code::{Execution, Placed};
    use crate::agent::protocol::{AgentInfo, AgentStanding, Recording, Sent};
    use crate::agent::registry::Granted;
    use crate::id::Epoch;

    fn task(partition: u32) -> TaskId {
        let (query, operator) = ("q".into(), "f".into());
        TaskId { query, operator, epoch: Epoch::Batch(1), partition: Partition(partition) }
    }

    /// An attempt of a stage of so many tasks opens a log; with `tells`, it says that it has it.
    fn opens(
        registry: &mut Registry,
        (stage, tasks): (u32, u32),
        partition: u32,
        agent: u64,
        tells: bool,
    ) -> Layout {
        let attempt = u64::from(100 * stage + partition);
        let open = OpenTask {
            task: task(partition),
            used: Use::default(),
            execution: None,
            app: 1,
            stage,
            attempt,
            worker: attempt,
            inside: false,
            stamp: 0,
        };
        let (by, number) = (AgentId(agent), attempt);
        let Granted::Yes(grant) = registry.grant(&open, Sent { by, number }, 0, Some(tasks), 0) else {
            panic!("nobody is in the way");
        };
        if tells {
            let sent = Sent { by, number };
            let adopted = Some((LogOffset(5), grant.layout));
            registry.holding(&grant.task, grant.generation, &[by], adopted, true, sent).unwrap();
            registry.over(by, &[(grant.task.clone(), grant.generation)]);
        }
        grant.layout
    }

    #[test]
    fn a_silent_agent_is_dead_only_if_the_log_that_it_takes_over_is_waited_for() {
        let mut registry = Registry::new();
        for id in [1, 2, 3] {
            let (addr, host) = (format!("{id}"), format!("{id}"));
            registry.register(AgentInfo { id: AgentId(id), addr, host, driver: false }, "", 0);
        }
        for partition in 0..2 {
            opens(&mut registry, (1, 4), partition, 1, true);
        }
        opens(&mut registry, (2, 2), 0, 2, false);
        let layout = opens(&mut registry, (2, 2), 1, 3, true);
        let mut now_ms = 0;
        for (after, waits, standing) in [
            (None, false, AgentStanding::Alive),
            (Some(task(0)), true, AgentStanding::Alive),
            (None, true, AgentStanding::Dead),
        ] {
            for _ in 0..20 {
                now_ms += 500;
                registry.look_at_clock(now_ms);
            }
            let page = registry.pool(&task(1), &layout, after.as_ref(), waits, now_ms).unwrap();
            assert!(!page.is_empty());
            assert_eq!(registry.heartbeat(AgentId(2), 0, now_ms).0, standing);
        }
    }

    #[test]
    fn a_task_hears_that_as_many_with_other_borders_recorded() {
        let mut registry = Registry::new();
        let (addr, host) = ("1".to_owned(), "1".to_owned());
        registry.register(AgentInfo { id: AgentId(1), addr, host, driver: false }, "", 0);
        let mut recording = |stage: u32, borders: u64| {
            let (used, attempt) = (Use { token: u64::from(stage), ..Use::default() }, u64::from(stage));
            let execution = Some(Execution { id: attempt, root: attempt });
            let (app, worker, inside, stamp) = (1, attempt, false, 0);
            let open =
                OpenTask { task: task(0), used, execution, app, stage, attempt, worker, inside, stamp };
            let plan = Plan { exact: 1, shape: 2, data: 3 };
            let operator = Arc::clone(&open.task.operator);
            registry.planned(&open, Some(vec![Placed { operator, used, over: 1, tables: 1, plan }]));
            let (sent, cut) = (
                Sent { by: AgentId(1), number: attempt },
                StageCut { tasks: Some(2), borders: Borders(borders << 17) },
            );
            let Granted::Yes(grant) = registry.grant(&open, sent, 0, cut, 0) else {
                panic!("nobody is in the way")
            };
            let adopted = Some((LogOffset(5), grant.layout));
            registry.holding(&grant.task, grant.generation, &[AgentId(1)], adopted, true, sent).unwrap();
            registry.over(AgentId(1), &[(grant.task.clone(), grant.generation)]);
            let Recording { moved, pooled, dealt, layout_changed, .. } = grant.recording;
            assert!(moved == pooled && moved == dealt && !layout_changed);
            moved
        };
        assert_eq!(
            [(1, 4), (2, 4), (3, 8), (4, 4)].map(|(stage, borders)| recording(stage, borders)),
            [false, false, true, true]
        );
    }

    #[test]
    fn where_no_plan_is_known_borders_are() {
        let (used, execution) = (Use::default(), None);
        let (app, stage, attempt, worker, inside, stamp) = (1, 2, 3, 3, false, 0);
        let open = OpenTask { task: task(0), used, execution, app, stage, attempt, worker, inside, stamp };
        let of =
            |borders: u64| StageCut { tasks: Some(4), borders: Borders(borders << 17) }.layout(&open, None);
        assert!(of(4).is_cut_alike(&of(4)) && !of(4).has_other_borders(&of(4)));
        assert!(!of(4).is_cut_alike(&of(8)) && of(4).has_other_borders(&of(8)));
        assert!(!of(4).is_cut_alike(&of(0)) && !of(4).has_other_borders(&of(0)));
    }

    #[test]
    fn rows_may_be_elsewhere_where_no_plan_tells_and_another_stage_has_published() {
        let mut registry = Registry::new();
        let (addr, host) = ("1".to_owned(), "1".to_owned());
        registry.register(AgentInfo { id: AgentId(1), addr, host, driver: false }, "", 0);
        let first = opens(&mut registry, (1, 4), 0, 1, true);
        let dealt = |registry: &Registry, stage, borders| {
            let borders = Borders(borders);
            registry.may_be_dealt_otherwise(&task(1), &Layout { stage, borders, ..first })
        };
        assert!(dealt(&registry, 2, 7), "the lowest bit says so");
        assert!(!dealt(&registry, 2, 6) && !dealt(&registry, 1, 7));
        registry.change(&task(0), |entry| entry.layout.borders = Borders(7));
        assert!(dealt(&registry, 2, 6), "also if that is so of the one that recorded");
        registry.change(&task(0), |entry| entry.layout.borders = Borders(6));
        opens(&mut registry, (2, 4), 0, 1, true);
        assert!(dealt(&registry, 2, 7), "also once this stage goes on with all its logs");
    }
}
