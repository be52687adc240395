//! What the store of keyed state costs per key: epochs that touch some keys of many, in memory and spilled. Times are
//! those of the processor, so what else runs on the machine counts little. `cargo bench --bench state [-- keys [touched
//! [MiB]]]`.

#![allow(clippy::unwrap_used, reason = "a benchmark has nobody to report to")]

use std::hint::black_box;
use std::sync::Arc;

use bytes::Bytes;
use clonos::edge::disk::spill::{RunFiles, SpillDir};
use clonos::id::Generation;
use clonos::state::{
    Advanced, CommitPoint, Delta, DeltaPart, Due, EntriesBuilder, EntryKey, KeyPrefix, Limits, Op, Range,
    RangeSet, Read, Slot, StateId, StateStore, Version, partition_ranges,
};

const PARTITIONS: u32 = 8;
const EPOCHS: u64 = 40;
const VALUE: usize = 24;
/// One key in so many has a timer, which is due at a later epoch.
const TIMERS: u64 = 4;
const PAGE: u64 = 4 << 20;
/// Background work after each epoch.
const TIDY: u64 = 16 << 20;

fn main() {
    let mut numbers = std::env::args().skip(1).filter_map(|arg| arg.parse().ok());
    let keys: u64 = numbers.next().unwrap_or(1_000_000);
    let touched: u64 = numbers.next().unwrap_or(20_000);
    let budgets = numbers.next().map_or_else(|| vec![u64::MAX, keys * 27], |mib| vec![mib << 20]);
    for memory in budgets {
        let folder = tempfile::tempdir().unwrap();
        let files = RunFiles::new(Arc::new(SpillDir::create(folder.path(), u64::MAX, false).unwrap()));
        let budget =
            if memory == u64::MAX { "in memory".into() } else { format!("memory={} MiB", memory >> 20) };
        println!("{keys} keys, {touched} touched in each of {EPOCHS} epochs, {budget}");
        run(StateStore::with_files(memory, Arc::new(files)), keys, touched);
    }
}

fn run(mut store: StateStore, keys: u64, touched: u64) {
    let id = StateId { query: "query".into(), operator: "operator".into() };
    store.begin(&id, RangeSet::ALL, Version::NONE).unwrap();
    let begun = Watch::start();
    let mut peak = 0;
    // So many at once as a first batch might bring.
    let first = keys.div_ceil(1_000_000);
    for epoch in 0..first {
        let mut all: Vec<u64> = (epoch * keys / first..(epoch + 1) * keys / first).map(mixed).collect();
        write(&mut store, &id, epoch, &mut all, &[]);
        while !store.tidy(TIDY).unwrap() {}
        peak = peak.max(store.memory().bytes());
    }
    report("load and merge", keys, begun.seconds());
    let (mut reads, mut writes, mut dues, mut tidies) = (vec![], vec![], vec![], vec![]);
    for epoch in first..first + EPOCHS {
        let version = Version(Some(epoch - 1));
        let mut some: Vec<u64> =
            (0..touched).map(|number| mixed(mixed(epoch * touched + number) % keys)).collect();
        let begun = Watch::start();
        let timers = due(&store, &id, version, epoch as i64 * 1_000);
        dues.push((begun.seconds(), timers.len() as u64));
        some.sort_unstable();
        some.dedup();
        let prefixes: Vec<KeyPrefix> = some.iter().map(|hash| prefix(*hash)).collect();
        let begun = Watch::start();
        let found = read(&store, &id, version, &prefixes);
        reads.push((begun.seconds(), some.len() as u64));
        assert!(found >= some.len() * VALUE);
        let many = some.len() as u64;
        writes.push((write(&mut store, &id, epoch, &mut some, &timers), many));
        let begun = Watch::start();
        store.tidy(TIDY).unwrap();
        tidies.push((begun.seconds(), many));
        peak = peak.max(store.memory().bytes());
    }
    for (what, all) in [("read", reads), ("hold+advance", writes), ("due", dues), ("tidy", tidies)] {
        let worst = all.iter().map(|(seconds, _)| *seconds).fold(0.0, f64::max);
        let (seconds, number) =
            all.iter().fold((0.0, 0), |(s, n), (seconds, number)| (s + seconds, n + number));
        report(what, number, seconds);
        println!(
            "{:<16} {:>8.1} ms an epoch, {:.1} ms the worst",
            "",
            seconds * 1e3 / EPOCHS as f64,
            worst * 1e3
        );
    }
    println!("{:?}, {} MiB at most, {}", store.stats(&id).unwrap(), peak >> 20, resident());
}

