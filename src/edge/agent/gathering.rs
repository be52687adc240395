//! Fencing the holders of a task's log, and finding what counts of it among their copies.
//!
//! Of a log whose blocks are acknowledged one by one, each holder has all that was. What consumers have absorbed from
//! frames differs from one to the other, and where there were several attempts it may be of one that does not count:
//! then only those copies do that begin with what something visible depends on.

use bytes::Bytes;

use super::handler::{Handler, unexpected};
use crate::agent::protocol::{AgentInfo, Fence, Grant, HeldCopy, Reply, Request};
use crate::edge::disk::Rescued;
use crate::edge::locked;
use crate::error::Result;
use crate::id::{AgentId, LogOffset, TaskId};

/// Where a task's log was found.
pub(super) enum Found {
    /// Nothing was published so far.
    Nothing,
    /// Something was published, and no copy of it can be read.
    Lost,
    /// This agent's copy is as long as any.
    Here,
    /// Another agent's copy is longer.
    There(AgentInfo, LogOffset),
    /// In the checkpoint folder only.
    Rescued(Rescued),
}

/// Beginnings of the log that was found, by holder, with their lengths.
pub(super) type Copies = Vec<(AgentId, LogOffset)>;

impl Handler {
    /// Fences the holders, and finds the longest copy that counts.
    ///
    /// Of a log whose blocks are acknowledged one by one, one answer suffices: its holder was also asked for each
    /// block, and takes none from older attempts any more. Of what consumers have absorbed from frames, all are to
    /// answer. Where the log was published as well, that is no more than a part of it, as is what an earlier attempt
    /// published elsewhere.
    ///
    /// Copies of `unread` are none: they could not be read.
    pub(super) fn gather(
        &self,
        task: &TaskId,
        grant: &Grant,
        inside: bool,
        unread: &[AgentId],
    ) -> Result<(Found, Copies)> {
        let counts = |holder: &AgentInfo, copy: &HeldCopy| match &grant.whole {
            Some(holders) if inside => copy.whole && holders.contains(&holder.id),
            _ => copy.whole || inside,
        };
        let answers = self.ask_all(
            &grant.holders,
            |holder| {
                let copy = self.fence(task, grant, holder, inside)?;
                Ok(copy.filter(|_| !unread.contains(&holder.id)))
            },
            |copy| !inside && copy.is_some_and(|copy| copy.whole),
        )?;
        let is_absorbed = inside && grant.whole.is_none();
        let begins_so = |copy: &HeldCopy| !is_absorbed || copy.is_shown;
        let mut best: Option<(LogOffset, AgentInfo)> = None;
        let mut copies = Copies::new();
        for (holder, copy) in answers {
            let Some(copy) = copy.filter(|copy| counts(&holder, copy)) else { continue };
            // Of several attempts' copies none is known to be a part of another, but for what was shown.
            if !is_absorbed || !grant.has_several || (copy.is_shown && copy.end == grant.shown.end) {
                // Nobody vouches for what came with frames: its last block is sent again, and compared.
                let known = if copy.whole { copy.end } else { copy.end.before() };
                copies.push((holder.id, known));
            }
            // This agent's own copy wins a tie: nothing needs to be moved then.
            let better = |(longest, _): &(LogOffset, AgentInfo)| {
                copy.end > *longest || (copy.end == *longest && holder.id == self.info.id)
            };
            if begins_so(&copy) && best.as_ref().is_none_or(better) {
                best = Some((copy.end, holder));
            }
        }
        let found = match best {
            Some((end, holder)) if end > LogOffset::START && holder.id == self.info.id => Found::Here,
            Some((end, holder)) if end > LogOffset::START => Found::There(holder, end),
            _ if !grant.published => Found::Nothing,
            _ => {
                let shown = if is_absorbed { grant.shown.end } else { LogOffset::START };
                let rescued = self.rescue(task)?.filter(|rescued| rescued.end() >= shown);
                rescued.map_or(Found::Lost, Found::Rescued)
            }
        };
        Ok((found, copies))
    }

    /// Finds a log in the checkpoint folder, to which agents add nothing that counts of which the driver says that they
    /// are dead.
    pub(super) fn rescue(&self, task: &TaskId) -> Result<Option<Rescued>> {
        self.disk.rescue(task, |agents| self.registrar.dead_among(&self.connections, agents))
    }

    /// One piece of an agent's copy.
    pub(super) fn read_at(&self, holder: &AgentInfo, task: &TaskId, from: LogOffset) -> Result<Vec<Bytes>> {
        if holder.id == self.info.id {
            return self.read(task, from);
        }
        let read = Request::Read { task: task.clone(), from, whole: false, newest: None };
        match self.connections.call(holder, &read)? {
            Reply::Blocks(blocks) => Ok(blocks),
            _ => Err(unexpected()),
        }
    }

    /// Raises the fence at a holder; its copy, if it has one. With `inside` the holder takes what consumers
    /// absorb of this log only from here from now on.
    pub(super) fn fence(
        &self,
        task: &TaskId,
        grant: &Grant,
        holder: &AgentInfo,
        inside: bool,
    ) -> Result<Option<HeldCopy>> {
        let Grant { generation, over, shown, .. } = *grant;
        let fence = Fence { generation, over, reopened_at: inside.then(|| self.info.clone()), shown };
        if holder.id == self.info.id {
            return Ok(locked(&self.store).fence_for(task, fence));
        }
        match self.connections.call(holder, &Request::Fence { task: task.clone(), fence })? {
            Reply::Fenced(copy) => Ok(copy),
            _ => Err(unexpected()),
        }
    }
}
