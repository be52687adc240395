//! In which logs a row is looked for, and what is known of queries that differ in their numbers.

use std::collections::HashMap;

use super::{Asked, Born, Operator};
use crate::agent::protocol::Plan;

/// In which logs of the run before a use's rows may be, besides its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Search {
    /// In none.
    Own,
    /// In those over the same plan, if one that has nothing published may have been given its log.
    SamePlan,
    /// In those, and in those over a plan of the same shape that nobody has asked for.
    SameShape,
    /// In any that could as well have been meant.
    All,
}

impl Operator {
    /// Logs by the same code over queries that are the same but for the numbers in them, and in which run of
    /// which application each was begun.
    fn of_its_shape<'a>(&'a self, asked: &'a Asked) -> impl Iterator<Item = (Plan, Born)> + 'a {
        let same_code = self.logs.iter().filter(|log| log.code.may_be(&asked.used.code));
        let plans = same_code.filter_map(|log| Some((asked.plan?, log.plan?, log.born)));
        plans.filter(|(ours, log, _)| ours.shape == log.shape).map(|(_, log, born)| (log, born))
    }

    pub(super) fn has_its_shape(&self, asked: &Asked) -> bool {
        self.of_its_shape(asked).next().is_some()
    }

    /// Whether the numbers in a query are known to tell it from others of its shape: one run had both. Those of
    /// different runs may be a clock's.
    pub(super) fn numbers_count(&self, asked: &Asked) -> bool {
        if asked.plan.is_some_and(|plan| self.found_again.contains(&plan.shape)) {
            return true;
        }
        let mut of_run: HashMap<Born, Plan> = HashMap::new();
        self.of_its_shape(asked).any(|(plan, born)| !of_run.entry(born).or_insert(plan).is_query(&plan))
    }
}
