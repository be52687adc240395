//! Opening a task: fence every older attempt, find the longest copy of its log, hold it here.
//!
//! No copy that the registry counts on is given up before the new generation's holders are told: if
//! this agent dies halfway, the next open finds what there was.

use std::collections::HashMap;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::handler::{Handler, Session, unexpected};
use super::publishing::channel;
use crate::agent::placement;
use crate::agent::protocol::{AgentInfo, Ending, Grant, HeldCopy, OpenTask, Reply, Request};
use crate::edge::disk::Rescued;
use crate::edge::locked;
use crate::error::{Error, Result};
use crate::id::{AgentId, LogOffset, TaskId};
use crate::task::Summary;

/// How long an open waits for an attempt of another stage, or this attempt's part before, to end.
const BUSY_PATIENCE: Duration = Duration::from_secs(5);
/// How often it asks.
const BUSY_PAUSE: Duration = Duration::from_millis(20);

/// Where a task's log was found.
enum Found {
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

/// Copies by holder, with their lengths.
pub(super) type Copies = Vec<(AgentId, LogOffset)>;

impl Handler {
    /// Opens a task for a worker.
    pub(in crate::edge) fn open(
        &self,
        open: &OpenTask,
        sessions: &mut HashMap<u64, Session>,
    ) -> Result<Reply> {
        let grant = self.granted(open)?;
        let (task, generation) = (grant.task.clone(), grant.generation);
        let opening = (task.clone(), generation);
        locked(&self.opening).insert(opening.clone());
        let opened = self.open_granted(open, grant, sessions);
        if opened.is_err() {
            // Whoever was told to ask here goes on with the attempt before.
            locked(&self.store).withdraw(&task, generation);
        }
        locked(&self.opening).remove(&opening);
        if opened.is_err() {
            // Else others would wait for an attempt that never began.
            let (summary, ending, agent) = (Summary::default(), Ending::default(), self.info.id);
            let closed = Request::Closed { task, generation, summary, ending, agent, lost: false };
            if let Err(error) = self.registrar.tell(&self.connections, closed) {
                tracing::info!(%error, "the end of an open that failed could not be told");
            }
        }
        opened
    }

    fn open_granted(
        &self,
        open: &OpenTask,
        mut grant: Grant,
        sessions: &mut HashMap<u64, Session>,
    ) -> Result<Reply> {
        // A name that was committed may be in use again: its old logs must be gone before.
        self.heard(&grant.committed, grant.commits);
        let task = grant.task.clone();
        let (found, copies) = match grant.discarded {
            true => (Found::Nothing, Copies::new()),
            false => self.gather(&task, &grant, open.inside && grant.reopened)?,
        };
        let lost = matches!(found, Found::Lost);
        let has_frames = self.reach_frames(&mut grant);
        let mut session = Session::new(task.clone(), grant, lost, open.inside, copies);
        self.take_over(&session, &found)?;
        let end = locked(&self.store).end(&task).unwrap_or_default();
        // What rides in frames is with those who depend on it; what was published stays so.
        if !session.inside || session.grant.whole.is_some() {
            self.begin_publishing(&mut session)?;
        }
        if session.is_publishing && end > LogOffset::START {
            self.replicate(&mut session)?;
            self.tell_holders(&session, Some(end))?;
            session.published = true;
        }
        let (number, grant) = (self.next_session(), &session.grant);
        let reply = Reply::Opened {
            task,
            session: number,
            generation: grant.generation,
            end,
            recording: grant.recording,
            lost,
            tasks: grant.layout.tasks,
            has_frames,
        };
        sessions.insert(number, session);
        Ok(reply)
    }

    fn granted(&self, open: &OpenTask) -> Result<Grant> {
        let deadline = Instant::now() + BUSY_PATIENCE;
        self.attend_here(&open.task.epoch_key())?;
        loop {
            match self.registrar.grant(&self.connections, open, self.info.id, self.commits_seen())? {
                Some(grant) => return Ok(grant),
                None if Instant::now() < deadline => sleep(BUSY_PAUSE),
                None => return Err(Error::OperatorUsedTwice { task: open.task.clone() }),
            }
        }
    }

    /// Fences the holders, and finds the longest copy that counts.
    ///
    /// Of a log whose blocks are acknowledged one by one, each holder has all that was, so one answer
    /// suffices: it was also asked for each block, and takes none from older attempts any more. What consumers
    /// have absorbed from frames differs from one to the other: all are to answer. Where the log was published as
    /// well, that is no more than a part of it, as is what an earlier attempt published elsewhere.
    fn gather(&self, task: &TaskId, grant: &Grant, inside: bool) -> Result<(Found, Copies)> {
        let counts = |holder: &AgentInfo, copy: &HeldCopy| match &grant.whole {
            Some(holders) if inside => copy.whole && holders.contains(&holder.id),
            _ => copy.whole || inside,
        };
        let answers = self.ask_all(
            &grant.holders,
            |holder| self.fence(task, grant, holder, inside),
            |copy| !inside && copy.is_some_and(|copy| copy.whole),
        )?;
        let mut copies = Copies::new();
        let mut best: Option<(LogOffset, AgentInfo)> = None;
        for (holder, copy) in answers {
            let Some(HeldCopy { end, .. }) = copy.filter(|copy| counts(&holder, copy)) else { continue };
            copies.push((holder.id, end));
            // This agent's own copy wins a tie: nothing needs to be moved then.
            let better = |(longest, _): &(LogOffset, AgentInfo)| {
                end > *longest || (end == *longest && holder.id == self.info.id)
            };
            if best.as_ref().is_none_or(better) {
                best = Some((end, holder));
            }
        }
        let found = match best {
            Some((end, holder)) if end > LogOffset::START && holder.id == self.info.id => Found::Here,
            Some((end, holder)) if end > LogOffset::START => Found::There(holder, end),
            _ if !grant.published => Found::Nothing,
            _ => self.disk.rescue(task)?.map_or(Found::Lost, Found::Rescued),
        };
        Ok((found, copies))
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
        let (generation, reopened_at) = (grant.generation, inside.then(|| self.info.clone()));
        if holder.id == self.info.id {
            return Ok(locked(&self.store).fence_for(task, generation, reopened_at));
        }
        let fence = Request::Fence { task: task.clone(), generation, reopened_at };
        match self.connections.call(&holder.addr, &fence)? {
            Reply::Fenced(copy) => Ok(copy),
            _ => Err(unexpected()),
        }
    }

