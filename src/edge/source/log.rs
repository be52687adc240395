//! The log of a source: blocks go to disk, or to an object store, in groups: one write for all that came meanwhile.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use arrow_array::{Array, StructArray};
use bytes::Bytes;

use super::counters::{Counters, add};
use super::ownership::{Ownership, Taker};
use crate::causal_log::Place as Held;
use crate::edge::disk::Location;
use crate::edge::disk::recovery::{RecoveredFiles, Recovery};
use crate::edge::disk::segment::DiskWriter;
use crate::edge::disk::segment::store::Store;
use crate::edge::locked;
use crate::error::{Error, Result};
use crate::id::Epoch;
use crate::source::{Backlog, Bounds, SourceStats, read_span, write_block, write_rows};

/// Most bytes of blocks that may wait for the disk: a sender that is faster is held back.
const UNSETTLED_BYTES: u64 = 32 << 20;
/// A part is a file; only whole ones are dropped.
const PART_BYTES: u64 = 64 << 20;
/// Parts in the disk budget, at the least, so that dropping frees enough to go on.
const PARTS: u64 = 8;
/// Blocks of a part in an object store, where each may be an object: as many are read and removed one by one.
const STORED_BLOCKS: u64 = 1_024;
/// How often those who wait look whether they should go on waiting.
pub(super) const LOOK_PERIOD: Duration = Duration::from_millis(100);
/// The option that says where logs lie.
const SETTING: &str = "logDir";
/// Most bytes of one answer to a reader.
const PIECE_BYTES: usize = 16 << 20;

/// When rows are safe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// On disk, synced, or in an object store: they survive the receiver and the driver.
    Eager,
    /// In memory; past the memory budget on disk. They survive what the receiver survives.
    Availability,
}

/// Settings of a log.
#[derive(Debug, Clone)]
pub struct LogSettings {
    /// Folder on this machine for what goes with it, and may be lost.
    pub folder: PathBuf,
    /// Where it lies.
    pub location: Location,
    /// Who takes it.
    pub taker: Taker,
    /// Bytes of blocks kept in memory.
    pub memory: u64,
    /// Bytes that may wait to be committed; past it senders are held back.
    pub disk: u64,
    /// When rows are safe.
    pub durability: Durability,
}

pub(super) struct State {
    pub(super) backlog: Backlog,
    /// Parts that are to be removed, in this order.
    pub(super) doomed: VecDeque<u64>,
    /// Nothing more is taken in, for this reason.
    pub(super) failed: Option<Error>,
    pub(super) stopping: bool,
}

pub(super) struct Shared {
    pub(super) settings: LogSettings,
    pub(super) state: Mutex<State>,
    /// Something was pushed, settled, committed or stopped.
    pub(super) changed: Condvar,
    pub(super) ownership: Ownership,
    pub(super) writer: DiskWriter,
    recovered: RecoveredFiles,
    pub(super) counters: Counters,
}

/// The log of a source. Any number of threads may use it at once.
pub struct SourceLog {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl SourceLog {
    /// Takes the log, and opens it with all that was safe when it was last used.
    ///
    /// # Errors
    /// [`Error::SourceInUse`] if another one took it after [`Taker::after`]; [`Error::Config`] for a store that
    /// cannot keep a log; [`Error::CorruptSegment`], [`Error::CorruptLog`], [`Error::DiskFull`], [`Error::Io`].
    pub fn open(settings: LogSettings) -> Result<Self> {
        let store = settings.location.make(SETTING)?;
        Self::open_on(store, settings)
    }

