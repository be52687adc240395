//! All of an agent's files behind one face: spill files, its segments, and recovered ones.

pub mod epochs;
pub mod inspection;
mod location;
pub mod pool;
pub mod recovery;
pub mod savepoint;
pub mod segment;
pub mod spill;
pub(super) mod state;
pub mod stored;

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::Builder;
use std::time::Duration;

use bytes::Bytes;

pub use self::location::Location;
use self::recovery::{RecoveredFiles, RecoveredTask, recover_claimed, recover_log};
use self::segment::claim::{self, Claim};
use self::segment::store::{self, Store};
use self::segment::{DiskWriter, FileSystem, Pending, RealDisk, SegmentRecord, alive, gone, layout, rubbish};
use self::spill::SpillDir;
use self::state::StateFolder;
use crate::agent::store::one_piece;
use crate::causal_log::{BlockRef, Place, SpillRef};
use crate::config::SessionConfig;
use crate::edge::progress::Progress;
use crate::error::{Error, Result};
use crate::id::{AgentId, EpochKey, Generation, LogOffset, TaskId};
use crate::state::Files;

/// What part of the time that workers wait for an answer an object store has for its own: one publish may wait for two
/// puts, its own and the one before, and for who looks whose the epoch is.
const STORE_SHARE: u32 = 4;

/// An agent's files.
pub(super) struct Disk {
    spill: Arc<SpillDir>,
    segments: Option<DiskWriter>,
    states: Option<StateFolder>,
    /// What `checkpoint_dir` names.
    store: Option<Arc<dyn Store>>,
    recovered: Mutex<RecoveredFiles>,
    /// Spark's id of the application, for whoever it takes an epoch over from, and its hash.
    app_id: String,
    app: u64,
    agent: AgentId,
    incarnation: AtomicU64,
}

/// One task's log in the checkpoint folder.
pub(super) struct Rescued {
    /// The newest attempt that wrote to it.
    pub(super) generation: Generation,
    blocks: Vec<BlockRef>,
    files: RecoveredFiles,
}

impl Rescued {
    /// Position after its last block.
    pub(super) fn end(&self) -> LogOffset {
        self.blocks.last().map_or(LogOffset::START, BlockRef::end)
    }

    /// One piece of it; nothing at its end.
    pub(super) fn piece(&self, from: LogOffset) -> Result<Vec<Bytes>> {
        let first = self.blocks.partition_point(|block| block.end() <= from);
        let rest = self.blocks.get(first..).unwrap_or_default();
        one_piece(rest).iter().map(|block| self.read(&block.place)).collect()
    }

    fn read(&self, place: &Place) -> Result<Bytes> {
        match place {
            Place::Memory(bytes) => Ok(bytes.clone()),
            Place::Spilled(place, _) => self.files.read(place),
        }
    }
}

impl Disk {
    pub(super) fn open(
        config: &SessionConfig,
        files: Arc<dyn FileSystem>,
        agent: AgentId,
        app: u64,
    ) -> Result<Self> {
        let root = config.spill_dir.as_ref().map_or_else(std::env::temp_dir, PathBuf::from);
        let (bytes, encrypt) = (config.disk_bytes, config.encrypt_spill);
        let spill = Arc::new(SpillDir::create_on(Arc::clone(&files), &root, bytes, encrypt)?);
        let patience = Duration::from_millis(config.io_timeout_ms) / STORE_SHARE;
        let open = |dir: &String| store::open(dir, &files, &config.storage_options, config.encrypt, patience);
        let store = config.checkpoint_dir.as_ref().map(open).transpose()?;
        let interval = Duration::from_millis(config.flush_interval_ms);
        let start = |store: &Arc<dyn Store>| DiskWriter::start_on(Arc::clone(store), (agent, app), interval);
        let segments = store.as_ref().map(start).transpose()?;
        let states = store.as_ref().map(|store| StateFolder::new(Arc::clone(store), agent));
        let (recovered, incarnation) = (Mutex::default(), AtomicU64::new(0));
        let app_id = config.app_id.clone();
        Ok(Self { spill, segments, states, store, recovered, app_id, app, agent, incarnation })
    }

