//! Which agents there are. One that is silent, or whose executor Spark lets go, is not chosen as a peer, and what it
//! holds is copied elsewhere. It is dead only once somebody had to go on without its answer, and then for good: it may
//! have missed a fence.

use std::collections::{BTreeMap, HashSet};

use super::Registry;
use crate::agent::members::{Change, Changes, News};
use crate::agent::protocol::{AgentInfo, AgentStanding, Commit};
use crate::id::AgentId;

/// An agent that was silent for longer is not chosen as a peer, and is dead if its answer is needed.
pub const AGENT_SILENCE_MS_MAX: u64 = 4_000;
/// Agents beat twice a second, and the driver's own looks as often. If nobody was heard for longer, this
/// process did not run, and nobody else is to blame.
const PAUSE_MS_MIN: u64 = 2_000;

/// An agent that is not dead.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) info: AgentInfo,
    /// Spark's name of its executor; empty if it has none of its own.
    executor: String,
    seen_ms: u64,
    is_silent: bool,
    pub(super) is_leaving: bool,
    /// It was told that nobody needs it: it ends, and is not asked for a copy.
    is_going: bool,
}

impl Known {
    /// Whether copies may be made there.
    const fn stays(&self) -> bool {
        !self.is_silent && !self.is_leaving
    }

    pub(super) fn was_seen(&self, silence_ms_max: u64, now_ms: u64) -> bool {
        self.info.driver || now_ms.saturating_sub(self.seen_ms) <= silence_ms_max
    }
}

/// All agents of an application. Who is silent is found out when the first of them can be: nothing here
/// looks at all of them each time.
#[derive(Debug, Default)]
pub(super) struct Agents {
    pub(super) known: BTreeMap<AgentId, Known>,
    /// How many of them stay.
    staying: usize,
    /// Executors that Spark had when it was asked last.
    executors: HashSet<String>,
    /// Agents without whose answer somebody had to go on.
    dead: HashSet<AgentId>,
    /// Those of whom nobody was told yet.
    buried: Vec<AgentId>,
    /// Nobody falls silent before.
    next_ms: u64,
    changes: Changes,
    /// When the clock was looked at last.
    looked_ms: u64,
    /// How long the silence of one is borne that is not to be lost.
    pub(super) borne_ms: u64,
}

impl Agents {
    /// Notes who has fallen silent since.
    fn look(&mut self, now_ms: u64) -> Vec<AgentId> {
        if now_ms < self.next_ms {
            return Vec::new();
        }
        self.next_ms = u64::MAX;
        let mut silent = Vec::new();
        for (id, known) in &self.known {
            if known.is_silent || known.info.driver {
                continue;
            }
            if known.was_seen(AGENT_SILENCE_MS_MAX, now_ms) {
                self.next_ms = self.next_ms.min(known.seen_ms + AGENT_SILENCE_MS_MAX + 1);
            } else {
                silent.push(*id);
            }
        }
        for id in &silent {
            self.change(*id, |known| known.is_silent = true);
        }
        silent
    }

    /// Changes what is known of an agent, and tells the others if that makes a difference to them.
    fn change(&mut self, id: AgentId, change: impl FnOnce(&mut Known)) {
        let Some(known) = self.known.get_mut(&id) else { return };
        let stayed = known.stays();
        change(known);
        match (stayed, known.stays()) {
            (true, false) => {
                self.staying -= 1;
                self.changes.push(Change::Gone(id));
            }
            (false, true) => {
                self.staying += 1;
                self.changes.push(Change::Here(known.info.clone()));
            }
            _ => {}
        }
    }

    /// An agent is here.
    fn came(&mut self, info: AgentInfo, executor: String, now_ms: u64) {
        let is_leaving = self.known.get(&info.id).is_some_and(|before| before.is_leaving);
        let (seen_ms, is_silent, is_going) = (now_ms, false, false);
        let known = Known { info: info.clone(), executor, seen_ms, is_silent, is_leaving, is_going };
        let stays = known.stays();
        let before = self.known.insert(info.id, known).filter(Known::stays);
        if stays {
            self.staying += usize::from(before.is_none());
            if before.is_none_or(|before| before.info != info) {
                self.changes.push(Change::Here(info));
            }
        }
        self.next_ms = self.next_ms.min(now_ms + AGENT_SILENCE_MS_MAX + 1);
    }

    fn died(&mut self, id: AgentId) -> bool {
        self.change(id, |known| known.is_silent = true);
        let known = self.known.remove(&id);
        known.is_some() && self.dead.insert(id)
    }

    fn alive(&self) -> impl Iterator<Item = &AgentInfo> {
        self.known.values().filter(|known| !known.is_silent).map(|known| &known.info)
    }

    pub(super) fn staying(&self) -> impl Iterator<Item = &AgentInfo> {
        self.known.values().filter(|known| known.stays()).map(|known| &known.info)
    }

