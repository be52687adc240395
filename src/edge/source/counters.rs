//! What a receiver counts.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::source::{Rejected, Rejection, SourceStats};

/// Counters of one receiver, since it was started.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) rows: AtomicU64,
    too_long: AtomicU64,
    not_utf8: AtomicU64,
    pub(super) repaired: AtomicU64,
    pub(super) connections: AtomicU64,
    pub(super) broken: AtomicU64,
    pub(super) held_back_ms: AtomicU64,
    pub(super) failed_writes: AtomicU64,
}

impl Counters {
    /// Counts lines that are no rows.
    pub(super) fn rejected(&self, rejected: &[Rejected]) {
        for line in rejected {
            let counter = match line.why {
                Rejection::TooLong => &self.too_long,
                Rejection::NotUtf8 => &self.not_utf8,
            };
            add(counter, 1);
        }
    }

    /// Fills in what is counted here.
    pub(super) fn fill(&self, stats: SourceStats) -> SourceStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        SourceStats {
            rows: read(&self.rows),
            too_long: read(&self.too_long),
            not_utf8: read(&self.not_utf8),
            repaired: read(&self.repaired),
            connections: read(&self.connections),
            broken: read(&self.broken),
            held_back_ms: read(&self.held_back_ms),
            failed_writes: read(&self.failed_writes),
            ..stats
        }
    }
}

/// Adds to a counter.
pub(super) fn add(counter: &AtomicU64, number: u64) {
    counter.fetch_add(number, Ordering::Relaxed);
}
