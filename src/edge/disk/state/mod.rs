//! Keyed state in the checkpoint folder: what is found there by an application that knows nothing else.
//!
//! ```text
//! <query>/state/<operator>/<generation>-<epoch>.begun     where an application went on
//!                          <epoch>/…delta                 what one task decided in an epoch
//!                          <epoch>/…base                  ranges, as they were at the end of one
//! ```
//!
//! A file has its name when all of it is on disk. The name of a delta tells the attempt, so the application too; the
//! partition and how many there were; and the version that was read. Of an epoch the newest attempt of each partition
//! counts, as many as the newest of all says there are. Whoever begins to use a state first notes where it goes on:
//! what older attempts have written in that epoch or later, whenever they do, counts for nobody from then on.

mod chain;
mod format;
mod names;
pub(in crate::edge::disk) mod pages;
mod rebuilding;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

pub(in crate::edge) use self::chain::{Chain, Survey};
use self::format::{Head, Kind};
use self::names::{Base, Begun, Written};
pub(in crate::edge) use self::rebuilding::found_states;
use super::segment::claim::{self, Claim};
use super::segment::{Disk, RawFile, RealDisk, layout, write_error};
use crate::error::{Error, Result};
use crate::id::{AgentId, Epoch, EpochKey, Generation};
use crate::state::{Delta, RangeSet, StateId, Version, View};

/// The setting whose path is written to, for error messages.
const SETTING: &str = "checkpoint_dir";
/// Ending of the name of a file that is being written.
const UNFINISHED: &str = "unfinished";

/// All states in a checkpoint folder.
pub(in crate::edge) struct StateFolder {
    root: PathBuf,
    /// Who writes, for names that nobody else uses.
    agent: AgentId,
    written: AtomicU64,
}

/// A delta that is to be kept, and whose it is.
#[derive(Debug, Clone, Copy)]
pub(in crate::edge) struct Kept<'a> {
    pub(in crate::edge) id: &'a StateId,
    pub(in crate::edge) epoch: u64,
    pub(in crate::edge) partition: u32,
    pub(in crate::edge) partitions: u32,
    pub(in crate::edge) generation: Generation,
    pub(in crate::edge) base: Version,
    /// When the first timer of the task's partition is due after it.
    pub(in crate::edge) due_ms: Option<i64>,
}

impl StateFolder {
    pub(in crate::edge) fn new(root: &Path, agent: AgentId) -> Self {
        Self { root: root.to_owned(), agent, written: AtomicU64::new(0) }
    }

    fn dir(&self, id: &StateId) -> PathBuf {
        names::state_dir(&layout::query_dir(&self.root, &id.query), id)
    }

    /// For messages.
    pub(in crate::edge) fn place(&self, id: &StateId) -> String {
        self.dir(id).display().to_string()
    }

    /// Keeps a task's delta: it is on disk when this returns, and its query is this application's.
    ///
    /// # Errors
    /// [`Error::Config`] if a newer application has claimed the query; [`Error::DiskFull`]; [`Error::Io`].
    pub(in crate::edge) fn keep(&self, incarnation: u64, kept: &Kept<'_>, delta: &Bytes) -> Result<()> {
        let name = Written {
            generation: kept.generation,
            partition: kept.partition,
            partitions: kept.partitions,
            base: kept.base,
        };
        let path = self.dir(kept.id).join(kept.epoch.to_string()).join(name.to_string());
        let head = Head::of_delta(kept.id, kept.epoch, kept.due_ms);
        self.write(&path, |file| {
            file.push(&head.encode()?)?;
            file.push(delta)
        })?;
        self.check_claim(kept.id, incarnation)
    }

    /// That the query is still this application's: what is written under a newer one's eyes is not acknowledged, and
    /// nothing is removed there.
    fn check_claim(&self, id: &StateId, incarnation: u64) -> Result<()> {
        let key = EpochKey { query: id.query.clone(), epoch: Epoch::Batch(0) };
        match claim::newest(&self.root, &key)? {
            Some(Claim { incarnation: newest, .. }) if newest > incarnation => Err(Error::Config {
                setting: SETTING.to_owned(),
                reason: format!(
                    "query {} in {} was taken over by an application that attached later; this one decides nothing \
                     more in it: stop one of the two",
                    id.query,
                    self.root.display()
                ),
            }),
            _ => Ok(()),
        }
    }

