//! Senders that are opened again while consumers have frames of the attempt before in hand: what one consumer has
//! shown is what every later attempt finds, whoever died in between, and nobody fails for ever.

use std::thread::sleep;
use std::time::Duration;

use clonos::agent::protocol::{Ending, OpenTask, Opened, Request};
use clonos::edge::net::client::Client;
use clonos::error::Result;
use clonos::frame::Group;
use clonos::id::{LogOffset, TaskId};
use clonos::task::Summary;

use crate::world::{AgentProcess, World, append, close, eventually, opening, restarted, task, text};

/// Senders of a test: which of their peers is which host's neighbour depends on their names.
const SENDERS: u32 = 6;

pub(super) fn inside(task: &TaskId, attempt: u64) -> OpenTask {
    OpenTask { inside: true, ..opening(task, 1, attempt) }
}

pub(super) fn world(checkpoint: bool) -> World {
    World::with(|config, folder| {
        config.sharing_depth = 1;
        let root = folder.path().join("checkpoint").display().to_string();
        config.checkpoint_dir = checkpoint.then_some(root);
    })
}

pub(super) fn worker_of(world: &World, process: &AgentProcess) -> Client {
    Client::connect(&world.config, &process.socket).unwrap()
}

pub(super) fn keep(worker: &mut Client, session: u64, block: &str) {
    let kept = worker.start(&Request::Keep { session, block: text(block) }).unwrap();
    worker.wait(kept).unwrap();
}

/// Ends an attempt whose function raised.
pub(super) fn fail(worker: &mut Client, session: u64) {
    worker.close(session, Summary::default(), Ending::default()).unwrap();
}

pub(super) fn consumer(partition: u32) -> TaskId {
    TaskId { operator: "g".into(), ..task(partition) }
}

pub(super) fn absorb(worker: &mut Client, session: u64, sender: &TaskId, blocks: &[&str]) -> Result<()> {
    let group = Group {
        operator: sender.operator.to_string(),
        partition: sender.partition,
        hops: 1,
        from: LogOffset::START,
        blocks: blocks.iter().map(|block| text(block)).collect(),
    };
    let absorbed = worker.start(&Request::Absorb { session, groups: vec![group] })?;
    worker.wait(absorbed).map(drop)
}

pub(super) fn commit(worker: &mut Client, session: u64) -> Result<()> {
    let visible = worker.start(&Request::Commit { session })?;
    worker.wait(visible).map(drop)
}

/// A consumer with one frame in hand, tried again until something comes of it; whether it has shown its output.
pub(super) fn shows(worker: &mut Client, partition: u32, sender: &TaskId, blocks: &[&str]) -> bool {
    let mut shown = None;
    let mut attempt = 1_000;
    eventually("something comes of a consumer", || {
        attempt += 1;
        let opened = open_when_known(worker, &consumer(partition), attempt);
        let done =
            absorb(worker, opened.session, sender, blocks).and_then(|()| commit(worker, opened.session));
        fail(worker, opened.session);
        shown = match done {
            Ok(()) => Some(true),
            Err(error) if error.condition() == "STALE_FRAME" => Some(false),
            Err(_) => None,
        };
        shown.is_some()
    });
    shown.unwrap()
}

pub(super) fn open_when_known(worker: &mut Client, task: &TaskId, attempt: u64) -> Opened {
    let mut opened = None;
    eventually("the dead are known", || {
        opened = worker.open(inside(task, attempt)).ok();
        opened.is_some()
    });
    opened.unwrap()
}

/// A sender whose first attempt sent something and died with its agent, and whose second sends something else: its
/// agent, a worker there, and the open task.
pub(super) fn opened_again(world: &World) -> (AgentProcess, Client, u64) {
    let (a, b) = (world.process("a"), world.process("b"));
    let mut on_a = worker_of(world, &a);
    let first = on_a.open(inside(&task(0), 1)).unwrap();
    keep(&mut on_a, first.session, "old");
    a.kill();
    let mut on_b = worker_of(world, &b);
    let second = open_when_known(&mut on_b, &task(0), 2);
    keep(&mut on_b, second.session, "new");
    (b, on_b, second.session)
}

#[test]
fn a_log_of_which_nothing_was_recorded_is_not_lost() {
    let world = world(true);
    let mut worker = world.worker();
    for attempt in 1..3 {
        let opened = worker.open(inside(&task(0), attempt)).unwrap();
        assert!(opened.prior.is_empty() && !opened.lost);
        fail(&mut worker, opened.session);
    }
    let (driver, config) = restarted(&world);
    let mut worker = Client::connect(&config, driver.socket()).unwrap();
    assert!(!worker.open(inside(&task(0), 3)).unwrap().lost);
}

