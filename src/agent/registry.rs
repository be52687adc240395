//! Who holds what: the part of the driver's agent that every open asks once.
//!
//! A machine without I/O; time is an argument, in milliseconds of any clock that does not go back.

mod agents;
mod closing;
mod commits;
mod crossing;
mod entry;
mod exchange;
mod figures;
mod layouts;
mod moved;
mod parts;
mod places;
mod rdds;
mod refused;
mod repair;
mod silence;
mod state;
mod uses;
mod waiting;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

pub use agents::AGENT_SILENCE_MS_MAX;
use agents::Agents;
use figures::Figures;
pub use layouts::StageCut;
use repair::Short;

use super::committed::Committed;
use super::protocol::{Beginning, Commit, Grant, Layout, OpenTask, Placed, Recording, Sent, Totals};
use super::state::registry::States;
use crate::error::{Divergence, Error, Result};
use crate::id::{AgentId, EpochKey, Generation, LogOffset, TaskId};
use crate::task::Ended;
pub(crate) use parts::first_part;
pub use parts::number_of_part;
use parts::part_of;
use places::Places;
use uses::Uses;
pub(crate) use uses::name_of;
use waiting::Waiting;

/// Why an agent is not listened to.
const DEAD: &str = "it was declared dead";

/// The attempt that has a task open.
#[derive(Debug, Clone, Copy)]
struct Live {
    /// Where.
    agent: AgentId,
    layout: Layout,
    /// Spark's number of it, and which of its workers.
    attempt: u64,
    worker: u64,
    /// As [`OpenTask::shift`].
    shift: u32,
    /// When it was granted.
    granted_ms: u64,
    /// Whether its agent has said that it is over: how it ended may still arrive.
    is_over: bool,
}

/// Who opened a part of a log.
#[derive(Debug, Clone, Copy)]
struct Opener {
    worker: u64,
    /// Its last request that was granted, and the attempt.
    sent: Sent,
    generation: Generation,
    layout: Layout,
    /// Whether that attempt is over, so that its agent has heard of it.
    is_over: bool,
}

impl Opener {
    /// Whether a request comes when a later one was granted, or once more when what was granted to it is over.
    fn is_late(&self, sent: Sent) -> bool {
        sent.is_late(Some(self.sent)) || (sent == self.sent && self.is_over)
    }
}

/// The attempt that asked for all that is recorded.
#[derive(Debug, Clone, Copy)]
struct CameBack {
    run: u32,
    layout: Layout,
}

#[derive(Debug)]
struct Entry {
    generation: Generation,
    /// That of the last attempt; what agents have of the log may have taken its place since, as newer.
    granted: Generation,
    holders: HashSet<AgentId>,
    /// The request that said so last.
    told: Option<Sent>,
    published: bool,
    /// Whether its holders have it whole, as it was published and not only absorbed from frames.
    whole: bool,
    /// What something visible depends on, of what was absorbed from frames.
    shown: Beginning,
    layout: Layout,
    /// How much of the log stood when the current layout opened it first.
    before_layout: LogOffset,
    /// Whether some of it was recorded under a layout with another number of tasks.
    relaid: bool,
    /// Whether some was under one with other borders between them.
    has_moved: bool,
    /// What stood before the current layout opened it first.
    replaced: Option<Box<Replaced>>,
    live: Option<Live>,
    /// Openers of each attempt, in order: each has a part of the log, this being the first.
    attempts: HashMap<(u64, u64), Vec<Opener>>,
    /// How many parts those opened that are forgotten.
    forgotten: BTreeMap<(u64, u64), u32>,
    /// The newest of which not even that is known.
    unknown: Option<(u64, u64)>,
    /// Logs of other uses in which this task's rows may be recorded.
    pooled: Vec<Arc<str>>,
    /// Whether any of those could as well have been meant.
    uncertain: bool,
    /// Whether it is asked in a query with other numbers than when it was recorded.
    changed: bool,
    /// Other code than asks for it recorded the log of which it is a part: that one's hash.
    replaces: Option<u64>,
    opens: u64,
    rows: u64,
    replayed: u64,
    live_rows: u64,
    lost: u64,
    /// Who holds all frames of the last attempt that came to its end, and how its tasks were cut.
    frames: Option<(AgentId, Layout)>,
    /// Up to which attempt what agents have of the log is to be disregarded, until nobody has it any more.
    discarded: Option<Generation>,
    /// Where all that is recorded was asked for last.
    came_back: Option<CameBack>,
    ended: Ended,
    /// The same before the stage in which it did.
    ended_before: Ended,
    ended_in: Layout,
    /// The last attempt of another stage than that.
    before: Generation,
    /// The last attempts and their agents, but for those that came to nothing; the newest last.
    attempted: VecDeque<(Generation, AgentId)>,
    /// Agents that are about to make visible what nobody could be asked about; the newest last.
    claimants: Vec<AgentId>,
    /// What the last attempt that came to its end had taken in.
    used: Vec<(String, u64)>,
    ran_live: u64,
    ran_replayed: u64,
    resent: u64,
    /// Why an attempt was refused, and of which stage.
    refused: Option<(Layout, Box<Divergence>)>,
}

