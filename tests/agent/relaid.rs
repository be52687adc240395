//! Rows that ride in frames, and are asked for by a stage with another number of tasks.

use clonos::agent::protocol::OpenTask;
use clonos::edge::net::client::Client;

use crate::reopened::{absorb, commit, consumer, inside, keep, shows, worker_of, world};
use crate::world::{APP, append, close, opening, restarted, task, text};

/// A sender's opening in a stage of an application.
fn sender(app: u64, partition: u32, stage: u32, attempt: u64) -> OpenTask {
    OpenTask { app, inside: true, ..opening(&task(partition), stage, attempt) }
}

#[test]
fn what_nobody_has_seen_does_not_come_back_beside_what_another_number_of_tasks_is_told() {
    let world = world(false);
    let c = world.process("c");
    let (mut worker, mut on_c) = (world.worker(), worker_of(&world, &c));
    let first = worker.open(sender(APP, 0, 104, 1)).unwrap();
    keep(&mut worker, first.session, "unseen");
    close(&mut worker, first.session);
    // A consumer has it, and shows nothing.
    let taken = on_c.open(inside(&consumer(0), 1)).unwrap();
    absorb(&mut on_c, taken.session, &task(0), &["unseen"]).unwrap();
    // By as many tasks it is found again.
    let same = worker.open(sender(APP + 1, 0, 104, 2)).unwrap();
    assert_eq!(same.prior, [text("unseen")]);
    close(&mut worker, same.session);
    // Its rows may be other tasks' by now, and these ask for them anew: there is no log that they could find.
    let other = worker.open(sender(APP, 0, 102, 3)).unwrap();
    assert!(other.prior.is_empty() && !other.lost && !other.has_frames);
    assert!(commit(&mut on_c, taken.session).is_err(), "what it has taken counts no more");
    keep(&mut worker, other.session, "new");
    close(&mut worker, other.session);
    assert!(!shows(&mut on_c, 1, &task(0), &["unseen"]));
    assert!(shows(&mut on_c, 2, &task(0), &["new"]));
    let third = worker.open(sender(APP + 2, 0, 104, 4)).unwrap();
    assert_eq!((third.prior, third.recording.layout_changed), (vec![text("new")], true));
}

#[test]
fn what_comes_behind_what_was_shown_by_another_number_of_tasks_is_found_by_those_of_before() {
    for (publishes, restarts) in [(true, false), (false, false), (true, true), (false, true)] {
        let world = world(true);
        let c = world.process("c");
        let (mut worker, mut on_c) = (world.worker(), worker_of(&world, &c));
        let first = worker.open(sender(APP, 0, 104, 1)).unwrap();
        keep(&mut worker, first.session, "one");
        close(&mut worker, first.session);
        assert!(shows(&mut on_c, 0, &task(0), &["one"]));
        let second = worker.open(sender(APP, 0, 102, 2)).unwrap();
        assert_eq!(second.prior, [text("one")]);
        if publishes {
            append(&mut worker, second.session, &text("two")).unwrap();
        } else {
            keep(&mut worker, second.session, "two");
        }
        close(&mut worker, second.session);
        assert!(publishes || shows(&mut on_c, 1, &task(0), &["one", "two"]));
        let (mut driver, mut config) = (None, world.config.clone());
        if restarts {
            drop((worker, on_c, c));
            let (next, of_next) = restarted(&world);
            (driver, config) = (Some(next), of_next);
        }
        let driver = driver.as_ref().unwrap_or(&world.driver);
        let mut worker = Client::connect(&config, driver.socket()).unwrap();
        // Of the four tasks again, one that has no log of its own.
        let third = worker.open(sender(APP + 1, 2, 104, 3)).unwrap();
        assert!(third.recording.layout_changed, "published: {publishes}, restarted: {restarts}");
    }
}
