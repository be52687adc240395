//! Serving a log: a thread per connection, each of which proves first that it holds the log's secret.

use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{Builder, sleep};
use std::time::{Duration, Instant};

use super::log::SourceLog;
use crate::config::Credentials;
use crate::edge::locked;
use crate::edge::net::{Connection, Stream, listen};
use crate::error::{Error, Result};
use crate::id::AgentId;
use crate::source::{SourceReply, SourceRequest};

/// Connections at once; more are closed.
const CONNECTIONS_MAX: usize = 1_024;
/// How long a reader may take until the one before it must have gone.
const CLAIM_PATIENCE: Duration = Duration::from_secs(10);
const CLAIM_PAUSE: Duration = Duration::from_millis(50);
/// How long a message may take once it has begun.
const IO_TIMEOUT: Duration = Duration::from_secs(10);
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// How long the log outlives a reader that said it needs it no more.
const RELEASED_LINGER: Duration = Duration::from_secs(2);

/// Who reads the log, and since when nobody does.
struct Claim {
    reader: Option<(u64, String)>,
    idle_since: Instant,
    released: bool,
}

struct Shared {
    log: Arc<SourceLog>,
    ours: Credentials,
    claim: Mutex<Claim>,
    open: AtomicUsize,
    next: AtomicU64,
    stopping: AtomicBool,
}

/// Serves a log until it is stopped.
pub struct SourceServer {
    shared: Arc<Shared>,
    addr: String,
}

