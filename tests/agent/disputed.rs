//! What counts of a log while attempts come to nothing, answers are late and agents are declared dead: what was shown
//! stays so, and nobody fails for ever.

use std::thread::{sleep, spawn};
use std::time::Duration;

use clonos::agent::protocol::{Reply, Request};
use clonos::edge::agent::{Agent, AgentConfig, Role};
use clonos::edge::net::client::Client;

use crate::line::{holds_answer, holds_request};
use crate::lost_answers::granted_in_vain;
use crate::reopened::{
    absorb, commit, consumer, fail, inside, keep, open_when_known, opened_again, shows, worker_of, world,
};
use crate::world::{Peer, World, close, eventually, fence_of, task, text};

const SENDERS: u32 = 6;

/// Shows what a log says, on whatever agent.
fn has_shown(worker: &mut Client, partition: u32, blocks: &[&str]) {
    assert!(shows(worker, partition, &task(0), blocks), "nothing speaks against {blocks:?}");
}

// What the next attempt finds.

#[test]
fn a_longer_copy_of_an_old_frame_does_not_take_the_place_of_what_was_shown() {
    let world = world(false);
    let (_b, _on_b, _second) = opened_again(&world);
    let c = world.process("c");
    has_shown(&mut worker_of(&world, &c), 0, &["new"]);
    let late = world.process("late");
    // It is found stale when it would become visible; it only stands there.
    let mut on_late = worker_of(&world, &late);
    let taker = on_late.open(inside(&consumer(1), 60)).unwrap();
    absorb(&mut on_late, taker.session, &task(0), &["old", "older"]).unwrap();
    let third = open_when_known(&mut world.worker(), &task(0), 3);
    assert_eq!(third.prior, [text("new")]);
}

#[test]
fn what_was_shown_after_an_attempt_was_lost_is_what_the_next_one_finds() {
    let world = world(false);
    let (a, b) = (world.process("a"), world.process("b"));
    let (c, d) = (world.process("c"), world.process("d"));
    let (mut on_a, mut on_c, mut on_d) =
        (worker_of(&world, &a), worker_of(&world, &c), worker_of(&world, &d));
    let first = on_a.open(inside(&task(0), 1)).unwrap();
    keep(&mut on_a, first.session, "one");
    keep(&mut on_a, first.session, "old");
    close(&mut on_a, first.session);
    let taker = on_c.open(inside(&consumer(0), 50)).unwrap();
    absorb(&mut on_c, taker.session, &task(0), &["one"]).unwrap();
    fail(&mut on_c, taker.session);
    a.kill();
    let mut on_b = worker_of(&world, &b);
    let second = open_when_known(&mut on_b, &task(0), 2);
    assert_eq!(second.prior, [text("one")]);
    keep(&mut on_b, second.session, "new");
    keep(&mut on_b, second.session, "newer");
    let other = on_d.open(inside(&consumer(1), 51)).unwrap();
    absorb(&mut on_d, other.session, &task(0), &["one", "new", "newer"]).unwrap();
    b.kill();
    let shown = shows(&mut on_c, 0, &task(0), &["one", "old"]);
    let third = open_when_known(&mut world.worker(), &task(0), 3);
    assert!(!shown || third.prior == [text("one"), text("old")], "{:?}", third.prior);
}

// What counts.

#[test]
fn an_agent_that_never_heard_of_its_own_attempt_does_not_show_an_old_frame() {
    let world = world(false);
    let (_b, _on_b, _second) = opened_again(&world);
    let (late, _peer) = (world.executor("late"), world.process("peer"));
    granted_in_vain(&world, &late, 3);
    assert!(!shows(&mut world.worker_of(&late), 0, &task(0), &["old"]));
}

#[test]
fn an_attempt_that_died_before_it_began_leaves_the_one_before() {
    let world = world(false);
    let (_b, _on_b, _second) = opened_again(&world);
    let (late, _peer) = (world.process("late"), world.process("peer"));
    let gone = world.executor("gone");
    granted_in_vain(&world, &gone, 3);
    gone.stop();
    assert!(!shows(&mut worker_of(&world, &late), 0, &task(0), &["old"]));
}

