//! What an agent is taken for that does not answer: whoever asks goes on without it, or waits.
//!
//! A switch that is away for some seconds is no loss. So an agent is dead early only where that loses nothing, as others
//! have what it has; else its silence is borne for as long as Spark bears that of an executor.

use super::agents::AGENT_SILENCE_MS_MAX;
use super::{Entry, Registry};
use crate::agent::protocol::Silence;
use crate::id::AgentId;

/// As much where nobody listens at its address any more: two beats and a half.
pub(super) const REFUSED_SILENCE_MS_MAX: u64 = 1_250;

impl Registry {
    /// What an agent that does not answer is taken for; `refused` if nobody listens where it was. Whoever asks
    /// goes on without one that is dead, so that it stays so.
    pub fn silence(&mut self, agent: AgentId, refused: bool, now_ms: u64) -> Silence {
        let silence_ms_max = if refused { REFUSED_SILENCE_MS_MAX } else { AGENT_SILENCE_MS_MAX };
        if let Some(known) = self.agents.known.get(&agent) {
            if known.was_seen(silence_ms_max, now_ms) {
                return Silence::Heard;
            }
            let is_borne = !refused && !known.is_leaving && known.was_seen(self.agents.borne_ms, now_ms);
            if is_borne && self.is_last(agent) {
                return Silence::Borne;
            }
        }
        self.has_died(agent);
        Silence::Dead
    }

    /// [`Self::silence`], if the answer is that it is dead.
    pub fn is_dead(&mut self, agent: AgentId, refused: bool, now_ms: u64) -> bool {
        self.silence(agent, refused, now_ms) == Silence::Dead
    }

    /// So long is the silence borne of an agent that alone has something: to go on without it is to lose that.
    pub const fn bear(&mut self, silence_ms: u64) {
        self.agents.borne_ms = silence_ms;
    }

    /// Whether nobody who was heard of lately has something that an agent has, and something visible depends on.
    fn is_last(&self, agent: AgentId) -> bool {
        let is_other = |other: &AgentId| *other != agent && self.agents.is_alive(*other);
        let is_alone = |entry: &Entry| {
            entry.published && entry.holders.contains(&agent) && !entry.holders.iter().any(is_other)
        };
        let logs = self.places.of(agent).filter_map(|task| self.tasks.get(task));
        logs.into_iter().any(is_alone) || self.states.has_alone(agent, is_other)
    }

    /// [`Self::is_dead`] of some, none of which has refused.
    pub fn dead_among(&mut self, agents: &[AgentId], now_ms: u64) -> Vec<AgentId> {
        agents.iter().copied().filter(|agent| self.is_dead(*agent, false, now_ms)).collect()
    }

    /// Whether an agent is dead, or has been silent for longer than that and is taken for dead from now on. Of one whose
    /// executor Spark has given up, any silence will do.
    pub(super) fn is_gone(&mut self, agent: AgentId, patience_ms: u64, now_ms: u64) -> bool {
        let Some(known) = self.agents.known.get(&agent) else { return true };
        let silence_ms_max = if known.is_leaving { AGENT_SILENCE_MS_MAX } else { patience_ms };
        if known.info.driver || known.was_seen(silence_ms_max, now_ms) {
            return false;
        }
        self.has_died(agent);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::protocol::{AgentInfo, OpenTask, Sent, Use};
    use crate::agent::registry::Granted;
    use crate::id::{Epoch, Partition, TaskId};

    const SILENT_MS: u64 = AGENT_SILENCE_MS_MAX + 1;

    /// Three agents, of which the first two have a log.
    fn with_log() -> Registry {
        let mut registry = Registry::new();
        registry.bear(120_000);
        for id in [1, 2, 3] {
            let (addr, host) = (format!("{id}"), format!("{id}"));
            registry.register(AgentInfo { id: AgentId(id), addr, host, driver: false }, &format!("e{id}"), 0);
        }
        let task = TaskId {
            query: "q".into(),
            operator: "f".into(),
            epoch: Epoch::Batch(1),
            partition: Partition(0),
        };
        let open = OpenTask {
            task: task.clone(),
            used: Use::default(),
            execution: None,
            app: 1,
            stage: 1,
            attempt: 1,
            worker: 1,
            inside: false,
            stamp: 0,
            of_rdd: None,
        };
        let sent = Sent { by: AgentId(1), number: 1 };
        let Granted::Yes(grant) = registry.grant(&open, sent, 0, None, 0) else {
            panic!("nobody else has it")
        };
        let holders = [1, 2].map(AgentId);
        registry.holding(&task, grant.generation, &holders, None, true, sent).unwrap();
        registry
    }

    #[test]
    fn of_two_that_are_silent_neither_is_dead_while_nobody_else_has_what_they_have() {
        let mut registry = with_log();
        registry.look_for_silent(SILENT_MS);
        let silence = |registry: &mut Registry, id, now_ms| registry.silence(AgentId(id), false, now_ms);
        assert_eq!(silence(&mut registry, 1, SILENT_MS), Silence::Borne);
        assert_eq!(silence(&mut registry, 2, 120_000), Silence::Borne);
        assert_eq!(silence(&mut registry, 3, SILENT_MS), Silence::Dead, "it has nothing");
        assert_eq!(silence(&mut registry, 1, 120_001), Silence::Dead);
    }

    #[test]
    fn who_has_what_others_have_or_is_let_go_is_dead_as_soon_as_it_is_silent() {
        let mut registry = with_log();
        registry.heartbeat(AgentId(2), 0, 2_000);
        registry.look_for_silent(SILENT_MS);
        assert_eq!(registry.silence(AgentId(1), false, SILENT_MS), Silence::Dead);
        registry.look_for_silent(2_000 + SILENT_MS);
        assert_eq!(registry.silence(AgentId(2), false, 2_000 + SILENT_MS), Silence::Borne);
        assert_eq!(
            registry.silence(AgentId(2), true, 2_000 + SILENT_MS),
            Silence::Dead,
            "its process is gone"
        );
        let mut registry = with_log();
        registry.leaving(AgentId(1));
        registry.look_for_silent(SILENT_MS);
        assert!(registry.is_dead(AgentId(1), false, SILENT_MS));
    }

    #[test]
    fn with_a_checkpoint_nobody_is_waited_for() {
        let mut registry = with_log();
        registry.bear(0);
        registry.look_for_silent(SILENT_MS);
        assert_eq!(registry.silence(AgentId(1), false, SILENT_MS), Silence::Dead);
    }
}
