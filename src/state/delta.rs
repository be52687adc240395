//! What one task changes in one epoch, as it travels and as it is kept.
//!
//! ```text
//! delta = "CS" · version (1 byte, 1) · flags (1 byte, 0) · crc32 (4 bytes, of all that follows) ·
//!         epoch · base (0: none, else one more than its epoch) · now (zigzag) · catalog (length, bytes) · entries
//! ```
//!
//! Numbers without a size are varints.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use super::entries::Entries;
use super::key::{Range, RangeSet, Version};
use super::record::{Record, corrupt};
use crate::determinant::codec::{Fields, put_bytes, put_varint, put_zigzag};
use crate::error::{Error, Result};
use crate::id::Generation;

const MAGIC: &[u8; 2] = b"CS";
const VERSION: u8 = 1;
/// Bytes before those that the checksum is of.
const HEAD: usize = 8;

/// What one task changes in one epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delta {
    /// The epoch.
    pub epoch: u64,
    /// The version that the task read.
    pub base: Version,
    /// The epoch's clock: what expires until then is over.
    pub now_ms: i64,
    /// What the operator's slots are; agents do not look into it.
    pub catalog: Bytes,
    /// What becomes of its entries.
    pub entries: Entries,
}

impl Delta {
    /// What two deltas that say the same have in common.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        let mut hash = Xxh3::new();
        hash.update(&self.head());
        hash.update(self.entries.as_bytes());
        hash.digest()
    }

    /// As it travels.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        self.encoded(vec![self.entries.as_bytes().clone()]).piece(0, usize::MAX)
    }

    /// What of it is in some ranges, as it travels.
    ///
    /// # Errors
    /// [`Error::CorruptState`] for entries that make no sense.
    pub fn encode_of(&self, ranges: &RangeSet) -> Result<Encoded> {
        Ok(self.encoded(self.entries_of(ranges)?))
    }

    fn encoded(&self, entries: Vec<Bytes>) -> Encoded {
        let head = self.head();
        let mut sum = crc32fast::Hasher::new();
        sum.update(&head);
        entries.iter().for_each(|part| sum.update(part));
        let mut out = Vec::with_capacity(HEAD + head.len());
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&[VERSION, 0]);
        out.extend_from_slice(&sum.finalize().to_le_bytes());
        out.extend_from_slice(&head);
        let mut parts = vec![out.into()];
        parts.extend(entries);
        Encoded(parts)
    }

    /// Reads one that came from elsewhere. Its entries are parts of `bytes`; who takes them checks them.
    ///
    /// # Errors
    /// [`Error::CorruptState`], [`Error::UnsupportedVersion`].
    pub fn decode(bytes: &Bytes) -> Result<Self> {
        let cut_off = || corrupt("a delta is cut off");
        let (head, body) = bytes.split_first_chunk::<HEAD>().ok_or_else(cut_off)?;
        let [m0, m1, version, flags, sum @ ..] = head;
        if [*m0, *m1] != *MAGIC {
            return Err(corrupt("what should be a delta begins otherwise"));
        }
        if *version != VERSION {
            let (what, found, known) = ("a delta of keyed state".into(), u32::from(*version), VERSION.into());
            return Err(Error::UnsupportedVersion { what, found, known });
        }
        if *flags != 0 || crc32fast::hash(body) != u32::from_le_bytes(*sum) {
            return Err(corrupt("the checksum of a delta does not fit"));
        }
        let mut fields = Fields::new(body);
        let mut number = || fields.varint().map_err(|_| cut_off());
        let (epoch, base) = (number()?, number()?.checked_sub(1));
        let now_ms = fields.zigzag().map_err(|_| cut_off())?;
        // It is kept for longer than the entries, whose bytes it must not keep.
        let catalog = Bytes::copy_from_slice(fields.bytes().map_err(|_| cut_off())?);
        let entries = Entries::from_bytes(bytes.slice(bytes.len() - fields.len()..));
        Ok(Self { epoch, base: Version(base), now_ms, catalog, entries })
    }

    /// What of it is in some ranges.
    ///
    /// # Errors
    /// [`Error::CorruptState`] for entries that make no sense.
    pub fn of(&self, ranges: &RangeSet) -> Result<Self> {
        let entries = Entries::from_bytes(self.entries_of(ranges)?.concat().into());
        Ok(Self { entries, catalog: self.catalog.clone(), ..*self })
    }

    /// Its entries in some ranges, without a copy of them: those that follow each other are one part.
    fn entries_of(&self, ranges: &RangeSet) -> Result<Vec<Bytes>> {
        let bytes = self.entries.as_bytes();
        let mut parts = Vec::new();
        let (mut from, mut at) = (0, 0);
        while at < bytes.len() {
            let record = Record::read(bytes, at)?;
            let range = record.key(bytes).first().copied().map(Range);
            if !range.is_some_and(|range| ranges.contains(range)) {
                parts.push(bytes.slice(from..at));
                from = record.end;
            }
            at = record.end;
        }
        parts.push(bytes.slice(from..at));
        parts.retain(|part| !part.is_empty());
        Ok(parts)
    }

    /// All that is not entries, as it travels.
    fn head(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.catalog.len() + 40);
        put_varint(&mut out, self.epoch);
        put_varint(&mut out, self.base.0.map_or(0, |epoch| epoch.saturating_add(1)));
        put_zigzag(&mut out, self.now_ms);
        put_bytes(&mut out, &self.catalog);
        out
    }
}

/// A delta as it travels, of which no more than is sent at a time is copied.
#[derive(Debug, Clone)]
pub struct Encoded(Vec<Bytes>);

impl Encoded {
    /// Bytes of it.
    #[must_use]
    pub fn size(&self) -> usize {
        self.0.iter().map(Bytes::len).sum()
    }

    /// What stands from `at` on, at most so many bytes.
    #[must_use]
    pub fn piece(&self, at: usize, bytes_max: usize) -> Bytes {
        let (mut skipped, mut left) = (at, bytes_max.min(self.size().saturating_sub(at)));
        let mut piece = Vec::with_capacity(left);
        for part in &self.0 {
            let from = skipped.min(part.len());
            let part = part.get(from..part.len().min(from + left)).unwrap_or_default();
            piece.extend_from_slice(part);
            (skipped, left) = (skipped - from, left - part.len());
        }
        piece.into()
    }
}

/// What of a delta is in some ranges, and whose it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeltaPart {
    /// The partition whose task it is of.
    pub partition: u32,
    /// The attempt.
    pub generation: Generation,
    /// The ranges.
    pub ranges: RangeSet,
    /// Entries of those ranges.
    pub delta: Delta,
}

/// Which delta of each partition counts in an epoch that was committed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommitPoint {
    /// The epoch.
    pub epoch: u64,
    /// Partitions that the operator had in it.
    pub partitions: u32,
    /// Partitions, and the attempts that count.
    pub tasks: Vec<(u32, Generation)>,
}
