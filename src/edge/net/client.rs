//! A worker's connection to its agent: blocking, without threads, of one process.
//!
//! Replies come in the order of requests, so publishing can run ahead: `send` writes and goes on, `wait`
//! reads the replies up to its own.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;

use super::messages::Connection;
use crate::agent::protocol::{ClusterStats, Ending, OpenTask, Opened, Reply, Request};
use crate::agent::state;
use crate::agent::state::messages::{AboutState, AboutTimers, FirstDue};
use crate::agent::values::messages::{AboutValues, Found};
use crate::config::SessionConfig;
use crate::error::{Error, Result};
use crate::id::{EpochKey, LogOffset, TaskId};
use crate::task::{POOL_QUESTIONS_MAX, PoolQuestion, PoolQuestions, PoolRows, Summary};

/// An open waits for other agents, one after the other; it may take this many time-outs.
const OPEN_PATIENCE: u32 = 6;
/// Requests under way at most. An agent whose answers nobody reads can't write them, and then gives the
/// connection up; this many answers always fit into a socket's buffer.
const AHEAD_MAX: u64 = 64;

/// A publish under way.
#[derive(Debug)]
#[must_use = "nothing is stable before it was waited for"]
pub struct Ticket(u64);

/// A connection to an agent.
#[derive(Debug)]
pub struct Client {
    connection: Connection,
    owner: u32,
    sent: u64,
    answered: u64,
    /// Failures of publishes whose ticket was not waited for yet.
    failed: HashMap<u64, Error>,
    /// Replies to [`Client::values_later`] whose ticket was not waited for yet.
    found: HashMap<u64, Found>,
    sessions: HashMap<TaskId, u64>,
}

impl Client {
    /// Connects to the agent behind `socket`.
    ///
    /// # Errors
    /// [`Error::AgentUnreachable`], [`Error::AuthRefused`], [`Error::Timeout`].
    pub fn connect(config: &SessionConfig, socket: &Path) -> Result<Self> {
        let timeout = Duration::from_millis(config.io_timeout_ms);
        let connection = Connection::unix(socket, &config.secret, timeout)?;
        // From here on an answer may wait for other agents in turn.
        connection.stream().set_timeout(Some(timeout * OPEN_PATIENCE))?;
        Ok(Self {
            connection,
            owner: std::process::id(),
            sent: 0,
            answered: 0,
            failed: HashMap::new(),
            found: HashMap::new(),
            sessions: HashMap::new(),
        })
    }

    /// Process that made the connection.
    #[must_use]
    pub const fn pid(&self) -> u32 {
        self.owner
    }

    /// The connection's file descriptor.
    #[must_use]
    pub fn descriptor(&self) -> RawFd {
        self.connection.stream().as_raw_fd()
    }

    fn connection(&mut self) -> Result<&mut Connection> {
        match (self.owner, std::process::id()) {
            (owner, user) if owner == user => Ok(&mut self.connection),
            (owner, user) => Err(Error::ForkedProcess { owner, user }),
        }
    }

    fn post(&mut self, request: &Request) -> Result<u64> {
        self.connection()?;
        while self.sent - self.answered >= AHEAD_MAX {
            self.note_reply()?;
        }
        self.connection()?.write(request)?;
        self.sent += 1;
        Ok(self.sent)
    }

    /// Reads replies up to number `until`; that one.
    fn reply(&mut self, until: u64) -> Result<Reply> {
        while self.answered + 1 < until {
            self.note_reply()?;
        }
        match self.next_reply()? {
            Reply::Failed(error) => Err(error),
            reply => Ok(reply),
        }
    }

    /// Reads the reply to what was sent and may be waited for later.
    fn note_reply(&mut self) -> Result<()> {
        match self.next_reply()? {
            Reply::Failed(error) => drop(self.failed.insert(self.answered, error)),
            Reply::Values(found) => drop(self.found.insert(self.answered, found)),
            _ => {}
        }
        Ok(())
    }

    fn next_reply(&mut self) -> Result<Reply> {
        loop {
            match self.connection()?.read()? {
                // It may take as long again.
                Reply::Working => {}
                reply => {
                    self.answered += 1;
                    return Ok(reply);
                }
            }
        }
    }

