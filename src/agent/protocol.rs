//! What workers, agents and the registry say to each other.
//!
//! One request, one reply, in order, on an authenticated connection. Logs that may be large are read
//! in pieces of at most [`PIECE_BYTES`].

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::id::{AgentId, EpochKey, Generation, LogOffset, Partition, TaskId};
use crate::task::Summary;

/// Version of the messages; both sides of a connection must have the same.
pub const PROTOCOL_VERSION: u32 = 1;
/// Bytes of blocks in one message, beyond which a log is sent in pieces.
pub const PIECE_BYTES: u64 = 16 << 20;

/// A worker opens a task's log.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct OpenTask {
    /// The task.
    pub task: TaskId,
    /// Hash of the application id.
    pub app: u64,
    /// Spark stage.
    pub stage: u32,
    /// Spark's `taskAttemptId`, unique within the application.
    pub attempt: u64,
    /// Distinguishes openers within one attempt.
    pub worker: u64,
}

/// What a worker gets to know when its task is open.
#[derive(Debug, Clone)]
pub struct Opened {
    /// Names the open task in later messages.
    pub session: u64,
    /// Fencing number of this attempt.
    pub generation: Generation,
    /// The task's log so far.
    pub prior: Vec<Bytes>,
    /// Whether it was recorded by this same stage.
    pub same_stage: bool,
    /// Whether this epoch was recorded with another number of partitions.
    pub layout_changed: bool,
    /// Whether something was published that can be read nowhere any more.
    pub lost: bool,
}

/// Under which stage a log was recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Layout {
    /// Hash of the application id.
    pub app: u64,
    /// Spark stage.
    pub stage: u32,
    /// Tasks of the stage, where known.
    pub tasks: Option<u32>,
}

impl Layout {
    /// Whether both are one stage of one application.
    #[must_use]
    pub const fn same_stage(&self, other: &Self) -> bool {
        self.app == other.app && self.stage == other.stage
    }
}

/// An agent as others reach it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentInfo {
    /// Its id.
    pub id: AgentId,
    /// `ip:port`.
    pub addr: String,
    /// Name of its host, so that copies go to other hosts first.
    pub host: String,
    /// Whether it is the driver's.
    pub driver: bool,
}

/// The registry's answer to an open.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Grant {
    /// Fencing number of the new attempt.
    pub generation: Generation,
    /// Who holds the log now.
    pub holders: Vec<AgentInfo>,
    /// Whether anything was ever published.
    pub published: bool,
    /// All agents that are alive, for choosing peers.
    pub agents: Vec<AgentInfo>,
    /// This attempt's layout.
    pub layout: Layout,
    /// Whether the log was recorded by this same stage.
    pub same_stage: bool,
    /// Whether the epoch was recorded with another number of partitions.
    pub layout_changed: bool,
}

/// A log of another layout, and where to read it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PoolEntry {
    /// The task.
    pub task: TaskId,
    /// Who holds it.
    pub holders: Vec<AgentInfo>,
    /// How much of it was recorded under the other layout.
    pub until: LogOffset,
}

/// Everything that can be asked.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Request {
    /// Worker: open a task.
    Open(OpenTask),
    /// Worker: the next piece of an open task's prior log.
    ReadSession {
        /// The open task.
        session: u64,
        /// Where to read from.
        from: LogOffset,
    },
    /// Worker: append a block; answered when it is stable.
    Append {
        /// The open task.
        session: u64,
        /// The block.
        block: Bytes,
    },
    /// Worker: this attempt is over.
    Close {
        /// The open task.
        session: u64,
        /// Whether it came to the end of its input.
        done: bool,
        /// What it did.
        summary: Summary,
    },
    /// Worker: logs of the other partitions under another layout.
    Pool {
        /// The open task.
        session: u64,
    },
    /// Anyone: one log of the pool, piece by piece.
    Read {
        /// The task.
        task: TaskId,
        /// Where to read from.
        from: LogOffset,
    },
    /// Agent to registry: here I am.
    Register(AgentInfo),
    /// Agent to registry, twice a second.
    Heartbeat {
        /// Who.
        agent: AgentId,
        /// Commits known so far.
        commits_seen: u64,
    },
    /// Agent to registry: an attempt wants to open.
    Grant {
        /// What the worker asked.
        open: OpenTask,
        /// The agent that will hold the log.
        agent: AgentId,
    },
    /// Agent to registry: who holds the log of this generation from now on.
    Holding {
        /// The task.
        task: TaskId,
        /// The generation.
        generation: Generation,
        /// All who hold it.
        holders: Vec<AgentId>,
        /// Length of what was adopted at an open, and the layout of the attempt.
        adopted: Option<(LogOffset, Layout)>,
        /// Whether something was published or adopted.
        published: bool,
    },
    /// Agent to registry: an attempt is over.
    Closed {
        /// The task.
        task: TaskId,
        /// The generation.
        generation: Generation,
        /// What it did.
        summary: Summary,
        /// Whether the log turned out to be lost at its open.
        lost: bool,
    },
    /// Agent to registry: who is alive?
    Agents,
    /// Agent to registry: logs of another layout.
    PoolOf {
        /// The task that asks.
        task: TaskId,
        /// Its layout.
        layout: Layout,
    },
    /// Agent to agent: raise the fence and tell how long the log is.
    Fence {
        /// The task.
        task: TaskId,
        /// Lower generations are refused from now on.
        generation: Generation,
    },
    /// Agent to agent: hold a copy.
    Replicate {
        /// The task.
        task: TaskId,
        /// Generation of the writer.
        generation: Generation,
        /// Layout of the writer.
        layout: Layout,
        /// Whether this begins a new copy in place of any older.
        reset: bool,
        /// Position of the first block.
        from: LogOffset,
        /// The blocks.
        blocks: Vec<Bytes>,
    },
    /// Anyone: what this agent holds.
    Stats,
    /// Anyone, to the driver's agent: what all agents hold.
    ClusterStats,
}

