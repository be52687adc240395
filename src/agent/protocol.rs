//! What workers, agents and the registry say to each other.
//!
//! One request, one reply, in order, on an authenticated connection. Logs that may be large are read
//! in pieces of at most [`PIECE_BYTES`].

mod opening;
mod parts;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

pub use self::opening::{
    AgentInfo, AgentStanding, Beginning, Fence, Grant, HeldCopy, Layout, OfRdd, OpenTask, Opened, Recording,
    Silence,
};
pub use self::parts::{Commit, Counting, Ending, Left, Piece, PoolEntry, Repair, Sent, Sharer};
pub use super::borders::Borders;
pub use super::code::{Code, Execution, Placed, Plan, Use};
use super::members::News;
use super::state;
use super::state::asking::{FromRegistry, ToRegistry};
use super::state::holders::{Answer, ToHolder};
use super::state::messages::{AboutState, AboutTimers, FirstDue};
pub use super::stats::{
    AgentStats, AgentSummary, ClusterStats, HeldState, HeldStats, OperatorStats, Recovery, StateFigures,
    TaskStats, Totals,
};
use super::values::messages::{AboutValues, Found};
use crate::error::Error;
use crate::frame::Group;
use crate::id::{AgentId, EpochKey, Generation, LogOffset, TaskId};
use crate::task::{PoolQuestions, PoolRows, Summary};

