//! Framed messages over TCP or a Unix socket: length (u32, little-endian), then postcard.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::auth;
use crate::error::{Error, Result};

/// Largest message.
pub const FRAME_BYTES_MAX: usize = 256 << 20;
/// Messages up to this size are written with their length in one call.
const JOINED_BYTES_MAX: usize = 1 << 20;

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

/// An authenticated connection.
#[derive(Debug)]
pub struct Connection {
    stream: Stream,
    peer: String,
    timeout: Duration,
}

impl Connection {
    /// Connects to an agent over TCP, and proves to it that we hold the secret.
    ///
    /// # Errors
    /// [`Error::AgentUnreachable`], [`Error::AuthRefused`], [`Error::Timeout`].
    pub fn tcp(addr: &str, secret: &[u8; 32], timeout: Duration) -> Result<Self> {
        let unreachable = |reason: String| Error::AgentUnreachable { agent: addr.into(), reason };
        let resolved = addr.to_socket_addrs().map_err(|e| unreachable(e.to_string()))?.next();
        let resolved = resolved.ok_or_else(|| unreachable("the name has no address".into()))?;
        let stream =
            TcpStream::connect_timeout(&resolved, timeout).map_err(|e| unreachable(e.to_string()))?;
        stream.set_nodelay(true).map_err(|e| unreachable(e.to_string()))?;
        Self::client(Stream::Tcp(stream), addr.to_owned(), secret, timeout)
    }

    /// Connects to the agent on this host over its Unix socket.
    ///
    /// # Errors
    /// As [`Self::tcp`].
    pub fn unix(path: &Path, secret: &[u8; 32], timeout: Duration) -> Result<Self> {
        let agent = path.display().to_string();
        let stream = UnixStream::connect(path)
            .map_err(|error| Error::AgentUnreachable { agent: agent.clone(), reason: error.to_string() })?;
        Self::client(Stream::Unix(stream), agent, secret, timeout)
    }

    fn client(stream: Stream, peer: String, secret: &[u8; 32], timeout: Duration) -> Result<Self> {
        stream.set_timeout(Some(timeout))?;
        let mut connection = Self { stream, peer, timeout };
        auth::prove(&mut connection, secret)?;
        Ok(connection)
    }

    /// Accepts a connection once the other side has proved that it holds the secret.
    ///
    /// # Errors
    /// [`Error::AuthRefused`], [`Error::Timeout`], [`Error::Protocol`].
    pub fn accept(stream: Stream, peer: String, secret: &[u8; 32], timeout: Duration) -> Result<Self> {
        stream.set_timeout(Some(timeout))?;
        let mut connection = Self { stream, peer, timeout };
        auth::verify(&mut connection, secret)?;
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
        let frame =
            postcard::to_extend(message, vec![0; 4]).map_err(|e| Error::Protocol { what: e.to_string() })?;
        self.write_frame(frame)
    }

    fn write_frame(&mut self, mut frame: Vec<u8>) -> Result<()> {
        let len = frame.len() - 4;
        if len > FRAME_BYTES_MAX {
            return Err(Error::Protocol { what: format!("a message of {len} bytes is too large") });
        }
        let size = u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes();
        if let Some(head) = frame.first_chunk_mut::<4>() {
            *head = size;
        }
        self.write_all(&frame)
    }

    /// Writes raw bytes.
    pub(super) fn write_all(&mut self, bytes: &[u8]) -> Result<()> {
        let written = bytes.chunks(JOINED_BYTES_MAX).try_for_each(|part| self.stream.write_all(part));
        written.map_err(|error| self.failed(&error))
    }

    /// Fills `buffer`.
    pub(super) fn read_exact(&mut self, buffer: &mut [u8]) -> Result<()> {
        self.stream.read_exact(buffer).map_err(|error| self.failed(&error))
    }

    /// Reads one message.
    ///
    /// # Errors
    /// [`Error::AgentUnreachable`] if the other side has gone, [`Error::Timeout`], [`Error::Protocol`]
    /// for anything that is not a message.
    pub fn read<T: DeserializeOwned>(&mut self) -> Result<T> {
        let mut head = [0; 4];
        self.read_exact(&mut head)?;
        let len = u32::from_le_bytes(head) as usize;
        if len > FRAME_BYTES_MAX {
            return Err(Error::Protocol { what: format!("{} announces {len} bytes", self.peer) });
        }
        let mut frame = Vec::new();
        // Grows with what comes, so that a false length costs no memory.
        let got = Read::by_ref(&mut self.stream).take(len as u64).read_to_end(&mut frame);
        match got {
            Ok(got) if got == len => {}
            Ok(_) => return Err(self.failed(&std::io::ErrorKind::UnexpectedEof.into())),
            Err(error) => return Err(self.failed(&error)),
        }
        postcard::from_bytes(&frame).map_err(|error| Error::Protocol { what: error.to_string() })
    }

    fn failed(&self, error: &std::io::Error) -> Error {
        use std::io::ErrorKind::{TimedOut, WouldBlock};
        if matches!(error.kind(), WouldBlock | TimedOut) {
            let millis = u64::try_from(self.timeout.as_millis()).unwrap_or(u64::MAX);
            return Error::Timeout { what: format!("an answer from {}", self.peer), millis };
        }
        Error::AgentUnreachable { agent: self.peer.clone(), reason: error.to_string() }
    }
}
