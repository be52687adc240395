//! What is to be done for one batch: which rows are recorded, which must be run.

use super::marks;
use crate::determinant::{FingerprintMap, encode_marks};

/// A run of consecutive input rows with the same origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Run {
    /// `len` rows without a recorded value.
    Live { len: usize },
    /// `len` rows whose values are recorded at `position` and after.
    Recorded { position: usize, len: usize },
}

impl Run {
    /// Rows of the run.
    pub(super) const fn len(self) -> usize {
        match self {
            Self::Live { len } | Self::Recorded { len, .. } => len,
        }
    }
}

/// Runs in input order; neighbours of the same origin are joined.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Runs(Vec<Run>);

impl Runs {
    /// Adds rows after those added so far. Empty runs are left out.
    pub(super) fn push(&mut self, run: Run) {
        if run.len() == 0 {
            return;
        }
        match (self.0.last_mut(), run) {
            (Some(Run::Live { len }), Run::Live { len: more }) => *len += more,
            (Some(Run::Recorded { position, len }), Run::Recorded { position: next, len: more })
                if *position + *len == next =>
            {
                *len += more;
            }
            _ => self.0.push(run),
        }
    }

    pub(super) fn as_slice(&self) -> &[Run] {
        &self.0
    }

    /// The recorded positions of a run that reaches the highest one; 0 if none is recorded.
    pub(super) fn recorded_end(&self) -> usize {
        self.0.iter().fold(0, |end, run| match *run {
            Run::Recorded { position, len } => end.max(position + len),
            Run::Live { .. } => end,
        })
    }
}

/// What is to be done for one batch. Handed back to
/// [`ResultTask::complete`](super::ResultTask::complete) with the values of its live rows; plans
/// complete in the order they were made in.
#[must_use = "a plan that is not completed leaves its rows without values"]
#[derive(Debug)]
pub struct Plan {
    /// Rows in the batch.
    pub rows: usize,
    /// Indices of the rows in this batch with no recorded value, ascending. The function must run
    /// for these and no others.
    pub live: Vec<u32>,
    /// Rows with a recorded value.
    pub replayed: usize,
    /// Rows are missing that other partitions may have recorded, and were not looked for there:
    /// [`ResultTask::find`](super::ResultTask::find) does.
    pub(super) needs_pool: bool,
    /// Place in the order of plans.
    pub(super) sequence: u64,
    /// Number of the batch's first row in this attempt's input.
    pub(super) first_row: u64,
    pub(super) fingerprints: Vec<u64>,
    /// What can be seen of each row besides its arguments; empty if nothing was said of any.
    pub(super) marks: Vec<u64>,
    /// By what recorded rows are found, if that is not the fingerprints.
    pub(super) keys: Vec<u64>,
    /// How many rows were recorded before, where those that are new come after them.
    pub(super) recorded_before: u64,
    /// Per row, if they are counted.
    pub(super) occurrences: Vec<u64>,
    pub(super) runs: Runs,
    /// Live rows (as places in `live`) that equal a recorded row whose positions are all used:
    /// their values must equal the one at this position, or rows can't be told apart.
    pub(super) doubtful: Vec<(usize, usize)>,
    /// Per live row, whether its value is recorded already; empty if none is.
    pub(super) kept: Vec<bool>,
}

impl Plan {
    /// A plan for rows with these fingerprints, of which nothing is decided.
    pub(super) fn of(fingerprints: Vec<u64>) -> Self {
        Self {
            rows: fingerprints.len(),
            live: Vec::new(),
            replayed: 0,
            needs_pool: false,
            sequence: 0,
            first_row: 0,
            fingerprints,
            marks: Vec::new(),
            keys: Vec::new(),
            recorded_before: 0,
            occurrences: Vec::new(),
            runs: Runs::default(),
            doubtful: Vec::new(),
            kept: Vec::new(),
        }
    }

