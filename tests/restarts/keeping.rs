//! Keyed state: each micro-batch asks something of its rows' keys and keeps what it was told in their state. Whatever is
//! lost meanwhile, an epoch reads what the one before it decided, and an epoch that runs again is told and decides the
//! same. A query may go back some epochs, and what it decides then counts.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use clonos::agent::state::messages::{AboutState, Found, Wanted};
use clonos::error::{Error, Result};
use clonos::exchange::partition_of;
use clonos::id::{Epoch, Partition, TaskId};
use clonos::state::{Delta, Entries, EntriesBuilder, EntryKey, KeyPrefix, Limits, Op, Slot, Version};
use tempfile::TempDir;

use crate::dice::Dice;
use crate::faults::{Fault, Faults};
use crate::life::{Attempt, Life, NOW_MS};

const QUERY: &str = "kept";
const KEYS: u64 = 40;
const EPOCHS_MAX: usize = 5;
const LIVES_MAX: usize = 4;
const TRIES_MAX: usize = 60;
/// How far a query goes back: fewer epochs than are kept.
const BACK_MAX: usize = 3;

type Told<T> = std::result::Result<T, String>;

/// What is kept of some keys: how many answers, and a sum that depends on their order.
type Kept = BTreeMap<u64, (u64, u64)>;

/// How an attempt ended.
enum Ended {
    Done(Kept),
    Failed,
}

pub(crate) struct Keeper {
    dice: Dice,
    /// Says what goes wrong with the disk, if anything does in this story.
    disk: Option<Dice>,
    folder: TempDir,
    lives: u64,
    attempts: u64,
    stages: u32,
    newest: i64,
    /// What was decided up to each epoch.
    decided: Vec<Kept>,
    /// Answers of the epoch that is not committed, as far as somebody has seen them.
    seen: HashMap<u64, i64>,
    /// Attempts that are over for everybody but themselves, with what they are about to decide.
    late: Vec<(Attempt, Bytes)>,
    pub(crate) trace: Vec<String>,
    pub(crate) replayed: u64,
    pub(crate) went_back: usize,
    pub(crate) lost: usize,
    /// Times that the disk was to blame.
    pub(crate) disk_faults: usize,
}

fn key(number: u64) -> KeyPrefix {
    KeyPrefix::new(number.wrapping_mul(0x9e37_79b9_7f4a_7c15), &number.to_be_bytes())
}

fn text(error: &Error) -> String {
    error.to_string()
}

/// Reads what there is of some keys.
fn read(attempt: &mut Attempt, numbers: &[u64]) -> Result<Kept> {
    let mut keys: Vec<KeyPrefix> = numbers.iter().copied().map(key).collect();
    keys.sort();
    let keys: Vec<Bytes> = keys.iter().map(|key| key.as_bytes().clone()).collect();
    let (mut kept, mut from) = (Kept::new(), None);
    loop {
        let wanted = Wanted::Read { keys: keys.clone(), from: from.take(), limits: Limits::whole(u64::MAX) };
        let Found::Entries { entries, next, .. } = state(attempt, wanted)? else { panic!("no entries") };
        for entry in Entries::from_bytes(entries).iter() {
            let entry = entry?;
            let Op::Put { value, .. } = &entry.op else { panic!("{entry:?}") };
            let number = u64::from_be_bytes(entry.key.prefix().key().try_into().unwrap());
            let part = |at: usize| u64::from_be_bytes(value[at..at + 8].try_into().unwrap());
            kept.insert(number, (part(0), part(8)));
        }
        from = next;
        if from.is_none() {
            return Ok(kept);
        }
    }
}

fn state(attempt: &mut Attempt, wanted: Wanted) -> Result<Found> {
    let session = attempt.session();
    attempt.client().state(AboutState { session, wanted })
}

fn delta(epoch: u64, base: Version, kept: &Kept) -> Delta {
    let mut changes: Vec<_> = kept.iter().map(|(number, kept)| (key(*number), *kept)).collect();
    changes.sort();
    let mut entries = EntriesBuilder::new();
    for (key, (count, sum)) in changes {
        let value = [count.to_be_bytes(), sum.to_be_bytes()].concat();
        entries.push(&EntryKey::new(&key, Slot(1), b""), &Op::Put { expires_ms: 0, value: value.into() });
    }
    let catalog = Bytes::from_static(b"answers");
    Delta { epoch, base, now_ms: NOW_MS, catalog, entries: entries.finish() }
}

