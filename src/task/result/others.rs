//! Rows that other tasks recorded.

use super::ResultTask;
use crate::error::{Divergence, DivergenceKind, Result};
use crate::task::header;
use crate::task::plan::{Plan, Run};
use crate::task::pool::{PoolQuestion, PoolRows};

impl ResultTask {
    /// Why no attempt of this stage may go on, if this one has met rows that nothing tells apart.
    #[must_use]
    pub fn refused(&self) -> Option<Box<Divergence>> {
        let failed = self.standing.failed()?;
        (failed.kind == DivergenceKind::AmbiguousRows).then(|| Box::new(failed.clone()))
    }

    /// Asks how many rows others have recorded, once, where an attempt before has taken some of them: else this one, which
    /// finds those in its own log, would not hear of it.
    pub(super) fn ask_count(
        &mut self,
        fingerprints: &[u64],
        ask: &mut impl FnMut(&[PoolQuestion], bool) -> Result<PoolRows>,
    ) -> Result<()> {
        if let Some(&fingerprint) = fingerprints.first().filter(|_| self.asks_count && !self.has_pool) {
            let rows = ask(&[PoolQuestion { fingerprint, from: 0, wanted: 0 }], false)?;
            self.matcher.hears_count(&rows);
            self.asks_count = false;
        }
        Ok(())
    }

    /// Asks for rows by their keys, if they have any, and for those that nobody knows by their arguments.
    pub(super) fn ask_others(
        &mut self,
        fingerprints: &[u64],
        keys: &[u64],
        ask: &mut impl FnMut(&[PoolQuestion], bool) -> Result<PoolRows>,
    ) -> Result<()> {
        if keys.is_empty() {
            return self.ask_pool(fingerprints.iter().copied(), ask);
        }
        self.ask_pool(keys.iter().copied(), ask)?;
        let rest = self.matcher.unknown(fingerprints, keys);
        self.ask_pool(rest.into_iter(), ask)
    }

    fn ask_pool(
        &mut self,
        fingerprints: impl Iterator<Item = u64>,
        ask: &mut impl FnMut(&[PoolQuestion], bool) -> Result<PoolRows>,
    ) -> Result<()> {
        let mut questions = self.matcher.questions(fingerprints);
        while !questions.is_empty() {
            let rows = ask(&questions, self.matcher.checks_ambiguity)?;
            let (headers, open) = self.matcher.add_pool(&questions, &rows)?;
            // Each is the last of some log.
            for recorded in &headers {
                header::check(std::slice::from_ref(recorded), &self.options, &mut self.standing)?;
            }
            questions = open;
        }
        Ok(())
    }

    /// Asks for the rows of a plan before it is decided, as they come in another order, and may be in other tasks than they
    /// were: one with the arguments of a row of the own log may be another, which moved in. Whose mark is known here did not.
    pub(super) fn ask_before(
        &mut self,
        plan: &Plan,
        ask: &mut impl FnMut(&[PoolQuestion], bool) -> Result<PoolRows>,
    ) -> Result<()> {
        let known = self.matcher.recorded.len();
        let doubtful = self.matcher.not_known_by_mark(plan);
        let of = |all: &[u64]| doubtful.iter().filter_map(|row| all.get(*row).copied()).collect::<Vec<u64>>();
        self.ask_others(&of(&plan.fingerprints), &of(&plan.keys), ask)?;
        self.has_found_others(known);
        Ok(())
    }

    /// Whether rows are looked for among others from now on, of which so many were known. Where nothing but what was asked
    /// says that rows may be elsewhere, they are not until one is found there, or who recorded did not come to all of them.
    pub(super) fn has_found_others(&mut self, known: usize) -> bool {
        let has_others =
            self.is_cut_otherwise() || self.matcher.recorded.len() > known || self.matcher.others_may_lack;
        self.has_pool |= has_others;
        self.matcher.has_others |= has_others;
        self.matcher.others_may_take |= has_others;
        has_others
    }

    /// Looks for a plan's live rows again, once rows of other partitions were supplied.
    pub(super) fn look_again(&mut self, mut plan: Plan) -> Result<Plan> {
        self.standing.check()?;
        let ambiguous = self.matcher.decide_live(&mut plan)?;
        self.seal(&mut plan, ambiguous)?;
        Ok(plan)
    }

    /// How many of a plan's rows the own log has.
    pub(super) fn own_rows(&self, plan: &Plan) -> usize {
        let own = |run: &Run| match *run {
            Run::Recorded { position, len } => self.matcher.own_part(position, len),
            Run::Live { .. } => 0,
        };
        plan.runs.as_slice().iter().map(own).sum()
    }

    /// Whether rows are known to be in other logs, too.
    pub(super) const fn is_cut_otherwise(&self) -> bool {
        self.options.layout_changed || self.options.pooled
    }
}
