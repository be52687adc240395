//! What an opener is given: the log of its use, and the part of it that is this opener's.

use std::ops::Range;
use std::sync::Arc;

use super::uses::Uses;
use super::{Opener, Registry};
use crate::agent::protocol::{OpenTask, Placed};
use crate::id::{Epoch, EpochKey, Generation, IN_FLIGHT, Partition, TaskId};

impl Registry {
    /// Which of its attempt's openers this is, and what is known of it. Each has a part of the log, and the first that asks
    /// the first: one task opens several where `coalesce` has it compute several partitions, or where a column was used
    /// twice. Of an RDD all have the same log.
    pub(super) fn opener(&self, first: &TaskId, open: &OpenTask) -> (usize, Option<Opener>) {
        let (entry, attempt) = (self.tasks.get(first), (open.app, open.attempt));
        let openers = entry.and_then(|entry| entry.attempts.get(&attempt)).map_or(&[][..], Vec::as_slice);
        let before = entry.map_or(0, |entry| entry.forgotten_parts(attempt));
        let known = (before..).zip(openers).find(|(_, opener)| opener.worker == open.worker);
        known.map_or((before + openers.len(), None), |(number, opener)| (number, Some(*opener)))
    }

    /// An attempt is over, as its agent says; what was known of who opened it.
    pub(super) fn opener_is_over(&mut self, task: &TaskId, generation: Generation) -> Option<Opener> {
        let first = TaskId { operator: first_part(&task.operator).into(), ..task.clone() };
        let openers = self.tasks.get_mut(&first)?.attempts.values_mut().flatten();
        let opener = openers.into_iter().find(|opener| opener.generation == generation)?;
        let known = *opener;
        opener.is_over = true;
        Some(known)
    }

    pub(super) fn uses_of(&mut self, task: &TaskId) -> &mut Uses {
        let epoch = task.epoch_key();
        self.uses.entry(epoch).or_insert_with_key(Uses::of)
    }

    /// Logs like this one of other operators whose names begin so, which the run before left and nobody has asked for.
    #[must_use]
    pub fn left_by(&self, task: &TaskId, beginning: &str) -> Vec<TaskId> {
        let left = self.uses.get(&task.epoch_key()).map(|uses| uses.left_by(beginning)).unwrap_or_default();
        left.into_iter().map(|operator| TaskId { operator, ..task.clone() }).collect()
    }

    /// Whether the plan of the task's execution is to be told, with [`Registry::planned`], before the
    /// task is granted.
    #[must_use]
    pub fn wants_plan(&mut self, open: &OpenTask) -> bool {
        let Some(execution) = open.execution.filter(|_| self.is_of_this_run(open)) else { return false };
        let of_query = self.plans.get(&open.task.query).filter(|_| execution.id == execution.root).cloned();
        let uses = self.uses_of(&open.task);
        if let Some(plan) = of_query
            && uses.wants_plan(open.used, execution.id)
            && plan.iter().any(|placed| placed.used == open.used)
        {
            // All batches of a query have one plan, whose first execution told it.
            uses.plan(execution.id, &plan);
        }
        uses.wants_plan(open.used, execution.id)
    }

    /// The uses of the task's execution, in the order in which they stand in its plan; `None` if that is not
    /// known, nor will be.
    pub fn planned(&mut self, open: &OpenTask, plan: Option<Vec<Placed>>) {
        let Some(execution) = open.execution else { return };
        self.uses_of(&open.task).plan(execution.id, plan.as_deref().unwrap_or_default());
        let Some(plan) = plan else { return };
        if matches!(open.task.epoch, Epoch::Batch(_)) && execution.id == execution.root {
            self.plans.insert(Arc::clone(&open.task.query), plan);
        }
    }

    /// The program begins an epoch (or all those of a query, without one) anew: its uses are matched
    /// with the logs that there are.
    pub fn begin_run(&mut self, query: &str, epoch: Option<&Epoch>) {
        self.plans.remove(query);
        if epoch.is_none() {
            // It may go on some batches back.
            self.batches.remove(query);
            if let Some(run) = self.runs.get_mut(query) {
                run.ended = run.newest;
            }
            self.states.begin_run(query, self.newest);
        }
        for (key, uses) in &mut self.uses {
            if &*key.query == query && epoch.is_none_or(|epoch| *epoch == key.epoch) {
                uses.begin_run();
            }
        }
    }

    /// Whether a task is of the run that its query is in, and not left behind by one before: it would have epochs
    /// committed, and states go back, that are of this one.
    pub(super) fn is_of_this_run(&mut self, open: &OpenTask) -> bool {
        self.is_of_run(&open.task.query, &open.task.epoch, open.execution.map(|execution| execution.id))
    }

