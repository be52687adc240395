//! What happens, by the dice, and what must be true of it.

use std::collections::{HashMap, HashSet};
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

use clonos::error::Error;
use clonos::id::Epoch;
use tempfile::TempDir;

use crate::dice::Dice;
use crate::faults::{Fault, Faults};
use crate::life::{Attempt, Life};

const NAMES: [&str; 2] = ["daily", "hourly"];
/// Lives after which a story ends.
const LIVES_MAX: usize = 5;

type Told<T> = Result<T, String>;

/// What is known of a name: the rows of its epoch, and their answers as far as anybody has seen one.
#[derive(Debug, Default)]
struct Named {
    rows: Vec<i64>,
    seen: HashMap<i64, i64>,
    /// Rows with their answers of uses before: they are gone for good.
    gone: HashSet<(i64, i64)>,
    /// A commit has failed: what was seen is over, or is not, as the next row that was seen shows.
    may_be_over: bool,
}

/// A stage of a run: which rows its partitions have, which of them are left, and what the others said.
struct Stage {
    number: u32,
    parts: Vec<Vec<i64>>,
    left: Vec<usize>,
    out: HashMap<i64, i64>,
}

/// How an attempt or a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    Done,
    /// The function raised, or its worker died.
    Failed,
    /// The whole application died.
    Died,
}

pub(crate) struct Story {
    dice: Dice,
    /// Says which stages have others beside them, so that what else happens is as it was without.
    beside: Dice,
    /// Says what goes wrong with the disk, if anything does in this story.
    disk: Option<Dice>,
    folder: TempDir,
    names: [Named; NAMES.len()],
    lives: u64,
    stages: u32,
    attempts: u64,
    answers: i64,
    pub(crate) trace: Vec<String>,
    /// Rows that were answered from a log, and those that came from another partition's.
    pub(crate) replayed: u64,
    pub(crate) moved: u64,
    /// Times that the disk was to blame.
    pub(crate) disk_faults: usize,
}

fn error(error: &Error) -> String {
    error.to_string()
}

impl Story {
    pub(crate) fn new(seed: u64) -> Self {
        let mut story = Self {
            dice: Dice::new(seed),
            beside: Dice::new(!seed),
            disk: (seed % 2 == 1).then(|| Dice::new(seed.rotate_left(32))),
            folder: tempfile::tempdir().unwrap(),
            names: Default::default(),
            lives: 0,
            stages: 0,
            attempts: 0,
            answers: 0,
            trace: Vec::new(),
            replayed: 0,
            moved: 0,
            disk_faults: 0,
        };
        (0..NAMES.len()).for_each(|name| story.fill(name));
        story
    }

    /// New input for a name.
    fn fill(&mut self, name: usize) {
        let rows = self.dice.between(1, 80) as i64;
        self.names[name].rows = (0..rows).collect();
    }

    pub(crate) fn tell(&mut self) -> Told<()> {
        let mut zombie = None;
        for _ in 0..self.dice.between(2, LIVES_MAX) {
            let life = self.begin(4)?;
            let died = self.live(&life, true)?;
            if let Some(before) = zombie.take() {
                self.haunt(before)?;
            }
            // Sometimes it only seems to have ended.
            if died == Ended::Died && self.dice.chance(25) {
                zombie = Some(life);
            } else {
                life.end();
            }
            if zombie.is_none() {
                self.tear();
            }
        }
        // In the end each epoch comes to its own.
        let life = self.begin(0)?;
        for name in 0..NAMES.len() {
            self.run(&life, name, false)?;
        }
        if let Some(before) = zombie {
            self.haunt(before)?;
        }
        life.end();
        Ok(())
    }

    fn begin(&mut self, faulty: usize) -> Told<Life> {
        let (depth, has_executor) = (self.dice.below(2) as u32, self.dice.chance(30));
        loop {
            self.lives += 1;
            self.trace.push(format!("life {} begins, executor: {has_executor}", self.lives));
            let faults = Faults::default();
            self.arm(&faults, faulty);
            let executors = usize::from(has_executor);
            match Life::begin(self.folder.path(), &faults, self.lives, depth, executors) {
                Ok(life) => return Ok(life),
                Err(why) => drop(self.blame(&faults, error(&why))?),
            }
        }
    }

