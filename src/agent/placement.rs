//! Which agents hold copies of a log, and ranges of a state: rendezvous hashing.
//!
//! Each (task, agent) or (range, agent) pair has a weight that depends on nothing else, so everyone who knows the agents
//! chooses the same, and one agent's death moves only what it held (Thaler and Ravishankar, *Using
//! Name-Based Mappings to Increase Hit Rates*, 1998).

use std::cmp::Reverse;
use std::collections::HashMap;

use xxhash_rust::xxh3::xxh3_64;

use super::protocol::AgentInfo;
use crate::id::{AgentId, TaskId};
use crate::state::{Range, StateId};

/// All agents but `own`, best first: one on each other host, then the second on each and so on, then other
/// agents on this host, then the driver's. So no two of the first copies are lost with one host.
#[must_use]
pub fn candidates(task: &TaskId, own: AgentId, host: &str, agents: &[AgentInfo]) -> Vec<AgentInfo> {
    candidates_but(task, own, host, agents, |_| false)
}

/// The same, but those who are slow come last among those who are as far away.
#[must_use]
pub fn candidates_but(
    task: &TaskId,
    own: AgentId,
    host: &str,
    agents: &[AgentInfo],
    is_slow: impl Fn(&AgentInfo) -> bool,
) -> Vec<AgentInfo> {
    let others = agents.iter().filter(|agent| agent.id != own);
    in_order(&task.to_string(), Some(host), others.collect(), is_slow).into_iter().cloned().collect()
}

/// Agents in the order in which they hold a range of a state: one on each host, then the second on each and so on, then
/// the driver's.
#[must_use]
pub fn holders<'a>(state: &StateId, range: Range, agents: &'a [AgentInfo]) -> Vec<&'a AgentInfo> {
    in_order(&format!("{state}\0{}", range.0), None, agents.iter().collect(), |_| false)
}

fn in_order<'a>(
    name: &str,
    own_host: Option<&str>,
    mut agents: Vec<&'a AgentInfo>,
    is_slow: impl Fn(&AgentInfo) -> bool,
) -> Vec<&'a AgentInfo> {
    let is_here = |agent: &AgentInfo| own_host == Some(&agent.host);
    agents.sort_by_cached_key(|agent| {
        let weight = xxh3_64(format!("{name}\0{}", agent.id).as_bytes());
        // The driver is everyone's neighbour: it comes last, so that it does not hold everything.
        (agent.driver, is_here(agent), Reverse(weight), agent.id)
    });
    let mut before: HashMap<&str, usize> = HashMap::new();
    let place = |agent: &'a AgentInfo| {
        let same_host = before.entry(&agent.host).or_insert(0);
        *same_host += 1;
        ((agent.driver, is_here(agent), *same_host), agent)
    };
    let mut placed: Vec<_> = agents.into_iter().map(place).collect();
    // Stable: among those of one place the weight decides.
    placed.sort_by_cached_key(|(place, agent)| (*place, is_slow(agent)));
    placed.into_iter().map(|(_, agent)| agent).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{Epoch, Partition};

    fn agent(id: u64, host: &str, driver: bool) -> AgentInfo {
        AgentInfo { id: AgentId(id), addr: format!("{host}:{id}"), host: host.into(), driver }
    }

    fn task(partition: u32) -> TaskId {
        let epoch = Epoch::Batch(1);
        TaskId { query: "q".into(), operator: "f".into(), epoch, partition: Partition(partition) }
    }

    #[test]
    fn other_hosts_come_first_and_the_driver_last() {
        let agents = [agent(1, "a", true), agent(2, "a", false), agent(3, "b", false), agent(4, "a", false)];
        let chosen = candidates(&task(0), AgentId(4), "a", &agents);
        let ids: Vec<u64> = chosen.iter().map(|agent| agent.id.0).collect();
        assert_eq!(ids, [3, 2, 1]);
    }

    #[test]
    fn who_is_slow_comes_last_among_those_as_far_away() {
        let agents = [agent(1, "a", false), agent(2, "a", false), agent(3, "b", false)];
        let chosen = |slow: u64| {
            let chosen = candidates_but(&task(0), AgentId(9), "x", &agents, |agent| agent.id.0 == slow);
            chosen.iter().map(|agent| agent.id.0).collect::<Vec<_>>()
        };
        assert_eq!(chosen(3)[1], 3, "no two of the first copies are on one host");
        for slow in [1, 2] {
            assert!(chosen(slow)[0] != slow);
        }
    }

    #[test]
    fn no_two_of_the_first_copies_are_on_one_host() {
        let agents: Vec<_> = (1..=9).map(|id| agent(id, &format!("h{}", id % 3), false)).collect();
        for partition in 0..50 {
            let chosen = candidates(&task(partition), AgentId(99), "x", &agents);
            for some in chosen.chunks(3) {
                let mut hosts: Vec<&str> = some.iter().map(|agent| agent.host.as_str()).collect();
                hosts.sort_unstable();
                assert_eq!(hosts, ["h0", "h1", "h2"]);
            }
        }
    }

    #[test]
    fn ranges_are_spread_over_hosts_and_the_driver_has_them_last() {
        let mut agents: Vec<_> = (1..=8).map(|id| agent(id, &format!("h{}", id % 4), false)).collect();
        agents.push(agent(9, "h9", true));
        let state = StateId { query: "q".into(), operator: "f".into() };
        let mut first = [0; 9];
        for range in Range::all() {
            let all = holders(&state, range, &agents);
            first[all[0].id.0 as usize] += 1;
            let mut hosts: Vec<&str> = all[..4].iter().map(|agent| agent.host.as_str()).collect();
            hosts.sort_unstable();
            assert_eq!(hosts, ["h0", "h1", "h2", "h3"]);
            assert_eq!(all[8].id, AgentId(9));
        }
        assert!(first[1..].iter().all(|count| (12..60).contains(count)), "{first:?}");
    }

    #[test]
    fn a_death_moves_only_what_the_dead_one_held() {
        let agents: Vec<_> = (1..=8).map(|id| agent(id, &format!("h{id}"), false)).collect();
        let mut first = [0; 9];
        for partition in 0..800 {
            let all = candidates(&task(partition), AgentId(99), "x", &agents);
            first[all[0].id.0 as usize] += 1;
            let without: Vec<_> = agents.iter().filter(|a| a.id != AgentId(3)).cloned().collect();
            let left = candidates(&task(partition), AgentId(99), "x", &without);
            let expected: Vec<_> = all.into_iter().filter(|a| a.id != AgentId(3)).collect();
            assert_eq!(left, expected);
        }
        assert!(first[1..].iter().all(|count| (50..200).contains(count)), "{first:?}");
    }
}
