//! What nobody will ever ask for: it is removed when an application attaches, once it is old.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::claim::is_claim;
use super::disk::Disk;
use super::layout::{self, is_segment};
use super::seal::is_seal;
use crate::id::application_query;

/// How old rubbish must be: nobody tells whether the application that wrote it lives.
pub(in crate::edge) const RUBBISH_AGE: Duration = Duration::from_secs(7 * 24 * 3600);

/// Removes what applications recorded outside of named epochs and streams, which is never run again, and
/// segments that nobody claims. How many files that were.
///
/// # Errors
/// Of the system; the rest is left to the next application.
pub(in crate::edge) fn prune(disk: &dyn Disk, root: &Path, age: Duration) -> io::Result<usize> {
    let mut removed = 0;
    for query in layout::entries(root)?.into_iter().filter(|path| is_query(path)) {
        let epochs: Vec<PathBuf> =
            layout::entries(&query)?.into_iter().filter(|path| path.is_dir()).collect();
        let claims = claims_in(&query)?;
        let mut all = claims.clone();
        for epoch in &epochs {
            all.extend(claims_in(epoch)?);
        }
        if all.iter().any(|claim| is_application(root, &query, claim)) {
            removed += remove_old(disk, &query, &epochs, age)?;
        } else if claims.is_empty() {
            for epoch in epochs {
                if claims_in(&epoch)?.is_empty() {
                    removed += remove_old(disk, &epoch, &[], age)?;
                }
            }
            let _in_use = fs::remove_dir(&query);
        }
    }
    Ok(removed)
}

/// Whether this is a folder of ours; sources and the user may have others beside it.
fn is_query(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.len() == 16 && u64::from_str_radix(name, 16).is_ok() && path.is_dir()
}

fn claims_in(dir: &Path) -> io::Result<Vec<PathBuf>> {
    Ok(layout::entries(dir)?.into_iter().filter(|path| is_claim(path)).collect())
}

/// Whether the folder is that of the application that made this claim.
fn is_application(root: &Path, query: &Path, claim: &Path) -> bool {
    let app = fs::read_to_string(claim).unwrap_or_default();
    layout::query_dir(root, &application_query(&app)) == query
}

/// Removes a folder with these below it if all our files in them are old.
fn remove_old(disk: &dyn Disk, dir: &Path, below: &[PathBuf], age: Duration) -> io::Result<usize> {
    let mut files = Vec::new();
    for dir in below.iter().map(PathBuf::as_path).chain([dir]) {
        let ours = |path: &PathBuf| is_claim(path) || is_segment(path) || is_seal(path);
        files.extend(layout::entries(dir)?.into_iter().filter(ours));
    }
    let old = |path: &PathBuf| {
        let written = fs::metadata(path).and_then(|found| found.modified());
        written.is_ok_and(|at| SystemTime::now().duration_since(at).is_ok_and(|since| since >= age))
    };
    if !files.iter().all(old) {
        return Ok(0);
    }
    // Claims last: what they claim must not be left to look like rubbish that is young.
    files.sort_by_key(|path| is_claim(path));
    files.iter().try_for_each(|file| disk.remove(file))?;
    for dir in below.iter().map(PathBuf::as_path).chain([dir]) {
        let _in_use = fs::remove_dir(dir);
    }
    Ok(files.len())
}
