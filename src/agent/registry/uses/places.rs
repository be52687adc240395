//! Whether logs that have numbers are of the same places in every epoch.

use std::collections::BTreeSet;

use super::Uses;
use super::names::parse;

impl Uses {
    /// Whether an operator's logs stand for the same places in each epoch: there is one, or the plan of one execution
    /// has them all, in its order.
    pub(in crate::agent::registry) fn are_of_places(&self, operator: &str) -> bool {
        let Some(known) = self.operators.get(parse(operator).0) else { return true };
        let logs: BTreeSet<usize> = known.bound.values().map(|bound| bound.log).collect();
        let mut executions = known.bound.values().map(|bound| bound.execution);
        let first = executions.next().flatten();
        logs.iter().copied().eq(0..logs.len())
            && (logs.len() == 1 || first.is_some() && executions.all(|execution| execution == first))
    }
}
