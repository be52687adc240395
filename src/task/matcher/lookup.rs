//! How rows are found that did not come in recorded order: by their keys, and by their arguments where nobody
//! knows these.

use std::ops::Range;

use super::{Ambiguous, Keys, Matcher, Matching, index_u32};
use crate::determinant::FingerprintMap;
use crate::error::Result;
use crate::task::choice::Chosen;
use crate::task::divergence::misuse;
use crate::task::marks::{self, Likeness};
use crate::task::matching::Found;
use crate::task::order;
use crate::task::plan::{Plan, Run};
use crate::task::told::ToldApart;

impl Matcher {
    /// By what the rows of a batch are found; nothing if that is their fingerprints. Must be known before rows of
    /// others are added.
    pub(in crate::task) fn keys(&mut self, fingerprints: &[u64], marks: &[u64]) -> Vec<u64> {
        if matches!(self.keys, Keys::Open) && !fingerprints.is_empty() {
            self.choose(fingerprints, marks);
        }
        if !matches!(self.keys, Keys::Marks(_)) {
            return Vec::new();
        }
        fingerprints.iter().zip(marks).map(|(fingerprint, mark)| marks::key(*fingerprint, *mark)).collect()
    }

    /// Chooses by what rows are found. By marks, if one of a recorded row comes again; in a log that may lack rows,
    /// or where they may be in others, also before one does: all of the first batch may be rows that moved in.
    fn choose(&mut self, fingerprints: &[u64], marks: &[u64]) {
        if self.has_others && marks.iter().any(|mark| *mark != marks::NONE) {
            self.tell_apart(marks);
            return;
        }
        if let Matching::Indexed(index) = &self.matching {
            // Most batches of a long input that came in another order have nothing in common with a short log.
            if !self.has_others && !fingerprints.iter().any(|fingerprint| index.knows(*fingerprint)) {
                return;
            }
        }
        match self.recorded.likeness(fingerprints, marks) {
            Some(Likeness::Rows) => self.tell_apart(marks),
            Some(_) if self.may_lack_rows || self.others_may_take || self.has_other_marks(marks) => {
                self.tell_apart(marks);
            }
            Some(Likeness::Nothing) if !self.has_others => {}
            _ => {
                self.keys = Keys::Arguments;
                self.doubt_order(marks);
                self.recorded.forget_marks();
            }
        }
    }

    /// Rows that are known by their arguments alone need not be those that came in their places before: with other columns
    /// Spark may compute them in another order, and of another frame they are others. Not so where the stage gives them
    /// theirs, or arguments tell.
    fn doubt_order(&mut self, marks: &[u64]) {
        let are_marked = self.recorded.are_marked() || marks.iter().any(|mark| *mark != marks::NONE);
        let may_differ = match self.chosen {
            Chosen::InOrder => false,
            Chosen::Otherwise => true,
            Chosen::Alike | Chosen::Unknown => are_marked,
        };
        if !may_differ || !self.checks_ambiguity {
            return;
        }
        let tells_nothing = |mark: &u64| *mark != marks::NONE && marks::tells_nothing(*mark);
        if self.chosen == Chosen::Alike && marks.first().is_some_and(tells_nothing) {
            // Whoever reads these rows, which are all of the frame's, cannot tell them apart either.
            self.checks_ambiguity = self.has_others || self.others_may_take;
            return;
        }
        let own = self.recorded.fingerprints(0..self.recorded.own());
        self.doubts_order = self.chosen == Chosen::Otherwise || !order::tells_rows(own);
        if self.doubts_order {
            self.give_up_order();
            self.keep_order_given_up();
        }
    }

    /// Whether own rows have marks of other columns than these: then it is no wonder that none of a batch is known.
    fn has_other_marks(&self, marks: &[u64]) -> bool {
        let like = marks.iter().copied().find(|mark| *mark != marks::NONE);
        like.is_some_and(|like| !self.recorded.are_all_like(like))
    }

