//! A driver's agent and executors' agents, each with a folder of its own, and workers on them.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use clonos::agent::members::Members;
use clonos::agent::protocol::{AgentInfo, Beginning, Ending, Fence, OpenTask, Opened, Reply, Request, Use};
use clonos::agent::state::messages::Clock;
use clonos::config::SessionConfig;
use clonos::edge::agent::{Agent, AgentConfig, NextBatch, Plans, Role, Stage};
use clonos::edge::net::Connection;
use clonos::edge::net::client::Client;
use clonos::error::Result;
use clonos::id::{AgentId, Epoch, Generation, Partition, TaskId};
use clonos::task::Summary;
use tempfile::TempDir;

use crate::heap;

/// Hash of the application, as workers state it.
pub const APP: u64 = 11;
/// Tells a child process where to put its agent's socket.
const CHILD: &str = "CLONOS_TEST_AGENT";
/// File in which a child process tells how much memory it takes.
const HEAP: &str = "heap";
const CHILD_CONFIG: &str = "CLONOS_TEST_AGENT_CONFIG";

/// One application: its folder lives as long as this.
pub struct World {
    pub config: SessionConfig,
    // Before the folder: fields are dropped in order, and the agent's files are in it.
    pub driver: Agent,
    pub folder: TempDir,
}

impl World {
    pub fn new() -> Self {
        Self::with(|_, _| {})
    }

    /// With settings changed by `set`, which is also given the world's folder.
    pub fn with(set: impl FnOnce(&mut SessionConfig, &TempDir)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // Worlds stand beside each other, and the port of an agent that is gone may soon be another world's.
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).unwrap();
        let mut config = SessionConfig::new("app-test", secret);
        config.io_timeout_ms = 4_000;
        config.spill_dir = Some(folder.path().join("spill").display().to_string());
        set(&mut config, &folder);
        let (driver, config) = start_driver(config, folder.path().join("driver.sock"));
        Self { config, folder, driver }
    }

    /// An executor's agent in this process.
    pub fn executor(&self, name: &str) -> Agent {
        let socket = self.folder.path().join(format!("{name}.sock"));
        let role = Role::Executor { id: name.to_owned() };
        let config = AgentConfig { session: self.config.clone(), role, socket };
        Agent::start(config).unwrap()
    }

    /// An executor's agent in a process of its own.
    pub fn process(&self, name: &str) -> AgentProcess {
        let folder = self.folder.path().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let config = folder.join("config");
        std::fs::write(&config, self.config.to_bytes().unwrap()).unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["world::agent_process", "--exact", "--nocapture", "--test-threads=1"])
            .env(CHILD, &folder)
            .env(CHILD_CONFIG, &config)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let ready = out.lines().map_while(std::io::Result::ok).any(|line| line.contains("agent is up"));
        assert!(ready, "the agent's process did not start");
        AgentProcess { child, socket: folder.join("agent.sock") }
    }

    /// The agents that the registry knows.
    pub fn members(&self) -> Arc<[AgentInfo]> {
        let mut driver = Peer::of(self, self.driver.addr());
        let Reply::AgentsAre(news) = driver.ask(&Request::Agents { seen: 0 }) else {
            panic!("who is alive?")
        };
        let mut members = Members::default();
        members.hear(news);
        members.all()
    }

    /// What the registry calls an agent.
    pub fn id_of(&self, agent: &Agent) -> AgentId {
        self.members().iter().find(|known| known.addr == agent.addr()).unwrap().id
    }

    /// A worker of the driver's agent (`local[*]`).
    pub fn worker(&self) -> Client {
        self.worker_of(&self.driver)
    }

    pub fn worker_of(&self, agent: &Agent) -> Client {
        Client::connect(&self.config, agent.socket()).unwrap()
    }
}

/// Everything again, as a new application on the same checkpoint folder.
pub fn restarted(world: &World) -> (Agent, SessionConfig) {
    world.driver.stop();
    let mut config = world.config.clone();
    config.app_id = "app-next".into();
    config.driver_addr.clear();
    start_driver(config, world.folder.path().join("next.sock"))
}

/// Starts a driver's agent; the configuration for everybody else.
pub fn start_driver(config: SessionConfig, socket: PathBuf) -> (Agent, SessionConfig) {
    let role = Role::Driver {
        bind_host: "127.0.0.1".into(),
        port: 0,
        // Stage numbers in these tests tell how many tasks they have: stage 108 has 8.
        stages: Box::new(|of| {
            Some(Stage { tasks: of.number.checked_sub(100)?, was_complete: false, writes: true })
        }),
        was_lost: Box::new(|stage, partition| stage == 200 && partition.0 < 2),
        plans: Plans::unknown(),
        clocks: Box::new(|_, _| Ok(Clock { now_ms: 1_000, watermark_ms: -1, late_ms: -1 })),
        next_batches: Box::new(next_batch),
    };
    let driver = Agent::start(AgentConfig { session: config.clone(), role, socket }).unwrap();
    let driver_addr = driver.addr().to_string();
    let driver_socket = driver.socket().display().to_string();
    (driver, SessionConfig { driver_addr, driver_socket, ..config })
}

