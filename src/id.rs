//! Names and positions, each a type of its own so that none is passed for another.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, Default,
        )]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

number! {
    /// An agent: the process that holds logs outside the Python workers.
    AgentId(u64)
}
number! {
    /// A partition of a Spark stage, from 0.
    Partition(u32)
}
number! {
    /// Fencing number of an attempt: the registry hands out a higher one at each open.
    Generation(u64)
}
number! {
    /// Position in a causal log: bytes from its start.
    LogOffset(u64)
}
number! {
    /// The edge from one log to one consumer.
    ChannelId(u64)
}

impl Generation {
    /// No attempt at all.
    pub const NONE: Self = Self(0);

    /// The one after this.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl LogOffset {
    /// Start of a log.
    pub const START: Self = Self(0);

    /// The position `bytes` further on.
    #[must_use]
    pub const fn plus(self, bytes: u64) -> Self {
        Self(self.0 + bytes)
    }

    /// A position within what ends here.
    #[must_use]
    pub const fn before(self) -> Self {
        Self(self.0.saturating_sub(1))
    }
}

/// The unit of commit.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Epoch {
    /// A micro-batch of a streaming query; its batch id.
    Batch(u64),
    /// A batch job's scope, or one SQL execution.
    Named(String),
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Batch(id) => write!(f, "{id}"),
            Self::Named(name) => f.write_str(name),
        }
    }
}

/// Ends the operator in the name of an in-flight log; users' names have no control characters.
pub(crate) const IN_FLIGHT: &str = "\u{1}frames";

/// The unit of recovery: one operator's work on one partition in one epoch.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TaskId {
    /// Streaming query id, or the name of a batch query.
    pub query: Arc<str>,
    /// `uid` of the operator.
    pub operator: Arc<str>,
    /// Epoch within the query.
    pub epoch: Epoch,
    /// Partition of the stage that runs the operator.
    pub partition: Partition,
}

impl TaskId {
    /// Name of the task's in-flight log, which is held beside its causal log.
    #[must_use]
    pub fn in_flight(&self) -> Self {
        Self { operator: format!("{}{IN_FLIGHT}", self.operator).into(), ..self.clone() }
    }

    /// Whether this names an in-flight log.
    #[must_use]
    pub fn is_in_flight(&self) -> bool {
        self.operator.ends_with(IN_FLIGHT)
    }

    /// The task whose in-flight log this names, if it names one.
    #[must_use]
    pub fn sender(&self) -> Option<Self> {
        let operator = self.operator.strip_suffix(IN_FLIGHT)?;
        Some(Self { operator: operator.into(), ..self.clone() })
    }

    /// The epoch this task belongs to.
    #[must_use]
    pub fn epoch_key(&self) -> EpochKey {
        EpochKey { query: Arc::clone(&self.query), epoch: self.epoch.clone() }
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}/{}/{}", self.operator_name(), self.query, self.epoch, self.partition)
    }
}

impl TaskId {
    /// What people call the operator: names of tables of answers go on behind a control character, which no user's has.
    #[must_use]
    pub fn operator_name(&self) -> &str {
        self.operator.split(char::is_control).next().unwrap_or_default()
    }
}

/// An epoch of a query: what is committed, and truncated, as one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct EpochKey {
    /// The query.
    pub query: Arc<str>,
    /// The epoch.
    pub epoch: Epoch,
}

/// Begins the name of a query that is all that an application does outside of streams and named epochs.
const APPLICATION: &str = "app:";
/// Begins the name of an epoch that is one SQL execution.
const EXECUTION: &str = "sql-";
/// Begins the name of an epoch that is one stage of a job that is part of no SQL execution.
const STAGE: &str = "stage-";
/// Begins the name of an epoch that is one RDD.
const RDD: &str = "rdd-";

/// Name of the query that is all an application does outside of streams and named epochs.
#[must_use]
pub(crate) fn application_query(app_id: &str) -> String {
    format!("{APPLICATION}{app_id}")
}

impl EpochKey {
    /// Whether this is one SQL execution, or a stage or an RDD beside them: committed when that is over, and never
    /// run again.
    #[must_use]
    pub fn is_execution(&self) -> bool {
        let Epoch::Named(name) = &self.epoch else { return false };
        self.query.starts_with(APPLICATION)
            && [EXECUTION, STAGE, RDD].iter().any(|begin| name.starts_with(begin))
    }

    /// Whether it is one application's on its own, in a checkpoint that several share. Otherwise all of its
    /// query are: micro-batches, and what an application does outside of named epochs.
    #[must_use]
    pub fn is_claimed_alone(&self) -> bool {
        matches!(self.epoch, Epoch::Named(_)) && !self.is_execution()
    }

    /// What is claimed together with it, by any name that is the same for all of it.
    #[must_use]
    pub fn claimed(&self) -> Self {
        let epoch = if self.is_claimed_alone() { self.epoch.clone() } else { Epoch::Batch(0) };
        Self { query: Arc::clone(&self.query), epoch }
    }

    /// Whether committing `self` commits `other` too: micro-batches are committed in order.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        self.query == other.query
            && match (&self.epoch, &other.epoch) {
                (Epoch::Batch(mine), Epoch::Batch(theirs)) => theirs <= mine,
                (mine, theirs) => mine == theirs,
            }
    }
}

impl fmt::Display for EpochKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.query, self.epoch)
    }
}
