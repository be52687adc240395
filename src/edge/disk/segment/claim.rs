//! Whose the logs of an epoch are, and of which use of its name.
//!
//! ```text
//! <checkpoint_dir>/<number>.incarnation            applications that attached so far
//! <query>/<incarnation>-<use>.claim                whose a query's micro-batches are
//! <query>/<epoch>/<incarnation>-<use>.claim        whose a named epoch is
//! <query>/<epoch>/<use>-<agent>-<application>.seg  counts if the claim is of that use
//! ```
//!
//! Each application that attaches draws the next incarnation. Before it opens the first task of an epoch
//! it claims it: a file that nobody else creates. The claim with the highest incarnation counts, so of two
//! that claim at once one wins, and no older application takes an epoch back. A writer looks for its claim
//! after each sync and before it answers: what it acknowledged was on disk before a newer claim was made,
//! and whoever made that reads afterwards.
//!
//! The first claim draws the number of the use, and those that take over keep it. A commit removes the
//! claim: that one name, synced, is the commit. Segments of a use that nobody claims are rubbish, whenever
//! they were written, and a name used again draws another number.
//!
//! Whoever claims may be slow, so that its claim is made when the use is over, or when somebody else has claimed another
//! one. It looks, and gives its own up if what it has found before is gone, or something is there that was not. But it
//! may die before it looks, or not know that its file was made: so a claim counts only if it was said behind that look
//! that it does. Whoever finds one that does not count yet and is in its way refuses it, under that same name: a commit
//! those of its use, and who begins a use the older ones of others. Then the maker looks once more for newer ones, before
//! anything is acknowledged.

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::disk::write_error;
use super::store::Store;
use super::{SETTING, layout, seal, sure};
use crate::error::{Error, Result};
use crate::id::EpochKey;

/// Ending of a claim's name.
const CLAIM: &str = "claim";
/// Ending of the name of the file that counts applications.
const INCARNATION: &str = "incarnation";
/// Use of a name that nobody claims.
const UNCLAIMED: u64 = 0;
/// How long whoever says whether a claim counts may take to write it.
const PATIENCE: Duration = if cfg!(test) { Duration::from_millis(100) } else { Duration::from_secs(10) };
const PAUSE: Duration = Duration::from_millis(20);

/// A claim on an epoch, or on a query's micro-batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::edge) struct Claim {
    /// Application that made it.
    pub(in crate::edge) incarnation: u64,
    /// Use of the epoch's name, drawn by the first claim.
    pub(in crate::edge) used: u64,
}

impl Claim {
    pub(super) fn path(self, root: &Path, key: &EpochKey) -> PathBuf {
        layout::claim_dir(root, key).join(self.name(CLAIM))
    }

    /// The name of the claim's file, or of another that goes with it.
    pub(super) fn name(self, ending: &str) -> String {
        format!("{:016x}-{:016x}.{ending}", self.incarnation, self.used)
    }

    fn parse(path: &Path) -> Option<Self> {
        Self::parse_as(path, CLAIM)
    }

    /// Inverse of [`Self::name`].
    pub(super) fn parse_as(path: &Path, ending: &str) -> Option<Self> {
        let name = path.file_name()?.to_str()?.strip_suffix(ending)?.strip_suffix('.')?;
        let (incarnation, used) = name.split_once('-')?;
        Some(Self { incarnation: number(incarnation)?, used: number(used)? })
    }
}

/// Whether a file is a claim, by its name.
pub(in crate::edge::disk) fn is_claim(path: &Path) -> bool {
    Claim::parse(path).is_some()
}

/// The incarnation of the application that made a claim.
pub(super) fn incarnation_of_claim(path: &Path) -> Option<u64> {
    Claim::parse(path).map(|claim| claim.incarnation)
}

fn number(hex: &str) -> Option<u64> {
    u64::from_str_radix(hex, 16).ok().filter(|_| hex.len() == 16)
}

/// Draws the incarnation of an application that attaches.
///
/// # Errors
/// [`Error::DiskFull`], [`Error::Io`].
pub(in crate::edge) fn attach(store: &dyn Store, app: &str) -> Result<u64> {
    // Two applications of one name must not take each other's file for their own.
    let content = format!("{app} {:016x}", draw()?);
    draw_incarnation(store, &content).map_err(|e| write_error(store.root(), SETTING, &e))
}

