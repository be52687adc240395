//! Absorbed logs, as `edge/agent/exchanging.rs` and `edge/agent/committing.rs` have others hold them.

use std::time::Duration;

use bytes::Bytes;
use clonos::agent::copying::Copying;
use clonos::agent::protocol::{AgentInfo, Counting, Request, Sharer};
use clonos::error::{Error, Result};
use clonos::id::{AgentId, Generation, LogOffset, TaskId};

use crate::Mutation;
use crate::cluster::{Cluster, Session};
use crate::copying::Logs;
use crate::uses::epoch;

impl Cluster {
    /// All blocks of a log at one agent.
    pub(crate) fn log(&mut self, holder: AgentId, task: &TaskId) -> Vec<Bytes> {
        self.agent(holder).map(|host| host.blocks(task)).unwrap_or_default()
    }

    /// As `Handler::spread`.
    pub(crate) fn spread(&mut self, session: &Session) -> Result<()> {
        if self.mutation == Mutation::NoSpread {
            return Ok(());
        }
        if self.commits {
            return self.share(session);
        }
        let store = &self.hosts[session.host].store;
        let are_few = |task: &&TaskId| self.depth > 1 || store.is_own(task);
        let tasks: Vec<TaskId> = session.absorbed.iter().filter(are_few).cloned().collect();
        if tasks.is_empty() {
            return Ok(());
        }
        self.share_with_some(session, tasks).map(drop)
    }

    /// As `Handler::see_that` has it for absorbed logs; who has them.
    fn share_with_some(&mut self, session: &Session, tasks: Vec<TaskId>) -> Result<Vec<AgentId>> {
        let mut copying = Copying::new(self.depth, Duration::ZERO);
        match self.see_that(&Logs::absorbed(session, tasks), &mut copying) {
            Err(error) if self.mutation != Mutation::NobodyHasCopies => Err(error),
            _ => Ok(copying.holders().iter().map(|peer| peer.id).collect()),
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
        let by = Sharer { agent: own.id, generation: session.grant.generation };
        let compared = self.compare(session.host, by, tasks)?;
        let ride = tasks.iter().zip(&compared).filter(|(_, (_, is_whole))| !is_whole);
        let ride: Vec<TaskId> = ride.map(|(task, _)| task.clone()).collect();
        let mut holders = match ride.is_empty() {
            true => Vec::new(),
            false => self.share_with_some(session, ride)?,
        };
        holders.push(own.id);
        self.count.registry += 1;
        let store = &self.hosts[session.host].store;
        let beginning = |task: &TaskId| store.beginning(task, store.end(task)?);
        let shown = tasks
            .iter()
            .zip(compared)
            .filter_map(|(task, (by, _))| Some((task.clone(), by, beginning(task)?)));
        let shown: Vec<_> = shown.collect();
        self.tell_registry(session.host, Request::Visible { tasks: shown, holders, by })
    }

    /// As there: whether an attempt was opened, if its agent is there. One that it never heard of is not gone on with.
    pub(crate) fn has_opened(&mut self, at: AgentId, task: &TaskId, generation: Generation) -> Option<bool> {
        let store = &mut self.agent(at)?.store;
        if !store.has_begun(task, generation) {
            store.withdraw(task, generation);
        }
        Some(!store.has_withdrawn(task, generation))
    }

    /// As `Handler::compared`: the attempt that each is a part of, and whether that has published it.
    fn compare(&mut self, host: usize, by: Sharer, tasks: &[TaskId]) -> Result<Vec<(Generation, bool)>> {
        use Mutation::{NoConfirmation, NobodyHasCopies, StaleCounts};
        // What these let pass would be seen here.
        let is_skipped = [NoConfirmation, NobodyHasCopies, StaleCounts].contains(&self.mutation);
        if is_skipped {
            return Ok(vec![(Generation(u64::MAX), false); tasks.len()]);
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
        let counting = self.ask(host, |registry| registry.counting(by, &asked))?;
        let compared = counting.iter().map(|counting| (counting.generation, counting.whole)).collect();
        for ((task, _), Counting { generation, newest, holders, whole, .. }) in asked.iter().zip(counting) {
            let ours = self.hosts[host].blocks(task);
            let end = self.hosts[host].store.end(task).unwrap_or_default();
            let has_all = whole || newest.is_some();
            let mut others: Vec<_> = holders.iter().map(|agent| agent.id).collect();
            others.extend(newest.iter().map(|(_, agent)| agent.id));
            if others.contains(&own) && has_all {
                others.clear();
            }
            others.retain(|other| *other != own);
            if let Some((newest, at)) = &newest
                && self.is_answered(host, at.id)
                && self.has_opened(at.id, task, *newest) == Some(false)
            {
                self.tell_registry(host, Request::Withdrawn { task: task.clone(), generation: *newest })?;
                return self.compare(host, by, tasks);
            }
            let asked = others.iter().copied().find(|other| self.is_answered(host, *other));
            let theirs = asked.and_then(|other| self.agent(other)).map(|other| other.blocks(task));
            match theirs {
                None if others.iter().any(|other| !self.is_dead(host, *other)) => {
                    return Err(Error::Timeout { what: "what counts".into(), millis: 0 });
                }
                Some(theirs) => {
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
                None => {}
            }
            let store = &mut self.hosts[host].store;
            let version = store.version(task);
            store.vouch(task, version, generation, end);
        }
        Ok(compared)
    }
}
