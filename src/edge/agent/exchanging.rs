//! What an agent does for an exchange: keeps determinants that travel in frames, holds copies of those
//! that came with frames, and has others hold copies of these.

use std::slice;
use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::copying::Logs;
use super::handler::{Handler, Session};
use crate::agent::copying::Copying;
use crate::agent::protocol::{AgentInfo, Grant, Reply, Request};
use crate::agent::store::Reopened;
use crate::edge::locked;
use crate::error::{Error, Result};
use crate::frame::Group;
use crate::id::{Generation, LogOffset, TaskId};

/// How long an answer of the registry may be on its way.
const GRANT_PATIENCE: Duration = Duration::from_millis(500);
/// How often it is looked whether a task is open.
const OPENING_PAUSE: Duration = Duration::from_millis(20);

impl Handler {
    /// Keeps a block of a task whose determinants travel in its frames: here, and nowhere else. If its log is
    /// published, so is this, as shorter copies of it count.
    pub(in crate::edge) fn keep(&self, session: &mut Session, block: &Bytes) -> Result<()> {
        if session.is_publishing {
            return self.append(session, block);
        }
        let from = locked(&self.store).end(&session.task).unwrap_or_default();
        self.hold(&session.task, session.grant.generation, from, block).map(drop)
    }

    /// Holds copies of the logs that came with a frame.
    pub(in crate::edge) fn absorb(&self, session: &mut Session, groups: Vec<Group>) -> Result<()> {
        for group in groups {
            let task = TaskId {
                operator: group.operator.into(),
                partition: group.partition,
                ..session.task.clone()
            };
            let (nobody, born) = (Generation::NONE, session.grant.generation);
            self.hold_all(None, &task, nobody, born, group.from, &group.blocks)?;
            let before = session.absorbed.get(&task).copied().flatten();
            if before.is_some_and(|before| !locked(&self.store).has(&task, &before)) {
                return Err(Error::StaleFrame { upstream: task });
            }
            let end = group.blocks.iter().fold(group.from, |end, block| end.plus(block.len() as u64));
            let end = before.map_or(end, |before| before.end().max(end));
            let taken = locked(&self.store).taken(&task, before, end);
            session.absorbed.insert(task, taken);
        }
        Ok(())
    }

    /// At the end of a task whose output stays inside: sees to it that the logs it has absorbed stand on as
    /// many agents as are wanted before Spark shows that output to anyone. The sender's agent has each, and so
    /// has this one; where they are the same, or may be on one host, or more are wanted, others are given a copy.
    ///
    /// With a checkpoint they are committed, as at the edge: what is shown at the end of a chain depends on them, and those
    /// further down do not have them where that is more than `sharing_depth` hops from here.
    pub(in crate::edge) fn spread(&self, session: &Session) -> Result<()> {
        if self.disk.has_segments() {
            return self.share(session);
        }
        let wanted = self.depth();
        // Of several that take a copy, one may be the sender's agent, which has it.
        let is_near = self.shares_its_host(session)?;
        let are_few = |task: &&TaskId| wanted > 1 || is_near || locked(&self.store).is_own(task);
        let tasks: Vec<TaskId> = session.absorbed.keys().filter(are_few).cloned().collect();
        if wanted == 0 || tasks.is_empty() {
            return Ok(());
        }
        // Whoever waits for its turn knows afterwards what was sent, and who is slow.
        let _turn = self.sharing.take(session.task.epoch_key());
        let logs = Logs::absorbed(&session.task, &tasks, session.grant.generation);
        self.see_that(logs, &mut Copying::new(wanted, self.patience()))
    }

    /// Whether there are agents on this host besides this one, and on others, which are not lost with it: as it was
    /// when the task was granted, so that the registry need not be asked at the end of each.
    fn shares_its_host(&self, session: &Session) -> Result<bool> {
        let members = self.members(session.grant.members)?;
        let is_here = |agent: &&AgentInfo| agent.host == self.info.host;
        let others = || members.iter().filter(|agent| agent.id != self.info.id && !agent.driver);
        Ok(others().any(|agent| is_here(&agent)) && !others().all(|agent| is_here(&agent)))
    }

