//! Guarantee 6: memory is bounded; past it logs spill; past the disk, writers are slowed and refused.

use std::cell::Cell;

use clonos::agent::protocol::ClusterStats;
use clonos::id::Epoch;

use crate::world::{World, append, close, eventually, numbered, open, task, task_in};

const MIB: u64 = 1 << 20;

fn memory(stats: &ClusterStats) -> u64 {
    stats.agents.iter().map(|agent| agent.memory_bytes).max().unwrap()
}

#[test]
fn logs_past_the_memory_budget_spill_and_are_read_back() {
    let world = World::with(|config, _| config.memory_bytes = 32 * MIB);
    let mut worker = world.worker();
    let opened = open(&mut worker, &task(0), 1, 1);
    let mut worst = 0;
    for number in 0..256 {
        append(&mut worker, opened.session, &numbered(number, MIB as usize)).unwrap();
        worst = worst.max(memory(&world.driver.stats().unwrap()));
    }
    assert!(worst <= 32 * MIB, "{worst} bytes in memory");
    assert!(worst > 16 * MIB, "memory is used: {worst}");
    // Opened again it is still inside: a log is not read whole to be taken over.
    let mut other = world.worker();
    let again = open(&mut other, &task(0), 1, 2);
    assert_eq!(again.prior.len(), 256);
    for (number, block) in again.prior.iter().enumerate() {
        assert!(*block == numbered(number as u64, MIB as usize), "block {number}");
    }
    let stats = world.driver.stats().unwrap();
    assert!(memory(&stats) <= 32 * MIB);
    let spilled = stats.agents[0].spilled_bytes;
    assert!(spilled <= 256 * MIB, "{spilled} bytes spilled: nothing twice");
    append(&mut other, again.session, &numbered(256, 1000)).unwrap();
}

#[test]
fn many_workers_stay_inside_together_and_so_does_their_peer() {
    let world = World::with(|config, _| config.memory_bytes = 8 * MIB);
    let (own, peer) = (world.executor("own"), world.executor("peer"));
    std::thread::scope(|scope| {
        for partition in 0..6_u32 {
            let (world, own) = (&world, &own);
            scope.spawn(move || {
                let mut worker = world.worker_of(own);
                let opened = open(&mut worker, &task(partition), 1, u64::from(partition));
                for number in 0..40 {
                    append(&mut worker, opened.session, &numbered(number, 300_000)).unwrap();
                    let stats = world.driver.stats().unwrap();
                    assert!(memory(&stats) <= 8 * MIB, "{} bytes", memory(&stats));
                }
            });
        }
    });
    own.stop();
    let mut other = world.worker_of(&peer);
    for partition in 0..6 {
        let again = open(&mut other, &task(partition), 1, 100 + u64::from(partition));
        assert_eq!(again.prior.len(), 40);
        assert!(again.prior.iter().enumerate().all(|(n, b)| *b == numbered(n as u64, 300_000)));
    }
}

#[test]
fn a_block_larger_than_memory_is_refused_by_name_and_the_rest_goes_on() {
    let world = World::with(|config, _| config.memory_bytes = MIB);
    let mut worker = world.worker();
    let opened = open(&mut worker, &task(0), 1, 1);
    let refused = append(&mut worker, opened.session, &numbered(0, 2 * MIB as usize)).unwrap_err();
    assert_eq!(refused.condition(), "MEMORY_BUDGET");
    assert!(refused.to_string().contains("memory"), "{refused}");
    let mut other = world.worker();
    let next = open(&mut other, &task(1), 1, 1);
    append(&mut other, next.session, &numbered(0, 1000)).unwrap();
}

#[test]
fn past_the_disk_budget_writers_are_refused_by_name_and_a_commit_frees_them() {
    let world = World::with(|config, _| {
        config.memory_bytes = MIB;
        config.disk_bytes = 2 * MIB;
        config.io_timeout_ms = 500;
    });
    let mut worker = world.worker();
    let opened = open(&mut worker, &task(0), 1, 1);
    let mut acknowledged = 0_u64;
    let refused = loop {
        match append(&mut worker, opened.session, &numbered(acknowledged, 100_000)) {
            Ok(()) => acknowledged += 1,
            Err(error) => break error,
        }
        assert!(acknowledged < 100, "a budget of 3 MiB holds 10 MB");
    };
    assert_eq!(refused.condition(), "DISK_BUDGET");
    assert!(refused.to_string().contains("disk"), "{refused}");
    // What was acknowledged before is there.
    let again = open(&mut world.worker(), &task(0), 1, 2);
    assert!(again.prior.len() as u64 >= acknowledged);
    assert!(again.prior.iter().enumerate().all(|(n, b)| *b == numbered(n as u64, 100_000)));
    world.driver.commit_epoch("q", &Epoch::Batch(1)).unwrap();
    let mut next = world.worker();
    let opened = open(&mut next, &task_in(Epoch::Batch(2), 0), 1, 3);
    for number in 0..20 {
        append(&mut next, opened.session, &numbered(number, 100_000)).unwrap();
    }
}

#[test]
fn peers_without_room_are_no_reason_to_keep_fewer_copies() {
    let world = World::with(|config, _| {
        config.memory_bytes = MIB;
        config.disk_bytes = MIB;
        config.io_timeout_ms = 1_200;
    });
    let peer = world.executor("peer");
    let (full, number) = (Epoch::Named("full".into()), Cell::new(0_u64));
    // One log, of which the peer holds the one copy and the driver the other, fills both.
    let mut filler = world.worker_of(&peer);
    let opened = open(&mut filler, &task_in(full.clone(), 0), 1, 1);
    while append(&mut filler, opened.session, &numbered(number.get(), 100_000)).is_ok() {
        number.set(number.get() + 1);
    }
    let own = world.executor("own");
    let mut worker = world.worker_of(&own);
    let opened = open(&mut worker, &task(0), 1, 2);
    let refused = append(&mut worker, opened.session, &numbered(0, 300_000)).unwrap_err();
    assert_eq!(refused.condition(), "DISK_BUDGET", "nobody but this agent has room: {refused}");
    world.driver.commit_epoch("q", &full).unwrap();
    eventually("there is room again", || {
        let stats = world.driver.stats().unwrap();
        stats.tasks.iter().all(|task| task.operator == "f") && memory(&stats) < MIB / 2
    });
    // The refused block may stand in some copy: nothing is acknowledged behind it.
    let again = append(&mut worker, opened.session, &numbered(1, 1_000)).unwrap_err();
    assert_eq!(again.condition(), "DISK_BUDGET");
    let mut next = world.worker_of(&own);
    let opened = open(&mut next, &task(0), 1, 3);
    append(&mut next, opened.session, &numbered(2, 1_000)).unwrap();
}

#[test]
fn spilled_space_is_free_after_the_commit() {
    let world = World::with(|config, _| config.memory_bytes = MIB);
    let own = world.executor("own");
    let mut worker = world.worker_of(&own);
    let opened = open(&mut worker, &task(0), 1, 1);
    for number in 0..50 {
        append(&mut worker, opened.session, &numbered(number, 100_000)).unwrap();
    }
    close(&mut worker, opened.session);
    world.driver.commit_epoch("q", &Epoch::Batch(1)).unwrap();
    eventually("memory and disk are free on every agent", || {
        let stats = world.driver.stats().unwrap();
        stats.agents.iter().all(|agent| agent.memory_bytes + agent.spilled_bytes == 0)
    });
}
