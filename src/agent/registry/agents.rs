//! Which agents there are. One that is silent is not chosen as a peer; it is dead only once somebody had to
//! go on without its answer, and then for good: it may have missed a fence.

use std::collections::{BTreeMap, HashSet};

use super::Registry;
use crate::agent::members::{Change, Changes, News};
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
struct Known {
    info: AgentInfo,
    seen_ms: u64,
    is_silent: bool,
}

impl Known {
    fn was_seen(&self, silence_ms_max: u64, now_ms: u64) -> bool {
        self.info.driver || now_ms.saturating_sub(self.seen_ms) <= silence_ms_max
    }
}

/// All agents of an application. Who is silent is found out when the first of them can be: nothing here
/// looks at all of them each time.
#[derive(Debug, Default)]
pub(super) struct Agents {
    known: BTreeMap<AgentId, Known>,
    alive: usize,
    /// Agents without whose answer somebody had to go on.
    dead: HashSet<AgentId>,
    /// Nobody falls silent before.
    next_ms: u64,
    changes: Changes,
    /// When the clock was looked at last.
    looked_ms: u64,
}

impl Agents {
    /// Notes who has fallen silent since; whether anybody has.
    fn look(&mut self, now_ms: u64) -> bool {
        if now_ms < self.next_ms {
            return false;
        }
        let before = self.alive;
        self.next_ms = u64::MAX;
        for (id, known) in &mut self.known {
            if known.is_silent || known.info.driver {
                continue;
            }
            if known.was_seen(AGENT_SILENCE_MS_MAX, now_ms) {
                self.next_ms = self.next_ms.min(known.seen_ms + AGENT_SILENCE_MS_MAX + 1);
                continue;
            }
            known.is_silent = true;
            self.alive -= 1;
            self.changes.push(Change::Gone(*id));
        }
        self.alive < before
    }

    /// An agent is here, or is again.
    fn came(&mut self, info: AgentInfo, now_ms: u64) {
        let known = Known { info: info.clone(), seen_ms: now_ms, is_silent: false };
        let before = self.known.insert(info.id, known).filter(|before| !before.is_silent);
        self.alive += usize::from(before.is_none());
        self.next_ms = self.next_ms.min(now_ms + AGENT_SILENCE_MS_MAX + 1);
        if before.is_none_or(|before| before.info != info) {
            self.changes.push(Change::Here(info));
        }
    }

    fn died(&mut self, id: AgentId) -> bool {
        let Some(known) = self.known.remove(&id) else { return false };
        self.dead.insert(id);
        if !known.is_silent {
            self.alive -= 1;
            self.changes.push(Change::Gone(id));
        }
        true
    }

    fn alive(&self) -> impl Iterator<Item = &AgentInfo> {
        self.known.values().filter(|known| !known.is_silent).map(|known| &known.info)
    }

    /// Whether it is neither silent nor dead.
    pub(super) fn is_alive(&self, id: AgentId) -> bool {
        self.known.get(&id).is_some_and(|known| !known.is_silent)
    }

    pub(super) const fn count_alive(&self) -> usize {
        self.alive
    }

    pub(super) fn info(&self, id: AgentId) -> Option<&AgentInfo> {
        self.known.get(&id).map(|known| &known.info)
    }

    /// All that are not dead.
    pub(super) fn known(&self) -> impl Iterator<Item = &AgentInfo> {
        self.known.values().map(|known| &known.info)
    }

    pub(super) fn version(&self) -> u64 {
        self.changes.version()
    }
}

impl Registry {
    /// To be told the time before anything else is asked.
    pub fn look_at_clock(&mut self, now_ms: u64) {
        let agents = &mut self.agents;
        let pause_ms = now_ms.saturating_sub(agents.looked_ms);
        if pause_ms >= PAUSE_MS_MIN && agents.looked_ms > 0 {
            agents.known.values_mut().for_each(|known| known.seen_ms += pause_ms);
        }
        agents.looked_ms = agents.looked_ms.max(now_ms);
        self.look_for_silent(now_ms);
    }

    pub(super) fn look_for_silent(&mut self, now_ms: u64) {
        if self.agents.look(now_ms) {
            self.look_for_short();
        }
    }

    /// An agent says where it is.
    pub fn register(&mut self, info: AgentInfo, now_ms: u64) {
        if !self.agents.dead.contains(&info.id) {
            self.agents.came(info, now_ms);
        }
    }

    /// An agent says that it is alive: what it is taken for, and what was committed since.
    pub fn heartbeat(
        &mut self,
        agent: AgentId,
        commits_seen: u64,
        now_ms: u64,
    ) -> (AgentStanding, Vec<Commit>, u64) {
        let agents = &mut self.agents;
        let standing = match agents.known.get_mut(&agent) {
            Some(known) if known.is_silent => {
                let info = known.info.clone();
                agents.came(info, now_ms);
                // It has copies that were given up as missing.
                self.look_for_short();
                AgentStanding::Alive
            }
            Some(known) => {
                known.seen_ms = now_ms;
                AgentStanding::Alive
            }
            None if agents.dead.contains(&agent) => AgentStanding::Dead,
            None => AgentStanding::Unknown,
        };
        let (new, commits) = self.commits_since(commits_seen);
        (standing, new, commits)
    }

    /// Whether an agent that does not answer is dead; `refused` if nobody listens where it was. Whoever asks
    /// goes on without it then, so that it stays dead.
    pub fn is_dead(&mut self, agent: AgentId, refused: bool, now_ms: u64) -> bool {
        let silence_ms_max = if refused { REFUSED_SILENCE_MS_MAX } else { AGENT_SILENCE_MS_MAX };
        let known = self.agents.known.get(&agent);
        if known.is_some_and(|known| known.was_seen(silence_ms_max, now_ms)) {
            return false;
        }
        if self.agents.died(agent) {
            self.look_for_short();
        }
        true
    }

    /// Whether an agent was heard of lately.
    pub fn is_alive(&mut self, agent: AgentId, now_ms: u64) -> bool {
        self.look_for_silent(now_ms);
        self.agents.is_alive(agent)
    }

    /// Agents heard of lately.
    pub fn alive(&mut self, now_ms: u64) -> Vec<AgentInfo> {
        self.look_for_silent(now_ms);
        self.agents.alive().cloned().collect()
    }

    /// What is news to an agent that knows the first `seen` changes of who is alive.
    pub fn news(&mut self, seen: u64, now_ms: u64) -> News {
        self.look_for_silent(now_ms);
        self.agents.changes.news(seen, self.agents.alive())
    }

    /// Those of `ids` that are not dead.
    pub(super) fn infos<'a>(&self, ids: impl IntoIterator<Item = &'a AgentId>) -> Vec<AgentInfo> {
        let known = ids.into_iter().filter_map(|id| self.agents.info(*id));
        let mut infos: Vec<_> = known.cloned().collect();
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
