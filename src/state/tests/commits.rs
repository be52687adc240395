//! What is pending, what is committed, and what that needs.

use arrow_schema::DataType;

use super::*;
use crate::state::catalog::{Catalog, Kind, Variable};

fn delta(epoch: u64, base: Version, value: u8) -> Delta {
    let mut entries = EntriesBuilder::new();
    for range in 0..=u8::MAX {
        let prefix = KeyPrefix::new(u64::from(range) << 56, b"key");
        let value = Bytes::from(vec![value]);
        entries.push(&EntryKey::new(&prefix, Slot(1), b""), &Op::Put { expires_ms: 0, value });
    }
    Delta { epoch, base, now_ms: 0, catalog: Bytes::from_static(b"catalog"), entries: entries.finish() }
}

fn part(partition: u32, generation: u64, delta: &Delta) -> DeltaPart {
    let ranges = partition_ranges(partition, 2);
    let delta = delta.of(&ranges).unwrap();
    DeltaPart { partition, generation: Generation(generation), ranges, delta }
}

fn point(epoch: u64, generations: [u64; 2]) -> CommitPoint {
    let tasks = generations.into_iter().map(Generation).enumerate();
    CommitPoint { epoch, partitions: 2, tasks: tasks.map(|(task, attempt)| (task as u32, attempt)).collect() }
}

fn store() -> StateStore {
    let mut store = StateStore::new();
    store.begin(&id(), RangeSet::ALL, Version::NONE).unwrap();
    store
}

fn value(store: &StateStore, range: u8) -> Option<Bytes> {
    let key = KeyPrefix::new(u64::from(range) << 56, b"key");
    let version = store.held(&id()).unwrap().0;
    let Read::Entries { entries, .. } =
        store.read(&id(), version, &[key], None, 0, &Limits::whole(100)).unwrap()
    else {
        return None;
    };
    let op = entries.iter().next().map(|entry| entry.unwrap().op);
    op.map(|op| if let Op::Put { value, .. } = op { value } else { panic!("{op:?}") })
}

#[test]
fn a_commit_names_the_attempts_that_count() {
    let mut store = store();
    for (generation, number) in [(1, 10), (2, 20), (5, 50)] {
        for partition in 0..2 {
            let held = store.hold(&id(), &part(partition, generation, &delta(0, Version::NONE, number)));
            assert_eq!(held.unwrap(), Held::Taken);
        }
    }
    assert_eq!(value(&store, 3), None);
    let lacks = Advanced::Lacks { partition: 1, ranges: partition_ranges(1, 2) };
    assert_eq!(store.advance(&id(), &point(0, [2, 4])).unwrap(), lacks);
    assert_eq!(store.held(&id()).unwrap().0, Version::NONE);
    assert_eq!(store.advance(&id(), &point(0, [2, 1])).unwrap(), Advanced::Done);
    assert_eq!((value(&store, 3).unwrap(), value(&store, 200).unwrap()), (vec![20].into(), vec![10].into()));
    assert_eq!(store.catalog(&id()).unwrap(), "catalog");
    assert!(store.pending_names(&id()).is_empty());
}

#[test]
fn what_stands_in_the_slot_of_a_deleted_variable_goes_when_runs_are_merged() {
    let fields = || arrow_schema::Fields::from(vec![arrow_schema::Field::new("n", DataType::Int64, true)]);
    let variable =
        Variable { name: "v".into(), kind: Kind::Value, user_key: None, value: fields(), ttl_ms: 0 };
    let (kept, _) = Catalog::open(&[], &fields(), &[variable], &[]).unwrap();
    let (deleted, _) = Catalog::open(&kept.encode(), &fields(), &[], &["v".into()]).unwrap();
    let mut store = store();
    let none = EntriesBuilder::new().finish();
    let mut epochs: Vec<Delta> = vec![Delta { catalog: kept.encode(), ..delta(0, Version::NONE, 1) }];
    epochs.extend((1..9).map(|epoch| Delta {
        base: Version(Some(epoch - 1)),
        catalog: deleted.encode(),
        entries: if epoch < 8 { delta(epoch, Version::NONE, 2).entries } else { none.clone() },
        ..delta(epoch, Version::NONE, 2)
    }));
    for delta in &epochs {
        for task in 0..2 {
            store.hold(&id(), &part(task, 1, delta)).unwrap();
        }
        store.advance(&id(), &point(delta.epoch, [1, 1])).unwrap();
        if delta.epoch == 0 {
            store.tidy(usize::MAX as u64).unwrap();
            assert_eq!(store.stats(&id()).unwrap().entries, 256);
        }
    }
    store.tidy(usize::MAX as u64).unwrap();
    assert_eq!(store.stats(&id()).unwrap().entries, 0);
}

