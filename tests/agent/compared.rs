//! What consumers have absorbed is compared with what counts before something that depends on it is shown: all of it, by
//! whoever can say, each time. Where nobody takes copies, that is all that keeps what is old from being shown.

use std::net::TcpListener;
use std::thread::{sleep, spawn};
use std::time::Duration;

use clonos::agent::members::Members;
use clonos::agent::protocol::{AgentInfo, HeldCopy, Reply, Request, Sent, Sharer};
use clonos::edge::net::client::Client;
use clonos::edge::net::{Connection, Stream};
use clonos::error::Error;
use clonos::id::{AgentId, Generation, LogOffset};

use crate::lost_answers::granted_in_vain;
use crate::reopened::{
    absorb, commit, consumer, fail, inside, keep, open_when_known, shows, worker_of, world,
};
use crate::shown::depth_none;
use crate::silence::is_held_by;
use crate::world::{AgentProcess, Peer, World, close, open_as, task, text};

/// A sender whose first attempt sent `one` and `old` and died with its agent, and whose second found `one`: the agents of
/// the consumer that had it and of the second attempt, a worker there, and its session.
fn went_on(world: &World) -> (AgentProcess, AgentProcess, Client, u64) {
    let (a, b, c) = (world.process("a"), world.process("b"), world.process("c"));
    let (mut on_a, mut on_c) = (worker_of(world, &a), worker_of(world, &c));
    let first = on_a.open(inside(&task(0), 1)).unwrap();
    keep(&mut on_a, first.session, "one");
    keep(&mut on_a, first.session, "old");
    close(&mut on_a, first.session);
    let taker = on_c.open(inside(&consumer(9), 50)).unwrap();
    absorb(&mut on_c, taker.session, &task(0), &["one"]).unwrap();
    fail(&mut on_c, taker.session);
    a.kill();
    let mut on_b = worker_of(world, &b);
    let second = open_when_known(&mut on_b, &task(0), 2);
    assert_eq!(second.prior, [text("one")]);
    (c, b, on_b, second.session)
}

#[test]
fn a_beginning_that_was_compared_does_not_speak_for_what_came_behind_it() {
    let world = depth_none(false);
    let (_c, _b, mut on_b, second) = went_on(&world);
    keep(&mut on_b, second, "new");
    let late = world.process("late");
    let mut on_late = worker_of(&world, &late);
    assert!(shows(&mut on_late, 0, &task(0), &["one"]));
    assert!(!shows(&mut on_late, 1, &task(0), &["one", "old"]));
    assert!(shows(&mut on_late, 1, &task(0), &["one", "new"]));
}

#[test]
fn what_the_newest_attempt_does_not_have_yet_is_not_shown() {
    let world = depth_none(false);
    let (_c, _b, mut on_b, second) = went_on(&world);
    let late = world.process("late");
    let mut on_late = worker_of(&world, &late);
    assert!(!shows(&mut on_late, 0, &task(0), &["one", "old"]));
    keep(&mut on_b, second, "new");
    assert!(shows(&mut on_late, 0, &task(0), &["one", "new"]));
}

#[test]
fn what_could_not_be_shared_beside_an_old_frame_is_shared_with_the_next_attempt() {
    let world = world(false);
    let (_c, _b, mut on_b, second) = went_on(&world);
    keep(&mut on_b, second, "new");
    let (e, late) = (world.process("e"), world.process("late"));
    let (mut on_e, mut on_late) = (worker_of(&world, &e), worker_of(&world, &late));
    let other = on_e.open(inside(&task(1), 1)).unwrap();
    keep(&mut on_e, other.session, "other");
    let taker = on_late.open(inside(&consumer(0), 60)).unwrap();
    absorb(&mut on_late, taker.session, &task(0), &["one", "old"]).unwrap();
    absorb(&mut on_late, taker.session, &task(1), &["other"]).unwrap();
    assert_eq!(commit(&mut on_late, taker.session).unwrap_err().condition(), "STALE_FRAME");
    fail(&mut on_late, taker.session);
    assert!(shows(&mut on_late, 0, &task(1), &["other"]));
    // The registry knows of it.
    let refused = on_e.discard(other.session).unwrap_err();
    assert_eq!(refused.condition(), "CAUSAL_LOG_LOST");
}

#[test]
fn what_was_shown_stays_where_it_is_when_an_old_frame_goes_on_from_it() {
    let world = depth_none(false);
    let (_c, _b, mut on_b, second) = went_on(&world);
    keep(&mut on_b, second, "new");
    let late = world.executor("late");
    let mut on_late = world.worker_of(&late);
    assert!(shows(&mut on_late, 0, &task(0), &["one", "new"]));
    assert!(!shows(&mut on_late, 1, &task(0), &["one", "new", "older"]));
    // The registry counts on its copy when others are lost.
    let read = Request::Read { task: task(0), from: LogOffset::START, whole: false, newest: None };
    let told = Peer::of(&world, late.addr()).ask(&read);
    assert!(matches!(&told, Reply::Blocks(blocks) if *blocks == [text("one"), text("new")]), "{told:?}");
    keep(&mut on_b, second, "newer");
    assert!(shows(&mut on_late, 1, &task(0), &["one", "new", "newer"]));
}

