//! Tasks with state, for the tests of it: counters, each of a key.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use clonos::agent::state::messages::{AboutState, Found, Wanted};
use clonos::edge::net::client::Client;
use clonos::error::{Error, Result};
use clonos::exchange::partition_of;
use clonos::id::Epoch;
use clonos::state::{Delta, Entries, EntriesBuilder, EntryKey, KeyPrefix, Limits, Op, Slot, Version};

use crate::world::{open_as, task_in};

/// Numbers attempts of tests.
static ATTEMPTS: AtomicU64 = AtomicU64::new(1_000);
/// The clock of every epoch, in milliseconds.
pub const NOW_MS: i64 = 1_000_000;
const PIECE: usize = 1 << 20;

/// A task whose state is open.
pub struct Counting {
    pub session: u64,
    pub version: Version,
    pub epoch: u64,
    pub partition: u32,
    pub partitions: u32,
    pub catalog: Bytes,
}

pub fn key(number: u64) -> KeyPrefix {
    KeyPrefix::new(number.wrapping_mul(0x9e37_79b9_7f4a_7c15), &number.to_be_bytes())
}

fn number_of(key: &KeyPrefix) -> u64 {
    u64::from_be_bytes(key.key().try_into().unwrap())
}

/// Those of some keys that are in a partition.
pub fn in_partition(numbers: impl IntoIterator<Item = u64>, partition: u32, partitions: u32) -> Vec<u64> {
    numbers
        .into_iter()
        .filter(|number| partition_of(key(*number).hash(), partitions).0 == partition)
        .collect()
}

impl Counting {
    /// Opens a task of an epoch, as another attempt each time.
    pub fn begin(worker: &mut Client, epoch: u64, partition: u32, partitions: u32) -> Result<Self> {
        let attempt = ATTEMPTS.fetch_add(1, Ordering::Relaxed);
        let opened = open_as(worker, &task_in(Epoch::Batch(epoch), partition), 100 + partitions, attempt)?;
        Self::begin_in(worker, opened.session, epoch, (partition, partitions))
    }

    /// Opens the state of a task that is open.
    pub fn begin_in(
        worker: &mut Client,
        session: u64,
        epoch: u64,
        (partition, partitions): (u32, u32),
    ) -> Result<Self> {
        let wanted = Wanted::Begin { partition, partitions };
        let found = worker.state(AboutState { session, wanted })?;
        let Found::Begun { version, catalog, .. } = found else { panic!("{found:?}") };
        Ok(Self { session, version, epoch, partition, partitions, catalog })
    }

    pub fn want(&self, worker: &mut Client, wanted: Wanted) -> Result<Found> {
        worker.state(AboutState { session: self.session, wanted })
    }

    /// The counters of some keys; those that have none are left out.
    pub fn read(&self, worker: &mut Client, numbers: &[u64]) -> Result<BTreeMap<u64, u64>> {
        let mut keys: Vec<KeyPrefix> = numbers.iter().copied().map(key).collect();
        keys.sort();
        let keys: Vec<Bytes> = keys.iter().map(|key| key.as_bytes().clone()).collect();
        let (mut counters, mut from, mut last) = (BTreeMap::new(), None, None);
        loop {
            let limits = Limits::whole(u64::MAX);
            let Found::Entries { entries, next, .. } =
                self.want(worker, Wanted::Read { keys: keys.clone(), from: from.clone(), limits })?
            else {
                panic!("no entries")
            };
            for entry in Entries::from_bytes(entries).iter() {
                let entry = entry.unwrap();
                assert!(last.is_none_or(|last| last < entry.key), "they are in order");
                let Op::Put { value, .. } = &entry.op else { panic!("{entry:?}") };
                let count = u64::from_be_bytes(value[..8].try_into().unwrap());
                counters.insert(number_of(&entry.key.prefix()), count);
                last = Some(entry.key);
            }
            if next.is_none() {
                return Ok(counters);
            }
            assert!(next > from, "it gets on");
            from = next;
        }
    }

    pub fn delta(&self, counters: &BTreeMap<u64, u64>, padding: usize) -> Delta {
        let mut changes: Vec<(KeyPrefix, u64)> =
            counters.iter().map(|(number, count)| (key(*number), *count)).collect();
        changes.sort();
        let mut entries = EntriesBuilder::new();
        for (key, count) in changes {
            let mut value = count.to_be_bytes().to_vec();
            value.resize(8 + padding, 7);
            let op = Op::Put { expires_ms: 0, value: value.into() };
            entries.push(&EntryKey::new(&key, Slot(1), b""), &op);
        }
        let catalog = Bytes::from_static(b"one counter");
        Delta { epoch: self.epoch, base: self.version, now_ms: NOW_MS, catalog, entries: entries.finish() }
    }

    pub fn write_delta(&self, worker: &mut Client, delta: &Delta) -> Result<()> {
        let bytes = delta.encode();
        let pieces: Vec<_> = (0..bytes.len()).step_by(PIECE).collect();
        for at in &pieces {
            let piece = bytes.slice(*at..bytes.len().min(at + PIECE));
            let last = Some(at) == pieces.last();
            let found = self.want(worker, Wanted::Write { piece, last })?;
            assert!(matches!(found, Found::Written));
        }
        Ok(())
    }

    pub fn write(&self, worker: &mut Client, counters: &BTreeMap<u64, u64>) -> Result<()> {
        self.write_delta(worker, &self.delta(counters, 0))
    }

    /// Counts each of some keys that are in its partition once more.
    pub fn count(&self, worker: &mut Client, numbers: impl IntoIterator<Item = u64>) -> Result<()> {
        let numbers = in_partition(numbers, self.partition, self.partitions);
        let before = self.read(worker, &numbers)?;
        let after = numbers.into_iter().map(|number| (number, before.get(&number).copied().unwrap_or(0) + 1));
        self.write(worker, &after.collect())
    }
}

/// Runs all tasks of an epoch: each key is counted once more. The version that was read.
pub fn count_all(
    worker: &mut Client,
    epoch: u64,
    partitions: u32,
    numbers: std::ops::Range<u64>,
) -> Result<Version> {
    let mut version = Version::NONE;
    for partition in 0..partitions {
        let task = Counting::begin(worker, epoch, partition, partitions)?;
        let counted = task.count(worker, numbers.clone());
        version = task.version;
        crate::world::close(worker, task.session);
        counted?;
    }
    Ok(version)
}

/// What an epoch reads of some keys, in all its partitions.
pub fn counters(
    worker: &mut Client,
    epoch: u64,
    partitions: u32,
    numbers: std::ops::Range<u64>,
) -> Result<BTreeMap<u64, u64>> {
    let mut all = BTreeMap::new();
    for partition in 0..partitions {
        let task = Counting::begin(worker, epoch, partition, partitions)?;
        let read = task.read(worker, &in_partition(numbers.clone(), partition, partitions));
        crate::world::close(worker, task.session);
        all.extend(read?);
    }
    Ok(all)
}

/// All keys have this count.
pub fn all_are(numbers: std::ops::Range<u64>, count: u64) -> BTreeMap<u64, u64> {
    numbers.map(|number| (number, count)).collect()
}

/// The error's condition.
pub fn condition<T>(result: Result<T>) -> &'static str {
    result.map(|_| ()).map_err(|error: Error| error.condition()).expect_err("it is refused")
}