/// Values of these keys, and a timer for some; without the timers that were due. Seconds that the store took.
fn write(
    store: &mut StateStore,
    id: &StateId,
    epoch: u64,
    hashes: &mut [u64],
    due: &[(i64, KeyPrefix)],
) -> f64 {
    hashes.sort_unstable();
    let (mut parts, mut fired) = (Vec::new(), due.to_vec());
    fired.sort_by(|one, other| (&one.1, one.0).cmp(&(&other.1, other.0)));
    let mut hashes = hashes.iter().copied().peekable();
    let mut fired = fired.into_iter().peekable();
    for partition in 0..PARTITIONS {
        let end = ((u128::from(partition) + 1) << 64).div_ceil(u128::from(PARTITIONS));
        let is_here = |hash: u64| u128::from(hash) < end;
        let mut entries: Vec<(EntryKey, Op)> = Vec::new();
        while let Some((expiry_ms, prefix)) = fired.next_if(|(_, prefix)| is_here(prefix.hash())) {
            entries.push((EntryKey::timer(&prefix, expiry_ms), Op::Delete));
        }
        while let Some(hash) = hashes.next_if(|hash| is_here(*hash)) {
            let prefix = prefix(hash);
            if hash % TIMERS == 0 {
                let expiry_ms = (epoch as i64 + 1 + (hash >> 20) as i64 % 60) * 1_000;
                entries.push((
                    EntryKey::timer(&prefix, expiry_ms),
                    Op::Put { expires_ms: 0, value: Bytes::new() },
                ));
            }
            let value = Bytes::from(vec![hash as u8; VALUE]);
            entries.push((EntryKey::new(&prefix, Slot(1), &[]), Op::Put { expires_ms: 0, value }));
        }
        entries.sort_by(|one, other| one.0.cmp(&other.0));
        entries.dedup_by(|one, other| one.0 == other.0);
        let mut builder = EntriesBuilder::new();
        entries.iter().for_each(|(key, op)| builder.push(key, op));
        let base = Version(epoch.checked_sub(1));
        let delta =
            Delta { epoch, base, now_ms: epoch as i64, catalog: Bytes::new(), entries: builder.finish() };
        parts.push(DeltaPart {
            partition,
            generation: Generation(1),
            ranges: partition_ranges(partition, PARTITIONS),
            delta,
        });
    }
    let begun = Watch::start();
    for part in parts {
        store.hold(id, &part).unwrap();
    }
    let tasks = (0..PARTITIONS).map(|partition| (partition, Generation(1))).collect();
    let point = CommitPoint { epoch, partitions: PARTITIONS, tasks };
    assert_eq!(store.advance(id, &point).unwrap(), Advanced::Done);
    begun.seconds()
}

fn read(store: &StateStore, id: &StateId, version: Version, keys: &[KeyPrefix]) -> usize {
    let (mut from, mut bytes) = (None, 0);
    loop {
        let Read::Entries { entries, next, .. } =
            store.read(id, version, keys, from.as_ref(), 0, &Limits::whole(PAGE)).unwrap()
        else {
            panic!("not read")
        };
        bytes += black_box(entries).as_bytes().len();
        from = next;
        if from.is_none() {
            return bytes;
        }
    }
}

/// Timers that are due, partition by partition.
fn due(store: &StateStore, id: &StateId, version: Version, until_ms: i64) -> Vec<(i64, KeyPrefix)> {
    let mut all = Vec::new();
    let step = u64::MAX / u64::from(PARTITIONS) + 1;
    for first in (0..u64::from(PARTITIONS)).map(|partition| partition * step) {
        let hashes = first..=first + (step - 1);
        match store.due(id, version, &hashes, until_ms, None, usize::MAX).unwrap() {
            Due::Timers { timers, .. } => all.extend(timers),
            other => panic!("{other:?}"),
        }
    }
    all
}

fn prefix(hash: u64) -> KeyPrefix {
    debug_assert!(Range::of(hash).0 == (hash >> 56) as u8);
    KeyPrefix::new(hash, &hash.to_le_bytes())
}

fn report(what: &str, keys: u64, seconds: f64) {
    let nanos = seconds * 1e9 / keys.max(1) as f64;
    println!("{what:<16} {:>10.0} keys/s, {nanos:.0} ns each", keys as f64 / seconds);
}

/// The processor's time from here on.
struct Watch(f64);

impl Watch {
    fn start() -> Self {
        Self(Self::now())
    }

    fn seconds(&self) -> f64 {
        Self::now() - self.0
    }

    fn now() -> f64 {
        let all = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
        all.split_whitespace().next().unwrap().parse::<f64>().unwrap() / 1e9
    }
}

/// What the process takes, by the system's word.
fn resident() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or_default();
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A hash of its own for each number.
fn mixed(number: u64) -> u64 {
    let mixed =
        (number ^ (number >> 30)).wrapping_add(0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
