//! What an agent holds of states: whose life counts, which deltas are taken, and what of it is given up.
//!
//! A machine without I/O.

use std::collections::HashMap;
use std::sync::Arc;

use super::holders::Part;
use crate::error::{Error, Result};
use crate::id::{Epoch, Generation, Partition, TaskId};
use crate::state::{Advanced, CommitPoint, Delta, DeltaPart, RangeSet, StateId, StateStore, Version, View};

/// What is held.
#[derive(Debug)]
pub struct Holdings {
    /// Entries and deltas.
    pub store: StateStore,
    /// How often each state was restored in this application, as far as this agent knows.
    lives: HashMap<StateId, u64>,
    /// Ranges of which deltas came since this agent asked last what is its own: they may be its own since.
    fresh: HashMap<StateId, RangeSet>,
}

/// What became of a delta that was to be held.
#[derive(Debug)]
pub enum Took {
    /// It is held.
    Held,
    /// The state is at this version, and the delta is about a later one.
    Behind(Version),
}

/// What became of commits.
#[derive(Debug)]
pub enum Moved {
    /// The version is this.
    To(Version),
    /// Of these ranges some delta is not here.
    Lacks(RangeSet),
    /// Nothing of the state is here.
    Nothing,
}

/// What there is of ranges that somebody wants to copy.
#[derive(Debug)]
pub enum Copied {
    /// They are empty, and nothing was decided of them.
    Empty,
    /// The state is at this version here, which is too old.
    Behind(Version),
    /// These are not here.
    NotHeld(RangeSet),
    /// As they are, and what was decided and is not committed: epoch, partition and attempt.
    View(View, Vec<(u64, u32, Generation)>),
}

impl Holdings {
    /// Nothing yet, to be held there.
    #[must_use]
    pub fn new(store: StateStore) -> Self {
        Self { store, lives: HashMap::new(), fresh: HashMap::new() }
    }

    /// A state as it is now; none if nothing of it is here, in this life.
    #[must_use]
    pub fn view(&self, id: &StateId, life: u64) -> Option<View> {
        if self.lives.get(id) == Some(&life) { self.store.view(id) } else { None }
    }

    /// Ranges as they are at a version, or a later one.
    #[must_use]
    pub fn copied(&self, id: &StateId, life: u64, ranges: &RangeSet, wanted: Version) -> Copied {
        let Some(view) = self.view(id, life) else {
            // Nobody has sent a delta here yet.
            return if wanted == Version::NONE { Copied::Empty } else { Copied::NotHeld(*ranges) };
        };
        if view.version() < wanted {
            return Copied::Behind(view.version());
        }
        let missing = ranges.without(&view.held());
        if view.version() != Version::NONE && !missing.is_empty() {
            return Copied::NotHeld(missing);
        }
        Copied::View(view, self.store.pending_names(id))
    }

    /// That what is pending was pending when ranges were copied at a version.
    ///
    /// # Errors
    /// [`Error::Protocol`] if it may be a part of what came after.
    pub fn is_still(&self, id: &StateId, copied: Version) -> Result<()> {
        match self.store.held(id) {
            Some((here, _)) if here == copied => Ok(()),
            _ => Err(Error::Protocol { what: "an epoch was committed while its state was copied".into() }),
        }
    }

    /// Forgets what was held of earlier lives of a state.
    ///
    /// # Errors
    /// [`Error::StateLost`] if this is an earlier one.
    pub fn enter(&mut self, id: &StateId, life: u64) -> Result<()> {
        let known = self.lives.entry(id.clone()).or_insert(life);
        if *known > life {
            return Err(Error::StateLost { state: id.to_string(), what: "it was restored meanwhile".into() });
        }
        if *known < life {
            *known = life;
            self.store.forget(id);
        }
        Ok(())
    }

    /// The version of a state that is here, in this life.
    pub fn version(&self, id: &StateId, life: u64) -> Option<Version> {
        let is_known = self.lives.get(id) == Some(&life);
        self.store.held(id).filter(|_| is_known).map(|(version, _)| version)
    }

    /// Takes a part of a delta. Of ranges that are new here deltas are taken from now on: what was decided before is
    /// copied from others.
    pub fn take(&mut self, id: &StateId, life: u64, part: &Part, delta: Delta) -> Result<Took> {
        self.enter(id, life)?;
        let Part { base, ranges, partition, generation, .. } = *part;
        match self.store.held(id) {
            Some((version, _)) if version < base => return Ok(Took::Behind(version)),
            // Its epoch is over, or it was read before what counts now.
            Some((version, _)) if version > base => return Err(too_late(id, part)),
            _ => {}
        }
        let missing = ranges.without(&self.ours(id));
        if !missing.is_empty() {
            match base {
                Version::NONE => self.store.begin(id, missing, base)?,
                _ => self.store.fill(id, missing, base)?,
            }
        }
        let fresh = self.fresh.entry(id.clone()).or_default();
        *fresh = fresh.union(&ranges);
        self.store.hold(id, &DeltaPart { partition, generation, ranges, delta })?;
        Ok(Took::Held)
    }

