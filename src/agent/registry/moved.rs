//! Rows that came to another task than the one that recorded them.
//!
//! A task asks for what its own log does not have. Where the tasks of a run are cut otherwise than those of
//! the run before, though they are as many (a file more, other splits), one of them asks for what another
//! has recorded, and that one is not asked for it. Neither can see both; here both are seen.

use std::collections::HashMap;
use std::sync::Arc;

use super::Registry;
use super::parts::first_part;
use crate::agent::protocol::Layout;
use crate::error::{Divergence, DivergenceKind, Error, Result};
use crate::id::{Generation, Partition, TaskId};
use crate::task::Summary;

const ADVICE: &str = "rows have moved from task to task, or the input changed, and some were asked again, so that \
     this epoch can only be given up. Another one should be begun again with the files and settings that it had";

const SHARED_ADVICE: &str = "tasks were cut otherwise before all rows were recorded, and some rows with equal \
     arguments have one answer, so that this epoch can only be given up. Name the columns that tell its rows apart \
     with row_key=, or leave the number of partitions as it is until the epoch is committed; before a union of a \
     frame with itself, have all of its rows asked by an action over it alone, behind a shuffle";

/// Some rows of a partition.
type Rows = (Partition, u64);

/// What tasks of one stage have said at their end.
#[derive(Debug, Default)]
struct Stage {
    unasked: Option<Rows>,
    live: Option<Rows>,
    /// How many tasks it has, where known.
    tasks: Option<u32>,
    /// By operator, with its part, and partition.
    parts: HashMap<(Arc<str>, Partition), Part>,
    /// Rows that all of them answered with what other layouts have recorded.
    taken: u64,
    /// The same, if they are known to be those rows.
    marked: u64,
    /// How many of these there are.
    known: u64,
}

/// A task of a stage, or a part of one.
#[derive(Debug, Default)]
struct Part {
    is_done: bool,
    /// Whether that was an attempt beside a newer one, whose end says nothing of the rows then.
    beside: bool,
    /// Whether a later attempt has it open.
    is_open: bool,
    /// How many rows had come when it was done.
    rows: u64,
    /// Its share of [`Stage::taken`].
    taken: u64,
    /// Its share of [`Stage::marked`].
    marked: u64,
}

impl Stage {
    /// Whether all its tasks came to their end. What a task still has to open nobody knows.
    fn is_whole(&self) -> bool {
        let is_first = |(operator, _): &&(Arc<str>, Partition)| first_part(operator) == &**operator;
        let tasks = || self.parts.keys().filter(is_first).count();
        self.tasks.is_some_and(|of| tasks() >= of as usize)
            && self.parts.values().all(|part| part.is_done && !part.is_open)
    }
}

/// What tasks of an epoch have said at their end.
#[derive(Debug, Default)]
pub(super) struct Moved {
    /// By operator, application and stage.
    stages: HashMap<(Arc<str>, u64, u32), Stage>,
    /// Operators whose rows have moved: the epoch can't come to its end any more, also if it is tried again
    /// by tasks that find what was asked twice in their logs.
    refused: HashMap<Arc<str>, Divergence>,
    /// Those of them that nobody has written down yet.
    unwritten: Vec<Divergence>,
}

impl Moved {
    /// A task came to its end, in an epoch that was begun before: in its first run, it has nothing that could
    /// be asked for twice.
    pub(super) fn ended(&mut self, task: &TaskId, layout: &Layout, summary: &Summary) {
        let Summary { unasked, live, .. } = *summary;
        let operator = first_part(&task.operator);
        if unasked > 0 || live > 0 {
            let stage = self.stage(task, layout);
            let rows = |count| (count > 0).then_some((task.partition, count));
            stage.unasked = stage.unasked.or_else(|| rows(unasked));
            stage.live = stage.live.or_else(|| rows(live));
            if let Some(((from, unasked), (to, live))) = stage.unasked.zip(stage.live) {
                let divergence = Divergence {
                    kind: DivergenceKind::RowsChanged,
                    task: TaskId { operator: operator.into(), partition: to, ..task.clone() },
                    row: None,
                    recorded: format!("{unasked} rows of partition {from} that did not come"),
                    asked: format!("{live} rows that are not recorded here"),
                    advice: ADVICE.to_owned(),
                };
                self.refuse_anew(divergence);
            }
        }
    }

