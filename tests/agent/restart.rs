//! With a checkpoint folder the loss of everything is survived, the driver included.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use clonos::agent::protocol::Reply;
use clonos::config::SessionConfig;
use clonos::edge::net::client::Client;
use clonos::error::Error;
use clonos::id::{Epoch, TaskId};

use crate::pooling::{Asking, opening_of, rows};
use crate::world::{
    APP, World, append, close, eventually, numbered, open, restarted, start_driver, task, task_in, text,
};

fn with_checkpoint() -> World {
    World::with(|config, folder| {
        config.checkpoint_dir = Some(folder.path().join("checkpoint").display().to_string());
    })
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
    let mut worker = Client::connect(&config, driver.socket()).unwrap();
    for partition in 0..2_u32 {
        let again = open(&mut worker, &task(partition), 104, u64::from(partition));
        let first = 100 * u64::from(partition);
        assert!(again.prior == (first..first + 10).map(|n| numbered(n, 3_000)).collect::<Vec<_>>());
        assert!(!again.lost && !again.recording.layout_changed);
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
    assert!(!same.recording.same_stage && !same.recording.layout_changed);
    drop(worker);
    driver.stop();
    let (driver, config) = start_driver(config, world.folder.path().join("third.sock"));
    let mut worker = Client::connect(&config, driver.socket()).unwrap();
    let mut opening = crate::world::opening(&task(0), 102, 60);
    opening.app = APP + 2;
    let other = worker.open(opening).unwrap();
    assert!(other.recording.layout_changed);
    assert_eq!(other.prior, [numbered(0, 100)]);
}

#[test]
fn a_log_of_several_numbers_of_tasks_says_so_after_a_restart_with_the_last_of_them() {
    let world = with_checkpoint();
    let mut worker = world.worker();
    for stage in [104, 102] {
        let opened = open(&mut worker, &task(0), stage, stage.into());
        append(&mut worker, opened.session, &numbered(stage.into(), 100)).unwrap();
        close(&mut worker, opened.session);
    }
    let (driver, config) = restarted(&world);
    let mut worker = Client::connect(&config, driver.socket()).unwrap();
    for partition in [1, 0, 1] {
        let mut opening = crate::world::opening(&task(partition), 102, 2);
        opening.app = APP + 1;
        let opened = worker.open(opening).unwrap();
        assert!(
            opened.recording.layout_changed,
            "the last application had two tasks in the end, and four before"
        );
        close(&mut worker, opened.session);
    }
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
    std::thread::sleep(Duration::from_millis(1_200));
    own.stop();
    let (driver, config) = restarted(&world);
    let mut worker = Client::connect(&config, driver.socket()).unwrap();
    assert_eq!(open(&mut worker, &daily, 1, 9).prior, [numbered(2, 10)]);
}

fn named(name: &str) -> TaskId {
    task_in(Epoch::Named(name.into()), 0)
}

/// Another application on the same checkpoint folder, while this one lives.
fn beside(world: &World, name: &str) -> (clonos::edge::agent::Agent, SessionConfig) {
    let config = SessionConfig { app_id: name.into(), ..world.config.clone() };
    start_driver(config, world.folder.path().join(format!("{name}.sock")))
}

/// All segments below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let (folders, mut files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    files.retain(|path| path.extension().is_some_and(|e| e == "seg"));
    files.extend(folders.iter().flat_map(|folder| self::files(folder)));
    files
}

