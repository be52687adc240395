//! Which log belongs to which use of a function.
//!
//! A use is one place of the program where a causal function is applied, over what it is applied to there.
//! The place has a token, which the running program made up and which no other place has; the plan tells
//! over what, as a column, or the name of a function in SQL, may be used with two tables. The code of its
//! function is a hash over what that does and what it holds. Tokens do not outlive the program. What a
//! restarted program finds again is therefore decided here, for each operator in an epoch:
//!
//! 1. A use that has a log keeps it, also if the program asks again for a column that it made before.
//!    Where the plan is not known, all that has its token is one use, as is all that has it in one plan.
//! 2. A use over the same plan as an earlier one of this run, by the same code, is that query made again, and is
//!    given its log. (Two tables in turn have two logs.)
//! 3. Uses are given the logs of the run before that were recorded by the same code: those that were
//!    recorded over the same plan, if that is known, and the others in the order in which they stand in
//!    the plan.
//! 4. Logs that are left belong to code that is gone. A use without a log is given the first of them,
//!    so that replay refuses it as changed, and never another function's answers. If the user gave the
//!    operator its name, this goes for all logs of that name by other code, but those of the other uses in
//!    the plan.
//! 5. Otherwise it is new, and begins a log of its own.
//!
//! The first log of an operator has its name; the second is called `name#2`, and so on.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use crate::agent::protocol::{Code, Placed, Use};
use crate::id::EpochKey;

/// Stands before the number of a log among those of one operator.
const NUMBER: char = '#';

/// A use as the running program makes it: the code, what it is asked over, and how often that stands in the
/// plan up to it.
type Made = (Code, u64, usize);

/// A use of the running program: its token, and what it is asked over where the plan told that.
type Key = (u64, Option<u64>);

/// The log that a use has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bound {
    log: usize,
    /// Whether another log of the same code could as well have been meant.
    uncertain: bool,
}

/// One log of an operator.
#[derive(Debug, Clone, Copy)]
struct Log {
    code: Code,
    /// What it was first asked over, and how often that stood in its plan; not known of recovered logs.
    over: Option<(u64, usize)>,
    /// Whether the run before left it, and no use of this run has it yet.
    waiting: bool,
    /// Whether it was there before this run.
    earlier: bool,
}

#[derive(Debug, Default)]
struct Operator {
    logs: Vec<Log>,
    bound: BTreeMap<Key, Bound>,
    /// Logs of this run's uses, by code, by what they are asked over, and by how often that stands in one plan.
    made: HashMap<Made, usize>,
    /// Logs of the uses of earlier runs.
    before: BTreeMap<Key, Bound>,
}

/// The name of a use's log, and of others in which its rows may be recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) operator: Arc<str>,
    /// Logs of the same code of which any could have been meant.
    pub(super) others: Vec<Arc<str>>,
}

/// The uses of one epoch.
#[derive(Debug, Default)]
pub(super) struct Uses {
    operators: HashMap<Arc<str>, Operator>,
    /// What is asked over by execution and token, in the order of the plan.
    overs: HashMap<(u64, u64), Vec<u64>>,
    /// Executions whose plans are known.
    planned: HashSet<u64>,
    /// Executions of this run, and of those before it.
    executions: HashSet<u64>,
    ended: HashSet<u64>,
    /// Whether the epoch is one execution, which is never run again.
    is_execution: bool,
    /// Which run of the epoch this is.
    pub(super) run: u32,
}

impl Uses {
    pub(super) fn of(epoch: &EpochKey) -> Self {
        Self { is_execution: epoch.is_execution(), ..Self::default() }
    }

    /// The program begins the epoch again: its uses have new tokens from now on.
    pub(super) fn begin_run(&mut self) {
        self.run += 1;
        self.planned.clear();
        self.ended.extend(self.executions.drain());
        for operator in self.operators.values_mut() {
            operator.before.append(&mut operator.bound);
            operator.made.clear();
            for log in &mut operator.logs {
                log.waiting = true;
                log.earlier = true;
            }
        }
    }

    /// A log was found in a checkpoint.
    pub(super) fn recovered(&mut self, name: &str, code: Code) {
        let (operator, index) = parse(name);
        let logs = &mut self.operators.entry(operator.into()).or_default().logs;
        while logs.len() <= index {
            // A log before the first that is found had nothing published: no use waits for it.
            logs.push(Log { code: Code::default(), over: None, waiting: false, earlier: false });
        }
        if let Some(log) = logs.get_mut(index) {
            *log = Log { code, over: None, waiting: true, earlier: true };
        }
    }

