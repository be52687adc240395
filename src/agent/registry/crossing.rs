//! Stages that are in each other's way: they compute one operator in one epoch, and what one records the other is to find.
//!
//! Two that cut it alike have the same rows in the same partition, so that one waits there for the other. Of two that cut
//! it otherwise any log may have any row, and only one has some open at a time. A task may have the log of one use open
//! and wait for that of another: if queries have these in another order, each waits for the next, in a circle. Then the
//! attempt of the youngest stage fails, and from then on only one of these stages has anything open in the epoch.
//!
//! While an attempt waits that has something open, the stage that it waits for begins no more tasks: else it might wait
//! until the last of them has ended.

use std::collections::{HashMap, HashSet};

use super::parts::first_part;
use super::rdds::Beside;
use super::{Granted, Registry};
use crate::agent::protocol::{Layout, OpenTask};
use crate::id::{Partition, TaskId};

/// Who has not asked again for longer waits no more: agents ask at least twice a second, if they run.
const ASKED_MS: u64 = 3_000;
/// A task that has something open waits no longer, whatever for, if nothing is recorded of that.
const PATIENCE_MS: u64 = 3_600_000;
/// From then on it is said that a partition of an RDD may be waited for in vain.
const TOLD_MS: u64 = 10_000;

/// An application and a stage, and how far its tasks are from the partitions of an RDD.
type Stage = (u64, u32, u32);

/// An attempt that has something open and waits.
#[derive(Debug, Clone, Copy)]
struct Wait {
    stage: Stage,
    /// The stage that it waits for.
    other: Stage,
    /// In which partition, unless it is for any.
    partition: Option<Partition>,
    /// How much is recorded of it, as far as that is known, and since when no more.
    recorded: u64,
    since_ms: u64,
    asked_ms: u64,
}

/// Stages of one epoch that wait for each other.
#[derive(Debug, Default)]
pub(super) struct Crossing {
    /// By attempts, of which each has a number in its application.
    waits: HashMap<(u64, u64), Wait>,
    /// Stages that have waited for each other.
    apart: HashSet<(Stage, Stage)>,
    /// Attempts that wait for themselves.
    pub(super) beside: Beside,
}

impl Crossing {
    fn are_apart(&self, one: Stage, other: Stage) -> bool {
        self.apart.contains(&(one.min(other), one.max(other)))
    }

    /// An attempt that has something open waits; whether it would for ever.
    fn waits(&mut self, attempt: u64, wait: Wait) -> bool {
        let now_ms = wait.asked_ms;
        self.waits.retain(|_, wait| now_ms.saturating_sub(wait.asked_ms) <= ASKED_MS);
        let known = self.waits.entry((wait.stage.0, attempt)).or_insert(wait);
        let since_ms = if known.recorded == wait.recorded { known.since_ms } else { now_ms };
        *known = Wait { since_ms, ..wait };
        let is_patient = now_ms.saturating_sub(known.since_ms) <= PATIENCE_MS;
        let Some(circle) = self.circle(&wait).or_else(|| (!is_patient).then(|| vec![wait.stage, wait.other]))
        else {
            return false;
        };
        for (at, one) in circle.iter().enumerate() {
            let others = circle.iter().skip(at + 1);
            self.apart.extend(others.map(|other| (*one.min(other), *one.max(other))));
        }
        let is_for_ever = !is_patient || circle.iter().all(|stage| *stage <= wait.stage);
        if is_for_ever {
            self.ends(wait.stage.0, attempt);
        }
        is_for_ever
    }

    /// Whether an attempt has waited so long by now that it is to be said, for the first time.
    fn is_long(&self, attempt: u64, wait: &Wait) -> bool {
        let known = self.waits.get(&(wait.stage.0, attempt));
        known.is_some_and(|known| (known.asked_ms..wait.asked_ms).contains(&(known.since_ms + TOLD_MS)))
    }

