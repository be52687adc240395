//! Keyed state over agents: each epoch reads what was committed before it, whoever holds it.

use std::collections::BTreeMap;

use clonos::agent::state::messages::{Found, Wanted};
use clonos::id::Epoch;
use clonos::state::{EntriesBuilder, EntryKey, Op, Version};

use crate::states::{Counting, all_are, condition, count_all, counters, in_partition, key};
use crate::world::{World, close};

#[test]
fn an_epoch_reads_what_was_committed_before_it_and_not_what_it_writes() {
    let world = World::new();
    let (one, two) = (world.executor("one"), world.executor("two"));
    let (mut here, mut there) = (world.worker_of(&one), world.worker_of(&two));
    assert_eq!(count_all(&mut here, 0, 4, 0..500).unwrap(), Version::NONE);
    // The same epoch again, elsewhere: nothing is committed, so nothing is there.
    let task = Counting::begin(&mut there, 0, 1, 4).unwrap();
    assert_eq!(task.version, Version::NONE);
    assert_eq!(task.read(&mut there, &in_partition(0..500, 1, 4)).unwrap(), BTreeMap::new());
    task.count(&mut there, 0..500).unwrap();
    close(&mut there, task.session);
    // The next epoch begins when Spark has committed this one.
    assert_eq!(count_all(&mut there, 1, 4, 0..500).unwrap(), Version(Some(0)));
    assert_eq!(counters(&mut here, 2, 4, 0..600).unwrap(), all_are(0..500, 2));
    let task = Counting::begin(&mut here, 2, 0, 4).unwrap();
    assert_eq!((task.version, &task.catalog[..]), (Version(Some(1)), &b"one counter"[..]));
}

#[test]
fn in_local_mode_the_drivers_agent_holds_all() {
    let world = World::new();
    let mut worker = world.worker();
    for epoch in 0..5 {
        count_all(&mut worker, epoch, 2, 0..100).unwrap();
    }
    assert_eq!(counters(&mut worker, 5, 2, 0..100).unwrap(), all_are(0..100, 5));
}

#[test]
fn an_epoch_that_runs_again_decides_the_same_or_is_refused() {
    let world = World::new();
    let mut worker = world.worker();
    count_all(&mut worker, 0, 2, 0..100).unwrap();
    let again = Counting::begin(&mut worker, 0, 0, 2).unwrap();
    let other = all_are(0..100, 9).into_iter().filter(|(n, _)| in_partition([*n], 0, 2).len() == 1).collect();
    let refused = again.write(&mut worker, &other);
    assert_eq!(condition(refused), "REPLAY_DIVERGENCE");
    let again = Counting::begin(&mut worker, 0, 0, 2).unwrap();
    again.count(&mut worker, 0..100).unwrap();
    assert_eq!(counters(&mut worker, 1, 2, 0..100).unwrap(), all_are(0..100, 1));
}

#[test]
fn of_two_attempts_the_older_decides_nothing() {
    let world = World::new();
    let (mut old, mut new) = (world.worker(), world.worker());
    let first = Counting::begin(&mut old, 0, 0, 1).unwrap();
    let second = Counting::begin(&mut new, 0, 0, 1).unwrap();
    assert_eq!(condition(first.write(&mut old, &all_are(0..10, 77))), "FENCED");
    second.count(&mut new, 0..10).unwrap();
    assert_eq!(counters(&mut new, 1, 1, 0..10).unwrap(), all_are(0..10, 1));
}

#[test]
fn what_an_attempt_left_behind_that_died_is_replaced() {
    let world = World::new();
    let executor = world.executor("other");
    let mut worker = world.worker_of(&executor);
    let first = Counting::begin(&mut worker, 0, 0, 1).unwrap();
    let delta = first.delta(&all_are(0..50, 77), 0).encode();
    // Cut off in the middle of it.
    let piece = delta.slice(..delta.len() / 2);
    first.want(&mut worker, Wanted::Write { piece, last: false }).unwrap();
    drop(worker);
    let mut worker = world.worker();
    count_all(&mut worker, 0, 1, 0..10).unwrap();
    assert_eq!(counters(&mut worker, 1, 1, 0..50).unwrap(), all_are(0..10, 1));
}

#[test]
fn an_epoch_that_ran_in_part_decides_nothing_and_says_so() {
    let world = World::new();
    let mut worker = world.worker();
    count_all(&mut worker, 0, 3, 0..100).unwrap();
    let epoch = Epoch::Batch(1);
    for partition in [0, 2] {
        Counting::begin(&mut worker, 1, partition, 3).unwrap().count(&mut worker, 0..100).unwrap();
    }
    let refused = world.driver.check_epoch("q", &epoch).unwrap_err();
    assert_eq!(refused.condition(), "STATE_INCOMPLETE");
    let text = refused.to_string();
    assert!(text.contains("\"f\"") && text.contains("q/1") && text.contains("partition 1 of 3"), "{text}");
    // All of it, and it may be committed.
    Counting::begin(&mut worker, 1, 1, 3).unwrap().count(&mut worker, 0..100).unwrap();
    world.driver.check_epoch("q", &epoch).unwrap();
    // One that was committed without being checked: nobody reads on.
    Counting::begin(&mut worker, 2, 0, 3).unwrap();
    let refused = Counting::begin(&mut worker, 3, 0, 3);
    assert_eq!(condition(refused), "STATE_INCOMPLETE");
}

