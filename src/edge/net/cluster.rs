//! What all agents hold, gathered by the driver's.

use std::collections::HashMap;

use crate::agent::protocol::{AgentInfo, AgentStats, AgentSummary, ClusterStats, Reply, Request};
use crate::edge::agent::handler::Handler;
use crate::edge::agent::registrar::Registrar;
use crate::edge::locked;
use crate::error::{Error, Result};
use crate::id::TaskId;

/// Asks every living agent; an executor's agent has the driver's do it.
pub(in crate::edge) fn cluster_stats(handler: &Handler) -> Result<ClusterStats> {
    let local = match &handler.registrar {
        Registrar::Here(local) => local,
        Registrar::There(driver) => {
            return match handler.connections.call_at(driver, &Request::ClusterStats)? {
                Reply::ClusterStats(stats) => Ok(stats),
                _ => Err(Error::Protocol { what: "the driver's agent answered another question".into() }),
            };
        }
    };
    let (agents, tasks, totals, operators, mut states) = {
        let mut registry = locked(&local.registry);
        (
            registry.alive(local.now_ms()),
            registry.task_stats(),
            registry.totals(),
            registry.operator_stats(),
            registry.state_figures(),
        )
    };
    let mut sizes: HashMap<TaskId, (u64, u64)> = HashMap::new();
    let mut in_flight: HashMap<TaskId, u64> = HashMap::new();
    let mut summaries = Vec::new();
    for agent in agents {
        let answer = stats_of(handler, &agent);
        for held in answer.iter().flat_map(|stats| &stats.held) {
            if let Some(task) = held.task.sender() {
                *in_flight.entry(task).or_default() += held.bytes;
                continue;
            }
            let size = sizes.entry(held.task.clone()).or_default();
            *size = (size.0.max(held.bytes), size.1.max(held.spilled));
        }
        for held in answer.iter().flat_map(|stats| &stats.states) {
            if let Some((_, figures)) = states.iter_mut().find(|(id, _)| *id == held.state) {
                figures.bytes += held.bytes;
                let behind = figures.version.unwrap_or(0).saturating_sub(held.version.0.unwrap_or(0));
                figures.lag = figures.lag.max(behind);
            }
        }
        summaries.push(summary(agent, answer.as_ref()));
    }
    let tasks = tasks.into_iter().map(|(task, mut stats)| {
        let (bytes, spilled) = sizes.get(&task).copied().unwrap_or_default();
        stats.bytes = bytes;
        stats.spilled = spilled;
        stats.in_flight = in_flight.get(&task).copied().unwrap_or_default();
        stats.sent = bytes * (stats.holders.len() as u64).saturating_sub(1);
        stats
    });
    let states = states.into_iter().map(|(_, figures)| figures).collect();
    Ok(ClusterStats { agents: summaries, tasks: tasks.collect(), totals, operators, states })
}

fn stats_of(handler: &Handler, agent: &AgentInfo) -> Option<AgentStats> {
    if agent.id == handler.info.id {
        return Some(handler.stats());
    }
    match handler.connections.call(agent, &Request::Stats) {
        Ok(Reply::Stats(stats)) => Some(stats),
        _ => None,
    }
}

fn summary(agent: AgentInfo, stats: Option<&AgentStats>) -> AgentSummary {
    AgentSummary {
        addr: agent.addr,
        host: agent.host,
        alive: stats.is_some(),
        logs: stats.map_or(0, |stats| stats.held.len() as u64),
        memory_bytes: stats.map_or(0, |stats| stats.memory_bytes),
        spilled_bytes: stats.map_or(0, |stats| stats.spilled_bytes),
        sent_bytes: stats.map_or(0, |stats| stats.sent_bytes),
        state_bytes: stats.map_or(0, |stats| stats.states.iter().map(|state| state.memory_bytes).sum()),
    }
}
