//! The state of one operator: its committed version, and what is pending.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;

use super::catalog::Catalog;
use super::delta::{CommitPoint, DeltaPart};
use super::files::RunFile;
use super::key::{EntryKey, Range, RangeSet, Slot, StateId, Version, partition_ranges};
use super::memory::Memory;
use super::pending::{Pending, PendingPart};
use super::piece::{Piece, deleted_timers};
use super::reading::{Floors, Page, View, timer_key};
use super::record::corrupt;
use super::run::{Item, Merged, Run, RunBuilder};
use super::store::{Advanced, Held, StateStats};
use super::tree::{Keep, Tree, merge_now, merged_in};
use crate::error::{Error, Result};
use crate::id::{Epoch, Generation, Partition, TaskId};

/// Bytes of an epoch's deltas that are made one run when they are applied. Larger ones become runs as they are.
const AT_ONCE_MAX: u64 = 8 << 20;
/// Runs of a range beyond which a commit merges some.
const RUNS_MAX: usize = 40;

/// A range whose pages are awaited.
#[derive(Debug)]
struct Filling {
    /// The version that they are of.
    version: Version,
    /// Keys whose timers are gone since.
    cleared: BTreeSet<Bytes>,
}

/// The state of one operator.
#[derive(Debug)]
pub(super) struct State {
    memory: Memory,
    version: Version,
    held: RangeSet,
    /// Ranges that are not whole yet.
    filling: BTreeMap<Range, Filling>,
    /// The latest clock of the epochs that were applied.
    now_ms: i64,
    catalog: Option<Bytes>,
    /// Slots of variables that the catalog says are deleted.
    deleted: Arc<[Slot]>,
    entries: Tree,
    timers: Tree,
    floors: Arc<Floors>,
    pending: Pending,
}

impl State {
    pub(super) fn new(version: Version, memory: &Memory) -> Self {
        Self {
            memory: memory.clone(),
            version,
            held: RangeSet::EMPTY,
            filling: BTreeMap::new(),
            now_ms: i64::MIN,
            catalog: None,
            deleted: Arc::default(),
            entries: Tree::by_hash(memory.clone()),
            timers: Tree::new(memory.clone()),
            floors: Arc::new(Floors::none()),
            pending: Pending::default(),
        }
    }

    pub(super) const fn version(&self) -> Version {
        self.version
    }

    pub(super) const fn held(&self) -> RangeSet {
        self.held
    }

    pub(super) fn filling(&self) -> RangeSet {
        self.filling.keys().copied().collect()
    }

    /// Ranges that are held, or will be.
    pub(super) fn ours(&self) -> RangeSet {
        self.held.union(&self.filling())
    }

    pub(super) fn catalog(&self) -> Option<Bytes> {
        self.catalog.clone()
    }

    pub(super) fn begin(&mut self, ranges: &RangeSet) {
        self.held = self.held.union(&ranges.without(&self.filling()));
    }

    pub(super) fn fill(&mut self, ranges: &RangeSet, version: Version) {
        let begin = |range| (range, Filling { version, cleared: BTreeSet::new() });
        self.filling.extend(ranges.without(&self.ours()).iter().map(begin));
    }

    pub(super) fn drop_ranges(&mut self, ranges: &RangeSet) {
        self.held = self.held.without(ranges);
        self.filling.retain(|range, _| !ranges.contains(*range));
        self.entries.drop_ranges(ranges);
        self.timers.drop_ranges(ranges);
        self.pending.drop_ranges(ranges);
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        self.entries.memory_bytes() + self.timers.memory_bytes() + self.pending.memory_bytes()
    }

    pub(super) fn stats(&self) -> StateStats {
        StateStats {
            memory_bytes: self.memory_bytes(),
            bytes: self.entries.bytes() + self.timers.bytes(),
            entries: self.entries.entries(),
            runs: self.entries.layers().len(),
        }
    }

    pub(super) fn view(&self) -> View {
        View {
            version: self.version,
            held: self.held,
            now_ms: self.now_ms,
            catalog: self.catalog.clone(),
            entries: self.entries.layers().into(),
            timers: self.timers.layers().into(),
            floors: Arc::clone(&self.floors),
        }
    }

    pub(super) fn hold(&mut self, id: &StateId, part: &DeltaPart) -> Result<Held> {
        let newest = self.pending.newest(part.delta.epoch, part.partition);
        match newest.filter(|newest| *newest > part.generation) {
            Some(newer) => Err(fenced(id, part, newer)),
            None => self.adopt(id, part),
        }
    }

