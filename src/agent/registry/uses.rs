//! Which log belongs to which use of a function.
//!
//! A use is one place of the program where a causal function is applied, over what it is applied to there.
//! The place has a token, which the running program made up and which no other place has; the plan tells
//! over what, as a column, or the name of a function in SQL, may be used with two tables. The code of its
//! function is a hash over what that does and what it holds. Tokens do not outlive the program. What a
//! restarted program finds again is therefore decided here, for each operator in an epoch:
//!
//! 1. A use that has a log keeps it, also if the program asks again for a column that it made before. Over
//!    what is meant by its tables here, as Spark rewrites plans that are built on it. All that has its token in
//!    one plan is one use, as is all that has it in one micro-batch, or where a plan is not known.
//! 2. A use over the same plan as an earlier one of this run, by the same code, is that query made again, and is
//!    given its log. (Two tables in turn have two logs.)
//! 3. Uses are given the logs of the run before that were recorded by the same code over the same plan, in
//!    the order in which they were begun, or over one that is not known.
//! 4. A log over another plan is another query's: the program may have skipped that, or be about to ask it. A query that has only other numbers in it begins a log of its own, and takes rows that it does not
//!    find there from the logs of its shape that nobody has asked for: a number may be a clock's. It does not
//!    where numbers are known to tell queries apart, as in a loop over days that leaves out those that are
//!    done: where one run had two queries of this shape, or one was found again as it was.
//! 5. Logs that are left belong to code that is gone. A use without a log is given the first of them,
//!    so that replay refuses it as changed, and never another function's answers. If the user gave the
//!    operator its name, this goes for all logs of that name by other code, but those of the other uses in
//!    the plan. A query that comes later may have that code: then the log is its own after all.
//! 6. Otherwise it is new, and begins a log of its own.
//!
//! The first log of an operator has its name; the second is called `name#2`, and so on.

mod gone;
mod names;
mod places;
mod rdds;
mod search;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::{crossing::Crossing, layouts::Cuts, moved::Moved};
use crate::agent::protocol::{Code, Layout, Placed, Plan, Use};
use crate::id::{Epoch, EpochKey};
pub(crate) use names::name_of;
use names::parse;
use places::may_be_over;
use search::Search;

/// A use as the running program makes it: the code, what it is asked over, and how often that stands in the
/// plan up to it.
type Made = (Code, u64, usize);

/// Application and run: where a log was begun.
type Born = (u64, u32);

/// A use of the running program: its token, and the tables that it is asked over where the plan told that.
type Key = (u64, Option<u64>);

/// The log that a use has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bound {
    log: usize,
    search: Search,
    /// The code that asks.
    code: Code,
    /// Over what it is asked in this run, where known.
    plan: Option<Plan>,
    /// The execution whose plan it stands in, likewise.
    execution: Option<u64>,
}

impl Bound {
    const fn new(log: usize, search: Search) -> Self {
        Self { log, search, code: Code { fingerprint: 0, python: 0 }, plan: None, execution: None }
    }
}

/// One log of an operator.
#[derive(Debug, Clone, Copy)]
struct Log {
    code: Code,
    /// What it was first asked over, and how often that stood in its plan; not known of recovered logs.
    over: Option<(u64, usize)>,
    /// The same, as it is known after a restart too.
    plan: Option<Plan>,
    /// Whether the run before left it, and no use of this run has it yet.
    waiting: bool,
    /// Whether other code of this run has it, as its own seemed to be gone.
    is_replaced: bool,
    /// Whether anything of it was published: else nobody minds who has it.
    is_published: bool,
    /// Whether it was there before this run.
    earlier: bool,
    /// Whether only its place is known.
    is_gap: bool,
    born: Born,
}

#[derive(Debug, Default)]
struct Operator {
    logs: Vec<Log>,
    bound: BTreeMap<Key, Bound>,
    /// Logs of this run's uses, by code, by what they are asked over, and by how often that stands in one plan.
    made: HashMap<Made, usize>,
    /// Logs of the uses of earlier runs.
    before: BTreeMap<Key, Bound>,
    /// Shapes of the queries that this run has made as they were made before.
    found_again: HashSet<u32>,
    /// Which run of the epoch this is.
    run: u32,
}

