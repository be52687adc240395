//! What an agent does for each request; opening and publishing have files of their own.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;

use super::attempts::Attempts;
use super::claiming::Claims;
use super::gathering::Copies;
use super::pooling::{PoolView, Pools};
use super::registrar::{LocalRegistry, Registrar};
use super::state::{StateTask, States};
use super::turns::Turns;
use super::values::Tables;
use crate::agent::members::Members;
use crate::agent::protocol::{AgentInfo, AgentStats, Commit, Ending, Grant, Left, Reply, Request, Sent};
use crate::agent::store::{Store, Taken};
use crate::causal_log::BlockRef;
use crate::config::SessionConfig;
use crate::edge::disk::Disk;
use crate::edge::locked;
use crate::edge::net::connections::Connections;
use crate::edge::net::signal::Signal;
use crate::error::{Error, Result};
use crate::id::{ChannelId, Epoch, EpochKey, Generation, LogOffset, TaskId};

/// One open task of a worker.
pub(in crate::edge) struct Session {
    pub(in crate::edge) task: TaskId,
    pub(in crate::edge) grant: Grant,
    /// Agents that hold copies, besides this one.
    pub(in crate::edge) peers: Vec<AgentInfo>,
    /// Whether its blocks are copied one by one: what rides in frames is not, unless it is too much.
    pub(super) is_publishing: bool,
    /// Whether the registry knows who holds the log of this generation.
    pub(in crate::edge) published: bool,
    pub(in crate::edge) lost: bool,
    /// The first failure of an append: those after it fail alike.
    pub(in crate::edge) failed: Option<Error>,
    /// Whether its determinants travel in its frames.
    pub(in crate::edge) inside: bool,
    /// Copies of its log that were found when it was opened, until this agent publishes it.
    pub(super) copies: Copies,
    /// How much of it was found then.
    pub(super) found: LogOffset,
    /// Whether its in-flight log was begun.
    pub(in crate::edge) sends: bool,
    /// Tasks whose logs it has absorbed, and what of each.
    pub(in crate::edge) absorbed: BTreeMap<TaskId, Option<Taken>>,
    /// Rows of other partitions, since they were asked for.
    pub(super) pool: Option<PoolView>,
    /// The task's state, since it was begun.
    pub(super) state: Option<Box<StateTask>>,
}

impl Session {
    pub(super) fn new(task: TaskId, grant: Grant, lost: bool, inside: bool, copies: Copies) -> Self {
        let (peers, absorbed, pool, state) = (Vec::new(), BTreeMap::new(), None, None);
        let (is_publishing, published, failed, sends) = (false, false, None, false);
        Self {
            task,
            grant,
            peers,
            is_publishing,
            published,
            lost,
            failed,
            inside,
            copies,
            found: LogOffset::START,
            sends,
            absorbed,
            pool,
            state,
        }
    }
}

/// An agent without its listeners.
pub(in crate::edge) struct Handler {
    pub(in crate::edge) config: SessionConfig,
    pub(in crate::edge) info: AgentInfo,
    pub(in crate::edge) store: Mutex<Store>,
    /// Held by whoever spills.
    pub(in crate::edge) spilling: Mutex<()>,
    /// Taken by whoever shares absorbed logs: nobody goes ahead while another of the epoch still waits for
    /// peers.
    pub(in crate::edge) sharing: Turns<EpochKey>,
    /// Taken by whoever sends a log to a peer: what is on its way cannot be overtaken, nor sent twice.
    pub(super) sending: Turns<(EpochKey, ChannelId)>,
    /// Set when frames may be due for disk.
    pub(in crate::edge) spill_due: Signal,
    /// The epoch that sent frames last.
    pub(in crate::edge) newest_epoch: Mutex<Option<EpochKey>>,
    pub(in crate::edge) disk: Disk,
    pub(in crate::edge) connections: Connections,
    pub(in crate::edge) registrar: Registrar,
    /// Spark's name of the executor beside which this agent stands; empty if there is none.
    pub(super) executor: String,
    pub(super) tables: Tables,
    pub(super) claims: Claims,
    pub(super) pools: Pools,
    pub(super) states: States,
    pub(in crate::edge) sent_bytes: AtomicU64,
    /// Given when there may be copies to make.
    pub(super) repair_due: Signal,
    /// Whether its executor has ended: it takes no copies of what was absorbed any more.
    pub(super) is_leaving: AtomicBool,
    /// Attempts that are asked for, being opened or open here.
    pub(super) attempts: Mutex<Attempts>,
    /// Agents that are alive, as far as this one was told.
    members: Mutex<Members>,
    /// Commits carried out here, of all there were.
    commits_seen: Mutex<u64>,
    sessions: AtomicU64,
    requests: AtomicU64,
}