    /// Lets the disk fail soon, sometimes.
    fn arm(&mut self, faults: &Faults, percent: usize) {
        let Some(dice) = self.disk.as_mut() else { return };
        if !dice.chance(percent) {
            return;
        }
        let fault = Fault::drawn(dice);
        self.trace.push(format!("the disk will fail: {fault:?}"));
        faults.arm(fault);
    }

    /// What was said is the disk's fault, or nothing is well.
    fn blame(&mut self, faults: &Faults, why: String) -> Told<Fault> {
        let Some(fault) = faults.mend().filter(|_| !why.starts_with("row ")) else { return Err(why) };
        self.trace.push(format!("{fault:?}: {why}"));
        self.disk_faults += 1;
        Ok(fault)
    }

    fn live(&mut self, life: &Life, may_die: bool) -> Told<Ended> {
        for _ in 0..self.dice.between(1, 3) {
            let name = self.dice.below(NAMES.len());
            if self.run(life, name, may_die)? == Ended::Died {
                return Ok(Ended::Died);
            }
            if self.dice.chance(50) {
                self.commit(life, name)?;
            }
        }
        Ok(Ended::Done)
    }

    fn commit(&mut self, life: &Life, name: usize) -> Told<()> {
        if self.disk.as_mut().is_some_and(|dice| dice.chance(20)) {
            self.trace.push("the disk will fail: Unnamed".into());
            life.faults.arm(Fault::Unnamed);
        }
        loop {
            self.trace.push(format!("{} is committed", NAMES[name]));
            let Err(why) = life.driver.commit_epoch("batch", &Epoch::Named(NAMES[name].into())) else {
                break;
            };
            self.blame(&life.faults, error(&why))?;
            // Committed again, or run again, which finds out.
            if self.disk.as_mut().is_some_and(|dice| dice.chance(50)) {
                self.names[name].may_be_over = true;
                return Ok(());
            }
        }
        life.faults.mend();
        let named = &mut self.names[name];
        named.may_be_over = false;
        named.gone.extend(named.seen.drain());
        self.fill(name);
        Ok(())
    }

    /// One run of the program's job over an epoch, in which a second action may be under way over the same rows, cut
    /// otherwise; failed tasks are tried again.
    fn run(&mut self, life: &Life, name: usize, may_die: bool) -> Told<Ended> {
        life.driver.begin_run("batch", Some(&Epoch::Named(NAMES[name].into())));
        let mut stages = vec![self.stage(life, name)];
        if self.beside.chance(25) {
            stages.push(self.stage(life, name));
        }
        while !stages.iter().all(|stage| stage.left.is_empty()) {
            let at = self.beside.below(stages.len());
            let stage = &mut stages[at];
            if stage.left.is_empty() {
                continue;
            }
            let at = self.dice.below(stage.left.len());
            if may_die {
                self.arm(&life.faults, 6);
            }
            let ended = match self.attempt(life, name, stage, stage.left[at], may_die) {
                Ok(ended) => ended,
                Err(why) => match self.blame(&life.faults, why)?.passes() {
                    true => Ended::Failed,
                    // This agent writes nothing more.
                    false => Ended::Died,
                },
            };
            match ended {
                Ended::Done => drop(stage.left.swap_remove(at)),
                Ended::Failed => {}
                Ended::Died => return Ok(Ended::Died),
            }
        }
        let rows = &self.names[name].rows;
        let missing = rows.iter().find(|row| stages.iter().any(|stage| !stage.out.contains_key(*row)));
        missing.map_or(Ok(Ended::Done), |row| Err(format!("row {row} is missing")))
    }

    fn stage(&mut self, life: &Life, name: usize) -> Stage {
        let partitions = self.dice.between(1, 5);
        self.stages += 1;
        let number = self.stages;
        life.has_stage(number, partitions as u32);
        self.trace.push(format!("{}: stage {number} of {partitions} in life {}", NAMES[name], life.number));
        let mut parts = vec![Vec::new(); partitions];
        // As many partitions have the same rows, as Spark's have; in which order they come does not matter.
        let mut rows = self.names[name].rows.clone();
        if self.dice.chance(50) {
            rows.reverse();
        }
        for row in rows {
            parts[Dice::new(row as u64).below(partitions)].push(row);
        }
        Stage { number, parts, left: (0..partitions).collect(), out: HashMap::new() }
    }

