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
/// There may be millions of questions, so their table has 16 bytes for each, and is looked into once for each:
/// whoever gets duties gets a list of them, and a block that answers a whole list takes its place, row by row.
#[derive(Debug, Default)]
pub struct Values {
    places: FingerprintMap<Place>,
    lists: Vec<List>,
    /// Lists to which nothing refers any more.
    unused: Vec<u32>,
    askers: Vec<Holder>,
    /// Place of each asker in `askers`.
    numbers: HashMap<Asker, u32>,
    answers: usize,
}

/// Where a question stands.
#[derive(Debug, Clone, Copy)]
struct Place {
    /// Number of the list.
    list: u32,
    /// Row of the list.
    row: u32,
}

/// Questions in the order of their rows.
#[derive(Debug)]
enum List {
    /// One asker is to answer them.
    Due(Box<Due>),
    /// Nobody is.
    Free {
        /// How many refer to this list.
        left: usize,
    },
    /// They are answered, by the results of the block that starts here.
    Answered(LogOffset),
}

/// Duties that one asker was given at once.
#[derive(Debug)]
struct Due {
    /// Place of the asker in `Values::askers`.
    holder: u32,
    questions: Vec<u64>,
    /// How many of them still refer to this list; others were answered or given to somebody else.
    left: usize,
}

/// An asker that was heard of.
#[derive(Debug)]
struct Holder {
    asker: Asker,
    /// When it was heard of last.
    heard_ms: u64,
    /// Numbers of its lists, the newest last.
    lists: Vec<u32>,
}

impl Holder {
    /// Whether its duties are its own still.
    fn holds(&self, now_ms: u64, is_alive: &impl Fn(AgentId) -> bool) -> bool {
        is_alive(self.asker.agent) && now_ms.saturating_sub(self.heard_ms) <= SILENCE_MS_MAX
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
        let mine = self.add(List::Free { left: 0 });
        let duties_max = duties_max.min(questions.len());
        let mut due = Due { holder: me, questions: Vec::with_capacity(duties_max), left: 0 };
        let mut standing = Vec::with_capacity(questions.len());
        for question in questions {
            let entry = self.places.entry(*question);
            let before = if let Entry::Occupied(entry) = &entry {
                let place = *entry.get();
                let others = match self.lists.get(place.list as usize) {
                    Some(List::Answered(block)) => {
                        standing.push(Standing::Answered(Position { block: *block, row: place.row }));
                        continue;
                    }
                    Some(List::Due(due)) if due.holder != me => {
                        let holder = self.askers.get(due.holder as usize);
                        holder.is_some_and(|holder| holder.holds(now_ms, &is_alive))
                    }
                    _ => false,
                };
                if others {
                    standing.push(Standing::Open);
                    continue;
                }
                Some(place.list)
            } else {
                None
            };
            if due.questions.len() == duties_max {
                standing.push(Standing::Open);
                continue;
            }
            entry.insert_entry(Place { list: mine, row: row_of(due.questions.len()) });
            due.questions.push(*question);
            due.left += 1;
            standing.push(Standing::Yours);
            match before {
                Some(list) if list == mine => due.left -= 1,
                Some(list) => self.leave(list),
                None => {}
            }
        }
        if due.questions.is_empty() {
            self.unused.push(mine);
            return standing;
        }
        if let Some(holder) = self.askers.get_mut(me as usize) {
            holder.lists.push(mine);
        }
        self.set(mine, List::Due(Box::new(due)));
        standing
    }

    /// The results of the block at `block` are recorded, row by row, as answers of `asker` to these
    /// questions. Returned are those that had an answer: the first one counts.
    pub fn answered(&mut self, asker: Option<Asker>, block: LogOffset, questions: &[u64]) -> Vec<u64> {
        if let Some(list) = asker.and_then(|asker| self.whole(asker, questions)) {
            self.set(list, List::Answered(block));
            self.answers += questions.len();
            return Vec::new();
        }
        let list = self.add(List::Answered(block));
        self.places.reserve(questions.len());
        let mut late = Vec::new();
        for (row, question) in (0_u32..).zip(questions) {
            match self.places.entry(*question) {
                Entry::Vacant(entry) => {
                    entry.insert(Place { list, row });
                }
                Entry::Occupied(mut entry) => {
                    let before = entry.get().list;
                    if matches!(self.lists.get(before as usize), Some(List::Answered(_))) {
                        late.push(*question);
                        continue;
                    }
                    entry.insert(Place { list, row });
                    self.leave(before);
                }
            }
            self.answers += 1;
        }
        late
    }

    /// The asker's list of just these questions, all of which refer to it. It is its asker's no more.
    fn whole(&mut self, asker: Asker, questions: &[u64]) -> Option<u32> {
        let number = *self.numbers.get(&asker)?;
        let Self { askers, lists, .. } = self;
        let holder = askers.get_mut(number as usize)?;
        let at = holder.lists.iter().rposition(|list| {
            let due = match lists.get(*list as usize) {
                Some(List::Due(due)) => due,
                _ => return false,
            };
            due.left == due.questions.len() && due.questions == questions
        })?;
        Some(holder.lists.remove(at))
    }

    /// One question does not refer to the list any more.
    fn leave(&mut self, list: u32) {
        let left = match self.lists.get_mut(list as usize) {
            Some(List::Due(due)) => &mut due.left,
            Some(List::Free { left }) => left,
            _ => return,
        };
        *left = left.saturating_sub(1);
        if *left > 0 {
            return;
        }
        if let Some(List::Due(due)) = self.set(list, List::Free { left: 0 })
            && let Some(holder) = self.askers.get_mut(due.holder as usize)
        {
            holder.lists.retain(|own| *own != list);
        }
        self.unused.push(list);
    }

    fn add(&mut self, list: List) -> u32 {
        if let Some(unused) = self.unused.pop() {
            self.set(unused, list);
            return unused;
        }
        self.lists.push(list);
        row_of(self.lists.len() - 1)
    }

    fn set(&mut self, number: u32, list: List) -> Option<List> {
        self.lists.get_mut(number as usize).map(|known| std::mem::replace(known, list))
    }

    /// The asker lives.
    pub fn heard(&mut self, asker: Asker, now_ms: u64) {
        let number = self.number(asker);
        if let Some(holder) = self.askers.get_mut(number as usize) {
            holder.heard_ms = now_ms;
        }
    }

    fn number(&mut self, asker: Asker) -> u32 {
        let askers = &mut self.askers;
        *self.numbers.entry(asker).or_insert_with(|| {
            askers.push(Holder { asker, heard_ms: 0, lists: Vec::new() });
            row_of(askers.len() - 1)
        })
    }

    /// The asker has no duties any more; whether it had one.
    pub fn give_up(&mut self, asker: Asker) -> bool {
        let Some(number) = self.numbers.get(&asker).copied() else { return false };
        let Some(holder) = self.askers.get_mut(number as usize) else { return false };
        let had = std::mem::take(&mut holder.lists);
        for list in &had {
            if let Some(known) = self.lists.get_mut(*list as usize)
                && let List::Due(due) = known
            {
                *known = List::Free { left: due.left };
            }
        }
        !had.is_empty()
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

/// Beyond what memory holds.
fn row_of(place: usize) -> u32 {
    u32::try_from(place).unwrap_or(u32::MAX)
}