    fn tell_apart(&mut self, marks: &[u64]) {
        let like = marks.iter().copied().find(|mark| *mark != marks::NONE).unwrap_or_default();
        let are_alike = self.recorded.are_all_like(like);
        self.are_alike &= are_alike;
        self.keys = Keys::Marks(ToldApart::new(self.recorded.tell_apart(like), marks::columns(like)));
        if !are_alike {
            let own = self.recorded.fingerprints(0..self.recorded.own());
            self.known_keys = Some(own.iter().map(|key| (*key, ())).collect());
        }
        // No row was found yet, so none is used.
        if let Matching::Indexed(_) = std::mem::replace(&mut self.matching, Matching::of(&self.recorded)) {
            self.give_up_order();
            self.keep_order_given_up();
        }
    }

    /// Arguments of the rows that nobody knows by their keys, after these were asked for; none if they are
    /// [new](Self::is_new).
    pub(in crate::task) fn unknown(&mut self, fingerprints: &[u64], keys: &[u64]) -> Vec<u64> {
        let is_known = |key: u64| {
            let is_own = matches!(&self.matching, Matching::Indexed(index) if index.knows(key));
            is_own || self.asked.has(key)
        };
        let known: Vec<bool> = keys.iter().map(|key| is_known(*key)).collect();
        let rows = || known.iter().zip(keys.iter().zip(fingerprints));
        self.knows_marks |= rows().any(|(known, (key, fingerprint))| *known && key != fingerprint);
        if self.is_new() {
            return Vec::new();
        }
        rows().filter(|(known, _)| !**known).map(|(_, (_, fingerprint))| *fingerprint).collect()
    }

    /// Whether a row whose mark nobody knows is one that nobody has. So it is where rows may be with others, of which
    /// all have marks of the same columns, and those that recorded them did not come to their end, or this task has
    /// met some by their marks: then these are the same in each run.
    const fn is_new(&self) -> bool {
        self.has_others && self.are_alike && (self.knows_marks || self.others_may_lack)
    }

    /// Which rows of a plan, that come in another order, are not known here by a mark.
    pub(in crate::task) fn not_known_by_mark(&mut self, plan: &Plan) -> Vec<usize> {
        let rows = 0..plan.rows;
        if !matches!(self.keys, Keys::Marks(_)) {
            return rows.collect();
        }
        self.give_up_order();
        self.keep_order_given_up();
        let Matching::Indexed(index) = &self.matching else { return rows.collect() };
        let is_known = |row: &usize| {
            plan.keys.get(*row).is_some_and(|key| Some(*key) != plan.fingerprint(*row) && index.knows(*key))
        };
        rows.filter(|row| !is_known(row)).collect()
    }

    /// How many rows with each arguments are recorded, once, when rows are told apart by more than these.
    pub(in crate::task) fn counts(&mut self) -> Option<FingerprintMap<u64>> {
        match &mut self.keys {
            Keys::Marks(told) => told.counts(),
            Keys::Open | Keys::Arguments => None,
        }
    }

    /// Finds some rows of a plan that are not found by their order.
    pub(super) fn look_up_all(&mut self, plan: &mut Plan, rows: Range<usize>) -> Result<Option<Ambiguous>> {
        if plan.keys.is_empty() {
            for row in rows {
                let found = self.by_key(plan, row, self.checks_ambiguity)?;
                if let Some(ambiguous) = Self::place(plan, row, found, self.checks_ambiguity) {
                    return Ok(Some(ambiguous));
                }
            }
            return Ok(None);
        }
        // First those that are known by their marks: the others must not take their answers.
        let first = rows.start;
        let mut found = Vec::with_capacity(rows.len());
        for row in rows.clone() {
            // Another task may have taken the same of several answers to equal rows.
            let checks = self.checks_ambiguity && (plan.is_partial(row) || self.has_others);
            found.push(self.by_key(plan, row, checks)?);
        }
        let mut alone = None;
        for row in rows {
            let known = found.get(row - first).copied().unwrap_or(Found::Unknown);
            let (known, checks) = match known {
                Found::At(_) | Found::Ambiguous(..) => (known, true),
                Found::Exhausted(_) | Found::Unknown => {
                    let alone = alone.get_or_insert_with(|| counted(&plan.fingerprints));
                    self.by_arguments(plan, row, known, alone)?
                }
            };
            if let Some(ambiguous) = Self::place(plan, row, known, checks && self.checks_ambiguity) {
                return Ok(Some(ambiguous));
            }
        }
        Ok(None)
    }

