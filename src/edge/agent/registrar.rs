//! The way to the registry: in this process, if it is the driver's, else over a connection.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use super::claiming::before_first;
use super::plans::{Cut, Plans};
use super::state::{Clocks, KnownClocks, KnownReaders, NextBatches};
use super::values::NO_STAGE;
use crate::agent::members::News;
use crate::agent::permits::RateLimits;
use crate::agent::protocol::{
    AgentInfo, Beginning, Counting, Grant, Layout, OpenTask, PoolEntry, Recording, Repair, Reply, Request,
    Sent, Sharer, Silence,
};
use crate::agent::registry::{Granted, Registry, StageCut};
use crate::edge::locked;
use crate::edge::net::connections::Connections;
use crate::error::{Error, Result};
use crate::id::{AgentId, Epoch, Generation, Partition, TaskId};

/// What Spark knows of a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stage {
    /// How many tasks it has.
    pub tasks: u32,
    /// Whether all of them had come to their end once, so that what is behind the stage may have begun.
    pub was_complete: bool,
    /// Whether they write a shuffle, of which Spark may lose what it had.
    pub writes: bool,
}

/// Of which stage something is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct OfStage {
    /// Its number.
    pub number: u32,
    /// An RDD, if it is about the part of the stage that computes it, which has as many tasks as the RDD has partitions.
    pub rdd: Option<u32>,
    /// Whether a stream's micro-batch runs it.
    pub of_stream: bool,
}

/// Tells what there is to know of a Spark stage now, if it knows.
pub type Stages = Box<dyn Fn(OfStage) -> Option<Stage> + Send + Sync>;

/// Tells whether the task of a stage for a partition writes what a stage of an earlier job had written of the same
/// shuffle, and Spark has lost since.
pub type WasLost = Box<dyn Fn(u32, Partition) -> bool + Send + Sync>;

/// Stages whose number of tasks is remembered; older ones are over.
const STAGES_MAX: usize = 4_096;

/// Borders, once they were asked for.
type Answer = OnceLock<Cut>;

/// A stage, once Spark has told of it.
type Begun = Mutex<Option<Stage>>;

/// The registry's answer to an open.
pub(in crate::edge) enum Asked {
    Granted(Box<Grant>),
    /// Another stage has the task open.
    Busy,
    /// What is recorded of its epoch is still being read.
    NotYet,
}

/// The registry, or where it is.
pub(in crate::edge) enum Registrar {
    /// This is the driver's agent.
    Here(Box<LocalRegistry>),
    /// Address of the driver's agent.
    There(String),
}

/// The registry with what it needs of the driver.
pub(in crate::edge) struct LocalRegistry {
    pub(in crate::edge) registry: Mutex<Registry>,
    stages: Stages,
    was_lost: WasLost,
    plans: Plans,
    pub(super) clocks: KnownClocks,
    pub(super) readers: KnownReaders,
    /// How long Spark bears the silence of an executor.
    patience_ms: u64,
    /// First answers of `stages`: how a stage began does not change.
    begun: Mutex<BTreeMap<OfStage, Arc<Begun>>>,
    /// Answers of `plans`, by stage and use.
    borders: Mutex<BTreeMap<(u32, u64), Arc<Answer>>>,
    limits: Mutex<RateLimits>,
    /// Queries in which nothing may be recorded, with the reason.
    refused: Mutex<HashMap<String, Error>>,
    started: Instant,
    /// The application's number among those that attached to the checkpoint folder; 0 without one.
    incarnation: AtomicU64,
}

impl LocalRegistry {
    pub(in crate::edge) fn new(
        stages: Stages,
        was_lost: WasLost,
        plans: Plans,
        clocks: Clocks,
        next_batches: NextBatches,
        copies: usize,
        patience_ms: u64,
    ) -> Self {
        let mut registry = Registry::new();
        registry.want_copies(copies);
        Self {
            patience_ms,
            clocks: KnownClocks::new(clocks),
            readers: KnownReaders::new(next_batches),
            was_lost,
            plans,
            registry: Mutex::new(registry),
            stages,
            begun: Mutex::default(),
            borders: Mutex::default(),
            limits: Mutex::default(),
            refused: Mutex::default(),
            started: Instant::now(),
            incarnation: AtomicU64::new(0),
        }
    }

    /// The application has attached to its checkpoint folder.
    pub(in crate::edge) fn attached(&self, incarnation: u64) {
        self.incarnation.store(incarnation, Ordering::Release);
        let mut registry = locked(&self.registry);
        registry.begin_after(before_first(incarnation));
        // What is lost with an agent stands in the folder, if there is one.
        registry.bear(if incarnation > 0 { 0 } else { self.patience_ms });
    }

