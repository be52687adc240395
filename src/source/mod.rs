//! Sources that can be read twice: what a receiver took in is a log, and offsets are positions in it.
//!
//! A socket gives each byte once. The receiver appends what it reads, in blocks, and Spark reads ranges of
//! rows from the log as often as it likes; what Spark has committed is dropped. Positions count rows from
//! the source's first one and never start again, so they serve as Spark's offsets.
//!
//! ```text
//! first              safe            end
//!   │ block │ block │ …│ block │ block │      rows
//!   └ may be read ─────┘└ not on disk ─┘
//! ```
//!
//! Here is what has no I/O in it: lines out of bytes, blocks, and the bookkeeping of a log. The files, sockets
//! and threads are in `edge/source`.

mod backlog;
mod block;
mod lines;
mod protocol;

pub use backlog::{Backlog, Entry, Place};
pub use block::{Part, Span, read_block, read_span, write_block, write_rows};
pub use lines::{Lines, Rejected, Rejection, Splitter};
pub use protocol::{Bounds, SourceReply, SourceRequest, SourceStats};
