//! The store against a map of each version.

mod commits;
mod damage;
mod memory;
mod model;

use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;

use self::model::{Model, Write, delta_of, hash_of, key_of, partition_of_key};
use super::*;
use crate::error::Error;
use crate::id::Generation;

const KEYS: u8 = 24;

/// What happens next.
#[derive(Debug, Clone)]
enum Action {
    /// An epoch runs in so many partitions: what it writes, how far its clock goes on or back, attempts that do not
    /// count, and whether deltas come in halves.
    Epoch { partitions: u32, writes: Vec<Write>, clock_ms: i64, losers: u8, in_halves: bool },
    /// The agents hear of an epoch that was committed.
    Commit,
    /// Work in the background.
    Tidy(u16),
    /// The second agent, or the first, gives up ranges and is given them anew by the other one; the other epoch is
    /// committed before it has all.
    Copy { to_first: bool, ranges: Vec<u8>, page: u16, commits_amid: bool },
    /// What is read is right, at this time.
    Read { now_ms: i64, page: u16 },
}

fn write() -> impl Strategy<Value = Write> {
    (0..KEYS, 0..4_u16, 0..6_u8, 0..5_i64, prop_oneof![Just(0), 1..60_i64], 0..40_u8)
        .prop_map(|(key, slot, op, sub, expires_ms, value)| Write { key, slot, op, sub, expires_ms, value })
}

fn action() -> impl Strategy<Value = Action> {
    let writes = prop::collection::vec(write(), 0..40);
    let epoch =
        (prop::sample::select(vec![1_u32, 3, 3, 7, 7, 300]), writes, -5..20_i64, 0..4_u8, any::<bool>());
    let epoch = epoch.prop_map(|(partitions, writes, clock_ms, losers, in_halves)| Action::Epoch {
        partitions,
        writes,
        clock_ms,
        losers,
        in_halves,
    });
    let ranges = prop::collection::vec(0..KEYS, 1..6);
    let copy = (any::<bool>(), ranges, 1..300_u16, any::<bool>());
    let copy = copy.prop_map(|(to_first, keys, page, commits_amid)| {
        let ranges = keys.into_iter().map(|key| (hash_of(key) >> 56) as u8).collect();
        Action::Copy { to_first, ranges, page, commits_amid }
    });
    prop_oneof![
        4 => epoch,
        3 => Just(Action::Commit),
        2 => (1..2_000_u16).prop_map(Action::Tidy),
        1 => copy,
        2 => (0..80_i64, 1..300_u16).prop_map(|(now_ms, page)| Action::Read { now_ms, page }),
    ]
}

fn id() -> StateId {
    StateId { query: "query".into(), operator: "operator".into() }
}

/// Two agents, and what is true.
struct World {
    model: Model,
    stores: [StateStore; 2],
    now_ms: i64,
    /// Epochs that are committed and of which the agents did not hear.
    unheard: Vec<CommitPoint>,
}

impl World {
    fn new(budgets: [Option<u64>; 2]) -> Self {
        let stores = budgets.map(|budget| {
            let mut store = budget
                .map_or_else(StateStore::new, |bytes| StateStore::with_files(bytes, Arc::new(MemoryFiles)));
            store.begin(&id(), RangeSet::ALL, Version::NONE).unwrap();
            store
        });
        Self { model: Model::default(), stores, now_ms: 0, unheard: Vec::new() }
    }

    fn epoch(&mut self, partitions: u32, writes: &[Write], losers: u8, in_halves: bool) {
        let (base, epoch) = (self.model.version(), self.model.next_epoch());
        let mut tasks = Vec::new();
        for partition in 0..partitions {
            let of_partition = |write: &&Write| partition_of_key(write.key, partitions) == partition;
            let writes: Vec<&Write> = writes.iter().filter(of_partition).collect();
            let delta = delta_of(epoch, base, self.now_ms, &writes);
            // Attempts before and after the one that counts did something else, or the same.
            let first = u64::from(losers & 1);
            for generation in 0..=first + u64::from(losers >> 1) {
                let delta = if generation == first || writes.len().is_multiple_of(2) {
                    delta.clone()
                } else {
                    delta_of(
                        epoch,
                        base,
                        self.now_ms + 1,
                        &writes.iter().skip(1).copied().collect::<Vec<_>>(),
                    )
                };
                self.hold(partition, partitions, Generation(generation + 1), &delta, in_halves);
            }
            tasks.push((partition, Generation(first + 1)));
            self.model.write(&delta);
        }
        self.model.commit(self.now_ms);
        self.unheard.push(CommitPoint { epoch, partitions, tasks });
    }

