//! One attempt of a task whose function has one answer per distinct argument.
//!
//! ```text
//!  input batch --offer--> questions --(ask)--> standing --> rows to call the function for
//!                             ^                                     |
//!                             +---- recorded <--(publish)---- publication
//!                             |
//!                   none left: complete --> all values
//! ```
//!
//! Answers are kept for the task's life, inside [`CACHE_BYTES_MAX`], so that what comes again is not asked
//! again.

use arrow_array::{Array, ArrayRef, UInt32Array};
use arrow_schema::{DataType, Field};
use arrow_select::interleave::interleave;
use arrow_select::take::take;
use bytes::Bytes;

use super::matching::FingerprintMap;
use super::summary::Summary;
use crate::determinant::{BlockBuilder, bytes_fingerprint, encode_results, row_fingerprints};
use crate::error::{Error, Result};

/// Answers kept for later batches; beyond, all are forgotten and asked for again.
const CACHE_BYTES_MAX: usize = 64 << 20;

/// Array and row of a known answer.
type Place = (u32, u32);

/// Answers to be recorded.
#[derive(Debug)]
pub struct Publication {
    /// The block.
    pub block: Bytes,
    questions: Vec<u64>,
    values: ArrayRef,
}

/// A question of the batch without an answer.
#[derive(Debug, Clone, Copy)]
struct Open {
    question: u64,
    /// First row of the batch that asks it.
    row: u32,
}

