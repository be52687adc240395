//! What became of each operator, for people to look at.

use std::collections::BTreeMap;

use crate::agent::protocol::OperatorStats;
use crate::task::Summary;

/// Operators that are told apart; what a program adds past that is counted as one.
const OPERATORS_MAX: usize = 1_024;
/// Name under which those are counted.
const OTHERS: &str = "(others)";

/// Sums by operator.
#[derive(Debug, Default)]
pub(super) struct Figures {
    operators: BTreeMap<String, OperatorStats>,
}

impl Figures {
    /// An attempt came to its end, or stopped.
    pub(super) fn closed(&mut self, operator: &str, summary: &Summary, lost: bool) {
        let known = self.operators.contains_key(operator) || self.operators.len() < OPERATORS_MAX;
        let name = if known { operator } else { OTHERS };
        let figures = self
            .operators
            .entry(name.to_owned())
            .or_insert_with(|| OperatorStats { operator: name.to_owned(), ..OperatorStats::default() });
        figures.attempts += 1;
        figures.rows += summary.rows;
        figures.replayed += summary.replayed;
        figures.live += summary.live;
        figures.calls += summary.calls;
        figures.saved += summary.saved;
        figures.bytes += summary.bytes;
        figures.lost += u64::from(lost);
        figures.call_ns += summary.live_ns;
    }

    /// Sums of all operators, by name.
    pub(super) fn all(&self) -> Vec<OperatorStats> {
        self.operators.values().cloned().collect()
    }
}
