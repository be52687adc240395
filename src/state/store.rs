//! All states that one agent holds.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use bytes::Bytes;

use super::delta::{CommitPoint, DeltaPart};
use super::files::{Files, RunFile};
use super::held::State;
use super::key::{EntryKey, KeyPrefix, Range, RangeSet, StateId, Version};
use super::memory::Memory;
use super::reading::{Due, Limits, Page, Read, View};
use crate::error::{Error, Result};
use crate::id::Generation;

/// Bytes that a commit merges at a time when there are too many runs.
const STEP: u64 = 4 << 20;

/// Bytes in memory below which a run stays there.
const SPILLED_MIN: u64 = if cfg!(test) { 1 } else { 4 << 10 };
/// Bytes of a run beyond which it has a file of its own.
const OWN_FILE_MIN: u64 = if cfg!(test) { 500 } else { 1 << 20 };
/// Bytes after which runs that share a file begin another: its space is free when all of them are gone.
const SHARED_FILE_MAX: u64 = if cfg!(test) { 1_000 } else { 16 << 20 };
/// Merged runs that are less than such a part of the memory are written there first: they are the newest.
const MERGED_PART: u64 = 8;

/// What became of a delta.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// It is pending.
    Taken,
    /// It was already, or nothing of it is in ranges that are held.
    Known,
}

/// What became of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advanced {
    /// The epoch is the version.
    Done,
    /// It was already, or a later one is.
    Known,
    /// The delta of this partition is not here, or not in all ranges that are held. Nothing has changed.
    Lacks {
        /// The partition.
        partition: u32,
        /// The ranges of it that are not.
        ranges: RangeSet,
    },
    /// The epoch was computed from a later version than is here: this. Nothing has changed.
    Behind(Version),
}

/// How large a state is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StateStats {
    /// Bytes of memory it takes.
    pub memory_bytes: u64,
    /// Bytes of its entries, wherever they are; without those that are pending.
    pub bytes: u64,
    /// Its entries, those that newer ones take the place of included.
    pub entries: u64,
    /// Runs that are looked into to find a key.
    pub runs: usize,
}

/// All states that one agent holds.
#[derive(Debug)]
pub struct StateStore {
    memory: Memory,
    memory_bytes_max: u64,
    files: Option<Arc<dyn Files>>,
    /// The file that small runs share, and how much is in it.
    shared: Option<(Arc<dyn RunFile>, u64)>,
    states: BTreeMap<StateId, State>,
}

impl StateStore {
    /// None yet, and all of them in memory.
    #[must_use]
    pub fn new() -> Self {
        Self {
            memory: Memory::default(),
            memory_bytes_max: u64::MAX,
            files: None,
            shared: None,
            states: BTreeMap::new(),
        }
    }

    /// None yet; in memory up to so many bytes, and in files beyond.
    #[must_use]
    pub fn with_files(memory_bytes: u64, files: Arc<dyn Files>) -> Self {
        Self { memory_bytes_max: memory_bytes, files: Some(files), ..Self::new() }
    }

    /// What counts the memory that all of it takes, and what is on its way there.
    #[must_use]
    pub const fn memory(&self) -> &Memory {
        &self.memory
    }

    /// How large a state is.
    #[must_use]
    pub fn stats(&self, id: &StateId) -> Option<StateStats> {
        self.states.get(id).map(State::stats)
    }

    /// States that are here.
    pub fn ids(&self) -> impl Iterator<Item = &StateId> {
        self.states.keys()
    }

    /// Begins to hold ranges, empty, at a version. Those that are held already stay as they are.
    ///
    /// # Errors
    /// [`Error::Misuse`] if the state is here at another version.
    pub fn begin(&mut self, id: &StateId, ranges: RangeSet, version: Version) -> Result<()> {
        self.at_version(id, version)?.begin(&ranges);
        Ok(())
    }

    /// Begins to hold ranges that were copied at a version: their deltas are taken from now on, their pages are to be
    /// installed, at any later version too, and they are held when the last one is. Those that are held already stay as
    /// they are.
    ///
    /// # Errors
    /// [`Error::Misuse`] if the state is here at another version.
    pub fn fill(&mut self, id: &StateId, ranges: RangeSet, version: Version) -> Result<()> {
        self.at_version(id, version)?.fill(&ranges, version);
        Ok(())
    }

    fn at_version(&mut self, id: &StateId, version: Version) -> Result<&mut State> {
        let state = self.states.entry(id.clone()).or_insert_with(|| State::new(version, &self.memory));
        if state.version() == version {
            return Ok(state);
        }
        let what =
            format!("state {id} is at version {} and cannot be held at {version} too", state.version());
        Err(Error::Misuse { what })
    }

