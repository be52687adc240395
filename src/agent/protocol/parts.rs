//! What requests and replies are made of.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{AgentInfo, Layout, Recovery};
use crate::error::Divergence;
use crate::id::{AgentId, EpochKey, Generation, LogOffset, TaskId};

/// Spark has committed an epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Commit {
    /// The epoch.
    pub key: EpochKey,
    /// Logs of this generation and later are not meant: a name may be used again after its commit.
    pub below: Generation,
    /// Epochs that had logs and are committed by this: micro-batches before it, too.
    pub epochs: Vec<EpochKey>,
}

/// A log of another layout, and where to read it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PoolEntry {
    /// The task.
    pub task: TaskId,
    /// Who holds it.
    pub holders: Vec<AgentInfo>,
    /// Whether rows may be missing in its operator's logs: no stage that recorded came to its end in all tasks.
    pub may_lack_rows: bool,
    /// How much of it was recorded under the other layout.
    pub until: LogOffset,
    /// The last attempt that recorded under another one: what an older one left may be gone.
    pub generation: Generation,
    /// The newest attempt of all whose blocks are meant by this.
    pub newest: Generation,
}

/// Blocks of a log that was absorbed from a frame.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Piece {
    /// The task.
    pub task: TaskId,
    /// The newest attempt of which the sender knew.
    pub generation: Generation,
    /// Position of the first block.
    pub from: LogOffset,
    /// The blocks.
    pub blocks: Vec<Bytes>,
}

/// What counts of a log that was absorbed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counting {
    /// The attempt in whose name it is written down.
    pub generation: Generation,
    /// The stage in which it was recorded.
    pub layout: Layout,
    /// The newest attempt and its agent, if that was not the first: what it does not have does not count.
    pub newest: Option<(Generation, AgentInfo)>,
    /// Where something is that does, if that agent is gone or others have all that was published.
    pub holders: Vec<AgentInfo>,
    /// Whether what these do not have does not count either.
    pub whole: bool,
    /// Whether something visible depends on the log: if nobody has it, it is in the checkpoint folder, or lost.
    pub published: bool,
}

/// A log with fewer copies than wanted.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Repair {
    /// The task.
    pub task: TaskId,
    /// Generation of its log.
    pub generation: Generation,
    /// Living agents that hold it.
    pub holders: Vec<AgentInfo>,
    /// Whether they have all that was published of it, and not only what was absorbed from frames.
    pub whole: bool,
}

/// What a task is known by when it ends, besides its summary.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Ending {
    /// Whether it came to the end of its input.
    pub done: bool,
    /// Whether the in-flight log has all of its frames.
    pub has_frames: bool,
    /// Where its output came from.
    pub recovery: Recovery,
    /// Each operator that sent to it, and a hash over the versions of all its logs.
    pub used: Vec<(String, u64)>,
    /// Why no attempt of its stage may go on: equal rows had other answers, and which is which is not known.
    pub refused: Option<Box<Divergence>>,
}

/// What an attempt leaves at its agent.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Left {
    /// The agent, which holds its frames if anyone does.
    pub by: AgentId,
    /// Whether the log turned out to be lost at its open.
    pub lost: bool,
    /// Length of the log, if it is still there.
    pub end: Option<LogOffset>,
}

/// Who shares what was absorbed, before something that depends on it becomes visible.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sharer {
    /// The agent.
    pub agent: AgentId,
    /// Generation of the attempt there. One that is left of a use of an epoch's name that was committed shares nothing
    /// in the next one.
    pub generation: Generation,
}

/// Which request of an agent it is. One that is repeated, as its answer was lost, keeps its number; so what comes
/// late, after others that were sent behind it, is known and does nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sent {
    /// The agent.
    pub by: AgentId,
    /// Grows with each request.
    pub number: u64,
}

impl Sent {
    /// Whether it comes after another of the same agent that was sent later.
    #[must_use]
    pub fn is_late(self, last: Option<Self>) -> bool {
        last.is_some_and(|last| last.by == self.by && self.number < last.number)
    }
}
