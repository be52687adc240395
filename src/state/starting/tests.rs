//! State that begins with a savepoint is what it would have been, had it gone on where the savepoint was made.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, ArrayRef, Int64Array, RecordBatch, StringArray, StructArray};
use arrow_schema::{DataType, Field, Fields, Schema};
use proptest::prelude::*;

use super::*;
use crate::id::Generation;
use crate::state::catalog::{Kind, Variable};
use crate::state::local::LocalStates;
use crate::state::view::{Did, TaskState};
use crate::state::{CommitPoint, DeltaPart, Range, RangeSet, StateId, StateStore};

struct Saved {
    catalog: Bytes,
    entries: Vec<Entries>,
}

impl Origin for Saved {
    fn catalog(&mut self) -> Result<Bytes> {
        Ok(self.catalog.clone())
    }

    fn entries(&mut self) -> Result<Vec<Entries>> {
        Ok(self.entries.clone())
    }
}

/// A savepoint that is gone.
struct Gone;

impl Origin for Gone {
    fn catalog(&mut self) -> Result<Bytes> {
        panic!("nobody asks for it")
    }

    fn entries(&mut self) -> Result<Vec<Entries>> {
        panic!("nobody asks for it")
    }
}

fn id() -> StateId {
    StateId { query: "q".into(), operator: "f".into() }
}

fn one(name: &str, kind: DataType) -> Fields {
    vec![Field::new(name, kind, true)].into()
}

fn variables() -> Vec<Variable> {
    let of = |name: &str, kind: Kind| Variable {
        name: name.into(),
        kind,
        user_key: (kind == Kind::Map).then(|| one("u", DataType::Utf8)),
        value: one("n", DataType::Int64),
        ttl_ms: 0,
    };
    vec![of("v", Kind::Value), of("l", Kind::List), of("m", Kind::Map)]
}

fn saved(states: &LocalStates) -> Saved {
    let view = states.view(&id()).unwrap();
    let catalog = states.view(&id()).and_then(|view| view.page(Range(0), None, 1).unwrap().catalog).unwrap();
    // Pages of one entry each.
    let mut entries = Vec::new();
    for range in Range::all() {
        let mut from = None;
        loop {
            let page = view.page(range, from.as_ref(), 1).unwrap();
            entries.push(page.entries);
            from = page.next;
            if from.is_none() {
                break;
            }
        }
    }
    Saved { catalog, entries }
}

fn told(epoch: u64) -> Begun {
    let now_ms = i64::try_from(epoch).unwrap() * 1_000;
    Begun { version: Version::NONE, now_ms, watermark_ms: -1, late_ms: -1, catalog: Bytes::new() }
}

fn open<B: Backend>(backend: B, epoch: u64) -> TaskState<B> {
    TaskState::open(backend, epoch, &one("k", DataType::Utf8), variables(), &[]).unwrap()
}

fn add<B: Backend>(task: &mut TaskState<B>, keys: &[&str]) -> Vec<u32> {
    let column: ArrayRef = Arc::new(StringArray::from(keys.to_vec()));
    let batch = RecordBatch::try_new(Arc::new(Schema::new(one("k", DataType::Utf8))), vec![column]).unwrap();
    let (groups, numbers) = task.group(&[batch], &[0]).unwrap();
    task.load().unwrap();
    let found = groups.keys.column(0).as_string::<i32>();
    keys.iter().map(|key| numbers[found.iter().position(|found| found == Some(*key)).unwrap()]).collect()
}

fn rows(name: &str, column: ArrayRef) -> StructArray {
    StructArray::new(one(name, column.data_type().clone()), vec![column], None)
}

fn numbers(values: &[i64]) -> StructArray {
    rows("n", Arc::new(Int64Array::from(values.to_vec())))
}

/// All values of a variable, by key number.
fn found<B: Backend>(task: &TaskState<B>, variable: usize) -> BTreeMap<i32, Vec<i64>> {
    let found = task.values(variable, 0).unwrap();
    let mut all: BTreeMap<i32, Vec<i64>> = BTreeMap::new();
    for (key, value) in found.keys.iter().zip(found.values.column(0).as_primitive::<Int64Type>().values()) {
        all.entry(*key).or_default().push(*value);
    }
    all
}

