//! One life of the application: its agents, and what a worker does there.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow_array::{Array, ArrayRef, Int64Array};
use clonos::agent::protocol::{Ending, OpenTask, Opened, Reply, Request, Sent, Use};
use clonos::agent::state::messages::Clock;
use clonos::config::SessionConfig;
use clonos::determinant::row_fingerprints;
use clonos::edge::agent::{Agent, AgentConfig, Plans, Role, Stage};
use clonos::edge::disk::segment::FileSystem;
use clonos::edge::net::Connection;
use clonos::edge::net::client::Client;
use clonos::error::Result;
use clonos::id::{AgentId, Epoch, Partition, TaskId};
use clonos::task::{ResultTask, Summary, TaskMode, TaskOptions};

use crate::dice::Dice;
use crate::faults::Faults;

/// The clock of every micro-batch, in milliseconds.
pub(crate) const NOW_MS: i64 = 1_000_000;

/// Number of tasks of each stage.
type Stages = Arc<Mutex<HashMap<u32, u32>>>;

pub(crate) struct Life {
    pub(crate) number: u64,
    config: SessionConfig,
    /// What is wrong with the disk.
    pub(crate) faults: Faults,
    pub(crate) driver: Agent,
    /// By number; a number is given once.
    executors: BTreeMap<usize, Agent>,
    stages: Stages,
}

impl Life {
    pub(crate) fn begin(
        folder: &Path,
        faults: &Faults,
        number: u64,
        depth: u32,
        executors: usize,
    ) -> Result<Self> {
        Self::with(folder, faults, number, executors, |config| config.sharing_depth = depth)
    }

    /// One in which state is kept by so many agents besides the first.
    pub(crate) fn keeping(
        folder: &Path,
        faults: &Faults,
        number: u64,
        executors: usize,
        standbys: u32,
    ) -> Result<Self> {
        Self::with(folder, faults, number, executors, |config| config.standbys = standbys)
    }

    fn with(
        folder: &Path,
        faults: &Faults,
        number: u64,
        executors: usize,
        set: impl FnOnce(&mut SessionConfig),
    ) -> Result<Self> {
        // Stories run beside each other, and the port of an agent that is gone may soon be another story's: as between
        // sessions, a secret of its own keeps who asks there from being answered.
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).unwrap();
        let mut config = SessionConfig::new(format!("app-{number}"), secret);
        // Long: a busy machine is no fault.
        config.io_timeout_ms = 30_000;
        set(&mut config);
        config.spill_dir = Some(folder.join(format!("spill-{number}")).display().to_string());
        config.checkpoint_dir = Some(folder.join("checkpoint").display().to_string());
        let stages = Stages::default();
        let asked = Arc::clone(&stages);
        let role = Role::Driver {
            bind_host: "127.0.0.1".into(),
            port: 0,
            stages: Box::new(move |of| {
                let tasks = asked.lock().unwrap().get(&of.number).copied()?;
                Some(Stage { tasks, was_complete: false, writes: true })
            }),
            was_lost: Box::new(|_, _| false),
            plans: Plans::unknown(),
            clocks: Box::new(|_, _| Ok(Clock { now_ms: NOW_MS, watermark_ms: -1, late_ms: -1 })),
            next_batches: Box::new(|_| None),
        };
        let socket = folder.join(format!("driver-{number}.sock"));
        let files: Arc<dyn FileSystem> = Arc::new(faults.clone());
        let driver =
            Agent::start_on(Arc::clone(&files), AgentConfig { session: config.clone(), role, socket })?;
        config.driver_addr = driver.addr().to_owned();
        config.driver_socket = driver.socket().display().to_string();
        let start = |executor: usize| {
            let role = Role::Executor { id: String::new() };
            let socket = folder.join(format!("executor-{number}-{executor}.sock"));
            let agent =
                Agent::start_on(Arc::clone(&files), AgentConfig { session: config.clone(), role, socket })?;
            Ok((executor, agent))
        };
        let executors = (0..executors).map(start).collect::<Result<_>>()?;
        Ok(Self { number, config, faults: faults.clone(), driver, executors, stages })
    }

    pub(crate) fn has_stage(&self, stage: u32, tasks: u32) {
        self.stages.lock().unwrap().insert(stage, tasks);
    }

    pub(crate) fn end(self) {
        self.executors.values().for_each(Agent::stop);
        self.driver.stop();
    }

    /// Some agent, and its executor.
    pub(crate) fn some_agent(&self, dice: u64) -> (&Agent, Option<usize>) {
        let at = dice as usize % (self.executors.len() + 1);
        self.executors.iter().nth(at).map_or((&self.driver, None), |(number, agent)| (agent, Some(*number)))
    }

    pub(crate) fn executors(&self) -> Vec<usize> {
        self.executors.keys().copied().collect()
    }

    /// Loses an executor with its agent.
    pub(crate) fn lose(&mut self, executor: usize) {
        self.executors.remove(&executor).inspect(Agent::stop);
    }

    /// Executors whose agents write no more segments are lost, as those end; whether the driver's agent goes on.
    pub(crate) fn lose_those_that_failed(&mut self) -> bool {
        self.executors.retain(|_, agent| {
            agent.check_disk().is_ok() || {
                agent.stop();
                false
            }
        });
        self.driver.check_disk().is_ok()
    }

    /// The next attempt is granted to an agent that nobody hears of again, and that has fenced nobody.
    pub(crate) fn grant_to_nobody(&self, open: OpenTask) -> Result<()> {
        let timeout = Duration::from_secs(5);
        let mut driver = Connection::tcp(self.driver.addr(), &self.config.credentials(), timeout)?;
        driver.write(&Request::Grant {
            open,
            sent: Sent { by: AgentId(999), number: 0 },
            commits_seen: 0,
        })?;
        driver.read::<Reply>().map(drop)
    }

    pub(crate) fn connect(&self, agent: &Agent) -> Result<Client> {
        Client::connect(&self.config, agent.socket())
    }

    fn agent(&self) -> &Agent {
        self.executors.values().next().unwrap_or(&self.driver)
    }
}

