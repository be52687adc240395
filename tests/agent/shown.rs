//! What consumers have shown of a sender's log comes before what others only have from its frames.

use clonos::agent::protocol::{Ending, OpenTask, Reply, Request};
use clonos::edge::net::client::Client;
use clonos::id::{LogOffset, TaskId};
use clonos::task::Summary;

use crate::reopened::{
    absorb, consumer, inside, keep, open_when_known, opened_again, shows, worker_of, world,
};
use crate::world::{
    AgentProcess, Peer, World, append, close, eventually, open, opening, restarted, task, text,
};

/// A consumer that takes in a frame, and shows nothing yet.
fn takes(world: &World, process: &AgentProcess, partition: u32, blocks: &[&str]) -> (Client, u64) {
    let mut taken = None;
    let mut attempt = 60;
    // Another copy there makes way for it at the second try.
    eventually("a consumer takes its frame", || {
        attempt += 1;
        let mut worker = worker_of(world, process);
        let session = worker.open(inside(&consumer(partition), attempt)).unwrap().session;
        let absorbed = absorb(&mut worker, session, &task(0), blocks);
        taken = absorbed.is_ok().then_some((worker, session));
        taken.is_some()
    });
    taken.unwrap()
}

pub(super) fn depth_none(checkpoint: bool) -> World {
    World::with(|config, folder| {
        config.sharing_depth = 0;
        let root = folder.path().join("checkpoint").display().to_string();
        config.checkpoint_dir = checkpoint.then_some(root);
    })
}

#[test]
fn what_was_shown_is_found_also_beside_a_copy_as_long_that_was_not() {
    let world = world(false);
    let (b, _on_b, _second) = opened_again(&world);
    let (c, late) = (world.process("c"), world.process("late"));
    assert!(shows(&mut worker_of(&world, &c), 0, &task(0), &["new"]));
    let (mut on_late, _) = takes(&world, &late, 1, &["old"]);
    b.kill();
    assert_eq!(open_when_known(&mut on_late, &task(0), 3).prior, [text("new")]);
}

#[test]
fn of_longer_copies_only_those_count_that_go_on_from_what_was_shown() {
    let world = world(false);
    let (b, mut on_b, second) = opened_again(&world);
    let (c, d, late) = (world.process("c"), world.process("d"), world.process("late"));
    assert!(shows(&mut worker_of(&world, &c), 0, &task(0), &["new"]));
    keep(&mut on_b, second, "more");
    let _old = takes(&world, &late, 1, &["old", "older", "oldest"]);
    let _new = takes(&world, &d, 2, &["new", "more"]);
    b.kill();
    assert_eq!(open_when_known(&mut world.worker(), &task(0), 3).prior, [text("new"), text("more")]);
}

#[test]
fn what_an_agent_has_behind_what_it_has_shown_is_not_taken_for_shown() {
    let world = world(false);
    let (a, b) = (world.process("a"), world.process("b"));
    let mut on_a = worker_of(&world, &a);
    let first = on_a.open(inside(&task(0), 1)).unwrap();
    keep(&mut on_a, first.session, "one");
    keep(&mut on_a, first.session, "old");
    let (mut on_b, _) = takes(&world, &b, 9, &["one"]);
    a.kill();
    let second = open_when_known(&mut on_b, &task(0), 2);
    assert_eq!(second.prior, [text("one")]);
    keep(&mut on_b, second.session, "new");
    let (c, late) = (world.process("c"), world.process("late"));
    let mut on_late = worker_of(&world, &late);
    assert!(shows(&mut on_late, 1, &task(0), &["one"]));
    // It was not told of the second attempt, and has this from a frame of the first.
    let _old = takes(&world, &late, 2, &["one", "old"]);
    assert!(shows(&mut worker_of(&world, &c), 0, &task(0), &["one", "new"]));
    b.kill();
    assert_eq!(open_when_known(&mut on_late, &task(0), 3).prior, [text("one"), text("new")]);
}

#[test]
fn what_comes_behind_what_was_shown_is_compared_too() {
    let world = world(false);
    let (_b, mut on_b, second) = opened_again(&world);
    let late = world.process("late");
    let mut on_late = worker_of(&world, &late);
    assert!(shows(&mut on_late, 1, &task(0), &["new"]));
    // The attempt that counts has no more than that.
    assert!(!shows(&mut on_late, 2, &task(0), &["new", "older"]));
    keep(&mut on_b, second, "more");
    assert!(shows(&mut on_late, 3, &task(0), &["new", "more"]));
}

/// Two consumers have shown something, one of them more; that one dies, as does the sender.
fn shown_and_gone(world: &World) -> (AgentProcess, TaskId) {
    let (a, less, more) = (world.process("a"), world.process("less"), world.process("more"));
    let mut on_a = worker_of(world, &a);
    let first = on_a.open(inside(&task(0), 1)).unwrap();
    keep(&mut on_a, first.session, "one");
    keep(&mut on_a, first.session, "two");
    assert!(shows(&mut worker_of(world, &less), 0, &task(0), &["one"]));
    assert!(shows(&mut worker_of(world, &more), 1, &task(0), &["one", "two"]));
    a.kill();
    more.kill();
    (less, task(0))
}

#[test]
fn what_is_shorter_than_was_shown_is_not_the_log() {
    let world = depth_none(false);
    let (_less, sender) = shown_and_gone(&world);
    assert!(open_when_known(&mut world.worker(), &sender, 2).lost);
}