/// Executions of one streaming query, which Spark numbers in their order.
#[derive(Debug, Default)]
struct Run {
    /// The newest in which a task was opened.
    newest: Option<u64>,
    /// The same when the query was started last: those up to it are of runs before.
    ended: Option<u64>,
}

/// How the rows of a log had been recorded when another layout took it over.
#[derive(Debug, Clone, Copy)]
struct Replaced {
    layout: Layout,
    before_layout: LogOffset,
    relaid: bool,
    has_moved: bool,
}

/// How the rows of a log found in a checkpoint were recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recorded {
    /// The last of them.
    pub layout: Layout,
    /// Whether others were by another number of tasks.
    pub relaid: bool,
    /// Whether others were by tasks with other borders.
    pub has_moved: bool,
}

/// The answer to an open.
#[derive(Debug)]
pub enum Granted {
    /// Go ahead.
    Yes(Box<Grant>),
    /// Another stage is at work in which rows of the task may be answered: ask again.
    Busy,
    /// The same, and that stage waits for what this attempt has open.
    Crossed,
    /// The attempt waits for what it computes itself, and may for ever.
    Twice,
    /// An attempt of the same stage was refused.
    Refused(Box<Divergence>),
    /// The task is of a run of the epoch that is over, its opener has asked again since or has been and gone, or its agent
    /// was declared dead.
    Left,
    /// So many attempts came after this one that it is not known what it has had.
    Unknown,
}

/// The registry of one application.
#[derive(Debug, Default)]
pub struct Registry {
    agents: Agents,
    tasks: BTreeMap<TaskId, Entry>,
    /// Which log belongs to which use, by epoch.
    uses: HashMap<EpochKey, Uses>,
    /// Uses of each streaming query in the order of its plan, which all its batches share.
    plans: HashMap<Arc<str>, Vec<Placed>>,
    /// The newest generation of all: none is ever given twice, even if a task's entry was forgotten.
    newest: Generation,
    /// Numbers of the runs of named epochs that were begun and have not ended.
    stamps: HashMap<EpochKey, u64>,
    /// The newest micro-batch of each query.
    batches: HashMap<Arc<str>, u64>,
    /// Which of Spark's executions are of the run that each query is in.
    runs: HashMap<Arc<str>, Run>,
    commits: VecDeque<Commit>,
    over: Committed,
    /// Commits that are not kept any more.
    commits_dropped: u64,
    totals: Totals,
    figures: Figures,
    places: Places,
    short: Short,
    waiting: Waiting,
    states: States,
}

impl Registry {
    /// A registry that knows nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Generations begin after this one: those of earlier applications on the same logs are older.
    pub fn begin_after(&mut self, generation: Generation) {
        self.newest = self.newest.max(generation);
        self.states.begin_after(generation);
    }

    /// A log found in a checkpoint, held by `agent` from now on.
    pub fn recovered(&mut self, task: TaskId, generation: Generation, recorded: Recorded, agent: AgentId) {
        self.newest = self.newest.max(generation);
        let name = first_part(&task.operator);
        self.uses_of(&task).recovered(name, &recorded.layout);
        self.tasks.entry(task.clone()).or_insert_with(|| Entry::new(recorded.layout));
        self.change(&task, |entry| {
            *entry = Entry::recovered(recorded);
            entry.generation = generation;
            entry.published = true;
            entry.holders.insert(agent);
        });
        self.places.are(&task, &[agent]);
    }