    /// The version of a state, and the ranges of it that are held; `None` if nothing of it is here.
    #[must_use]
    pub fn held(&self, id: &StateId) -> Option<(Version, RangeSet)> {
        self.states.get(id).map(|state| (state.version(), state.held()))
    }

    /// Ranges of a state whose last page is not installed yet.
    #[must_use]
    pub fn filling(&self, id: &StateId) -> RangeSet {
        self.states.get(id).map_or(RangeSet::EMPTY, State::filling)
    }

    /// Forgets some ranges of a state; all of it, if those were all.
    pub fn drop_ranges(&mut self, id: &StateId, ranges: &RangeSet) {
        if let Some(state) = self.states.get_mut(id) {
            state.drop_ranges(ranges);
            if state.ours().is_empty() {
                self.states.remove(id);
            }
        }
    }

    /// Forgets a state.
    pub fn forget(&mut self, id: &StateId) {
        self.states.remove(id);
    }

    /// Keeps a delta until its epoch is committed.
    ///
    /// # Errors
    /// - [`Error::Fenced`]: a newer attempt's is here, or the epoch is committed.
    /// - [`Error::Misuse`]: nothing of the state is here, or the attempt had another delta before.
    /// - [`Error::CorruptState`]: its entries make no sense.
    /// - Those of files, if there is no room in memory.
    pub fn hold(&mut self, id: &StateId, part: &DeltaPart) -> Result<Held> {
        // It is there twice while it is taken.
        self.make_room(part.delta.entries.as_bytes().len() as u64)?;
        self.state_mut(id)?.hold(id, part)
    }

    /// Keeps a delta that another agent holds, which may be one of an attempt that is not the newest: it might be the
    /// one that counts.
    ///
    /// # Errors
    /// As [`Self::hold`], but for newer attempts.
    pub fn adopt(&mut self, id: &StateId, part: &DeltaPart) -> Result<Held> {
        self.make_room(part.delta.entries.as_bytes().len() as u64)?;
        self.state_mut(id)?.adopt(id, part)
    }

    /// Applies what is pending of a committed epoch, which is the version from then on. What else is pending of it
    /// and of those before is dropped.
    ///
    /// # Errors
    /// - [`Error::Misuse`]: nothing of the state is here.
    /// - [`Error::CorruptState`]: the epoch was computed from an older version, or not by all tasks from the same;
    ///   or a run is corrupt.
    /// - Those of files.
    ///
    /// After an error nothing has changed, and it can be tried again.
    pub fn advance(&mut self, id: &StateId, point: &CommitPoint) -> Result<Advanced> {
        while self.state_mut(id)?.is_untidy() && !self.tidy(STEP)? {}
        self.make_room(0)?;
        self.state_mut(id)?.advance(point)
    }

    /// Entries of some keys: see [`View::read`].
    ///
    /// # Errors
    /// As [`View::read`].
    pub fn read(
        &self,
        id: &StateId,
        version: Version,
        keys: &[KeyPrefix],
        from: Option<&EntryKey>,
        now_ms: i64,
        limits: &Limits,
    ) -> Result<Read> {
        match self.view(id) {
            Some(view) => view.read(version, keys, from, now_ms, limits),
            None => Ok(Read::NotHeld(keys.iter().map(|key| Range::of(key.hash())).collect())),
        }
    }

    /// Timers that are due: see [`View::due`].
    ///
    /// # Errors
    /// As [`View::due`].
    pub fn due(
        &self,
        id: &StateId,
        version: Version,
        hashes: &RangeInclusive<u64>,
        until_ms: i64,
        after: Option<&(i64, KeyPrefix)>,
        max: usize,
    ) -> Result<Due> {
        match self.view(id) {
            Some(view) => view.due(version, hashes, until_ms, after, max),
            None => Ok(Due::NotHeld(RangeSet::ALL)),
        }
    }

    /// When the first timer in the ranges that are held is due.
    ///
    /// # Errors
    /// As [`View::next_due`].
    pub fn next_due(&self, id: &StateId) -> Result<Option<i64>> {
        self.view(id).map_or(Ok(None), |view| view.next_due())
    }

    /// A state as it is now, to be read without holding up the store. It does not change, and what it needs is kept
    /// as long as it is there.
    #[must_use]
    pub fn view(&self, id: &StateId) -> Option<View> {
        self.states.get(id).map(State::view)
    }

    /// Some entries of a range: see [`View::page`]. Pages are of one version only if they come from one view.
    ///
    /// # Errors
    /// As [`View::page`].
    pub fn page(
        &self,
        id: &StateId,
        range: Range,
        from: Option<&EntryKey>,
        bytes_max: usize,
    ) -> Result<Page> {
        let missing = || Error::Misuse { what: format!("state {id} is not held") };
        self.view(id).ok_or_else(missing)?.page(range, from, bytes_max)
    }

