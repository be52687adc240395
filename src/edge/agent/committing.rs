//! Output commit of what was absorbed from frames: before something that depends on it becomes visible, it is
//! compared with what counts, stands on other agents and in this agent's segment, and the registry knows.
//!
//! A consumer may have had a frame in hand while its sender was lost and opened again. Agents that were asked then
//! take such a frame only if the new attempt has the same; but that one may be gone by now, or nobody had told this
//! agent. So the registry is asked which attempt counts, and what others have of its log is read and compared.
//! What then goes to the segment is written in that attempt's name, so that it overrules what older ones wrote.

use std::cell::Cell;
use std::collections::VecDeque;

use bytes::Bytes;

use super::copying::Logs;
use super::handler::{Handler, Session, unexpected};
use super::publishing::Author;
use crate::agent::copying::Copying;
use crate::agent::protocol::{AgentInfo, Beginning, Counting, Reply, Request, Sharer};
use crate::agent::store::Taken;
use crate::edge::disk::segment::Pending;
use crate::edge::locked;
use crate::error::{Error, Result};
use crate::id::{Generation, LogOffset, TaskId};

/// An absorbed log, as it is to be shared.
struct Shared {
    task: TaskId,
    version: Option<u64>,
    end: LogOffset,
    beginning: Beginning,
    vouched: (Generation, LogOffset),
}

/// What one agent says of it.
enum Answer {
    Same,
    /// It has no more than the beginning.
    SoFar,
    /// From there on.
    Other(LogOffset),
    /// Its attempt came to nothing.
    Withdrawn,
}

/// The blocks of an absorbed log, read as they are compared.
#[derive(Default)]
struct Ours {
    read: VecDeque<Bytes>,
}

impl Ours {
    /// Whether the block that starts at `from`, the next, is this one. What cannot be read may be.
    fn next_is(&mut self, handler: &Handler, log: &Shared, from: LogOffset, block: &Bytes) -> Result<bool> {
        if self.read.is_empty() {
            self.read = match handler.read(&log.task, from) {
                // It was dropped, or has made way for another.
                Err(Error::CausalLogLost { .. } | Error::LogFork { .. }) => return Ok(false),
                read => read?.into(),
            };
        }
        Ok(self.read.pop_front().as_ref() == Some(block))
    }
}

/// What came of comparing it with what counts.
enum Compared {
    Same,
    /// From there on.
    Other(LogOffset),
    /// Who had it is gone.
    Nobody,
}

/// A block of an absorbed log on its way to this agent's segment.
struct Writing {
    task: TaskId,
    version: Option<u64>,
    index: usize,
    written: Pending,
}

impl Handler {
    /// Output commit of what the session has absorbed: returns when it is stable.
    pub(in crate::edge) fn share(&self, session: &Session) -> Result<()> {
        let epoch = session.task.epoch_key();
        let _turn = self.sharing.take(epoch.clone());
        self.has_what_it_absorbed(session)?;
        // Not for the sake of others: what they have taken in may be of a log that nobody can be asked about now.
        let tasks = locked(&self.store).take_fresh(&epoch, |task| session.absorbed.contains_key(task));
        if tasks.is_empty() {
            return Ok(());
        }
        // What was shared is what was found now, be it that it was compared once more: it must be what the session took.
        let shared = self.share_all(session, &tasks).and_then(|()| self.has_what_it_absorbed(session));
        if shared.is_err() {
            locked(&self.store).not_shared(&epoch, tasks);
        }
        shared
    }

    /// That no log which the session has absorbed was replaced by another since: it was found to be of another run,
    /// perhaps for another task's sake.
    fn has_what_it_absorbed(&self, session: &Session) -> Result<()> {
        let store = locked(&self.store);
        let stands =
            |task: &TaskId, taken: &Option<Taken>| taken.is_some_and(|taken| store.has(task, &taken));
        let replaced = session.absorbed.iter().find(|(task, taken)| !stands(task, taken));
        match replaced {
            Some((task, _)) => Err(Error::StaleFrame { upstream: task.clone() }),
            None => Ok(()),
        }
    }

