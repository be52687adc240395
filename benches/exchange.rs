//! What an exchange costs: scatter and gather beside copying the same columns, the in-flight log beside
//! memory and disk themselves, and the share of piggybacked bytes; all in one run.
//! `cargo bench --bench exchange [-- folder]`.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a benchmark has nobody to report to")]

mod common;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow_select::concat::concat_batches;
use bytes::Bytes;
use clonos::agent::protocol::{Borders, Code, Layout, Use};
use clonos::agent::protocol::{OpenTask, Request};
use clonos::agent::store::{Absorbed, Store};
use clonos::config::{SessionConfig, SpillPolicy};
use clonos::edge::agent::{Agent, AgentConfig};
use clonos::edge::net::client::Client;
use clonos::exchange::{Compression, Gather, InMemory, Piggyback, Round, Scatter, ScatterOptions};
use clonos::frame::Opening;
use clonos::id::{Epoch, Generation, LogOffset, Partition, TaskId};
use clonos::task::{ServiceTask, TaskMode, TaskOptions};

const ROWS: usize = 10_000;
const BATCHES: usize = 40;
const CHANNELS: u32 = 8;
const FRAME: usize = 128 << 10;
const ROUNDS: usize = 5;

/// Best seconds of some rounds: what disturbs only ever slows down.
fn best(mut work: impl FnMut()) -> f64 {
    let timed = |_| {
        let began = Instant::now();
        work();
        began.elapsed().as_secs_f64()
    };
    (0..ROUNDS).map(timed).fold(f64::INFINITY, f64::min)
}

fn show(what: &str, bytes: usize, seconds: f64) {
    println!("{what:<58} {:>8.2} GB/s", bytes as f64 / seconds / 1e9);
}

/// Rows of about 100 bytes: four numbers and four strings.
fn batch(first: usize) -> RecordBatch {
    let numbers = |by: i64| -> ArrayRef {
        Arc::new(Int64Array::from_iter_values((first..first + ROWS).map(|row| row as i64 * by)))
    };
    let texts = |by: usize| -> ArrayRef {
        let text = (first..first + ROWS).map(|row| format!("item-{:09}", row * by % 999_999_937));
        Arc::new(StringArray::from_iter_values(text))
    };
    let columns: Vec<(String, ArrayRef)> = (1..=4)
        .map(|n| (format!("n{n}"), numbers(n)))
        .chain((1..=4).map(|n| (format!("s{n}"), texts(n))))
        .collect();
    RecordBatch::try_from_iter(columns).unwrap()
}

fn task(partition: u32) -> TaskId {
    let partition = Partition(partition);
    TaskId { query: "bench".into(), operator: "send".into(), epoch: Epoch::Batch(1), partition }
}

fn scatter(compression: Compression) -> Scatter {
    Scatter::new(ScatterOptions {
        opening: Opening { task: task(0), tasks: Some(1) },
        keys: vec![0],
        partitions: CHANNELS,
        compression,
        round_bytes: FRAME * CHANNELS as usize,
        riding_bytes: u64::MAX,
    })
}

/// All frames of the batches; with one reading of the clock per row if `recorded`.
fn send(batches: &[RecordBatch], compression: Compression, recorded: bool) -> Vec<Round> {
    let mut scatter = scatter(compression);
    let mut service =
        ServiceTask::new(TaskOptions::new(task(0), TaskMode::Services, 1), vec![], true).unwrap();
    let mut piggyback = Piggyback::new("send", Partition(0), 1);
    let mut rounds = Vec::new();
    let began = Instant::now();
    for batch in batches {
        if recorded {
            for _ in 0..batch.num_rows() {
                // As the clock is read by default: in steps of a millisecond.
                service.time(began.elapsed().as_millis() as i64 * 1_000_000).unwrap();
            }
        }
        if scatter.push(batch.clone()).unwrap() {
            service.take_block_for(scatter.round()).iter().for_each(|block| piggyback.record(block));
            rounds.push(scatter.cut(&mut piggyback).unwrap());
        }
    }
    service.take_block_for(scatter.round()).iter().for_each(|block| piggyback.record(block));
    rounds.push(scatter.finish(&mut piggyback).unwrap());
    rounds
}

fn receive(rounds: &[Round]) -> usize {
    let mut gathers: Vec<_> = (0..CHANNELS).map(|_| Gather::new(InMemory::default(), [])).collect();
    let mut rows = 0;
    for (channel, frame) in rounds.iter().flat_map(Round::frames) {
        let gather = &mut gathers[channel as usize];
        gather.offer(frame).unwrap();
        while let Some(taken) = gather.take().unwrap() {
            rows += taken.batches.iter().map(RecordBatch::num_rows).sum::<usize>();
        }
    }
    rows
}

