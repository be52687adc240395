//! What a thread has got done that others wait for.
//!
//! Opening a task may mean to read gigabytes back from a checkpoint folder, or to write them to one. Nobody can say how
//! long that takes; but each block read, each record on disk and each answer of another agent is a step, and whoever hangs
//! makes none. So steps are counted where they are made, for whoever follows the thread (see `net/working.rs`).

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Steps made so far.
#[derive(Debug, Clone, Default)]
pub(super) struct Progress(Arc<AtomicU64>);

thread_local! {
    static OURS: RefCell<Option<Progress>> = const { RefCell::new(None) };
}

impl Progress {
    /// Steps so far.
    pub(super) fn steps(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// What this thread's steps are counted in, if anybody follows it.
    pub(super) fn ours() -> Option<Self> {
        OURS.with_borrow(Clone::clone)
    }

    /// This thread's steps are counted in `progress` from now on.
    pub(super) fn count(progress: Option<Self>) {
        OURS.set(progress);
    }

    /// This thread has made a step.
    pub(super) fn step() {
        OURS.with_borrow(|ours| {
            if let Some(Self(steps)) = ours {
                steps.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_counted_for_whoever_follows_a_thread_and_those_that_work_for_it() {
        Progress::step();
        let progress = Progress::default();
        Progress::count(Some(progress.clone()));
        Progress::step();
        let ours = Progress::ours();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                Progress::step();
                Progress::count(ours);
                Progress::step();
            });
        });
        assert_eq!(progress.steps(), 2);
        Progress::count(None);
        Progress::step();
        assert_eq!(progress.steps(), 2);
    }
}
