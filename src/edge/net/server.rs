//! Listening: a thread per connection, each of which proves first that it holds the secret.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use rustix::net::{Shutdown, shutdown};

use super::cluster::cluster_stats;
use super::connecting;
use super::door::{Door, Place};
use super::messages::Connection;
use super::stream::Stream;
use super::working::{Waiting, Working};
use crate::agent::protocol::{Ending, OpenTask, Reply, Request};
use crate::agent::state::messages::AboutState;
use crate::edge::agent::handler::{Handler, Session, Shared};
use crate::edge::agent::registrar::Registrar;
use crate::edge::locked;
use crate::error::{Error, Result};
use crate::task::Summary;

/// Agents that have not proved the secret yet, and those from one address; more are closed at once, and
/// come again.
const UNPROVEN_MAX: usize = 1024;
const UNPROVEN_MAX_EACH: usize = 128;
/// The same of workers, which have doors of their own.
const UNPROVEN_WORKERS_MAX: usize = 256;
/// Pause after an accept failed, so that a lack of descriptors does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// Stack of a connection's thread: the work is shallow.
const STACK_BYTES: usize = 512 << 10;

/// A connection that was just accepted.
struct Guest {
    stream: Stream,
    /// For people.
    peer: String,
    from: Option<IpAddr>,
}

/// What all connections share.
pub(in crate::edge) struct Server {
    handler: Shared,
    stopping: AtomicBool,
    driver_gone: AtomicBool,
    next: AtomicUsize,
    open: Mutex<HashMap<usize, Stream>>,
    listeners: Mutex<Vec<OwnedFd>>,
    working: Working,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Server {
    pub(in crate::edge) fn new(handler: Shared) -> Arc<Self> {
        let working = Working::new(Duration::from_millis(handler.config.io_timeout_ms));
        Arc::new(Self {
            handler,
            stopping: AtomicBool::new(false),
            driver_gone: AtomicBool::new(false),
            next: AtomicUsize::new(0),
            open: Mutex::default(),
            listeners: Mutex::default(),
            working,
            threads: Mutex::default(),
        })
    }

    pub(in crate::edge) const fn handler(&self) -> &Shared {
        &self.handler
    }

    pub(in crate::edge) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// The application has ended, as far as this agent can tell.
    pub(in crate::edge) fn driver_is_gone(&self) {
        self.driver_gone.store(true, Ordering::Release);
    }

    pub(in crate::edge) fn is_driver_gone(&self) -> bool {
        self.driver_gone.load(Ordering::Acquire)
    }

    /// Serves other agents.
    pub(in crate::edge) fn listen_tcp(self: &Arc<Self>, listener: TcpListener) -> Result<()> {
        self.remember(listener.try_clone().map(OwnedFd::from))?;
        let door = Door::new(UNPROVEN_MAX, UNPROVEN_MAX_EACH);
        self.spawn("clonos-tcp", move |server| {
            server.accept(&door, || {
                let (stream, addr) = listener.accept()?;
                connecting::prepare(&stream)?;
                Ok(Guest { stream: Stream::Tcp(stream), peer: addr.to_string(), from: Some(addr.ip()) })
            });
        })
    }

    /// Serves workers.
    pub(in crate::edge) fn listen_unix(self: &Arc<Self>, listener: UnixListener) -> Result<()> {
        self.remember(listener.try_clone().map(OwnedFd::from))?;
        let door = Door::new(UNPROVEN_WORKERS_MAX, UNPROVEN_WORKERS_MAX);
        self.spawn("clonos-working", |server| {
            while !server.is_stopping() {
                std::thread::park_timeout(server.working.period());
                server.working.tell();
            }
        })?;
        self.spawn("clonos-unix", move |server| {
            server.accept(&door, || {
                let stream = Stream::Unix(listener.accept()?.0);
                Ok(Guest { stream, peer: "a worker".to_owned(), from: None })
            });
        })
    }

    fn remember(&self, listener: std::io::Result<OwnedFd>) -> Result<()> {
        let listener = listener.map_err(|error| Error::io("duplicating a socket", &error))?;
        locked(&self.listeners).push(listener);
        Ok(())
    }

    pub(in crate::edge) fn spawn(
        self: &Arc<Self>,
        name: &str,
        work: impl FnOnce(Arc<Self>) + Send + 'static,
    ) -> Result<()> {
        let server = Arc::clone(self);
        let thread = Builder::new().name(name.to_owned()).stack_size(STACK_BYTES).spawn(move || work(server));
        let thread = thread.map_err(|error| Error::io("starting a thread", &error))?;
        let mut threads = locked(&self.threads);
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
        Ok(())
    }

    fn accept(self: &Arc<Self>, door: &Arc<Door>, mut next: impl FnMut() -> std::io::Result<Guest>) {
        while !self.is_stopping() {
            match next() {
                Ok(_) if self.is_stopping() => return,
                Ok(guest) => self.welcome(door, guest),
                Err(_) if self.is_stopping() => return,
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    std::thread::sleep(ACCEPT_PAUSE);
                }
            }
        }
    }

