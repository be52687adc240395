//! Opening a task's log: what is asked, what is granted, and who is asked for copies.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::Commit;
use crate::agent::borders::Borders;
use crate::agent::code::{Code, Execution, Plan, Use};
use crate::id::{AgentId, Generation, LogOffset, Partition, TaskId};
use crate::task::{Choice, Ended};

/// A worker opens a task's log.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct OpenTask {
    /// The task; its operator is the name of the function, not yet of the log.
    pub task: TaskId,
    /// Which use of the operator this is.
    pub used: Use,
    /// The SQL execution, if it is part of one.
    pub execution: Option<Execution>,
    /// Hash of the application id.
    pub app: u64,
    /// Spark stage.
    pub stage: u32,
    /// Spark's `taskAttemptId`, unique within the application.
    pub attempt: u64,
    /// Names the opener within the attempt. The same open, sent again, has the same name.
    pub worker: u64,
    /// Whether what it does stays inside the causal domain: its determinants travel in its frames.
    pub inside: bool,
    /// Which run of a named epoch the program was in when the work began, as [`Registry::stamp`] was told; 0 where
    /// nobody says so.
    ///
    /// [`Registry::stamp`]: crate::agent::registry::Registry::stamp
    pub stamp: u64,
    /// Of which RDD the task's partition is, if of one.
    pub of_rdd: Option<OfRdd>,
}

/// An RDD's partition, which has its log wherever it is computed: several tasks of a stage may do that (a union of the RDD
/// with itself), and one may do it several times, for `zip` in two workers at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfRdd {
    /// The RDD's number in its application.
    pub number: u32,
    /// The partition of Spark's task.
    pub task: Partition,
    /// How much the agent that asks has of what is recorded of the partition; a worker says 0.
    pub recorded: u64,
}

impl OpenTask {
    /// The partition of Spark's task.
    #[must_use]
    pub fn task_of_stage(&self) -> Partition {
        self.of_rdd.map_or(self.task.partition, |of| of.task)
    }

    /// How far Spark's task is from the partition: those of a stage that are as far from theirs have each another one.
    #[must_use]
    pub fn shift(&self) -> u32 {
        self.task_of_stage().0.wrapping_sub(self.task.partition.0)
    }
}

/// What a worker gets to know when its task is open.
#[derive(Debug, Clone)]
pub struct Opened {
    /// The task whose log this is: where one attempt computes several parts of its input one after the
    /// other, as `coalesce` has it do, the parts after the first have logs of their own.
    pub task: TaskId,
    /// Names the open task in later messages.
    pub session: u64,
    /// Fencing number of this attempt.
    pub generation: Generation,
    /// The task's log so far.
    pub prior: Vec<Bytes>,
    /// How it was recorded.
    pub recording: Recording,
    /// Whether something was published that can be read nowhere any more.
    pub lost: bool,
    /// Tasks of the stage, or partitions of the RDD, where known.
    pub tasks: Option<u32>,
    /// Whether all frames of an earlier attempt can be read.
    pub has_frames: bool,
}

/// How the log that an attempt opens was recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Recording {
    /// Whether by this same stage.
    pub same_stage: bool,
    /// Whether some of it was published by another stage, of an earlier job.
    pub of_others: bool,
    /// Whether the epoch was recorded with another number of partitions.
    pub layout_changed: bool,
    /// Whether rows that it does not have may be in other logs: of other partitions, as these had other borders,
    /// or of other uses, which the pool has too.
    pub pooled: bool,
    /// Whether the epoch was recorded by as many tasks with other borders between them.
    pub moved: bool,
    /// Whether rows that it does not have may be in logs of as many other partitions: as these had other borders, or though
    /// nothing says that.
    pub dealt: bool,
    /// Which rows come in the stage that opens, and whether they do in the order of what they were read from.
    pub choice: Choice,
    /// Whether any of those may as well be the one that is meant.
    pub uncertain: bool,
    /// Whether any part of what is recorded may be asked for: an earlier stage of this run asked for all, or the
    /// query has other numbers in it.
    pub any_part: bool,
    /// Which attempts of it came to their end.
    pub ended: Ended,
    /// Which run of the epoch this is.
    pub run: u32,
    /// The hash of the code by which other partitions were recorded, if that is certainly not the code that asks.
    pub replaces: Option<u64>,
}

/// Under which stage a log was recorded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Layout {
    /// Hash of the application id.
    pub app: u64,
    /// Spark stage.
    pub stage: u32,
    /// Tasks of the stage, or partitions of the RDD, where known.
    pub tasks: Option<u32>,
    /// The function.
    pub code: Code,
    /// What it was asked over, where known.
    pub plan: Option<Plan>,
    /// By what its rows are cut into the tasks.
    pub borders: Borders,
}

