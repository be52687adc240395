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

/// Logs to be copied.
pub(crate) struct Logs {
    /// Where they are.
    host: usize,
    tasks: Vec<TaskId>,
    /// It says which agents come first.
    near: TaskId,
    /// Of the attempt.
    generation: Generation,
    is_own: bool,
    /// Whether all that was published of them is here.
    is_whole: bool,
}

impl Logs {
    /// The log of a task.
    pub(crate) fn of(host: usize, task: &TaskId, generation: Generation, is_whole: bool) -> Self {
        Self { host, tasks: vec![task.clone()], near: task.clone(), generation, is_own: true, is_whole }
    }

    /// What an attempt writes.
    pub(crate) fn own(session: &Session) -> Self {
        Self::of(session.host, &session.task, session.grant.generation, true)
    }

    /// What an attempt has absorbed of these.
    pub(crate) fn absorbed(session: &Session, tasks: Vec<TaskId>) -> Self {
        Self { tasks, is_own: false, ..Self::own(session) }
    }
}

impl Cluster {
    /// Agents that may hold copies of logs, best first.
    pub(crate) fn candidates(&mut self, host: usize, near: &TaskId) -> Result<Vec<AgentInfo>> {
        let (own, now) = (self.hosts[host].info.clone(), self.now);
        let alive = self.ask(host, |registry| Ok(registry.alive(now)))?;
        Ok(placement::candidates(near, own.id, &own.host, &alive))
    }

    /// As `Handler::see_that`; nothing is waited for, as time stands still meanwhile.
    pub(crate) fn see_that(&mut self, logs: &Logs, copying: &mut Copying) -> Result<()> {
        loop {
            match copying.next(Duration::ZERO)? {
                Step::Send(peer) => {
                    let sent = self.send_all(logs, &peer);
                    copying.answered(peer, sent)?;
                }
                Step::Choose => copying.choose(self.candidates(logs.host, &logs.near)?),
                Step::LeaveOut => copying.leave_out(|peer| self.is_dead(logs.host, peer.id)),
                Step::Wait | Step::Done => return Ok(()),
            }
        }
    }

    /// As `Handler::send_all`.
    fn send_all(&mut self, logs: &Logs, peer: &AgentInfo) -> Result<()> {
        let number = self.hosts.iter().position(|host| host.info.id == peer.id);
        let number = number.ok_or_else(died)?;
        // What is sent to it is carried out when it goes on.
        let stays = logs.is_own && self.stays_on_its_way(logs.host, peer.id);
        if !stays && !self.reaches(logs.host, peer.id) {
            return Err(died());
        }
        self.count.agent += u64::from(!logs.is_own);
        let channel = channel(if logs.is_own { logs.generation } else { Generation::NONE }, peer);
        let mut is_again = false;
        loop {
            let sent = logs.tasks.iter().try_for_each(|task| {
                while let Some(outgoing) = self.hosts[logs.host].store.outgoing(task, channel) {
                    let part = outgoing.part;
                    self.count.copied += outgoing.blocks.iter().map(BlockRef::bytes).sum::<u64>();
                    let has_arrived = if logs.is_own {
                        self.send_own(logs, task, peer, outgoing)?
                    } else {
                        self.send_absorbed(logs, number, task, &outgoing)?;
                        self.must_be_answered(logs, peer)?;
                        true
                    };
                    if has_arrived {
                        self.hosts[logs.host].store.arrived(task, channel, part);
                    }
                }
                Ok(())
            });
            if is_again || !matches!(sent, Err(Error::LogGap { .. } | Error::LogFork { .. })) {
                return sent;
            }
            is_again = true;
            let store = &mut self.hosts[logs.host].store;
            logs.tasks.iter().for_each(|task| store.rewind(task, channel, LogOffset::START));
        }
    }

    fn must_be_answered(&self, logs: &Logs, by: &AgentInfo) -> Result<()> {
        if self.is_answered(logs.host, by.id) { Ok(()) } else { Err(died()) }
    }

    /// Whether it counts as sent.
    fn send_own(&mut self, logs: &Logs, task: &TaskId, peer: &AgentInfo, outgoing: Outgoing) -> Result<bool> {
        self.count.agent += 1;
        let Outgoing { reset, part, blocks, layout, all } = outgoing;
        let (task, generation) = (task.clone(), logs.generation);
        let (from, blocks) = (part.from, self.hosts[logs.host].read(&blocks));
        let sent = self.late.next_request(self.hosts[logs.host].info.id);
        let over = match self.mutation {
            Mutation::OlderUsesCount => Generation::NONE,
            _ => self.hosts[logs.host].store.over_below(&task.epoch_key()),
        };
        let whole = logs.is_whole;
        let copy =
            Request::Replicate { task, generation, over, layout, reset, from, blocks, all, whole, sent };
        if self.stays_on_its_way(logs.host, peer.id) {
            self.late.comes_later(Some(peer.id), copy);
            return Err(died());
        }
        let is_overtaken = self.late.is_overtaken(peer.id, &copy);
        if !is_overtaken {
            self.carry_out(Some(peer.id), copy)?;
            self.must_be_answered(logs, peer)?;
        }
        Ok(!is_overtaken || self.mutation == Mutation::SentIsThere)
    }

    fn send_absorbed(&mut self, logs: &Logs, to: usize, task: &TaskId, outgoing: &Outgoing) -> Result<()> {
        let own = &self.hosts[logs.host];
        let (by, here) = (own.info.id, own.store.generation(task).unwrap_or(Generation::NONE));
        let (born, mut from, blocks) = (logs.generation, outgoing.part.from, own.read(&outgoing.blocks));
        if self.mutation != Mutation::OlderUsesCount {
            let over = self.hosts[logs.host].store.over_below(&task.epoch_key());
            self.hosts[to].store.end_uses_below(&task.epoch_key(), over);
        }
        let needs_confirmation = self.mutation == Mutation::NobodyHasCopies;
        let counts = self.hosts[to].store.counting_at(task, by);
        let Some(counts) = counts.filter(|counts| !needs_confirmation && *counts <= here) else {
            return self.absorb_at(to, task, born, from, &blocks);
        };
        for block in &blocks {
            let absorb = |store: &mut Store| store.absorb_confirmed(task, counts, born, from, block);
            self.hosts[to].hold(block, absorb)?;
            from = from.plus(block.len() as u64);
        }
        Ok(())
    }
}
