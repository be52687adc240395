//! Costs of the core's innermost steps, each against a plain one of the same kind in the same run.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use arrow_array::{ArrayRef, BooleanArray, Int64Array, StringArray};
use bytes::Bytes;
use clonos::causal_log::CausalLog;
use clonos::determinant::{BlockBuilder, encode_results, row_fingerprints};

const ROUNDS: usize = 15;
const ROWS: usize = 10_000;

/// Median nanoseconds per item of `work`, which handles `items` of them.
fn measure(items: usize, mut work: impl FnMut()) -> f64 {
    let mut times: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let begin = Instant::now();
            work();
            begin.elapsed().as_nanos() as f64 / items as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times.get(ROUNDS / 2).copied().unwrap_or_default()
}

fn show(name: &str, ours: f64, plain_name: &str, plain: f64) {
    println!("| {name} | {ours:.2} ns | {plain_name} | {plain:.2} ns | {:.2} |", ours / plain);
}

fn main() {
    println!("| step | cost | beside it | cost | ratio |\n|---|---|---|---|---|");
    times();
    fingerprints();
    results();
    log();
}

fn times() {
    let now = 1_800_000_000_000_000_000_i64;
    let mut builder = BlockBuilder::new();
    let ours = measure(ROWS, || {
        for step in 0..ROWS as i64 {
            builder.push_time(black_box(now + step * 1_000));
        }
        black_box(builder.finish());
    });
    let mut plain: Vec<i64> = Vec::new();
    let pushed = measure(ROWS, || {
        plain.clear();
        for step in 0..ROWS as i64 {
            plain.push(black_box(now + step * 1_000));
        }
        black_box(&plain);
    });
    show("append a time reading, checksum included", ours, "push to a Vec<i64>", pushed);
}

fn fingerprints() {
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..ROWS as i64));
    let words: ArrayRef = Arc::new(StringArray::from_iter_values((0..ROWS).map(|n| format!("word-{n}"))));
    let mut out = Vec::with_capacity(ROWS);
    let mut of = |column: &ArrayRef| {
        measure(ROWS, || {
            out.clear();
            row_fingerprints(std::slice::from_ref(column), &mut out).expect("a supported type");
            black_box(&out);
        })
    };
    let (int, text) = (of(&numbers), of(&words));
    show("fingerprint a row of one string", text, "of one integer", int);
}

fn results() {
    let flags: ArrayRef = Arc::new((0..ROWS).map(|n| Some(n % 3 == 0)).collect::<BooleanArray>());
    let marks: Vec<u64> = (0..ROWS as u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
    let mut builder = BlockBuilder::new();
    let ours = measure(ROWS, || {
        let arrow = encode_results(&flags).expect("booleans");
        builder.push_results(&marks, &arrow).expect("a small batch");
        black_box(builder.finish());
    });
    let copied = measure(ROWS, || {
        black_box(marks.clone());
    });
    show("record a boolean result", ours, "copy its fingerprint", copied);
}

fn log() {
    let block = Bytes::from(vec![7; 80 << 10]);
    let ours = measure(1_000, || {
        let mut log = CausalLog::new();
        for _ in 0..1_000 {
            log.append(block.clone()).expect("a short block");
        }
        black_box(&log);
    });
    let pushed = measure(1_000, || {
        let mut list = Vec::new();
        for _ in 0..1_000 {
            list.push(block.clone());
        }
        black_box(&list);
    });
    show("append a block to a log", ours, "to a Vec<Bytes>", pushed);
}