    /// Number of the batch's first row in this attempt's input, from 0.
    #[must_use]
    pub const fn first_row(&self) -> u64 {
        self.first_row
    }

    /// Fingerprint of the row at `row` (index in the batch).
    #[must_use]
    pub fn fingerprint(&self, row: usize) -> Option<u64> {
        self.fingerprints.get(row).copied()
    }

    /// By what recorded rows are found.
    pub(super) fn keys(&self) -> &[u64] {
        if self.keys.is_empty() { &self.fingerprints } else { &self.keys }
    }

    /// Whether a row has the key of a recorded one; or its arguments, if its own key is none of those that are `known`, where
    /// these are given.
    pub(super) fn is_like(
        &self,
        row: usize,
        recorded: Option<&u64>,
        known: Option<&FingerprintMap<()>>,
    ) -> bool {
        let key = self.keys().get(row);
        key == recorded
            || self.fingerprints.get(row) == recorded
                && known.zip(key).is_some_and(|(known, key)| !known.contains_key(key))
    }

    /// How many of the first rows are [like](Self::is_like) recorded ones. The equal case, a whole batch replayed, is one
    /// `memcmp`.
    pub(super) fn common_prefix(&self, recorded: &[u64], known: Option<&FingerprintMap<()>>) -> usize {
        let len = self.rows.min(recorded.len());
        if self.keys().get(..len) == recorded.get(..len) {
            return len;
        }
        let is_other = |(row, recorded)| !self.is_like(row, Some(recorded), known);
        recorded.iter().enumerate().take(len).position(is_other).unwrap_or(len)
    }

    /// Whether a row is known by its mark, and that is this key.
    pub(super) fn is_marked(&self, row: usize, key: u64) -> bool {
        self.keys.get(row) == Some(&key) && self.fingerprint(row) != Some(key)
    }

    /// Whether rows that are found by the same key as this one may differ in what can be seen of them.
    pub(super) fn is_partial(&self, row: usize) -> bool {
        self.keys.is_empty() || self.marks.get(row).is_none_or(|mark| marks::is_partial(*mark))
    }

    /// A number of the row at `row` (index in the batch) that no other row of the task has, as long as rows come in
    /// one order; where they do not, none that was answered before.
    #[must_use]
    pub const fn number(&self, row: usize) -> u64 {
        self.recorded_before + self.first_row + row as u64
    }

    /// Rows that count among equal ones: all, or those that are new.
    pub(super) fn counted_rows(&self) -> Vec<usize> {
        match self.keys.is_empty() {
            true => (0..self.rows).collect(),
            false => self.live.iter().map(|row| *row as usize).collect(),
        }
    }

    /// The marks of some rows as they are recorded; `None`: of all.
    pub(super) fn encoded_marks(&self, rows: Option<&[u32]>) -> Vec<u8> {
        let mark = |row: &u32| self.marks.get(*row as usize).copied().unwrap_or_default();
        match rows {
            None => encode_marks(self.marks.iter().copied()),
            Some(rows) => encode_marks(rows.iter().map(mark)),
        }
    }

    /// How many equal rows this attempt took before the row at `row` (index in the batch). `None`
    /// past the end or if occurrences are not counted.
    #[must_use]
    pub fn occurrence(&self, row: usize) -> Option<u64> {
        self.occurrences.get(row).copied()
    }

    /// Whether a live row, by its place in `live`, equals a recorded row that is used up.
    pub(super) fn is_doubtful(&self, place: u32) -> bool {
        self.doubtful.binary_search_by_key(&(place as usize), |(of, _)| *of).is_ok()
    }

    /// Number in this attempt's input, and fingerprint, of the live row at place `at` in `live`.
    pub(super) fn live_row(&self, at: usize) -> Option<(u64, u64)> {
        let row = *self.live.get(at)?;
        Some((self.first_row + u64::from(row), self.fingerprint(row as usize)?))
    }
}
