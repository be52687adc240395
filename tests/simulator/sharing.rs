//! Copies of absorbed logs, as `edge/agent/exchanging.rs` makes them.

use bytes::Bytes;
use clonos::agent::placement;
use clonos::agent::protocol::{AgentInfo, Counting, Piece};
use clonos::error::{Error, Result};
use clonos::id::{AgentId, Generation, LogOffset, TaskId};

use crate::Mutation;
use crate::cluster::{Cluster, Session, channel, died, epoch};
use crate::stores::{blocks, bytes_of, in_memory};

impl Cluster {
    /// All blocks of a log at one agent.
    pub(crate) fn log(&mut self, holder: AgentId, task: &TaskId) -> Vec<Bytes> {
        self.agent(holder).map(|store| blocks(store, task)).unwrap_or_default()
    }

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

    /// As `edge/agent/committing.rs`.
    pub(crate) fn share(&mut self, session: &Session) -> Result<()> {
        if self.mutation == Mutation::SkipShare {
            return Ok(());
        }
        let own = self.hosts[session.host].info.clone();
        let tasks =
            self.hosts[session.host].store.take_fresh(&epoch(), |task| session.absorbed.contains(task));
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
        let compared = self.compare(session.host, tasks)?;
        let mut holders = self.share_with_some(session, &peers, tasks, self.depth)?;
        holders.push(own.id);
        self.count.registry += 1;
        let store = &self.hosts[session.host].store;
        let beginning = |task: &TaskId| store.beginning(task, store.end(task)?);
        let shown =
            tasks.iter().zip(compared).filter_map(|(task, by)| Some((task.clone(), by, beginning(task)?)));
        let shown: Vec<_> = shown.collect();
        self.registry_of(session.host)?.visible(&shown, &holders)
    }

    /// As `Handler::compared`.
    fn compare(&mut self, host: usize, tasks: &[TaskId]) -> Result<Vec<Generation>> {
        use Mutation::{NoConfirmation, NobodyHasCopies, StaleCounts};
        // What these let pass would be seen here.
        let is_skipped = [NoConfirmation, NobodyHasCopies, StaleCounts].contains(&self.mutation);
        if is_skipped {
            return Ok(vec![Generation(u64::MAX); tasks.len()]);
        }
        let own = self.hosts[host].info.id;
        let asked: Vec<_> = {
            let store = &self.hosts[host].store;
            let vouched = |task: &TaskId| match store.vouched(task) {
                (by, upto) if Some(upto) >= store.end(task) => by,
                _ => Generation::NONE,
            };
            tasks.iter().map(|task| (task.clone(), vouched(task))).collect()
        };
        self.count.registry += 1;
        let counting = self.registry_of(host)?.counting(own, &asked)?;
        let compared = counting.iter().map(|counting| counting.generation).collect();
        for ((task, _), Counting { generation, newest, holders, whole, .. }) in asked.iter().zip(counting) {
            let ours = blocks(&self.hosts[host].store, task);
            let end = self.hosts[host].store.end(task).unwrap_or_default();
            let has_all = whole || newest.is_some();
            let mut others: Vec<_> = holders.iter().map(|agent| agent.id).collect();
            others.extend(newest.iter().map(|(_, agent)| agent.id));
            if others.contains(&own) && has_all {
                others.clear();
            }
            others.retain(|other| *other != own);
            let asked = others.iter().copied().find(|other| self.reaches(host, *other));
            let theirs = asked.and_then(|other| self.agent(other)).map(|store| {
                let by = newest.as_ref().map_or(generation, |(by, _)| *by);
                let withdrawn = store.has_withdrawn(task, by);
                (!withdrawn).then(|| blocks(store, task))
            });
            match theirs {
                None if others.iter().any(|other| !self.is_dead(host, *other)) => {
                    return Err(Error::Timeout { what: "what counts".into(), millis: 0 });
                }
                Some(Some(theirs)) => {
                    self.count.agent += 1;
                    let same = theirs.iter().zip(&ours).take_while(|(theirs, ours)| theirs == ours).count();
                    if same < theirs.len().min(ours.len()) || (has_all && theirs.len() < ours.len()) {
                        let store = &mut self.hosts[host].store;
                        let version = store.version(task);
                        let at = ours.iter().take(same).map(|block| block.len() as u64).sum();
                        store.drop_stale(task, version, LogOffset(at));
                        return Err(Error::StaleFrame { upstream: task.clone() });
                    }
                }
                None | Some(None) => {}
            }
            let store = &mut self.hosts[host].store;
            let version = store.version(task);
            store.vouch(task, version, generation, end);
        }
        Ok(compared)
    }

    /// As `Handler::share_with`.
    fn share_with(&mut self, session: &Session, peer: &AgentInfo, tasks: &[TaskId]) -> Result<()> {
        self.count.agent += 1;
        let number = self.hosts.iter().position(|host| host.info.id == peer.id);
        let number = number.ok_or_else(died)?;
        let sent = self.pieces(session.host, peer, tasks).into_iter().try_for_each(|piece| {
            let (own, born) = (self.hosts[session.host].info.id, session.grant.generation);
            let Piece { task, generation, mut from, blocks } = piece;
            let needs_confirmation = self.mutation == Mutation::NobodyHasCopies;
            let counts = self.hosts[number].store.counting_at(&task, own);
            let counts = counts.filter(|counts| !needs_confirmation && *counts <= generation);
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
                let generation = store.generation(task).unwrap_or(Generation::NONE);
                pieces.push(Piece { task: task.clone(), generation, from: outgoing.part.from, blocks });
                store.arrived(task, channel, outgoing.part);
            }
        }
        pieces
    }
}
