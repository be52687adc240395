//! What is kept of a state for those that come later, and what of that makes up a version.

use std::collections::{BTreeMap, BTreeSet};

use super::delta::CommitPoint;
use super::key::{Range, RangeSet, Version};
use crate::id::Generation;

/// Partitions that are named in a message.
const NAMED_MAX: usize = 8;

/// Where an application went on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Begun {
    /// Attempts up to this one are older.
    pub after: Generation,
    /// What those wrote of this epoch and later ones does not count.
    pub epoch: u64,
}

/// What one task decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// The attempt.
    pub generation: Generation,
    /// Which of its operator's partitions it computed.
    pub partition: u32,
    /// Partitions that the operator had.
    pub partitions: u32,
    /// What it had read.
    pub base: Version,
}

/// Ranges as they were.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Base {
    /// Written by an application that has gone on after this attempt.
    pub after: Generation,
    /// The ranges.
    pub ranges: RangeSet,
}

/// All that is there of a state.
#[derive(Debug, Default)]
pub struct Survey {
    /// Where applications went on.
    pub begun: Vec<Begun>,
    /// What was decided, by epoch.
    pub deltas: BTreeMap<u64, Vec<Written>>,
    /// Ranges as they were after an epoch.
    pub bases: BTreeMap<u64, Vec<Base>>,
}

/// The files that make up a version of some ranges: bases, and what was decided since.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// The version.
    pub version: u64,
    /// Bases, older ones first.
    pub bases: Vec<(u64, Base)>,
    /// What counts of each epoch, by partition; older ones first.
    pub epochs: Vec<(u64, Vec<Written>)>,
    /// The version that each range has in its base.
    pub from: BTreeMap<Range, Version>,
}

impl Chain {
    /// Ranges by the version of their base.
    #[must_use]
    pub fn by_base(&self) -> BTreeMap<Version, RangeSet> {
        let mut by_base: BTreeMap<Version, RangeSet> = BTreeMap::new();
        self.from.iter().for_each(|(range, base)| by_base.entry(*base).or_default().insert(*range));
        by_base
    }

