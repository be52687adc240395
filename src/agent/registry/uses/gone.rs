//! Logs of code that is gone, or seems to be: the program may not have come to it yet.

use std::collections::HashSet;

use super::names::parse;
use super::{Operator, Uses};
use crate::agent::protocol::{Code, Use};

impl Operator {
    /// A log of code that is gone, so that replay refuses the use as changed. It goes on waiting for its own code, which a
    /// later query may have.
    pub(super) fn gone(&self, used: Use, held: &HashSet<usize>, is_execution: bool) -> Option<usize> {
        self.logs.iter().enumerate().position(|(index, log)| {
            let is_meant = used.named && !is_execution && !held.contains(&index);
            !log.code.may_be(&used.code) && (log.waiting && !log.is_replaced || is_meant)
        })
    }
}

impl Uses {
    /// A task of this code came to its end over a log: the user has accepted the change. From now on it is that one's.
    pub(in crate::agent::registry) fn accepted(&mut self, name: &str, code: Code) {
        let (operator, index) = parse(name);
        let log = self.operators.get_mut(operator).and_then(|operator| operator.logs.get_mut(index));
        if let Some(log) = log.filter(|log| log.is_replaced && !log.code.may_be(&code)) {
            (log.code, log.waiting) = (code, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{in_query, name, recorded};
    use super::*;
    use crate::agent::protocol::Layout;

    #[test]
    fn what_was_given_to_other_code_is_still_its_owners() {
        let mut uses = Uses::default();
        uses.recovered("f", &recorded(1, 10, 10));
        // A cell that was not there before, over the same rows or others; then the one that was.
        uses.plan(7, &[in_query(2, 20, 10, 10)]);
        assert_eq!(name(&mut uses, 2, 20), "f", "which is refused");
        uses.plan(8, &[in_query(1, 21, 10, 10)]);
        assert_eq!(name(&mut uses, 1, 21), "f");
        // Nobody else is to be refused for it.
        uses.plan(9, &[in_query(3, 22, 10, 10)]);
        assert_eq!(name(&mut uses, 3, 22), "f#2");
    }

    #[test]
    fn two_that_changed_are_not_given_one_log() {
        let mut uses = Uses::default();
        for operator in ["f", "f#2"] {
            uses.recovered(operator, &recorded(1, 10, 10));
        }
        uses.plan(7, &[in_query(2, 20, 10, 10), in_query(3, 21, 10, 10)]);
        assert_eq!([name(&mut uses, 2, 20), name(&mut uses, 3, 21)], ["f", "f#2"]);
    }

    #[test]
    fn a_change_that_was_accepted_is_not_undone() {
        let mut uses = Uses::default();
        uses.recovered("f", &recorded(1, 10, 10));
        uses.plan(7, &[in_query(2, 20, 10, 10)]);
        let Layout { code, .. } = recorded(2, 10, 10);
        uses.accepted("f", code);
        uses.plan(8, &[in_query(1, 21, 10, 10)]);
        assert_eq!(name(&mut uses, 1, 21), "f#2");
        assert_eq!(name(&mut uses, 2, 20), "f");
    }
}
