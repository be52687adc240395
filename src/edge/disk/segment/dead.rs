//! Agents that others have gone on without, as the checkpoint folder knows them.
//!
//! ```text
//! <checkpoint_dir>/<agent>.dead
//! ```
//!
//! Of an agent that is declared dead the holders of a log take nothing more, once a newer attempt has asked them. But they
//! may be cut off together with it, be declared dead as it is, and go on: only the folder is left between both sides. So
//! whoever is about to read there what a dead agent wrote leaves a mark before. An agent that has not heard of the driver
//! for a while looks for its own after each sync and before it answers: what it acknowledged was on disk before the mark
//! was made, and is read.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::SETTING;
use super::disk::write_error;
use super::store::Store;
use crate::edge::locked;
use crate::error::{Error, Result};
use crate::id::AgentId;

/// Ending of a mark's name.
const DEAD: &str = "dead";
/// What stands in it: an object without a byte counts as none.
const MARK: &[u8] = b"others have gone on without this agent\n";
/// An agent is not declared dead for so long after it has sent a beat that was answered: less than the silence that will do
/// where nobody listens at its address.
const TRUST: Duration = Duration::from_secs(1);

/// Up to when nobody can have gone on without this agent, as far as it has heard; for ever in the driver.
#[derive(Debug, Default)]
pub(super) struct Trust(Mutex<Option<Instant>>);

impl Trust {
    /// The driver has answered a beat that was sent then.
    pub(super) fn beaten(&self, sent: Instant) {
        *locked(&self.0) = Some(sent + TRUST);
    }

    fn holds(&self) -> bool {
        locked(&self.0).is_none_or(|until| Instant::now() < until)
    }
}

/// Whether others may have gone on without an agent, which has just written.
///
/// # Errors
/// [`Error::Io`].
pub(super) fn is_given_up(store: &dyn Store, agent: AgentId, trust: &Trust) -> Result<bool> {
    if trust.holds() {
        return Ok(false);
    }
    let path = path(store.root(), agent);
    store.exists(&path).map_err(|e| Error::io(format!("looking for {}", path.display()), &e))
}

/// Sees that nothing more is acknowledged to those of some agents that are dead, as `dead_among` says, which is told of
/// those that have no mark.
///
/// # Errors
/// [`Error::DiskFull`]; [`Error::Io`]; those of `dead_among`.
pub(in crate::edge::disk) fn mark(
    store: &dyn Store,
    mut agents: HashSet<AgentId>,
    dead_among: impl FnOnce(Vec<AgentId>) -> Result<Vec<AgentId>>,
) -> Result<()> {
    let found = store.entries(store.root());
    let found = found.map_err(|e| Error::io(format!("listing {}", store.root().display()), &e))?;
    for marked in found.iter().filter_map(|entry| agent_of(&entry.path)) {
        agents.remove(&marked);
    }
    if agents.is_empty() {
        return Ok(());
    }
    for agent in dead_among(agents.into_iter().collect())? {
        let path = path(store.root(), agent);
        store.create(&path, MARK).or_else(is_there).map_err(|e| write_error(&path, SETTING, &e))?;
    }
    Ok(())
}

/// Another has made the mark.
fn is_there(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::AlreadyExists { Ok(()) } else { Err(error) }
}

/// The marks in a checkpoint folder.
pub(super) fn marks(store: &dyn Store) -> io::Result<Vec<PathBuf>> {
    let found = store.entries(store.root())?.into_iter().map(|entry| entry.path);
    Ok(found.filter(|path| agent_of(path).is_some()).collect())
}

fn path(root: &Path, agent: AgentId) -> PathBuf {
    root.join(format!("{:016x}.{DEAD}", agent.0))
}

fn agent_of(path: &Path) -> Option<AgentId> {
    let agent = path.file_name()?.to_str()?.strip_suffix(DEAD)?.strip_suffix('.')?;
    u64::from_str_radix(agent, 16).ok().map(AgentId).filter(|_| agent.len() == 16)
}

#[cfg(test)]
mod tests {
    use super::super::rubbish::prune;
    use super::super::store::Folder;
    use super::*;

    fn marked(store: &Folder, agents: &[u64], dead: &[u64]) -> Vec<AgentId> {
        let mut asked = Vec::new();
        let of = |ids: &[u64]| ids.iter().copied().map(AgentId).collect::<Vec<_>>();
        mark(store, of(agents).into_iter().collect(), |unmarked| {
            asked = unmarked;
            Ok(of(dead))
        })
        .unwrap();
        asked.sort_unstable();
        asked
    }

    #[test]
    fn who_was_marked_once_is_not_asked_for_again_and_its_mark_goes_when_it_is_old() {
        let root = tempfile::tempdir().unwrap();
        let store = Folder::at(root.path());
        assert_eq!(marked(&store, &[], &[]), []);
        assert_eq!(marked(&store, &[1, 2], &[2]), [AgentId(1), AgentId(2)]);
        assert_eq!(marked(&store, &[1, 2], &[]), [AgentId(1)]);
        assert_eq!(marks(&store).unwrap().len(), 1);
        assert_eq!(prune(&store, Duration::from_secs(60)).unwrap(), 0);
        assert_eq!(prune(&store, Duration::ZERO).unwrap(), 1);
        assert_eq!(marks(&store).unwrap(), [] as [PathBuf; 0]);
    }

    #[test]
    fn only_who_has_not_heard_of_the_driver_lately_looks_for_its_mark() {
        let root = tempfile::tempdir().unwrap();
        let store = Folder::at(root.path());
        marked(&store, &[1], &[1]);
        let trust = Trust::default();
        let is_given_up = |agent| is_given_up(&store, AgentId(agent), &trust).unwrap();
        assert!(!is_given_up(1), "nobody goes on without the driver's own");
        trust.beaten(Instant::now());
        assert!(!is_given_up(1));
        trust.beaten(Instant::now().checked_sub(TRUST).unwrap());
        assert!(is_given_up(1) && !is_given_up(2));
    }
}
