//! Framed messages over TCP or a Unix socket: length (u32, little-endian), then postcard.

use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::records::Records;
use super::stream::{Deadline, PART_BYTES, Stream, Wire, failed};
use super::{auth, connecting};
use crate::config::Credentials;
use crate::error::{Error, Result};
use crate::id::AgentId;

/// Largest message.
const FRAME_BYTES_MAX: usize = 256 << 20;
/// Bytes of a message's length.
const HEAD: usize = 4;

/// An authenticated connection, encrypted where that was asked for.
#[derive(Debug)]
pub struct Connection {
    wire: Wire,
    records: Option<Box<Records>>,
    /// The one of both sides that accepted.
    agent: AgentId,
    /// Kept for the next frame: fresh memory costs more than all else that is done with a frame.
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
}

impl Connection {
    /// Connects to an agent over TCP, and proves to it that we hold the secret.
    ///
    /// # Errors
    /// [`Error::AgentUnreachable`], [`Error::AuthRefused`], [`Error::EncryptionDiffers`], [`Error::Timeout`].
    pub fn tcp(addr: &str, ours: &Credentials, timeout: Duration) -> Result<Self> {
        let mut connection = Self::tcp_before(addr, ours, Deadline::within(timeout))?;
        connection.set_deadline(None)?;
        Ok(connection)
    }

    /// As [`Self::tcp`], for what is to be done by a deadline: that goes on to count.
    pub(super) fn tcp_before(addr: &str, ours: &Credentials, deadline: Deadline) -> Result<Self> {
        let left = || deadline.left().map_err(|error| failed(addr, deadline.allowed, &error));
        connecting::patiently(addr, left()?, || {
            let stream = connecting::tcp(addr, left()?)?;
            Self::client(Wire::new(Stream::Tcp(stream), addr.to_owned(), deadline), ours)
        })
    }

    /// Connects to the agent on this host over its Unix socket, in clear: it lies in a folder of this user.
    ///
    /// # Errors
    /// As [`Self::tcp`].
    pub fn unix(path: &Path, secret: &[u8; 32], timeout: Duration) -> Result<Self> {
        let agent = path.display().to_string();
        let deadline = Deadline::within(timeout);
        let ours = Credentials { secret: *secret, encrypt: false };
        let mut connection = connecting::patiently(&agent, timeout, || {
            let stream = connecting::unix(path, timeout)?;
            Self::client(Wire::new(Stream::Unix(stream), agent.clone(), deadline), &ours)
        })?;
        connection.set_deadline(None)?;
        Ok(connection)
    }

    fn new(wire: Wire, records: Option<Records>, agent: AgentId) -> Self {
        Self { wire, records: records.map(Box::new), agent, outgoing: Vec::new(), incoming: Vec::new() }
    }

    /// From now on all steps together have so long; without a deadline each has the time-out.
    pub(super) fn set_deadline(&mut self, deadline: Option<Deadline>) -> Result<()> {
        self.wire.set_deadline(deadline)
    }

    /// A connection that is let in; `None` if the other side ends it before a word.
    fn client(mut wire: Wire, ours: &Credentials) -> Result<Option<Self>> {
        let first = match auth::first_word(&mut wire) {
            Err(Error::AgentUnreachable { .. }) => return Ok(None),
            first => first?,
        };
        let (agent, records) = auth::prove(&mut wire, first, ours)?;
        Ok(Some(Self::new(wire, records, agent)))
    }

    /// Accepts a connection to `agent`, which is us, once the other side has proved that it holds the secret. One
    /// over a Unix socket is never encrypted.
    ///
    /// # Errors
    /// [`Error::AuthRefused`], [`Error::EncryptionDiffers`], [`Error::Timeout`], [`Error::Protocol`].
    pub fn accept(
        stream: Stream,
        peer: String,
        ours: &Credentials,
        agent: AgentId,
        timeout: Duration,
    ) -> Result<Self> {
        let encrypt = ours.encrypt && matches!(stream, Stream::Tcp(_));
        let mut wire = Wire::new(stream, peer, Deadline::within(timeout));
        let records = auth::verify(&mut wire, &Credentials { encrypt, ..*ours }, agent)?;
        wire.set_deadline(None)?;
        Ok(Self::new(wire, records, agent))
    }

    /// The one of both sides that accepted, as it says itself.
    pub(super) const fn agent(&self) -> AgentId {
        self.agent
    }

    /// Who is on the other side.
    #[must_use]
    pub fn peer(&self) -> &str {
        &self.wire.peer
    }

    /// The stream itself.
    #[must_use]
    pub const fn stream(&self) -> &Stream {
        &self.wire.stream
    }

    /// Writes one message.
    ///
    /// # Errors
    /// [`Error::AgentUnreachable`], [`Error::Timeout`]; [`Error::Protocol`] if it is too large.
    pub fn write<T: Serialize>(&mut self, message: &T) -> Result<()> {
        let frame = framed(message, std::mem::take(&mut self.outgoing))?;
        self.write_all(&frame)?;
        self.outgoing = spare(frame);
        Ok(())
    }

    fn write_all(&mut self, bytes: &[u8]) -> Result<()> {
        match &mut self.records {
            Some(records) => records.write_all(&mut self.wire, bytes),
            None => self.wire.write_all(bytes),
        }
    }

    /// Fills `buffer`.
    fn read_exact(&mut self, buffer: &mut [u8]) -> Result<()> {
        match &mut self.records {
            Some(records) => records.read_exact(&mut self.wire, buffer),
            None => self.wire.read_exact(buffer),
        }
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
        let begun = match &mut self.records {
            Some(records) => records.wait(&mut self.wire, go_on).map(|()| 0)?,
            None => self.wire.read_begun(&mut head, go_on)?,
        };
        self.read_exact(head.get_mut(begun..).unwrap_or_default())?;
        self.read_body(u32::from_le_bytes(head) as usize)
    }

    fn read_body<T: DeserializeOwned>(&mut self, len: usize) -> Result<T> {
        if len > FRAME_BYTES_MAX {
            return Err(Error::Protocol { what: format!("{} announces {len} bytes", self.peer()) });
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
}

/// A message as it is sent in clear.
///
/// # Errors
/// [`Error::Protocol`] if it is too large.
pub(super) fn frame<T: Serialize>(message: &T) -> Result<Vec<u8>> {
    framed(message, Vec::new())
}

fn framed<T: Serialize>(message: &T, mut frame: Vec<u8>) -> Result<Vec<u8>> {
    frame.clear();
    frame.extend([0; HEAD]);
    let mut frame =
        postcard::to_extend(message, frame).map_err(|error| Error::Protocol { what: error.to_string() })?;
    let len = frame.len() - HEAD;
    if len > FRAME_BYTES_MAX {
        let what = format!(
            "a message of {len} bytes is too large, {FRAME_BYTES_MAX} are the most: let batches have fewer rows \
             (spark.sql.execution.arrow.maxRecordsPerBatch), or answers be smaller"
        );
        return Err(Error::Protocol { what });
    }
    let size = u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes();
    if let Some(head) = frame.first_chunk_mut::<HEAD>() {
        *head = size;
    }
    Ok(frame)
}

/// A frame's memory, if it is not too much to be kept.
fn spare(frame: Vec<u8>) -> Vec<u8> {
    if frame.capacity() <= PART_BYTES { frame } else { Vec::new() }
}
