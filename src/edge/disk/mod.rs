//! All of an agent's files behind one face: spill files, its segments, and recovered ones.

pub mod recovery;
pub mod segment;
pub mod spill;

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use bytes::Bytes;

use self::recovery::{RecoveredFiles, RecoveredTask, recover, recover_epoch};
use self::segment::{DiskWriter, Pending, SegmentRecord};
use self::spill::SpillDir;
use crate::agent::store::one_piece;
use crate::causal_log::{BlockRef, Place, SpillRef};
use crate::config::SessionConfig;
use crate::error::{Error, Result};
use crate::id::{AgentId, EpochKey, LogOffset, TaskId};

/// An agent's files.
pub(super) struct Disk {
    spill: SpillDir,
    segments: Option<DiskWriter>,
    checkpoint_dir: Option<PathBuf>,
    recovered: Mutex<RecoveredFiles>,
}

/// One task's log in the checkpoint folder.
pub(super) struct Rescued {
    blocks: Vec<BlockRef>,
    files: RecoveredFiles,
}

impl Rescued {
    /// One piece of it; nothing at its end.
    pub(super) fn piece(&self, from: LogOffset) -> Result<Vec<Bytes>> {
        let first = self.blocks.partition_point(|block| block.end() <= from);
        let rest = self.blocks.get(first..).unwrap_or_default();
        one_piece(rest).iter().map(|block| self.read(&block.place)).collect()
    }

    fn read(&self, place: &Place) -> Result<Bytes> {
        match place {
            Place::Memory(bytes) => Ok(bytes.clone()),
            Place::Spilled(place) => self.files.read(place),
        }
    }
}

impl Disk {
    pub(super) fn open(config: &SessionConfig, agent: AgentId, app: u64) -> Result<Self> {
        let root = config.spill_dir.as_ref().map_or_else(std::env::temp_dir, PathBuf::from);
        let spill = SpillDir::create(&root, config.disk_bytes)?;
        let checkpoint_dir = config.checkpoint_dir.as_ref().map(PathBuf::from);
        let segments = match &checkpoint_dir {
            Some(root) => Some(DiskWriter::start(root, agent, app)?),
            None => None,
        };
        Ok(Self { spill, segments, checkpoint_dir, recovered: Mutex::default() })
    }

    /// All logs found in the checkpoint folder; their blocks can be read afterwards.
    pub(super) fn recover(&self) -> Result<Vec<RecoveredTask>> {
        let Some(root) = &self.checkpoint_dir else { return Ok(Vec::new()) };
        let found = recover(root)?;
        *crate::edge::locked(&self.recovered) = found.files;
        Ok(found.tasks)
    }

    /// Finds one task's log in the checkpoint folder, whoever wrote it.
    pub(super) fn rescue(&self, task: &TaskId) -> Result<Option<Rescued>> {
        let Some(root) = &self.checkpoint_dir else { return Ok(None) };
        let found = recover_epoch(root, &task.epoch_key())?;
        let log = found.tasks.into_iter().find(|log| log.task == *task && !log.blocks.is_empty());
        Ok(log.map(|log| Rescued { blocks: log.blocks, files: found.files }))
    }

    /// Whether there is a checkpoint folder.
    pub(super) const fn has_segments(&self) -> bool {
        self.segments.is_some()
    }

    /// Queues a block for this agent's segment.
    pub(super) fn submit(&self, record: SegmentRecord) -> Option<Pending> {
        self.segments.as_ref().map(|segments| segments.submit(record))
    }

    /// Spills blocks of one epoch.
    pub(super) fn spill(&self, key: &EpochKey, blocks: &[Bytes]) -> Result<Vec<SpillRef>> {
        self.spill.write(key, blocks)
    }

    /// The bytes of blocks, wherever they are.
    pub(super) fn read(&self, blocks: &[BlockRef]) -> Result<Vec<Bytes>> {
        blocks.iter().map(|block| self.read_one(&block.place)).collect()
    }

    fn read_one(&self, place: &Place) -> Result<Bytes> {
        let place = match place {
            Place::Memory(bytes) => return Ok(bytes.clone()),
            Place::Spilled(place) => place,
        };
        if self.spill.owns(place) {
            return self.spill.read(place);
        }
        if let Some(segments) = self.segments.as_ref().filter(|segments| segments.owns(place)) {
            return segments.read(place);
        }
        let recovered = crate::edge::locked(&self.recovered).clone();
        if recovered.owns(place) {
            return recovered.read(place);
        }
        Err(Error::CorruptLog { what: format!("a block is in file {}, which is gone", place.file) })
    }

    /// Gives up the spilled blocks of a committed epoch.
    pub(super) fn release(&self, key: &EpochKey) {
        self.spill.release(key);
    }

    /// Removes the segment of a committed epoch; the driver removes those of others, too.
    pub(super) fn drop_epoch(&self, key: &EpochKey, all: bool) {
        let Some(segments) = &self.segments else { return };
        let dropped = if all { segments.drop_epoch_all(key) } else { segments.drop_epoch(key) };
        if let Err(error) = dropped {
            tracing::warn!(epoch = %key, %error, "a committed segment could not be removed");
        }
    }

    /// The checkpoint folder.
    pub(super) fn checkpoint_dir(&self) -> Option<&Path> {
        self.checkpoint_dir.as_deref()
    }
}
