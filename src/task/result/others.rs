//! Rows that other tasks recorded.

use super::ResultTask;
use crate::error::Result;
use crate::task::header;
use crate::task::plan::Plan;
use crate::task::pool::{PoolQuestion, PoolRows};

impl ResultTask {
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

    /// Looks for a plan's live rows again, once rows of other partitions were supplied.
    pub(super) fn look_again(&mut self, mut plan: Plan) -> Result<Plan> {
        self.standing.check()?;
        let ambiguous = self.matcher.decide_live(&mut plan)?;
        self.seal(&mut plan, ambiguous)?;
        Ok(plan)
    }

    /// Whether rows are known to be in other logs, too.
    pub(super) const fn is_cut_otherwise(&self) -> bool {
        self.options.layout_changed || self.options.pooled
    }
}
