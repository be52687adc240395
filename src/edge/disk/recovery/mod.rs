//! What can be read back from segments: all logs after a restart, or one file for a person.
//!
//! Nothing here keeps blocks in memory: a recovered log is a list of places in files.

mod chain;
mod report;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

pub use report::{SegmentReport, TaskReport, read_segment};

use self::chain::{Chain, Entry};
use super::segment::{
    FileTable, SegmentScan, Step, claimed_files, epoch_files, read_block, seal, segment_files,
};
use crate::agent::protocol::{Code, Plan};
use crate::causal_log::{BlockRef, SpillRef};
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

/// Reads blocks of recovered logs. Clones share one table.
#[derive(Debug, Clone, Default)]
pub struct RecoveredFiles {
    paths: Arc<HashMap<u64, PathBuf>>,
}

impl RecoveredFiles {
    /// Reads a block, and checks its sum. The file is opened for each read: there may be many.
    ///
    /// # Errors
    /// [`Error::CorruptSegment`] if the bytes changed since recovery; [`Error::Io`], also when the
    /// file was removed with its epoch.
    pub fn read(&self, place: &SpillRef) -> Result<Bytes> {
        let Some(path) = self.paths.get(&place.file) else {
            let context = format!("reading a recovered block from file {}", place.file);
            return Err(Error::Io { context, message: "no such file was recovered".to_owned() });
        };
        let file =
            File::open(path).map_err(|e| Error::io(format!("opening segment {}", path.display()), &e))?;
        read_block(path, &file, place)
    }

    /// Knows the files of `other` from now on, too.
    pub(in crate::edge) fn extend(&mut self, other: &Self) {
        let more = other.paths.iter().map(|(id, path)| (*id, path.clone()));
        Arc::make_mut(&mut self.paths).extend(more);
    }

    /// Whether [`Self::read`] knows the file of this reference.
    #[must_use]
    pub fn owns(&self, place: &SpillRef) -> bool {
        self.paths.contains_key(&place.file)
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
    recover_from(root, segment_files(root), |_| u64::MAX)
}

/// [`recover`] for one use of an epoch: no other epoch's segments are read, nor can their damage matter.
///
/// # Errors
/// Those of [`recover`].
pub fn recover_epoch(root: &Path, key: &EpochKey, used: u64) -> Result<Recovery> {
    recover_from(root, epoch_files(root, key, used), seal::ends(root, key, used)?)
}

/// [`recover`] for all epochs that one claim covers.
///
/// # Errors
/// Those of [`recover`].
pub(in crate::edge) fn recover_claimed(root: &Path, key: &EpochKey, used: u64) -> Result<Recovery> {
    recover_from(root, claimed_files(root, key, used), seal::ends(root, key, used)?)
}

/// Reads files, each as far as `counts` says.
fn recover_from(
    root: &Path,
    listing: io::Result<Vec<PathBuf>>,
    counts: impl Fn(&Path) -> u64,
) -> Result<Recovery> {
    let listing = listing.map_err(|e| Error::io(format!("listing segments below {}", root.display()), &e))?;
    let (mut paths, mut torn) = (HashMap::new(), Vec::new());
    let mut found: BTreeMap<TaskId, Chain> = BTreeMap::new();
    for path in listing {
        let id = FileTable::next_id();
        let end = counts(&path);
        if end == 0 {
            continue;
        }
        let scanned = match scan(&path, id, end) {
            // An agent removed it, with its epoch, since the folder was listed.
            Err(_) if !path.exists() => continue,
            scanned => scanned?,
        };
        for (task, chain) in scanned.chains {
            found.entry(task).or_default().add_copy(chain);
        }
        torn.extend(scanned.torn);
        paths.insert(id, path);
    }
    let mut tasks = Vec::with_capacity(found.len());
    for (task, chain) in found {
        tasks.push(chain.merge(&paths, &task)?.into_task(task));
    }
    Ok(Recovery { tasks, files: RecoveredFiles { paths: Arc::new(paths) }, torn })
}

/// What one file holds.
struct Scanned {
    chains: BTreeMap<TaskId, Chain>,
    records: u64,
    torn: Option<TornTail>,
}

/// Reads one file, whose blocks will be referred to by `id`.
fn scan(path: &Path, id: u64, end: u64) -> Result<Scanned> {
    scan_all(path, id, &mut SegmentScan::open_to(path, end)?)
}

fn scan_all(path: &Path, id: u64, scan: &mut SegmentScan) -> Result<Scanned> {
    let mut scanned = Scanned { chains: BTreeMap::new(), records: 0, torn: None };
    loop {
        match scan.step()? {
            Step::Record(pos, record) => {
                scanned.records += 1;
                let entry = Entry::new(id, pos, &record);
                let chain = scanned.chains.entry(record.task).or_default();
                chain.push(entry).map_err(|conflict| scan.corrupt(pos, conflict.to_string()))?;
            }
            Step::Torn(offset) => {
                let bytes = scan.file_bytes() - offset;
                tracing::warn!(file = %path.display(), offset, bytes, "segment ends in a torn write");
                scanned.torn = Some(TornTail { file: path.to_owned(), offset, bytes });
            }
            Step::End => return Ok(scanned),
        }
    }
}