impl Handler {
    pub(in crate::edge) fn new(
        config: SessionConfig,
        info: AgentInfo,
        disk: Disk,
        registrar: Registrar,
        executor: String,
    ) -> Self {
        let timeout = Duration::from_millis(config.io_timeout_ms);
        let states = States::new(&config, disk.state_files());
        Self {
            store: Mutex::new(Store::new(config.memory_bytes)),
            spilling: Mutex::default(),
            sharing: Turns::default(),
            sending: Turns::default(),
            spill_due: Signal::default(),
            newest_epoch: Mutex::default(),
            connections: Connections::new(config.credentials(), timeout),
            config,
            info,
            disk,
            registrar,
            executor,
            tables: Tables::default(),
            claims: Claims::default(),
            pools: Pools::default(),
            states,
            sent_bytes: AtomicU64::new(0),
            repair_due: Signal::default(),
            is_leaving: AtomicBool::new(false),
            attempts: Mutex::default(),
            members: Mutex::default(),
            commits_seen: Mutex::default(),
            sessions: AtomicU64::new(0),
            requests: AtomicU64::new(0),
        }
    }

    /// A number for a request that must not be carried out late.
    pub(super) fn next_request(&self) -> Sent {
        Sent { by: self.info.id, number: self.requests.fetch_add(1, Ordering::Relaxed) }
    }

    /// A number for a new session.
    pub(in crate::edge) fn next_session(&self) -> u64 {
        self.sessions.fetch_add(1, Ordering::Relaxed) + 1
    }

    // Other agents.

    /// Agents that are alive, as of this change at least. Who knows less would take others for no agents, and
    /// make fewer copies than are wanted.
    pub(super) fn members(&self, version: u64) -> Result<Arc<[AgentInfo]>> {
        if locked(&self.members).version() < version {
            self.ask_members()?;
        }
        Ok(locked(&self.members).all())
    }

    /// Agents that are alive now, or were when the registry answered last.
    pub(super) fn members_now(&self) -> Arc<[AgentInfo]> {
        if let Err(error) = self.ask_members() {
            tracing::info!(%error, "the registry does not tell who is alive");
        }
        locked(&self.members).all()
    }

    /// Number of the last change among them that this agent has heard of.
    pub(super) fn members_known(&self) -> u64 {
        locked(&self.members).version()
    }

    fn ask_members(&self) -> Result<()> {
        let seen = locked(&self.members).version();
        let news = self.registrar.news(&self.connections, seen)?;
        locked(&self.members).hear(news);
        Ok(())
    }

    /// Waits for what threads do for those who asked.
    pub(in crate::edge) fn finish_works(&self) {
        self.claims.finish();
        self.tables.finish();
    }

    // Closing.

    pub(in crate::edge) fn close(
        &self,
        session: &Session,
        summary: crate::task::Summary,
        ending: Ending,
    ) -> Result<()> {
        // Told once: whoever waits for it asks whether it is here.
        locked(&self.attempts).over(&(session.task.clone(), session.grant.generation));
        // Before anybody is told: nobody else gets at the store while it is held.
        let end = locked(&self.store).end(&session.task);
        let left = Left { by: self.info.id, lost: session.lost, end };
        let (task, generation) = (session.task.clone(), session.grant.generation);
        let frames = (ending.done && ending.has_frames).then(|| task.in_flight());
        let closed = Request::Closed { task, generation, summary, ending, left };
        let told = self.registrar.tell(&self.connections, closed);
        if told.is_err() {
            self.keep_refusals();
        } else if let Some(frames) = frames {
            // Only now: the registry knows by whom, and as which of how many tasks, they were sent.
            locked(&self.store).complete(&frames, generation);
        }
        told
    }

    // Reading.

    pub(in crate::edge) fn read_session(&self, session: &Session, from: LogOffset) -> Result<Reply> {
        self.read(&session.task, from).map(Reply::Blocks)
    }

