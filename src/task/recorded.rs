//! The recorded rows of a result log: fingerprints at once, values when they are needed.

use std::collections::HashSet;
use std::ops::Range;

use arrow_array::{Array, ArrayRef};
use arrow_schema::DataType;
use bytes::Bytes;

use super::choice::{Choice, Chosen};
use super::header;
use super::marks::{Likeness, Marks};
use super::matching::POSITIONS_MAX;
use super::options::TaskMode;
use crate::determinant::{
    BlockBuilder, BlockReader, Determinant, decode_results, encode_row_numbers, marks as read_marks,
    row_fingerprints, row_numbers,
};
use crate::error::{Error, Result};

/// One recorded Results determinant.
#[derive(Debug)]
struct Entry {
    /// Position of its first row.
    start: usize,
    rows: usize,
    /// The values as Arrow IPC, a slice of the block.
    arrow: Bytes,
    /// The values, once decoded.
    values: Option<ArrayRef>,
    /// One fingerprint per value, once values were compared; `None` inside for a type that has
    /// none.
    compared: Option<Option<Vec<u64>>>,
}

/// A stage of an application, as headers name both.
pub(super) type Stage = (u64, u32);

/// Recorded rows in log order. Positions count from the first row of the task's own log; the rows
/// of other partitions (the pool) follow after them.
#[derive(Debug, Default)]
pub(super) struct RecordedRows {
    entries: Vec<Entry>,
    /// By what rows are found: fingerprints of arguments, until [`RecordedRows::tell_apart`].
    fingerprints: Vec<u64>,
    own: usize,
    /// Per row of the own log, its number in the input, unless each follows the one before.
    numbers: Option<Vec<u64>>,
    /// Numbers stated for the next results.
    stated: Option<Vec<u64>>,
    marks: Marks,
    /// By what the rows are chosen, one behind the other.
    choices: Vec<(Choice, Stage)>,
    /// By what the next ones are.
    choice: (Choice, Stage),
    /// Marks stated for the next results.
    marked: Option<Vec<u64>>,
    /// Rows that other tasks have recorded: of the own log, those that were copied there; of the pool, those that are
    /// copied if they are taken. The others of the pool are of other uses.
    copies: HashSet<usize>,
    /// Copies stated among the next results.
    copied: Option<Vec<u64>>,
    /// Rows of the own log that were copied from logs of other uses.
    of_uses: HashSet<usize>,
    /// The same, stated among the next results.
    of_uses_stated: Option<Vec<u64>>,
}

/// Which of some rows, by their places, were copied from logs of others.
#[derive(Debug, Default)]
pub(super) struct Copied {
    /// Of the same operator.
    pub(super) copies: Vec<u64>,
    pub(super) of_uses: Vec<u64>,
}

impl Copied {
    /// States it of the results that come next.
    pub(super) fn state(&self, builder: &mut BlockBuilder) -> Result<()> {
        if !self.copies.is_empty() {
            builder.push(&Determinant::Copies { places: &encode_row_numbers(&self.copies) })?;
        }
        if !self.of_uses.is_empty() {
            builder.push(&Determinant::OfOtherUses { places: &encode_row_numbers(&self.of_uses) })?;
        }
        Ok(())
    }
}

/// A run of values inside one entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) entry: usize,
    pub(super) offset: usize,
    pub(super) len: usize,
}

impl RecordedRows {
    /// Reads a task's own log. Returns its rows and the headers in order.
    pub(super) fn read(blocks: &[Bytes]) -> Result<(Self, Vec<header::Recorded>)> {
        let mut rows = Self::default();
        let headers = rows.append(blocks)?;
        rows.own = rows.fingerprints.len();
        Ok((rows, headers))
    }

