//! What can go wrong in the core. Errors cross process boundaries, so each can be serialised.

mod kinds;

use serde::{Deserialize, Serialize};

use crate::id::{Epoch, Generation, LogOffset, TaskId};

/// Result of the core's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What a new attempt did differently from the recorded one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum DivergenceKind {
    /// The user's code is not the code that was recorded.
    CodeChanged,
    /// The log was recorded with another `record=` option.
    ModeChanged,
    /// The function returns another type.
    TypeChanged,
    /// Rows came that were not recorded, and recorded ones did not come.
    RowsChanged,
    /// Recorded rows did not come.
    RowsMissing,
    /// Rows that look alike had different answers and came in another order.
    AmbiguousRows,
    /// Another service was asked for than was recorded.
    ServiceMismatch,
    /// The partitions are not those of the recorded run.
    LayoutChanged,
    /// The task changes its state in another way.
    StateChanged,
}

/// The place and the two sides of a divergence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Divergence {
    /// What differs.
    pub kind: DivergenceKind,
    /// The task whose log is replayed.
    pub task: TaskId,
    /// Row of this attempt's input, from 0, where one is known.
    pub row: Option<u64>,
    /// What the log says.
    pub recorded: String,
    /// What this attempt did.
    pub asked: String,
    /// What the user can do.
    pub advice: String,
}

impl std::fmt::Display for Divergence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let task = &self.task;
        write!(
            f,
            "operator {:?} of query {}, epoch {}, partition {}",
            task.operator_name(),
            task.query,
            task.epoch,
            task.partition
        )?;
        if let Some(row) = self.row {
            write!(f, ", row {row}")?;
        }
        write!(f, ": recorded: {}; asked: {}. {}", self.recorded, self.asked, self.advice)?;
        match &task.epoch {
            // What nobody names, nobody runs again.
            Epoch::Named(name) if !task.epoch_key().is_execution() => {
                write!(f, "; session.commit({:?}, {name:?}) gives up what is recorded", &*task.query)
            }
            _ => Ok(()),
        }
    }
}

