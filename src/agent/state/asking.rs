//! What agents ask of the registry, and tell it, about state.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::holders::Part;
use super::messages::Clock;
use crate::agent::protocol::AgentInfo;
use crate::error::Error;
use crate::id::{AgentId, Generation, TaskId};
use crate::state::{CommitPoint, Range, RangeSet, StateId, Version};

/// Who holds ranges of a state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holding {
    /// The agent.
    pub agent: AgentInfo,
    /// Ranges of which it has everything.
    pub ready: RangeSet,
    /// Ranges that it is being given: it takes deltas of them, and is not asked.
    pub joining: RangeSet,
}

/// What a task that begins is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Located {
    /// The state.
    pub state: StateId,
    /// How often it was restored in this application.
    pub life: u64,
    /// What the task reads.
    pub version: Version,
    /// Who holds the ranges of its partition; whoever is asked first comes first.
    pub holders: Vec<Holding>,
    /// When that was, in the registry's count: what is told of a holder is of nothing that it was given since.
    pub as_of: u64,
    /// Times of its batch.
    pub clock: Clock,
    /// What the operator has said of its variables.
    pub catalog: Bytes,
    /// The delta of an earlier attempt, if that came to its end: its fingerprint.
    pub done: Option<u64>,
    /// Whether there may be timers.
    pub has_timers: bool,
}

/// A task's delta is held.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// The task.
    pub task: TaskId,
    /// The attempt.
    pub generation: Generation,
    /// Which of its operator's partitions it computes.
    pub partition: u32,
    /// Partitions that its operator has.
    pub partitions: u32,
    /// As in [`Located`].
    pub life: u64,
    /// What it has read.
    pub base: Version,
    /// Fingerprint of the delta.
    pub fingerprint: u64,
    /// Bytes of the delta.
    pub bytes: u64,
    /// What it says of the operator's variables, if that is not what was there before.
    pub catalog: Option<Bytes>,
    /// When the first timer of its partition is due, as it has changed them.
    pub due_ms: Option<i64>,
    /// Who holds it, as of when it was known to be a holder, and which ranges of it.
    pub held: Vec<(AgentId, u64, RangeSet)>,
    /// Who did not answer for so long that nobody waits for it any more.
    pub silent: Vec<AgentId>,
}

/// Ranges that an agent is to make its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Join {
    /// What is begun anew has another number.
    pub number: u64,
    /// The state.
    pub state: StateId,
    /// As in [`Located`].
    pub life: u64,
    /// What was committed last.
    pub version: Version,
    /// The ranges.
    pub ranges: RangeSet,
    /// Who has them.
    pub sources: Vec<Holding>,
    /// As in [`Located`].
    pub as_of: u64,
    /// If nobody has: deltas that count and are not committed, to be read from the checkpoint folder with the rest.
    pub pending: Vec<Part>,
}

/// Ranges that an agent is to write to the checkpoint folder as they are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Basis {
    /// The state.
    pub state: StateId,
    /// As in [`Located`].
    pub life: u64,
    /// The last attempt before those that have gone on with it.
    pub after: Generation,
    /// The ranges.
    pub ranges: RangeSet,
}

/// A question to the registry.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum ToRegistry {
    /// A task begins.
    Where {
        /// The task.
        task: TaskId,
        /// The attempt.
        generation: Generation,
        /// Which of its operator's partitions it computes.
        partition: u32,
        /// Partitions that its operator has.
        partitions: u32,
    },
    /// What was committed after a version.
    Points {
        /// The state.
        state: StateId,
        /// As in [`Located`].
        life: u64,
        /// The version.
        after: Version,
    },
    /// A task's delta is held.
    Done(Done),
    /// A holder has not what it should have.
    Lacks {
        /// Who.
        agent: AgentId,
        /// The state.
        state: StateId,
        /// As in [`Located`].
        life: u64,
        /// Of these ranges.
        ranges: RangeSet,
        /// As in [`Located`].
        as_of: u64,
    },
    /// Which ranges should I have?
    Joins {
        /// Who asks.
        agent: AgentId,
    },
    /// An agent has ranges that it was to have.
    Joined {
        /// Who.
        agent: AgentId,
        /// As in [`Join`].
        number: u64,
        /// The state.
        state: StateId,
        /// A range that it has now.
        range: Range,
        /// At which version.
        version: Version,
    },
    /// Ranges were written to the checkpoint folder as they are.
    Based {
        /// The state.
        state: StateId,
        /// As in [`Located`].
        life: u64,
        /// The ranges.
        ranges: RangeSet,
        /// What they are.
        version: Version,
        /// Bytes that were written.
        bytes: u64,
    },
    /// A range cannot be had.
    NotJoined {
        /// The state.
        state: StateId,
        /// As in [`Located`].
        life: u64,
        /// Why.
        error: Error,
    },
}

/// The registry's answer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum FromRegistry {
    /// To `Where`.
    Located(Box<Located>),
    /// To `Where`: some ranges are being restored; ask again.
    IsRestored,
    /// To `Points`: in order.
    Points(Vec<CommitPoint>),
    /// To `Done`: it counts.
    Counts,
    /// To `Done`: these are to have it, too.
    Also {
        /// With the ranges that they lack.
        holders: Vec<Holding>,
        /// As in [`Located`].
        as_of: u64,
    },
    /// To `Joins`.
    Joins {
        /// All that is the agent's, what it is to make its own included; everything else it may forget.
        own: Vec<(StateId, u64, RangeSet)>,
        /// What it is to make its own.
        joins: Vec<Join>,
        /// What it is to write to the checkpoint folder.
        bases: Vec<Basis>,
        /// As in [`Located`].
        as_of: u64,
    },
    /// Done.
    Heard,
}
