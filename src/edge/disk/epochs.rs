//! Epochs that were not committed, as a checkpoint has them: looked at, and dropped when nobody will run them again.

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::UNIX_EPOCH;

use serde::Serialize;

use super::location::Location;
use super::recovery::at_once;
use super::segment::claim::is_claim;
use super::segment::gone;
use super::segment::layout::{app_of, folders_in, is_draft, segments_in};
use super::segment::rubbish::is_query;
use super::segment::seal::is_seal;
use super::segment::store::{Entry, Store};
use super::segment::{SETTING, SegmentScan};
use crate::edge::locked;
use crate::error::{Error, Result};

/// An epoch that was not committed, as its segments tell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EpochFiles {
    /// `query/epoch`; the names of its folders, if no segment says it.
    pub name: String,
    /// Where its segments are.
    pub folder: PathBuf,
    /// Files, or objects, of its segments.
    pub files: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// When the newest was written, in milliseconds since 1970.
    pub written_ms: u64,
    /// Hashes of the applications that wrote.
    pub applications: BTreeSet<String>,
}

/// The epochs of a checkpoint.
#[derive(Debug)]
pub struct Epochs {
    store: Arc<dyn Store>,
    /// Claims that there were, by folder, when it was looked at: whoever makes another one keeps the epoch.
    seen: Mutex<HashMap<PathBuf, BTreeSet<PathBuf>>>,
}

impl Epochs {
    /// Those of a `checkpoint_dir`; `setting` is what named it.
    ///
    /// # Errors
    /// [`Error::Config`] for a folder that is not there, and a URL that names nothing.
    pub fn open(location: &Location, setting: &str) -> Result<Self> {
        if location.url().is_none() && !location.path().is_dir() {
            return Err(Error::Config {
                setting: setting.to_owned(),
                reason: format!("{location} is no folder: give the checkpoint_dir of a session"),
            });
        }
        Ok(Self { store: location.open(setting)?, seen: Mutex::default() })
    }

