//! A signal that one thread gives and another waits for.

use std::sync::{Condvar, Mutex};
use std::time::Duration;

use crate::edge::locked;

/// Given by many, waited for by one.
#[derive(Debug, Default)]
pub(in crate::edge) struct Signal {
    given: Mutex<bool>,
    changed: Condvar,
}

impl Signal {
    /// Wakes the one who waits, now or when it waits next.
    pub(in crate::edge) fn give(&self) {
        *locked(&self.given) = true;
        self.changed.notify_one();
    }

    /// Waits until it is given, at most `patience`; whether it was.
    pub(in crate::edge) fn wait(&self, patience: Duration) -> bool {
        let given = locked(&self.given);
        let waited = self.changed.wait_timeout_while(given, patience, |given| !*given);
        let (mut given, _) = waited.unwrap_or_else(std::sync::PoisonError::into_inner);
        std::mem::take(&mut *given)
    }
}