/// An agent that lives, and gives these answers; what the registry calls it.
fn answers(world: &World, answer: fn(&Request) -> Reply) -> AgentInfo {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    let info = AgentInfo { id: AgentId(99), addr, host: "odd".into(), driver: false };
    let mut driver = Peer::of(world, world.driver.addr());
    let registered = driver.ask(&Request::Register { info: info.clone(), executor: String::new() });
    assert!(matches!(registered, Reply::Registered { .. }));
    let ours = world.config.credentials();
    spawn(move || {
        for guest in listener.incoming() {
            spawn(move || {
                let timeout = Duration::from_secs(20);
                let stream = Stream::Tcp(guest.unwrap());
                // Some only look whether anybody listens.
                let accepted = Connection::accept(stream, "a guest".into(), &ours, AgentId(99), timeout);
                let Ok(mut guest) = accepted else { return };
                while let Ok(request) = guest.read::<Request>() {
                    guest.write(&answer(&request)).unwrap();
                }
            });
        }
    });
    let mut driver = Peer::of(world, world.driver.addr());
    spawn(move || {
        loop {
            driver.ask(&Request::Heartbeat { agent: AgentId(99), commits_seen: 0 });
            sleep(Duration::from_millis(300));
        }
    });
    info
}

#[test]
fn who_cannot_read_what_it_has_does_not_say_that_a_frame_is_old() {
    let world = world(false);
    let a = world.process("a");
    let mut on_a = worker_of(&world, &a);
    let first = on_a.open(inside(&task(0), 1)).unwrap();
    keep(&mut on_a, first.session, "one");
    let broken = answers(&world, |_| {
        Reply::Failed(Error::Io { context: "reading a block".into(), message: "broken".into() })
    });
    let grant = Request::Grant {
        open: inside(&task(0), 2),
        sent: Sent { by: broken.id, number: 0 },
        commits_seen: 0,
    };
    assert!(matches!(Peer::of(&world, world.driver.addr()).ask(&grant), Reply::Granted(_)));
    let late = world.process("late");
    let mut on_late = worker_of(&world, &late);
    let taker = on_late.open(inside(&consumer(0), 60)).unwrap();
    absorb(&mut on_late, taker.session, &task(0), &["one"]).unwrap();
    let failed = commit(&mut on_late, taker.session).unwrap_err();
    assert_eq!(failed.condition(), "IO", "{failed}");
}

#[test]
fn what_was_discarded_is_not_shown() {
    let world = depth_none(false);
    let (_c, _b, mut on_b, second) = went_on(&world);
    let late = world.executor("late");
    let mut on_late = world.worker_of(&late);
    let taker = on_late.open(inside(&consumer(0), 60)).unwrap();
    absorb(&mut on_late, taker.session, &task(0), &["one"]).unwrap();
    fail(&mut on_late, taker.session);
    on_b.discard(second).unwrap();
    assert!(!shows(&mut on_late, 1, &task(0), &["one"]));
}

#[test]
fn who_has_less_than_it_said_is_not_gone_on_with() {
    let world = depth_none(false);
    let holder = answers(&world, |request| match request {
        Request::Fence { .. } => {
            Reply::Fenced(Some(HeldCopy { end: LogOffset(8), whole: true, is_shown: false }))
        }
        _ => Reply::Blocks(Vec::new()),
    });
    is_held_by(&world, &holder);
    let refused = open_as(&mut world.worker(), &task(0), 2, 2).unwrap_err();
    assert_eq!(refused.condition(), "CAUSAL_LOG_LOST");
}

#[test]
fn what_counts_of_many_logs_is_told_page_by_page() {
    const SENDERS: u32 = 2_500;
    let world = world(false);
    let mut on_a = world.worker();
    for partition in 0..SENDERS {
        let sender = on_a.open(inside(&task(partition), u64::from(partition))).unwrap();
        keep(&mut on_a, sender.session, "one");
    }
    let tasks = (0..SENDERS).map(|partition| (task(partition), Generation::NONE)).collect();
    let mut driver = Peer::of(&world, world.driver.addr());
    let Reply::AgentsAre(news) = driver.ask(&Request::Agents { seen: 0 }) else { panic!("who is alive?") };
    let mut members = Members::default();
    members.hear(news);
    let by = Sharer { agent: members.all()[0].id, generation: Generation(u64::MAX) };
    let told = driver.ask(&Request::Counting { by, tasks });
    assert!(matches!(&told, Reply::CountingAre(told) if told.len() < SENDERS as usize), "all at once");
    let late = world.process("late");
    let mut on_late = worker_of(&world, &late);
    let taker = on_late.open(inside(&consumer(0), 60)).unwrap();
    for partition in 0..SENDERS {
        absorb(&mut on_late, taker.session, &task(partition), &["one"]).unwrap();
    }
    commit(&mut on_late, taker.session).unwrap();
}

#[test]
fn however_many_attempts_came_to_nothing_the_one_before_counts() {
    let world = world(false);
    let (_c, _b, mut on_b, second) = went_on(&world);
    keep(&mut on_b, second, "new");
    let (late, e) = (world.process("late"), world.executor("e"));
    let in_vain: Vec<_> = (3..103).map(|attempt| granted_in_vain(&world, &e, attempt)).collect();
    let mut driver = Peer::of(&world, world.driver.addr());
    for generation in in_vain {
        driver.ask(&Request::Withdrawn { task: task(0), generation });
    }
    assert!(!shows(&mut worker_of(&world, &late), 0, &task(0), &["one", "old"]));
}
