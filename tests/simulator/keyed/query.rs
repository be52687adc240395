//! A streaming query: its epochs one after the other, their attempts, and what goes wrong meanwhile.

use std::collections::{BTreeMap, BTreeSet};

use clonos::agent::protocol::{Ending, Left};
use clonos::error::Error;
use clonos::id::{Epoch, EpochKey, Generation};
use clonos::state::{KeyPrefix, Version};
use clonos::task::Summary;

use super::task::Task;
use super::world::World;
use super::{Mutation, Outcome, QUERY, Setting};
use crate::dice::mixed;

const STEPS_MAX: usize = 400_000;
/// Attempts of an epoch that may fail.
const FAILURES_MAX: usize = 300;
/// Some have more than there are ranges.
const PARTITIONS_MAX: usize = 300;
/// Of a hundred keys, how many an epoch changes.
const CHANGED: u64 = 60;

/// What the next epoch must find, and what it decides.
#[derive(Debug, Default)]
pub(crate) struct Known {
    pub(crate) keys: Vec<KeyPrefix>,
    pub(crate) version: Version,
    values: BTreeMap<KeyPrefix, u64>,
    /// What its nondeterministic functions give: recorded, so the same for all its attempts.
    drawn: u64,
}

impl Known {
    pub(crate) fn value(&self, key: &KeyPrefix) -> u64 {
        self.values.get(key).copied().unwrap_or(0)
    }

    /// What becomes of a key, if it is changed.
    pub(crate) fn decided(&self, key: &KeyPrefix) -> Option<u64> {
        let chance = mixed(self.drawn ^ key.hash());
        (chance % 100 < CHANGED).then(|| mixed(chance ^ self.value(key)))
    }
}

/// The query, and the agents on which it runs.
#[derive(Debug)]
pub(crate) struct Query {
    pub(crate) world: World,
    known: Known,
    epoch: u64,
    partitions: u32,
    running: Vec<Task>,
    over: BTreeSet<u32>,
    /// What each committed epoch has left.
    left: BTreeMap<u64, BTreeMap<KeyPrefix, u64>>,
    /// What was drawn in each epoch, until that is run anew.
    drawn: BTreeMap<u64, u64>,
    attempts: u64,
    runs: u64,
    newest: Generation,
    /// Attempts of the epoch that have failed, and the last that has found state lost.
    failures: usize,
    lost: Option<String>,
    /// Losses and restarts that may still come.
    losses: usize,
    restarts: usize,
}

impl Query {
    pub(crate) fn new(setting: &Setting) -> Self {
        let mut world = World::new(setting);
        let key = |number: usize, hash: u64| KeyPrefix::new(hash, &number.to_le_bytes());
        let mut keys: Vec<KeyPrefix> =
            (0..setting.keys).map(|number| key(number, world.dice.next())).collect();
        keys.sort();
        Self {
            world,
            known: Known { keys, ..Known::default() },
            epoch: 0,
            partitions: 1,
            running: Vec::new(),
            over: BTreeSet::new(),
            left: BTreeMap::new(),
            drawn: BTreeMap::new(),
            attempts: 0,
            runs: 1,
            newest: Generation::NONE,
            failures: 0,
            lost: None,
            losses: setting.losses,
            restarts: setting.restarts,
        }
    }

    /// Runs it to its end.
    pub(crate) fn run(&mut self) -> Outcome {
        self.begin_run(0);
        for _ in 0..STEPS_MAX {
            if self.over.len() == self.partitions as usize {
                if !self.commit() {
                    // As Spark does: the query fails, and is started again.
                    self.restart_query();
                    continue;
                }
                if self.epoch == self.world.setting.epochs {
                    return Outcome::Good;
                }
                self.begin_epoch();
            }
            let calm = self.world.setting.calm;
            match self.world.dice.below(100) {
                _ if self.world.dice.below(calm) == 0 => self.misfortune(),
                turn if turn < self.world.setting.haste => {
                    let at = self.world.dice.below(self.world.hosts.len());
                    self.world.step_joining(at);
                }
                94..=96 => self.world.deliver_late(),
                97..=99 => self.world.pass(200),
                _ => {
                    if let Some(told) = self.step() {
                        return told;
                    }
                }
            }
        }
        panic!("it goes nowhere in epoch {}", self.epoch);
    }

