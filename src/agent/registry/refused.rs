//! What an attempt was refused for, others of its stage are.
//!
//! Spark tries a task again, and each attempt finds what those before it have recorded: rows that nobody could tell apart would
//! be known by their places then, though they are in nobody's.

use super::Registry;
use crate::agent::protocol::{Ending, Layout};
use crate::error::Divergence;
use crate::id::{Generation, TaskId};

impl Registry {
    /// An attempt is over; before it is anything else's.
    pub(super) fn note_refused(&mut self, task: &TaskId, generation: Generation, ending: &Ending) {
        let (Some(entry), Some(divergence)) = (self.tasks.get_mut(task), &ending.refused) else { return };
        if let Some(live) = entry.live.filter(|_| entry.generation == generation) {
            entry.refused = Some((live.layout, divergence.clone()));
        }
    }

    /// Why an attempt of this stage was refused, if one was.
    pub(super) fn refused_in(&self, task: &TaskId, stage: &Layout) -> Option<Box<Divergence>> {
        let (of, divergence) = self.tasks.get(task)?.refused.as_ref()?;
        of.same_stage(stage).then(|| divergence.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::protocol::{Left, OpenTask, Sent, Use};
    use crate::agent::registry::Granted;
    use crate::error::DivergenceKind;
    use crate::id::{AgentId, Epoch, Partition};
    use crate::task::Summary;

    #[test]
    fn an_attempt_is_refused_what_one_of_its_stage_was_and_another_stage_is_not() {
        let mut registry = Registry::new();
        let (query, operator) = ("q".into(), "f".into());
        let task = TaskId { query, operator, epoch: Epoch::Batch(1), partition: Partition(0) };
        let by = AgentId(1);
        let asked = |registry: &mut Registry, stage: u32, attempt: u64| {
            let (used, execution, app, worker) = (Use::default(), None, 1, attempt);
            let (task, inside, stamp) = (task.clone(), false, 0);
            let open =
                OpenTask { task, used, execution, app, stage, attempt, worker, inside, stamp, of_rdd: None };
            registry.grant(&open, Sent { by, number: attempt }, 0, None, 0)
        };
        let divergence = Box::new(Divergence {
            kind: DivergenceKind::AmbiguousRows,
            task: task.clone(),
            row: Some(3),
            recorded: String::new(),
            asked: String::new(),
            advice: String::new(),
        });
        let ends = |registry: &mut Registry, granted: Granted, refused: Option<Box<Divergence>>| {
            let Granted::Yes(grant) = granted else { panic!("it was granted nothing") };
            let (summary, ending) = (Summary::default(), Ending { refused, ..Ending::default() });
            let left = Left { by, lost: false, end: None };
            registry.closed(&grant.task, grant.generation, &summary, ending, left).unwrap();
        };
        let granted = asked(&mut registry, 1, 1);
        ends(&mut registry, granted, None);
        let granted = asked(&mut registry, 1, 2);
        ends(&mut registry, granted, Some(divergence.clone()));
        assert!(matches!(asked(&mut registry, 1, 3), Granted::Refused(found) if found == divergence));
        let granted = asked(&mut registry, 2, 4);
        ends(&mut registry, granted, None);
        assert!(matches!(asked(&mut registry, 1, 5), Granted::Refused(_)));
    }
}
