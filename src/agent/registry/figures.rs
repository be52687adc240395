//! What became of each operator, for people to look at.

use std::collections::BTreeMap;

use super::Registry;
use crate::agent::protocol::{OperatorStats, TaskStats, Totals};
use crate::id::TaskId;
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

impl Registry {
    /// Sums since the start.
    #[must_use]
    pub const fn totals(&self) -> Totals {
        self.totals
    }

    /// Sums since the start, by operator.
    #[must_use]
    pub fn operator_stats(&self) -> Vec<OperatorStats> {
        self.figures.all()
    }

    /// One line per task; sizes are filled in from the agents.
    #[must_use]
    pub fn task_stats(&self) -> Vec<(TaskId, TaskStats)> {
        self.tasks
            .iter()
            .map(|(task, entry)| {
                let stats = TaskStats {
                    task: task.to_string(),
                    operator: task.operator.to_string(),
                    partition: task.partition.0,
                    opens: entry.opens,
                    holders: self.infos(&entry.holders).into_iter().map(|info| info.addr).collect(),
                    bytes: 0,
                    spilled: 0,
                    sent: 0,
                    rows: entry.rows,
                    replayed: entry.replayed,
                    live: entry.live_rows,
                    lost: entry.lost,
                    in_flight: 0,
                    ran_live: entry.ran_live,
                    ran_replayed: entry.ran_replayed,
                    resent: entry.resent,
                };
                (task.clone(), stats)
            })
            .collect()
    }
}
