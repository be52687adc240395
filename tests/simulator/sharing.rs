//! Copies of absorbed logs, as `edge/agent/exchanging.rs` makes them.

use clonos::agent::placement;
use clonos::agent::protocol::{AgentInfo, Piece};
use clonos::error::Result;
use clonos::id::{Generation, TaskId};

use crate::Mutation;
use crate::cluster::{Cluster, Session, channel, epoch};
use crate::stores::in_memory;

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
        for task in &session.absorbed {
            let here = self.hosts[session.host].store.is_own(task);
            let wanted = if here { self.depth } else { self.depth - 1 };
            for peer in peers.iter().take(wanted) {
                self.count.agent += 1;
                let pieces = self.pieces(session.host, peer, std::slice::from_ref(task));
                let number = self.hosts.iter().position(|host| host.info.id == peer.id);
                for piece in pieces {
                    let (born, number) = (session.grant.generation, number.unwrap_or_default());
                    self.absorb_at(number, &piece.task, born, piece.from, &piece.blocks)?;
                }
            }
        }
        Ok(())
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
        let mut holders = vec![own.id];
        for peer in peers.into_iter().take(self.depth) {
            self.count.agent += 1;
            let pieces = self.pieces(session.host, &peer, tasks);
            let Some(number) = self.hosts.iter().position(|host| host.info.id == peer.id) else { continue };
            for piece in pieces {
                let born = session.grant.generation;
                self.absorb_at(number, &piece.task, born, piece.from, &piece.blocks)?;
            }
            holders.push(peer.id);
        }
        self.count.registry += 1;
        self.registry_of(session.host)?.visible(tasks, &holders);
        Ok(())
    }

    fn pieces(&mut self, host: usize, peer: &AgentInfo, tasks: &[TaskId]) -> Vec<Piece> {
        let store = &mut self.hosts[host].store;
        let mut pieces = Vec::new();
        for task in tasks {
            let channel = channel(Generation::NONE, peer);
            while let Some(outgoing) = store.outgoing(task, channel) {
                pieces.push(Piece {
                    task: task.clone(),
                    from: outgoing.part.from,
                    blocks: in_memory(&outgoing.blocks),
                });
                store.arrived(task, channel, outgoing.part);
            }
        }
        pieces
    }
}
