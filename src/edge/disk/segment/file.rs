//! One segment that is being written.

use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::claim::{self, Claim};
use super::disk::{Disk, FileTable, OpenFile, RawFile, write_error};
use super::format::{FRAME, SegmentHeader};
use super::queue::{Answer, Append};
use super::{SETTING, layout};
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
    /// Whose the epoch was when the file was made, and where that is written; none without owners.
    claim: Option<(Claim, PathBuf)>,
    raw: Arc<dyn RawFile>,
    header: Vec<u8>,
    /// Bytes that are whole. What lies behind is of a failed write.
    end: u64,
    /// Bytes that are on disk for certain.
    durable: u64,
    /// Whether the file's name is on disk.
    named: bool,
    tasks: HashMap<TaskId, Tail>,
}

impl SegmentFile {
    /// Creates the file at `path`.
    pub(super) fn create(
        disk: &dyn Disk,
        root: &Path,
        path: PathBuf,
        header: &SegmentHeader,
        claim: Option<(Claim, PathBuf)>,
    ) -> Result<Self> {
        let dir = path.parent().unwrap_or(root);
        let created = layout::in_dir(disk, root, dir, || match disk.create(&path, 0o666) {
            // The name is this agent's alone: it dropped the file, and could not remove it.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                disk.remove(&path)?;
                disk.create(&path, 0o666)
            }
            created => created,
        });
        let raw = created.map_err(|e| write_error(&path, SETTING, &e))?;
        Ok(Self {
            id: FileTable::next_id(),
            header: header.encode()?,
            path,
            claim,
            raw,
            end: 0,
            durable: 0,
            named: false,
            tasks: HashMap::new(),
        })
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
    pub(super) fn claim(&self) -> Option<Claim> {
        self.claim.as_ref().map(|(claim, _)| *claim)
    }

    /// Whether the epoch is still this application's; `false` if it was committed.
    ///
    /// # Errors
    /// [`Error::Config`] if a newer application has taken it over; [`Error::Io`].
    pub(super) fn is_claimed(&self, root: &Path, key: &EpochKey) -> Result<bool> {
        let Some((claim, path)) = &self.claim else { return Ok(true) };
        // Opened, as a network's file system may answer anything less from what it remembers.
        match std::fs::File::open(path) {
            Ok(_) => Ok(true),
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::StaleNetworkFileHandle) => {
                Ok(claim::find(root, key, claim.incarnation)? == Some(*claim))
            }
            Err(e) => Err(Error::io(format!("looking whose epoch {key} is"), &e)),
        }
    }

    /// What readers need.
    pub(super) fn for_readers(&self) -> OpenFile {
        OpenFile { path: self.path.clone(), raw: Arc::clone(&self.raw) }
    }

    /// Writes a group and answers those that are refused; the others wait for [`Self::sync`].
    ///
    /// # Errors
    /// If what a failed write left could not be cut off: nothing may be appended behind it. Those
    /// who waited have been answered.
    pub(super) fn write(&mut self, group: Vec<Append>) -> io::Result<Vec<Unsynced>> {
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
        match self.write_pieces(&taken) {
            Ok(end) => {
                let unsynced = self.places(taken);
                self.end = end;
                self.tasks.extend(tails);
                Ok(unsynced)
            }
            Err(error) => {
                let cut = self.cut();
                let error = write_error(&self.path, SETTING, &error);
                for append in taken {
                    append.answer.give(Err(error.clone()));
                }
                cut.map(|()| Vec::new())
            }
        }
    }

    /// Returns when all that was written is on disk.
    ///
    /// # Errors
    /// Of the system: nothing more may be written.
    pub(super) fn sync(&mut self, disk: &dyn Disk) -> io::Result<()> {
        self.raw.sync()?;
        if !self.named {
            // A file whose name is not on disk is gone after a power failure, synced or not.
            self.path.parent().map_or(Ok(()), |dir| disk.sync_dir(dir))?;
            self.named = true;
        }
        self.durable = self.end;
        Ok(())
    }

    fn tail_after(&self, group: &HashMap<TaskId, Tail>, append: &Append) -> Result<Tail> {
        let tail = group.get(&append.task).or_else(|| self.tasks.get(&append.task));
        let bytes = append.payload.block.len() as u64;
        let tail = tail.copied().unwrap_or(Tail::NONE);
        tail.after(&append.task, append.generation, append.offset, bytes)
    }

    /// Writes the header, if it is missing, and the records; where they end.
    fn write_pieces(&self, group: &[Append]) -> io::Result<u64> {
        let frames: Vec<_> = group.iter().map(|a| a.payload.frame(self.durable)).collect();
        let mut pieces = Vec::with_capacity(1 + 3 * group.len());
        if self.end == 0 {
            pieces.push(IoSlice::new(&self.header));
        }
        for (append, frame) in group.iter().zip(&frames) {
            pieces.push(IoSlice::new(frame));
            pieces.push(IoSlice::new(&append.payload.meta));
            pieces.push(IoSlice::new(&append.payload.block));
        }
        let bytes: usize = pieces.iter().map(|piece| piece.len()).sum();
        self.raw.write_at(&mut pieces, self.end)?;
        Ok(self.end + bytes as u64)
    }

    /// Where the records of a group were written.
    fn places(&self, group: Vec<Append>) -> Vec<Unsynced> {
        let mut pos = if self.end == 0 { self.header.len() as u64 } else { self.end };
        let place = |append: Append| {
            let len = u32::try_from(append.payload.block.len()).unwrap_or(u32::MAX);
            let place = SpillRef { file: self.id, pos, len };
            pos += (FRAME + append.payload.len()) as u64;
            let Append { task, generation, answer, .. } = append;
            Unsynced { answer, place, task, generation }
        };
        group.into_iter().map(place).collect()
    }

    /// Cuts off what lies behind the last whole record.
    fn cut(&self) -> io::Result<()> {
        self.raw.set_len(self.end)
    }
}
