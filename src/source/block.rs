//! Blocks of a source's log: where in the log their rows stand, and the rows as Arrow IPC.
//!
//! ```text
//! block := postcard { version u8 = 1, first u64, rows u32, taken u64, received i64 } | Arrow IPC stream
//! ```
//!
//! The stream is absent in a block without rows, which only says where the log goes on.

use std::sync::Arc;

use arrow_array::{Array, ArrayRef, StructArray};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::determinant::{decode_results, encode_results};
use crate::error::{Error, Result};

/// Version of the format that this code writes and reads.
const VERSION: u8 = 1;

/// Where a block stands in its log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    version: u8,
    /// Position of its first row.
    pub first: u64,
    /// Rows in it.
    pub rows: u32,
    /// Items taken from the sender up to the end of the block, malformed ones included: where a sender that
    /// is acknowledged goes on.
    pub taken: u64,
    /// When its rows were received, in microseconds since 1970.
    pub received: i64,
}

impl Span {
    /// A span of this version.
    #[must_use]
    pub const fn new(first: u64, rows: u32, taken: u64, received: i64) -> Self {
        Self { version: VERSION, first, rows, taken, received }
    }

    /// Position after its last row.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.first + self.rows as u64
    }
}

/// Rows of a block that were asked for.
#[derive(Debug, Clone)]
pub struct Part {
    /// The rows, one field per column.
    pub rows: StructArray,
    /// When they were received, in microseconds since 1970.
    pub received: i64,
}

/// Writes rows as they stand in a block.
///
/// # Errors
/// [`Error::Arrow`] if Arrow cannot write a type.
pub fn write_rows(rows: &StructArray) -> Result<Vec<u8>> {
    let rows: ArrayRef = Arc::new(rows.clone());
    encode_results(&rows)
}

/// Writes a block; `rows` is what [`write_rows`] made, or nothing.
///
/// # Errors
/// [`Error::CorruptBlock`] never, as far as is known.
pub fn write_block(span: &Span, rows: &[u8]) -> Result<Bytes> {
    let head = Vec::with_capacity(32 + rows.len());
    let mut block = postcard::to_extend(span, head).map_err(|error| unreadable(&error.to_string()))?;
    block.extend_from_slice(rows);
    Ok(block.into())
}

/// Reads where a block stands, and the bytes of its rows.
///
/// # Errors
/// [`Error::CorruptBlock`], [`Error::UnsupportedVersion`].
pub fn read_span(block: &Bytes) -> Result<(Span, Bytes)> {
    let version = block.first().copied().unwrap_or_default();
    if version != VERSION {
        return Err(Error::UnsupportedVersion {
            what: "a block of a source's log".into(),
            found: u32::from(version),
            known: u32::from(VERSION),
        });
    }
    let (span, rest) =
        postcard::take_from_bytes::<Span>(block).map_err(|error| unreadable(&error.to_string()))?;
    if span.first.checked_add(u64::from(span.rows)).is_none() {
        return Err(unreadable("its positions overflow"));
    }
    Ok((span, block.slice_ref(rest)))
}

/// Reads those rows of a block that stand from `from` up to `to`; `None` if there are none.
///
/// # Errors
/// Those of [`read_span`].
pub fn read_block(block: &Bytes, from: u64, to: u64) -> Result<Option<Part>> {
    let (span, stream) = read_span(block)?;
    let (from, to) = (from.max(span.first), to.min(span.end()));
    if from >= to {
        return Ok(None);
    }
    let rows = decode_results(&stream)?;
    let rows = rows.as_any().downcast_ref::<StructArray>().ok_or_else(|| unreadable("it holds no rows"))?;
    if rows.len() != span.rows as usize {
        return Err(unreadable("it has another number of rows than it says"));
    }
    let index = |position: u64| usize::try_from(position - span.first).unwrap_or(usize::MAX);
    let rows = rows.slice(index(from), index(to) - index(from));
    Ok(Some(Part { rows, received: span.received }))
}

fn unreadable(reason: &str) -> Error {
    Error::CorruptBlock { reason: format!("a block of a source's log: {reason}") }
}

#[cfg(test)]
mod tests {
    use arrow_array::Int64Array;
    use arrow_schema::{DataType, Field};
    use proptest::prelude::*;

    use super::*;

    fn numbers(first: i64, rows: i64) -> StructArray {
        let column: ArrayRef = Arc::new(Int64Array::from_iter_values(first..first + rows));
        StructArray::from(vec![(Arc::new(Field::new("n", DataType::Int64, true)), column)])
    }

    proptest! {
        #[test]
        fn any_range_gives_its_rows(first in 0..1_000_i64, rows in 0..50_i64, from in 0..1_100_u64, len in 0..60_u64) {
            let span = Span::new(first as u64, rows as u32, 7, 9);
            let bytes = if rows == 0 { Vec::new() } else { write_rows(&numbers(first, rows)).unwrap() };
            let block = write_block(&span, &bytes).unwrap();
            prop_assert_eq!(read_span(&block).unwrap().0, span);
            let wanted: Vec<i64> =
                (first..first + rows).filter(|n| (from..from + len).contains(&(*n as u64))).collect();
            let part = read_block(&block, from, from + len).unwrap();
            let found = part.map_or(Vec::new(), |part| {
                part.rows.column(0).as_any().downcast_ref::<Int64Array>().unwrap().values().to_vec()
            });
            prop_assert_eq!(found, wanted);
        }

        #[test]
        fn other_bytes_are_an_error_or_rows(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = read_block(&Bytes::from(bytes), 0, u64::MAX);
        }
    }

    #[test]
    fn another_version_is_refused_by_name() {
        let refused = read_span(&Bytes::from_static(&[2, 0, 0, 0, 0])).unwrap_err();
        assert_eq!(refused.condition(), "UNSUPPORTED_VERSION");
    }
}
