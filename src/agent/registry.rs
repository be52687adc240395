//! Who holds what: the part of the driver's agent that every open asks once.
//!
//! A machine without I/O; time is an argument, in milliseconds of any clock that does not go back.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::protocol::{AgentInfo, Grant, Layout, OpenTask, PoolEntry, TaskStats, Totals};
use crate::error::{Error, Result};
use crate::id::{AgentId, EpochKey, Generation, LogOffset, TaskId};
use crate::task::Summary;

/// An agent that was silent for longer is not chosen as a peer.
pub const AGENT_SILENCE_MS_MAX: u64 = 4_000;

#[derive(Debug)]
struct Known {
    info: AgentInfo,
    seen_ms: u64,
}

#[derive(Debug)]
struct Entry {
    generation: Generation,
    holders: HashSet<AgentId>,
    published: bool,
    layout: Layout,
    /// How much of the log stood when the current layout opened it first.
    before_layout: LogOffset,
    /// Whether that layout had another number of tasks.
    relaid: bool,
    /// The attempt that has the task open, and the agent it does so at.
    live: Option<AgentId>,
    attempts: HashSet<(u64, u64)>,
    rows: u64,
    replayed: u64,
    live_rows: u64,
    lost: u64,
}

/// The answer to an open.
#[derive(Debug)]
pub enum Granted {
    /// Go ahead.
    Yes(Box<Grant>),
    /// An attempt of another stage has the task open: ask again, or give up.
    Busy,
}

/// The registry of one application.
#[derive(Debug, Default)]
pub struct Registry {
    agents: BTreeMap<AgentId, Known>,
    tasks: HashMap<TaskId, Entry>,
    commits: Vec<EpochKey>,
    totals: Totals,
}

impl Registry {
    /// A registry that knows nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// An agent says where it is.
    pub fn register(&mut self, info: AgentInfo, now_ms: u64) {
        self.agents.insert(info.id, Known { info, seen_ms: now_ms });
    }

    /// An agent says that it is alive: whether it is known, and what was committed since.
    pub fn heartbeat(
        &mut self,
        agent: AgentId,
        commits_seen: u64,
        now_ms: u64,
    ) -> (bool, Vec<EpochKey>, u64) {
        let known = self.agents.get_mut(&agent).map(|known| known.seen_ms = now_ms).is_some();
        let first = usize::try_from(commits_seen).unwrap_or(usize::MAX);
        let new = self.commits.get(first..).unwrap_or_default().to_vec();
        (known, new, self.commits.len() as u64)
    }

    /// A log found in a checkpoint, held by `agent` from now on.
    pub fn recovered(&mut self, task: TaskId, generation: Generation, layout: Layout, agent: AgentId) {
        let mut entry = Entry::new(layout);
        entry.generation = generation;
        entry.published = true;
        entry.holders.insert(agent);
        self.tasks.insert(task, entry);
    }

    /// An attempt wants to open its task's log.
    ///
    /// # Errors
    /// [`Error::OperatorUsedTwice`] if this very attempt opened it before.
    pub fn grant(
        &mut self,
        open: &OpenTask,
        agent: AgentId,
        tasks: Option<u32>,
        now_ms: u64,
    ) -> Result<Granted> {
        let layout = Layout { app: open.app, stage: open.stage, tasks };
        let agents = self.alive(now_ms);
        if let Some(entry) = self.tasks.get(&open.task) {
            if entry.attempts.contains(&(open.app, open.attempt)) {
                return Err(Error::OperatorUsedTwice { task: open.task.clone() });
            }
            let other_stage = entry.layout.app == open.app && entry.layout.stage != open.stage;
            let held_by_living = entry.live.is_some_and(|at| agents.iter().any(|agent| agent.id == at));
            if other_stage && held_by_living {
                return Ok(Granted::Busy);
            }
        }
        self.totals.opens += 1;
        let layout_changed = self.recorded_otherwise(&open.task, &layout);
        let entry = self.tasks.entry(open.task.clone()).or_insert_with(|| Entry::new(layout));
        entry.attempts.insert((open.app, open.attempt));
        if !entry.published {
            entry.layout = layout;
        }
        let same_stage = entry.layout.same_stage(&layout);
        entry.generation = entry.generation.next();
        entry.live = Some(agent);
        let (generation, published) = (entry.generation, entry.published);
        let holders = entry.holders.clone();
        Ok(Granted::Yes(Box::new(Grant {
            generation,
            holders: self.infos(&holders),
            published,
            agents,
            layout,
            same_stage,
            layout_changed,
        })))
    }

    /// Whether the operator's epoch was recorded by a stage with another number of tasks.
    fn recorded_otherwise(&self, task: &TaskId, layout: &Layout) -> bool {
        let Some(tasks) = layout.tasks else { return false };
        self.siblings(task).any(|(_, entry)| {
            entry.published
                && !entry.layout.same_stage(layout)
                && entry.layout.tasks.is_some_and(|other| other != tasks)
        }) || self.siblings(task).any(|(_, entry)| {
            entry.layout.same_stage(layout) && entry.before_layout > LogOffset::START && entry.relaid
        })
    }

