//! Whose a source's log is: one receiver's, that which took it last.
//!
//! A log is in its place what a query's micro-batches are in a checkpoint, and is taken in the same way, see
//! `edge/disk/segment/claim`: a receiver that was cut off, or stopped and goes on, finds after its next write that
//! another one has taken the log. What it wrote then is not acknowledged, and counts for nobody.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::edge::disk::Location;
use crate::edge::disk::recovery::{Recovery, recover_claimed};
use crate::edge::disk::segment::claim::{self, Claim};
use crate::edge::disk::segment::store::Store;
use crate::edge::disk::segment::{DiskWriter, SegmentRecord, epoch_files};
use crate::error::{Error, Result};
use crate::id::{AgentId, Epoch, EpochKey, Generation, LogOffset, Partition, TaskId};

/// Who takes a log.
#[derive(Debug, Clone)]
pub struct Taker {
    /// Its name, for the message that another one gets.
    pub name: String,
    /// Stands for the reader that starts it, and starts it again when it dies.
    pub reader: String,
    /// [`super::SourceLog::incarnation`] of the receiver that it stands in for: if another reader's took the log after
    /// that one, it stays theirs.
    pub after: Option<u64>,
}

impl Taker {
    /// What its claim says.
    fn content(&self) -> String {
        format!("{}\n{}", self.name, self.reader)
    }
}

/// A log that one receiver has taken.
#[derive(Debug)]
pub(super) struct Ownership {
    store: Arc<dyn Store>,
    location: Location,
    claim: Claim,
    /// Stands for the receiver among those that write the log.
    hash: u64,
}

/// Parts are epochs to the segments' writer: a segment each, which goes as a whole.
fn task_of(part: u64) -> TaskId {
    TaskId {
        query: "source".into(),
        operator: "log".into(),
        epoch: Epoch::Batch(part),
        partition: Partition(0),
    }
}

/// A block of a part, as it is written.
pub(super) fn record_of(part: u64, offset: LogOffset, block: Bytes) -> SegmentRecord {
    SegmentRecord::of_no_stage(task_of(part), Generation(1), offset, block)
}

/// All parts are taken together.
fn key() -> EpochKey {
    task_of(0).epoch_key()
}

impl Ownership {
    /// Takes a log for a receiver, whoever had it, but for those that [`Taker::after`] speaks of.
    ///
    /// # Errors
    /// [`Error::SourceInUse`] if somebody did, or does at this moment; [`Error::Config`] for a store without conditional
    /// puts; [`Error::DiskFull`]; [`Error::Io`].
    pub(super) fn take(store: Arc<dyn Store>, location: Location, taker: &Taker) -> Result<Self> {
        store.check()?;
        let incarnation = claim::attach(store.as_ref(), &taker.name)?;
        let hash = draw()?;
        let before = claim::newest(store.as_ref(), &key())?;
        let newer = before.filter(|before| taker.after.is_some_and(|after| before.incarnation > after));
        if let Some(newer) = newer.filter(|newer| owner(&store, *newer).1 != taker.reader) {
            return Err(taken_by(&store, &location, newer));
        }
        match claim::take_for_good(store.as_ref(), &key(), incarnation, (&taker.content(), hash)) {
            Ok(claim) => Ok(Self { store, location, claim, hash }),
            Err(error) => match claim::newest(store.as_ref(), &key())? {
                Some(newer) if newer.incarnation > incarnation => Err(taken_by(&store, &location, newer)),
                _ => Err(error),
            },
        }
    }

    /// The number of this taking: that of a later one is higher.
    pub(super) const fn incarnation(&self) -> u64 {
        self.claim.incarnation
    }

    /// All that counts of what was written so far.
    pub(super) fn recover(&self) -> Result<Recovery> {
        recover_claimed(&self.store, &key(), self.claim.used)
    }

    /// A writer whose records are acknowledged while the log is this receiver's.
    pub(super) fn writer(&self) -> Result<DiskWriter> {
        let by = (AgentId(draw()?), self.hash);
        let writer = DiskWriter::start_on(Arc::clone(&self.store), by, Duration::ZERO)?;
        writer.own(self.claim.incarnation);
        Ok(writer)
    }

    /// Why the log is not this receiver's any more, if so.
    ///
    /// # Errors
    /// [`Error::Io`] if nobody can tell now.
    pub(super) fn lost(&self) -> Result<Option<Error>> {
        if claim::is_there(self.store.as_ref(), &key(), self.claim)? {
            return Ok(None);
        }
        Ok(match claim::newest(self.store.as_ref(), &key())? {
            Some(newest) if newest == self.claim => None,
            Some(newer) => Some(taken_by(&self.store, &self.location, newer)),
            None => Some(Error::CorruptLog {
                what: format!("the log of a source in {} was removed while it was written", self.location),
            }),
        })
    }

    /// Removes a part for ever, whoever wrote it; again is harmless. Parts are removed in order, each when those before
    /// it are gone: what is left is then never taken for a log that lacks rows.
    pub(super) fn remove(&self, part: u64, writer: &DiskWriter) -> Result<()> {
        if let Some(lost) = self.lost()? {
            return Err(lost);
        }
        let key = task_of(part).epoch_key();
        let failed = |e: &std::io::Error| Error::io(format!("removing part {part} of {}", self.location), e);
        for segment in epoch_files(self.store.as_ref(), &key, self.claim.used).map_err(|e| failed(&e))? {
            self.store.remove_segment(&segment).map_err(|e| failed(&e))?;
        }
        writer.drop_epoch_all(&key, self.claim.used)
    }

    /// Where the log lies.
    pub(super) const fn location(&self) -> &Location {
        &self.location
    }

    /// Whether an object store has it, which is away at times.
    pub(super) fn is_stored(&self) -> bool {
        self.location.url().is_some()
    }
}

fn taken_by(store: &Arc<dyn Store>, location: &Location, newer: Claim) -> Error {
    let (name, _) = owner(store, newer);
    Error::SourceInUse { log: location.to_string(), owner: format!("{name}, which took it over") }
}

/// Name of whoever made a claim, and what stands for its reader.
fn owner(store: &Arc<dyn Store>, claim: Claim) -> (String, String) {
    let content = claim::owner(store.as_ref(), &key(), claim);
    let (name, reader) = content.split_once('\n').unwrap_or((&content, ""));
    (name.to_owned(), reader.to_owned())
}

fn draw() -> Result<u64> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::Io { context: "drawing an id".into(), message: error.to_string() })?;
    Ok(u64::from_le_bytes(bytes))
}
