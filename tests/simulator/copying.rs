//! Copies on other agents, as `edge/agent/copying.rs` makes them.

use std::time::Duration;

use clonos::agent::copying::{Copying, Step};
use clonos::agent::placement;
use clonos::agent::protocol::{AgentInfo, Request};
use clonos::agent::store::{Outgoing, Store};
use clonos::causal_log::BlockRef;
use clonos::error::{Error, Result};
use clonos::id::{Generation, LogOffset, TaskId};

use crate::Mutation;
use crate::cluster::{Cluster, Session, channel, died};

/// What is copied for a session.
pub(crate) enum Logs {
    /// The log of its task.
    Own,
    /// What it has absorbed of these.
    Absorbed(Vec<TaskId>),
}

impl Cluster {
    /// Agents that may hold copies for a session, best first.
    pub(crate) fn candidates(&mut self, session: &Session) -> Result<Vec<AgentInfo>> {
        let (own, now) = (self.hosts[session.host].info.clone(), self.now);
        let alive = self.registry_of(session.host)?.alive(now);
        Ok(placement::candidates(&session.task, own.id, &own.host, &alive))
    }

    /// As `Handler::see_that`; nothing is waited for, as time stands still meanwhile.
    pub(crate) fn see_that(&mut self, session: &Session, logs: &Logs, copying: &mut Copying) -> Result<()> {
        loop {
            match copying.next(Duration::ZERO)? {
                Step::Send(peer) => {
                    let sent = self.send_all(session, logs, &peer);
                    copying.answered(peer, sent)?;
                }
                Step::Choose => copying.choose(self.candidates(session)?),
                Step::LeaveOut => copying.leave_out(|peer| self.is_dead(session.host, peer.id)),
                Step::Wait | Step::Done => return Ok(()),
            }
        }
    }

    /// As `Handler::send_all`.
    fn send_all(&mut self, session: &Session, logs: &Logs, peer: &AgentInfo) -> Result<()> {
        let number = self.hosts.iter().position(|host| host.info.id == peer.id);
        let number = number.filter(|_| self.reaches(session.host, peer.id)).ok_or_else(died)?;
        let (tasks, generation) = match logs {
            Logs::Own => (std::slice::from_ref(&session.task), session.grant.generation),
            Logs::Absorbed(tasks) => {
                self.count.agent += 1;
                (tasks.as_slice(), Generation::NONE)
            }
        };
        let channel = channel(generation, peer);
        let mut is_again = false;
        loop {
            let sent = tasks.iter().try_for_each(|task| {
                while let Some(outgoing) = self.hosts[session.host].store.outgoing(task, channel) {
                    let part = outgoing.part;
                    self.count.copied += outgoing.blocks.iter().map(BlockRef::bytes).sum::<u64>();
                    let has_arrived = match logs {
                        Logs::Own => self.send_own(session, peer, outgoing)?,
                        Logs::Absorbed(_) => self.send_absorbed(session, number, task, &outgoing)?,
                    };
                    if has_arrived {
                        self.hosts[session.host].store.arrived(task, channel, part);
                    }
                }
                Ok(())
            });
            if is_again || !matches!(sent, Err(Error::LogGap { .. } | Error::LogFork { .. })) {
                return sent;
            }
            is_again = true;
            let store = &mut self.hosts[session.host].store;
            tasks.iter().for_each(|task| store.rewind(task, channel, LogOffset::START));
        }
    }

    /// Whether it counts as sent.
    fn send_own(&mut self, session: &Session, peer: &AgentInfo, outgoing: Outgoing) -> Result<bool> {
        self.count.agent += 1;
        let Outgoing { reset, part, blocks, layout, all } = outgoing;
        let (task, generation) = (session.task.clone(), session.grant.generation);
        let (from, blocks) = (part.from, self.hosts[session.host].read(&blocks));
        let sent = self.late.next_request(self.hosts[session.host].info.id);
        let copy = Request::Replicate { task, generation, layout, reset, from, blocks, all, sent };
        let is_overtaken = self.late.is_overtaken(peer.id, &copy);
        if !is_overtaken {
            self.carry_out(Some(peer.id), copy)?;
        }
        Ok(!is_overtaken || self.mutation == Mutation::SentIsThere)
    }

    fn send_absorbed(
        &mut self,
        session: &Session,
        to: usize,
        task: &TaskId,
        outgoing: &Outgoing,
    ) -> Result<bool> {
        let own = &self.hosts[session.host];
        let (by, here) = (own.info.id, own.store.generation(task).unwrap_or(Generation::NONE));
        let (born, mut from, blocks) =
            (session.grant.generation, outgoing.part.from, own.read(&outgoing.blocks));
        if self.mutation != Mutation::OlderUsesCount {
            let over = self.hosts[session.host].store.over_below(&task.epoch_key());
            self.hosts[to].store.end_uses_below(&task.epoch_key(), over);
        }
        let needs_confirmation = self.mutation == Mutation::NobodyHasCopies;
        let counts = self.hosts[to].store.counting_at(task, by);
        let Some(counts) = counts.filter(|counts| !needs_confirmation && *counts <= here) else {
            self.absorb_at(to, task, born, from, &blocks)?;
            return Ok(true);
        };
        for block in &blocks {
            let absorb = |store: &mut Store| store.absorb_confirmed(task, counts, born, from, block);
            self.hosts[to].hold(block, absorb)?;
            from = from.plus(block.len() as u64);
        }
        Ok(true)
    }
}