    fn stage(&mut self, task: &TaskId, layout: &Layout) -> &mut Stage {
        let key = (first_part(&task.operator).into(), layout.app, layout.stage);
        self.stages.entry(key).or_insert_with(|| Stage { tasks: layout.tasks, ..Stage::default() })
    }

    fn part(&mut self, task: &TaskId, layout: &Layout) -> &mut Part {
        let key = (Arc::clone(&task.operator), task.partition);
        self.stage(task, layout).parts.entry(key).or_default()
    }

    /// An attempt of a task begins. One before it may have come to an end in vain, as its input broke off.
    pub(super) fn opened(&mut self, task: &TaskId, layout: &Layout) {
        self.part(task, layout).is_open = true;
    }

    /// The last attempt of a task came to its end, or is over without: Spark tries one twice at the same time, and ends
    /// the slower.
    pub(super) fn closed(&mut self, task: &TaskId, layout: &Layout, is_done: bool, rows: u64) {
        let part = self.part(task, layout);
        part.is_open = false;
        let was_beside = std::mem::take(&mut part.beside);
        if is_done {
            (part.is_done, part.rows) = (true, rows);
        } else if rows > part.rows || (rows == 0 && !was_beside) {
            // Of one that died nobody knows how many came.
            part.is_done = false;
        }
    }

    /// An attempt came to its end when a newer one was granted: what that comes to does not undo it.
    pub(super) fn done_beside(&mut self, task: &TaskId, layout: &Layout, rows: u64) {
        let part = self.part(task, layout);
        (part.is_done, part.beside, part.rows) = (true, true, part.rows.max(rows));
    }

    /// Whether some other stage than that of a task has recorded all of its operator's rows.
    pub(super) fn is_whole(&self, task: &TaskId, layout: &Layout) -> bool {
        let operator = first_part(&task.operator);
        self.stages.iter().any(|((of, app, stage), known)| {
            &**of == operator && (*app, *stage) != (layout.app, layout.stage) && known.is_whole()
        })
    }

    /// A task came to its end that took answers of another layout, or of `pooled`, other queries of its shape. Where rows
    /// may be missing there, all tasks of its stage together have no more of them than there are: else several rows with
    /// equal arguments have one answer, as nobody sees which of them was recorded.
    pub(super) fn took(&mut self, task: &TaskId, layout: &Layout, summary: &Summary, pooled: &[Arc<str>]) {
        let part = self.part(task, layout);
        let more = summary.taken.saturating_sub(part.taken);
        let more_marked = summary.marked.saturating_sub(part.marked);
        part.taken += more;
        part.marked += more_marked;
        let stage = self.stage(task, layout);
        stage.taken += more;
        stage.marked += more_marked;
        // Who asked later may have found more.
        stage.known = stage.known.max(summary.known);
        // If all were found by their marks, one that was twice is one that was computed twice.
        let taken = if stage.taken == 0 { 0 } else { stage.taken + stage.marked };
        let known = stage.known;
        let of = |operator: &Arc<str>| TaskId { operator: Arc::clone(operator), ..task.clone() };
        let mut others = pooled.iter().map(of);
        let is_whole = |moved: &Self, task: &TaskId| moved.is_whole(task, layout);
        // Nobody has asked others so far: all have what they were given before.
        if taken <= known
            || known == 0
            || is_whole(self, task)
            || !pooled.is_empty() && others.all(|task| is_whole(self, &task))
        {
            return;
        }
        self.refuse_anew(Divergence {
            kind: DivergenceKind::AmbiguousRows,
            task: of(&first_part(&task.operator).into()),
            row: None,
            recorded: format!("{known} rows, by other tasks"),
            asked: format!("{taken} rows that have their answers"),
            advice: SHARED_ADVICE.to_owned(),
        });
    }

    /// [`Self::refuse`] of what nobody has written down.
    fn refuse_anew(&mut self, divergence: Divergence) {
        if self.refuse(divergence.clone()) {
            self.unwritten.push(divergence);
        }
    }

    /// Refuses an operator from now on; whether it was not refused before.
    fn refuse(&mut self, divergence: Divergence) -> bool {
        let operator = Arc::clone(&divergence.task.operator);
        let is_new = !self.refused.contains_key(&operator);
        self.refused.entry(operator).or_insert(divergence);
        is_new
    }

