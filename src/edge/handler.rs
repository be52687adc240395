//! What an agent does for each request: opens, appends, copies.
//!
//! An append is answered when it is stable: when it stands here, on `sharing_depth` peers, and, with a
//! checkpoint folder, in a synced segment. A peer that has died is replaced by the next in line.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::disk::Disk;
use super::links::Links;
use super::locked;
use super::registrar::Registrar;
use super::segment::SegmentRecord;
use crate::agent::placement;
use crate::agent::protocol::{AgentInfo, AgentStats, Grant, OpenTask, PIECE_BYTES, Reply, Request};
use crate::agent::store::{Outgoing, Store};
use crate::config::SessionConfig;
use crate::error::{Error, Result};
use crate::id::{ChannelId, EpochKey, Generation, LogOffset, Partition, TaskId};

/// How long an open waits for an attempt of another stage to go.
const BUSY_PATIENCE: Duration = Duration::from_secs(5);
/// How often it asks.
const BUSY_PAUSE: Duration = Duration::from_millis(50);

/// One open task of a worker.
pub(super) struct Session {
    task: TaskId,
    grant: Grant,
    /// Agents that hold copies, besides this one.
    peers: Vec<AgentInfo>,
    published: bool,
    lost: bool,
}

/// An agent without its listeners.
pub(super) struct Handler {
    pub(super) config: SessionConfig,
    pub(super) info: AgentInfo,
    pub(super) store: Mutex<Store>,
    pub(super) disk: Disk,
    pub(super) links: Links,
    pub(super) registrar: Registrar,
    pub(super) sent_bytes: AtomicU64,
    sessions: AtomicU64,
}

impl Handler {
    pub(super) fn new(config: SessionConfig, info: AgentInfo, disk: Disk, registrar: Registrar) -> Self {
        let timeout = Duration::from_millis(config.io_timeout_ms);
        Self {
            store: Mutex::new(Store::new(config.memory_bytes)),
            links: Links::new(config.secret, timeout),
            config,
            info,
            disk,
            registrar,
            sent_bytes: AtomicU64::new(0),
            sessions: AtomicU64::new(0),
        }
    }

    // Opening.

    pub(super) fn open(&self, open: &OpenTask, sessions: &mut HashMap<u64, Session>) -> Result<Reply> {
        let grant = self.granted(open)?;
        let (found, lost) = self.gather(&open.task, &grant)?;
        let session = sessions_next(&self.sessions);
        let mut opened =
            Session { task: open.task.clone(), peers: Vec::new(), published: false, lost, grant };
        let end = self.adopt(&mut opened, &found)?;
        let reply = Reply::Opened {
            session,
            generation: opened.grant.generation,
            end,
            same_stage: opened.grant.same_stage,
            layout_changed: opened.grant.layout_changed,
            lost,
        };
        sessions.insert(session, opened);
        Ok(reply)
    }

    fn granted(&self, open: &OpenTask) -> Result<Grant> {
        let deadline = Instant::now() + BUSY_PATIENCE;
        loop {
            match self.registrar.grant(&self.links, open, self.info.id)? {
                Some(grant) => return Ok(grant),
                None if Instant::now() < deadline => sleep(BUSY_PAUSE),
                None => return Err(Error::OperatorUsedTwice { task: open.task.clone() }),
            }
        }
    }

    /// Fences every holder and reads the longest copy; whether all copies are lost.
    fn gather(&self, task: &TaskId, grant: &Grant) -> Result<(Vec<Bytes>, bool)> {
        let mut best: Option<(LogOffset, Option<&AgentInfo>)> = None;
        for holder in &grant.holders {
            let length = if holder.id == self.info.id {
                locked(&self.store).fence(task, grant.generation)
            } else {
                let fence = Request::Fence { task: task.clone(), generation: grant.generation };
                match self.links.call(&holder.addr, &fence) {
                    Ok(Reply::Fenced(length)) => length,
                    Ok(_) => None,
                    Err(error) => {
                        tracing::info!(%task, holder = %holder.addr, %error, "a holder does not answer");
                        None
                    }
                }
            };
            if let Some(length) = length
                && best.is_none_or(|(longest, _)| length > longest)
            {
                best = Some((length, Some(holder).filter(|holder| holder.id != self.info.id)));
            }
        }
        match best {
            Some((LogOffset::START, _)) => Ok((Vec::new(), false)),
            Some((end, holder)) => Ok((self.read_copy(task, holder, end)?, false)),
            None if !grant.published => Ok((Vec::new(), false)),
            None => match self.disk.rescue(task)? {
                Some(blocks) => Ok((blocks, false)),
                None => Ok((Vec::new(), true)),
            },
        }
    }

