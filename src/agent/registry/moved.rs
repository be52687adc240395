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
use crate::id::{Partition, TaskId};
use crate::task::Summary;

const ADVICE: &str = "rows have moved from task to task, or the input changed, and some were asked again, so that \
     this epoch can only be given up. Another one should be begun again with the files and settings that it had";

/// Some rows of a partition.
type Rows = (Partition, u64);

/// What tasks of one stage have said at their end.
#[derive(Debug, Default)]
struct Stage {
    unasked: Option<Rows>,
    live: Option<Rows>,
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
            let stage = self.stages.entry((operator.into(), layout.app, layout.stage)).or_default();
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
                if self.refuse(divergence.clone()) {
                    self.unwritten.push(divergence);
                }
            }
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
    /// What was refused since this was asked last: to be written down, for whoever begins the epoch again.
    pub fn newly_refused(&mut self) -> Vec<Divergence> {
        self.uses.values_mut().flat_map(|uses| std::mem::take(&mut uses.moved.unwritten)).collect()
    }

    /// Refuses what an earlier application has refused.
    pub fn refuse(&mut self, divergence: Divergence) {
        self.uses_of(&divergence.task.clone()).moved.refuse(divergence);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::protocol::Code;
    use crate::id::Epoch;

    const STAGE: Layout = Layout { app: 1, stage: 3, tasks: Some(2), code: CODE, plan: None };
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
}
