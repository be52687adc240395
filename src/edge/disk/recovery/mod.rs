//! What can be read back from segments: all logs after a restart, or one file for a person.
//!
//! Nothing here keeps blocks in memory: a recovered log is a list of places in files.

mod chain;
mod report;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{Builder, ScopedJoinHandle};

use bytes::Bytes;

pub(in crate::edge) use report::report_of;
pub use report::{SegmentReport, TaskReport, read_segment};

use self::chain::{Chain, Entry};
use super::segment::store::{Folder, Piece, Segment, Store};
use super::segment::{
    FileTable, SegmentScan, Step, claimed_files, corrupt, epoch_files, read_block, seal, segment_files,
};
use crate::agent::protocol::{Borders, Code, Plan};
use crate::causal_log::{BlockRef, SpillRef};
use crate::edge::progress::Progress;
use crate::error::{Error, Result};
use crate::id::{EpochKey, Generation, TaskId};

/// Everything found below a checkpoint folder.
#[derive(Debug)]
pub struct Recovery {
    /// Each task's log, sorted by task.
    pub tasks: Vec<RecoveredTask>,
    /// Reads the blocks of those logs.
    pub files: RecoveredFiles,
    /// Files whose last records were being written when their writer died.
    pub torn: Vec<TornTail>,
}

/// One task's log as the segments hold it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecoveredTask {
    /// The task.
    pub task: TaskId,
    /// Newest generation found.
    pub generation: Generation,
    /// Hash of the application in which the log's last block was recorded.
    pub app: u64,
    /// Spark stage in which that was.
    pub stage: u32,
    /// Number of tasks of that stage, where known.
    pub tasks: Option<u32>,
    /// Whether other blocks were recorded by another number of tasks.
    pub relaid: bool,
    /// Whether others were by tasks with other borders between them.
    pub has_moved: bool,
    /// The function that recorded it last.
    pub code: Code,
    /// What that was asked over, where known.
    pub plan: Option<Plan>,
    /// By what the rows of the last stage that tells were cut into its tasks.
    pub borders: Borders,
    /// The log, from its start and without gaps; all blocks are `Place::Spilled`.
    pub blocks: Vec<BlockRef>,
}

/// The end of a segment that a crash left half written. It was never acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TornTail {
    /// The segment.
    pub file: PathBuf,
    /// Where the intact part ends, in bytes from the file's start.
    pub offset: u64,
    /// Bytes that are not used.
    pub bytes: u64,
}

/// Segments that were read, by the number that references name, and where they lie.
type Segments = HashMap<u64, (Segment, Arc<dyn Store>)>;

/// Reads blocks of recovered logs. Clones share one table.
#[derive(Debug, Clone, Default)]
pub struct RecoveredFiles {
    segments: Arc<Segments>,
}

impl RecoveredFiles {
    /// Reads a block, and checks its sum. The file is opened for each read: there may be many.
    ///
    /// # Errors
    /// [`Error::CorruptSegment`] if the bytes changed since recovery; [`Error::Io`], also when the
    /// file was removed with its epoch.
    pub fn read(&self, place: &SpillRef) -> Result<Bytes> {
        let Some((segment, store)) = self.segments.get(&place.file) else {
            let context = format!("reading a recovered block from file {}", place.file);
            return Err(Error::Io { context, message: "no such file was recovered".to_owned() });
        };
        let path = &segment.path;
        let opened = store.reader(segment);
        let raw = opened.map_err(|e| Error::io(format!("opening segment {}", path.display()), &e))?;
        read_block(path, raw.as_ref(), place)
    }

    /// Knows the files of `other` from now on, too.
    pub(in crate::edge) fn extend(&mut self, other: &Self) {
        let more = other.segments.iter().map(|(id, segment)| (*id, segment.clone()));
        Arc::make_mut(&mut self.segments).extend(more);
    }

    /// Whether [`Self::read`] knows the file of this reference.
    #[must_use]
    pub fn owns(&self, place: &SpillRef) -> bool {
        self.segments.contains_key(&place.file)
    }
}

/// Reads all segments below `root`. A folder that does not exist holds no logs.
///
/// Copies of a task's log in several files must agree. Where they don't, the newest generation is
/// right from there on: when it was opened, it was given all that had been acknowledged, so what an
/// older one wrote besides was never acknowledged, even if it is longer.
///
/// # Errors
/// - [`Error::CorruptSegment`]: a file is damaged before its end, or one generation wrote two logs.
/// - [`Error::UnsupportedVersion`]: a file was written by another version.
/// - [`Error::Io`].
pub fn recover(root: &Path) -> Result<Recovery> {
    let store: Arc<dyn Store> = Arc::new(Folder::at(root));
    recover_from(&store, segment_files(store.as_ref()), |_| None, None)
}

/// [`recover`] for one log, of one use of its epoch: no other epoch's segments are read, nor can their damage matter, and
/// of all other logs in them nothing is kept.
///
/// # Errors
/// Those of [`recover`].
pub(in crate::edge) fn recover_log(store: &Arc<dyn Store>, task: &TaskId, used: u64) -> Result<Recovery> {
    let (of, key) = (store.as_ref(), task.epoch_key());
    recover_from(store, epoch_files(of, &key, used), seal::counting(of, &key, used, false)?, Some(task))
}