    /// Reads a log up to `end`, here or from a holder.
    fn read_copy(&self, task: &TaskId, holder: Option<&AgentInfo>, end: LogOffset) -> Result<Vec<Bytes>> {
        let mut blocks = Vec::new();
        let mut from = LogOffset::START;
        while from < end {
            let piece = match holder {
                None => self.read(task, from)?,
                Some(holder) => {
                    let read = Request::Read { task: task.clone(), from };
                    match self.links.call(&holder.addr, &read)? {
                        Reply::Blocks(blocks) => blocks,
                        _ => return Err(unexpected()),
                    }
                }
            };
            if piece.is_empty() {
                return Err(Error::CausalLogLost { task: task.clone() });
            }
            for block in piece {
                if from >= end {
                    break;
                }
                from = from.plus(block.len() as u64);
                blocks.push(block);
            }
        }
        Ok(blocks)
    }

    /// Makes this agent the first holder of the new generation, and its log stable again.
    fn adopt(&self, session: &mut Session, found: &[Bytes]) -> Result<LogOffset> {
        let (task, grant) = (&session.task, &session.grant);
        locked(&self.store).begin(task, grant.generation, grant.layout)?;
        let mut at = LogOffset::START;
        let mut last = None;
        for block in found {
            self.room_for(block.len() as u64)?;
            let index =
                locked(&self.store).absorb(task, grant.generation, at, std::slice::from_ref(block))?;
            last = self.submit(session, at, block).map(|pending| (index, pending));
            at = at.plus(block.len() as u64);
        }
        session.peers = self.first_peers(session);
        if !found.is_empty() {
            self.replicate(session)?;
        }
        if let Some((_, pending)) = last {
            // Records of one task reach the disk in order: the last one's answer stands for all.
            pending.wait()?;
        }
        if at > LogOffset::START {
            session.published = true;
            self.tell_holders(session, Some(at))?;
        }
        Ok(at)
    }

    fn first_peers(&self, session: &Session) -> Vec<AgentInfo> {
        let depth = usize::try_from(self.config.sharing_depth).unwrap_or(usize::MAX);
        let all = placement::candidates(&session.task, self.info.id, &self.info.host, &session.grant.agents);
        all.into_iter().take(depth).collect()
    }

    fn tell_holders(&self, session: &Session, adopted: Option<LogOffset>) -> Result<()> {
        let holders = std::iter::once(self.info.id).chain(session.peers.iter().map(|peer| peer.id)).collect();
        self.registrar.tell(
            &self.links,
            Request::Holding {
                task: session.task.clone(),
                generation: session.grant.generation,
                holders,
                adopted: adopted.map(|length| (length, session.grant.layout)),
                published: true,
            },
        )
    }

    // Appending.

    pub(super) fn append(&self, session: &mut Session, block: &Bytes) -> Result<()> {
        self.room_for(block.len() as u64)?;
        let (from, index) = {
            let mut store = locked(&self.store);
            let (task, generation) = (&session.task, session.grant.generation);
            let from = store.end(task).ok_or_else(|| fenced_away(session))?;
            (from, store.absorb(task, generation, from, std::slice::from_ref(block))?)
        };
        let pending = self.submit(session, from, block);
        let moved = self.replicate(session)?;
        if let Some(pending) = pending {
            let place = pending.wait()?;
            locked(&self.store).durable(&session.task, index, place);
        }
        if moved || !session.published {
            session.published = true;
            self.tell_holders(session, None)?;
        }
        Ok(())
    }

