//! How much of older applications' segments counts, once an epoch was taken over.
//!
//! ```text
//! <query>/<incarnation>-<use>.seal            of a query's micro-batches
//! <query>/<epoch>/<incarnation>-<use>.seal    of a named epoch
//! ```
//!
//! An application that was taken for dead may be at work still. It is told when it looks for its claim, after it has
//! written: what it wrote was not acknowledged, and stands there all the same. Whoever took the epoch over has not
//! read it and has asked anew; whoever comes third would find both. So the second notes how long each file was when it
//! read them, after its claim was made and before it opens a task. What lies behind counts for nobody.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::claim::Claim;
use super::disk::write_error;
use super::store::Store;
use super::{SETTING, gone, layout, sure};
use crate::error::{Error, Result};
use crate::id::EpochKey;

/// Ending of a seal's name.
const SEAL: &str = "seal";

/// The segments of other applications that count.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::edge) struct Seal {
    /// Hash of the application that took the epoch over: its own segments count, however long.
    app: u64,
    /// Bytes of each older segment that count, by its path in the claim's folder.
    ends: BTreeMap<PathBuf, u64>,
}

impl Seal {
    /// How many bytes of a segment count; none if all do.
    fn end_of(&self, dir: &Path, file: &Path) -> Option<u64> {
        let name = file.strip_prefix(dir).unwrap_or(file);
        match self.ends.get(name) {
            None if layout::is_by(file, self.app) => None,
            end => Some(end.copied().unwrap_or(0)),
        }
    }
}

/// How many bytes of a segment of one use count, all of them whole, unless all do: of older applications, and of agents that
/// others have gone on without. With `claimed` of all segments that one claim covers.
///
/// # Errors
/// [`Error::Io`].
pub(in crate::edge) fn counting(
    store: &dyn Store,
    key: &EpochKey,
    used: u64,
    claimed: bool,
) -> Result<impl Fn(&Path) -> Option<u64> + use<>> {
    let (sealed, gone) = (ends(store, key, used)?, gone::ends(store, key, claimed)?);
    Ok(move |file: &Path| [sealed(file), gone.get(file).copied()].into_iter().flatten().min())
}

/// How many bytes of each segment of one use of an epoch count for whoever sealed it last; none if all do.
pub(super) fn ends(
    store: &dyn Store,
    key: &EpochKey,
    used: u64,
) -> Result<impl Fn(&Path) -> Option<u64> + use<>> {
    let (dir, seal) = (layout::claim_dir(store.root(), key), newest(store, key, used)?);
    Ok(move |file: &Path| seal.as_ref().and_then(|seal| seal.end_of(&dir, file)))
}

/// Notes how much of what lies there counts from now on, unless that was done. Called by whoever has claimed an epoch,
/// when older claims are gone, and before it reads.
///
/// # Errors
/// [`Error::DiskFull`]; [`Error::Io`].
pub(in crate::edge) fn seal(store: &dyn Store, key: &EpochKey, claim: Claim, app: u64) -> Result<()> {
    let dir = layout::claim_dir(store.root(), key);
    let path = dir.join(claim.name(SEAL));
    let found = read(store, &path)?;
    if matches!(found, Found::Whole(_)) {
        return Ok(());
    }
    let failed = |e: &io::Error| write_error(&path, SETTING, e);
    let counts = counting(store, key, claim.used, true)?;
    let mut ends = BTreeMap::new();
    for file in layout::claimed_files(store, key, claim.used).map_err(|e| failed(&e))? {
        // One that is gone was committed.
        let Some(found) = store.segment(&file)? else { continue };
        let name = file.strip_prefix(&dir).unwrap_or(&file).to_owned();
        // What has counted once counts, damaged or not: whoever reads it says so.
        let counted = counts(&file).map_or_else(|| gone::intact(store, &found), Ok)?;
        ends.insert(name, counted);
    }
    let text = serde_json::to_string(&Seal { app, ends })
        .map_err(|e| Error::Io { context: "sealing an epoch".into(), message: e.to_string() })?;
    if matches!(found, Found::Torn) {
        // It is of this application, too: its disk was full, and it tries again.
        store.remove(&path).map_err(|e| failed(&e))?;
    }
    store.create(&path, text.as_bytes()).map_err(|e| failed(&e))?;
    for (_, older) in all(store, key, claim.used)?.into_iter().filter(|(of, _)| *of < claim) {
        store.remove(&older).map_err(|e| failed(&e))?;
    }
    Ok(())
}

/// Removes the seals of a use that was committed.
pub(super) fn remove(store: &dyn Store, key: &EpochKey, used: u64) -> Result<()> {
    for (_, path) in all(store, key, used)? {
        store.remove(&path).map_err(|e| write_error(&path, SETTING, &e))?;
    }
    Ok(())
}

/// Whether a file is a seal, or says whether a claim counts, by its name.
pub(in crate::edge::disk) fn is_seal(path: &Path) -> bool {
    claim_of(path).is_some()
}

fn claim_of(path: &Path) -> Option<Claim> {
    sealed(path).or_else(|| sure::claim_of(path))
}

/// The claim of a seal, by its name.
pub(super) fn sealed(path: &Path) -> Option<Claim> {
    Claim::parse_as(path, SEAL)
}

/// All of them that are of one use, and what says of its claims whether they count, by claim.
fn all(store: &dyn Store, key: &EpochKey, used: u64) -> Result<Vec<(Claim, PathBuf)>> {
    let dir = layout::claim_dir(store.root(), key);
    let found = store.entries(&dir).map_err(|e| Error::io(format!("listing {}", dir.display()), &e))?;
    let seals = found.into_iter().filter_map(|entry| Some((claim_of(&entry.path)?, entry.path)));
    let mut seals: Vec<_> = seals.filter(|(of, _)| of.used == used).collect();
    seals.sort_unstable();
    Ok(seals)
}

/// The newest seal that is whole: whoever died while it wrote one has opened no task.
fn newest(store: &dyn Store, key: &EpochKey, used: u64) -> Result<Option<Seal>> {
    for (claim, path) in all(store, key, used)?.into_iter().rev() {
        if sealed(&path) == Some(claim)
            && let Found::Whole(seal) = read(store, &path)?
        {
            return Ok(Some(seal));
        }
    }
    Ok(None)
}

/// What is at a seal's path.
enum Found {
    Nothing,
    /// Whoever wrote it died, or had no room.
    Torn,
    Whole(Seal),
}

fn read(store: &dyn Store, path: &Path) -> Result<Found> {
    match store.read(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Found::Nothing),
        Err(e) => Err(Error::io(format!("reading {}", path.display()), &e)),
        Ok(text) => Ok(serde_json::from_slice(&text).map_or(Found::Torn, Found::Whole)),
    }
}
