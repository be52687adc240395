//! Publishing: a block is answered when it is stable, that is when it stands here, on `sharing_depth`
//! peers, and, with a checkpoint folder, in a synced segment. A peer that has died is replaced by the
//! next in line.

use bytes::Bytes;

use super::copying::Logs;
use super::handler::{Handler, Session};
use crate::agent::copying::Copying;
use crate::agent::protocol::{Grant, Layout, Request};
use crate::edge::disk::segment::{Pending, SegmentRecord};
use crate::edge::locked;
use crate::error::{Error, Result};
use crate::id::{Generation, LogOffset, TaskId};

/// In whose name something is written down.
#[derive(Clone, Copy)]
pub(super) struct Author {
    pub(super) generation: Generation,
    pub(super) layout: Layout,
    /// The use of the epoch's name.
    pub(super) used: u64,
}

impl Author {
    pub(super) const fn of(grant: &Grant) -> Self {
        let Grant { generation, layout, used, .. } = *grant;
        Self { generation, layout, used }
    }
}

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
            pending = self
                .submit(&session.task, Author::of(&session.grant), from, block)
                .map(|pending| (index, pending));
        }
        let moved = self.replicate(session)?;
        if let Some((index, pending)) = pending {
            let place = pending.wait()?;
            locked(&self.store).durable(&session.task, version, index, place);
        }
        // Without a peer there is nobody at whom a newer attempt could have raised a fence.
        let is_alone = session.peers.is_empty() && self.disk.has_segments();
        if moved || !session.published || is_alone {
            locked(&self.store).complete(&session.task, session.grant.generation);
            // Of a log that is lost there is nothing but this layout's: its rows must not pass for those of the one before.
            // What stays inside is published for the first time here, though some of it may have been found.
            let adopts = !session.published && (session.lost || session.inside);
            // Refused if a newer attempt has opened the task: then this block is not acknowledged.
            self.tell_holders(session, adopts.then_some(session.found))?;
            session.published = true;
        }
        Ok(())
    }

    /// Queues a block for this agent's segment, if there is one, in the name of an attempt.
    pub(super) fn submit(
        &self,
        task: &TaskId,
        Author { generation, layout, used }: Author,
        offset: LogOffset,
        block: &Bytes,
    ) -> Option<Pending> {
        if !self.disk.has_segments() {
            return None;
        }
        let (task, block) = (task.clone(), block.clone());
        let Layout { app, stage, tasks, plan, borders, .. } = layout;
        let record = SegmentRecord { task, generation, app, stage, tasks, plan, borders, offset, block };
        self.disk.submit(record, used)
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

    /// Sends each peer what it lacks; whether one had to be replaced, or others were found where they are too few.
    pub(super) fn replicate(&self, session: &mut Session) -> Result<bool> {
        let peers = std::mem::take(&mut session.peers);
        let known = self.members_known();
        let may_be_more = peers.len() < self.depth() && known > session.grant.members;
        session.grant.members = session.grant.members.max(known);
        let wanted = if may_be_more { self.depth() } else { peers.len() };
        let mut copying = Copying::new(wanted, self.patience()).first_to(peers);
        self.see_that(Logs::own(&session.task, session.grant.generation), &mut copying)?;
        let moved = copying.has_moved();
        session.peers = copying.into_holders();
        if moved {
            tracing::warn!(task = %session.task, copies = session.peers.len(), "other agents have the copies");
        }
        Ok(moved)
    }
}

fn fenced_away(session: &Session) -> Error {
    // The log is gone from here: its epoch was committed, so this attempt is no longer wanted.
    Error::Fenced { task: session.task.clone(), newer: Generation::NONE, ours: session.grant.generation }
}