    fn is_of_run(&mut self, query: &Arc<str>, epoch: &Epoch, execution: Option<u64>) -> bool {
        if !matches!(epoch, Epoch::Batch(_)) || execution.is_none() {
            return true;
        }
        let run = self.runs.entry(Arc::clone(query)).or_default();
        if execution <= run.ended {
            return false;
        }
        run.newest = run.newest.max(execution);
        true
    }

    /// The run of a named epoch that is begun now has this number: tasks of another one are refused from now on, and
    /// its own once it has ended, whether or not it is committed.
    pub fn stamp(&mut self, epoch: EpochKey, stamp: u64) {
        self.stamps.insert(epoch, stamp);
    }

    /// That run has ended.
    pub fn end_run(&mut self, epoch: &EpochKey) {
        self.stamps.remove(epoch);
    }

    /// Whether what says that it is of such a run, or in an execution of a batch, was not left behind by a run before.
    pub fn runs_now(&mut self, epoch: &EpochKey, stamp: u64, execution: Option<u64>) -> bool {
        self.is_of_run(&epoch.query, &epoch.epoch, execution) && self.admits(epoch, stamp)
    }

    /// Whether a task that says that it is of such a run may record in an epoch.
    #[must_use]
    pub fn admits(&self, epoch: &EpochKey, stamp: u64) -> bool {
        stamp == 0 || self.stamps.get(epoch) == Some(&stamp)
    }
}

/// Stands before the number of a part.
const PART: char = '~';
/// The next character in order.
const AFTER_PART: char = '\u{7f}';

/// A part of a task, as a task of its own; the first keeps its name.
pub(super) fn part_of(task: &TaskId, part: usize) -> TaskId {
    if part == 0 {
        return task.clone();
    }
    TaskId { operator: format!("{}{PART}{part}", task.operator).into(), ..task.clone() }
}

/// The first part of a task's operator, and where all logs of its other parts stand, among others'.
pub(super) fn parts_of(task: &TaskId) -> (TaskId, Range<TaskId>) {
    let named = |operator: String| TaskId { operator: operator.into(), ..task.clone() };
    let first = first_part(&task.operator);
    let begin = |end: char| TaskId {
        epoch: Epoch::Batch(0),
        partition: Partition(0),
        ..named(format!("{first}{end}"))
    };
    (named(first.to_owned()), begin(PART)..begin(AFTER_PART))
}

/// The name of the part that this is a part of.
pub(crate) fn first_part(operator: &str) -> &str {
    let name = operator.strip_suffix(IN_FLIGHT).unwrap_or(operator);
    match name.rsplit_once(PART) {
        Some((first, part)) if part.parse::<usize>().is_ok() => first,
        _ => name,
    }
}

