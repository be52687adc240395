//! Which rows of a source's log there are, where each block's bytes are, and what may be dropped.
//!
//! Blocks come in at the end, become *safe* in order (only then may Spark see them), and go at the front when
//! Spark has committed them. On disk they stand in parts, each a file; a part goes when all of its blocks went.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use super::block::Span;
use crate::causal_log::SpillRef;
use crate::error::{Error, Result};

/// Where a block's bytes are: in memory, on disk, or both.
#[derive(Debug, Clone, Default)]
pub struct Place {
    /// The bytes.
    pub memory: Option<Bytes>,
    /// Where they are on disk.
    pub disk: Option<SpillRef>,
}

/// One block.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Where it stands.
    pub span: Span,
    /// The file in which it is, or will be.
    pub part: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// Where its bytes are.
    pub place: Place,
}

/// The blocks of a source's log.
#[derive(Debug)]
pub struct Backlog {
    entries: VecDeque<Entry>,
    /// Number of the first entry, counted from the first one ever.
    base: u64,
    /// Entries before this one are safe.
    settled: u64,
    end: u64,
    safe: u64,
    taken: u64,
    safe_taken: u64,
    committed: u64,
    /// Bytes in memory of blocks that are safe: those that are not yet have to stay anyway.
    memory: u64,
    memory_max: u64,
    part: u64,
    part_max: u64,
    /// Bytes of each part that is there.
    parts: BTreeMap<u64, u64>,
    /// Blocks that went into the last part, and how many it takes.
    blocks: u64,
    blocks_max: u64,
}

impl Backlog {
    /// A log that goes on at a position, in a new part; `memory_max` bytes of safe blocks stay in memory, and a
    /// part takes about `part_max`.
    #[must_use]
    pub const fn new(memory_max: u64, part_max: u64) -> Self {
        Self {
            entries: VecDeque::new(),
            base: 0,
            settled: 0,
            end: 0,
            safe: 0,
            taken: 0,
            safe_taken: 0,
            committed: 0,
            memory: 0,
            memory_max,
            part: 0,
            part_max,
            parts: BTreeMap::new(),
            blocks: 0,
            blocks_max: u64::MAX,
        }
    }

    /// A part takes so many blocks at the most.
    #[must_use]
    pub const fn with_blocks(mut self, blocks_max: u64) -> Self {
        self.blocks_max = blocks_max;
        self
    }

    /// Takes in a block that was found on disk.
    ///
    /// # Errors
    /// [`Error::CorruptLog`] if rows are missing before it.
    pub fn recovered(&mut self, span: Span, part: u64, place: SpillRef) -> Result<()> {
        if self.parts.is_empty() {
            (self.end, self.committed) = (span.first, span.first);
        }
        if span.first != self.end {
            let what =
                format!("a source's log lacks the rows from {} to {}", self.end.min(span.first), span.first);
            return Err(Error::CorruptLog { what });
        }
        let bytes = u64::from(place.len);
        *self.parts.entry(part).or_default() += bytes;
        self.part = self.part.max(part + 1);
        (self.end, self.taken) = (span.end(), span.taken);
        (self.safe, self.safe_taken) = (self.end, self.taken);
        if span.rows > 0 {
            self.entries.push_back(Entry {
                span,
                part,
                bytes,
                place: Place { memory: None, disk: Some(place) },
            });
            self.settled += 1;
        }
        Ok(())
    }

    /// Goes on at `position`, if that is further on: rows that were not on disk may have stood before it.
    pub fn skip_to(&mut self, position: u64) {
        if self.end == self.safe && position > self.end {
            (self.end, self.safe) = (position, position);
        }
    }

    /// The span of the next block.
    #[must_use]
    pub const fn next(&self, rows: u32, taken: u64, received: i64) -> Span {
        Span::new(self.end, rows, self.taken + taken, received)
    }

    /// Takes in a block at the end; its number.
    pub fn push(&mut self, span: Span, block: Bytes) -> u64 {
        let bytes = block.len() as u64;
        let full = self.parts.get(&self.part).is_some_and(|held| *held + bytes > self.part_max);
        if full || self.blocks >= self.blocks_max {
            self.part += 1;
            self.blocks = 0;
        }
        self.blocks += 1;
        *self.parts.entry(self.part).or_default() += bytes;
        (self.end, self.taken) = (span.end(), span.taken);
        let place = Place { memory: Some(block), disk: None };
        self.entries.push_back(Entry { span, part: self.part, bytes, place });
        self.base + self.entries.len() as u64 - 1
    }

