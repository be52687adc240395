//! Restoring the number of copies after a holder has died.
//!
//! A log whose attempt is over is written to by nobody, so nobody would notice that fewer agents hold it
//! than `sharing_depth` wants. One of the holders that are left is told to make another copy; failures one
//! after the other are survived then, as long as there is time for that between them.

use std::collections::HashSet;

use super::{Entry, Registry};
use crate::agent::protocol::{AgentInfo, Repair};
use crate::id::{AgentId, TaskId};

/// Repairs told at a time.
const REPAIRS_MAX: usize = 64;

impl Registry {
    /// Logs of which `agent` is to make another copy; `copies` are wanted of each, this agent's included.
    pub fn repairs(&mut self, agent: AgentId, copies: usize, now_ms: u64) -> Vec<Repair> {
        let alive = self.alive(now_ms);
        self.look_for_deaths(&alive);
        let wanted = copies.min(alive.len());
        let mut repairs = Vec::new();
        // What is not this agent's to repair stays for the one whose it is.
        self.short.retain(|task| {
            let Some(entry) = self.tasks.get(task).filter(|entry| entry.published) else { return false };
            let holders: Vec<_> =
                alive.iter().filter(|info| entry.holders.contains(&info.id)).cloned().collect();
            if holders.len() >= wanted {
                return false;
            }
            let mine = repairer(&holders) == Some(agent);
            if mine && entry.live.is_none() && repairs.len() < REPAIRS_MAX {
                repairs.push(repair(task, entry, holders, &alive));
            }
            // Kept until the holders are as many as wanted: a repair may fail.
            true
        });
        repairs
    }

    /// Notes the logs of agents that have fallen silent since the last look.
    fn look_for_deaths(&mut self, alive: &[AgentInfo]) {
        let is_alive = |id: &AgentId| alive.iter().any(|info| info.id == *id);
        let silent: HashSet<AgentId> = self.known().map(|info| info.id).filter(|id| !is_alive(id)).collect();
        let new = !silent.is_subset(&self.silent);
        self.silent = silent;
        if new {
            self.look_for_short();
        }
    }

    /// Notes the logs of agents that are silent or dead.
    pub(super) fn look_for_short(&mut self) {
        let Self { tasks, silent, dead, short, .. } = self;
        let is_short = |entry: &Entry| !entry.holders.is_disjoint(silent) || !entry.holders.is_disjoint(dead);
        short.extend(tasks.iter().filter(|(_, entry)| is_short(entry)).map(|(task, _)| task.clone()));
    }
}

/// The holder that makes the copy: the driver's agent only if there is no other.
fn repairer(holders: &[AgentInfo]) -> Option<AgentId> {
    holders.iter().min_by_key(|info| (info.driver, info.id)).map(|info| info.id)
}

fn repair(task: &TaskId, entry: &Entry, holders: Vec<AgentInfo>, alive: &[AgentInfo]) -> Repair {
    Repair { task: task.clone(), generation: entry.generation, holders, agents: alive.to_vec() }
}
