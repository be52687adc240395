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

mod format;
mod names;
pub(in crate::edge::disk) mod pages;
mod rebuilding;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use self::format::{Head, Kind};
pub(in crate::edge::disk) use self::names::FOLDER;
pub(in crate::edge) use self::rebuilding::found_states;
use super::recovery::at_once;
use super::segment::claim::{self, Claim};
use super::segment::store::{Entry, Filling, Store};
use super::segment::{layout, write_error};
use crate::error::{Error, Result};
use crate::id::{AgentId, Epoch, EpochKey, Generation};
use crate::state::kept::{Base, Begun, Chain, Survey, Written};
use crate::state::{Delta, RangeSet, StateId, Version, View};

/// The setting whose path is written to, for error messages.
const SETTING: &str = "checkpoint_dir";

/// All states in a checkpoint folder.
pub(in crate::edge) struct StateFolder {
    store: Arc<dyn Store>,
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
    pub(in crate::edge) const fn new(store: Arc<dyn Store>, agent: AgentId) -> Self {
        Self { store, agent, written: AtomicU64::new(0) }
    }

    fn dir(&self, id: &StateId) -> PathBuf {
        names::state_dir(&layout::query_dir(self.store.root(), &id.query), id)
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
        match claim::newest(self.store.as_ref(), &key)? {
            Some(Claim { incarnation: newest, .. }) if newest > incarnation => Err(Error::Config {
                setting: SETTING.to_owned(),
                reason: format!(
                    "query {} in {} was taken over by an application that attached later; this one decides nothing \
                     more in it: stop one of the two",
                    id.query,
                    self.store.root().display()
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
        self.store.read(path).map_err(|e| unread(id, path, &e))
    }

    /// All that is there of a state, by the names of the files.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(in crate::edge) fn survey(&self, id: &StateId) -> Result<Survey> {
        let dir = self.dir(id);
        let failed = |dir: &Path, e: &io::Error| Error::io(format!("listing {}", dir.display()), e);
        let (mut survey, mut epochs) = (Survey::default(), Vec::new());
        for Entry { path, .. } in self.store.entries(&dir).map_err(|e| failed(&dir, &e))? {
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            if let Some(begun) = Begun::parse(name) {
                survey.begun.push(begun);
            } else if let Ok(epoch) = name.parse::<u64>() {
                epochs.push((epoch, path));
            }
        }
        let listed = at_once(self.store.readers(), &epochs, |(epoch, path)| {
            Ok((*epoch, self.store.entries(path).map_err(|e| failed(path, &e))?))
        })?;
        for (epoch, entries) in listed {
            for Entry { path, .. } in entries {
                let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
                if let Some(written) = Written::parse(name) {
                    survey.deltas.entry(epoch).or_default().push(written);
                } else if let Some(base) = Base::parse(name) {
                    survey.bases.entry(epoch).or_default().push(base);
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
        let path = self.dir(id).join(Begun { after, epoch }.to_string());
        match self.store.create(&path, id.to_string().as_bytes()) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            made => made.map_err(|e| write_error(&path, SETTING, &e)),
        }
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
        let due = match chain.epochs.last() {
            // Each task of an epoch tells that of its partition.
            Some((epoch, tasks)) => at_once(self.store.readers(), tasks, |written| {
                let path = self.dir(id).join(epoch.to_string()).join(written.to_string());
                Ok(self.open(id, path, Kind::Delta, *epoch)?.due_ms())
            })?,
            None => at_once(self.store.readers(), &chain.bases, |(epoch, base)| {
                Ok(self.base(id, *epoch, base)?.due_ms())
            })?,
        };
        Ok(due.into_iter().flatten().min())
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
            let files = self.store.entries(&path).map_err(|e| failed(&path, &e))?.into_iter();
            let doomed = files.map(|entry| entry.path).filter(|file| {
                let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
                // The bases of the last are what is gone on from.
                epoch < last || Base::parse(name).is_none()
            });
            let doomed: Vec<PathBuf> = doomed.collect();
            // Not in the background, for the same reason.
            at_once(self.store.writers(), &doomed, |file| {
                self.store.remove(file).map_err(|e| failed(file, &e))
            })?;
            let _in_use = self.store.discard(&[], &[path]);
        }
        Ok(())
    }

    /// Writes a file, which has its name when all of it is on disk; its bytes.
    fn write(&self, path: &Path, fill: impl Fn(&mut File) -> Result<()>) -> Result<u64> {
        let number = self.written.fetch_add(1, Ordering::Relaxed);
        let failed = |e: &io::Error| write_error(path, SETTING, e);
        let writer = format!("{:016x}-{number}", self.agent.0);
        let filling = self.store.fill(path, &writer).map_err(|e| failed(&e))?;
        let mut file = File { filling, failed: None };
        let filled = fill(&mut file);
        if let Some(e) = file.failed {
            return Err(failed(&e));
        }
        filled?;
        file.filling.finish().map_err(|e| failed(&e))
    }
}

/// A file that is being written.
struct File {
    filling: Box<dyn Filling>,
    failed: Option<io::Error>,
}

impl File {
    /// Appends bytes. What the system says is kept for whoever knows the path.
    fn push(&mut self, bytes: &[u8]) -> Result<()> {
        self.filling.push(bytes).map_err(|e| {
            let told = Error::io("writing state", &e);
            self.failed = Some(e);
            told
        })
    }
}

/// A store that is away has what it had: only what is gone, or cut off, or not what was written is lost.
fn unread(id: &StateId, path: &Path, error: &io::Error) -> Error {
    use io::ErrorKind::{InvalidData, NotFound, UnexpectedEof};
    match error.kind() {
        NotFound => damaged(id, path, "it is gone"),
        UnexpectedEof | InvalidData => damaged(id, path, &error.to_string()),
        _ => Error::io(format!("reading {}", path.display()), error),
    }
}

fn damaged(id: &StateId, path: &Path, why: &str) -> Error {
    Error::StateLost { state: id.to_string(), what: format!("{} cannot be read: {why}", path.display()) }
}