fn frames() {
    let batches: Vec<_> = (0..BATCHES).map(|number| batch(number * ROWS)).collect();
    let bytes: usize = batches.iter().map(RecordBatch::get_array_memory_size).sum();
    show("copying the columns once", bytes, best(|| drop(concat_batches(&batches[0].schema(), &batches))));
    for (name, compression) in [("plain", Compression::None), ("lz4", Compression::Lz4)] {
        show(&format!("scatter, {name}"), bytes, best(|| drop(send(&batches, compression, false))));
        let rounds = send(&batches, compression, false);
        show(&format!("gather, {name}"), bytes, best(|| assert_eq!(receive(&rounds), ROWS * BATCHES)));
    }
    let rounds = send(&batches, Compression::None, true);
    let sum = |of: fn(&Round) -> u64| rounds.iter().map(of).sum::<u64>() as f64;
    let share = sum(|round| round.delta_bytes) / sum(|round| round.payload_bytes) * 100.0;
    println!("{:<58} {share:>8.3} %", "piggybacked bytes, one time reading per row of 100 bytes");
}

fn in_memory() {
    let frame = Bytes::from(vec![7_u8; FRAME]);
    let total = 256 << 20;
    let log = task(0).in_flight();
    let layout = Layout {
        app: 1,
        stage: 1,
        tasks: None,
        code: Code::default(),
        plan: None,
        borders: Borders::UNKNOWN,
    };
    let appended = || {
        let mut store = Store::new(1 << 30);
        store.begin(&log, Generation(1), layout).unwrap();
        let mut at = LogOffset::START;
        for _ in 0..total / FRAME {
            let copied = Bytes::copy_from_slice(&frame);
            assert!(matches!(store.absorb(&log, Generation(1), at, &copied).unwrap(), Absorbed::At(_)));
            at = at.plus(FRAME as u64);
        }
    };
    show("in-flight log in memory, one copy included", total, best(appended));
}

/// Sends frames to an agent and reads them back, as a worker does.
fn through_an_agent(folder: &Path, memory: u64, what: &str) {
    let mut config = SessionConfig::new("bench", [7; 32]);
    config.memory_bytes = memory;
    config.spill_policy = SpillPolicy::Availability;
    config.spill_dir = Some(folder.display().to_string());
    let role = common::driver();
    let socket = folder.join("agent.sock");
    let agent = Agent::start(AgentConfig { session: config.clone(), role, socket }).unwrap();
    let mut client = Client::connect(&config, agent.socket()).unwrap();
    let total = 512 << 20;
    let frames: Vec<_> = (0..8).map(|_| Bytes::from(vec![7_u8; FRAME])).collect();
    let mut number = 0;
    let sent = best(|| {
        number += 1;
        agent.commit_epoch("bench", &Epoch::Batch(number - 1)).unwrap();
        let task = TaskId { epoch: Epoch::Batch(number), ..task(0) };
        let open = OpenTask {
            task,
            used: Use::default(),
            execution: None,
            app: 1,
            stage: 1,
            attempt: number,
            worker: 1,
            inside: true,
            stamp: 0,
            of_rdd: None,
        };
        let session = client.open(open).unwrap().session;
        let mut waiting = std::collections::VecDeque::new();
        for _ in 0..total / FRAME / frames.len() {
            waiting.push_back(client.start(&Request::Send { session, frames: frames.clone() }).unwrap());
            if waiting.len() > 8 {
                client.wait(waiting.pop_front().unwrap()).unwrap();
            }
        }
        waiting.into_iter().for_each(|ticket| client.wait(ticket).unwrap());
    });
    show(&format!("frames to an agent with {what}"), total, sent);
    agent.stop();
}

/// What `dd conv=fsync` does.
fn disk(folder: &Path) {
    let frame = vec![7_u8; 1 << 20];
    let total = 512 << 20;
    let path = folder.join("plain");
    let written = best(|| {
        let mut file = File::create(&path).unwrap();
        (0..total >> 20).for_each(|_| file.write_all(&frame).unwrap());
        file.sync_all().unwrap();
    });
    show("the disk: write and fsync", total, written);
    std::fs::remove_file(&path).unwrap();
}

fn main() {
    let chosen = std::env::args().skip(1).find(|argument| !argument.starts_with("--"));
    let folder = chosen
        .map_or_else(std::env::temp_dir, PathBuf::from)
        .join(format!("clonos-bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    frames();
    in_memory();
    through_an_agent(&folder, 2 << 30, "memory to spare");
    through_an_agent(&folder, 32 << 20, "32 MiB, the rest spilled");
    disk(&folder);
    std::fs::remove_dir_all(&folder).unwrap();
}
