//! Which files make up a version.

use std::collections::BTreeMap;

use super::names::{Base, Begun, Written};
use crate::id::Generation;
use crate::state::{CommitPoint, Range, RangeSet, Version};

/// Partitions that are named in a message.
const NAMED_MAX: usize = 8;

/// All that is there of a state.
#[derive(Debug, Default)]
pub(in crate::edge) struct Survey {
    pub(super) begun: Vec<Begun>,
    pub(super) deltas: BTreeMap<u64, Vec<Written>>,
    pub(super) bases: BTreeMap<u64, Vec<Base>>,
}

/// The files that make up a version of some ranges: bases, and what was decided since.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::edge) struct Chain {
    pub(in crate::edge) version: u64,
    /// Bases, older ones first.
    pub(in crate::edge) bases: Vec<(u64, Base)>,
    /// What counts of each epoch, by partition; older ones first.
    pub(in crate::edge) epochs: Vec<(u64, Vec<Written>)>,
    /// The version that each range has in its base.
    pub(in crate::edge) from: BTreeMap<Range, Version>,
}

impl Chain {
    /// What is applied of an epoch.
    pub(in crate::edge) fn point(epoch: u64, tasks: &[Written]) -> CommitPoint {
        CommitPoint {
            epoch,
            partitions: tasks.first().map_or(0, |task| task.partitions),
            tasks: tasks.iter().map(|task| (task.partition, task.generation)).collect(),
        }
    }
}

impl Survey {
    /// Whether what an attempt has written in an epoch counts.
    fn counts(&self, by: Generation, epoch: u64) -> bool {
        !self.begun.iter().any(|begun| by <= begun.after && epoch >= begun.epoch)
    }

    /// The newest version below an epoch; none if there is none.
    pub(in crate::edge) fn newest_below(&self, epoch: u64) -> Option<u64> {
        let written = self.deltas.range(..epoch).rev();
        let decided = written.filter(|(at, all)| all.iter().any(|by| self.counts(by.generation, **at)));
        let kept = self.bases.range(..epoch).rev();
        let kept = kept.filter(|(at, all)| all.iter().any(|base| self.base_counts(base, **at)));
        decided.map(|(at, _)| *at).next().max(kept.map(|(at, _)| *at).next())
    }

    /// The application that wrote it went on after that attempt, so all of its own are newer.
    fn base_counts(&self, base: &Base, epoch: u64) -> bool {
        self.counts(base.after.next(), epoch)
    }

    /// The files that make up some ranges of a version.
    ///
    /// # Errors
    /// What is missing.
    pub(in crate::edge) fn chain(&self, version: u64, ranges: &RangeSet) -> Result<Chain, String> {
        let (from, bases) = self.newest_bases(version, ranges);
        let oldest = from.values().min().copied().unwrap_or_default();
        let mut epochs = Vec::new();
        let mut at = Version(Some(version));
        while let Version(Some(epoch)) = at
            && at > oldest
        {
            let tasks = self.tasks(epoch)?;
            at = tasks.first().map_or(Version::NONE, |task| task.base);
            if tasks.iter().any(|task| task.base != at) || at >= Version(Some(epoch)) {
                return Err(format!("the deltas of epoch {epoch} are of several versions"));
            }
            epochs.push((epoch, tasks));
        }
        let is_in_chain =
            |of: &Version| *of == at || epochs.iter().any(|(epoch, _)| Version(Some(*epoch)) == *of);
        if at != oldest || !from.values().all(is_in_chain) {
            return Err(format!("its bases and its deltas up to version {version} do not fit together"));
        }
        epochs.reverse();
        Ok(Chain { version, bases, epochs, from })
    }

    /// Of each range the newest base up to a version.
    fn newest_bases(&self, version: u64, ranges: &RangeSet) -> (BTreeMap<Range, Version>, Vec<(u64, Base)>) {
        let mut from: BTreeMap<Range, Version> = ranges.iter().map(|range| (range, Version::NONE)).collect();
        let mut bases = Vec::new();
        for (epoch, all) in self.bases.range(..=version).rev() {
            for base in all.iter().filter(|base| self.base_counts(base, *epoch)) {
                let mut is_used = false;
                for range in base.ranges.iter() {
                    if let Some(known) = from.get_mut(&range).filter(|known| **known == Version::NONE) {
                        *known = Version(Some(*epoch));
                        is_used = true;
                    }
                }
                if is_used {
                    bases.push((*epoch, *base));
                }
            }
        }
        bases.reverse();
        (from, bases)
    }

    /// What counts of an epoch.
    fn tasks(&self, epoch: u64) -> Result<Vec<Written>, String> {
        let all = self.deltas.get(&epoch).map_or(&[][..], Vec::as_slice);
        let counting: Vec<&Written> = all.iter().filter(|by| self.counts(by.generation, epoch)).collect();
        let newest = counting.iter().max_by_key(|by| by.generation);
        let partitions = newest.ok_or_else(|| format!("epoch {epoch} is not there"))?.partitions;
        let mut tasks: BTreeMap<u32, Written> = BTreeMap::new();
        for written in counting.into_iter().filter(|by| by.partitions == partitions) {
            let known = tasks.entry(written.partition).or_insert(*written);
            if known.generation < written.generation {
                *known = *written;
            }
        }
        let missing: Vec<String> =
            (0..partitions).filter(|at| !tasks.contains_key(at)).map(|at| at.to_string()).collect();
        if missing.is_empty() {
            return Ok(tasks.into_values().collect());
        }
        let some = missing.get(..NAMED_MAX).unwrap_or(&missing).join(", ");
        Err(format!("epoch {epoch} has no delta of {} of {partitions} partitions: {some}", missing.len()))
    }

    /// The delta of one attempt.
    pub(in crate::edge) fn find(
        &self,
        epoch: u64,
        partition: u32,
        generation: Generation,
    ) -> Option<Written> {
        let all = self.deltas.get(&epoch)?;
        all.iter().find(|by| by.partition == partition && by.generation == generation).copied()
    }

    /// The last epoch whose deltas nobody needs who goes back to `oldest` at most: all ranges have bases then.
    pub(super) fn superfluous(&self, oldest: u64) -> Option<u64> {
        let (from, _) = self.newest_bases(oldest, &RangeSet::ALL);
        from.values().min().and_then(|version| version.0)
    }
}
