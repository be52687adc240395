//! Savepoints: all states of a query at one version, in a folder that needs nothing else.
//!
//! ```text
//! <path>/savepoint     what is in it: the manifest
//!        0.state       pages of the first operator's state, range by range
//!        1.state       of the second
//! ```
//!
//! A folder is written under another name, synced, and then named: a name stands for a whole savepoint. In an object
//! store the manifest is put last, where there is none, and says which files are meant: names of files begin with a
//! number there (`part-<number>-0.state`), so that two that write at once do not mix. Nothing in it is ever changed.

mod manifest;
mod reading;
#[cfg(test)]
mod tests;
mod writing;

pub(super) use self::manifest::MAGIC;
pub use self::manifest::{Manifest, SavedRange, SavedState, uid_of};
pub use self::reading::{Pages, SavedPartition, Savepoint, within};
pub use self::writing::SavepointWriter;
use super::segment::store::part_name;

/// Name of the manifest.
pub const MANIFEST: &str = "savepoint";

/// Name of the file of one state, by its place in the manifest; in an object store, of the writer with this number.
fn file_name(number: Option<u64>, place: usize) -> String {
    part_name(number, format!("{place}.state"))
}