#[test]
fn what_was_shown_and_stands_in_the_folder_alone_is_found_beside_shorter_copies() {
    let world = depth_none(true);
    let (_less, sender) = shown_and_gone(&world);
    let again = open_when_known(&mut world.worker(), &sender, 2);
    assert_eq!(again.prior, [text("one"), text("two")]);
}

#[test]
fn what_the_folder_has_and_is_shorter_than_was_shown_is_not_the_log_either() {
    let world = depth_none(true);
    let (_less, sender) = shown_and_gone(&world);
    // The disk has lost what the second consumer wrote.
    let mut folders = vec![world.folder.path().join("checkpoint")];
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
            } else if std::fs::read(&path).unwrap().windows(3).any(|bytes| bytes == b"two") {
                std::fs::remove_file(path).unwrap();
            }
        }
    }
    assert!(open_when_known(&mut world.worker(), &sender, 2).lost);
}

#[test]
fn what_only_consumers_wrote_down_says_how_many_tasks_recorded_it() {
    let world = world(true);
    let (a, c) = (world.process("a"), world.process("c"));
    let mut on_a = worker_of(&world, &a);
    let sender = |stage, attempt| OpenTask { inside: true, ..opening(&task(0), stage, attempt) };
    let first = on_a.open(sender(104, 1)).unwrap();
    keep(&mut on_a, first.session, "one");
    assert!(shows(&mut worker_of(&world, &c), 0, &task(0), &["one"]));
    let (driver, config) = restarted(&world);
    let mut worker = Client::connect(&config, driver.socket()).unwrap();
    let same = worker.open(sender(114, 2)).unwrap();
    assert_eq!(same.prior, [text("one")]);
    assert!(same.recording.layout_changed, "by 4 tasks, and asked for by 14");
    worker.close(same.session, Summary::default(), Ending::default()).unwrap();
    assert!(!worker.open(sender(104, 3)).unwrap().recording.layout_changed);
}

#[test]
fn what_something_visible_depends_on_cannot_be_discarded() {
    let world = world(false);
    let (a, c) = (world.process("a"), world.process("c"));
    let mut on_a = worker_of(&world, &a);
    let first = on_a.open(inside(&task(0), 1)).unwrap();
    keep(&mut on_a, first.session, "one");
    assert!(shows(&mut worker_of(&world, &c), 0, &task(0), &["one"]));
    assert_eq!(on_a.discard(first.session).unwrap_err().condition(), "CAUSAL_LOG_LOST");
    a.kill();
    assert_eq!(open_when_known(&mut world.worker(), &task(0), 2).prior, [text("one")]);
}

#[test]
fn a_copy_of_before_the_log_was_published_elsewhere_is_not_the_log() {
    let world = depth_none(false);
    let (a, b) = (world.process("a"), world.process("b"));
    let mut on_a = worker_of(&world, &a);
    let first = on_a.open(inside(&task(0), 1)).unwrap();
    append(&mut on_a, first.session, &text("one")).unwrap();
    let mut on_b = worker_of(&world, &b);
    let second = on_b.open(inside(&task(0), 2)).unwrap();
    assert_eq!(second.prior, [text("one")]);
    append(&mut on_b, second.session, &text("two")).unwrap();
    b.kill();
    // The first agent lives, and has all of the first attempt.
    let third = open_when_known(&mut on_a, &task(0), 3);
    assert!(third.lost && third.prior.is_empty(), "{:?}", third.prior);
}

#[test]
fn what_was_copied_anew_of_what_rode_in_frames_is_not_all_of_the_log() {
    let world = world(false);
    let (a, c, peer) = (world.process("a"), world.process("c"), world.executor("peer"));
    let mut on_a = worker_of(&world, &a);
    let first = on_a.open(inside(&task(0), 1)).unwrap();
    keep(&mut on_a, first.session, "one");
    keep(&mut on_a, first.session, "two");
    close(&mut on_a, first.session);
    a.kill();
    assert!(shows(&mut worker_of(&world, &c), 0, &task(0), &["one"]));
    c.kill();
    let read = Request::Read { task: task(0), from: LogOffset::START, whole: false, newest: None };
    for agent in [&peer, &world.driver] {
        eventually(
            "those that are left have a copy",
            || matches!(Peer::of(&world, agent.addr()).ask(&read), Reply::Blocks(blocks) if blocks == [text("one")]),
        );
    }
    // Another consumer has the second frame, too.
    let late = world.process("late");
    let (mut on_late, _) = takes(&world, &late, 1, &["one", "two"]);
    assert_eq!(open_when_known(&mut on_late, &task(0), 2).prior, [text("one"), text("two")]);
}

#[test]
fn what_is_kept_behind_what_was_published_is_where_that_is() {
    let world = world(false);
    let (a, _peer) = (world.process("a"), world.process("peer"));
    let mut on_a = worker_of(&world, &a);
    let first = on_a.open(inside(&task(0), 1)).unwrap();
    append(&mut on_a, first.session, &text("published")).unwrap();
    keep(&mut on_a, first.session, "kept");
    a.kill();
    let again = open_when_known(&mut world.worker(), &task(0), 2);
    assert_eq!(again.prior, [text("published"), text("kept")]);
}

#[test]
fn a_log_that_was_found_is_found_by_the_attempt_after_that() {
    let world = depth_none(false);
    let mut worker = world.worker();
    let first = open(&mut worker, &task(0), 1, 1);
    append(&mut worker, first.session, &text("one")).unwrap();
    for attempt in 2..5 {
        let next = open(&mut worker, &task(0), 1, attempt);
        assert!(!next.lost);
        assert_eq!(next.prior, [text("one")]);
    }
}
