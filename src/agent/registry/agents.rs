//! Which agents there are. One that is silent is not chosen as a peer; it is dead only once somebody had to
//! go on without its answer, and then for good: it may have missed a fence.

use super::Registry;
use crate::agent::protocol::{AgentInfo, AgentStanding, Commit};
use crate::id::AgentId;

/// An agent that was silent for longer is not chosen as a peer, and is dead if its answer is needed.
pub const AGENT_SILENCE_MS_MAX: u64 = 4_000;
/// As much where nobody listens at its address any more: two beats and a half.
const REFUSED_SILENCE_MS_MAX: u64 = 1_250;
/// Agents beat twice a second, and the driver's own looks as often. If nobody was heard for longer, this
/// process did not run, and nobody else is to blame.
const PAUSE_MS_MIN: u64 = 2_000;

/// An agent that is not dead.
#[derive(Debug)]
pub(super) struct Known {
    info: AgentInfo,
    seen_ms: u64,
}

impl Known {
    fn was_seen(&self, silence_ms_max: u64, now_ms: u64) -> bool {
        self.info.driver || now_ms.saturating_sub(self.seen_ms) <= silence_ms_max
    }
}

impl Registry {
    /// To be told the time before anything else is asked.
    pub fn look_at_clock(&mut self, now_ms: u64) {
        let pause_ms = now_ms.saturating_sub(self.looked_ms);
        if pause_ms >= PAUSE_MS_MIN && self.looked_ms > 0 {
            self.agents.values_mut().for_each(|known| known.seen_ms += pause_ms);
        }
        self.looked_ms = self.looked_ms.max(now_ms);
    }

    /// An agent says where it is.
    pub fn register(&mut self, info: AgentInfo, now_ms: u64) {
        if !self.dead.contains(&info.id) {
            self.agents.insert(info.id, Known { info, seen_ms: now_ms });
        }
    }

    /// An agent says that it is alive: what it is taken for, and what was committed since.
    pub fn heartbeat(
        &mut self,
        agent: AgentId,
        commits_seen: u64,
        now_ms: u64,
    ) -> (AgentStanding, Vec<Commit>, u64) {
        let known = self.agents.get_mut(&agent).map(|known| known.seen_ms = now_ms).is_some();
        let standing = match known {
            true => AgentStanding::Alive,
            false if self.dead.contains(&agent) => AgentStanding::Dead,
            false => AgentStanding::Unknown,
        };
        let (new, commits) = self.commits_since(commits_seen);
        (standing, new, commits)
    }

    /// Whether an agent that does not answer is dead; `refused` if nobody listens where it was. Whoever asks
    /// goes on without it then, so that it stays dead.
    pub fn is_dead(&mut self, agent: AgentId, refused: bool, now_ms: u64) -> bool {
        let silence_ms_max = if refused { REFUSED_SILENCE_MS_MAX } else { AGENT_SILENCE_MS_MAX };
        if self.agents.get(&agent).is_some_and(|known| known.was_seen(silence_ms_max, now_ms)) {
            return false;
        }
        if self.agents.remove(&agent).is_some() {
            self.dead.insert(agent);
            self.look_for_short();
        }
        true
    }

    /// Agents heard of lately.
    #[must_use]
    pub fn alive(&self, now_ms: u64) -> Vec<AgentInfo> {
        let lately = |known: &&Known| known.was_seen(AGENT_SILENCE_MS_MAX, now_ms);
        self.agents.values().filter(lately).map(|known| known.info.clone()).collect()
    }

    /// All that are not dead.
    pub(super) fn known(&self) -> impl Iterator<Item = &AgentInfo> {
        self.agents.values().map(|known| &known.info)
    }

    /// Those of `ids` that are not dead.
    pub(super) fn infos<'a>(&self, ids: impl IntoIterator<Item = &'a AgentId>) -> Vec<AgentInfo> {
        let known = ids.into_iter().filter_map(|id| self.agents.get(id));
        let mut infos: Vec<_> = known.map(|known| known.info.clone()).collect();
        infos.sort_by_key(|info| info.id);
        infos
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_two() -> Registry {
        let mut registry = Registry::new();
        for id in [1, 2] {
            let (addr, host) = (format!("{id}"), format!("{id}"));
            registry.register(AgentInfo { id: AgentId(id), addr, host, driver: false }, 0);
        }
        registry
    }

    #[test]
    fn who_is_silent_is_not_dead_until_its_answer_is_needed_and_then_stays_so() {
        let mut registry = with_two();
        assert!(!registry.is_dead(AgentId(1), false, AGENT_SILENCE_MS_MAX));
        assert!(registry.alive(AGENT_SILENCE_MS_MAX + 1).is_empty());
        assert_eq!(registry.heartbeat(AgentId(1), 0, 9_000).0, AgentStanding::Alive);
        assert!(registry.is_dead(AgentId(2), false, 9_000));
        assert_eq!(registry.heartbeat(AgentId(2), 0, 9_001).0, AgentStanding::Dead);
        let again = AgentInfo { id: AgentId(2), addr: "2".into(), host: "2".into(), driver: false };
        registry.register(again, 9_002);
        assert_eq!(registry.alive(9_003).len(), 1);
        assert_eq!(registry.heartbeat(AgentId(3), 0, 9_004).0, AgentStanding::Unknown);
    }

    #[test]
    fn where_nobody_listens_any_more_less_silence_will_do() {
        let mut registry = with_two();
        assert!(!registry.is_dead(AgentId(1), true, REFUSED_SILENCE_MS_MAX));
        assert!(registry.is_dead(AgentId(1), true, REFUSED_SILENCE_MS_MAX + 1));
    }

    #[test]
    fn a_registry_that_did_not_run_takes_nobody_for_silent() {
        let mut registry = with_two();
        registry.look_at_clock(1_000);
        registry.look_at_clock(60_000);
        assert_eq!(registry.alive(60_000).len(), 2);
        assert!(!registry.is_dead(AgentId(1), false, 60_000));
        // It runs again, and they stay silent.
        (60_000..66_000).step_by(500).for_each(|now_ms| registry.look_at_clock(now_ms));
        assert!(registry.alive(66_000).is_empty());
    }
}