    fn hold(
        &mut self,
        partition: u32,
        partitions: u32,
        generation: Generation,
        delta: &Delta,
        in_halves: bool,
    ) {
        let all = partition_ranges(partition, partitions);
        let half: RangeSet = all.iter().filter(|range| range.0 % 2 == 0).collect();
        let sets = if in_halves { vec![half, all.without(&half), all] } else { vec![all, all] };
        for store in &mut self.stores {
            for (number, ranges) in sets.iter().enumerate() {
                let delta = delta.of(ranges).unwrap();
                let part = DeltaPart { partition, generation, ranges: *ranges, delta };
                let held = store.hold(&id(), &part).unwrap();
                assert!(held == Held::Known || number + 1 < sets.len());
                let older = DeltaPart { generation: Generation(generation.0 - 1), ..part };
                assert!(
                    matches!(store.hold(&id(), &older), Err(Error::Fenced { .. })) || held == Held::Known
                );
            }
        }
    }

    fn commit(&mut self) {
        if self.unheard.is_empty() {
            return;
        }
        let point = self.unheard.remove(0);
        for store in &mut self.stores {
            for later in &self.unheard {
                assert!(matches!(store.advance(&id(), later).unwrap(), Advanced::Behind(_)));
            }
            assert_eq!(store.advance(&id(), &point).unwrap(), Advanced::Done);
            assert_eq!(store.advance(&id(), &point).unwrap(), Advanced::Known);
        }
    }

    fn copy(&mut self, to_first: bool, ranges: &RangeSet, page: u16, commits_amid: bool) {
        let (to, from) = if to_first { (0, 1) } else { (1, 0) };
        let view = self.stores[from].view(&id()).unwrap();
        // As if the ranges of a lost agent were taken over: something of the state always stays.
        self.stores[to].drop_ranges(&id(), ranges);
        self.stores[to].fill(&id(), *ranges, view.version()).unwrap();
        for part in self.stores[from].pending(&id(), ranges).unwrap() {
            self.stores[to].adopt(&id(), &part).unwrap();
        }
        let key = KeyPrefix::new(hash_of(0), &key_of(0));
        for range in ranges.iter() {
            let mut next = None;
            loop {
                let page = view.page(range, next.as_ref(), usize::from(page)).unwrap();
                assert!(self.stores[to].filling(&id()).contains(range));
                let read = self.stores[to].read(
                    &id(),
                    self.stores[to].held(&id()).unwrap().0,
                    std::slice::from_ref(&key),
                    None,
                    0,
                    &Limits::whole(9),
                );
                let is_held = !self.stores[to].filling(&id()).contains(Range::of(key.hash()));
                assert_eq!(matches!(read.unwrap(), Read::Entries { .. }), is_held);
                self.stores[to].install(&id(), &page).unwrap();
                next = page.next;
                if commits_amid {
                    self.commit();
                    self.stores[to].tidy(500).unwrap();
                }
                if next.is_none() {
                    break;
                }
            }
        }
        assert!(self.stores[to].filling(&id()).is_empty());
    }

    fn check(&self, now_ms: i64, page: u16) {
        let all: Vec<KeyPrefix> = self.model.keys(KEYS);
        for store in &self.stores {
            let (version, held) = store.held(&id()).unwrap();
            assert_eq!(held, RangeSet::ALL);
            for keys in [all.clone(), all.iter().step_by(3).cloned().collect()] {
                let mut found = Vec::new();
                let mut from = None;
                loop {
                    let read = store.read(
                        &id(),
                        version,
                        &keys,
                        from.as_ref(),
                        now_ms,
                        &Limits::whole(u64::from(page)),
                    );
                    let Read::Entries { entries, next, .. } = read.unwrap() else { panic!("not read") };
                    found.extend(entries.iter().map(|entry| entry.unwrap()));
                    from = next;
                    if from.is_none() {
                        break;
                    }
                }
                assert_eq!(found, self.model.read(version, &keys, now_ms));
                self.check_parts(store, (version, now_ms), &keys, page);
            }
            self.check_timers(store, version, usize::from(page));
            assert_eq!(store.next_due(&id()).unwrap(), self.model.next_due(version));
        }
    }

