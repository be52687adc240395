//! Bytes of a socket, each step of which has its time.

use std::io::{ErrorKind, Read, Result as IoResult, Write};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

/// Written and read at once at most, so that a deadline is looked at now and then.
pub(super) const PART_BYTES: usize = 1 << 20;

/// A stream of either kind.
#[derive(Debug)]
pub enum Stream {
    /// Between agents.
    Tcp(TcpStream),
    /// Between a worker and its agent.
    Unix(UnixStream),
}

impl AsRawFd for Stream {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Self::Tcp(stream) => stream.as_raw_fd(),
            Self::Unix(stream) => stream.as_raw_fd(),
        }
    }
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
    fn read(&mut self, buffer: &mut [u8]) -> IoResult<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, buffer: &[u8]) -> IoResult<usize> {
        match self {
            Self::Tcp(stream) => stream.write(buffer),
            Self::Unix(stream) => stream.write(buffer),
        }
    }

    fn flush(&mut self) -> IoResult<()> {
        Ok(())
    }
}

/// When all steps of something are to be done, however many there are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline {
    at: Instant,
    pub(super) allowed: Duration,
}

impl Deadline {
    pub(super) fn within(allowed: Duration) -> Self {
        Self { at: Instant::now() + allowed, allowed }
    }

    /// What is left.
    ///
    /// # Errors
    /// As a socket whose time is up.
    pub(super) fn left(&self) -> IoResult<Duration> {
        let left = self.at.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

/// A stream to somebody, who is given so much time.
#[derive(Debug)]
pub(super) struct Wire {
    pub(super) stream: Stream,
    /// Who is on the other side, for people.
    pub(super) peer: String,
    /// For each step alone, where there is no deadline.
    timeout: Duration,
    deadline: Option<Deadline>,
}

impl Wire {
    pub(super) const fn new(stream: Stream, peer: String, deadline: Deadline) -> Self {
        Self { stream, peer, timeout: deadline.allowed, deadline: Some(deadline) }
    }

    /// From now on all steps together have so long; without a deadline each has the time-out.
    pub(super) fn set_deadline(&mut self, deadline: Option<Deadline>) -> Result<()> {
        self.deadline = deadline;
        if deadline.is_some() { Ok(()) } else { self.stream.set_timeout(Some(self.timeout)) }
    }

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
            let read = self.read_some(buffer)?;
            buffer = buffer.get_mut(read..).unwrap_or_default();
        }
        Ok(())
    }

    /// Reads what there is, at least something.
    pub(super) fn read_some(&mut self, buffer: &mut [u8]) -> Result<usize> {
        self.look_at_clock()?;
        self.read_begun(buffer, || false)
    }

    /// Reads what there is once something comes, however long that takes, as long as `go_on`.
    pub(super) fn read_begun(&mut self, buffer: &mut [u8], go_on: impl Fn() -> bool) -> Result<usize> {
        loop {
            match self.stream.read(buffer) {
                Ok(0) => return Err(self.failed(&ErrorKind::UnexpectedEof.into())),
                Ok(read) => return Ok(read),
                Err(error) if is_timeout(&error) && go_on() => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(&error)),
            }
        }
    }

    /// The next step has what is left until the deadline, however slowly bytes drip in.
    fn look_at_clock(&self) -> Result<()> {
        let Some(deadline) = &self.deadline else { return Ok(()) };
        let left = deadline.left().map_err(|error| self.failed(&error))?;
        self.stream.set_timeout(Some(left))
    }

    fn failed(&self, error: &std::io::Error) -> Error {
        failed(&self.peer, self.deadline.map_or(self.timeout, |deadline| deadline.allowed), error)
    }
}

/// What is told of somebody who was given so much time.
pub(super) fn failed(peer: &str, allowed: Duration, error: &std::io::Error) -> Error {
    if is_timeout(error) {
        let millis = u64::try_from(allowed.as_millis()).unwrap_or(u64::MAX);
        return Error::Timeout { what: format!("an answer from {peer}"), millis };
    }
    Error::AgentUnreachable { agent: peer.to_owned(), reason: error.to_string() }
}

fn is_timeout(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}
