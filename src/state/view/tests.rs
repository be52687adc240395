//! Tasks on state that one process keeps: programs, what they read back, and the bytes that they write.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, ArrayRef, Int32Array, Int64Array, RecordBatch, StringArray, StructArray};
use arrow_schema::{DataType, Field, Fields, Schema};

use super::*;
use crate::state::local::{LocalStates, LocalTask, Nothing};
use crate::state::{Entries, StateId, Version};

mod programs;

fn field(name: &str, kind: DataType) -> Field {
    Field::new(name, kind, true)
}

fn one(name: &str, kind: DataType) -> Fields {
    vec![field(name, kind)].into()
}

fn variable(name: &str, kind: Kind) -> Variable {
    let user_key = (kind == Kind::Map).then(|| one("u", DataType::Utf8));
    Variable { name: name.into(), kind, user_key, value: one("n", DataType::Int64), ttl_ms: 0 }
}

/// A value, a list and a map.
fn variables() -> Vec<Variable> {
    vec![variable("v", Kind::Value), variable("l", Kind::List), variable("m", Kind::Map)]
}

fn id() -> StateId {
    StateId { query: "orders".into(), operator: "count".into() }
}

fn told(now_ms: i64) -> Begun {
    Begun { version: Version::NONE, now_ms, watermark_ms: -1, late_ms: -1, catalog: Bytes::new() }
}

type Task = TaskState<LocalTask>;

fn open(states: &LocalStates, epoch: u64, variables: Vec<Variable>) -> Result<Task> {
    let backend = states.task(id(), (0, 1), told(epoch as i64 * 1_000));
    TaskState::open(backend, epoch, &one("k", DataType::Utf8), variables, &[])
}

/// A task whose keys are these, and the number of each.
fn task(states: &LocalStates, epoch: u64, keys: &[&str]) -> (Task, Vec<u32>) {
    task_in_parts(states, epoch, keys, u64::MAX)
}

/// One that has loaded about so many bytes of each list and map.
fn task_in_parts(states: &LocalStates, epoch: u64, keys: &[&str], part: u64) -> (Task, Vec<u32>) {
    let mut task = open(states, epoch, variables()).unwrap().in_parts(part);
    let numbers = add(&mut task, keys);
    task.load().unwrap();
    (task, numbers)
}

fn add<B: Backend>(task: &mut TaskState<B>, keys: &[&str]) -> Vec<u32> {
    let column: ArrayRef = Arc::new(StringArray::from(keys.to_vec()));
    let batch = RecordBatch::try_new(Arc::new(Schema::new(one("k", DataType::Utf8))), vec![column]).unwrap();
    let (groups, numbers) = task.group(&[batch], &[0]).unwrap();
    let found = groups.keys.column(0).as_string::<i32>();
    keys.iter().map(|key| numbers[found.iter().position(|found| found == Some(*key)).unwrap()]).collect()
}

fn numbers(values: &[i64]) -> StructArray {
    let column: ArrayRef = Arc::new(Int64Array::from(values.to_vec()));
    StructArray::new(one("n", DataType::Int64), vec![column], None)
}

fn texts(values: &[&str]) -> StructArray {
    let column: ArrayRef = Arc::new(StringArray::from(values.to_vec()));
    StructArray::new(one("u", DataType::Utf8), vec![column], None)
}

/// Entries of a variable that holds numbers: key, user key, value.
fn found<B: Backend>(task: &TaskState<B>, variable: usize) -> Vec<(u32, Option<String>, i64)> {
    let found = task.values(variable, 0).unwrap();
    let values = found.values.column(0).as_primitive::<Int64Type>();
    let user = |at: usize| {
        let users = found.user_keys.as_ref()?.column(0).as_string::<i32>();
        Some(users.value(at).to_owned())
    };
    (0..values.len()).map(|at| (found.keys[at] as u32, user(at), values.value(at))).collect()
}

fn finish(states: &LocalStates, mut task: Task, epoch: u64) -> u64 {
    let fingerprint = task.commit().unwrap();
    states.commit(&id(), epoch).unwrap();
    fingerprint
}