    /// An attempt wants to open its task's log: the next part of it, if it opened some. A request that is repeated is granted
    /// what it was; one behind a later one of its opener, or when what it was granted is over, is granted nothing.
    pub fn grant(
        &mut self,
        open: &OpenTask,
        sent: Sent,
        commits_seen: u64,
        cut: impl Into<StageCut>,
        now_ms: u64,
    ) -> Granted {
        self.look_for_silent(now_ms);
        if !self.is_of_this_run(open) {
            return Granted::Left;
        }
        self.begin_batch(&open.task);
        if !self.admits(&open.task.epoch_key(), open.stamp) {
            return Granted::Left;
        }
        let execution = open.execution.map(|execution| execution.id);
        let Some(named) = self.uses_of(&open.task).name(&open.task.operator, open.used, execution) else {
            return Granted::Left;
        };
        let layout = cut.into().layout(open, named.plan);
        let first = TaskId { operator: named.operator, ..open.task.clone() };
        if self.tasks.get(&first).is_some_and(|entry| entry.may_have_opened((open.app, open.attempt))) {
            // It might have the log of a part that it had before; Spark's next attempt begins with the first.
            return Granted::Unknown;
        }
        let (number, opener) = self.opener(&first, open);
        if opener.is_some_and(|opener| opener.is_late(sent)) || self.agents.is_dead(sent.by) {
            return Granted::Left;
        }
        let task = part_of(&first, if open.of_rdd.is_some() { 0 } else { number });
        if let Some(divergence) = self.refused_in(&task, &layout) {
            return Granted::Refused(divergence);
        }
        if self.is_for_newer(&task, &layout, open) {
            return Granted::Left;
        }
        if let Some(waits) = self.waits_for_others(&task, &layout, open, now_ms) {
            return waits;
        }
        let entry = self.tasks.entry(task.clone()).or_insert_with(|| Entry::new(layout));
        (entry.pooled, entry.uncertain, entry.changed) = (named.others, named.uncertain, named.changed);
        entry.replaces = named.replaces;
        // What it was granted last it has not heard of, or it would not ask.
        let unheard = opener.filter(|opener| opener.generation == entry.granted);
        let (attempt, worker, shift) = (open.attempt, open.worker, open.shift());
        let (agent, granted_ms) = (sent.by, now_ms);
        let live = Live { agent, layout, attempt, worker, shift, granted_ms, is_over: false };
        // Unless it was withdrawn, is over, or something newer stands in its place.
        let stands = self.tasks.get(&task).is_some_and(|entry| {
            let is_last = entry.attempted.back().is_some_and(|last| *last == (entry.granted, sent.by));
            let is_live = entry.live.is_some_and(|live| live.agent == sent.by && !live.is_over);
            entry.generation == entry.granted && is_last && is_live
        });
        let given = unheard.filter(|opener| stands && opener.sent == sent).map(|opener| opener.generation);
        if given.is_none() && open.inside && self.is_superseded(&task, &layout) {
            self.change(&task, Entry::begin_anew);
        }
        self.uses_of(&task).moved.opened(&task, &layout);
        let mut grant = self.granted(task, live, given, commits_seen);
        let granted = Opener { worker, sent, generation: grant.generation, layout, is_over: false };
        let entry = self.tasks.entry(first).or_insert_with(|| Entry::new(layout));
        entry.opened_by((open.app, open.attempt), number, granted, open.of_rdd.is_some());
        if open.inside && grant.reopened {
            // Whoever consumed a frame of this task has absorbed its log.
            grant.holders = self.agents.known().cloned().collect();
        }
        Granted::Yes(Box::new(grant))
    }

    /// The generation of a new attempt, or that which was given.
    fn numbered(&mut self, given: Option<Generation>) -> Generation {
        self.totals.opens += u64::from(given.is_none());
        let generation = given.unwrap_or_else(|| self.newest.next());
        self.newest = self.newest.max(generation);
        generation
    }