    /// Whether the plan of an execution should be asked for before this use is given a log.
    pub(super) fn wants_plan(&self, used: Use, execution: u64) -> bool {
        let known = self.planned.contains(&execution) || self.ended.contains(&execution);
        // Within one execution, tokens say all; and nobody finds its uses again.
        used.token != 0 && !self.is_execution && !known
    }

    /// Gives the uses of a plan their logs, in order. One that an earlier run has left behind gives none.
    pub(super) fn plan(&mut self, execution: u64, plan: &[Placed]) {
        if self.ended.contains(&execution) {
            return;
        }
        self.executions.insert(execution);
        self.planned.insert(execution);
        for placed in plan {
            let overs = self.overs.entry((execution, placed.used.token)).or_default();
            if !overs.contains(&placed.over) {
                overs.push(placed.over);
            }
        }
        let mut operators: Vec<&Arc<str>> = plan.iter().map(|placed| &placed.operator).collect();
        operators.sort();
        operators.dedup();
        for operator in operators {
            let mut tokens = HashSet::new();
            let uses = plan.iter().filter(|placed| placed.operator == *operator).map(|placed| placed.used);
            let uses = uses.filter(|used| tokens.insert(used.token));
            let uses = uses.map(|used| (used, self.overs_of(used, Some(execution)).to_vec())).collect();
            self.operators.entry(Arc::clone(operator)).or_default().bind(uses, self.is_execution);
        }
    }

    fn overs_of(&self, used: Use, execution: Option<u64>) -> &[u64] {
        let overs = execution.and_then(|execution| self.overs.get(&(execution, used.token)));
        overs.map_or(&[], Vec::as_slice)
    }

    /// The log of a use, which is given one now if it has none. `None` for a task that an earlier run has
    /// left behind, and which had no log then: it must not take one from this run's uses.
    pub(super) fn name(&mut self, operator: &Arc<str>, used: Use, execution: Option<u64>) -> Option<Named> {
        let overs = self.overs_of(used, execution).to_vec();
        if execution.is_some_and(|execution| self.ended.contains(&execution)) {
            return self.operators.get(operator)?.named(operator, used, &overs, |known| &known.before);
        }
        self.executions.extend(execution);
        let known = self.operators.entry(Arc::clone(operator)).or_default();
        if find(&known.bound, used.token, &overs).is_none() {
            known.bind(vec![(used, overs.clone())], self.is_execution);
        }
        known.named(operator, used, &overs, |known| &known.bound)
    }

    /// The log of a use, if it has one. Exchanges ask, whose token is used over one table only.
    pub(super) fn find(&self, operator: &str, token: u64) -> Option<Arc<str>> {
        let bound = find(&self.operators.get(operator)?.bound, token, &[])?;
        Some(name_of(operator, bound.log))
    }
}

/// Finds a use by what it is asked over: by what is deepest in the plan, where queries that are built on each
/// other agree. Where that is not known of one of the two, the token says all.
fn find(bound: &BTreeMap<Key, Bound>, token: u64, overs: &[u64]) -> Option<Bound> {
    let of_over = overs.iter().rev().find_map(|over| bound.get(&(token, Some(*over))));
    let of_token = || bound.get(&(token, None));
    let any = || {
        let of_token = bound.range((token, None)..=(token, Some(u64::MAX))).map(|(_, bound)| bound);
        of_token.min_by_key(|bound| bound.log).filter(|_| overs.is_empty())
    };
    of_over.or_else(of_token).or_else(any).copied()
}

impl Operator {
    /// The log of a use among those of a run, and the others in which its rows may be.
    fn named(
        &self,
        operator: &str,
        used: Use,
        overs: &[u64],
        of_run: impl Fn(&Self) -> &BTreeMap<Key, Bound>,
    ) -> Option<Named> {
        let bound = find(of_run(self), used.token, overs)?;
        let mut logs: Vec<usize> = overs
            .iter()
            .filter_map(|over| of_run(self).get(&(used.token, Some(*over))))
            .map(|b| b.log)
            .collect();
        if bound.uncertain {
            let same_code = |log: &Log| log.earlier && log.code.may_be(&used.code);
            logs.extend(
                self.logs.iter().enumerate().filter(|(_, log)| same_code(log)).map(|(index, _)| index),
            );
        }
        logs.sort_unstable();
        logs.dedup();
        let others = logs.into_iter().filter(|&log| log != bound.log);
        Some(Named {
            operator: name_of(operator, bound.log),
            others: others.map(|log| name_of(operator, log)).collect(),
        })
    }

