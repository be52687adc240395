//! What there is at a place, to be shown to people: segments, savepoints, keyed state.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::location::Location;
use super::recovery::{SegmentReport, report_of};
use super::savepoint::{MAGIC, MANIFEST, Savepoint};
use super::segment::layout::is_segment;
use super::segment::rubbish::is_query;
use super::segment::store::{Entry, Store, UNFINISHED};
use super::state;
use super::stored::Stored;
use crate::error::Result;

/// How deep below a place folders are looked into: a checkpoint has its segments three levels below.
const DEPTH: usize = 8;

/// What was found at a place, and below it.
#[derive(Debug)]
pub struct Inspection {
    store: Arc<dyn Store>,
    setting: String,
    /// Segments, in the order of their names.
    pub segments: Vec<PathBuf>,
    /// Folders of savepoints.
    pub savepoints: Vec<PathBuf>,
    /// Whether it is a checkpoint in which there is keyed state.
    pub has_state: bool,
    /// Folders that could not be looked into, and why.
    pub problems: Vec<String>,
}

impl Inspection {
    /// Looks for what there is; `setting` is what named the place, which may be a segment.
    ///
    /// # Errors
    /// [`crate::error::Error::Config`] for a URL that names nothing.
    pub fn open(location: &Location, setting: &str) -> Result<Self> {
        let store = location.open(setting)?;
        // Also one that is not there: the command is told so.
        if location.url().is_none() && !location.path().is_dir() || is_segment(store.root()) {
            let segments = vec![store.root().to_owned()];
            return Ok(Self { segments, ..Self::nothing(store, setting) });
        }
        Ok(Self::over(store, setting))
    }

    /// As [`Self::open`], in what was opened.
    pub(in crate::edge::disk) fn over(store: Arc<dyn Store>, setting: &str) -> Self {
        let root = store.root().to_owned();
        let mut found = Self::nothing(store, setting);
        found.look_into(&root, DEPTH);
        found
    }

    fn nothing(store: Arc<dyn Store>, setting: &str) -> Self {
        Self {
            store,
            setting: setting.to_owned(),
            segments: Vec::new(),
            savepoints: Vec::new(),
            has_state: false,
            problems: Vec::new(),
        }
    }

    fn look_into(&mut self, dir: &Path, depth: usize) {
        let entries = match self.store.entries(dir) {
            Ok(entries) => entries,
            Err(error) => return self.problems.push(format!("{}: {error}", dir.display())),
        };
        let root = self.store.root().to_owned();
        for Entry { path, is_folder } in entries {
            if is_segment(&path) {
                self.segments.push(path);
            } else if is_folder && is_query(dir) && path.ends_with(state::FOLDER) {
                // Nothing else is in there.
                let is_ours = !self.has_state && dir.parent() == Some(&root);
                self.has_state |= is_ours && self.store.entries(&path).is_ok_and(|found| !found.is_empty());
            } else if is_folder && depth > 0 {
                self.look_into(&path, depth - 1);
            } else if !is_folder && path.ends_with(MANIFEST) && self.is_manifest(&root, dir, &path) {
                self.savepoints.push(dir.to_owned());
            }
        }
    }

    /// Whether a file is a savepoint's: in the very folder that was asked for, also a damaged one.
    fn is_manifest(&self, root: &Path, dir: &Path, path: &Path) -> bool {
        if dir.extension().is_some_and(|ending| ending == UNFINISHED) {
            return false;
        }
        let mut magic = [0; MAGIC.len()];
        let opened = self.store.stream(path, 0..MAGIC.len() as u64);
        dir == root || opened.is_ok_and(|mut file| file.read_exact(&mut magic).is_ok() && magic == *MAGIC)
    }

    /// What is in a segment.
    ///
    /// # Errors
    /// Those of [`super::recovery::read_segment`].
    pub fn segment(&self, path: &Path) -> Result<SegmentReport> {
        report_of(self.store.as_ref(), path)
    }

    /// A savepoint.
    ///
    /// # Errors
    /// Those of [`Savepoint::open`].
    pub fn savepoint(&self, folder: &Path) -> Result<Savepoint> {
        Savepoint::open_in(Arc::clone(&self.store), folder, &self.setting)
    }

    /// Keyed state of a checkpoint.
    ///
    /// # Errors
    /// [`crate::error::Error::Io`].
    pub fn stored(&self) -> Result<Stored> {
        Stored::open_in(Arc::clone(&self.store), &self.setting)
    }
}