#[test]
fn what_one_epoch_writes_the_next_one_reads() {
    let states = LocalStates::new();
    let (mut first, keys) = task(&states, 0, &["a", "b"]);
    assert_eq!(first.begun().version, Version::NONE);
    first.write(0, &keys, &[Did::Put; 2], None, Some(&numbers(&[1, 2]))).unwrap();
    let (a, b) = (keys[0], keys[1]);
    first.write(1, &[a, a, b], &[Did::Put; 3], None, Some(&numbers(&[5, 6, 7]))).unwrap();
    first.write(2, &[b, b], &[Did::Put; 2], Some(&texts(&["y", "x"])), Some(&numbers(&[8, 9]))).unwrap();
    first.write_timers(&[b, a, b], &[true; 3], &[70, 60, -5]).unwrap();
    finish(&states, first, 0);

    let (second, keys) = task(&states, 1, &["b", "c", "a"]);
    assert_eq!(second.begun().version, Version(Some(0)));
    let (a, b) = (keys[2], keys[0]);
    let sorted = |mut found: Vec<(u32, Option<String>, i64)>| {
        assert!(found.is_sorted_by_key(|(key, ..)| *key));
        found.sort();
        found
    };
    let wanted = |rows: &[(u32, Option<&str>, i64)]| {
        sorted_rows(rows.iter().map(|(key, user, n)| (*key, user.map(str::to_owned), *n)).collect())
    };
    assert_eq!(sorted(found(&second, 0)), wanted(&[(a, None, 1), (b, None, 2)]));
    assert_eq!(sorted(found(&second, 1)), wanted(&[(a, None, 5), (a, None, 6), (b, None, 7)]));
    assert_eq!(sorted(found(&second, 2)), wanted(&[(b, Some("x"), 9), (b, Some("y"), 8)]));
    let mut timers = vec![(a, 60), (b, -5), (b, 70)];
    timers.sort();
    assert_eq!(second.timers(0).unwrap(), timers);
    assert_eq!(second.timers(3).unwrap(), []);
}

fn sorted_rows(mut rows: Vec<(u32, Option<String>, i64)>) -> Vec<(u32, Option<String>, i64)> {
    rows.sort();
    rows
}

#[test]
fn timers_that_are_due_bring_keys_that_had_no_rows() {
    let states = LocalStates::new();
    let (mut first, keys) = task(&states, 0, &["a", "b", "c"]);
    first.write_timers(&keys, &[true; 3], &[30, 10, 20]).unwrap();
    first.write_timers(&keys[..1], &[true], &[5]).unwrap();
    first.write(0, &keys, &[Did::Put; 3], None, Some(&numbers(&[1, 2, 3]))).unwrap();
    finish(&states, first, 0);

    let (mut second, keys) = task(&states, 1, &["c"]);
    let due = second.due(25).unwrap();
    assert_eq!(due.iter().map(|(_, expiry)| *expiry).collect::<Vec<_>>(), [5, 10, 20]);
    assert_eq!(due.iter().map(|(key, _)| *key).collect::<Vec<_>>(), [1, 2, keys[0]]);
    let all = second.keys().unwrap();
    assert_eq!(all.column(0).as_string::<i32>().iter().flatten().collect::<Vec<_>>(), ["c", "a", "b"]);
    assert_eq!(found(&second, 0), [(0, None, 3), (1, None, 1), (2, None, 2)]);
    assert_eq!(second.values(0, 1).unwrap().keys, [1, 2]);
    // Keys keep their numbers when they come again, and only new ones are read.
    assert_eq!(add(&mut second, &["b", "d", "c"]), [2, 3, 0]);
    second.load().unwrap();
    assert_eq!(second.keys().unwrap().len(), 4);
    second.write_timers(&[1], &[false], &[5]).unwrap();
    finish(&states, second, 1);
    let mut third = open(&states, 2, variables()).unwrap();
    assert_eq!(third.due(i64::MAX).unwrap(), [(0, 10), (1, 20), (2, 30)]);
}

