//! What is shown depends on operators any number of exchanges up: with a checkpoint all of that survives the loss of
//! everything, however few hops it is handed on.

use clonos::agent::protocol::{OpenTask, Reply, Request};
use clonos::edge::net::client::Client;
use clonos::id::TaskId;

use crate::reopened::{absorb, consumer, fail, inside, keep, open_when_known, worker_of, world};
use crate::world::{AgentProcess, Peer, World, append, close, opening, restarted, task, text};

fn last() -> TaskId {
    TaskId { operator: "h".into(), ..task(0) }
}

/// Three operators, each on an agent of its own: the third has shown something.
fn shown(world: &World) -> Vec<AgentProcess> {
    let agents: Vec<AgentProcess> = ["a", "b", "c"].map(|name| world.process(name)).into();
    let mut first = worker_of(world, &agents[0]);
    let opened = first.open(inside(&task(0), 1)).unwrap();
    keep(&mut first, opened.session, "an answer");
    close(&mut first, opened.session);
    let mut second = worker_of(world, &agents[1]);
    let opened = second.open(inside(&consumer(0), 2)).unwrap();
    absorb(&mut second, opened.session, &task(0), &["an answer"]).unwrap();
    keep(&mut second, opened.session, "an order");
    close(&mut second, opened.session);
    let mut third = worker_of(world, &agents[2]);
    let opened = third.open(opening(&last(), 1, 3)).unwrap();
    absorb(&mut third, opened.session, &consumer(0), &["an order"]).unwrap();
    append(&mut third, opened.session, &text("shown")).unwrap();
    agents
}

fn all_is_found(mut open: impl FnMut(OpenTask) -> Vec<bytes::Bytes>) {
    assert_eq!(open(inside(&task(0), 11)), [text("an answer")]);
    assert_eq!(open(inside(&consumer(0), 12)), [text("an order")]);
    assert_eq!(open(opening(&last(), 1, 13)), [text("shown")]);
}

#[test]
fn a_restarted_program_finds_what_was_recorded_two_exchanges_up() {
    let world = world(true);
    shown(&world).into_iter().for_each(AgentProcess::kill);
    let (driver, config) = restarted(&world);
    let mut worker = Client::connect(&config, driver.socket()).unwrap();
    all_is_found(|open| worker.open(open).unwrap().prior);
}

#[test]
fn so_does_a_driver_that_has_lost_all_executors() {
    let world = world(true);
    shown(&world).into_iter().for_each(AgentProcess::kill);
    let mut worker = world.worker();
    open_when_known(&mut worker, &task(0), 10);
    all_is_found(|open| worker.open(open).unwrap().prior);
}

#[test]
fn what_a_sender_has_published_is_not_sent_on_by_those_who_have_it() {
    let world = world(true);
    let (a, _b) = (world.executor("a"), world.process("b"));
    let sent = || match Peer::of(&world, a.addr()).ask(&Request::Stats) {
        Reply::Stats(stats) => stats.sent_bytes,
        other => panic!("{other:?}"),
    };
    let mut on_a = world.worker_of(&a);
    let sender = on_a.open(inside(&task(0), 1)).unwrap();
    keep(&mut on_a, sender.session, "rides");
    append(&mut on_a, sender.session, &text("named, and large")).unwrap();
    close(&mut on_a, sender.session);
    let before = sent();
    assert!(before > 0);
    let taker = on_a.open(inside(&consumer(0), 2)).unwrap();
    absorb(&mut on_a, taker.session, &task(0), &["rides"]).unwrap();
    close(&mut on_a, taker.session);
    assert_eq!(sent(), before);
}

#[test]
fn what_was_discarded_is_found_by_nobody_who_comes_after_it() {
    let world = world(false);
    let [a, b, c, d] = ["a", "b", "c", "d"].map(|name| world.process(name));
    let mut on_a = worker_of(&world, &a);
    let first = on_a.open(inside(&task(0), 1)).unwrap();
    keep(&mut on_a, first.session, "old");
    keep(&mut on_a, first.session, "and long");
    close(&mut on_a, first.session);
    let mut on_b = worker_of(&world, &b);
    let taker = on_b.open(inside(&consumer(0), 2)).unwrap();
    absorb(&mut on_b, taker.session, &task(0), &["old", "and long"]).unwrap();
    fail(&mut on_b, taker.session);
    a.kill();
    let mut on_c = worker_of(&world, &c);
    let second = open_when_known(&mut on_c, &task(0), 3);
    assert_eq!(second.prior, [text("old"), text("and long")]);
    on_c.discard(second.session).unwrap();
    fail(&mut on_c, second.session);
    let third = on_c.open(inside(&task(0), 4)).unwrap();
    assert!(third.prior.is_empty());
    keep(&mut on_c, third.session, "new");
    close(&mut on_c, third.session);
    let mut on_d = worker_of(&world, &d);
    let taker = on_d.open(inside(&consumer(1), 5)).unwrap();
    absorb(&mut on_d, taker.session, &task(0), &["new"]).unwrap();
    fail(&mut on_d, taker.session);
    c.kill();
    assert_eq!(open_when_known(&mut world.worker(), &task(0), 6).prior, [text("new")]);
}