    /// Whether it is neither silent nor dead.
    pub(super) fn is_alive(&self, id: AgentId) -> bool {
        self.known.get(&id).is_some_and(|known| !known.is_silent)
    }

    /// Whether somebody had to go on without its answer.
    pub(super) fn is_dead(&self, id: AgentId) -> bool {
        self.dead.contains(&id)
    }

    /// Whether it can be asked to copy what it holds.
    pub(super) fn may_copy(&self, id: AgentId) -> bool {
        self.known.get(&id).is_some_and(|known| !known.is_silent && !known.is_going)
    }

    /// Whether it is neither silent nor dead, and its executor is not let go.
    pub(super) fn stays(&self, id: AgentId) -> bool {
        self.known.get(&id).is_some_and(Known::stays)
    }

    pub(super) const fn count_staying(&self) -> usize {
        self.staying
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
        self.look_for_few(now_ms);
    }

    pub(super) fn look_for_silent(&mut self, now_ms: u64) {
        let silent = self.agents.look(now_ms);
        self.are_missing(&silent);
    }

    /// These are silent, or leave. Of one that does both nobody will hear again.
    fn are_missing(&mut self, agents: &[AgentId]) {
        let is_left = |known: &Known| known.is_silent && known.is_leaving;
        for agent in agents {
            match self.agents.known.get(agent).is_some_and(is_left) {
                true => self.has_died(*agent),
                false => self.look_for_short(*agent),
            }
        }
    }

