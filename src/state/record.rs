//! One entry among others, as places in the bytes that it stands in: nothing is copied, and nothing counted.

use super::entries::{CLEAR, DELETE, PUT};
use crate::determinant::codec::Fields;
use crate::error::{Error, Result};

/// Where the parts of an entry stand.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Record {
    /// Its first byte.
    pub(super) at: usize,
    key: (usize, usize),
    /// One of [`PUT`], [`DELETE`], [`CLEAR`].
    pub(super) op: u8,
    /// Of a put; 0 for ever.
    pub(super) expires_ms: i64,
    /// Behind its last byte.
    pub(super) end: usize,
}

impl Record {
    /// The entry that begins at a place.
    #[inline]
    pub(super) fn read(bytes: &[u8], at: usize) -> Result<Self> {
        let rest = bytes.get(at..).unwrap_or_default();
        let mut fields = Fields::new(rest);
        let key = fields.bytes().map_err(cut_off)?;
        let key_end = bytes.len() - fields.len();
        let op = fields.byte().map_err(cut_off)?;
        let mut expires_ms = 0;
        match op {
            PUT => {
                expires_ms = fields.zigzag().map_err(cut_off)?;
                fields.bytes().map_err(cut_off)?;
            }
            DELETE | CLEAR => {}
            _ => return Err(corrupt("an entry is of no kind")),
        }
        Ok(Self { at, key: (key_end - key.len(), key_end), op, expires_ms, end: bytes.len() - fields.len() })
    }

    /// Its key.
    #[inline]
    pub(super) fn key<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        bytes.get(self.key.0..self.key.1).unwrap_or_default()
    }

    /// Where in the entry its key begins.
    #[inline]
    pub(super) const fn key_at(&self) -> usize {
        self.key.0 - self.at
    }

    /// All of it.
    #[inline]
    pub(super) fn whole<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        bytes.get(self.at..self.end).unwrap_or_default()
    }

    /// Whether it has a value at this time.
    #[inline]
    pub(super) const fn is_live(&self, now_ms: i64) -> bool {
        self.op == PUT && !(0 < self.expires_ms && self.expires_ms <= now_ms)
    }
}

fn cut_off(_: Error) -> Error {
    corrupt("an entry is cut off")
}

pub(super) fn corrupt(reason: &str) -> Error {
    Error::CorruptState { reason: reason.into() }
}