    /// In the driver: the application's number among those that attached to the checkpoint folder.
    pub(super) fn attach(&self) -> Result<u64> {
        let Some(store) = &self.store else { return Ok(0) };
        store.check()?;
        let incarnation = claim::attach(store.as_ref(), &self.app_id)?;
        let store = Arc::clone(store);
        // Nobody waits for that: a store in which many epochs were may have thousands of names to be looked at.
        let pruning = Builder::new().name("clonos-prune".into()).spawn(move || {
            match rubbish::prune(store.as_ref(), rubbish::RUBBISH_AGE) {
                Ok(0) => {}
                Ok(files) => {
                    tracing::info!(files, root = %store.root().display(), "removed what nobody will ask for");
                }
                Err(error) => tracing::warn!(%error, "what nobody will ask for could not be removed"),
            }
        });
        if let Err(error) = pruning {
            tracing::warn!(%error, "what nobody will ask for could not be looked for");
        }
        Ok(incarnation)
    }

    /// Writes for this application from now on, and only in epochs that are that application's.
    pub(super) fn own(&self, incarnation: u64) {
        self.incarnation.store(incarnation, Ordering::Release);
        if let Some(segments) = &self.segments {
            segments.own(incarnation);
        }
    }

    /// In an executor's agent: others may go on without it.
    pub(super) fn may_die(&self) {
        if let Some(segments) = &self.segments {
            segments.may_die();
        }
    }

    /// Whether a sync has failed, or others have gone on without this agent: no segment is written any more.
    pub(super) fn has_failed(&self) -> bool {
        self.segments.as_ref().is_some_and(DiskWriter::has_failed)
    }

    /// In the driver: makes an epoch this application's. The number of its use, and the logs that were found,
    /// whose blocks can be read afterwards. `None` without a checkpoint folder.
    pub(super) fn take(&self, key: &EpochKey) -> Result<Option<(u64, Vec<RecoveredTask>)>> {
        let Some(store) = &self.store else { return Ok(None) };
        let incarnation = self.incarnation.load(Ordering::Acquire);
        let by = (self.app_id.as_str(), self.app);
        let claim = claim::take(store.as_ref(), key, incarnation, by)?;
        let used = claim.used;
        // Executions are never run again.
        if key.is_execution() {
            if let Err(error) = claim::renew(store.as_ref(), key, claim, &self.app_id) {
                // It is ours all the same, and tried again after a day.
                tracing::warn!(%error, "a claim may look as if nobody had it in some days");
            }
            return Ok(Some((used, Vec::new())));
        }
        let found = recover_claimed(store, key, used)?;
        crate::edge::locked(&self.recovered).extend(&found.files);
        Ok(Some((used, found.tasks)))
    }

    /// Finds one task's log in the checkpoint folder, whoever wrote it, and the newest attempt that did. Nothing more is
    /// acknowledged to writers that are dead, as `dead_among` says of some.
    pub(super) fn rescue(
        &self,
        task: &TaskId,
        dead_among: impl FnOnce(Vec<AgentId>) -> Result<Vec<AgentId>>,
    ) -> Result<Option<Rescued>> {
        let Some(store) = &self.store else { return Ok(None) };
        let key = task.epoch_key();
        let Some(Claim { used, .. }) = claim::newest(store.as_ref(), &key)? else { return Ok(None) };
        let files = layout::files_of(store.as_ref(), &key, used, self.app);
        let files = files.map_err(|e| Error::io(format!("listing what was written in {key}"), &e))?;
        let writers: HashSet<AgentId> =
            files.iter().map(|(by, _)| *by).filter(|by| *by != self.agent).collect();
        let dead = if writers.is_empty() { Vec::new() } else { dead_among(writers.into_iter().collect())? };
        alive::end(store.as_ref(), self.incarnation(), &dead)?;
        gone::note(store.as_ref(), files.iter().filter(|(by, _)| dead.contains(by)).map(|(_, file)| file))?;
        let found = recover_log(store, task, used)?;
        let log = found.tasks.into_iter().find(|log| !log.blocks.is_empty());
        let rescued = |log: RecoveredTask| {
            let RecoveredTask { generation, blocks, .. } = log;
            Rescued { generation, blocks, files: found.files }
        };
        Ok(log.map(rescued))
    }

    /// In the driver: nothing more is acknowledged to agents that are dead, and what said that they live goes.
    pub(super) fn bury(&self, dead: &[AgentId]) -> Result<()> {
        let Some(store) = self.store.as_ref().filter(|_| !dead.is_empty()) else { return Ok(()) };
        alive::end(store.as_ref(), self.incarnation(), dead)
    }