#[test]
fn what_lives_for_a_time_is_over_at_its_end() {
    let states = LocalStates::new();
    let with_ttl = || {
        let mut variables = variables();
        variables.iter_mut().for_each(|variable| variable.ttl_ms = 1_500);
        variables
    };
    let mut first = open(&states, 0, with_ttl()).unwrap();
    let keys = add(&mut first, &["a"]);
    first.write(1, &keys, &[Did::Put], None, Some(&numbers(&[1]))).unwrap();
    finish(&states, first, 0);
    let mut second = open(&states, 1, with_ttl()).unwrap();
    add(&mut second, &["a"]);
    second.load().unwrap();
    assert_eq!(found(&second, 1), [(0, None, 1)]);
    second.write(1, &keys, &[Did::Put], None, Some(&numbers(&[2]))).unwrap();
    finish(&states, second, 1);
    let mut third = open(&states, 2, with_ttl()).unwrap();
    add(&mut third, &["a"]);
    third.load().unwrap();
    assert_eq!(found(&third, 1), [(0, None, 2)]);
}

#[test]
fn values_of_several_schemas_are_read_as_one() {
    let states = LocalStates::new();
    let narrow = |kind| vec![Variable { value: one("n", kind), ..variable("v", Kind::Value) }];
    let mut first = open(&states, 0, narrow(DataType::Int32)).unwrap();
    let keys = add(&mut first, &["a", "b", "c"]);
    let column: ArrayRef = Arc::new(Int32Array::from(vec![1, 2, 3]));
    let rows = StructArray::new(one("n", DataType::Int32), vec![column], None);
    first.write(0, &keys, &[Did::Put; 3], None, Some(&rows)).unwrap();
    finish(&states, first, 0);
    let mut second = open(&states, 1, narrow(DataType::Int64)).unwrap();
    let keys = add(&mut second, &["b"]);
    second.write(0, &keys, &[Did::Put], None, Some(&numbers(&[20]))).unwrap();
    finish(&states, second, 1);
    let mut third = open(&states, 2, variables()).unwrap();
    let keys = add(&mut third, &["a", "b", "c"]);
    third.load().unwrap();
    let wanted = [(keys[0], None, 1), (keys[1], None, 20), (keys[2], None, 3)];
    assert_eq!(found(&third, 0), sorted_rows(wanted.to_vec()));
    let refused = open(&states, 2, narrow(DataType::Int32)).err().unwrap();
    assert!(matches!(refused, Error::StateSchema { .. }), "{refused}");
}

