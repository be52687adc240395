//! A job and its scheduler, as Spark's: stages with a shuffle between them, lost outputs computed again,
//! consumers rolled back when an output that is computed again has other contents.

mod checks;
mod losses;

use std::collections::BTreeMap;

use bytes::Bytes;
use clonos::error::Error;
use clonos::id::TaskId;

use crate::attempt::{Attempt, Shape, Step, task_id};
use crate::cluster::Cluster;
use crate::dice::Dice;
use crate::host::Host;
use crate::late::Late;
use crate::shuffle::{Output, inputs};
use crate::uses::epoch;
use crate::{Mutation, Setting};

/// Steps after which a job that goes nowhere is given up.
const STEPS_MAX: usize = 2_000_000;

/// How a job ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It completed, and its result is that of one run.
    Good,
    /// It did not complete, and said why.
    Reported(String),
}

/// One job on one cluster.
pub(crate) struct Job {
    pub(crate) setting: Setting,
    pub(crate) cluster: Cluster,
    dice: Dice,
    running: Vec<Attempt>,
    outputs: BTreeMap<(usize, usize), Output>,
    /// Order-independent checksums of outputs, as Spark keeps them.
    sums: BTreeMap<(usize, usize), u64>,
    visible: BTreeMap<(usize, usize), i64>,
    finished: Vec<usize>,
    /// Logs of the attempts whose output counts, where no host's death reaches them.
    truth: BTreeMap<TaskId, Vec<Bytes>>,
    attempts: u64,
    /// When this use of the epoch's name began.
    since: i64,
    crashes: usize,
    clock: i64,
    pub(crate) trace: Vec<String>,
}

type Check = Result<(), String>;

impl Job {
    pub(crate) fn new(setting: Setting) -> Self {
        let mut cluster = Cluster::new(
            setting.hosts,
            setting.depth,
            setting.mutation,
            Late::new(setting.seed),
            setting.room,
        );
        cluster.commits = setting.commits;
        cluster.registry.bear(setting.borne_ms);
        let dice = Dice::new(setting.seed);
        Self {
            cluster,
            dice,
            running: Vec::new(),
            outputs: BTreeMap::new(),
            sums: BTreeMap::new(),
            visible: BTreeMap::new(),
            finished: Vec::new(),
            truth: BTreeMap::new(),
            attempts: 0,
            since: 0,
            crashes: 0,
            clock: 1_000,
            trace: Vec::new(),
            setting,
        }
    }

    fn last(&self) -> usize {
        self.setting.tasks.len() - 1
    }

    fn note(&mut self, line: impl FnOnce() -> String) {
        if self.setting.traced {
            self.trace.push(line());
        }
    }

    /// A job that takes more turns than this goes nowhere.
    fn steps_max(&self) -> usize {
        STEPS_MAX
            + 4 * self.setting.tasks.windows(2).map(|pair| pair.iter().product::<usize>()).sum::<usize>()
    }

    /// Runs the job to its end.
    pub(crate) fn run(&mut self) -> Result<Outcome, String> {
        for _ in 0..self.steps_max() {
            if self.finished.len() == self.setting.tasks[self.last()] {
                if self.setting.mutation == Mutation::None {
                    self.check_copies()?;
                }
                if let Err(error) = self.cluster.registry.check_epoch(&epoch()) {
                    return Ok(Outcome::Reported(error.to_string()));
                }
                self.check_story()?;
                let is_last = self.cluster.stamp == self.setting.uses;
                if is_last && matches!(self.setting.mutation, Mutation::None | Mutation::NothingIsRepaired) {
                    self.check_number_of_copies()?;
                }
                self.cluster.commit();
                if !is_last {
                    self.begin_use();
                    continue;
                }
                self.cluster.cuts.clear();
                self.cluster.all_hear();
                self.check_forgotten()?;
                return Ok(Outcome::Good);
            }
            if let Some(outcome) = self.turn()? {
                return Ok(outcome);
            }
        }
        Err("the job goes nowhere".into())
    }

    /// The program uses the name of the epoch again, for another job. Some attempts of the one before go on: nobody has
    /// told them, or they cannot be reached.
    fn begin_use(&mut self) {
        self.since = self.clock + 1;
        self.note(|| "the epoch is committed, and its name used again".into());
        self.cluster.begin_use();
        self.outputs.clear();
        self.sums.clear();
        self.visible.clear();
        self.finished.clear();
        self.truth.clear();
    }