#[test]
fn what_one_attempt_published_and_the_next_sent_along_is_one_log_after_everything_died() {
    let world = world(true);
    let (consumes, sends) = (world.process("consumes"), world.process("sends"));
    let mut here = worker_of(&world, &consumes);
    let first = here.open(inside(&task(0), 1)).unwrap();
    append(&mut here, first.session, &text("a")).unwrap();
    fail(&mut here, first.session);
    let mut there = worker_of(&world, &sends);
    let second = there.open(inside(&task(0), 2)).unwrap();
    assert_eq!(second.prior, [text("a")]);
    keep(&mut there, second.session, "b");
    close(&mut there, second.session);
    assert!(shows(&mut here, 0, &task(0), &["a", "b"]));
    drop((consumes, sends));
    let (driver, config) = restarted(&world);
    let mut worker = Client::connect(&config, driver.socket()).unwrap();
    assert_eq!(worker.open(inside(&task(0), 3)).unwrap().prior, [text("a"), text("b")]);
}

/// The sender's agent dies; the next attempt finds the beginning of its log, and dies with its agent. A consumer
/// has had the first attempt's last frame all the time.
fn goes_on_with_old_frames(checkpoint: bool, second: impl Fn(&mut Client, u64)) {
    let world = world(checkpoint);
    let (a, b, c) = (world.process("a"), world.process("b"), world.process("c"));
    let _others: Vec<_> = (0..3).map(|number| world.process(&format!("other{number}"))).collect();
    let (mut on_a, mut on_c) = (worker_of(&world, &a), worker_of(&world, &c));
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
        let opened = open_when_known(&mut on_b, &task(number), 2);
        assert_eq!(opened.prior, [text("one")]);
        second(&mut on_b, opened.session);
    }
    b.kill();
    let shown: Vec<bool> =
        (0..SENDERS).map(|number| shows(&mut on_c, number, &task(number), &["one", "old"])).collect();
    let mut other = world.worker();
    for (number, shown) in (0..).zip(&shown) {
        let third = open_when_known(&mut other, &task(number), 3);
        assert!(!third.lost);
        assert!(!shown || third.prior == [text("one"), text("old")], "{number}: {:?}", third.prior);
        fail(&mut other, third.session);
    }
    if !checkpoint {
        return;
    }
    c.kill();
    let (driver, config) = restarted(&world);
    let mut worker = Client::connect(&config, driver.socket()).unwrap();
    for (number, shown) in (0..).zip(shown) {
        let last = worker.open(inside(&task(number), 4)).unwrap();
        assert!(!shown || last.prior == [text("one"), text("old")], "{number}: {:?}", last.prior);
    }
}

#[test]
fn old_frames_after_an_attempt_that_recorded_nothing() {
    goes_on_with_old_frames(false, |_, _| {});
}

#[test]
fn old_frames_after_an_attempt_that_recorded_nothing_with_a_folder() {
    goes_on_with_old_frames(true, |_, _| {});
}

#[test]
fn old_frames_after_an_attempt_that_sent_something_else() {
    goes_on_with_old_frames(true, |worker, session| keep(worker, session, "new"));
}

#[test]
fn old_frames_after_an_attempt_that_published_something_else() {
    for checkpoint in [false, true] {
        goes_on_with_old_frames(checkpoint, |worker, session| {
            append(worker, session, &text("new")).unwrap();
        });
    }
}

#[test]
fn an_agent_that_came_after_the_sender_was_opened_again_does_not_show_what_an_old_frame_says() {
    for checkpoint in [false, true] {
        let world = world(checkpoint);
        let (_b, mut on_b, second) = opened_again(&world);
        let late = world.process("late");
        let mut on_late = worker_of(&world, &late);
        assert!(!shows(&mut on_late, 0, &task(0), &["old"]));
        // What the attempt that counts has sent is shown, at once and once more.
        assert!(shows(&mut on_late, 0, &task(0), &["new"]));
        keep(&mut on_b, second, "more");
        assert!(shows(&mut on_late, 1, &task(0), &["new", "more"]));
    }
}

