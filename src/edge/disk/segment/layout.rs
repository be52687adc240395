//! Where segments lie, and making folders that survive a power failure.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64;

use super::disk::Disk;
use crate::id::{AgentId, Epoch, EpochKey};

/// Ending of a segment's name.
const ENDING: &str = "seg";
/// Letters of an epoch's name that are kept readable in its folder's name.
const READABLE: usize = 48;
/// Times that a folder is made anew if another agent, emptying it, removes it meanwhile.
const TRIES: usize = 8;

/// Folder of all epochs of a query.
fn query_dir(root: &Path, query: &str) -> PathBuf {
    root.join(format!("{:016x}", xxh3_64(query.as_bytes())))
}

/// Folder of all segments of an epoch.
fn epoch_dir(root: &Path, key: &EpochKey) -> PathBuf {
    let name = match &key.epoch {
        Epoch::Batch(id) => format!("batch-{id}"),
        Epoch::Named(name) => {
            // The name is the user's: it may hold anything, and be longer than a file name.
            let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
            let readable: String = name.chars().take(READABLE).map(plain).collect();
            format!("named-{readable}-{:016x}", xxh3_64(name.as_bytes()))
        }
    };
    query_dir(root, &key.query).join(name)
}

/// The file of `agent` in application `app` for an epoch.
pub(super) fn segment_path(root: &Path, agent: AgentId, app: u64, key: &EpochKey) -> PathBuf {
    epoch_dir(root, key).join(format!("{:016x}-{app:016x}.{ENDING}", agent.0))
}

/// Runs `create` in `dir`, which is made, durably, if it does not exist.
pub(super) fn in_dir<T>(
    disk: &dyn Disk,
    root: &Path,
    dir: &Path,
    create: impl Fn() -> io::Result<T>,
) -> io::Result<T> {
    let mut tries = 0;
    loop {
        tries += 1;
        match make_dirs(disk, root, dir).and_then(|()| create()) {
            Err(e) if e.kind() == io::ErrorKind::NotFound && tries < TRIES => {}
            result => return result,
        }
    }
}

/// Makes `dir` and the folders between `root` and it. Each folder's name is synced in its parent,
/// even if the folder was there: the agent that made it may not have come to that yet.
fn make_dirs(disk: &dyn Disk, root: &Path, dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    let above = dir.ancestors().skip(1);
    for parent in above.take_while(|parent| parent.starts_with(root)) {
        disk.sync_dir(parent)?;
    }
    Ok(())
}

/// Unlinks a file; one that is gone already is no error.
pub(super) fn unlink(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// Removes the folder of an epoch and that of its query if nothing is left in them.
pub(super) fn prune(root: &Path, key: &EpochKey) {
    // Another agent's segment keeps the folder, which is no error; that agent prunes later.
    if fs::remove_dir(epoch_dir(root, key)).is_ok() {
        let _in_use = fs::remove_dir(query_dir(root, &key.query));
    }
}

/// All segments of an epoch's folder.
fn segments_in(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let files = entries(dir)?;
    Ok(files.into_iter().filter(|f| f.extension().is_some_and(|e| e == ENDING)).collect())
}

/// All segments of an epoch, in a fixed order.
pub(in crate::edge) fn epoch_files(root: &Path, key: &EpochKey) -> io::Result<Vec<PathBuf>> {
    segments_in(&epoch_dir(root, key))
}

/// All segments below `root`, in a fixed order. A `root` that does not exist has none.
pub(in crate::edge) fn segment_files(root: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for query in entries(root)?.iter().filter(|p| p.is_dir()) {
        for epoch in entries(query)?.iter().filter(|p| p.is_dir()) {
            found.extend(segments_in(epoch)?);
        }
    }
    Ok(found)
}

/// Sorted entries of a folder; none if it is gone, since agents remove what is committed.
fn entries(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let listing = match fs::read_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        listing => listing?,
    };
    let mut paths = listing.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    paths.sort_unstable();
    Ok(paths)
}