    fn share_all(&self, session: &Session, tasks: &[TaskId]) -> Result<()> {
        let by = Sharer { agent: self.info.id, generation: session.grant.generation };
        let logs = self.compared(by, tasks)?;
        let pending = self.persist_copies(&logs, session.grant.used)?;
        // What its sender has published stands where it is wanted, however much of it is here.
        let ride = logs.iter().filter(|(_, counting)| !counting.whole).map(|(log, _)| log.task.clone());
        let ride: Vec<TaskId> = ride.collect();
        let mut copying = Copying::new(self.depth(), self.patience());
        if !ride.is_empty() {
            self.see_that(Logs::absorbed(&session.task, &ride, session.grant.generation), &mut copying)?;
        }
        let peers = copying.holders().iter().map(|peer| peer.id);
        let holders = peers.chain([self.info.id]).collect();
        for Writing { task, version, index, written } in pending {
            let place = written.wait()?;
            locked(&self.store).durable(&task, version, index, place);
        }
        // What was written and sent is what was compared.
        if let Some((log, _)) =
            logs.iter().find(|(log, _)| locked(&self.store).version(&log.task) != log.version)
        {
            return Err(Error::StaleFrame { upstream: log.task.clone() });
        }
        let visible =
            logs.into_iter().map(|(log, counting)| (log.task, counting.generation, log.beginning)).collect();
        match self.registrar.tell(&self.connections, Request::Visible { tasks: visible, holders, by }) {
            // Whoever opened one of them meanwhile may have found another: what counts now is another question.
            Err(Error::Fenced { .. }) => self.share_all(session, tasks),
            told => told,
        }
    }

    // What counts.

    /// Compares what is here of some logs with what counts; with the attempt that each is a part of.
    fn compared(&self, by: Sharer, tasks: &[TaskId]) -> Result<Vec<(Shared, Counting)>> {
        // Before it is asked what counts: whoever opens a task after that is told of what is here.
        let shared: Vec<Shared> = {
            let store = locked(&self.store);
            let of = |task: &TaskId| {
                let (version, vouched) = (store.version(task), store.vouched(task));
                let end = store.end(task)?;
                let beginning = store.beginning(task, end)?;
                Some(Shared { task: task.clone(), version, end, beginning, vouched })
            };
            tasks.iter().filter_map(of).collect()
        };
        let vouched = |log: &Shared| match log.vouched {
            (by, upto) if upto >= log.end => by,
            _ => Generation::NONE,
        };
        let asked = shared.iter().map(|log| (log.task.clone(), vouched(log))).collect();
        let counting = self.registrar.counting(&self.connections, by, asked)?;
        if counting.len() != shared.len() {
            return Err(unexpected());
        }
        let (mut logs, mut stale) = (Vec::with_capacity(shared.len()), None);
        for (log, counting) in shared.into_iter().zip(counting) {
            match self.compare(&log, &counting)? {
                Compared::Same => {}
                // What counts now is another question.
                Compared::Nobody => return self.compared(by, tasks),
                // The others, too, so that the next try has none of them.
                Compared::Other(at) => {
                    locked(&self.store).drop_stale(&log.task, log.version, at);
                    stale = Some(log.task);
                    continue;
                }
            }
            locked(&self.store).vouch(&log.task, log.version, counting.generation, log.end);
            logs.push((log, counting));
        }
        match stale {
            Some(upstream) => Err(Error::StaleFrame { upstream }),
            None => Ok(logs),
        }
    }

    /// Compares a log with what counts of it.
    fn compare(&self, log: &Shared, counting: &Counting) -> Result<Compared> {
        let Counting { generation, newest, holders, whole, published, .. } = counting;
        let from = match log.vouched {
            (by, upto) if by == *generation => upto,
            _ => LogOffset::START,
        };
        let is_here = |agent: &AgentInfo| agent.id == self.info.id;
        if let Some((by, newest)) = newest {
            return self.compare_with(log, *by, newest, from);
        }
        if *whole && holders.iter().any(is_here) {
            return Ok(Compared::Same);
        }
        let others: Vec<AgentInfo> = holders.iter().filter(|holder| !is_here(holder)).cloned().collect();
        let read = |from| Request::Read { task: log.task.clone(), from, whole: *whole, newest: None };
        // Who has no more than the beginning cannot speak for another who has more.
        let (agrees, failed) = (Cell::new(holders.iter().any(is_here)), Cell::new(None));
        let asked = |holder: &AgentInfo| match self.is_same(log, holder, from, *whole, read) {
            Ok(Answer::SoFar) => {
                agrees.set(true);
                Err(Error::CausalLogLost { task: log.task.clone() })
            }
            Err(error) if !error.is_silence() && !matches!(error, Error::CausalLogLost { .. }) => {
                failed.set(Some(error.clone()));
                Err(error)
            }
            answer => answer,
        };
        let answer = self.first_of(&others, asked)?;
        // Somebody has something, and nobody can read it.
        if let Some(error) = failed.take().filter(|_| answer.is_none()) {
            return Err(error);
        }
        Ok(match answer {
            Some(Answer::Other(at)) => Compared::Other(at),
            Some(_) => Compared::Same,
            // Whoever had more may be gone: all that was visible stands in the folder, if there is one.
            None if *published && (self.disk.has_segments() || !agrees.get()) => {
                self.compare_with_folder(log, *whole)?
            }
            // Nothing else counts.
            None => Compared::Same,
        })
    }

