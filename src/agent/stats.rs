//! What agents hold and have done, for people to look at.

use serde::{Deserialize, Serialize};

use crate::id::{Generation, TaskId};
use crate::state::{StateId, Version};

/// Where the output of an attempt came from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Recovery {
    /// Nothing was recorded: the user's code ran, and its services were asked.
    #[default]
    Live,
    /// The user's code ran, with recorded answers as far as there were any.
    Replayed,
    /// The frames of an earlier attempt were sent again; no code ran.
    Resent,
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

/// What one agent holds of one state.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct HeldState {
    /// The state.
    pub state: StateId,
    /// What it was when the last epoch was committed of which the agent has heard.
    pub version: Version,
    /// Ranges.
    pub ranges: u32,
    /// Bytes of entries.
    pub bytes: u64,
    /// Bytes of memory.
    pub memory_bytes: u64,
}

/// What one agent holds.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct AgentStats {
    /// Its logs.
    pub held: Vec<HeldStats>,
    /// Its states.
    pub states: Vec<HeldState>,
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
    /// How often it was opened in this application.
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
    /// Bytes of frames in the in-flight log.
    pub in_flight: u64,
    /// Attempts that came to their end with nothing recorded before.
    pub ran_live: u64,
    /// Attempts that came to their end with a recorded log.
    pub ran_replayed: u64,
    /// Attempts that sent the frames of an earlier one.
    pub resent: u64,
}

/// What became of one operator since the start of the session, committed epochs included.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperatorStats {
    /// Its name.
    pub operator: String,
    /// Attempts that came to their end or stopped.
    pub attempts: u64,
    /// Rows seen.
    pub rows: u64,
    /// Rows replayed.
    pub replayed: u64,
    /// Rows run live.
    pub live: u64,
    /// Calls made: rows of a function whose results are recorded, else calls of its services.
    pub calls: u64,
    /// Calls that were not made again.
    pub saved: u64,
    /// Bytes recorded.
    pub bytes: u64,
    /// Logs found lost.
    pub lost: u64,
    /// Nanoseconds that the calls took.
    pub call_ns: u64,
}

/// One state.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateFigures {
    /// Operator and query.
    pub state: String,
    /// The last epoch that changed it and was committed; none before the first.
    pub version: Option<u64>,
    /// Agents that have all of a range: of the range that has fewest.
    pub copies: u32,
    /// Ranges that agents are making their own.
    pub joining: u32,
    /// Ranges that standbys have served since another holder's death.
    pub promoted: u64,
    /// Bytes of entries, on all agents together.
    pub bytes: u64,
    /// Epochs by which the slowest holder is behind; it catches up when it is asked.
    pub lag: u64,
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
    /// The same by operator.
    pub operators: Vec<OperatorStats>,
    /// Keyed states.
    #[serde(default)]
    pub states: Vec<StateFigures>,
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
    /// Bytes of keyed state in memory.
    pub state_bytes: u64,
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
    /// Attempts that came to their end with a recorded log.
    pub ran_replayed: u64,
    /// Attempts that sent the frames of an earlier one.
    pub resent: u64,
    /// Logs discarded because their inputs were gone.
    pub discarded: u64,
    /// Logs found lost.
    pub lost: u64,
    /// Epochs committed.
    pub commits: u64,
}