    fn turn(&mut self) -> Result<Option<Outcome>, String> {
        self.clock += 1;
        if self.crashes < self.setting.crashes && self.attempts > 1 && self.dice.below(self.setting.calm) == 0
        {
            self.crash();
        }
        if self.setting.mutation == Mutation::TruncateEarly && self.dice.chance(1) {
            self.cluster.commit();
            self.cluster.all_hear();
        }
        self.cut_off_or_back();
        self.cluster.receive_late();
        self.cluster.somebody_hears(&mut self.dice);
        if self.dice.chance(20) {
            let host = self.dice.below(self.cluster.hosts.len());
            self.cluster.repair(host);
        }
        // Who is due is looked for among all tasks: the more there are, the less often.
        let tasks: usize = self.setting.tasks.iter().sum();
        let start = self.running.len() < 2 * self.setting.hosts && self.dice.below(2 + tasks / 8) == 0;
        if (start || self.running.is_empty()) && self.start()? {
            return Ok(None);
        }
        if self.running.is_empty() {
            return Ok(None);
        }
        let number = self.dice.below(self.running.len());
        if self.cluster.is_paused(self.running[number].session.host) {
            return Ok(None);
        }
        if self.dice.chance(30) {
            return self.go_on(number, true);
        }
        if self.dice.below(self.setting.calm * 4) == 0 && self.setting.crashes > 0 {
            let raises = self.dice.chance(50);
            let what = if raises { "a function raises" } else { "a connection breaks" };
            self.note(|| what.into());
            let mut attempt = self.running.swap_remove(number);
            if raises {
                attempt.raise(&mut self.cluster)?;
            }
            self.is_over(&attempt);
            return Ok(None);
        }
        self.go_on(number, false)
    }

    /// A task does its next step, or its agent what it was sent last.
    fn go_on(&mut self, number: usize, delivers: bool) -> Result<Option<Outcome>, String> {
        let mut sudden = false;
        let may_die = self.crashes < self.setting.crashes;
        let mut luck = self.dice.clone();
        luck.next();
        let mut dies = || {
            sudden = may_die && !sudden && luck.chance(2);
            sudden
        };
        let attempt = &mut self.running[number];
        let stepped = match delivers {
            true => attempt.deliver(&mut self.cluster, &mut dies).map(|_| Step::Going),
            false => attempt.step(&mut self.cluster, &mut self.dice, self.clock, &mut dies),
        };
        let (host, partition, stage) = (attempt.session.host, attempt.partition, attempt.shape.stage);
        if sudden {
            self.crash_host(host);
            return Ok(None);
        }
        if attempt.used < self.cluster.stamp {
            // Whatever it does is nothing to the job.
            if !matches!(stepped, Ok(Step::Going | Step::Rows(..))) {
                self.running.swap_remove(number);
            }
            return Ok(None);
        }
        match stepped {
            Ok(Step::Going) => Ok(None),
            Ok(Step::Rows(place, state)) => {
                self.note(|| format!("op{stage}/{partition} shows row {place}: {state}"));
                match self.visible.insert((partition, place), state) {
                    Some(before) if before != state => {
                        Err(format!("row {place} of partition {partition} was {before} and is {state}"))
                    }
                    _ => Ok(None),
                }
            }
            Ok(Step::Done(frames)) => self.done(number, frames),
            Err(error) => self.failed(number, &error).map(|()| None),
        }
    }

    /// An attempt ended with an error; the next one is started in its turn.
    fn failed(&mut self, number: usize, error: &Error) -> Check {
        let attempt = self.running.swap_remove(number);
        let task = attempt.session.task.clone();
        self.note(|| format!("{task} fails: {error}"));
        self.is_over(&attempt);
        match error {
            // Its log outlived what it was recorded with, as no frame of it was read by then: it is forgotten,
            // unless somebody has seen what it caused, which is reported.
            Error::UpstreamChanged { .. } => match self.cluster.discard(&attempt.session) {
                Ok(()) | Err(Error::Fenced { .. } | Error::AgentUnreachable { .. }) => Ok(()),
                Err(Error::CausalLogLost { task }) => Err(format!("REPORTED the log of {task} is lost")),
                Err(error) => Err(error.to_string()),
            },
            Error::Fenced { .. }
            | Error::StaleFrame { .. }
            | Error::InputCutShort { .. }
            | Error::Timeout { .. }
            | Error::DiskBudget { .. }
            | Error::AgentUnreachable { .. } => Ok(()),
            Error::LogFork { .. } | Error::LogGap { .. } if !self.bounded() => Ok(()),
            Error::Divergence(_) if !self.bounded() => Ok(()),
            other => Err(format!("{task}: {other}")),
        }
    }

    /// Whether no more was lost than the sharing depth covers.
    fn bounded(&self) -> bool {
        self.setting.crashes <= self.setting.depth
    }

    fn done(&mut self, number: usize, frames: Vec<Vec<Bytes>>) -> Result<Option<Outcome>, String> {
        let attempt = self.running.swap_remove(number);
        let (stage, partition) = (attempt.shape.stage, attempt.partition);
        let task = attempt.session.task.clone();
        self.note(|| format!("{task} is done on host {}", attempt.session.host));
        if stage == self.last() {
            if !self.finished.contains(&partition) {
                self.finished.push(partition);
                self.remember(&task, attempt.session.host);
            }
            return Ok(None);
        }
        if self.outputs.contains_key(&(stage, partition)) {
            return Ok(None);
        }
        let sum = frames
            .iter()
            .flatten()
            .fold(0_u64, |sum, frame| sum.wrapping_add(u64::from(crc32fast::hash(frame))));
        self.remember(&task, attempt.session.host);
        let before = self.sums.insert((stage, partition), sum);
        self.outputs.insert((stage, partition), Output { host: attempt.session.host, frames });
        if before.is_some_and(|before| before != sum) {
            return self.roll_back(stage, &task);
        }
        Ok(None)
    }

