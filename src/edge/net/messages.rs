//! Framed messages over TCP or a Unix socket: length (u32, little-endian), then postcard.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{auth, connecting};
use crate::error::{Error, Result};

/// Largest message.
const FRAME_BYTES_MAX: usize = 256 << 20;
/// Bytes of a message's length.
const HEAD: usize = 4;
/// Messages are written and read in parts of this size; no more is kept for the next one.
const PART_BYTES: usize = 1 << 20;

/// A stream of either kind.
#[derive(Debug)]
pub enum Stream {
    /// Between agents.
    Tcp(TcpStream),
    /// Between a worker and its agent.
    Unix(UnixStream),
}

impl Stream {
    /// Sets how long reads and writes may take; `None` for ever.
    ///
    /// # Errors
    /// [`Error::Io`] if the system refuses.
    pub fn set_timeout(&self, timeout: Option<Duration>) -> Result<()> {
        let set = || match self {
            Self::Tcp(stream) => {
                stream.set_read_timeout(timeout)?;
                stream.set_write_timeout(timeout)
            }
            Self::Unix(stream) => {
                stream.set_read_timeout(timeout)?;
                stream.set_write_timeout(timeout)
            }
        };
        set().map_err(|error| Error::io("setting a socket's timeout", &error))
    }

    /// Ends both directions, so that a thread that waits on the stream wakes up.
    pub fn shutdown(&self) {
        // It may be closed already.
        let _ = match self {
            Self::Tcp(stream) => stream.shutdown(std::net::Shutdown::Both),
            Self::Unix(stream) => stream.shutdown(std::net::Shutdown::Both),
        };
    }

    /// Another handle on the same stream.
    ///
    /// # Errors
    /// [`Error::Io`] if the system refuses.
    pub fn try_clone(&self) -> Result<Self> {
        match self {
            Self::Tcp(stream) => stream.try_clone().map(Self::Tcp),
            Self::Unix(stream) => stream.try_clone().map(Self::Unix),
        }
        .map_err(|error| Error::io("duplicating a socket", &error))
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, buffer: &[u8]) -> std::io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(buffer),
            Self::Unix(stream) => stream.write(buffer),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// When all steps of something are to be done, however many there are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline {
    at: Instant,
    allowed: Duration,
}

impl Deadline {
    pub(super) fn within(allowed: Duration) -> Self {
        Self { at: Instant::now() + allowed, allowed }
    }

    /// What is left.
    ///
    /// # Errors
    /// As a socket whose time is up.
    fn left(&self) -> std::io::Result<Duration> {
        let left = self.at.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

/// An authenticated connection.
#[derive(Debug)]
pub struct Connection {
    stream: Stream,
    peer: String,
    /// For each step alone, where there is no deadline.
    timeout: Duration,
    deadline: Option<Deadline>,
    /// Kept for the next frame: fresh memory costs more than all else that is done with a frame.
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
}

impl Connection {
    /// Connects to an agent over TCP, and proves to it that we hold the secret.
    ///
    /// # Errors
    /// [`Error::AgentUnreachable`], [`Error::AuthRefused`], [`Error::Timeout`].
    pub fn tcp(addr: &str, secret: &[u8; 32], timeout: Duration) -> Result<Self> {
        let mut connection = Self::tcp_before(addr, secret, Deadline::within(timeout))?;
        connection.set_deadline(None)?;
        Ok(connection)
    }

    /// As [`Self::tcp`], for what is to be done by a deadline: that goes on to count.
    pub(super) fn tcp_before(addr: &str, secret: &[u8; 32], deadline: Deadline) -> Result<Self> {
        let left = || deadline.left().map_err(|error| failed(addr, deadline.allowed, &error));
        connecting::patiently(addr, left()?, || {
            let stream = connecting::tcp(addr, left()?)?;
            Self::client(Stream::Tcp(stream), addr.to_owned(), secret, deadline)
        })
    }

    /// Connects to the agent on this host over its Unix socket.
    ///
    /// # Errors
    /// As [`Self::tcp`].
    pub fn unix(path: &Path, secret: &[u8; 32], timeout: Duration) -> Result<Self> {
        let agent = path.display().to_string();
        let deadline = Deadline::within(timeout);
        let mut connection = connecting::patiently(&agent, timeout, || {
            let stream = connecting::unix(path, timeout)?;
            Self::client(Stream::Unix(stream), agent.clone(), secret, deadline)
        })?;
        connection.set_deadline(None)?;
        Ok(connection)
    }

    const fn of(stream: Stream, peer: String, deadline: Deadline) -> Self {
        let (timeout, deadline) = (deadline.allowed, Some(deadline));
        Self { stream, peer, timeout, deadline, outgoing: Vec::new(), incoming: Vec::new() }
    }

    /// From now on all steps together have so long; without a deadline each has the time-out.
    pub(super) fn set_deadline(&mut self, deadline: Option<Deadline>) -> Result<()> {
        self.deadline = deadline;
        if deadline.is_some() { Ok(()) } else { self.stream.set_timeout(Some(self.timeout)) }
    }

    /// A connection that is let in; `None` if the other side ends it before a word.
    fn client(stream: Stream, peer: String, secret: &[u8; 32], deadline: Deadline) -> Result<Option<Self>> {
        let mut connection = Self::of(stream, peer, deadline);
        let hello = match auth::hello(&mut connection) {
            Err(Error::AgentUnreachable { .. }) => return Ok(None),
            hello => hello?,
        };
        auth::prove(&mut connection, &hello, secret)?;
        Ok(Some(connection))
    }

    /// Accepts a connection once the other side has proved that it holds the secret.
    ///
    /// # Errors
    /// [`Error::AuthRefused`], [`Error::Timeout`], [`Error::Protocol`].
    pub fn accept(stream: Stream, peer: String, secret: &[u8; 32], timeout: Duration) -> Result<Self> {
        let mut connection = Self::of(stream, peer, Deadline::within(timeout));
        auth::verify(&mut connection, secret)?;
        connection.set_deadline(None)?;
        Ok(connection)
    }

    /// Who is on the other side.
    #[must_use]
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// The stream itself.
    #[must_use]
    pub const fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Writes one message.
    ///
    /// # Errors
    /// [`Error::AgentUnreachable`], [`Error::Timeout`]; [`Error::Protocol`] if it is too large.
    pub fn write<T: Serialize>(&mut self, message: &T) -> Result<()> {
        let mut frame = std::mem::take(&mut self.outgoing);
        frame.clear();
        frame.extend([0; HEAD]);
        let frame = postcard::to_extend(message, frame)
            .map_err(|error| Error::Protocol { what: error.to_string() })?;
        let written = self.write_frame(frame);
        written.map(|frame| self.outgoing = spare(frame))
    }

    fn write_frame(&mut self, mut frame: Vec<u8>) -> Result<Vec<u8>> {
        let len = frame.len() - HEAD;
        if len > FRAME_BYTES_MAX {
            return Err(Error::Protocol { what: format!("a message of {len} bytes is too large") });
        }
        let size = u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes();
        if let Some(head) = frame.first_chunk_mut::<HEAD>() {
            *head = size;
        }
        self.write_all(&frame)?;
        Ok(frame)
    }

    /// Writes raw bytes.
    pub(super) fn write_all(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            self.look_at_clock()?;
            let part = bytes.get(..PART_BYTES).unwrap_or(bytes);
            match self.stream.write(part) {
                Ok(0) => return Err(self.failed(&ErrorKind::WriteZero.into())),
                Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(&error)),
            }
        }
        Ok(())
    }

