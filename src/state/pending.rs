//! Deltas of epochs that are not committed.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use super::delta::{CommitPoint, Delta, DeltaPart};
use super::files::RunFile;
use super::key::{RangeSet, Version};
use super::memory::Memory;
use super::piece::Piece;
use super::run::Run;
use crate::error::Result;
use crate::id::Generation;

/// Some ranges of a delta.
#[derive(Debug)]
pub(super) struct PendingPart {
    /// Ranges that count.
    pub(super) ranges: RangeSet,
    /// Ranges that came, whether they are held or not, and the fingerprint of what came.
    came: RangeSet,
    fingerprint: u64,
    pub(super) base: Version,
    pub(super) now_ms: i64,
    pub(super) catalog: Bytes,
    pub(super) piece: Piece,
}

/// By epoch, then by partition and attempt.
#[derive(Debug, Default)]
pub(super) struct Pending(BTreeMap<u64, BTreeMap<(u32, Generation), Vec<PendingPart>>>);

impl Pending {
    /// The newest attempt at a partition.
    pub(super) fn newest(&self, epoch: u64, partition: u32) -> Option<Generation> {
        let attempts = self.0.get(&epoch)?;
        let mut of_partition =
            attempts.range((partition, Generation::NONE)..=(partition, Generation(u64::MAX)));
        of_partition.next_back().map(|((_, generation), _)| *generation)
    }

    /// Parts of the delta of an attempt.
    pub(super) fn parts(&self, epoch: u64, partition: u32, generation: Generation) -> &[PendingPart] {
        let parts = self.0.get(&epoch).and_then(|attempts| attempts.get(&(partition, generation)));
        parts.map_or(&[], Vec::as_slice)
    }

    /// Whether another delta came by this name.
    pub(super) fn differs(&self, part: &DeltaPart) -> bool {
        let known = self.parts(part.delta.epoch, part.partition, part.generation);
        let same = known.iter().find(|known| known.came == part.ranges);
        same.is_some_and(|known| known.fingerprint != part.delta.fingerprint())
    }

    /// Keeps what of a delta is in some ranges; `allowed` are those it may be in.
    pub(super) fn insert(&mut self, memory: &Memory, part: &DeltaPart, ranges: RangeSet) -> Result<()> {
        let delta = &part.delta;
        let fingerprint = delta.fingerprint();
        // Another attempt that did the same shares what is kept.
        let attempts = self.0.entry(delta.epoch).or_default();
        let of_partition = (part.partition, Generation::NONE)..=(part.partition, Generation(u64::MAX));
        let mut others = attempts.range(of_partition).flat_map(|(_, parts)| parts);
        let same = others.find(|other| {
            other.fingerprint == fingerprint && other.came == part.ranges && other.ranges == ranges
        });
        let piece = match same {
            Some(other) => other.piece.clone(),
            None => Piece::new(memory, &delta.entries, &part.ranges, &ranges)?,
        };
        attempts.entry((part.partition, part.generation)).or_default().push(PendingPart {
            ranges,
            came: part.ranges,
            fingerprint,
            base: delta.base,
            now_ms: delta.now_ms,
            catalog: delta.catalog.clone(),
            piece,
        });
        Ok(())
    }

    /// Takes what counts in an epoch that was committed, and drops all else of it and of those before.
    pub(super) fn take(&mut self, point: &CommitPoint) -> Vec<PendingPart> {
        let later = point.epoch.checked_add(1).map_or_else(BTreeMap::new, |later| self.0.split_off(&later));
        let mut attempts = std::mem::replace(&mut self.0, later).remove(&point.epoch).unwrap_or_default();
        point.tasks.iter().filter_map(|task| attempts.remove(task)).flatten().collect()
    }

    /// Forgets what is in some ranges.
    pub(super) fn drop_ranges(&mut self, ranges: &RangeSet) {
        for attempts in self.0.values_mut() {
            for parts in attempts.values_mut() {
                parts.iter_mut().for_each(|part| part.ranges = part.ranges.without(ranges));
                parts.retain(|part| !part.ranges.is_empty());
            }
        }
    }

    /// Names of all that is kept: epoch, partition, attempt.
    pub(super) fn names(&self) -> impl Iterator<Item = (u64, u32, Generation)> + '_ {
        let of_epoch = |(epoch, attempts): (&u64, _)| {
            let attempts: &BTreeMap<(u32, Generation), Vec<PendingPart>> = attempts;
            let epoch = *epoch;
            attempts
                .keys()
                .map(move |(partition, generation)| (epoch, *partition, *generation))
                .collect::<Vec<_>>()
        };
        self.0.iter().flat_map(of_epoch)
    }

    /// What is kept of an attempt's delta in some ranges, as it may be held elsewhere.
    pub(super) fn of(
        &self,
        epoch: u64,
        partition: u32,
        generation: Generation,
        ranges: &RangeSet,
    ) -> Result<Vec<DeltaPart>> {
        let wanted = self.parts(epoch, partition, generation).iter();
        let wanted = wanted.map(|part| (part, part.ranges.intersection(ranges)));
        let part = |(part, ranges): (&PendingPart, RangeSet)| {
            let PendingPart { base, now_ms, catalog, piece, .. } = part;
            let entries = piece.entries_of(&ranges)?;
            let delta = Delta { epoch, base: *base, now_ms: *now_ms, catalog: catalog.clone(), entries };
            Ok(DeltaPart { partition, generation, ranges, delta })
        };
        wanted.filter(|(_, ranges)| !ranges.is_empty()).map(part).collect()
    }

    /// Bytes of memory it takes.
    pub(super) fn memory_bytes(&self) -> u64 {
        let runs: BTreeMap<*const Run, u64> =
            self.runs().map(|run| (Arc::as_ptr(run), run.memory_bytes())).collect();
        runs.values().sum()
    }

    /// Bytes in memory of the largest run.
    pub(super) fn largest(&self) -> u64 {
        self.runs().map(|run| run.resident_bytes()).max().unwrap_or(0)
    }

    /// Moves the largest run to a file.
    pub(super) fn spill_largest(&mut self, file: &Arc<dyn RunFile>) -> Result<()> {
        let largest = self.runs().max_by_key(|run| run.resident_bytes()).cloned();
        let Some(largest) = largest else { return Ok(()) };
        let spilled = Arc::new(largest.spilled(file)?);
        let parts = self.0.values_mut().flat_map(BTreeMap::values_mut).flatten();
        let runs = parts.flat_map(|part| [&mut part.piece.entries, &mut part.piece.timers]);
        runs.filter(|run| Arc::ptr_eq(run, &largest)).for_each(|run| *run = Arc::clone(&spilled));
        Ok(())
    }

    fn runs(&self) -> impl Iterator<Item = &Arc<Run>> {
        let parts = self.0.values().flat_map(BTreeMap::values).flatten();
        parts.flat_map(|part| [&part.piece.entries, &part.piece.timers])
    }
}