fn draw_incarnation(store: &dyn Store, content: &str) -> io::Result<u64> {
    let path = |drawn: u64| store.root().join(format!("{drawn:016x}.{INCARNATION}"));
    loop {
        let found = store.entries(store.root())?;
        let before: Vec<u64> = found.iter().filter_map(|entry| incarnation_of(&entry.path)).collect();
        let drawn = before.iter().max().map_or(1, |newest| newest + 1);
        match store.create(&path(drawn), content.as_bytes()) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => continue,
            created => created?,
        }
        // While this one was on its way, others may have drawn the same number, and gone on to higher ones: whoever
        // removes a name has put a higher one.
        let now = store.entries(store.root())?;
        if now.iter().filter_map(|entry| incarnation_of(&entry.path)).any(|other| other > drawn) {
            store.remove(&path(drawn))?;
            continue;
        }
        // After the newer name is on disk: there is always one.
        for older in before {
            store.remove(&path(older))?;
        }
        return Ok(drawn);
    }
}

/// Checks that this is where the application attached.
///
/// # Errors
/// [`Error::Config`] if not: this host sees another folder than the driver; [`Error::Io`].
pub(super) fn check_attached(store: &dyn Store, incarnation: u64) -> Result<()> {
    let root = store.root();
    let found = store.entries(root).map_err(|e| Error::io(format!("listing {}", root.display()), &e))?;
    if found.iter().filter_map(|entry| incarnation_of(&entry.path)).any(|attached| attached >= incarnation) {
        return Ok(());
    }
    Err(Error::Config {
        setting: SETTING.to_owned(),
        reason: format!("{} is not the folder that the driver has under that name: share it", root.display()),
    })
}

fn incarnation_of(path: &Path) -> Option<u64> {
    number(path.file_name()?.to_str()?.strip_suffix(INCARNATION)?.strip_suffix('.')?)
}

/// The claims on an epoch.
struct Claims {
    all: Vec<Claim>,
    /// Those of which it was said that they are.
    sure: HashSet<Claim>,
}

impl Claims {
    fn find(store: &dyn Store, key: &EpochKey) -> Result<Self> {
        let files = store.entries(&layout::claim_dir(store.root(), key));
        let files = files.map_err(|e| Error::io(format!("looking whose epoch {key} is"), &e))?;
        let all = files.iter().filter_map(|entry| Claim::parse(&entry.path)).collect();
        // A seal is made once that was said.
        let mut sure: HashSet<Claim> = files.iter().filter_map(|entry| seal::sealed(&entry.path)).collect();
        for path in files.iter().map(|entry| &entry.path) {
            if let Some(claim) = sure::claim_of(path)
                && !sure.contains(&claim)
                && sure::is_said(store, path)?
            {
                sure.insert(claim);
            }
        }
        Ok(Self { all, sure })
    }

    fn is_sure(&self, claim: Claim) -> bool {
        claim.used == UNCLAIMED || self.sure.contains(&claim)
    }

    /// The claim that counts, of those that some say.
    fn newest_of(&self, which: impl Fn(Claim) -> bool) -> Option<Claim> {
        self.all.iter().copied().filter(|claim| self.is_sure(*claim) && which(*claim)).max()
    }

    fn newest(&self) -> Option<Claim> {
        self.newest_of(|_| true)
    }

    /// The claim of the newest application, whether it counts yet or not.
    fn last(&self) -> Option<Claim> {
        self.all.iter().copied().max()
    }
}

/// The claim that counts. None: all that lies there is rubbish.
///
/// # Errors
/// [`Error::Io`].
pub(in crate::edge) fn newest(store: &dyn Store, key: &EpochKey) -> Result<Option<Claim>> {
    Ok(Claims::find(store, key)?.newest())
}

/// Claims an epoch for an application, with the hash `hash`; what counts of the use that is returned is its own then.
///
/// # Errors
/// [`Error::Config`] if a newer application has claimed it; [`Error::DiskFull`]; [`Error::Io`], also if an
/// older application's claim can't be removed.
pub(in crate::edge) fn take(
    store: &dyn Store,
    key: &EpochKey,
    incarnation: u64,
    by: (&str, u64),
) -> Result<Claim> {
    take_as(store, key, incarnation, by, draw)
}

/// [`take`] for a name that is used once and never committed: what was written there before anybody claimed it counts.
///
/// # Errors
/// Those of [`take`].
pub(in crate::edge) fn take_for_good(
    store: &dyn Store,
    key: &EpochKey,
    incarnation: u64,
    by: (&str, u64),
) -> Result<Claim> {
    take_as(store, key, incarnation, by, || Ok(UNCLAIMED))
}