    /// One piece of a log that is here.
    pub(in crate::edge) fn read(&self, task: &TaskId, from: LogOffset) -> Result<Vec<Bytes>> {
        let (piece, version) = {
            let store = locked(&self.store);
            (store.piece(task, from), store.version(task).unwrap_or_default())
        };
        let piece = piece.ok_or_else(|| Error::CausalLogLost { task: task.clone() })?;
        if piece.first().is_some_and(|first| first.offset != from) {
            // Whoever asks has another log, whose blocks end elsewhere.
            return Err(Error::LogFork { at: from });
        }
        self.read_blocks(task, version, &piece)
    }

    /// Blocks of this version of a log. If one cannot be read, this is no copy of it from now on: whoever opens the task next
    /// asks others.
    pub(super) fn read_blocks(&self, task: &TaskId, version: u64, blocks: &[BlockRef]) -> Result<Vec<Bytes>> {
        self.disk.read(blocks).inspect_err(|error| {
            tracing::warn!(%task, %error, "a log that is here cannot be read");
            locked(&self.store).spoil(task, version);
        })
    }

    // For other agents.

    /// One piece of a log that is here; with `whole`, only of a copy that is not being made. With `newest`, `None` if a later
    /// attempt than that was opened.
    pub(in crate::edge) fn read_copy(
        &self,
        task: &TaskId,
        from: LogOffset,
        whole: bool,
        newest: Option<Generation>,
    ) -> Result<Option<Vec<Bytes>>> {
        if whole && !locked(&self.store).is_whole(task) {
            return Err(Error::CausalLogLost { task: task.clone() });
        }
        if let Some(newest) = newest {
            // Older attempts may go on, cut off from whoever has gone on without them: they add nothing behind this.
            locked(&self.store).fence(task, newest);
        }
        let read = self.read(task, from)?;
        // Only now: an attempt that was opened while it was read may have added to it.
        let is_later = newest.is_some_and(|newest| locked(&self.store).generation(task) > Some(newest));
        Ok((!is_later).then_some(read))
    }

    pub(in crate::edge) fn stats(&self) -> AgentStats {
        let mut stats = locked(&self.store).stats();
        stats.states = self.states.figures();
        stats.sent_bytes = self.sent_bytes.load(Ordering::Relaxed);
        stats
    }

    // Commits.

    pub(in crate::edge) fn commits_seen(&self) -> u64 {
        *locked(&self.commits_seen)
    }

    /// Carries out commits: the last of all there were, which are `commits`.
    pub(in crate::edge) fn heard(&self, committed: &[Commit], commits: u64) {
        // Held throughout: no log of a name that is used again begins before its old one is gone.
        let mut seen = locked(&self.commits_seen);
        let first = commits.saturating_sub(committed.len() as u64);
        for (number, commit) in (first..).zip(committed) {
            if number >= *seen {
                self.forget(commit);
            }
        }
        *seen = commits.max(*seen);
    }

    fn forget(&self, commit: &Commit) {
        self.forget_tables(commit);
        let mut epochs = locked(&self.store).commit(&commit.key, commit.below);
        epochs.extend(commit.epochs.iter().cloned());
        epochs.sort();
        epochs.dedup();
        self.disk.over(&commit.key, commit.below);
        for epoch in epochs {
            self.pools.forget(&epoch);
            // A name may be in use again, in other agents' files: see `commit`. A batch is not.
            let everybodys = self.known_use(&epoch).filter(|_| matches!(epoch.epoch, Epoch::Batch(_)));
            self.disk.drop_epoch(&epoch, everybodys);
            // Nothing of the name's next use comes between: it would be in the same file.
            let store = locked(&self.store);
            if !store.holds(&epoch) {
                self.disk.release(&epoch);
            }
        }
    }

    /// In the driver: carries out here what the registry has committed.
    pub(in crate::edge) fn catch_up(&self, local: &LocalRegistry) {
        // Before the registry is held: who carries commits out wants it while it holds how many it has seen.
        let seen = self.commits_seen();
        let (committed, commits) = locked(&local.registry).commits_since(seen);
        if !committed.is_empty() {
            self.heard(&committed, commits);
        }
    }
}

pub(in crate::edge) fn unexpected() -> Error {
    Error::Protocol { what: "an answer to another question".into() }
}

/// Handlers are shared by all threads of an agent.
pub(in crate::edge) type Shared = Arc<Handler>;