#[test]
fn older_attempts_late_deltas_and_second_thoughts_are_refused() {
    let mut store = store();
    let first = delta(0, Version::NONE, 1);
    store.hold(&id(), &part(0, 2, &first)).unwrap();
    assert_eq!(store.hold(&id(), &part(0, 2, &first)).unwrap(), Held::Known);
    let fenced = store.hold(&id(), &part(0, 1, &first)).unwrap_err();
    assert!(matches!(fenced, Error::Fenced { newer: Generation(2), ours: Generation(1), .. }), "{fenced}");
    // Another agent's copy may be the one that counts.
    assert_eq!(store.adopt(&id(), &part(0, 1, &first)).unwrap(), Held::Taken);
    let other = store.hold(&id(), &part(0, 2, &delta(0, Version::NONE, 9))).unwrap_err();
    assert!(matches!(other, Error::Misuse { .. }), "{other}");
    store.hold(&id(), &part(1, 1, &first)).unwrap();
    store.advance(&id(), &point(0, [2, 1])).unwrap();
    let late = store.hold(&id(), &part(0, 3, &first)).unwrap_err();
    assert!(matches!(late, Error::Fenced { newer: Generation::NONE, .. }), "{late}");
    assert!(store.adopt(&id(), &part(0, 3, &first)).is_err());
}

#[test]
fn a_delta_that_is_here_for_other_ranges_only_is_lacking() {
    let mut store = StateStore::new();
    let some = partition_ranges(0, 2);
    store.begin(&id(), some, Version::NONE).unwrap();
    let (zero, one) = (delta(0, Version::NONE, 1), delta(4, Version(Some(0)), 2));
    for partition in 0..2 {
        store.hold(&id(), &part(partition, 1, &zero)).unwrap();
    }
    // What is not held is not kept, nor needed.
    assert_eq!(store.pending_names(&id()), [(0, 0, Generation(1))]);
    store.begin(&id(), RangeSet::ALL, Version::NONE).unwrap();
    let lacks = Advanced::Lacks { partition: 1, ranges: partition_ranges(1, 2) };
    assert_eq!(store.advance(&id(), &point(0, [1, 1])).unwrap(), lacks);
    store.drop_ranges(&id(), &partition_ranges(1, 2));
    assert_eq!(store.advance(&id(), &point(0, [1, 1])).unwrap(), Advanced::Done);
    // Of an epoch between, nothing was heard.
    let later = delta(9, Version(Some(4)), 3);
    store.hold(&id(), &part(0, 1, &one)).unwrap();
    store.hold(&id(), &part(0, 1, &later)).unwrap();
    assert_eq!(store.advance(&id(), &point(9, [1, 1])).unwrap(), Advanced::Behind(Version(Some(0))));
    assert_eq!(store.advance(&id(), &point(4, [1, 1])).unwrap(), Advanced::Done);
    assert_eq!(store.advance(&id(), &point(9, [1, 1])).unwrap(), Advanced::Done);
    assert_eq!(value(&store, 3).unwrap(), vec![3]);
    // Computed from what is not the version any more.
    store.hold(&id(), &part(0, 1, &delta(11, Version(Some(4)), 5))).unwrap();
    assert!(matches!(store.advance(&id(), &point(11, [1, 1])), Err(Error::CorruptState { .. })));
    assert_eq!(store.held(&id()).unwrap(), (Version(Some(9)), some));
}

#[test]
fn what_is_not_held_and_other_versions_are_said() {
    let mut store = StateStore::new();
    let key = KeyPrefix::new(7 << 56, b"key");
    let seven: RangeSet = [Range(7)].into_iter().collect();
    let read = |store: &StateStore, version| {
        store.read(&id(), version, std::slice::from_ref(&key), None, 0, &Limits::whole(1)).unwrap()
    };
    assert_eq!(read(&store, Version::NONE), Read::NotHeld(seven));
    assert!(store.held(&id()).is_none());
    store.begin(&id(), [Range(8)].into_iter().collect(), Version(Some(3))).unwrap();
    assert_eq!(read(&store, Version(Some(3))), Read::NotHeld(seven));
    assert_eq!(read(&store, Version(Some(4))), Read::Behind(Version(Some(3))));
    let due = |hashes| store.due(&id(), Version(Some(3)), &hashes, 0, None, 1).unwrap();
    assert_eq!(due((7 << 56)..=(8 << 56)), Due::NotHeld(seven));
    assert_eq!(due((8 << 56)..=(8 << 56)), Due::Timers { timers: Vec::new(), more: false });
    assert!(store.begin(&id(), seven, Version(Some(4))).is_err());
    assert!(store.page(&id(), Range(7), None, 1).is_err());
    store.drop_ranges(&id(), &RangeSet::ALL);
    assert!(store.held(&id()).is_none());
}

