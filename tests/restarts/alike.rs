//! Rows with equal arguments, each of which has an answer of its own. Which of them has which need not be told; that
//! none is asked twice, and no two have one answer, must. Where that cannot be known a run is refused.

use std::collections::{BTreeMap, HashMap, HashSet};

use clonos::error::{DivergenceKind, Error, Result};
use clonos::id::Epoch;
use tempfile::TempDir;

use crate::dice::Dice;
use crate::faults::Faults;
use crate::life::{Attempt, Life, marks_of};

const NAME: &str = "alike";
const LIVES_MAX: usize = 5;

type Told<T> = std::result::Result<T, String>;

/// Answers by argument.
type Answers = BTreeMap<i64, HashSet<i64>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    Done,
    Failed,
    Died,
    /// The rows cannot be told apart: the epoch is given up.
    Refused,
}

pub(crate) struct Alike {
    dice: Dice,
    folder: TempDir,
    /// Argument of each row.
    rows: Vec<i64>,
    partitions: usize,
    /// What anybody has seen of this use of the name.
    seen: Answers,
    /// Whether it was asked in other partitions, in another order, or below other columns, since it began.
    is_moved: bool,
    /// Which columns are read above the function, and tell its rows apart; 0 for none.
    columns: u64,
    lives: u64,
    stages: u32,
    attempts: u64,
    answers: i64,
    pub(crate) trace: Vec<String>,
    pub(crate) replayed: u64,
    pub(crate) refused: usize,
}

impl Alike {
    pub(crate) fn new(seed: u64) -> Self {
        let mut alike = Self {
            dice: Dice::new(seed),
            folder: tempfile::tempdir().unwrap(),
            rows: Vec::new(),
            partitions: 1,
            seen: Answers::new(),
            is_moved: false,
            columns: 0,
            lives: 0,
            stages: 0,
            attempts: 0,
            answers: 0,
            trace: Vec::new(),
            replayed: 0,
            refused: 0,
        };
        alike.fill();
        alike
    }

    fn fill(&mut self) {
        let (rows, arguments) = (self.dice.between(1, 60), self.dice.between(1, 12));
        self.rows = (0..rows).map(|_| self.dice.below(arguments) as i64).collect();
        self.partitions = self.dice.between(1, 5);
        (self.seen, self.is_moved) = (Answers::new(), false);
        self.columns = self.dice.below(3) as u64;
    }

    pub(crate) fn tell(&mut self) -> Told<()> {
        for last in (0..self.dice.between(2, LIVES_MAX)).rev() {
            self.lives += 1;
            self.trace.push(format!("life {} begins", self.lives));
            let (depth, executors) = (self.dice.below(2) as u32, self.dice.below(2));
            let life = Life::begin(self.folder.path(), &Faults::default(), self.lives, depth, executors);
            let life = life.map_err(|error| error.to_string())?;
            for _ in 0..self.dice.between(1, 3) {
                let ended = self.run(&life, last > 0)?;
                if ended == Ended::Died {
                    break;
                }
                if ended == Ended::Refused || self.dice.chance(30) {
                    self.commit(&life)?;
                }
            }
            life.end();
        }
        Ok(())
    }

    fn commit(&mut self, life: &Life) -> Told<()> {
        self.trace.push("it is committed, or given up".to_owned());
        life.driver.commit_epoch("batch", &Epoch::Named(NAME.into())).map_err(|error| error.to_string())?;
        self.fill();
        Ok(())
    }