    /// Makes the log that was found this agent's, under the new generation.
    fn take_over(&self, session: &Session, found: &Found) -> Result<()> {
        self.move_here(session, found)?;
        if !matches!(found, Found::Lost) {
            locked(&self.store).complete(&session.task, session.grant.generation);
        }
        Ok(())
    }

    fn move_here(&self, session: &Session, found: &Found) -> Result<()> {
        let (task, grant, copies) = (&session.task, &session.grant, &session.copies);
        match found {
            Found::Here => locked(&self.store).reopen(task, grant.generation, grant.layout),
            Found::Nothing | Found::Lost => locked(&self.store).begin(task, grant.generation, grant.layout),
            Found::Rescued(rescued) => {
                locked(&self.store).begin(task, grant.generation, grant.layout)?;
                let mut at = LogOffset::START;
                loop {
                    let blocks = rescued.piece(at)?;
                    if blocks.is_empty() {
                        return Ok(());
                    }
                    for block in &blocks {
                        self.hold(task, grant.generation, at, block)?;
                        at = at.plus(block.len() as u64);
                    }
                }
            }
            Found::There(holder, end) => {
                // A shorter copy that counts is gone on with; any other is of another log.
                let own = copies.iter().find(|(id, _)| *id == self.info.id).map(|(_, length)| *length);
                if let Some(length) = own {
                    locked(&self.store).reopen(task, grant.generation, grant.layout)?;
                    match self.fetch(session, holder, length, *end) {
                        Err(Error::LogFork { .. }) => {}
                        fetched => return fetched,
                    }
                }
                locked(&self.store).begin(task, grant.generation, grant.layout)?;
                self.fetch(session, holder, LogOffset::START, *end)
            }
        }
    }

    /// Reads a holder's copy, piece by piece.
    fn fetch(
        &self,
        session: &Session,
        holder: &AgentInfo,
        mut from: LogOffset,
        end: LogOffset,
    ) -> Result<()> {
        let (task, generation) = (&session.task, session.grant.generation);
        while from < end {
            let read = Request::Read { task: task.clone(), from, whole: false };
            let Reply::Blocks(blocks) = self.connections.call(&holder.addr, &read)? else {
                return Err(unexpected());
            };
            if blocks.is_empty() {
                return Err(Error::CausalLogLost { task: task.clone() });
            }
            for block in &blocks {
                self.hold(task, generation, from, block)?;
                from = from.plus(block.len() as u64);
            }
        }
        Ok(())
    }

    /// Chooses who holds copies of the session's log, and writes what there is of it to this agent's segment.
    pub(super) fn begin_publishing(&self, session: &mut Session) -> Result<()> {
        session.peers = self.first_peers(session)?;
        session.is_publishing = true;
        self.persist(session)?;
        self.keep_copies(session);
        Ok(())
    }

    fn first_peers(&self, session: &Session) -> Result<Vec<AgentInfo>> {
        let depth = usize::try_from(self.config.sharing_depth).unwrap_or(usize::MAX);
        let agents = self.members(session.grant.members)?;
        let all = placement::candidates(&session.task, self.info.id, &self.info.host, &agents);
        Ok(all.into_iter().take(depth).collect())
    }

    /// Peers that have a copy are sent only what they lack: it still counts, so it must not shrink.
    fn keep_copies(&self, session: &mut Session) {
        let (mut store, copies) = (locked(&self.store), std::mem::take(&mut session.copies));
        for peer in &session.peers {
            if let Some((_, length)) = copies.iter().find(|(id, _)| *id == peer.id) {
                store.rewind(&session.task, channel(session.grant.generation, peer), *length);
            }
        }
    }

    /// Writes the whole log to this agent's segment, unless it stands there: each file stands alone.
    fn persist(&self, session: &Session) -> Result<()> {
        let task = &session.task;
        if !self.disk.has_segments() || locked(&self.store).is_durable(task) {
            return Ok(());
        }
        let version = locked(&self.store).version(task);
        let (mut from, mut index) = (LogOffset::START, 0);
        loop {
            let blocks = self.read(task, from)?;
            if blocks.is_empty() {
                return Ok(());
            }
            let mut pending = Vec::with_capacity(blocks.len());
            for block in &blocks {
                pending.extend(self.submit(session, from, block));
                from = from.plus(block.len() as u64);
            }
            for written in pending {
                let place = written.wait()?;
                locked(&self.store).durable(task, version, index, place);
                index += 1;
            }
        }
    }
}