    /// What is applied of an epoch.
    #[must_use]
    pub fn point(epoch: u64, tasks: &[Written]) -> CommitPoint {
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

    /// Versions of which everything is there, older ones first.
    #[must_use]
    pub fn versions(&self) -> Vec<u64> {
        let known: BTreeSet<u64> = self.deltas.keys().chain(self.bases.keys()).copied().collect();
        known.into_iter().filter(|version| self.chain(*version, &RangeSet::ALL).is_ok()).collect()
    }

    /// The newest version below an epoch; none if there is none.
    #[must_use]
    pub fn newest_below(&self, epoch: u64) -> Option<u64> {
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
    pub fn chain(&self, version: u64, ranges: &RangeSet) -> Result<Chain, String> {
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
    #[must_use]
    pub fn find(&self, epoch: u64, partition: u32, generation: Generation) -> Option<Written> {
        let all = self.deltas.get(&epoch)?;
        all.iter().find(|by| by.partition == partition && by.generation == generation).copied()
    }

    /// The last epoch whose deltas nobody needs who goes back to `oldest` at most: all ranges have bases then.
    #[must_use]
    pub fn superfluous(&self, oldest: u64) -> Option<u64> {
        let (from, _) = self.newest_bases(oldest, &RangeSet::ALL);
        from.values().min().and_then(|version| version.0)
    }
}

#[cfg(test)]
impl Survey {
    /// Epochs whose deltas are read for a version.
    pub(crate) fn epochs(&self, version: u64) -> Result<Vec<u64>, String> {
        self.chain(version, &RangeSet::ALL)
            .map(|chain| chain.epochs.iter().map(|(epoch, _)| *epoch).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(generation: u64, partition: u32, partitions: u32, base: Option<u64>) -> Written {
        Written { generation: Generation(generation), partition, partitions, base: Version(base) }
    }

    fn base(after: u64, ranges: &RangeSet) -> Base {
        Base { after: Generation(after), ranges: *ranges }
    }

    /// Three epochs of two partitions by attempts 1 to 6.
    fn three() -> Survey {
        let mut survey = Survey::default();
        for (epoch, below) in [(0, None), (1, Some(0)), (4, Some(1))] {
            let generation = epoch * 2;
            let tasks = [written(generation + 1, 0, 2, below), written(generation + 2, 1, 2, below)];
            survey.deltas.insert(epoch, tasks.to_vec());
        }
        survey
    }

    #[test]
    fn a_version_is_what_was_decided_from_the_first_epoch_on() {
        let survey = three();
        assert_eq!(survey.newest_below(9), Some(4));
        assert_eq!(survey.newest_below(4), Some(1));
        assert_eq!(survey.newest_below(0), None);
        assert_eq!(survey.epochs(4).unwrap(), [0, 1, 4]);
        assert_eq!(survey.epochs(1).unwrap(), [0, 1]);
    }

    #[test]
    fn what_is_missing_is_said() {
        let mut survey = three();
        survey.deltas.get_mut(&1).unwrap().pop();
        assert!(survey.epochs(4).unwrap_err().contains("epoch 1 has no delta of 1 of 2 partitions: 1"));
        survey.deltas.remove(&1);
        assert!(survey.epochs(4).unwrap_err().contains("epoch 1 is not there"));
    }

    #[test]
    fn of_an_epoch_the_newest_attempts_count_in_the_number_that_the_newest_of_all_says() {
        let mut survey = three();
        let again = [written(20, 0, 2, Some(1)), written(18, 0, 2, Some(1)), written(7, 2, 3, Some(1))];
        survey.deltas.get_mut(&4).unwrap().extend(again);
        let chain = survey.chain(4, &RangeSet::ALL).unwrap();
        let counting: Vec<u64> = chain.epochs[2].1.iter().map(|task| task.generation.0).collect();
        assert_eq!(counting, [20, 10]);
        // Now in three partitions, of which one is there.
        survey.deltas.get_mut(&4).unwrap().push(written(21, 1, 3, Some(1)));
        assert!(survey.epochs(4).unwrap_err().contains("1 of 3 partitions: 0"));
    }

    #[test]
    fn what_was_written_before_the_state_went_on_elsewhere_does_not_count() {
        let mut survey = three();
        // An application that went on with epoch 4, after attempt 10.
        survey.begun.push(Begun { after: Generation(10), epoch: 4 });
        assert_eq!(survey.newest_below(9), Some(1));
        survey.deltas.get_mut(&4).unwrap().extend([written(11, 0, 1, Some(1))]);
        assert_eq!(survey.epochs(4).unwrap(), [0, 1, 4]);
        // One that was cut off writes in an epoch that this one has not.
        survey.deltas.insert(5, vec![written(9, 0, 1, Some(4))]);
        assert_eq!(survey.newest_below(9), Some(4));
        // Its bases of then do not count either, and those of before do.
        survey.bases.insert(4, vec![base(0, &RangeSet::ALL)]);
        assert_eq!(survey.chain(4, &RangeSet::ALL).unwrap().bases, []);
        survey.bases.insert(1, vec![base(0, &RangeSet::ALL)]);
        assert_eq!(survey.epochs(4).unwrap(), [4]);
        survey.bases.get_mut(&4).unwrap().push(base(10, &RangeSet::ALL));
        assert_eq!(survey.epochs(4).unwrap(), [0; 0]);
    }

    #[test]
    fn each_range_goes_on_from_its_own_base_and_what_nobody_needs_is_known() {
        let mut survey = three();
        let half: RangeSet = (0..128).map(Range).collect();
        let other = RangeSet::ALL.without(&half);
        survey.bases.insert(0, vec![base(0, &other)]);
        survey.bases.insert(1, vec![base(0, &half)]);
        assert_eq!(survey.epochs(4).unwrap(), [1, 4]);
        let of_half = survey.chain(4, &half).unwrap();
        assert_eq!(of_half.epochs.iter().map(|(epoch, _)| *epoch).collect::<Vec<_>>(), [4]);
        assert_eq!(survey.superfluous(4), Some(0));
        assert_eq!(survey.superfluous(0), None, "half of the ranges have no base then");
        survey.deltas.remove(&0);
        assert_eq!(survey.epochs(4).unwrap(), [1, 4]);
        // A base of a version that is not one of the others' does not fit.
        survey.bases.insert(3, vec![base(0, &half)]);
        assert!(survey.epochs(4).unwrap_err().contains("do not fit together"));
    }
}