    /// The stages of which each waits for what the next has open, or may have, and the last for the first.
    fn circle(&self, first: &Wait) -> Option<Vec<Stage>> {
        // Ways to a stage, with the partition that all on it have, if they have one.
        let mut ways = vec![(vec![first.stage], first.other, first.partition)];
        let mut seen = HashSet::new();
        while let Some((way, next, partition)) = ways.pop() {
            if next == first.stage {
                return Some(way);
            }
            if !seen.insert((next, partition)) {
                continue;
            }
            let goes_on = |wait: &&Wait| {
                let is_one_log =
                    partition.is_none() || wait.partition.is_none() || partition == wait.partition;
                wait.stage == next && is_one_log
            };
            ways.extend(self.waits.values().filter(goes_on).map(|wait| {
                let way = way.iter().copied().chain([next]).collect();
                (way, wait.other, partition.or(wait.partition))
            }));
        }
        None
    }

    /// An attempt of an application waits no more.
    fn ends(&mut self, app: u64, attempt: u64) {
        self.waits.remove(&(app, attempt));
    }

    /// Whether an attempt that has something open waits for what `stage` has in a partition.
    fn is_waited_for(&self, stage: Stage, partition: Partition, now_ms: u64) -> bool {
        let is_asked = |wait: &Wait| now_ms.saturating_sub(wait.asked_ms) <= ASKED_MS;
        let is_meant = |wait: &Wait| wait.other == stage && wait.partition.is_none_or(|of| of == partition);
        self.waits.values().any(|wait| is_meant(wait) && is_asked(wait))
    }
}

const fn stage_of(layout: &Layout, shift: u32) -> Stage {
    (layout.app, layout.stage, shift)
}

impl Registry {
    /// What an attempt is told that wants to open a task, if it has to wait for another stage. Nobody waits in vain: an
    /// agent that is silent is dead.
    pub(super) fn waits_for_others(
        &mut self,
        task: &TaskId,
        layout: &Layout,
        open: &OpenTask,
        now_ms: u64,
    ) -> Option<Granted> {
        let attempt = open.attempt;
        if let Some(waits) = self.waits_for_itself(task, open, now_ms) {
            return Some(waits);
        }
        // What else it has open may be of another RDD, in an epoch of its own: nobody sees a circle of these.
        let has_some = open.of_rdd.is_some() || self.has_some_open(task, layout, attempt);
        let stage = stage_of(layout, open.shift());
        let others = match self.of_same_partition(task, layout, stage) {
            Some(other) => Some((other, Some(task.partition))),
            None => self.in_the_way(task, (layout, stage), has_some, now_ms).map(|other| (other, None)),
        };
        let crossing = &mut self.uses_of(task).crossing;
        match others {
            Some((other, partition)) if has_some => {
                let recorded = open.of_rdd.map_or(0, |of| of.recorded);
                let wait = Wait { stage, other, partition, recorded, since_ms: now_ms, asked_ms: now_ms };
                if open.of_rdd.is_some() && crossing.is_long(attempt, &wait) {
                    tracing::warn!(
                        "partition {} of an RDD by {:?} is computed by two tasks, and one waits for the other: if that \
                         waits for this one in turn, as where two RDDs are zipped both ways round, neither goes on; \
                         persist them before, with rdd.persist()",
                        task.partition,
                        task.operator_name()
                    );
                }
                Some(if crossing.waits(attempt, wait) { Granted::Crossed } else { Granted::Busy })
            }
            Some(_) => Some(Granted::Busy),
            None if has_some => {
                crossing.ends(layout.app, attempt);
                None
            }
            None => crossing.is_waited_for(stage, task.partition, now_ms).then_some(Granted::Busy),
        }
    }

