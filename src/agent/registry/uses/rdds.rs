//! Uses that are RDDs: no plan tells them apart, but the program makes them in its order.

use std::sync::Arc;

use super::{Asked, Uses};
use crate::agent::protocol::{Plan, Use};

/// Tables of no query: tells an RDD's place in the program from a plan.
const OF_RDD: u32 = u32::from_be_bytes(*b"RDDs");

impl Uses {
    /// The program has made an RDD by a function. It has the log of the one that was as many before it in the run before,
    /// whichever of their tasks comes first.
    pub(in crate::agent::registry) fn rdd_is_made(&mut self, operator: &Arc<str>, used: Use) {
        let known = self.operators.entry(Arc::clone(operator)).or_default();
        known.run = self.run;
        let is_rdd = |plan: Option<Plan>| plan.is_some_and(|plan| plan.data == OF_RDD);
        let place = known.bound.values().filter(|bound| is_rdd(bound.plan)).count();
        let place = u32::try_from(place).unwrap_or(u32::MAX);
        let plan = Some(Plan { exact: place, shape: place, data: OF_RDD });
        let asked = Asked { used, tables: Vec::new(), over: None, plan, execution: None };
        known.bind(vec![asked], self.is_execution);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::protocol::Code;
    use crate::agent::registry::uses::Named;
    use crate::id::{Epoch, EpochKey};

    fn used(token: u64) -> Use {
        Use { code: Code { fingerprint: 7, python: 0x030b }, token, named: false }
    }

    fn named(uses: &mut Uses, token: u64) -> Named {
        uses.name(&"f".into(), used(token), None).unwrap()
    }

    #[test]
    fn rdds_have_their_logs_by_the_order_in_which_they_were_made() {
        let epoch = EpochKey { query: "batch".into(), epoch: Epoch::Named("daily".into()) };
        let mut uses = Uses::of(&epoch);
        let operator: Arc<str> = "f".into();
        for token in [1, 2] {
            uses.rdd_is_made(&operator, used(token));
        }
        let first = [2, 1].map(|token| named(&mut uses, token));
        assert_eq!(first.each_ref().map(|named| &*named.operator), ["f#2", "f"]);
        for named in &first {
            uses.published(&named.operator);
        }
        for tokens in [[11, 12], [21, 22]] {
            uses.begin_run();
            for token in tokens {
                uses.rdd_is_made(&operator, used(token));
            }
            for (token, before) in [(tokens[1], &first[0]), (tokens[0], &first[1])] {
                let again = named(&mut uses, token);
                assert_eq!(again.operator, before.operator);
                assert!(!again.uncertain && again.others.is_empty(), "{again:?}");
            }
        }
        // One that is not made any more leaves its log to nobody.
        uses.begin_run();
        uses.rdd_is_made(&operator, used(31));
        assert_eq!(&*named(&mut uses, 31).operator, "f");
        uses.rdd_is_made(&operator, used(32));
        uses.rdd_is_made(&operator, used(33));
        assert_eq!(&*named(&mut uses, 33).operator, "f#3");
    }
}
