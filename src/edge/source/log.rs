//! The log of a source: blocks go to disk in groups, one sync for all that came meanwhile.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{Builder, JoinHandle, sleep};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use arrow_array::{Array, StructArray};
use bytes::Bytes;

use super::counters::{Counters, add};
use crate::causal_log::{Place as Held, SpillRef};
use crate::edge::disk::recovery::{RecoveredFiles, recover};
use crate::edge::disk::segment::{DiskWriter, Pending, SegmentRecord};
use crate::edge::locked;
use crate::error::{Error, Result};
use crate::id::{AgentId, Epoch, Generation, LogOffset, Partition, TaskId};
use crate::source::{Backlog, Bounds, SourceStats, read_span, write_block, write_rows};

/// Most bytes of blocks that may wait for the disk: a sender that is faster is held back.
const UNSETTLED_BYTES: u64 = 32 << 20;
/// A part is a file; only whole ones are dropped.
const PART_BYTES: u64 = 64 << 20;
/// Parts in the disk budget, at the least, so that dropping frees enough to go on.
const PARTS: u64 = 8;
/// How long to wait until a full disk is tried again.
const FULL_PAUSE: Duration = Duration::from_millis(500);
/// How often those who wait look whether they should go on waiting.
const LOOK_PERIOD: Duration = Duration::from_millis(100);
/// Most bytes of one answer to a reader.
const PIECE_BYTES: usize = 16 << 20;

/// When rows are safe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// On disk, synced: they survive the receiver and the driver.
    Eager,
    /// In memory; past the memory budget on disk. They survive what the receiver survives.
    Availability,
}

/// Settings of a log.
#[derive(Debug, Clone)]
pub struct LogSettings {
    /// Its folder.
    pub folder: PathBuf,
    /// Bytes of blocks kept in memory.
    pub memory: u64,
    /// Bytes that may wait to be committed; past it senders are held back.
    pub disk: u64,
    /// When rows are safe.
    pub durability: Durability,
}

struct State {
    backlog: Backlog,
    /// Nothing more is taken in, for this reason.
    failed: Option<Error>,
    stopping: bool,
}

struct Shared {
    settings: LogSettings,
    task: TaskId,
    state: Mutex<State>,
    /// Something was pushed, settled, committed or stopped.
    changed: Condvar,
    writer: DiskWriter,
    recovered: RecoveredFiles,
    pub(super) counters: Counters,
}

/// The log of a source. Any number of threads may use it at once.
pub struct SourceLog {
    shared: Arc<Shared>,
    committer: Mutex<Option<JoinHandle<()>>>,
}

impl SourceLog {
    /// Opens the log in a folder, with all that was safe when it was last used.
    ///
    /// # Errors
    /// [`Error::CorruptSegment`], [`Error::CorruptLog`], [`Error::DiskFull`], [`Error::Io`].
    pub fn open(settings: LogSettings) -> Result<Self> {
        let root = settings.folder.join("log");
        let part_max = PART_BYTES.min(settings.disk / PARTS).max(1);
        let mut backlog = Backlog::new(settings.memory, part_max);
        let recovered = found(&root, &mut backlog)?;
        if settings.durability == Durability::Availability {
            // What was in memory is gone; its positions must not be used for other rows.
            backlog.skip_to(u64::try_from(now_micros()).unwrap_or_default());
        }
        let mut id = [0; 8];
        getrandom::fill(&mut id)
            .map_err(|error| Error::Io { context: "drawing an id".into(), message: error.to_string() })?;
        let writer = DiskWriter::start(&root, AgentId(u64::from_le_bytes(id)), 0)?;
        let task = TaskId {
            query: "source".into(),
            operator: "log".into(),
            epoch: Epoch::Batch(0),
            partition: Partition(0),
        };
        let state = Mutex::new(State { backlog, failed: None, stopping: false });
        let (changed, counters) = (Condvar::new(), Counters::default());
        let shared = Arc::new(Shared { settings, task, state, changed, writer, recovered, counters });
        let committer = Arc::clone(&shared);
        let thread = Builder::new().name("clonos-source".into()).spawn(move || committer.run());
        let thread = thread.map_err(|error| Error::io("starting a thread", &error))?;
        let log = Self { shared, committer: Mutex::new(Some(thread)) };
        // Says where the log goes on, also when everything before it has been dropped.
        log.append(None, 0, 0)?;
        log.flush()?;
        Ok(log)
    }

