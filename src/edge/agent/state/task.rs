//! What a worker wants of its task's state.

use std::collections::HashSet;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::super::asking::SILENCE_PAUSE;
use super::super::handler::{Handler, Session, unexpected};
use super::gathered::Gathered;
use super::reading::TIMERS_MAX;
use crate::agent::protocol::Reply;
use crate::agent::state::asking::{FromRegistry, Located, ToRegistry};
use crate::agent::state::messages::{Found, Wanted};
use crate::error::{Error, Result};
use crate::id::{AgentId, Epoch, Generation, TaskId};
use crate::state::{RangeSet, partition_ranges};

/// A worker that waits for state to be restored is told so now and then: sooner than its patience ends.
const TOLD_AFTER: Duration = Duration::from_secs(2);

/// A task whose state is open.
pub(in crate::edge::agent) struct StateTask {
    pub(super) task: TaskId,
    pub(super) generation: Generation,
    pub(super) epoch: u64,
    pub(super) partition: u32,
    pub(super) partitions: u32,
    pub(super) located: Located,
    /// Holders that did not answer: others are asked while there are any.
    pub(super) silent: HashSet<AgentId>,
    /// The delta, as far as it was sent.
    pub(super) delta: Gathered,
}

impl StateTask {
    /// Ranges that keys of the task's partition may be in.
    pub(super) fn ranges(&self) -> RangeSet {
        partition_ranges(self.partition, self.partitions)
    }

    fn place(&self) -> ToRegistry {
        ToRegistry::Where {
            task: self.task.clone(),
            generation: self.generation,
            partition: self.partition,
            partitions: self.partitions,
        }
    }
}

impl Handler {
    /// Answers a worker.
    pub(in crate::edge) fn state(&self, session: &mut Session, wanted: Wanted) -> Result<Reply> {
        match wanted {
            Wanted::Begin { partition, partitions } => self.begin_state(session, partition, partitions),
            Wanted::Read { keys, from, limits } => {
                self.read_state(begun(session)?, keys, from, limits).map(Reply::State)
            }
            Wanted::Due { until_ms, after } => {
                let (timers, more) = self.due_timers(begun(session)?, until_ms, after, TIMERS_MAX)?;
                Ok(Reply::State(Found::Due { timers, more }))
            }
            Wanted::Write { piece, last } => {
                begun(session)?.delta.push(piece);
                if last {
                    self.write_state(session)?;
                }
                Ok(Reply::State(Found::Written))
            }
        }
    }

    fn begin_state(&self, session: &mut Session, partition: u32, partitions: u32) -> Result<Reply> {
        let (task, generation) = (session.task.clone(), session.grant.generation);
        let Epoch::Batch(epoch) = task.epoch else {
            return Err(Error::Misuse { what: "state of an epoch that is no micro-batch".into() });
        };
        let place = ToRegistry::Where { task: task.clone(), generation, partition, partitions };
        let Some(located) = self.located(&place, TOLD_AFTER)? else {
            return Ok(Reply::NotYet);
        };
        let (version, clock, catalog) = (located.version, located.clock, located.catalog.clone());
        let (silent, delta) = (HashSet::new(), Gathered::new(&self.states.memory));
        session.state = Some(Box::new(StateTask {
            task,
            generation,
            epoch,
            partition,
            partitions,
            located,
            silent,
            delta,
        }));
        Ok(Reply::State(Found::Begun { version, clock, catalog }))
    }

    /// Who holds what a task is about; `None` if that is being restored for longer.
    fn located(&self, place: &ToRegistry, patience: Duration) -> Result<Option<Located>> {
        let deadline = Instant::now() + patience;
        loop {
            match self.ask_states(place.clone())? {
                FromRegistry::Located(located) => return Ok(Some(*located)),
                FromRegistry::IsRestored if Instant::now() < deadline => {
                    self.states.join_due.give();
                    sleep(SILENCE_PAUSE);
                }
                FromRegistry::IsRestored => return Ok(None),
                _ => return Err(unexpected()),
            }
        }
    }

    /// Asks again who holds it, as those that were known do not answer. What the task reads stays the same, or its
    /// attempt is over.
    pub(super) fn locate_again(&self, task: &mut StateTask) -> Result<()> {
        let located = self.located(&task.place(), self.patience())?.ok_or_else(|| Error::Timeout {
            what: format!("state {} to be restored", task.located.state),
            millis: u64::try_from(self.patience().as_millis()).unwrap_or(u64::MAX),
        })?;
        if (located.life, located.version) != (task.located.life, task.located.version) {
            let (task, ours) = (task.task.clone(), task.generation);
            return Err(Error::Fenced { task, newer: Generation::NONE, ours });
        }
        task.located = located;
        Ok(())
    }
}

pub(super) fn begun(session: &mut Session) -> Result<&mut StateTask> {
    let not_begun = || Error::Misuse { what: "the task's state was not begun".into() };
    session.state.as_deref_mut().ok_or_else(not_begun)
}