/// [`recover`] for all epochs that one claim covers.
///
/// # Errors
/// Those of [`recover`].
pub(in crate::edge) fn recover_claimed(
    store: &Arc<dyn Store>,
    key: &EpochKey,
    used: u64,
) -> Result<Recovery> {
    let of = store.as_ref();
    recover_from(store, claimed_files(of, key, used), seal::counting(of, key, used, true)?, None)
}

/// Reads segments, each as far as `counts` says, where that says anything; of `only` one log, if there is one.
fn recover_from(
    store: &Arc<dyn Store>,
    listing: io::Result<Vec<PathBuf>>,
    counts: impl Fn(&Path) -> Option<u64>,
    only: Option<&TaskId>,
) -> Result<Recovery> {
    let root = store.root().display();
    let listing = listing.map_err(|e| Error::io(format!("listing segments below {root}"), &e))?;
    let counting: Vec<(PathBuf, Option<u64>)> = listing
        .into_iter()
        .map(|path| {
            let end = counts(&path);
            (path, end)
        })
        .filter(|(_, end)| *end != Some(0))
        .collect();
    let (mut segments, mut torn) = (HashMap::new(), Vec::new());
    let mut found: BTreeMap<TaskId, Chain> = BTreeMap::new();
    for scanned in at_once(store.readers(), &counting, |(path, end)| scan(store.as_ref(), path, *end, only))?
    {
        let Some(Scanned { segment, id, chains, torn: tail, .. }) = scanned else { continue };
        for (task, chain) in chains {
            found.entry(task).or_default().add_copy(chain);
        }
        torn.extend(tail);
        segments.insert(id, (segment, Arc::clone(store)));
    }
    let mut tasks = Vec::with_capacity(found.len());
    for (task, chain) in found {
        tasks.push(chain.merge(&segments, &task)?.into_task(task));
    }
    Ok(Recovery { tasks, files: RecoveredFiles { segments: Arc::new(segments) }, torn })
}

/// Does the same for all of these, some at once, if there are threads to be had; what came of each, or the first error.
pub(in crate::edge::disk) fn at_once<T: Sync, R: Send>(
    threads: usize,
    all: &[T],
    each: impl Fn(&T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    if threads <= 1 || all.len() <= 1 {
        return all.iter().map(each).collect();
    }
    let next = AtomicUsize::new(0);
    let progress = Progress::ours();
    let work = || {
        Progress::count(progress.clone());
        let mut done = Vec::new();
        while let Some(one) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
            done.push(each(one)?);
        }
        Ok::<_, Error>(done)
    };
    let done = std::thread::scope(|scope| {
        let others = (1..threads.min(all.len())).map_while(|_| Builder::new().spawn_scoped(scope, work).ok());
        let others: Vec<_> = others.collect();
        let ours = catch_unwind(AssertUnwindSafe(work));
        let others = others.into_iter().map(ScopedJoinHandle::join);
        others.chain([ours]).collect::<Vec<_>>()
    });
    let mut all = Vec::new();
    for done in done {
        let stopped = |_| Error::Io { context: "asking a store".into(), message: "a thread panicked".into() };
        all.extend(done.map_err(stopped)??);
    }
    Ok(all)
}

/// What one segment holds.
struct Scanned {
    segment: Segment,
    /// The number by which references name it.
    id: u64,
    chains: BTreeMap<TaskId, Chain>,
    records: u64,
    torn: Option<TornTail>,
}

impl Scanned {
    fn new(segment: Segment) -> Self {
        Self { segment, id: FileTable::next_id(), chains: BTreeMap::new(), records: 0, torn: None }
    }
}

/// Reads one segment, all of it, or up to `end`, which was where a whole record ended. Nothing if an agent has removed it,
/// with its epoch, since it was listed.
fn scan(store: &dyn Store, path: &Path, end: Option<u64>, only: Option<&TaskId>) -> Result<Option<Scanned>> {
    let Some(segment) = store.segment(path)? else { return Ok(None) };
    let len = segment.len();
    let mut scanned = Scanned::new(segment.clone());
    let read = match end.filter(|end| *end > len) {
        None => store.scan(&segment, end, &mut |piece: Piece| {
            let base = piece.base;
            scan_all(&mut scanned, base, &mut SegmentScan::over(piece)?.of(only.cloned()))
        }),
        Some(end) => Err(corrupt(path, len, format!("there were {end} bytes of it when they were counted"))),
    };
    match read {
        Ok(true) => Ok(Some(scanned)),
        Ok(false) => Ok(None),
        Err(_) if matches!(store.segment(path), Ok(None)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Takes in a piece of a segment, before which there are `base` bytes.
fn scan_all(scanned: &mut Scanned, base: u64, scan: &mut SegmentScan) -> Result<()> {
    loop {
        Progress::step();
        match scan.step()? {
            Step::Record(pos, record) => {
                scanned.records += 1;
                let entry = Entry::new(scanned.id, base + pos, &record);
                let chain = scanned.chains.entry(record.task).or_default();
                chain.push(entry).map_err(|conflict| scan.corrupt(pos, conflict.to_string()))?;
            }
            Step::Other => scanned.records += 1,
            Step::Torn(offset) => {
                let (file, bytes) = (scanned.segment.path.clone(), scan.file_bytes() - offset);
                tracing::warn!(file = %file.display(), offset, bytes, "segment ends in a torn write");
                scanned.torn = Some(TornTail { file, offset, bytes });
            }
            Step::End => return Ok(()),
        }
    }
}
