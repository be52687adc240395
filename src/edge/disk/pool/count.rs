//! How many rows there are.

use std::sync::Arc;

use super::run::{Entries, Role, Run};
use crate::error::Result;

/// How many rows were recorded, as logs say it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Count {
    /// Those that are no copies.
    own: u64,
    /// Those that were copied from logs of other uses.
    of_uses: u64,
    /// Those that were copied from logs of the same use.
    copies: u64,
}

impl Count {
    pub(super) const fn add(&mut self, rows: usize, copies: usize, of_uses: usize) {
        self.own += rows.saturating_sub(copies + of_uses) as u64;
        self.of_uses += of_uses as u64;
        self.copies += copies as u64;
    }

    /// How many of them were recorded here, where logs of other uses are among these or not: what was copied from such a
    /// log is counted there.
    pub(super) const fn known(self, has_other_uses: bool) -> u64 {
        if has_other_uses { self.own } else { self.own + self.of_uses }
    }

    pub(super) const fn has_copies(self) -> bool {
        self.copies + self.of_uses > 0
    }
}

/// Counts rows of which there are but copies: who recorded them had no room for them on its disk, or died before they
/// were there, and somebody had taken them meanwhile. Of equal ones it counts one, so that never too many are known.
pub(super) struct Orphans {
    entries: Entries,
    has_other_uses: bool,
    /// What was met of the fingerprint that was met last.
    last: Option<Met>,
    count: u64,
}

/// Entries of one fingerprint.
struct Met {
    fingerprint: u64,
    has_original: bool,
    has_copy: bool,
}

impl Orphans {
    pub(super) fn of(run: &Arc<Run>, has_other_uses: bool) -> Self {
        Self { entries: Entries::of(run), has_other_uses, last: None, count: 0 }
    }

    /// Takes so many entries; the count, when that was all.
    pub(super) fn advance(&mut self, entries: usize) -> Result<Option<u64>> {
        for _ in 0..entries {
            let entry = self.entries.next()?;
            if self.last.as_ref().map(|met| met.fingerprint) != entry.map(|entry| entry.fingerprint) {
                let is_orphan = |met: Met| met.has_copy && !met.has_original;
                self.count += u64::from(self.last.take().is_some_and(is_orphan));
            }
            let Some(entry) = entry else { return Ok(Some(self.count)) };
            let new = || Met { fingerprint: entry.fingerprint, has_original: false, has_copy: false };
            let met = self.last.get_or_insert_with(new);
            match entry.role {
                Role::Marked => {}
                Role::Copy => met.has_copy = true,
                Role::OfOtherUse if self.has_other_uses => met.has_copy = true,
                Role::Original | Role::OfOtherUse => met.has_original = true,
            }
        }
        Ok(None)
    }
}