    /// Fills `buffer`.
    pub(super) fn read_exact(&mut self, mut buffer: &mut [u8]) -> Result<()> {
        while !buffer.is_empty() {
            self.look_at_clock()?;
            match self.stream.read(buffer) {
                Ok(0) => return Err(self.failed(&ErrorKind::UnexpectedEof.into())),
                Ok(read) => buffer = buffer.get_mut(read..).unwrap_or_default(),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(&error)),
            }
        }
        Ok(())
    }

    /// The next step has what is left until the deadline, however slowly bytes drip in.
    fn look_at_clock(&self) -> Result<()> {
        let Some(deadline) = &self.deadline else { return Ok(()) };
        let left = deadline.left().map_err(|error| self.failed(&error))?;
        self.stream.set_timeout(Some(left))
    }

    /// Reads one message.
    ///
    /// # Errors
    /// [`Error::AgentUnreachable`] if the other side has gone, [`Error::Timeout`], [`Error::Protocol`]
    /// for anything that is not a message.
    pub fn read<T: DeserializeOwned>(&mut self) -> Result<T> {
        let mut head = [0; HEAD];
        self.read_exact(&mut head)?;
        self.read_body(u32::from_le_bytes(head) as usize)
    }

    /// Reads the next message, however long it takes to begin, as long as `go_on`; once it has begun the
    /// time-out counts.
    ///
    /// # Errors
    /// As [`Self::read`]; [`Error::Timeout`] also if it is not to go on.
    pub fn read_next<T: DeserializeOwned>(&mut self, go_on: impl Fn() -> bool) -> Result<T> {
        let mut head = [0; HEAD];
        let begun = loop {
            match self.stream.read(&mut head) {
                Ok(0) => return Err(self.failed(&ErrorKind::UnexpectedEof.into())),
                Ok(read) => break read,
                Err(error) if is_timeout(&error) && go_on() => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(&error)),
            }
        };
        self.read_exact(head.get_mut(begun..).unwrap_or_default())?;
        self.read_body(u32::from_le_bytes(head) as usize)
    }

    fn read_body<T: DeserializeOwned>(&mut self, len: usize) -> Result<T> {
        if len > FRAME_BYTES_MAX {
            return Err(Error::Protocol { what: format!("{} announces {len} bytes", self.peer) });
        }
        // What is left of the frame before is overwritten.
        let mut frame = std::mem::take(&mut self.incoming);
        let mut read = 0;
        while read < len {
            // Grows with what comes, so that a false length costs little memory.
            let until = len.min(read + PART_BYTES);
            if frame.len() < until {
                frame.resize(until, 0);
            }
            let part = frame.get_mut(read..until).unwrap_or_default();
            self.read_exact(part)?;
            read = until;
        }
        let message = postcard::from_bytes(frame.get(..len).unwrap_or_default())
            .map_err(|error| Error::Protocol { what: error.to_string() });
        self.incoming = spare(frame);
        message
    }

    fn failed(&self, error: &std::io::Error) -> Error {
        failed(&self.peer, self.deadline.map_or(self.timeout, |deadline| deadline.allowed), error)
    }
}

fn failed(peer: &str, allowed: Duration, error: &std::io::Error) -> Error {
    if is_timeout(error) {
        let millis = u64::try_from(allowed.as_millis()).unwrap_or(u64::MAX);
        return Error::Timeout { what: format!("an answer from {peer}"), millis };
    }
    Error::AgentUnreachable { agent: peer.to_owned(), reason: error.to_string() }
}

fn is_timeout(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// A frame's memory, if it is not too much to be kept.
fn spare(frame: Vec<u8>) -> Vec<u8> {
    if frame.capacity() <= PART_BYTES { frame } else { Vec::new() }
}
