//! What is true: a map of each version.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use super::super::key::ordered;
use super::*;

/// One thing that a task writes.
#[derive(Debug, Clone)]
pub(super) struct Write {
    pub(super) key: u8,
    pub(super) slot: u16,
    pub(super) op: u8,
    pub(super) sub: i64,
    pub(super) expires_ms: i64,
    pub(super) value: u8,
}

/// Hashes that are near each other, and at borders; some are equal.
pub(super) fn hash_of(key: u8) -> u64 {
    let range = u64::from([0_u8, 1, 2, 3, 85, 86, 127, 128, 200, 255][usize::from(key) % 10]);
    let within = [0, 1, u64::MAX >> 8][usize::from(key / 7) % 3];
    range << 56 | within
}

pub(super) fn key_of(key: u8) -> Vec<u8> {
    vec![b'k'; usize::from(key % 5) + 1].into_iter().chain([key]).collect()
}

pub(super) fn partition_of_key(key: u8, partitions: u32) -> u32 {
    crate::exchange::partition_of(hash_of(key), partitions).0
}

/// The delta of a task that writes this.
pub(super) fn delta_of(epoch: u64, base: Version, now_ms: i64, writes: &[&Write]) -> Delta {
    // What is cleared, and what becomes of each entry.
    let mut all: BTreeMap<Bytes, (bool, Option<Op>)> = BTreeMap::new();
    for write in writes {
        let prefix = KeyPrefix::new(hash_of(write.key), &key_of(write.key));
        let slot = Slot(write.slot);
        let sub = if write.slot == 1 { Vec::new() } else { ordered(write.sub).to_vec() };
        let key = EntryKey::new(&prefix, slot, &sub).as_bytes().clone();
        match write.op {
            0 => {
                let slot = EntryKey::new(&prefix, slot, &[]).as_bytes().clone();
                all.retain(|key, _| !key.starts_with(&slot));
                all.insert(slot, (true, None));
            }
            1 => all.entry(key).or_default().1 = Some(Op::Delete),
            _ => {
                let value = Bytes::from(vec![write.value; usize::from(write.value)]);
                let is_timer = slot == Slot::TIMERS;
                let put = Op::Put {
                    expires_ms: if is_timer { 0 } else { write.expires_ms },
                    value: if is_timer { Bytes::new() } else { value },
                };
                all.entry(key).or_default().1 = Some(put);
            }
        }
    }
    let mut entries = EntriesBuilder::new();
    for (key, (clears, op)) in all {
        if clears {
            entries.push_raw(&key, &Op::Clear);
        }
        if let Some(op) = op {
            entries.push_raw(&key, &op);
        }
    }
    Delta { epoch, base, now_ms, catalog: Bytes::from(epoch.to_string()), entries: entries.finish() }
}

type Map = BTreeMap<EntryKey, (i64, Bytes)>;

/// All versions; of each the latest clock and the entries.
#[derive(Debug)]
pub(super) struct Model {
    versions: Vec<(Version, i64, Map)>,
    map: Map,
}

impl Default for Model {
    fn default() -> Self {
        Self { versions: vec![(Version::NONE, i64::MIN, Map::new())], map: Map::new() }
    }
}

impl Model {
    pub(super) fn version(&self) -> Version {
        self.versions.last().unwrap().0
    }

    /// Epochs in which the operator does not run are left out.
    pub(super) fn next_epoch(&self) -> u64 {
        self.version().0.map_or(3, |epoch| epoch + 1 + epoch % 3)
    }

    pub(super) fn write(&mut self, delta: &Delta) {
        for entry in delta.entries.iter().map(|entry| entry.unwrap()) {
            match entry.op {
                Op::Put { expires_ms, value } => drop(self.map.insert(entry.key, (expires_ms, value))),
                Op::Delete => drop(self.map.remove(&entry.key)),
                Op::Clear => self.map.retain(|key, _| !key.as_bytes().starts_with(entry.key.as_bytes())),
            }
        }
    }

    pub(super) fn commit(&mut self, now_ms: i64) {
        let now_ms = now_ms.max(self.versions.last().unwrap().1);
        self.versions.push((Version(Some(self.next_epoch())), now_ms, self.map.clone()));
    }

    pub(super) fn keys(&self, keys: u8) -> Vec<KeyPrefix> {
        let mut all: Vec<_> = (0..keys).map(|key| KeyPrefix::new(hash_of(key), &key_of(key))).collect();
        all.sort();
        all
    }

    pub(super) fn read(&self, version: Version, keys: &[KeyPrefix], now_ms: i64) -> Vec<Entry> {
        let (last_ms, map) = self.at(version);
        let now_ms = now_ms.max(last_ms);
        let is_wanted = |(key, (expires_ms, _)): &(&EntryKey, &(i64, Bytes))| {
            keys.contains(&key.prefix()) && (*expires_ms == 0 || *expires_ms > now_ms)
        };
        let entry = |(key, (expires_ms, value)): (&EntryKey, &(i64, Bytes))| Entry {
            key: key.clone(),
            op: Op::Put { expires_ms: *expires_ms, value: value.clone() },
        };
        map.iter().filter(is_wanted).map(entry).collect()
    }

    pub(super) fn due(
        &self,
        version: Version,
        hashes: &RangeInclusive<u64>,
        until_ms: i64,
    ) -> Vec<(i64, KeyPrefix)> {
        let timer = |key: &EntryKey| Some((key.expiry_ms()?, key.prefix()));
        let is_due = |(expiry_ms, prefix): &(i64, KeyPrefix)| {
            *expiry_ms <= until_ms && hashes.contains(&prefix.hash())
        };
        let mut timers: Vec<_> = self.at(version).1.keys().filter_map(timer).filter(is_due).collect();
        timers.sort();
        timers
    }

    pub(super) fn next_due(&self, version: Version) -> Option<i64> {
        self.at(version).1.keys().filter_map(EntryKey::expiry_ms).min()
    }

    fn at(&self, version: Version) -> (i64, &Map) {
        let at = self.versions.iter().find(|(known, ..)| *known == version);
        at.map(|(_, now_ms, map)| (*now_ms, map)).unwrap()
    }
}