    /// A new attempt, or the last one, if that was `given` to this request.
    fn granted(&mut self, task: TaskId, live: Live, given: Option<Generation>, commits_seen: u64) -> Grant {
        let layout = live.layout;
        let generation = self.numbered(given);
        let (committed, commits) = self.commits_since(commits_seen);
        let over = self.over.below(&task.epoch_key()).unwrap_or(Generation::NONE);
        let layout_changed = self.recorded_otherwise(&task, &layout);
        let moved = self.has_other_borders(&task, &layout);
        let dealt = moved || self.may_be_dealt_otherwise(&task, &layout);
        let run = self.uses_of(&task).run;
        self.change(&task, |entry| {
            entry.layout = if entry.published { entry.layout } else { layout };
            entry.live = Some(live);
        });
        let agents = &self.agents;
        let alive = |id: &AgentId| agents.info(*id).filter(|_| agents.is_alive(*id)).cloned();
        let entry = self.tasks.entry(task.clone()).or_insert_with(|| Entry::new(layout));
        let opens = entry.opens - u64::from(given.is_some());
        let (reopened, has_several) = (opens > 0 || entry.published, opens > 1);
        let (discarded, shown) = (entry.discarded, entry.shown);
        // Of tasks that are cut otherwise they have other rows.
        let is_of_others = |cut: &Layout| cut.has_another_number(&layout) || cut.has_other_borders(&layout);
        let frames = entry.frames.filter(|(_, cut)| !is_of_others(cut)).and_then(|(at, _)| alive(&at));
        if discarded.is_some() {
            entry.attempted.clear();
        }
        if !entry.ended_in.same_stage(&layout) {
            (entry.ended_before, entry.ended_in, entry.before) = (entry.ended, layout, entry.generation);
        }
        (entry.generation, entry.granted, entry.opens) = (generation, generation, opens + 1);
        let ended_before = entry.ended_before;
        entry.attempted_at(generation, live.agent);
        let recording = Recording {
            same_stage: entry.layout.same_stage(&layout),
            of_others: entry.was_published_by_others(&layout),
            layout_changed,
            pooled: !entry.pooled.is_empty() || moved,
            moved,
            dealt,
            choice: layout.borders.choice(),
            uncertain: entry.uncertain,
            any_part: entry.changed
                || entry.came_back.is_some_and(|at| at.run == run && !at.layout.same_stage(&layout)),
            ended: entry.ended,
            run,
            replaces: entry.replaces,
        };
        let (published, holders, pooled) = (entry.published, entry.holders.clone(), entry.pooled.clone());
        let whole = entry.whole.then(|| holders.iter().copied().collect());
        Grant {
            task,
            generation,
            holders: self.infos(&holders),
            published,
            whole,
            shown,
            has_several,
            reopened,
            discarded,
            frames,
            members: self.agents.version(),
            layout,
            pooled,
            recording,
            ended_before,
            over,
            used: 0,
            committed,
            commits,
        }
    }

    /// Who holds the log of this generation from now on.
    ///
    /// # Errors
    /// [`Error::Fenced`] if a newer attempt has opened the task, or the epoch is committed: what the older
    /// one published after that must not be acknowledged. [`Error::AgentUnreachable`] if its agent was declared dead.
    pub fn holding(
        &mut self,
        task: &TaskId,
        generation: Generation,
        holders: &[AgentId],
        adopted: Option<(LogOffset, Layout)>,
        whole: bool,
        sent: Sent,
    ) -> Result<()> {
        if self.agents.is_dead(sent.by) {
            return Err(Error::AgentUnreachable { agent: sent.by.to_string(), reason: DEAD.to_owned() });
        }
        let newer = self.tasks.get(task).map_or(Generation::NONE, |entry| entry.generation);
        if newer != generation || !self.tasks.contains_key(task) {
            return Err(Error::Fenced { task: task.clone(), newer, ours: generation });
        }
        self.change(task, |entry| entry.holding(holders, adopted, whole, sent));
        self.places.are(task, holders);
        self.uses_of(task).published(first_part(&task.operator));
        // Some of them may leave by now.
        self.look_if_short(task);
        Ok(())
    }
}