    /// Appends rows received at `received` (microseconds since 1970), which are `taken` of the sender's items;
    /// the position after them. They are safe once [`Self::wait`] says so. Waits while the log is full.
    ///
    /// # Errors
    /// What keeps the log from taking anything; [`Error::Misuse`] when it was stopped.
    pub fn append(&self, rows: Option<&StructArray>, taken: u64, received: i64) -> Result<u64> {
        let number = rows.map_or(0, |rows| u32::try_from(rows.len()).unwrap_or(u32::MAX));
        // Encoding is most of the work, and done before the lock is taken.
        let rows = rows.map(write_rows).transpose()?.unwrap_or_default();
        let mut state = self.room(rows.len() as u64)?;
        let span = state.backlog.next(number, taken, received);
        let block = write_block(&span, &rows)?;
        state.backlog.push(span, block);
        add(&self.shared.counters.rows, u64::from(number));
        self.shared.changed.notify_all();
        Ok(span.end())
    }

    /// Waits until there is room for a block.
    fn room(&self, bytes: u64) -> Result<MutexGuard<'_, State>> {
        let mut state = locked(&self.shared.state);
        let mut held_back: Option<Instant> = None;
        loop {
            if let Some(error) = &state.failed {
                return Err(error.clone());
            }
            if state.stopping {
                return Err(Error::Misuse { what: "the log was stopped".into() });
            }
            let waiting = state.backlog.unsettled_bytes();
            let full = state.backlog.disk_bytes() + bytes > self.shared.settings.disk;
            // A block larger than all there may be is taken when nothing else is there.
            let alone = state.backlog.first() == state.backlog.end();
            if waiting <= UNSETTLED_BYTES && (!full || alone) {
                if let Some(since) = held_back {
                    let millis = u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX);
                    add(&self.shared.counters.held_back_ms, millis);
                }
                return Ok(state);
            }
            if full && held_back.is_none() {
                let disk = self.shared.settings.disk;
                tracing::info!(
                    disk,
                    "the sender is held back: rows wait to be committed up to the limit `disk`"
                );
                held_back = Some(Instant::now());
            }
            state = self.pause(state);
        }
    }

    /// Whether an append would be held back now.
    #[must_use]
    pub fn is_full(&self, bytes: u64) -> bool {
        let state = locked(&self.shared.state);
        state.backlog.disk_bytes() + bytes > self.shared.settings.disk
            && state.backlog.first() < state.backlog.end()
    }

    fn pause<'a>(&'a self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let waited = self.shared.changed.wait_timeout(state, LOOK_PERIOD);
        waited.unwrap_or_else(std::sync::PoisonError::into_inner).0
    }

    /// Waits until the rows before `position` are safe.
    ///
    /// # Errors
    /// What keeps them from becoming so.
    pub fn wait(&self, position: u64) -> Result<()> {
        let mut state = locked(&self.shared.state);
        while state.backlog.safe() < position {
            if let Some(error) = &state.failed {
                return Err(error.clone());
            }
            if state.stopping {
                return Err(Error::Misuse { what: "the log was stopped".into() });
            }
            state = self.pause(state);
        }
        Ok(())
    }

    /// Waits until all that was appended is safe.
    ///
    /// # Errors
    /// What keeps it from becoming so.
    pub fn flush(&self) -> Result<()> {
        let mut state = locked(&self.shared.state);
        while state.backlog.unsettled(0).is_some() {
            if let Some(error) = &state.failed {
                return Err(error.clone());
            }
            state = self.pause(state);
        }
        Ok(())
    }

    /// Waits a while for more of the sender's items than `seen` to be safe; how many are. `None` at the end.
    #[must_use]
    pub fn next_taken(&self, seen: u64) -> Option<u64> {
        let mut state = locked(&self.shared.state);
        if state.backlog.safe_taken() <= seen && !state.stopping && state.failed.is_none() {
            state = self.pause(state);
        }
        (!state.stopping && state.failed.is_none()).then(|| state.backlog.safe_taken())
    }

    /// Items taken from the sender that are safe.
    #[must_use]
    pub fn taken(&self) -> u64 {
        locked(&self.shared.state).backlog.safe_taken()
    }

    /// Rows that can be read.
    #[must_use]
    pub fn bounds(&self) -> Bounds {
        let state = locked(&self.shared.state);
        Bounds { first: state.backlog.first(), safe: state.backlog.safe() }
    }

    /// Why nothing more is taken in, if so.
    #[must_use]
    pub fn failure(&self) -> Option<Error> {
        locked(&self.shared.state).failed.clone()
    }

    /// Blocks with rows from one position up to another: as many as go into one answer, at least one.
    ///
    /// # Errors
    /// [`Error::SourceTruncated`], [`Error::CorruptSegment`], [`Error::Io`].
    pub fn read(&self, mut from: u64, to: u64) -> Result<Vec<Bytes>> {
        let (mut blocks, mut bytes) = (Vec::new(), 0);
        while from < to && (bytes == 0 || bytes < PIECE_BYTES) {
            let place = {
                let state = locked(&self.shared.state);
                let Some(entry) = state.backlog.at(from)? else { break };
                from = entry.span.end();
                entry.place.clone()
            };
            let block = match (place.memory, place.disk) {
                (Some(block), _) => block,
                (None, Some(place)) if self.shared.recovered.owns(&place) => {
                    self.shared.recovered.read(&place)?
                }
                (None, Some(place)) => self.shared.writer.read(&place)?,
                (None, None) => return Err(Error::Misuse { what: "a safe block is nowhere".into() }),
            };
            bytes += block.len();
            blocks.push(block);
        }
        Ok(blocks)
    }

    /// Spark has committed the rows before `position`: what is not needed any more is dropped.
    ///
    /// # Errors
    /// [`Error::Io`] if a file cannot be removed.
    pub fn commit(&self, position: u64) -> Result<()> {
        let gone = locked(&self.shared.state).backlog.commit(position);
        self.shared.changed.notify_all();
        for part in gone {
            self.shared.writer.drop_epoch_all(&self.shared.task_of(part).epoch_key())?;
        }
        Ok(())
    }

    /// What was received.
    #[must_use]
    pub fn stats(&self) -> SourceStats {
        let state = locked(&self.shared.state);
        self.shared.counters.fill(SourceStats {
            first: state.backlog.first(),
            safe: state.backlog.safe(),
            disk_bytes: state.backlog.disk_bytes(),
            memory_bytes: state.backlog.memory_bytes(),
            ..SourceStats::default()
        })
    }

    pub(super) fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// Its folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.shared.settings.folder
    }

    /// Whether it was stopped, or takes nothing more.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        let state = locked(&self.shared.state);
        state.stopping || state.failed.is_some()
    }

    /// Takes nothing more; what waits for the disk is written. Again is harmless.
    pub fn stop(&self) {
        locked(&self.shared.state).stopping = true;
        self.shared.changed.notify_all();
        if let Some(thread) = locked(&self.committer).take() {
            // It panicked: then there is nothing left to wait for.
            let _ended = thread.join();
        }
    }
}