/// What a program does in an epoch to the keys a and b, which have these numbers.
fn step<B: Backend>(task: &mut TaskState<B>, a: u32, b: u32, number: i64) {
    let user = rows("u", Arc::new(StringArray::from(vec![format!("u{number}")])));
    task.write(0, &[a], &[Did::Put], None, Some(&numbers(&[number]))).unwrap();
    task.write(1, &[a, a], &[Did::Put; 2], None, Some(&numbers(&[number, -number]))).unwrap();
    task.write(2, &[b], &[Did::Put], Some(&user), Some(&numbers(&[number]))).unwrap();
    task.write_timers(&[a, b], &[true; 2], &[number * 10, number * 10 + 1]).unwrap();
}

/// Two epochs, numbered from 5 on, as another query's.
fn before() -> LocalStates {
    let states = LocalStates::new();
    for epoch in [5, 6] {
        let mut task = open(states.task(id(), (0, 1), told(epoch)), epoch);
        let keys = add(&mut task, &["a", "b"]);
        step(&mut task, keys[0], keys[1], i64::try_from(epoch).unwrap());
        task.commit().unwrap();
        states.commit(&id(), epoch).unwrap();
    }
    states
}

#[test]
fn the_first_epoch_reads_the_savepoint_and_the_next_ones_what_was_committed() {
    let (origin, states) = (saved(&before()), LocalStates::new());
    let begin = || {
        let origin = Saved { catalog: origin.catalog.clone(), entries: origin.entries.clone() };
        Starting::new(states.task(id(), (0, 1), told(0)), origin)
    };
    // Twice: the first attempt is not committed, and the second decides the same.
    let mut fingerprints = Vec::new();
    for _ in 0..2 {
        let mut task = open(begin(), 0);
        assert_eq!(task.begun().version, Version::NONE);
        let keys = add(&mut task, &["a", "c"]);
        let (a, c) = (i32::try_from(keys[0]).unwrap(), keys[1]);
        assert_eq!(found(&task, 0), BTreeMap::from([(a, vec![6])]));
        assert_eq!(found(&task, 1), BTreeMap::from([(a, vec![5, -5, 6, -6])]));
        let due: Vec<i64> = task.due(60).unwrap().into_iter().map(|(_, expiry)| expiry).collect();
        assert_eq!(due, [50, 51, 60]);
        let b = add(&mut task, &["b"])[0];
        assert_eq!(found(&task, 2), BTreeMap::from([(i32::try_from(b).unwrap(), vec![5, 6])]));
        task.write_timers(&[keys[0], b], &[false; 2], &[50, 51]).unwrap();
        step(&mut task, keys[0], c, 9);
        fingerprints.push(task.commit().unwrap());
    }
    assert_eq!(fingerprints[0], fingerprints[1]);
    states.commit(&id(), 0).unwrap();

    let mut task = open(Starting::new(states.task(id(), (0, 1), told(1)), Gone), 1);
    assert_eq!(task.begun().version, Version(Some(0)));
    let keys = add(&mut task, &["a", "b", "c"]);
    let [a, b, c] = [0, 1, 2].map(|at: usize| i32::try_from(keys[at]).unwrap());
    assert_eq!(found(&task, 0), BTreeMap::from([(a, vec![9])]));
    // Elements of before stand first, though the epochs that they were appended in are later ones.
    assert_eq!(found(&task, 1), BTreeMap::from([(a, vec![5, -5, 6, -6, 9, -9])]));
    assert_eq!(found(&task, 2), BTreeMap::from([(b, vec![5, 6]), (c, vec![9])]));
    let due: Vec<i64> = task.due(100).unwrap().into_iter().map(|(_, expiry)| expiry).collect();
    assert_eq!(due, [60, 61, 90, 91]);
    task.write(1, &[keys[0], keys[0]], &[Did::Put; 2], None, Some(&numbers(&[1, 2]))).unwrap();
    task.commit().unwrap();
    states.commit(&id(), 1).unwrap();
    let mut task = open(Starting::new(states.task(id(), (0, 1), told(2)), Gone), 2);
    let a = i32::try_from(add(&mut task, &["a"])[0]).unwrap();
    assert_eq!(found(&task, 1), BTreeMap::from([(a, vec![5, -5, 6, -6, 9, -9, 1, 2])]));
}

