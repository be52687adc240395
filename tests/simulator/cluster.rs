//! Agents and their registry, without sockets: requests are carried out at once, with the machines of `src/edge`.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use clonos::agent::copying::Copying;
use clonos::agent::protocol::{AgentInfo, Ending, Grant, HeldCopy, Left, OpenTask, Request, Use};
use clonos::agent::registry::{Granted, Registry};
use clonos::agent::store::{Absorbed, Store};
use clonos::error::{Error, Result};
use clonos::frame::Group;
use clonos::id::{AgentId, ChannelId, Generation, LogOffset, TaskId};
use clonos::task::Summary;

use crate::copying::Logs;
use crate::dice::Dice;
use crate::host::{Host, Room, bytes_of};
use crate::late::Late;
use crate::silence::Cut;
use crate::{Count, Mutation};

const APP: u64 = 7;

/// All hosts and the registry. Host 0 is the driver's: it runs no tasks and does not die.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) cuts: Vec<Cut>,
    /// Whether somebody waits for who does not answer and is not known to be dead: that takes a while.
    pub(crate) waits: bool,
    /// Whether the driver was paused until now.
    pub(crate) driver_goes_on: bool,
    pub(crate) hosts: Vec<Host>,
    pub(crate) registry: Registry,
    pub(crate) depth: usize,
    room: Room,
    pub(crate) mutation: Mutation,
    pub(crate) count: Count,
    pub(crate) now: u64,
    pub(crate) late: Late,
    /// Which use of the epoch's name this is.
    pub(crate) stamp: u64,
    /// Logs of this use that some agents have whole, as the registry was told.
    pub(crate) published: BTreeSet<TaskId>,
    /// Whether inner tasks commit what they absorbed.
    pub(crate) commits: bool,
}

/// An open task.
#[derive(Debug, Clone)]
pub(crate) struct Session {
    pub(crate) task: TaskId,
    pub(crate) grant: Grant,
    pub(crate) host: usize,
    pub(crate) lost: bool,
    peers: Vec<AgentInfo>,
    is_publishing: bool,
    copies: Vec<(AgentId, LogOffset)>,
    published: bool,
    pub(crate) absorbed: BTreeSet<TaskId>,
}

pub(crate) fn channel(generation: Generation, peer: &AgentInfo) -> ChannelId {
    ChannelId(peer.id.0.rotate_left(17) ^ generation.0)
}

impl Cluster {
    pub(crate) fn new(hosts: usize, depth: usize, mutation: Mutation, late: Late, room: Room) -> Self {
        let mut registry = Registry::new();
        registry.want_copies(depth + 1);
        let hosts = (0..=hosts).map(|number| Host::new(number, 0, room, mutation)).collect();
        let (count, now, cuts, stamp) = (Count::default(), 1, Vec::new(), 0);
        let (waits, driver_goes_on, published) = (false, false, BTreeSet::new());
        let mut cluster = Self {
            hosts,
            registry,
            depth,
            room,
            mutation,
            count,
            now,
            cuts,
            waits,
            driver_goes_on,
            late,
            stamp,
            published,
            commits: false,
        };
        cluster.registry.look_at_clock(now);
        (0..cluster.hosts.len()).for_each(|number| cluster.register(number));
        cluster.begin_use();
        cluster
    }

    /// A host dies with its agent; another agent comes up in its place, empty.
    pub(crate) fn crash(&mut self, number: usize) {
        // Long enough for the registry to take the dead one for dead.
        for _ in 0..5 {
            self.now += 1_000;
            self.others_beat(number);
        }
        let heard = self.commits();
        let host = &mut self.hosts[number];
        // There was nothing here that was committed before.
        *host = Host::new(number, host.lives + 1, self.room, self.mutation);
        host.heard = heard;
        for number in 0..self.hosts.len() {
            if self.reaches_registry(number) {
                self.register(number);
            }
        }
    }

    pub(crate) fn agent(&mut self, id: AgentId) -> Option<&mut Host> {
        self.hosts.iter_mut().find(|host| host.info.id == id)
    }