#[test]
fn a_consumer_whose_frame_another_on_its_agent_found_stale_does_not_show_it() {
    let world = world(true);
    let (_b, _on_b, _second) = opened_again(&world);
    let late = world.process("late");
    let (mut one, mut other) = (worker_of(&world, &late), worker_of(&world, &late));
    let waits = one.open(inside(&consumer(0), 60)).unwrap();
    absorb(&mut one, waits.session, &task(0), &["old"]).unwrap();
    assert!(shows(&mut other, 1, &task(0), &["new"]));
    assert_eq!(commit(&mut one, waits.session).unwrap_err().condition(), "STALE_FRAME");
    // Who has absorbed what counts goes on, also where its copy was made anew.
    assert!(shows(&mut one, 0, &task(0), &["new"]));
}

#[test]
fn what_one_consumer_has_shown_another_with_an_older_frame_cannot_contradict() {
    let world = world(true);
    let (b, _on_b, _second) = opened_again(&world);
    let (c, late) = (world.process("c"), world.process("late"));
    assert!(shows(&mut worker_of(&world, &c), 0, &task(0), &["new"]));
    b.kill();
    // Nobody is left who could confirm it, but what was shown stands on others.
    let mut on_late = worker_of(&world, &late);
    assert!(!shows(&mut on_late, 1, &task(0), &["old"]));
    assert!(shows(&mut on_late, 1, &task(0), &["new"]));
    drop((c, late));
    let (driver, config) = restarted(&world);
    let mut worker = Client::connect(&config, driver.socket()).unwrap();
    assert_eq!(worker.open(inside(&task(0), 3)).unwrap().prior, [text("new")]);
}

#[test]
fn what_an_attempt_wrote_to_the_folder_and_was_not_answered_does_not_contradict_what_is_shown() {
    let world = world(true);
    let (a, b) = (world.process("a"), world.process("b"));
    let (c, other) = (world.process("c"), world.process("other"));
    let (mut on_a, mut on_c) = (worker_of(&world, &a), worker_of(&world, &c));
    for number in 0..SENDERS {
        let first = on_a.open(inside(&task(number), 1)).unwrap();
        keep(&mut on_a, first.session, "one");
        keep(&mut on_a, first.session, "old");
        let taker = on_c.open(inside(&consumer(number), 50)).unwrap();
        absorb(&mut on_c, taker.session, &task(number), &["one"]).unwrap();
        fail(&mut on_c, taker.session);
    }
    a.kill();
    let mut seconds: Vec<_> = (0..SENDERS)
        .map(|number| {
            let mut on_b = worker_of(&world, &b);
            let second = open_when_known(&mut on_b, &task(number), 2);
            (on_b, second.session)
        })
        .collect();
    // It stands in the folder. Where the other is to have a copy, that is all: it does not come to it.
    other.signal("-STOP");
    for (on_b, session) in &mut seconds {
        let _unanswered = on_b.send(*session, text("new")).unwrap();
    }
    sleep(Duration::from_millis(500));
    b.kill();
    other.kill();
    let shown: Vec<bool> =
        (0..SENDERS).map(|number| shows(&mut on_c, number, &task(number), &["one", "old"])).collect();
    c.kill();
    let (driver, config) = restarted(&world);
    let mut worker = Client::connect(&config, driver.socket()).unwrap();
    for (number, shown) in (0..).zip(shown) {
        let last = worker.open(inside(&task(number), 3)).unwrap();
        assert!(!shown || last.prior == [text("one"), text("old")], "{number}: {:?}", last.prior);
    }
}

#[test]
fn what_stands_in_the_folder_alone_is_not_contradicted_by_an_old_frame() {
    let world = World::with(|config, folder| {
        config.sharing_depth = 0;
        config.checkpoint_dir = Some(folder.path().join("checkpoint").display().to_string());
    });
    let (a, b, c) = (world.process("a"), world.process("b"), world.process("c"));
    let (mut on_a, mut on_c) = (worker_of(&world, &a), worker_of(&world, &c));
    let first = on_a.open(inside(&task(0), 1)).unwrap();
    keep(&mut on_a, first.session, "one");
    keep(&mut on_a, first.session, "old");
    let taker = on_c.open(inside(&consumer(0), 50)).unwrap();
    absorb(&mut on_c, taker.session, &task(0), &["one"]).unwrap();
    a.kill();
    let mut on_b = worker_of(&world, &b);
    let second = open_when_known(&mut on_b, &task(0), 2);
    append(&mut on_b, second.session, &text("new")).unwrap();
    b.kill();
    assert!(!shows(&mut on_c, 0, &task(0), &["one", "old"]));
    let third = open_when_known(&mut on_c, &task(0), 3);
    assert_eq!(third.prior, [text("one"), text("new")]);
}

