//! Attempts that others wait for. Their agents are asked whether they are there: that one had ended may have been told
//! in vain, and the answer that granted another may have been lost, and nobody would say that its task is free.

use std::collections::{BTreeMap, BTreeSet};

use super::Registry;
use crate::id::{AgentId, Generation, TaskId};

/// Attempts that an agent is asked for at a time.
const WAITED_FOR_MAX: usize = 256;

/// Attempts that are waited for since their agents were asked last.
#[derive(Debug, Default)]
pub(super) struct Waiting(BTreeMap<AgentId, BTreeSet<(TaskId, Generation)>>);

impl Waiting {
    /// An agent is dead, and so is what it had open.
    pub(super) fn died(&mut self, agent: AgentId) {
        self.0.remove(&agent);
    }
}

impl Registry {
    /// Somebody waits for the attempt that has a task open.
    pub(super) fn waits_for(&mut self, task: &TaskId) {
        let Some(entry) = self.tasks.get(task) else { return };
        let Some(live) = &entry.live else { return };
        if self.agents.info(live.agent).is_none_or(|info| info.driver) {
            // The driver's does not beat, and nothing is lost on the way from it. The dead beat no more.
            return;
        }
        self.waiting.0.entry(live.agent).or_default().insert((task.clone(), entry.granted));
    }

    /// Some attempts at an agent that were waited for since it was asked last.
    pub fn waited_for(&mut self, agent: AgentId) -> Vec<(TaskId, Generation)> {
        let Some(all) = self.waiting.0.get_mut(&agent) else { return Vec::new() };
        let some = std::iter::from_fn(|| all.pop_first()).take(WAITED_FOR_MAX).collect();
        if all.is_empty() {
            self.waiting.0.remove(&agent);
        }
        some
    }

    /// An agent is dead: how many rows had come to what it had open, nobody will hear.
    pub(super) fn break_off(&mut self, agent: AgentId) {
        let open = self.places.of(agent).filter_map(|task| {
            let entry = self.tasks.get(task)?;
            let live = entry.live.filter(|live| live.agent == agent && !live.is_over)?;
            Some((task.clone(), live.layout))
        });
        for (task, layout) in open.collect::<Vec<_>>() {
            self.uses_of(&task).moved.closed(&task, &layout, false, 0);
        }
    }

