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
pub(in crate::edge::disk) fn query_dir(root: &Path, query: &str) -> PathBuf {
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

/// Where the claim of an epoch lies: a query's micro-batches, and an application's executions, are one
/// application's together.
pub(super) fn claim_dir(root: &Path, key: &EpochKey) -> PathBuf {
    if key.is_claimed_alone() { epoch_dir(root, key) } else { query_dir(root, &key.query) }
}

/// The file of `agent` in application `app` for one use of an epoch.
pub(super) fn segment_path(root: &Path, agent: AgentId, app: u64, used: u64, key: &EpochKey) -> PathBuf {
    epoch_dir(root, key).join(format!("{used:016x}-{:016x}-{app:016x}.{ENDING}", agent.0))
}

/// Runs `create` in `dir`, which is made, durably, if it does not exist.
pub(in crate::edge::disk) fn in_dir<T>(
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

/// Unlinks files of an epoch, and the folders in which nothing is left then. They stay removed.
pub(super) fn remove(disk: &dyn Disk, root: &Path, key: &EpochKey, files: &[PathBuf]) -> io::Result<()> {
    files.iter().try_for_each(|file| disk.remove(file))?;
    let mut dir = epoch_dir(root, key);
    // Another agent's segment keeps the folder, which is no error; that agent removes it later.
    for above in [query_dir(root, &key.query), root.to_owned()] {
        if fs::remove_dir(&dir).is_err() {
            break;
        }
        dir = above;
    }
    match disk.sync_dir(&dir) {
        // Another agent has removed it: that is what it syncs.
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// All segments of an epoch's folder.
fn segments_in(dir: &Path) -> io::Result<Vec<PathBuf>> {
    Ok(entries(dir)?.into_iter().filter(|file| is_segment(file)).collect())
}

/// Whether a file is a segment, by its name.
pub(super) fn is_segment(file: &Path) -> bool {
    file.extension().is_some_and(|ending| ending == ENDING)
}

/// The segments of one use of an epoch, in a fixed order.
pub(in crate::edge) fn epoch_files(root: &Path, key: &EpochKey, used: u64) -> io::Result<Vec<PathBuf>> {
    let mut files = segments_in(&epoch_dir(root, key))?;
    files.retain(|file| is_of(file, used));
    Ok(files)
}

/// The segments of one use of all epochs that one claim covers.
pub(in crate::edge) fn claimed_files(root: &Path, key: &EpochKey, used: u64) -> io::Result<Vec<PathBuf>> {
    let dir = claim_dir(root, key);
    let mut found = segments_in(&dir)?;
    for epoch in entries(&dir)?.iter().filter(|path| path.is_dir()) {
        found.extend(segments_in(epoch)?);
    }
    found.retain(|file| is_of(file, used));
    Ok(found)
}

fn is_of(file: &Path, used: u64) -> bool {
    let name = file.file_name().and_then(|name| name.to_str());
    name.and_then(|name| name.split_once('-')).is_some_and(|(of, _)| of == format!("{used:016x}"))
}

/// Whether a segment was written by the application with hash `app`, by its name.
pub(super) fn is_by(file: &Path, app: u64) -> bool {
    let name = file.file_stem().and_then(|name| name.to_str());
    name.and_then(|name| name.rsplit_once('-')).is_some_and(|(_, by)| by == format!("{app:016x}"))
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
pub(in crate::edge::disk) fn entries(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let listing = match fs::read_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        listing => listing?,
    };
    let mut paths = listing.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    paths.sort_unstable();
    Ok(paths)
}
