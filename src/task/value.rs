//! One attempt of a task whose function has one answer per distinct argument.
//!
//! ```text
//!  input batch --offer--> questions --(ask)--> standing --> rows to call the function for
//!                             ^                                     |
//!                             +---- recorded <--(publish)---- publication --> sent
//!                             |                                                 |
//!                   none left: complete --> all values       none left: complete --> all values,
//!                                                            of use when `recorded` says so
//! ```
//!
//! Answers are kept for the task's life, inside [`CACHE_BYTES_MAX`], so that what comes again is not asked
//! again.

#[cfg(test)]
mod tests;

use std::collections::{HashSet, VecDeque};

use arrow_array::{Array, ArrayRef, UInt32Array};
use arrow_schema::{DataType, Field};
use arrow_select::concat::concat;
use arrow_select::interleave::interleave;
use arrow_select::take::take;
use bytes::Bytes;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use super::summary::Summary;
use crate::determinant::{BlockBuilder, FingerprintMap, bytes_fingerprint, encode_results, row_fingerprints};
use crate::error::{Error, Result};

/// Answers kept for later batches; beyond, all are forgotten and asked for again.
const CACHE_BYTES_MAX: usize = 64 << 20;
/// As many answers are kept in any case. Beyond, they are forgotten where hardly any was of use, and for
/// [`UNKEPT_ROWS`] none is kept: that costs as much as finding them would save.
const KEPT_MIN: usize = 1 << 14;
const UNKEPT_ROWS: u64 = 1 << 20;
/// Of so many rows, one at least had an answer kept from an earlier batch: they are of use.
const USEFUL: u64 = 32;

/// Array and row of a known answer.
type Place = (u32, u32);

/// Answers to be recorded.
#[derive(Debug)]
pub struct Publication {
    /// The block.
    pub block: Bytes,
    /// Places in `ValueTask::open`, in the batch of this number.
    opens: Vec<u32>,
    batch: u64,
    questions: Vec<u64>,
    values: ArrayRef,
    /// Whether the answers count as known, though nothing says yet that they were the first.
    sent: bool,
}

/// A question of the batch that had no answer when it came.
#[derive(Debug, Clone, Copy)]
struct Open {
    question: u64,
    /// First row of the batch that asks it.
    row: u32,
    /// Its answer, since it is there.
    answer: Option<Place>,
}

/// Where the answer to a row is.
#[derive(Debug, Clone, Copy)]
enum Row {
    Known(Place),
    /// Place in `ValueTask::open`.
    Open(u32),
}

/// The machine of one attempt.
#[derive(Debug, Default)]
pub struct ValueTask {
    known: FingerprintMap<Place>,
    arrays: Vec<ArrayRef>,
    bytes: usize,
    /// Number of the batch.
    batch: u64,
    rows: Vec<Row>,
    open: Vec<Open>,
    /// Place of each question in `open`, found by the question there; kept for its memory.
    places: HashTable<u32>,
    /// Those of `open` that were asked about, request by request, and those before which all were.
    asked: VecDeque<Vec<u32>>,
    next: usize,
    /// Those of the request that was answered last that this task is to answer.
    duties: Vec<u32>,
    /// Arrays before this one have answers that are kept.
    kept: usize,
    /// Rows since the first answer that is kept, and how many of them had one.
    rows_since: u64,
    remembered: u64,
    /// Rows for which no answers are kept.
    unkept: u64,
    summary: Summary,
}

