//! Logs that were recorded with what is lost, and are forgotten, as `edge/agent/exchanging.rs` sees to it.

use clonos::agent::protocol::{Grant, Request};
use clonos::error::{Error, Result};
use clonos::id::{AgentId, Generation, TaskId};

use crate::cluster::{Cluster, Session};

impl Cluster {
    /// As `Handler::discard`.
    pub(crate) fn discard(&mut self, session: &Session) -> Result<()> {
        let (task, generation) = (session.task.clone(), session.grant.generation);
        self.tell_registry(session.host, Request::Discarded { task, generation })?;
        let agents: Vec<AgentId> = self.hosts.iter().map(|host| host.info.id).collect();
        agents.into_iter().try_for_each(|to| {
            if !self.reaches(session.host, to) {
                return Ok(());
            }
            let (task, generation) = (session.task.clone(), session.grant.generation);
            self.carry_out(Some(to), Request::Forget { task, generation })
        })
    }

    /// As `Handler::forget_everywhere`.
    pub(crate) fn forget_everywhere(
        &mut self,
        task: &TaskId,
        generation: Generation,
        host: usize,
        grant: &Grant,
    ) -> Result<()> {
        for holder in &grant.holders {
            self.count.agent += 1;
            if self.reaches(host, holder.id) {
                let task = task.clone();
                self.carry_out(Some(holder.id), Request::Forget { task, generation })?;
            }
            if !self.is_answered(host, holder.id) && !self.is_dead(host, holder.id) {
                return Err(Error::Timeout { what: "an agent's answer".into(), millis: 0 });
            }
        }
        self.count.registry += 1;
        self.tell_registry(host, Request::Forgotten { task: task.clone(), generation })
    }
}
