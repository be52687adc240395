//! Encryption of what is spilled: AES-256-GCM, with a key that is in this process' memory alone and goes with it.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

use crate::error::{Error, Result};

/// Bytes that sealing adds.
pub(super) const TAG: usize = 16;

/// Where something stands: sealed for one place, it opens at no other.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spot {
    pub(super) file: u64,
    pub(super) pos: u64,
}

/// The key, and how much was sealed with it.
pub(super) struct Sealer {
    key: LessSafeKey,
    /// The next nonce. Counted, as a place is written again after a write that failed.
    next: AtomicU64,
}

impl Sealer {
    /// With a key that nobody else has.
    pub(super) fn new() -> Result<Self> {
        let mut key = [0; 32];
        getrandom::fill(&mut key)
            .map_err(|e| Error::Io { context: "drawing a key".into(), message: e.to_string() })?;
        let key = UnboundKey::new(&AES_256_GCM, &key).map_err(|_| impossible("no such key"))?;
        Ok(Self { key: LessSafeKey::new(key), next: AtomicU64::new(0) })
    }

    /// The first of so many nonces that were never given before.
    pub(super) fn nonces(&self, count: u64) -> u64 {
        self.next.fetch_add(count, Ordering::Relaxed)
    }

    /// Appends bytes, sealed, and the tag.
    pub(super) fn seal(&self, nonce: u64, spot: Spot, bytes: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let begin = out.len();
        out.extend_from_slice(bytes);
        let sealed = out.get_mut(begin..).unwrap_or_default();
        let tag = self.key.seal_in_place_separate_tag(nonce_of(nonce), spot.aad(), sealed);
        out.extend_from_slice(tag.map_err(|_| impossible("too much to be encrypted"))?.as_ref());
        Ok(())
    }

    /// Opens what [`Self::seal`] made, in place; nothing if it is not that.
    pub(super) fn open<'a>(&self, nonce: u64, spot: Spot, sealed: &'a mut [u8]) -> Option<&'a [u8]> {
        self.key.open_in_place(nonce_of(nonce), spot.aad(), sealed).ok().map(|opened| &*opened)
    }
}

impl Spot {
    fn aad(self) -> Aad<[u8; 16]> {
        Aad::from((u128::from(self.file) << 64 | u128::from(self.pos)).to_le_bytes())
    }
}

fn nonce_of(number: u64) -> Nonce {
    let mut nonce = [0; NONCE_LEN];
    let (_, counted) = nonce.split_at_mut(NONCE_LEN - size_of::<u64>());
    counted.copy_from_slice(&number.to_le_bytes());
    Nonce::assume_unique_for_key(nonce)
}

fn impossible(what: &str) -> Error {
    Error::Misuse { what: what.to_owned() }
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealer").finish_non_exhaustive()
    }
}
