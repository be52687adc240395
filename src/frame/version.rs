//! Which log a frame was made of.

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// A hash over a log's blocks so far. Two logs with the same version hold the same determinants; a task
/// that recorded nothing has the same version in every attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct LogVersion(pub u64);

impl LogVersion {
    /// The version after one more block.
    #[must_use]
    pub fn after(self, block: &[u8]) -> Self {
        Self(xxh3_64_with_seed(block, self.0))
    }
}
