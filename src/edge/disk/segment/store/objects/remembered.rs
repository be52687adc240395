//! Pieces of objects that were read lately: the blocks beside the one that was wanted are wanted next.

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};

use bytes::Bytes;

/// Bytes that are remembered.
const BYTES: usize = 32 << 20;

/// An object, and which of its pieces.
type Key = (PathBuf, u64);

/// Pieces, the newest as long as there is room.
#[derive(Default)]
pub(super) struct Remembered {
    pieces: HashMap<Key, Bytes>,
    order: VecDeque<Key>,
    bytes: usize,
}

impl Remembered {
    pub(super) fn get(&self, path: &Path, piece: u64) -> Option<Bytes> {
        self.pieces.get(&(path.to_owned(), piece)).cloned()
    }

    pub(super) fn insert(&mut self, path: PathBuf, piece: u64, bytes: Bytes) {
        let key = (path, piece);
        self.bytes += bytes.len();
        match self.pieces.insert(key.clone(), bytes) {
            Some(before) => self.bytes -= before.len(),
            None => self.order.push_back(key),
        }
        while self.bytes > BYTES {
            let Some(oldest) = self.order.pop_front() else { return };
            self.bytes -= self.pieces.remove(&oldest).map_or(0, |bytes| bytes.len());
        }
    }
}