/// Version of the messages; both sides of a connection must have the same.
pub const PROTOCOL_VERSION: u32 = 40;
/// Bytes of blocks in one message, beyond which a log is sent in pieces.
pub const PIECE_BYTES: u64 = 1 << 20;

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
        /// What it did.
        summary: Summary,
        /// How it ended.
        ending: Ending,
    },
    /// Worker: keep a block here; its determinants travel in the task's frames.
    Keep {
        /// The open task.
        session: u64,
        /// The block.
        block: Bytes,
    },
    /// Worker: hold copies of what came with a frame.
    Absorb {
        /// The open task that consumes the frame.
        session: u64,
        /// The groups of the frame's delta.
        groups: Vec<Group>,
    },
    /// Worker: answered when all that was absorbed here in the task's epoch is stable.
    Commit {
        /// The open task.
        session: u64,
    },
    /// Worker: append frames to the task's in-flight log.
    Send {
        /// The open task.
        session: u64,
        /// The frames.
        frames: Vec<Bytes>,
    },
    /// Worker: a piece of the frames that an earlier attempt sent.
    Resend {
        /// The open task.
        session: u64,
        /// Where to read from, in bytes of the in-flight log.
        from: LogOffset,
    },
    /// Worker: this task's log was recorded with inputs that are gone; the next attempt begins anew.
    Discard {
        /// The open task.
        session: u64,
    },
    /// Worker: how many tasks of this operator were opened in the open task's epoch?
    Senders {
        /// The open task.
        session: u64,
        /// The operator.
        operator: String,
        /// Which use of it sends.
        token: u64,
    },
    /// Worker: rows that other partitions recorded under another layout.
    Pool {
        /// The open task.
        session: u64,
        /// Which rows.
        questions: PoolQuestions,
        /// Whether the task cannot tell rows with one fingerprint apart.
        checks_ambiguity: bool,
    },
    /// Agent to agent: one log, piece by piece.
    Read {
        /// The task.
        task: TaskId,
        /// Where to read from.
        from: LogOffset,
        /// Whether a copy that is being made is none.
        whole: bool,
        /// The newest attempt that the asker knows of, if it wants nothing of later ones.
        newest: Option<Generation>,
    },
    /// Agent to agent: what counts of a log, of which more came with a frame.
    Confirm {
        /// The task.
        task: TaskId,
        /// Generation in which it was opened there.
        generation: Generation,
        /// Where to read from.
        from: LogOffset,
    },
    /// Agent to registry: here I am.
    Register {
        /// Where it is.
        info: AgentInfo,
        /// Spark's name of the executor beside which it stands; empty if there is no such one.
        executor: String,
    },
    /// Agent to registry: its executor has ended, and so will this agent.
    Leaving {
        /// Which.
        agent: AgentId,
    },
    /// Agent to registry, twice a second.
    Heartbeat {
        /// Who.
        agent: AgentId,
        /// Commits known so far.
        commits_seen: u64,
    },
    /// Agent to registry: an agent does not answer; is it dead?
    Silent {
        /// Who.
        agent: AgentId,
        /// Whether nobody listens where it was.
        refused: bool,
    },
    /// Agent to registry: which of these wrote to the checkpoint folder and are dead, or have been silent for so long that
    /// they are from now on?
    DeadAmong {
        /// Some agents.
        agents: Vec<AgentId>,
    },
    /// The driver's agent to all others: it ends, and the application with it.
    Farewell,
    /// Agent to registry: an attempt wants to open.
    Grant {
        /// What the worker asked.
        open: OpenTask,
        /// Which request it is, of the agent that will hold the log.
        sent: Sent,
        /// Commits known so far: the agent must know all before it begins a log.
        commits_seen: u64,
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
        /// Whether every one of them has all of it: the log is not one that came with frames.
        whole: bool,
        /// Which request it is.
        sent: Sent,
    },
    /// Agent to registry: an attempt is over.
    Closed {
        /// The task.
        task: TaskId,
        /// The generation.
        generation: Generation,
        /// What it did.
        summary: Summary,
        /// How it ended.
        ending: Ending,
        /// What it leaves.
        left: Left,
    },
    /// Agent to registry: attempts for which others wait are not here.
    Over {
        /// Who says so.
        agent: AgentId,
        /// Which.
        attempts: Vec<(TaskId, Generation)>,
    },
    /// Agent to registry: which attempts count of logs that were absorbed?
    Counting {
        /// Who asks.
        by: Sharer,
        /// The tasks, of one epoch; with the attempt that has vouched for what was absorbed of each.
        tasks: Vec<(TaskId, Generation)>,
    },
    /// Agent to registry: an attempt that was granted was never opened, as its agent says.
    Withdrawn {
        /// The task.
        task: TaskId,
        /// The attempt.
        generation: Generation,
    },
    /// Agent to registry: logs that something visible depends on, and who holds them.
    Visible {
        /// The tasks, of one epoch; with the attempt that each was compared with.
        tasks: Vec<(TaskId, Generation, Beginning)>,
        /// Agents that hold copies.
        holders: Vec<AgentId>,
        /// Who says so.
        by: Sharer,
    },
    /// Agent to registry: the task's log is to be disregarded.
    Discarded {
        /// The task.
        task: TaskId,
        /// Generation of the attempt that found out.
        generation: Generation,
    },
    /// Agent to registry: no agent has anything any more of a log that was discarded.
    Forgotten {
        /// The task.
        task: TaskId,
        /// Up to which attempt.
        generation: Generation,
    },
    /// Agent to registry: tasks of the stage that ran this operator in this epoch.
    TasksOf {
        /// Any task of the operator.
        task: TaskId,
        /// Which use of it is meant.
        token: u64,
    },
    /// Agent to registry: who is alive?
    Agents {
        /// Changes known so far.
        seen: u64,
    },
    /// Agent to registry: of which logs should I make another copy?
    Repairs {
        /// Who asks.
        agent: AgentId,
    },
    /// Agent to registry: logs of another layout.
    PoolOf {
        /// The task that asks.
        task: TaskId,
        /// Its layout.
        layout: Layout,
        /// The last one it knows of.
        after: Option<TaskId>,
        /// Whether it waits for the next one, which a later attempt than it was told of has opened.
        waits: bool,
    },
    /// Agent to agent: raise the fence and tell how long the log is.
    Fence {
        /// The task.
        task: TaskId,
        /// What is refused from now on.
        fence: Fence,
    },
    /// Agent to agent: hold a copy.
    Replicate {
        /// The task.
        task: TaskId,
        /// Generation of the writer.
        generation: Generation,
        /// Below which generation the epoch is over, as the sender knows.
        over: Generation,
        /// Layout of the writer.
        layout: Layout,
        /// Whether this begins a copy in place of any other, which stays but for what differs.
        reset: bool,
        /// Position of the first block.
        from: LogOffset,
        /// The blocks.
        blocks: Vec<Bytes>,
        /// Whether that is all the writer has.
        all: bool,
        /// Whether the writer has all that was published, and not only what came with frames.
        whole: bool,
        /// Which request it is.
        sent: Sent,
    },
    /// Agent to agent: drop what is here of a task's log, which was discarded.
    Forget {
        /// The task.
        task: TaskId,
        /// Generation that was discarded: what newer ones have recorded stays.
        generation: Generation,
    },
    /// Agent to agent: hold copies of absorbed logs.
    Share {
        /// The pieces.
        pieces: Vec<Piece>,
        /// Generation of a task that has absorbed them.
        born: Generation,
        /// Below this generation, what there is of the epoch is of a use of its name that is committed.
        over: Generation,
        /// Whose copies they are.
        by: AgentId,
    },
    /// Worker: permits of a rate limit of the application. Agents pass it on to the registry.
    Permits {
        /// Name of the limit.
        name: String,
        /// Nanoseconds from one permit to the next.
        interval_ns: u64,
        /// How many.
        count: u32,
    },
    /// Worker: which use of an epoch's name is this? Agents pass it on to the driver's.
    UseOf(EpochKey),
    /// Worker, or its agent on its behalf: answers that all tasks of an epoch share.
    Values(Box<AboutValues>),
    /// Worker: about the state of a task that it has open.
    State(Box<AboutState>),
    /// A streaming source, to the driver's agent: is a timer due?
    Timers(Box<AboutTimers>),
    /// Agent to agent: about ranges that the other holds.
    StateHolder(Box<ToHolder>),
    /// Agent to registry: about a state.
    StateRegistry(Box<ToRegistry>),
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
        /// See [`Opened`].
        task: TaskId,
        /// Names the open task.
        session: u64,
        /// Its generation.
        generation: Generation,
        /// Length of its log.
        end: LogOffset,
        /// See [`Opened`].
        recording: Recording,
        /// See [`Opened`].
        lost: bool,
        /// See [`Opened`].
        tasks: Option<u32>,
        /// See [`Opened`].
        has_frames: bool,
    },
    /// A piece of a log; empty at its end.
    Blocks(Vec<Bytes>),
    /// To `Confirm`: that open came to nothing; the attempt before counts.
    Withdrawn,
    /// To `Pool`.
    Pool(PoolRows),
    /// To `Open`, `Grant`, `Pool` and `State`: what is recorded is still being read, or another stage is at work; ask again.
    NotYet,
    /// Before an answer, to a worker: it is being made.
    Working,
    /// To `Grant`.
    Granted(Box<Grant>),
    /// To `Grant`: another stage is at work that may answer rows of the task; ask again.
    Busy,
    /// To `Heartbeat`: epochs committed since, and the number of commits so far.
    Beat {
        /// What the registry takes the agent for.
        standing: AgentStanding,
        /// Newly committed.
        committed: Vec<Commit>,
        /// Commits so far.
        commits: u64,
        /// Whether there may be copies for the agent to make, of logs or of state.
        repairs: bool,
        /// Attempts at the agent for which others wait: are they there?
        waited_for: Vec<(TaskId, Generation)>,
    },
    /// To `Silent`.
    SilenceIs(Silence),
    /// To `DeadAmong`: these.
    AreDead(Vec<AgentId>),
    /// To `Leaving`: whether there are logs that it is to copy before.
    IsNeeded(bool),
    /// To `Agents`.
    AgentsAre(News),
    /// To `Counting`: one per task.
    CountingAre(Vec<Counting>),
    /// To `Repairs`.
    RepairsAre(Vec<Repair>),
    /// To `PoolOf`: the next of them; none at the end.
    PoolIs(Vec<PoolEntry>),
    /// To `Fence`: the copy here, if there is one.
    Fenced(Option<HeldCopy>),
    /// To `Senders` and `TasksOf`.
    Tasks(Option<u32>),
    /// To `Register`.
    Registered {
        /// The application's number among those that attached to its checkpoint folder.
        incarnation: u64,
        /// Commits so far: none of them is news to an agent that begins.
        commits: u64,
    },
    /// To `UseOf`: another number for each use.
    UseIs(u64),
    /// To `Permits`: nanoseconds until the first.
    PermitsFrom(u64),
    /// To `Stats`.
    Stats(AgentStats),
    /// To `ClusterStats`.
    ClusterStats(ClusterStats),
    /// To `Values`.
    Values(Found),
    /// To `State`.
    State(state::messages::Found),
    /// To `Timers`: the first that is due, if the next batch is to find one.
    Timers(Option<FirstDue>),
    /// To `StateHolder`.
    StateHolder(Answer),
    /// To `StateRegistry`.
    StateRegistry(FromRegistry),
    /// Done.
    Done,
    /// Refused, or failed.
    Failed(Error),
}
