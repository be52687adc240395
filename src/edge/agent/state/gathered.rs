//! Bytes that come in pieces, counted as long as they are there.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::state::memory::{Memory, Taken};

/// What has come so far.
pub(super) struct Gathered {
    pieces: VecDeque<Bytes>,
    taken: Taken,
}

impl Gathered {
    /// Nothing yet.
    pub(super) fn new(memory: &Memory) -> Self {
        Self { pieces: VecDeque::new(), taken: memory.take(0) }
    }

    /// Bytes so far.
    pub(super) const fn len(&self) -> u64 {
        self.taken.bytes()
    }

    /// Adds what follows.
    pub(super) fn push(&mut self, piece: Bytes) {
        self.taken.resize(self.len() + piece.len() as u64);
        self.pieces.push_back(piece);
    }

    /// All of it in one piece; none of it is there twice.
    pub(super) fn whole(mut self) -> (Bytes, Taken) {
        if self.pieces.len() == 1 {
            return (self.pieces.pop_front().unwrap_or_default(), self.taken);
        }
        let mut whole = Vec::with_capacity(usize::try_from(self.len()).unwrap_or_default());
        while let Some(piece) = self.pieces.pop_front() {
            whole.extend_from_slice(&piece);
        }
        (whole.into(), self.taken)
    }
}