    /// This agent's executor has ended. The registry does not know who has absorbed a log that nothing visible depends
    /// on, and so does not ask for copies: agents that stay are given one. What rides in frames is with these.
    pub(in crate::edge) fn hand_over(&self) -> Result<()> {
        // What came after this would be given to nobody.
        self.is_leaving.store(true, Ordering::Release);
        let absorbed = locked(&self.store).absorbed();
        let mut given = Ok(());
        for (born, tasks) in absorbed {
            let Some(first) = tasks.first() else { continue };
            let _turn = self.sharing.take(first.epoch_key());
            // Where nobody answers, the whole application may have ended.
            let mut copying = Copying::new(self.depth().max(1), Duration::ZERO);
            match self.see_that(Logs::absorbed(first, &tasks, born), &mut copying) {
                // Others have heard that their epoch is committed.
                Ok(()) | Err(Error::Fenced { .. }) => {}
                Err(error) => given = Err(error),
            }
        }
        given
    }

    /// Holds blocks that lie one behind the other.
    pub(super) fn hold_all(
        &self,
        deadline: Option<Instant>,
        task: &TaskId,
        by: Generation,
        born: Generation,
        mut from: LogOffset,
        blocks: &[Bytes],
    ) -> Result<()> {
        for block in blocks {
            self.hold_copy(deadline, task, by, born, from, block)?;
            from = from.plus(block.len() as u64);
        }
        Ok(())
    }

    /// Reads from the newest attempt's agent what counts of a log beyond what is here; [`Error::StaleFrame`] if
    /// that is nothing.
    pub(super) fn confirm(&self, task: &TaskId, born: Generation, newest: &Reopened) -> Result<()> {
        let Reopened { generation, at: holder } = newest;
        let stale = || Error::StaleFrame { upstream: task.clone() };
        if holder.id == self.info.id {
            return Err(stale());
        }
        let from = locked(&self.store).end(task).unwrap_or_default();
        let confirm = Request::Confirm { task: task.clone(), generation: *generation, from };
        let asked = |holder: &AgentInfo| match self.connections.call(holder, &confirm) {
            Err(error) if error.is_silence() => Err(error),
            answer => Ok(answer),
        };
        let blocks = match self.first_of(slice::from_ref(holder), asked)? {
            Some(Ok(Reply::Blocks(blocks))) if !blocks.is_empty() => blocks,
            Some(Ok(Reply::Withdrawn)) => {
                locked(&self.store).drop_reopened(task, *generation);
                return Ok(());
            }
            Some(Ok(_) | Err(Error::CausalLogLost { .. } | Error::LogFork { .. })) => return Err(stale()),
            Some(Err(error)) => return Err(error),
            None => {
                locked(&self.store).nobody_confirms(task, *generation);
                return Ok(());
            }
        };
        self.hold_all(None, task, *generation, born, from, &blocks)
    }

    /// What counts of a log here from `from` on, for an agent that has it from a frame. Who opens it still is waited
    /// for: it is not known yet what it finds.
    pub(in crate::edge) fn confirmed(
        &self,
        task: &TaskId,
        generation: Generation,
        from: LogOffset,
    ) -> Result<Reply> {
        if !self.has_opened(task, generation)? {
            return Ok(Reply::Withdrawn);
        }
        self.read(task, from).map(Reply::Blocks)
    }

    /// Whether an attempt was opened here, and not in vain. Who opens it still is waited for. The answer that granted
    /// it may be on its way, or lost: one that comes after this has said no is not gone on with.
    pub(super) fn has_opened(&self, task: &TaskId, generation: Generation) -> Result<bool> {
        let patience = self.peer_patience();
        let deadline = Instant::now() + patience;
        let grant_deadline = Instant::now() + GRANT_PATIENCE;
        loop {
            {
                let attempts = locked(&self.attempts);
                let is_opening = attempts.is_opening(&(task.clone(), generation));
                let mut store = locked(&self.store);
                if store.has_withdrawn(task, generation) {
                    return Ok(false);
                }
                if !is_opening && store.has_begun(task, generation) {
                    return Ok(true);
                }
                if !is_opening && Instant::now() >= grant_deadline {
                    store.withdraw(task, generation);
                    return Ok(false);
                }
            }
            if Instant::now() > deadline {
                let millis = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
                return Err(Error::Timeout { what: format!("opening {task}"), millis });
            }
            sleep(OPENING_PAUSE);
        }
    }

