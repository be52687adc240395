//! Logs that have numbers, and the places in a plan that they are of.

use std::collections::BTreeSet;

use super::names::parse;
use super::search::Search;
use super::{Asked, Bound, Operator, Uses, find};
use crate::agent::protocol::Plan;

/// Whether both may be one query, if perhaps with other numbers in it.
pub(super) fn may_be_over(one: Option<Plan>, other: Option<Plan>) -> bool {
    one.zip(other).is_none_or(|(one, other)| one.shape == other.shape)
}

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

impl Operator {
    /// Gives logs to the uses of a stream's plan by their places: it has one plan, in which nothing but the place tells two
    /// sources of one kind apart. The log of a place that recorded nothing is its use's all the same, unless the program
    /// has fewer uses than it had.
    pub(super) fn bind_places(&mut self, uses: &[Asked]) {
        let has_all = uses.len() >= self.logs.len();
        for (place, asked) in uses.iter().enumerate() {
            let Asked { used, tables, plan, .. } = asked;
            let has_log =
                [&self.bound, &self.before].iter().any(|run| find(run, used.token, tables).is_some());
            let Some(log) = self.logs.get_mut(place).filter(|_| !has_log) else { continue };
            let is_same = log.waiting && log.code.may_be(&used.code) && may_be_over(log.plan, *plan);
            if is_same || log.is_gap && has_all {
                (log.is_gap, log.code) = (false, used.code);
                self.take(asked, Bound::new(place, Search::Own), None);
            }
        }
    }
}
