//! Opens that come to nothing, and those of an agent that comes late.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use clonos::agent::protocol::{Reply, Request, Sent};
use clonos::config::SessionConfig;
use clonos::edge::agent::{Agent, AgentConfig, Role};
use clonos::id::Epoch;

use crate::line::{Talk, line, loses_answer};
use crate::world::{Peer, World, append, close, numbered, open, open_as, opening, task, task_in, text};

const MIB: u64 = 1 << 20;

/// An agent that reaches the driver at this address.
fn on_line(world: &World, name: &str, driver_addr: String) -> Agent {
    let session = SessionConfig { driver_addr, ..world.config.clone() };
    let socket = world.folder.path().join(format!("{name}.sock"));
    Agent::start(AgentConfig { session, role: Role::Executor { id: name.into() }, socket }).unwrap()
}

#[test]
fn a_task_is_free_again_after_an_open_that_failed_behind_its_grant() {
    let world = World::with(|config, _| config.sharing_depth = 0);
    let mut here = world.worker();
    let first = open(&mut here, &task(0), 1, 1);
    append(&mut here, first.session, &numbered(0, 2 * MIB as usize)).unwrap();
    close(&mut here, first.session);
    let mut session = world.config.clone();
    session.memory_bytes = MIB;
    let socket = world.folder.path().join("small.sock");
    let role = Role::Executor { id: "small".into() };
    let small = Agent::start(AgentConfig { session, role, socket }).unwrap();
    let mut on_small = world.worker_of(&small);
    let refused = open_as(&mut on_small, &task(0), 2, 2).unwrap_err();
    assert_eq!(refused.condition(), "MEMORY_BUDGET");
    // An attempt of another stage does not wait for the end of one that never began.
    let began = Instant::now();
    assert_eq!(open(&mut here, &task(0), 3, 3).prior.len(), 1);
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
}

#[test]
fn an_agent_that_comes_late_carries_out_no_commits_that_were_before_it() {
    const COMMITS: u64 = 300;
    let world = World::new();
    let mut here = world.worker();
    for number in 0..COMMITS {
        let named = Epoch::Named(format!("epoch {number}"));
        let opened = open(&mut here, &task_in(named.clone(), 0), 1, number);
        append(&mut here, opened.session, &text("a")).unwrap();
        close(&mut here, opened.session);
        world.driver.commit_epoch("q", &named).unwrap();
    }
    let heard = Arc::<Mutex<Vec<u64>>>::default();
    let hears = Arc::clone(&heard);
    let asked = move |_: &Talk, request: &Request| {
        if let Request::Grant { commits_seen, .. } = request {
            hears.lock().unwrap().push(*commits_seen);
        }
        true
    };
    let driver_addr = line(world.driver.addr(), asked, |_| true);
    let late = on_line(&world, "late", driver_addr);
    let open = opening(&task(0), 1, 1);
    world.worker_of(&late).open(open).unwrap();
    assert_eq!(*heard.lock().unwrap(), [COMMITS], "it asks as if it had missed commits");
}

#[test]
fn a_task_is_free_again_though_the_answer_that_granted_it_was_lost() {
    let world = World::new();
    let deaf = world.executor("deaf");
    let sent = Sent { by: world.id_of(&deaf), number: 0 };
    let grant = Request::Grant { open: opening(&task(0), 1, 1), sent, commits_seen: 0 };
    assert!(matches!(Peer::of(&world, world.driver.addr()).ask(&grant), Reply::Granted(_)));
    let other = world.executor("other");
    open(&mut world.worker_of(&other), &task(0), 2, 2);
}

#[test]
fn an_open_is_asked_for_until_the_driver_answers() {
    let world = World::new();
    let driver = loses_answer(world.driver.addr(), |request| matches!(request, Request::Grant { .. }));
    let slow = on_line(&world, "slow", driver);
    let mut on_slow = world.worker_of(&slow);
    let opened = open(&mut on_slow, &task(0), 1, 1);
    // It is the one that counts.
    append(&mut on_slow, opened.session, &text("a")).unwrap();
    close(&mut on_slow, opened.session);
}

#[test]
fn a_task_is_free_again_though_its_end_was_told_in_vain() {
    let world = World::new();
    let ends_nothing = |_: &Talk, request: &Request| !matches!(request, Request::Closed { .. });
    let mute = on_line(&world, "mute", line(world.driver.addr(), ends_nothing, |_| true));
    let mut on_mute = world.worker_of(&mute);
    let opened = open(&mut on_mute, &task(0), 1, 1);
    append(&mut on_mute, opened.session, &text("a")).unwrap();
    drop(on_mute);
    let other = world.executor("other");
    let mut on_other = world.worker_of(&other);
    let again = open(&mut on_other, &task(0), 2, 2);
    assert_eq!(again.prior, [text("a")]);
    // Also for an attempt at the agent itself.
    append(&mut on_other, again.session, &text("b")).unwrap();
    close(&mut on_other, again.session);
    let mut on_mute = world.worker_of(&mute);
    drop(open(&mut on_mute, &task(0), 3, 3));
    drop(on_mute);
    assert_eq!(open(&mut world.worker_of(&mute), &task(0), 4, 4).prior, [text("a"), text("b")]);
}

#[test]
fn a_task_that_is_open_is_not_free_however_often_others_ask() {
    let world = World::new();
    let executor = world.executor("executor");
    let mut on_executor = world.worker_of(&executor);
    let first = open(&mut on_executor, &task(0), 1, 1);
    append(&mut on_executor, first.session, &text("a")).unwrap();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| open(&mut world.worker(), &task(0), 2, 2).prior);
        // Longer than one request of a worker takes.
        std::thread::sleep(Duration::from_secs(6));
        assert!(!other.is_finished());
        append(&mut on_executor, first.session, &text("b")).unwrap();
        close(&mut on_executor, first.session);
        assert_eq!(other.join().unwrap(), [text("a"), text("b")]);
    });
}