/// The machine of one attempt.
#[derive(Debug, Default)]
pub struct ValueTask {
    known: FingerprintMap<Place>,
    arrays: Vec<ArrayRef>,
    bytes: usize,
    /// Question of each row of the batch.
    rows: Vec<u64>,
    open: Vec<Open>,
    /// Questions that this task is to answer.
    duties: Vec<Open>,
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
        if self.bytes > CACHE_BYTES_MAX {
            self.known.clear();
            self.arrays.clear();
            self.bytes = 0;
        }
        self.rows.clear();
        row_fingerprints(columns, &mut self.rows)?;
        let salt =
            columns.iter().fold(0_u64, |salt, column| salt.rotate_left(7) ^ salt_of(column.data_type()));
        self.rows.iter_mut().for_each(|question| *question ^= salt);
        self.open.clear();
        self.duties.clear();
        let mut seen: FingerprintMap<()> = FingerprintMap::default();
        for (row, question) in (0_u32..).zip(&self.rows) {
            if !self.known.contains_key(question) && seen.insert(*question, ()).is_none() {
                self.open.push(Open { question: *question, row });
            }
        }
        self.summary.rows += self.rows.len() as u64;
        Ok(())
    }

    /// Questions of the batch that have no answer yet, at most `max` of them.
    pub fn questions(&mut self, max: usize) -> Vec<u64> {
        let known = &self.known;
        self.open.retain(|open| !known.contains_key(&open.question));
        self.open.iter().take(max).map(|open| open.question).collect()
    }

    /// How it stands with the [`Self::questions`]: which this task is to answer, and which answers there are.
    ///
    /// # Errors
    /// [`Error::Misuse`] for positions that were not asked about.
    pub fn standing(&mut self, yours: &[u32], answered: Vec<(Vec<u32>, ArrayRef)>) -> Result<()> {
        for (positions, answers) in answered {
            let questions: Vec<u64> = self.asked(&positions)?.iter().map(|open| open.question).collect();
            if questions.len() != answers.len() {
                return Err(misuse("a question without its answer"));
            }
            self.learn(&questions, answers);
        }
        self.duties = self.asked(yours)?;
        Ok(())
    }

    fn asked(&self, positions: &[u32]) -> Result<Vec<Open>> {
        let open = positions.iter().map(|position| self.open.get(*position as usize).copied());
        open.collect::<Option<_>>().ok_or_else(|| misuse("an answer to a question that was not asked"))
    }

    /// Rows of the batch to call the function for.
    #[must_use]
    pub fn live_rows(&self) -> Vec<u32> {
        self.duties.iter().map(|open| open.row).collect()
    }

    /// The question of one of [`Self::live_rows`].
    #[must_use]
    pub fn question(&self, live_row: usize) -> Option<u64> {
        self.duties.get(live_row).map(|open| open.question)
    }

    /// What to publish of the function's results for some of [`Self::live_rows`], or for all of them. What
    /// was published before is left out.
    ///
    /// # Errors
    /// [`Error::Misuse`] if there are not as many as rows; [`Error::Arrow`] if they cannot be encoded.
    pub fn publication(&self, places: Option<&[u32]>, values: &ArrayRef) -> Result<Option<Publication>> {
        let questions: Option<Vec<u64>> = match places {
            None => Some(self.duties.iter().map(|open| open.question).collect()),
            Some(places) => places.iter().map(|place| self.question(*place as usize)).collect(),
        };
        let questions = questions.filter(|questions| questions.len() == values.len());
        let mut questions = questions.ok_or_else(|| misuse("an answer to a row that was not live"))?;
        let mut values = ArrayRef::clone(values);
        let is_new = |question: &u64| !self.known.contains_key(question);
        if !questions.iter().all(is_new) {
            let rows = (0_u32..).zip(&questions).filter(|(_, question)| is_new(question)).map(|(row, _)| row);
            values = take(&values, &UInt32Array::from_iter_values(rows), None)?;
            questions.retain(is_new);
        }
        if questions.is_empty() {
            return Ok(None);
        }
        let mut builder = BlockBuilder::new();
        builder.push_results(&questions, &encode_results(&values)?)?;
        Ok(Some(Publication { block: builder.finish(), questions, values }))
    }

    /// A publication is stable, but for these questions, which another answered before: they stay open.
    pub fn recorded(&mut self, publication: Publication, late: &[u64]) {
        let Publication { block, questions, values } = publication;
        self.summary.live += questions.len() as u64;
        self.summary.bytes += block.len() as u64;
        self.learn(&questions, values);
        for question in late {
            self.known.remove(question);
        }
    }

    fn learn(&mut self, questions: &[u64], answers: ArrayRef) {
        let array = u32::try_from(self.arrays.len()).unwrap_or(u32::MAX);
        for (row, question) in (0_u32..).zip(questions) {
            self.known.insert(*question, (array, row));
        }
        self.bytes += answers.get_array_memory_size() + size_of::<(u64, Place)>() * questions.len();
        self.arrays.push(answers);
    }

    /// Values for all rows of the batch; `None` while a question is open.
    ///
    /// # Errors
    /// [`Error::Arrow`] if answers are of different types.
    pub fn complete(&mut self) -> Result<Option<ArrayRef>> {
        let places: Option<Vec<Place>> = self.rows.iter().map(|row| self.known.get(row).copied()).collect();
        let Some(places) = places else { return Ok(None) };
        let mut numbers: FingerprintMap<usize> = FingerprintMap::default();
        let mut sources: Vec<&dyn Array> = Vec::new();
        let mut indices = Vec::with_capacity(places.len());
        for (array, row) in &places {
            let Some(source) = self.arrays.get(*array as usize) else {
                return Err(misuse("an answer without its array"));
            };
            let number = *numbers.entry(u64::from(*array)).or_insert_with(|| {
                sources.push(source.as_ref());
                sources.len() - 1
            });
            indices.push((number, *row as usize));
        }
        let values = match sources.as_slice() {
            [only] => {
                let rows = UInt32Array::from_iter_values(places.iter().map(|(_, row)| *row));
                take(*only, &rows, None)?
            }
            _ => interleave(&sources, &indices)?,
        };
        self.rows.clear();
        Ok(Some(values))
    }

    /// What it did so far. Rows are replayed if their answer was there or came again.
    #[must_use]
    pub const fn summary(&self) -> Summary {
        let mut summary = self.summary;
        summary.replayed = summary.rows.saturating_sub(summary.live);
        summary
    }
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::cast::AsArray;
    use arrow_array::types::Int64Type;
    use arrow_array::{Date32Array, Int32Array, Int64Array};

    use super::*;

    fn column(values: &[i64]) -> Vec<ArrayRef> {
        vec![Arc::new(Int64Array::from(values.to_vec()))]
    }

    fn numbers(array: &ArrayRef) -> Vec<i64> {
        array.as_primitive::<Int64Type>().values().to_vec()
    }

    fn answers(values: &[i64]) -> ArrayRef {
        Arc::new(Int64Array::from(values.to_vec()))
    }

    fn publish(task: &mut ValueTask, places: Option<&[u32]>, values: &[i64], late: &[u64]) {
        let publication = task.publication(places, &answers(values)).unwrap().unwrap();
        task.recorded(publication, late);
    }

    #[test]
    fn each_distinct_row_is_asked_once_in_the_tasks_life() {
        let mut task = ValueTask::new();
        task.offer(&column(&[5, 6, 5, 6, 7])).unwrap();
        assert_eq!(task.questions(9).len(), 3);
        // One is ours, one is answered, one is another's.
        task.standing(&[0], vec![(vec![1], answers(&[60]))]).unwrap();
        assert_eq!(task.live_rows(), [0]);
        publish(&mut task, None, &[50], &[]);
        assert!(task.complete().unwrap().is_none());
        assert_eq!(task.questions(9).len(), 1);
        task.standing(&[], vec![(vec![0], answers(&[70]))]).unwrap();
        assert_eq!(numbers(&task.complete().unwrap().unwrap()), [50, 60, 50, 60, 70]);
        task.offer(&column(&[7, 5])).unwrap();
        assert_eq!(task.questions(9), [0_u64; 0]);
        assert_eq!(numbers(&task.complete().unwrap().unwrap()), [70, 50]);
        assert_eq!((task.summary().rows, task.summary().live), (7, 1));
    }

    #[test]
    fn an_answer_that_comes_late_is_not_used() {
        let mut task = ValueTask::new();
        task.offer(&column(&[5])).unwrap();
        let question = task.questions(1);
        task.standing(&[0], vec![]).unwrap();
        publish(&mut task, None, &[50], &question);
        assert_eq!(task.questions(1), question);
        task.standing(&[], vec![(vec![0], answers(&[51]))]).unwrap();
        assert_eq!(numbers(&task.complete().unwrap().unwrap()), [51]);
    }

    #[test]
    fn some_answers_can_be_published_before_the_rest_and_are_not_published_twice() {
        let mut task = ValueTask::new();
        task.offer(&column(&[5, 6, 7])).unwrap();
        task.questions(9);
        task.standing(&[0, 1, 2], vec![]).unwrap();
        publish(&mut task, Some(&[1]), &[60], &[]);
        let rest = task.publication(None, &answers(&[50, 60, 70])).unwrap().unwrap();
        assert_eq!(rest.questions.len(), 2);
        task.recorded(rest, &[]);
        assert!(task.publication(None, &answers(&[50, 60, 70])).unwrap().is_none());
        assert_eq!(numbers(&task.complete().unwrap().unwrap()), [50, 60, 70]);
    }

    #[test]
    fn equal_bits_of_another_type_are_another_question_and_widths_are_not() {
        let mut task = ValueTask::new();
        let mut asked = |column: ArrayRef| {
            task.offer(&[column]).unwrap();
            task.questions(1)
        };
        let long = asked(Arc::new(Int64Array::from(vec![3])));
        assert_eq!(asked(Arc::new(Int32Array::from(vec![3]))), long);
        assert_ne!(asked(Arc::new(Date32Array::from(vec![3]))), long);
    }
}