    fn attempt(
        &mut self,
        life: &Life,
        name: usize,
        stage: &mut Stage,
        partition: usize,
        may_die: bool,
    ) -> Told<Ended> {
        self.attempts += 1;
        let opened = Attempt::open(life, NAMES[name], stage.number, partition as u32, self.attempts);
        let mut attempt = opened.map_err(|e| error(&e))?;
        let size = self.dice.between(1, 30);
        for batch in stage.parts[partition].chunks(size) {
            let sudden = may_die && self.dice.chance(2);
            let ask = || {
                self.answers += 1;
                self.answers
            };
            let answers = attempt.batch(batch, ask, !sudden).map_err(|e| error(&e))?;
            if sudden {
                self.trace.push(format!("dies in partition {partition}, with a block under way"));
                return Ok(Ended::Died);
            }
            for (row, answer) in batch.iter().zip(answers) {
                self.see(name, *row, answer, life)?;
                stage.out.insert(*row, answer);
            }
            if may_die && self.dice.chance(2) {
                self.trace.push(format!("dies in partition {partition}"));
                return Ok(Ended::Died);
            }
            if self.dice.chance(3) {
                let raises = self.dice.chance(50);
                self.trace.push(format!("partition {partition} fails, raises: {raises}"));
                if raises {
                    attempt.fail().map_err(|e| error(&e))?;
                }
                return Ok(Ended::Failed);
            }
        }
        let summary = attempt.finish().map_err(|e| error(&e))?;
        self.replayed += summary.replayed;
        self.moved += summary.from_pool;
        Ok(Ended::Done)
    }

    /// A row leaves, and with it its answer.
    fn see(&mut self, name: usize, row: i64, answer: i64, life: &Life) -> Told<()> {
        let named = &mut self.names[name];
        if named.may_be_over
            && let Some(before) = named.seen.get(&row)
        {
            let is_over = *before != answer;
            // Who was taken for dead may remember what it was before.
            named.may_be_over = !is_over && life.number < self.lives;
            if is_over {
                self.trace.push(format!("{} was committed", NAMES[name]));
                named.gone.extend(named.seen.drain());
            }
        }
        if named.gone.contains(&(row, answer)) {
            // Who was taken for dead has not heard of the commit: what it says is what was committed.
            if life.number < self.lives {
                return Ok(());
            }
            return Err(format!("row {row} has the answer {answer} of a committed use of {}", NAMES[name]));
        }
        let before = *named.seen.entry(row).or_insert(answer);
        if before == answer {
            Ok(())
        } else {
            Err(format!("row {row} of {} was {before} and is {answer}", NAMES[name]))
        }
    }

    /// A life that was taken for over goes on beside the next: it is told, or what it does is the same.
    fn haunt(&mut self, life: Life) -> Told<()> {
        let name = self.dice.below(NAMES.len());
        self.trace.push(format!("life {} is still there", life.number));
        match self.run(&life, name, false) {
            Ok(_) => {}
            Err(why) if why.starts_with("row ") => return Err(format!("life {}: {why}", life.number)),
            Err(why) => self.trace.push(format!("it is told: {why}")),
        }
        life.end();
        Ok(())
    }

    /// The machine went with the last life: the last write to a file is torn.
    fn tear(&mut self) {
        for path in files(self.folder.path(), "seg") {
            if self.dice.chance(30) {
                let length = self.dice.between(1, 60);
                let zeros = self.dice.chance(50);
                let torn: Vec<u8> =
                    (0..length).map(|_| if zeros { 0 } else { self.dice.next() as u8 }).collect();
                OpenOptions::new().append(true).open(&path).unwrap().write_all(&torn).unwrap();
                self.trace.push(format!("{} is torn: {length} bytes", path.display()));
            }
        }
    }
}

fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut found = Vec::new();
    for path in entries.map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|e| e == extension) {
            found.push(path);
        }
    }
    found.sort();
    found
}
