//! Hash maps keyed by fingerprints.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Hash maps keyed by fingerprints: these are hashes already, hashing them again is waste.
pub(crate) type FingerprintMap<V> = HashMap<u64, V, BuildHasherDefault<FingerprintHasher>>;

/// Passes a `u64` through.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct FingerprintHasher(u64);

impl Hasher for FingerprintHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }

    // Never called for u64 keys; kept correct in case it is.
    fn write(&mut self, bytes: &[u8]) {
        for &b in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(b);
        }
    }
}