#[test]
fn lists_that_are_cleared_in_the_first_epoch_have_what_was_appended_since() {
    let states = LocalStates::new();
    let mut task = open(Starting::new(states.task(id(), (0, 1), told(0)), saved(&before())), 0);
    let a = add(&mut task, &["a"])[0];
    task.write(1, &[a, a, a], &[Did::Clear, Did::Put, Did::Put], None, Some(&numbers(&[3, 4]))).unwrap();
    task.write(0, &[a], &[Did::Clear], None, None).unwrap();
    task.commit().unwrap();
    states.commit(&id(), 0).unwrap();
    let mut task = open(states.task(id(), (0, 1), told(1)), 1);
    let a = i32::try_from(add(&mut task, &["a"])[0]).unwrap();
    assert_eq!(found(&task, 1), BTreeMap::from([(a, vec![3, 4])]));
    assert_eq!(found(&task, 0), BTreeMap::new());
}

#[test]
fn what_the_program_declares_otherwise_is_refused() {
    let mut changed = variables();
    changed[0].kind = Kind::List;
    let backend = Starting::new(LocalStates::new().task(id(), (0, 1), told(0)), saved(&before()));
    let refused = TaskState::open(backend, 0, &one("k", DataType::Utf8), changed, &[]).err().unwrap();
    assert_eq!(refused.condition(), "STATE_SCHEMA_CHANGED");
}

/// Key, slot, place and what becomes of it; slot 1 is a value, 3 a map.
type Write = (u8, u16, u8, Option<u8>);

fn entries_of(writes: &[Write]) -> Entries {
    let mut all: BTreeMap<EntryKey, Op> = BTreeMap::new();
    for (key, slot, sub, value) in writes {
        let prefix = KeyPrefix::new(u64::from(*key) << 61, &[*key]);
        let sub: &[u8] = if *slot == 1 { &[] } else { std::slice::from_ref(sub) };
        let op =
            value.map_or(Op::Delete, |value| Op::Put { expires_ms: 0, value: Bytes::from(vec![0, value]) });
        all.insert(EntryKey::new(&prefix, Slot(*slot), sub), op);
    }
    let mut entries = EntriesBuilder::new();
    all.iter().for_each(|(key, op)| entries.push(key, op));
    entries.finish()
}

fn writes(deletes: bool) -> impl Strategy<Value = Vec<Write>> {
    let value =
        if deletes { proptest::option::of(any::<u8>()).boxed() } else { any::<u8>().prop_map(Some).boxed() };
    proptest::collection::vec((0..6_u8, prop_oneof![Just(1_u16), Just(3)], 0..4_u8, value), 0..30)
}

proptest! {
    #[test]
    fn what_is_merged_is_what_a_store_makes_of_it(old in writes(false), new in writes(true)) {
        let catalog = Catalog::open(&[], &one("k", DataType::Utf8), &variables(), &[]).unwrap().0.encode();
        let delta = |epoch: u64, base, entries| Delta { epoch, base, now_ms: 0, catalog: catalog.clone(), entries };
        let (first, second) = (entries_of(&old), entries_of(&new));
        let mut store = StateStore::new();
        store.begin(&id(), RangeSet::ALL, Version::NONE).unwrap();
        for (epoch, base, entries) in [(0, Version::NONE, &first), (1, Version(Some(0)), &second)] {
            let (partition, generation) = (0, Generation(epoch + 1));
            let delta = delta(epoch, base, entries.clone());
            store.hold(&id(), &DeltaPart { partition, generation, ranges: RangeSet::ALL, delta }).unwrap();
            store.advance(&id(), &CommitPoint { epoch, partitions: 1, tasks: vec![(0, generation)] }).unwrap();
        }
        let mut expected = Vec::new();
        for range in Range::all() {
            expected.extend_from_slice(store.page(&id(), range, None, usize::MAX).unwrap().entries.as_bytes());
        }
        let held = Held { entries: vec![first], lists: BTreeSet::from([Slot(2)]), now_ms: 0 };
        let merged = held.changed(&delta(0, Version::NONE, second)).unwrap();
        prop_assert_eq!(&merged.as_bytes()[..], &expected[..]);
    }
}
