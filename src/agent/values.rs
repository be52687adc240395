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
/// There may be millions of answers, so their table is small, with 16 bytes for each, and is written once.
/// Duties, which come and go, are in another one, which stays in the processor's caches.
#[derive(Debug, Default)]
pub struct Values {
    answers: FingerprintMap<Answer>,
    /// Who is to answer a question: a place in `askers`.
    duties: FingerprintMap<u32>,
    /// Starts of the blocks with answers.
    blocks: Vec<LogOffset>,
    askers: Vec<Holder>,
    /// Place of each asker in `askers`.
    numbers: HashMap<Asker, u32>,
}

/// Where an answer stands.
#[derive(Debug, Clone, Copy)]
struct Answer {
    /// Place in `blocks`.
    block: u32,
    /// Row of the block's results.
    row: u32,
}

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
        let Self { answers, duties, blocks, askers, .. } = self;
        let mut left = duties_max;
        let mut standing = |question: &u64| {
            if let Some(answer) = answers.get(question) {
                let block = blocks.get(answer.block as usize).copied().unwrap_or_default();
                return Standing::Answered(Position { block, row: answer.row });
            }
            match duties.entry(*question) {
                Entry::Vacant(_) if left == 0 => return Standing::Open,
                Entry::Vacant(entry) => {
                    take_duty(askers, me);
                    entry.insert(me);
                }
                Entry::Occupied(mut entry) => {
                    let of = *entry.get();
                    let holder = askers.get(of as usize);
                    let others = of != me && holder.is_some_and(|holder| holder.holds(now_ms, &is_alive));
                    if others || left == 0 {
                        return Standing::Open;
                    }
                    if of != me {
                        end_duty(askers, of);
                        take_duty(askers, me);
                        entry.insert(me);
                    }
                }
            }
            left -= 1;
            Standing::Yours
        };
        questions.iter().map(&mut standing).collect()
    }

    /// The results of the block at `block` are recorded, row by row, as answers to these questions. Returned
    /// are those that had an answer: the first one counts.
    pub fn answered(&mut self, block: LogOffset, questions: &[u64]) -> Vec<u64> {
        let place = u32::try_from(self.blocks.len()).unwrap_or(u32::MAX);
        self.blocks.push(block);
        self.answers.reserve(questions.len());
        let mut late = Vec::new();
        for (row, question) in (0_u32..).zip(questions) {
            if let Some(of) = self.duties.remove(question) {
                end_duty(&mut self.askers, of);
            }
            match self.answers.entry(*question) {
                Entry::Vacant(entry) => {
                    entry.insert(Answer { block: place, row });
                }
                Entry::Occupied(_) => late.push(*question),
            }
        }
        late
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
            self.duties.retain(|_, of| *of != number);
        }
        had
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