    /// All of them, those that were written longest ago first.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn list(&self) -> Result<Vec<EpochFiles>> {
        let store = self.store.as_ref();
        let (mut folders, mut seen) = (Vec::new(), HashMap::new());
        for query in self.listed(store.root(), folders_in)?.into_iter().filter(|query| is_query(query)) {
            let epochs = self.listed(&query, folders_in)?;
            for dir in epochs.iter().chain([&query]) {
                seen.insert(dir.clone(), self.listed(dir, claims_in)?);
            }
            folders.extend(epochs);
        }
        *locked(&self.seen) = seen;
        let found = at_once(store.readers(), &folders, |folder| self.look_at(folder))?;
        let mut found: Vec<EpochFiles> = found.into_iter().flatten().collect();
        found.sort_by(|one, other| (one.written_ms, &one.folder).cmp(&(other.written_ms, &other.folder)));
        Ok(found)
    }

    fn listed<T>(&self, dir: &Path, list: impl Fn(&dyn Store, &Path) -> io::Result<T>) -> Result<T> {
        list(self.store.as_ref(), dir).map_err(|e| Error::io(format!("listing {}", dir.display()), &e))
    }

    /// The epoch of a folder; none if it has no segments, or no longer.
    fn look_at(&self, folder: &Path) -> Result<Option<EpochFiles>> {
        let mut segments = Vec::new();
        for path in self.listed(folder, segments_in)? {
            let measured = self.store.measure(&path);
            let measured =
                measured.map_err(|e| Error::io(format!("looking at segment {}", path.display()), &e))?;
            // An agent removes what is committed at any time.
            segments.extend(measured.map(|measured| (path, measured)));
        }
        // The shortest is enough to know whose they all are.
        let Some((shortest, _)) = segments.iter().min_by_key(|(_, measured)| measured.bytes) else {
            return Ok(None);
        };
        let newest = segments.iter().map(|(_, measured)| measured.modified).max().unwrap_or(UNIX_EPOCH);
        let since = newest.duration_since(UNIX_EPOCH).unwrap_or_default();
        let names: Vec<_> = folder.strip_prefix(self.store.root()).unwrap_or(folder).iter().collect();
        let named = || names.iter().map(|name| name.to_string_lossy()).collect::<Vec<_>>().join("/");
        Ok(Some(EpochFiles {
            name: self.key_of(shortest).unwrap_or_else(named),
            folder: folder.to_owned(),
            files: segments.iter().map(|(_, measured)| measured.files).sum(),
            bytes: segments.iter().map(|(_, measured)| measured.bytes).sum(),
            written_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
            applications: segments.iter().filter_map(|(path, _)| app_of(path)).map(str::to_owned).collect(),
        }))
    }

    /// What a segment begins with says whose it is; none if it cannot be read.
    fn key_of(&self, path: &Path) -> Option<String> {
        let segment = self.store.segment(path).ok()??;
        let first = *segment.ends.first()?;
        let mut key = None;
        let scanned = self.store.scan(&segment, Some(first), &mut |piece| {
            let scan = SegmentScan::over(piece)?;
            key = scan.header().map(|header| format!("{}/{}", header.query, header.epoch));
            Ok(())
        });
        scanned.ok().and(key)
    }

    /// Drops an epoch, by the folder that [`Self::list`] gave: its claims first, as what is left without one counts for
    /// nothing. The claims of a query go with the last that there is of it.
    ///
    /// # Errors
    /// [`Error::Misuse`] for another folder; [`Error::Config`] if an application claims it meanwhile, which keeps what it
    /// finds; [`Error::Io`]: some of it may be there still, and is listed again.
    pub fn drop_epoch(&self, folder: &Path) -> Result<()> {
        let store = self.store.as_ref();
        let query = folder.parent().filter(|query| query.parent() == Some(store.root()) && is_query(query));
        let query = query.ok_or_else(|| Error::Misuse {
            what: format!("{} is no epoch's folder in {}", folder.display(), store.root().display()),
        })?;
        let failed = |e: io::Error| Error::io(format!("dropping {}", folder.display()), &e);
        let beside = store.entries(query).map_err(failed)?;
        let goes_too = |path: &PathBuf| is_claim(path) || is_seal(path) || is_draft(path);
        let is_last = beside.iter().all(|Entry { path, .. }| path == folder || goes_too(path));
        let dirs = if is_last { vec![folder, query] } else { vec![folder] };
        // Those that are written from now on are of another use of the name.
        let segments = segments_in(store, folder).map_err(failed)?;
        for dir in &dirs {
            self.check_seen(dir, folder)?;
        }
        let seals = self.give_up(&dirs).map_err(failed)?;
        for dir in &dirs {
            if !claims_in(store, dir).map_err(failed)?.is_empty() {
                return Err(claimed(folder));
            }
        }
        let removed = segments.iter().try_for_each(|segment| store.remove_segment(segment));
        let said = removed.and_then(|()| gone::ends_in(store, folder)).map_err(failed)?;
        said.iter().chain(&seals).try_for_each(|file| store.remove(file)).map_err(failed)?;
        let dirs: Vec<PathBuf> = dirs.into_iter().map(Path::to_owned).collect();
        store.discard(&[], &dirs).map_err(failed)
    }

    /// Checks that nobody has claimed what is in a folder since it was listed.
    fn check_seen(&self, dir: &Path, folder: &Path) -> Result<()> {
        let Some(seen) = locked(&self.seen).get(dir).cloned() else { return Ok(()) };
        let now = self.listed(dir, claims_in)?;
        if now.is_subset(&seen) { Ok(()) } else { Err(claimed(folder)) }
    }

    /// Gives up all claims in folders; the seals that go with them.
    fn give_up(&self, dirs: &[&Path]) -> io::Result<Vec<PathBuf>> {
        let store = self.store.as_ref();
        let mut seals = Vec::new();
        for dir in dirs {
            // In the order of their names, so that no older one counts when a newer is gone.
            for Entry { path, .. } in store.entries(dir)? {
                if is_claim(&path) {
                    store.give_up(&path)?;
                } else if is_seal(&path) || is_draft(&path) {
                    seals.push(path);
                }
            }
            settled(store.settle(dir))?;
        }
        Ok(seals)
    }
}

/// Claims on what is in a folder; none if it is gone.
fn claims_in(store: &dyn Store, dir: &Path) -> io::Result<BTreeSet<PathBuf>> {
    match store.entries(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(BTreeSet::new()),
        entries => Ok(entries?.into_iter().map(|entry| entry.path).filter(|path| is_claim(path)).collect()),
    }
}

fn claimed(folder: &Path) -> Error {
    let reason = format!("{} was claimed by an application just now: it stays", folder.display());
    Error::Config { setting: SETTING.to_owned(), reason }
}

/// A folder that is gone needs no more to be settled.
fn settled(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}
