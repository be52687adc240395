//! What is compared is what is written, and what cannot be read is not compared.

use std::sync::Arc;

use tempfile::TempDir;

use super::*;
use crate::agent::protocol::{Borders, Code, Layout};
use crate::causal_log::{BlockHash, SpillRef};
use crate::config::SessionConfig;
use crate::edge::agent::registrar::Registrar;
use crate::edge::disk::Disk;
use crate::edge::disk::segment::RealDisk;
use crate::id::{AgentId, Epoch, Partition};

fn task() -> TaskId {
    TaskId { query: "q".into(), operator: "f".into(), epoch: Epoch::Batch(1), partition: Partition(0) }
}

/// An agent that nobody has registered, with a checkpoint folder.
fn agent(folder: &TempDir) -> Handler {
    let mut config = SessionConfig::new("app", [7; 32]);
    config.spill_dir = Some(folder.path().join("spill").display().to_string());
    config.checkpoint_dir = Some(folder.path().join("checkpoint").display().to_string());
    let disk = Disk::open(&config, Arc::new(RealDisk), AgentId(1), 1).unwrap();
    let info = AgentInfo { id: AgentId(1), addr: String::new(), host: "host".into(), driver: false };
    Handler::new(config, info, disk, Registrar::There(String::new()), String::new())
}

/// The use of the epoch's name.
const USED: u64 = 1;

/// What was absorbed, as it is to be shared.
fn shared(agent: &Handler) -> Shared {
    let store = locked(&agent.store);
    let end = store.end(&task()).unwrap();
    let beginning = store.beginning(&task(), end).unwrap();
    Shared { task: task(), version: store.version(&task()), end, beginning, vouched: store.vouched(&task()) }
}

fn absorb(agent: &Handler, block: &'static [u8]) {
    let (by, born, from) = (Generation::NONE, Generation(1), LogOffset::START);
    agent.hold_copy(None, &task(), by, born, from, &Bytes::from_static(block)).unwrap();
}

#[test]
fn what_took_the_place_of_a_log_since_it_was_compared_is_not_written_in_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let agent = agent(&folder);
    absorb(&agent, b"compared");
    let log = shared(&agent);
    let written = agent.persist_copies(&[(shared(&agent), Counting::default())], USED).unwrap();
    assert_eq!(written.len(), 1);
    locked(&agent.store).drop_stale(&task(), log.version, LogOffset::START);
    absorb(&agent, b"another one");
    assert!(agent.persist_copies(&[(log, Counting::default())], USED).unwrap().is_empty());
}

#[test]
fn what_cannot_be_read_here_is_not_taken_for_another_log() {
    let folder = tempfile::tempdir().unwrap();
    let agent = agent(&folder);
    let code = Code { fingerprint: 0, python: 0 };
    let layout = Layout { app: 1, stage: 1, tasks: None, code, plan: None, borders: Borders::UNKNOWN };
    // In a file that is gone.
    let place = SpillRef { file: u64::MAX, pos: 0, len: 8 };
    locked(&agent.store).recovered(&task(), Generation(1), layout, [(place, BlockHash::of(b""))]);
    let block = Bytes::from_static(b"recorded");
    let read = Ours::default().next_is(&agent, &shared(&agent), LogOffset::START, &block);
    assert!(read.as_ref().is_err_and(|error| error.condition() == "CORRUPT_LOG"), "{read:?}");
    // Nor is a log that is not here any more.
    let log = shared(&agent);
    locked(&agent.store).drop_stale(&task(), log.version, LogOffset::START);
    assert!(!Ours::default().next_is(&agent, &log, LogOffset::START, &block).unwrap());
}
