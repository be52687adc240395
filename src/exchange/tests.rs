//! The exchange against models: what is sent is taken, whole, in order, and the same every time.

use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use bytes::Bytes;

use super::*;
use crate::error::Error;
use crate::frame::{Frame, Group, LogVersion, Opening, read};
use crate::id::{Epoch, LogOffset, Partition, TaskId};
use crate::task::Order;

mod columns;
mod deltas;
mod naming;
mod order;
mod partitions;
mod round_trip;
mod stages;

fn task(operator: &str, partition: u32) -> TaskId {
    TaskId {
        query: "orders".into(),
        operator: operator.into(),
        epoch: Epoch::Batch(7),
        partition: Partition(partition),
    }
}

/// Numbers that follow from a seed, for what is chosen at random but must not shrink on its own.
#[derive(Debug, Clone)]
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((word ^ (word >> 31)) % sides as u64) as usize
    }

    /// One of many orders in which `queues` can be emptied, each front to back.
    fn interleave<T: Clone>(&mut self, queues: &[Vec<T>]) -> Vec<T> {
        let mut left: Vec<_> = queues.iter().map(|queue| queue.iter().cloned()).collect();
        let mut out = Vec::new();
        while !left.is_empty() {
            let at = self.roll(left.len());
            match left[at].next() {
                Some(next) => out.push(next),
                None => drop(left.swap_remove(at)),
            }
        }
        out
    }
}

fn numbers(values: impl IntoIterator<Item = i64>) -> RecordBatch {
    let column: ArrayRef = Arc::new(Int64Array::from_iter_values(values));
    RecordBatch::try_from_iter([("n", column)]).unwrap()
}

fn values(batches: &[RecordBatch]) -> Vec<i64> {
    let column = |batch: &RecordBatch| {
        let column = batch.column(0).as_any().downcast_ref::<Int64Array>().unwrap();
        column.values().to_vec()
    };
    batches.iter().flat_map(column).collect()
}

fn scatter_options(sender: TaskId, tasks: Option<u32>, partitions: u32) -> ScatterOptions {
    ScatterOptions {
        opening: Opening { task: sender, tasks },
        keys: Vec::new(),
        partitions,
        compression: Compression::None,
        round_bytes: 1,
        riding_bytes: u64::MAX,
    }
}

/// The frames of a sender with one channel: one for each of `rounds`, then the closing one. A round is
/// recorded in a block of its own; its rows follow from its number and the sender.
fn frames_of(sender: u32, tasks: Option<u32>, rounds: &[usize]) -> Vec<Bytes> {
    frames_with(sender, tasks, rounds, b"block", 0)
}

fn frames_with(sender: u32, tasks: Option<u32>, rounds: &[usize], block: &[u8], base: i64) -> Vec<Bytes> {
    let mut scatter = Scatter::new(scatter_options(task("up", sender), tasks, 1));
    let mut piggyback = Piggyback::new("up", Partition(sender), 1);
    let mut frames = Vec::new();
    for (number, rows) in rounds.iter().enumerate() {
        piggyback.record(&Bytes::from([block, &[number as u8]].concat()));
        let first = base + i64::from(sender) * 1_000_000 + number as i64 * 1_000;
        scatter.push(numbers(first..first + *rows as i64)).unwrap();
        frames.extend(scatter.cut(&mut piggyback).unwrap().frames().map(|(_, frame)| frame));
    }
    frames.extend(scatter.finish(&mut piggyback).unwrap().frames().map(|(_, frame)| frame));
    frames
}

/// The frame with another payload, and checksums that hold.
fn with_payload(frame: &Frame, payload: &[u8]) -> Bytes {
    let mut out = Vec::new();
    let fill = |out: &mut Vec<u8>| {
        out.extend_from_slice(payload);
        Ok(())
    };
    crate::frame::seal(&mut out, &frame.head, frame.opening.as_ref(), &frame.delta, fill).unwrap();
    Bytes::from(out)
}
