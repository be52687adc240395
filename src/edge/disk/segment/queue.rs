//! What callers hand to the writer's thread, and how they learn what came of it.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use super::SegmentRecord;
use super::claim::Claim;
use super::format::Payload;
use crate::causal_log::SpillRef;
use crate::edge::progress::Progress;
use crate::error::{Error, Result};
use crate::id::{EpochKey, Generation, LogOffset, TaskId};

/// The answer to come for one submitted record.
#[derive(Debug)]
#[must_use = "a record is durable only once this was waited for"]
pub struct Pending(Receiver<Result<SpillRef>>);

impl Pending {
    /// Waits until the record is on disk; where it is.
    ///
    /// # Errors
    /// - [`Error::DiskFull`]: nothing of the record was kept; the writer goes on.
    /// - [`Error::Fenced`]: a newer generation of the task has written, or the epoch was committed.
    /// - [`Error::Config`]: a newer application has taken the epoch over.
    /// - [`Error::LogGap`]: an earlier block of the log is not in this file (or failed).
    /// - [`Error::Poisoned`]: syncing failed, for this record or an earlier one. Whether this record is on
    ///   disk can't be known; the writer takes nothing more.
    /// - [`Error::Io`]: anything else.
    pub fn wait(self) -> Result<SpillRef> {
        let written = self.0.recv().unwrap_or_else(|_gone| Err(stopped()));
        Progress::step();
        written
    }
}

/// Where the writer puts an answer. Nobody may be waiting any more; that is no error.
#[derive(Debug)]
pub(super) struct Answer<T>(SyncSender<Result<T>>);

impl<T> Answer<T> {
    /// Answers.
    pub(super) fn give(self, result: Result<T>) {
        let _nobody_waits = self.0.send(result);
    }
}

/// A record as the writer's thread gets it.
#[derive(Debug)]
pub(super) struct Append {
    pub(super) task: TaskId,
    pub(super) generation: Generation,
    /// The use of the epoch's name in which it was opened, where names are claimed.
    pub(super) used: Option<u64>,
    pub(super) offset: LogOffset,
    pub(super) payload: Payload,
    pub(super) answer: Answer<SpillRef>,
}

impl Append {
    /// Whether it is of the use of which a file is that was made under this claim.
    pub(super) fn is_of(&self, claim: Option<Claim>) -> bool {
        self.used.zip(claim).is_none_or(|(used, claim)| used == claim.used)
    }

    /// Answers that the use in which it was opened is over.
    pub(super) fn refuse(self, newer: Generation) {
        let Self { task, generation: ours, answer, .. } = self;
        answer.give(Err(Error::Fenced { task, newer, ours }));
    }
}

/// What the writer's thread is asked to do.
#[derive(Debug)]
pub(super) enum Message {
    /// Append records, in one group.
    Append(Vec<Append>),
    /// An epoch is committed: what comes of generations below this is not its name's next use's.
    Over { key: EpochKey, below: Generation },
    /// Forget an epoch: this agent's segment, or those of everybody in one use of its name.
    Drop { key: EpochKey, everybodys: Option<u64>, answer: Answer<()> },
}

/// Encodes a record for the writer. An error is an answer like any other.
pub(super) fn append(record: SegmentRecord, used: Option<u64>) -> (Option<Append>, Pending) {
    let (sender, receiver) = sync_channel(1);
    let (answer, pending) = (Answer(sender), Pending(receiver));
    match Payload::new(&record) {
        Ok(payload) => {
            let SegmentRecord { task, generation, offset, .. } = record;
            (Some(Append { task, generation, used, offset, payload, answer }), pending)
        }
        Err(error) => {
            answer.give(Err(error));
            (None, pending)
        }
    }
}

/// The request to drop an epoch, and where the answer comes.
pub(super) fn drop_epoch(key: EpochKey, everybodys: Option<u64>) -> (Message, Receiver<Result<()>>) {
    let (sender, receiver) = sync_channel(1);
    (Message::Drop { key, everybodys, answer: Answer(sender) }, receiver)
}

/// The error of a writer whose thread is gone.
pub(super) fn stopped() -> Error {
    Error::Poisoned { what: "the writer of segments (its thread has ended)".to_owned() }
}
