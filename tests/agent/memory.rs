//! Guarantee 6 for all of an agent, not only for its logs: what it takes besides does not grow with them.

use std::ops::Range;
use std::sync::Arc;
use std::thread;

use arrow_array::cast::AsArray;
use arrow_array::{ArrayRef, StringArray};
use bytes::Bytes;
use clonos::determinant::{BlockBuilder, BlockReader, Determinant, decode_results, encode_results};
use clonos::edge::net::client::Client;
use clonos::task::{PoolQuestion, PoolRows, TaskMode, TaskOptions, values_header};

use crate::world::{AgentProcess, World, append, close, open, opening, restarted, task};

const MEMORY: u64 = 16 << 20;
/// What an agent takes besides, as others count it: of the 64 MiB that are promised, a Python process in which nothing
/// has happened yet has 32, and the allocator wants some.
const BESIDES: u64 = 14 << 20;
const RECORDED_BY: u64 = 4;
const FOUND_BY: u64 = 3;
const ROWS: u64 = if cfg!(debug_assertions) { 960_000 } else { 7_680_000 };
const BATCH: u64 = 10_000;
const CHARS: usize = 40;
/// Each agent has all calls, its own and its peer's.
const CALLS: u64 = 30_000;
const SMALL_MEMORY: u64 = 8 << 20;

/// Characters that cannot be made shorter.
pub(super) fn value(row: u64, chars: usize) -> String {
    let mut state = row.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        char::from(b'a' + (state % 26) as u8)
    };
    (0..chars).map(|_| next()).collect()
}

/// A log's block: rows of these fingerprints, each with a value of its own.
pub(super) fn block(rows: Range<u64>, chars: usize) -> Bytes {
    let options = TaskOptions::new(task(0), TaskMode::Result, 7);
    let header = values_header(&options).unwrap();
    let mut builder = BlockBuilder::new();
    builder.push(&BlockReader::new(&header).unwrap().next().unwrap().unwrap()).unwrap();
    let keys: Vec<u64> = rows.collect();
    let values: ArrayRef = Arc::new(keys.iter().map(|key| Some(value(*key, chars))).collect::<StringArray>());
    builder.push_results(&keys, &encode_results(&values).unwrap()).unwrap();
    builder.finish()
}

/// Asks for rows that others recorded; how many there are.
fn find(worker: &mut Client, partition: u64, rows: Vec<u64>) -> u64 {
    let ask = |fingerprint| PoolQuestion { fingerprint, from: 0, wanted: 1 };
    let mut questions: Vec<_> = rows.into_iter().map(ask).collect();
    let mut found = 0;
    while !questions.is_empty() {
        let task = task(u32::try_from(partition).unwrap());
        let answer = worker.pool(&task, &questions, true).unwrap();
        questions.drain(..answer.answers.len());
        for (keys, values) in given(&answer) {
            assert!(keys.iter().zip(&values).all(|(key, given)| given == Some(&value(*key, CHARS))));
            found += keys.len() as u64;
        }
    }
    found
}

/// Rows of an answer: fingerprints, and the values of each.
pub(super) fn given(answer: &PoolRows) -> impl Iterator<Item = (Vec<u64>, StringArray)> {
    let determinants = answer.blocks.iter().flat_map(|block| BlockReader::new(block).unwrap());
    determinants.filter_map(|determinant| {
        let Determinant::Results { fingerprints, arrow } = determinant.unwrap() else { return None };
        let mut keys = Vec::new();
        fingerprints.extend_into(&mut keys);
        Some((keys, decode_results(arrow).unwrap().as_string::<i32>().clone()))
    })
}

/// Does something for each of some partitions, two at a time, on an agent each.
fn on_two(
    world: &World,
    agents: &[AgentProcess; 2],
    partitions: u64,
    work: impl Fn(&mut Client, u64) + Sync,
) {
    thread::scope(|scope| {
        for (number, agent) in (0..).zip(agents) {
            let work = &work;
            scope.spawn(move || {
                for partition in (number..partitions).step_by(2) {
                    work(&mut Client::connect(&world.config, &agent.socket).unwrap(), partition);
                }
            });
        }
    });
}

fn is_inside(agents: &[AgentProcess; 2]) {
    let most = agents.each_ref().map(AgentProcess::heap_most);
    assert!(most.iter().all(|bytes| *bytes <= MEMORY + BESIDES), "{most:?}");
}

#[test]
fn rows_of_another_layout_are_found_inside_the_memory_that_was_set() {
    let mut world = World::with(|config, folder| {
        config.memory_bytes = MEMORY;
        config.io_timeout_ms = 30_000;
        config.checkpoint_dir = Some(folder.path().join("checkpoint").display().to_string());
    });
    let recorders = [world.process("one"), world.process("two")];
    on_two(&world, &recorders, RECORDED_BY, |worker, partition| {
        let opened = open(worker, &task(u32::try_from(partition).unwrap()), 104, partition);
        let share = ROWS / RECORDED_BY;
        for from in (partition * share..(partition + 1) * share).step_by(BATCH as usize) {
            append(worker, opened.session, &block(from..from + BATCH, CHARS)).unwrap();
        }
        close(worker, opened.session);
    });
    is_inside(&recorders);
    drop(recorders);
    let (driver, config) = restarted(&world);
    (world.driver, world.config) = (driver, config);
    let finders = [world.process("three"), world.process("four")];
    on_two(&world, &finders, FOUND_BY, |worker, partition| {
        let mut opening = opening(&task(u32::try_from(partition).unwrap()), 103, 10 + partition);
        opening.app += 1;
        let opened = worker.open(opening).unwrap();
        assert!(opened.recording.layout_changed);
        let (own, share) = (ROWS / RECORDED_BY, ROWS / FOUND_BY);
        let own = own * partition..own * (partition + 1);
        let mut rows = 0;
        for from in (partition * share..(partition + 1) * share).step_by(BATCH as usize) {
            let asked: Vec<u64> = (from..from + BATCH).filter(|row| !own.contains(row)).collect();
            let wanted = asked.len() as u64;
            assert_eq!(find(worker, partition, asked), wanted, "behind {from}");
            rows += wanted;
        }
        assert!(rows > 0);
        close(worker, opened.session);
    });
    is_inside(&finders);
}

/// A block for one call, as tasks record them that wait for each.
fn small_block(call: u64) -> Bytes {
    let mut builder = BlockBuilder::new();
    builder.push(&Determinant::Seed { seed: call }).unwrap();
    builder.finish()
}

#[test]
fn calls_that_are_recorded_one_by_one_take_no_more_than_that_either() {
    let world = World::with(|config, _| {
        config.memory_bytes = SMALL_MEMORY;
        config.io_timeout_ms = 30_000;
    });
    let agents = [world.process("one"), world.process("two")];
    on_two(&world, &agents, RECORDED_BY, |worker, partition| {
        let opened = open(worker, &task(u32::try_from(partition).unwrap()), 104, partition);
        for call in 0..CALLS {
            append(worker, opened.session, &small_block(call)).unwrap();
        }
        close(worker, opened.session);
    });
    let most = agents.each_ref().map(AgentProcess::heap_most);
    println!("{most:?}");
    assert!(most.iter().all(|bytes| *bytes <= SMALL_MEMORY + BESIDES), "{most:?}");
}
