//! What becomes of attempts at an agent that was declared dead, be it that it was killed or stood still for long.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clonos::agent::protocol::{Ending, OpenTask, Reply, Request, Silence};
use clonos::agent::registry::AGENT_SILENCE_MS_MAX;
use clonos::edge::agent::Agent;
use clonos::edge::net::client::Client;
use clonos::error::Error;
use clonos::frame::Group;
use clonos::id::{AgentId, LogOffset, TaskId};
use clonos::task::Summary;

use super::leaving::has;
use super::line::line;
use super::pooling::{found, rows, told};
use super::world::*;

/// Stops an agent's process until others hold it for dead.
fn stands_still(agent: &AgentProcess) {
    agent.signal("-STOP");
    std::thread::sleep(Duration::from_millis(AGENT_SILENCE_MS_MAX + 500));
}

/// An attempt at work, with a block of which the only other executor has a copy.
fn at_work(world: &World, own: &AgentProcess) -> (Client, u64) {
    let mut worker = Client::connect(&world.config, &own.socket).unwrap();
    let session = open(&mut worker, &task(0), 1, 1).session;
    append(&mut worker, session, &text("recorded")).unwrap();
    (worker, session)
}

/// A process, and what the registry calls its agent.
fn known(world: &World, name: &str) -> (AgentProcess, AgentId) {
    let ids = || world.members().iter().map(|agent| agent.id).collect::<HashSet<_>>();
    let (before, process) = (ids(), world.process(name));
    (process, *ids().difference(&before).next().unwrap())
}

/// Has an agent declared dead that does not answer.
fn is_dead(world: &World, agent: AgentId) {
    let ask = Request::Silent { agent, refused: true };
    let asked = || Peer::of(world, world.driver.addr()).ask(&ask);
    eventually("it was not heard of", || matches!(asked(), Reply::SilenceIs(Silence::Dead)));
}

fn found_at(world: &World, agent: &Agent) -> Vec<bytes::Bytes> {
    open(&mut world.worker_of(agent), &task(0), 1, 2).prior
}

#[test]
fn what_a_task_at_work_has_recorded_is_copied_again_when_its_agent_dies() {
    let world = World::new();
    let ((own, id), peer) = (known(&world, "own"), world.process("peer"));
    let _attempt = at_work(&world, &own);
    let third = world.executor("third");
    own.kill();
    // As whoever has to do with it finds out.
    is_dead(&world, id);
    eventually("the peer gives it on", || has(&world, &third));
    peer.kill();
    assert_eq!(found_at(&world, &third), [text("recorded")]);
}

#[test]
fn who_comes_back_has_nothing_acknowledged_that_the_new_copies_do_not_have() {
    let world = World::with(|config, _| config.io_timeout_ms = 20_000);
    let ((own, id), peer) = (known(&world, "own"), world.process("peer"));
    let (mut worker, session) = at_work(&world, &own);
    let third = world.executor("third");
    stands_still(&own);
    is_dead(&world, id);
    eventually("the peer gives it on", || has(&world, &third));
    // It lies there when the agent goes on, which has heard of nothing.
    let late = worker.send(session, text("late")).unwrap();
    own.signal("-CONT");
    assert!(worker.wait(late).is_err(), "the copy that was made meanwhile lacks it");
    peer.kill();
    assert_eq!(found_at(&world, &third), [text("recorded")]);
}

#[test]
fn the_end_of_an_attempt_at_a_dead_agent_does_not_count() {
    let world = World::with(|config, _| config.io_timeout_ms = 20_000);
    let ((own, id), third) = (known(&world, "own"), world.executor("third"));
    let (mut worker, session) = at_work(&world, &own);
    stands_still(&own);
    is_dead(&world, id);
    assert!(has(&world, &third));
    let end = Ending { done: true, ..Ending::default() };
    let end = worker.start(&Request::Close { session, summary: Summary::default(), ending: end }).unwrap();
    own.signal("-CONT");
    let refused = worker.wait(end).unwrap_err();
    assert!(refused.to_string().contains("dead"), "{refused}");
}

#[test]
fn without_peers_each_block_is_asked_for_whether_the_attempt_counts() {
    let world = World::with(|config, folder| {
        config.io_timeout_ms = 20_000;
        config.sharing_depth = 0;
        config.checkpoint_dir = Some(folder.path().join("checkpoint").display().to_string());
    });
    let (own, third) = (world.process("own"), world.executor("third"));
    let (mut worker, session) = at_work(&world, &own);
    stands_still(&own);
    // It is read from the folder.
    assert_eq!(found_at(&world, &third), [text("recorded")]);
    let late = worker.send(session, text("late")).unwrap();
    own.signal("-CONT");
    assert!(worker.wait(late).is_err(), "the newer attempt answers otherwise");
}

#[test]
fn what_it_wrote_after_others_went_on_without_it_is_found_by_nobody() {
    let world = World::with(|config, folder| {
        config.io_timeout_ms = 20_000;
        config.sharing_depth = 0;
        config.checkpoint_dir = Some(folder.path().join("checkpoint").display().to_string());
    });
    let (own, other) = (world.process("own"), world.process("other"));
    let (mut worker, session) = at_work(&world, &own);
    stands_still(&own);
    // A newer attempt that records nothing itself.
    let mut next = Client::connect(&world.config, &other.socket).unwrap();
    assert_eq!(open(&mut next, &task(0), 1, 2).prior, [text("recorded")]);
    let late = worker.send(session, text("late")).unwrap();
    own.signal("-CONT");
    assert!(worker.wait(late).is_err());
    other.kill();
    std::thread::sleep(Duration::from_millis(AGENT_SILENCE_MS_MAX + 500));
    let third = world.executor("third");
    assert_eq!(open(&mut world.worker_of(&third), &task(0), 1, 3).prior, [text("recorded")]);
}

