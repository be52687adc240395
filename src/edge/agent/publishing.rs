//! Publishing: a block is answered when it is stable, that is when it stands here, on `sharing_depth`
//! peers, and, with a checkpoint folder, in a synced segment. A peer that has died is replaced by the
//! next in line.

use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::handler::{Handler, Session};
use crate::agent::placement;
use crate::agent::protocol::{AgentInfo, Request, Sent};
use crate::agent::store::Outgoing;
use crate::edge::disk::segment::{Pending, SegmentRecord};
use crate::edge::locked;
use crate::error::{Error, Result};
use crate::id::{ChannelId, Generation, LogOffset, TaskId};

impl Handler {
    /// Appends a block; returns when it is stable. With it, all that the task has kept before: an empty block stands
    /// for that alone.
    pub(in crate::edge) fn append(&self, session: &mut Session, block: &Bytes) -> Result<()> {
        // A block that failed may stand in some copies: nothing may be acknowledged behind it.
        if let Some(error) = &session.failed {
            return Err(error.clone());
        }
        // What the block depends on is stable before the block is: else, if this agent dies in between, the
        // block would be found again and what it was recorded with would not.
        let appended = self.share(session).and_then(|()| self.append_stable(session, block));
        if let Err(error) = &appended {
            session.failed = Some(error.clone());
        }
        appended
    }

    fn append_stable(&self, session: &mut Session, block: &Bytes) -> Result<()> {
        if !session.is_publishing {
            self.begin_publishing(session)?;
        }
        let version = locked(&self.store).version(&session.task);
        let from = locked(&self.store).end(&session.task).ok_or_else(|| fenced_away(session))?;
        let mut pending = None;
        if !block.is_empty() {
            let index = self.hold(&session.task, session.grant.generation, from, block)?;
            pending = self.submit(session, from, block).map(|pending| (index, pending));
        }
        let moved = self.replicate(session)?;
        if let Some((index, pending)) = pending {
            let place = pending.wait()?;
            locked(&self.store).durable(&session.task, version, index, place);
        }
        if moved || !session.published {
            locked(&self.store).complete(&session.task, session.grant.generation);
            // Refused if a newer attempt has opened the task: then this block is not acknowledged.
            self.tell_holders(session, None)?;
            session.published = true;
        }
        Ok(())
    }