impl Layout {
    /// Whether both are one stage of one application.
    #[must_use]
    pub const fn same_stage(&self, other: &Self) -> bool {
        self.app == other.app && self.stage == other.stage
    }

    /// Whether they are known to have another number of tasks each.
    #[must_use]
    pub fn has_another_number(&self, other: &Self) -> bool {
        self.tasks.zip(other.tasks).is_some_and(|(ours, theirs)| ours != theirs)
    }

    /// Whether the input of both is known to be cut otherwise, if perhaps into as many tasks.
    #[must_use]
    pub fn has_other_borders(&self, other: &Self) -> bool {
        self.borders.are_others(other.borders)
    }

    /// Whether the input of both is known to be cut into as many tasks, by the same borders.
    #[must_use]
    pub fn is_cut_alike(&self, other: &Self) -> bool {
        self.tasks == other.tasks && self.borders.are_those(other.borders)
    }
}

/// An agent as others reach it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentInfo {
    /// Its id.
    pub id: AgentId,
    /// `ip:port`.
    pub addr: String,
    /// Name of its host, or its address, so that copies go to other hosts first.
    pub host: String,
    /// Whether it is the driver's.
    pub driver: bool,
}

/// How a log begins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beginning {
    /// How much of it this is.
    pub end: LogOffset,
    /// Over its blocks.
    pub hash: u128,
}

/// What a new attempt tells those who have copies of its log.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Fence {
    /// Lower generations are refused from now on.
    pub generation: Generation,
    /// Below this they are of a use of the epoch's name that is committed: no copy of such a log counts.
    pub over: Generation,
    /// Who has the log from now on, if its determinants travel in frames.
    pub reopened_at: Option<AgentInfo>,
    /// What something visible depends on.
    pub shown: Beginning,
}

/// A log as one agent has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldCopy {
    /// Its length.
    pub end: LogOffset,
    /// Whether it has all that was published while the registry counted on it. One that is being made again
    /// has not.
    pub whole: bool,
    /// Whether it begins with what was shown, as far as whoever asks has said what that is.
    pub is_shown: bool,
}

/// What the registry takes an agent for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum AgentStanding {
    /// It is not known: it is to register.
    Unknown,
    /// It lives.
    Alive,
    /// It was silent when its answer was needed. Others have gone on without it, so it is to end.
    Dead,
}

/// What the registry takes an agent for that does not answer somebody.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Silence {
    /// It was heard of lately.
    Heard,
    /// It is silent, and something would be lost without it: it is waited for.
    Borne,
    /// It is dead, and stays so: it is told with its next beat.
    Dead,
}

/// The registry's answer to an open.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Grant {
    /// The task; see [`Opened`].
    pub task: TaskId,
    /// Fencing number of the new attempt.
    pub generation: Generation,
    /// Who holds the log now.
    pub holders: Vec<AgentInfo>,
    /// Whether anything was ever published.
    pub published: bool,
    /// Who has all of the log, if it was published, and not only absorbed from frames: no other copy counts then.
    pub whole: Option<Vec<AgentId>>,
    /// What something visible depends on, of what was absorbed from frames: no copy counts that does not begin so.
    pub shown: Beginning,
    /// Whether there were several attempts: what agents have besides may be of one that does not count.
    pub has_several: bool,
    /// Whether an attempt opened the task before this one: any agent may have absorbed its log.
    pub reopened: bool,
    /// Up to which attempt what agents have of the log belongs to inputs that are gone: before anything is recorded they
    /// are to forget it.
    pub discarded: Option<Generation>,
    /// Who holds all frames of an earlier attempt.
    pub frames: Option<AgentInfo>,
    /// Number of the last change of who is alive, of whom peers are chosen.
    pub members: u64,
    /// This attempt's layout.
    pub layout: Layout,
    /// Logs of other uses in which its rows may be.
    pub pooled: Vec<Arc<str>>,
    /// How the log was recorded.
    pub recording: Recording,
    /// [`Recording::ended`] without attempts of this stage. For the registry's agent alone, which asks Spark what
    /// became of these.
    #[serde(skip)]
    pub ended_before: Ended,
    /// Below this generation, what anybody has of the epoch is of a use of its name that is committed.
    pub over: Generation,
    /// The number of the use that the attempt is of, as the driver's agent has claimed it: what it writes down counts in
    /// no other.
    pub used: u64,
    /// What was committed since the agent heard of it last.
    pub committed: Vec<Commit>,
    /// Commits so far.
    pub commits: u64,
}
