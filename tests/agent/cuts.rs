//! Senders inside an exchange that are run with another number of tasks, within an epoch.

use bytes::Bytes;
use clonos::agent::protocol::{Ending, OpenTask, Request};
use clonos::edge::agent::Agent;
use clonos::edge::net::client::Client;
use clonos::id::TaskId;
use clonos::task::Summary;

use crate::reopened::{absorb, consumer, fail, keep, shows, world};
use crate::world::{World, append, eventually, opening, task, text};

/// Stages of so many tasks: [`crate::world::start_driver`] reads them so.
const SIX: u32 = 106;
const FOUR: u32 = 104;
const ONE: u32 = 101;

fn open(worker: &mut Client, task: &TaskId, stage: u32, attempt: u64) -> (u64, Vec<Bytes>) {
    let opened = worker.open(OpenTask { inside: true, ..opening(task, stage, attempt) }).unwrap();
    (opened.session, opened.prior)
}

/// A sender's attempt that records one answer behind what it finds.
fn sends(worker: &mut Client, partition: u32, stage: u32, answer: &str) {
    let (session, _) = open(worker, &task(partition), stage, u64::from(stage));
    keep(worker, session, answer);
    fail(worker, session);
}

/// Four senders have answered, a consumer has taken their frames, and shows nothing: it fails.
fn four_senders(world: &World) -> Agent {
    let agent = world.executor("of a consumer");
    let (mut worker, mut on_agent) = (world.worker(), world.worker_of(&agent));
    let (session, _) = open(&mut on_agent, &consumer(0), 203, 1);
    for partition in 0..4 {
        let answer = format!("of the first run, {partition}");
        sends(&mut worker, partition, FOUR, &answer);
        absorb(&mut on_agent, session, &task(partition), &[&answer]).unwrap();
    }
    fail(&mut on_agent, session);
    agent
}

#[test]
fn what_nobody_has_seen_does_not_come_back_beside_what_another_number_of_senders_has_shown() {
    let world = world(false);
    let agent = four_senders(&world);
    let mut worker = world.worker();
    // Its first rows are those that the first of four had, and are answered as then.
    sends(&mut worker, 0, ONE, "of all others");
    let shown = ["of the first run, 0", "of all others"];
    assert!(shows(&mut world.worker_of(&agent), 1, &task(0), &shown));
    for attempt in 1..3 {
        let (session, found) = open(&mut worker, &task(1), FOUR, attempt);
        assert_eq!(found, [] as [Bytes; 0], "those rows have other answers by now");
        fail(&mut worker, session);
    }
    let (_, found) = open(&mut worker, &task(0), ONE + 100, 9);
    assert_eq!(found, shown.map(text));
}

#[test]
fn it_does_where_nothing_was_shown() {
    let world = world(false);
    let _agent = four_senders(&world);
    let mut worker = world.worker();
    sends(&mut worker, 0, ONE, "of all others");
    let (_, found) = open(&mut worker, &task(1), FOUR, 9);
    assert_eq!(found, [text("of the first run, 1")]);
}

#[test]
fn frames_of_another_number_of_tasks_are_not_sent_again() {
    let world = world(false);
    let mut worker = world.worker();
    let (session, _) = open(&mut worker, &task(0), FOUR, 1);
    let sent = worker.start(&Request::Send { session, frames: vec![text("a frame")] }).unwrap();
    worker.wait(sent).unwrap();
    let ending = Ending { done: true, has_frames: true, ..Ending::default() };
    worker.close(session, Summary::default(), ending).unwrap();
    let has_frames = |worker: &mut Client, stage, attempt| {
        let open = OpenTask { inside: true, ..opening(&task(0), stage, attempt) };
        let opened = worker.open(open).unwrap();
        fail(worker, opened.session);
        opened.has_frames
    };
    assert!(has_frames(&mut worker, FOUR, 2), "the same stage, again");
    assert!(!has_frames(&mut worker, ONE, 3));
}

#[test]
fn frames_of_an_attempt_that_did_not_come_to_its_end_are_not_sent_again() {
    let world = world(false);
    let mut worker = world.worker();
    let ending = || Ending { done: true, has_frames: true, ..Ending::default() };
    let mut number = 0;
    let mut opened = |worker: &mut Client| {
        number += 1;
        worker.open(OpenTask { inside: true, ..opening(&task(0), FOUR, number) }).unwrap()
    };
    let send = |worker: &mut Client, session| {
        let sent = worker.start(&Request::Send { session, frames: vec![text("a frame")] }).unwrap();
        worker.wait(sent).unwrap();
    };
    let first = opened(&mut worker);
    send(&mut worker, first.session);
    worker.close(first.session, Summary::default(), ending()).unwrap();
    // Its agent was slow, and so it was not told where frames are: it computes them once more, and dies halfway.
    let second = opened(&mut worker);
    assert!(second.has_frames);
    send(&mut worker, second.session);
    fail(&mut worker, second.session);
    let third = opened(&mut worker);
    assert!(!third.has_frames);
    send(&mut worker, third.session);
    worker.close(third.session, Summary::default(), ending()).unwrap();
    assert!(opened(&mut worker).has_frames);
}

/// The next attempt of a task.
fn attempt(partition: u32, app: u64, stage: u32) -> OpenTask {
    let open = opening(&task(partition), stage, 0);
    OpenTask { app, attempt: open.worker, ..open }
}

/// Whether the task of a stage finds that its operator was recorded by another number of tasks; it records nothing.
fn is_changed(worker: &mut Client, partition: u32, (app, stage): (u64, u32)) -> bool {
    let opened = worker.open(attempt(partition, app, stage)).unwrap();
    fail(worker, opened.session);
    opened.recording.layout_changed
}

/// The task of a stage records an answer.
fn records(worker: &mut Client, partition: u32, (app, stage): (u64, u32)) {
    let session = worker.open(attempt(partition, app, stage)).unwrap().session;
    append(worker, session, &text("an answer")).unwrap();
    fail(worker, session);
}

#[test]
fn tasks_that_recorded_nothing_leave_all_as_it_was() {
    let world = world(false);
    let mut worker = world.worker();
    (0..4).for_each(|partition| records(&mut worker, partition, (1, FOUR)));
    for app in [2, 3] {
        assert!((0..6).all(|partition| is_changed(&mut worker, partition, (app, SIX))));
        assert!((0..4).all(|partition| !is_changed(&mut worker, partition, (app, FOUR))));
    }
    // Also one that nobody closes.
    let mut killed = world.worker();
    killed.open(attempt(3, 4, SIX)).unwrap();
    drop(killed);
    eventually("it counts for nothing", || !is_changed(&mut worker, 2, (5, FOUR)));
}

#[test]
fn one_row_that_another_number_of_tasks_recorded_counts() {
    let world = world(false);
    let mut worker = world.worker();
    (0..4).for_each(|partition| records(&mut worker, partition, (1, FOUR)));
    records(&mut worker, 1, (2, SIX));
    // Also if others record nothing.
    assert!(is_changed(&mut worker, 1, (2, SIX)));
    assert!(is_changed(&mut worker, 1, (3, ONE)));
    assert!((0..4).all(|partition| is_changed(&mut worker, partition, (4, FOUR))));
}
