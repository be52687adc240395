//! Record and replay of one attempt of a task, sans I/O: no clock, no randomness, no Python.
//!
//! Two machines, one per record mode, and [`ValueTask`] for answers that all tasks share. Both are given the blocks of the task's own log, tell the
//! host what is recorded and what must run, and hand out the blocks to publish before anything
//! caused by them leaves:
//!
//! - [`ResultTask`]: the function's results are recorded, per row; at replay it is not called.
//! - [`ServiceTask`]: what the function took from the causal services is recorded; at replay it
//!   runs again.
//!
//! Rows are matched with the log by order as long as they come in recorded order, by fingerprint
//! after. A machine answers faithfully, goes live past the end of its log, or returns
//! [`Error::Divergence`](crate::error::Error::Divergence): it never mixes.

mod assemble;
mod choice;
mod divergence;
mod header;
mod key;
mod marks;
mod matcher;
mod matching;
mod options;
mod order;
mod plan;
mod pool;
mod recorded;
mod result;
mod rng;
mod segments;
mod service;
mod summary;
mod told;
mod value;

pub use choice::Choice;
pub use header::{check_values_header, recorded_by_other_code, values_header};
pub use key::{CallPosition, Caller, idempotency_key, place_of_batch};
pub(crate) use marks::{columns as columns_of_mark, key as marked_key};
pub use options::{TaskMode, TaskOptions};
pub use plan::Plan;
pub use pool::{POOL_QUESTIONS_MAX, PoolAnswer, PoolQuestion, PoolQuestions, PoolRows};
pub use result::ResultTask;
pub use rng::RowRng;
pub use segments::Order;
pub use service::{CallDecision, ServiceTask};
pub use summary::{Ended, Summary};
pub use value::{Publication, ValueTask};

#[cfg(test)]
mod fixtures;
#[cfg(test)]
mod tests;
