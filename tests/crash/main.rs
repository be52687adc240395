//! Guarantee 1 on disk: what the writer of segments acknowledged survives SIGKILL at any moment.
//!
//! The parent starts this very test binary as a child that appends blocks and reports each
//! acknowledgement on a pipe; it kills the child at a random moment and recovers. Then it cuts off
//! some of what was not acknowledged, as a power failure would, and recovers again. The next child
//! adopts the recovered logs, as another agent does: it writes all of them to a file of its own, and goes on.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use bytes::Bytes;
use clonos::agent::protocol::{Borders, Code};
use clonos::causal_log::Place;
use clonos::edge::disk::recovery::{RecoveredTask, Recovery, recover};
use clonos::edge::disk::segment::{DiskWriter, SegmentRecord};
use clonos::id::{AgentId, Epoch, Generation, LogOffset, Partition, TaskId};

/// How often a child is killed.
const KILLS: u32 = 50;
/// Children that follow each other on one folder.
const LIVES: u32 = 5;
/// Tasks that append at once.
const PARTITIONS: u32 = 3;
/// Blocks of a task that are on their way at once.
const WINDOW: usize = 4;
/// Longest life of a child after its first acknowledgement, in microseconds.
const LIFE_MAX: u64 = 60_000;
/// Tells the child where to write.
const FOLDER: &str = "CLONOS_CRASH_FOLDER";

fn task(partition: u32) -> TaskId {
    let (query, operator) = ("crash".into(), "append".into());
    TaskId { query, operator, epoch: Epoch::Batch(1), partition: Partition(partition) }
}

