//! Logs of code that is gone, or seems to be: the program may not have come to it yet.

use std::collections::HashSet;

use super::names::parse;
use super::{Log, Operator, Uses};
use crate::agent::protocol::{Code, Use};

impl Operator {
    /// A log of code that is gone, so that replay refuses the use as changed. It goes on waiting for its own code, which a
    /// later query may have.
    pub(super) fn gone(&self, used: Use, held: &HashSet<usize>, is_execution: bool) -> Option<usize> {
        let is_other = |log: &Log| !log.code.may_be(&used.code);
        let left = self.logs.iter().position(|log| is_other(log) && log.waiting && !log.is_replaced);
        let meant = || {
            let mut all = self.logs.iter().enumerate();
            all.position(|(index, log)| {
                is_other(log) && used.named && !is_execution && !held.contains(&index)
            })
        };
        left.or_else(meant)
    }

    /// The code that recorded a log has come: what else was given it is new, and has none of its own.
    pub(super) fn give_back(&mut self, log: usize, to: Code) {
        let is_others = |at: usize, code: &Code| at == log && !to.may_be(code);
        self.bound.retain(|_, bound| !is_others(bound.log, &bound.code));
        self.before.retain(|_, bound| !is_others(bound.log, &bound.code));
        self.made.retain(|(code, ..), at| !is_others(*at, code));
    }
}

impl Uses {
    fn log(&mut self, name: &str) -> Option<&mut Log> {
        let (operator, index) = parse(name);
        self.operators.get_mut(operator)?.logs.get_mut(index)
    }

    /// Something of a log was published.
    pub(in crate::agent::registry) fn published(&mut self, name: &str) {
        if let Some(log) = self.log(name) {
            log.is_published = true;
        }
    }

    /// A task of this code came to its end over a log, which none does that is told of other code unless the user has
    /// accepted the change. From now on it is that one's.
    pub(in crate::agent::registry) fn accepted(&mut self, name: &str, code: Code) {
        let log = self.log(name);
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
        // By now it is known that this one is new, and that nobody else is to be refused for it.
        uses.plan(9, &[in_query(2, 20, 10, 10)]);
        assert_eq!(name(&mut uses, 2, 20), "f#2");
        uses.plan(9, &[in_query(3, 22, 10, 10)]);
        assert_eq!(name(&mut uses, 3, 22), "f#3");
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
