//! State in `checkpoint_dir`: all agents are gone, the driver's too, and the query goes on, or goes back.

use std::path::{Path, PathBuf};
use std::process::Command;

use clonos::agent::protocol::{Execution, OpenTask};
use clonos::config::SessionConfig;
use clonos::edge::agent::Agent;
use clonos::edge::net::client::Client;
use clonos::id::Epoch;
use clonos::state::Version;

use crate::states::{Counting, all_are, condition, count_all, counters};
use crate::world::{World, append, close, eventually, opening, start_driver, task_in, text};

fn world(set: impl FnOnce(&mut SessionConfig)) -> World {
    World::with(|config, folder| {
        config.checkpoint_dir = Some(folder.path().join("checkpoint").display().to_string());
        set(config);
    })
}

/// Another application on the same folder; the first may still be there.
fn next(world: &World, name: &str) -> (Agent, SessionConfig) {
    let config = SessionConfig { app_id: name.into(), ..world.config.clone() };
    start_driver(config, world.folder.path().join(format!("{name}.sock")))
}

fn worker_of(driver: &Agent, config: &SessionConfig) -> Client {
    Client::connect(config, driver.socket()).unwrap()
}

fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path, ending));
        } else if path.extension().is_some_and(|e| e == ending) {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn checkpoint(world: &World) -> PathBuf {
    world.folder.path().join("checkpoint")
}

#[test]
fn when_everybody_is_gone_the_next_application_reads_all_of_it() {
    let world = world(|_| {});
    let (one, two) = (world.executor("one"), world.executor("two"));
    let mut worker = world.worker_of(&one);
    for epoch in 0..3 {
        count_all(&mut worker, epoch, 4, 0..300).unwrap();
    }
    // Epoch 3 was begun, and in part decided, when it ended.
    Counting::begin(&mut worker, 3, 2, 4).unwrap().count(&mut worker, 0..300).unwrap();
    [&one, &two, &world.driver].into_iter().for_each(Agent::stop);
    let (driver, config) = next(&world, "app-next");
    let mut worker = worker_of(&driver, &config);
    assert_eq!(counters(&mut worker, 3, 5, 0..300).unwrap(), all_are(0..300, 3));
    let task = Counting::begin(&mut worker, 3, 0, 4).unwrap();
    assert_eq!((task.version, &task.catalog[..]), (Version(Some(2)), &b"one counter"[..]));
    for epoch in 3..6 {
        assert_eq!(count_all(&mut worker, epoch, 4, 0..300).unwrap(), Version(Some(epoch - 1)));
    }
    assert_eq!(counters(&mut worker, 6, 2, 0..300).unwrap(), all_are(0..300, 6));
}

#[test]
fn holders_that_are_all_killed_are_replaced_out_of_the_folder_in_the_middle_of_an_epoch() {
    let world = world(|config| config.standbys = 0);
    let victim = world.process("victim");
    let mut worker = world.worker();
    count_all(&mut worker, 0, 2, 0..200).unwrap();
    count_all(&mut worker, 1, 2, 0..200).unwrap();
    Counting::begin(&mut worker, 2, 0, 2).unwrap().count(&mut worker, 0..200).unwrap();
    victim.kill();
    let mut tries = 0;
    while let Err(error) =
        Counting::begin(&mut worker, 2, 1, 2).and_then(|task| task.count(&mut worker, 0..200))
    {
        tries += 1;
        assert!(tries < 10, "{error}");
    }
    world.driver.check_epoch("q", &Epoch::Batch(2)).unwrap();
    assert_eq!(counters(&mut worker, 3, 3, 0..200).unwrap(), all_are(0..200, 3));
}

#[test]
fn a_folder_and_its_copy_go_on_each_by_itself() {
    let mut world = world(|_| {});
    let mut worker = world.worker();
    for epoch in 0..2 {
        count_all(&mut worker, epoch, 2, 0..100).unwrap();
    }
    world.driver.stop();
    let copied = world.folder.path().join("copied");
    let made = Command::new("cp").arg("-r").args([&checkpoint(&world), &copied]).status();
    assert!(made.unwrap().success());
    let first = world.config.checkpoint_dir.replace(copied.display().to_string());
    let (driver, config) = next(&world, "copy");
    let mut worker = worker_of(&driver, &config);
    for epoch in 2..5 {
        count_all(&mut worker, epoch, 2, 0..50).unwrap();
    }
    driver.stop();
    world.config.checkpoint_dir = first;
    let (driver, config) = next(&world, "first");
    let mut worker = worker_of(&driver, &config);
    assert_eq!(count_all(&mut worker, 2, 2, 0..100).unwrap(), Version(Some(1)));
    assert_eq!(counters(&mut worker, 3, 2, 0..100).unwrap(), all_are(0..100, 3));
}

#[test]
fn a_query_that_goes_back_reads_what_was_then_and_what_came_after_is_gone() {
    let world = world(|_| {});
    let mut worker = world.worker();
    for epoch in 0..6 {
        count_all(&mut worker, epoch, 2, 0..100).unwrap();
    }
    // In the same application.
    world.driver.begin_run("q", None);
    assert_eq!(counters(&mut worker, 3, 2, 0..100).unwrap(), all_are(0..100, 3));
    count_all(&mut worker, 3, 3, 0..50).unwrap();
    assert_eq!(counters(&mut worker, 4, 2, 0..50).unwrap(), all_are(0..50, 4));
    count_all(&mut worker, 4, 2, 0..50).unwrap();
    world.driver.stop();
    // In the next one: epoch 5 of the first run does not count.
    let (driver, config) = next(&world, "app-next");
    let mut worker = worker_of(&driver, &config);
    let expected = |low, high| {
        let mut all = all_are(0..50, low);
        all.extend(all_are(50..100, high));
        all
    };
    assert_eq!(counters(&mut worker, 5, 2, 0..100).unwrap(), expected(5, 3));
    count_all(&mut worker, 5, 2, 0..50).unwrap();
    driver.stop();
    // Back once more, in a third.
    let (driver, config) = next(&world, "app-third");
    let mut worker = worker_of(&driver, &config);
    assert_eq!(counters(&mut worker, 4, 2, 0..100).unwrap(), expected(4, 3));
    count_all(&mut worker, 4, 2, 0..100).unwrap();
    assert_eq!(counters(&mut worker, 5, 2, 0..100).unwrap(), expected(5, 4));
    // To its beginning.
    driver.begin_run("q", None);
    assert_eq!(counters(&mut worker, 0, 2, 0..100).unwrap(), all_are(0..0, 0));
}

#[test]
fn what_an_earlier_run_has_left_behind_makes_its_query_neither_go_back_nor_on() {
    let world = world(|_| {});
    let mut worker = world.worker();
    let opened_in = |worker: &mut Client, execution: u64, epoch: u64, attempt: u64| {
        let execution = Some(Execution { id: execution, root: execution });
        worker.open(OpenTask { execution, ..opening(&task_in(Epoch::Batch(epoch), 0), 101, attempt) })
    };
    for epoch in 0..3 {
        let opened = opened_in(&mut worker, 10 + epoch, epoch, epoch).unwrap();
        let task = Counting::begin_in(&mut worker, opened.session, epoch, (0, 1)).unwrap();
        task.count(&mut worker, 0..100).unwrap();
        close(&mut worker, opened.session);
    }
    world.driver.commit_epoch("q", &Epoch::Batch(2)).unwrap();
    world.driver.begin_run("q", None);
    // Of the last batch, which is committed: it would be taken back, in the folder too.
    assert_eq!(condition(opened_in(&mut world.worker(), 12, 2, 100)), "FENCED");
    let opened = opened_in(&mut worker, 13, 3, 3).unwrap();
    let task = Counting::begin_in(&mut worker, opened.session, 3, (0, 1)).unwrap();
    assert_eq!(task.read(&mut worker, &[1, 2]).unwrap(), all_are(1..3, 3));
    append(&mut worker, opened.session, &text("a call")).unwrap();
    close(&mut worker, opened.session);
    // Of a batch behind it, before the query went back: its beginning would commit this one.
    assert_eq!(condition(opened_in(&mut world.worker(), 12, 4, 101)), "FENCED");
    let again = opened_in(&mut worker, 13, 3, 4).unwrap();
    assert_eq!(again.prior, [text("a call")]);
    Counting::begin_in(&mut worker, again.session, 3, (0, 1)).unwrap().count(&mut worker, 0..100).unwrap();
    assert_eq!(counters(&mut worker, 4, 2, 0..100).unwrap(), all_are(0..100, 4));
}

#[test]
fn without_a_folder_a_query_cannot_go_back_and_says_so() {
    let world = World::new();
    let mut worker = world.worker();
    for epoch in 0..3 {
        count_all(&mut worker, epoch, 1, 0..10).unwrap();
    }
    world.driver.begin_run("q", None);
    let refused = Counting::begin(&mut worker, 1, 0, 1).map(|_| ()).unwrap_err();
    assert_eq!(refused.condition(), "STATE_LOST");
    assert!(refused.to_string().contains("checkpoint_dir"), "{refused}");
}

#[test]
fn a_restart_reads_bases_and_what_was_decided_since_and_old_files_are_removed() {
    let world = world(|config| config.state_epochs = 3);
    let executor = world.executor("one");
    let mut worker = world.worker_of(&executor);
    let mut epoch = 0;
    let count = |worker: &mut Client, epoch: &mut u64| {
        count_all(worker, *epoch, 2, 0..200).unwrap();
        *epoch += 1;
    };
    (0..12).for_each(|_| count(&mut worker, &mut epoch));
    eventually("bases are written", || !files(&checkpoint(&world), "base").is_empty());
    eventually("old epochs are removed", || {
        count(&mut worker, &mut epoch);
        let oldest = files(&checkpoint(&world), "delta").first().cloned();
        !oldest.is_some_and(|path| path.parent().unwrap().ends_with("0"))
    });
    (0..2).for_each(|_| count(&mut worker, &mut epoch));
    [&executor, &world.driver].into_iter().for_each(Agent::stop);
    let (driver, config) = next(&world, "app-next");
    let mut worker = worker_of(&driver, &config);
    assert_eq!(counters(&mut worker, epoch, 2, 0..200).unwrap(), all_are(0..200, epoch));
    // As many epochs as Spark keeps can be gone back.
    driver.stop();
    let (driver, config) = next(&world, "app-third");
    let mut worker = worker_of(&driver, &config);
    assert_eq!(counters(&mut worker, epoch - 2, 2, 0..200).unwrap(), all_are(0..200, epoch - 2));
    driver.stop();
    let (driver, config) = next(&world, "app-fourth");
    let refused = Counting::begin(&mut worker_of(&driver, &config), 2, 0, 2);
    assert_eq!(condition(refused), "STATE_LOST");
}

#[test]
fn what_is_missing_or_damaged_in_the_folder_is_named() {
    let world = world(|_| {});
    let mut worker = world.worker();
    for epoch in 0..3 {
        count_all(&mut worker, epoch, 2, 0..100).unwrap();
    }
    world.driver.stop();
    let deltas = files(&checkpoint(&world), "delta");
    assert_eq!(deltas.len(), 6);
    let whole = std::fs::read(&deltas[2]).unwrap();
    std::fs::remove_file(&deltas[2]).unwrap();
    let (driver, config) = next(&world, "app-next");
    let refused = Counting::begin(&mut worker_of(&driver, &config), 3, 0, 2).map(|_| ()).unwrap_err();
    assert_eq!(refused.condition(), "STATE_LOST");
    let text = refused.to_string();
    assert!(text.contains("epoch 1 has no delta of 1 of 2 partitions"), "{text}");
    driver.stop();
    let mut damaged = whole.clone();
    let last = damaged.len() - 1;
    damaged[last] ^= 1;
    std::fs::write(&deltas[2], damaged).unwrap();
    let (driver, config) = next(&world, "app-third");
    let mut worker = worker_of(&driver, &config);
    let refused = Counting::begin(&mut worker, 3, 0, 2).map(|_| ()).unwrap_err();
    assert_eq!(refused.condition(), "STATE_LOST");
    assert!(refused.to_string().contains(deltas[2].to_str().unwrap()), "{refused}");
    // Put back, it is read: nothing was given up meanwhile.
    std::fs::write(&deltas[2], whole).unwrap();
    assert_eq!(counters(&mut worker, 3, 2, 0..100).unwrap(), all_are(0..100, 3));
}

#[test]
fn an_application_that_was_cut_off_decides_nothing_in_the_folder() {
    let world = world(|_| {});
    let mut old = world.worker();
    count_all(&mut old, 0, 1, 0..50).unwrap();
    count_all(&mut old, 1, 1, 0..50).unwrap();
    let left = Counting::begin(&mut old, 2, 0, 1).unwrap();
    let (driver, config) = next(&world, "app-next");
    let mut new = worker_of(&driver, &config);
    assert_eq!(counters(&mut new, 2, 1, 0..50).unwrap(), all_are(0..50, 2));
    // It thinks that it is alone.
    assert_eq!(condition(left.write(&mut old, &all_are(0..50, 99))), "CONFIG");
    // The query's next epochs do nothing here.
    world.driver.stop();
    driver.stop();
    let (driver, config) = next(&world, "app-third");
    let mut third = worker_of(&driver, &config);
    assert_eq!(counters(&mut third, 3, 1, 0..50).unwrap(), all_are(0..50, 2));
}

#[test]
fn an_application_without_a_folder_does_not_begin_with_nothing_in_a_query_that_has_gone_on() {
    let world = World::new();
    let mut worker = world.worker();
    count_all(&mut worker, 0, 1, 0..10).unwrap();
    world.driver.stop();
    let (driver, config) = next(&world, "app-next");
    let refused = Counting::begin(&mut worker_of(&driver, &config), 1, 0, 1).map(|_| ()).unwrap_err();
    assert_eq!(refused.condition(), "STATE_LOST");
    assert!(refused.to_string().contains("checkpoint_dir is not set"), "{refused}");
    driver.stop();
    let config = SessionConfig {
        app_id: "app-third".into(),
        on_lost: clonos::config::OnLost::AtLeastOnce,
        ..world.config.clone()
    };
    let (driver, config) = start_driver(config, world.folder.path().join("third.sock"));
    assert_eq!(count_all(&mut worker_of(&driver, &config), 1, 1, 0..10).unwrap(), Version::NONE);
}