    /// Compares a log with that of the newest attempt.
    fn compare_with(
        &self,
        log: &Shared,
        by: Generation,
        newest: &AgentInfo,
        from: LogOffset,
    ) -> Result<Compared> {
        let withdrawn = || {
            // The attempt before it counts.
            let told = Request::Withdrawn { task: log.task.clone(), generation: by };
            self.registrar.tell(&self.connections, told).map(|()| Compared::Nobody)
        };
        if newest.id == self.info.id {
            let opened = self.first_of(std::slice::from_ref(newest), |_| self.has_opened(&log.task, by))?;
            return if opened == Some(true) { Ok(Compared::Same) } else { withdrawn() };
        }
        let confirm = |from| Request::Confirm { task: log.task.clone(), generation: by, from };
        let asked = |newest: &AgentInfo| match self.is_same(log, newest, from, true, confirm) {
            Err(error) if error.is_silence() => Err(error),
            // What it cannot tell is not decided.
            answer => Ok(answer),
        };
        match self.first_of(std::slice::from_ref(newest), asked)? {
            Some(Ok(Answer::Same)) => Ok(Compared::Same),
            Some(Ok(Answer::Withdrawn)) => withdrawn(),
            Some(Ok(Answer::Other(at))) => Ok(Compared::Other(at)),
            Some(Ok(Answer::SoFar) | Err(Error::CausalLogLost { .. })) => Ok(Compared::Other(from)),
            Some(Err(error)) => Err(error),
            // It is dead.
            None => Ok(Compared::Nobody),
        }
    }

    /// Compares a log with what stands in the checkpoint folder: nobody else has it any more.
    fn compare_with_folder(&self, log: &Shared, has_all: bool) -> Result<Compared> {
        let lost = || Error::CausalLogLost { task: log.task.clone() };
        let rescued = self.rescue(&log.task)?.ok_or_else(lost)?;
        let mut ours = Ours::default();
        let mut from = LogOffset::START;
        loop {
            let blocks = rescued.piece(from)?;
            if blocks.is_empty() {
                return Ok(if has_all && from < log.end { Compared::Other(from) } else { Compared::Same });
            }
            for block in blocks {
                if from >= log.end {
                    return Ok(Compared::Same);
                }
                if !ours.next_is(self, log, from, &block)? {
                    return Ok(Compared::Other(from));
                }
                from = from.plus(block.len() as u64);
            }
        }
    }

    /// Whether an agent has what is here; if it is not said to have all, only as far as it has something.
    fn is_same(
        &self,
        log: &Shared,
        holder: &AgentInfo,
        mut from: LogOffset,
        has_all: bool,
        read: impl Fn(LogOffset) -> Request,
    ) -> Result<Answer> {
        let mut ours = Ours::default();
        while from < log.end {
            let blocks = match self.connections.call(holder, &read(from)) {
                Ok(Reply::Blocks(blocks)) => blocks,
                Ok(Reply::Withdrawn) => return Ok(Answer::Withdrawn),
                Ok(_) => return Err(unexpected()),
                Err(Error::LogFork { .. }) => return Ok(Answer::Other(from)),
                Err(error) => return Err(error),
            };
            if blocks.is_empty() {
                return Ok(if has_all { Answer::Other(from) } else { Answer::SoFar });
            }
            for block in blocks {
                if from >= log.end {
                    break;
                }
                if !ours.next_is(self, log, from, &block)? {
                    return Ok(Answer::Other(from));
                }
                from = from.plus(block.len() as u64);
            }
        }
        Ok(Answer::Same)
    }

    // The segment.

    /// Queues what this agent's segment of this use of the epoch's name lacks of these logs.
    fn persist_copies(&self, logs: &[(Shared, Counting)], used: u64) -> Result<Vec<Writing>> {
        let mut pending = Vec::new();
        if !self.disk.has_segments() {
            return Ok(pending);
        }
        for (Shared { task, version, end, .. }, counting) in logs {
            if counting.whole || locked(&self.store).is_durable(task) {
                continue;
            }
            let author = Author { generation: counting.generation, layout: counting.layout, used };
            let (mut from, mut index) = (LogOffset::START, 0);
            while from < *end {
                let blocks = self.read(task, from)?;
                // Another than was compared must not stand in the folder in its name, and is found out below.
                if blocks.is_empty() || locked(&self.store).version(task) != *version {
                    break;
                }
                for block in blocks {
                    if !locked(&self.store).is_block_durable(task, index) {
                        let written = self.submit(task, author, from, &block);
                        let (task, version) = (task.clone(), *version);
                        let writing = |written| Writing { task, version, index, written };
                        pending.extend(written.map(writing));
                    }
                    from = from.plus(block.len() as u64);
                    index += 1;
                }
            }
        }
        Ok(pending)
    }
}

#[cfg(test)]
mod tests;
