//! Copies made anew where holders were lost, as `edge/agent/repairing.rs` makes them.

use std::time::Duration;

use clonos::agent::copying::Copying;
use clonos::agent::protocol::{Repair, Request};
use clonos::error::{Error, Result};
use clonos::id::{AgentId, TaskId};

use crate::Mutation;
use crate::cluster::Cluster;
use crate::copying::Logs;

/// How long an agent with an attempt at work may be silent.
const PATIENCE_MS: u64 = 5_000;

impl Cluster {
    /// An agent makes the copies that it is told to make. Those that cannot be made now are told again.
    pub(crate) fn repair(&mut self, host: usize) {
        if self.mutation == Mutation::NothingIsRepaired || self.is_paused(host) {
            return;
        }
        let (id, now) = (self.hosts[host].info.id, self.now);
        let told = self.ask(host, |registry| Ok(registry.repairs(id, PATIENCE_MS, now)));
        for repair in told.unwrap_or_default() {
            let _not_now = self.copy_again(host, &repair);
        }
    }

    /// As `Handler::copy_again`.
    fn copy_again(&mut self, host: usize, repair: &Repair) -> Result<()> {
        let Repair { task, generation, holders, whole } = repair;
        self.hosts[host].store.fence(task, *generation);
        let own = self.hosts[host].info.id;
        if *whole && !self.hosts[host].store.is_whole(task) {
            let others: Vec<AgentId> =
                holders.iter().map(|holder| holder.id).filter(|id| *id != own).collect();
            if others.is_empty() {
                return Err(Error::CausalLogLost { task: task.clone() });
            }
            return self.tell_copies(host, repair, others);
        }
        let mut copying = Copying::new(self.depth + 1, Duration::ZERO).held_by(holders.clone());
        let seen = self.see_that(&Logs::of(host, task, *generation, *whole), &mut copying);
        let now = copying.into_holders();
        if now.len() > holders.len() {
            self.tell_copies(host, repair, now.iter().map(|holder| holder.id).collect())?;
        }
        seen
    }

    fn tell_copies(&mut self, host: usize, repair: &Repair, holders: Vec<AgentId>) -> Result<()> {
        let sent = self.late.next_request(self.hosts[host].info.id);
        let (task, generation) = (repair.task.clone(), repair.generation);
        let held = Request::Holding { task, generation, holders, adopted: None, whole: false, sent };
        self.tell_registry(host, held)
    }

    /// How many agents that live have all of a log, as the registry knows.
    pub(crate) fn copies(&mut self, task: &TaskId) -> usize {
        let stats = self.registry.task_stats();
        let holders = stats.into_iter().find(|(known, _)| known == task).map(|(_, stats)| stats.holders);
        let holders = holders.unwrap_or_default();
        let known: Vec<_> = self
            .living()
            .filter(|host| holders.contains(&host.info.addr) && host.store.is_whole(task))
            .map(|host| host.blocks(task))
            .collect();
        let longest = known.iter().map(Vec::len).max();
        known.iter().filter(|copy| Some(copy.len()) == longest).count()
    }
}
