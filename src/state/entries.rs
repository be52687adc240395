//! Entries in order, as they travel and as they lie in files.
//!
//! ```text
//! entry = key (length, bytes) · op (1 byte) · [put: expiry (zigzag) · value (length, bytes)]
//! ```
//!
//! Keys ascend; numbers are varints. What carries them has a checksum of its own.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::key::EntryKey;
use crate::determinant::codec::{Fields, corrupt, put_bytes, put_zigzag};
use crate::error::Result;

pub(super) const PUT: u8 = 0;
pub(super) const DELETE: u8 = 1;
pub(super) const CLEAR: u8 = 2;

/// What becomes of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// It has this value, until a time in milliseconds; 0 for ever.
    Put {
        /// When it is over.
        expires_ms: i64,
        /// As the operator's codec has it.
        value: Bytes,
    },
    /// It is gone.
    Delete,
    /// All entries of its slot are gone, but for those that the same delta puts: its key has nothing below the
    /// slot, so it comes before them.
    Clear,
}

/// One entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Where it stands.
    pub key: EntryKey,
    /// What it is.
    pub op: Op,
}

/// Entries that were read or written as one.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Entries(Bytes);

impl Entries {
    /// Entries that came from elsewhere; each is checked when it is read.
    #[must_use]
    pub const fn from_bytes(bytes: Bytes) -> Self {
        Self(bytes)
    }

    /// As they travel.
    #[must_use]
    pub const fn as_bytes(&self) -> &Bytes {
        &self.0
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Each of them, in order; keys and values are parts of these bytes and not copied.
    pub fn iter(&self) -> impl Iterator<Item = Result<Entry>> + '_ {
        let mut fields = Fields::new(&self.0);
        let mut failed = false;
        std::iter::from_fn(move || {
            if failed || fields.is_empty() {
                return None;
            }
            let read = self.read(&mut fields);
            failed = read.is_err();
            Some(read)
        })
    }

    fn read(&self, fields: &mut Fields<'_>) -> Result<Entry> {
        let key = EntryKey::from_bytes(self.0.slice_ref(fields.bytes()?))?;
        let op = match fields.byte()? {
            PUT => Op::Put { expires_ms: fields.zigzag()?, value: self.0.slice_ref(fields.bytes()?) },
            DELETE => Op::Delete,
            CLEAR => Op::Clear,
            _ => return Err(corrupt("an entry of state is of no kind")),
        };
        Ok(Entry { key, op })
    }
}

/// Writes entries, which must come in order.
#[derive(Debug, Default)]
pub struct EntriesBuilder(Vec<u8>);

impl EntriesBuilder {
    /// None yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one.
    pub fn push(&mut self, key: &EntryKey, op: &Op) {
        self.push_raw(key.as_bytes(), op);
    }

    /// Adds one whose key is known by its bytes.
    pub fn push_raw(&mut self, key: &[u8], op: &Op) {
        put_bytes(&mut self.0, key);
        match op {
            Op::Put { expires_ms, value } => {
                self.0.push(PUT);
                put_zigzag(&mut self.0, *expires_ms);
                put_bytes(&mut self.0, value);
            }
            Op::Delete => self.0.push(DELETE),
            Op::Clear => self.0.push(CLEAR),
        }
    }

    /// Adds one as it stands among others.
    pub(super) fn push_entry(&mut self, entry: &[u8]) {
        self.0.extend_from_slice(entry);
    }

    /// Bytes so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of them.
    #[must_use]
    pub fn finish(self) -> Entries {
        Entries(self.0.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::key::{KeyPrefix, Slot};

    #[test]
    fn what_is_written_is_read_and_what_is_cut_off_is_an_error() {
        let prefix = KeyPrefix::new(7, b"a key");
        let put = Op::Put { expires_ms: -5, value: Bytes::from_static(b"a value") };
        let written = [
            (EntryKey::timer(&prefix, 9), Op::Put { expires_ms: 0, value: Bytes::new() }),
            (EntryKey::new(&prefix, Slot(1), b""), Op::Clear),
            (EntryKey::new(&prefix, Slot(1), b"x"), put),
            (EntryKey::new(&prefix, Slot(2), b""), Op::Delete),
        ];
        let mut builder = EntriesBuilder::new();
        written.iter().for_each(|(key, op)| builder.push(key, op));
        let entries = builder.finish();
        let read: Vec<_> = entries.iter().map(|entry| entry.unwrap()).map(|e| (e.key, e.op)).collect();
        assert_eq!(read, written);
        let all = entries.as_bytes();
        let whole = |len: usize| Entries::from_bytes(all.slice(..len)).iter().all(|entry| entry.is_ok());
        assert_eq!((0..=all.len()).filter(|len| whole(*len)).count(), 1 + written.len());
    }
}