    fn ask(&mut self, request: &Request) -> Result<Reply> {
        let number = self.post(request)?;
        self.reply(number)
    }

    /// Opens a task and reads its log.
    ///
    /// # Errors
    /// [`Error::OperatorUsedTwice`], or whatever kept the agent from opening it.
    pub fn open(&mut self, open: OpenTask) -> Result<Opened> {
        let asked = open.task.clone();
        let request = Request::Open(open);
        let opened = loop {
            match self.ask(&request)? {
                Reply::NotYet => {}
                opened => break opened,
            }
        };
        let Reply::Opened { task, session, generation, end, recording, lost, tasks, has_frames } = opened
        else {
            return Err(unexpected());
        };
        self.sessions.insert(asked, session);
        self.sessions.insert(task.clone(), session);
        let mut prior = Vec::new();
        let mut from = LogOffset::START;
        while from < end {
            let Reply::Blocks(blocks) = self.ask(&Request::ReadSession { session, from })? else {
                return Err(unexpected());
            };
            if blocks.is_empty() {
                return Err(Error::Protocol { what: format!("the log ends at {from}, not {end}") });
            }
            from = from.plus(blocks.iter().map(|block| block.len() as u64).sum());
            prior.extend(blocks);
        }
        Ok(Opened { task, session, generation, prior, recording, lost, tasks, has_frames })
    }

    /// Sends a block to be appended; does not wait.
    ///
    /// # Errors
    /// [`Error::AgentUnreachable`], [`Error::Timeout`].
    pub fn send(&mut self, session: u64, block: Bytes) -> Result<Ticket> {
        Ok(Ticket(self.post(&Request::Append { session, block })?))
    }

    /// Waits until a block is stable.
    ///
    /// # Errors
    /// [`Error::Fenced`] if a newer attempt has taken over, or whatever kept it from being stable.
    pub fn wait(&mut self, ticket: Ticket) -> Result<()> {
        if ticket.0 <= self.answered {
            return self.failed.remove(&ticket.0).map_or(Ok(()), Err);
        }
        match self.reply(ticket.0)? {
            Reply::Done => Ok(()),
            _ => Err(unexpected()),
        }
    }

    /// This attempt is over.
    ///
    /// # Errors
    /// [`Error::AgentUnreachable`], [`Error::Timeout`].
    pub fn close(&mut self, session: u64, summary: Summary, ending: Ending) -> Result<()> {
        self.sessions.retain(|_, open| *open != session);
        self.ask(&Request::Close { session, summary, ending }).map(drop)
    }

    /// Sends anything that is answered with nothing but success; does not wait.
    ///
    /// # Errors
    /// [`Error::AgentUnreachable`], [`Error::Timeout`].
    pub fn start(&mut self, request: &Request) -> Result<Ticket> {
        Ok(Ticket(self.post(request)?))
    }

    /// A piece of the frames that an earlier attempt sent; empty at their end.
    ///
    /// # Errors
    /// [`Error::AgentUnreachable`] if their agent has gone, [`Error::CausalLogLost`].
    pub fn resend(&mut self, session: u64, from: LogOffset) -> Result<Vec<Bytes>> {
        match self.ask(&Request::Resend { session, from })? {
            Reply::Blocks(frames) => Ok(frames),
            _ => Err(unexpected()),
        }
    }

    /// How many tasks of an operator were opened in an open task's epoch, where known.
    ///
    /// # Errors
    /// [`Error::AgentUnreachable`], [`Error::Timeout`].
    pub fn senders(&mut self, session: u64, operator: String, token: u64) -> Result<Option<u32>> {
        match self.ask(&Request::Senders { session, operator, token })? {
            Reply::Tasks(tasks) => Ok(tasks),
            _ => Err(unexpected()),
        }
    }

    /// Says that a task's log was recorded with inputs that are gone.
    ///
    /// # Errors
    /// [`Error::CausalLogLost`] if something visible depends on it.
    pub fn discard(&mut self, session: u64) -> Result<()> {
        self.ask(&Request::Discard { session }).map(drop)
    }