impl ValueTask {
    /// A task that knows no answers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes a batch: its arguments, column by column.
    ///
    /// # Errors
    /// As [`row_fingerprints`].
    pub fn offer(&mut self, columns: &[ArrayRef]) -> Result<()> {
        let useless = self.known.len() > KEPT_MIN && self.remembered * USEFUL < self.rows_since;
        if self.bytes > CACHE_BYTES_MAX || useless {
            self.known.clear();
            (self.kept, self.bytes, self.rows_since, self.remembered) = (0, 0, 0, 0);
        }
        self.unkept = if useless { UNKEPT_ROWS } else { self.unkept };
        self.arrays.truncate(self.kept);
        let mut questions = Vec::new();
        row_fingerprints(columns, &mut questions)?;
        let salt =
            columns.iter().fold(0_u64, |salt, column| salt.rotate_left(7) ^ salt_of(column.data_type()));
        let Self { known, rows, open, places, .. } = self;
        rows.clear();
        open.clear();
        places.clear();
        rows.extend((0_u32..).zip(questions).map(|(row, question)| {
            let question = question ^ salt;
            if let Some(place) = known.get(&question) {
                return Row::Known(*place);
            }
            let of = |place: &u32| open.get(*place as usize).map_or(0, |open| open.question);
            match places.entry(question, |place| of(place) == question, of) {
                Entry::Occupied(place) => Row::Open(*place.get()),
                Entry::Vacant(entry) => {
                    let place = number(open.len());
                    entry.insert(place);
                    open.push(Open { question, row, answer: None });
                    Row::Open(place)
                }
            }
        }));
        self.forget_asked();
        self.duties.clear();
        self.batch += 1;
        let rows = self.rows.len() as u64;
        if self.unkept == 0 {
            self.remembered += self.rows.iter().filter(|row| matches!(row, Row::Known(_))).count() as u64;
            self.rows_since += rows;
        }
        self.unkept = self.unkept.saturating_sub(rows);
        self.summary.rows += rows;
        Ok(())
    }

    /// Questions of the batch that have no answer yet, at most `max` of them, and those first that no request
    /// was made of. What was taken here and not told to be [`Self::standing`] is not taken again.
    pub fn questions(&mut self, max: usize) -> Vec<u64> {
        if self.asked.is_empty() && self.unasked() == 0 {
            self.next = 0;
        }
        let left = (0_u32..).zip(&self.open).skip(self.next).filter(|(_, open)| open.answer.is_none());
        let (asked, questions): (Vec<u32>, Vec<u64>) =
            left.take(max).map(|(place, open)| (place, open.question)).unzip();
        if let Some(last) = asked.last() {
            self.next = *last as usize + 1;
            self.asked.push_back(asked);
        }
        questions
    }

    /// How many questions of the batch have no answer, and no request was made of them since the others were
    /// asked.
    #[must_use]
    pub fn unasked(&self) -> usize {
        self.open.iter().skip(self.next).filter(|open| open.answer.is_none()).count()
    }

    /// What was asked is to be asked again.
    pub fn forget_asked(&mut self) {
        self.asked.clear();
        self.next = 0;
    }

    /// How it stands with the [`Self::questions`] of the eldest request: which this task is to answer, and
    /// which answers there are.
    ///
    /// # Errors
    /// [`Error::Misuse`] for positions that were not asked about.
    pub fn standing(
        &mut self,
        yours: impl Iterator<Item = u32>,
        answered: impl Iterator<Item = (impl Iterator<Item = u32>, ArrayRef)>,
    ) -> Result<()> {
        let asked = self.asked.pop_front().unwrap_or_default();
        for (positions, answers) in answered {
            let opens = places_of(&asked, positions)?;
            if opens.len() != answers.len() {
                return Err(misuse("a question without its answer"));
            }
            let questions: Vec<u64> = opens.iter().filter_map(|place| self.question_at(*place)).collect();
            self.learn(&opens, &questions, answers);
        }
        self.duties = places_of(&asked, yours)?;
        Ok(())
    }

    fn question_at(&self, place: u32) -> Option<u64> {
        self.open.get(place as usize).map(|open| open.question)
    }

    /// Rows of the batch to call the function for.
    #[must_use]
    pub fn live_rows(&self) -> Vec<u32> {
        let opens = self.duties.iter().filter_map(|place| self.open.get(*place as usize));
        opens.map(|open| open.row).collect()
    }

    /// The question of one of [`Self::live_rows`].
    #[must_use]
    pub fn question(&self, live_row: usize) -> Option<u64> {
        self.duties.get(live_row).and_then(|place| self.question_at(*place))
    }