    /// As `edge/agent/opening.rs`.
    pub(crate) fn open(
        &mut self,
        task: &TaskId,
        stage: u32,
        attempt: u64,
        host: usize,
        inside: bool,
    ) -> Result<Option<(Session, Vec<Bytes>)>> {
        self.count.agent += 1;
        self.count.registry += 1;
        let open = OpenTask {
            task: task.clone(),
            used: Use::default(),
            execution: None,
            app: APP,
            stage,
            attempt,
            worker: attempt,
            inside,
            stamp: self.stamp,
            of_rdd: None,
        };
        let own = self.hosts[host].info.clone();
        let (now, mut sent) = (self.now, self.late.next_request(own.id));
        let mut granted = self.ask(host, |registry| Ok(registry.grant(&open, sent, 0, None, now)))?;
        if self.late.is_repeated() {
            let again = self.mutation == Mutation::RetryIsAnother;
            let open = OpenTask { worker: if again { attempt + (1 << 32) } else { attempt }, ..open };
            if self.late.is_given_up() {
                // It is asked for by another request, and what was on its way comes later.
                self.late.comes_later(None, Request::Grant { open: open.clone(), sent, commits_seen: 0 });
                sent = self.late.next_request(own.id);
            }
            granted = self.ask(host, |registry| Ok(registry.grant(&open, sent, 0, None, now)))?;
        }
        let Granted::Yes(grant) = granted else { return Ok(None) };
        let grant = *grant;
        let generation = grant.generation;
        self.hears(host);
        self.hosts[host].store.end_uses_below(&task.epoch_key(), grant.over);
        let opened = self.open_granted(grant, host, inside);
        if opened.is_err() {
            self.hosts[host].store.withdraw(task, generation);
            let (summary, ending) = (Summary::default(), Ending::default());
            let left = Left { by: own.id, lost: false, end: None };
            let task = task.clone();
            let told = self.tell_registry(host, Request::Closed { task, generation, summary, ending, left });
            told.or_else(|error| if error.is_retryable() { Ok(()) } else { Err(error) })?;
        }
        opened.map(Some)
    }

    fn open_granted(&mut self, grant: Grant, host: usize, inside: bool) -> Result<(Session, Vec<Bytes>)> {
        let (own, task) = (self.hosts[host].info.clone(), &grant.task.clone());
        let all_count = inside && grant.reopened && self.mutation != Mutation::ConsumersDoNotCount;
        let mut best: Option<(LogOffset, AgentId)> = None;
        let mut silent = false;
        let mut copies = Vec::new();
        if let Some(generation) = grant.discarded {
            self.forget_everywhere(task, generation, host, &grant)?;
        } else {
            for holder in grant.holders.clone() {
                self.count.agent += 1;
                let skip = self.mutation == Mutation::NoFence;
                let fence = self.fence_of(&grant, host, all_count);
                if !self.reaches(host, holder.id) {
                    if self.stays_on_its_way(host, holder.id) && !skip {
                        let task = task.clone();
                        self.late.comes_later(Some(holder.id), Request::Fence { task, fence });
                    }
                    silent |= !self.is_dead(host, holder.id);
                    continue;
                }
                if all_count && !skip {
                    let (task, fence) = (task.clone(), fence.clone());
                    self.carry_out(Some(holder.id), Request::Fence { task, fence })?;
                }
                let Some(Host { store, .. }) = self.agent(holder.id) else { continue };
                let copy = match skip {
                    true => store.end(task).map(|end| HeldCopy { end, whole: true, is_shown: true }),
                    false => store.fence_for(task, fence),
                };
                if !self.is_answered(host, holder.id) {
                    silent |= !self.is_dead(host, holder.id);
                    continue;
                }
                let counts = |copy: &HeldCopy| match &grant.whole {
                    Some(holders) if all_count => copy.whole && holders.contains(&holder.id),
                    _ => copy.whole || all_count,
                };
                let Some(HeldCopy { end, whole, is_shown }) = copy.filter(counts) else { continue };
                let is_absorbed = all_count && grant.whole.is_none();
                if !is_absorbed || !grant.has_several || (is_shown && end == grant.shown.end) {
                    copies.push((holder.id, if whole { end } else { end.before() }));
                }
                if is_absorbed && !is_shown {
                    continue;
                }
                let is_better = |longest| match self.mutation {
                    Mutation::ShortestCopy => end < longest,
                    _ => end > longest || (end == longest && holder.id == own.id),
                };
                if best.is_none_or(|(longest, _)| is_better(longest)) {
                    best = Some((end, holder.id));
                }
                if self.mutation == Mutation::FirstAnswer {
                    break;
                }
            }
        }
        if silent && (all_count || best.is_none()) {
            return Err(Error::Timeout { what: "a holder's answer".into(), millis: 0 });
        }
        let anew = self.mutation == Mutation::BeginsAnew;
        let best = best.filter(|(length, _)| *length > LogOffset::START && !anew);
        let lost = best.is_none() && grant.published && grant.discarded.is_none();
        let lost = lost && self.mutation != Mutation::LostIsNew;
        let prior = match best {
            Some((_, holder)) => self.log(holder, task),
            None => Vec::new(),
        };
        let here = best.is_some_and(|(_, holder)| holder == own.id) && !prior.is_empty();
        let at = &mut self.hosts[host];
        if here {
            at.store.reopen(task, grant.generation, grant.layout)?;
        } else {
            at.store.begin(task, grant.generation, grant.layout)?;
            at.hold_all(task, grant.generation, LogOffset::START, &prior)?;
        }
        if !lost {
            at.store.complete(task, grant.generation);
        }
        let mut session = Session {
            task: task.clone(),
            grant,
            host,
            lost,
            peers: Vec::new(),
            is_publishing: false,
            copies,
            published: false,
            absorbed: BTreeSet::new(),
        };
        if !inside || session.grant.whole.is_some() {
            self.begin_publishing(&mut session)?;
            if !prior.is_empty() {
                self.replicate(&mut session)?;
                self.tell_holders(&session, Some(LogOffset(bytes_of(&prior))))?;
                session.published = true;
            }
        }
        Ok((session, prior))
    }

