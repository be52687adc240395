//! Answers of the registry that are lost while a sender is opened again: what consumers show stays so, and they go on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{sleep, spawn};
use std::time::Duration;

use clonos::agent::protocol::{AgentInfo, Reply, Request, Sent};
use clonos::edge::agent::{Agent, AgentConfig, Role};
use clonos::id::{AgentId, Generation};

use crate::line::loses_answer;
use crate::reopened::{
    absorb, commit, consumer, inside, keep, open_when_known, opened_again, shows, worker_of, world,
};
use crate::world::{Peer, World, close, task, text};

/// Grants an attempt to an agent that never hears of it: the answer is lost.
pub(super) fn granted_in_vain(world: &World, agent: &Agent, attempt: u64) -> Generation {
    let sent = Sent { by: world.id_of(agent), number: attempt };
    let grant = Request::Grant { open: inside(&task(0), attempt), sent, commits_seen: 0 };
    let granted = Peer::of(world, world.driver.addr()).ask(&grant);
    let Reply::Granted(grant) = granted else { panic!("not granted") };
    grant.generation
}

#[test]
fn an_attempt_of_which_its_agent_never_heard_does_not_keep_consumers_from_going_on() {
    let world = world(false);
    let (a, b) = (world.process("a"), world.executor("b"));
    let mut on_a = worker_of(&world, &a);
    let first = on_a.open(inside(&task(0), 1)).unwrap();
    keep(&mut on_a, first.session, "one");
    granted_in_vain(&world, &b, 2);
    let c = world.process("c");
    assert!(shows(&mut worker_of(&world, &c), 0, &task(0), &["one"]));
}

#[test]
fn behind_an_attempt_that_came_to_nothing_the_one_before_counts() {
    let world = world(false);
    let (_b, _on_b, _second) = opened_again(&world);
    let (c, late) = (world.process("c"), world.process("late"));
    assert!(shows(&mut worker_of(&world, &c), 0, &task(0), &["new"]));
    // It lives, and says that it knows of none.
    let e = world.executor("e");
    granted_in_vain(&world, &e, 3);
    let mut on_late = worker_of(&world, &late);
    assert!(!shows(&mut on_late, 1, &task(0), &["old"]));
    assert!(shows(&mut on_late, 1, &task(0), &["new"]));
}

#[test]
fn a_consumer_does_not_wait_for_what_another_on_its_agent_has_taken_in() {
    let world = world(false);
    let (a, c) = (world.process("a"), world.process("c"));
    let (mut on_a, mut on_c) = (worker_of(&world, &a), worker_of(&world, &c));
    for number in 0..2 {
        let first = on_a.open(inside(&task(number), 1)).unwrap();
        keep(&mut on_a, first.session, "one");
    }
    // The second attempt of one of them is said to be where nobody gets to, though it is alive.
    let unreachable = AgentInfo {
        id: AgentId(77),
        addr: "127.0.0.1:1".to_owned(),
        host: "elsewhere".to_owned(),
        driver: false,
    };
    let mut driver = Peer::of(&world, world.driver.addr());
    driver.ask(&Request::Register { info: unreachable, executor: String::new() });
    let grant = Request::Grant {
        open: inside(&task(0), 2),
        sent: Sent { by: AgentId(77), number: 0 },
        commits_seen: 0,
    };
    assert!(matches!(driver.ask(&grant), Reply::Granted(_)));
    let is_over = Arc::new(AtomicBool::new(false));
    let lives = Arc::clone(&is_over);
    let beats = spawn(move || {
        while !lives.load(Ordering::SeqCst) {
            driver.ask(&Request::Heartbeat { agent: AgentId(77), commits_seen: 0 });
            sleep(Duration::from_millis(200));
        }
    });
    let waits = on_c.open(inside(&consumer(0), 50)).unwrap();
    absorb(&mut on_c, waits.session, &task(0), &["one"]).unwrap();
    let goes_on = on_c.open(inside(&consumer(1), 51)).unwrap();
    absorb(&mut on_c, goes_on.session, &task(1), &["one"]).unwrap();
    commit(&mut on_c, goes_on.session).unwrap();
    // Nothing is decided without it, also if it is tried again.
    for _ in 0..2 {
        assert_eq!(commit(&mut on_c, waits.session).unwrap_err().condition(), "TIMEOUT");
    }
    is_over.store(true, Ordering::SeqCst);
    beats.join().unwrap();
}

#[test]
fn an_open_whose_answer_was_lost_is_not_contradicted_by_an_old_frame() {
    for checkpoint in [false, true] {
        let world = world(checkpoint);
        let (a, c) = (world.process("a"), world.process("c"));
        let _others: Vec<_> = (0..3).map(|number| world.process(&format!("other{number}"))).collect();
        let mut config = world.config.clone();
        config.driver_addr =
            loses_answer(world.driver.addr(), |request| matches!(request, Request::Holding { .. }));
        let role = Role::Executor { id: "b".into() };
        let socket = world.folder.path().join("b.sock");
        let b = Agent::start(AgentConfig { session: config, role, socket }).unwrap();
        let (mut on_a, mut on_c) = (worker_of(&world, &a), worker_of(&world, &c));
        let first = on_a.open(inside(&task(0), 1)).unwrap();
        keep(&mut on_a, first.session, "one");
        keep(&mut on_a, first.session, "old");
        close(&mut on_a, first.session);
        let taker = on_c.open(inside(&consumer(0), 50)).unwrap();
        absorb(&mut on_c, taker.session, &task(0), &["one"]).unwrap();
        a.kill();
        sleep(Duration::from_secs(2));
        if let Ok(second) = world.worker_of(&b).open(inside(&task(0), 2)) {
            assert_eq!(second.prior, [text("one")]);
        }
        let shown = shows(&mut on_c, 0, &task(0), &["one", "old"]);
        let third = open_when_known(&mut world.worker(), &task(0), 3);
        assert!(!shown || third.prior == [text("one"), text("old")], "{:?}", third.prior);
    }
}