/// The name of a use's log, and of others in which its rows may be recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) operator: Arc<str>,
    /// Logs in which rows may be that the first does not have.
    pub(super) others: Vec<Arc<str>>,
    /// Whether any of them could as well have been meant.
    pub(super) uncertain: bool,
    /// Whether the query has other numbers in it than when it was recorded.
    pub(super) changed: bool,
    /// What the log is recorded over, where known.
    pub(super) plan: Option<Plan>,
    /// The hash of the code that recorded it, if that is certainly another.
    pub(super) replaces: Option<u64>,
}

/// The uses of one epoch.
#[derive(Debug, Default)]
pub(super) struct Uses {
    operators: HashMap<Arc<str>, Operator>,
    /// Tables that are asked over, by execution and token, in the order of the plan.
    tables: HashMap<(u64, u64), Vec<u64>>,
    /// Executions whose plans are known.
    planned: HashSet<u64>,
    /// Executions of this run, and of those before it.
    executions: HashSet<u64>,
    ended: HashSet<u64>,
    /// Whether the epoch is one execution, which is never run again.
    is_execution: bool,
    /// Whether it is a micro-batch, whose tables are others in each run of it.
    is_batch: bool,
    /// Which run of the epoch this is.
    pub(super) run: u32,
    /// Whether there are logs of a run before.
    pub(super) is_again: bool,
    /// Rows that came to other tasks than before.
    pub(super) moved: Moved,
    /// How the tasks of each operator were cut.
    pub(super) cuts: HashMap<Arc<str>, Cuts>,
    pub(super) crossing: Crossing,
}

impl Uses {
    pub(super) fn of(epoch: &EpochKey) -> Self {
        let is_batch = matches!(epoch.epoch, Epoch::Batch(_));
        Self { is_execution: epoch.is_execution(), is_batch, ..Self::default() }
    }

    /// The program begins the epoch again: its uses have new tokens from now on.
    pub(super) fn begin_run(&mut self) {
        self.run += 1;
        self.is_again = true;
        self.planned.clear();
        self.ended.extend(self.executions.drain());
        for operator in self.operators.values_mut() {
            operator.before.append(&mut operator.bound);
            operator.made.clear();
            operator.found_again.clear();
            for log in &mut operator.logs {
                (log.waiting, log.is_replaced, log.earlier) = (!log.is_gap, false, true);
            }
        }
    }

    /// A log was found in a checkpoint.
    pub(super) fn recovered(&mut self, name: &str, layout: &Layout) {
        let (operator, index) = parse(name);
        self.is_again = true;
        let logs = &mut self.operators.entry(operator.into()).or_default().logs;
        while logs.len() <= index {
            // A log before the first that is found had nothing published: no use waits for it.
            logs.push(Log { is_gap: true, ..Log::new(Code::default(), None) });
        }
        if let Some(log) = logs.get_mut(index) {
            let plan = layout.plan.or(log.plan);
            let born = (layout.app, 0);
            let known = Log::new(layout.code, plan);
            *log = Log { waiting: true, earlier: true, is_published: true, born, ..known };
        }
    }

    /// Whether the plan of an execution should be asked for before this use is given a log.
    pub(super) fn wants_plan(&self, used: Use, execution: u64) -> bool {
        let known = self.planned.contains(&execution) || self.ended.contains(&execution);
        // Within one execution tokens say all.
        used.token != 0 && !self.is_execution && !known
    }