    /// As `Handler::begin_publishing`.
    fn begin_publishing(&mut self, session: &mut Session) -> Result<()> {
        session.peers = self.candidates(session.host, &session.task)?;
        session.peers.truncate(self.depth);
        session.is_publishing = true;
        let copies = std::mem::take(&mut session.copies);
        let store = &mut self.hosts[session.host].store;
        for peer in &session.peers {
            if let Some((_, length)) = copies.iter().find(|(id, _)| *id == peer.id) {
                store.rewind(&session.task, channel(session.grant.generation, peer), *length);
            }
        }
        Ok(())
    }

    /// As `Handler::keep`.
    pub(crate) fn keep(
        &mut self,
        session: &mut Session,
        block: &Bytes,
        dies: &mut impl FnMut() -> bool,
    ) -> Result<()> {
        if session.is_publishing && self.mutation != Mutation::KeptBehindPublished {
            return self.append(session, Some(block), dies);
        }
        self.count.agent += 1;
        self.hold(session, block)
    }

    fn hold(&mut self, session: &Session, block: &Bytes) -> Result<()> {
        let host = &mut self.hosts[session.host];
        let from = host.store.end(&session.task).unwrap_or_default();
        host.hold_all(&session.task, session.grant.generation, from, std::slice::from_ref(block))
    }

    /// As `Handler::absorb`.
    pub(crate) fn absorb(&mut self, session: &mut Session, groups: &[Group]) -> Result<()> {
        self.count.agent += 1;
        if self.mutation == Mutation::SkipAbsorb {
            return Ok(());
        }
        for group in groups {
            let task = TaskId {
                operator: group.operator.as_str().into(),
                partition: group.partition,
                ..session.task.clone()
            };
            self.absorb_at(session.host, &task, session.grant.generation, group.from, &group.blocks)?;
            session.absorbed.insert(task);
        }
        Ok(())
    }

    /// As `Handler::hold_copy` and `Handler::confirm`.
    pub(crate) fn absorb_at(
        &mut self,
        host: usize,
        task: &TaskId,
        born: Generation,
        mut from: LogOffset,
        blocks: &[Bytes],
    ) -> Result<()> {
        for block in blocks {
            loop {
                let absorb = |store: &mut Store| store.absorb_copy(task, born, from, block);
                let newest = match self.hosts[host].hold(block, absorb)? {
                    Absorbed::Unconfirmed(newest) if self.mutation == Mutation::NoConfirmation => {
                        self.hosts[host].store.nobody_confirms(task, newest.generation);
                        continue;
                    }
                    Absorbed::Unconfirmed(newest) => newest,
                    _ => break,
                };
                self.count.agent += 1;
                let holder = newest.at;
                let stale = || Error::StaleFrame { upstream: task.clone() };
                if holder.id == self.hosts[host].info.id {
                    return Err(stale());
                }
                let is_answered = self.is_answered(host, holder.id);
                if !is_answered && !self.is_dead(host, holder.id) {
                    return Err(Error::Timeout { what: "a confirmation".into(), millis: 0 });
                }
                let end = self.hosts[host].store.end(task).unwrap_or_default();
                if is_answered && self.has_opened(holder.id, task, newest.generation) == Some(false) {
                    self.hosts[host].store.drop_reopened(task, newest.generation);
                    continue;
                }
                let Some(other) = self.agent(holder.id).filter(|_| is_answered) else {
                    self.hosts[host].store.nobody_confirms(task, newest.generation);
                    continue;
                };
                let piece = other.piece(task, end);
                if piece.is_empty() && self.mutation != Mutation::StaleCounts {
                    return Err(stale());
                }
                if piece.is_empty() {
                    self.hosts[host].store.nobody_confirms(task, newest.generation);
                    continue;
                }
                let mut at = end;
                for block in &piece {
                    let by = newest.generation;
                    let absorb = |store: &mut Store| store.absorb_confirmed(task, by, born, at, block);
                    self.hosts[host].hold(block, absorb)?;
                    at = at.plus(block.len() as u64);
                }
            }
            from = from.plus(block.len() as u64);
        }
        Ok(())
    }