    /// Whether the attempt has a log of any use open.
    fn has_some_open(&self, task: &TaskId, layout: &Layout, attempt: u64) -> bool {
        let Some(uses) = self.uses.get(&task.epoch_key()) else { return false };
        uses.cuts.keys().any(|operator| {
            let first = TaskId { operator: operator.clone(), ..task.clone() };
            let openers = self.tasks.get(&first).and_then(|entry| entry.attempts.get(&(layout.app, attempt)));
            openers.is_some_and(|openers| openers.iter().any(|opener| !opener.is_over))
        })
    }

    /// The stage of another attempt that has the task open.
    fn of_same_partition(&mut self, task: &TaskId, layout: &Layout, stage: Stage) -> Option<Stage> {
        let live = self.tasks.get(task)?.live.filter(|live| !live.is_over)?;
        let other = stage_of(&live.layout, live.shift);
        if live.layout.app != layout.app || other == stage || !self.agents.is_alive(live.agent) {
            return None;
        }
        self.waits_for(task);
        Some(other)
    }

    /// Whether a newer attempt of the same task has it open: that one fences the older, whichever asks last. One that
    /// computes a partition of an RDD several times asks again and again.
    pub(super) fn is_for_newer(&self, task: &TaskId, layout: &Layout, open: &OpenTask) -> bool {
        let live = self.tasks.get(task).and_then(|entry| entry.live);
        live.is_some_and(|live| {
            let is_same = live.layout.same_stage(layout) && live.shift == open.shift();
            is_same && !live.is_over && live.attempt > open.attempt && self.agents.is_alive(live.agent)
        })
    }

    /// A stage that has a log open which is in the task's way, whichever partition it is of.
    fn in_the_way(
        &mut self,
        task: &TaskId,
        by: (&Layout, Stage),
        has_some: bool,
        now_ms: u64,
    ) -> Option<Stage> {
        loop {
            let mut logs = self.logs_in_the_way(task, by, has_some);
            let Some((log, stage)) = logs.find(|(log, _)| self.is_at_known_agent(log)) else { break };
            let (log, agent) = (log.clone(), self.tasks.get(log)?.live?.agent);
            drop(logs);
            if !self.is_dead(agent, false, now_ms) {
                self.waits_for(&log);
                return Some(stage);
            }
        }
        // Who is dead may not have heard of it, and go on.
        let left: Vec<TaskId> =
            self.logs_in_the_way(task, by, has_some).map(|(log, _)| log.clone()).collect();
        for log in left {
            // What rides in frames is in none of the logs that are looked at.
            if self.tasks.get(&log).is_some_and(|entry| entry.whole) {
                self.give_up(&log);
            }
        }
        None
    }

    fn is_at_known_agent(&self, log: &TaskId) -> bool {
        let live = self.tasks.get(log).and_then(|entry| entry.live.as_ref());
        live.is_some_and(|live| self.agents.info(live.agent).is_some())
    }

    fn logs_in_the_way<'a>(
        &'a self,
        task: &'a TaskId,
        (layout, stage): (&'a Layout, Stage),
        has_some: bool,
    ) -> impl Iterator<Item = (&'a TaskId, Stage)> {
        let uses = self.uses.get(&task.epoch_key());
        let all = uses.into_iter().flat_map(|uses| uses.cuts.iter().map(move |(of, cuts)| (uses, of, cuts)));
        all.flat_map(move |(uses, of, cuts)| {
            let is_same = &**of == first_part(&task.operator);
            let open = cuts.open.iter().filter(move |((open, shift), _)| {
                let cut_otherwise =
                    is_same && (open.has_another_number(layout) || open.has_other_borders(layout));
                let is_apart = || !has_some && uses.crossing.are_apart(stage_of(open, *shift), stage);
                open.app == layout.app && !open.same_stage(layout) && (cut_otherwise || is_apart())
            });
            open.flat_map(|((open, shift), logs)| logs.iter().map(move |log| (log, stage_of(open, *shift))))
        })
    }
}

#[cfg(test)]
mod tests;
