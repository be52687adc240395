//! Segments: the causal logs of one epoch, as one agent of one application wrote them to disk.
//!
//! ```text
//! <checkpoint_dir>/<hash of query>/<epoch>/<use>-<agent>-<application>.seg
//!
//! ┌────────┬──────────┬──────────┬──────────┬───
//! │ header │ record 0 │ record 1 │ record 2 │ …          one group = what one fdatasync covers
//! └────────┴──────────┴──────────┴──────────┴───
//!            group 0 ──────────┘  group 1 …
//! ```
//!
//! In an object store, where nothing can be appended, a group is an object, and a segment a folder of them, see [`store`].
//!
//! [`DiskWriter`] appends. It has one thread, which writes everything that is queued, makes each file
//! durable with one `fdatasync`, and then answers all who wait: the more tasks append at once, the
//! fewer syncs each of them pays for.
//!
//! # What a segment promises
//!
//! - **A task's records in one file start at offset 0 and leave no gap.** So every file stands
//!   alone, and losing one never tears a hole into what another holds. An agent that adopts a log
//!   writes all of it.
//! - **A newer generation may go back** to an earlier offset of the log; from there on its bytes
//!   count. An older generation is refused once a newer one has written.
//! - **An acknowledged record is on disk.** What a crash leaves half written was never
//!   acknowledged, stands at the end of the file and is cut off by the reader.
//! - **A commit is one name that goes**, see [`claim`]. What a late writer leaves behind it counts for
//!   nothing, and is never acknowledged. Nor does what an application wrote behind a [`seal`]; nor is acknowledged
//!   what an agent writes that is not [`alive`] any more, nor does it count once others are [`gone`] on without it.
//! - **Damage is told from a crash.** Each record states up to which position the file was durable
//!   when it was written. A bad record that lies below such a position was whole once: the file is
//!   corrupt, and the reader says so instead of using a shorter log.
//!
//! Damage within the last group can't be told from a crash, whoever looks at the file.

pub(in crate::edge::disk) mod alive;
pub(in crate::edge) mod claim;
mod disk;
mod file;
mod format;
pub(in crate::edge::disk) mod gone;
pub(in crate::edge::disk) mod layout;
mod queue;
pub(in crate::edge) mod rubbish;
mod scan;
pub(in crate::edge) mod seal;
pub(in crate::edge) mod store;
mod sure;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod thread;
mod writer;

pub use disk::{FileSystem, RawFile, RealDisk};
pub(in crate::edge) use disk::{FileTable, OpenFile, write_error};
pub(in crate::edge) use format::VERSION;
pub(in crate::edge) use layout::{claimed_files, epoch_files, segment_files};
pub use queue::Pending;
pub(in crate::edge) use scan::{SegmentScan, Step, corrupt, read_block};
pub use writer::DiskWriter;

use bytes::Bytes;

use crate::agent::protocol::{Borders, Plan};
use crate::id::{Generation, LogOffset, TaskId};

/// The setting whose path segments are written to, for error messages.
pub(in crate::edge) const SETTING: &str = "checkpoint_dir";

/// One block of a task's log on its way to disk, with what is needed to use it after a restart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentRecord {
    /// The task whose log this is.
    pub task: TaskId,
    /// Generation that published the block, or adopted it.
    pub generation: Generation,
    /// Hash of the application in which the block was recorded.
    pub app: u64,
    /// Spark stage in which the block was recorded.
    pub stage: u32,
    /// Number of tasks of that stage, where known.
    pub tasks: Option<u32>,
    /// What the function was asked over, where known.
    pub plan: Option<Plan>,
    /// By what the rows of that stage were cut into its tasks.
    pub borders: Borders,
    /// Position of the block in the task's log, in bytes.
    pub offset: LogOffset,
    /// The block.
    pub block: Bytes,
}

impl SegmentRecord {
    /// A block that no stage has recorded.
    #[must_use]
    pub const fn of_no_stage(task: TaskId, generation: Generation, offset: LogOffset, block: Bytes) -> Self {
        let (app, stage, tasks, plan) = (0, 0, None, None);
        Self { task, generation, app, stage, tasks, plan, borders: Borders::UNKNOWN, offset, block }
    }
}
