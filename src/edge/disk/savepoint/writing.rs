//! Writing a savepoint, page by page.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;

use super::manifest::{Manifest, SavedRange, SavedState};
use super::{MANIFEST, file_name};
use crate::edge::disk::location::Location;
use crate::edge::disk::segment::store::{Gathering, Store};
use crate::edge::disk::segment::write_error;
use crate::edge::disk::state::pages::framed;
use crate::error::{Error, Result};
use crate::state::{KeyPrefix, Page};

/// The argument that says where it goes, for error messages.
const SETTING: &str = "path";

/// A savepoint that is being written; what is not finished is removed.
pub struct SavepointWriter {
    path: PathBuf,
    files: Box<dyn Gathering>,
    manifest: Manifest,
    /// Bytes of the state that is being written.
    end: u64,
    /// The key of its last entry.
    last: Option<KeyPrefix>,
}

impl fmt::Debug for SavepointWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("SavepointWriter");
        out.field("path", &self.path).field("manifest", &self.manifest).finish_non_exhaustive()
    }
}

impl SavepointWriter {
    /// Begins one of a query; `number` tells what is unfinished apart from what others write.
    ///
    /// # Errors
    /// [`Error::Config`] if there is something at the place already, or nothing can be made there; [`Error::DiskFull`].
    pub fn create(location: impl Into<Location>, query: &str, epoch: u64, number: u64) -> Result<Self> {
        let store = location.into().open(SETTING)?;
        Self::create_in(store.as_ref(), query, epoch, number)
    }

    /// As [`Self::create`], in what was opened.
    pub(in crate::edge::disk) fn create_in(
        store: &dyn Store,
        query: &str,
        epoch: u64,
        number: u64,
    ) -> Result<Self> {
        let path = store.root().to_owned();
        let files = store.gather(&path, number).map_err(|e| match failed(&path, &e) {
            Error::Io { message, .. } => Error::Config {
                setting: SETTING.into(),
                reason: format!("{} cannot be written: {message}", path.display()),
            },
            other => other,
        })?;
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let manifest = Manifest {
            query: query.to_owned(),
            epoch,
            made_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
            made_by: env!("CARGO_PKG_VERSION").to_owned(),
            states: Vec::new(),
        };
        Ok(Self { path, files, manifest, end: 0, last: None })
    }

    /// Begins the state of another operator.
    ///
    /// # Errors
    /// [`Error::DiskFull`]; [`Error::Io`].
    pub fn begin_state(&mut self, operator: &str, version: u64, catalog: Bytes) -> Result<()> {
        self.end_state();
        let name = file_name(self.files.number(), self.manifest.states.len());
        self.files.begin(&name).map_err(|e| failed(&self.path, &e))?;
        let (operator, now_ms) = (operator.to_owned(), i64::MIN);
        self.manifest.states.push(SavedState {
            operator,
            version,
            now_ms,
            catalog,
            bytes: 0,
            ranges: Vec::new(),
        });
        Ok(())
    }

    /// Adds a page of the state that was begun last; ranges come in order, pages of a range too.
    ///
    /// # Errors
    /// [`Error::DiskFull`]; [`Error::Io`]; [`Error::CorruptState`] for entries that make no sense; [`Error::Misuse`]
    /// if the page is of another version.
    pub fn push(&mut self, page: &Page) -> Result<()> {
        let misuse = |what: &str| Error::Misuse { what: what.to_owned() };
        let Some(state) = self.manifest.states.last_mut() else { return Err(misuse("a page of no state")) };
        if page.version.0 != Some(state.version) {
            return Err(misuse("a page of another version"));
        }
        state.now_ms = state.now_ms.max(page.now_ms);
        if page.entries.is_empty() {
            return Ok(());
        }
        if state.ranges.last().is_none_or(|last| last.range != page.range) {
            let (range, at) = (page.range, self.end);
            state.ranges.push(SavedRange { range, at, bytes: 0, keys: 0, entries: 0, timers: 0 });
            self.last = None;
        }
        let Some(range) = state.ranges.last_mut() else { return Err(misuse("a page of no range")) };
        for entry in page.entries.iter() {
            let key = entry?.key;
            range.entries += 1;
            range.timers += u64::from(key.expiry_ms().is_some());
            let prefix = key.prefix();
            if self.last.as_ref() != Some(&prefix) {
                range.keys += 1;
                self.last = Some(prefix);
            }
        }
        let bytes = framed(page);
        self.files.push(&bytes).map_err(|e| failed(&self.path, &e))?;
        self.end += bytes.len() as u64;
        range.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Bytes of the state that is being written.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.end
    }

    fn end_state(&mut self) {
        if let Some(state) = self.manifest.states.last_mut() {
            state.bytes = self.end;
        }
        (self.end, self.last) = (0, None);
    }

    /// Gives it its name: from now on it is there, whatever happens.
    ///
    /// # Errors
    /// [`Error::Config`] if there is something at the path by now; [`Error::DiskFull`]; [`Error::Io`], after which an
    /// object store may have all of it.
    pub fn finish(mut self) -> Result<Manifest> {
        self.end_state();
        let manifest = self.manifest.encode(self.files.number())?;
        self.files.finish(MANIFEST, &manifest).map_err(|e| failed(&self.path, &e))?;
        Ok(self.manifest)
    }
}

/// What it is that keeps a savepoint from being written.
fn failed(path: &Path, error: &io::Error) -> Error {
    if error.kind() != io::ErrorKind::AlreadyExists {
        return write_error(path, SETTING, error);
    }
    Error::Config {
        setting: SETTING.into(),
        reason: format!(
            "{} exists already: a savepoint has a folder of its own, which it makes",
            path.display()
        ),
    }
}
