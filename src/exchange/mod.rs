//! Exchange: the edge between two causal operators.
//!
//! ```text
//!  sender                                             consumer
//!  batches ─► Scatter ─► frames ═ Spark's shuffle ═► Gather ─► batches
//!               ▲                                       │
//!  own blocks ─►│ Piggyback ◄──── groups of a delta ◄───┤
//!                                                       └► absorbed at the agent, order recorded
//! ```
//!
//! [`Scatter`] sorts rows by the hash of their keys and cuts them into one frame per channel and round.
//! [`Piggyback`] knows which pieces of which logs each channel has been sent. [`Gather`] takes frames in the
//! order in which they come, or, at replay, in the order in which they came. All without I/O.

mod canonical;
mod gather;
mod partition;
mod piggyback;
mod scatter;
mod size;
mod stage;

#[cfg(test)]
mod tests;

pub use gather::{FrameStore, Gather, InMemory, Taken};
pub(crate) use partition::canonical_floats;
pub use partition::{partition_of, partitions_of};
pub use piggyback::{Cursor, Piggyback, RIDING_BYTES_MAX};
pub use scatter::{Compression, Round, Scatter, ScatterOptions};
pub use stage::{Cut, Input, Stage};
