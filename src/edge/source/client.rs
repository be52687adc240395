//! A reader's connection to a receiver.

use std::time::Duration;

use crate::config::Credentials;
use crate::edge::net::Connection;
use crate::error::{Error, Result};
use crate::source::{Bounds, Part, SourceReply, SourceRequest, SourceStats, read_block, read_span};

/// How long a receiver may take to answer: a claim waits until the reader before has gone.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A connection to a receiver.
#[derive(Debug)]
pub struct SourceClient {
    connection: Connection,
}

impl SourceClient {
    /// Connects to the receiver at `addr`.
    ///
    /// # Errors
    /// [`Error::AgentUnreachable`], [`Error::AuthRefused`], [`Error::EncryptionDiffers`], [`Error::Timeout`].
    pub fn connect(addr: &str, ours: &Credentials) -> Result<Self> {
        Ok(Self { connection: Connection::tcp(addr, ours, TIMEOUT)? })
    }

    fn ask(&mut self, request: &SourceRequest) -> Result<SourceReply> {
        self.connection.write(request)?;
        match self.connection.read()? {
            SourceReply::Failed(error) => Err(error),
            reply => Ok(reply),
        }
    }

    fn done(&mut self, request: &SourceRequest) -> Result<()> {
        match self.ask(request)? {
            SourceReply::Done => Ok(()),
            _ => Err(unexpected()),
        }
    }

    /// Becomes the reader of the log; the receiver's incarnation. `before` is that of the one at which it was the reader
    /// before.
    ///
    /// # Errors
    /// [`Error::SourceInUse`] if another one is, or the receiver has lost the log; [`Error::AgentUnreachable`] if it has
    /// and is no business of this reader.
    pub fn claim(&mut self, owner: String, before: Option<u64>) -> Result<u64> {
        match self.ask(&SourceRequest::Claim { owner, before })? {
            SourceReply::Claimed(incarnation) => Ok(incarnation),
            _ => Err(unexpected()),
        }
    }

    /// Rows that can be read.
    ///
    /// # Errors
    /// What keeps the receiver from taking in anything.
    pub fn bounds(&mut self) -> Result<Bounds> {
        match self.ask(&SourceRequest::Bounds)? {
            SourceReply::Bounds(bounds) => Ok(bounds),
            _ => Err(unexpected()),
        }
    }

    /// Rows from one position on, before another: as many as come in one answer. What follows begins at the
    /// position returned.
    ///
    /// # Errors
    /// [`Error::SourceTruncated`]; [`Error::CorruptLog`] if rows are missing.
    pub fn read(&mut self, from: u64, to: u64) -> Result<(Vec<Part>, u64)> {
        let SourceReply::Blocks(blocks) = self.ask(&SourceRequest::Read { from, to })? else {
            return Err(unexpected());
        };
        let (mut parts, mut at) = (Vec::with_capacity(blocks.len()), from);
        for block in &blocks {
            let (span, _) = read_span(block)?;
            if span.first > at || span.end() <= at {
                let what = format!("a source's log lacks rows from {at} on");
                return Err(Error::CorruptLog { what });
            }
            parts.extend(read_block(block, at, to)?);
            at = span.end().min(to);
        }
        if at == from && from < to {
            return Err(Error::CorruptLog {
                what: format!("a source's log has no rows from {from} to {to}"),
            });
        }
        Ok((parts, at))
    }

    /// Spark has committed the rows before a position.
    ///
    /// # Errors
    /// Those of the connection.
    pub fn commit(&mut self, to: u64) -> Result<()> {
        self.done(&SourceRequest::Commit { to })
    }

    /// What was received.
    ///
    /// # Errors
    /// Those of the connection.
    pub fn stats(&mut self) -> Result<SourceStats> {
        match self.ask(&SourceRequest::Stats)? {
            SourceReply::Stats(stats) => Ok(stats),
            _ => Err(unexpected()),
        }
    }

    /// Is not the reader any more.
    ///
    /// # Errors
    /// Those of the connection.
    pub fn release(&mut self) -> Result<()> {
        self.done(&SourceRequest::Release)
    }
}

fn unexpected() -> Error {
    Error::Protocol { what: "the receiver answered something else than was asked".into() }
}
