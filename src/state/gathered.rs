//! Rows of a task until all of them are there: in memory, and past a limit in pieces by the hash of their key.
//!
//! A task handles its keys in the order of their hash. So rows that lie apart by ranges of it can be handled range by
//! range, and what comes of them is the same however many ranges there are: whether there was room for all rows at once
//! is nothing that another attempt would have to know.

use std::ops::RangeInclusive;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{ArrayRef, RecordBatch, StructArray};
use arrow_schema::{Fields, SchemaRef};
use arrow_select::interleave::interleave_record_batch;
use bytes::Bytes;

use super::group::hashes;
use crate::determinant::{decode_results, encode_results};
use crate::error::{Error, Result};
use crate::exchange::FrameStore;

/// Ranges of hashes that a partition's rows are put in: of each the rows must fit into memory.
const RANGES: u128 = 128;

/// Rows that wait for the last of them.
#[derive(Debug)]
pub struct Gathered<F> {
    key_columns: Vec<usize>,
    key_fields: Fields,
    /// The hashes of the partition's keys.
    partition: RangeInclusive<u64>,
    /// Bytes of rows in memory before they are put in pieces.
    bytes_max: usize,
    batches: Vec<RecordBatch>,
    bytes: usize,
    pieces: F,
    /// Numbers of the pieces of each range, once there are any; then what is left to take.
    ranges: Option<Vec<Vec<u64>>>,
    schema: Option<SchemaRef>,
    next: usize,
}

impl<F: FrameStore> Gathered<F> {
    /// Nothing yet, of a partition with these hashes; `key_fields` says what the key in `key_columns` is.
    #[must_use]
    pub fn new(
        (key_columns, key_fields): (Vec<usize>, Fields),
        partition: RangeInclusive<u64>,
        bytes_max: usize,
        pieces: F,
    ) -> Self {
        let (batches, bytes, ranges, schema, next) = (Vec::new(), 0, None, None, 0);
        Self { key_columns, key_fields, partition, bytes_max, batches, bytes, pieces, ranges, schema, next }
    }

    /// Adds rows behind those that are there.
    ///
    /// # Errors
    /// As [`super::group::group`] and [`FrameStore::put`].
    pub fn add(&mut self, batch: RecordBatch) -> Result<()> {
        if batch.num_rows() == 0 {
            return Ok(());
        }
        self.bytes = self.bytes.saturating_add(bytes_of(&batch)?);
        self.batches.push(batch);
        if self.bytes > self.bytes_max { self.put_in_pieces() } else { Ok(()) }
    }

    /// The rows of the keys that come next, in the order in which they were added; nothing at the end. All rows of a key
    /// are given at once.
    ///
    /// # Errors
    /// As [`Self::add`] and [`FrameStore::take`].
    pub fn take(&mut self) -> Result<Vec<RecordBatch>> {
        if self.ranges.is_none() {
            self.bytes = 0;
            return Ok(std::mem::take(&mut self.batches));
        }
        self.put_in_pieces()?;
        let Some(ranges) = &mut self.ranges else { return Ok(Vec::new()) };
        let mut left = ranges.iter_mut().skip(self.next).inspect(|_| self.next += 1);
        let numbers = left.find(|numbers| !numbers.is_empty()).map(std::mem::take).unwrap_or_default();
        numbers.into_iter().map(|number| self.piece(number)).collect()
    }

    /// Puts what is in memory in pieces, one for each range.
    fn put_in_pieces(&mut self) -> Result<()> {
        let batches = std::mem::take(&mut self.batches);
        self.bytes = 0;
        let Some(first) = batches.first() else { return Ok(()) };
        self.schema = Some(first.schema());
        let all: Vec<&RecordBatch> = batches.iter().collect();
        let rows = self.rows_of_ranges(&batches)?;
        let ranges = self.ranges.get_or_insert_with(|| vec![Vec::new(); RANGES as usize]);
        for (rows, range) in rows.iter().zip(ranges).filter(|(rows, _)| !rows.is_empty()) {
            let rows = interleave_record_batch(&all, &places(rows, &batches))?;
            let piece: ArrayRef = Arc::new(StructArray::from(rows));
            range.push(self.pieces.put(Bytes::from(encode_results(&piece)?))?);
        }
        Ok(())
    }

    /// Numbers of the rows of each range, among all of these, ascending.
    fn rows_of_ranges(&self, batches: &[RecordBatch]) -> Result<Vec<Vec<u32>>> {
        let mut rows = vec![Vec::new(); RANGES as usize];
        let mut row = 0_u32;
        for batch in batches {
            for hash in hashes(batch, &self.key_columns, &self.key_fields)? {
                if let Some(rows) = rows.get_mut(range_of(hash, &self.partition)) {
                    rows.push(row);
                }
                row = row.checked_add(1).ok_or_else(too_many)?;
            }
        }
        Ok(rows)
    }

    fn piece(&mut self, number: u64) -> Result<RecordBatch> {
        let array = decode_results(&self.pieces.take(number)?)?;
        let rows = array.as_struct_opt().zip(self.schema.as_ref());
        let (rows, schema) = rows.ok_or_else(|| Error::Misuse { what: "a piece holds no rows".into() })?;
        Ok(RecordBatch::try_new(Arc::clone(schema), rows.columns().to_vec())?)
    }
}

fn too_many() -> Error {
    Error::Misuse { what: "more than 2^32 rows of a task in memory".into() }
}

/// Batch and row of each of these rows, which ascend.
fn places(rows: &[u32], batches: &[RecordBatch]) -> Vec<(usize, usize)> {
    let mut ends = batches.iter().scan(0, |end, batch| {
        let first = *end;
        *end += batch.num_rows();
        Some((first, *end))
    });
    let (mut batch, mut of_batch) = (0, ends.next().unwrap_or_default());
    let place = |row: &u32| {
        let row = *row as usize;
        while row >= of_batch.1 {
            let Some(next) = ends.next() else { break };
            (batch, of_batch) = (batch + 1, next);
        }
        (batch, row - of_batch.0)
    };
    rows.iter().map(place).collect()
}

/// Which range a hash is in; ascending, also beyond the partition.
fn range_of(hash: u64, partition: &RangeInclusive<u64>) -> usize {
    let (first, last) = (*partition.start(), *partition.end());
    let span = u128::from(last.saturating_sub(first)) + 1;
    let place = u128::from(hash.saturating_sub(first)) * RANGES / span;
    place.min(RANGES - 1) as usize
}

/// What the rows take, without what else lies in their buffers.
fn bytes_of(batch: &RecordBatch) -> Result<usize> {
    let columns = batch.columns().iter();
    columns.map(|column| Ok(column.to_data().get_slice_memory_size()?)).sum()
}

#[cfg(test)]
mod tests;
