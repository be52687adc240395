//! An agent: its listeners, its store, and in the driver the registry.
//!
//! A connection's thread (`net::server`) calls the `Handler`, whose methods stand in a file per part of
//! the work:
//!
//! ```text
//! handler          state, sessions; closing, reading, committing
//! opening          taking over what counts of a log, for a new attempt
//! gathering        fencing older attempts, finding what counts
//! asking           holders that may be slow
//! attempts         which are here, for those who wait for their end
//! publishing       blocks made stable
//! exchanging       determinants that travel in frames
//! committing       what was absorbed from them, before something that depends on it is visible
//! copying          copies on as many agents as are wanted
//! memory           what does not fit goes to disk
//! registrar        the way to the registry
//! plans            what it is told of Spark's plans
//! pooling          rows of other partitions, after a change of layout
//! claiming         whose an epoch in the checkpoint folder is; recovering its logs
//! refusals         epochs that cannot end, after a restart too
//! heartbeat        telling the registry that this agent lives
//! repairing        new copies after a holder's death
//! state            keyed state: reading, writing, holding and joining
//! values           answers that all tasks of an epoch share
//! turns            at an epoch's sharing, or a copy, one at a time
//! process          an executor's agent as a process of its own
//! watch            whether the executor has ended
//! pending_frames   frames of a task that came before their turn; in the worker
//! ```

mod asking;
mod attempts;
mod claiming;
mod committing;
mod copying;
mod exchanging;
mod gathering;
pub(super) mod handler;
mod heartbeat;
mod memory;
mod opening;
pub mod pending_frames;
mod plans;
mod pooling;
pub mod process;
mod publishing;
mod refusals;
pub(super) mod registrar;
mod repairing;
mod state;
mod turns;
mod values;
mod works;

use std::collections::HashSet;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use self::handler::Handler;
use self::heartbeat::{beat, farewell};
use self::memory::spill;
pub use self::plans::{Cut, Plans, Side};
use self::registrar::{LocalRegistry, Registrar};
pub use self::registrar::{OfStage, Stage, Stages, WasLost};
use self::repairing::repair;
pub use self::state::{Clocks, NextBatch, NextBatches};
use self::state::{join, keeping};
use crate::agent::protocol::{AgentInfo, ClusterStats, Use};
use crate::config::{SessionConfig, SpillPolicy};
use crate::determinant::bytes_fingerprint;
use crate::edge::disk::Disk;
use crate::edge::disk::Location;
use crate::edge::disk::savepoint::Manifest;
use crate::edge::disk::segment::{FileSystem, RealDisk};
use crate::edge::locked;
use crate::edge::net::cluster::cluster_stats;
use crate::edge::net::server::Server;
use crate::edge::net::{Connection, listen, reached_at};
use crate::error::{Error, Result};
use crate::id::{AgentId, Epoch, EpochKey};

/// What an agent is started with.
pub struct AgentConfig {
    /// Settings of the session. For a driver's agent `driver_addr` is the host name under which others
    /// reach it, or empty if that is the one it binds to.
    pub session: SessionConfig,
    /// What it is.
    pub role: Role,
    /// Where its Unix socket goes; the folder must be private to the user.
    pub socket: PathBuf,
}

/// What an agent is.
pub enum Role {
    /// Embedded in the driver, with the registry.
    Driver {
        /// Interface to listen on.
        bind_host: String,
        /// Port to listen on; 0 for any.
        port: u16,
        /// Tells how many tasks a stage has.
        stages: Stages,
        /// Tells whether a task writes again what Spark has lost of an earlier job.
        was_lost: WasLost,
        /// Tells what plans tell.
        plans: Plans,
        /// Tells the times of a query's micro-batch.
        clocks: Clocks,
        /// Tells of the batch that a query is about to begin.
        next_batches: NextBatches,
    },
    /// A process beside an executor.
    Executor {
        /// Spark's name of it; empty if the agent serves all of a host.
        id: String,
    },
}

/// A running agent; stops when dropped.
pub struct Agent {
    server: Arc<Server>,
    socket: PathBuf,
    /// Which file that is.
    bound: OnceLock<(u64, u64)>,
    addr: String,
}