    /// Rows that other partitions of an open task's epoch recorded under another layout: answers to the first
    /// of the questions, at least to one. The agent reads all their logs before it answers the first.
    ///
    /// # Errors
    /// [`Error::CausalLogLost`] if one of them can be read nowhere.
    pub fn pool(
        &mut self,
        task: &TaskId,
        questions: &[PoolQuestion],
        checks_ambiguity: bool,
    ) -> Result<PoolRows> {
        let session = self.sessions.get(task).copied();
        let session = session.ok_or_else(|| Error::Misuse { what: format!("{task} is not open") })?;
        let questions = questions.get(..POOL_QUESTIONS_MAX).unwrap_or(questions);
        let request = Request::Pool { session, questions: PoolQuestions::new(questions), checks_ambiguity };
        loop {
            match self.ask(&request)? {
                Reply::Pool(rows) => return Ok(rows),
                Reply::NotYet => {}
                _ => return Err(unexpected()),
            }
        }
    }

    /// Reserves permits of a rate limit; nanoseconds until the first.
    ///
    /// # Errors
    /// [`Error::AgentUnreachable`], [`Error::Timeout`].
    pub fn permits(&mut self, name: String, interval_ns: u64, count: u32) -> Result<u64> {
        match self.ask(&Request::Permits { name, interval_ns, count })? {
            Reply::PermitsFrom(wait_ns) => Ok(wait_ns),
            _ => Err(unexpected()),
        }
    }

    /// The number of an epoch's use: another one each time its name is used.
    ///
    /// # Errors
    /// [`Error::AgentUnreachable`], [`Error::Timeout`], or why the epoch cannot be used.
    pub fn use_of(&mut self, epoch: EpochKey) -> Result<u64> {
        match self.ask(&Request::UseOf(epoch))? {
            Reply::UseIs(used) => Ok(used),
            _ => Err(unexpected()),
        }
    }

    /// Answers that all tasks of an epoch share.
    ///
    /// # Errors
    /// [`Error::AgentUnreachable`], [`Error::Timeout`], or whatever kept an answer from being recorded.
    pub fn values(&mut self, about: AboutValues) -> Result<Found> {
        match self.ask(&Request::Values(Box::new(about)))? {
            Reply::Values(found) => Ok(found),
            _ => Err(unexpected()),
        }
    }

    /// Sends what [`Self::values`] does, and goes on.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub fn values_later(&mut self, about: AboutValues) -> Result<Ticket> {
        self.start(&Request::Values(Box::new(about)))
    }

    /// Waits for the reply to [`Self::values_later`].
    ///
    /// # Errors
    /// As [`Self::values`].
    pub fn found(&mut self, Ticket(number): Ticket) -> Result<Found> {
        if number > self.answered {
            return match self.reply(number)? {
                Reply::Values(found) => Ok(found),
                _ => Err(unexpected()),
            };
        }
        if let Some(error) = self.failed.remove(&number) {
            return Err(error);
        }
        self.found.remove(&number).ok_or_else(unexpected)
    }

    /// About the state of an open task.
    ///
    /// # Errors
    /// [`Error::AgentUnreachable`], [`Error::Timeout`], or whatever kept the state from being read or written.
    pub fn state(&mut self, about: AboutState) -> Result<state::messages::Found> {
        let request = Request::State(Box::new(about));
        loop {
            match self.ask(&request)? {
                Reply::State(found) => return Ok(found),
                Reply::NotYet => {}
                _ => return Err(unexpected()),
            }
        }
    }

    /// The first timer that is due, if the next batch is to find one; asked of the driver's agent.
    ///
    /// # Errors
    /// [`Error::AgentUnreachable`], [`Error::Timeout`], or whatever keeps the state from being found.
    pub fn timer_due(&mut self, about: AboutTimers) -> Result<Option<FirstDue>> {
        match self.ask(&Request::Timers(Box::new(about)))? {
            Reply::Timers(due) => Ok(due),
            _ => Err(unexpected()),
        }
    }

    /// What all agents hold; asked of the driver's agent.
    ///
    /// # Errors
    /// [`Error::AgentUnreachable`], [`Error::Timeout`].
    pub fn cluster_stats(&mut self) -> Result<ClusterStats> {
        match self.ask(&Request::ClusterStats)? {
            Reply::ClusterStats(stats) => Ok(stats),
            _ => Err(unexpected()),
        }
    }
}

fn unexpected() -> Error {
    Error::Protocol { what: "an answer to another question".into() }
}