impl Keeper {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            dice: Dice::new(seed),
            disk: (seed % 2 == 1).then(|| Dice::new(seed.rotate_left(32))),
            folder: tempfile::tempdir().unwrap(),
            lives: 0,
            attempts: 0,
            stages: 0,
            newest: 0,
            decided: Vec::new(),
            seen: HashMap::new(),
            late: Vec::new(),
            trace: Vec::new(),
            replayed: 0,
            went_back: 0,
            lost: 0,
            disk_faults: 0,
        }
    }

    pub(crate) fn tell(&mut self) -> Told<()> {
        let lives = self.dice.between(1, LIVES_MAX);
        for _ in 0..lives {
            self.live()?;
        }
        Ok(())
    }

    fn live(&mut self) -> Told<()> {
        self.lives += 1;
        let (standbys, executors) = (self.dice.below(3) as u32, self.dice.below(4));
        self.trace.push(format!("life {} begins, {standbys} standbys, {executors} executors", self.lives));
        let begun = Life::keeping(self.folder.path(), &Faults::default(), self.lives, executors, standbys);
        let mut life = begun.map_err(|error| text(&error))?;
        self.begin_run(&life);
        for _ in 0..self.dice.between(1, EPOCHS_MAX) {
            if self.dice.chance(10) {
                self.begin_run(&life);
            }
            let epoch = self.decided.len() as u64;
            let Some(kept) = self.run(&mut life, epoch)? else { break };
            if self.dice.chance(15) {
                self.trace.push(format!("epoch {epoch} is done, and not committed"));
                continue;
            }
            let name = Epoch::Batch(epoch);
            life.driver.check_epoch(QUERY, &name).map_err(|error| text(&error))?;
            if self.dice.chance(70) {
                while let Err(error) = life.driver.commit_epoch(QUERY, &name) {
                    self.blame(&life, &error)?;
                }
                self.trace.push(format!("epoch {epoch} is committed"));
                self.decided.push(kept);
                self.seen.clear();
            } else if self.dice.chance(50) {
                // With the next.
                self.decided.push(kept);
                self.seen.clear();
                let Some(next) = self.run(&mut life, epoch + 1)? else { break };
                self.trace.push(format!("epoch {} was done behind it: {} keys", epoch + 1, next.len()));
            }
        }
        self.late.clear();
        life.end();
        Ok(())
    }

    /// Spark starts the query, where it stood or some epochs back.
    fn begin_run(&mut self, life: &Life) {
        life.driver.begin_run(QUERY, None);
        let back = self.dice.below(self.decided.len().min(BACK_MAX) + 1);
        if back > 0 && self.dice.chance(40) {
            self.decided.truncate(self.decided.len() - back);
            self.seen.clear();
            self.went_back += 1;
        }
        self.trace.push(format!("the query begins with epoch {}", self.decided.len()));
    }

    /// What was said is the disk's fault, or nothing is well.
    fn blame(&mut self, life: &Life, error: &Error) -> Told<()> {
        let Some(fault) = life.faults.mend() else { return Err(text(error)) };
        self.trace.push(format!("{fault:?}: {error}"));
        self.disk_faults += 1;
        Ok(())
    }

    /// Runs an epoch, whose rows are always the same; what is kept after it. `None` if the driver's agent has ended.
    fn run(&mut self, life: &mut Life, epoch: u64) -> Told<Option<Kept>> {
        let partitions = self.dice.between(1, 5) as u32;
        self.stages += 1;
        life.has_stage(self.stages, partitions);
        self.trace.push(format!("epoch {epoch}: stage {} of {partitions}", self.stages));
        let mut rows = Dice::new(epoch);
        let rows: Vec<u64> = (0..KEYS).filter(|_| rows.chance(60)).collect();
        let mut kept =
            epoch.checked_sub(1).map_or_else(Kept::new, |before| self.decided[before as usize].clone());
        for partition in 0..partitions {
            let is_here = |row: &u64| partition_of(key(*row).hash(), partitions).0 == partition;
            let rows: Vec<u64> = rows.iter().copied().filter(is_here).collect();
            let mut tries = 0;
            loop {
                if let Some(dice) = self.disk.as_mut().filter(|_| tries < TRIES_MAX / 2)
                    && dice.chance(6)
                {
                    let fault = Fault::drawn(dice);
                    self.trace.push(format!("the disk will fail: {fault:?}"));
                    life.faults.arm(fault);
                }
                match self.attempt(life, epoch, (partition, partitions), &rows)? {
                    Ended::Done(new) => {
                        kept.extend(new);
                        break;
                    }
                    Ended::Failed => tries += 1,
                }
                if !life.lose_those_that_failed() {
                    self.trace.push("the driver's agent writes no more".into());
                    return Ok(None);
                }
                if tries > TRIES_MAX {
                    return Err(format!("not done after {TRIES_MAX} tries"));
                }
            }
            if self.dice.chance(6) {
                self.lose(life);
            }
            if self.dice.chance(30) {
                self.write_late();
            }
        }
        Ok(Some(kept))
    }

    fn lose(&mut self, life: &mut Life) {
        let executors = life.executors();
        if let Some(&lost) = executors.get(self.dice.below(executors.len())) {
            self.trace.push(format!("executor {lost} is lost"));
            life.lose(lost);
            self.lost += 1;
        }
    }

    /// It is refused, or what it decides is what the attempt after it does.
    fn write_late(&mut self) {
        if let Some((mut attempt, piece)) = self.late.pop() {
            let refused = state(&mut attempt, Wanted::Write { piece, last: true }).err();
            self.trace.push(format!("late: {refused:?}"));
        }
    }

    fn attempt(&mut self, life: &Life, epoch: u64, of: (u32, u32), rows: &[u64]) -> Told<Ended> {
        self.attempts += 1;
        let task = TaskId {
            query: QUERY.into(),
            operator: "keep".into(),
            epoch: Epoch::Batch(epoch),
            partition: Partition(of.0),
        };
        let (agent, _) = life.some_agent(self.dice.next());
        match self.attempt_at(life, agent, task, epoch, of, rows) {
            Err(Failed::Said(error)) if error.is_retryable() => {
                self.trace.push(format!("partition {} fails: {error}", of.0));
                std::thread::sleep(std::time::Duration::from_millis(100));
                Ok(Ended::Failed)
            }
            Err(Failed::Said(error)) => {
                self.blame(life, &error)
                    .map_err(|why| format!("partition {} of epoch {epoch}: {why}", of.0))?;
                Ok(Ended::Failed)
            }
            Err(Failed::Wrong(why)) => Err(why),
            Ok(ended) => Ok(ended),
        }
    }

    fn attempt_at(
        &mut self,
        life: &Life,
        agent: &clonos::edge::agent::Agent,
        task: TaskId,
        epoch: u64,
        (partition, partitions): (u32, u32),
        rows: &[u64],
    ) -> std::result::Result<Ended, Failed> {
        let mut attempt = Attempt::open_at(life, agent, task, self.stages, self.attempts)?;
        let begun = state(&mut attempt, Wanted::Begin { partition, partitions })?;
        let Found::Begun { version, .. } = begun else { panic!("{begun:?}") };
        if version != Version(epoch.checked_sub(1)) {
            return Err(Failed::Wrong(format!("epoch {epoch} reads {version:?}")));
        }
        let numbers: Vec<i64> = rows.iter().map(|row| *row as i64).collect();
        let ask = || {
            self.newest += 1;
            self.newest
        };
        let answers = match numbers.is_empty() {
            true => Vec::new(),
            false => attempt.batch(&numbers, ask, true)?,
        };
        if self.dice.chance(8) {
            self.trace.push(format!("partition {partition} fails before it reads"));
            return Ok(Ended::Failed);
        }
        let before = read(&mut attempt, rows)?;
        let mut after = Kept::new();
        for (row, answer) in rows.iter().zip(answers) {
            let expected = epoch.checked_sub(1).and_then(|before| self.decided[before as usize].get(row));
            if before.get(row) != expected {
                let what =
                    format!("key {row} at epoch {epoch} is {:?} and was {expected:?}", before.get(row));
                return Err(Failed::Wrong(what));
            }
            let known = *self.seen.entry(*row).or_insert(answer);
            if known != answer {
                return Err(Failed::Wrong(format!("row {row} of epoch {epoch} was {known} and is {answer}")));
            }
            let (count, sum) = expected.copied().unwrap_or_default();
            after.insert(*row, (count + 1, sum.wrapping_mul(31).wrapping_add(answer as u64)));
        }
        let delta = delta(epoch, version, &after).encode();
        if self.dice.chance(5) {
            let piece = delta.slice(..delta.len() / 2);
            state(&mut attempt, Wanted::Write { piece, last: false })?;
            self.trace.push(format!("partition {partition} fails in the middle of its delta"));
            return Ok(Ended::Failed);
        }
        if self.dice.chance(8) {
            self.trace.push(format!("partition {partition} seems to fail before its delta"));
            self.late.push((attempt, delta));
            return Ok(Ended::Failed);
        }
        state(&mut attempt, Wanted::Write { piece: delta, last: true })?;
        if self.dice.chance(8) {
            self.trace.push(format!("partition {partition} fails behind its delta"));
            return Ok(Ended::Failed);
        }
        self.replayed += attempt.finish()?.replayed;
        Ok(Ended::Done(after))
    }
}

/// Why an attempt was not done.
enum Failed {
    Said(Error),
    /// A promise is broken.
    Wrong(String),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::Said(error)
    }
}