#[test]
fn a_view_stays_at_its_version() {
    let mut store = store();
    for epoch in 0..3_u64 {
        let base = Version(epoch.checked_sub(1));
        let view = store.view(&id()).unwrap();
        for partition in 0..2 {
            store.hold(&id(), &part(partition, 1, &delta(epoch, base, epoch as u8))).unwrap();
        }
        store.advance(&id(), &point(epoch, [1, 1])).unwrap();
        while !store.tidy(100).unwrap() {}
        let page = view.page(Range(5), None, 100).unwrap();
        assert_eq!((page.version, page.entries.iter().count() as u64), (base, epoch.min(1)));
        assert_eq!(value(&store, 5).unwrap(), vec![epoch as u8]);
    }
}

#[test]
fn what_clears_a_slot_that_is_read_later_is_not_forgotten() {
    let keys = [1_u64, 2, 9].map(|number| KeyPrefix::new(number << 32, b"key"));
    let [first, second, third] = &keys;
    let put = Op::Put { expires_ms: 0, value: Bytes::from_static(b"value") };
    let element = |key: &KeyPrefix, op: &Op| (EntryKey::new(key, Slot(1), b"element"), op.clone());
    let clear = |key: &KeyPrefix| (EntryKey::new(key, Slot(1), b""), Op::Clear);
    let epochs = [
        vec![element(first, &put), element(second, &put), element(third, &put)],
        vec![clear(third)],
        vec![clear(second)],
    ];
    let mut store = store();
    for (epoch, entries) in (0_u64..).zip(epochs) {
        let mut builder = EntriesBuilder::new();
        entries.iter().for_each(|(key, op)| builder.push(key, op));
        let (base, entries) = (Version(epoch.checked_sub(1)), builder.finish());
        let delta = Delta { epoch, base, now_ms: 0, catalog: Bytes::new(), entries };
        for partition in 0..2 {
            store.hold(&id(), &part(partition, 1, &delta)).unwrap();
        }
        store.advance(&id(), &point(epoch, [1, 1])).unwrap();
    }
    let Read::Entries { entries, .. } =
        store.read(&id(), Version(Some(2)), &keys, None, 0, &Limits::whole(1_000)).unwrap()
    else {
        panic!("not read")
    };
    let found: Vec<KeyPrefix> = entries.iter().map(|entry| entry.unwrap().key.prefix()).collect();
    assert_eq!(found, std::slice::from_ref(first));
}

#[test]
fn attempts_that_did_the_same_are_kept_once() {
    let mut store = store();
    let same = delta(0, Version::NONE, 1);
    store.hold(&id(), &part(0, 1, &same)).unwrap();
    let once = store.memory().bytes();
    store.hold(&id(), &part(0, 2, &same)).unwrap();
    assert_eq!(store.memory().bytes(), once);
}

/// Both halves of a delta of all ranges, committed.
fn commit(store: &mut StateStore, epoch: u64) {
    let delta = delta(epoch, Version(epoch.checked_sub(1)), epoch as u8);
    for partition in 0..2 {
        assert_eq!(store.hold(&id(), &part(partition, 1, &delta)).unwrap(), Held::Taken);
    }
    assert_eq!(store.advance(&id(), &point(epoch, [1, 1])).unwrap(), Advanced::Done);
}

#[test]
fn a_commit_merges_what_lies_above_each_other_and_nothing_else() {
    let runs = |store: &StateStore| store.stats(&id()).unwrap().runs;
    let mut source = store();
    commit(&mut source, 0);
    let mut copy = StateStore::new();
    copy.fill(&id(), RangeSet::ALL, Version(Some(0))).unwrap();
    for range in Range::all() {
        copy.install(&id(), &source.page(&id(), range, None, 1_000).unwrap()).unwrap();
    }
    assert_eq!(runs(&copy), 256, "one of each range");
    commit(&mut copy, 1);
    assert!(runs(&copy) > 256, "however large the state is, a commit does not wait for it");
    assert!((0..=u8::MAX).all(|range| *value(&copy, range).unwrap() == [1]));
    for epoch in 2..60 {
        commit(&mut copy, epoch);
    }
    assert!(runs(&copy) < 50);
    assert!((0..=u8::MAX).all(|range| *value(&copy, range).unwrap() == [59]));
}
