//! An agent: its listeners, its store, and in the driver the registry.
//!
//! A connection's thread (`net::server`) calls the `Handler`, whose methods stand in a file per part of
//! the work:
//!
//! ```text
//! handler          state, sessions; closing, reading, committing
//! opening          fencing older attempts, finding the longest copy
//! publishing       blocks made stable
//! exchanging       determinants that travel in frames
//! memory           what does not fit goes to disk
//! registrar        the way to the registry
//! heartbeat        telling the registry that this agent lives
//! repairing        new copies after a holder's death
//! values           answers that all tasks of an epoch share
//! process          an executor's agent as a process of its own
//! pending_frames   frames of a task that came before their turn; in the worker
//! ```

mod exchanging;
pub(super) mod handler;
mod heartbeat;
mod memory;
mod opening;
pub mod pending_frames;
pub mod process;
mod publishing;
pub(super) mod registrar;
mod repairing;
mod values;

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use self::handler::Handler;
use self::heartbeat::beat;
use self::memory::spill;
use self::registrar::{LocalRegistry, Registrar};
pub use self::registrar::{PlanUses, StageTasks};
use self::repairing::repair;
use crate::agent::protocol::{AgentInfo, ClusterStats, Layout, Request};
use crate::causal_log::{Place, SpillRef};
use crate::config::{SessionConfig, SpillPolicy};
use crate::determinant::bytes_fingerprint;
use crate::edge::disk::Disk;
use crate::edge::locked;
use crate::edge::net::Connection;
use crate::edge::net::cluster::cluster_stats;
use crate::edge::net::server::Server;
use crate::error::{Error, Result};
use crate::id::{AgentId, Epoch, EpochKey, Generation};

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
        stage_tasks: StageTasks,
        /// Tells the uses of causal functions in a plan.
        plan_uses: PlanUses,
    },
    /// A process beside an executor.
    Executor,
}

/// A running agent; stops when dropped.
pub struct Agent {
    server: Arc<Server>,
    socket: PathBuf,
    addr: String,
    driver_gone: Arc<AtomicBool>,
}

