//! What durability costs: the segments' group commit beside plain `write` + `fdatasync` of the same
//! blocks, in one run on one disk. `cargo bench --bench disk [-- folder]`.

#![allow(clippy::unwrap_used, reason = "a benchmark has nobody to report to")]

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use bytes::Bytes;
use clonos::agent::protocol::Borders;
use clonos::edge::disk::segment::{DiskWriter, SegmentRecord};
use clonos::id::{AgentId, Epoch, Generation, LogOffset, Partition, TaskId};

/// About 10,000 rows' results.
const BLOCK: usize = 80 << 10;
const THREADS: u32 = 2;
const BLOCKS_PER_THREAD: usize = 500;
/// Rounds, of which the best counts: what disturbs only ever slows down.
const ROUNDS: usize = 3;

fn block() -> Bytes {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[0]
    };
    (0..BLOCK).map(next).collect()
}

/// Each thread has a file of its own and syncs after each block.
fn raw(folder: &Path, threads: u32) {
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let path = folder.join(format!("raw-{thread}"));
            scope.spawn(move || {
                let (block, mut file) = (block(), File::create(path).unwrap());
                for _ in 0..BLOCKS_PER_THREAD * (THREADS / threads) as usize {
                    file.write_all(&block).unwrap();
                    file.sync_data().unwrap();
                }
            });
        }
    });
}

/// Each thread is a task that has at most `window` blocks unacknowledged.
fn group(folder: &Path, window: usize) {
    let writer = DiskWriter::start(&folder.join("segments"), AgentId(1), 1).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let writer = &writer;
            scope.spawn(move || {
                let (block, mut waiting) = (block(), std::collections::VecDeque::new());
                for index in 0..BLOCKS_PER_THREAD {
                    if waiting.len() == window {
                        let oldest: clonos::edge::disk::segment::Pending = waiting.pop_front().unwrap();
                        oldest.wait().unwrap();
                    }
                    let offset = LogOffset((index * BLOCK) as u64);
                    waiting.push_back(writer.submit(record(thread, offset, block.clone())));
                }
                for pending in waiting {
                    pending.wait().unwrap();
                }
            });
        }
    });
}

fn record(thread: u32, offset: LogOffset, block: Bytes) -> SegmentRecord {
    let (query, operator) = ("bench".into(), "append".into());
    let task = TaskId { query, operator, epoch: Epoch::Batch(0), partition: Partition(thread) };
    SegmentRecord {
        task,
        generation: Generation(1),
        app: 1,
        stage: 1,
        tasks: None,
        plan: None,
        borders: Borders::UNKNOWN,
        offset,
        block,
    }
}

/// Best of several rounds, in blocks per second.
fn measure(parent: &Path, run: impl Fn(&Path)) -> f64 {
    let seconds = (0..ROUNDS).map(|_| {
        let folder = tempfile::tempdir_in(parent).unwrap();
        let start = Instant::now();
        run(folder.path());
        start.elapsed().as_secs_f64()
    });
    let blocks = f64::from(THREADS) * BLOCKS_PER_THREAD as f64;
    blocks / seconds.fold(f64::INFINITY, f64::min)
}

fn main() {
    // cargo passes `--bench`; a folder names the disk to measure.
    let given = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let parent = given.map_or_else(std::env::temp_dir, PathBuf::from);
    let report = |name: &str, rate: f64, base: f64| {
        let mebibytes = rate * BLOCK as f64 / f64::from(1 << 20);
        let out = format!("{name:<44} {rate:>8.0} blocks/s {mebibytes:>8.1} MiB/s {:>6.2}x\n", rate / base);
        std::io::stdout().write_all(out.as_bytes()).unwrap();
    };
    let base = measure(&parent, |folder| raw(folder, THREADS));
    report("write + fdatasync, 2 threads, 2 files", base, base);
    report("write + fdatasync, 1 thread, 1 file", measure(&parent, |f| raw(f, 1)), base);
    for window in [1, 4, 16] {
        let name = format!("group commit, 2 threads, {window} in flight each");
        report(&name, measure(&parent, |folder| group(folder, window)), base);
    }
}
