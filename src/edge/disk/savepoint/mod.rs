//! Savepoints: all states of a query at one version, in a folder that needs nothing else.
//!
//! ```text
//! <path>/savepoint     what is in it: the manifest
//!        0.state       pages of the first operator's state, range by range
//!        1.state       of the second
//! ```
//!
//! A folder is written under another name, synced, and then named: a name stands for a whole savepoint. Nothing in it is
//! ever changed.

mod manifest;
mod reading;
#[cfg(test)]
mod tests;
mod writing;

pub use self::manifest::{Manifest, SavedRange, SavedState, uid_of};
pub use self::reading::{Pages, SavedPartition, Savepoint, within};
pub use self::writing::SavepointWriter;

/// Name of the manifest.
pub const MANIFEST: &str = "savepoint";
/// Ending of the name of a folder that is being written.
const UNFINISHED: &str = "unfinished";

/// Name of the file of one state, by its place in the manifest.
fn file_name(place: usize) -> String {
    format!("{place}.state")
}
