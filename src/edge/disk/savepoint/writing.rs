//! Writing a savepoint, page by page.

use std::fmt;
use std::fs;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;

use super::manifest::{Manifest, SavedRange, SavedState};
use super::{MANIFEST, UNFINISHED, file_name};
use crate::edge::disk::segment::{Disk, RawFile, RealDisk, write_error};
use crate::edge::disk::state::pages::framed;
use crate::error::{Error, Result};
use crate::state::{KeyPrefix, Page};

/// The argument that says where it goes, for error messages.
const SETTING: &str = "path";

/// A savepoint that is being written; what is not finished is removed.
pub struct SavepointWriter {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    unfinished: PathBuf,
    /// Folders above it that were not there.
    made: usize,
    manifest: Manifest,
    file: Option<Filling>,
    is_done: bool,
}

/// The file of a state, which is being written.
struct Filling {
    path: PathBuf,
    raw: Arc<dyn RawFile>,
    end: u64,
    /// The key of the last entry.
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
    /// [`Error::Config`] if there is something at the path already, or nothing can be made there; [`Error::DiskFull`].
    pub fn create(path: &Path, query: &str, epoch: u64, number: u64) -> Result<Self> {
        Self::create_on(Arc::new(RealDisk), path, query, epoch, number)
    }

    /// As [`Self::create`], on a given file system.
    pub(super) fn create_on(
        disk: Arc<dyn Disk>,
        path: &Path,
        query: &str,
        epoch: u64,
        number: u64,
    ) -> Result<Self> {
        let refuse = |reason: String| Error::Config { setting: SETTING.into(), reason };
        check_free(path)?;
        let name =
            path.file_name().ok_or_else(|| refuse(format!("{} is no folder's name", path.display())))?;
        let unfinished =
            path.with_file_name(format!("{}.{number:016x}.{UNFINISHED}", name.to_string_lossy()));
        let made = above(path).take_while(|folder| !folder.exists()).count();
        fs::create_dir_all(&unfinished).map_err(|e| match write_error(path, SETTING, &e) {
            Error::Io { message, .. } => refuse(format!("{} cannot be written: {message}", path.display())),
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
        Ok(Self { disk, path: path.to_owned(), unfinished, made, manifest, file: None, is_done: false })
    }

    /// Begins the state of another operator.
    ///
    /// # Errors
    /// [`Error::DiskFull`]; [`Error::Io`].
    pub fn begin_state(&mut self, operator: &str, version: u64, catalog: Bytes) -> Result<()> {
        self.end_state()?;
        let path = self.unfinished.join(file_name(self.manifest.states.len()));
        let raw = self.disk.create(&path, 0o666).map_err(|e| write_error(&path, SETTING, &e))?;
        self.file = Some(Filling { path, raw, end: 0, last: None });
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
        let (Some(file), Some(state)) = (&mut self.file, self.manifest.states.last_mut()) else {
            return Err(misuse("a page of no state"));
        };
        if page.version.0 != Some(state.version) {
            return Err(misuse("a page of another version"));
        }
        state.now_ms = state.now_ms.max(page.now_ms);
        if page.entries.is_empty() {
            return Ok(());
        }
        if state.ranges.last().is_none_or(|last| last.range != page.range) {
            let (range, at) = (page.range, file.end);
            state.ranges.push(SavedRange { range, at, bytes: 0, keys: 0, entries: 0, timers: 0 });
            file.last = None;
        }
        let Some(range) = state.ranges.last_mut() else { return Err(misuse("a page of no range")) };
        for entry in page.entries.iter() {
            let key = entry?.key;
            range.entries += 1;
            range.timers += u64::from(key.expiry_ms().is_some());
            let prefix = key.prefix();
            if file.last.as_ref() != Some(&prefix) {
                range.keys += 1;
                file.last = Some(prefix);
            }
        }
        let bytes = framed(page);
        let written = file.raw.write_at(&mut [IoSlice::new(&bytes)], file.end);
        written.map_err(|e| write_error(&file.path, SETTING, &e))?;
        file.end += bytes.len() as u64;
        range.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Bytes of the state that is being written.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.file.as_ref().map_or(0, |file| file.end)
    }

    fn end_state(&mut self) -> Result<()> {
        let Some(file) = self.file.take() else { return Ok(()) };
        if let Some(state) = self.manifest.states.last_mut() {
            state.bytes = file.end;
        }
        file.raw.sync().map_err(|e| write_error(&file.path, SETTING, &e))
    }

    /// Gives it its name: from now on it is there, whatever happens.
    ///
    /// # Errors
    /// [`Error::Config`] if there is something at the path by now; [`Error::DiskFull`]; [`Error::Io`].
    pub fn finish(mut self) -> Result<Manifest> {
        self.end_state()?;
        let failed = |e: &io::Error| write_error(&self.path, SETTING, e);
        let manifest = self.unfinished.join(MANIFEST);
        let raw = self.disk.create(&manifest, 0o666).map_err(|e| failed(&e))?;
        raw.write_at(&mut [IoSlice::new(&self.manifest.encode()?)], 0).map_err(|e| failed(&e))?;
        raw.sync().map_err(|e| failed(&e))?;
        self.disk.sync_dir(&self.unfinished).map_err(|e| failed(&e))?;
        check_free(&self.path)?;
        fs::rename(&self.unfinished, &self.path).map_err(|e| failed(&e))?;
        self.is_done = true;
        for folder in above(&self.path).take(self.made + 1) {
            self.disk.sync_dir(folder).map_err(|e| failed(&e))?;
        }
        Ok(self.manifest.clone())
    }
}

impl Drop for SavepointWriter {
    fn drop(&mut self) {
        if !self.is_done {
            let _rubbish = fs::remove_dir_all(&self.unfinished);
        }
    }
}

/// The folders above a path, the nearest first.
fn above(path: &Path) -> impl Iterator<Item = &Path> {
    let here = |folder: &Path| folder.as_os_str().is_empty();
    path.ancestors().skip(1).map(move |folder| if here(folder) { Path::new(".") } else { folder })
}

/// That nothing is at a path.
fn check_free(path: &Path) -> Result<()> {
    let reason = match fs::symlink_metadata(path) {
        Ok(_) => {
            format!("{} exists already: a savepoint has a folder of its own, which it makes", path.display())
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => format!("{} cannot be written: {e}", path.display()),
    };
    Err(Error::Config { setting: SETTING.into(), reason })
}