    /// Whether a task may come to its end.
    ///
    /// # Errors
    /// [`Error::Divergence`] if one task of a stage was not asked for what it has, and another asked for what it
    /// has not.
    pub(super) fn check(&self, task: &TaskId) -> Result<()> {
        match self.refused.get(first_part(&task.operator)) {
            Some(divergence) => Err(Error::Divergence(Box::new(divergence.clone()))),
            None => Ok(()),
        }
    }
}

impl Registry {
    /// What was refused since this was asked last: to be written down, for whoever begins the epoch again. With the first
    /// generation of this use of the epoch's name: what is older counts no more, nor is this the next one's.
    pub fn newly_refused(&mut self) -> Vec<(Divergence, Generation)> {
        let refused = self.uses.values_mut().flat_map(|uses| std::mem::take(&mut uses.moved.unwritten));
        let since = |task: &TaskId| self.over.below(&task.epoch_key()).unwrap_or(Generation(1));
        refused.map(|divergence| (divergence.clone(), since(&divergence.task))).collect()
    }

    /// It was not, and is to be written down later, unless the epoch was committed meanwhile.
    pub fn not_written(&mut self, divergence: Divergence) {
        if self.refuses(&divergence)
            && let Some(uses) = self.uses.get_mut(&divergence.task.epoch_key())
        {
            uses.moved.unwritten.push(divergence);
        }
    }

    /// Whether a refusal stands: not if its epoch was committed since.
    #[must_use]
    pub fn refuses(&self, divergence: &Divergence) -> bool {
        let uses = self.uses.get(&divergence.task.epoch_key());
        uses.is_some_and(|uses| uses.moved.refused.contains_key(&divergence.task.operator))
    }