impl Agent {
    /// Starts listening. What is in the checkpoint folder is read when it is asked for, epoch by epoch.
    ///
    /// # Errors
    /// [`Error::Config`] if an address cannot be listened on, [`Error::DiskFull`], [`Error::Io`].
    pub fn start(config: AgentConfig) -> Result<Self> {
        Self::start_on(Arc::new(RealDisk), config)
    }

    /// [`Self::start`] with a given file system, which may fail: what it spills, and a `checkpoint_dir` that is a folder.
    ///
    /// # Errors
    /// Those of [`Self::start`].
    pub fn start_on(files: Arc<dyn FileSystem>, config: AgentConfig) -> Result<Self> {
        config.session.validate()?;
        allow_files();
        let AgentConfig { session, role, socket } = config;
        let id = AgentId(random_u64()?);
        let (bind_host, port, registrar, executor) = registrar_of(role, &session)?;
        let (first, last) = if port == 0 { session.agent_ports } else { (port, port) };
        let listener = listen(&bind_host, first..=last).map_err(|error| Error::Config {
            setting: "driver_host, driver_port, agent_ports".into(),
            reason: match last {
                0 => format!("cannot listen on {bind_host}: {error}"),
                _ => format!("cannot listen on {bind_host}, on none of the ports {first}-{last}: {error}"),
            },
        })?;
        let addr =
            listener.local_addr().map_err(|error| Error::io("reading the listening address", &error))?;
        // A driver that listens on every interface says under which name it is reached.
        let addr = match (&registrar, session.driver_addr.is_empty()) {
            (Registrar::Here(_), false) => reached_at(&session.driver_addr, addr.port()),
            _ => addr.to_string(),
        };
        let host = if session.host_label.is_empty() { bind_host } else { session.host_label.clone() };
        let info = AgentInfo { id, addr, host, driver: matches!(registrar, Registrar::Here(_)) };
        let app = bytes_fingerprint(session.app_id.as_bytes());
        let disk = Disk::open(&session, files, id, app)?;
        if let Registrar::Here(local) = &registrar {
            local.attached(disk.attach()?);
        } else {
            disk.may_die();
        }
        let handler = Arc::new(Handler::new(session, info.clone(), disk, registrar, executor.clone()));
        let server = Server::new(Arc::clone(&handler));
        let addr = info.addr.clone();
        let agent =
            Self { server: Arc::clone(&server), socket: socket.clone(), bound: OnceLock::new(), addr };
        // Before it can be asked for anything.
        let (incarnation, commits) = handler.registrar.register(&handler.connections, info, executor)?;
        handler.disk.own(incarnation);
        handler.heard(&[], commits);
        server.listen_tcp(listener)?;
        let listener = bind_socket(&socket)?;
        if let Some(bound) = file_at(&socket) {
            let _first = agent.bound.set(bound);
        }
        server.listen_unix(listener)?;
        if handler.config.spill_policy != SpillPolicy::Off {
            server.spawn("clonos-spill", |server| spill(&server))?;
        }
        server.spawn("clonos-repair", |server| repair(&server))?;
        server.spawn("clonos-state", |server| join(&server))?;
        if matches!(handler.registrar, Registrar::There(_)) {
            server.spawn("clonos-heartbeat", |server| beat(&server))?;
        }
        tracing::info!(addr = %agent.addr, socket = %socket.display(), "agent is up");
        Ok(agent)
    }

    /// `ip:port` where other agents reach it.
    #[must_use]
    pub fn addr(&self) -> &str {
        &self.addr
    }

    /// Its Unix socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Whether workers find this agent at its socket. One that was slow to answer is taken for gone, and has a successor
    /// there then.
    #[must_use]
    pub fn has_its_socket(&self) -> bool {
        self.bound.get().is_some_and(|bound| file_at(&self.socket) == Some(*bound))
    }