#[test]
fn what_may_have_another_name_or_place_is_refused() {
    let text = |names: [&str; 2]| names.map(|name| field(name, DataType::Utf8)).to_vec().into();
    let with = |fields: &[&str]| {
        let value = fields.iter().map(|name| field(name, DataType::Int64)).collect();
        [Variable { value, ..variable("v", Kind::Value) }]
    };
    let open = |remembered: &[u8], keys: [&str; 2], fields: &[&str]| {
        let opened = Catalog::open(remembered, &text(keys), &with(fields), &[]);
        opened.map(|(catalog, _)| catalog.encode()).map_err(|error| error.to_string())
    };
    let first = open(&[], ["a", "b"], &["n", "m"]).unwrap();
    let refused = open(&first, ["b", "a"], &["n", "m"]).unwrap_err();
    assert!(refused.contains("kept as (a, b) and is (b, a) now"), "{refused}");
    let other = open(&first, ["c", "B"], &["N", "m"]).unwrap();
    open(&other, ["B", "c"], &["N", "m"]).unwrap_err();
    let refused = open(&first, ["a", "b"], &["n", "x"]).unwrap_err();
    assert!(refused.contains(r#"field "m" is gone, and "x" of its type is new"#), "{refused}");
    let second = open(&first, ["a", "b"], &["n"]).unwrap();
    let third = open(&second, ["a", "b"], &["n", "x"]).unwrap();
    let fourth = open(&third, ["a", "b"], &["n", "m"]).unwrap();
    open(&fourth, ["a", "b"], &["n", "y"]).unwrap_err();
}

#[test]
fn what_does_not_fit_together_is_refused() {
    let states = LocalStates::new();
    let (mut task, keys) = task(&states, 0, &["a"]);
    let (puts, rows) = ([Did::Put], numbers(&[1]));
    let misuse = |result: Result<()>| matches!(result, Err(Error::Misuse { .. }));
    assert!(misuse(task.write(9, &keys, &puts, None, Some(&rows))));
    assert!(misuse(task.write(0, &[7], &puts, None, Some(&rows))));
    assert!(misuse(task.write(0, &keys, &puts, None, None)));
    assert!(misuse(task.write(0, &keys, &[Did::Delete], None, Some(&rows))));
    assert!(misuse(task.write(1, &keys, &[Did::Delete], None, None)));
    assert!(misuse(task.write(2, &keys, &puts, None, Some(&rows))));
    assert!(misuse(task.write_timers(&keys, &[true, false], &[1])));
    let wrong =
        StructArray::new(one("n", DataType::Utf8), vec![Arc::new(StringArray::from(vec!["x"]))], None);
    assert!(matches!(task.write(0, &keys, &puts, None, Some(&wrong)), Err(Error::StateSchema { .. })));
    task.commit().unwrap();
    assert!(misuse(task.commit().map(drop)));
    assert!(misuse(task.write(0, &keys, &puts, None, Some(&rows))));
}

#[test]
fn what_is_too_large_to_be_read_again_is_not_written() {
    let states = LocalStates::new();
    let (mut task, keys) = task(&states, 0, &["a"]);
    let value = |len: usize| Some(texts(&["x".repeat(len).as_str()]));
    task.write(2, &keys, &[Did::Put], value(1 << 15).as_ref(), Some(&numbers(&[1]))).unwrap();
    let refused = task.write(2, &keys, &[Did::Put], value(1 << 16).as_ref(), Some(&numbers(&[1])));
    let error = refused.unwrap_err();
    assert_eq!(error.condition(), "MISUSE");
    assert!(error.to_string().contains("state variable \"m\" takes 655"), "{error}");
}

#[test]
fn a_batch_query_begins_with_nothing() {
    let mut task = TaskState::open(Nothing(told(5)), 0, &one("k", DataType::Utf8), variables(), &[]).unwrap();
    let keys = add(&mut task, &["a"]);
    task.load().unwrap();
    assert_eq!(
        (found(&task, 0), task.due(i64::MAX).unwrap(), task.timers(0).unwrap()),
        (vec![], vec![], vec![])
    );
    task.write(0, &keys, &[Did::Put], None, Some(&numbers(&[1]))).unwrap();
    task.commit().unwrap();
}

/// State of which no more than the beginning can be read.
struct Failing(LocalTask);

impl Backend for Failing {
    fn begin(&mut self) -> Result<Begun> {
        self.0.begin()
    }

    fn read(&mut self, keys: &[KeyPrefix], part: u64) -> Result<Loaded> {
        self.0.read(keys, part)
    }

    fn read_on(
        &mut self,
        _key: &KeyPrefix,
        _from: &EntryKey,
        _until: &Bytes,
        _bytes: u64,
    ) -> Result<(Entries, Option<EntryKey>)> {
        Err(Error::CorruptState { reason: "a page".into() })
    }

    fn due(&mut self, until_ms: i64) -> Result<Vec<(i64, KeyPrefix)>> {
        self.0.due(until_ms)
    }

    fn write(&mut self, delta: Delta) -> Result<()> {
        self.0.write(delta)
    }
}

#[test]
fn a_program_that_passes_over_what_it_could_not_read_decides_nothing() {
    let states = LocalStates::new();
    let (mut first, keys) = task(&states, 0, &["a"]);
    let key = keys[0];
    first.write(1, &[key; 9], &[Did::Put; 9], None, Some(&numbers(&[0; 9]))).unwrap();
    finish(&states, first, 0);
    let backend = Failing(states.task(id(), (0, 1), told(1_000)));
    let fields = one("k", DataType::Utf8);
    let mut task = TaskState::open(backend, 1, &fields, variables(), &[]).unwrap().in_parts(0);
    let key = add(&mut task, &["a"])[0];
    task.load().unwrap();
    // What was asked wrongly is no failure of the state's.
    assert!(matches!(task.piece(0, key, None, 1), Err(Error::Misuse { .. })));
    for _ in 0..2 {
        assert!(matches!(task.piece(1, key, None, 1), Err(Error::CorruptState { .. })));
    }
    task.write(0, &[key], &[Did::Put], None, Some(&numbers(&[1]))).unwrap();
    assert!(matches!(task.commit(), Err(Error::CorruptState { .. })));
}