    /// Takes a page of a range that is being filled, or is held at the page's version.
    ///
    /// # Errors
    /// - [`Error::Misuse`]: the range is not held at that version.
    /// - [`Error::CorruptState`]: the entries make no sense.
    /// - Those of files.
    pub fn install(&mut self, id: &StateId, page: &Page) -> Result<()> {
        self.make_room(page.entries.as_bytes().len() as u64)?;
        self.state_mut(id)?.install(page)
    }

    /// Deltas that are pending: epoch, partition, attempt.
    #[must_use]
    pub fn pending_names(&self, id: &StateId) -> Vec<(u64, u32, Generation)> {
        self.states.get(id).map_or_else(Vec::new, State::pending_names)
    }

    /// What is pending of an attempt's delta in some ranges, to be held elsewhere. The fewer ranges, the smaller.
    ///
    /// # Errors
    /// Those of files, and for runs that are corrupt.
    pub fn pending_parts(
        &self,
        id: &StateId,
        (epoch, partition, generation): (u64, u32, Generation),
        ranges: &RangeSet,
    ) -> Result<Vec<DeltaPart>> {
        let state = self.states.get(id);
        state
            .map_or_else(|| Ok(Vec::new()), |state| state.pending_parts(epoch, partition, generation, ranges))
    }

    /// All that is pending in some ranges.
    ///
    /// # Errors
    /// As [`Self::pending_parts`].
    pub fn pending(&self, id: &StateId, ranges: &RangeSet) -> Result<Vec<DeltaPart>> {
        let mut all = Vec::new();
        for name in self.pending_names(id) {
            all.extend(self.pending_parts(id, name, ranges)?);
        }
        Ok(all)
    }

    /// What the operator's slots are, by the newest delta that was applied.
    #[must_use]
    pub fn catalog(&self, id: &StateId) -> Option<Bytes> {
        self.states.get(id).and_then(State::catalog)
    }

    /// Makes runs fewer, for about so many bytes of work; whether there is no more to do. Without it, reading gets
    /// slower, and commits take the time when there are too many.
    ///
    /// # Errors
    /// Those of files, and for runs that are corrupt. What was being merged is merged anew the next time.
    pub fn tidy(&mut self, bytes: u64) -> Result<bool> {
        let (mut left, mut used) = (bytes, self.memory.bytes());
        let (files, max) = (self.files.clone(), self.memory_bytes_max);
        let mut file = |bytes: u64| match &files {
            Some(files) if bytes > max / MERGED_PART && used.saturating_add(bytes) > max => {
                files.create().map(Some)
            }
            _ => {
                used = used.saturating_add(bytes);
                Ok(None)
            }
        };
        for state in self.states.values_mut() {
            left = state.tidy(left, &mut file)?;
        }
        self.make_room(0)?;
        Ok(left > 0)
    }

    /// Moves runs to files, the largest first, until there is room for so many bytes.
    fn make_room(&mut self, bytes: u64) -> Result<()> {
        let Some(files) = self.files.clone() else { return Ok(()) };
        // What goes to a file is in memory, too, for as long as somebody reads it there.
        let mut left = self.memory.bytes().saturating_add(bytes).saturating_sub(self.memory_bytes_max);
        while left > 0 {
            let largest = self.states.values_mut().map(|state| (state.largest(), state));
            let largest = largest.max_by_key(|(bytes, _)| *bytes);
            let Some((bytes, state)) = largest.filter(|(bytes, _)| *bytes >= SPILLED_MIN) else { break };
            let file = file_for(bytes, &*files, &mut self.shared)?;
            state.spill_largest(&file)?;
            left = left.saturating_sub(bytes);
        }
        Ok(())
    }

    fn state_mut(&mut self, id: &StateId) -> Result<&mut State> {
        self.states.get_mut(id).ok_or_else(|| Error::Misuse { what: format!("state {id} is not held") })
    }
}

/// The file for a run of so many bytes.
fn file_for(
    bytes: u64,
    files: &dyn Files,
    shared: &mut Option<(Arc<dyn RunFile>, u64)>,
) -> Result<Arc<dyn RunFile>> {
    if bytes >= OWN_FILE_MIN {
        return files.create();
    }
    let (file, used) = match shared.take().filter(|(_, used)| *used < SHARED_FILE_MAX) {
        Some(shared) => shared,
        None => (files.create()?, 0),
    };
    *shared = Some((Arc::clone(&file), used + bytes));
    Ok(file)
}

impl Default for StateStore {
    fn default() -> Self {
        Self::new()
    }
}
