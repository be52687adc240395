//! Names: which state, which version, which range, and where an entry stands.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::determinant::codec::corrupt;
use crate::error::Result;

/// Ranges that the space of hashes is cut into: units of ownership, whatever the number of partitions.
pub const RANGES: usize = 256;
/// Bytes of an entry's key before the user's.
const HEAD: usize = 8 + 4;
/// Bytes of a slot.
pub(super) const SLOT: usize = 2;

/// The state of one operator of one query, in all its epochs.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct StateId {
    /// The query.
    pub query: Arc<str>,
    /// Name of the operator's log, as in its tasks' ids.
    pub operator: Arc<str>,
}

impl fmt::Display for StateId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.operator, self.query)
    }
}

/// What state was when an epoch was committed; `None` before the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Version(pub Option<u64>);

impl Version {
    /// Before the first epoch: nothing.
    pub const NONE: Self = Self(None);
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(epoch) => write!(f, "{epoch}"),
            None => f.write_str("none"),
        }
    }
}

/// One of [`RANGES`] equal pieces of the space of hashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Range(pub u8);

impl Range {
    /// The one a hash is in.
    #[must_use]
    pub const fn of(hash: u64) -> Self {
        Self((hash >> 56) as u8)
    }

    /// All of them, in order.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..=u8::MAX).map(Self)
    }
}

/// Some ranges.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct RangeSet([u64; RANGES / 64]);

impl RangeSet {
    /// None of them.
    pub const EMPTY: Self = Self([0; RANGES / 64]);
    /// All of them.
    pub const ALL: Self = Self([u64::MAX; RANGES / 64]);

    /// Adds one.
    pub fn insert(&mut self, range: Range) {
        if let Some(word) = self.0.get_mut(usize::from(range.0 >> 6)) {
            *word |= 1 << (range.0 & 63);
        }
    }

    /// Takes one out.
    pub fn remove(&mut self, range: Range) {
        if let Some(word) = self.0.get_mut(usize::from(range.0 >> 6)) {
            *word &= !(1 << (range.0 & 63));
        }
    }

    /// Whether one is in it.
    #[must_use]
    pub fn contains(&self, range: Range) -> bool {
        self.0.get(usize::from(range.0 >> 6)).is_some_and(|word| word >> (range.0 & 63) & 1 == 1)
    }

    /// Whether none is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::EMPTY
    }

    /// Those in either.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        self.with(other, |mine, theirs| mine | theirs)
    }

    /// Those in both.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        self.with(other, |mine, theirs| mine & theirs)
    }

    /// Those that are not in the other.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        self.with(other, |mine, theirs| mine & !theirs)
    }

    fn with(&self, other: &Self, word: impl Fn(u64, u64) -> u64) -> Self {
        let mut set = *self;
        set.0.iter_mut().zip(other.0).for_each(|(mine, theirs)| *mine = word(*mine, theirs));
        set
    }

    /// How many are in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Those in it, in order.
    pub fn iter(&self) -> impl Iterator<Item = Range> + '_ {
        Range::all().filter(|range| self.contains(*range))
    }
}

impl FromIterator<Range> for RangeSet {
    fn from_iter<T: IntoIterator<Item = Range>>(ranges: T) -> Self {
        let mut set = Self::EMPTY;
        ranges.into_iter().for_each(|range| set.insert(range));
        set
    }
}

impl fmt::Debug for RangeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(|range| range.0)).finish()
    }
}

/// The hashes of keys of a partition: its piece of their space. See [`crate::exchange::partition_of`].
#[must_use]
pub fn partition_hashes(partition: u32, partitions: u32) -> RangeInclusive<u64> {
    let partitions = u128::from(partitions.max(1));
    // First hash of the partition, and of the next; the last one's is beyond all of them.
    let start = |partition: u128| (partition << 64).div_ceil(partitions);
    let (first, end) = (start(u128::from(partition)), start(u128::from(partition) + 1));
    match (u64::try_from(first), u64::try_from(end.saturating_sub(1))) {
        (Ok(first), Ok(last)) => first..=last,
        // There is no such partition.
        _ => RangeInclusive::new(1, 0),
    }
}

/// The ranges that keys of a partition may be in: those that overlap its piece of the space of hashes.
#[must_use]
pub fn partition_ranges(partition: u32, partitions: u32) -> RangeSet {
    let hashes = partition_hashes(partition, partitions);
    if hashes.is_empty() {
        return RangeSet::EMPTY;
    }
    (Range::of(*hashes.start()).0..=Range::of(*hashes.end()).0).map(Range).collect()
}