#[test]
fn a_damaged_epoch_is_told_to_who_opens_it_and_stops_no_other() {
    let world = with_checkpoint();
    let mut worker = world.worker();
    let folder = world.folder.path().join("checkpoint");
    for name in ["damaged", "newer", "sound"] {
        let opened = open(&mut worker, &named(name), 104, 1);
        append(&mut worker, opened.session, &text("recorded")).unwrap();
    }
    let path_of =
        |name: &str| files(&folder).into_iter().find(|f| f.to_str().unwrap().contains(name)).unwrap();
    let mut newer = std::fs::read(path_of("newer")).unwrap();
    newer[4] += 1;
    std::fs::write(path_of("newer"), newer).unwrap();
    std::fs::write(path_of("damaged"), "no segment").unwrap();
    let (driver, config) = restarted(&world);
    let mut worker = Client::connect(&config, driver.socket()).unwrap();
    let refused = |worker: &mut Client, name| {
        worker.open(crate::world::opening(&named(name), 104, 2)).map(|_| ()).unwrap_err()
    };
    for (name, condition) in [("damaged", "CORRUPT_SEGMENT"), ("newer", "UNSUPPORTED_VERSION")] {
        let error = refused(&mut worker, name);
        assert_eq!(error.condition(), condition);
        assert!(error.to_string().contains(path_of(name).to_str().unwrap()), "{error}");
    }
    assert_eq!(open(&mut worker, &named("sound"), 104, 2).prior, [text("recorded")]);
    // Moved away, as the message says, it hinders nobody.
    std::fs::remove_file(path_of("damaged")).unwrap();
    assert!(open(&mut worker, &named("damaged"), 104, 3).prior.is_empty());
}

#[test]
fn of_two_applications_on_one_epoch_the_older_is_told_and_removes_nothing() {
    let world = with_checkpoint();
    let own = world.executor("own");
    let mut worker = world.worker_of(&own);
    let daily = open(&mut worker, &named("daily"), 104, 1);
    append(&mut worker, daily.session, &text("one")).unwrap();
    let hourly = open(&mut worker, &named("hourly"), 104, 1);

    let (driver, config) = beside(&world, "app-next");
    let mut other = Client::connect(&config, driver.socket()).unwrap();
    let taken = open(&mut other, &named("daily"), 104, 1);
    assert_eq!(taken.prior, [text("one")]);
    assert!(taken.generation > hourly.generation, "an older application's are older, all of them");
    append(&mut other, taken.session, &text("two")).unwrap();

    let told = append(&mut worker, daily.session, &text("late")).unwrap_err();
    assert_eq!(told.condition(), "CONFIG");
    assert!(told.to_string().contains("checkpoint_dir") && told.to_string().contains("app-next"), "{told}");
    assert!(world.driver.commit_epoch("q", &named("daily").epoch).is_err());
    // Epochs of other names are no matter of the newer one's.
    append(&mut worker, hourly.session, &text("mine")).unwrap();
    world.driver.commit_epoch("q", &named("hourly").epoch).unwrap();

    driver.stop();
    let (driver, config) = beside(&world, "app-third");
    let mut third = Client::connect(&config, driver.socket()).unwrap();
    assert_eq!(open(&mut third, &named("daily"), 104, 1).prior, [text("one"), text("two")]);
    assert!(open(&mut third, &named("hourly"), 104, 1).prior.is_empty());
}

#[test]
fn what_a_late_opener_leaves_does_not_bring_a_committed_name_back() {
    let world = with_checkpoint();
    let own = world.executor("own");
    let mut worker = world.worker_of(&own);
    let opened = open(&mut worker, &named("daily"), 104, 1);
    append(&mut worker, opened.session, &text("old")).unwrap();
    let folder = world.folder.path().join("checkpoint");
    let kept: Vec<_> = files(&folder).into_iter().map(|f| (f.clone(), std::fs::read(f).unwrap())).collect();
    world.driver.commit_epoch("q", &named("daily").epoch).unwrap();
    assert!(append(&mut worker, opened.session, &text("late")).is_err());
    own.stop();
    // As a writer leaves it that died before it looked whether the epoch was committed.
    for (file, bytes) in kept {
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, bytes).unwrap();
    }
    let (driver, config) = restarted(&world);
    let mut worker = Client::connect(&config, driver.socket()).unwrap();
    assert!(open(&mut worker, &named("daily"), 104, 2).prior.is_empty());
}

