//! What a worker says of its task's state to its agent.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::state::{Limits, Version};

/// Times by which a task goes: those of its batch, so the same if the batch runs again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clock {
    /// Processing time, in milliseconds since 1970.
    pub now_ms: i64,
    /// The watermark; -1 without one.
    pub watermark_ms: i64,
    /// The watermark of the batch before, below which rows are late; -1 without one.
    pub late_ms: i64,
}

/// When the first timer of a state is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirstDue {
    /// In this version.
    pub version: Version,
    /// Then, if there is a timer.
    pub due_ms: Option<i64>,
}

/// What the reader of an operator's timers asks before a batch.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AboutTimers {
    /// The reader's name: it stands in its offsets, so in its query's.
    pub reader: String,
    /// The operator, as the program names it.
    pub operator: String,
    /// Whether timers are due by the watermark, and not by the clock.
    pub by_watermark: bool,
    /// Of those that go by the clock: none that is due later.
    pub until_ms: Option<i64>,
}

/// A worker's request about the state of a task that it has open.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AboutState {
    /// The open task.
    pub session: u64,
    /// What for.
    pub wanted: Wanted,
}

/// What a worker wants of its task's state. `Begin` comes first.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Wanted {
    /// To know which version the task reads.
    Begin {
        /// Which of the operator's partitions the task computes: `coalesce` has Spark's number differ.
        partition: u32,
        /// Partitions that the operator has in this epoch.
        partitions: u32,
    },
    /// What there is of some keys.
    Read {
        /// [`crate::state::KeyPrefix`]es, ascending, of the task's partition. Those that are done with need not be
        /// sent again with `from`.
        keys: Vec<Bytes>,
        /// Where to go on: an [`crate::state::EntryKey`].
        from: Option<Bytes>,
        /// How much to answer with; less where a message does not hold it.
        limits: Limits,
    },
    /// Timers of the task's partition that are due, by their expiry.
    Due {
        /// At this time or before.
        until_ms: i64,
        /// The last one that is known: its expiry, and its [`crate::state::KeyPrefix`].
        after: Option<(i64, Bytes)>,
    },
    /// That the task's delta is held: sent in pieces.
    Write {
        /// A piece of the encoded delta.
        piece: Bytes,
        /// Whether that is all of it.
        last: bool,
    },
}

/// What became of what was wanted.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Found {
    /// To `Begin`.
    Begun {
        /// What the task reads.
        version: Version,
        /// Times of its batch.
        clock: Clock,
        /// What the operator has said of its variables so far; empty if nothing.
        catalog: Bytes,
    },
    /// To `Read`.
    Entries {
        /// As [`crate::state::Entries`] travel, ascending.
        entries: Bytes,
        /// Where what was left out of lists and maps begins: [`crate::state::EntryKey`]s, ascending.
        cut: Vec<Bytes>,
        /// Where to go on, if that is not all.
        next: Option<Bytes>,
    },
    /// To `Due`.
    Due {
        /// Expiry and [`crate::state::KeyPrefix`], ascending.
        timers: Vec<(i64, Bytes)>,
        /// Whether there are more.
        more: bool,
    },
    /// To `Write`: with the last piece, all who hold the state have the delta, and the registry knows.
    Written,
}