    /// Reads a delta that is kept.
    ///
    /// # Errors
    /// [`Error::StateLost`] if it is not there, or damaged; [`Error::Io`].
    pub(in crate::edge) fn delta(&self, id: &StateId, epoch: u64, name: &Written) -> Result<Delta> {
        let path = self.dir(id).join(epoch.to_string()).join(name.to_string());
        let bytes = self.read(id, &path)?;
        let body = format::body(&bytes, Kind::Delta, id, epoch).map_err(|why| damaged(id, &path, &why))?;
        Delta::decode(&body).map_err(|why| damaged(id, &path, &why.to_string()))
    }

    fn read(&self, id: &StateId, path: &Path) -> Result<Bytes> {
        match fs::read(path) {
            Ok(bytes) => Ok(bytes.into()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Err(damaged(id, path, "it is gone")),
            Err(e) => Err(Error::io(format!("reading {}", path.display()), &e)),
        }
    }

    /// All that is there of a state, by the names of the files.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(in crate::edge) fn survey(&self, id: &StateId) -> Result<Survey> {
        let dir = self.dir(id);
        let failed = |dir: &Path, e: &io::Error| Error::io(format!("listing {}", dir.display()), e);
        let mut survey = Survey::default();
        for path in layout::entries(&dir).map_err(|e| failed(&dir, &e))? {
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            if let Some(begun) = Begun::parse(name) {
                survey.begun.push(begun);
            } else if let Ok(epoch) = name.parse() {
                for path in layout::entries(&path).map_err(|e| failed(&path, &e))? {
                    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
                    if let Some(written) = Written::parse(name) {
                        survey.deltas.entry(epoch).or_default().push(written);
                    } else if let Some(base) = Base::parse(name) {
                        survey.bases.entry(epoch).or_default().push(base);
                    }
                }
            }
        }
        Ok(survey)
    }