    /// Whether any application has an epoch in the checkpoint folder.
    pub(super) fn is_claimed(&self, key: &EpochKey) -> Result<bool> {
        let Some(store) = &self.store else { return Ok(false) };
        Ok(claim::newest(store.as_ref(), key)?.is_some())
    }

    /// Whether this application has this use of an epoch.
    pub(super) fn has_claimed(&self, key: &EpochKey, used: u64) -> Result<bool> {
        let Some(store) = &self.store else { return Ok(false) };
        let incarnation = self.incarnation.load(Ordering::Acquire);
        Ok(claim::newest(store.as_ref(), key)?.is_some_and(|newest| newest == Claim { incarnation, used }))
    }

    /// Whether there is a checkpoint folder.
    pub(super) const fn has_segments(&self) -> bool {
        self.segments.is_some()
    }

    /// Queues a block for this agent's segment of one use of an epoch.
    pub(super) fn submit(&self, record: SegmentRecord, used: u64) -> Option<Pending> {
        self.segments.as_ref().map(|segments| segments.submit_of(record, used))
    }

    /// Spills blocks of one epoch.
    pub(super) fn spill(&self, key: &EpochKey, blocks: &[Bytes]) -> Result<Vec<SpillRef>> {
        self.spill.write(key, blocks)
    }

    /// Keyed state in the checkpoint folder, if there is one.
    pub(super) const fn states(&self) -> Option<&StateFolder> {
        self.states.as_ref()
    }

    /// The application's number among those that attached to the checkpoint folder.
    pub(super) fn incarnation(&self) -> u64 {
        self.incarnation.load(Ordering::Acquire)
    }

    /// Where runs of keyed state go that do not fit into memory.
    pub(super) fn state_files(&self) -> Arc<dyn Files> {
        Arc::new(spill::RunFiles::new(Arc::clone(&self.spill)))
    }

    /// Takes in rows of many logs, to be found again.
    pub(super) fn pool(&self) -> Result<pool::Builder> {
        pool::Builder::new(&self.spill)
    }

    /// The bytes of blocks, wherever they are.
    pub(super) fn read(&self, blocks: &[BlockRef]) -> Result<Vec<Bytes>> {
        blocks.iter().map(|block| self.read_one(&block.place)).collect()
    }

    fn read_one(&self, place: &Place) -> Result<Bytes> {
        Progress::step();
        let place = match place {
            Place::Memory(bytes) => return Ok(bytes.clone()),
            Place::Spilled(place, _) => place,
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

    /// An epoch is committed: what was recorded of it has generations below `below`.
    pub(super) fn over(&self, key: &EpochKey, below: Generation) {
        if let Some(segments) = &self.segments {
            segments.over(key, below);
        }
    }

    /// Removes this agent's segment of a committed epoch, or with `everybodys` those of all in that use of the
    /// epoch, while others go on: a beat or the next epoch's first task would wait for a slow disk here. What is written
    /// after this is written after it is gone. What cannot be removed is no loss.
    pub(super) fn drop_epoch(&self, key: &EpochKey, everybodys: Option<u64>) {
        if let Some(segments) = &self.segments {
            segments.drop_epoch_later(key, everybodys);
        }
    }

    /// In the driver: an epoch is committed, for ever, when this returns.
    pub(super) fn commit(&self, key: &EpochKey, used: u64) -> Result<()> {
        let Some(store) = &self.store else { return Ok(()) };
        if key.is_claimed_alone() {
            let incarnation = self.incarnation.load(Ordering::Acquire);
            claim::give_up(store.as_ref(), key, Claim { incarnation, used })?;
            // Nobody claims what is left of it.
            let _rubbish = self.remove_all(key, used);
            return Ok(());
        }
        self.remove_all(key, used)
    }

    fn remove_all(&self, key: &EpochKey, used: u64) -> Result<()> {
        self.segments.as_ref().map_or(Ok(()), |segments| segments.drop_epoch_all(key, used))
    }
}

/// Tries what `checkpoint_dir` would name; how long a put takes there.
///
/// # Errors
/// [`Error::Config`] for what names nothing, or does not keep what is needed; [`Error::Io`].
pub fn try_checkpoint(
    checkpoint_dir: &str,
    options: &BTreeMap<String, String>,
    encrypt: bool,
    patience: Duration,
) -> Result<Duration> {
    let files: Arc<dyn FileSystem> = Arc::new(RealDisk);
    store::open(checkpoint_dir, &files, options, encrypt, patience)?.check()
}