    fn siblings<'a>(&'a self, task: &'a TaskId) -> impl Iterator<Item = (&'a TaskId, &'a Entry)> {
        self.tasks.iter().filter(|(other, _)| {
            other.operator == task.operator && other.query == task.query && other.epoch == task.epoch
        })
    }

    /// Who holds the log of this generation from now on.
    ///
    /// # Errors
    /// [`Error::Fenced`] if a newer attempt has opened the task: what the older one published after that
    /// must not be acknowledged.
    pub fn holding(
        &mut self,
        task: &TaskId,
        generation: Generation,
        holders: &[AgentId],
        adopted: Option<(LogOffset, Layout)>,
        published: bool,
    ) -> Result<()> {
        let newer = self.tasks.get(task).map_or(generation.next(), |entry| entry.generation);
        let Some(entry) = self.tasks.get_mut(task).filter(|entry| entry.generation == generation) else {
            return Err(Error::Fenced { task: task.clone(), newer, ours: generation });
        };
        entry.holders = holders.iter().copied().collect();
        entry.published |= published;
        if let Some((length, layout)) = adopted
            && !entry.layout.same_stage(&layout)
        {
            entry.relaid = entry.layout.tasks != layout.tasks;
            entry.before_layout = length;
            entry.layout = layout;
        }
        Ok(())
    }

    /// An attempt is over.
    pub fn closed(&mut self, task: &TaskId, generation: Generation, summary: &Summary, lost: bool) {
        self.totals.closed += 1;
        self.totals.rows += summary.rows;
        self.totals.replayed += summary.replayed;
        self.totals.live += summary.live;
        self.totals.calls += summary.calls;
        self.totals.bytes += summary.bytes;
        self.totals.lost += u64::from(lost);
        let Some(entry) = self.tasks.get_mut(task) else { return };
        entry.rows = entry.rows.max(summary.rows);
        entry.replayed += summary.replayed;
        entry.live_rows += summary.live;
        entry.lost += u64::from(lost);
        if entry.generation == generation {
            entry.live = None;
        }
    }

    /// Logs of other partitions that were recorded under another layout than `layout`.
    #[must_use]
    pub fn pool(&self, task: &TaskId, layout: &Layout) -> Vec<PoolEntry> {
        let other = |(id, entry): &(&TaskId, &Entry)| {
            **id != *task
                && entry.published
                && (!entry.layout.same_stage(layout) || entry.before_layout > LogOffset::START)
        };
        let mut pool: Vec<_> = self
            .siblings(task)
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
            .collect();
        pool.sort_by(|a, b| a.task.cmp(&b.task));
        pool
    }

    /// Spark has committed an epoch: its logs are forgotten, and agents are told with their next beat.
    pub fn commit(&mut self, key: &EpochKey) {
        if self.commits.last() == Some(key) {
            return;
        }
        self.tasks.retain(|task, _| !key.covers(&task.epoch_key()));
        self.commits.push(key.clone());
        self.totals.commits += 1;
    }

    /// Epochs of which some log is known.
    #[must_use]
    pub fn epochs(&self) -> Vec<EpochKey> {
        let mut epochs: Vec<_> = self.tasks.keys().map(TaskId::epoch_key).collect();
        epochs.sort();
        epochs.dedup();
        epochs
    }

    /// Agents heard of lately.
    #[must_use]
    pub fn alive(&self, now_ms: u64) -> Vec<AgentInfo> {
        let lately = |known: &&Known| {
            known.info.driver || now_ms.saturating_sub(known.seen_ms) <= AGENT_SILENCE_MS_MAX
        };
        self.agents.values().filter(lately).map(|known| known.info.clone()).collect()
    }

    fn infos(&self, ids: &HashSet<AgentId>) -> Vec<AgentInfo> {
        let mut infos: Vec<_> =
            ids.iter().filter_map(|id| self.agents.get(id)).map(|known| known.info.clone()).collect();
        infos.sort_by_key(|info| info.id);
        infos
    }

    /// Sums since the start.
    #[must_use]
    pub const fn totals(&self) -> Totals {
        self.totals
    }

    /// One line per task; sizes are filled in from the agents.
    #[must_use]
    pub fn task_stats(&self) -> Vec<(TaskId, TaskStats)> {
        let mut all: Vec<_> = self
            .tasks
            .iter()
            .map(|(task, entry)| {
                let stats = TaskStats {
                    task: task.to_string(),
                    operator: task.operator.to_string(),
                    partition: task.partition.0,
                    opens: entry.generation.0,
                    holders: self.infos(&entry.holders).into_iter().map(|info| info.addr).collect(),
                    bytes: 0,
                    spilled: 0,
                    sent: 0,
                    rows: entry.rows,
                    replayed: entry.replayed,
                    live: entry.live_rows,
                    lost: entry.lost,
                };
                (task.clone(), stats)
            })
            .collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    }
}

impl Entry {
    fn new(layout: Layout) -> Self {
        Self {
            generation: Generation::NONE,
            holders: HashSet::new(),
            published: false,
            layout,
            before_layout: LogOffset::START,
            relaid: false,
            live: None,
            attempts: HashSet::new(),
            rows: 0,
            replayed: 0,
            live_rows: 0,
            lost: 0,
        }
    }
}
