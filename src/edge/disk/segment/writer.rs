//! The handle by which an agent writes its segments.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bytes::Bytes;

use super::SegmentRecord;
use super::disk::FileTable;
use super::queue::{self, Append, Message, Pending};
use super::scan::read_block;
use super::store::{Folder, Store};
use super::thread::Writer;
use crate::agent::committed::Committed;
use crate::causal_log::SpillRef;
use crate::error::{Error, Result};
use crate::id::{AgentId, EpochKey, Generation};

/// Requests that may wait for the writer's thread; past it, submitting blocks.
const QUEUE: usize = 256;

/// Writes the segments of one agent. Any number of threads may use it at once.
///
/// Dropping it writes what is queued, then ends the thread.
pub struct DiskWriter {
    store: Arc<dyn Store>,
    queue: Option<SyncSender<Message>>,
    thread: Option<JoinHandle<()>>,
    table: Arc<FileTable>,
    incarnation: Arc<AtomicU64>,
    failed: Arc<AtomicBool>,
    may_die: Arc<AtomicBool>,
}

impl DiskWriter {
    /// Starts the writer of `agent`, which belongs to the application with hash `app`. `root` is
    /// the user's `checkpoint_dir`, made if need be.
    ///
    /// # Errors
    /// [`Error::DiskFull`], [`Error::Io`] if the folder or the thread can't be made.
    pub fn start(root: &Path, agent: AgentId, app: u64) -> Result<Self> {
        Self::start_on(Arc::new(Folder::open(root)?), (agent, app), Duration::ZERO)
    }

    /// [`Self::start`] in a given place. All that was submitted is written together, and not again before `interval`
    /// has passed.
    ///
    /// # Errors
    /// [`Error::Io`] if the thread can't be made.
    pub(in crate::edge) fn start_on(
        store: Arc<dyn Store>,
        (agent, app): (AgentId, u64),
        interval: Duration,
    ) -> Result<Self> {
        let table = Arc::new(FileTable::default());
        let (incarnation, failed) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let may_die = Arc::new(AtomicBool::new(false));
        let writer = Writer {
            store: Arc::clone(&store),
            agent,
            app,
            table: Arc::clone(&table),
            files: std::collections::HashMap::new(),
            over: Committed::default(),
            incarnation: Arc::clone(&incarnation),
            poison: None,
            failed: Arc::clone(&failed),
            may_die: Arc::clone(&may_die),
            alive: None,
            interval,
        };
        let (queue, requests) = sync_channel(QUEUE);
        let thread = thread::Builder::new()
            .name("clonos-segments".to_owned())
            .spawn(move || writer.run(&requests))
            .map_err(|e| Error::io("starting the writer of segments", &e))?;
        let (queue, thread) = (Some(queue), Some(thread));
        Ok(Self { store, queue, thread, table, incarnation, failed, may_die })
    }

    /// From now on the writer writes for one of the applications that share the folder, and only in epochs
    /// that are that application's.
    pub(in crate::edge) fn own(&self, incarnation: u64) {
        self.incarnation.store(incarnation, Ordering::Release);
    }

    /// Others may go on without this agent, as an executor's. To be said before anything is submitted.
    pub(in crate::edge) fn may_die(&self) {
        self.may_die.store(true, Ordering::Release);
    }

    /// Whether a sync has failed, or others have gone on without this agent: nothing more is taken.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Queues a record. Records of one task reach the disk in the order in which they were
    /// submitted. Blocks while the queue is full.
    ///
    /// All that can go wrong is told by [`Pending::wait`].
    pub fn submit(&self, record: SegmentRecord) -> Pending {
        self.submit_as(record, None)
    }

    /// [`Self::submit`] of what was opened in one use of its epoch's name: it is in no segment of another use, and refused
    /// when that one is over, whether or not this agent has heard of it.
    pub(in crate::edge) fn submit_of(&self, record: SegmentRecord, used: u64) -> Pending {
        self.submit_as(record, Some(used))
    }

    fn submit_as(&self, record: SegmentRecord, used: Option<u64>) -> Pending {
        let (append, pending) = queue::append(record, used);
        self.send(append.into_iter().collect());
        pending
    }

    /// [`Self::submit`] of records that are written together: of those of one epoch all are durable at once.
    pub fn submit_all(&self, records: impl IntoIterator<Item = SegmentRecord>) -> Vec<Pending> {
        let (appends, pending): (Vec<_>, Vec<_>) =
            records.into_iter().map(|record| queue::append(record, None)).unzip();
        self.send(appends.into_iter().flatten().collect());
        pending
    }

    fn send(&self, appends: Vec<Append>) {
        if let Some(queue) = self.queue.as_ref().filter(|_| !appends.is_empty()) {
            // If the thread is gone, the answers' senders go with the message: `wait` then fails.
            let _refused = queue.send(Message::Append(appends));
        }
    }

    /// Reads a block that this writer wrote, and checks its sum.
    ///
    /// # Errors
    /// [`Error::CorruptSegment`] if the bytes changed on disk, [`Error::Io`] also when the epoch was
    /// dropped.
    pub fn read(&self, place: &SpillRef) -> Result<Bytes> {
        let file = self.table.get(place)?;
        read_block(&file.path, file.raw.as_ref(), place)
    }

    /// Whether [`Self::read`] knows the file of this reference.
    #[must_use]
    pub fn owns(&self, place: &SpillRef) -> bool {
        self.table.owns(place)
    }

    /// Removes this agent's segment of an epoch; returns when it is gone. What was submitted
    /// before is answered first. An epoch without a segment is no error.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Config`] if a newer application has taken it over: the segment stays then.
    #[cfg(test)]
    pub(in crate::edge) fn drop_epoch(&self, key: &EpochKey) -> Result<()> {
        self.drop_files(key, None)
    }

    /// Removes all segments of one use of an epoch, whichever agent and application wrote them: for the
    /// driver, when the epoch is committed.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Config`] if a newer application has taken it over: nothing is removed then.
    pub fn drop_epoch_all(&self, key: &EpochKey, used: u64) -> Result<()> {
        self.drop_files(key, Some(used))
    }

    /// An epoch is committed. What was submitted with a generation below `below`, and has waited in the queue since, is
    /// refused from now on: it would stand in the segment of the next use of the name.
    pub(in crate::edge) fn over(&self, key: &EpochKey, below: Generation) {
        if let Some(queue) = &self.queue {
            let _gone = queue.send(Message::Over { key: key.clone(), below });
        }
    }

    /// As these two, without waiting for it.
    pub(in crate::edge) fn drop_epoch_later(&self, key: &EpochKey, everybodys: Option<u64>) {
        drop(self.ask_to_drop(key, everybodys));
    }

    fn drop_files(&self, key: &EpochKey, everybodys: Option<u64>) -> Result<()> {
        self.ask_to_drop(key, everybodys).recv().unwrap_or_else(|_gone| Err(queue::stopped()))
    }

    fn ask_to_drop(&self, key: &EpochKey, everybodys: Option<u64>) -> Receiver<Result<()>> {
        let (message, answer) = queue::drop_epoch(key.clone(), everybodys);
        if let Some(queue) = &self.queue {
            let _refused = queue.send(message);
        }
        answer
    }
}

impl Drop for DiskWriter {
    fn drop(&mut self) {
        // The thread ends when there are no senders left.
        self.queue = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the writer of segments panicked");
        }
    }
}

impl fmt::Debug for DiskWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiskWriter").field("store", &self.store).finish_non_exhaustive()
    }
}
