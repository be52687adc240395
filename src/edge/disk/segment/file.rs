//! One segment that is being written.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use super::SETTING;
use super::claim::{self, Claim};
use super::disk::{FileTable, OpenFile, write_error};
use super::format::SegmentHeader;
use super::queue::{Answer, Append};
use super::store::{Sink, Store};
use crate::causal_log::SpillRef;
use crate::error::{Error, Result};
use crate::id::{EpochKey, Generation, LogOffset, TaskId};

/// A record that is written but not synced: who waits, and for what.
pub(super) struct Unsynced {
    pub(super) answer: Answer<SpillRef>,
    pub(super) place: SpillRef,
    pub(super) task: TaskId,
    pub(super) generation: Generation,
}

/// A write has failed, and what it left is there still.
pub(super) struct Uncut {
    /// Why it failed.
    pub(super) write: io::Error,
    /// Why that stays.
    pub(super) cut: io::Error,
    /// Those who wait for an answer.
    pub(super) waiting: Vec<Append>,
}

/// How far a task's log is in the file.
#[derive(Debug, Clone, Copy)]
struct Tail {
    /// Generation whose blocks end at `end`; older ones are refused.
    writer: Generation,
    /// End of the log.
    end: LogOffset,
}

impl Tail {
    const NONE: Self = Self { writer: Generation::NONE, end: LogOffset::START };

    /// The tail after one more record.
    fn after(self, task: &TaskId, by: Generation, offset: LogOffset, bytes: u64) -> Result<Self> {
        if by < self.writer {
            return Err(Error::Fenced { task: task.clone(), newer: self.writer, ours: by });
        }
        if offset > self.end {
            return Err(Error::LogGap { from: offset, end: self.end });
        }
        // Several tasks may have absorbed one attempt's log here, and the attempt may be this agent's own: what one of
        // them writes again is the same, which is looked at when it is read.
        let end = offset.plus(bytes);
        Ok(Self { writer: by, end: if by == self.writer { end.max(self.end) } else { end } })
    }
}

/// A segment open for writing.
pub(super) struct SegmentFile {
    id: u64,
    path: PathBuf,
    /// Whose the epoch was when the file was made; none without owners.
    claim: Option<Claim>,
    sink: Box<dyn Sink>,
    /// What was written since the last sync.
    unsynced: HashMap<TaskId, Tail>,
    tasks: HashMap<TaskId, Tail>,
}

impl SegmentFile {
    /// Creates the segment at `path`.
    pub(super) fn create(
        store: &dyn Store,
        path: PathBuf,
        header: &SegmentHeader,
        claim: Option<Claim>,
    ) -> Result<Self> {
        let begun = store.begin(&path, header.encode()?);
        let sink = begun.map_err(|e| write_error(&path, SETTING, &e))?;
        let (unsynced, tasks) = (HashMap::new(), HashMap::new());
        Ok(Self { id: FileTable::next_id(), path, claim, sink, unsynced, tasks })
    }

    /// Number by which references name this file.
    pub(super) const fn id(&self) -> u64 {
        self.id
    }

    /// The file's path.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The claim under which it was made.
    pub(super) const fn claim(&self) -> Option<Claim> {
        self.claim
    }

    /// Whether the epoch is still this application's; `false` if it was committed.
    ///
    /// # Errors
    /// [`Error::Config`] if a newer application has taken it over; [`Error::Io`].
    pub(super) fn is_claimed(&self, store: &dyn Store, key: &EpochKey) -> Result<bool> {
        let Some(claim) = self.claim else { return Ok(true) };
        Ok(claim::is_there(store, key, claim)? || claim::find(store, key, claim.incarnation)? == Some(claim))
    }

    /// What readers need.
    pub(super) fn for_readers(&self) -> OpenFile {
        OpenFile { path: self.path.clone(), raw: self.sink.reader() }
    }

    /// Writes a group and answers those that are refused; the others wait for [`Self::sync`].
    ///
    /// # Errors
    /// If what a failed write left could not be cut off: nothing may be appended behind it.
    pub(super) fn write(&mut self, group: Vec<Append>) -> Result<Vec<Unsynced>, Uncut> {
        let mut tails = HashMap::new();
        let mut taken = Vec::with_capacity(group.len());
        for append in group {
            match self.tail_after(&tails, &append) {
                Ok(tail) => {
                    tails.insert(append.task.clone(), tail);
                    taken.push(append);
                }
                Err(error) => append.answer.give(Err(error)),
            }
        }
        if taken.is_empty() {
            return Ok(Vec::new());
        }
        let records: Vec<_> = taken.iter().map(|append| &append.payload).collect();
        match self.sink.write(&records) {
            Ok(places) => {
                self.unsynced.extend(tails);
                Ok(self.waiting(taken, places))
            }
            Err(error) => {
                if let Err(cut) = self.sink.cut() {
                    return Err(Uncut { write: error, cut, waiting: taken });
                }
                let error = write_error(&self.path, SETTING, &error);
                for append in taken {
                    append.answer.give(Err(error.clone()));
                }
                Ok(Vec::new())
            }
        }
    }

    /// Returns when all that was written is durable; how much further back it lies than was said. After an error
    /// nothing of it counts.
    ///
    /// # Errors
    /// Of the system, or of the store.
    pub(super) fn sync(&mut self) -> io::Result<u64> {
        let unsynced = std::mem::take(&mut self.unsynced);
        let moved = self.sink.sync()?;
        self.tasks.extend(unsynced);
        Ok(moved)
    }

    /// Whether nothing may be written any more once a sync has failed.
    pub(super) fn ends_with_a_failed_sync(&self) -> bool {
        self.sink.ends_with_a_failed_sync()
    }

    fn tail_after(&self, group: &HashMap<TaskId, Tail>, append: &Append) -> Result<Tail> {
        let tail = group.get(&append.task).or_else(|| self.tasks.get(&append.task));
        let bytes = append.payload.block.len() as u64;
        let tail = tail.copied().unwrap_or(Tail::NONE);
        tail.after(&append.task, append.generation, append.offset, bytes)
    }

    /// Those whose records were written, and where.
    fn waiting(&self, group: Vec<Append>, places: Vec<u64>) -> Vec<Unsynced> {
        let place = |(append, pos): (Append, u64)| {
            let len = u32::try_from(append.payload.block.len()).unwrap_or(u32::MAX);
            let place = SpillRef { file: self.id, pos, len };
            let Append { task, generation, answer, .. } = append;
            Unsynced { answer, place, task, generation }
        };
        group.into_iter().zip(places).map(place).collect()
    }
}
