//! Partitions of RDDs, which one attempt may compute twice at the same time.
//!
//! `zip` and `cartesian` of an RDD with itself have Spark read the rows of two workers in step. The second waits until the first
//! has computed the partition, and has its answers then. If these are more than fit between Spark and the first, that has no
//! end, as nobody reads them meanwhile: so this wait is said to be one, and does not last for ever.

use std::collections::HashMap;
use std::sync::Arc;

use super::uses::Uses;
use super::{Granted, Live, Registry};
use crate::agent::protocol::{OpenTask, Use};
use crate::id::{EpochKey, TaskId};

/// Who has not asked again for longer waits no more: agents ask at least twice a second, if they run.
const ASKED_MS: u64 = 3_000;
/// From then on it is said that it may be in vain.
const TOLD_MS: u64 = 10_000;
/// So long may the first record nothing.
const PATIENCE_MS: u64 = 300_000;

/// An attempt that waits for what it computes itself.
#[derive(Debug, Clone, Copy)]
struct Wait {
    /// Since when nothing was recorded, and how much was.
    since_ms: u64,
    recorded: u64,
    asked_ms: u64,
}

/// Those of one epoch, by application and attempt.
#[derive(Debug, Default)]
pub(super) struct Beside {
    waits: HashMap<(u64, u64), Wait>,
}

impl Beside {
    fn waits(&mut self, task: &TaskId, open: &OpenTask, recorded: u64, now_ms: u64) -> Granted {
        self.waits.retain(|_, wait| now_ms.saturating_sub(wait.asked_ms) <= ASKED_MS);
        let new = Wait { since_ms: now_ms, recorded, asked_ms: now_ms };
        let wait = self.waits.entry((open.app, open.attempt)).or_insert(new);
        if wait.recorded != recorded {
            *wait = new;
        }
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

    fn ends(&mut self, open: &OpenTask) {
        self.waits.remove(&(open.app, open.attempt));
    }
}

impl Registry {
    /// The program has made an RDD by a function, within an epoch.
    pub fn rdd_is_made(&mut self, epoch: EpochKey, operator: &Arc<str>, used: Use) {
        self.uses.entry(epoch).or_insert_with_key(Uses::of).rdd_is_made(operator, used);
    }

    /// What a worker is told that is to wait for another one of its attempt.
    pub(super) fn waits_for_itself(
        &mut self,
        task: &TaskId,
        open: &OpenTask,
        now_ms: u64,
    ) -> Option<Granted> {
        let of_rdd = open.of_rdd?;
        let live = self.tasks.get(task)?.live.filter(|live| !live.is_over);
        let is_other = |live: &Live| {
            (live.layout.app, live.attempt) == (open.app, open.attempt) && live.worker != open.worker
        };
        let is_at_work = live.as_ref().is_some_and(|live| is_other(live) && self.agents.is_alive(live.agent));
        if is_at_work {
            self.waits_for(task);
        }
        let beside = &mut self.uses_of(task).crossing.beside;
        if is_at_work {
            return Some(beside.waits(task, open, of_rdd.recorded, now_ms));
        }
        beside.ends(open);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::protocol::{AgentInfo, Ending, Left, OfRdd, Sent};
    use crate::id::{AgentId, Epoch, Generation, LogOffset, Partition};
    use crate::task::Summary;

    const AGENT: AgentId = AgentId(1);

    /// Workers of one application that compute partition 1 of an RDD of three.
    #[derive(Default)]
    struct Asking {
        registry: Registry,
        now_ms: u64,
        asked: u64,
        recorded: u64,
    }

    #[derive(Debug, PartialEq, Eq)]
    enum Told {
        Yes { generation: Generation, reopened: bool },
        Busy,
        Twice,
        Left,
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
                of_rdd: Some(OfRdd { number: 1, task: Partition(task), recorded: self.recorded }),
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
                Granted::Left => Told::Left,
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
    fn it_does_not_wait_for_one_that_records_nothing() {
        let mut all = Asking::new();
        all.opens(1, 1, 100);
        let mut told = Vec::new();
        while all.now_ms < 2 * PATIENCE_MS {
            all.now_ms += 1_000;
            all.recorded = told.len().min(200) as u64;
            told.push(all.ask(1, 1, 200));
        }
        let busy = told.iter().position(|told| *told == Told::Twice).unwrap();
        assert!((499..503).contains(&busy), "{busy}");
    }

    #[test]
    fn waits_for_several_partitions_do_not_add_up() {
        let mut all = Asking::new();
        while all.now_ms < 2 * PATIENCE_MS {
            let first = all.opens(1, 1, 100);
            for _ in 0..8 {
                all.now_ms += 1_000;
                assert_eq!(all.ask(1, 1, 200), Told::Busy);
            }
            assert!(all.ends(first));
            let second = all.opens(1, 1, 200);
            assert!(all.ends(second));
        }
    }

    #[test]
    fn a_newer_attempt_of_the_same_task_fences_the_older_whichever_asks_last() {
        let mut all = Asking::new();
        let slow = all.opens(1, 1, 100);
        assert_eq!(all.ask(1, 1, 200), Told::Busy);
        let newer = all.opens(1, 2, 300);
        assert_eq!(all.ask(1, 2, 400), Told::Busy);
        assert_eq!(all.ask(1, 1, 200), Told::Left);
        assert!(!all.ends(slow) && all.ends(newer));
        // Once that one is over, it may go on: Spark takes whichever comes to its end first.
        all.opens(1, 1, 200);
    }

    #[test]
    fn what_is_known_of_attempts_does_not_grow_with_the_jobs_over_an_rdd() {
        let mut all = Asking::new();
        for attempt in 0..5_000 {
            let generation = all.opens(1, attempt, attempt);
            assert!(all.ends(generation));
        }
        assert!(all.registry.tasks[&partition()].attempts.len() <= 1_024);
    }

    #[test]
    fn what_is_known_of_an_attempt_does_not_grow_with_how_often_it_computes_a_partition() {
        let mut all = Asking::new();
        let slow = all.opens(1, 1, 1);
        assert!(all.ends(slow));
        for worker in 2..2_000 {
            let generation = all.opens(1, 1, worker);
            assert!(all.ends(generation));
        }
        assert!(all.registry.tasks[&partition()].attempts[&(1, 1)].len() <= 64);
    }

    #[test]
    fn nothing_is_left_of_an_rdd_that_was_made_and_never_computed() {
        let mut registry = Registry::new();
        let epoch = partition().epoch_key();
        registry.rdd_is_made(epoch.clone(), &"f".into(), Use::default());
        assert!(registry.uses.contains_key(&epoch));
        registry.commit(&epoch);
        assert!(registry.uses.is_empty());
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
