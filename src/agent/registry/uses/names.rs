//! Names of the logs of one operator.

use std::sync::Arc;

use super::Uses;

/// Stands before the number of a log among those of one operator.
const NUMBER: char = '#';

/// The name of one of them, in the order of the plan.
pub(crate) fn name_of(operator: &str, index: usize) -> Arc<str> {
    match index {
        0 => operator.into(),
        _ => format!("{operator}{NUMBER}{}", index + 1).into(),
    }
}

/// Operator and index of a log's name.
pub(super) fn parse(name: &str) -> (&str, usize) {
    let numbered = name.rsplit_once(NUMBER).and_then(|(operator, number)| {
        let number: usize = number.parse().ok()?;
        Some((operator, number.checked_sub(1)?))
    });
    numbered.filter(|(_, index)| *index < LOGS_MAX).unwrap_or((name, 0))
}

impl Uses {
    /// First logs of the operators whose names begin so, which the run before left and none of this run has.
    pub(in crate::agent::registry) fn left_by(&self, beginning: &str) -> Vec<Arc<str>> {
        let is_left = |operator: &Arc<str>| {
            let known = self.operators.get(operator);
            known.and_then(|known| known.logs.first()).is_some_and(|log| log.waiting && !log.is_replaced)
        };
        self.operators.keys().filter(|name| name.starts_with(beginning) && is_left(name)).cloned().collect()
    }
}

/// Most logs of one operator in an epoch that a name from a file is believed.
const LOGS_MAX: usize = 1 << 16;
