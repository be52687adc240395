//! Rows that other partitions recorded, as a task asks its agent for them.
//!
//! There may be more of them than memory holds, so a task asks for those of one batch at a time: for each
//! fingerprint in it, the rows after those that it has already.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::determinant::FingerprintMap;
use crate::error::{Error, Result};

/// Questions in one request.
pub const POOL_QUESTIONS_MAX: usize = 1 << 15;
const QUESTION: usize = 16;

/// What is asked of the recorded rows of one fingerprint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolQuestion {
    /// Of the function's arguments.
    pub fingerprint: u64,
    /// How many of them the task has: not these again.
    pub from: u32,
    /// How many more it can use.
    pub wanted: u32,
}

/// Questions as they are sent: numbers of one length each.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PoolQuestions(Bytes);

impl PoolQuestions {
    /// What is asked: at most [`POOL_QUESTIONS_MAX`] questions.
    #[must_use]
    pub fn new(questions: &[PoolQuestion]) -> Self {
        let mut bytes = Vec::with_capacity(QUESTION * questions.len());
        for question in questions {
            bytes.extend(question.fingerprint.to_le_bytes());
            bytes.extend(question.from.to_le_bytes());
            bytes.extend(question.wanted.to_le_bytes());
        }
        Self(bytes.into())
    }

    /// The questions.
    ///
    /// # Errors
    /// [`Error::Protocol`] if there are more than [`POOL_QUESTIONS_MAX`], or one is cut off.
    pub fn read(&self) -> Result<Vec<PoolQuestion>> {
        let (questions, rest) = self.0.as_chunks::<QUESTION>();
        if !rest.is_empty() || questions.len() > POOL_QUESTIONS_MAX {
            return Err(Error::Protocol { what: "too many questions at a time, or half a one".into() });
        }
        let read = |&[f0, f1, f2, f3, f4, f5, f6, f7, a0, a1, a2, a3, b0, b1, b2, b3]: &[u8; QUESTION]| {
            PoolQuestion {
                fingerprint: u64::from_le_bytes([f0, f1, f2, f3, f4, f5, f6, f7]),
                from: u32::from_le_bytes([a0, a1, a2, a3]),
                wanted: u32::from_le_bytes([b0, b1, b2, b3]),
            }
        };
        Ok(questions.iter().map(read).collect())
    }
}

/// What came of one question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolAnswer {
    /// Rows that were given: fewer than wanted if there are no more, or the message was full.
    pub given: u32,
    /// Rows behind them.
    pub left: u64,
}

/// Answers to the first of the questions: at least to one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolRows {
    /// One per question, in their order.
    pub answers: Vec<PoolAnswer>,
    /// The rows, as blocks of a log: first the headers under which they were recorded.
    pub blocks: Vec<Bytes>,
    /// Of which columns the marks of all rows are that there are, each once; 0 for rows without.
    pub columns: Vec<u64>,
    /// Whether rows may be missing in those logs: no stage that recorded came to its end in all tasks.
    pub may_lack_rows: bool,
    /// How many rows there are in those logs, of which none is a copy of another one.
    pub count: u64,
    /// Whether those of the log of whoever asks are among them, which it is not given.
    pub has_own: bool,
}

/// What a task has of the rows of others, by fingerprint.
#[derive(Debug, Default)]
pub(super) struct Asked {
    rows: FingerprintMap<Rows>,
}

/// Rows of one fingerprint.
#[derive(Debug, Clone, Copy, Default)]
struct Rows {
    given: u32,
    has_more: bool,
}

impl Asked {
    /// What to ask for so that a batch can be decided; in the order of fingerprints, by which rows are found.
    pub(super) fn questions(&self, fingerprints: impl Iterator<Item = u64>) -> Vec<PoolQuestion> {
        let mut counts: FingerprintMap<u32> = FingerprintMap::default();
        fingerprints.for_each(|fingerprint| *counts.entry(fingerprint).or_default() += 1);
        let question = |(fingerprint, wanted)| match self.rows.get(&fingerprint) {
            None => Some(PoolQuestion { fingerprint, from: 0, wanted }),
            Some(Rows { given, has_more: true }) => Some(PoolQuestion { fingerprint, from: *given, wanted }),
            Some(_) => None,
        };
        let mut questions: Vec<_> = counts.into_iter().filter_map(question).collect();
        questions.sort_unstable_by_key(|question| question.fingerprint);
        questions
    }

    /// Takes in answers; what is still to be asked then.
    pub(super) fn answered(
        &mut self,
        questions: &[PoolQuestion],
        answers: &[PoolAnswer],
    ) -> Result<Vec<PoolQuestion>> {
        if answers.is_empty() || answers.len() > questions.len() {
            return Err(Error::Protocol { what: "answers to other questions than were asked".into() });
        }
        let mut open = Vec::new();
        for (question, answer) in questions.iter().zip(answers) {
            let rows = self.rows.entry(question.fingerprint).or_default();
            rows.given = rows.given.saturating_add(answer.given);
            rows.has_more = answer.left > 0;
            let wanted = question.wanted.saturating_sub(answer.given);
            if rows.has_more && wanted > 0 {
                open.push(PoolQuestion { from: rows.given, wanted, ..*question });
            }
        }
        open.extend(questions.iter().skip(answers.len()));
        Ok(open)
    }

    /// Whether there are rows of this fingerprint already.
    pub(super) fn has(&self, fingerprint: u64) -> bool {
        self.rows.get(&fingerprint).is_some_and(|rows| rows.given > 0)
    }
}
