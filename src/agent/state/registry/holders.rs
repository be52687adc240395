//! Who holds which ranges of one state, and who is to.
//!
//! Whoever is ready has all that was decided of its ranges, so one of them suffices. Whoever joins is sent what is
//! decided from now on and copies what was decided before; it is ready when it has that.

use std::collections::BTreeMap;

use crate::agent::placement;
use crate::agent::protocol::AgentInfo;
use crate::agent::state::asking::Holding;
use crate::id::AgentId;
use crate::state::{Range, RangeSet, StateId};

/// Ranges of a state that an agent copies at a time: each is sent every delta as well.
const JOINING_MAX: usize = 32;

/// The agents of an application, as the registry knows them.
pub trait Cluster {
    /// Number of the last change of who stays.
    fn version(&self) -> u64;
    /// Those that may hold something.
    fn staying(&self) -> Vec<AgentInfo>;
    /// One that is not dead.
    fn info(&self, agent: AgentId) -> Option<AgentInfo>;
}

/// What one agent has.
#[derive(Debug, Default)]
struct Held {
    /// All that is its own, with the number under which it was told. What it is given anew has another one: whatever is
    /// said of what it had before, and comes late, is not said of this.
    since: BTreeMap<Range, u64>,
    /// That of which it has everything; it joins the rest.
    ready: RangeSet,
}

impl Held {
    fn own(&self) -> RangeSet {
        self.since.keys().copied().collect()
    }

    fn joining(&self) -> RangeSet {
        self.own().without(&self.ready)
    }

    fn joining_len(&self) -> usize {
        self.since.len() - self.ready.len()
    }

    fn remove(&mut self, range: Range) {
        self.since.remove(&range);
        self.ready.remove(range);
    }
}

/// Who holds a state.
#[derive(Debug, Default)]
pub(super) struct Holders {
    by_agent: BTreeMap<AgentId, Held>,
    /// Whether somebody has lost ranges since holders were chosen.
    pub(super) is_due: bool,
}

/// What came of choosing.
#[derive(Debug, Default)]
pub(super) struct Chosen {
    /// Ranges that nobody has.
    pub(super) absent: RangeSet,
    /// Agents that have less than before.
    pub(super) relieved: Vec<AgentId>,
}

/// On what terms agents are chosen.
pub(super) struct Terms {
    pub(super) copies: usize,
    /// Ranges of which there is nothing to copy.
    pub(super) untouched: RangeSet,
    /// Under which number agents are told to join.
    pub(super) number: u64,
}

impl Holders {
    /// Chooses who holds what, as rendezvous hashing has it. Whoever is ready stays so until those are.
    pub(super) fn choose(&mut self, state: &StateId, staying: &[AgentInfo], terms: &Terms) -> Chosen {
        self.is_due = false;
        let mut chosen = Chosen::default();
        for range in Range::all() {
            let wanted = placement::holders(state, range, staying).into_iter();
            let wanted: Vec<AgentId> = wanted.take(terms.copies.max(1)).map(|agent| agent.id).collect();
            let is_absent = self.ready(range).next().is_none();
            let is_untouched = terms.untouched.contains(range);
            for agent in &wanted {
                let held = self.by_agent.entry(*agent).or_default();
                if is_untouched || is_absent || held.joining_len() < JOINING_MAX {
                    held.since.entry(range).or_insert(terms.number);
                }
                if is_untouched {
                    held.ready.insert(range);
                }
            }
            if is_absent && !is_untouched {
                chosen.absent.insert(range);
            }
            self.relieve(range, &wanted, &mut chosen.relieved);
        }
        self.by_agent.retain(|_, held| !held.since.is_empty());
        chosen
    }

    /// Takes a range from those that are not wanted any more.
    fn relieve(&mut self, range: Range, wanted: &[AgentId], relieved: &mut Vec<AgentId>) {
        let has = |agent| self.by_agent.get(agent).is_some_and(|held: &Held| held.ready.contains(range));
        let are_ready = !wanted.is_empty() && wanted.iter().all(has);
        for (agent, held) in &mut self.by_agent {
            if wanted.contains(agent) {
                continue;
            }
            if !held.since.contains_key(&range) || (held.ready.contains(range) && !are_ready) {
                continue;
            }
            held.remove(range);
            if relieved.last() != Some(agent) {
                relieved.push(*agent);
            }
        }
    }