    /// Goes on in a new part: the one there was cannot be written any more. Blocks that are not safe move.
    pub fn leave_part(&mut self) {
        let unsettled = usize::try_from(self.settled - self.base).unwrap_or(usize::MAX);
        self.part += 1;
        for entry in self.entries.iter_mut().skip(unsettled) {
            if let Some(held) = self.parts.get_mut(&entry.part) {
                *held -= entry.bytes;
            }
            entry.part = self.part;
            *self.parts.entry(self.part).or_default() += entry.bytes;
        }
        self.blocks = self.entries.len().saturating_sub(unsettled) as u64;
    }

    /// The first block that is not safe, with its number.
    #[must_use]
    pub fn unsettled(&self, number: u64) -> Option<&Entry> {
        let number = number.max(self.settled);
        self.entries.get(usize::try_from(number - self.base).ok()?)
    }

    /// Number of the first block that is not safe.
    #[must_use]
    pub const fn settled(&self) -> u64 {
        self.settled
    }

    /// The next block is safe: on disk at `place`, or, without one, as safe in memory as was asked for.
    pub fn settle(&mut self, place: Option<SpillRef>) {
        let Some(index) = usize::try_from(self.settled - self.base).ok() else { return };
        let Some(entry) = self.entries.get_mut(index) else { return };
        entry.place.disk = place;
        // What was here first is read first, so it stays; what comes when memory is full is read from disk.
        if place.is_some() && self.memory + entry.bytes > self.memory_max {
            entry.place.memory = None;
        } else {
            self.memory += entry.bytes;
        }
        (self.safe, self.safe_taken) = (entry.span.end(), entry.span.taken);
        self.settled += 1;
    }

    /// Whether a block of this length would still fit into memory.
    #[must_use]
    pub const fn fits_memory(&self, bytes: u64) -> bool {
        self.memory + bytes <= self.memory_max
    }

    /// The safe block that holds a position.
    ///
    /// # Errors
    /// [`Error::SourceTruncated`] if its rows were dropped.
    pub fn at(&self, position: u64) -> Result<Option<&Entry>> {
        let first = self.first();
        if position < first {
            return Err(Error::SourceTruncated { position, first });
        }
        let index = self.entries.partition_point(|entry| entry.span.end() <= position);
        Ok(self.entries.get(index).filter(|entry| entry.span.end() <= self.safe))
    }

    /// Spark has committed the rows before `position`; which parts may go now.
    pub fn commit(&mut self, position: u64) -> Vec<u64> {
        self.committed = self.committed.max(position.min(self.safe));
        while let Some(entry) = self.entries.front() {
            if self.base >= self.settled || entry.span.end() > self.committed {
                break;
            }
            if entry.place.memory.is_some() {
                self.memory -= entry.bytes;
            }
            self.entries.pop_front();
            self.base += 1;
        }
        // The last part stays, as it says where the log goes on.
        let needed = self.entries.front().map_or(self.part, |entry| entry.part);
        let last = self.parts.keys().next_back().copied().unwrap_or_default();
        let gone: Vec<u64> = self.parts.range(..needed.min(last)).map(|(part, _)| *part).collect();
        for part in &gone {
            self.parts.remove(part);
        }
        gone
    }

    /// Position of the first row that can be read.
    #[must_use]
    pub fn first(&self) -> u64 {
        self.entries.front().map_or(self.safe, |entry| entry.span.first.max(self.committed))
    }

    /// Position after the last safe row.
    #[must_use]
    pub const fn safe(&self) -> u64 {
        self.safe
    }

    /// Items taken from the sender that are safe.
    #[must_use]
    pub const fn safe_taken(&self) -> u64 {
        self.safe_taken
    }