    /// As `Handler::append`: what the last operator does before a batch leaves. `dies`: the host does, halfway.
    pub(crate) fn append(
        &mut self,
        session: &mut Session,
        block: Option<&Bytes>,
        dies: &mut impl FnMut() -> bool,
    ) -> Result<()> {
        if self.mutation == Mutation::OwnBlockFirst {
            self.append_stable(session, block, dies)?;
            return if dies() { Err(died()) } else { self.share(session) };
        }
        self.share(session)?;
        if dies() {
            return Err(died());
        }
        self.append_stable(session, block, dies)
    }

    fn append_stable(
        &mut self,
        session: &mut Session,
        block: Option<&Bytes>,
        dies: &mut impl FnMut() -> bool,
    ) -> Result<()> {
        let Some(block) = block else { return Ok(()) };
        if !session.is_publishing {
            self.begin_publishing(session)?;
        }
        self.count.agent += 1;
        if !block.is_empty() {
            self.hold(session, block)?;
        }
        if dies() {
            return Err(died());
        }
        if self.mutation != Mutation::NoCopies {
            self.replicate(session)?;
        }
        if !session.published {
            self.hosts[session.host].store.complete(&session.task, session.grant.generation);
            self.tell_holders(session, None)?;
            session.published = true;
        }
        Ok(())
    }

    fn replicate(&mut self, session: &mut Session) -> Result<()> {
        let mut copying = Copying::new(session.peers.len(), Duration::ZERO).first_to(session.peers.clone());
        self.see_that(&Logs::own(session), &mut copying)?;
        if copying.has_moved() {
            session.published = self.mutation == Mutation::OldPeersCount && session.published;
        }
        session.peers = copying.into_holders();
        Ok(())
    }

    fn tell_holders(&mut self, session: &Session, adopted: Option<LogOffset>) -> Result<()> {
        if self.mutation == Mutation::UnknownHolders {
            return Ok(());
        }
        self.count.registry += 1;
        let own = self.hosts[session.host].info.id;
        let holders: Vec<AgentId> =
            std::iter::once(own).chain(session.peers.iter().map(|peer| peer.id)).collect();
        let adopted = adopted.map(|length| (length, session.grant.layout));
        let sent = self.late.next_request(own);
        let (task, generation) = (session.task.clone(), session.grant.generation);
        let held = Request::Holding { task, generation, holders, adopted, whole: true, sent };
        self.tell_registry(session.host, held)
    }

    /// Something that may come once more, later.
    pub(crate) fn tell_registry(&mut self, host: usize, request: Request) -> Result<()> {
        if self.reaches_registry(host) {
            self.carry_out(None, request)?;
        }
        // Whether there is an answer.
        self.ask(host, |_| Ok(()))
    }

    pub(crate) fn close(&mut self, session: &Session, ending: Ending) -> Result<()> {
        self.count.agent += 1;
        self.count.registry += 1;
        let own = self.hosts[session.host].info.id;
        let (task, generation, lost) = (session.task.clone(), session.grant.generation, session.lost);
        let left = Left { by: own, lost, end: self.hosts[session.host].store.end(&task) };
        let closed = Request::Closed { task, generation, summary: Summary::default(), ending, left };
        self.tell_registry(session.host, closed)
    }

    /// A host that runs tasks.
    pub(crate) fn any_host(&self, dice: &mut Dice) -> usize {
        dice.between(1, self.hosts.len() - 1)
    }
}

/// What an attempt sees of its host's death.
pub(crate) fn died() -> Error {
    Error::AgentUnreachable { agent: "its own".into(), reason: "the host died".into() }
}