    /// [`Self::open`] in a given place.
    pub(super) fn open_on(store: Arc<dyn Store>, settings: LogSettings) -> Result<Self> {
        let ownership = Ownership::take(store, settings.location.clone(), &settings.taker)?;
        let part_max = PART_BYTES.min(settings.disk / PARTS).max(1);
        let blocks_max = if ownership.is_stored() { STORED_BLOCKS } else { u64::MAX };
        let mut backlog = Backlog::new(settings.memory, part_max).with_blocks(blocks_max);
        let recovered = found(ownership.recover()?, &mut backlog)?;
        if settings.durability == Durability::Availability {
            // What was in memory is gone; its positions must not be used for other rows.
            backlog.skip_to(u64::try_from(now_micros()).unwrap_or_default());
        }
        let writer = ownership.writer()?;
        let state = State { backlog, doomed: VecDeque::new(), failed: None, stopping: false };
        let (state, changed, counters) = (Mutex::new(state), Condvar::new(), Counters::default());
        let shared = Arc::new(Shared { settings, state, changed, ownership, writer, recovered, counters });
        let threads = Mutex::new(vec![
            shared.start("clonos-source", Shared::write)?,
            shared.start("clonos-source-commits", Shared::remove)?,
        ]);
        let log = Self { shared, threads };
        // Says where the log goes on, also when everything before it has been dropped.
        log.append(None, 0, 0)?;
        log.flush()?;
        Ok(log)
    }

    /// The number of this receiver among those that had the log: that of a later one is higher.
    #[must_use]
    pub fn incarnation(&self) -> u64 {
        self.shared.ownership.incarnation()
    }

    /// Looks whether the log is this receiver's still; nothing more is taken in if not. Who cannot be asked now is
    /// asked again later.
    ///
    /// # Errors
    /// What keeps the log from taking in anything.
    pub fn verify(&self) -> Result<()> {
        if let Ok(Some(lost)) = self.shared.ownership.lost() {
            tracing::error!(error = %lost, "a source's log takes nothing more");
            self.shared.fail(lost);
        }
        self.failure().map_or(Ok(()), Err)
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
            state = self.shared.pause(state);
        }
    }

    /// Whether an append would be held back now.
    #[must_use]
    pub fn is_full(&self, bytes: u64) -> bool {
        let state = locked(&self.shared.state);
        state.backlog.disk_bytes() + bytes > self.shared.settings.disk
            && state.backlog.first() < state.backlog.end()
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
            state = self.shared.pause(state);
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
            state = self.shared.pause(state);
        }
        Ok(())
    }

    /// Waits a while for more of the sender's items than `seen` to be safe; how many are. `None` at the end.
    #[must_use]
    pub fn next_taken(&self, seen: u64) -> Option<u64> {
        let mut state = locked(&self.shared.state);
        if state.backlog.safe_taken() <= seen && !state.stopping && state.failed.is_none() {
            state = self.shared.pause(state);
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

    /// Spark has committed the rows before `position`: what is not needed any more is dropped, and removed in the
    /// background.
    pub fn commit(&self, position: u64) {
        let mut state = locked(&self.shared.state);
        let gone = state.backlog.commit(position);
        state.doomed.extend(gone);
        self.shared.changed.notify_all();
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

    /// Where it lies.
    #[must_use]
    pub fn location(&self) -> &Location {
        self.shared.ownership.location()
    }

    /// Folder on this machine for what goes with it.
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

    /// Takes nothing more; what waits is written, and removed, unless that fails now. Again is harmless.
    pub fn stop(&self) {
        locked(&self.shared.state).stopping = true;
        self.shared.changed.notify_all();
        for thread in locked(&self.threads).drain(..) {
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
    fn start(self: &Arc<Self>, name: &str, work: fn(&Self)) -> Result<JoinHandle<()>> {
        let shared = Arc::clone(self);
        let thread = Builder::new().name(name.into()).spawn(move || work(&shared));
        thread.map_err(|error| Error::io("starting a thread", &error))
    }
}

/// Microseconds since 1970.
#[must_use]
pub fn now_micros() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

/// Takes in what was written before.
fn found(recovery: Recovery, backlog: &mut Backlog) -> Result<RecoveredFiles> {
    let mut parts: Vec<_> = recovery.tasks.iter().collect();
    parts.sort_by(|one, other| one.task.epoch.cmp(&other.task.epoch));
    for task in parts {
        let Epoch::Batch(part) = task.task.epoch else { continue };
        for block in &task.blocks {
            let Held::Spilled(place, _) = &block.place else { continue };
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
        f.debug_struct("SourceLog").field("location", self.location()).finish_non_exhaustive()
    }
}
