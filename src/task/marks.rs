//! Marks: what can be seen of a row besides the arguments of a function.
//!
//! Behind a shuffle rows come in another order when they are computed again, and those with equal arguments may
//! trade places without a trace in what the function is given. So Spark hands a hash of the row along, of all
//! columns that anything above the function reads:
//!
//! ```text
//!  63                  17 16      1  0
//! ┌──────────────────────┬─────────┬─┐
//! │    hash of values    │ columns │p│   p: some columns are not in the hash, as they may differ by themselves
//! └──────────────────────┴─────────┴─┘
//! ```
//!
//! Marks compare where they are of the same columns. A hash of 0 says that nothing is read of a row but what the
//! function is given: rows with equal arguments are anybody's. Marks are hints: a row whose mark nobody knows, as one of its
//! columns is another in each run, is looked for by its arguments.

use xxhash_rust::xxh3::xxh3_64;

use crate::determinant::FingerprintMap;

const PARTIAL: u64 = 1;
const COLUMNS: u64 = 0x0001_fffe;
const VALUES: u64 = !(COLUMNS | PARTIAL);

/// No mark: nothing is known of the row but its arguments.
pub(super) const NONE: u64 = 0;

/// Whether rows with this mark may differ in what it does not tell.
pub(super) const fn is_partial(mark: u64) -> bool {
    mark & PARTIAL != 0
}

/// Whether nothing is read of a row with this mark but what the function is given.
pub(super) const fn tells_nothing(mark: u64) -> bool {
    mark & (VALUES | PARTIAL) == 0
}

/// Of which columns a mark is.
pub(crate) const fn columns(mark: u64) -> u64 {
    mark & COLUMNS
}

/// What tells a row apart: its arguments and its mark.
pub(crate) fn key(fingerprint: u64, mark: u64) -> u64 {
    if mark == NONE {
        return fingerprint;
    }
    let mut bytes = [0; 16];
    let (front, back) = bytes.split_at_mut(8);
    front.copy_from_slice(&fingerprint.to_le_bytes());
    back.copy_from_slice(&mark.to_le_bytes());
    xxh3_64(&bytes)
}

/// What some recorded rows and those of a batch have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Likeness {
    /// No arguments.
    Nothing,
    /// Arguments, but no row that is the same with its mark.
    Arguments,
    /// A row.
    Rows,
}

/// The marks of recorded rows.
#[derive(Debug, Default)]
pub(super) struct Marks(Vec<u64>);

impl Marks {
    /// Adds those of the rows from `start` on.
    pub(super) fn put(&mut self, start: usize, marks: &[u64]) {
        self.0.resize(start, NONE);
        self.0.extend_from_slice(marks);
    }

    /// Whether some row has one.
    pub(super) fn are_some(&self) -> bool {
        self.0.iter().any(|mark| *mark != NONE)
    }

    /// The mark of a row, if it is of the same columns as `like`.
    fn comparable(&self, row: usize, like: u64) -> Option<u64> {
        let mark = self.0.get(row).copied().filter(|mark| *mark != NONE)?;
        (columns(mark) == columns(like)).then_some(mark)
    }

    /// Whether all of the first so many rows have marks of the same columns as `like`.
    pub(super) fn are_all_like(&self, rows: usize, like: u64) -> bool {
        (0..rows).all(|row| self.comparable(row, like).is_some())
    }

    /// Whether some row has a mark of the same columns as these.
    pub(super) fn are_comparable(&self, marks: &[u64]) -> bool {
        let like = marks.iter().copied().find(|mark| *mark != NONE);
        like.is_some_and(|like| (0..self.0.len()).any(|row| self.comparable(row, like).is_some()))
    }

    /// Compares recorded rows with those of a batch. In one pass over the recorded ones, of which there may be
    /// millions; and none where the first of both are the same.
    pub(super) fn likeness(&self, recorded: &[u64], fingerprints: &[u64], marks: &[u64]) -> Likeness {
        let Some(&like) = marks.iter().find(|mark| **mark != NONE) else { return Likeness::Arguments };
        let key_of = |row: usize| Some(key(*recorded.get(row)?, self.comparable(row, like)?));
        let offered = || fingerprints.iter().zip(marks).map(|(fingerprint, mark)| key(*fingerprint, *mark));
        if key_of(0).is_some_and(|first| offered().next() == Some(first)) {
            return Likeness::Rows;
        }
        let keys: FingerprintMap<()> = offered().map(|key| (key, ())).collect();
        let arguments: FingerprintMap<()> =
            fingerprints.iter().map(|fingerprint| (*fingerprint, ())).collect();
        let mut likeness = Likeness::Nothing;
        for (row, fingerprint) in recorded.iter().enumerate() {
            if arguments.contains_key(fingerprint) {
                likeness = Likeness::Arguments;
                if key_of(row).is_some_and(|key| keys.contains_key(&key)) {
                    return Likeness::Rows;
                }
            }
        }
        likeness
    }

    /// Makes keys of the fingerprints of those recorded rows whose marks compare with that of a batch.
    pub(super) fn tell_apart(&self, recorded: &mut [u64], like: u64) {
        for (row, fingerprint) in recorded.iter_mut().enumerate() {
            if let Some(mark) = self.comparable(row, like) {
                *fingerprint = key(*fingerprint, mark);
            }
        }
    }
}
