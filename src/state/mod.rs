//! Keyed state: what operators remember of their keys from epoch to epoch.
//!
//! A machine without I/O. Access is by keys that are known beforehand, and writes are one delta per task and
//! epoch, so there is no more to it than ordered entries, versioned by epoch:
//!
//! ```text
//! key       names: which state, which version, which range; where an entry stands
//! entries   entries in order, as they travel and as they lie in files
//! ```

pub mod entries;
pub mod key;

pub use entries::{Entries, EntriesBuilder, Entry, Op};
pub use key::{EntryKey, KeyPrefix, RANGES, Range, RangeSet, Slot, StateId, Version, partition_ranges};