    /// Fails once this agent can write no more segments, and so can make nothing stable.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub fn check_disk(&self) -> Result<()> {
        if !self.server.handler().disk.has_failed() {
            return Ok(());
        }
        Err(Error::Poisoned { what: "the writer in checkpoint_dir".into() })
    }

    /// Spark has these executors and does not let them go; what agents of others hold is copied elsewhere.
    ///
    /// # Errors
    /// [`Error::Misuse`] if this is not the driver's agent.
    pub fn executors_are(&self, executors: HashSet<String>) -> Result<()> {
        locked(&self.registry()?.registry).executors_are(executors);
        Ok(())
    }

    /// This agent's executor has ended; whether other agents lack something that it has, which it copies now.
    /// Without an answer there is nobody to say so.
    pub fn is_needed(&self) -> bool {
        let handler = self.server.handler();
        let is_needed = handler.registrar.leave(&handler.connections, handler.info.id).unwrap_or(false);
        if is_needed {
            handler.repair_due.give();
            handler.states.join_due.give();
        }
        is_needed
    }

    /// Gives agents that stay what nobody would ask this one for before it ends.
    ///
    /// # Errors
    /// If none of them answers.
    pub fn hand_over(&self) -> Result<()> {
        self.server.handler().hand_over()
    }

    /// Whether the driver has ended, or was silent for too long.
    #[must_use]
    pub fn driver_gone(&self) -> bool {
        self.server.is_driver_gone()
    }

    /// Spark has committed an epoch: its logs are dropped here now, elsewhere with the next beat. When this
    /// returns, nothing brings them back.
    ///
    /// # Errors
    /// [`Error::Io`]: it is not committed then; [`Error::Config`] if a newer application has taken the epoch over;
    /// [`Error::Misuse`] if this is not the driver's agent.
    pub fn commit_epoch(&self, query: &str, epoch: &Epoch) -> Result<()> {
        let key = EpochKey { query: query.into(), epoch: epoch.clone() };
        self.server.handler().commit(self.registry()?, &key)
    }

    /// The program has made an RDD by a function, within an epoch: see `Registry::rdd_is_made`. If that was work which an
    /// earlier run of the epoch has left behind, by its stamp or Spark's execution, nothing comes of it: its tasks will be
    /// refused, and it must have the place of none.
    ///
    /// # Errors
    /// As for the opening of a task: what was recorded of the epoch is read before.
    pub fn rdd_is_made(
        &self,
        key: EpochKey,
        (stamp, execution): (u64, Option<u64>),
        operator: &str,
        used: Use,
    ) -> Result<()> {
        let local = self.registry()?;
        if !locked(&local.registry).runs_now(&key, stamp, execution) {
            return Ok(());
        }
        self.server.handler().attend(local, &key)?;
        let mut registry = locked(&local.registry);
        // Another run may have begun meanwhile.
        if registry.runs_now(&key, stamp, execution) {
            registry.rdd_is_made(key, &operator.into(), used);
        }
        Ok(())
    }

    /// The program begins an epoch, or all those of a query, anew: see `Registry::begin_run`.
    pub fn begin_run(&self, query: &str, epoch: Option<&Epoch>) {
        if let Ok(local) = self.registry() {
            if epoch.is_none() {
                local.admit(query, None);
                local.clocks.forget(query);
                self.server.handler().states.forget_timers(query);
            }
            locked(&local.registry).begin_run(query, epoch);
        }
    }

    /// [`Self::begin_run`] of a named epoch, whose run has this number: see `Registry::stamp`.
    pub fn begin_stamped(&self, query: &str, epoch: &Epoch, stamp: u64) {
        if let Ok(local) = self.registry() {
            let mut registry = locked(&local.registry);
            registry.stamp(EpochKey { query: query.into(), epoch: epoch.clone() }, stamp);
            registry.begin_run(query, Some(epoch));
        }
    }

    /// That run has ended: what is left of its work records nothing more.
    pub fn end_run(&self, query: &str, epoch: &Epoch) {
        if let Ok(local) = self.registry() {
            let key = EpochKey { query: query.into(), epoch: epoch.clone() };
            locked(&local.registry).end_run(&key);
        }
    }

    /// From now on no task of a query is opened, until it begins anew: `reason` is `setting`'s fault.
    ///
    /// # Errors
    /// [`Error::Misuse`] if this is not the driver's agent.
    pub fn refuse_query(&self, query: &str, setting: String, reason: String) -> Result<()> {
        self.registry()?.admit(query, Some(Error::Config { setting, reason }));
        Ok(())
    }

    /// Checks that what an epoch's tasks took in belongs together.
    ///
    /// # Errors
    /// [`Error::InconsistentEpoch`]; [`Error::Misuse`] if this is not the driver's agent.
    pub fn check_epoch(&self, query: &str, epoch: &Epoch) -> Result<()> {
        let key = EpochKey { query: query.into(), epoch: epoch.clone() };
        locked(&self.registry()?.registry).check_epoch(&key)
    }

    /// Writes all states of a query, as its last committed epoch left them, to a folder of their own, or to a prefix of
    /// an object store; what is in it.
    ///
    /// # Errors
    /// [`Error::Config`] for a query that has no state, and a path where nothing can be made; [`Error::StateLost`];
    /// [`Error::Timeout`] if those that hold it do not answer, or epochs are committed faster than they can be asked;
    /// [`Error::DiskFull`], [`Error::Io`]; [`Error::Misuse`] if this is not the driver's agent.
    pub fn savepoint(&self, query: &str, location: impl Into<Location>) -> Result<Manifest> {
        self.server.handler().save(self.registry()?, query, &location.into())
    }

    /// Epochs of which some log is known.
    ///
    /// # Errors
    /// [`Error::Misuse`] if this is not the driver's agent.
    pub fn live_epochs(&self) -> Result<Vec<EpochKey>> {
        Ok(locked(&self.registry()?.registry).epochs())
    }

    /// What all agents hold.
    ///
    /// # Errors
    /// [`Error::Protocol`] if this is not the driver's agent.
    pub fn stats(&self) -> Result<ClusterStats> {
        cluster_stats(self.server.handler())
    }

    fn registry(&self) -> Result<&LocalRegistry> {
        match &self.server.handler().registrar {
            Registrar::Here(local) => Ok(local),
            Registrar::There(_) => {
                Err(Error::Misuse { what: "only the driver's agent has the registry".into() })
            }
        }
    }

    /// Removes the socket, ends all connections and waits for all threads; the driver's agent tells the
    /// others before. Again is harmless.
    pub fn stop(&self) {
        if !self.server.is_stopping() {
            farewell(self.server.handler());
            // While it listens: behind that, a successor may be there at any time.
            if self.has_its_socket() {
                let _gone_already = std::fs::remove_file(&self.socket);
            }
            self.server.stop();
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.stop();
    }
}

