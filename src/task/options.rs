//! What one attempt is told about itself.

use arrow_schema::DataType;

use super::choice::Choice;
use super::summary::Ended;
use crate::config::OnAmbiguous;
use crate::id::TaskId;

/// What a task records. Written in the log's header; a log of one mode can't be replayed in the
/// other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskMode {
    /// The function's results, per row.
    Result,
    /// What the function took from the causal services.
    Services,
    /// One answer per distinct argument, for all tasks of an epoch.
    Values,
}

impl TaskMode {
    /// The number in the header determinant.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Result => 0,
            Self::Services => 1,
            Self::Values => 2,
        }
    }

    /// The user's word for the mode numbered `code`.
    pub(super) const fn name(code: u8) -> &'static str {
        match code {
            0 => "record=\"result\"",
            1 => "record=\"services\"",
            2 => "per=\"value\"",
            _ => "an unknown record mode",
        }
    }
}

/// What one attempt is told about itself. Plain data; nothing in it is checked until a machine is
/// made.
#[derive(Debug, Clone)]
pub struct TaskOptions {
    /// The unit of recovery this is an attempt of.
    pub task: TaskId,
    /// What is recorded.
    pub mode: TaskMode,
    /// Fingerprint of the user's code. Compared only with logs written by the same Python version,
    /// as bytecode differs between versions.
    pub code: u64,
    /// Python version, "3.11".
    pub python: String,
    /// What the user calls the function, for messages.
    pub label: String,
    /// Spark's stage id, written in the header.
    pub stage: u32,
    /// Hash of Spark's application id and of the run of the epoch, written in the header.
    pub app: u64,
    /// The user gave `row_key=`: fingerprints tell rows apart, ambiguity is not checked.
    pub keyed: bool,
    /// What to do when equal rows with different recorded values come in another order.
    pub on_ambiguous: OnAmbiguous,
    /// Replay a log recorded by other code.
    pub allow_code_change: bool,
    /// The log was recorded with another number of tasks: rows may be in other partitions' logs.
    pub layout_changed: bool,
    /// Rows may be in the logs of other uses of the function, which the pool has.
    pub pooled: bool,
    /// Rows may be in logs of as many other partitions, and rows that were there may have come here.
    pub dealt: bool,
    /// Which rows come, and whether they do in the order of what they were read from.
    pub choice: Choice,
    /// The function is given nothing of its rows. Not used in result mode.
    pub draws: bool,
    /// Any of those may as well be the log that is meant.
    pub uncertain: bool,
    /// Any part of the recorded rows may come: another stage of this run has asked for all, or the query has
    /// other numbers in it.
    pub any_part: bool,
    /// The hash of the code by which other partitions were recorded, if that is certainly another.
    pub replaces: Option<u64>,
    /// Earlier attempts of this task.
    pub ended: Ended,
    /// Count equal rows, for idempotency keys and random numbers in result mode (60 ns per distinct
    /// row). Functions on whole batches, which have no current row, switch it off.
    pub count_occurrences: bool,
    /// Type of the function's results where it is declared. Recorded and live values of another
    /// type are refused. `None`: the first value seen decides. Not used in services mode.
    pub value_type: Option<DataType>,
}

impl TaskOptions {
    /// Options for one attempt of `task` with the defaults: rows have no key, ambiguity and changed
    /// code are errors, the layout is as recorded, equal rows are counted, values have any type.
    #[must_use]
    pub const fn new(task: TaskId, mode: TaskMode, code: u64) -> Self {
        Self {
            task,
            mode,
            code,
            python: String::new(),
            label: String::new(),
            stage: 0,
            app: 0,
            keyed: false,
            on_ambiguous: OnAmbiguous::Error,
            allow_code_change: false,
            layout_changed: false,
            pooled: false,
            dealt: false,
            choice: Choice::UNKNOWN,
            draws: false,
            uncertain: false,
            any_part: false,
            replaces: None,
            ended: Ended::Unknown,
            count_occurrences: true,
            value_type: None,
        }
    }

    /// Whether equal rows with different recorded values are an error when they come in another
    /// order.
    pub(super) const fn checks_ambiguity(&self) -> bool {
        !self.keyed && matches!(self.on_ambiguous, OnAmbiguous::Error)
    }
}