    pub(super) fn adopt(&mut self, id: &StateId, part: &DeltaPart) -> Result<Held> {
        let epoch = part.delta.epoch;
        if self.version >= Version(Some(epoch)) {
            return Err(fenced(id, part, Generation::NONE));
        }
        if self.pending.differs(part) {
            let what = format!("an attempt gave two deltas of epoch {epoch} of state {id}");
            return Err(Error::Misuse { what });
        }
        let known = self.pending.parts(epoch, part.partition, part.generation);
        let known = known.iter().fold(RangeSet::EMPTY, |all, part| all.union(&part.ranges));
        let more = part.ranges.intersection(&self.ours()).without(&known);
        if more.is_empty() {
            return Ok(Held::Known);
        }
        self.pending.insert(&self.memory, part, more)?;
        Ok(Held::Taken)
    }

    pub(super) fn advance(&mut self, point: &CommitPoint) -> Result<Advanced> {
        let version = Version(Some(point.epoch));
        if self.version >= version {
            return Ok(Advanced::Known);
        }
        let mut bases = Vec::new();
        for (partition, generation) in &point.tasks {
            let ranges = partition_ranges(*partition, point.partitions).intersection(&self.ours());
            let parts = self.pending.parts(point.epoch, *partition, *generation);
            let here = parts.iter().fold(RangeSet::EMPTY, |all, part| all.union(&part.ranges));
            let ranges = ranges.without(&here);
            if !ranges.is_empty() {
                return Ok(Advanced::Lacks { partition: *partition, ranges });
            }
            bases.extend(parts.iter().map(|part| part.base));
        }
        if let Some(base) = bases.iter().find(|base| **base != self.version) {
            if bases.iter().all(|base| *base > self.version) {
                return Ok(Advanced::Behind(self.version));
            }
            let (epoch, version) = (point.epoch, self.version);
            return Err(corrupt(&format!(
                "epoch {epoch} was computed from version {base}, not from {version}"
            )));
        }
        self.apply(point)?;
        self.version = version;
        Ok(Advanced::Done)
    }

    fn apply(&mut self, point: &CommitPoint) -> Result<()> {
        let parts = || {
            let parts =
                point.tasks.iter().map(|(task, attempt)| self.pending.parts(point.epoch, *task, *attempt));
            parts.flatten()
        };
        let now_ms = parts().map(|part| part.now_ms).fold(self.now_ms, i64::max);
        let catalog = parts().map(|part| &part.catalog).find(|catalog| !catalog.is_empty()).cloned();
        let of_entries = |part: &'_ PendingPart| (Arc::clone(&part.piece.entries), part.ranges);
        let of_timers = |part: &'_ PendingPart| (Arc::clone(&part.piece.timers), part.ranges);
        let entries = together(parts().map(of_entries).collect(), self.entries.builder(None))?;
        let timers = together(parts().map(of_timers).collect(), self.timers.builder(None))?;
        let cleared = self.cleared_timers(parts())?;
        let floors = self.floors.copy();
        for (range, expiry_ms) in parts().flat_map(|part| &part.piece.first) {
            floors.lower(*range, *expiry_ms);
        }
        // Nothing fails from here on.
        for part in self.pending.take(point) {
            self.note_cleared(&part);
        }
        entries.into_iter().for_each(|(run, ranges)| self.entries.push(run, ranges));
        self.timers.push(cleared, RangeSet::ALL);
        timers.into_iter().for_each(|(run, ranges)| self.timers.push(run, ranges));
        (self.now_ms, self.floors) = (now_ms, Arc::new(floors));
        if catalog.is_some() && catalog != self.catalog {
            self.remember(catalog);
        }
        Ok(())
    }

    fn remember(&mut self, catalog: Option<Bytes>) {
        // One that this version cannot read is its tasks' to refuse; nothing is taken for deleted then.
        let deleted = catalog.as_deref().map(Catalog::deleted_slots);
        self.deleted = deleted.and_then(Result::ok).unwrap_or_default().into();
        self.catalog = catalog;
    }

    /// Remembers what is gone of pages that are awaited.
    fn note_cleared(&mut self, part: &PendingPart) {
        for prefix in &part.piece.cleared {
            if let Some(filling) = self.filling.get_mut(&Range::of(prefix.hash())) {
                filling.cleared.insert(prefix.as_bytes().clone());
            }
        }
    }