    /// Appends the rows of a log; returns its headers.
    pub(super) fn append(&mut self, blocks: &[Bytes]) -> Result<Vec<header::Recorded>> {
        let mut headers = Vec::new();
        for block in blocks {
            for determinant in BlockReader::new(block)? {
                match determinant? {
                    Determinant::Header { mode, code, python, label, stage, app, .. } => {
                        self.choice = (Choice::UNKNOWN, (app, stage));
                        headers.push(header::Recorded {
                            mode,
                            code,
                            python: python.to_owned(),
                            label: label.to_owned(),
                            stage,
                            app,
                            before: self.fingerprints.len(),
                        });
                        if mode != TaskMode::Result.code() {
                            // The caller refuses it by this header; what follows is of another
                            // grammar.
                            return Ok(headers);
                        }
                    }
                    _ if headers.is_empty() => {
                        return Err(Error::CorruptLog { what: "a log without a header".to_owned() });
                    }
                    Determinant::Results { fingerprints, arrow } => {
                        let start = self.fingerprints.len();
                        fingerprints.extend_into(&mut self.fingerprints);
                        let rows = self.fingerprints.len() - start;
                        if self.fingerprints.len() > POSITIONS_MAX {
                            let what = format!("more than {POSITIONS_MAX} rows of one partition");
                            return Err(Error::CorruptLog { what });
                        }
                        if rows > 0 {
                            let arrow = block.slice_ref(arrow);
                            self.entries.push(Entry { start, rows, arrow, values: None, compared: None });
                        }
                        if self.choices.last() != Some(&self.choice) {
                            self.choices.push(self.choice);
                        }
                        self.number(start, rows)?;
                        let (copied, of_uses) = (self.copied.take(), self.of_uses_stated.take());
                        for (places, known) in [(copied, &mut self.copies), (of_uses, &mut self.of_uses)] {
                            let places = places.unwrap_or_default();
                            if places.iter().any(|place| *place >= rows as u64) {
                                let what = format!("a copy behind the last of {rows} rows");
                                return Err(Error::CorruptLog { what });
                            }
                            known.extend(places.iter().map(|place| start + *place as usize));
                        }
                        if let Some(marks) = self.marked.take() {
                            check_count("marks", marks.len(), rows)?;
                            self.marks.put(start, &marks);
                        }
                    }
                    Determinant::Rows { numbers } => self.stated = Some(row_numbers(numbers)?),
                    Determinant::Marks { marks } => self.marked = Some(read_marks(marks)?),
                    Determinant::Copies { places } => self.copied = Some(row_numbers(places)?),
                    Determinant::OfOtherUses { places } => self.of_uses_stated = Some(row_numbers(places)?),
                    Determinant::Choice { choice } => self.choice.0 = Choice(choice),
                    Determinant::EpochMark => {}
                    other => {
                        let what = format!("{other:?} in a log of results");
                        return Err(Error::CorruptLog { what });
                    }
                }
            }
        }
        Ok(headers)
    }

    /// Numbers the rows of one Results determinant.
    fn number(&mut self, start: usize, rows: usize) -> Result<()> {
        let Some(stated) = self.stated.take() else {
            let next = self.next_number();
            if let Some(numbers) = &mut self.numbers {
                numbers.extend((0..rows as u64).map(|row| next.wrapping_add(row)));
            }
            return Ok(());
        };
        check_count("numbers", stated.len(), rows)?;
        self.numbers.get_or_insert_with(|| (0..start as u64).collect()).extend(stated);
        Ok(())
    }

    /// The number that a row recorded next has if nothing else is stated.
    pub(super) fn next_number(&self) -> u64 {
        match &self.numbers {
            Some(numbers) => numbers.last().map_or(0, |last| last.wrapping_add(1)),
            None => self.entries.last().map_or(0, |entry| (entry.start + entry.rows) as u64),
        }
    }

    /// Numbers of the own rows, by position; `None` if the number of each is its position.
    pub(super) fn numbers(&self) -> Option<&[u64]> {
        self.numbers.as_deref()
    }

    /// How the rows were chosen, beside those of another choice, in this stage.
    pub(super) fn chosen(&self, beside: Choice, stage: Stage) -> Chosen {
        let compared = self.choices.iter().map(|(choice, of)| choice.compare(beside, *of == stage));
        compared.min().unwrap_or(Chosen::Unknown)
    }

    /// Whether rows have marks.
    pub(super) fn are_marked(&self) -> bool {
        self.marks.are_some()
    }

    /// What the own rows have in common with those of a batch. `None`: their marks do not compare.
    pub(super) fn likeness(&self, fingerprints: &[u64], marks: &[u64]) -> Option<Likeness> {
        let compare = self.marks.are_comparable(marks);
        compare.then(|| self.marks.likeness(self.fingerprints(0..self.own), fingerprints, marks))
    }

    /// Whether all own rows have marks of the same columns as `like`.
    pub(super) fn are_all_like(&self, like: u64) -> bool {
        self.marks.are_all_like(self.own, like)
    }

    /// From here on own rows are found by their marks, too, where these are of the same columns as `like`. Returns
    /// the fingerprints by which they were found until now.
    pub(super) fn tell_apart(&mut self, like: u64) -> Vec<u64> {
        let own = self.fingerprints.get_mut(..self.own).unwrap_or_default();
        let before = own.to_vec();
        std::mem::take(&mut self.marks).tell_apart(own, like);
        before
    }

    /// Marks are of no use.
    pub(super) fn forget_marks(&mut self) {
        self.marks = Marks::default();
    }

    /// Whether another task has recorded the row at a position, too.
    pub(super) fn is_copy(&self, position: usize) -> bool {
        self.copies.contains(&position)
    }

    /// Whether the row at a position is in the log of another task: it is itself, or what it was copied from is.
    pub(super) fn is_of_others(&self, position: usize) -> bool {
        position >= self.own || self.is_copy(position) || self.of_uses.contains(&position)
    }

    /// Whether there are any such rows in the own log.
    pub(super) fn has_copies(&self) -> bool {
        !self.copies.is_empty() || !self.of_uses.is_empty()
    }

    /// Rows in the task's own log.
    pub(super) const fn own(&self) -> usize {
        self.own
    }

    /// All rows, the pool's included.
    pub(super) const fn len(&self) -> usize {
        self.fingerprints.len()
    }