    /// The questions of all of [`Self::live_rows`].
    pub fn duties(&self) -> impl Iterator<Item = u64> + '_ {
        self.duties.iter().filter_map(|place| self.question_at(*place))
    }

    /// What to publish of the function's results for some of [`Self::live_rows`], or for all of them. What
    /// was published before is left out.
    ///
    /// # Errors
    /// [`Error::Misuse`] if there are not as many as rows; [`Error::Arrow`] if they cannot be encoded.
    pub fn publication(&self, places: Option<&[u32]>, values: &ArrayRef) -> Result<Option<Publication>> {
        let opens: Option<Vec<u32>> = match places {
            None => Some(self.duties.clone()),
            Some(places) => places.iter().map(|place| self.duties.get(*place as usize).copied()).collect(),
        };
        let opens = opens.filter(|opens| opens.len() == values.len());
        let mut opens = opens.ok_or_else(|| misuse("an answer to a row that was not live"))?;
        let mut values = ArrayRef::clone(values);
        let is_new = |place: &u32| self.open.get(*place as usize).is_some_and(|open| open.answer.is_none());
        if !opens.iter().all(is_new) {
            let rows = (0_u32..).zip(&opens).filter(|(_, place)| is_new(place)).map(|(row, _)| row);
            values = take(&values, &UInt32Array::from_iter_values(rows), None)?;
            opens.retain(is_new);
        }
        if opens.is_empty() {
            return Ok(None);
        }
        let questions: Vec<u64> = opens.iter().filter_map(|place| self.question_at(*place)).collect();
        let mut builder = BlockBuilder::new();
        builder.push_results(&questions, &encode_results(&values)?)?;
        let (block, batch, sent) = (builder.finish(), self.batch, false);
        Ok(Some(Publication { block, opens, batch, questions, values, sent }))
    }

    /// Whether a publication's answers count from now on, so that the batch can be completed while they are
    /// on their way: the values of the batch are of use once all are [`Self::recorded`]. They do if they are
    /// all that is open in the batch, or `one_of_many` that are on their way together.
    pub fn sent(&mut self, publication: &mut Publication, one_of_many: bool) -> bool {
        let open = self.open.iter().filter(|open| open.answer.is_none()).count();
        let counts = one_of_many || publication.opens.len() == open;
        publication.sent = counts && publication.batch == self.batch;
        if publication.sent {
            self.learn(&publication.opens, &publication.questions, ArrayRef::clone(&publication.values));
        }
        publication.sent
    }

    /// A publication is stable, but for these questions, which another answered before: they stay open. If
    /// there are any, and it was [`Self::sent`], the batches offered since it was made have to be offered
    /// again, its own among them.
    pub fn recorded(&mut self, publication: Publication, late: &[u64]) {
        let Publication { block, mut opens, batch, questions, values, sent } = publication;
        self.summary.live += questions.len() as u64;
        self.summary.bytes += block.len() as u64;
        if batch != self.batch {
            opens.clear();
        }
        if !sent {
            self.learn(&opens, &questions, values);
        }
        if late.is_empty() {
            return;
        }
        let late: HashSet<&u64> = late.iter().collect();
        for question in &late {
            self.known.remove(question);
        }
        for place in opens {
            if let Some(open) = self.open.get_mut(place as usize).filter(|open| late.contains(&open.question))
            {
                open.answer = None;
            }
        }
    }

    /// Takes answers, to the questions at these places of `open` among others, and may keep them.
    fn learn(&mut self, opens: &[u32], questions: &[u64], answers: ArrayRef) {
        let array = number(self.arrays.len());
        for (row, place) in (0_u32..).zip(opens) {
            if let Some(open) = self.open.get_mut(*place as usize) {
                open.answer = Some((array, row));
            }
        }
        if self.unkept == 0 {
            self.known.reserve(questions.len());
            for (row, question) in (0_u32..).zip(questions) {
                self.known.insert(*question, (array, row));
            }
            self.bytes += answers.get_array_memory_size() + size_of::<(u64, Place)>() * questions.len();
            self.kept = self.arrays.len() + 1;
        }
        self.arrays.push(answers);
    }

    /// Values for all rows of the batch; `None` while a question is open.
    ///
    /// # Errors
    /// [`Error::Arrow`] if answers are of different types.
    pub fn complete(&mut self) -> Result<Option<ArrayRef>> {
        let place = |row: &Row| match row {
            Row::Known(place) => Some(*place),
            Row::Open(place) => self.open.get(*place as usize)?.answer,
        };
        let Some(places) = self.rows.iter().map(place).collect::<Option<Vec<Place>>>() else {
            return Ok(None);
        };
        let values = self.gathered(&places)?;
        self.rows.clear();
        Ok(Some(values))
    }

    fn gathered(&self, places: &[Place]) -> Result<ArrayRef> {
        let none = || misuse("an answer without its array");
        if let Some((only, _)) = places.first().filter(|(first, _)| places.iter().all(|(at, _)| at == first))
        {
            let only = self.arrays.get(*only as usize).ok_or_else(none)?;
            // One answer each, in the order of rows: the commonest case of many distinct arguments.
            if only.len() == places.len() && (0_u32..).zip(places).all(|(row, place)| row == place.1) {
                return Ok(ArrayRef::clone(only));
            }
            return Ok(take(only, &UInt32Array::from_iter_values(places.iter().map(|(_, row)| *row)), None)?);
        }
        if let Some(whole) = self.in_order(places) {
            return Ok(concat(&whole)?);
        }
        // Arrays that are used, and where each of all arrays is among them.
        let mut sources: Vec<&dyn Array> = Vec::new();
        let mut numbers = vec![usize::MAX; self.arrays.len()];
        let mut indices = Vec::with_capacity(places.len());
        for (array, row) in places {
            let at = *array as usize;
            let source = self.arrays.get(at).ok_or_else(none)?;
            let number = numbers.get_mut(at).ok_or_else(none)?;
            if *number == usize::MAX {
                *number = sources.len();
                sources.push(source.as_ref());
            }
            indices.push((*number, *row as usize));
        }
        Ok(interleave(&sources, &indices)?)
    }

    /// The arrays that are these places, one behind the other, if there are such.
    fn in_order(&self, places: &[Place]) -> Option<Vec<&dyn Array>> {
        let (mut whole, mut rest) = (Vec::new(), places);
        while let Some((array, _)) = rest.first() {
            let answers = self.arrays.get(*array as usize)?;
            let (of_it, behind) = rest.split_at_checked(answers.len())?;
            if !(0_u32..).zip(of_it).all(|(row, place)| *place == (*array, row)) {
                return None;
            }
            whole.push(answers.as_ref());
            rest = behind;
        }
        Some(whole)
    }

    /// What it did so far. Rows are replayed if their answer was there or came again.
    #[must_use]
    pub const fn summary(&self) -> Summary {
        let mut summary = self.summary;
        summary.replayed = summary.rows.saturating_sub(summary.live);
        (summary.calls, summary.saved) = (summary.live, summary.replayed);
        summary
    }
}