    fn welcome(self: &Arc<Self>, door: &Arc<Door>, guest: Guest) {
        let Some(place) = door.enter(guest.from) else {
            tracing::info!(peer = %guest.peer, "too many connections wait to be authenticated; one is closed");
            return;
        };
        let started = self.spawn("clonos-connection", move |server| server.serve(guest, place));
        if let Err(error) = started {
            tracing::warn!(%error, "a connection was closed");
        }
    }

    fn serve(self: &Arc<Self>, guest: Guest, place: Place) {
        let Guest { stream, peer, .. } = guest;
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        if let Ok(copy) = stream.try_clone() {
            locked(&self.open).insert(number, copy);
        }
        let config = &self.handler.config;
        let timeout = Duration::from_millis(config.io_timeout_ms);
        let accepted = Connection::accept(stream, peer, &config.credentials(), self.handler.info.id, timeout);
        drop(place);
        match accepted {
            Ok(connection) => {
                let waiting = self.waiting(&connection, number);
                self.converse(connection, number as u64, waiting.as_deref());
                self.working.end(number);
            }
            Err(error) => tracing::warn!(%error, "a connection was refused"),
        }
        locked(&self.open).remove(&number);
    }

    /// What a worker that waits is told by. Agents are not: whoever asks one has others to ask.
    fn waiting(&self, connection: &Connection, number: usize) -> Option<Arc<Waiting>> {
        let stream = connection.stream();
        let begun = matches!(stream, Stream::Unix(_)).then(|| self.working.begin(number, stream))?;
        begun.inspect_err(|error| tracing::warn!(%error, "a worker is not told if an answer takes long")).ok()
    }

    /// Answers one connection's requests until it ends; what it had open is closed then.
    fn converse(&self, mut connection: Connection, number: u64, waiting: Option<&Waiting>) {
        let (mut sessions, mut asked) = (HashMap::new(), HashSet::new());
        while !self.is_stopping() {
            // A worker may think for hours between two batches.
            let request = match connection.read_next::<Request>(|| !self.is_stopping()) {
                Ok(request) => request,
                Err(error) => {
                    tracing::debug!(%error, "a connection ended");
                    break;
                }
            };
            self.handler.connections.close_idle();
            let answering = waiting.map(Waiting::asks);
            let reply = match request {
                Request::Values(about) => self.handler.values_for(*about, number, &mut asked),
                request => self.answer(request, &mut sessions),
            };
            let reply = reply.unwrap_or_else(Reply::Failed);
            drop(answering);
            if let Err(error) = connection.write(&reply) {
                tracing::info!(%error, "an answer could not be sent");
                break;
            }
        }
        self.handler.values_ended(number, asked);
        for session in sessions.values() {
            if let Err(error) = self.handler.close(session, Summary::default(), Ending::default()) {
                tracing::info!(%error, "a session's end could not be told");
            }
        }
    }

    fn answer(&self, request: Request, sessions: &mut HashMap<u64, Session>) -> Result<Reply> {
        let handler = &self.handler;
        match request {
            Request::Open(open) => match self.is_attended(&open)? {
                true => handler.open(&open, sessions),
                false => Ok(Reply::NotYet),
            },
            Request::ReadSession { session, from } => handler.read_session(known(sessions, session)?, from),
            Request::Append { session, block } => {
                let session = sessions.get_mut(&session).ok_or_else(|| not_open(session))?;
                handler.append(session, &block).map(|()| Reply::Done)
            }
            Request::Close { session, summary, ending } => {
                let session = sessions.remove(&session).ok_or_else(|| not_open(session))?;
                close(handler, &session, summary, ending)
            }
            Request::Keep { session, block } => {
                guarded(sessions, session, |session| handler.keep(session, &block))
            }
            Request::Absorb { session, groups } => {
                guarded(sessions, session, |session| handler.absorb(session, groups))
            }
            Request::Commit { session } => guarded(sessions, session, |session| handler.share(session)),
            Request::Send { session, frames } => {
                guarded(sessions, session, |session| handler.send(session, &frames))
            }
            Request::Resend { session, from } => handler.resend(known(sessions, session)?, from),
            Request::Discard { session } => handler.discard(known(sessions, session)?).map(|()| Reply::Done),
            Request::Senders { session, operator, token } => {
                handler.senders(known(sessions, session)?, operator, token)
            }
            Request::Forget { task, generation } => Ok(handler.dropped(&task, generation)),
            Request::Share { pieces, born, over, by } => {
                handler.shared(pieces, born, over, by).map(|()| Reply::Done)
            }
            Request::Pool { session, questions, checks_ambiguity } => {
                let session = sessions.get_mut(&session).ok_or_else(|| not_open(session))?;
                handler.pool(session, &questions.read()?, checks_ambiguity)
            }
            Request::Confirm { task, generation, from } => handler.confirmed(&task, generation, from),
            Request::Read { task, from, whole, newest } => {
                let read = handler.read_copy(&task, from, whole, newest)?;
                Ok(read.map_or(Reply::Withdrawn, Reply::Blocks))
            }
            Request::Fence { task, fence } => {
                Ok(Reply::Fenced(locked(&handler.store).fence_for(&task, fence)))
            }
            Request::Replicate { .. } => handler.replicated(request).map(|()| Reply::Done),
            Request::State(about) => {
                let AboutState { session, wanted } = *about;
                let session = sessions.get_mut(&session).ok_or_else(|| not_open(session))?;
                handler.state(session, wanted)
            }
            Request::StateHolder(asked) => handler.state_asked(*asked).map(Reply::StateHolder),
            Request::Permits { .. } => handler.registrar.permits(&handler.connections, &request),
            Request::UseOf(epoch) => handler.use_of(epoch).map(Reply::UseIs),
            Request::Farewell => {
                self.driver_is_gone();
                Ok(Reply::Done)
            }
            Request::Stats => Ok(Reply::Stats(handler.stats())),
            Request::ClusterStats => Ok(Reply::ClusterStats(cluster_stats(handler)?)),
            other => self.ask_registry(&other),
        }
    }