    /// What deletes those timers from their order that are gone with all others of their keys.
    fn cleared_timers<'a>(&self, parts: impl Iterator<Item = &'a PendingPart>) -> Result<Arc<Run>> {
        let prefixes = parts.flat_map(|part| part.piece.cleared.iter().map(|prefix| (prefix, part.ranges)));
        let mut keys = Vec::new();
        for (prefix, ranges) in prefixes {
            let range = Range::of(prefix.hash());
            if !ranges.contains(range) {
                continue;
            }
            let slot = EntryKey::new(prefix, Slot::TIMERS, &[]);
            let mut input = merged_in(self.entries.layers(), &[range].into_iter().collect());
            input.seek(slot.as_bytes())?;
            while let Some(item) = input.next(slot.as_bytes())? {
                let key = EntryKey::from_bytes(Bytes::copy_from_slice(input.key()))?;
                if let (Item::Entry(record), Some(expiry_ms)) = (item, key.expiry_ms())
                    && record.is_live(0)
                {
                    keys.push(timer_key(range, expiry_ms, prefix.as_bytes()));
                }
            }
        }
        Ok(Arc::new(deleted_timers(&self.memory, keys)?))
    }

    pub(super) fn install(&mut self, page: &Page) -> Result<()> {
        let Page { range, version, now_ms, catalog, entries, next } = page;
        let expected = match self.filling.get(range) {
            Some(filling) => Some(filling.version),
            None => self.held.contains(*range).then_some(self.version),
        };
        if expected != Some(*version) {
            let what = format!("a page of range {} of state came that is of version {version}", range.0);
            return Err(Error::Misuse { what });
        }
        let ranges = [*range].into_iter().collect();
        let none = BTreeSet::new();
        let cleared = self.filling.get(range).map_or(&none, |filling| &filling.cleared);
        let Piece { entries, timers, first, .. } = Piece::of_page(&self.memory, entries, &ranges, cleared)?;
        first.into_iter().for_each(|(range, expiry_ms)| self.floors.lower(range, expiry_ms));
        self.entries.push_below(entries, ranges);
        self.timers.push_below(timers, ranges);
        self.now_ms = self.now_ms.max(*now_ms);
        if self.catalog.is_none() {
            self.remember(catalog.clone());
        }
        if next.is_none() && self.filling.remove(range).is_some() {
            self.held.insert(*range);
        }
        Ok(())
    }

    pub(super) fn pending_names(&self) -> Vec<(u64, u32, Generation)> {
        self.pending.names().collect()
    }

    pub(super) fn pending_parts(
        &self,
        epoch: u64,
        partition: u32,
        generation: Generation,
        ranges: &RangeSet,
    ) -> Result<Vec<DeltaPart>> {
        self.pending.of(epoch, partition, generation, ranges)
    }

    /// Merges runs for about so many bytes; what is left of them.
    pub(super) fn tidy(
        &mut self,
        bytes: u64,
        file: &mut impl FnMut(u64) -> Result<Option<Arc<dyn RunFile>>>,
    ) -> Result<u64> {
        let lowest = RangeSet::ALL.without(&self.filling());
        let keep = Keep { now_ms: self.now_ms, lowest, ..Keep::all() };
        let left = self.timers.merge(keep.clone(), bytes, &mut *file)?;
        self.entries.merge(Keep { deleted: Arc::clone(&self.deleted), ..keep }, left, file)
    }

    /// Whether there are so many runs of a range that a commit should not add one.
    pub(super) fn is_untidy(&self) -> bool {
        self.entries.depth().max(self.timers.depth()) > RUNS_MAX
    }

    /// Bytes in memory of the largest run that can go to a file.
    pub(super) fn largest(&self) -> u64 {
        self.entries.largest().max(self.timers.largest()).max(self.pending.largest())
    }

    /// Moves that run to a file.
    pub(super) fn spill_largest(&mut self, file: &Arc<dyn RunFile>) -> Result<()> {
        let largest = self.largest();
        if self.pending.largest() == largest {
            return self.pending.spill_largest(file);
        }
        let mut trees = [&mut self.entries, &mut self.timers].into_iter();
        trees.find(|tree| tree.largest() == largest).map_or(Ok(()), |tree| tree.spill_largest(file))
    }
}

fn fenced(id: &StateId, part: &DeltaPart, newer: Generation) -> Error {
    let task = TaskId {
        query: Arc::clone(&id.query),
        operator: Arc::clone(&id.operator),
        epoch: Epoch::Batch(part.delta.epoch),
        partition: Partition(part.partition),
    };
    Error::Fenced { task, newer, ours: part.generation }
}

/// Runs that are applied at once, as one if they are small.
fn together(runs: Vec<(Arc<Run>, RangeSet)>, output: RunBuilder) -> Result<Vec<(Arc<Run>, RangeSet)>> {
    let bytes: u64 = runs.iter().map(|(run, _)| run.bytes()).sum();
    if runs.len() < 2 || bytes > AT_ONCE_MAX {
        return Ok(runs);
    }
    let ranges = runs.iter().fold(RangeSet::EMPTY, |all, (_, ranges)| all.union(ranges));
    let input = Merged::new(runs.iter().rev().map(|(run, ranges)| (run, *ranges)));
    // What deletes is kept: something may lie below.
    let run = merge_now(input, &Keep::all(), output)?;
    Ok(vec![(Arc::new(run), ranges)])
}
