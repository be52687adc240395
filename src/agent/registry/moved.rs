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

/// Stages of an epoch that are known: each job over an RDD has some, for as long as the RDD is there.
const STAGES_MAX: usize = 512;

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
        if self.stages.len() >= STAGES_MAX && !self.stages.contains_key(&key) {
            self.forget_old_stages();
        }
        self.stages.entry(key).or_insert_with(|| Stage { tasks: layout.tasks, ..Stage::default() })
    }

    /// Leaves the newer half, those that have tasks at work, and of each operator a stage that has recorded all of its rows.
    fn forget_old_stages(&mut self) {
        let mut all: Vec<_> = self.stages.keys().map(|(_, app, stage)| (*app, *stage)).collect();
        all.sort_unstable();
        let newer = all.get(all.len() / 2).copied().unwrap_or_default();
        let mut whole: HashMap<Arc<str>, (u64, u32)> = HashMap::new();
        for ((operator, app, stage), _) in self.stages.iter().filter(|(_, stage)| stage.is_whole()) {
            let newest = whole.entry(Arc::clone(operator)).or_default();
            *newest = (*newest).max((*app, *stage));
        }
        self.stages.retain(|(operator, app, stage), known| {
            let is_at_work = known.parts.values().any(|part| part.is_open);
            (*app, *stage) >= newer || is_at_work || whole.get(operator) == Some(&(*app, *stage))
        });
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
mod tests;
