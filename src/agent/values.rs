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

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use serde::{Deserialize, Serialize};

use crate::determinant::FingerprintMap;
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
///
/// A million questions are looked up twice each, so the table is one, and small: 16 bytes per question.
#[derive(Debug, Default)]
pub struct Values {
    known: FingerprintMap<Known>,
    /// Starts of the blocks with answers.
    blocks: Vec<LogOffset>,
    askers: Vec<Holder>,
    /// Place of each asker in `askers`.
    numbers: HashMap<Asker, u32>,
    /// Number of answers in `known`.
    answers: usize,
}

/// What is known of a question: where its answer stands, or who is to answer it.
#[derive(Debug, Clone, Copy)]
struct Known {
    /// Place in `blocks`, or in `askers`.
    of: u32,
    /// Row of the block's results, or [`DUTY`].
    row: u32,
}

/// In place of a row: a duty.
const DUTY: u32 = u32::MAX;

/// An asker that was heard of.
#[derive(Debug, Clone, Copy)]
struct Holder {
    asker: Asker,
    /// When it was heard of last, unless it has given up since.
    heard_ms: Option<u64>,
    duties: usize,
}

impl Holder {
    /// Whether its duties are its own still.
    fn holds(&self, now_ms: u64, is_alive: &impl Fn(AgentId) -> bool) -> bool {
        is_alive(self.asker.agent)
            && self.heard_ms.is_some_and(|ms| now_ms.saturating_sub(ms) <= SILENCE_MS_MAX)
    }
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
        self.heard(asker, now_ms);
        let me = self.number(asker);
        let Self { known, blocks, askers, .. } = self;
        let mut left = duties_max;
        let mut standing = |question: &u64| {
            let entry = match known.entry(*question) {
                Entry::Vacant(_) if left == 0 => return Standing::Open,
                Entry::Vacant(entry) => {
                    take_duty(askers, me);
                    entry.insert(Known { of: me, row: DUTY });
                    left -= 1;
                    return Standing::Yours;
                }
                Entry::Occupied(entry) => entry.into_mut(),
            };
            if entry.row != DUTY {
                let block = blocks.get(entry.of as usize).copied().unwrap_or_default();
                return Standing::Answered(Position { block, row: entry.row });
            }
            let holder = askers.get(entry.of as usize);
            let others = entry.of != me && holder.is_some_and(|holder| holder.holds(now_ms, &is_alive));
            if others || left == 0 {
                return Standing::Open;
            }
            left -= 1;
            if entry.of != me {
                end_duty(askers, entry.of);
                take_duty(askers, me);
                entry.of = me;
            }
            Standing::Yours
        };
        questions.iter().map(&mut standing).collect()
    }

    /// Rows whose question has no answer yet, each question once: those to record.
    #[must_use]
    pub fn unanswered(&self, questions: &[u64]) -> Vec<u32> {
        let mut seen: FingerprintMap<()> = FingerprintMap::default();
        seen.reserve(questions.len());
        let answered = |question: &u64| self.known.get(question).is_some_and(|known| known.row != DUTY);
        let mut is_new = |question: &u64| !answered(question) && seen.insert(*question, ()).is_none();
        let rows = (0_u32..).zip(questions);
        rows.filter(|(_, question)| is_new(question)).map(|(row, _)| row).collect()
    }

    /// The results of the block at `block` are recorded, row by row, as answers to these questions.
    pub fn answered(&mut self, block: LogOffset, questions: &[u64]) {
        let of = u32::try_from(self.blocks.len()).unwrap_or(u32::MAX);
        self.blocks.push(block);
        for (row, question) in (0_u32..).zip(questions) {
            match self.known.entry(*question) {
                Entry::Vacant(entry) => {
                    entry.insert(Known { of, row });
                }
                Entry::Occupied(entry) if entry.get().row == DUTY => {
                    let known = entry.into_mut();
                    end_duty(&mut self.askers, known.of);
                    *known = Known { of, row };
                }
                Entry::Occupied(_) => continue,
            }
            self.answers += 1;
        }
    }

    /// The asker lives.
    pub fn heard(&mut self, asker: Asker, now_ms: u64) {
        let number = self.number(asker);
        if let Some(holder) = self.askers.get_mut(number as usize) {
            holder.heard_ms = Some(now_ms);
        }
    }

    fn number(&mut self, asker: Asker) -> u32 {
        let askers = &mut self.askers;
        *self.numbers.entry(asker).or_insert_with(|| {
            askers.push(Holder { asker, heard_ms: None, duties: 0 });
            u32::try_from(askers.len() - 1).unwrap_or(u32::MAX)
        })
    }

    /// The asker has no duties any more; whether it had one.
    pub fn give_up(&mut self, asker: Asker) -> bool {
        let Some(number) = self.numbers.get(&asker).copied() else { return false };
        let Some(holder) = self.askers.get_mut(number as usize) else { return false };
        holder.heard_ms = None;
        // Whoever has answered all has none, and nothing is looked for.
        let had = std::mem::take(&mut holder.duties) > 0;
        if had {
            self.known.retain(|_, known| known.row != DUTY || known.of != number);
        }
        had
    }

    /// Number of answers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.answers
    }

    /// Whether nothing was answered yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.answers == 0
    }
}

fn take_duty(askers: &mut [Holder], number: u32) {
    if let Some(holder) = askers.get_mut(number as usize) {
        holder.duties += 1;
    }
}

fn end_duty(askers: &mut [Holder], number: u32) {
    if let Some(holder) = askers.get_mut(number as usize) {
        holder.duties = holder.duties.saturating_sub(1);
    }
}
