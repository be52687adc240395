//! Frames: the buffers that cross Spark's shuffle.
//!
//! ```text
//! frame    head (64 bytes) | opening | delta | zeros up to a multiple of 8 | payload | zeros likewise
//! ```
//!
//! | at | bytes | field | |
//! |---|---|---|---|
//! | 0 | 4 | magic | `CLFR` |
//! | 4 | 1 | version | 1 |
//! | 5 | 1 | flags | bit 0: an opening follows, bit 1: last frame of its channel, bit 2: the log is named |
//! | 6 | 2 | | 0 |
//! | 8 | 8 | task | XXH3 of the sender's task id |
//! | 16 | 4 | partition | the sender's partition |
//! | 20 | 4 | channel | the consumer's partition |
//! | 24 | 4 | sequence | number of the frame on its channel, from 0 |
//! | 28 | 4 | rows | rows in the payload |
//! | 32 | 8 | log | version of the sender's log, this frame's delta included |
//! | 40 | 4 | opening | length in bytes |
//! | 44 | 4 | delta | length in bytes |
//! | 48 | 4 | payload | length in bytes |
//! | 52 | 4 | sum | CRC-32 of everything after the head, up to the payload's end |
//! | 56 | 4 | | 0 |
//! | 60 | 4 | head sum | CRC-32 of the 60 bytes before |
//!
//! Numbers are little-endian. The opening (first frame of a channel) is an [`Opening`], the delta a list of
//! [`Group`]s, both in postcard. The payloads of one channel, joined, are one Arrow IPC stream without its
//! end marker: the schema stands in the first that has rows, and only there.
//!
//! Nothing in a frame depends on when, where or how often the task ran: a replay makes the same bytes, and
//! Spark's shuffle checksum sees that it does.

mod delta;
mod head;
mod version;

#[cfg(test)]
mod tests;

pub use delta::{Group, decode_groups, encode_groups};
pub use head::{Frame, HEAD_BYTES, Head, Opening, read, read_head, seal};
pub use version::LogVersion;