#[test]
fn four_attempts_that_came_to_nothing_leave_the_one_before() {
    let world = world(false);
    let (_b, _on_b, _second) = opened_again(&world);
    let (late, e) = (world.process("late"), world.executor("e"));
    for attempt in 3..7 {
        granted_in_vain(&world, &e, attempt);
    }
    assert!(!shows(&mut worker_of(&world, &late), 0, &task(0), &["old"]));
}

/// Agents of this process, in the order of their ids, in which they are asked.
fn executors(world: &World, count: usize) -> Vec<Agent> {
    let mut all: Vec<Agent> = (0..count).map(|number| world.executor(&format!("executor{number}"))).collect();
    all.sort_by_key(|agent| world.id_of(agent));
    all
}

#[test]
fn who_has_little_of_what_was_shown_does_not_speak_for_who_has_more() {
    let world = world(false);
    let (a, b) = (world.process("a"), world.process("b"));
    let others = executors(&world, 6);
    let (mut on_a, mut on_c, mut on_d) =
        (worker_of(&world, &a), world.worker_of(&others[0]), world.worker_of(&others[1]));
    for number in 0..SENDERS {
        let first = on_a.open(inside(&task(number), 1)).unwrap();
        keep(&mut on_a, first.session, "one");
        keep(&mut on_a, first.session, "old");
        close(&mut on_a, first.session);
        let taker = on_c.open(inside(&consumer(number), 50)).unwrap();
        absorb(&mut on_c, taker.session, &task(number), &["one"]).unwrap();
        fail(&mut on_c, taker.session);
    }
    a.kill();
    let mut on_b = worker_of(&world, &b);
    for number in 0..SENDERS {
        let second = open_when_known(&mut on_b, &task(number), 2);
        assert_eq!(second.prior, [text("one")]);
        keep(&mut on_b, second.session, "new");
    }
    for number in 0..SENDERS {
        assert!(shows(&mut on_c, number, &task(number), &["one"]));
        assert!(shows(&mut on_d, 100 + number, &task(number), &["one", "new"]));
    }
    b.kill();
    let (late, _peer) = (world.process("late"), world.process("peer"));
    let mut on_late = worker_of(&world, &late);
    let shown: Vec<bool> = (0..SENDERS)
        .map(|number| shows(&mut on_late, 200 + number, &task(number), &["one", "old"]))
        .collect();
    assert_eq!(shown, [false; SENDERS as usize]);
}

#[test]
fn what_stands_in_the_folder_alone_counts_also_for_who_has_a_part_of_it() {
    let world = World::with(|config, folder| {
        config.sharing_depth = 0;
        config.checkpoint_dir = Some(folder.path().join("checkpoint").display().to_string());
    });
    let (a, b) = (world.process("a"), world.process("b"));
    let (c, d) = (world.process("c"), world.process("d"));
    let (mut on_a, mut on_c, mut on_d) =
        (worker_of(&world, &a), worker_of(&world, &c), worker_of(&world, &d));
    let first = on_a.open(inside(&task(0), 1)).unwrap();
    keep(&mut on_a, first.session, "one");
    keep(&mut on_a, first.session, "old");
    close(&mut on_a, first.session);
    has_shown(&mut on_c, 0, &["one"]);
    a.kill();
    let mut on_b = worker_of(&world, &b);
    let second = open_when_known(&mut on_b, &task(0), 2);
    assert_eq!(second.prior, [text("one")]);
    keep(&mut on_b, second.session, "new");
    has_shown(&mut on_d, 1, &["one", "new"]);
    b.kill();
    d.kill();
    assert!(!shows(&mut on_c, 2, &task(0), &["one", "old"]));
}