    /// The query begins, or begins anew, with an epoch.
    fn begin_run(&mut self, epoch: u64) {
        self.epoch = epoch;
        let most = if self.world.dice.chance(10) { PARTITIONS_MAX } else { 4 };
        self.partitions = self.world.dice.between(1, most) as u32;
        self.begin_epoch();
    }

    fn begin_epoch(&mut self) {
        let epoch = self.epoch;
        self.world.note(|| format!("epoch {epoch}"));
        let before = self.left.range(..epoch).next_back();
        (self.known.version, self.known.values) = match before {
            Some((epoch, values)) => (Version(Some(*epoch)), values.clone()),
            None => (Version::NONE, BTreeMap::new()),
        };
        let draw = self.world.dice.next();
        self.known.drawn = *self.drawn.entry(epoch).or_insert(draw);
        self.over.clear();
        self.running.clear();
        (0..self.partitions).for_each(|partition| self.try_task(partition));
    }

    fn try_task(&mut self, partition: u32) {
        self.attempts += 1;
        let host = self.world.dice.below(self.world.hosts.len());
        let of = (partition, self.partitions);
        self.running.push(Task::new(self.epoch, of, host, self.attempts, self.runs));
    }

    /// An attempt does something; what came of the query, if that was its end.
    fn step(&mut self) -> Option<Outcome> {
        let at = self.world.dice.below(self.running.len());
        let mut task = self.running.swap_remove(at);
        match self.world.step(&mut task, &self.known) {
            Ok(()) if task.is_over() => {
                self.over.insert(task.partition);
                self.close(&task);
            }
            Ok(()) => self.running.push(task),
            Err(error) => return self.failed(&task, error),
        }
        None
    }

    fn failed(&mut self, task: &Task, error: Error) -> Option<Outcome> {
        let (epoch, partition) = (task.epoch, task.partition);
        self.world.note(|| format!("epoch {epoch}, partition {partition}: {error}"));
        self.close(task);
        assert!(!matches!(error, Error::Divergence(_)), "epoch {epoch}: {error}");
        self.failures += 1;
        if matches!(error, Error::StateLost { .. } | Error::StateIncomplete { .. }) {
            self.lost = Some(error.to_string());
        }
        if self.failures > FAILURES_MAX {
            assert!(
                self.known.version > Version::NONE,
                "nothing was ever committed that could be lost: {error}"
            );
            let lost = self.lost.take().filter(|_| self.world.setting.beyond);
            return Some(Outcome::Told(
                lost.unwrap_or_else(|| panic!("epoch {epoch} goes nowhere: {error}")),
            ));
        }
        if !self.over.contains(&partition) && !self.running.iter().any(|other| other.partition == partition) {
            self.try_task(partition);
        }
        None
    }

    fn close(&mut self, task: &Task) {
        self.newest = self.newest.max(task.generation);
        if task.generation > Generation::NONE && !self.world.hosts[task.host].is_cut {
            let left = Left { by: self.world.hosts[task.host].info.id, lost: false, end: None };
            let (summary, ending) = (Summary::default(), Ending::default());
            drop(self.world.registry.closed(&task.id, task.generation, &summary, ending, left));
        }
    }

    /// Spark commits the epoch, if all that it has decided is there. The registry hears of it, or learns it from the next
    /// one.
    fn commit(&mut self) -> bool {
        let key = EpochKey { query: QUERY.into(), epoch: Epoch::Batch(self.epoch) };
        let checked = self.world.registry.check_epoch(&key);
        if checked.is_err() && self.world.setting.beyond {
            return false;
        }
        assert!(checked.is_ok(), "epoch {} is over, and {checked:?}", self.epoch);
        let mut values = self.known.values.clone();
        for key in &self.known.keys {
            if let Some(value) = self.known.decided(key) {
                values.insert(key.clone(), value);
            }
        }
        self.left.insert(self.epoch, values);
        (self.failures, self.lost) = (0, None);
        if self.world.dice.chance(80) {
            self.world.registry.commit(&key);
            self.world.audit();
        }
        self.epoch += 1;
        true
    }