#[test]
fn another_number_of_partitions_reads_the_same_state() {
    let world = World::new();
    let executors: Vec<_> = (0..3).map(|number| world.executor(&format!("e{number}"))).collect();
    let mut worker = world.worker_of(&executors[0]);
    for (epoch, partitions) in [(0, 1), (1, 7), (2, 3), (3, 300)] {
        count_all(&mut worker, epoch, partitions, 0..200).unwrap();
    }
    assert_eq!(counters(&mut worker, 4, 2, 0..200).unwrap(), all_are(0..200, 4));
}

#[test]
fn an_epoch_that_runs_again_with_other_partitions_is_decided_by_those() {
    let world = World::new();
    let mut worker = world.worker();
    count_all(&mut worker, 0, 4, 0..100).unwrap();
    count_all(&mut worker, 1, 4, 0..100).unwrap();
    world.driver.begin_run("q", None);
    // In part.
    Counting::begin(&mut worker, 1, 1, 3).unwrap().count(&mut worker, 0..100).unwrap();
    assert_eq!(world.driver.check_epoch("q", &Epoch::Batch(1)).unwrap_err().condition(), "STATE_INCOMPLETE");
    count_all(&mut worker, 1, 3, 0..100).unwrap();
    world.driver.check_epoch("q", &Epoch::Batch(1)).unwrap();
    assert_eq!(counters(&mut worker, 2, 5, 0..100).unwrap(), all_are(0..100, 2));
}

#[test]
fn an_epoch_without_the_operator_changes_nothing() {
    let world = World::new();
    let mut worker = world.worker();
    count_all(&mut worker, 0, 2, 0..100).unwrap();
    assert_eq!(count_all(&mut worker, 5, 2, 0..100).unwrap(), Version(Some(0)));
    world.driver.commit_epoch("q", &Epoch::Batch(5)).unwrap();
    assert_eq!(counters(&mut worker, 9, 2, 0..100).unwrap(), all_are(0..100, 2));
}

#[test]
fn large_deltas_and_answers_travel_in_pieces() {
    let world = World::new();
    let (one, _two) = (world.executor("one"), world.executor("two"));
    let mut worker = world.worker_of(&one);
    let task = Counting::begin(&mut worker, 0, 0, 1).unwrap();
    let delta = task.delta(&all_are(0..3_000, 1), 2_000);
    assert!(delta.encode().len() > 5 << 20);
    task.write_delta(&mut worker, &delta).unwrap();
    let task = Counting::begin(&mut worker, 1, 0, 1).unwrap();
    let numbers: Vec<u64> = (0..3_000).collect();
    assert_eq!(task.read(&mut worker, &numbers).unwrap(), all_are(0..3_000, 1));
}

#[test]
fn timers_that_are_due_come_in_order_from_all_who_have_them() {
    let world = World::new();
    let executors: Vec<_> = (0..3).map(|number| world.executor(&format!("e{number}"))).collect();
    let mut worker = world.worker_of(&executors[0]);
    let task = Counting::begin(&mut worker, 0, 0, 1).unwrap();
    let mut timers: Vec<EntryKey> =
        (0..20_000).map(|n: u64| EntryKey::timer(&key(n), i64::try_from(n % 977).unwrap())).collect();
    timers.sort();
    let mut entries = EntriesBuilder::new();
    let put = Op::Put { expires_ms: 0, value: bytes::Bytes::new() };
    timers.iter().for_each(|timer| entries.push(timer, &put));
    let mut delta = task.delta(&BTreeMap::new(), 0);
    delta.entries = entries.finish();
    task.write_delta(&mut worker, &delta).unwrap();
    let mut found = Vec::new();
    for partition in 0..2 {
        let task = Counting::begin(&mut worker, 1, partition, 2).unwrap();
        let (mut after, mut own) = (None, Vec::new());
        loop {
            let wanted = Wanted::Due { until_ms: 500, after: after.clone() };
            let Found::Due { timers, more } = task.want(&mut worker, wanted).unwrap() else { panic!() };
            after = timers.last().cloned();
            own.extend(timers);
            if !more {
                break;
            }
        }
        assert!(own.is_sorted());
        found.extend(own);
    }
    let expected = timers.iter().filter(|timer| timer.expiry_ms() <= Some(500));
    let mut expected: Vec<_> =
        expected.map(|timer| (timer.expiry_ms().unwrap(), timer.prefix().as_bytes().clone())).collect();
    expected.sort_unstable();
    found.sort_unstable();
    assert_eq!(found, expected);
}

#[test]
fn state_is_of_micro_batches_and_of_a_query_that_is_known_from_its_beginning() {
    let world = World::new();
    let mut worker = world.worker();
    let refused = Counting::begin(&mut worker, 7, 0, 1);
    assert_eq!(condition(refused), "STATE_LOST");
}
