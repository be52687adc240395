//! Where segments lie.

use std::io;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64;

use super::gone;
use super::store::Store;
use crate::id::{AgentId, Epoch, EpochKey};

/// Ending of a segment's name.
pub(super) const ENDING: &str = "seg";
/// Ending of the name of a file that is written before it gets its own.
const DRAFT: &str = "new";
/// Letters of an epoch's name that are kept readable in its folder's name.
const READABLE: usize = 48;

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

/// The segment of `agent` in application `app` for one use of an epoch. Where an object that was put late could be taken
/// for one of its next, it has a number that this agent never uses again.
pub(super) fn segment_path(
    root: &Path,
    (agent, app, number): (AgentId, u64, Option<u64>),
    used: u64,
    key: &EpochKey,
) -> PathBuf {
    let number = number.map_or_else(String::new, |number| format!("-{number:x}"));
    epoch_dir(root, key).join(format!("{used:016x}-{:016x}-{app:016x}{number}.{ENDING}", agent.0))
}

/// The folders of an epoch, the innermost first.
pub(super) fn dirs(root: &Path, key: &EpochKey) -> [PathBuf; 2] {
    [epoch_dir(root, key), query_dir(root, &key.query)]
}

/// All segments of an epoch's folder.
pub(in crate::edge::disk) fn segments_in(store: &dyn Store, dir: &Path) -> io::Result<Vec<PathBuf>> {
    let found = store.entries(dir)?.into_iter().map(|entry| entry.path);
    Ok(found.filter(|path| is_segment(path)).collect())
}

/// The folders in a folder; a segment may be one, and is none of them.
pub(in crate::edge::disk) fn folders_in(store: &dyn Store, dir: &Path) -> io::Result<Vec<PathBuf>> {
    let found = store.entries(dir)?.into_iter().filter(|entry| entry.is_folder && !is_segment(&entry.path));
    Ok(found.map(|entry| entry.path).collect())
}

/// Whether a file is a segment, by its name.
pub(in crate::edge::disk) fn is_segment(file: &Path) -> bool {
    file.extension().is_some_and(|ending| ending == ENDING)
}

/// Where a file is written before it gets its name: whoever dies meanwhile leaves it, and nobody reads it.
pub(super) fn draft(file: &Path) -> io::Result<PathBuf> {
    let mut drawn = [0; 8];
    getrandom::fill(&mut drawn).map_err(io::Error::other)?;
    let mut name = file.as_os_str().to_owned();
    name.push(format!(".{:016x}.{DRAFT}", u64::from_le_bytes(drawn)));
    Ok(name.into())
}

/// Whether a file was left before it got its name, by that which it has.
pub(in crate::edge::disk) fn is_draft(file: &Path) -> bool {
    file.extension().is_some_and(|ending| ending == DRAFT)
}

/// The segments of one use of an epoch, in a fixed order.
pub(in crate::edge) fn epoch_files(store: &dyn Store, key: &EpochKey, used: u64) -> io::Result<Vec<PathBuf>> {
    let mut files = segments_in(store, &epoch_dir(store.root(), key))?;
    files.retain(|file| is_of(file, used));
    Ok(files)
}

/// What is said of the segments of one use of an epoch, by files that are named as they are.
pub(super) fn notes(store: &dyn Store, key: &EpochKey, used: u64) -> io::Result<Vec<PathBuf>> {
    let mut files = gone::ends_in(store, &epoch_dir(store.root(), key))?;
    files.retain(|file| is_of(file, used));
    Ok(files)
}

/// The segments of one use of all epochs that one claim covers.
pub(in crate::edge) fn claimed_files(
    store: &dyn Store,
    key: &EpochKey,
    used: u64,
) -> io::Result<Vec<PathBuf>> {
    let dir = claim_dir(store.root(), key);
    let mut found = segments_in(store, &dir)?;
    for epoch in folders_in(store, &dir)? {
        found.extend(segments_in(store, &epoch)?);
    }
    found.retain(|file| is_of(file, used));
    Ok(found)
}

fn is_of(file: &Path, used: u64) -> bool {
    let name = file.file_name().and_then(|name| name.to_str());
    name.and_then(|name| name.split_once('-')).is_some_and(|(of, _)| of == format!("{used:016x}"))
}

/// Hash of the application that wrote a segment, by its name.
pub(in crate::edge::disk) fn app_of(file: &Path) -> Option<&str> {
    file.file_stem()?.to_str()?.split('-').nth(2)
}

/// The segments of the application with hash `app` in one use of an epoch, and the agents that wrote them.
pub(in crate::edge::disk) fn files_of(
    store: &dyn Store,
    key: &EpochKey,
    used: u64,
    app: u64,
) -> io::Result<Vec<(AgentId, PathBuf)>> {
    let agent_of = |file: &Path| {
        let agent = file.file_stem()?.to_str()?.split('-').nth(1)?;
        u64::from_str_radix(agent, 16).ok().map(AgentId)
    };
    let files = epoch_files(store, key, used)?.into_iter().filter(|file| is_by(file, app));
    Ok(files.filter_map(|file| Some((agent_of(&file)?, file))).collect())
}

/// Whether a segment was written by the application with hash `app`, by its name.
pub(super) fn is_by(file: &Path, app: u64) -> bool {
    app_of(file).is_some_and(|by| by == format!("{app:016x}"))
}

/// All segments of a checkpoint, in a fixed order.
pub(in crate::edge) fn segment_files(store: &dyn Store) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for query in folders_in(store, store.root())? {
        for epoch in folders_in(store, &query)? {
            found.extend(segments_in(store, &epoch)?);
        }
    }
    Ok(found)
}
