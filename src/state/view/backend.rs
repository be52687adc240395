//! Where a task's state is, as the task sees it.

use bytes::Bytes;

use crate::error::Result;
use crate::state::delta::Delta;
use crate::state::entries::Entries;
use crate::state::key::{EntryKey, KeyPrefix, Version};

/// What a task is told when it begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Begun {
    /// The version it reads.
    pub version: Version,
    /// Processing time, in milliseconds since 1970.
    pub now_ms: i64,
    /// The watermark; -1 without one.
    pub watermark_ms: i64,
    /// The watermark below which rows are late; -1 without one.
    pub late_ms: i64,
    /// What the operator's slots are; empty if nothing is known.
    pub catalog: Bytes,
}

/// What was read of some keys.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Loaded {
    /// Entries in order, in one piece or several.
    pub entries: Vec<Entries>,
    /// Where what was left out of lists and maps begins, in order.
    pub cut: Vec<EntryKey>,
}

/// Where a task's state is.
pub trait Backend {
    /// What the task reads, and when it is.
    ///
    /// # Errors
    /// Whatever keeps the state from being read.
    fn begin(&mut self) -> Result<Begun>;

    /// What there is of some keys, which ascend; of a list or map of one key about `part` bytes.
    ///
    /// # Errors
    /// Whatever keeps the state from being read.
    fn read(&mut self, keys: &[KeyPrefix], part: u64) -> Result<Loaded>;

    /// Entries of one key between two places, about so many bytes, but one at least; and where to go on.
    ///
    /// # Errors
    /// Whatever keeps the state from being read.
    fn read_on(
        &mut self,
        key: &KeyPrefix,
        from: &EntryKey,
        until: &Bytes,
        bytes: u64,
    ) -> Result<(Entries, Option<EntryKey>)>;

    /// Timers of the task's partition that are due at a time or before, by their expiry.
    ///
    /// # Errors
    /// Whatever keeps the state from being read.
    fn due(&mut self, until_ms: i64) -> Result<Vec<(i64, KeyPrefix)>>;

    /// Has the task's delta held.
    ///
    /// # Errors
    /// Whatever keeps it from being held.
    fn write(&mut self, delta: Delta) -> Result<()>;
}

impl<B: Backend + ?Sized> Backend for Box<B> {
    fn begin(&mut self) -> Result<Begun> {
        (**self).begin()
    }

    fn read(&mut self, keys: &[KeyPrefix], part: u64) -> Result<Loaded> {
        (**self).read(keys, part)
    }

    fn read_on(
        &mut self,
        key: &KeyPrefix,
        from: &EntryKey,
        until: &Bytes,
        bytes: u64,
    ) -> Result<(Entries, Option<EntryKey>)> {
        (**self).read_on(key, from, until, bytes)
    }

    fn due(&mut self, until_ms: i64) -> Result<Vec<(i64, KeyPrefix)>> {
        (**self).due(until_ms)
    }

    fn write(&mut self, delta: Delta) -> Result<()> {
        (**self).write(delta)
    }
}