    pub(in crate::edge) fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Lets tasks of a query be opened from now on, or refuses them for a reason.
    pub(in crate::edge) fn admit(&self, query: &str, refused: Option<Error>) {
        let mut all = locked(&self.refused);
        match refused {
            Some(reason) => all.insert(query.to_owned(), reason),
            None => all.remove(query),
        };
    }

    fn stage(&self, open: &OpenTask) -> Option<Stage> {
        let of_stream = matches!(open.task.epoch, Epoch::Batch(_));
        let asked = OfStage { number: open.stage, rdd: open.of_rdd.map(|of| of.number), of_stream };
        let mut all = locked(&self.begun);
        let known = Arc::clone(all.entry(asked).or_default());
        if all.len() > STAGES_MAX {
            all.pop_first();
        }
        drop(all);
        // The answer comes from the user's process and may take its time, for which other tasks of the stage wait alone.
        let mut begun = locked(&known);
        if begun.is_none() {
            *begun = (self.stages)(asked);
        }
        *begun
    }

    /// By what the rows are cut that a use is asked over.
    fn cut(&self, open: &OpenTask) -> Cut {
        let (stage, token) = (open.stage, open.used.token);
        if token == 0 || stage == NO_STAGE || open.of_rdd.is_some() {
            // Such uses have answers wherever rows are, as a table has; and no plan tells of an RDD.
            return Cut::default();
        }
        let mut all = locked(&self.borders);
        let known = Arc::clone(all.entry((stage, token)).or_default());
        if all.len() > STAGES_MAX {
            all.pop_first();
        }
        drop(all);
        // The first tasks of a stage come together, and wait for one answer.
        *known.get_or_init(|| (self.plans.borders)(open))
    }

    /// Has the registry know the plan before one of its uses is given a log.
    fn look_at_plan(&self, open: &OpenTask) {
        let Some(execution) = open.execution else { return };
        if !locked(&self.registry).wants_plan(open) {
            return;
        }
        // Asked without a lock, as the number of tasks is.
        let plan = (self.plans.uses)(execution);
        locked(&self.registry).planned(open, plan);
    }

    /// Whether what attempts of this stage gave may have been used by now, though Spark runs their task again.
    /// Before the stage is complete that says that it was lost, or was not taken.
    fn was_used(&self, stage: u32) -> bool {
        let asked = OfStage { number: stage, rdd: None, of_stream: false };
        (self.stages)(asked).is_none_or(|stage| stage.was_complete)
    }

    /// Answers an open, which is of this use of its epoch's name. Spark, which may take its time, is asked without a lock.
    pub(in crate::edge) fn grant(
        &self,
        open: &OpenTask,
        sent: Sent,
        commits_seen: u64,
        used: u64,
    ) -> Result<Reply> {
        if let Some(reason) = locked(&self.refused).get(&*open.task.query) {
            return Err(reason.clone());
        }
        let stage = self.stage(open);
        self.look_at_plan(open);
        let Cut { borders, side } = self.cut(open);
        let mut cut = StageCut { tasks: stage.map(|stage| stage.tasks), borders };
        let place = side.and_then(|side| side.place(open.task.partition).map(|place| (place, side.tasks)));
        let moved = place.map(|(partition, tasks)| {
            cut.tasks = Some(tasks);
            OpenTask { task: TaskId { partition, ..open.task.clone() }, ..open.clone() }
        });
        let (open, task_of_stage) = (moved.as_ref().unwrap_or(open), open.task_of_stage());
        let now_ms = self.now_ms();
        let mut registry = locked(&self.registry);
        registry.look_at_clock(now_ms);
        let mut grant = match registry.grant(open, sent, commits_seen, cut, now_ms) {
            Granted::Yes(grant) => grant,
            Granted::Busy => return Ok(Reply::Busy),
            Granted::Refused(divergence) => return Err(Error::Divergence(divergence)),
            Granted::Crossed if open.of_rdd.is_some() => {
                return Err(Error::PartitionComputedTwice { task: open.task.clone() });
            }
            Granted::Crossed => return Err(Error::OperatorUsedTwice { task: open.task.clone() }),
            Granted::Twice => return Err(Error::PartitionComputedTwice { task: open.task.clone() }),
            Granted::Unknown => return Err(Error::AttemptUnknown { task: open.task.clone() }),
            Granted::Left => {
                let (task, none) = (open.task.clone(), Generation::NONE);
                return Err(Error::Fenced { task, newer: none, ours: none });
            }
        };
        drop(registry);
        let may_be_lost = !grant.reopened && stage.is_none_or(|stage| stage.writes);
        if may_be_lost && (self.was_lost)(open.stage, task_of_stage) {
            // What an earlier job read of this task was recorded then, and its epoch is over: a loss.
            let lost = (grant.task.clone(), grant.generation, Beginning::default());
            locked(&self.registry).visible(&[lost], &[])?;
            grant.published = true;
        }
        let Recording { ended, .. } = &mut grant.recording;
        if *ended != grant.ended_before && !self.was_used(open.stage) {
            *ended = grant.ended_before;
        }
        grant.used = used;
        Ok(Reply::Granted(grant))
    }