/// On which interface and port an agent listens, its way to the registry, and its executor.
fn registrar_of(role: Role, session: &SessionConfig) -> Result<(String, u16, Registrar, String)> {
    let copies = usize::try_from(session.sharing_depth).unwrap_or(usize::MAX).saturating_add(1);
    match role {
        Role::Driver { bind_host, port, stages, was_lost, plans, clocks, next_batches } => {
            let patience_ms = session.network_timeout_ms;
            let registry =
                LocalRegistry::new(stages, was_lost, plans, clocks, next_batches, copies, patience_ms);
            locked(&registry.registry).keep_states(keeping(session));
            Ok((bind_host, port, Registrar::Here(Box::new(registry)), String::new()))
        }
        Role::Executor { id } => {
            let driver = session.driver_addr.clone();
            Ok((own_interface(session)?, 0, Registrar::There(driver), id))
        }
    }
}

fn random_u64() -> Result<u64> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::Io { context: "drawing an agent's id".into(), message: error.to_string() })?;
    Ok(u64::from_le_bytes(bytes))
}

/// The interface of this host from which the driver is reached: agents listen on no other.
fn own_interface(session: &SessionConfig) -> Result<String> {
    let timeout = std::time::Duration::from_millis(session.io_timeout_ms);
    let connection = Connection::tcp(&session.driver_addr, &session.credentials(), timeout)?;
    match connection.stream() {
        crate::edge::net::Stream::Tcp(stream) => {
            let local = stream.local_addr().map_err(|error| Error::io("reading our own address", &error))?;
            Ok(local.ip().to_string())
        }
        crate::edge::net::Stream::Unix(_) => {
            Err(Error::Misuse { what: "the driver is not on a network".into() })
        }
    }
}

/// Each connection is a file: raises the process's limit as far as it may.
fn allow_files() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, ..limit };
    if limit.current != limit.maximum
        && let Err(error) = setrlimit(Resource::Nofile, raised)
    {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
}

/// Which file is at a path.
fn file_at(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

fn bind_socket(path: &Path) -> Result<UnixListener> {
    // Left behind by an agent that was killed; whoever gets here holds the lock of the folder.
    let _ = std::fs::remove_file(path);
    let bound = UnixListener::bind(path).and_then(|listener| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        Ok(listener)
    });
    bound.map_err(|error| Error::io(format!("listening on {}", path.display()), &error))
}
