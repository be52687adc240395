//! Which claims count.
//!
//! ```text
//! <query>/<incarnation>-<use>.sure            of a query's micro-batches
//! <query>/<epoch>/<incarnation>-<use>.sure    of a named epoch
//! ```
//!
//! Who has made a claim and looked says so under this name, and whoever is in its way, as it commits the use or begins
//! another, refuses it under the same. A name is made once, so of the two one happens.

use std::io;
use std::path::{Path, PathBuf};

use super::claim::Claim;
use super::disk::write_error;
use super::store::Store;
use super::{SETTING, layout};
use crate::error::{Error, Result};
use crate::id::EpochKey;

/// Ending of the name.
const SURE: &str = "sure";
const COUNTS: &[u8] = b"this claim counts\n";
const REFUSED: &[u8] = b"this claim came too late\n";

/// Says of a claim that it counts. False if it was [refused](refuse), or a try to say it came to nothing: then nothing is
/// left of that.
///
/// # Errors
/// [`Error::DiskFull`]; [`Error::Io`].
pub(super) fn announce(store: &dyn Store, key: &EpochKey, claim: Claim) -> Result<bool> {
    let path = path(store, key, claim);
    if says(store, &path, COUNTS)? {
        return Ok(true);
    }
    remove(store, &path)?;
    Ok(false)
}

/// Says of another application's claim that it never counts. False if it does, or may.
///
/// # Errors
/// [`Error::DiskFull`]; [`Error::Io`].
pub(super) fn refuse(store: &dyn Store, key: &EpochKey, claim: Claim) -> Result<bool> {
    says(store, &path(store, key, claim), REFUSED)
}

/// Removes what was said of a claim that is gone.
///
/// # Errors
/// [`Error::DiskFull`]; [`Error::Io`].
pub(super) fn forget(store: &dyn Store, key: &EpochKey, claim: Claim) -> Result<()> {
    remove(store, &path(store, key, claim))
}

/// Whether a file says that a claim counts.
///
/// # Errors
/// [`Error::Io`].
pub(super) fn is_said(store: &dyn Store, path: &Path) -> Result<bool> {
    has(store, path, COUNTS)
}

/// The claim of which a file says something, by its name.
pub(super) fn claim_of(path: &Path) -> Option<Claim> {
    Claim::parse_as(path, SURE)
}

fn path(store: &dyn Store, key: &EpochKey, claim: Claim) -> PathBuf {
    layout::claim_dir(store.root(), key).join(claim.name(SURE))
}

/// Says something of a claim, unless something else was said; whether that stands there now.
fn says(store: &dyn Store, path: &Path, what: &[u8]) -> Result<bool> {
    match store.create(path, what) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => has(store, path, what),
        Err(e) => Err(write_error(path, SETTING, &e)),
        Ok(()) => Ok(true),
    }
}

fn has(store: &dyn Store, path: &Path, what: &[u8]) -> Result<bool> {
    match store.read(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        found => Ok(found.map_err(|e| Error::io(format!("reading {}", path.display()), &e))? == what),
    }
}

fn remove(store: &dyn Store, path: &Path) -> Result<()> {
    match store.remove(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(write_error(path, SETTING, &e)),
        _ => Ok(()),
    }
}