    /// Answers what agents ask the registry; `None` for requests that are not for it.
    pub(in crate::edge) fn handle(&self, request: &Request) -> Option<Result<Reply>> {
        if let Request::Permits { name, interval_ns, count } = request {
            let now_ns = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
            let wait_ns = locked(&self.limits).reserve(name, *interval_ns, *count, now_ns);
            return Some(Ok(Reply::PermitsFrom(wait_ns)));
        }
        let now_ms = self.now_ms();
        let mut registry = locked(&self.registry);
        registry.look_at_clock(now_ms);
        Some(match request {
            Request::Register { info, executor } => {
                registry.register(info.clone(), executor, now_ms);
                let (_, commits) = registry.commits_since(u64::MAX);
                Ok(Reply::Registered { incarnation: self.incarnation.load(Ordering::Acquire), commits })
            }
            Request::Heartbeat { agent, commits_seen } => {
                let (standing, committed, commits) = registry.heartbeat(*agent, *commits_seen, now_ms);
                let repairs = registry.has_repairs(*agent) || registry.has_joins(*agent);
                let waited_for = registry.waited_for(*agent);
                Ok(Reply::Beat { standing, committed, commits, repairs, waited_for })
            }
            Request::Leaving { agent } => Ok(Reply::IsNeeded(registry.leaving(*agent))),
            Request::Silent { agent, refused } => {
                Ok(Reply::SilenceIs(registry.silence(*agent, *refused, now_ms)))
            }
            Request::DeadAmong { agents } => Ok(Reply::AreDead(registry.dead_among(agents, now_ms))),
            Request::Holding { task, generation, holders, adopted, whole, sent } => {
                let held = registry.holding(task, *generation, holders, *adopted, *whole, *sent);
                held.map(|()| Reply::Done)
            }
            Request::Closed { task, generation, summary, ending, left } => {
                let closed = registry.closed(task, *generation, summary, ending.clone(), *left);
                closed.map(|()| Reply::Done)
            }
            Request::Over { agent, attempts } => {
                registry.over(*agent, attempts);
                Ok(Reply::Done)
            }
            Request::Counting { by, tasks } => registry.counting(*by, tasks).map(Reply::CountingAre),
            Request::Withdrawn { task, generation } => {
                registry.withdrawn(task, *generation);
                Ok(Reply::Done)
            }
            Request::Visible { tasks, holders, by } => {
                registry.visible_at(*by, tasks, holders).map(|()| Reply::Done)
            }
            Request::Discarded { task, generation } => {
                registry.discarded(task, *generation).map(|()| Reply::Done)
            }
            Request::Forgotten { task, generation } => {
                registry.forgotten(task, *generation);
                Ok(Reply::Done)
            }
            Request::TasksOf { task, token } => Ok(Reply::Tasks(registry.tasks_of(task, *token))),
            Request::Repairs { agent } => {
                Ok(Reply::RepairsAre(registry.repairs(*agent, self.patience_ms, now_ms)))
            }
            Request::Agents { seen } => Ok(Reply::AgentsAre(registry.news(*seen, now_ms))),
            Request::PoolOf { task, layout, after, waits } => {
                registry.pool(task, layout, after.as_ref(), *waits, now_ms).map(Reply::PoolIs)
            }
            _ => return None,
        })
    }
}

impl Registrar {
    fn ask(&self, connections: &Connections, request: &Request) -> Result<Reply> {
        match self {
            Self::Here(local) => local.handle(request).unwrap_or_else(|| Err(unexpected())),
            Self::There(addr) => connections.call_at(addr, request),
        }
    }

    /// Asks to open a task; in the driver with what [`Handler::use_now`] said before.
    ///
    /// [`Handler::use_now`]: super::handler::Handler::use_now
    pub(in crate::edge) fn grant(
        &self,
        connections: &Connections,
        open: &OpenTask,
        sent: Sent,
        commits_seen: u64,
        used: u64,
    ) -> Result<Asked> {
        let reply = match self {
            Self::Here(local) => local.grant(open, sent, commits_seen, used),
            Self::There(addr) => {
                connections.call_driver(addr, &Request::Grant { open: open.clone(), sent, commits_seen })
            }
        };
        match reply? {
            Reply::Granted(grant) => Ok(Asked::Granted(grant)),
            Reply::Busy => Ok(Asked::Busy),
            Reply::NotYet => Ok(Asked::NotYet),
            _ => Err(unexpected()),
        }
    }

