//! Savepoints: one exact version of a query, whatever is committed and whoever is lost meanwhile.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clonos::edge::agent::Agent;
use clonos::edge::disk::savepoint::{Manifest, Savepoint};
use clonos::edge::disk::stored::Stored;
use clonos::id::Epoch;
use clonos::state::Op;

use crate::states::{Counting, all_are, condition, count_all, in_partition};
use crate::world::{World, close};

/// The counters that a savepoint holds, and its epoch.
fn saved(path: &Path) -> (u64, BTreeMap<u64, u64>) {
    let savepoint = Savepoint::open(path, "path").unwrap();
    savepoint.check().unwrap();
    let place = savepoint.find("f", "path").unwrap();
    let mut pages = savepoint.pages(place, &(0..=u64::MAX)).unwrap();
    let mut counters = BTreeMap::new();
    while let Some(page) = pages.next().unwrap() {
        for entry in page.entries.iter() {
            let entry = entry.unwrap();
            let Op::Put { value, .. } = &entry.op else { panic!("{entry:?}") };
            let key = u64::from_be_bytes(entry.key.prefix().key().try_into().unwrap());
            let count = u64::from_be_bytes(value[..8].try_into().unwrap());
            assert!(counters.insert(key, count).is_none());
        }
    }
    (savepoint.manifest().epoch, counters)
}

fn save(world: &World, name: &str) -> Manifest {
    world.driver.savepoint("q", &world.folder.path().join(name)).unwrap()
}

#[test]
fn the_last_committed_version_of_all_who_hold_it_is_saved() {
    let world = World::new();
    let agents: Vec<Agent> = (0..3).map(|number| world.executor(&format!("e{number}"))).collect();
    let mut worker = world.worker_of(&agents[0]);
    for epoch in 0..3 {
        count_all(&mut worker, epoch, 4, 0..400).unwrap();
    }
    // Epoch 2 is decided, and not committed.
    let manifest = save(&world, "first");
    assert_eq!((manifest.epoch, manifest.query.as_str(), manifest.states.len()), (1, "q", 1));
    assert_eq!(manifest.states[0].sum(|range| range.keys), 400);
    assert_eq!(saved(&world.folder.path().join("first")), (1, all_are(0..400, 2)));
    world.driver.commit_epoch("q", &Epoch::Batch(2)).unwrap();
    save(&world, "second");
    assert_eq!(saved(&world.folder.path().join("second")), (2, all_are(0..400, 3)));
    // The first is what it was.
    assert_eq!(saved(&world.folder.path().join("first")), (1, all_are(0..400, 2)));
}

#[test]
fn what_cannot_be_saved_says_why() {
    let world = World::new();
    let mut worker = world.worker();
    let path = world.folder.path().join("saved");
    let refused = world.driver.savepoint("q", &path).unwrap_err();
    assert!(refused.to_string().contains("no keyed state of query q, but of none"), "{refused}");
    count_all(&mut worker, 0, 2, 0..10).unwrap();
    let refused = world.driver.savepoint("q", &path).unwrap_err();
    assert!(refused.to_string().contains("has committed nothing"), "{refused}");
    world.driver.commit_epoch("q", &Epoch::Batch(0)).unwrap();
    let refused = world.driver.savepoint("other", &path).unwrap_err();
    assert!(refused.to_string().contains("but of q"), "{refused}");
    assert_eq!(condition(world.executor("e").savepoint("q", &path)), "MISUSE");
    assert!(!path.exists());
    world.driver.savepoint("q", &path).unwrap();
    let refused = world.driver.savepoint("q", &path).unwrap_err();
    assert!(refused.to_string().contains("exists already"), "{refused}");
    assert_eq!(saved(&path), (0, all_are(0..10, 1)));
}

#[test]
fn savepoints_of_a_query_that_goes_on_are_of_one_version_each() {
    let world = World::new();
    let agents: Vec<Agent> = (0..3).map(|number| world.executor(&format!("e{number}"))).collect();
    let mut worker = world.worker_of(&agents[0]);
    count_all(&mut worker, 0, 3, 0..300).unwrap();
    world.driver.commit_epoch("q", &Epoch::Batch(0)).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut epoch = 1;
            while !is_over.load(Ordering::Acquire) {
                count_all(&mut worker, epoch, 3, 0..300).unwrap();
                world.driver.commit_epoch("q", &Epoch::Batch(epoch)).unwrap();
                epoch += 1;
            }
        });
        let mut last = 0;
        for number in 0..20 {
            save(&world, &number.to_string());
            let (epoch, counters) = saved(&world.folder.path().join(number.to_string()));
            assert_eq!(counters, all_are(0..300, epoch + 1), "version {epoch}");
            assert!(epoch >= last);
            last = epoch;
        }
        is_over.store(true, Ordering::Release);
        assert!(last > 0, "the query went on");
    });
}

/// Counts with values so large that a savepoint takes a while.
fn count_large(world: &World, keys: u64) {
    let mut worker = world.worker();
    for epoch in 0..2 {
        for partition in 0..4 {
            let task = Counting::begin(&mut worker, epoch, partition, 4).unwrap();
            let counters = in_partition(0..keys, partition, 4).into_iter().map(|key| (key, epoch + 1));
            let delta = task.delta(&counters.collect(), 20_000);
            task.write_delta(&mut worker, &delta).unwrap();
            close(&mut worker, task.session);
        }
    }
    world.driver.commit_epoch("q", &Epoch::Batch(1)).unwrap();
}

#[test]
fn if_a_holder_is_killed_meanwhile_its_standby_gives_the_rest() {
    let world = World::new();
    let (victim, _other) = (world.process("victim"), world.process("other"));
    count_large(&world, 3_000);
    std::thread::scope(|scope| {
        let saving = scope.spawn(|| save(&world, "saved"));
        std::thread::sleep(Duration::from_millis(40));
        victim.kill();
        saving.join().unwrap();
    });
    assert_eq!(saved(&world.folder.path().join("saved")), (1, all_are(0..3_000, 2)));
}

#[test]
fn what_was_lost_with_all_who_had_it_comes_back_from_the_checkpoint_folder() {
    let world = World::with(|config, folder| {
        config.checkpoint_dir = Some(folder.path().join("checkpoint").display().to_string());
        config.standbys = 0;
    });
    let victim = world.process("victim");
    count_large(&world, 500);
    victim.kill();
    // Its connections end at once; that it is dead the registry has to find out.
    save(&world, "saved");
    assert_eq!(saved(&world.folder.path().join("saved")), (1, all_are(0..500, 2)));
    // The folder itself can be looked into, too.
    let stored = Stored::open(&world.folder.path().join("checkpoint"), "path").unwrap();
    let state = stored.find(None, Some("f")).unwrap();
    assert_eq!((&*state.id.query, state.versions.as_slice()), ("q", &[0, 1][..]));
    let figures = state.figures(1).unwrap();
    assert_eq!((figures.keys, figures.entries, figures.timers), (500, 500, 0));
    let refused = state.version(Some(7)).unwrap_err().to_string();
    assert!(refused.contains("0, 1"), "{refused}");
    assert_eq!(condition(stored.find(Some("q"), Some("g"))), "CONFIG");
}