/// What of an operator's state an entry is part of: 0 its timers, from 1 its variables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Slot(pub u16);

impl Slot {
    /// The timers of a key: below it stand their expiries, see [`EntryKey::timer`].
    pub const TIMERS: Self = Self(0);
}

/// Where all of a key's entries stand: `hash` (8 bytes, big endian), length of the key (4), the key.
///
/// The order of prefixes is that of hashes, so a range is an interval.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct KeyPrefix(Bytes);

impl KeyPrefix {
    /// Of a key with this hash. Keys longer than 4 GiB do not exist in Arrow.
    #[must_use]
    pub fn new(hash: u64, key: &[u8]) -> Self {
        let mut bytes = Vec::with_capacity(HEAD + key.len());
        push_prefix(&mut bytes, hash, key);
        Self(bytes.into())
    }

    /// Of many keys with their hashes, as parts of one piece of memory.
    #[must_use]
    pub fn many<'a>(keys: impl Iterator<Item = (u64, &'a [u8])>) -> Vec<Self> {
        let (mut bytes, mut ends) = (Vec::new(), Vec::with_capacity(keys.size_hint().0));
        for (hash, key) in keys {
            push_prefix(&mut bytes, hash, key);
            ends.push(bytes.len());
        }
        let mut rest = Bytes::from(bytes);
        let mut start = 0;
        let each = ends.into_iter().map(|end| Self(rest.split_to(end - std::mem::replace(&mut start, end))));
        each.collect()
    }

    /// As it travels.
    #[must_use]
    pub const fn as_bytes(&self) -> &Bytes {
        &self.0
    }

    /// The key's hash.
    #[must_use]
    pub fn hash(&self) -> u64 {
        hash_of(&self.0)
    }

    /// The key, as it was given.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        self.0.get(HEAD..).unwrap_or_default()
    }

    /// Reads one that came from elsewhere.
    ///
    /// # Errors
    /// [`crate::error::Error::CorruptBlock`].
    pub fn from_bytes(bytes: Bytes) -> Result<Self> {
        match prefix_len(&bytes) {
            Some(len) if len == bytes.len() => Ok(Self(bytes)),
            _ => Err(corrupt("a key of state is cut off")),
        }
    }
}

/// Where one entry stands: a [`KeyPrefix`], a slot (2 bytes, big endian), and what tells its elements apart.
///
/// A value has nothing there, an element of a list its place, one of a map the user's key, a timer its expiry.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct EntryKey(Bytes);

impl EntryKey {
    /// Of an element of a slot.
    #[must_use]
    pub fn new(prefix: &KeyPrefix, slot: Slot, sub: &[u8]) -> Self {
        let mut bytes = Vec::with_capacity(prefix.0.len() + SLOT + sub.len());
        bytes.extend_from_slice(&prefix.0);
        bytes.extend_from_slice(&slot.0.to_be_bytes());
        bytes.extend_from_slice(sub);
        Self(bytes.into())
    }

    /// Of a timer that is due at `expiry_ms`; timers of a key are in that order.
    #[must_use]
    pub fn timer(prefix: &KeyPrefix, expiry_ms: i64) -> Self {
        Self::new(prefix, Slot::TIMERS, &ordered(expiry_ms))
    }

    /// Reads one that came from elsewhere.
    ///
    /// # Errors
    /// [`crate::error::Error::CorruptBlock`].
    pub fn from_bytes(bytes: Bytes) -> Result<Self> {
        match prefix_len(&bytes) {
            Some(len) if len + SLOT <= bytes.len() => Ok(Self(bytes)),
            _ => Err(corrupt("a key of state is cut off")),
        }
    }

    /// As it travels.
    #[must_use]
    pub const fn as_bytes(&self) -> &Bytes {
        &self.0
    }

    /// The key's hash.
    #[must_use]
    pub fn hash(&self) -> u64 {
        hash_of(&self.0)
    }

    /// Where all of its key's entries stand.
    #[must_use]
    pub fn prefix(&self) -> KeyPrefix {
        KeyPrefix(self.0.slice(..self.prefix_len()))
    }

    /// Its slot.
    #[must_use]
    pub fn slot(&self) -> Slot {
        slot_of(&self.0).unwrap_or(Slot::TIMERS)
    }

