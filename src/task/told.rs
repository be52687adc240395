//! Recorded rows that are told apart by their marks, as their arguments have them: for rows whose mark nobody knows.
//!
//! There are two reasons why. Before an attempt came to its end, a row may be new, and one with equal arguments be
//! recorded: it must not take the other's answer, which comes later. And a column may be another in each run: then
//! it is found by its arguments, if these tell it from all others.

use std::ops::Range;

use super::matching::{Found, Index};
use crate::determinant::FingerprintMap;
use crate::error::Result;

/// The own rows of a task's log.
#[derive(Debug, Default)]
pub(super) struct ToldApart {
    /// Of which columns their marks are.
    columns: u64,
    fingerprints: Vec<u64>,
    is_counted: bool,
    /// By arguments; made for the first row that needs it.
    index: Option<Index>,
    used: Vec<bool>,
    /// Arguments of which a row got its answer without its mark, and the position of it.
    borrowed: FingerprintMap<usize>,
    /// Arguments of which all answers are the same.
    equal: FingerprintMap<()>,
}

impl ToldApart {
    pub(super) fn new(fingerprints: Vec<u64>, columns: u64) -> Self {
        let used = vec![false; fingerprints.len()];
        Self { columns, fingerprints, used, ..Self::default() }
    }

    pub(super) const fn columns(&self) -> u64 {
        self.columns
    }

    /// One of the rows with these arguments, whether it was found or not.
    pub(super) fn first(&mut self, fingerprint: u64) -> Option<usize> {
        self.index().first(fingerprint)
    }

    fn index(&mut self) -> &mut Index {
        self.index.get_or_insert_with(|| {
            let mut index = Index::default();
            index.extend(&self.fingerprints, 0);
            index
        })
    }

    /// How many rows there are of each arguments; told once.
    pub(super) fn counts(&mut self) -> Option<FingerprintMap<u64>> {
        if std::mem::replace(&mut self.is_counted, true) {
            return None;
        }
        let mut counts = FingerprintMap::default();
        self.fingerprints.iter().for_each(|fingerprint| *counts.entry(*fingerprint).or_default() += 1);
        Some(counts)
    }

    /// A row was found; those of others are not noted. Whether it was there to be found, and no other took its
    /// answer.
    pub(super) fn take(&mut self, position: usize) -> bool {
        self.used.get_mut(position).is_none_or(|used| !std::mem::replace(used, true))
    }

    /// Some rows are not used after all.
    pub(super) fn give_back(&mut self, rows: impl Iterator<Item = Range<usize>>) {
        for position in rows.flatten() {
            if let Some(used) = self.used.get_mut(position) {
                *used = false;
            }
        }
        if let Some(index) = &mut self.index {
            index.start_again();
            let used = &self.used;
            self.borrowed.retain(|_, position| used.get(*position) == Some(&true));
        }
    }

    /// Looks a row up by its arguments. `is_alone`: no other of its batch has them. `may_be_new`: no attempt came
    /// to its end, so rows may be missing here. `same`: whether two positions have one answer; `None`: it does not
    /// matter.
    pub(super) fn find(
        &mut self,
        fingerprint: u64,
        is_alone: bool,
        may_be_new: bool,
        same: Option<impl FnMut(usize, usize) -> Result<bool>>,
    ) -> Result<Found> {
        self.index();
        let Some(index) = &mut self.index else { return Ok(Found::Unknown) };
        let is_only_one = index.is_only_one(fingerprint);
        let first = {
            let used = &self.used;
            let mut unused = index.unused(fingerprint, |at| used.get(at).is_none_or(|used| *used));
            let Some(first) = unused.next() else {
                return Ok(self
                    .borrowed
                    .get(&fingerprint)
                    .map_or(Found::Unknown, |at| Found::Exhausted(*at)));
            };
            let is_its_own = is_only_one && is_alone;
            if !is_its_own && may_be_new {
                return Ok(Found::Unknown);
            }
            let is_known = is_its_own || self.equal.contains_key(&fingerprint);
            if let Some(mut same) = same.filter(|_| !is_known) {
                for other in unused {
                    if !same(first, other)? {
                        return Ok(Found::Ambiguous(first, other));
                    }
                }
                self.equal.insert(fingerprint, ());
            }
            first
        };
        self.borrowed.insert(fingerprint, first);
        self.take(first);
        Ok(Found::At(first))
    }
}
