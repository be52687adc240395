//! What a peer is taken to have: what it has answered for.

use std::net::TcpListener;
use std::sync::Arc;
use std::thread::{scope, sleep};
use std::time::Duration;

use bytes::Bytes;
use tempfile::TempDir;

use super::*;
use crate::agent::protocol::{Borders, Code, Layout};
use crate::config::SessionConfig;
use crate::edge::agent::registrar::Registrar;
use crate::edge::disk::Disk;
use crate::edge::disk::segment::RealDisk;
use crate::edge::net::server::Server;
use crate::id::{AgentId, Epoch, Partition};

const GENERATION: Generation = Generation(3);

fn task() -> TaskId {
    TaskId { query: "q".into(), operator: "f".into(), epoch: Epoch::Batch(1), partition: Partition(0) }
}

fn info(id: u64, addr: String) -> AgentInfo {
    AgentInfo { id: AgentId(id), addr, host: format!("host {id}"), driver: false }
}

/// An agent that nobody has registered.
fn agent(folder: &TempDir, id: u64) -> Handler {
    let mut config = SessionConfig::new("app", [7; 32]);
    config.io_timeout_ms = 800;
    config.spill_dir = Some(folder.path().join(id.to_string()).display().to_string());
    let disk = Disk::open(&config, Arc::new(RealDisk), AgentId(id), 1).unwrap();
    Handler::new(config, info(id, String::new()), disk, Registrar::There(String::new()), String::new())
}

/// Begins a log of two blocks.
fn with_log(agent: &Handler) {
    let code = Code { fingerprint: 0, python: 0 };
    let layout = Layout { app: 1, stage: 1, tasks: None, code, plan: None, borders: Borders::UNKNOWN };
    locked(&agent.store).begin(&task(), GENERATION, layout).unwrap();
    append(agent);
    append(agent);
}

fn append(agent: &Handler) {
    let from = locked(&agent.store).end(&task()).unwrap();
    agent.hold(&task(), GENERATION, from, &Bytes::from_static(b"recorded")).unwrap();
}

/// Where an agent listens that does not answer yet.
fn silent() -> (TcpListener, AgentInfo) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    (listener, info(2, addr))
}

#[test]
fn what_a_peer_did_not_answer_for_is_sent_again() {
    let folder = tempfile::tempdir().unwrap();
    let own = agent(&folder, 1);
    with_log(&own);
    let (listener, peer) = silent();
    for _ in 0..2 {
        let refused = own.send_all(Logs::own(&task(), GENERATION), &peer);
        assert!(refused.as_ref().is_err_and(Error::is_retryable), "{refused:?}");
    }
    let there = Arc::new(agent(&folder, 2));
    let server = Server::new(Arc::clone(&there));
    server.listen_tcp(listener).unwrap();
    own.send_all(Logs::own(&task(), GENERATION), &peer).unwrap();
    let end = locked(&own.store).end(&task());
    assert_eq!(locked(&there.store).end(&task()), end);
    assert!(locked(&there.store).is_whole(&task()));
    server.stop();
}

#[test]
fn what_another_still_waits_for_is_not_taken_for_sent() {
    let folder = tempfile::tempdir().unwrap();
    let own = agent(&folder, 1);
    with_log(&own);
    let (_listener, peer) = silent();
    scope(|scope| {
        let first = scope.spawn(|| own.send_all(Logs::own(&task(), GENERATION), &peer));
        sleep(Duration::from_millis(100));
        let second = own.send_all(Logs::own(&task(), GENERATION), &peer);
        assert!(second.is_err(), "nothing has arrived");
        assert!(first.join().unwrap().is_err());
    });
}

/// Absorbs a block of a partition's log, behind those that are there.
fn absorb(agent: &Handler, partition: u32) {
    let of = TaskId { partition: Partition(partition), ..task() };
    let from = locked(&agent.store).end(&of).unwrap_or_default();
    let block = Bytes::from_static(b"absorbed");
    agent.hold_all(None, &of, Generation::NONE, GENERATION, from, &[block]).unwrap();
}

#[test]
fn of_absorbed_logs_a_peer_is_sent_what_it_lacks_and_all_if_it_has_lost_one() {
    let folder = tempfile::tempdir().unwrap();
    let (own, there) = (agent(&folder, 1), Arc::new(agent(&folder, 2)));
    let (listener, peer) = silent();
    let server = Server::new(Arc::clone(&there));
    server.listen_tcp(listener).unwrap();
    let tasks: Vec<TaskId> = (0..3).map(|number| TaskId { partition: Partition(number), ..task() }).collect();
    let logs = Logs::absorbed(&tasks[0], &tasks, GENERATION);
    let sent = || {
        let before = own.sent_bytes.load(Ordering::Relaxed);
        own.send_all(logs, &peer).unwrap();
        let ends = |agent: &Handler| tasks.iter().map(|of| locked(&agent.store).end(of)).collect::<Vec<_>>();
        assert_eq!(ends(&there), ends(&own));
        own.sent_bytes.load(Ordering::Relaxed) - before
    };
    (0..3).for_each(|number| absorb(&own, number));
    assert_eq!(sent(), 3 * 8);
    assert_eq!(sent(), 0);
    absorb(&own, 1);
    assert_eq!(sent(), 8);
    locked(&there.store).forget(&tasks[1], GENERATION);
    absorb(&own, 1);
    assert_eq!(sent(), (2 + 3) * 8, "what lies behind a gap is not there");
    server.stop();
}

#[test]
fn an_older_attempt_does_not_send_a_newer_ones_log() {
    let folder = tempfile::tempdir().unwrap();
    let own = agent(&folder, 1);
    with_log(&own);
    let (_listener, peer) = silent();
    let refused = own.send_all(Logs::own(&task(), Generation(GENERATION.0 - 1)), &peer);
    assert!(matches!(refused, Err(Error::Fenced { .. })), "{refused:?}");
}

#[test]
fn who_cannot_ask_for_the_agents_of_a_grant_does_not_go_on_without_them() {
    let folder = tempfile::tempdir().unwrap();
    let own = agent(&folder, 1);
    assert!(own.members(1).is_err(), "there is no registry to ask");
    assert!(own.members(0).is_ok_and(|known| known.is_empty()));
    assert!(own.members_now().is_empty());
}