    /// Gives logs to the uses of one plan, in its order; each is given with what it is asked over. An epoch
    /// that is one execution has no other plan, by which the user could mean the same operator.
    fn bind(&mut self, uses: Vec<(Use, Vec<u64>)>, is_execution: bool) {
        let mut new: Vec<(Use, Option<Made>)> = Vec::new();
        let mut seen: HashMap<(Code, u64), usize> = HashMap::new();
        for (used, overs) in &uses {
            let made = overs.last().map(|&over| {
                let times = seen.entry((used.code, over)).or_insert(0);
                *times += 1;
                (used.code, over, *times)
            });
            let bound = find(&self.bound, used.token, overs);
            let before =
                || find(&self.before, used.token, overs).map(|bound| Bound { uncertain: false, ..bound });
            let of_made = || Some(Bound { log: self.made_log(made)?, uncertain: false });
            match bound.or_else(before).or_else(of_made) {
                Some(bound) => self.take(*used, bound.log, bound.uncertain, made),
                None => new.push((*used, made)),
            }
        }
        new.retain(|(used, made)| match self.same_plan(*used, *made) {
            Some(log) => {
                self.take(*used, log, false, *made);
                false
            }
            None => true,
        });
        let mut left = Vec::new();
        let certain = self.certain(&new);
        for (used, made) in new {
            match self.logs.iter().position(|log| log.waiting && log.code.may_be(&used.code)) {
                Some(log) => self.take(used, log, !certain.contains(&used.code), made),
                None => left.push((used, made)),
            }
        }
        let mut held: HashSet<usize> = uses
            .iter()
            .filter_map(|(used, overs)| find(&self.bound, used.token, overs))
            .map(|b| b.log)
            .collect();
        for (used, made) in left {
            let gone = |(index, log): (usize, &Log)| {
                let replaced = used.named && !is_execution && !log.code.may_be(&used.code);
                log.waiting || (replaced && !held.contains(&index))
            };
            let log = self.logs.iter().enumerate().position(gone).unwrap_or_else(|| {
                self.logs.push(Log { code: used.code, over: None, waiting: false, earlier: false });
                self.logs.len() - 1
            });
            held.insert(log);
            self.take(used, log, false, made);
        }
        for (used, overs) in uses {
            self.bind_all(used.token, &overs);
        }
    }

    /// All that a token is asked over in one plan is one use.
    fn bind_all(&mut self, token: u64, overs: &[u64]) {
        let Some(bound) = find(&self.bound, token, overs) else { return };
        for over in overs {
            self.bound.entry((token, Some(*over))).or_insert(bound);
        }
        if !overs.is_empty() {
            // What it had been asked over was not known before.
            self.bound.remove(&(token, None));
        }
    }

    fn made_log(&self, made: Option<Made>) -> Option<usize> {
        self.made.get(&made?).copied()
    }

    /// A log that the run before left, by the same code over the same plan.
    fn same_plan(&self, used: Use, made: Option<Made>) -> Option<usize> {
        let (_, over, times) = made?;
        let same = |log: &Log| log.waiting && log.over == Some((over, times)) && log.code.may_be(&used.code);
        self.logs.iter().position(same)
    }

    /// Codes of which no more logs wait than uses ask: which is whose is certain then.
    fn certain(&self, uses: &[(Use, Option<Made>)]) -> HashSet<Code> {
        let asking = |code: Code| uses.iter().filter(|(used, _)| used.code.may_be(&code)).count();
        let waiting =
            |code: Code| self.logs.iter().filter(|log| log.waiting && log.code.may_be(&code)).count();
        uses.iter().map(|(used, _)| used.code).filter(|code| waiting(*code) <= asking(*code)).collect()
    }

    fn take(&mut self, used: Use, log: usize, uncertain: bool, made: Option<Made>) {
        if let Some(taken) = self.logs.get_mut(log) {
            taken.waiting = false;
            taken.over = taken.over.or(made.map(|(_, over, times)| (over, times)));
        }
        let over = made.map(|(_, over, _)| over);
        self.bound.entry((used.token, over)).or_insert(Bound { log, uncertain });
        if let Some(made) = made {
            self.made.entry(made).or_insert(log);
        }
    }
}