    /// Gives the uses of a plan their logs, in order. One that an earlier run has left behind gives none.
    pub(super) fn plan(&mut self, execution: u64, plan: &[Placed]) {
        if self.ended.contains(&execution) {
            return;
        }
        self.executions.insert(execution);
        self.planned.insert(execution);
        for placed in plan.iter().filter(|_| !self.is_batch) {
            let tables = self.tables.entry((execution, placed.used.token)).or_default();
            if !tables.contains(&placed.tables) {
                tables.push(placed.tables);
            }
        }
        let mut operators: Vec<&Arc<str>> = plan.iter().map(|placed| &placed.operator).collect();
        operators.sort();
        operators.dedup();
        for operator in operators {
            let mut tokens = HashSet::new();
            let uses = plan.iter().filter(|placed| placed.operator == *operator);
            let uses = uses.filter(|placed| tokens.insert(placed.used.token));
            let uses = uses.map(|placed| Asked {
                used: placed.used,
                tables: self.tables_of(placed.used, Some(execution)).to_vec(),
                over: Some(placed.over),
                plan: Some(self.known_by(placed.plan)),
                execution: Some(execution),
            });
            let uses: Vec<Asked> = uses.collect();
            let known = self.operators.entry(Arc::clone(operator)).or_default();
            known.run = self.run;
            known.bind_places(if self.is_batch { &uses } else { &[] });
            known.bind(uses, self.is_execution);
        }
    }

    /// One plan stands for all micro-batches of a query, each of which has files and numbers of its own.
    const fn known_by(&self, plan: Plan) -> Plan {
        if self.is_batch { plan.of_batch() } else { plan }
    }

    fn tables_of(&self, used: Use, execution: Option<u64>) -> &[u64] {
        let tables = execution.and_then(|execution| self.tables.get(&(execution, used.token)));
        tables.map_or(&[], Vec::as_slice)
    }

    /// The log of a use, which is given one now if it has none. `None` for a task that an earlier run has
    /// left behind, and which had no log then: it must not take one from this run's uses.
    pub(super) fn name(&mut self, operator: &Arc<str>, used: Use, execution: Option<u64>) -> Option<Named> {
        let tables = self.tables_of(used, execution).to_vec();
        if execution.is_some_and(|execution| self.ended.contains(&execution)) {
            return self.operators.get(operator)?.named(operator, used, &tables, |known| &known.before);
        }
        self.executions.extend(execution);
        let known = self.operators.entry(Arc::clone(operator)).or_default();
        if find(&known.bound, used.token, &tables).is_none() {
            known.run = self.run;
            let asked = Asked { used, tables: tables.clone(), over: None, plan: None, execution: None };
            known.bind(vec![asked], self.is_execution);
        }
        known.named(operator, used, &tables, |known| &known.bound)
    }

    /// The log of a use, if it has one. Exchanges ask, whose token is used over one table only.
    pub(super) fn find(&self, operator: &str, token: u64) -> Option<Arc<str>> {
        let bound = find(&self.operators.get(operator)?.bound, token, &[])?;
        Some(name_of(operator, bound.log))
    }
}

/// Finds a use by its tables: those that are deepest in the plan, where queries that are built on each other
/// agree. Where they are not known of one of the two, the token says all.
fn find(bound: &BTreeMap<Key, Bound>, token: u64, tables: &[u64]) -> Option<Bound> {
    let of_tables = tables.iter().rev().find_map(|tables| bound.get(&(token, Some(*tables))));
    let of_token = || bound.get(&(token, None));
    let any = || of_any(bound, token).min_by_key(|bound| bound.log).filter(|_| tables.is_empty());
    of_tables.or_else(of_token).or_else(any).copied()
}

/// All that has a token.
fn of_any(bound: &BTreeMap<Key, Bound>, token: u64) -> impl Iterator<Item = &Bound> {
    bound.range((token, None)..=(token, Some(u64::MAX))).map(|(_, bound)| bound)
}

/// A use of one plan: all that it is asked over, and the plan below it.
struct Asked {
    used: Use,
    tables: Vec<u64>,
    over: Option<u64>,
    plan: Option<Plan>,
    execution: Option<u64>,
}

impl Asked {
    /// Whether nothing tells that other code, or another query, recorded a log.
    fn may_be_of(&self, code: &Code, plan: Option<Plan>) -> bool {
        self.used.code.may_be(code) && self.plan.zip(plan).is_none()
    }
}