    /// Queues a block for this agent's segment, if there is one.
    pub(super) fn submit(&self, session: &Session, at: LogOffset, block: &Bytes) -> Option<Pending> {
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
            plan: layout.plan,
            offset: at,
            block: block.clone(),
        })
    }

    /// Tells the registry who holds the log of this generation.
    pub(super) fn tell_holders(&self, session: &Session, adopted: Option<LogOffset>) -> Result<()> {
        let peers = session.peers.iter().map(|peer| peer.id);
        let holders = std::iter::once(self.info.id).chain(peers).collect();
        self.registrar.tell(
            &self.connections,
            Request::Holding {
                task: session.task.clone(),
                generation: session.grant.generation,
                holders,
                adopted: adopted.map(|length| (length, session.grant.layout)),
                whole: true,
                sent: self.next_request(),
            },
        )
    }

    /// Sends each peer what it lacks; whether one had to be replaced.
    pub(super) fn replicate(&self, session: &mut Session) -> Result<bool> {
        let mut failed = Vec::new();
        for peer in &session.peers {
            match self.send_all(&session.task, session.grant.generation, peer) {
                Ok(()) => {}
                Err(error @ Error::Fenced { .. }) => return Err(error),
                Err(error) => {
                    tracing::warn!(task = %session.task, peer = %peer.addr, %error, "replacing a peer");
                    failed.push((peer.clone(), error));
                }
            }
        }
        let moved = !failed.is_empty();
        for (peer, error) in failed {
            self.replace(session, &peer, error)?;
        }
        Ok(moved)
    }

    /// Sends a peer everything it lacks, in pieces; all of it, if its copy is not what we think.
    pub(super) fn send_all(&self, task: &TaskId, generation: Generation, peer: &AgentInfo) -> Result<()> {
        let channel = channel(generation, peer);
        // Who was overtaken by a copy begun anew would find a gap, and begin it anew once more.
        let _turn = self.sending.take((task.clone(), channel));
        match self.send_rest(task, generation, peer) {
            Err(Error::LogGap { .. } | Error::LogFork { .. }) => {
                locked(&self.store).rewind(task, channel, LogOffset::START);
                self.send_rest(task, generation, peer)
            }
            sent => sent,
        }
    }

    fn send_rest(&self, task: &TaskId, generation: Generation, peer: &AgentInfo) -> Result<()> {
        let channel = channel(generation, peer);
        while let Some((outgoing, sent)) = self.next_piece(task, generation, channel)? {
            let Outgoing { reset, part, blocks, layout, all } = outgoing;
            let blocks = self.disk.read(&blocks)?;
            let bytes = blocks.iter().map(|block| block.len() as u64).sum();
            let (copied, from) = (task.clone(), part.from);
            let request =
                Request::Replicate { task: copied, generation, layout, reset, from, blocks, all, sent };
            self.connections.call(&peer.addr, &request)?;
            // Only now: a request that fails may have come to nothing; the next try sends the piece again.
            locked(&self.store).arrived(task, channel, part);
            self.sent_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        Ok(())
    }

    /// What a channel lacks, and the request's number. They are taken together: by its number a request is
    /// known to be late, so what was read later must have the larger one.
    fn next_piece(
        &self,
        task: &TaskId,
        ours: Generation,
        channel: ChannelId,
    ) -> Result<Option<(Outgoing, Sent)>> {
        let store = locked(&self.store);
        // A newer attempt's blocks must not go out under an older one's name.
        if let Some(newer) = store.generation(task).filter(|here| *here > ours) {
            return Err(Error::Fenced { task: task.clone(), newer, ours });
        }
        Ok(store.outgoing(task, channel).map(|outgoing| (outgoing, self.next_request())))
    }

    /// Puts the next agent in line in a peer's place, with all of the log.
    fn replace(&self, session: &mut Session, gone: &AgentInfo, why: Error) -> Result<()> {
        session.peers.retain(|peer| peer.id != gone.id);
        let agents = self.members_now();
        let candidates = placement::candidates(&session.task, self.info.id, &self.info.host, &agents);
        let mut full = Some(why).filter(is_full);
        for candidate in candidates {
            if candidate.id == gone.id || session.peers.iter().any(|peer| peer.id == candidate.id) {
                continue;
            }
            match self.send_all(&session.task, session.grant.generation, &candidate) {
                Ok(()) => {
                    session.peers.push(candidate);
                    return Ok(());
                }
                Err(error @ Error::Fenced { .. }) => return Err(error),
                Err(error) => {
                    tracing::info!(peer = %candidate.addr, %error, "not a peer either");
                    full = full.or(Some(error).filter(is_full));
                }
            }
        }
        // An agent that lives but has no room is no excuse for fewer copies: the writer is refused.
        if let Some(error) = full {
            return Err(error);
        }
        // Fewer agents than copies wanted: those there are must do, as at the start of a job.
        tracing::warn!(task = %session.task, copies = session.peers.len(), "no agent left for another copy");
        Ok(())
    }
}

/// Whether an agent refused a copy for want of room.
pub(super) const fn is_full(error: &Error) -> bool {
    matches!(error, Error::DiskBudget { .. } | Error::DiskFull { .. } | Error::MemoryBudget { .. })
}

/// The edge from one generation's log to one peer: a new generation begins a new copy.
pub(super) const fn channel(generation: Generation, peer: &AgentInfo) -> ChannelId {
    ChannelId(peer.id.0.rotate_left(17) ^ generation.0)
}

fn fenced_away(session: &Session) -> Error {
    // The log is gone from here: its epoch was committed, so this attempt is no longer wanted.
    Error::Fenced { task: session.task.clone(), newer: Generation::NONE, ours: session.grant.generation }
}

#[cfg(test)]
mod tests;
