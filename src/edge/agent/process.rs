//! The process of an executor's agent: started once per executor, gone when the executor is.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

use super::{Agent, AgentConfig, Role};
use crate::config::SessionConfig;
use crate::edge::net::Connection;
use crate::edge::platform::Watched;
use crate::error::{Error, Result};

/// How long a new agent may take until it answers.
const START_PATIENCE: Duration = Duration::from_secs(20);
const START_PAUSE: Duration = Duration::from_millis(10);
/// How much of a log's line stands in a message.
const LINE_CHARS_MAX: usize = 300;
/// How often the agent looks whether it is still needed.
const WATCH_PERIOD: Duration = Duration::from_millis(250);

/// How long an agent stays whose executor has ended, while there is something to copy.
const LEAVING_PATIENCE: Duration = Duration::from_secs(10);
/// For as long as an agent may take to leave others are started that end at once.
const ENDED_PATIENCE: Duration = Duration::from_secs(12);
const ENDED_PAUSE: Duration = Duration::from_secs(1);
/// How long after a start that came to nothing others are tried once: many workers wait for their turn.
const FAILED_LATELY: Duration = Duration::from_secs(30);
const LEAVING_PAUSE: Duration = Duration::from_millis(100);

const SOCKET: &str = "agent.sock";
const LOCK: &str = "lock";
const LOG: &str = "agent.log";

/// The socket of the agent in `folder`; starts one with `spawn` if none answers. A file lock sees to it
/// that of many workers one does, and that the others do not try for as long as it did in vain.
///
/// # Errors
/// [`Error::AgentUnreachable`] naming the log file if the new agent does not answer in time; what
/// `spawn` returns.
pub fn ensure_agent<F: Fn() -> bool>(
    config: &SessionConfig,
    folder: &Path,
    mut spawn: impl FnMut() -> Result<F>,
) -> Result<PathBuf> {
    let socket = folder.join(SOCKET);
    if answers(config, &socket) {
        return Ok(socket);
    }
    let mut lock = lock(folder)?;
    if answers(config, &socket) {
        return Ok(socket);
    }
    let patience = if has_failed_lately(&lock) { Duration::ZERO } else { ENDED_PATIENCE };
    let mut has_ended = spawn()?;
    let began = Instant::now();
    while began.elapsed() < START_PATIENCE {
        let was_over = has_ended();
        if answers(config, &socket) {
            return Ok(socket);
        }
        if was_over && began.elapsed() >= patience {
            break;
        }
        sleep(START_PAUSE);
        if was_over {
            // The one before may have its port still, or the driver be away for a moment.
            sleep(ENDED_PAUSE);
            has_ended = spawn()?;
        }
    }
    // Nothing depends on it but how long the next one tries.
    let _not_noted = lock.write_all(b".");
    let (log, what) = (folder.join(LOG), if has_ended() { "has ended" } else { "does not answer" });
    Err(Error::AgentUnreachable {
        agent: socket.display().to_string(),
        reason: format!("the new agent {what}; {} ends: {}", log.display(), last_line(&log)),
    })
}

/// Whether a start came to nothing a moment ago: whoever does notes that in the lock's file.
fn has_failed_lately(lock: &File) -> bool {
    let noted = lock.metadata().and_then(|about| Ok((about.len(), about.modified()?)));
    noted.is_ok_and(|(failures, last)| failures > 0 && last.elapsed().is_ok_and(|ago| ago < FAILED_LATELY))
}

/// The last line of a log, as far as one wants to read it in a message.
fn last_line(log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().rev().find(|line| !line.trim().is_empty());
    line.unwrap_or("(nothing)").chars().take(LINE_CHARS_MAX).collect()
}

fn answers(config: &SessionConfig, socket: &Path) -> bool {
    let timeout = Duration::from_millis(config.io_timeout_ms);
    Connection::unix(socket, &config.secret, timeout).is_ok()
}

fn lock(folder: &Path) -> Result<File> {
    let path = folder.join(LOCK);
    let file = OpenOptions::new().create(true).append(true).open(&path);
    let file = file.map_err(|error| Error::io(format!("opening {}", path.display()), &error))?;
    flock(&file, FlockOperation::LockExclusive)
        .map_err(|error| Error::io(format!("locking {}", path.display()), &error.into()))?;
    Ok(file)
}

/// Serves until the process `watch_pid` has ended (0: is not watched), the driver is gone, or another agent has taken its
/// place. Where the driver is there, what only this agent has is copied to others first.
///
/// `executor` is Spark's name of what `watch_pid` runs; empty if it runs none.
///
/// # Errors
/// Whatever keeps the agent from starting; [`Error::Poisoned`] once it can write no more segments.
pub fn run_executor_agent(
    config: SessionConfig,
    watch_pid: u32,
    folder: &Path,
    executor: String,
) -> Result<()> {
    let watched = Watched::process(watch_pid)?;
    let role = Role::Executor { id: executor };
    let agent = Agent::start(AgentConfig { session: config, role, socket: folder.join(SOCKET) })?;
    let mut usable = Ok(());
    let mut has_successor = false;
    while usable.is_ok() && !has_successor && !agent.driver_gone() && !watched.ended(WATCH_PERIOD) {
        usable = agent.check_disk();
        has_successor = !agent.has_its_socket();
    }
    if has_successor {
        tracing::warn!("this agent was too slow to answer, and another has taken its place: it ends");
    }
    let deadline = Instant::now() + LEAVING_PATIENCE;
    let mut is_needed = true;
    while is_needed && usable.is_ok() && !agent.driver_gone() && Instant::now() < deadline {
        // First it says that it leaves, so that others who do are not chosen, nor choose it.
        is_needed = agent.is_needed();
        if let Err(error) = agent.hand_over() {
            tracing::info!(%error, "what was absorbed here could not be given to others");
        }
        if is_needed {
            sleep(LEAVING_PAUSE);
        }
    }
    // What was acknowledged is on disk and on peers. The next worker starts another agent, whose files are new.
    agent.stop();
    usable
}