fn number(place: usize) -> u32 {
    u32::try_from(place).unwrap_or(u32::MAX)
}

fn places_of(asked: &[u32], positions: impl Iterator<Item = u32>) -> Result<Vec<u32>> {
    let places = positions.map(|position| asked.get(position as usize).copied());
    places.collect::<Option<_>>().ok_or_else(|| misuse("an answer to a question that was not asked"))
}

fn misuse(what: &str) -> Error {
    Error::Misuse { what: what.into() }
}

/// Tells apart what has equal fingerprints and is another value to the function, as 3 and the third day.
fn salt_of(data_type: &DataType) -> u64 {
    let mut name = String::new();
    name_kind(data_type, &mut name);
    bytes_fingerprint(name.as_bytes())
}

/// Widths, offsets and nullability make no other values.
fn name_kind(data_type: &DataType, name: &mut String) {
    let mut nested = |word: &str, fields: &[&Field]| {
        name.push_str(word);
        name.push('<');
        for field in fields {
            // A function sees the names of a struct's fields.
            name.push_str(if word == "struct" { field.name() } else { "" });
            name.push(':');
            name_kind(field.data_type(), name);
            name.push(',');
        }
        name.push('>');
    };
    match data_type {
        DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Int64 => name.push_str("integer"),
        DataType::Float16 | DataType::Float32 | DataType::Float64 => name.push_str("float"),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => name.push_str("string"),
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => name.push_str("binary"),
        DataType::List(field) | DataType::LargeList(field) => nested("list", &[field]),
        DataType::Map(field, _) => nested("map", &[field]),
        DataType::Struct(fields) => nested("struct", &fields.iter().map(AsRef::as_ref).collect::<Vec<_>>()),
        DataType::Dictionary(_, values) => name_kind(values, name),
        other => name.push_str(&other.to_string()),
    }
}
