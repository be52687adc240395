//! One task's log put together from records: pure, no file is touched here.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use super::{RecoveredTask, Segments};
use crate::agent::protocol::{Borders, Code, Plan};
use crate::causal_log::{BlockHash, BlockRef, Place, SpillRef};
use crate::determinant::BlockReader;
use crate::edge::disk::segment::SegmentRecord;
use crate::error::{Error, Result};
use crate::id::{Generation, LogOffset, TaskId};

/// What is the same for most records of a log.
#[derive(Debug, PartialEq, Eq)]
struct Author {
    generation: Generation,
    app: u64,
    stage: u32,
    tasks: Option<u32>,
    /// The function, if the block says it.
    code: Option<Code>,
    plan: Option<Plan>,
    borders: Borders,
}

/// A record without its block. There may be tens of millions, so it is small.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    author: Arc<Author>,
    offset: LogOffset,
    /// Stands for the block when two are compared.
    hash: BlockHash,
    place: SpillRef,
}

const _: () = assert!(size_of::<Entry>() <= 56);

/// The function whose log this block opens, for one generation.
fn code_of(block: &Bytes) -> Option<Code> {
    BlockReader::opening(block).map(|(fingerprint, python)| Code::new(fingerprint, python))
}

impl Entry {
    /// The record that starts at `pos` in the file with number `file`.
    pub(super) fn new(file: u64, pos: u64, record: &SegmentRecord) -> Self {
        // Cannot be cut short: a record's payload has a length of 32 bits.
        let len = u32::try_from(record.block.len()).unwrap_or(u32::MAX);
        let author = Author {
            generation: record.generation,
            app: record.app,
            stage: record.stage,
            tasks: record.tasks,
            code: code_of(&record.block),
            plan: record.plan,
            borders: record.borders,
        };
        Self {
            author: Arc::new(author),
            offset: record.offset,
            hash: BlockHash::of(&record.block),
            place: SpillRef { file, pos, len },
        }
    }

    fn end(&self) -> LogOffset {
        self.offset.plus(u64::from(self.place.len))
    }

    fn same_block(&self, other: &Self) -> bool {
        self.place.len == other.place.len && self.hash == other.hash
    }
}

/// Why a record does not fit to those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Conflict {
    /// It starts behind the end of the log.
    Gap { from: LogOffset, end: LogOffset },
    /// The same generation wrote other bytes there.
    Fork { at: LogOffset, generation: Generation },
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gap { from, end } => {
                write!(f, "a log ends at {end} and goes on at {from}: a record is missing")
            }
            Self::Fork { at, generation } => {
                write!(f, "generation {generation} wrote two different logs from offset {at} on")
            }
        }
    }
}

/// A task's log, and the newest generation that opened it.
#[derive(Debug, Clone, Default)]
pub(super) struct Chain {
    entries: Vec<Entry>,
    /// The newest record; another's equal one may stand in the log for it.
    newest: Option<Entry>,
}

impl Chain {
    /// Blocks of the log, in order.
    pub(super) fn places(&self) -> impl Iterator<Item = &SpillRef> {
        self.entries.iter().map(|entry| &entry.place)
    }

    /// Takes the next record of one file.
    pub(super) fn push(&mut self, mut entry: Entry) -> Result<(), Conflict> {
        if let Some(newest) = &self.newest {
            if entry.author.generation < newest.author.generation {
                // Fenced: written late, never acknowledged.
                return Ok(());
            }
            if entry.author == newest.author {
                entry.author = Arc::clone(&newest.author);
            }
        }
        self.newest = Some(entry.clone());
        self.place(entry)
    }

    /// Adds the log that another file holds, to be merged.
    pub(super) fn add_copy(&mut self, other: Self) {
        self.entries.extend(other.entries);
        let generation = |entry: &Option<Entry>| entry.as_ref().map(|e| e.author.generation);
        if generation(&other.newest) > generation(&self.newest) {
            self.newest = other.newest;
        }
    }

    /// Makes one log of the copies added. Each copy's generations rise along the log, so the older
    /// generation's part of every copy comes first, and what it says is then confirmed or overruled.
    pub(super) fn merge(self, segments: &Segments, task: &TaskId) -> Result<Self> {
        let file =
            |of: u64| segments.get(&of).map_or_else(String::new, |(s, _)| s.path.display().to_string());
        let mut entries = self.entries;
        entries.sort_by_key(|entry| (entry.author.generation, entry.offset));
        let mut merged = Self { entries: Vec::with_capacity(entries.len()), newest: self.newest };
        for entry in entries {
            let place = entry.place;
            merged.place(entry).map_err(|conflict| Error::CorruptSegment {
                file: file(place.file),
                offset: place.pos,
                reason: format!("together with the other segments of task {task}: {conflict}"),
            })?;
        }
        Ok(merged)
    }

    /// The log as the agent takes it.
    pub(super) fn into_task(self, task: TaskId) -> RecoveredTask {
        // Where the blocks were recorded decides about the layout, not who opened the task last.
        let recorded = self.entries.last().or(self.newest.as_ref()).map(|entry| &entry.author);
        let authors = || self.entries.iter().map(|entry| &entry.author);
        let block =
            |entry: &Entry| BlockRef { offset: entry.offset, place: Place::Spilled(entry.place, entry.hash) };
        let borders = || authors().map(|author| author.borders).filter(|known| *known != Borders::UNKNOWN);
        RecoveredTask {
            task,
            generation: self.newest.as_ref().map_or(Generation::NONE, |e| e.author.generation),
            app: recorded.map_or(0, |e| e.app),
            stage: recorded.map_or(0, |e| e.stage),
            tasks: recorded.and_then(|e| e.tasks),
            relaid: authors().any(|author| recorded.is_some_and(|last| last.tasks != author.tasks)),
            has_moved: borders().zip(borders().skip(1)).any(|(one, next)| one.are_others(next)),
            code: authors().rev().find_map(|author| author.code).unwrap_or_default(),
            plan: authors().rev().find_map(|author| author.plan),
            borders: borders().next_back().unwrap_or_default(),
            blocks: self.entries.iter().map(block).collect(),
        }
    }

    fn place(&mut self, entry: Entry) -> Result<(), Conflict> {
        let end = self.entries.last().map_or(LogOffset::START, Entry::end);
        if entry.offset > end {
            return Err(Conflict::Gap { from: entry.offset, end });
        }
        // Entries lie back to back, so the first that does not end before this one overlaps it.
        let index = self.entries.partition_point(|old| old.end() <= entry.offset);
        match self.entries.get(index) {
            Some(old) if old.offset == entry.offset && old.same_block(&entry) => return Ok(()),
            Some(old) if old.offset != entry.offset || old.author.generation >= entry.author.generation => {
                return Err(Conflict::Fork { at: entry.offset, generation: entry.author.generation });
            }
            _ => self.entries.truncate(index),
        }
        self.entries.push(entry);
        Ok(())
    }
}
