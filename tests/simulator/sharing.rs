//! Copies of absorbed logs, as `edge/agent/exchanging.rs` makes them.

use clonos::agent::placement;
use clonos::agent::protocol::{AgentInfo, Piece};
use clonos::error::Result;
use clonos::id::{AgentId, Generation, LogOffset, TaskId};

use crate::Mutation;
use crate::cluster::{Cluster, Session, channel, died, epoch};
use crate::stores::{bytes_of, in_memory};

impl Cluster {
    /// As `Handler::spread`.
    pub(crate) fn spread(&mut self, session: &Session) -> Result<()> {
        if self.mutation == Mutation::NoSpread {
            return Ok(());
        }
        let own = self.hosts[session.host].info.clone();
        let now = self.now;
        let agents = self.registry_of(session.host)?.alive(now);
        let mut peers = placement::candidates(&session.task, own.id, &own.host, &agents);
        peers.retain(|peer| self.reaches(session.host, peer.id));
        let absorbed: Vec<TaskId> = session.absorbed.iter().cloned().collect();
        let (here, elsewhere): (Vec<_>, Vec<_>) =
            absorbed.into_iter().partition(|task| self.hosts[session.host].store.is_own(task));
        let few = if self.depth > 1 { self.depth } else { 0 };
        for (wanted, tasks) in [(self.depth, here), (few, elsewhere)] {
            if !tasks.is_empty() {
                self.share_with_some(session, &peers, &tasks, wanted)?;
            }
        }
        Ok(())
    }

    /// As `Handler::share_with_some`.
    fn share_with_some(
        &mut self,
        session: &Session,
        peers: &[AgentInfo],
        tasks: &[TaskId],
        wanted: usize,
    ) -> Result<Vec<AgentId>> {
        let (mut holders, mut failed) = (Vec::new(), None);
        for peer in peers {
            if holders.len() >= wanted {
                break;
            }
            match self.share_with(session, peer, tasks) {
                Ok(()) => holders.push(peer.id),
                Err(error) => failed = Some(error),
            }
        }
        let passes = self.mutation == Mutation::NobodyHasCopies;
        match failed {
            Some(error) if holders.is_empty() && wanted > 0 && !passes => Err(error),
            _ => Ok(holders),
        }
    }

    /// As `edge/agent/exchanging.rs`.
    pub(crate) fn share(&mut self, session: &Session) -> Result<()> {
        if self.mutation == Mutation::SkipShare {
            return Ok(());
        }
        let own = self.hosts[session.host].info.clone();
        let tasks = self.hosts[session.host].store.take_fresh(&epoch());
        if tasks.is_empty() {
            return Ok(());
        }
        let shared = self.share_all(session, &own, &tasks);
        if shared.is_err() {
            self.hosts[session.host].store.not_shared(&epoch(), tasks);
        }
        shared
    }

    fn share_all(&mut self, session: &Session, own: &AgentInfo, tasks: &[TaskId]) -> Result<()> {
        let now = self.now;
        let agents = self.registry_of(session.host)?.alive(now);
        let mut peers = placement::candidates(&session.task, own.id, &own.host, &agents);
        peers.retain(|peer| self.reaches(session.host, peer.id));
        let mut holders = self.share_with_some(session, &peers, tasks, self.depth)?;
        holders.push(own.id);
        self.count.registry += 1;
        self.registry_of(session.host)?.visible(tasks, &holders);
        Ok(())
    }

    /// As `Handler::share_with`.
    fn share_with(&mut self, session: &Session, peer: &AgentInfo, tasks: &[TaskId]) -> Result<()> {
        self.count.agent += 1;
        let number = self.hosts.iter().position(|host| host.info.id == peer.id);
        let number = number.ok_or_else(died)?;
        let sent = self.pieces(session.host, peer, tasks).into_iter().try_for_each(|piece| {
            let (own, born) = (self.hosts[session.host].info.id, session.grant.generation);
            let Piece { task, mut from, blocks } = piece;
            let needs_confirmation = self.mutation == Mutation::NobodyHasCopies;
            let counts = self.hosts[number].store.counting_at(&task, own).filter(|_| !needs_confirmation);
            let Some(by) = counts else {
                return self.absorb_at(number, &task, born, from, &blocks);
            };
            for block in &blocks {
                self.hosts[number].store.absorb_confirmed(&task, by, born, from, block)?;
                from = from.plus(block.len() as u64);
            }
            Ok(())
        });
        if sent.is_err() {
            // What it has is not known.
            for task in tasks {
                let channel = channel(Generation::NONE, peer);
                self.hosts[session.host].store.rewind(task, channel, LogOffset::START);
            }
        }
        sent
    }

    fn pieces(&mut self, host: usize, peer: &AgentInfo, tasks: &[TaskId]) -> Vec<Piece> {
        let (store, copied) = (&mut self.hosts[host].store, &mut self.count.copied);
        let mut pieces = Vec::new();
        for task in tasks {
            let channel = channel(Generation::NONE, peer);
            while let Some(outgoing) = store.outgoing(task, channel) {
                let blocks = in_memory(&outgoing.blocks);
                *copied += bytes_of(&blocks);
                pieces.push(Piece { task: task.clone(), from: outgoing.part.from, blocks });
                store.arrived(task, channel, outgoing.part);
            }
        }
        pieces
    }
}
