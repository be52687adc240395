//! A file system that fails when told to, and records to write to it.

use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use bytes::Bytes;

use super::store::Folder;
use super::{DiskWriter, FileSystem, RawFile, RealDisk, SegmentRecord};
use crate::agent::protocol::Borders;
use crate::id::{AgentId, Epoch, EpochKey, Generation, LogOffset, Partition, TaskId};

/// What a [`FaultyDisk`] does wrong; shared with its files.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// Bytes that may still be written; the write that passes it writes this much and then fails.
    space: Mutex<Option<u64>>,
    fail_sync: AtomicBool,
    fail_cut: AtomicBool,
    fail_remove: AtomicBool,
    fail_dirs: AtomicBool,
    /// Folders that were synced, in order.
    pub(crate) dirs: Mutex<Vec<PathBuf>>,
    /// File syncs that came through.
    pub(crate) syncs: AtomicU64,
    closed: Mutex<bool>,
    opened: Condvar,
}

impl Faults {
    /// Leaves so many bytes of room; `None` is a disk without end.
    pub(crate) fn leave_space(&self, bytes: Option<u64>) {
        *self.space.lock().unwrap() = bytes;
    }

    /// Lets each sync fail, or no more.
    pub(crate) fn fail_syncs(&self, fail: bool) {
        self.fail_sync.store(fail, Ordering::Relaxed);
    }

    /// Lets removing files fail, or no more.
    pub(crate) fn fail_removes(&self, fail: bool) {
        self.fail_remove.store(fail, Ordering::Relaxed);
    }

    /// Lets syncing folders fail, or no more.
    pub(crate) fn fail_dir_syncs(&self, fail: bool) {
        self.fail_dirs.store(fail, Ordering::Relaxed);
    }

    /// Lets cutting files fail.
    pub(crate) fn fail_cuts(&self) {
        self.fail_cut.store(true, Ordering::Relaxed);
    }

    /// Lets syncs hang (or go on).
    pub(crate) fn hold_syncs(&self, hold: bool) {
        *self.closed.lock().unwrap() = hold;
        self.opened.notify_all();
    }
}

/// The machine's file system with faults. It writes through a keyhole, a few bytes at once.
#[derive(Debug, Clone, Default)]
pub(crate) struct FaultyDisk(pub(crate) Arc<Faults>);

impl FaultyDisk {
    fn wrap(&self, raw: Arc<dyn RawFile>) -> Arc<dyn RawFile> {
        Arc::new(FaultyFile { raw, faults: Arc::clone(&self.0) })
    }
}

impl FileSystem for FaultyDisk {
    fn create(&self, path: &Path, mode: u32) -> io::Result<Arc<dyn RawFile>> {
        RealDisk.create(path, mode).map(|raw| self.wrap(raw))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        if self.0.fail_remove.load(Ordering::Relaxed) {
            return Err(io::Error::from_raw_os_error(5));
        }
        RealDisk.remove(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        if self.0.fail_dirs.load(Ordering::Relaxed) {
            return Err(io::Error::from_raw_os_error(5));
        }
        self.0.dirs.lock().unwrap().push(dir.to_owned());
        RealDisk.sync_dir(dir)
    }
}

struct FaultyFile {
    raw: Arc<dyn RawFile>,
    faults: Arc<Faults>,
}

impl RawFile for FaultyFile {
    fn write_at(&self, pieces: &mut [IoSlice<'_>], offset: u64) -> io::Result<()> {
        let mut all = pieces.iter().flat_map(|piece| piece.iter().copied()).collect::<Vec<_>>();
        let mut space = self.faults.space.lock().unwrap();
        let full = space.is_some_and(|left| left < all.len() as u64);
        if let Some(left) = space.as_mut() {
            all.truncate(usize::try_from(*left).unwrap());
            *left -= all.len() as u64;
        }
        for (index, some) in all.chunks(7).enumerate() {
            self.raw.write_at(&mut [IoSlice::new(some)], offset + 7 * index as u64)?;
        }
        if full { Err(io::Error::from_raw_os_error(28)) } else { Ok(()) }
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.raw.read_at(buffer, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        if self.faults.fail_cut.load(Ordering::Relaxed) {
            return Err(io::Error::from_raw_os_error(5));
        }
        self.raw.set_len(len)
    }

    fn sync(&self) -> io::Result<()> {
        let closed = self.faults.closed.lock().unwrap();
        drop(self.faults.opened.wait_while(closed, |closed| *closed).unwrap());
        if self.faults.fail_sync.load(Ordering::Relaxed) {
            return Err(io::Error::from_raw_os_error(5));
        }
        self.faults.syncs.fetch_add(1, Ordering::Relaxed);
        self.raw.sync()
    }
}

/// The agent and application of the tests.
pub(crate) const AGENT: AgentId = AgentId(0xA1);
pub(crate) const APP: u64 = 0x0B;

/// A task of micro-batch 7.
pub(crate) fn task(partition: u32) -> TaskId {
    let (query, operator) = ("clicks".into(), "score".into());
    TaskId { query, operator, epoch: Epoch::Batch(7), partition: Partition(partition) }
}

/// The epoch of [`task`].
pub(crate) fn epoch() -> EpochKey {
    task(0).epoch_key()
}

/// One record of [`task`].
pub(crate) fn record(partition: u32, generation: u64, offset: u64, block: &[u8]) -> SegmentRecord {
    SegmentRecord {
        task: task(partition),
        generation: Generation(generation),
        app: APP,
        stage: 3,
        tasks: Some(4),
        plan: None,
        borders: Borders::UNKNOWN,
        offset: LogOffset(offset),
        block: Bytes::copy_from_slice(block),
    }
}

/// A writer below `root` on the machine's file system.
pub(crate) fn writer(root: &Path) -> DiskWriter {
    DiskWriter::start(root, AGENT, APP).unwrap()
}

/// A writer below `root` whose disk fails when told to.
pub(crate) fn faulty_writer(root: &Path) -> (DiskWriter, Arc<Faults>) {
    let disk = FaultyDisk::default();
    let faults = Arc::clone(&disk.0);
    let folder = Folder::on(Arc::new(disk), root).unwrap();
    (DiskWriter::start_on(Arc::new(folder), (AGENT, APP), Duration::ZERO).unwrap(), faults)
}