/// An agent that is granted an attempt, and hears of it after somebody has asked there what it has. What `first`
/// does before, and `meanwhile`.
fn granted_late(world: &World, meanwhile: impl FnOnce()) -> (Agent, Client, u64) {
    let (addr, hold) = holds_answer(world.driver.addr(), |request| matches!(request, Request::Grant { .. }));
    let mut config = world.config.clone();
    config.driver_addr = addr;
    let socket = world.folder.path().join("slow.sock");
    let b = Agent::start(AgentConfig { session: config, role: Role::Executor { id: "slow".into() }, socket })
        .unwrap();
    let mut on_b = world.worker_of(&b);
    let opener = spawn(move || {
        let opened = on_b.open(inside(&task(0), 2));
        (on_b, opened)
    });
    eventually("it is granted", || hold.is_seen());
    sleep(Duration::from_millis(100));
    meanwhile();
    hold.go_on();
    let (mut on_b, opened) = opener.join().unwrap();
    // One that is too late is tried again.
    let opened = opened.unwrap_or_else(|_| open_when_known(&mut on_b, &task(0), 12));
    (b, on_b, opened.session)
}

#[test]
fn a_grant_that_comes_late_does_not_keep_consumers_from_going_on() {
    let world = world(false);
    let (a, c) = (world.process("a"), world.process("c"));
    let (mut on_a, mut on_c) = (worker_of(&world, &a), worker_of(&world, &c));
    let first = on_a.open(inside(&task(0), 1)).unwrap();
    keep(&mut on_a, first.session, "one");
    fail(&mut on_a, first.session);
    let (_b, mut on_b, second) = granted_late(&world, || has_shown(&mut on_c, 0, &["one"]));
    keep(&mut on_b, second, "two");
    close(&mut on_b, second);
    let late = world.process("late");
    assert!(shows(&mut worker_of(&world, &late), 1, &task(0), &["one", "two"]));
}

#[test]
fn a_grant_that_comes_late_is_not_contradicted_by_an_old_frame() {
    let world = world(false);
    let (a, c) = (world.process("a"), world.process("c"));
    let _others: Vec<_> = (0..4).map(|number| world.process(&format!("other{number}"))).collect();
    let (mut on_a, mut on_c) = (worker_of(&world, &a), worker_of(&world, &c));
    let first = on_a.open(inside(&task(0), 1)).unwrap();
    keep(&mut on_a, first.session, "one");
    keep(&mut on_a, first.session, "old");
    close(&mut on_a, first.session);
    let taker = on_c.open(inside(&consumer(0), 50)).unwrap();
    absorb(&mut on_c, taker.session, &task(0), &["one"]).unwrap();
    fail(&mut on_c, taker.session);
    a.kill();
    sleep(Duration::from_secs(2));
    let (_b, mut on_b, second) = granted_late(&world, || has_shown(&mut on_c, 0, &["one"]));
    keep(&mut on_b, second, "new");
    close(&mut on_b, second);
    let (late, _peer) = (world.process("late"), world.process("peer"));
    let is_old = shows(&mut worker_of(&world, &late), 2, &task(0), &["one", "old"]);
    let third = open_when_known(&mut world.worker(), &task(0), 3);
    assert!(!is_old, "it is shown, and the next attempt finds {:?}", third.prior);
}

#[test]
fn who_was_declared_dead_while_it_commits_shows_nothing() {
    let mut world = World::with(|config, folder| {
        config.sharing_depth = 0;
        config.checkpoint_dir = Some(folder.path().join("checkpoint").display().to_string());
    });
    let a = world.process("a");
    let (addr, hold) =
        holds_request(world.driver.addr(), |request| matches!(request, Request::Visible { .. }));
    let before = world.config.clone();
    (world.config.driver_addr, world.config.io_timeout_ms) = (addr, 20_000);
    let paused = world.process("paused");
    let mut on_paused = worker_of(&world, &paused);
    world.config = before;
    let mut on_a = worker_of(&world, &a);
    let first = on_a.open(inside(&task(0), 1)).unwrap();
    keep(&mut on_a, first.session, "old");
    close(&mut on_a, first.session);
    let taker = on_paused.open(inside(&consumer(0), 50)).unwrap();
    absorb(&mut on_paused, taker.session, &task(0), &["old"]).unwrap();
    let commits = spawn(move || commit(&mut on_paused, taker.session));
    eventually("it says what is visible", || hold.is_seen());
    paused.signal("-STOP");
    a.kill();
    let mut here = world.worker();
    let second = open_when_known(&mut here, &task(0), 2);
    let found = second.prior.clone();
    if found.is_empty() {
        keep(&mut here, second.session, "new");
        has_shown(&mut here, 1, &["new"]);
    }
    paused.signal("-CONT");
    hold.go_on();
    let shown = commits.join().unwrap();
    assert!(shown.is_err() || found == [text("old")], "{shown:?}, and the next attempt found {found:?}");
}