/// Every answer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Reply {
    /// To `Open`; the log is read with `ReadSession`.
    Opened {
        /// Names the open task.
        session: u64,
        /// Its generation.
        generation: Generation,
        /// Length of its log.
        end: LogOffset,
        /// See [`Opened`].
        same_stage: bool,
        /// See [`Opened`].
        layout_changed: bool,
        /// See [`Opened`].
        lost: bool,
    },
    /// A piece of a log; empty at its end.
    Blocks(Vec<Bytes>),
    /// To `Pool`: which logs there are.
    Pool(Vec<(Partition, Vec<Bytes>)>),
    /// To `Grant`.
    Granted(Grant),
    /// To `Grant`: an attempt of another stage has the task open; ask again.
    Busy,
    /// To `Heartbeat`: epochs committed since, and the number of commits so far.
    Beat {
        /// Whether the registry knows this agent.
        known: bool,
        /// Newly committed.
        committed: Vec<EpochKey>,
        /// Commits so far.
        commits: u64,
    },
    /// To `Agents`.
    AgentsAre(Vec<AgentInfo>),
    /// To `PoolOf`.
    PoolIs(Vec<PoolEntry>),
    /// To `Fence`: the length of the log here, if there is one.
    Fenced(Option<LogOffset>),
    /// To `Stats`.
    Stats(AgentStats),
    /// To `ClusterStats`.
    ClusterStats(ClusterStats),
    /// Done.
    Done,
    /// Refused, or failed.
    Failed(Error),
}

/// What one agent holds of one task.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct HeldStats {
    /// The task.
    pub task: TaskId,
    /// Newest generation seen.
    pub generation: Generation,
    /// Blocks held.
    pub blocks: u64,
    /// Bytes of the log.
    pub bytes: u64,
    /// Of them, bytes on disk only.
    pub spilled: u64,
}

/// What one agent holds.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct AgentStats {
    /// Its logs.
    pub held: Vec<HeldStats>,
    /// Bytes of logs in memory.
    pub memory_bytes: u64,
    /// Bytes of logs spilled.
    pub spilled_bytes: u64,
    /// Bytes sent to peers since the start.
    pub sent_bytes: u64,
}

/// What the registry knows of one task.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TaskStats {
    /// The task, as text.
    pub task: String,
    /// Operator of the task.
    pub operator: String,
    /// Its partition.
    pub partition: u32,
    /// Newest generation: how often it was opened.
    pub opens: u64,
    /// Agents that hold its log.
    pub holders: Vec<String>,
    /// Bytes of the log.
    pub bytes: u64,
    /// Of them spilled, on the agent that has most.
    pub spilled: u64,
    /// Bytes sent to other agents for it.
    pub sent: u64,
    /// Rows of the last attempt.
    pub rows: u64,
    /// Rows replayed, over all attempts.
    pub replayed: u64,
    /// Rows run live, over all attempts.
    pub live: u64,
    /// Attempts that found the log lost.
    pub lost: u64,
}

/// What all agents hold.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ClusterStats {
    /// Agents by address, with bytes in memory, spilled and sent.
    pub agents: Vec<AgentSummary>,
    /// Logs of epochs not committed yet.
    pub tasks: Vec<TaskStats>,
    /// Sums over everything since the start, committed epochs included.
    pub totals: Totals,
}

/// One agent in [`ClusterStats`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AgentSummary {
    /// `ip:port`.
    pub addr: String,
    /// Host name.
    pub host: String,
    /// Whether it answered.
    pub alive: bool,
    /// Logs held.
    pub logs: u64,
    /// Bytes of logs in memory.
    pub memory_bytes: u64,
    /// Bytes of logs spilled.
    pub spilled_bytes: u64,
    /// Bytes sent to peers.
    pub sent_bytes: u64,
}

/// Sums since the start of the session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Attempts opened.
    pub opens: u64,
    /// Attempts that came to their end or stopped.
    pub closed: u64,
    /// Rows seen.
    pub rows: u64,
    /// Rows replayed.
    pub replayed: u64,
    /// Rows run live.
    pub live: u64,
    /// Service calls made.
    pub calls: u64,
    /// Bytes recorded.
    pub bytes: u64,
    /// Logs found lost.
    pub lost: u64,
    /// Epochs committed.
    pub commits: u64,
}