    /// Finds one row by its key.
    fn by_key(&mut self, plan: &Plan, row: usize, checks: bool) -> Result<Found> {
        let (Matching::Indexed(index), Some(key)) = (&mut self.matching, plan.keys().get(row).copied())
        else {
            return misuse("a lookup without an index".to_owned());
        };
        let recorded = &mut self.recorded;
        let found = index.take(key, checks.then_some(|a, b| recorded.same_value(a, b)))?;
        let (Found::At(position), Keys::Marks(told)) = (found, &mut self.keys) else { return Ok(found) };
        // Its answer may have gone to a row that was found by arguments.
        let is_taken = !told.take(position);
        if !self.has_others {
            return Ok(if is_taken { Found::Exhausted(position) } else { found });
        }
        self.knows_marks |= plan.fingerprint(row) != Some(key);
        let is_borrowed = plan.fingerprint(row).is_some_and(|of| self.borrowed.contains_key(&of));
        let is_own = position < self.recorded.own();
        // Of others' rows each stands under both: which one was given then is not known.
        Ok(match is_taken || (is_borrowed && !is_own) {
            true if self.checks_ambiguity => Found::Ambiguous(position, position),
            _ if is_taken => Found::Exhausted(position),
            _ => found,
        })
    }

    /// Finds a row whose mark is not known, or used up, by its arguments: among those that have marks, then among
    /// those that have none, or not one of the same columns. Also says whether its answer must be that of the row
    /// it resembles, should it be new.
    fn by_arguments(
        &mut self,
        plan: &Plan,
        row: usize,
        known: Found,
        alone: &FingerprintMap<u32>,
    ) -> Result<(Found, bool)> {
        if self.is_new() {
            return Ok((known, plan.is_partial(row)));
        }
        let fingerprint = plan.fingerprint(row).unwrap_or_default();
        let (Matching::Indexed(index), Keys::Marks(told)) = (&mut self.matching, &mut self.keys) else {
            return misuse("a lookup without an index".to_owned());
        };
        let recorded = &mut self.recorded;
        let mut same = |a, b| recorded.same_value(a, b);
        let checks = self.checks_ambiguity;
        let is_marked = plan.keys().get(row) != Some(&fingerprint);
        if let (true, true, Some(own), Some(other)) =
            (self.has_others && checks, is_marked, told.first(fingerprint), index.first(fingerprint))
            && !same(own, other)?
        {
            return Ok((Found::Ambiguous(own, other), true));
        }
        let is_alone = alone.get(&fingerprint) == Some(&1);
        let marked = told.find(fingerprint, is_alone, self.may_lack_rows, checks.then_some(&mut same))?;
        if matches!(marked, Found::At(_) | Found::Ambiguous(..)) {
            return Ok((marked, true));
        }
        let unmarked = match is_marked {
            true => index.take(fingerprint, checks.then_some(&mut same))?,
            false => Found::Unknown,
        };
        if self.has_others && matches!(unmarked, Found::At(_)) {
            self.borrowed.insert(fingerprint, ());
        }
        Ok(match (unmarked, marked) {
            (Found::Unknown, Found::Unknown) => (known, plan.is_partial(row)),
            (Found::Unknown, marked) => (marked, true),
            (unmarked, _) => (unmarked, true),
        })
    }

    /// Adds one row to a plan's runs. `checks`: if it is new and resembles a recorded one, their answers must agree.
    fn place(plan: &mut Plan, row: usize, found: Found, checks: bool) -> Option<Ambiguous> {
        match found {
            Found::At(position) => {
                plan.runs.push(Run::Recorded { position, len: 1 });
                return None;
            }
            Found::Exhausted(position) if checks => plan.doubtful.push((plan.live.len(), position)),
            Found::Exhausted(_) | Found::Unknown => {}
            Found::Ambiguous(_, position) => {
                let fingerprint = plan.fingerprint(row).unwrap_or_default();
                return Some(Ambiguous { row: plan.first_row + row as u64, fingerprint, position });
            }
        }
        plan.runs.push(Run::Live { len: 1 });
        plan.live.push(index_u32(row));
        None
    }
}

/// How many rows of a batch have each arguments.
fn counted(fingerprints: &[u64]) -> FingerprintMap<u32> {
    let mut counts = FingerprintMap::default();
    fingerprints.iter().for_each(|fingerprint| *counts.entry(*fingerprint).or_default() += 1);
    counts
}