    /// Position after the last row.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.end
    }

    /// Bytes on disk, in parts that are there.
    #[must_use]
    pub fn disk_bytes(&self) -> u64 {
        self.parts.values().sum()
    }

    /// Bytes in memory.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        let unsettled = usize::try_from(self.settled - self.base).unwrap_or(usize::MAX);
        self.memory + self.entries.iter().skip(unsettled).map(|entry| entry.bytes).sum::<u64>()
    }

    /// Bytes of blocks that are not safe.
    #[must_use]
    pub fn unsettled_bytes(&self) -> u64 {
        let unsettled = usize::try_from(self.settled - self.base).unwrap_or(usize::MAX);
        self.entries.iter().skip(unsettled).map(|entry| entry.bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn place(len: usize) -> SpillRef {
        SpillRef { file: 1, pos: 0, len: len as u32 }
    }

    fn push(backlog: &mut Backlog, rows: u32) -> u64 {
        let span = backlog.next(rows, u64::from(rows) + 1, 0);
        backlog.push(span, Bytes::from(vec![0; 10]))
    }

    #[test]
    fn only_what_is_safe_is_read_and_only_what_is_committed_goes() {
        let mut backlog = Backlog::new(25, 20);
        for rows in [3, 4, 5] {
            push(&mut backlog, rows);
        }
        assert_eq!((backlog.end(), backlog.safe(), backlog.disk_bytes()), (12, 0, 30));
        backlog.settle(Some(place(10)));
        backlog.settle(Some(place(10)));
        assert_eq!((backlog.safe(), backlog.safe_taken()), (7, 9));
        assert!(backlog.at(7).unwrap().is_none());
        assert_eq!(backlog.at(3).unwrap().unwrap().span.first, 3);
        assert_eq!(backlog.commit(5), Vec::<u64>::new());
        assert_eq!(backlog.first(), 5);
        assert_eq!(backlog.at(4).unwrap_err().condition(), "SOURCE_TRUNCATED");
        assert_eq!(backlog.commit(99), [0]);
        assert_eq!((backlog.first(), backlog.safe()), (7, 7));
    }

    #[test]
    fn what_does_not_fit_into_memory_is_read_from_disk() {
        let mut backlog = Backlog::new(15, 1_000);
        push(&mut backlog, 1);
        push(&mut backlog, 1);
        backlog.settle(Some(place(10)));
        backlog.settle(Some(place(10)));
        assert!(backlog.at(0).unwrap().unwrap().place.memory.is_some());
        assert!(backlog.at(1).unwrap().unwrap().place.memory.is_none());
    }

    #[test]
    fn a_log_goes_on_where_the_one_found_on_disk_ended() {
        let mut backlog = Backlog::new(100, 100);
        backlog.recovered(Span::new(50, 5, 60, 0), 3, place(10)).unwrap();
        backlog.recovered(Span::new(55, 0, 61, 0), 4, place(10)).unwrap();
        assert_eq!((backlog.first(), backlog.safe(), backlog.safe_taken()), (50, 55, 61));
        push(&mut backlog, 1);
        assert_eq!(backlog.unsettled(0).unwrap().part, 5);
        assert!(backlog.recovered(Span::new(99, 1, 0, 0), 9, place(1)).is_err());
    }

    #[derive(Debug, Clone)]
    enum Step {
        Push(u32),
        Settle(bool),
        Commit(u64),
        Leave,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (1..5_u32).prop_map(Step::Push),
            any::<bool>().prop_map(Step::Settle),
            (0..60_u64).prop_map(Step::Commit),
            Just(Step::Leave),
        ]
    }

    proptest! {
        #[test]
        fn every_row_between_first_and_safe_can_be_read(steps in prop::collection::vec(step(), 0..60)) {
            let mut backlog = Backlog::new(40, 30);
            let mut gone = Vec::new();
            for step in steps {
                match step {
                    Step::Push(rows) => drop(push(&mut backlog, rows)),
                    Step::Settle(disk) => {
                        if backlog.unsettled(0).is_some() {
                            backlog.settle(disk.then(|| place(10)));
                        }
                    }
                    Step::Commit(position) => gone.extend(backlog.commit(position)),
                    Step::Leave => backlog.leave_part(),
                }
                prop_assert!(backlog.first() <= backlog.safe() && backlog.safe() <= backlog.end());
                for position in backlog.first()..backlog.safe() {
                    let entry = backlog.at(position).unwrap().unwrap();
                    prop_assert!(entry.span.first <= position && position < entry.span.end());
                    prop_assert!(entry.place.memory.is_some() || entry.place.disk.is_some());
                    prop_assert!(!gone.contains(&entry.part));
                }
                prop_assert!(backlog.at(backlog.safe()).unwrap().is_none());
            }
        }
    }
}
