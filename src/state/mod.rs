//! Keyed state: what operators remember of their keys from epoch to epoch.
//!
//! A machine without I/O. Access is by keys that are known beforehand, and writes are one delta per task and
//! epoch, so there is no more to it than ordered entries, versioned by epoch:
//!
//! ```text
//! key       names: which state, which version, which range; where an entry stands
//! entries   entries in order, as they travel and as they lie in files
//! delta     what one task changes in one epoch
//! run       sorted entries that never change, in memory or in a file; several as one
//! tree      runs one above the other, and how they become fewer
//! reading   what is read at one version
//! piece     entries that came from elsewhere, checked, as runs
//! pending   deltas of epochs that are not committed
//! held      the state of one operator
//! kept      what is kept for those that come later, and what of it makes up a version
//! memory    how much of it they take
//! store     all states that one agent holds
//! codec     rows of Arrow columns as bytes, and back
//! catalog   what an operator's slots are: its variables, and their schemas
//! gathered  rows of a task until all of them are there
//! group     rows by key
//! table     state as rows, for people
//! values    values as they are kept
//! view      what one task reads of its state, and what it changes
//! local     state that one process keeps for itself
//! starting  state that begins with a savepoint
//! ```

pub mod catalog;
pub mod codec;
pub mod delta;
pub mod entries;
pub mod files;
pub mod gathered;
pub mod group;
mod held;
pub mod kept;
pub mod key;
pub mod local;
pub mod memory;
mod pending;
mod piece;
pub mod reading;
mod record;
mod run;
pub mod starting;
pub mod store;
pub mod table;
#[cfg(test)]
mod tests;
mod tree;
mod values;
pub mod view;

pub use delta::{CommitPoint, Delta, DeltaPart, Encoded};
pub use entries::{Entries, EntriesBuilder, Entry, Op};
pub use files::{Files, MemoryFiles, RunFile};
pub use key::{
    EntryKey, KeyPrefix, RANGES, Range, RangeSet, Slot, StateId, Version, partition_hashes, partition_ranges,
};
pub use reading::{Due, Limits, Page, Read, View};
pub use store::{Advanced, Held, StateStats, StateStore};