fn take_as(
    store: &dyn Store,
    key: &EpochKey,
    incarnation: u64,
    (app, hash): (&str, u64),
    first_use: impl Fn() -> Result<u64>,
) -> Result<Claim> {
    let since = Instant::now();
    loop {
        let found = Claims::find(store, key)?;
        let before = found.newest();
        let claim = match before.filter(|claim| claim.incarnation >= incarnation) {
            Some(claim) => mine(store, key, claim, incarnation)?,
            None => match begin(store, key, &found, (incarnation, app), &first_use)? {
                Some(claim) => claim,
                None => {
                    wait(store, key, since)?;
                    continue;
                }
            },
        };
        if !found.is_sure(claim) && !sure::announce(store, key, claim)? {
            give_up_name(store, key, claim)?;
            continue;
        }
        if !is_there(store, key, claim)? {
            // It was refused before, and that is forgotten.
            sure::forget(store, key, claim)?;
            continue;
        }
        remove_older(store, key, claim)?;
        // Nobody else's writes are acknowledged from now on. What is never run again is read by nobody.
        if !key.is_execution() {
            seal::seal(store, key, claim, hash)?;
        }
        if is_there(store, key, claim)? {
            return Ok(claim);
        }
    }
}

/// Makes a claim, of the use that was `found` or of a new one, and looks; nothing if that is to be tried again.
fn begin(
    store: &dyn Store,
    key: &EpochKey,
    found: &Claims,
    (incarnation, app): (u64, &str),
    first_use: impl Fn() -> Result<u64>,
) -> Result<Option<Claim>> {
    let before = found.newest();
    let used = before.map_or_else(first_use, |claim| Ok(claim.used))?;
    let claim = Claim { incarnation, used };
    // Tries of this application that came to nothing.
    for other in found.all.iter().filter(|other| other.incarnation == incarnation && **other != claim) {
        give_up_name(store, key, *other)?;
    }
    // A name that was given up cannot be had again in a store: one that was not is gone on with.
    if !found.all.contains(&claim) {
        let path = claim.path(store.root(), key);
        store.create(&path, app.as_bytes()).map_err(|e| write_error(&path, SETTING, &e))?;
    }
    let now = Claims::find(store, key)?;
    let newest = now.last().unwrap_or(claim);
    // What was there before may have been committed, and would be back; or another use counts.
    let is_over = match now.newest_of(|other| other != claim) {
        Some(other) => other.used != used,
        None => before.is_some(),
    };
    // Of other uses none counts from now on: those who made older claims have not seen this one.
    let others = now.all.iter().copied().filter(|other| other.used != used);
    if !is_over && newest == claim && refuse(store, key, others)? {
        return Ok(Some(claim));
    }
    give_up_name(store, key, claim)?;
    // Another application may have claimed it meanwhile.
    mine(store, key, newest, incarnation).map(|_| None)
}

/// Removes claims that do not count, and never do from now on. False if one does, or may.
fn refuse(store: &dyn Store, key: &EpochKey, others: impl Iterator<Item = Claim>) -> Result<bool> {
    let mut all = true;
    for other in others {
        if !sure::refuse(store, key, other)? {
            all = false;
            continue;
        }
        give_up_name(store, key, other)?;
        // Its maker looks for the claim before it goes on.
        sure::forget(store, key, other)?;
    }
    Ok(all)
}

/// Removes the older claims of a use: whoever made one goes on while it is there.
fn remove_older(store: &dyn Store, key: &EpochKey, claim: Claim) -> Result<()> {
    let found = Claims::find(store, key)?.all.into_iter();
    let mut older = found.filter(|older| *older < claim && older.used == claim.used);
    older.try_for_each(|older| give_up_name(store, key, older))
}

fn give_up_name(store: &dyn Store, key: &EpochKey, claim: Claim) -> Result<()> {
    let path = claim.path(store.root(), key);
    match store.give_up(&path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            Err(Error::io(format!("removing {}, which counts no more", path.display()), &e))
        }
        _ => Ok(()),
    }
}

/// Looks for the claim of an application that was granted tasks of the epoch.
///
/// # Errors
/// [`Error::Config`] if a newer application has claimed it; [`Error::Io`].
pub(super) fn find(store: &dyn Store, key: &EpochKey, incarnation: u64) -> Result<Option<Claim>> {
    match newest(store, key)? {
        Some(claim) if claim.incarnation >= incarnation => mine(store, key, claim, incarnation).map(Some),
        _ => Ok(None),
    }
}