/// A consumer's agent on the host of the sender's, and another host: what is lost with the two is there.
#[test]
fn what_is_absorbed_on_the_senders_host_is_on_another_one() {
    let mut world = World::new();
    world.config.host_label = "one".into();
    let (sender, consumer) = (world.process("sender"), world.process("consumer"));
    world.config.host_label = "two".into();
    let other = world.executor("other");
    let inside = |task: &TaskId, attempt| OpenTask { inside: true, ..opening(task, 1, attempt) };
    let mut one = Client::connect(&world.config, &sender.socket).unwrap();
    let session = one.open(inside(&task(0), 1)).unwrap().session;
    let kept = one.start(&Request::Keep { session, block: text("rides") }).unwrap();
    one.wait(kept).unwrap();
    close(&mut one, session);
    let mut two = Client::connect(&world.config, &consumer.socket).unwrap();
    let session = two.open(inside(&TaskId { operator: "g".into(), ..task(0) }, 2)).unwrap().session;
    let (from, blocks) = (LogOffset::START, vec![text("rides")]);
    let group = Group { operator: "f".to_owned(), partition: task(0).partition, hops: 1, from, blocks };
    let absorbed = two.start(&Request::Absorb { session, groups: vec![group] }).unwrap();
    two.wait(absorbed).unwrap();
    close(&mut two, session);
    // What was on one host.
    sender.kill();
    consumer.kill();
    let mut found = None;
    eventually("it is known who is dead", || {
        found = world.worker_of(&other).open(inside(&task(0), 3)).ok();
        found.is_some()
    });
    assert_eq!(found.unwrap().prior, [text("rides")]);
}

/// Executors' agents on a line to the driver, which is cut when the flag is set.
fn on_a_line<const N: usize>(
    world: &mut World,
    names: [&str; N],
) -> ([(Agent, AgentId); N], Arc<AtomicBool>) {
    let is_cut = Arc::new(AtomicBool::new(false));
    let (driver, cut) = (world.config.driver_addr.clone(), Arc::clone(&is_cut));
    world.config.driver_addr = line(&driver, move |_, _| !cut.load(Ordering::SeqCst), |_| true);
    let agents = names.map(|name| world.executor(name));
    world.config.driver_addr = driver;
    let known = agents.map(|agent| {
        let id = world.id_of(&agent);
        (agent, id)
    });
    (known, is_cut)
}

/// A task at an agent that is cut off from the driver together with the holder of its copies, as others are not.
#[test]
fn who_is_cut_off_with_its_peers_has_nothing_acknowledged_once_others_have_read_the_folder() {
    let mut world = World::with(|config, folder| {
        config.io_timeout_ms = 1_000;
        config.checkpoint_dir = Some(folder.path().join("checkpoint").display().to_string());
    });
    let ([(own, id), (_peer, peer)], is_cut) = on_a_line(&mut world, ["own", "peer"]);
    let mut worker = world.worker_of(&own);
    let session = open(&mut worker, &task(0), 1, 1).session;
    append(&mut worker, session, &text("recorded")).unwrap();
    is_cut.store(true, Ordering::SeqCst);
    for agent in [id, peer] {
        is_dead(&world, agent);
    }
    // The two have all that is asked of them, and nobody else has gone on so far.
    append(&mut worker, session, &text("meanwhile")).unwrap();
    let third = world.executor("third");
    assert_eq!(found_at(&world, &third), [text("recorded"), text("meanwhile")]);
    let late = append(&mut worker, session, &text("late")).unwrap_err();
    assert!(matches!(late, Error::Fenced { .. }), "{late}");
    assert!(own.check_disk().is_err(), "it is of no use any more, and ends");
    assert_eq!(open(&mut world.worker_of(&third), &task(0), 1, 3).prior.len(), 2);
}

/// The same of an agent that is cut off alone, whose log another stage reads where its copy is.
#[test]
fn who_is_cut_off_has_nothing_acknowledged_once_another_stage_has_read_its_log() {
    let mut world = World::with(|config, _| config.io_timeout_ms = 1_000);
    let _peer = world.executor("peer");
    let ([(own, id)], is_cut) = on_a_line(&mut world, ["own"]);
    let mut worker = world.worker_of(&own);
    let session = open(&mut worker, &task(3), 104, 1).session;
    append(&mut worker, session, &rows(1..2, "recorded")).unwrap();
    let third = world.executor("third");
    is_cut.store(true, Ordering::SeqCst);
    is_dead(&world, id);
    append(&mut worker, session, &rows(2..3, "meanwhile")).unwrap();
    let mut other = world.worker_of(&third);
    open(&mut other, &task(0), 102, 20);
    assert_eq!(found(&mut other, 0, 1..4).unwrap(), told(&[(1, "recorded"), (2, "meanwhile")]));
    let late = append(&mut worker, session, &rows(3..4, "late")).unwrap_err();
    assert!(matches!(late, Error::Fenced { .. }), "{late}");
}