#[test]
fn an_agent_that_was_declared_dead_shows_nothing() {
    let world = world(false);
    let (a, c) = (world.process("a"), world.process("c"));
    let (mut on_a, mut on_c) = (worker_of(&world, &a), worker_of(&world, &c));
    let first = on_a.open(inside(&task(0), 1)).unwrap();
    keep(&mut on_a, first.session, "old");
    let taker = on_c.open(inside(&consumer(0), 50)).unwrap();
    absorb(&mut on_c, taker.session, &task(0), &["old"]).unwrap();
    c.signal("-STOP");
    a.kill();
    let mut other = world.worker();
    let second = open_when_known(&mut other, &task(0), 2);
    assert!(second.prior.is_empty());
    c.signal("-CONT");
    commit(&mut on_c, taker.session).unwrap_err();
}

#[test]
fn after_two_exceptions_consumers_beside_the_second_attempt_go_on() {
    let world = world(true);
    let (a, c, d) = (world.process("a"), world.process("c"), world.process("d"));
    let (mut on_a, mut on_c) = (worker_of(&world, &a), worker_of(&world, &c));
    for number in 0..SENDERS {
        for (worker, attempt) in [(&mut on_a, 1), (&mut on_c, 2)] {
            let opened = worker.open(inside(&task(number), attempt)).unwrap();
            fail(worker, opened.session);
        }
        let third = on_a.open(inside(&task(number), 3)).unwrap();
        keep(&mut on_a, third.session, "a");
        close(&mut on_a, third.session);
    }
    assert!(shows(&mut on_c, 0, &task(0), &["a"]));
    // Copies of what others have absorbed come there, too.
    let mut on_d = worker_of(&world, &d);
    let taker = on_d.open(inside(&consumer(1), 60)).unwrap();
    for number in 0..SENDERS {
        absorb(&mut on_d, taker.session, &task(number), &["a"]).unwrap();
    }
    commit(&mut on_d, taker.session).unwrap();
    let plain = TaskId { operator: "plain".into(), ..task(0) };
    let opened = on_c.open(opening(&plain, 1, 70)).unwrap();
    append(&mut on_c, opened.session, &text("mine")).unwrap();
}

#[test]
fn what_was_recorded_with_inputs_that_are_gone_can_be_discarded_after_a_restart() {
    let world = world(true);
    let mut worker = world.worker();
    let first = worker.open(inside(&task(0), 1)).unwrap();
    keep(&mut worker, first.session, "the order of frames that nobody has");
    fail(&mut worker, first.session);
    worker.open(inside(&task(0), 2)).unwrap();
    let (driver, config) = restarted(&world);
    let mut worker = Client::connect(&config, driver.socket()).unwrap();
    let mut opened = worker.open(inside(&task(0), 3)).unwrap();
    if !opened.prior.is_empty() {
        worker.discard(opened.session).unwrap();
        fail(&mut worker, opened.session);
        opened = worker.open(inside(&task(0), 4)).unwrap();
    }
    assert!(opened.prior.is_empty() && !opened.lost);
}

#[test]
fn a_peer_that_pauses_while_another_takes_the_copy_lives_on() {
    let world = World::with(|config, _| {
        config.sharing_depth = 1;
        config.io_timeout_ms = 5_000;
    });
    let (a, c, p) = (world.process("a"), world.process("c"), world.process("p"));
    let (mut on_a, mut on_c, mut on_p) =
        (worker_of(&world, &a), worker_of(&world, &c), worker_of(&world, &p));
    let mine = on_p.open(inside(&task(9), 1)).unwrap();
    append(&mut on_p, mine.session, &text("mine")).unwrap();
    for number in 0..SENDERS {
        let first = on_a.open(inside(&task(number), 1)).unwrap();
        keep(&mut on_a, first.session, "a");
        close(&mut on_a, first.session);
    }
    p.signal("-STOP");
    // Some of them choose it for a peer.
    for number in 0..SENDERS {
        let taker = on_c.open(inside(&consumer(number), 60)).unwrap();
        absorb(&mut on_c, taker.session, &task(number), &["a"]).unwrap();
        commit(&mut on_c, taker.session).unwrap();
    }
    p.signal("-CONT");
    // Who was declared dead is told with its next beat, and ends.
    sleep(Duration::from_millis(1_500));
    let again = open_when_known(&mut on_p, &task(9), 2);
    assert_eq!(again.prior, [text("mine")]);
}
