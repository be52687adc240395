//! Opening a task: fence every older attempt, take over what counts of its log, hold it here.
//!
//! No copy that the registry counts on is given up before the new generation's holders are told: if
//! this agent dies halfway, the next open finds what there was.

use std::collections::HashMap;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::asking::SILENCE_PAUSE;
use super::copying::channel;
use super::gathering::{Copies, Found};
use super::handler::{Handler, Session};
use super::publishing::Author;
use super::registrar::Asked;
use crate::agent::protocol::{AgentInfo, Ending, Grant, Left, OfRdd, OpenTask, Reply, Request};
use crate::edge::locked;
use crate::error::{Error, Result};
use crate::id::{AgentId, LogOffset, TaskId};
use crate::task::Summary;

/// How long one request of a worker waits for another stage: then it is to ask again, if it is still there.
const BUSY_PATIENCE: Duration = Duration::from_secs(1);
/// How soon the registry is asked again, at first and later on: many may wait.
const BUSY_PAUSE: Duration = Duration::from_millis(20);
const BUSY_PAUSE_MAX: Duration = Duration::from_millis(500);

/// Why a log did not come here.
enum NotMoved {
    /// This agent's copy could not be read.
    Unread(AgentId, Error),
    Failed(Error),
}

impl From<Error> for NotMoved {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl Handler {
    /// Opens a task for a worker, which is to ask again while that takes its time.
    pub(in crate::edge) fn open(
        &self,
        open: &OpenTask,
        sessions: &mut HashMap<u64, Session>,
    ) -> Result<Reply> {
        let Some(grant) = self.granted(open)? else { return Ok(Reply::NotYet) };
        let (task, generation) = (grant.task.clone(), grant.generation);
        let attempt = (task.clone(), generation);
        let is_withdrawn = locked(&self.store).has_withdrawn(&task, generation);
        let opened = match is_withdrawn {
            // The grant came so late that others were told of none, and go on with the attempt before.
            true => Err(Error::Timeout {
                what: format!("the grant to open {task}"),
                millis: self.config.io_timeout_ms,
            }),
            false => self.open_granted(open, grant, sessions),
        };
        if opened.is_err() {
            // Whoever was told to ask here goes on with the attempt before.
            locked(&self.store).withdraw(&task, generation);
        }
        locked(&self.attempts).opened(&attempt, opened.is_ok());
        if opened.is_err() {
            // Else others would wait for an attempt that never began.
            let (summary, ending) = (Summary::default(), Ending::default());
            let left = Left { by: self.info.id, lost: false, end: None };
            let closed = Request::Closed { task, generation, summary, ending, left };
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
        // An agent that began later has not heard of it.
        locked(&self.store).end_uses_below(&task.epoch_key(), grant.over);
        if let Some(generation) = grant.discarded {
            self.forget_everywhere(&task, generation, &grant.holders)?;
        }
        let (lost, copies) = self.take_over(&grant, open.inside)?;
        let has_frames = self.reach_frames(&mut grant);
        let mut session = Session::new(task.clone(), grant, lost, open.inside, copies);
        let end = locked(&self.store).end(&task).unwrap_or_default();
        session.found = end;
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

    /// `None` if whoever asks is to ask again: another stage is at work, or the driver reads what it has of the epoch, or is slow. If it has ended, so
    /// will this agent. If it is silent to this alone for as long as Spark bears the silence of anybody, it fails.
    fn granted(&self, open: &OpenTask) -> Result<Option<Grant>> {
        let (deadline, mut pause) = (Instant::now() + BUSY_PATIENCE, BUSY_PAUSE);
        loop {
            match self.granted_now(open) {
                Ok(Asked::Granted(grant)) => return Ok(Some(*grant)),
                Ok(Asked::Busy) if Instant::now() < deadline => {
                    sleep(pause);
                    pause = BUSY_PAUSE_MAX.min(2 * pause);
                }
                Ok(Asked::Busy) => {
                    tracing::info!(task = %open.task, stage = open.stage, "waits for another stage");
                    return Ok(None);
                }
                Ok(Asked::NotYet) => return Ok(None),
                Err(error) if error.is_silence() => {
                    self.bear_silence(open, &error)?;
                    sleep(SILENCE_PAUSE);
                    return Ok(None);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The driver has not answered an open.
    fn bear_silence(&self, open: &OpenTask, error: &Error) -> Result<()> {
        let millis = self.config.network_timeout_ms;
        let patience = Duration::from_millis(millis);
        let mut attempts = locked(&self.attempts);
        let silence = attempts.silence(open, patience);
        tracing::warn!(task = %open.task, ?silence, %error, "the driver does not answer an open");
        if silence < patience {
            return Ok(());
        }
        attempts.heard(open);
        let what = format!("the driver's answer to the opening of {}", open.task);
        Err(Error::Timeout { what, millis })
    }

    /// The grant of an attempt, which is being opened from then on.
    fn granted_now(&self, open: &OpenTask) -> Result<Asked> {
        locked(&self.attempts).asks(open);
        let (sent, commits_seen) = (self.next_request(), self.commits_seen());
        let used = self.use_now(open);
        let asked = self.with_recorded(open);
        let granted =
            self.registrar.grant(&self.connections, asked.as_ref().unwrap_or(open), sent, commits_seen, used);
        let mut attempts = locked(&self.attempts);
        if let Ok(Asked::Granted(grant)) = &granted {
            attempts.opens((grant.task.clone(), grant.generation));
        }
        attempts.answered(open);
        if !granted.as_ref().is_err_and(Error::is_silence) {
            attempts.heard(open);
        }
        granted
    }

    /// Of an RDD's partition with what other workers here have recorded so far, for which this one may wait.
    fn with_recorded(&self, open: &OpenTask) -> Option<OpenTask> {
        let of_rdd = open.of_rdd?;
        let here = locked(&self.attempts).at(&open.task);
        // Logs of other RDDs by the function are called by its name and a number.
        let is_of_function = |log: &&TaskId| {
            log.operator
                .strip_prefix(&*open.task.operator)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('#'))
        };
        let store = locked(&self.store);
        let ends = here.iter().filter(is_of_function).filter_map(|log| store.end(log));
        let recorded = ends.map(|end| end.0).sum();
        Some(OpenTask { of_rdd: Some(OfRdd { recorded, ..of_rdd }), ..open.clone() })
    }

    /// Finds the log and makes it this agent's, under the new generation: whether it is lost, and what copies there are.
    fn take_over(&self, grant: &Grant, inside: bool) -> Result<(bool, Copies)> {
        let (mut unread, mut failed) = (Vec::new(), None);
        loop {
            let (found, copies) = match grant.discarded {
                Some(_) => (Found::Nothing, Copies::new()),
                None => self.gather(&grant.task, grant, inside && grant.reopened, &unread)?,
            };
            let lost = matches!(found, Found::Lost);
            // What a holder cannot give now it may give when it is asked again.
            if let Some(error) = failed.filter(|_| lost) {
                return Err(error);
            }
            match self.move_here(grant, inside, &copies, &found) {
                Ok(()) => {}
                Err(NotMoved::Unread(holder, error)) => {
                    tracing::warn!(task = %grant.task, %holder, %error, "a copy cannot be read, others are looked for");
                    unread.push(holder);
                    failed = Some(error);
                    continue;
                }
                Err(NotMoved::Failed(error)) => return Err(error),
            }
            if !lost {
                locked(&self.store).complete(&grant.task, grant.generation);
            }
            return Ok((lost, copies));
        }
    }

    fn move_here(
        &self,
        grant: &Grant,
        inside: bool,
        copies: &Copies,
        found: &Found,
    ) -> std::result::Result<(), NotMoved> {
        let task = &grant.task;
        match found {
            Found::Here => Ok(locked(&self.store).reopen(task, grant.generation, grant.layout)?),
            Found::Nothing | Found::Lost => {
                Ok(locked(&self.store).begin(task, grant.generation, grant.layout)?)
            }
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
                // A shorter copy that counts is gone on with; any other is of another log. Where consumers have
                // absorbed it from frames, that is seen when both are compared.
                let own = copies.iter().find(|(id, _)| *id == self.info.id).map(|(_, length)| *length);
                if let Some(length) = own {
                    let from = if inside { LogOffset::START } else { length };
                    locked(&self.store).reopen(task, grant.generation, grant.layout)?;
                    match self.fetch(grant, holder, from, *end) {
                        Err(NotMoved::Failed(Error::LogFork { .. })) => {}
                        fetched => return fetched,
                    }
                }
                locked(&self.store).begin(task, grant.generation, grant.layout)?;
                self.fetch(grant, holder, LogOffset::START, *end)
            }
        }
    }

    /// Reads a holder's copy, piece by piece.
    fn fetch(
        &self,
        grant: &Grant,
        holder: &AgentInfo,
        mut from: LogOffset,
        end: LogOffset,
    ) -> std::result::Result<(), NotMoved> {
        let (task, generation) = (&grant.task, grant.generation);
        while from < end {
            let blocks = match self.read_at(holder, task, from) {
                Ok(blocks) if blocks.is_empty() => Err(Error::CausalLogLost { task: task.clone() }),
                // It has another log, and so has this agent.
                Err(error @ Error::LogFork { .. }) => return Err(NotMoved::Failed(error)),
                read => read,
            };
            let blocks = blocks.map_err(|error| NotMoved::Unread(holder.id, error))?;
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
        let agents = self.members(session.grant.members)?;
        let mut peers = self.peers(&session.task, &agents);
        peers.truncate(self.depth());
        Ok(peers)
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
        let Session { task, grant, .. } = session;
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
            // What a newer attempt has put in its place is not this one's to write.
            match locked(&self.store).generation(task) {
                Some(newer) if newer > grant.generation => {
                    return Err(Error::Fenced { task: task.clone(), newer, ours: grant.generation });
                }
                _ => {}
            }
            let mut pending = Vec::with_capacity(blocks.len());
            for block in &blocks {
                pending.extend(self.submit(task, Author::of(grant), from, block));
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