    /// Agents that have all of a range.
    pub(super) fn ready(&self, range: Range) -> impl Iterator<Item = AgentId> + '_ {
        self.by_agent.iter().filter(move |(_, held)| held.ready.contains(range)).map(|(agent, _)| *agent)
    }

    /// Agents that are to be sent what is decided of a range.
    pub(super) fn takers(&self, range: Range) -> impl Iterator<Item = AgentId> + '_ {
        self.by_agent.iter().filter(move |(_, held)| held.since.contains_key(&range)).map(|(agent, _)| *agent)
    }

    /// Whether what was known as of then of an agent and a range is of what it has now.
    pub(super) fn is_of_now(&self, agent: AgentId, range: Range, as_of: u64) -> bool {
        let since = self.by_agent.get(&agent).and_then(|held| held.since.get(&range));
        since.is_some_and(|since| *since <= as_of)
    }

    /// Ranges that nobody has all of.
    pub(super) fn absent(&self) -> RangeSet {
        self.by_agent.values().fold(RangeSet::ALL, |absent, held| absent.without(&held.ready))
    }

    /// Who holds some ranges.
    pub(super) fn of(&self, ranges: &RangeSet, cluster: &dyn Cluster) -> Vec<Holding> {
        let holding = |(agent, held): (&AgentId, &Held)| {
            let (ready, joining) = (held.ready.intersection(ranges), held.joining().intersection(ranges));
            let has_some = !ready.is_empty() || !joining.is_empty();
            has_some.then(|| cluster.info(*agent).map(|agent| Holding { agent, ready, joining })).flatten()
        };
        self.by_agent.iter().filter_map(holding).collect()
    }

    /// All that is an agent's.
    pub(super) fn own(&self, agent: AgentId) -> RangeSet {
        self.by_agent.get(&agent).map_or(RangeSet::EMPTY, |held| held.own())
    }

    /// What an agent is to make its own, by number.
    pub(super) fn joins(&self, agent: AgentId) -> BTreeMap<u64, RangeSet> {
        let mut joins: BTreeMap<u64, RangeSet> = BTreeMap::new();
        if let Some(held) = self.by_agent.get(&agent) {
            for (range, number) in held.since.iter().filter(|(range, _)| !held.ready.contains(**range)) {
                joins.entry(*number).or_default().insert(*range);
            }
        }
        joins
    }

    /// Whether an agent has something to make its own.
    pub(super) fn has_joins(&self, agent: AgentId) -> bool {
        self.by_agent.get(&agent).is_some_and(|held| held.joining_len() > 0)
    }

    /// An agent has a range that it was told to make its own under this number; whether that counts.
    pub(super) fn joined(&mut self, agent: AgentId, number: u64, range: Range) -> bool {
        let Some(held) = self.by_agent.get_mut(&agent) else { return false };
        if held.since.get(&range) != Some(&number) || held.ready.contains(range) {
            return false;
        }
        held.ready.insert(range);
        self.is_due = true;
        true
    }

    /// The fewest agents that are ready of any range, and how many ranges are being joined.
    pub(super) fn figures(&self) -> (u32, u32) {
        let copies = Range::all().map(|range| self.ready(range).count()).min().unwrap_or(0);
        let joining: usize = self.by_agent.values().map(Held::joining_len).sum();
        let short = |count| u32::try_from(count).unwrap_or(u32::MAX);
        (short(copies), short(joining))
    }

    /// Ranges of an agent that others have, too.
    pub(super) fn shared(&self, agent: AgentId) -> u64 {
        let ready = self.by_agent.get(&agent).map_or(RangeSet::EMPTY, |held| held.ready);
        ready.iter().filter(|range| self.ready(*range).count() > 1).count() as u64
    }

    /// An agent, known as of then, has not all that was decided of some ranges. What it has copied lacks something, too.
    pub(super) fn demote(&mut self, agent: AgentId, ranges: &RangeSet, as_of: u64) {
        let Some(held) = self.by_agent.get_mut(&agent) else { return };
        for range in ranges.iter() {
            if held.since.get(&range).is_some_and(|since| *since <= as_of) {
                held.remove(range);
                self.is_due = true;
            }
        }
    }

    /// Whether an agent has some range that none of the others has.
    pub(super) fn has_alone(&self, agent: AgentId, is_other: impl Fn(&AgentId) -> bool) -> bool {
        let Some(held) = self.by_agent.get(&agent) else { return false };
        held.ready.iter().any(|range| !self.ready(range).any(|holder| is_other(&holder)))
    }

    /// Whether an agent alone has some range that others are to have.
    pub(super) fn is_needed(&self, agent: AgentId) -> bool {
        let Some(held) = self.by_agent.get(&agent) else { return false };
        held.ready.iter().any(|range| self.ready(range).count() < 2 && self.takers(range).count() > 1)
    }
}