/// Which of a task's parts this is, the first of them being 0.
#[must_use]
pub fn number_of_part(operator: &str) -> u32 {
    let name = operator.strip_suffix(IN_FLIGHT).unwrap_or(operator);
    name.rsplit_once(PART).and_then(|(_, part)| part.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::protocol::{AgentInfo, Ending, Execution, Grant, Left, Sent, Use};
    use crate::agent::registry::Granted;
    use crate::id::AgentId;
    use crate::task::Summary;

    const AGENT: AgentId = AgentId(1);

    fn asked(registry: &mut Registry, number: u64, attempt: u64, worker: u64) -> Option<Grant> {
        let task = TaskId {
            query: "q".into(),
            operator: "f".into(),
            epoch: Epoch::Batch(1),
            partition: Partition(0),
        };
        let (used, execution, app, stage) = (Use::default(), None, 1, 1);
        let open = OpenTask {
            task,
            used,
            execution,
            app,
            stage,
            attempt,
            worker,
            inside: false,
            stamp: 0,
            of_rdd: None,
        };
        match registry.grant(&open, Sent { by: AGENT, number }, 0, None, 0) {
            Granted::Yes(grant) => Some(*grant),
            Granted::Left | Granted::Unknown => None,
            Granted::Busy | Granted::Crossed | Granted::Twice | Granted::Refused(_) => {
                panic!("it is one stage")
            }
        }
    }

    #[test]
    fn a_request_that_is_repeated_is_granted_the_same_and_one_that_is_late_nothing() {
        let registry = &mut Registry::new();
        let mut ask =
            |number, attempt, worker| asked(registry, number, attempt, worker).map(|given| given.generation);
        let first = ask(1, 1, 1);
        assert!(first.is_some());
        assert_eq!(ask(1, 1, 1), first);
        let second = ask(3, 1, 1);
        assert!(second > first);
        assert_eq!((ask(1, 1, 1), ask(3, 1, 1)), (None, second));
        // Others' requests may arrive in any order.
        let third = ask(2, 2, 2);
        assert!(third > second);
        // What was granted to it is over, so it is another attempt.
        let again = ask(3, 1, 1);
        assert!(again > third);
        // The second part of the attempt has a log of its own.
        let part = ask(4, 1, 9);
        assert!(part > again);
        assert_eq!((ask(3, 1, 1), ask(4, 1, 9)), (again, part));
    }

    #[test]
    fn a_request_that_comes_once_more_opens_nothing_once_its_attempt_is_over() {
        for has_ended in [true, false] {
            let mut registry = Registry::new();
            let first = asked(&mut registry, 1, 1, 1).unwrap();
            if has_ended {
                let left = Left { by: AGENT, lost: false, end: None };
                let (summary, ending) = (Summary::default(), Ending::default());
                registry.closed(&first.task, first.generation, &summary, ending, left).unwrap();
            } else {
                registry.over(AGENT, &[(first.task.clone(), first.generation)]);
            }
            assert!(asked(&mut registry, 1, 1, 1).is_none());
            assert_eq!(registry.tasks[&first.task].generation, first.generation);
            assert!(asked(&mut registry, 2, 1, 1).is_some());
        }
    }

    #[test]
    fn nothing_is_granted_at_an_agent_that_was_declared_dead() {
        let mut registry = Registry::new();
        let (addr, host) = (String::new(), String::new());
        registry.register(AgentInfo { id: AGENT, addr, host, driver: false }, "", 0);
        assert!(asked(&mut registry, 1, 1, 1).is_some());
        assert!(registry.is_dead(AGENT, false, 60_000));
        assert!(asked(&mut registry, 1, 1, 1).is_none() && asked(&mut registry, 2, 1, 1).is_none());
    }

    #[test]
    fn each_part_of_an_attempt_has_its_log_however_many_attempts_there_were() {
        let mut registry = Registry::new();
        let (addr, host) = (String::new(), String::new());
        registry.register(AgentInfo { id: AGENT, addr, host, driver: false }, "", 0);
        let mut number = 0;
        let mut ask = |registry: &mut Registry, attempt, part| {
            number += 1;
            asked(registry, number, attempt, 10 * attempt + part).unwrap()
        };
        let close = |registry: &mut Registry, grant: &Grant| {
            let (summary, ending) = (Summary::default(), Ending { done: true, ..Ending::default() });
            let left = Left { by: AGENT, lost: false, end: None };
            registry.closed(&grant.task, grant.generation, &summary, ending, left).unwrap();
        };
        let mut begun = 0;
        for attempt in 2..3_000 {
            for part in 0..3 {
                let grant = ask(&mut registry, attempt, part);
                assert_eq!(u64::from(number_of_part(&grant.task.operator)), part, "attempt {attempt}");
                close(&mut registry, &grant);
            }
            // One is between two parts while very many others come and go.
            if attempt % 1_100 == 300 && begun < 3 {
                let grant = ask(&mut registry, 1, begun);
                assert_eq!(u64::from(number_of_part(&grant.task.operator)), begun);
                close(&mut registry, &grant);
                begun += 1;
            }
        }
        assert_eq!(begun, 3);
        assert!(registry.tasks.values().all(|entry| entry.attempts.len() <= 1_024));
    }

    #[test]
    fn an_attempt_of_which_nothing_is_known_any_more_is_refused() {
        let mut registry = Registry::new();
        registry.register(AgentInfo { id: AGENT, addr: "1".into(), host: "1".into(), driver: false }, "", 0);
        let mut number = 0;
        let mut ask = |registry: &mut Registry, attempt, part| {
            number += 1;
            let grant = asked(registry, number, attempt, 10 * attempt + part)?;
            let (summary, ending) = (Summary::default(), Ending { done: true, ..Ending::default() });
            let left = Left { by: AGENT, lost: false, end: None };
            registry.closed(&grant.task, grant.generation, &summary, ending, left).unwrap();
            Some(number_of_part(&grant.task.operator))
        };
        for attempt in 1..7_000 {
            assert_eq!(ask(&mut registry, attempt, 0), Some(0));
        }
        assert_eq!(ask(&mut registry, 1, 1), None);
        assert_eq!(
            [5_000, 6_900, 7_001].map(|attempt| ask(&mut registry, attempt, 1)),
            [Some(1), Some(1), Some(0)]
        );
    }

    #[test]
    fn an_attempt_with_something_open_stays_known_however_many_come_after_it() {
        let mut registry = Registry::new();
        registry.register(AgentInfo { id: AGENT, addr: "1".into(), host: "1".into(), driver: false }, "", 0);
        let mut number = 0;
        let mut ask = |registry: &mut Registry, attempt, part| {
            number += 1;
            asked(registry, number, attempt, 10 * attempt + part).unwrap()
        };
        let close = |registry: &mut Registry, grant: &Grant| {
            let (summary, ending) = (Summary::default(), Ending { done: true, ..Ending::default() });
            let left = Left { by: AGENT, lost: false, end: None };
            registry.closed(&grant.task, grant.generation, &summary, ending, left).unwrap();
        };
        let first = ask(&mut registry, 1, 0);
        close(&mut registry, &first);
        for attempt in 2..9_000 {
            let others = ask(&mut registry, attempt, 0);
            close(&mut registry, &others);
            if attempt == 2_000 {
                // What it has had before is not known by its openers any more, but by their number.
                let second = ask(&mut registry, 1, 1);
                assert_eq!(number_of_part(&second.task.operator), 1);
            }
        }
        // The answer was lost, and it asks again; then for what comes next.
        let again = ask(&mut registry, 1, 1);
        assert_eq!(number_of_part(&again.task.operator), 1);
        close(&mut registry, &again);
        assert_eq!(number_of_part(&ask(&mut registry, 1, 2).task.operator), 2);
    }

    #[test]
    fn what_a_run_has_left_behind_is_not_of_the_one_that_is_under_way() {
        let mut registry = Registry::new();
        let named = EpochKey { query: "batch".into(), epoch: Epoch::Named("daily".into()) };
        registry.stamp(named.clone(), 7);
        assert!(registry.runs_now(&named, 7, None) && !registry.runs_now(&named, 5, None));
        registry.end_run(&named);
        assert!(!registry.runs_now(&named, 7, None));
        let batch = EpochKey { query: "q".into(), epoch: Epoch::Batch(1) };
        assert!(registry.runs_now(&batch, 0, Some(3)));
        registry.begin_run("q", None);
        assert!(!registry.runs_now(&batch, 0, Some(3)) && registry.runs_now(&batch, 0, Some(4)));
    }

    #[test]
    fn that_a_log_is_to_be_disregarded_is_told_until_nobody_has_it_any_more() {
        let mut registry = Registry::new();
        let first = asked(&mut registry, 1, 1, 1).unwrap();
        assert!(!first.reopened && first.discarded.is_none());
        registry.discarded(&first.task, first.generation).unwrap();
        let ask = |registry: &mut Registry, number, worker| {
            let grant = asked(registry, number, worker, worker).unwrap();
            assert!(grant.reopened);
            grant.discarded
        };
        let discarded = Some(first.generation);
        // It may be that none of them has heard of it.
        for (number, worker) in [(2, 2), (2, 2), (3, 2), (4, 3)] {
            assert_eq!(ask(&mut registry, number, worker), discarded);
        }
        registry.forgotten(&first.task, Generation(first.generation.0 - 1));
        assert_eq!(ask(&mut registry, 5, 3), discarded);
        registry.forgotten(&first.task, first.generation);
        assert_eq!(ask(&mut registry, 6, 4), None);
    }

    #[test]
    fn the_first_attempt_is_the_first_also_if_it_asks_twice() {
        let mut registry = Registry::new();
        assert!(!asked(&mut registry, 1, 1, 1).unwrap().reopened);
        assert!(!asked(&mut registry, 1, 1, 1).unwrap().reopened);
        assert_eq!(registry.totals.opens, 1);
    }

    #[test]
    fn what_an_earlier_run_has_left_behind_is_not_asked_for_its_plan() {
        let mut registry = Registry::new();
        let mut is_asked = |execution, begins: bool| {
            if begins {
                registry.begin_run("q", None);
            }
            let (query, operator) = ("q".into(), "f".into());
            let task = TaskId { query, operator, epoch: Epoch::Batch(1), partition: Partition(0) };
            let (used, execution) =
                (Use { token: 1, ..Use::default() }, Some(Execution { id: execution, root: execution }));
            let (app, stage, attempt, worker) = (1, 1, 1, 1);
            let open = OpenTask {
                task,
                used,
                execution,
                app,
                stage,
                attempt,
                worker,
                inside: false,
                stamp: 0,
                of_rdd: None,
            };
            registry.wants_plan(&open)
        };
        assert!(is_asked(5, false) && is_asked(4, false));
        assert!(!is_asked(5, true) && !is_asked(4, false));
        assert!(is_asked(6, false) && is_asked(6, false));
        assert!(!is_asked(6, true));
    }
}
