//! Where something lies that is looked into, or a savepoint: a folder, or a prefix of an object store.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::segment::store::{Folder, Store, is_url, kind_of, look_into, without_secrets};
use crate::config::SessionConfig;
use crate::error::Result;

/// How long an answer of an object store is waited for, and asked for again.
const PATIENCE: Duration = Duration::from_secs(10);

/// A folder or a URL, and what its store is told. `Debug` and `Display` show nothing that is secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Location {
    path: PathBuf,
    options: BTreeMap<String, String>,
    /// Whether it is for a session that encrypts.
    encrypt: bool,
}

impl Location {
    /// What has this name, with what an object store is told beside it: credentials that are not in the environment.
    #[must_use]
    pub const fn new(path: PathBuf, options: BTreeMap<String, String>) -> Self {
        Self { path, options, encrypt: false }
    }

    /// What has this name, for a session, whose `storage_options` are told to stores of the kind they are meant for.
    #[must_use]
    pub fn of_session(path: PathBuf, config: &SessionConfig) -> Self {
        let kind = path.to_str().and_then(kind_of);
        let is_theirs = kind.is_some() && config.checkpoint_dir.as_deref().and_then(kind_of) == kind;
        let options = if is_theirs { config.storage_options.clone() } else { BTreeMap::new() };
        Self { path, options, encrypt: config.encrypt }
    }

    /// The same for somebody who encrypts.
    #[must_use]
    pub fn encrypted(self) -> Self {
        Self { encrypt: true, ..self }
    }

    /// Its name.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The URL, if it is one.
    pub(in crate::edge) fn url(&self) -> Option<&str> {
        self.path.to_str().filter(|text| is_url(text))
    }

    /// What lies there; `setting` is what named it. A folder is not made. For an object store, threads are started.
    ///
    /// # Errors
    /// [`crate::error::Error::Config`] for a URL that names nothing, and options that its store does not know.
    pub(super) fn open(&self, setting: &str) -> Result<Arc<dyn Store>> {
        match self.url() {
            None => Ok(Arc::new(Folder::at(&self.path))),
            Some(url) => look_into(url, &self.options, self.encrypt, PATIENCE, setting),
        }
    }

    /// What lies there, as [`Self::open`] says, to be written to: a folder is made.
    ///
    /// # Errors
    /// Those of [`Self::open`]; [`crate::error::Error::DiskFull`]; [`crate::error::Error::Io`].
    pub(in crate::edge) fn make(&self, setting: &str) -> Result<Arc<dyn Store>> {
        match self.url() {
            None => Ok(Arc::new(Folder::open(&self.path)?)),
            Some(_) => self.open(setting),
        }
    }
}

impl From<&Path> for Location {
    fn from(path: &Path) -> Self {
        Self::new(path.to_owned(), BTreeMap::new())
    }
}

impl From<&PathBuf> for Location {
    fn from(path: &PathBuf) -> Self {
        Self::from(path.as_path())
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&without_secrets(&self.path.to_string_lossy()))
    }
}

impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Location({self})")
    }
}
