//! What a receiver is asked over its connections; the framing and the proof of the secret are the agents'.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::error::Error;

/// A question to a receiver.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum SourceRequest {
    /// From now on this connection is the reader of the log; there is one at a time.
    Claim {
        /// Who that is, for the message that another one gets.
        owner: String,
        /// Incarnation of the receiver that it was the reader at, if it was.
        before: Option<u64>,
    },
    /// Which rows there are.
    Bounds,
    /// Blocks that hold rows from one position up to another, as many as go into one answer.
    Read {
        /// First position.
        from: u64,
        /// Position after the last.
        to: u64,
    },
    /// Spark has committed the rows before a position.
    Commit {
        /// The position.
        to: u64,
    },
    /// What was received.
    Stats,
    /// The query was stopped: nobody needs the receiver, unless somebody else claims it soon.
    Release,
}

/// Rows of a log that can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bounds {
    /// Position of the first.
    pub first: u64,
    /// Position after the last.
    pub safe: u64,
}

/// What a receiver has done since it was started.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceStats {
    /// Position of the first row that can be read.
    pub first: u64,
    /// Position after the last.
    pub safe: u64,
    /// Bytes on disk.
    pub disk_bytes: u64,
    /// Bytes in memory.
    pub memory_bytes: u64,
    /// Rows received.
    pub rows: u64,
    /// Lines longer than allowed.
    pub too_long: u64,
    /// Lines or events that are no UTF-8 and were refused.
    pub not_utf8: u64,
    /// Lines or events in which bytes were replaced.
    pub repaired: u64,
    /// Connections made or accepted.
    pub connections: u64,
    /// Attempts to connect that failed, and connections that broke.
    pub broken: u64,
    /// Milliseconds for which senders were held back, as `disk` was used up.
    pub held_back_ms: u64,
    /// Writes to an object store that failed and were made again; senders were held back meanwhile.
    pub failed_writes: u64,
}

/// A receiver's answer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum SourceReply {
    /// Done.
    Done,
    /// To [`SourceRequest::Claim`]: the receiver's incarnation.
    Claimed(u64),
    /// To [`SourceRequest::Bounds`].
    Bounds(Bounds),
    /// To [`SourceRequest::Read`].
    Blocks(Vec<Bytes>),
    /// To [`SourceRequest::Stats`].
    Stats(SourceStats),
    /// It did not work.
    Failed(Error),
}
