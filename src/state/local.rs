//! State that one process keeps for itself: of a batch query, which ends with its task, or of tests.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::delta::{CommitPoint, Delta, DeltaPart};
use super::entries::Entries;
use super::key::{EntryKey, KeyPrefix, RangeSet, StateId, Version, partition_hashes, partition_ranges};
use super::reading::{Due, Limits, Read};
use super::store::{Advanced, StateStore};
use super::view::{Backend, Begun, Loaded};
use crate::error::{Error, Result};
use crate::id::Generation;

/// Bytes of entries that are read at a time.
const PAGE_BYTES: u64 = 4 << 20;
/// Timers that are read at a time.
const TIMERS_MAX: usize = 1 << 16;

/// Nothing to begin with, and nothing is kept.
#[derive(Debug, Clone)]
pub struct Nothing(pub Begun);

impl Backend for Nothing {
    fn begin(&mut self) -> Result<Begun> {
        Ok(self.0.clone())
    }

    fn read(&mut self, _keys: &[KeyPrefix], _part: u64) -> Result<Loaded> {
        Ok(Loaded::default())
    }

    fn read_on(
        &mut self,
        _key: &KeyPrefix,
        _from: &EntryKey,
        _until: &Bytes,
        _bytes: u64,
    ) -> Result<(Entries, Option<EntryKey>)> {
        Ok(Default::default())
    }

    fn due(&mut self, _until_ms: i64) -> Result<Vec<(i64, KeyPrefix)>> {
        Ok(Vec::new())
    }

    fn write(&mut self, _delta: Delta) -> Result<()> {
        Ok(())
    }
}

/// States that are kept from task to task in one process.
#[derive(Debug, Clone, Default)]
pub struct LocalStates(Arc<Mutex<States>>);

#[derive(Debug, Default)]
struct States {
    store: StateStore,
    /// By state and epoch, partitions of which a delta was written, with the attempt whose it is.
    written: BTreeMap<(StateId, u64), Written>,
}

#[derive(Debug, Default)]
struct Written {
    partitions: u32,
    tasks: BTreeMap<u32, Generation>,
}

impl LocalStates {
    /// None yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes what was written in an epoch the version of a state.
    ///
    /// # Errors
    /// [`Error::Misuse`] if a partition wrote nothing.
    pub fn commit(&self, id: &StateId, epoch: u64) -> Result<()> {
        let mut states = self.lock();
        let nothing =
            || Error::Misuse { what: format!("nothing was written of state {id} in epoch {epoch}") };
        let written = states.written.remove(&(id.clone(), epoch)).ok_or_else(nothing)?;
        let tasks = written.tasks.into_iter().collect();
        match states.store.advance(id, &CommitPoint { epoch, partitions: written.partitions, tasks })? {
            Advanced::Done | Advanced::Known => Ok(()),
            Advanced::Lacks { partition, .. } => Err(Error::Misuse {
                what: format!("partition {partition} of state {id} wrote nothing in epoch {epoch}"),
            }),
            Advanced::Behind(version) => Err(Error::Misuse {
                what: format!("state {id} is at version {version}, behind epoch {epoch}"),
            }),
        }
    }

    /// What a state's tasks read.
    #[must_use]
    pub fn version(&self, id: &StateId) -> Version {
        self.lock().store.held(id).map_or(Version::NONE, |(version, _)| version)
    }

    /// A state as it is now.
    #[cfg(test)]
    pub(crate) fn view(&self, id: &StateId) -> Option<super::reading::View> {
        self.lock().store.view(id)
    }

    /// A task of a state; the rest of what it is told is at hand.
    #[must_use]
    pub fn task(&self, id: StateId, (partition, partitions): (u32, u32), told: Begun) -> LocalTask {
        LocalTask { states: self.clone(), id, partition, partitions, begun: told }
    }

    fn lock(&self) -> MutexGuard<'_, States> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One task whose state is kept in this process.
#[derive(Debug)]
pub struct LocalTask {
    states: LocalStates,
    id: StateId,
    partition: u32,
    partitions: u32,
    begun: Begun,
}

impl LocalTask {
    /// Some entries, where what was left out begins, and where to go on.
    fn page(
        &self,
        keys: &[KeyPrefix],
        from: Option<&EntryKey>,
        limits: &Limits,
    ) -> Result<(Entries, Vec<EntryKey>, Option<EntryKey>)> {
        let (version, now_ms) = (self.begun.version, self.begun.now_ms);
        match self.states.lock().store.read(&self.id, version, keys, from, now_ms, limits)? {
            Read::Entries { entries, cut, next } => Ok((entries, cut, next)),
            Read::Behind(version) => Err(self.moved(version)),
            Read::NotHeld(_) => Ok(Default::default()),
        }
    }

    /// What is read while the task runs is of one version: a commit in between is refused.
    fn moved(&self, version: Version) -> Error {
        Error::Misuse {
            what: format!("state {} went from version {} to {version}", self.id, self.begun.version),
        }
    }
}

impl Backend for LocalTask {
    fn begin(&mut self) -> Result<Begun> {
        let mut states = self.states.lock();
        let version = states.store.held(&self.id).map_or(Version::NONE, |(version, _)| version);
        states.store.begin(&self.id, RangeSet::ALL, version)?;
        self.begun.version = version;
        self.begun.catalog = states.store.catalog(&self.id).unwrap_or_default();
        Ok(self.begun.clone())
    }

    fn read(&mut self, keys: &[KeyPrefix], part: u64) -> Result<Loaded> {
        let (mut all, mut from) = (Loaded::default(), None);
        let limits = Limits { part, ..Limits::whole(PAGE_BYTES) };
        loop {
            let (entries, cut, next) = self.page(keys, from.as_ref(), &limits)?;
            all.entries.push(entries);
            all.cut.extend(cut);
            from = next;
            if from.is_none() {
                return Ok(all);
            }
        }
    }

    fn read_on(
        &mut self,
        key: &KeyPrefix,
        from: &EntryKey,
        until: &Bytes,
        bytes: u64,
    ) -> Result<(Entries, Option<EntryKey>)> {
        let limits = Limits { until: Some(until.clone()), ..Limits::whole(bytes) };
        let (entries, _, next) = self.page(std::slice::from_ref(key), Some(from), &limits)?;
        Ok((entries, next))
    }

    fn due(&mut self, until_ms: i64) -> Result<Vec<(i64, KeyPrefix)>> {
        let states = self.states.lock();
        let hashes = partition_hashes(self.partition, self.partitions);
        let mut all: Vec<(i64, KeyPrefix)> = Vec::new();
        loop {
            let version = self.begun.version;
            match states.store.due(&self.id, version, &hashes, until_ms, all.last(), TIMERS_MAX)? {
                Due::Timers { timers, more } => {
                    all.extend(timers);
                    if !more {
                        return Ok(all);
                    }
                }
                Due::Behind(version) => return Err(self.moved(version)),
                Due::NotHeld(_) => return Ok(all),
            }
        }
    }

    fn write(&mut self, delta: Delta) -> Result<()> {
        let mut states = self.states.lock();
        let epoch = delta.epoch;
        let written = states.written.entry((self.id.clone(), epoch)).or_default();
        written.partitions = self.partitions;
        let last = written.tasks.get(&self.partition).copied();
        let generation = last.unwrap_or(Generation::NONE).next();
        written.tasks.insert(self.partition, generation);
        let ranges = partition_ranges(self.partition, self.partitions);
        let part = DeltaPart { partition: self.partition, generation, ranges, delta };
        states.store.hold(&self.id, &part).map(drop)
    }
}