impl Agent {
    /// Starts listening; a driver's agent recovers what is in the checkpoint folder first.
    ///
    /// # Errors
    /// [`Error::Config`] if an address cannot be listened on, [`Error::CorruptSegment`], [`Error::Io`].
    pub fn start(config: AgentConfig) -> Result<Self> {
        config.session.validate()?;
        let AgentConfig { session, role, socket } = config;
        let id = AgentId(random_u64()?);
        let copies = usize::try_from(session.sharing_depth).unwrap_or(usize::MAX).saturating_add(1);
        let (bind_host, port, registrar) = match role {
            Role::Driver { bind_host, port, stage_tasks, plan_uses } => {
                let registry = LocalRegistry::new(stage_tasks, plan_uses, copies);
                (bind_host, port, Registrar::Here(Box::new(registry)))
            }
            Role::Executor => {
                let driver = session.driver_addr.clone();
                (own_interface(&session)?, 0, Registrar::There(driver))
            }
        };
        let listener = TcpListener::bind((bind_host.as_str(), port)).map_err(|error| Error::Config {
            setting: "driver_host, driver_port".into(),
            reason: format!("cannot listen on {bind_host}:{port}: {error}"),
        })?;
        let addr =
            listener.local_addr().map_err(|error| Error::io("reading the listening address", &error))?;
        // A driver that listens on every interface says under which name it is reached.
        let addr = match (&registrar, session.driver_addr.is_empty()) {
            (Registrar::Here(_), false) => format!("{}:{}", session.driver_addr, addr.port()),
            _ => addr.to_string(),
        };
        let info = AgentInfo { id, addr, host: bind_host, driver: matches!(registrar, Registrar::Here(_)) };
        let app = bytes_fingerprint(session.app_id.as_bytes());
        let disk = Disk::open(&session, id, app)?;
        let handler = Arc::new(Handler::new(session, info.clone(), disk, registrar));
        recover(&handler)?;
        let server = Server::new(Arc::clone(&handler));
        let agent = Self {
            server: Arc::clone(&server),
            socket: socket.clone(),
            addr: info.addr.clone(),
            driver_gone: Arc::new(AtomicBool::new(false)),
        };
        handler.registrar.tell(&handler.connections, Request::Register(info))?;
        server.listen_tcp(listener)?;
        server.listen_unix(bind_socket(&socket)?)?;
        if handler.config.spill_policy != SpillPolicy::Off {
            server.spawn("clonos-spill", |server| spill(&server))?;
        }
        if handler.config.sharing_depth > 0 {
            server.spawn("clonos-repair", |server| repair(&server))?;
        }
        if matches!(handler.registrar, Registrar::There(_)) {
            let gone = Arc::clone(&agent.driver_gone);
            server.spawn("clonos-heartbeat", move |server| {
                beat(&server, || gone.store(true, Ordering::Release));
            })?;
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

    /// Whether the driver was silent for too long.
    #[must_use]
    pub fn driver_gone(&self) -> bool {
        self.driver_gone.load(Ordering::Acquire)
    }

    /// Spark has committed an epoch: its logs are dropped here now, elsewhere with the next beat.
    ///
    /// # Errors
    /// [`Error::Misuse`] if this is not the driver's agent.
    pub fn commit_epoch(&self, query: &str, epoch: &Epoch) -> Result<()> {
        let key = EpochKey { query: query.into(), epoch: epoch.clone() };
        self.server.handler().commit(self.registry()?, &key);
        Ok(())
    }

    /// The program begins an epoch, or all those of a query, anew: see `Registry::begin_run`.
    pub fn begin_run(&self, query: &str, epoch: Option<&Epoch>) {
        if let Ok(local) = self.registry() {
            locked(&local.registry).begin_run(query, epoch);
        }
    }

    /// Checks that what an epoch's tasks took in belongs together.
    ///
    /// # Errors
    /// [`Error::InconsistentEpoch`]; [`Error::Misuse`] if this is not the driver's agent.
    pub fn check_epoch(&self, query: &str, epoch: &Epoch) -> Result<()> {
        let key = EpochKey { query: query.into(), epoch: epoch.clone() };
        locked(&self.registry()?.registry).check_epoch(&key)
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

    /// Ends all connections, waits for all threads and removes the socket. Again is harmless.
    pub fn stop(&self) {
        if !self.server.is_stopping() {
            self.server.stop(&self.socket);
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.stop();
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
    let connection = Connection::tcp(&session.driver_addr, &session.secret, timeout)?;
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

fn bind_socket(path: &Path) -> Result<UnixListener> {
    // Left behind by an agent that was killed; whoever gets here holds the lock of the folder.
    let _ = std::fs::remove_file(path);
    let bound = UnixListener::bind(path).and_then(|listener| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        Ok(listener)
    });
    bound.map_err(|error| Error::io(format!("listening on {}", path.display()), &error))
}

/// Takes over what an earlier application left in the checkpoint folder.
fn recover(handler: &Handler) -> Result<()> {
    let Registrar::Here(local) = &handler.registrar else { return Ok(()) };
    let mut registry = locked(&local.registry);
    let mut store = locked(&handler.store);
    for found in handler.disk.recover()? {
        let (tasks, code, plan) = (found.tasks, found.code, found.plan);
        let layout = Layout { app: found.app, stage: found.stage, tasks, code, plan };
        let places = found.blocks.iter().filter_map(|block| match &block.place {
            Place::Spilled(place) => Some(*place),
            Place::Memory(_) => None,
        });
        let places: Vec<SpillRef> = places.collect();
        let generation = found.generation.max(Generation(1));
        store.recovered(&found.task, generation, layout, places);
        registry.recovered(found.task, generation, layout, handler.info.id);
    }
    if let Some(root) = handler.disk.checkpoint_dir() {
        tracing::info!(root = %root.display(), epochs = registry.epochs().len(), "recovered");
    }
    Ok(())
}