    /// How many tasks the stage of an operator has, where known.
    pub(in crate::edge) fn tasks_of(
        &self,
        connections: &Connections,
        task: &TaskId,
        token: u64,
    ) -> Result<Option<u32>> {
        match self.ask(connections, &Request::TasksOf { task: task.clone(), token })? {
            Reply::Tasks(tasks) => Ok(tasks),
            _ => Err(unexpected()),
        }
    }

    /// Tells where an agent is; the incarnation of its application.
    pub(in crate::edge) fn register(
        &self,
        connections: &Connections,
        info: AgentInfo,
        executor: String,
    ) -> Result<(u64, u64)> {
        match self.ask(connections, &Request::Register { info, executor })? {
            Reply::Registered { incarnation, commits } => Ok((incarnation, commits)),
            _ => Err(unexpected()),
        }
    }

    /// This agent's executor has ended; whether there are logs that it should copy before it ends, too.
    pub(in crate::edge) fn leave(&self, connections: &Connections, agent: AgentId) -> Result<bool> {
        match self.ask(connections, &Request::Leaving { agent })? {
            Reply::IsNeeded(is_needed) => Ok(is_needed),
            _ => Err(unexpected()),
        }
    }

    /// Reserves permits of a rate limit.
    pub(in crate::edge) fn permits(&self, connections: &Connections, request: &Request) -> Result<Reply> {
        self.ask(connections, request)
    }

    /// Tells the registry something.
    pub(in crate::edge) fn tell(&self, connections: &Connections, request: Request) -> Result<()> {
        self.ask(connections, &request).map(drop)
    }

    /// What counts of each of these logs, that were absorbed here.
    pub(in crate::edge) fn counting(
        &self,
        connections: &Connections,
        by: Sharer,
        mut tasks: Vec<(TaskId, Generation)>,
    ) -> Result<Vec<Counting>> {
        let mut all = Vec::with_capacity(tasks.len());
        while !tasks.is_empty() {
            let Reply::CountingAre(first) =
                self.ask(connections, &Request::Counting { by, tasks: tasks.clone() })?
            else {
                return Err(unexpected());
            };
            if first.is_empty() || first.len() > tasks.len() {
                return Err(unexpected());
            }
            tasks.drain(..first.len());
            all.extend(first);
        }
        Ok(all)
    }

    /// Logs of which this agent should make another copy.
    pub(in crate::edge) fn repairs(&self, connections: &Connections, agent: AgentId) -> Result<Vec<Repair>> {
        match self.ask(connections, &Request::Repairs { agent })? {
            Reply::RepairsAre(repairs) => Ok(repairs),
            _ => Err(unexpected()),
        }
    }

    /// Logs of another layout, those behind `after`; none at their end. `waits`: for the first of them.
    pub(in crate::edge) fn pool(
        &self,
        connections: &Connections,
        task: &TaskId,
        layout: Layout,
        after: Option<TaskId>,
        waits: bool,
    ) -> Result<Vec<PoolEntry>> {
        match self.ask(connections, &Request::PoolOf { task: task.clone(), layout, after, waits })? {
            Reply::PoolIs(pool) => Ok(pool),
            _ => Err(unexpected()),
        }
    }

    /// What an agent that did not answer is taken for; not for dead, if that cannot be asked.
    pub(in crate::edge) fn silence(
        &self,
        connections: &Connections,
        agent: AgentId,
        refused: bool,
    ) -> Silence {
        match self.ask(connections, &Request::Silent { agent, refused }) {
            Ok(Reply::SilenceIs(silence)) => silence,
            _ => Silence::Heard,
        }
    }

    /// Those of some agents that are dead; one that was silent for long is from now on.
    pub(in crate::edge) fn dead_among(
        &self,
        connections: &Connections,
        agents: Vec<AgentId>,
    ) -> Result<Vec<AgentId>> {
        match self.ask(connections, &Request::DeadAmong { agents })? {
            Reply::AreDead(dead) => Ok(dead),
            _ => Err(unexpected()),
        }
    }

    /// What is news to an agent that knows the first `seen` changes of who is alive.
    pub(in crate::edge) fn news(&self, connections: &Connections, seen: u64) -> Result<News> {
        match self.ask(connections, &Request::Agents { seen })? {
            Reply::AgentsAre(news) => Ok(news),
            _ => Err(unexpected()),
        }
    }
}

fn unexpected() -> Error {
    Error::Protocol { what: "the registry answered another question".into() }
}