/// Names of readers in these tests tell of the next batch: `q/7/1500` is of query `q`, batch 7, with watermark 1500.
fn next_batch(reader: &str) -> Option<NextBatch> {
    let mut parts = reader.split('/');
    let query = parts.next().filter(|query| !query.is_empty())?.into();
    let epoch = parts.next()?.parse().ok()?;
    Some(NextBatch { query, epoch, watermark_ms: parts.next()?.parse().ok()? })
}

/// An agent that can be killed.
pub struct AgentProcess {
    child: Child,
    pub socket: PathBuf,
}

impl AgentProcess {
    /// Ends it at once, as the end of the test does.
    pub fn kill(self) {}

    /// Bytes of its heap, at the most until a moment ago.
    pub fn heap_most(&self) -> u64 {
        let told = std::fs::read_to_string(self.socket.with_file_name(HEAP)).unwrap();
        told.parse().unwrap()
    }

    /// Sends it a signal, such as `-STOP`.
    pub fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.child.id().to_string()]).status();
        assert!(sent.unwrap().success());
    }
}

impl Drop for AgentProcess {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// The child of [`World::process`]; does nothing when the tests run it.
#[test]
fn agent_process() {
    let Some(folder) = std::env::var_os(CHILD).map(PathBuf::from) else { return };
    let config = std::fs::read(std::env::var_os(CHILD_CONFIG).unwrap()).unwrap();
    let session = SessionConfig::from_bytes(&config).unwrap();
    let socket = folder.join("agent.sock");
    let _agent =
        Agent::start(AgentConfig { session, role: Role::Executor { id: String::new() }, socket }).unwrap();
    println!("agent is up");
    // Bounded, should the parent die without killing us.
    let deadline = Instant::now() + Duration::from_secs(120);
    let (heap, written) = (folder.join(HEAP), folder.join("heap.new"));
    while Instant::now() < deadline {
        std::fs::write(&written, heap::most().to_string()).unwrap();
        std::fs::rename(&written, &heap).unwrap();
        std::thread::sleep(Duration::from_millis(50));
    }
}

pub fn task(partition: u32) -> TaskId {
    task_in(Epoch::Batch(1), partition)
}

pub fn task_in(epoch: Epoch, partition: u32) -> TaskId {
    TaskId { query: "q".into(), operator: "f".into(), epoch, partition: Partition(partition) }
}

/// The opening of an attempt, by a worker whose identity is the attempt's number.
/// Numbers the opens of a test: each is another one.
static OPENERS: AtomicU64 = AtomicU64::new(1);

pub fn opening(task: &TaskId, stage: u32, attempt: u64) -> OpenTask {
    OpenTask {
        task: task.clone(),
        used: Use::default(),
        execution: None,
        app: APP,
        stage,
        attempt,
        worker: OPENERS.fetch_add(1, Ordering::Relaxed),
        inside: false,
        stamp: 0,
        of_rdd: None,
    }
}

pub fn open(client: &mut Client, task: &TaskId, stage: u32, attempt: u64) -> Opened {
    client.open(opening(task, stage, attempt)).unwrap()
}

/// The same, where it may be refused.
pub fn open_as(client: &mut Client, task: &TaskId, stage: u32, attempt: u64) -> Result<Opened> {
    client.open(opening(task, stage, attempt))
}

/// Appends a block and waits until it is stable.
pub fn append(client: &mut Client, session: u64, block: &Bytes) -> Result<()> {
    let ticket = client.send(session, block.clone())?;
    client.wait(ticket)
}

pub fn close(client: &mut Client, session: u64) {
    client.close(session, Summary::default(), Ending { done: true, ..Ending::default() }).unwrap();
}

pub fn text(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

/// A block whose bytes tell its number, so that a mix-up is seen.
pub fn numbered(number: u64, len: usize) -> Bytes {
    number.to_le_bytes().iter().copied().cycle().take(len).collect::<Vec<u8>>().into()
}

/// Waits for something that comes about by heartbeats.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}: not within 10 s");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Speaks to an agent as another agent does.
pub struct Peer(Connection);

impl Peer {
    pub fn of(world: &World, addr: &str) -> Self {
        Self(Connection::tcp(addr, &world.config.credentials(), Duration::from_secs(2)).unwrap())
    }

    pub fn ask(&mut self, request: &Request) -> Reply {
        self.0.write(request).unwrap();
        self.0.read().unwrap()
    }
}

/// What an attempt in this generation tells those who have copies, if its log is published.
pub fn fence_of(generation: Generation) -> Fence {
    Fence { generation, over: Generation::NONE, reopened_at: None, shown: Beginning::default() }
}
