//! With a checkpoint folder the loss of everything is survived, the driver included.

use std::path::Path;

use clonos::config::SessionConfig;
use clonos::edge::net::client::Client;
use clonos::id::Epoch;

use crate::world::{
    APP, World, append, close, eventually, numbered, open, start_driver, task, task_in, text,
};

fn with_checkpoint() -> World {
    World::with(|config, folder| {
        config.checkpoint_dir = Some(folder.path().join("checkpoint").display().to_string());
    })
}

/// Everything again, as a new application on the same checkpoint folder.
fn restarted(world: &World) -> (clonos::edge::agent::Agent, SessionConfig) {
    world.driver.stop();
    let mut config = world.config.clone();
    config.app_id = "app-next".into();
    start_driver(config, world.folder.path().join("next.sock"))
}

fn segments(folder: &Path) -> usize {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let count = |path: &Path| {
        if path.is_dir() { segments(path) } else { usize::from(path.extension().is_some_and(|e| e == "seg")) }
    };
    entries.map(|entry| count(&entry.unwrap().path())).sum()
}

#[test]
fn everything_acknowledged_is_there_after_everything_died() {
    let world = with_checkpoint();
    let victims: Vec<_> = (0..2).map(|n| world.process(&n.to_string())).collect();
    for (at, victim) in victims.iter().enumerate() {
        let mut worker = Client::connect(&world.config, &victim.socket).unwrap();
        let partition = u32::try_from(at).unwrap();
        let opened = open(&mut worker, &task(partition), 104, u64::from(partition));
        for number in 0..10 {
            append(&mut worker, opened.session, &numbered(number + 100 * at as u64, 3_000)).unwrap();
        }
    }
    victims.into_iter().for_each(crate::world::AgentProcess::kill);
    let (driver, config) = restarted(&world);
    assert_eq!(driver.live_epochs().unwrap().len(), 1);
    let mut worker = Client::connect(&config, driver.socket()).unwrap();
    for partition in 0..2_u32 {
        let again = open(&mut worker, &task(partition), 104, u64::from(partition));
        let first = 100 * u64::from(partition);
        assert!(again.prior == (first..first + 10).map(|n| numbered(n, 3_000)).collect::<Vec<_>>());
        assert!(!again.lost && !again.layout_changed);
    }
}

#[test]
fn a_new_application_is_another_stage_and_may_be_another_layout() {
    let world = with_checkpoint();
    let mut worker = world.worker();
    for partition in 0..4 {
        let opened = open(&mut worker, &task(partition), 104, u64::from(partition));
        append(&mut worker, opened.session, &numbered(partition.into(), 100)).unwrap();
        close(&mut worker, opened.session);
    }
    let (driver, config) = restarted(&world);
    let mut worker = Client::connect(&config, driver.socket()).unwrap();
    let mut open_at = |stage, attempt| {
        let mut opening = crate::world::opening(&task(1), stage, attempt);
        opening.app = APP + 1;
        worker.open(opening).unwrap()
    };
    let same = open_at(104, 50);
    assert!(!same.same_stage && !same.layout_changed);
    drop(worker);
    driver.stop();
    let (driver, config) = start_driver(config, world.folder.path().join("third.sock"));
    let mut worker = Client::connect(&config, driver.socket()).unwrap();
    let mut opening = crate::world::opening(&task(0), 102, 60);
    opening.app = APP + 2;
    let other = worker.open(opening).unwrap();
    assert!(other.layout_changed);
    assert_eq!(other.prior, [numbered(0, 100)]);
    let pool = worker.pool(&task(0)).unwrap();
    assert_eq!(pool.len(), 3);
}

#[test]
fn what_went_on_after_a_restart_is_there_after_the_next() {
    let world = with_checkpoint();
    let mut worker = world.worker();
    let opened = open(&mut worker, &task(0), 104, 1);
    append(&mut worker, opened.session, &text("first life")).unwrap();
    let (driver, config) = restarted(&world);
    let mut worker = Client::connect(&config, driver.socket()).unwrap();
    let opened = open(&mut worker, &task(0), 104, 2);
    assert_eq!(opened.prior, [text("first life")]);
    append(&mut worker, opened.session, &text("second life")).unwrap();
    driver.stop();
    let (driver, config) = start_driver(config, world.folder.path().join("third.sock"));
    let mut worker = Client::connect(&config, driver.socket()).unwrap();
    assert_eq!(open(&mut worker, &task(0), 104, 3).prior, [text("first life"), text("second life")]);
}

#[test]
fn one_lost_copy_is_read_from_the_checkpoint() {
    let world = World::with(|config, folder| {
        config.checkpoint_dir = Some(folder.path().join("checkpoint").display().to_string());
        config.sharing_depth = 0;
    });
    let victim = world.process("victim");
    let mut worker = Client::connect(&world.config, &victim.socket).unwrap();
    let opened = open(&mut worker, &task(0), 1, 1);
    append(&mut worker, opened.session, &text("synced")).unwrap();
    victim.kill();
    let again = open(&mut world.worker(), &task(0), 1, 2);
    assert_eq!((again.prior, again.lost), (vec![text("synced")], false));
}

#[test]
fn a_commit_removes_the_segments_of_its_epochs() {
    let world = with_checkpoint();
    let own = world.executor("own");
    let mut worker = world.worker_of(&own);
    for batch in 1..=3 {
        let opened = open(&mut worker, &task_in(Epoch::Batch(batch), 0), 1, batch);
        append(&mut worker, opened.session, &text("x")).unwrap();
        close(&mut worker, opened.session);
    }
    let folder = world.folder.path().join("checkpoint");
    world.driver.commit_epoch("q", &Epoch::Batch(2)).unwrap();
    eventually("only batch 3 is left", || segments(&folder) == 1);
    world.driver.commit_epoch("q", &Epoch::Batch(3)).unwrap();
    eventually("nothing is left", || segments(&folder) == 0);
}

#[test]
fn a_named_epoch_used_again_is_durable_again() {
    let world = with_checkpoint();
    let own = world.executor("own");
    let daily = task_in(Epoch::Named("daily".into()), 0);
    let mut worker = world.worker_of(&own);
    for round in 0..3_u64 {
        let opened = open(&mut worker, &daily, 1, round);
        assert!(opened.prior.is_empty(), "round {round}");
        append(&mut worker, opened.session, &numbered(round, 10)).unwrap();
        close(&mut worker, opened.session);
        if round < 2 {
            world.driver.commit_epoch("q", &daily.epoch).unwrap();
        }
    }
    // Longer than a heartbeat: a late word of the commits must not touch the last round.
    std::thread::sleep(std::time::Duration::from_millis(1_200));
    own.stop();
    let (driver, config) = restarted(&world);
    let mut worker = Client::connect(&config, driver.socket()).unwrap();
    assert_eq!(open(&mut worker, &daily, 1, 9).prior, [numbered(2, 10)]);
}
