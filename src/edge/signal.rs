//! A bell that one thread rings and another waits for.

use std::sync::{Condvar, Mutex};
use std::time::Duration;

use super::locked;

/// Rung by many, waited for by one.
#[derive(Debug, Default)]
pub(super) struct Signal {
    rung: Mutex<bool>,
    bell: Condvar,
}

impl Signal {
    /// Wakes the one who waits, now or when it waits next.
    pub(super) fn ring(&self) {
        *locked(&self.rung) = true;
        self.bell.notify_one();
    }

    /// Waits until it is rung, at most `patience`; whether it was.
    pub(super) fn wait(&self, patience: Duration) -> bool {
        let rung = locked(&self.rung);
        let waited = self.bell.wait_timeout_while(rung, patience, |rung| !*rung);
        let (mut rung, _) = waited.unwrap_or_else(std::sync::PoisonError::into_inner);
        std::mem::take(&mut *rung)
    }
}