    /// The fingerprints of some positions; those past the end are left out.
    pub(super) fn fingerprints(&self, positions: Range<usize>) -> &[u64] {
        let end = positions.end.min(self.fingerprints.len());
        self.fingerprints.get(positions.start.min(end)..end).unwrap_or_default()
    }

    /// The entry that holds a position.
    fn entry_of(&self, position: usize) -> usize {
        self.entries.partition_point(|e| e.start <= position).saturating_sub(1)
    }

    /// Calls `each` with the pieces that make up a run of positions.
    pub(super) fn pieces(&self, mut position: usize, mut len: usize, mut each: impl FnMut(Piece)) {
        let first = self.entry_of(position);
        for (i, entry) in self.entries.iter().enumerate().skip(first) {
            if len == 0 {
                break;
            }
            let offset = position.saturating_sub(entry.start);
            let here = len.min(entry.rows.saturating_sub(offset));
            each(Piece { entry: i, offset, len: here });
            position += here;
            len -= here;
        }
    }

    /// The values of an entry, decoded on first use.
    pub(super) fn values(&mut self, entry: usize) -> Result<&ArrayRef> {
        let Some(entry) = self.entries.get_mut(entry) else {
            return Err(Error::Misuse { what: "no such recorded entry".to_owned() });
        };
        if entry.values.is_none() {
            let values = decode_results(&entry.arrow)?;
            if values.len() != entry.rows {
                let what = format!("{} fingerprints but {} results", entry.rows, values.len());
                return Err(Error::CorruptLog { what });
            }
            if entry.start >= self.own {
                // Rows of others are recorded again from what they are; one form of them is enough.
                entry.arrow = Bytes::new();
            }
            entry.values = Some(values);
        }
        entry.values.as_ref().ok_or_else(|| Error::Misuse { what: "values not decoded".to_owned() })
    }

    /// Drops the decoded values of the entries that end at or before `position`.
    pub(super) fn release_before(&mut self, position: usize) {
        let end = self.entries.partition_point(|e| e.start + e.rows <= position);
        // Those before were released by earlier calls.
        for entry in self.entries.iter_mut().take(end).rev() {
            if entry.values.take().is_none() {
                break;
            }
        }
    }

    /// The type of the recorded values; `None` if nothing is recorded.
    pub(super) fn value_type(&mut self) -> Result<Option<DataType>> {
        if self.entries.is_empty() {
            return Ok(None);
        }
        Ok(Some(self.values(0)?.data_type().clone()))
    }

    /// Whether two positions hold equal values.
    pub(super) fn same_value(&mut self, a: usize, b: usize) -> Result<bool> {
        let (left, right) = (self.entry_of(a), self.entry_of(b));
        let (x, y) = (self.value_fingerprint(left, a)?, self.value_fingerprint(right, b)?);
        if let (Some(x), Some(y)) = (x, y) {
            return Ok(x == y);
        }
        let left = self.value_at(a)?;
        Ok(left.as_ref() == self.value_at(b)?.as_ref())
    }

    /// Whether the value at a position equals row `at` of `live`, whose fingerprints are given if
    /// its type has them.
    pub(super) fn same_as_live(
        &mut self,
        position: usize,
        live: &ArrayRef,
        fingerprints: Option<&[u64]>,
        at: usize,
    ) -> Result<bool> {
        let entry = self.entry_of(position);
        let ours = fingerprints.and_then(|f| f.get(at).copied());
        if let (Some(x), Some(y)) = (self.value_fingerprint(entry, position)?, ours) {
            return Ok(x == y);
        }
        Ok(self.value_at(position)?.as_ref() == live.slice(at, 1).as_ref())
    }

    /// The value at a position, as an array of one row.
    fn value_at(&mut self, position: usize) -> Result<ArrayRef> {
        let entry = self.entry_of(position);
        let start = self.entries.get(entry).map_or(0, |e| e.start);
        Ok(self.values(entry)?.slice(position.saturating_sub(start), 1))
    }

    /// The fingerprint of a value; `None` if its type has none. Computed once for the whole entry:
    /// where rows repeat, comparing arrays row by row would cost more than calling the function.
    fn value_fingerprint(&mut self, entry: usize, position: usize) -> Result<Option<u64>> {
        if self.entries.get(entry).is_some_and(|e| e.compared.is_none()) {
            let values = ArrayRef::clone(self.values(entry)?);
            let mut out = Vec::new();
            let known = row_fingerprints(&[values], &mut out).is_ok();
            if let Some(entry) = self.entries.get_mut(entry) {
                entry.compared = Some(known.then_some(out));
            }
        }
        let Some(entry) = self.entries.get(entry) else {
            return Ok(None);
        };
        let values = entry.compared.as_ref().and_then(Option::as_ref);
        Ok(values.and_then(|v| v.get(position.saturating_sub(entry.start)).copied()))
    }
}

fn check_count(what: &str, stated: usize, rows: usize) -> Result<()> {
    if stated == rows {
        return Ok(());
    }
    Err(Error::CorruptLog { what: format!("{stated} {what} for {rows} rows") })
}