impl Log {
    const fn new(code: Code, plan: Option<Plan>) -> Self {
        Self {
            code,
            over: None,
            plan,
            waiting: false,
            is_replaced: false,
            is_published: false,
            earlier: false,
            is_gap: false,
            born: (0, 0),
        }
    }

    /// The code that recorded it, if that is not this.
    fn other_code(&self, code: Code) -> Option<u64> {
        (self.is_published && !self.code.may_be(&code)).then_some(self.code.fingerprint)
    }
}

impl Operator {
    /// The log of a use among those of a run, and the others in which its rows may be.
    fn named(
        &self,
        operator: &str,
        used: Use,
        tables: &[u64],
        of_run: impl Fn(&Self) -> &BTreeMap<Key, Bound>,
    ) -> Option<Named> {
        let run = of_run(self);
        let bound = find(run, used.token, tables)?;
        let mut logs: Vec<usize> = match tables {
            // The rows of any of them may be asked for, also of those of the run before.
            [] => {
                let all = of_any(run, used.token).chain(of_any(&self.before, used.token));
                all.map(|bound| bound.log).collect()
            }
            _ => {
                let of_tables = |tables: &u64| run.get(&(used.token, Some(*tables)));
                tables.iter().filter_map(of_tables).map(|bound| bound.log).collect()
            }
        };
        let of_uses = logs.iter().any(|&log| log != bound.log);
        let recorded = self.logs.get(bound.log).and_then(|log| log.plan);
        // As that over an empty table, which comes first.
        let is_moved = self.logs.iter().any(|log| log.is_gap);
        let searched = |log: &Log| {
            let both = recorded.zip(log.plan);
            let same_plan = both.is_some_and(|(ours, log)| ours.is_query(&log)) && (log.waiting || is_moved);
            let same_shape = both.is_some_and(|(ours, log)| ours.shape == log.shape) && log.waiting;
            let may_be = match bound.search {
                Search::Own => false,
                Search::SamePlan => same_plan,
                Search::SameShape => same_plan || same_shape,
                Search::All => may_be_over(recorded, log.plan),
            };
            may_be && log.earlier && log.code.may_be(&used.code)
        };
        logs.extend(self.logs.iter().enumerate().filter(|(_, log)| searched(log)).map(|(index, _)| index));
        logs.sort_unstable();
        logs.dedup();
        let others = logs.into_iter().filter(|&log| log != bound.log);
        Some(Named {
            operator: name_of(operator, bound.log),
            others: others.map(|log| name_of(operator, log)).collect(),
            uncertain: of_uses || bound.search == Search::All,
            changed: bound.plan.zip(recorded).is_some_and(|(asked, recorded)| !asked.is_query(&recorded)),
            plan: recorded,
            replaces: self.logs.get(bound.log).and_then(|log| log.other_code(used.code)),
        })
    }

    /// Gives logs to the uses of one plan, in its order; each is given with what it is asked over. An epoch
    /// that is one execution has no other plan, by which the user could mean the same operator.
    fn bind(&mut self, uses: Vec<Asked>, is_execution: bool) {
        let mut new: Vec<(&Asked, Option<Made>)> = Vec::new();
        let mut seen: HashMap<(Code, u64), usize> = HashMap::new();
        for asked in &uses {
            let Asked { used, tables, over, .. } = asked;
            let made = over.map(|over| {
                let times = seen.entry((used.code, over)).or_insert(0);
                *times += 1;
                (used.code, over, *times)
            });
            let certain = |log| Bound::new(log, Search::Own);
            let bound = find(&self.bound, used.token, tables);
            let before = || find(&self.before, used.token, tables).map(|bound| Bound { plan: None, ..bound });
            match bound.or_else(before).or_else(|| self.made_log(made).map(certain)) {
                Some(bound) => self.take(asked, bound, made),
                None => new.push((asked, made)),
            }
        }
        for known in [Self::same_plan, Self::same_query] {
            new.retain(|(asked, made)| match known(self, asked, *made) {
                Some(log) => {
                    self.found_again.extend(asked.plan.map(|plan| plan.shape));
                    self.take(asked, Bound::new(log, Search::Own), *made);
                    false
                }
                None => true,
            });
        }
        let mut left = Vec::new();
        let uncertain: Vec<bool> = new.iter().map(|(asked, _)| self.is_uncertain(asked, &new)).collect();
        for ((asked, made), uncertain) in new.into_iter().zip(uncertain) {
            let search = if uncertain { Search::All } else { Search::Own };
            let may_be = |log: &Log| log.waiting && asked.may_be_of(&log.code, log.plan);
            match self.logs.iter().position(may_be) {
                Some(log) => self.take(asked, Bound::new(log, search), made),
                None => left.push((asked, made)),
            }
        }
        let held = uses.iter().filter_map(|asked| find(&self.bound, asked.used.token, &asked.tables));
        let mut held: HashSet<usize> = held.map(|bound| bound.log).collect();
        for (asked, made) in left {
            let log = match self.has_its_shape(asked) {
                true => None,
                false => self.gone(asked.used, &held, is_execution),
            };
            let search = match log.is_none() && !self.numbers_count(asked) {
                true => Search::SameShape,
                false => Search::SamePlan,
            };
            let log = log.unwrap_or_else(|| {
                let born = (0, self.run);
                self.logs.push(Log { born, ..Log::new(asked.used.code, asked.plan) });
                self.logs.len() - 1
            });
            held.insert(log);
            self.take(asked, Bound::new(log, search), made);
        }
    }