    /// These attempts are not at an agent that was asked for them, as it says.
    pub fn over(&mut self, agent: AgentId, attempts: &[(TaskId, Generation)]) {
        for (task, generation) in attempts {
            let layout = self.change(task, |entry| {
                let live = entry.live.as_mut().filter(|live| live.agent == agent);
                let live = live.filter(|_| entry.granted == *generation)?;
                live.is_over = true;
                Some(live.layout)
            });
            if let Some(layout) = layout.flatten() {
                self.uses_of(task).moved.closed(task, &layout, false, 0);
                self.opener_is_over(task, *generation);
                self.look_if_short(task);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::protocol::{AgentInfo, AgentStanding, Ending, Left, OpenTask, Sent, Use};
    use crate::agent::registry::{Granted, Recorded};
    use crate::id::{Epoch, Partition};
    use crate::task::{Ended, Summary};

    const AGENT: AgentId = AgentId(1);

    fn task(partition: u32) -> TaskId {
        let (query, operator) = ("q".into(), "f".into());
        TaskId { query, operator, epoch: Epoch::Batch(1), partition: Partition(partition) }
    }

    fn registry() -> Registry {
        let mut registry = Registry::new();
        registry.want_copies(2);
        for id in [1, 2, 3] {
            registry.register(info(id), "", 0);
        }
        registry
    }

    /// What agent 1 says of an attempt's log: who has it.
    fn held(registry: &mut Registry, partition: u32, by: Generation, holders: &[AgentId]) {
        let sent = Sent { by: AGENT, number: registry.totals.opens };
        registry.holding(&task(partition), by, holders, None, true, sent).unwrap();
    }

    /// As [`held`], by an attempt that is granted for it and is over then.
    fn left(registry: &mut Registry, partition: u32, holders: &[AgentId]) -> Generation {
        let generation = grant(registry, 1, 1, partition).unwrap();
        held(registry, partition, generation, holders);
        registry.over(AGENT, &[(task(partition), generation)]);
        generation
    }

    fn info(id: u64) -> AgentInfo {
        AgentInfo { id: AgentId(id), addr: id.to_string(), host: "h".into(), driver: id == 3 }
    }

    fn grant(registry: &mut Registry, agent: u64, stage: u32, partition: u32) -> Option<Generation> {
        let open = OpenTask {
            task: task(partition),
            used: Use::default(),
            execution: None,
            app: 1,
            stage,
            attempt: u64::from(stage),
            worker: 1,
            inside: false,
            stamp: 0,
            of_rdd: None,
        };
        let sent = Sent { by: AgentId(agent), number: registry.totals.opens };
        match registry.grant(&open, sent, 0, None, 0) {
            Granted::Yes(grant) => Some(grant.generation),
            Granted::Busy | Granted::Crossed | Granted::Twice => None,
            Granted::Left | Granted::Unknown | Granted::Refused(_) => {
                panic!("no run has ended, or was refused")
            }
        }
    }

    #[test]
    fn an_attempt_is_asked_for_once_each_time_that_somebody_waits_for_it() {
        let mut registry = registry();
        let first = grant(&mut registry, 1, 1, 0).unwrap();
        assert!(registry.waited_for(AGENT).is_empty(), "nobody waits");
        assert_eq!(grant(&mut registry, 2, 2, 0), None);
        assert_eq!(grant(&mut registry, 2, 2, 0), None);
        assert!(registry.waited_for(AgentId(2)).is_empty());
        assert_eq!(registry.waited_for(AGENT), [(task(0), first)]);
        assert!(registry.waited_for(AGENT).is_empty());
        assert_eq!(grant(&mut registry, 2, 2, 0), None);
        assert_eq!(registry.waited_for(AGENT), [(task(0), first)]);
    }

    #[test]
    fn what_the_drivers_agent_has_open_is_kept_for_no_beat_of_its() {
        let mut registry = registry();
        grant(&mut registry, 3, 1, 0).unwrap();
        assert_eq!(grant(&mut registry, 2, 2, 0), None);
        assert!(registry.waiting.0.is_empty());
    }

    #[test]
    fn only_the_agent_that_has_the_attempt_can_say_that_it_is_over() {
        let mut registry = registry();
        let first = grant(&mut registry, 1, 1, 0).unwrap();
        registry.over(AgentId(2), &[(task(0), first)]);
        registry.over(AGENT, &[(task(0), Generation(first.0 - 1)), (task(1), first)]);
        assert_eq!(grant(&mut registry, 2, 2, 0), None);
        registry.over(AGENT, &[(task(0), first)]);
        let second = grant(&mut registry, 2, 2, 0).unwrap();
        // What is said late is not of the attempt that runs now.
        registry.over(AGENT, &[(task(0), first)]);
        registry.over(AGENT, &[(task(0), second)]);
        assert_eq!(grant(&mut registry, 1, 3, 0), None);
    }

    #[test]
    fn how_an_attempt_ended_counts_also_if_it_arrives_after_that_it_is_over() {
        let mut registry = registry();
        let first = grant(&mut registry, 1, 1, 0).unwrap();
        registry.over(AGENT, &[(task(0), first)]);
        let summary = Summary { input: 7, ..Summary::default() };
        let ending = Ending { done: true, ..Ending::default() };
        let left = Left { by: AGENT, lost: false, end: None };
        registry.closed(&task(0), first, &summary, ending, left).unwrap();
        assert_eq!(registry.tasks[&task(0)].ended, Ended::With(7));
    }

    #[test]
    fn many_are_asked_for_piece_by_piece_and_none_of_the_dead() {
        let mut registry = registry();
        let many = u32::try_from(WAITED_FOR_MAX).unwrap() + 1;
        for partition in 0..many {
            grant(&mut registry, 1, 1, partition).unwrap();
            assert_eq!(grant(&mut registry, 2, 2, partition), None);
        }
        assert_eq!(registry.waited_for(AGENT).len(), WAITED_FOR_MAX);
        assert_eq!(registry.waited_for(AGENT).len(), 1);
        assert_eq!(grant(&mut registry, 2, 2, 0), None);
        assert!(registry.is_dead(AGENT, false, 60_000));
        assert!(registry.waited_for(AGENT).is_empty());
        assert!(grant(&mut registry, 2, 2, 0).is_some());
    }

    #[test]
    fn a_silent_agent_of_an_executor_that_spark_has_given_up_is_not_waited_for() {
        let mut registry = registry();
        let first = grant(&mut registry, 1, 1, 0).unwrap();
        held(&mut registry, 0, first, &[AGENT, AgentId(2)]);
        registry.leaving(AGENT);
        for (now_ms, repairs) in [(3_000, 0), (5_000, 1)] {
            registry.heartbeat(AgentId(2), 0, now_ms);
            assert_eq!(registry.repairs(AgentId(2), 120_000, now_ms).len(), repairs, "after {now_ms} ms");
        }
    }

    #[test]
    fn a_log_with_fewer_copies_than_are_wanted_gets_others_once_there_are_agents_for_them() {
        let mut registry = registry();
        registry.want_copies(4);
        let due = |registry: &mut Registry| {
            let due = registry.repairs(AGENT, 120_000, 0);
            due.into_iter().map(|repair| repair.task.partition.0).collect::<Vec<_>>()
        };
        left(&mut registry, 0, &[AGENT, AgentId(2), AgentId(3)]);
        assert!(due(&mut registry).is_empty(), "there is nobody else");
        left(&mut registry, 1, &[AGENT]);
        assert_eq!(due(&mut registry), [1], "others did not answer");
        let layout = registry.tasks[&task(0)].layout;
        let recorded = Recorded { layout, relaid: false, has_moved: false };
        registry.recovered(task(2), Generation(1), recorded, AGENT);
        registry.register(info(4), "", 0);
        assert_eq!(due(&mut registry), [0, 1], "what stands in a checkpoint needs none");
        let generation = registry.tasks[&task(0)].generation;
        held(&mut registry, 0, generation, &[1, 2, 3, 4].map(AgentId));
        registry.register(info(5), "", 0);
        assert_eq!(due(&mut registry), [1]);
        // One of four dies while there is nobody in its place.
        let generation = registry.tasks[&task(1)].generation;
        held(&mut registry, 1, generation, &[1, 2, 3, 4].map(AgentId));
        for dead in [5, 4] {
            assert!(registry.is_dead(AgentId(dead), true, 2_000));
        }
        assert!(due(&mut registry).is_empty());
        // Looked for at once, unless that was done a moment ago.
        registry.register(info(6), "", 2_000);
        assert_eq!(due(&mut registry), [0, 1]);
    }

    fn beat(registry: &mut Registry, now_ms: u64) {
        for agent in [1, 2, 3].map(AgentId) {
            registry.heartbeat(agent, 0, now_ms);
        }
    }

    #[test]
    fn a_copy_waits_for_an_attempt_only_if_that_is_at_work() {
        let mut registry = registry();
        left(&mut registry, 0, &[AGENT]);
        // Granted to an agent that never heard of it.
        let second = grant(&mut registry, 2, 1, 0).unwrap();
        // The answer may be on its way.
        for now_ms in [0, 119_999] {
            beat(&mut registry, now_ms);
            assert!(registry.repairs(AGENT, 120_000, now_ms).is_empty());
            assert!(registry.waited_for(AgentId(2)).is_empty());
        }
        beat(&mut registry, 120_000);
        assert!(registry.repairs(AGENT, 120_000, 120_000).is_empty());
        assert_eq!(registry.waited_for(AgentId(2)), [(task(0), second)]);
        registry.over(AgentId(2), &[(task(0), second)]);
        assert_eq!(registry.repairs(AGENT, 120_000, 120_000).len(), 1);
    }

    #[test]
    fn all_who_have_a_copy_are_silent_for_a_while_and_one_does_not_come_back() {
        let mut registry = registry();
        left(&mut registry, 0, &[AGENT, AgentId(2)]);
        // The driver was away, and hears first of somebody who has none.
        registry.register(info(4), "", 60_000);
        registry.register(info(1), "", 60_000);
        assert_eq!(registry.repairs(AGENT, 120_000, 60_000).len(), 1);
    }

    #[test]
    fn a_log_that_is_written_at_a_silent_agent_is_copied_again_once_it_is_silent_for_long() {
        let mut registry = registry();
        let first = grant(&mut registry, 1, 1, 0).unwrap();
        held(&mut registry, 0, first, &[AGENT, AgentId(2)]);
        let repairs = |registry: &mut Registry, now_ms| {
            registry.heartbeat(AgentId(2), 0, now_ms);
            registry.repairs(AgentId(2), 15_000, now_ms)
        };
        assert!(repairs(&mut registry, 10_000).is_empty(), "it may be back in a moment");
        assert_eq!(registry.heartbeat(AGENT, 0, 11_000).0, AgentStanding::Alive);
        assert!(repairs(&mut registry, 25_000).is_empty(), "and so it was");
        let made = repairs(&mut registry, 30_000);
        assert_eq!(made.iter().map(|repair| &repair.task).collect::<Vec<_>>(), [&task(0)]);
        assert!(made[0].generation > first, "the attempt may write still");
        assert_eq!(registry.heartbeat(AGENT, 0, 30_100).0, AgentStanding::Dead);
        assert_eq!(repairs(&mut registry, 30_200)[0].generation, made[0].generation, "until it is done");
        // What the attempt says counts for nothing, and another one is newer.
        let late = Sent { by: AGENT, number: 2 };
        assert!(registry.holding(&task(0), first, &[AGENT], None, true, late).is_err());
        assert!(grant(&mut registry, 2, 1, 0).unwrap() > made[0].generation);
    }
}