    /// What is read without the rest of lists and maps, and then that, is all there is.
    fn check_parts(
        &self,
        store: &StateStore,
        (version, now_ms): (Version, i64),
        keys: &[KeyPrefix],
        page: u16,
    ) {
        // Also where less is read at a time than is left out.
        let limits = Limits { part: u64::from(page % 90), ..Limits::whole(u64::from(page % 257)) };
        let (mut found, mut cuts, mut from) = (Vec::new(), Vec::new(), None);
        loop {
            let read = store.read(&id(), version, keys, from.as_ref(), now_ms, &limits);
            let Read::Entries { entries, cut, next } = read.unwrap() else { panic!("not read") };
            found.extend(entries.iter().map(|entry| entry.unwrap()));
            cuts.extend(cut);
            from = next;
            if from.is_none() {
                break;
            }
        }
        assert!(cuts.is_sorted());
        for cut in cuts {
            let is_of = |key: &EntryKey| (key.prefix(), key.slot()) == (cut.prefix(), cut.slot());
            assert!(found.iter().any(|entry| is_of(&entry.key)), "one entry at least is there");
            assert!(!found.iter().any(|entry| is_of(&entry.key) && entry.key >= cut));
            let read =
                store.read(&id(), version, &[cut.prefix()], Some(&cut), now_ms, &Limits::whole(u64::MAX));
            let Read::Entries { entries, .. } = read.unwrap() else { panic!("not read") };
            let rest = entries.iter().map(|entry| entry.unwrap()).filter(|entry| is_of(&entry.key));
            found.extend(rest);
        }
        found.sort_by(|one, other| one.key.cmp(&other.key));
        assert_eq!(found, self.model.read(version, keys, now_ms));
    }

    fn check_timers(&self, store: &StateStore, version: Version, page: usize) {
        for hashes in [0..=u64::MAX, hash_of(3)..=hash_of(20).max(hash_of(3)), 1 << 63..=u64::MAX] {
            for until_ms in [1, 3, 100] {
                let mut found: Vec<(i64, KeyPrefix)> = Vec::new();
                loop {
                    let due = store.due(&id(), version, &hashes, until_ms, found.last(), 1 + page / 20);
                    let Due::Timers { timers, more } = due.unwrap() else { panic!("not read") };
                    found.extend(timers);
                    if !more {
                        break;
                    }
                }
                assert_eq!(found, self.model.due(version, &hashes, until_ms));
            }
        }
    }
}

fn budget() -> impl Strategy<Value = Option<u64>> {
    prop_oneof![Just(None), Just(Some(0)), Just(Some(3_000)), Just(Some(20_000))]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn two_agents_have_what_a_map_has(
        budgets in [budget(), budget()], actions in prop::collection::vec(action(), 1..40),
    ) {
        let mut world = World::new(budgets);
        for action in actions {
            match action {
                Action::Epoch { partitions, writes, clock_ms, losers, in_halves } => {
                    world.now_ms += clock_ms;
                    world.epoch(partitions, &writes, losers, in_halves);
                }
                Action::Commit => world.commit(),
                Action::Tidy(bytes) => {
                    for store in &mut world.stores {
                        store.tidy(bytes.into()).unwrap();
                    }
                }
                Action::Copy { to_first, ranges, page, commits_amid } => {
                    let ranges = ranges.into_iter().map(Range).collect();
                    world.copy(to_first, &ranges, page, commits_amid);
                }
                Action::Read { now_ms, page } => world.check(now_ms, page),
            }
        }
        while !world.unheard.is_empty() {
            world.commit();
        }
        world.check(world.now_ms, 50);
        for store in &mut world.stores {
            while !store.tidy(1_000).unwrap() {}
        }
        world.check(world.now_ms, 200);
    }
}