impl Drop for SourceLog {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    /// Parts are epochs to the segments' writer: a file each, which goes as a whole.
    fn task_of(&self, part: u64) -> TaskId {
        TaskId { epoch: Epoch::Batch(part), ..self.task.clone() }
    }

    /// Writes what waits, again and again.
    fn run(&self) {
        // How far the part that is being written goes.
        let (mut part, mut offset) = (u64::MAX, LogOffset::START);
        loop {
            let Some(group) = self.next_group(&mut part, &mut offset) else { return };
            let failed = group.into_iter().find_map(|pending| self.settle(pending).err());
            match failed {
                None => {}
                Some(Error::DiskFull { path, .. }) => {
                    tracing::warn!(%path, "no space left for a source's log: its sender is held back");
                    // What was not written stays in memory and goes to a new file.
                    locked(&self.state).backlog.leave_part();
                    sleep(FULL_PAUSE);
                }
                Some(error) => {
                    tracing::error!(%error, "a source's log takes nothing more");
                    locked(&self.state).failed = Some(error);
                    self.changed.notify_all();
                    return;
                }
            }
        }
    }

    /// Waits for blocks and submits all there are; `None` when stopped and nothing waits.
    fn next_group(&self, part: &mut u64, offset: &mut LogOffset) -> Option<Vec<Option<Pending>>> {
        let mut state = locked(&self.state);
        while state.backlog.unsettled(0).is_none() {
            if state.stopping {
                return None;
            }
            let waited = self.changed.wait_timeout(state, LOOK_PERIOD);
            state = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
        let (mut group, mut number, mut memory) = (Vec::new(), state.backlog.settled(), 0);
        while let Some(entry) = state.backlog.unsettled(number) {
            number += 1;
            let in_memory = self.settings.durability == Durability::Availability
                && entry.span.rows > 0
                && state.backlog.fits_memory(memory + entry.bytes);
            let Some(block) = entry.place.memory.clone().filter(|_| !in_memory) else {
                memory += entry.bytes;
                group.push(None);
                continue;
            };
            if entry.part != *part {
                // A group stays within one file: if that is full, nothing after it has been written.
                if !group.is_empty() {
                    break;
                }
                (*part, *offset) = (entry.part, LogOffset::START);
            }
            let record = SegmentRecord {
                task: self.task_of(*part),
                generation: Generation(1),
                app: 0,
                stage: 0,
                tasks: None,
                plan: None,
                offset: *offset,
                block,
            };
            *offset = offset.plus(record.block.len() as u64);
            group.push(Some(self.writer.submit(record)));
        }
        Some(group)
    }

    fn settle(&self, pending: Option<Pending>) -> Result<()> {
        let place: Option<SpillRef> = pending.map(Pending::wait).transpose()?;
        locked(&self.state).backlog.settle(place);
        self.changed.notify_all();
        Ok(())
    }
}

/// Microseconds since 1970.
#[must_use]
pub fn now_micros() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

/// Takes in what is on disk.
fn found(root: &Path, backlog: &mut Backlog) -> Result<RecoveredFiles> {
    let recovery = recover(root)?;
    let mut parts: Vec<_> = recovery.tasks.iter().collect();
    parts.sort_by(|one, other| one.task.epoch.cmp(&other.task.epoch));
    for task in parts {
        let Epoch::Batch(part) = task.task.epoch else { continue };
        for block in &task.blocks {
            let Held::Spilled(place) = &block.place else { continue };
            let (span, _) = read_span(&recovery.files.read(place)?)?;
            backlog.recovered(span, part, *place)?;
        }
    }
    let bounds = (backlog.first(), backlog.safe());
    if bounds.1 > 0 {
        tracing::info!(first = bounds.0, safe = bounds.1, "the log of a source was found");
    }
    Ok(recovery.files)
}

impl std::fmt::Debug for SourceLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SourceLog").field("folder", &self.shared.settings.folder).finish_non_exhaustive()
    }
}