#[test]
fn who_commits_while_the_sender_is_opened_again_compares_once_more_and_goes_on() {
    let mut world = world(false);
    let a = world.process("a");
    let (addr, hold) =
        holds_request(world.driver.addr(), |request| matches!(request, Request::Visible { .. }));
    let direct = std::mem::replace(&mut world.config.driver_addr, addr);
    let slow = world.executor("slow");
    world.config.driver_addr = direct;
    let mut on_slow = world.worker_of(&slow);
    let mut on_a = worker_of(&world, &a);
    let first = on_a.open(inside(&task(0), 1)).unwrap();
    keep(&mut on_a, first.session, "one");
    fail(&mut on_a, first.session);
    let taker = on_slow.open(inside(&consumer(0), 50)).unwrap();
    absorb(&mut on_slow, taker.session, &task(0), &["one"]).unwrap();
    let commits = spawn(move || commit(&mut on_slow, taker.session));
    eventually("it says what is visible", || hold.is_seen());
    let second = on_a.open(inside(&task(0), 2)).unwrap();
    assert_eq!(second.prior, [text("one")]);
    hold.go_on();
    commits.join().unwrap().unwrap();
}

#[test]
fn one_attempt_is_enough_to_see_that_several_frames_are_old() {
    let world = world(false);
    let (a, b) = (world.process("a"), world.process("b"));
    let mut on_a = worker_of(&world, &a);
    for number in 0..SENDERS {
        let first = on_a.open(inside(&task(number), 1)).unwrap();
        keep(&mut on_a, first.session, "old");
        close(&mut on_a, first.session);
    }
    a.kill();
    let mut on_b = worker_of(&world, &b);
    for number in 0..SENDERS {
        let second = open_when_known(&mut on_b, &task(number), 2);
        keep(&mut on_b, second.session, "new");
        close(&mut on_b, second.session);
    }
    let late = world.process("late");
    let mut on_late = worker_of(&world, &late);
    let mut attempt = |number: u64, block: &str| {
        let opened = on_late.open(inside(&consumer(0), number)).unwrap();
        let absorbed =
            (0..SENDERS).try_for_each(|sender| absorb(&mut on_late, opened.session, &task(sender), &[block]));
        let done = absorbed.and_then(|()| commit(&mut on_late, opened.session));
        fail(&mut on_late, opened.session);
        done
    };
    attempt(60, "old").unwrap_err();
    // With frames that count.
    let failed: Vec<_> = (61..80).map_while(|number| attempt(number, "new").err()).collect();
    // Spark tries a task four times.
    assert!(failed.len() < 3, "{failed:?}");
}

#[test]
fn an_agent_does_not_speak_for_an_attempt_whose_grant_it_never_heard_of() {
    let world = world(false);
    let a = world.process("a");
    let b = world.executor("b");
    let e = world.executor("e");
    let mut on_a = worker_of(&world, &a);
    let first = on_a.open(inside(&task(0), 1)).unwrap();
    keep(&mut on_a, first.session, "one");
    keep(&mut on_a, first.session, "two");
    close(&mut on_a, first.session);
    let mut on_b = world.worker_of(&b);
    let taker = on_b.open(inside(&consumer(0), 50)).unwrap();
    absorb(&mut on_b, taker.session, &task(0), &["one"]).unwrap();
    fail(&mut on_b, taker.session);
    granted_in_vain(&world, &b, 2);
    // The third raises its fence and comes to nothing.
    let third = granted_in_vain(&world, &e, 3);
    let fence = Request::Fence { task: task(0), fence: fence_of(third) };
    assert!(matches!(Peer::of(&world, b.addr()).ask(&fence), Reply::Fenced(Some(_))));
    let c = world.process("c");
    assert!(shows(&mut worker_of(&world, &c), 1, &task(0), &["one", "two"]));
}