    fn submit(&self, session: &Session, at: LogOffset, block: &Bytes) -> Option<super::segment::Pending> {
        if !self.disk.has_segments() {
            return None;
        }
        let layout = session.grant.layout;
        self.disk.submit(SegmentRecord {
            task: session.task.clone(),
            generation: session.grant.generation,
            app: layout.app,
            stage: layout.stage,
            tasks: layout.tasks,
            offset: at,
            block: block.clone(),
        })
    }

    /// Sends each peer what it lacks; whether a dead one had to be replaced.
    fn replicate(&self, session: &mut Session) -> Result<bool> {
        let mut dead = Vec::new();
        for peer in &session.peers {
            match self.send_all(session, peer) {
                Ok(()) => {}
                Err(error @ Error::Fenced { .. }) => return Err(error),
                Err(error) => {
                    tracing::warn!(task = %session.task, peer = %peer.addr, %error, "replacing a peer");
                    dead.push(peer.id);
                }
            }
        }
        for gone in &dead {
            self.replace(session, *gone)?;
        }
        Ok(!dead.is_empty())
    }

    /// Sends a peer everything it lacks, in pieces.
    fn send_all(&self, session: &Session, peer: &AgentInfo) -> Result<()> {
        let channel = channel(session.grant.generation, peer);
        loop {
            let outgoing = locked(&self.store).outgoing(&session.task, channel);
            let Some(Outgoing { reset, from, blocks, layout }) = outgoing else { return Ok(()) };
            let blocks = self.disk.read(&blocks)?;
            let bytes = blocks.iter().map(|block| block.len() as u64).sum();
            let request = Request::Replicate {
                task: session.task.clone(),
                generation: session.grant.generation,
                layout,
                reset,
                from,
                blocks,
            };
            self.links.call(&peer.addr, &request)?;
            self.sent_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Puts the next living agent in a dead peer's place, with all of the log.
    fn replace(&self, session: &mut Session, gone: crate::id::AgentId) -> Result<()> {
        session.peers.retain(|peer| peer.id != gone);
        let agents = self.registrar.agents(&self.links, &session.grant);
        let candidates = placement::candidates(&session.task, self.info.id, &self.info.host, &agents);
        for candidate in candidates {
            let held = candidate.id == gone || session.peers.iter().any(|peer| peer.id == candidate.id);
            if held {
                continue;
            }
            match self.send_all(session, &candidate) {
                Ok(()) => {
                    session.peers.push(candidate);
                    return Ok(());
                }
                Err(error @ Error::Fenced { .. }) => return Err(error),
                Err(error) => tracing::info!(peer = %candidate.addr, %error, "not a peer either"),
            }
        }
        // Fewer agents than copies wanted: those there are must do, as at the start of a job.
        tracing::warn!(task = %session.task, copies = session.peers.len(), "no agent left for another copy");
        Ok(())
    }

    /// Spills until `bytes` fit into memory; slows the writer while the disk budget is used up.
    fn room_for(&self, bytes: u64) -> Result<()> {
        if bytes > self.config.memory_bytes {
            return Err(Error::MemoryBudget { bytes, limit: self.config.memory_bytes });
        }
        let deadline = Instant::now() + Duration::from_millis(self.config.io_timeout_ms);
        loop {
            match self.spill_for(bytes) {
                Err(Error::DiskBudget { .. }) if Instant::now() < deadline => sleep(BUSY_PAUSE),
                other => return other,
            }
        }
    }

    fn spill_for(&self, bytes: u64) -> Result<()> {
        let mut store = locked(&self.store);
        let mut failed = None;
        for victims in store.make_room(bytes) {
            if failed.is_some() {
                store.not_spilled(&victims);
                continue;
            }
            let blocks: Vec<Bytes> = victims.blocks.iter().map(|(_, block)| block.clone()).collect();
            match self.disk.spill(&victims.task.epoch_key(), &blocks) {
                Ok(places) => store.spilled(&victims, &places),
                Err(error) => {
                    store.not_spilled(&victims);
                    failed = Some(error);
                }
            }
        }
        failed.map_or(Ok(()), Err)
    }

    // Closing.

    pub(super) fn close(&self, session: &Session, summary: crate::task::Summary) -> Result<()> {
        self.registrar.tell(
            &self.links,
            Request::Closed {
                task: session.task.clone(),
                generation: session.grant.generation,
                summary,
                lost: session.lost,
            },
        )
    }

    // Reading.

    pub(super) fn read_session(&self, session: &Session, from: LogOffset) -> Result<Reply> {
        self.read(&session.task, from).map(Reply::Blocks)
    }

    /// One piece of a log that is here.
    pub(super) fn read(&self, task: &TaskId, from: LogOffset) -> Result<Vec<Bytes>> {
        let piece = locked(&self.store).piece(task, from);
        let piece = piece.ok_or_else(|| Error::CausalLogLost { task: task.clone() })?;
        self.disk.read(&piece)
    }

    /// Logs of the other partitions, as far as they were recorded under another layout.
    pub(super) fn pool(&self, session: &Session) -> Result<Reply> {
        let entries = self.registrar.pool(&self.links, &session.task, session.grant.layout)?;
        let mut logs: Vec<(Partition, Vec<Bytes>)> = Vec::new();
        for entry in entries {
            let mut blocks = None;
            for holder in &entry.holders {
                let local = holder.id == self.info.id;
                let read = self.read_until(&entry.task, Some(holder).filter(|_| !local), entry.until);
                if let Ok(read) = read {
                    blocks = Some(read);
                    break;
                }
            }
            let blocks = match blocks {
                Some(blocks) => blocks,
                None => self
                    .disk
                    .rescue(&entry.task)?
                    .ok_or_else(|| Error::CausalLogLost { task: entry.task.clone() })?,
            };
            logs.push((entry.task.partition, blocks));
        }
        Ok(Reply::Pool(logs))
    }

    fn read_until(&self, task: &TaskId, holder: Option<&AgentInfo>, until: LogOffset) -> Result<Vec<Bytes>> {
        let mut blocks = Vec::new();
        let mut from = LogOffset::START;
        while from < until {
            let piece = match holder {
                None => self.read(task, from)?,
                Some(holder) => {
                    match self.links.call(&holder.addr, &Request::Read { task: task.clone(), from })? {
                        Reply::Blocks(piece) => piece,
                        _ => return Err(unexpected()),
                    }
                }
            };
            if piece.is_empty() {
                break;
            }
            for block in piece {
                if from < until {
                    from = from.plus(block.len() as u64);
                    blocks.push(block);
                }
            }
        }
        Ok(blocks)
    }

    // For other agents.

    pub(super) fn replicated(&self, request: Request) -> Result<()> {
        let Request::Replicate { task, generation, layout, reset, from, blocks } = request else {
            return Err(unexpected());
        };
        self.room_for(blocks.iter().map(|block| block.len() as u64).sum::<u64>().min(PIECE_BYTES / 4))?;
        let mut store = locked(&self.store);
        if reset {
            store.begin(&task, generation, layout)?;
        }
        store.absorb(&task, generation, from, &blocks).map(drop)
    }

    pub(super) fn stats(&self) -> AgentStats {
        let mut stats = locked(&self.store).stats();
        stats.sent_bytes = self.sent_bytes.load(Ordering::Relaxed);
        stats
    }

    /// Forgets a committed epoch.
    pub(super) fn drop_epoch(&self, key: &EpochKey) {
        let driver = self.info.driver;
        let mut epochs = locked(&self.store).commit(key);
        if !epochs.contains(key) {
            epochs.push(key.clone());
        }
        for epoch in epochs {
            self.disk.drop_epoch(&epoch, driver);
        }
    }
}

fn sessions_next(counter: &AtomicU64) -> u64 {
    counter.fetch_add(1, Ordering::Relaxed) + 1
}

/// The edge from one generation's log to one peer: a new generation begins a new copy.
fn channel(generation: Generation, peer: &AgentInfo) -> ChannelId {
    ChannelId(peer.id.0.rotate_left(17) ^ generation.0)
}

fn fenced_away(session: &Session) -> Error {
    // The log is gone from here: its epoch was committed, so this attempt is no longer wanted.
    Error::Fenced {
        task: session.task.clone(),
        newer: session.grant.generation.next(),
        ours: session.grant.generation,
    }
}

fn unexpected() -> Error {
    Error::Protocol { what: "an answer to another question".into() }
}

/// Handlers are shared by all threads of an agent.
pub(super) type Shared = Arc<Handler>;