#[test]
fn a_name_has_another_number_each_time_it_is_used_and_keeps_it_until_its_commit() {
    for has_checkpoint in [true, false] {
        let world = if has_checkpoint { with_checkpoint() } else { World::new() };
        let own = world.executor("own");
        let key = named("daily").epoch_key();
        let mut worker = world.worker_of(&own);
        let first = worker.use_of(key.clone()).unwrap();
        world.driver.commit_epoch("q", &key.epoch).unwrap();
        let second = worker.use_of(key.clone()).unwrap();
        assert_ne!(first, second);
        assert_eq!(world.worker().use_of(key.clone()).unwrap(), second);
        drop(worker);
        own.stop();
        if has_checkpoint {
            let (driver, config) = restarted(&world);
            let mut worker = Client::connect(&config, driver.socket()).unwrap();
            assert_eq!(worker.use_of(key).unwrap(), second, "its calls have the same keys");
        }
    }
}

/// Makes all files below a folder so old.
fn age(folder: &Path, by: Duration) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            age(&path, by);
        } else {
            std::fs::File::open(&path).unwrap().set_modified(SystemTime::now() - by).unwrap();
        }
    }
}

#[test]
fn what_an_application_left_that_is_gone_is_removed_by_one_that_attaches_a_week_later() {
    const DAY: Duration = Duration::from_secs(24 * 3600);
    let world = with_checkpoint();
    let root = world.folder.path().join("checkpoint");
    let mut worker = world.worker();
    // Outside of any named epoch: nobody runs it again.
    let execution = Epoch::Named("sql-4".into());
    let once = TaskId { query: "app:app-test".into(), ..task_in(execution, 0) };
    for task in [&once, &task_in(Epoch::Named("daily".into()), 0)] {
        let opened = open(&mut worker, task, 1, 1);
        append(&mut worker, opened.session, &text("a")).unwrap();
    }
    let (driver, mut config) = restarted(&world);
    config.driver_addr.clear();
    // Nobody waits for what is removed then, nor is told when nothing is.
    let looked_through = || std::thread::sleep(Duration::from_millis(500));
    looked_through();
    assert_eq!(segments(&root), 2, "it may run, on another host");
    driver.stop();
    age(&root, 6 * DAY);
    let (driver, config) = start_driver(config, world.folder.path().join("third.sock"));
    looked_through();
    assert_eq!(segments(&root), 2);
    driver.stop();
    age(&root, 8 * DAY);
    let (_driver, _) = start_driver(config, world.folder.path().join("fourth.sock"));
    eventually("what nobody runs again is removed", || segments(&root) < 2);
    looked_through();
    assert_eq!(segments(&root), 1, "what has a name may be run again at any time");
}

/// What nobody of this application has written is not on its way to this application's registry.
#[test]
fn a_log_with_which_another_application_has_gone_on_is_not_waited_for() {
    let world = World::with(|config, folder| {
        config.sharing_depth = 0;
        config.checkpoint_dir = Some(folder.path().join("checkpoint").display().to_string());
    });
    let one = world.process("one");
    let mut worker = Client::connect(&world.config, &one.socket).unwrap();
    let recorded = open(&mut worker, &task(9), 110, 1);
    append(&mut worker, recorded.session, &rows(5..6, "recorded")).unwrap();
    close(&mut worker, recorded.session);
    let mut asking = Asking::of(&world, 102);
    assert!(matches!(asking.step(), Reply::NotYet));
    one.kill();
    let mut config = world.config.clone();
    config.app_id = "app-next".into();
    config.driver_addr.clear();
    let (next, config) = start_driver(config, world.folder.path().join("next.sock"));
    let mut other = Client::connect(&config, next.socket()).unwrap();
    let taken = other.open(opening_of(APP + 1, 9, 110)).unwrap();
    assert_eq!(taken.prior, [rows(5..6, "recorded")]);
    append(&mut other, taken.session, &rows(1..2, "by another application")).unwrap();
    let answer = asking.all();
    assert!(matches!(answer, Reply::Failed(Error::Fenced { .. })), "{answer:?}");
}