/// The block that a task appends as its `index`th: parent and child agree without talking.
fn block(partition: u32, index: usize) -> Bytes {
    let mut state = (u64::from(partition) << 32 | index as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    // From a few bytes to a quarter of a mebibyte, small ones as often as large ones.
    let len = (1_u64 << (next() % 19)) + next() % 7;
    (0..len).map(|_| next().to_le_bytes()[3]).collect()
}

/// Writes one task's log and appends to it for ever; a line on standard output for each acknowledgement.
fn append_for_ever(writer: &DiskWriter, log: &RecoveredTask) {
    let Partition(partition) = log.task.partition;
    let mut offset = LogOffset::START;
    let mut waiting = std::collections::VecDeque::new();
    for index in 0.. {
        let block = block(partition, index);
        let len = block.len() as u64;
        let generation = log.generation.next();
        let record = SegmentRecord {
            task: log.task.clone(),
            generation,
            app: 1,
            stage: 1,
            tasks: None,
            plan: None,
            borders: Borders::UNKNOWN,
            offset,
            block,
        };
        waiting.push_back((index, writer.submit(record)));
        offset = offset.plus(len);
        if waiting.len() == WINDOW {
            let (index, pending) = waiting.pop_front().unwrap();
            pending.wait().unwrap();
            // One write: a line is there in full or has no end.
            let line = format!("\nack {partition} {index}\n");
            std::io::stdout().write_all(line.as_bytes()).unwrap();
            std::io::stdout().flush().unwrap();
        }
    }
}

#[test]
#[ignore = "the child of the other test"]
fn child() {
    let folder = std::env::var_os(FOLDER).expect("started by the parent");
    let found = recover(Path::new(&folder)).unwrap();
    let mut logs: HashMap<_, _> = found.tasks.into_iter().map(|log| (log.task.clone(), log)).collect();
    let writer = &DiskWriter::start(Path::new(&folder), AgentId(std::process::id().into()), 1).unwrap();
    std::thread::scope(|scope| {
        for task in (0..PARTITIONS).map(task) {
            let log = logs.remove(&task).unwrap_or_else(|| {
                let generation = Generation::NONE;
                RecoveredTask {
                    task,
                    generation,
                    app: 1,
                    stage: 1,
                    tasks: None,
                    relaid: false,
                    has_moved: false,
                    plan: None,
                    borders: Borders::UNKNOWN,
                    code: Code::default(),
                    blocks: Vec::new(),
                }
            });
            scope.spawn(move || append_for_ever(writer, &log));
        }
    });
}

/// Runs a child on `folder`, kills it `life` after its first acknowledgement; how many blocks of
/// each partition it, or one before it, acknowledged.
fn kill_a_child(folder: &Path, life: Duration, acked: &mut HashMap<u32, usize>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--ignored", "--nocapture"])
        .env(FOLDER, folder)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let (mut line, mut killer) = (String::new(), None);
    while lines.read_line(&mut line).unwrap() > 0 {
        let words: Vec<&str> = line.split(' ').collect();
        if let (["ack", partition, index], true) = (words.as_slice(), line.ends_with('\n')) {
            let index: usize = index.trim().parse().unwrap();
            let count = acked.entry(partition.parse().unwrap()).or_default();
            *count = (*count).max(index + 1);
            killer.get_or_insert_with(|| {
                let id = rustix::process::Pid::from_child(&child);
                std::thread::spawn(move || {
                    std::thread::sleep(life);
                    rustix::process::kill_process(id, rustix::process::Signal::KILL).unwrap();
                })
            });
        }
        line.clear();
    }
    killer.expect("the child acknowledged nothing").join().unwrap();
    let status = child.wait().unwrap();
    assert!(!status.success(), "the child ended by itself");
}

/// Every acknowledged block is there, and every block that is there is the right one.
fn check(found: &Recovery, acked: &HashMap<u32, usize>) -> usize {
    let mut checked = 0;
    for (partition, acked) in acked {
        let log = found.tasks.iter().find(|log| log.task == task(*partition)).unwrap();
        assert!(log.blocks.len() >= *acked, "{} blocks, {acked} acknowledged", log.blocks.len());
        for (index, found_block) in log.blocks.iter().enumerate() {
            let Place::Spilled(place, _) = &found_block.place else { panic!("not on disk") };
            assert!(found.files.read(place).unwrap() == block(*partition, index), "block {index}");
            checked += 1;
        }
    }
    checked
}

/// Does what a power failure may do, which a kill does not: cuts the last segment at a random place behind
/// the last acknowledged record. Whether that left a torn record there.
fn lose_power(folder: &Path, acked: &HashMap<u32, usize>, random: u64) -> bool {
    let only = |dir: &Path| std::fs::read_dir(dir).unwrap().next().unwrap().unwrap().path();
    let epoch = only(&only(folder));
    let segments = std::fs::read_dir(&epoch).unwrap().map(|entry| entry.unwrap().path());
    let last = segments.max_by_key(|path| path.metadata().unwrap().modified().unwrap()).unwrap();
    // What it holds by itself.
    let alone = tempfile::tempdir().unwrap();
    let copy = alone.path().join("query").join("epoch");
    std::fs::create_dir_all(&copy).unwrap();
    std::fs::copy(&last, copy.join("copy.seg")).unwrap();
    let (mut starts, mut safe) = (Vec::new(), 0);
    for log in &recover(alone.path()).unwrap().tasks {
        for (index, block) in log.blocks.iter().enumerate() {
            let Place::Spilled(place, _) = &block.place else { panic!("not on disk") };
            starts.push(place.pos);
            if index < acked.get(&log.task.partition.0).copied().unwrap_or(0) {
                safe = safe.max(place.pos);
            }
        }
    }
    let file = std::fs::File::options().write(true).open(last).unwrap();
    let len = file.metadata().unwrap().len();
    // The last acknowledged record ends where the next one starts.
    let from = starts.iter().copied().filter(|start| *start > safe).min().unwrap_or(len);
    let cut = from + random % (len - from + 1);
    file.set_len(cut).unwrap();
    cut < len && !starts.contains(&cut)
}

#[test]
fn every_acknowledged_block_survives_a_kill_at_any_moment() {
    let random = RandomState::new();
    let (mut checked, mut torn) = (0, 0);
    for round in 0..KILLS / LIVES {
        let folder = tempfile::tempdir().unwrap();
        let mut acked = HashMap::new();
        for life in 0..LIVES {
            let micros = random.hash_one((round, life)) % LIFE_MAX;
            kill_a_child(folder.path(), Duration::from_micros(micros), &mut acked);
            let found = recover(folder.path()).unwrap();
            checked += check(&found, &acked);
            torn += u32::from(lose_power(folder.path(), &acked, random.hash_one(micros)));
            checked += check(&recover(folder.path()).unwrap(), &acked);
        }
    }
    assert!(checked > KILLS as usize, "only {checked} blocks were checked");
    assert!(torn > 0, "no child had anything unacknowledged on its way");
    eprintln!("{KILLS} kills: {checked} blocks checked, {torn} torn tails");
}