    /// What tells it apart from others in its slot.
    #[must_use]
    pub fn sub(&self) -> &[u8] {
        self.0.get(self.prefix_len() + SLOT..).unwrap_or_default()
    }

    /// When it is due, if it is a timer.
    #[must_use]
    pub fn expiry_ms(&self) -> Option<i64> {
        (self.slot() == Slot::TIMERS).then(|| unordered(self.sub())).flatten()
    }

    fn prefix_len(&self) -> usize {
        prefix_len(&self.0).unwrap_or(self.0.len())
    }
}

fn push_prefix(bytes: &mut Vec<u8>, hash: u64, key: &[u8]) {
    bytes.extend_from_slice(&hash.to_be_bytes());
    bytes.extend_from_slice(&u32::try_from(key.len()).unwrap_or(u32::MAX).to_be_bytes());
    bytes.extend_from_slice(key);
}

fn hash_of(bytes: &[u8]) -> u64 {
    bytes.first_chunk::<8>().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

/// Bytes of the prefix that a key begins with.
pub(super) fn prefix_len(bytes: &[u8]) -> Option<usize> {
    let len = u32::from_be_bytes(bytes.get(8..HEAD)?.try_into().ok()?);
    let end = HEAD.checked_add(usize::try_from(len).ok()?)?;
    (end <= bytes.len()).then_some(end)
}

/// The slot of an entry that stands at a key.
pub(super) fn slot_of(key: &[u8]) -> Option<Slot> {
    let at = prefix_len(key)?;
    let bytes = key.get(at..at + SLOT)?.try_into().ok()?;
    Some(Slot(u16::from_be_bytes(bytes)))
}

/// Where an element stands in a list: behind those of earlier epochs, and in the order in which it was appended.
pub(super) fn element(epoch: u64, sequence: u64) -> Bytes {
    let mut bytes = Vec::with_capacity(16);
    bytes.extend_from_slice(&epoch.to_be_bytes());
    bytes.extend_from_slice(&sequence.to_be_bytes());
    bytes.into()
}

/// Bytes whose order is that of the numbers.
pub(crate) const fn ordered(number: i64) -> [u8; 8] {
    (number as u64 ^ 1 << 63).to_be_bytes()
}

pub(crate) fn unordered(bytes: &[u8]) -> Option<i64> {
    let bytes: [u8; 8] = bytes.try_into().ok()?;
    Some((u64::from_be_bytes(bytes) ^ 1 << 63) as i64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::exchange::partition_of;

    proptest! {
        #[test]
        fn a_partitions_ranges_hold_its_keys(hash in any::<u64>(), partitions in 1..5_000_u32) {
            let partition = partition_of(hash, partitions);
            prop_assert!(partition_ranges(partition.0, partitions).contains(Range::of(hash)));
        }

        #[test]
        fn an_entrys_key_says_what_it_was_made_of(
            hash in any::<u64>(), key in prop::collection::vec(any::<u8>(), 0..20), slot in any::<u16>(),
            sub in prop::collection::vec(any::<u8>(), 0..20), expiry in any::<i64>(),
        ) {
            let prefix = KeyPrefix::new(hash, &key);
            let entry = EntryKey::new(&prefix, Slot(slot), &sub);
            let read = EntryKey::from_bytes(entry.as_bytes().clone()).unwrap();
            prop_assert_eq!((read.hash(), read.slot(), read.sub()), (hash, Slot(slot), &sub[..]));
            let found = read.prefix();
            prop_assert_eq!(found.key(), &key[..]);
            prop_assert_eq!(EntryKey::timer(&prefix, expiry).expiry_ms(), Some(expiry));
        }

        #[test]
        fn numbers_keep_their_order(one in any::<i64>(), other in any::<i64>()) {
            prop_assert_eq!(one.cmp(&other), ordered(one).cmp(&ordered(other)));
        }
    }

    #[test]
    fn partitions_share_the_ranges_between_them() {
        for partitions in [1, 3, 7, 64, 256, 1_000] {
            let mut all = RangeSet::EMPTY;
            for partition in 0..partitions {
                partition_ranges(partition, partitions).iter().for_each(|range| all.insert(range));
            }
            assert_eq!(all, RangeSet::ALL);
        }
        assert_eq!(partition_ranges(1, 256), [Range(1)].into_iter().collect());
    }
}