    // The in-flight log.

    /// Appends frames to the task's in-flight log.
    pub(in crate::edge) fn send(&self, session: &mut Session, frames: &[Bytes]) -> Result<()> {
        let (log, generation) = (session.task.in_flight(), session.grant.generation);
        if !session.sends {
            locked(&self.store).begin(&log, generation, session.grant.layout)?;
            session.sends = true;
        }
        for frame in frames {
            let from = locked(&self.store).end(&log).unwrap_or_default();
            self.hold(&log, generation, from, frame)?;
        }
        if self.frames_due(&log) {
            self.spill_due.give();
        }
        Ok(())
    }

    /// A piece of the frames that an earlier attempt sent, from whoever has them.
    pub(in crate::edge) fn resend(&self, session: &Session, from: LogOffset) -> Result<Reply> {
        let log = session.task.in_flight();
        let holder = session.grant.frames.as_ref();
        let holder = holder.ok_or_else(|| Error::CausalLogLost { task: session.task.clone() })?;
        self.read_at(holder, &log, from).map(Reply::Blocks)
    }

    /// The log was recorded with inputs that are gone.
    pub(in crate::edge) fn discard(&self, session: &Session) -> Result<()> {
        let (task, generation) = (session.task.clone(), session.grant.generation);
        tracing::warn!(%task, "the log of a task is discarded: what it was recorded with is lost");
        self.registrar.tell(&self.connections, Request::Discarded { task: task.clone(), generation })?;
        for agent in self.members_now().iter() {
            if agent.id == self.info.id {
                locked(&self.store).forget(&task, generation);
                continue;
            }
            let forget = Request::Forget { task: task.clone(), generation };
            if let Err(error) = self.connections.call(agent, &forget) {
                // The next open sees to it, and a consumer that meets it drops it.
                tracing::info!(%task, agent = %agent.addr, %error, "a discarded log could not be dropped");
            }
        }
        Ok(())
    }

    /// Sees that nobody has anything any more of a log that was discarded up to this attempt, before the next one records:
    /// what that has recorded may then be told from it by nobody.
    pub(super) fn forget_everywhere(
        &self,
        task: &TaskId,
        generation: Generation,
        agents: &[AgentInfo],
    ) -> Result<()> {
        let forget = Request::Forget { task: task.clone(), generation };
        let ask = |agent: &AgentInfo| match agent.id == self.info.id {
            true => Ok(self.dropped(task, generation)),
            false => self.connections.call(agent, &forget),
        };
        self.ask_all(agents, ask, |_| false)?;
        self.registrar.tell(&self.connections, Request::Forgotten { task: task.clone(), generation })
    }

    /// Drops what is here of a discarded log.
    pub(in crate::edge) fn dropped(&self, task: &TaskId, generation: Generation) -> Reply {
        locked(&self.store).forget(task, generation);
        Reply::Done
    }

    /// Whether the frames of an earlier attempt can be read where they are.
    pub(super) fn reach_frames(&self, grant: &mut Grant) -> bool {
        let log = grant.task.in_flight();
        // Without them the task replays. An attempt of which the registry has not heard may have begun to send anew.
        let fenced = |holder| self.fence(&log, grant, &holder, false).ok().flatten();
        let there = grant.frames.clone().and_then(fenced).filter(|copy| copy.whole);
        if there.is_none() {
            grant.frames = None;
        }
        there.is_some()
    }

    /// How many tasks sent to the session's task under this operator, where known.
    pub(in crate::edge) fn senders(&self, session: &Session, operator: String, token: u64) -> Result<Reply> {
        let task = TaskId { operator: operator.into(), ..session.task.clone() };
        self.registrar.tasks_of(&self.connections, &task, token).map(Reply::Tasks)
    }
}