/// Gives up a claim: the epoch is committed when this returns.
///
/// # Errors
/// [`Error::Config`] if a newer application has claimed it; [`Error::Io`]: the claim may be there still.
pub(in crate::edge) fn give_up(store: &dyn Store, key: &EpochKey, claim: Claim) -> Result<()> {
    find(store, key, claim.incarnation)?;
    let all = Claims::find(store, key)?.all;
    // Older ones first, and in any case: they would count again. Those of another use were made since.
    let mut ours: Vec<Claim> =
        all.into_iter().filter(|other| other.used == claim.used && *other <= claim).collect();
    ours.sort_unstable();
    let dir = layout::claim_dir(store.root(), key);
    let removed = ours.into_iter().try_for_each(|claim| store.give_up(&claim.path(store.root(), key)));
    match removed.and_then(|()| store.settle(&dir)) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(uncertain(key, &dir, &e)),
        _ => {
            refuse_others(store, key, claim)?;
            // Those that stay are rubbish, of a use that nobody claims.
            let _rubbish = seal::remove(store, key, claim.used);
            Ok(())
        }
    }
}

/// Returns when nobody else has a use whose claim was given up. Who has taken it over meanwhile has all that was recorded
/// in it; who is about to has not, and begins another.
fn refuse_others(store: &dyn Store, key: &EpochKey, claim: Claim) -> Result<()> {
    let since = Instant::now();
    loop {
        let found = Claims::find(store, key)?;
        let left = || found.all.iter().copied().filter(|left| left.used == claim.used);
        if let Some(newest) = left().filter(|left| found.is_sure(*left)).max() {
            return mine(store, key, newest, claim.incarnation).map(drop);
        }
        if refuse(store, key, left())? {
            return Ok(());
        }
        let dir = layout::claim_dir(store.root(), key);
        wait(store, key, since).map_err(|error| uncertain(key, &dir, &io::Error::other(error)))?;
    }
}

/// Waits a little for whoever says whether a claim counts.
fn wait(store: &dyn Store, key: &EpochKey, since: Instant) -> Result<()> {
    if since.elapsed() < PATIENCE {
        sleep(PAUSE);
        return Ok(());
    }
    let others = Claims::find(store, key)?.all.into_iter().map(|claim| owner(store, key, claim));
    let others: Vec<String> = others.collect();
    let met = format!(
        "{} take it over and come to no end: try it again or, if none of them lives, remove what they left in {}",
        others.join(", "),
        layout::claim_dir(store.root(), key).display()
    );
    Err(Error::io(format!("looking whose epoch {key} is"), &io::Error::other(met)))
}

fn uncertain(key: &EpochKey, dir: &Path, error: &io::Error) -> Error {
    let what = "which may have been carried out: commit it again, or run it again, which finds out";
    Error::io(format!("committing epoch {key} in checkpoint_dir ({}), {what}", dir.display()), error)
}

fn mine(store: &dyn Store, key: &EpochKey, claim: Claim, incarnation: u64) -> Result<Claim> {
    if claim.incarnation == incarnation {
        return Ok(claim);
    }
    let app = owner(store, key, claim);
    Err(Error::Config {
        setting: SETTING.to_owned(),
        reason: format!(
            "epoch {key} in {} was taken over by application {app:?}, which attached later; this one records \
             nothing more in it: stop one of the two, or give each its own epoch name or folder",
            store.root().display()
        ),
    })
}

/// Makes a claim young: who removes what is old, as nobody will ask for it, does not know who lives.
///
/// # Errors
/// [`Error::Io`].
pub(in crate::edge) fn renew(store: &dyn Store, key: &EpochKey, claim: Claim, app: &str) -> Result<()> {
    let path = claim.path(store.root(), key);
    store.renew(&path, app.as_bytes()).map_err(|e| write_error(&path, SETTING, &e))
}

/// Whether a claim is there: whoever takes over removes it before it reads.
///
/// # Errors
/// [`Error::Io`].
pub(in crate::edge) fn is_there(store: &dyn Store, key: &EpochKey, claim: Claim) -> Result<bool> {
    let found = store.exists(&claim.path(store.root(), key));
    found.map_err(|e| Error::io(format!("looking whose epoch {key} is"), &e))
}

/// Who made a claim, for messages.
pub(in crate::edge) fn owner(store: &dyn Store, key: &EpochKey, claim: Claim) -> String {
    let owner = store.read(&claim.path(store.root(), key)).unwrap_or_default();
    String::from_utf8_lossy(&owner).into_owned()
}

fn draw() -> Result<u64> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|error| Error::Io {
        context: "drawing the number of an epoch's use".to_owned(),
        message: error.to_string(),
    })?;
    Ok(u64::from_le_bytes(bytes).max(UNCLAIMED + 1))
}
