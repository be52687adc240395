//! Partitions of RDDs, which one attempt may compute twice at the same time.
//!
//! `zip` and `cartesian` of an RDD with itself have Spark read the rows of two workers in step. The second waits until the first
//! has computed the partition, and has its answers then. If these are more than fit between Spark and the first, that has no
//! end, as nobody reads them meanwhile: so this wait is said to be one, and does not last for ever.

use std::collections::HashMap;

use super::{Granted, Opener, Registry};
use crate::agent::protocol::OpenTask;
use crate::id::TaskId;

/// Who has not asked again for longer waits no more: agents ask at least twice a second, if they run.
const ASKED_MS: u64 = 3_000;
/// From then on it is said that it may be in vain.
const TOLD_MS: u64 = 10_000;
/// So long may the first take.
const PATIENCE_MS: u64 = 300_000;

/// An attempt that waits for what it computes itself.
#[derive(Debug, Clone, Copy)]
struct Wait {
    since_ms: u64,
    asked_ms: u64,
}

/// Those of one epoch, by application and attempt.
#[derive(Debug, Default)]
pub(super) struct Beside {
    waits: HashMap<(u64, u64), Wait>,
}

impl Beside {
    fn waits(&mut self, task: &TaskId, attempt: (u64, u64), now_ms: u64) -> Granted {
        self.waits.retain(|_, wait| now_ms.saturating_sub(wait.asked_ms) <= ASKED_MS);
        let wait = self.waits.entry(attempt).or_insert(Wait { since_ms: now_ms, asked_ms: now_ms });
        if (wait.asked_ms..now_ms).contains(&(wait.since_ms + TOLD_MS)) {
            tracing::warn!(
                "a task computes partition {} of an RDD by {:?} twice at the same time, as zip and cartesian of an RDD \
                 with itself do, and the second waits for the first: if it goes on so, persist the RDD before, with \
                 rdd.persist()",
                task.partition,
                task.operator_name()
            );
        }
        wait.asked_ms = now_ms;
        if now_ms.saturating_sub(wait.since_ms) <= PATIENCE_MS { Granted::Busy } else { Granted::Twice }
    }
}

impl Registry {
    /// What a worker is told that is to wait for another one of its attempt.
    pub(super) fn waits_for_itself(
        &mut self,
        task: &TaskId,
        open: &OpenTask,
        now_ms: u64,
    ) -> Option<Granted> {
        open.of_rdd?;
        let attempt = (open.app, open.attempt);
        let entry = self.tasks.get(task)?;
        let is_at_work = |by: &Opener| !by.is_over && by.generation == entry.generation;
        let is_another = |by: &Opener| by.worker != open.worker && is_at_work(by);
        if !entry.attempts.get(&attempt)?.iter().any(is_another) {
            return None;
        }
        self.waits_for(task);
        Some(self.uses_of(task).crossing.beside.waits(task, attempt, now_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::protocol::{AgentInfo, Ending, Left, OfRdd, Sent, Use};
    use crate::id::{AgentId, Epoch, Generation, LogOffset, Partition};
    use crate::task::Summary;

    const AGENT: AgentId = AgentId(1);

    /// Workers of one application that compute partition 1 of an RDD of three.
    #[derive(Default)]
    struct Asking {
        registry: Registry,
        now_ms: u64,
        asked: u64,
    }

    #[derive(Debug, PartialEq, Eq)]
    enum Told {
        Yes { generation: Generation, reopened: bool },
        Busy,
        Twice,
    }

    fn partition() -> TaskId {
        let (query, operator) = ("app:a".into(), "f".into());
        TaskId { query, operator, epoch: Epoch::Named("rdd-1".into()), partition: Partition(1) }
    }

    impl Asking {
        fn new() -> Self {
            let mut all = Self::default();
            let info = AgentInfo { id: AGENT, addr: "1".into(), host: "1".into(), driver: false };
            all.registry.register(info, "", 0);
            all
        }

        /// A worker of an attempt at a task of stage 7.
        fn ask(&mut self, task: u32, attempt: u64, worker: u64) -> Told {
            self.asked += 1;
            self.now_ms += 1;
            self.registry.heartbeat(AGENT, 0, self.now_ms);
            let open = OpenTask {
                task: partition(),
                used: Use::default(),
                execution: None,
                app: 1,
                stage: 7,
                attempt,
                worker,
                inside: false,
                stamp: 0,
                of_rdd: Some(OfRdd { number: 1, task: Partition(task) }),
            };
            let sent = Sent { by: AGENT, number: self.asked };
            match self.registry.grant(&open, sent, 0, Some(3), self.now_ms) {
                Granted::Yes(grant) => {
                    assert_eq!(grant.task, partition(), "all have one log");
                    assert!(!grant.recording.layout_changed);
                    Told::Yes { generation: grant.generation, reopened: grant.reopened }
                }
                Granted::Busy => Told::Busy,
                Granted::Twice => Told::Twice,
                told => panic!("{told:?}"),
            }
        }

        fn opens(&mut self, task: u32, attempt: u64, worker: u64) -> Generation {
            let Told::Yes { generation, .. } = self.ask(task, attempt, worker) else { panic!("it is free") };
            generation
        }

        /// Whether an attempt that comes to its end has recorded it.
        fn ends(&mut self, generation: Generation) -> bool {
            self.asked += 1;
            let sent = Sent { by: AGENT, number: self.asked };
            let held = self.registry.holding(&partition(), generation, &[AGENT], None, true, sent);
            let (summary, ending) = (Summary::default(), Ending { done: true, ..Ending::default() });
            let left = Left { by: AGENT, lost: false, end: Some(LogOffset(9)) };
            self.registry.closed(&partition(), generation, &summary, ending, left).unwrap();
            held.is_ok()
        }
    }

    #[test]
    fn another_worker_of_one_attempt_waits_for_the_first_and_has_its_log() {
        let mut all = Asking::new();
        let first = all.opens(1, 1, 100);
        assert_eq!(all.ask(1, 1, 200), Told::Busy);
        assert!(all.ends(first));
        let Told::Yes { generation, reopened: true } = all.ask(1, 1, 200) else { panic!("it has ended") };
        assert!(all.ends(generation));
        // Once for each row of the other side.
        assert!(matches!(all.ask(1, 1, 200), Told::Yes { reopened: true, .. }));
    }

    #[test]
    fn it_does_not_wait_for_ever() {
        let mut all = Asking::new();
        all.opens(1, 1, 100);
        let mut told = Vec::new();
        while all.now_ms < PATIENCE_MS + 10_000 {
            all.now_ms += 1_000;
            told.push(all.ask(1, 1, 200));
        }
        let busy = told.iter().position(|told| *told == Told::Twice).unwrap();
        assert!((299..303).contains(&busy), "{busy}");
    }

    #[test]
    fn a_newer_attempt_of_the_same_task_fences_the_older_wherever_it_runs() {
        let mut all = Asking::new();
        let slow = all.opens(1, 1, 100);
        let newer = all.opens(1, 2, 300);
        assert!(!all.ends(slow) && all.ends(newer));
    }

    #[test]
    fn another_task_of_the_stage_waits_and_has_the_same_log() {
        let mut all = Asking::new();
        let first = all.opens(1, 1, 100);
        assert_eq!(all.ask(4, 2, 200), Told::Busy, "the same partition, on the other side of a union");
        assert!(all.ends(first));
        assert!(matches!(all.ask(4, 2, 200), Told::Yes { reopened: true, .. }));
    }
}
