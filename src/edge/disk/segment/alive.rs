//! Which agents the others have not gone on without, as the checkpoint folder knows them.
//!
//! ```text
//! <checkpoint_dir>/<incarnation>-<agent>.alive
//! ```
//!
//! Of an agent that is declared dead the holders of a log take nothing more, once a newer attempt has asked them. But they
//! may be cut off together with it, be declared dead as it is, and go on: only the folder is left between both sides. So
//! an executor's agent makes this file before its first segment, and looks for it after each sync, before it answers.
//! Whoever is about to read what a dead agent wrote removes it before: what was acknowledged was on disk by then, and is
//! read. It is a name that goes, as a claim is: a network's file system may remember for a while that one is not there.

use std::io;
use std::path::{Path, PathBuf};

use super::SETTING;
use super::disk::write_error;
use super::store::Store;
use crate::edge::progress::Progress;
use crate::error::{Error, Result};
use crate::id::AgentId;

/// Ending of the name.
const ALIVE: &str = "alive";
/// What stands in it: an object without a byte counts as none.
const CONTENT: &[u8] = b"this agent may write\n";

/// An agent of the application with this incarnation is about to write.
///
/// # Errors
/// [`Error::DiskFull`]; [`Error::Io`].
pub(super) fn begin(store: &dyn Store, incarnation: u64, agent: AgentId) -> Result<PathBuf> {
    let path = path(store.root(), incarnation, agent);
    let made = match store.create(&path, CONTENT) {
        // There was no room for what stands in it, say. Nothing was written, so nobody has gone on without the agent.
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
            store.remove(&path).and_then(|()| store.create(&path, CONTENT))
        }
        made => made,
    };
    made.map_err(|e| write_error(&path, SETTING, &e))?;
    Ok(path)
}

/// Whether nobody has gone on without the agent that has just written.
///
/// # Errors
/// [`Error::Io`].
pub(super) fn is_there(store: &dyn Store, path: &Path) -> Result<bool> {
    store.exists(path).map_err(|e| Error::io(format!("looking for {}", path.display()), &e))
}

/// Sees that nothing more is acknowledged to agents that are dead.
///
/// # Errors
/// [`Error::Io`].
pub(in crate::edge::disk) fn end(store: &dyn Store, incarnation: u64, dead: &[AgentId]) -> Result<()> {
    let failed = |path: &Path, e: &io::Error| Error::io(format!("removing {}", path.display()), e);
    for agent in dead {
        Progress::step();
        let path = path(store.root(), incarnation, *agent);
        if is_there(store, &path)? {
            store.give_up(&path).map_err(|e| failed(&path, &e))?;
        }
    }
    match dead {
        [] => Ok(()),
        // Also if another has removed them: they must not be back after a crash of whoever has the folder.
        _ => store.settle(store.root()).map_err(|e| failed(store.root(), &e)),
    }
}

/// The files of agents in a checkpoint folder, with the incarnations of their applications.
pub(super) fn all(store: &dyn Store) -> io::Result<Vec<(u64, PathBuf)>> {
    let found = store.entries(store.root())?.into_iter().map(|entry| entry.path);
    Ok(found.filter_map(|path| Some((incarnation_of(&path)?, path))).collect())
}

fn path(root: &Path, incarnation: u64, agent: AgentId) -> PathBuf {
    root.join(format!("{incarnation:016x}-{:016x}.{ALIVE}", agent.0))
}

fn incarnation_of(path: &Path) -> Option<u64> {
    let name = path.file_name()?.to_str()?.strip_suffix(ALIVE)?.strip_suffix('.')?;
    u64::from_str_radix(name.split_once('-')?.0, 16).ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::claim;
    use super::super::rubbish::prune;
    use super::super::store::Folder;
    use super::*;
    use crate::id::{Epoch, EpochKey};

    #[test]
    fn who_is_dead_is_there_no_more_also_if_that_is_said_twice() {
        let root = tempfile::tempdir().unwrap();
        let store = Folder::at(root.path());
        let files = [1, 2].map(|agent| begin(&store, 7, AgentId(agent)).unwrap());
        for _ in 0..2 {
            end(&store, 7, &[AgentId(2), AgentId(3)]).unwrap();
            assert_eq!(files.each_ref().map(|file| is_there(&store, file).unwrap()), [true, false]);
        }
    }

    #[test]
    fn a_file_for_which_there_was_no_room_is_made_again() {
        let root = tempfile::tempdir().unwrap();
        let store = Folder::at(root.path());
        let path = path(root.path(), 7, AgentId(1));
        std::fs::File::create(&path).unwrap();
        assert_eq!(begin(&store, 7, AgentId(1)).unwrap(), path);
        assert_eq!(std::fs::read(&path).unwrap(), CONTENT);
    }

    #[test]
    fn what_killed_agents_leave_goes_when_it_is_old_and_their_application_claims_nothing() {
        let root = tempfile::tempdir().unwrap();
        let store = Folder::at(root.path());
        let key = EpochKey { query: "q".into(), epoch: Epoch::Named("daily".into()) };
        let claimed = claim::take(&store, &key, 7, ("app", 1)).unwrap();
        let files = [6, 7].map(|incarnation| begin(&store, incarnation, AgentId(1)).unwrap());
        let left = |age| {
            prune(&store, age).unwrap();
            files.each_ref().map(|file| is_there(&store, file).unwrap())
        };
        assert_eq!(left(Duration::from_secs(60)), [true, true]);
        assert_eq!(left(Duration::ZERO), [false, true]);
        claim::give_up(&store, &key, claimed).unwrap();
        assert_eq!(left(Duration::ZERO), [false, false]);
    }
}
