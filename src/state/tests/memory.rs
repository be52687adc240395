//! What counts as memory, and that what can go to files does.

use std::ops::Range;

use super::*;
use crate::state::memory::Memory;

const KEYS: u64 = 200;
const VALUE: usize = 1_000;

/// A large value of each key.
fn delta(epoch: u64) -> DeltaPart {
    expiring(epoch, 0..KEYS, 0, 0)
}

/// A large value of each of some keys, at a time, until another.
fn expiring(epoch: u64, keys: Range<u64>, now_ms: i64, expires_ms: i64) -> DeltaPart {
    let mut entries = EntriesBuilder::new();
    for number in keys {
        let prefix = KeyPrefix::new(number << 56 | number << 8, b"key");
        let value = Bytes::from(vec![epoch as u8; VALUE]);
        entries.push(&EntryKey::new(&prefix, Slot(1), b""), &Op::Put { expires_ms, value });
    }
    let (base, catalog) = (Version(epoch.checked_sub(1)), Bytes::new());
    let delta = Delta { epoch, base, now_ms, catalog, entries: entries.finish() };
    DeltaPart { partition: 0, generation: Generation(1), ranges: RangeSet::ALL, delta }
}

fn commit(store: &mut StateStore, epoch: u64) {
    commit_part(store, epoch, &delta(epoch));
}

fn commit_part(store: &mut StateStore, epoch: u64, part: &DeltaPart) {
    store.hold(&id(), part).unwrap();
    let tasks = vec![(0, Generation(1))];
    store.advance(&id(), &CommitPoint { epoch, partitions: 1, tasks }).unwrap();
}

#[test]
fn what_only_a_view_needs_any_more_counts_until_that_is_gone() {
    let mut store = StateStore::new();
    store.begin(&id(), RangeSet::ALL, Version::NONE).unwrap();
    commit(&mut store, 0);
    let one = store.memory().bytes();
    assert!(one > KEYS * VALUE as u64);
    let view = store.view(&id()).unwrap();
    commit(&mut store, 1);
    while !store.tidy(u64::MAX).unwrap() {}
    assert_eq!(store.stats(&id()).unwrap().memory_bytes, one, "the newer took the place of the older");
    assert!(store.memory().bytes() > 2 * one - one / 8);
    drop(view);
    assert_eq!(store.memory().bytes(), one);
    store.forget(&id());
    assert_eq!(store.memory().bytes(), 0);
}

#[test]
fn what_is_over_goes_though_little_is_put_on_top() {
    let mut store = StateStore::new();
    store.begin(&id(), RangeSet::ALL, Version::NONE).unwrap();
    commit_part(&mut store, 0, &expiring(0, 0..KEYS, 0, 1_000));
    let all = store.memory().bytes();
    for (epoch, now_ms) in [(1, 500), (2, 999)] {
        commit_part(&mut store, epoch, &expiring(epoch, 0..1, now_ms, now_ms + 1_000));
        while !store.tidy(u64::MAX).unwrap() {}
        assert!(store.memory().bytes() >= all, "nothing is over at {now_ms}");
    }
    commit_part(&mut store, 3, &expiring(3, 0..1, 1_000, 2_000));
    while !store.tidy(u64::MAX).unwrap() {}
    let left = store.memory().bytes();
    assert!(left < all / 10, "{left} of {all} are left");
}

#[test]
fn what_is_being_merged_goes_to_files_too() {
    let most = 2 * KEYS * VALUE as u64;
    // What is known of each block, and chunks that are not whole.
    let besides = most / 4;
    let mut store = StateStore::with_files(most, Arc::new(MemoryFiles));
    store.begin(&id(), RangeSet::ALL, Version::NONE).unwrap();
    for epoch in 0..40 {
        commit(&mut store, epoch);
        // Never done.
        store.tidy(KEYS * VALUE as u64 / 3).unwrap();
        let bytes = store.memory().bytes();
        assert!(bytes <= most + besides, "{bytes} after epoch {epoch}");
    }
}

#[test]
fn what_is_on_its_way_takes_room_from_what_is_held() {
    let most = 3 * KEYS * VALUE as u64;
    let mut store = StateStore::with_files(most, Arc::new(MemoryFiles));
    store.begin(&id(), RangeSet::ALL, Version::NONE).unwrap();
    commit(&mut store, 0);
    let held = |store: &StateStore| store.stats(&id()).unwrap().memory_bytes;
    assert!(held(&store) > KEYS * VALUE as u64);
    let memory: Memory = store.memory().clone();
    let mut taken = memory.take(most);
    store.tidy(1).unwrap();
    assert!(held(&store) < KEYS * VALUE as u64 / 2);
    taken.resize(most / 2);
    assert_eq!(memory.bytes(), most / 2 + held(&store));
}