    /// An agent says where it is, and beside which executor; empty if it has none of its own.
    pub fn register(&mut self, info: AgentInfo, executor: &str, now_ms: u64) {
        if self.agents.is_dead(info.id) {
            return;
        }
        // Two cannot listen on one address: what is asked of the one before would be answered by this one.
        let known = self.agents.known.iter();
        let before =
            known.filter(|(id, known)| **id != info.id && known.info.addr == info.addr && !known.info.driver);
        for agent in before.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.has_died(agent);
        }
        // An executor has one agent. Its workers took the one before for gone: that one is lost with this one, and ends.
        if !executor.is_empty() && self.agents.info(info.id).is_none() {
            let known = self.agents.known.iter();
            let before = known.filter(|(_, known)| known.executor == executor).map(|(id, _)| *id);
            let before: Vec<AgentId> = before.collect();
            self.leave(&before);
        }
        let is_new = !self.agents.stays(info.id);
        self.agents.came(info, executor.to_owned(), now_ms);
        if is_new {
            self.has_room(now_ms);
        }
    }

    /// Agents that were found dead since this was asked last.
    pub fn buried(&mut self) -> Vec<AgentId> {
        std::mem::take(&mut self.agents.buried)
    }

    pub(super) fn has_died(&mut self, agent: AgentId) {
        if self.agents.died(agent) {
            self.agents.buried.push(agent);
            self.short.of_dead(agent);
            self.look_for_short(agent);
            self.break_off(agent);
            self.places.died(agent);
            self.states.died(agent);
            self.waiting.died(agent);
        }
    }

    /// The executors that Spark has and does not let go. Who is no more among them leaves: what its agent holds is
    /// copied while it is there.
    pub fn executors_are(&mut self, executors: HashSet<String>) {
        let known = self.agents.known.iter();
        let gone = known.filter(|(_, known)| {
            // One that came since Spark was asked is on no list yet.
            self.agents.executors.contains(&known.executor) && !executors.contains(&known.executor)
        });
        let gone: Vec<AgentId> = gone.map(|(id, _)| *id).collect();
        self.agents.executors = executors;
        self.leave(&gone);
    }

    /// An agent says that its executor has ended; whether there are logs that it is to copy before it ends.
    pub fn leaving(&mut self, agent: AgentId) -> bool {
        self.leave(&[agent]);
        let is_needed = self.has_repairs(agent) || self.states.is_needed(agent, &self.agents);
        if let Some(known) = self.agents.known.get_mut(&agent) {
            known.is_going = !is_needed;
        }
        is_needed
    }

    fn leave(&mut self, agents: &[AgentId]) {
        // All of them first: none of them is to take a copy of another's.
        for agent in agents {
            self.agents.change(*agent, |known| known.is_leaving = true);
        }
        self.are_missing(agents);
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
                known.seen_ms = now_ms;
                agents.next_ms = agents.next_ms.min(now_ms + AGENT_SILENCE_MS_MAX + 1);
                agents.change(agent, |known| known.is_silent = false);
                // It has copies that were given up as missing.
                self.look_for_short(agent);
                self.has_room(now_ms);
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
        self.agents.changes.news(seen, self.agents.staying())
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
    use crate::agent::registry::silence::REFUSED_SILENCE_MS_MAX;

    fn with_two() -> Registry {
        let mut registry = Registry::new();
        for id in [1, 2] {
            let (addr, host) = (format!("{id}"), format!("{id}"));
            registry.register(AgentInfo { id: AgentId(id), addr, host, driver: false }, &format!("e{id}"), 0);
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
        registry.register(again, "e2", 9_002);
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
    fn who_listens_where_another_did_is_not_taken_for_it() {
        let mut registry = with_two();
        let info = AgentInfo { id: AgentId(3), addr: "2".into(), host: "2".into(), driver: false };
        registry.register(info.clone(), "e3", 1);
        assert_eq!(registry.heartbeat(AgentId(2), 0, 2).0, AgentStanding::Dead);
        // Again, as its first answer was lost: it is itself.
        registry.register(info, "e3", 3);
        let alive: Vec<_> = registry.alive(4).into_iter().map(|info| info.id.0).collect();
        assert_eq!(alive.len(), 2);
        assert!(alive.contains(&1) && alive.contains(&3), "{alive:?}");
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

    fn executors(ids: &[&str]) -> HashSet<String> {
        ids.iter().map(|id| (*id).to_owned()).collect()
    }

    #[test]
    fn whose_executor_is_let_go_is_alive_and_no_peer() {
        let mut registry = with_two();
        registry.executors_are(executors(&[]));
        assert_eq!(registry.agents.count_staying(), 2, "they may have come since Spark was asked");
        registry.executors_are(executors(&["e1", "e2"]));
        let seen = registry.agents.version();
        registry.executors_are(executors(&["e2"]));
        assert!(registry.is_alive(AgentId(1), 1) && !registry.agents.stays(AgentId(1)));
        assert_eq!(registry.agents.version(), seen + 1, "others are told");
        // It says so itself, is told of again, or registers again: nothing changes.
        registry.executors_are(executors(&["e2"]));
        assert!(!registry.leaving(AgentId(1)));
        let again = AgentInfo { id: AgentId(1), addr: "1".into(), host: "1".into(), driver: false };
        registry.register(again, "e1", 2);
        registry.heartbeat(AgentId(1), 0, 3);
        assert_eq!((registry.agents.version(), registry.agents.count_staying()), (seen + 1, 1));
        // Silent in addition, and back.
        assert_eq!(registry.alive(AGENT_SILENCE_MS_MAX + 9).len(), 0);
        registry.heartbeat(AgentId(1), 0, 9_000);
        registry.heartbeat(AgentId(2), 0, 9_000);
        assert_eq!(registry.agents.count_staying(), 1);
        assert!(registry.is_dead(AgentId(1), false, 20_000));
        assert_eq!(registry.alive(20_000).len(), registry.agents.count_staying());
    }

    #[test]
    fn of_two_agents_beside_one_executor_the_one_before_leaves() {
        let mut registry = with_two();
        let agent = |id: u64| AgentInfo {
            id: AgentId(id),
            addr: format!("new {id}"),
            host: "1".into(),
            driver: false,
        };
        registry.register(agent(3), "e1", 1);
        let stays = |registry: &Registry| [1, 2, 3].map(|id| registry.agents.stays(AgentId(id)));
        assert_eq!(stays(&registry), [false, true, true]);
        assert!(registry.is_alive(AgentId(1), 2), "it is asked for what it has");
        // It registers again: the order does not change.
        let first = AgentInfo { id: AgentId(1), addr: "1".into(), host: "1".into(), driver: false };
        registry.register(first, "e1", 2);
        assert_eq!(stays(&registry), [false, true, true]);
        // Agents of hosts have no executor, and may be several.
        registry.register(agent(4), "", 3);
        registry.register(agent(5), "", 3);
        assert!(registry.agents.stays(AgentId(4)) && registry.agents.stays(AgentId(5)));
    }

    #[test]
    fn who_is_let_go_and_falls_silent_is_dead_and_forgotten() {
        let mut registry = with_two();
        registry.executors_are(executors(&["e1", "e2"]));
        registry.executors_are(executors(&["e2"]));
        registry.heartbeat(AgentId(1), 0, 3_000);
        registry.heartbeat(AgentId(2), 0, 3_000);
        registry.look_at_clock(3_000 + AGENT_SILENCE_MS_MAX);
        assert_eq!(registry.agents.known().count(), 2);
        for now_ms in [3_500, 4_500, 5_500, 6_500, 7_500] {
            registry.heartbeat(AgentId(2), 0, now_ms);
            registry.look_at_clock(now_ms);
        }
        let known: Vec<_> = registry.agents.known().map(|info| info.id).collect();
        assert_eq!((known, registry.buried()), (vec![AgentId(2)], vec![AgentId(1)]));
        assert_eq!(registry.heartbeat(AgentId(1), 0, 9_000).0, AgentStanding::Dead);
        assert!(registry.buried().is_empty());
        // Or it is silent first.
        for now_ms in [9_000, 10_500, 12_000, 13_500] {
            registry.look_at_clock(now_ms);
        }
        assert_eq!(registry.agents.known().count(), 1, "it may come back");
        registry.executors_are(executors(&[]));
        assert_eq!(registry.agents.known().count(), 0);
    }
}