impl SourceServer {
    /// Listens on `host`, on one of `ports`, the first that is free; 0 is any.
    ///
    /// # Errors
    /// [`Error::Config`] if none can be listened on.
    pub fn start(log: Arc<SourceLog>, ours: Credentials, host: &str, ports: &[u16]) -> Result<Self> {
        let range = ports.iter().min().zip(ports.iter().max()).filter(|(first, _)| **first > 0);
        let refused = |error: &std::io::Error| match range {
            Some((first, last)) if error.kind() == ErrorKind::AddrInUse => Error::Config {
                setting: "ports".into(),
                reason: format!(
                    "none of the ports {first} to {last} of {host} is free for the receiver of a source, which needs one \
                     beside those of agents: give attach() more agent_ports, or the source an option `ports` of its own"
                ),
            },
            _ => Error::Config {
                setting: "bindHost".into(),
                reason: format!("the receiver cannot listen on {host}: {error}"),
            },
        };
        let listener = listen(host, ports.iter().copied()).map_err(|error| refused(&error))?;
        let addr = listener.local_addr().map_err(|error| refused(&error))?.to_string();
        let claim = Mutex::new(Claim { reader: None, idle_since: Instant::now(), released: false });
        let shared = Arc::new(Shared {
            log,
            ours,
            claim,
            open: AtomicUsize::new(0),
            next: AtomicU64::new(1),
            stopping: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&shared);
        let thread =
            Builder::new().name("clonos-source-tcp".into()).spawn(move || accepting.accept(&listener));
        thread.map_err(|error| Error::io("starting a thread", &error))?;
        Ok(Self { shared, addr })
    }

    /// `ip:port` on which it listens.
    #[must_use]
    pub fn addr(&self) -> &str {
        &self.addr
    }

    /// Whether nobody has read the log for so long that the receiver should end.
    #[must_use]
    pub fn is_idle(&self, linger: Duration) -> bool {
        let claim = locked(&self.shared.claim);
        let linger = if claim.released { linger.min(RELEASED_LINGER) } else { linger };
        claim.reader.is_none() && claim.idle_since.elapsed() > linger
    }

    /// Takes no more connections.
    pub fn stop(&self) {
        self.shared.stopping.store(true, Ordering::Release);
        // Wakes the thread that accepts; it may have gone already.
        let _woken = TcpStream::connect(&self.addr);
    }
}

impl Drop for SourceServer {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        while !self.stopping.load(Ordering::Acquire) {
            match listener.accept() {
                Ok((stream, peer)) => self.welcome(stream, peer.to_string()),
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    sleep(ACCEPT_PAUSE);
                }
            }
        }
    }

    fn welcome(self: &Arc<Self>, stream: TcpStream, peer: String) {
        if self.open.fetch_add(1, Ordering::AcqRel) >= CONNECTIONS_MAX {
            self.open.fetch_sub(1, Ordering::AcqRel);
            return;
        }
        let shared = Arc::clone(self);
        let serve = move || {
            let number = shared.next.fetch_add(1, Ordering::Relaxed);
            if let Err(error) = shared.serve(stream, peer.clone(), number) {
                tracing::debug!(%peer, %error, "a reader's connection has ended");
            }
            shared.leave(number, false);
            shared.open.fetch_sub(1, Ordering::AcqRel);
        };
        if Builder::new().name("clonos-reader".into()).spawn(serve).is_err() {
            self.open.fetch_sub(1, Ordering::AcqRel);
        }
    }

    fn serve(&self, stream: TcpStream, peer: String, number: u64) -> Result<()> {
        stream.set_nodelay(true).map_err(|error| Error::io("setting up a socket", &error))?;
        let mut connection =
            Connection::accept(Stream::Tcp(stream), peer, &self.ours, AgentId(0), IO_TIMEOUT)?;
        let go_on = || !self.stopping.load(Ordering::Acquire);
        while go_on() {
            let request: SourceRequest = connection.read_next(go_on)?;
            let reply = self.answer(request, number).unwrap_or_else(SourceReply::Failed);
            connection.write(&reply)?;
        }
        Ok(())
    }

    fn answer(&self, request: SourceRequest, number: u64) -> Result<SourceReply> {
        match request {
            SourceRequest::Claim { owner, before } => {
                self.verify(before)?;
                self.claim(number, owner)?;
                Ok(SourceReply::Claimed(self.log.incarnation()))
            }
            SourceRequest::Bounds => match self.log.failure() {
                Some(error) => Err(error),
                None => Ok(SourceReply::Bounds(self.log.bounds())),
            },
            SourceRequest::Read { from, to } => self.log.read(from, to).map(SourceReply::Blocks),
            SourceRequest::Commit { to } => {
                self.log.commit(to);
                Ok(SourceReply::Done)
            }
            SourceRequest::Stats => Ok(SourceReply::Stats(self.log.stats())),
            SourceRequest::Release => {
                self.leave(number, true);
                Ok(SourceReply::Done)
            }
        }
    }

    /// Looks whether the log is this receiver's still. A new reader has nothing to do with who had it before: this
    /// receiver ends, and the one after it takes the log.
    fn verify(&self, before: Option<u64>) -> Result<()> {
        self.log.verify().map_err(|error| match (&error, before) {
            (Error::SourceInUse { .. }, None) => {
                Error::AgentUnreachable { agent: self.log.location().to_string(), reason: error.to_string() }
            }
            _ => error,
        })
    }

    /// Makes a connection the reader. One whose process was killed goes within moments; one that is alive
    /// stays.
    fn claim(&self, number: u64, owner: String) -> Result<()> {
        let deadline = Instant::now() + CLAIM_PATIENCE;
        loop {
            let mut claim = locked(&self.claim);
            match &claim.reader {
                Some((other, reader)) if *other != number => {
                    if Instant::now() >= deadline {
                        let log = self.log.location().to_string();
                        return Err(Error::SourceInUse { log, owner: reader.clone() });
                    }
                }
                _ => {
                    tracing::info!(%owner, "the log is read by");
                    (claim.reader, claim.released) = (Some((number, owner)), false);
                    return Ok(());
                }
            }
            drop(claim);
            sleep(CLAIM_PAUSE);
        }
    }

    fn leave(&self, number: u64, released: bool) {
        let mut claim = locked(&self.claim);
        if claim.reader.as_ref().is_some_and(|(reader, _)| *reader == number) {
            (claim.reader, claim.idle_since, claim.released) = (None, Instant::now(), released);
        }
    }
}

impl std::fmt::Debug for SourceServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SourceServer").field("addr", &self.addr).finish_non_exhaustive()
    }
}