    fn run(&mut self, life: &Life, may_die: bool) -> Told<Ended> {
        if self.dice.chance(25) {
            self.partitions = self.dice.between(1, 5);
            self.is_moved = true;
        }
        if self.dice.chance(10) {
            self.columns = self.dice.below(3) as u64;
            self.is_moved = true;
        }
        self.stages += 1;
        let (stage, partitions) = (self.stages, self.partitions);
        life.has_stage(stage, partitions as u32);
        life.driver.begin_run("batch", Some(&Epoch::Named(NAME.into())));
        self.trace.push(format!(
            "stage {stage} of {partitions} over {} rows, columns {}",
            self.rows.len(),
            self.columns
        ));
        let mut parts = vec![Vec::new(); partitions];
        (0..self.rows.len()).for_each(|row| parts[Dice::new(row as u64).below(partitions)].push(row));
        if self.dice.chance(20) {
            self.is_moved = true;
            parts.iter_mut().for_each(|part| part.reverse());
        }
        let mut left: Vec<usize> = (0..partitions).collect();
        let mut all = Answers::new();
        while !left.is_empty() {
            let at = self.dice.below(left.len());
            let mut given = Answers::new();
            let asked = self.attempt(life, stage, left[at], &parts[left[at]], may_die, &mut given);
            let ended = match asked {
                Ok(ended) => ended,
                Err(error) if self.may_refuse(&error) => {
                    self.trace.push(format!("refused: {error}"));
                    self.refused += 1;
                    return Ok(Ended::Refused);
                }
                Err(error) => return Err(error.to_string()),
            };
            for (argument, answers) in given {
                self.seen.entry(argument).or_default().extend(&answers);
                if ended == Ended::Done {
                    all.entry(argument).or_default().extend(answers);
                }
            }
            match ended {
                Ended::Done => drop(left.swap_remove(at)),
                Ended::Failed => {}
                ended => return Ok(ended),
            }
        }
        // That one was given twice is known, at the latest, to the last task of the stage.
        for (argument, answers) in &all {
            let rows = self.rows.iter().filter(|row| *row == argument).count();
            if answers.len() < rows {
                return Err(format!("{rows} rows with the argument {argument} have the answers {answers:?}"));
            }
            if let Some(lost) = self.seen[argument].difference(answers).next() {
                return Err(format!("no row with the argument {argument} has the answer {lost} any more"));
            }
        }
        Ok(Ended::Done)
    }

    fn may_refuse(&self, error: &Error) -> bool {
        let Error::Divergence(divergence) = error else { return false };
        self.is_moved
            && matches!(divergence.kind, DivergenceKind::AmbiguousRows | DivergenceKind::RowsChanged)
    }

    fn attempt(
        &mut self,
        life: &Life,
        stage: u32,
        partition: usize,
        rows: &[usize],
        may_die: bool,
        given: &mut Answers,
    ) -> Result<Ended> {
        self.attempts += 1;
        let mut attempt = Attempt::open(life, NAME, stage, partition as u32, self.attempts)?;
        let size = self.dice.between(1, 20);
        for batch in rows.chunks(size) {
            let arguments: Vec<i64> = batch.iter().map(|row| self.rows[*row]).collect();
            let marks = match self.columns {
                0 => Vec::new(),
                columns => marks_of(batch.iter().map(|row| *row as u64), columns),
            };
            let ask = || {
                self.answers += 1;
                self.answers
            };
            let answers = attempt.batch_of(&arguments, marks, ask, true)?;
            self.trace.push(format!("partition {partition}: {arguments:?} are {answers:?}"));
            let mut counts = HashMap::new();
            for (argument, answer) in arguments.iter().zip(answers) {
                *counts.entry(answer).or_insert(0) += 1;
                given.entry(*argument).or_default().insert(answer);
            }
            if let Some((answer, _)) = counts.iter().find(|(_, count)| **count > 1) {
                let what = format!("two rows of a batch have the answer {answer}");
                return Err(Error::Misuse { what });
            }
            if may_die && self.dice.chance(3) {
                self.trace.push(format!("dies in partition {partition}"));
                return Ok(Ended::Died);
            }
            if self.dice.chance(3) {
                self.trace.push(format!("partition {partition} fails"));
                if self.dice.chance(50) {
                    attempt.fail()?;
                }
                return Ok(Ended::Failed);
            }
        }
        let summary = attempt.finish()?;
        self.trace.push(format!("{} of {} were taken", summary.taken, summary.known));
        self.replayed += summary.replayed;
        Ok(Ended::Done)
    }
}