    fn remember(&mut self, task: &TaskId, host: usize) {
        let (hosts, commits) = (&self.cluster.hosts, self.cluster.commits());
        // Where a newer attempt's copy is being made in its place, others have it.
        let is_whole = |host: &&Host| host.store.is_whole(task) && host.heard == commits;
        let mut own = hosts.get(host).into_iter().filter(is_whole);
        let log = own.next().map(|host| host.blocks(task));
        let longest = || hosts.iter().filter(is_whole).map(|host| host.blocks(task)).max_by_key(Vec::len);
        self.truth.insert(task.clone(), log.or_else(longest).unwrap_or_default());
    }

    /// Spark notices that an output has other contents than before.
    fn roll_back(&mut self, stage: usize, task: &TaskId) -> Result<Option<Outcome>, String> {
        if !self.finished.is_empty() {
            let what = format!("{task} ran again with other outcomes after results had left");
            return if self.bounded() { Err(what) } else { Ok(Some(Outcome::Reported(what))) };
        }
        self.note(|| format!("Spark rolls back what read {task}"));
        self.running.retain(|attempt| attempt.shape.stage <= stage);
        self.outputs.retain(|(of, _), _| *of <= stage);
        Ok(None)
    }

    /// Starts an attempt of some task that is due; whether there was one.
    fn start(&mut self) -> Result<bool, String> {
        let Some((stage, partition)) = self.due() else { return Ok(false) };
        let host = self.cluster.any_host(&mut self.dice);
        if self.cluster.is_paused(host) || !self.cluster.hosts[host].is_known {
            return Ok(true);
        }
        self.attempts += 1;
        let task = task_id(stage, partition);
        let inside = stage < self.last();
        let number = stage as u32 + 100 * self.cluster.stamp as u32;
        let opened = self.cluster.open(&task, number, self.attempts, host, inside);
        let (session, prior) = match opened {
            Ok(Some(opened)) => opened,
            Ok(None) => return Ok(true),
            Err(error) if matches!(error, Error::Fenced { .. }) || error.is_retryable() => return Ok(true),
            Err(error) => return Err(format!("{task}: {error}")),
        };
        if session.lost {
            // on_lost="rollback": the job is over, and says so.
            let reported = if self.bounded() { "" } else { "REPORTED " };
            return Err(format!("{reported}the log of {task} is lost"));
        }
        self.note(|| format!("{task} starts on host {host} with {} blocks", prior.len()));
        let shape = self.shape(stage);
        let inputs = inputs(&mut self.dice, &self.outputs, shape.senders, stage, partition);
        let attempt = Attempt::new(session, partition, shape, &prior, inputs, self.setting.mutation);
        let mut attempt = attempt.map_err(|error| error.to_string())?;
        (attempt.used, attempt.since) = (self.cluster.stamp, self.since);
        self.running.push(attempt);
        Ok(true)
    }

    fn shape(&self, stage: usize) -> Shape {
        let Setting { tasks, depth, riding, .. } = &self.setting;
        Shape {
            stage,
            tasks: tasks[stage],
            senders: stage.checked_sub(1).map_or(0, |before| tasks[before]),
            consumers: tasks.get(stage + 1).copied().unwrap_or_default(),
            depth: *depth,
            riding: *riding,
        }
    }

    /// A task whose output is missing, of the first stage that has one; now and then one that runs already.
    fn due(&mut self) -> Option<(usize, usize)> {
        for stage in 0..=self.last() {
            let missing = |partition: &usize| {
                if stage == self.last() {
                    !self.finished.contains(partition)
                } else {
                    !self.outputs.contains_key(&(stage, *partition))
                }
            };
            let missing: Vec<usize> = (0..self.setting.tasks[stage]).filter(missing).collect();
            if missing.is_empty() {
                continue;
            }
            let is_of =
                |a: &Attempt, p| a.shape.stage == stage && a.partition == p && a.used == self.cluster.stamp;
            let runs = |p: usize| self.running.iter().any(|a| is_of(a, p));
            let idle: Vec<usize> = missing.iter().copied().filter(|p| !runs(*p)).collect();
            let pool = if !idle.is_empty() {
                idle
            } else if self.dice.below(50 + 20 * self.setting.tasks.iter().sum::<usize>()) == 0 {
                // A copy of one that runs, as by speculation.
                missing
            } else {
                return None;
            };
            return Some((stage, pool[self.dice.below(pool.len())]));
        }
        None
    }
}
