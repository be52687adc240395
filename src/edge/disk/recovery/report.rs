//! What a person wants to know about one segment.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::{Chain, Scanned, scan_all};
use crate::causal_log::BlockRef;
use crate::determinant::{BlockReader, Determinant};
use crate::edge::disk::segment::store::{Folder, Store};
use crate::edge::disk::segment::{RawFile, SegmentScan, VERSION, read_block};
use crate::error::{Error, Result};
use crate::id::{AgentId, Epoch, TaskId};

/// The content of a segment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SegmentReport {
    /// The file.
    pub file: PathBuf,
    /// Version of its format.
    pub version: u16,
    /// Agent that wrote it; `None`, as the next three, if it died while it created the file.
    pub agent: Option<AgentId>,
    /// Hash of its application.
    pub app: Option<u64>,
    /// The query.
    pub query: Option<String>,
    /// The epoch.
    pub epoch: Option<Epoch>,
    /// Length of the file in bytes.
    pub bytes: u64,
    /// Intact records.
    pub records: u64,
    /// The logs, sorted by task.
    pub tasks: Vec<TaskReport>,
    /// Where the intact part ends, if the file ends in a torn write.
    pub torn_at: Option<u64>,
}

/// One log of a segment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TaskReport {
    /// The task.
    pub task: TaskId,
    /// Newest generation that wrote here.
    pub generation: u64,
    /// Hash of the application in which the last block was recorded.
    pub app: u64,
    /// Spark stage in which that was.
    pub stage: u32,
    /// Number of tasks of that stage, where known.
    pub tasks: Option<u32>,
    /// Blocks of the log.
    pub blocks: u64,
    /// Bytes of the log.
    pub bytes: u64,
    /// Determinants of the log, by kind.
    pub determinants: BTreeMap<&'static str, u64>,
    /// Blocks whose content this version can't decode: sound on disk, but not understood.
    pub undecodable: u64,
}

/// Reads a segment for a person to look at.
///
/// # Errors
/// [`Error::CorruptSegment`] if the file is damaged before its end or is no segment,
/// [`Error::UnsupportedVersion`], [`Error::Io`].
pub fn read_segment(path: &Path) -> Result<SegmentReport> {
    report_of(&Folder::at(path), path)
}

/// As [`read_segment`], of a segment wherever it is.
///
/// # Errors
/// Those of [`read_segment`].
pub(in crate::edge) fn report_of(store: &dyn Store, path: &Path) -> Result<SegmentReport> {
    let failed = |e: &io::Error| Error::io(format!("reading segment {}", path.display()), e);
    let gone = || failed(&io::ErrorKind::NotFound.into());
    let segment = store.segment(path)?.ok_or_else(gone)?;
    let (mut scanned, mut header) = (Scanned::new(segment.clone()), None);
    let is_there = store.scan(&segment, None, &mut |piece| {
        let base = piece.base;
        let mut scan = SegmentScan::over(piece)?;
        header = header.take().or_else(|| scan.header().cloned());
        scan_all(&mut scanned, base, &mut scan)
    })?;
    if !is_there {
        return Err(gone());
    }
    let raw = store.reader(&segment).map_err(|e| failed(&e))?;
    let mut tasks = Vec::with_capacity(scanned.chains.len());
    for (task, chain) in scanned.chains {
        tasks.push(task_report(path, raw.as_ref(), task, chain)?);
    }
    let header = header.as_ref();
    Ok(SegmentReport {
        file: path.to_owned(),
        version: VERSION,
        agent: header.map(|h| h.agent),
        app: header.map(|h| h.app),
        query: header.map(|h| h.query.clone()),
        epoch: header.map(|h| h.epoch.clone()),
        bytes: segment.len(),
        records: scanned.records,
        tasks,
        torn_at: scanned.torn.map(|torn| torn.offset),
    })
}

fn task_report(path: &Path, raw: &dyn RawFile, task: TaskId, chain: Chain) -> Result<TaskReport> {
    let (mut determinants, mut undecodable) = (BTreeMap::new(), 0);
    for place in chain.places() {
        let block = read_block(path, raw, place)?;
        match count(&block, &mut determinants) {
            Ok(()) => {}
            Err(_) => undecodable += 1,
        }
    }
    let log = chain.into_task(task);
    Ok(TaskReport {
        generation: log.generation.0,
        app: log.app,
        stage: log.stage,
        tasks: log.tasks,
        blocks: log.blocks.len() as u64,
        bytes: log.blocks.iter().map(BlockRef::bytes).sum(),
        task: log.task,
        determinants,
        undecodable,
    })
}

/// Adds the determinants of one block; all or none of them.
fn count(block: &bytes::Bytes, into: &mut BTreeMap<&'static str, u64>) -> Result<()> {
    let mut kinds = Vec::new();
    for determinant in BlockReader::new(block)? {
        kinds.push(name(&determinant?));
    }
    for kind in kinds {
        *into.entry(kind).or_default() += 1;
    }
    Ok(())
}

/// The kinds' names as users see them.
const fn name(determinant: &Determinant<'_>) -> &'static str {
    match determinant {
        Determinant::Header { .. } => "header",
        Determinant::Choice { .. } => "choice",
        Determinant::Time { .. } => "time",
        Determinant::Seed { .. } => "seed",
        Determinant::Results { .. } => "results",
        Determinant::Call { .. } => "call",
        Determinant::Service { .. } => "service",
        Determinant::Row { .. } => "row",
        Determinant::Input { .. } => "input",
        Determinant::EpochMark => "epoch_mark",
        Determinant::Resume { .. } => "resume",
        Determinant::Rows { .. } => "row numbers",
        Determinant::Marks { .. } => "row marks",
        Determinant::Copies { .. } => "copies",
        Determinant::OfOtherUses { .. } => "copies of other uses",
        Determinant::Order { .. } => "order",
        Determinant::Output { .. } => "output",
        Determinant::TimeAgain { .. } => "time again",
    }
}