    fn misfortune(&mut self) {
        // The driver's agent ends with the driver.
        let number = 1 + self.world.dice.below(self.world.hosts.len() - 1);
        match self.world.dice.below(10) {
            0..=2 => self.crash(number),
            3..=4 => self.cut(number),
            5 => self.speculate(),
            6 => self.kill_worker(),
            _ if self.restarts == 0 => {}
            7 | 8 if self.world.setting.durable => self.restart_driver(),
            _ => self.restart_query(),
        }
    }

    /// Whether what an agent has may be lost: others have it, or more may be lost than they are ready for.
    fn may_lose(&mut self) -> bool {
        let Setting { durable, copies, .. } = self.world.setting;
        if durable || self.world.setting.beyond {
            return true;
        }
        // Who is cut off may be dead for the others.
        let is_cut = self.world.hosts.iter().any(|host| host.is_cut);
        copies > 1 && !is_cut && self.world.copies().is_none_or(|copies| copies > 1)
    }

    fn crash(&mut self, number: usize) {
        if self.losses == 0 || !self.may_lose() {
            return;
        }
        self.losses -= 1;
        self.world.crash(number);
        let (gone, running) =
            std::mem::take(&mut self.running).into_iter().partition(|task| task.host == number);
        self.running = running;
        self.tried_again(gone);
    }

    fn tried_again(&mut self, gone: Vec<Task>) {
        for task in gone {
            self.newest = self.newest.max(task.generation);
            let is_open = |other: &Task| other.partition == task.partition;
            if !self.over.contains(&task.partition) && !self.running.iter().any(is_open) {
                self.try_task(task.partition);
            }
        }
    }

    /// One agent is cut off, or all are back.
    fn cut(&mut self, number: usize) {
        if self.world.hosts.iter().any(|host| host.is_cut) {
            self.world.note(|| "all are back".into());
            self.world.hosts.iter_mut().for_each(|host| host.is_cut = false);
            self.world.pass(1);
        } else if self.may_lose() && self.losses > 0 {
            self.losses -= 1;
            self.world.note(|| format!("agent {number} is cut off"));
            self.world.hosts[number].is_cut = true;
            // Spark tries its tasks elsewhere, some day.
            let cut = self.running.iter().filter(|task| task.host == number).map(|task| task.partition);
            cut.collect::<Vec<_>>().into_iter().for_each(|partition| self.try_task(partition));
        }
    }

    /// A copy of an attempt runs beside it.
    fn speculate(&mut self) {
        let at = self.world.dice.below(self.running.len());
        let partition = self.running[at].partition;
        self.try_task(partition);
    }

    fn kill_worker(&mut self) {
        let at = self.world.dice.below(self.running.len());
        let task = self.running.swap_remove(at);
        self.close(&task);
        self.tried_again(vec![task]);
    }

    fn restart_driver(&mut self) {
        self.world.note(|| "the driver ends".into());
        self.running.iter().for_each(|task| self.newest = self.newest.max(task.generation));
        self.running.clear();
        self.world.restart_driver(self.newest);
        self.runs += 1;
        self.go_on();
    }

    fn restart_query(&mut self) {
        self.world.note(|| "the query begins anew".into());
        for task in std::mem::take(&mut self.running) {
            self.close(&task);
        }
        self.world.registry.begin_run(QUERY, None);
        self.runs += 1;
        self.go_on();
    }

    /// With the epoch that was not committed, or with an earlier one.
    fn go_on(&mut self) {
        self.restarts = self.restarts.saturating_sub(1);
        let mut epoch = self.epoch;
        if self.world.setting.durable && self.world.dice.chance(40) {
            epoch = epoch.saturating_sub(self.world.dice.below(4) as u64);
        }
        if epoch < self.epoch {
            self.world.note(|| format!("back to epoch {epoch}"));
            // What was recorded in those that are run again is gone with their commits.
            self.left.retain(|of, _| *of < epoch);
            self.drawn.retain(|of, _| *of < epoch);
        }
        if self.world.is(Mutation::DrawnAnew) {
            self.drawn.remove(&epoch);
        }
        self.begin_run(epoch);
    }
}
