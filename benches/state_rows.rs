//! Costs of a worker's side of keyed state: rows to bytes and back, rows by key, and a whole task.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use arrow_array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray, StructArray};
use arrow_schema::{DataType, Field, Fields, Schema};
use bytes::Bytes;
use clonos::state::catalog::{Kind, Variable};
use clonos::state::codec::{decode, encode};
use clonos::state::group::group;
use clonos::state::local::LocalStates;
use clonos::state::view::{Begun, Did, TaskState};
use clonos::state::{StateId, Version};

const ROUNDS: usize = 15;
const ROWS: usize = 200_000;

/// Median milliseconds of `work`.
fn measure(mut work: impl FnMut()) -> f64 {
    let mut times: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let begin = Instant::now();
            work();
            begin.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times.get(ROUNDS / 2).copied().unwrap_or_default()
}

fn show(name: &str, millis: f64, items: usize) {
    println!("| {name} | {millis:.2} ms | {:.0} ns |", millis * 1e6 / items as f64);
}

/// An integer, a text and a float; the integer is one of so many.
fn columns(keys: usize) -> Vec<ArrayRef> {
    // Spread, so that equal ones do not stand together.
    let key = |row: usize| (row.wrapping_mul(0x9e37_79b9) % keys) as i64;
    vec![
        Arc::new(Int64Array::from_iter_values((0..ROWS).map(key))),
        Arc::new(StringArray::from_iter_values((0..ROWS).map(|row| format!("device-{}", row % 1_000)))),
        Arc::new(Float64Array::from_iter_values((0..ROWS).map(|row| row as f64 / 7.0))),
    ]
}

fn fields() -> Fields {
    let field = |name, kind| Field::new(name, kind, true);
    let (text, float) = (field("device", DataType::Utf8), field("reading", DataType::Float64));
    vec![field("id", DataType::Int64), text, float].into()
}

fn main() {
    println!("{ROWS} rows of an integer, a text and a float\n\n| step | cost | per row |\n|---|---|---|");
    codec();
    for keys in [20_000, ROWS] {
        groups(keys);
    }
    task();
}

fn codec() {
    let columns = columns(ROWS);
    let rows = encode(&columns, ROWS, &[0]).expect("plain columns");
    let encoded = measure(|| drop(black_box(encode(&columns, ROWS, &[0]))));
    show("rows to bytes", encoded, ROWS);
    let stripped: Vec<&[u8]> = rows.iter().map(|row| row.get(1..).unwrap_or_default()).collect();
    let decoded = measure(|| drop(black_box(decode(&fields(), stripped.iter().copied()))));
    show("bytes to rows", decoded, ROWS);
}

fn groups(keys: usize) {
    let schema = Arc::new(Schema::new(fields()));
    let whole = RecordBatch::try_new(schema, columns(keys)).expect("columns of one length");
    let batches: Vec<_> = (0..ROWS).step_by(10_000).map(|first| whole.slice(first, 10_000)).collect();
    let key = Fields::from(vec![Field::new("id", DataType::Int64, true)]);
    let grouped = measure(|| drop(black_box(group(&batches, &[0], &key))));
    show(&format!("rows by key, {keys} keys of an integer"), grouped, ROWS);
    let key =
        Fields::from(vec![Field::new("id", DataType::Int64, true), Field::new("d", DataType::Utf8, true)]);
    let grouped = measure(|| drop(black_box(group(&batches, &[0, 1], &key))));
    show("the same, of an integer and a text", grouped, ROWS);
}

/// A task with a key per row, of which there is a value each.
fn task() {
    let states = LocalStates::new();
    let id = StateId { query: "bench".into(), operator: "count".into() };
    let key = Fields::from(vec![Field::new("id", DataType::Int64, true)]);
    let value = fields();
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..ROWS as i64));
    let batch = RecordBatch::try_new(Arc::new(Schema::new(key.clone())), vec![ids]).expect("one column");
    let values = StructArray::new(value.clone(), columns(ROWS), None);
    let mut spent: [Vec<f64>; 5] = Default::default();
    for epoch in 0..ROUNDS as u64 {
        let told =
            Begun { version: Version::NONE, now_ms: 0, watermark_ms: -1, late_ms: -1, catalog: Bytes::new() };
        let variable =
            Variable { name: "v".into(), kind: Kind::Value, user_key: None, value: value.clone(), ttl_ms: 0 };
        let backend = states.task(id.clone(), (0, 1), told);
        let mut task = TaskState::open(backend, epoch, &key, vec![variable], &[]).expect("a task");
        let mut step = |number: usize, work: &mut dyn FnMut()| {
            let begin = Instant::now();
            work();
            if let Some(times) = spent.get_mut(number) {
                times.push(begin.elapsed().as_secs_f64() * 1e3);
            }
        };
        let mut numbers = Vec::new();
        step(0, &mut || numbers = task.group(std::slice::from_ref(&batch), &[0]).expect("keys").1);
        step(1, &mut || task.load().expect("state"));
        step(2, &mut || drop(black_box(task.values(0, 0).expect("values"))));
        let did = vec![Did::Put; ROWS];
        step(3, &mut || task.write(0, &numbers, &did, None, Some(&values)).expect("rows"));
        step(4, &mut || assert_ne!(task.commit().expect("a delta"), 0));
        states.commit(&id, epoch).expect("an epoch");
    }
    for (name, mut times) in ["group", "load", "values", "write", "commit"].into_iter().zip(spent) {
        times.sort_by(f64::total_cmp);
        show(
            &format!("a task with a key per row: {name}"),
            times.get(ROUNDS / 2).copied().unwrap_or_default(),
            ROWS,
        );
    }
}