    fn made_log(&self, made: Option<Made>) -> Option<usize> {
        self.made.get(&made?).copied()
    }

    /// A log that the run before left, by the same code over the same plan.
    fn same_plan(&self, _asked: &Asked, made: Option<Made>) -> Option<usize> {
        let (code, over, times) = made?;
        let same = |log: &Log| log.waiting && log.over == Some((over, times)) && log.code.may_be(&code);
        self.logs.iter().position(same)
    }

    /// A log that the run before left, by the same code over the same query: tables are others in each
    /// run where the program makes them.
    fn same_query(&self, asked: &Asked, _made: Option<Made>) -> Option<usize> {
        let plan = asked.plan?;
        let same = |log: &Log| {
            log.waiting
                && log.plan.is_some_and(|log| log.is_query(&plan))
                && log.code.may_be(&asked.used.code)
        };
        self.logs.iter().position(same)
    }

    /// Whether more logs wait that may be this use's than uses ask for them.
    fn is_uncertain(&self, asked: &Asked, uses: &[(&Asked, Option<Made>)]) -> bool {
        let may_be = |code, plan| asked.may_be_of(code, plan);
        let asking = uses.iter().filter(|(other, _)| may_be(&other.used.code, other.plan));
        let waiting = self.logs.iter().filter(|log| log.waiting && may_be(&log.code, log.plan));
        waiting.count() > asking.count()
    }

    /// A use keeps its log; over what it is asked is said by its last plan.
    fn keep(&mut self, key: Key, bound: Bound) {
        let known = self.bound.entry(key).or_insert(bound);
        known.plan = bound.plan.or(known.plan);
    }

    fn take(&mut self, asked: &Asked, bound: Bound, made: Option<Made>) {
        match self.logs.get_mut(bound.log) {
            Some(taken) if taken.code.may_be(&asked.used.code) => {
                taken.waiting = false;
                let was_replaced = std::mem::take(&mut taken.is_replaced);
                taken.over = taken.over.or(made.map(|(_, over, times)| (over, times)));
                taken.plan = taken.plan.or(asked.plan);
                if was_replaced {
                    self.give_back(bound.log, asked.used.code);
                }
            }
            Some(taken) => taken.is_replaced = true,
            None => {}
        }
        let token = asked.used.token;
        let bound = Bound { code: asked.used.code, plan: asked.plan, execution: asked.execution, ..bound };
        if asked.tables.is_empty() {
            self.keep((token, None), bound);
        }
        // All that a token is asked over in one plan is one use.
        for tables in &asked.tables {
            self.keep((token, Some(*tables)), bound);
        }
        if let Some(made) = made {
            self.made.entry(made).or_insert(bound.log);
        }
    }
}

#[cfg(test)]
mod tests;
