//! What this agent holds of states, for any number of readers at a time.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::agent::state::holdings::Holdings;
use crate::state::{Files, StateId, StateStore, View};

/// What is held.
pub(super) struct Held(RwLock<Holdings>);

impl Held {
    pub(super) fn new(memory_bytes: u64, files: Arc<dyn Files>) -> Self {
        Self(RwLock::new(Holdings::new(StateStore::with_files(memory_bytes, files))))
    }

    pub(super) fn read(&self) -> RwLockReadGuard<'_, Holdings> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn write(&self) -> RwLockWriteGuard<'_, Holdings> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// A state as it is now; none if nothing of it is here.
    pub(super) fn view(&self, id: &StateId, life: u64) -> Option<View> {
        self.read().view(id, life)
    }
}