    /// Applies what was committed. What lacks a delta is forgotten if it is in `given_up`: it never catches up.
    pub fn advance(
        &mut self,
        id: &StateId,
        life: u64,
        points: &[CommitPoint],
        given_up: &RangeSet,
    ) -> Result<Moved> {
        self.enter(id, life)?;
        for point in points {
            while self.store.held(id).is_some() {
                match self.store.advance(id, point)? {
                    Advanced::Done | Advanced::Known => break,
                    Advanced::Lacks { ranges, .. } if ranges.without(given_up).is_empty() => {
                        self.store.drop_ranges(id, &ranges);
                    }
                    Advanced::Lacks { partition, ranges } => {
                        tracing::warn!(state = %id, epoch = point.epoch, partition, "a delta is not here");
                        return Ok(Moved::Lacks(ranges));
                    }
                    Advanced::Behind(version) => return Ok(Moved::To(version)),
                }
            }
        }
        Ok(self.version(id, life).map_or(Moved::Nothing, Moved::To))
    }

    /// Forgets ranges that lack something.
    pub fn give_up(&mut self, id: &StateId, life: u64, ranges: &RangeSet) {
        if self.lives.get(id) == Some(&life) {
            self.store.drop_ranges(id, ranges);
        }
    }

    /// Begins to make ranges this agent's own: what is pending of them here stays so. Those whose pages are to be
    /// installed: what is whole here at that version stays as it is, as it may count as held by now.
    ///
    /// # Errors
    /// [`Error::Protocol`] if the state here is at a later version, or at an earlier one that other ranges have: what is
    /// here may count as held by now, and stays. [`Error::StateLost`] for an earlier life; those of the store.
    pub fn fill(
        &mut self,
        id: &StateId,
        life: u64,
        ranges: &RangeSet,
        version: Version,
        pending: Vec<DeltaPart>,
    ) -> Result<RangeSet> {
        self.enter(id, life)?;
        let here = self.store.held(id);
        if let Some((here, _)) = here
            && (here > version || (here < version && !self.ours(id).without(ranges).is_empty()))
        {
            let what = format!("ranges of state {id} at version {version} came where it is at {here}");
            return Err(Error::Protocol { what });
        }
        let whole = here.filter(|(here, _)| *here == version).map_or(RangeSet::EMPTY, |(_, held)| held);
        let missing = ranges.without(&whole);
        let here = self.store.pending(id, &missing)?;
        self.store.drop_ranges(id, &missing);
        match version {
            Version::NONE => self.store.begin(id, missing, version)?,
            _ => self.store.fill(id, missing, version)?,
        }
        for part in here.iter().chain(&pending) {
            // Of two attempts the older may be the one that counts: the newer may never come to its end.
            match self.store.adopt(id, part) {
                // Its epoch is over.
                Ok(_) | Err(Error::Fenced { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(self.store.filling(id).intersection(&missing))
    }

    /// Ranges that are here, those included that are being filled.
    pub fn ours(&self, id: &StateId) -> RangeSet {
        let held = self.store.held(id).map_or(RangeSet::EMPTY, |(_, held)| held);
        held.union(&self.store.filling(id))
    }

    /// From now on it is noted of which ranges deltas come.
    pub fn look_for_fresh(&mut self) {
        self.fresh.clear();
    }

    /// Forgets what is not this agent's any more, but for that of which deltas came since it asked.
    pub fn forget_others(&mut self, own: &[(StateId, u64, RangeSet)]) {
        let ids: Vec<StateId> = self.store.ids().cloned().collect();
        for id in ids {
            let of = own.iter().find(|(owned, life, _)| *owned == id && self.lives.get(&id) == Some(life));
            let own = of.map_or(RangeSet::EMPTY, |(_, _, ranges)| *ranges);
            let fresh = self.fresh.get(&id).copied().unwrap_or_default();
            let others = self.ours(&id).without(&own).without(&fresh);
            if !others.is_empty() {
                self.store.drop_ranges(&id, &others);
            }
        }
    }
}

fn too_late(id: &StateId, part: &Part) -> Error {
    let (query, operator) = (Arc::clone(&id.query), Arc::clone(&id.operator));
    let (epoch, partition) = (Epoch::Batch(part.epoch), Partition(part.partition));
    let task = TaskId { query, operator, epoch, partition };
    Error::Fenced { task, newer: Generation::NONE, ours: part.generation }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::state::{EntriesBuilder, EntryKey, KeyPrefix, Limits, MemoryFiles, Op, Read, Slot};

    fn holdings() -> Holdings {
        Holdings::new(StateStore::with_files(1 << 20, Arc::new(MemoryFiles)))
    }

    fn id() -> StateId {
        StateId { query: "q".into(), operator: "f".into() }
    }

    fn key() -> KeyPrefix {
        KeyPrefix::new(7, b"k")
    }

    fn delta(epoch: u64, base: Option<u64>, value: &'static str) -> Delta {
        let mut entries = EntriesBuilder::new();
        let value = Bytes::from_static(value.as_bytes());
        entries.push(&EntryKey::new(&key(), Slot(1), b""), &Op::Put { expires_ms: 0, value });
        Delta { epoch, base: Version(base), now_ms: 0, catalog: Bytes::new(), entries: entries.finish() }
    }

    fn part(epoch: u64, base: Option<u64>) -> Part {
        let (base, generation) = (Version(base), Generation(epoch + 1));
        Part { epoch, base, partition: 0, generation, ranges: RangeSet::ALL }
    }

    fn point(epoch: u64) -> CommitPoint {
        CommitPoint { epoch, partitions: 1, tasks: vec![(0, Generation(epoch + 1))] }
    }

    fn value(held: &Holdings, life: u64, version: u64) -> Option<String> {
        let view = held.view(&id(), life)?;
        match view.read(Version(Some(version)), &[key()], None, 0, &Limits::whole(1_000)).unwrap() {
            Read::Entries { entries, .. } => {
                entries.iter().map(|entry| format!("{:?}", entry.unwrap().op)).next()
            }
            other => Some(format!("{other:?}")),
        }
    }

    #[test]
    fn what_was_held_before_the_state_was_restored_is_forgotten() {
        let mut held = holdings();
        for (epoch, base) in [(0, None), (1, Some(0))] {
            held.take(&id(), 1, &part(epoch, base), delta(epoch, base, "old")).unwrap();
            assert!(matches!(held.advance(&id(), 1, &[point(epoch)], &RangeSet::EMPTY), Ok(Moved::To(_))));
        }
        assert!(value(&held, 1, 1).unwrap().contains("old"));
        // It has gone back to its beginning.
        assert!(value(&held, 2, 1).is_none());
        held.take(&id(), 2, &part(0, None), delta(0, None, "new")).unwrap();
        assert!(value(&held, 1, 1).is_none());
        held.advance(&id(), 2, &[point(0)], &RangeSet::EMPTY).unwrap();
        assert!(value(&held, 2, 0).unwrap().contains("new"));
        assert!(held.take(&id(), 1, &part(2, Some(1)), delta(2, Some(1), "old")).is_err());
    }

    #[test]
    fn ranges_that_come_when_their_version_is_over_change_nothing() {
        let mut held = holdings();
        held.take(&id(), 1, &part(0, None), delta(0, None, "decided")).unwrap();
        held.advance(&id(), 1, &[point(0)], &RangeSet::EMPTY).unwrap();
        let late = held.fill(&id(), 1, &RangeSet::ALL, Version::NONE, Vec::new());
        assert!(matches!(late, Err(Error::Protocol { .. })));
        assert!(value(&held, 1, 0).unwrap().contains("decided"));
    }

    #[test]
    fn ranges_that_are_whole_stay_so_when_they_come_once_more() {
        let mut held = holdings();
        held.take(&id(), 1, &part(0, None), delta(0, None, "decided")).unwrap();
        held.advance(&id(), 1, &[point(0)], &RangeSet::EMPTY).unwrap();
        // The registry has counted them meanwhile, and whoever gives them may be gone before the first page.
        let missing = held.fill(&id(), 1, &RangeSet::ALL, Version(Some(0)), Vec::new()).unwrap();
        assert_eq!(missing, RangeSet::EMPTY);
        assert!(value(&held, 1, 0).unwrap().contains("decided"));
    }

    #[test]
    fn of_what_is_copied_an_older_attempt_may_be_the_one_that_counts() {
        let mut held = holdings();
        // A newer attempt has sent its delta here and not come to its end.
        let newer = Part { generation: Generation(9), ..part(1, Some(0)) };
        held.take(&id(), 1, &newer, delta(1, Some(0), "same")).unwrap();
        let delta = delta(1, Some(0), "same");
        let counts = DeltaPart { partition: 0, generation: Generation(2), ranges: RangeSet::ALL, delta };
        held.fill(&id(), 1, &RangeSet::ALL, Version(Some(0)), vec![counts]).unwrap();
        let moved = held.advance(&id(), 1, &[point(1)], &RangeSet::EMPTY);
        assert!(matches!(moved, Ok(Moved::To(Version(Some(1))))));
    }

    #[test]
    fn what_others_have_by_now_is_forgotten_but_for_what_was_begun_since() {
        let mut held = holdings();
        let (some, rest): (RangeSet, RangeSet) =
            ((0..9).map(crate::state::Range).collect(), (9..12).map(crate::state::Range).collect());
        let of = |ranges| Part { ranges, ..part(0, None) };
        held.take(&id(), 1, &of(some), delta(0, None, "a")).unwrap();
        held.look_for_fresh();
        let nothing = delta(0, None, "a").of(&rest).unwrap();
        held.take(&id(), 1, &of(rest), nothing).unwrap();
        held.forget_others(&[]);
        assert_eq!(held.ours(&id()), rest);
        held.look_for_fresh();
        held.forget_others(&[(id(), 2, rest)]);
        assert_eq!(held.ours(&id()), RangeSet::EMPTY, "they are of another life");
    }
}
