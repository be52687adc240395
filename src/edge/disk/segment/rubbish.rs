//! What nobody will ever ask for: it is removed when an application attaches, once it is old.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::alive;
use super::claim::{incarnation_of_claim, is_claim};
use super::gone::is_end;
use super::layout::{self, folders_in, is_draft, is_segment};
use super::seal::is_seal;
use super::store::Store;
use crate::edge::disk::recovery::at_once;
use crate::error::Error;
use crate::id::application_query;

/// How old rubbish must be: nobody tells whether the application that wrote it lives.
pub(in crate::edge) const RUBBISH_AGE: Duration = Duration::from_secs(7 * 24 * 3600);

/// So many times as old must be what says that an agent lives.
const ALIVE_AGES: u32 = 13;

/// Removes what applications recorded outside of named epochs and streams, which is never run again, and
/// segments that nobody claims; also what says that agents live, of applications that claim nothing. How many files that were.
///
/// # Errors
/// Of the system; the rest is left to the next application.
pub(in crate::edge) fn prune(store: &dyn Store, age: Duration) -> io::Result<usize> {
    let (mut removed, mut claimed) = (0, HashSet::new());
    for query in folders_in(store, store.root())?.into_iter().filter(|path| is_query(path)) {
        let epochs = folders_in(store, &query)?;
        let claims = claims_in(store, &query)?;
        let (mut all, mut unclaimed) = (claims.clone(), Vec::new());
        for epoch in &epochs {
            let claims = claims_in(store, epoch)?;
            if claims.is_empty() {
                unclaimed.push(epoch);
            }
            all.extend(claims);
        }
        claimed.extend(all.iter().filter_map(|claim| incarnation_of_claim(claim)));
        if all.iter().any(|claim| is_application(store, &query, claim)) {
            removed += remove_old(store, &query, &epochs, age)?;
        } else if claims.is_empty() {
            for epoch in unclaimed {
                removed += remove_old(store, epoch, &[], age)?;
            }
            let _in_use = store.discard(&[], &[query]);
        }
    }
    // An application may claim nothing between two epochs: an agent that misses its file ends, and another takes its
    // place. They are small, and may stay for longer than anything else.
    let (all, age) = (alive::all(store)?.into_iter(), age.saturating_mul(ALIVE_AGES));
    let left = all.filter(|(of, path)| !claimed.contains(of) && is_old(store, path, age));
    let left: Vec<PathBuf> = left.map(|(_, path)| path).collect();
    store.discard(&left, &[])?;
    Ok(removed + left.len())
}

fn is_old(store: &dyn Store, path: &Path, age: Duration) -> bool {
    let at = store.modified(path);
    at.is_ok_and(|at| SystemTime::now().duration_since(at).is_ok_and(|since| since >= age))
}

/// Whether this is a folder of ours; sources and the user may have others beside it.
pub(in crate::edge::disk) fn is_query(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.len() == 16 && u64::from_str_radix(name, 16).is_ok()
}

fn claims_in(store: &dyn Store, dir: &Path) -> io::Result<Vec<PathBuf>> {
    let found = store.entries(dir)?.into_iter().map(|entry| entry.path);
    Ok(found.filter(|path| is_claim(path)).collect())
}

/// Whether the folder is that of the application that made this claim.
fn is_application(store: &dyn Store, query: &Path, claim: &Path) -> bool {
    let app = store.read(claim).unwrap_or_default();
    let app = String::from_utf8_lossy(&app);
    layout::query_dir(store.root(), &application_query(&app)) == query
}

/// Removes a folder with these below it if all our files in them are old.
fn remove_old(store: &dyn Store, dir: &Path, below: &[PathBuf], age: Duration) -> io::Result<usize> {
    let mut files = Vec::new();
    for dir in below.iter().map(PathBuf::as_path).chain([dir]) {
        let ours = |path: &PathBuf| {
            is_claim(path) || is_segment(path) || is_seal(path) || is_end(path) || is_draft(path)
        };
        files.extend(store.entries(dir)?.into_iter().map(|entry| entry.path).filter(ours));
    }
    if !files.iter().all(|path| is_old(store, path, age)) {
        return Ok(0);
    }
    // Claims last: what they claim must not be left to look like rubbish that is young.
    let (claims, others): (Vec<_>, Vec<_>) = files.iter().partition(|path| is_claim(path));
    for some in [others, claims] {
        at_once(store.writers(), &some, |file| {
            let removed = if is_segment(file) { store.remove_segment(file) } else { store.remove(file) };
            removed.map_err(|e| Error::io(format!("removing {}", file.display()), &e))
        })
        .map_err(io::Error::other)?;
    }
    for dir in below.iter().map(PathBuf::as_path).chain([dir]) {
        let _in_use = store.discard(&[], &[dir.to_owned()]);
    }
    Ok(files.len())
}