fn name_of(operator: &str, index: usize) -> Arc<str> {
    match index {
        0 => operator.into(),
        _ => format!("{operator}{NUMBER}{}", index + 1).into(),
    }
}

/// Operator and index of a log's name.
fn parse(name: &str) -> (&str, usize) {
    let numbered = name.rsplit_once(NUMBER).and_then(|(operator, number)| {
        let number: usize = number.parse().ok()?;
        Some((operator, number.checked_sub(1)?))
    });
    numbered.filter(|(_, index)| *index < LOGS_MAX).unwrap_or((name, 0))
}

/// Most logs of one operator in an epoch that a name from a file is believed.
const LOGS_MAX: usize = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Epoch;

    fn code(fingerprint: u64) -> Code {
        Code { fingerprint, python: 0x030b }
    }

    fn used(fingerprint: u64, token: u64) -> Use {
        Use { code: code(fingerprint), token, named: false }
    }

    fn placed(fingerprint: u64, token: u64) -> Placed {
        // Over a table of its own, as it were.
        asked_over(fingerprint, token, token)
    }

    fn asked_over(fingerprint: u64, token: u64, over: u64) -> Placed {
        Placed { operator: "f".into(), used: used(fingerprint, token), over }
    }

    fn name(uses: &mut Uses, fingerprint: u64, token: u64) -> String {
        uses.name(&"f".into(), used(fingerprint, token), None).unwrap().operator.to_string()
    }

    #[test]
    fn each_use_has_a_log_of_its_own_and_keeps_it() {
        let mut uses = Uses::default();
        assert_eq!(name(&mut uses, 1, 10), "f");
        assert_eq!(name(&mut uses, 1, 11), "f#2");
        assert_eq!(name(&mut uses, 1, 10), "f");
    }

    #[test]
    fn the_order_of_the_plan_decides_not_who_asks_first() {
        let mut uses = Uses::default();
        uses.plan(7, &[placed(1, 10), placed(1, 11)]);
        assert_eq!(name(&mut uses, 1, 11), "f#2");
        assert_eq!(name(&mut uses, 1, 10), "f");
    }

    #[test]
    fn functions_are_found_again_by_their_code_in_any_order() {
        let mut uses = Uses::default();
        uses.plan(7, &[placed(1, 10), placed(100, 11)]);
        uses.begin_run();
        uses.plan(8, &[placed(100, 20), placed(1, 21)]);
        assert_eq!(name(&mut uses, 100, 20), "f#2");
        assert_eq!(name(&mut uses, 1, 21), "f");
    }

    #[test]
    fn changed_code_is_given_the_log_of_the_code_that_is_gone() {
        let mut uses = Uses::default();
        uses.plan(7, &[placed(1, 10), placed(2, 11)]);
        uses.begin_run();
        // 2 is still there; 3 stands where 1 stood.
        uses.plan(8, &[placed(3, 20), placed(2, 21)]);
        assert_eq!(name(&mut uses, 3, 20), "f");
        assert_eq!(name(&mut uses, 2, 21), "f#2");
    }

    #[test]
    fn under_a_name_that_the_user_gave_other_code_is_changed_code_at_once() {
        let mut uses = Uses::default();
        let named = |fingerprint, token| Use { named: true, ..used(fingerprint, token) };
        let placed = |used| Placed { operator: "f".into(), used, over: 0 };
        uses.plan(7, &[placed(named(1, 10)), placed(named(2, 11))]);
        assert_eq!(name(&mut uses, 2, 11), "f#2");
        uses.plan(8, &[placed(named(3, 20))]);
        assert_eq!(name(&mut uses, 3, 20), "f");
    }

    #[test]
    fn two_tables_in_turn_have_two_logs_under_a_name_that_the_user_gave_too() {
        let mut uses = Uses::default();
        let named = |token, over| {
            let used = Use { named: true, ..used(1, token) };
            Placed { operator: "f".into(), used, over }
        };
        uses.plan(7, &[named(10, 1)]);
        uses.plan(8, &[named(11, 2)]);
        assert_eq!([10, 11].map(|token| name(&mut uses, 1, token)), ["f", "f#2"]);
    }

    #[test]
    fn a_function_that_had_no_log_yet_is_new_if_all_logs_are_accounted_for() {
        let mut uses = Uses::default();
        uses.plan(7, &[placed(1, 10)]);
        uses.begin_run();
        uses.plan(8, &[placed(2, 20), placed(1, 21)]);
        assert_eq!(name(&mut uses, 2, 20), "f#2");
        assert_eq!(name(&mut uses, 1, 21), "f");
    }

    #[test]
    fn where_several_logs_of_one_code_wait_all_are_searched() {
        let mut uses = Uses::default();
        uses.plan(7, &[placed(1, 10)]);
        uses.plan(8, &[placed(1, 11)]);
        uses.begin_run();
        let first = uses.name(&"f".into(), used(1, 20), None).unwrap();
        assert_eq!((&*first.operator, first.others), ("f", vec!["f#2".into()]));
        let last = uses.name(&"f".into(), used(1, 21), None).unwrap();
        assert_eq!((&*last.operator, last.others.is_empty()), ("f#2", true));
    }

    #[test]
    fn two_tables_in_turn_are_told_apart_in_the_next_run() {
        let mut uses = Uses::default();
        uses.plan(7, &[asked_over(1, 10, 5)]);
        uses.plan(8, &[asked_over(1, 11, 6)]);
        uses.begin_run();
        // In another order.
        uses.plan(9, &[asked_over(1, 20, 6)]);
        uses.plan(10, &[asked_over(1, 21, 5)]);
        let named = |uses: &mut Uses, token| uses.name(&"f".into(), used(1, token), None).unwrap();
        assert_eq!(named(&mut uses, 20), Named { operator: "f#2".into(), others: vec![] });
        assert_eq!(named(&mut uses, 21), Named { operator: "f".into(), others: vec![] });
    }

    #[test]
    fn a_query_that_is_made_again_has_the_logs_it_had() {
        let mut uses = Uses::default();
        uses.plan(7, &[asked_over(1, 10, 5), asked_over(1, 11, 5)]);
        uses.plan(8, &[asked_over(1, 20, 6)]);
        uses.plan(9, &[asked_over(1, 30, 5), asked_over(1, 31, 5)]);
        assert_eq!(
            [10, 11, 20, 30, 31].map(|token| name(&mut uses, 1, token)),
            ["f", "f#2", "f#3", "f", "f#2"]
        );
    }

    #[test]
    fn a_column_made_before_keeps_its_log_in_the_next_run() {
        let mut uses = Uses::default();
        assert_eq!(name(&mut uses, 1, 10), "f");
        assert_eq!(name(&mut uses, 1, 11), "f#2");
        uses.begin_run();
        assert_eq!(name(&mut uses, 1, 11), "f#2");
        assert_eq!(name(&mut uses, 1, 20), "f");
    }

    #[test]
    fn a_column_over_two_tables_is_two_uses() {
        let mut uses = Uses::default();
        let f = "f".into();
        uses.plan(7, &[asked_over(1, 10, 5)]);
        uses.plan(8, &[asked_over(1, 10, 6)]);
        uses.plan(9, &[asked_over(1, 10, 5)]);
        let of = |uses: &mut Uses, execution| uses.name(&f, used(1, 10), Some(execution)).unwrap();
        assert_eq!(
            [7, 8, 9].map(|execution| of(&mut uses, execution).operator),
            ["f", "f#2", "f"].map(Arc::from)
        );
        // The next run may ask in another order, of the same column or of another.
        uses.begin_run();
        uses.plan(10, &[asked_over(1, 10, 6)]);
        uses.plan(11, &[asked_over(1, 20, 5)]);
        assert_eq!(&*of(&mut uses, 10).operator, "f#2");
        assert_eq!(name(&mut uses, 1, 20), "f");
        // A task of the run before still has its own.
        assert_eq!(&*of(&mut uses, 8).operator, "f#2");
    }

    #[test]
    fn a_use_is_one_where_only_one_of_its_plans_is_known() {
        let mut uses = Uses::default();
        assert_eq!(name(&mut uses, 1, 10), "f");
        uses.plan(7, &[asked_over(1, 10, 5)]);
        uses.plan(8, &[asked_over(1, 10, 6)]);
        let f = "f".into();
        let logs = [Some(7), Some(8), None].map(|execution| uses.name(&f, used(1, 10), execution).unwrap());
        assert_eq!(logs.map(|log| log.operator), ["f", "f#2", "f"].map(Arc::from));
    }

    #[test]
    fn a_column_is_one_use_wherever_it_stands_in_a_query() {
        let mut uses = Uses::default();
        let f = "f".into();
        let of = |uses: &mut Uses, execution| uses.name(&f, used(1, 10), Some(execution)).unwrap();
        let alone = |operator: &str| Named { operator: operator.into(), others: vec![] };
        // What is filtered by it, and what is then shown with it.
        uses.plan(7, &[asked_over(1, 10, 5)]);
        uses.plan(8, &[asked_over(1, 10, 6), asked_over(1, 10, 5)]);
        uses.plan(9, &[asked_over(1, 10, 6)]);
        assert_eq!([7, 8, 9].map(|execution| of(&mut uses, execution)), ["f"; 3].map(alone));
        uses.begin_run();
        // In another order, and of another column.
        uses.plan(10, &[asked_over(1, 20, 6), asked_over(1, 20, 5)]);
        uses.plan(11, &[asked_over(1, 20, 5)]);
        assert_eq!(name(&mut uses, 1, 20), "f");
        assert_eq!(uses.name(&f, used(1, 20), Some(11)).unwrap(), alone("f"));
    }

    #[test]
    fn a_column_over_two_tables_in_turn_and_then_in_one_query_searches_both_logs() {
        let mut uses = Uses::default();
        uses.plan(7, &[asked_over(1, 10, 5)]);
        uses.plan(8, &[asked_over(1, 10, 6)]);
        uses.plan(9, &[asked_over(1, 10, 5), asked_over(1, 10, 6)]);
        let both = uses.name(&"f".into(), used(1, 10), Some(9)).unwrap();
        assert_eq!(both, Named { operator: "f#2".into(), others: vec!["f".into()] });
    }

    #[test]
    fn an_execution_that_is_an_epoch_needs_no_plan() {
        let epoch = EpochKey { query: "app:1".into(), epoch: Epoch::Named("sql-7".into()) };
        let mut uses = Uses::of(&epoch);
        assert!(!uses.wants_plan(used(1, 10), 7));
        // Two functions under a name that the user gave are two, though no plan has said so.
        let named = |fingerprint, token| Use { named: true, ..used(fingerprint, token) };
        let two = [(1, 20), (2, 21), (1, 20)];
        let two = two.map(|(code, token)| uses.name(&"g".into(), named(code, token), Some(7)).unwrap());
        assert_eq!(two.map(|named| named.operator), ["g", "g#2", "g"].map(Arc::from));
    }

    #[test]
    fn a_task_that_a_run_left_behind_takes_nothing_from_the_next() {
        let mut uses = Uses::default();
        let f = "f".into();
        uses.name(&f, used(1, 10), Some(7)).unwrap();
        uses.begin_run();
        let late = uses.name(&f, used(1, 10), Some(7)).unwrap();
        assert_eq!(&*late.operator, "f");
        assert_eq!(uses.name(&f, used(1, 11), Some(7)), None);
        // Nor does its plan, which told more uses than those that had begun.
        assert!(!uses.wants_plan(used(1, 11), 7));
        uses.plan(7, &[placed(1, 10), placed(1, 11)]);
        assert_eq!(&*uses.name(&f, used(1, 20), Some(8)).unwrap().operator, "f");
    }

    #[test]
    fn logs_of_a_checkpoint_wait_for_their_uses() {
        let mut uses = Uses::default();
        uses.recovered("f#2", code(5));
        uses.recovered("f", code(4));
        uses.plan(1, &[placed(5, 1), placed(4, 2)]);
        assert_eq!(name(&mut uses, 5, 1), "f#2");
        assert_eq!(name(&mut uses, 4, 2), "f");
    }

    #[test]
    fn what_was_not_published_leaves_its_place_empty() {
        let mut uses = Uses::default();
        uses.recovered("f#2", code(2));
        uses.plan(1, &[placed(1, 1), placed(2, 2)]);
        assert_eq!(name(&mut uses, 2, 2), "f#2");
        assert_eq!(name(&mut uses, 1, 1), "f#3");
    }

    #[test]
    fn another_python_version_makes_other_bytecode_of_the_same_function() {
        let mut uses = Uses::default();
        uses.recovered("f", Code { fingerprint: 9, python: 0x030c });
        assert_eq!(name(&mut uses, 1, 1), "f");
    }
}
