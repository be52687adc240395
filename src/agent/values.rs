//! One answer per distinct argument: who answers which question of an epoch, and where answers stand.
//!
//! A machine without I/O for one table; time is an argument, in milliseconds of any clock that does not go
//! back. A question is the fingerprint of a function's arguments. Whoever asks gets, for each question, its
//! answer, or the duty to answer it, or neither while another has that duty. Three rules make it sound:
//!
//! - The first answer that was recorded counts; later ones are told to be late, and their senders read it.
//! - Nobody waits while it has a duty: askers answer first, and ask again.
//! - A duty ends with an answer, with its asker, or when its asker is silent for too long and somebody waits.

pub mod messages;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};

use serde::{Deserialize, Serialize};

use crate::id::{AgentId, LogOffset};

/// An asker that was silent for longer has no duties if others wait for their answers. It may only be slow:
/// then two ask the service, and one answer counts.
pub const SILENCE_MS_MAX: u64 = 600_000;

/// One connection of a worker to its agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Asker {
    /// The agent.
    pub agent: AgentId,
    /// Number of the connection there.
    pub connection: u64,
}

/// Where a recorded answer stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Position {
    /// Start of the block in the table's log.
    pub block: LogOffset,
    /// Row of the block's results.
    pub row: u32,
}

/// How it stands with a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Its answer is recorded.
    Answered(Position),
    /// The asker is to answer it.
    Yours,
    /// Nobody's answer is there yet: ask again.
    Open,
}

/// The questions and answers of one function in one epoch.
#[derive(Debug, Default)]
pub struct Values {
    answers: HashMap<u64, Position>,
    duties: HashMap<u64, Asker>,
    /// When each asker was heard of last.
    heard_ms: HashMap<Asker, u64>,
}

impl Values {
    /// A table without answers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How it stands with each question. The asker gets at most `duties_max` of them as its duty, those
    /// that it has already included.
    pub fn ask(
        &mut self,
        asker: Asker,
        questions: &[u64],
        duties_max: usize,
        now_ms: u64,
        is_alive: impl Fn(AgentId) -> bool,
    ) -> Vec<Standing> {
        self.heard_ms.insert(asker, now_ms);
        let Self { answers, duties, heard_ms } = self;
        let holds = |other: &Asker| {
            let heard = heard_ms.get(other);
            is_alive(other.agent) && heard.is_some_and(|ms| now_ms.saturating_sub(*ms) <= SILENCE_MS_MAX)
        };
        let mut left = duties_max;
        let mut standing = |question: &u64| {
            if let Some(position) = answers.get(question) {
                return Standing::Answered(*position);
            }
            let others = duties.get(question).is_some_and(|other| *other != asker && holds(other));
            if others || left == 0 {
                return Standing::Open;
            }
            left -= 1;
            duties.insert(*question, asker);
            Standing::Yours
        };
        questions.iter().map(&mut standing).collect()
    }

    /// Rows whose question has no answer yet, each question once: those to record.
    #[must_use]
    pub fn unanswered(&self, questions: &[u64]) -> Vec<u32> {
        let mut seen = HashSet::new();
        let mut is_new = |question: &u64| !self.answers.contains_key(question) && seen.insert(*question);
        let rows = (0_u32..).zip(questions);
        rows.filter(|(_, question)| is_new(question)).map(|(row, _)| row).collect()
    }

    /// The results of the block at `block` are recorded, row by row, as answers to these questions.
    pub fn answered(&mut self, block: LogOffset, questions: &[u64]) {
        for (row, question) in (0_u32..).zip(questions) {
            self.answers.entry(*question).or_insert(Position { block, row });
            self.duties.remove(question);
        }
    }

    /// The asker lives.
    pub fn heard(&mut self, asker: Asker, now_ms: u64) {
        self.heard_ms.insert(asker, now_ms);
    }

    /// The asker has no duties any more; whether it had one.
    pub fn give_up(&mut self, asker: Asker) -> bool {
        self.heard_ms.remove(&asker);
        let before = self.duties.len();
        self.duties.retain(|_, holder| *holder != asker);
        self.duties.len() < before
    }

    /// Number of answers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.answers.len()
    }

    /// Whether nothing was answered yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.answers.is_empty()
    }
}
