//! Rows by key: all rows of a task sorted by the hash of their key, so that each key's stand together.

use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions, StructArray, UInt32Array};
use arrow_schema::Fields;
use arrow_select::concat::concat_batches;
use arrow_select::take::{take, take_arrays};

use super::codec::{Rows, canonical_keys, encode, evolve_key};
use super::key::KeyPrefix;
use crate::determinant::row_fingerprints;
use crate::error::{Error, Result};

/// Rows that stand together by key.
#[derive(Debug, Clone)]
pub struct Groups {
    /// All rows; those of a key stand together, in the order in which they came.
    pub rows: RecordBatch,
    /// Where each key's rows start, and the last one's end.
    pub offsets: Vec<u32>,
    /// The distinct keys.
    pub keys: StructArray,
    /// Where each key's state stands; ascending.
    pub prefixes: Vec<KeyPrefix>,
}

/// Groups rows by some of their columns; `fields` says what the key is.
///
/// Keys are in the order of their hash, by which an exchange chose their partition, and where two have the same, in
/// that of their [`KeyPrefix`].
///
/// # Errors
/// [`Error::UnsupportedType`] for a key that has no hash; [`Error::StateSchema`] for one that is not as `fields` has
/// it; [`Error::Misuse`] for a column that is not there, or too many rows.
pub fn group(batches: &[RecordBatch], key_columns: &[usize], fields: &Fields) -> Result<Groups> {
    let Some(first) = batches.first() else {
        return Err(Error::Misuse { what: "grouping needs a batch, for its schema".into() });
    };
    let whole = match batches {
        [only] => only.clone(),
        _ => concat_batches(first.schema_ref(), batches)?,
    };
    let count = u32::try_from(whole.num_rows());
    let count = count.map_err(|_| Error::Misuse { what: "a task of more than 2^32 rows".into() })?;
    let keys = keys_of(&whole, key_columns, fields)?;
    let hashes = hashes_of(&keys, whole.num_rows())?;
    let rows = encode(&keys, whole.num_rows(), &[])?;
    let mut order = by_hash(&hashes, count);
    let offsets = split_by_key(&mut order, &rows);
    let prefixes = prefixes(&order, &offsets, &rows);

    let order = UInt32Array::from_iter_values(order.into_iter().map(|(_, row)| row));
    let firsts = UInt32Array::from_iter_values(
        starts(&offsets).filter_map(|start| order.values().get(start).copied()),
    );
    let columns = keys.iter().map(|key| Ok(take(key, &firsts, None)?)).collect::<Result<Vec<_>>>()?;
    let keys = StructArray::try_new_with_length(fields.clone(), columns, None, firsts.len())?;
    let columns = take_arrays(whole.columns(), &order, None)?;
    let options = RecordBatchOptions::new().with_row_count(Some(whole.num_rows()));
    let sorted = RecordBatch::try_new_with_options(whole.schema(), columns, &options)?;
    Ok(Groups { rows: sorted, offsets, keys, prefixes })
}

/// The hash of each row's key, by which an exchange chose its partition.
///
/// # Errors
/// As [`group`].
pub(super) fn hashes(batch: &RecordBatch, key_columns: &[usize], fields: &Fields) -> Result<Vec<u64>> {
    hashes_of(&keys_of(batch, key_columns, fields)?, batch.num_rows())
}

fn hashes_of(keys: &[ArrayRef], rows: usize) -> Result<Vec<u64>> {
    let mut hashes = Vec::with_capacity(rows);
    row_fingerprints(keys, &mut hashes)?;
    Ok(hashes)
}

fn keys_of(batch: &RecordBatch, key_columns: &[usize], fields: &Fields) -> Result<Vec<ArrayRef>> {
    if key_columns.is_empty() {
        return Err(Error::Misuse { what: "rows are grouped by one column at least".into() });
    }
    if key_columns.len() != fields.len() {
        let what = format!("{} key columns for a key of {}", key_columns.len(), fields.len());
        return Err(Error::Misuse { what });
    }
    let columns = key_columns.iter().map(|&index| {
        let found = batch.columns().get(index).cloned();
        found.ok_or_else(|| Error::Misuse { what: format!("key column {index} of {}", batch.num_columns()) })
    });
    let columns = canonical_keys(&columns.collect::<Result<Vec<_>>>()?)?;
    let typed = columns.iter().zip(fields).map(|(column, field)| evolve_key(field, column));
    typed.collect()
}

/// Rows in the order of their hash, those with the same in their own.
///
/// Hashes are spread evenly within their partition: they are dealt out to about as many buckets as there are rows, by
/// how far they are from the lowest, and each bucket is sorted by itself.
fn by_hash(hashes: &[u64], count: u32) -> Vec<(u64, u32)> {
    let lowest = hashes.iter().copied().min().unwrap_or(0);
    let span = hashes.iter().copied().max().unwrap_or(0) - lowest;
    let shift = (u64::BITS - span.leading_zeros()).saturating_sub(u32::BITS - count.leading_zeros());
    let bucket = |hash: u64| ((hash - lowest) >> shift) as usize;
    let buckets = bucket(lowest + span) + 1;
    let mut next = vec![0_u32; buckets + 1];
    for hash in hashes {
        if let Some(size) = next.get_mut(bucket(*hash) + 1) {
            *size += 1;
        }
    }
    let mut sum = 0;
    for start in &mut next {
        sum += *start;
        *start = sum;
    }
    let ends: Vec<u32> = next.iter().skip(1).copied().collect();
    let mut order = vec![(0, 0); hashes.len()];
    for (hash, row) in hashes.iter().copied().zip(0..count) {
        if let Some(place) = next.get_mut(bucket(hash)) {
            if let Some(entry) = order.get_mut(*place as usize) {
                *entry = (hash, row);
            }
            *place += 1;
        }
    }
    let mut start = 0;
    for end in ends {
        let end = end as usize;
        if let Some(rows) = order.get_mut(start..end).filter(|rows| rows.len() > 1) {
            // Stable by itself, as no two rows have the same number.
            rows.sort_unstable();
        }
        start = end;
    }
    order
}

/// Where the rows of each key start, and the last one's end. Keys with the same hash, which come to stand one behind
/// the other, are told apart by their bytes.
fn split_by_key(order: &mut [(u64, u32)], rows: &Rows) -> Vec<u32> {
    let mut offsets = vec![0];
    let mut start = 0_u32;
    for run in order.chunk_by_mut(|one, other| one.0 == other.0) {
        let key = |row: u32| rows.get(row as usize);
        let first = run.first().map(|(_, row)| key(*row)).unwrap_or_default();
        if run.iter().any(|(_, row)| key(*row) != first) {
            // As prefixes are ordered: by length first.
            run.sort_by_key(|(_, row)| (key(*row).len(), key(*row)));
        }
        for key_run in run.chunk_by(|one, other| key(one.1) == key(other.1)) {
            // There are not more rows than fit.
            start += key_run.len() as u32;
            offsets.push(start);
        }
    }
    offsets
}

fn starts(offsets: &[u32]) -> impl Iterator<Item = usize> + '_ {
    offsets.iter().take(offsets.len().saturating_sub(1)).map(|start| *start as usize)
}

/// Prefixes of the distinct keys, in one piece of memory.
fn prefixes(order: &[(u64, u32)], offsets: &[u32], rows: &Rows) -> Vec<KeyPrefix> {
    let distinct = starts(offsets).filter_map(|start| order.get(start));
    KeyPrefix::many(distinct.map(|(hash, row)| (*hash, rows.get(*row as usize))))
}

#[cfg(test)]
mod tests;