    /// Refuses what an earlier application has refused.
    pub fn refuse(&mut self, divergence: Divergence) {
        self.uses_of(&divergence.task.clone()).moved.refuse(divergence);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::protocol::{AgentInfo, Borders, Code, Ending, Left, OpenTask, Sent, Use};
    use crate::agent::registry::Granted;
    use crate::id::{AgentId, Epoch};

    #[test]
    fn what_could_not_be_written_is_written_later_unless_its_epoch_is_over() {
        let mut registry = Registry::new();
        let refused = |registry: &mut Registry| {
            let task = task(0);
            let moved = &mut registry.uses_of(&task).moved;
            let (first, second) = (ended(moved, 0, 3, 4, 0), ended(moved, 1, 3, 0, 4));
            assert!(first && !second);
            let mut newly = registry.newly_refused();
            assert!(registry.newly_refused().is_empty());
            newly.pop().unwrap()
        };
        let (task, used, execution, inside, stamp) = (task(0), Use::default(), None, false, 0);
        let (app, stage, attempt, worker) = (STAGE.app, STAGE.stage, 1, 1);
        let open =
            OpenTask { task, used, execution, app, stage, attempt, worker, inside, stamp, of_rdd: None };
        registry.grant(&open, Sent { by: AgentId(1), number: 1 }, 0, Some(2), 0);
        let (divergence, since) = refused(&mut registry);
        assert_eq!(since, Generation(1));
        registry.not_written(divergence.clone());
        assert_eq!(registry.newly_refused(), [(divergence.clone(), since)]);
        registry.commit(&divergence.task.epoch_key());
        registry.not_written(divergence);
        assert!(registry.newly_refused().is_empty());
    }

    const STAGE: Layout = Layout {
        app: 1,
        stage: 3,
        shift: 0,
        tasks: Some(2),
        code: CODE,
        plan: None,
        borders: Borders::UNKNOWN,
    };
    const CODE: Code = Code { fingerprint: 7, python: 0x030b };

    fn task(partition: u32) -> TaskId {
        TaskId {
            query: "q".into(),
            operator: "f".into(),
            epoch: Epoch::Batch(0),
            partition: Partition(partition),
        }
    }

    fn ended(moved: &mut Moved, partition: u32, stage: u32, unasked: u64, live: u64) -> bool {
        let summary = Summary { unasked, live, ..Summary::default() };
        moved.ended(&task(partition), &Layout { stage, ..STAGE }, &summary);
        moved.check(&task(partition)).is_ok()
    }

    #[test]
    fn one_stage_that_asks_less_in_one_task_and_more_in_another_is_refused_for_good() {
        for first in [0, 1] {
            let mut moved = Moved::default();
            assert!(ended(&mut moved, first, 3, [4, 0][first as usize], [0, 4][first as usize]));
            assert!(!ended(&mut moved, 1 - first, 3, [0, 4][first as usize], [4, 0][first as usize]));
            assert!(!ended(&mut moved, 0, 9, 0, 0), "also when it is tried again");
            assert_eq!(moved.unwritten.len(), 1);
            let mut after_a_restart = Moved::default();
            assert!(after_a_restart.refuse(moved.unwritten.remove(0)));
            assert!(!ended(&mut after_a_restart, 0, 3, 0, 0));
        }
    }

    #[test]
    fn a_stage_that_only_asks_less_or_only_more_is_none_of_this() {
        let mut moved = Moved::default();
        assert!(ended(&mut moved, 0, 3, 4, 0));
        assert!(ended(&mut moved, 1, 3, 4, 0));
        assert!(ended(&mut moved, 0, 4, 0, 4), "another stage");
        assert!(ended(&mut moved, 1, 4, 0, 0));
    }

    /// A task of a later stage, which takes so many of ten rows that others have recorded.
    fn takes(moved: &mut Moved, partition: u32, taken: u64) -> bool {
        let (task, layout) = (task(partition), Layout { stage: 7, ..STAGE });
        moved.opened(&task, &layout);
        moved.closed(&task, &layout, true, 10);
        moved.took(&task, &layout, &Summary { taken, known: 10, ..Summary::default() }, &[]);
        moved.check(&task).is_ok()
    }

    #[test]
    fn more_answers_than_there_are_rows_are_refused_where_rows_may_be_missing() {
        for done in [1, 2] {
            let mut moved = Moved::default();
            for partition in 0..2 {
                moved.opened(&task(partition), &STAGE);
            }
            (0..done).for_each(|partition| moved.closed(&task(partition), &STAGE, true, 10));
            assert!(takes(&mut moved, 0, 6));
            assert!(takes(&mut moved, 0, 6), "the same task, run again");
            assert!(takes(&mut moved, 1, 4));
            assert_eq!(
                takes(&mut moved, 1, 5),
                done == 2,
                "of a stage that came to its end anybody may take"
            );
        }
    }

    #[test]
    fn an_attempt_whose_agent_died_may_have_had_more_rows_than_the_one_before() {
        let mut registry = Registry::new();
        let info = |id: u64| {
            let (addr, host) = (format!("{id}"), format!("{id}"));
            AgentInfo { id: AgentId(id), addr, host, driver: false }
        };
        for id in [1, 2] {
            registry.register(info(id), "", 0);
        }
        let closes = |registry: &mut Registry, generation, agent: u64, done, rows| {
            let summary = Summary { rows, ..Summary::default() };
            let ending = Ending { done, ..Ending::default() };
            let left = Left { by: AgentId(agent), lost: false, end: None };
            registry.closed(&task(0), generation, &summary, ending, left)
        };
        let attempt = |registry: &mut Registry, number: u64, agent: u64, end: Option<(bool, u64)>| {
            let (task, used, execution) = (task(0), Use::default(), None);
            let (app, stage, inside, stamp) = (STAGE.app, STAGE.stage, false, 0);
            let (attempt, worker) = (number, number);
            let open =
                OpenTask { task, used, execution, app, stage, attempt, worker, inside, stamp, of_rdd: None };
            let by = AgentId(agent);
            let Granted::Yes(grant) = registry.grant(&open, Sent { by, number }, 0, Some(1), 0) else {
                panic!("it is one stage");
            };
            if let Some((done, rows)) = end {
                closes(registry, grant.generation, agent, done, rows).unwrap();
            }
            grant.generation
        };
        let later = Layout { stage: 7, ..STAGE };
        let is_whole = |registry: &mut Registry| registry.uses_of(&task(0)).moved.is_whole(&task(0), &later);
        attempt(&mut registry, 1, 1, Some((true, 10)));
        assert!(is_whole(&mut registry));
        attempt(&mut registry, 2, 2, None);
        assert!(registry.is_dead(AgentId(2), false, 60_000));
        attempt(&mut registry, 3, 1, Some((false, 9)));
        assert!(!is_whole(&mut registry));
        attempt(&mut registry, 4, 1, Some((true, 20)));
        assert!(is_whole(&mut registry));
        // That one came to its end is told too late.
        registry.register(info(3), "", 60_000);
        let late = attempt(&mut registry, 5, 3, None);
        assert!(registry.is_dead(AgentId(3), false, 120_000));
        assert!(closes(&mut registry, late, 3, true, 30).is_err());
        assert!(!is_whole(&mut registry));
    }

    #[test]
    fn an_attempt_that_ends_beside_a_newer_one_counts() {
        let mut registry = Registry::new();
        let by = AgentId(1);
        let info = AgentInfo { id: by, addr: "a".into(), host: "a".into(), driver: false };
        registry.register(info, "", 0);
        let attempt = |registry: &mut Registry, number: u64, partition: u32| {
            let (used, execution, inside, stamp) = (Use::default(), None, false, 0);
            let (app, stage, attempt, worker) = (STAGE.app, STAGE.stage, number, number);
            let task = task(partition);
            let open =
                OpenTask { task, used, execution, app, stage, attempt, worker, inside, stamp, of_rdd: None };
            let Granted::Yes(grant) = registry.grant(&open, Sent { by, number }, 0, Some(2), 0) else {
                panic!("it is one stage");
            };
            grant.generation
        };
        let closes = |registry: &mut Registry, partition, generation, summary: Summary, done| {
            let (ending, left) = (Ending { done, ..Ending::default() }, Left { by, lost: false, end: None });
            registry.closed(&task(partition), generation, &summary, ending, left)
        };
        // The epoch was recorded, and is begun again.
        for partition in 0..2 {
            let generation = attempt(&mut registry, u64::from(partition), partition);
            closes(&mut registry, partition, generation, Summary::default(), true).unwrap();
        }
        registry.begin_run("q", Some(&Epoch::Batch(0)));
        let older = attempt(&mut registry, 10, 0);
        let newer = attempt(&mut registry, 11, 0);
        let unasked = Summary { rows: 4, unasked: 1, ..Summary::default() };
        closes(&mut registry, 0, older, unasked, true).unwrap();
        closes(&mut registry, 0, newer, Summary { rows: 2, ..Summary::default() }, false).unwrap();
        let live = Summary { rows: 6, live: 1, ..Summary::default() };
        let other = attempt(&mut registry, 12, 1);
        assert!(closes(&mut registry, 1, other, live, true).is_err());
    }

    #[test]
    fn a_task_that_is_opened_again_has_not_come_to_its_end() {
        let mut moved = Moved::default();
        for partition in 0..2 {
            moved.opened(&task(partition), &STAGE);
            moved.closed(&task(partition), &STAGE, true, 10);
        }
        let later = Layout { stage: 7, ..STAGE };
        assert!(moved.is_whole(&task(0), &later));
        // Its input may have broken off.
        moved.opened(&task(1), &STAGE);
        assert!(!moved.is_whole(&task(0), &later));
        // It was only slower.
        moved.closed(&task(1), &STAGE, false, 9);
        assert!(moved.is_whole(&task(0), &later));
        // It had.
        moved.opened(&task(1), &STAGE);
        moved.closed(&task(1), &STAGE, false, 11);
        assert!(!moved.is_whole(&task(0), &later));
        moved.opened(&task(1), &STAGE);
        moved.closed(&task(1), &STAGE, true, 20);
        assert!(moved.is_whole(&task(0), &later));
    }

    #[test]
    fn a_duplicate_that_is_killed_does_not_undo_the_end_of_the_other() {
        let mut moved = Moved::default();
        for partition in 0..2 {
            moved.opened(&task(partition), &STAGE);
        }
        moved.closed(&task(0), &STAGE, true, 10);
        moved.opened(&task(1), &STAGE);
        moved.done_beside(&task(1), &STAGE, 10);
        let later = Layout { stage: 7, ..STAGE };
        assert!(!moved.is_whole(&task(0), &later), "the newer one may have more rows");
        moved.closed(&task(1), &STAGE, false, 0);
        assert!(moved.is_whole(&task(0), &later));
        moved.opened(&task(1), &STAGE);
        moved.closed(&task(1), &STAGE, false, 0);
        assert!(!moved.is_whole(&task(0), &later), "of that one nobody knows how many came");
    }
}