    /// Whether a task can be opened now. In the driver: whether its epoch is this application's, and all read that is
    /// recorded of it. Elsewhere the driver is asked, unless it is gone.
    fn is_attended(&self, open: &OpenTask) -> Result<bool> {
        match &self.handler.registrar {
            Registrar::Here(local) => self.handler.attend_to(local, open.task.epoch_key(), open.stamp),
            Registrar::There(driver) if self.is_driver_gone() => Err(Error::AgentUnreachable {
                agent: driver.clone(),
                reason: "the driver has ended, or was silent for too long".into(),
            }),
            Registrar::There(_) => Ok(true),
        }
    }

    /// Answers what agents ask the registry.
    fn ask_registry(&self, request: &Request) -> Result<Reply> {
        let handler = &self.handler;
        let Registrar::Here(local) = &handler.registrar else { return Err(not_registry()) };
        if let Request::StateRegistry(told) = request {
            return handler.states_here(local, told).map(Reply::StateRegistry);
        }
        if let Request::Timers(about) = request {
            return handler.timer_due(local, about).map(Reply::Timers);
        }
        if let Request::Grant { open, sent, commits_seen } = request {
            if !self.is_attended(open)? {
                return Ok(Reply::NotYet);
            }
            let granted = local.grant(open, *sent, *commits_seen, handler.use_now(open));
            // The next micro-batch commits the one before.
            handler.catch_up(local);
            return granted;
        }
        let answer = local.handle(request).unwrap_or_else(|| Err(not_registry()));
        match request {
            Request::Closed { .. } if answer.is_err() => handler.keep_refusals(),
            _ => {}
        }
        answer
    }

    /// Ends all connections and waits for their threads.
    pub(in crate::edge) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        for listener in locked(&self.listeners).drain(..) {
            // Wakes the accepting thread, whatever has become of the socket's file.
            if let Err(error) = shutdown(&listener, Shutdown::Both) {
                tracing::warn!(%error, "a listener could not be ended");
            }
        }
        // A connection that was just accepted starts one more thread.
        loop {
            for stream in locked(&self.open).values() {
                stream.shutdown();
            }
            let Some(thread) = locked(&self.threads).pop() else { break };
            thread.thread().unpark();
            if thread.join().is_err() {
                tracing::error!("a thread of the agent panicked");
            }
        }
        self.handler.finish_works();
    }
}

/// Ends a session. Where what it absorbed could not be spread it has failed, and is over all the same: attempts of
/// other stages wait for its end.
fn close(handler: &Handler, session: &Session, summary: Summary, ending: Ending) -> Result<Reply> {
    if ending.done
        && session.inside
        && let Err(error) = handler.spread(session)
    {
        if let Err(untold) = handler.close(session, Summary::default(), Ending::default()) {
            tracing::info!(error = %untold, "a session's end could not be told");
        }
        return Err(error);
    }
    handler.close(session, summary, ending).map(|()| Reply::Done)
}

/// Does something for a session of which nothing has failed before: what follows a failure depends on it.
fn guarded(
    sessions: &mut HashMap<u64, Session>,
    session: u64,
    work: impl FnOnce(&mut Session) -> Result<()>,
) -> Result<Reply> {
    let session = sessions.get_mut(&session).ok_or_else(|| not_open(session))?;
    if let Some(error) = &session.failed {
        return Err(error.clone());
    }
    let done = work(session);
    if let Err(error) = &done {
        session.failed = Some(error.clone());
    }
    done.map(|()| Reply::Done)
}

fn known(sessions: &HashMap<u64, Session>, session: u64) -> Result<&Session> {
    sessions.get(&session).ok_or_else(|| not_open(session))
}

fn not_open(session: u64) -> Error {
    Error::Protocol { what: format!("session {session} is not open on this connection") }
}

fn not_registry() -> Error {
    Error::Protocol { what: "a question for the registry reached another agent".into() }
}
