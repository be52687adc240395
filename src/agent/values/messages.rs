//! What workers say of the answers that all tasks of an epoch share. A worker asks its agent, which asks
//! the driver's.

use std::ops::Range;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::Asker;
use crate::error::{Error, Result};
use crate::id::{Epoch, EpochKey};
use crate::task::Summary;

/// Questions in one request.
pub const QUESTIONS_MAX: usize = 1 << 16;
/// How long an agent keeps a request whose questions are all open, in milliseconds.
pub const WAIT_MS_MAX: u64 = 500;

/// Which table: one function in one epoch.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TableId {
    /// Streaming query id, or the name of a batch query.
    pub query: String,
    /// Epoch within the query.
    pub epoch: Epoch,
    /// `uid` of the function.
    pub operator: String,
    /// Whether the user gave that name.
    pub named: bool,
    /// Fingerprint of the function.
    pub code: u64,
    /// Hash of the types of its arguments and result: with others it is another function.
    pub shape: u64,
    /// Python version; fingerprints compare within one.
    pub python: String,
    /// The function's name, for people.
    pub label: String,
    /// Whether answers of other code are taken over.
    pub allow_code_change: bool,
    /// Hash of the application id.
    pub app: u64,
}

impl TableId {
    /// The epoch.
    #[must_use]
    pub fn epoch_key(&self) -> EpochKey {
        EpochKey { query: self.query.as_str().into(), epoch: self.epoch.clone() }
    }
}

/// Fingerprints of arguments. They stand as they are: as numbers of varying length they would be longer, and
/// take as long to write as to answer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Questions(Bytes);

impl Questions {
    /// What is asked.
    #[must_use]
    pub fn new(questions: &[u64]) -> Self {
        Self(questions.iter().flat_map(|question| question.to_le_bytes()).collect())
    }

    /// The fingerprints.
    ///
    /// # Errors
    /// [`Error::Protocol`] if there are more than [`QUESTIONS_MAX`], or one is cut off.
    pub fn read(&self) -> Result<Vec<u64>> {
        let (questions, rest) = self.0.as_chunks::<8>();
        if !rest.is_empty() || questions.len() > QUESTIONS_MAX {
            return Err(Error::Protocol { what: "too many questions at a time, or half a one".into() });
        }
        Ok(questions.iter().map(|question| u64::from_le_bytes(*question)).collect())
    }
}

/// Positions among the questions of a request, in growing order: mostly all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Positions(Vec<Range<u32>>);

impl Positions {
    /// One by one.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().flat_map(Clone::clone)
    }
}

impl FromIterator<u32> for Positions {
    fn from_iter<I: IntoIterator<Item = u32>>(positions: I) -> Self {
        let mut runs: Vec<Range<u32>> = Vec::new();
        for position in positions {
            match runs.last_mut() {
                Some(run) if run.end == position => run.end += 1,
                _ => runs.push(position..position + 1),
            }
        }
        Self(runs)
    }
}

/// What a worker wants of a table.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Wanted {
    /// Answers, or the duty to answer.
    Ask {
        /// At most [`QUESTIONS_MAX`] of them.
        questions: Questions,
        /// How many of them the worker is ready to answer.
        duties_max: u32,
        /// Whether it has nothing else to do while all of them are open.
        patient: bool,
    },
    /// That answers are recorded: a block of one `Results`.
    Answer {
        /// The block.
        block: Bytes,
    },
    /// To be free of its duties.
    GiveUp {
        /// What the task did.
        summary: Summary,
    },
}

/// A worker's request about a table.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AboutValues {
    /// The table.
    pub table: TableId,
    /// Who asks; filled in by the worker's agent.
    pub asker: Option<Asker>,
    /// As [`crate::agent::protocol::OpenTask::stamp`].
    pub stamp: u64,
    /// What for.
    pub wanted: Wanted,
}

/// Some answers, of one block of the table's log.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Answers {
    /// Which of the questions they answer.
    pub questions: Positions,
    /// One per question, as an Arrow IPC stream.
    pub arrow: Bytes,
}

/// What became of what was wanted.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Found {
    /// To `Ask`. Questions in neither are open, or answered at the next asking.
    Standing {
        /// Which of the questions are the worker's duty.
        yours: Positions,
        /// The answers that there are.
        answered: Vec<Answers>,
    },
    /// To `Answer`: recorded, but for these questions, which were answered before.
    Late(Vec<u64>),
    /// To `GiveUp`.
    Freed,
}