    /// Notes that a state goes on with an epoch: of that and of later ones, what attempts up to this one have written
    /// counts no more.
    ///
    /// # Errors
    /// [`Error::DiskFull`]; [`Error::Io`].
    pub(in crate::edge) fn begin(&self, id: &StateId, after: Generation, epoch: u64) -> Result<()> {
        let dir = self.dir(id);
        let path = dir.join(Begun { after, epoch }.to_string());
        let made = layout::in_dir(&RealDisk, &self.root, &dir, || {
            match claim::create(&RealDisk, &path, &id.to_string()) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
                created => created,
            }
        });
        made.map_err(|e| write_error(&path, SETTING, &e))
    }

    /// What the operator said of its variables, as the newest file of a chain has it.
    ///
    /// # Errors
    /// As [`Self::delta`].
    pub(in crate::edge) fn catalog(&self, id: &StateId, chain: &Chain) -> Result<Bytes> {
        for (epoch, tasks) in chain.epochs.iter().rev() {
            for written in tasks {
                let catalog = self.delta(id, *epoch, written)?.catalog;
                if !catalog.is_empty() {
                    return Ok(catalog);
                }
            }
        }
        for (epoch, base) in chain.bases.iter().rev() {
            let catalog = self.base(id, *epoch, base)?.catalog().clone();
            if !catalog.is_empty() {
                return Ok(catalog);
            }
        }
        Ok(Bytes::new())
    }

    /// When the first timer of a chain's version is due.
    ///
    /// # Errors
    /// As [`Self::delta`].
    pub(in crate::edge) fn first_due(&self, id: &StateId, chain: &Chain) -> Result<Option<i64>> {
        let mut least: Option<i64> = None;
        let mut note = |due_ms: Option<i64>| least = least.into_iter().chain(due_ms).min();
        match chain.epochs.last() {
            // Each task of an epoch tells that of its partition.
            Some((epoch, tasks)) => {
                for written in tasks {
                    let path = self.dir(id).join(epoch.to_string()).join(written.to_string());
                    note(pages::open(id, path, Kind::Delta, *epoch)?.due_ms());
                }
            }
            None => {
                for (epoch, base) in &chain.bases {
                    note(self.base(id, *epoch, base)?.due_ms());
                }
            }
        }
        Ok(least)
    }

    /// Writes ranges as they are; how many bytes that took.
    ///
    /// # Errors
    /// [`Error::Config`] if a newer application has claimed the query; [`Error::DiskFull`]; [`Error::Io`]; whatever
    /// keeps them from being read.
    pub(in crate::edge) fn write_base(
        &self,
        incarnation: u64,
        id: &StateId,
        after: Generation,
        ranges: &RangeSet,
        view: &View,
    ) -> Result<u64> {
        let Version(Some(epoch)) = view.version() else { return Ok(0) };
        self.check_claim(id, incarnation)?;
        let path = self.dir(id).join(epoch.to_string()).join(Base { after, ranges: *ranges }.to_string());
        self.write(&path, |file| pages::write(file, id, epoch, ranges, view))
    }

    /// Removes what nobody can go back to any more, if `epochs` are kept.
    ///
    /// # Errors
    /// [`Error::Config`] if a newer application has claimed the query: it may have gone back further; [`Error::Io`].
    pub(in crate::edge) fn prune(
        &self,
        incarnation: u64,
        id: &StateId,
        version: u64,
        epochs: u64,
    ) -> Result<()> {
        let survey = self.survey(id)?;
        let Some(last) = survey.superfluous(version.saturating_sub(epochs.saturating_sub(1))) else {
            return Ok(());
        };
        let dir = self.dir(id);
        let failed = |path: &Path, e: &io::Error| Error::io(format!("removing {}", path.display()), e);
        let known: BTreeSet<u64> = survey.deltas.keys().chain(survey.bases.keys()).copied().collect();
        for epoch in known.into_iter().filter(|epoch| *epoch <= last) {
            let path = dir.join(epoch.to_string());
            // Each time: this process may have been stopped since the last.
            self.check_claim(id, incarnation)?;
            for file in layout::entries(&path).map_err(|e| failed(&path, &e))? {
                let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
                // The bases of the last are what is gone on from.
                if epoch < last || Base::parse(name).is_none() {
                    RealDisk.remove(&file).map_err(|e| failed(&file, &e))?;
                }
            }
            let _in_use = fs::remove_dir(&path);
        }
        Ok(())
    }

    /// Writes a file, which has its name when all of it is on disk; its bytes.
    fn write(&self, path: &Path, fill: impl Fn(&mut Filling) -> Result<()>) -> Result<u64> {
        let dir = path.parent().unwrap_or(&self.root);
        let number = self.written.fetch_add(1, Ordering::Relaxed);
        let unfinished = dir.join(format!("{:016x}-{number}.{UNFINISHED}", self.agent.0));
        let failed = |e: &io::Error| write_error(path, SETTING, e);
        let create = || RealDisk.create(&unfinished, 0o666);
        let raw = layout::in_dir(&RealDisk, &self.root, dir, create).map_err(|e| failed(&e))?;
        let mut file = Filling { raw, end: 0, failed: None };
        let filled = fill(&mut file);
        if filled.is_err() {
            let _rubbish = RealDisk.remove(&unfinished);
        }
        if let Some(e) = file.failed.take() {
            return Err(failed(&e));
        }
        filled?;
        let named = || {
            file.raw.sync()?;
            fs::rename(&unfinished, path)?;
            RealDisk.sync_dir(dir)
        };
        named().map_err(|e| failed(&e))?;
        Ok(file.end)
    }
}

/// A file that is being written.
struct Filling {
    raw: Arc<dyn RawFile>,
    end: u64,
    failed: Option<io::Error>,
}

impl Filling {
    /// Appends bytes. What the system says is kept for whoever knows the path.
    fn push(&mut self, bytes: &[u8]) -> Result<()> {
        match self.raw.write_at(&mut [IoSlice::new(bytes)], self.end) {
            Ok(()) => {
                self.end += bytes.len() as u64;
                Ok(())
            }
            Err(e) => {
                let told = Error::io("writing state", &e);
                self.failed = Some(e);
                Err(told)
            }
        }
    }
}

fn damaged(id: &StateId, path: &Path, why: &str) -> Error {
    Error::StateLost { state: id.to_string(), what: format!("{} cannot be read: {why}", path.display()) }
}
