//! How much memory state takes, whoever has it: runs that are held, those that only a view needs any more, what is
//! being merged, and deltas on their way.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts bytes that are taken.
#[derive(Debug, Clone, Default)]
pub struct Memory(Arc<AtomicU64>);

/// Bytes that are taken until this is dropped.
#[derive(Debug)]
pub struct Taken {
    memory: Memory,
    bytes: u64,
}

impl Memory {
    /// Bytes that are taken.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Takes so many.
    #[must_use]
    pub fn take(&self, bytes: u64) -> Taken {
        self.0.fetch_add(bytes, Ordering::Relaxed);
        Taken { memory: self.clone(), bytes }
    }
}

impl Taken {
    /// Bytes of it.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// It is so many from now on.
    pub fn resize(&mut self, bytes: u64) {
        // More first, so that nobody sees too few.
        self.memory.0.fetch_add(bytes, Ordering::Relaxed);
        self.memory.0.fetch_sub(self.bytes, Ordering::Relaxed);
        self.bytes = bytes;
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.memory.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