/// Every error of the core.
#[derive(Debug, Clone, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Error {
    /// A new attempt did something else than was recorded.
    #[error("{0}")]
    Divergence(Box<Divergence>),
    /// Bytes to absorb start beyond the end of the log.
    #[error("a delta starts at {from} but the log ends at {end}: what lies between is missing")]
    LogGap {
        /// Where the delta starts.
        from: LogOffset,
        /// Where the log ends.
        end: LogOffset,
    },
    /// Two copies of one log differ where they overlap.
    #[error("two copies of one log differ at offset {at}: two attempts wrote at once")]
    LogFork {
        /// First difference.
        at: LogOffset,
    },
    /// A block's bytes do not check out.
    #[error("a block of a log is corrupt: {reason}")]
    CorruptBlock {
        /// What is wrong.
        reason: String,
    },
    /// A log's blocks are sound but make no sense together.
    #[error("a log makes no sense: {what}")]
    CorruptLog {
        /// What is wrong.
        what: String,
    },
    /// A segment file is damaged before its end.
    #[error("segment file {file} is corrupt at byte {offset}: {reason}; move it away to go on without it")]
    CorruptSegment {
        /// Path of the file.
        file: String,
        /// Offset in bytes.
        offset: u64,
        /// What is wrong.
        reason: String,
    },
    /// What was written to the spill folder reads otherwise.
    #[error(
        "what was spilled to {file} reads otherwise at byte {offset}: its disk, or memory, has changed it. Whoever else \
         has it is asked; if that comes back, point `spill_dir` at another disk"
    )]
    CorruptSpill {
        /// Path of the file, or of the folder if it has no name.
        file: String,
        /// Offset in bytes.
        offset: u64,
    },
    /// A frame's bytes do not check out.
    #[error("a frame is corrupt: {reason}")]
    CorruptFrame {
        /// What is wrong.
        reason: String,
    },
    /// The input of an exchange ended before each sender's last frame.
    #[error(
        "the input from operator {operator:?} ended early: {missing} did not come; nothing was decided on it"
    )]
    InputCutShort {
        /// The senders' operator.
        operator: String,
        /// What did not come.
        missing: String,
    },
    /// What stands in keyed state, or is to be put there, does not check out.
    #[error("keyed state is corrupt: {reason}")]
    CorruptState {
        /// What is wrong.
        reason: String,
    },
    /// A sender's log is not the one that the consumer's own log was recorded with.
    #[error(
        "the log of task {upstream} was lost and it ran again with other outcomes than this task's log was recorded with: raise sharing_depth to survive more failures at once"
    )]
    UpstreamChanged {
        /// The sender.
        upstream: TaskId,
    },
    /// A frame of an attempt that was given up, taken after the sender had begun anew.
    #[error(
        "a frame of {upstream} is of an attempt that nobody can repeat: this attempt stops, the next one is given the frames that count"
    )]
    StaleFrame {
        /// The sender.
        upstream: TaskId,
    },
    /// Consumers of one epoch used different versions of a log.
    #[error("{what}: the epoch's results do not belong together; run it again, and raise sharing_depth")]
    InconsistentEpoch {
        /// Which.
        what: String,
    },
    /// An epoch was run in part, so it does not decide what the next version of a state is.
    #[error(
        "state of operator {operator:?}: epoch {epoch} ended without partition {missing}. A partial action, such as show or limit, does not decide state: have all of the result computed, then run the epoch again. Nor does a coalesce to two or more partitions of a union that the operator is in: put it before the union"
    )]
    StateIncomplete {
        /// The operator.
        operator: String,
        /// The query and the epoch.
        epoch: String,
        /// Partitions that did not come to their end.
        missing: String,
    },
    /// State can be read nowhere any more.
    #[error("the state {state} is lost: {what}")]
    StateLost {
        /// Which.
        state: String,
        /// What is missing, and what would have survived.
        what: String,
    },
    /// The times by which a batch's keyed state goes cannot be learned.
    #[error("the times of batch {epoch} of query {query} are not known: {reason}")]
    ClockUnknown {
        /// The query.
        query: String,
        /// The batch.
        epoch: u64,
        /// Why not.
        reason: String,
    },
    /// Written by a version of Clonos that this one cannot read.
    #[error("{what} has version {found}; this Clonos reads version {known}")]
    UnsupportedVersion {
        /// What was read.
        what: String,
        /// Version found.
        found: u32,
        /// Version known.
        known: u32,
    },
    /// A newer attempt has taken over, or the epoch is committed.
    #[error("{}", fenced(task, *newer, *ours))]
    Fenced {
        /// The task.
        task: TaskId,
        /// Generation that holds the task now; [`Generation::NONE`] if nobody does, as the epoch is over.
        newer: Generation,
        /// Generation of this attempt.
        ours: Generation,
    },
    /// Of so many attempts at a log that one of them is not known any more.
    #[error(
        "so many attempts at task {task} began after this one that what it has computed of its partitions is not known any more; it stops, and Spark's next attempt computes them"
    )]
    AttemptUnknown {
        /// The task.
        task: TaskId,
    },
    /// One task computes a partition of an RDD twice at the same time.
    #[error("a task computes partition {} of an RDD by {:?} twice at the same time, as zip and cartesian of an RDD with itself do, or two RDDs zipped both ways round, and the second waited in vain for the first, whose rows nobody reads meanwhile: persist the RDD before, rdd.persist()", task.partition, task.operator)]
    PartitionComputedTwice {
        /// The task.
        task: TaskId,
    },
    /// Another stage has the operator under way, and waits for what this task has.
    #[error("two stages of epoch {} compute {:?} and another column, and each has one under way for which the other waits: let one action end before the other begins (this is partition {})", task.epoch, task.operator, task.partition)]
    OperatorUsedTwice {
        /// The task.
        task: TaskId,
    },
    /// A published log can be read nowhere.
    #[error(
        "the log of task {task} is lost: raise sharing_depth or set checkpoint_dir to survive more failures"
    )]
    CausalLogLost {
        /// The task.
        task: TaskId,
    },
    /// Two readers of one source's log.
    #[error(
        "the log {log} is being read by {owner}: two drivers run on one checkpoint, or two queries read one source; stop one, or give each query an option `name` of its own"
    )]
    SourceInUse {
        /// Folder of the log.
        log: String,
        /// Who reads it.
        owner: String,
    },
    /// Rows of a source's log that are not there any more.
    #[error(
        "row {position} of the source was asked for, but its log begins at {first}: the log and the checkpoint of the query do not belong together; give the query its own option `name`, or its old `logDir`"
    )]
    SourceTruncated {
        /// The row.
        position: u64,
        /// First row that is there.
        first: u64,
    },
    /// The disk budget is used up.
    #[error("spilled logs reached the limit of {limit} bytes: raise `disk`, or commit epochs sooner")]
    DiskBudget {
        /// The limit in bytes.
        limit: u64,
    },
    /// The disk is full.
    #[error(
        "no space left at {path}: free some, or point `{setting}` at a larger disk; nothing recorded is lost"
    )]
    DiskFull {
        /// What could not be written.
        path: String,
        /// Setting to change.
        setting: String,
    },
    /// The memory budget cannot hold one block.
    #[error(
        "a block of {bytes} bytes does not fit into memory={limit}: raise `memory`, or lower spark.sql.execution.arrow.maxRecordsPerBatch"
    )]
    MemoryBudget {
        /// Size of the block.
        bytes: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// Blocks are so many that knowing where they are takes all of the memory budget.
    #[error(
        "{blocks} recorded blocks are listed, which takes all of memory={limit}: raise `memory`, end the epoch earlier, \
         or let several calls be recorded at once, with flush=\"auto\" or \"batch\""
    )]
    ListBudget {
        /// How many there are.
        blocks: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// The other side does not hold the secret.
    #[error(
        "{peer} does not hold this application's secret, or is no agent; a DataFrame that was built under a \
         session that is over has to be built again"
    )]
    AuthRefused {
        /// Who.
        peer: String,
    },
    /// One side of a connection encrypts, the other does not.
    #[error(
        "{peer} {}: `encrypt` of clonos.attach, or of a source, must be the same on both sides; by default it is as \
         spark.network.crypto.enabled",
        if *encrypts { "does not encrypt what it sends, and this side does" } else { "encrypts what it sends, and this side does not" }
    )]
    EncryptionDiffers {
        /// Who.
        peer: String,
        /// Whether this side does.
        encrypts: bool,
    },
    /// An agent cannot be reached.
    #[error("agent {agent} cannot be reached: {reason}")]
    AgentUnreachable {
        /// Address, socket or id.
        agent: String,
        /// Why.
        reason: String,
    },
    /// No answer in time.
    #[error("{what} took more than {millis} ms: raise `io_timeout` if the machine is only slow")]
    Timeout {
        /// What was waited for.
        what: String,
        /// How long, in milliseconds.
        millis: u64,
    },
    /// Bytes on a connection that are not of our protocol.
    #[error("protocol error: {what}")]
    Protocol {
        /// What is wrong.
        what: String,
    },
    /// A setting is refused.
    #[error("{setting}: {reason}")]
    Config {
        /// Name of the setting.
        setting: String,
        /// Why it is refused.
        reason: String,
    },
    /// A column of a type that has no fingerprint.
    #[error("columns of type {data_type} cannot be recorded; convert the column first")]
    UnsupportedType {
        /// The Arrow type.
        data_type: String,
    },
    /// What is kept of a state variable and what the program declares do not fit together.
    #[error("state variable {variable:?}: {what}")]
    StateSchema {
        /// Its name.
        variable: String,
        /// What does not fit.
        what: String,
    },
    /// A client was carried over a fork.
    #[error("a connection made by process {owner} was used in process {user}; open one after the fork")]
    ForkedProcess {
        /// Process that made it.
        owner: u32,
        /// Process that used it.
        user: u32,
    },
    /// An earlier failure makes going on unsafe.
    #[error(
        "{what} failed before and takes nothing more: an executor's agent ends and another is started; if this is the driver's, restart the application, it recovers what was synced"
    )]
    Poisoned {
        /// What is poisoned.
        what: String,
    },
    /// The caller broke the protocol of a state machine.
    #[error("internal misuse: {what}")]
    Misuse {
        /// What was done.
        what: String,
    },
    /// Arrow refused.
    #[error("Arrow: {0}")]
    Arrow(String),
    /// The operating system refused.
    #[error("{context}: {message}")]
    Io {
        /// What was being done.
        context: String,
        /// The system's words.
        message: String,
    },
}

impl Error {
    /// An I/O error, with what was being done.
    #[must_use]
    pub fn io(context: impl Into<String>, error: &std::io::Error) -> Self {
        Self::Io { context: context.into(), message: error.to_string() }
    }
}

impl From<arrow_schema::ArrowError> for Error {
    fn from(error: arrow_schema::ArrowError) -> Self {
        Self::Arrow(error.to_string())
    }
}

/// What is said of an attempt that is not wanted any more.
fn fenced(task: &TaskId, newer: Generation, ours: Generation) -> String {
    if newer == Generation::NONE {
        return format!(
            "the log of task {task} was closed while this attempt ran, as its epoch was committed; it stops"
        );
    }
    format!("task {task} was opened by a newer attempt (generation {newer}, ours {ours}); this one stops")
}
