//! What one attempt did, for statistics and for the registry.

use serde::{Deserialize, Serialize};

/// What one attempt did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// Input rows taken.
    pub rows: u64,
    /// A sum over their fingerprints: which rows these were, in whatever order.
    pub input: u64,
    /// Rows answered from the log, those from other partitions' logs included.
    pub replayed: u64,
    /// Rows for which the function or a service ran live.
    pub live: u64,
    /// Rows answered from other partitions' logs (another layout).
    pub from_pool: u64,
    /// Rows answered with what was recorded in another layout, as far as it is counted in [`Self::known`].
    pub taken: u64,
    /// The same of rows that were found by their marks, so that it is known whose answers these are.
    pub marked: u64,
    /// Rows that were recorded in other layouts, by all tasks; 0 if they were not asked for.
    pub known: u64,
    /// Recorded rows of this task's own log that were not asked for.
    pub leftover: u64,
    /// Those of them that no other task, and no other stage, can be asked for.
    pub unasked: u64,
    /// Calls made: rows of a function whose results are recorded, else calls of its services.
    pub calls: u64,
    /// Calls that were not made again: rows of a function whose results are recorded, else calls of
    /// its services.
    pub saved: u64,
    /// Nanoseconds of work that nothing recorded: the function's for live rows, else its services'.
    /// The host counts them.
    pub live_ns: u64,
    /// Bytes this attempt added to the log.
    pub bytes: u64,
}

impl Summary {
    /// Counts rows in [`Self::input`].
    pub(super) fn took(&mut self, fingerprints: &[u64]) {
        // One more for each row, as rows of no columns have no fingerprint.
        let sum = |sum: u64, fingerprint: &u64| sum.wrapping_add(*fingerprint).wrapping_add(1);
        self.input = fingerprints.iter().fold(self.input, sum);
    }
}

/// Which attempts of a task came to their end. What others did, nobody can have used: Spark drops what a
/// failed attempt gave.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ended {
    /// Some may have.
    #[default]
    Unknown,
    /// None.
    Never,
    /// The last of them had this [`Summary::input`].
    With(u64),
}

impl Ended {
    /// Whether an attempt may leave recorded rows aside, though nothing says that others ask for them.
    pub(super) const fn allows(self, summary: &Summary) -> bool {
        match self {
            Self::Unknown => false,
            Self::Never => true,
            Self::With(input) => input == summary.input,
        }
    }
}