pub(crate) fn opening(life: &Life, task: TaskId, stage: u32, attempt: u64) -> OpenTask {
    OpenTask {
        task,
        used: Use::default(),
        execution: None,
        app: life.number,
        stage,
        attempt,
        worker: attempt,
        inside: false,
        stamp: 0,
        of_rdd: None,
    }
}

/// What tells rows apart by what is read above the function; which columns that is, marks say, too.
pub(crate) fn marks_of(rows: impl Iterator<Item = u64>, columns: u64) -> Vec<u64> {
    rows.map(|row| Dice::new(row).next() << 25 | columns << 1).collect()
}

/// One attempt at a task, as a Python worker makes it.
pub(crate) struct Attempt {
    client: Client,
    opened: Opened,
    task: ResultTask,
    /// Which columns are read above the function, as marks tell it.
    columns: u64,
}

impl Attempt {
    pub(crate) fn open(life: &Life, name: &str, stage: u32, partition: u32, attempt: u64) -> Result<Self> {
        let task = TaskId {
            query: "batch".into(),
            operator: "score".into(),
            epoch: Epoch::Named(name.into()),
            partition: Partition(partition),
        };
        Self::open_at(life, life.agent(), task, stage, attempt)
    }

    pub(crate) fn open_at(
        life: &Life,
        agent: &Agent,
        task: TaskId,
        stage: u32,
        attempt: u64,
    ) -> Result<Self> {
        let mut client = life.connect(agent)?;
        let opened = client.open(opening(life, task, stage, attempt))?;
        let recording = opened.recording;
        let mut options = TaskOptions::new(opened.task.clone(), TaskMode::Result, 0xc0de);
        options.stage = stage;
        options.app = life.number ^ (u64::from(recording.run) << 32);
        options.layout_changed = recording.layout_changed;
        options.pooled = recording.pooled;
        options.uncertain = recording.uncertain;
        (options.any_part, options.ended) = (recording.any_part, recording.ended);
        let task = ResultTask::new(options, opened.prior.clone(), recording.same_stage)?;
        // Whatever is read above it in one life and in the next, the function's answers are the same.
        Ok(Self { client, opened, task, columns: life.number % 3 })
    }

    pub(crate) const fn client(&mut self) -> &mut Client {
        &mut self.client
    }

    pub(crate) const fn session(&self) -> u64 {
        self.opened.session
    }

    /// Answers of a batch: recorded ones, and new ones from `ask`. What is new is published; if `waits`, until it is
    /// stable. Before it is, nobody may see it.
    pub(crate) fn batch(&mut self, rows: &[i64], ask: impl FnMut() -> i64, waits: bool) -> Result<Vec<i64>> {
        let marks = match self.columns {
            0 => Vec::new(),
            columns => marks_of(rows.iter().map(|row| *row as u64), columns),
        };
        self.batch_of(rows, marks, ask, waits)
    }

    /// The same of rows with these arguments, and what tells them apart, if anything does.
    pub(crate) fn batch_of(
        &mut self,
        arguments: &[i64],
        marks: Vec<u64>,
        mut ask: impl FnMut() -> i64,
        waits: bool,
    ) -> Result<Vec<i64>> {
        let column: ArrayRef = Arc::new(Int64Array::from(arguments.to_vec()));
        let mut fingerprints = Vec::new();
        row_fingerprints(&[column], &mut fingerprints)?;
        let (client, task) = (&mut self.client, &self.opened.task);
        let ask_others = |questions: &[_], ambiguous| client.pool(task, questions, ambiguous);
        let plan = self.task.find(fingerprints, marks, ask_others)?;
        let answers = Int64Array::from_iter_values(plan.live.iter().map(|_| ask()));
        let live = (!answers.is_empty()).then(|| Arc::new(answers) as ArrayRef);
        let all = self.task.complete(plan, live)?;
        if let Some(block) = self.task.take_block() {
            let ticket = self.client.send(self.opened.session, block)?;
            if waits {
                self.client.wait(ticket)?;
            }
        }
        let all = all.as_any().downcast_ref::<Int64Array>().unwrap();
        Ok(all.values().to_vec())
    }

    pub(crate) fn finish(mut self) -> Result<Summary> {
        let summary = self.task.finish()?;
        let ending = Ending { done: true, ..Ending::default() };
        self.client.close(self.opened.session, summary, ending)?;
        Ok(summary)
    }

    /// The function has raised.
    pub(crate) fn fail(mut self) -> Result<()> {
        let summary = self.task.summary();
        self.client.close(self.opened.session, summary, Ending::default())
    }
}
