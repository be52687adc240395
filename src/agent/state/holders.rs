//! What agents ask of one that holds ranges of a state.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::id::{AgentId, Generation};
use crate::state::{CommitPoint, Limits, Page, Range, RangeSet, StateId, Version};

/// Which delta a part is of, and which part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The epoch.
    pub epoch: u64,
    /// What the task has read.
    pub base: Version,
    /// The task's partition.
    pub partition: u32,
    /// The attempt.
    pub generation: Generation,
    /// The ranges that the holder is to have of it.
    pub ranges: RangeSet,
}

/// A question to a holder.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ToHolder {
    /// The state.
    pub state: StateId,
    /// How often the state was restored in this application: what was held before is not meant.
    pub life: u64,
    /// What is asked.
    pub asked: Asked,
}

/// What is asked of a holder.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Asked {
    /// To apply what was committed.
    Advance {
        /// Commits that it may not know, in order.
        points: Vec<CommitPoint>,
    },
    /// Entries of keys.
    Read {
        /// At which version.
        version: Version,
        /// Ascending.
        keys: Vec<Bytes>,
        /// Where to go on.
        from: Option<Bytes>,
        /// What expires up to then is over.
        now_ms: i64,
        /// How much to answer with.
        limits: Limits,
    },
    /// Timers that are due.
    Due {
        /// At which version.
        version: Version,
        /// First and last hash of the keys.
        hashes: (u64, u64),
        /// In these ranges.
        ranges: RangeSet,
        /// At this time or before.
        until_ms: i64,
        /// The last one that is known.
        after: Option<(i64, Bytes)>,
        /// How many at most.
        timers_max: u32,
    },
    /// To hold its part of a delta, once all of it is there.
    Hold {
        /// Who sends it.
        by: AgentId,
        /// Names what is sent.
        upload: u64,
        /// Where the piece stands in it.
        at: u64,
        /// The piece.
        piece: Bytes,
        /// With the last piece, what it is.
        part: Option<Part>,
    },
    /// To keep ranges as they are now, to be copied.
    Open {
        /// The ranges.
        ranges: RangeSet,
        /// At this version, or a later one.
        version: Version,
    },
    /// A piece of a delta that is not committed.
    Pending {
        /// What [`Answer::Opened`] said.
        view: u64,
        /// Epoch, partition and attempt.
        name: (u64, u32, Generation),
        /// Of these ranges.
        ranges: RangeSet,
        /// Where to go on in it.
        at: u64,
    },
    /// Entries of a range that is kept to be copied.
    Page {
        /// What [`Answer::Opened`] said.
        view: u64,
        /// The range.
        range: Range,
        /// Where to go on.
        from: Option<Bytes>,
    },
    /// To keep ranges for longer, which are to be copied later.
    Keep {
        /// What [`Answer::Opened`] said.
        view: u64,
    },
    /// Everything is copied.
    Close {
        /// What [`Answer::Opened`] said.
        view: u64,
    },
}

/// What a holder answers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Answer {
    /// To `Advance`: its version now.
    Advanced(Version),
    /// To `Read`.
    Entries {
        /// Ascending.
        entries: Bytes,
        /// Where what was left out of lists and maps begins, ascending.
        cut: Vec<Bytes>,
        /// Where to go on, if that is not all.
        next: Option<Bytes>,
    },
    /// To `Due`.
    Due {
        /// Expiry and key.
        timers: Vec<(i64, Bytes)>,
        /// Whether there are more.
        more: bool,
    },
    /// To `Hold`.
    Held,
    /// To `Open`.
    Opened {
        /// Names what is kept.
        view: u64,
        /// What it is.
        version: Version,
        /// Deltas that are not committed: epoch, partition and attempt.
        pending: Vec<(u64, u32, Generation)>,
    },
    /// To `Pending`; empty at its end.
    Piece(Bytes),
    /// To `Page`.
    Page(Page),
    /// To `Keep`.
    Kept,
    /// To `Close`.
    Closed,
    /// It is at this version, and has to be told what was committed since.
    Behind(Version),
    /// It does not have these ranges, which were asked for. They may be others' by now.
    NotHeld(RangeSet),
}
