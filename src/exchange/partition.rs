//! To which partition a row goes.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float16Type, Float32Type, Float64Type};
use arrow_array::{Array, ArrayRef, make_array};
use arrow_schema::DataType;

use crate::determinant::row_fingerprints;
use crate::error::Result;
use crate::id::Partition;

/// The partition of a row with this fingerprint: the high bits of `hash * partitions / 2^64`. The same in
/// every version.
#[must_use]
pub fn partition_of(hash: u64, partitions: u32) -> Partition {
    // Below `partitions`, so it fits.
    Partition(((u128::from(hash) * u128::from(partitions)) >> 64) as u32)
}

/// The partition of each row by its keys: rows with equal keys get the same one. Nulls are equal, all NaNs
/// are equal, and `-0.0` equals `0.0`, as in Spark's own grouping.
///
/// # Errors
/// [`crate::error::Error::UnsupportedType`] for a key column without fingerprints.
pub fn partitions_of(keys: &[ArrayRef], partitions: u32, out: &mut Vec<u32>) -> Result<()> {
    let keys = keys.iter().map(without_negative_zero).collect::<Result<Vec<_>>>()?;
    let mut hashes = Vec::with_capacity(keys.first().map_or(0, |key| key.len()));
    row_fingerprints(&keys, &mut hashes)?;
    out.clear();
    out.extend(hashes.into_iter().map(|hash| partition_of(hash, partitions).0));
    Ok(())
}

fn without_negative_zero(array: &ArrayRef) -> Result<ArrayRef> {
    // Adding zero turns -0.0 into 0.0 and leaves every other number as it is.
    Ok(match array.data_type() {
        DataType::Float16 => {
            Arc::new(array.as_primitive::<Float16Type>().unary::<_, Float16Type>(|v| v + half::f16::ZERO))
        }
        DataType::Float32 => {
            Arc::new(array.as_primitive::<Float32Type>().unary::<_, Float32Type>(|v| v + 0.0))
        }
        DataType::Float64 => {
            Arc::new(array.as_primitive::<Float64Type>().unary::<_, Float64Type>(|v| v + 0.0))
        }
        kind if has_floats(kind) => {
            let data = array.to_data();
            let children = data.child_data().iter();
            let children = children
                .map(|child| Ok(without_negative_zero(&make_array(child.clone()))?.to_data()))
                .collect::<Result<Vec<_>>>()?;
            make_array(data.into_builder().child_data(children).build()?)
        }
        _ => Arc::clone(array),
    })
}

fn has_floats(kind: &DataType) -> bool {
    match kind {
        DataType::Float16 | DataType::Float32 | DataType::Float64 => true,
        DataType::Struct(fields) => fields.iter().any(|field| has_floats(field.data_type())),
        DataType::List(field)
        | DataType::LargeList(field)
        | DataType::FixedSizeList(field, _)
        | DataType::Map(field, _) => has_floats(field.data_type()),
        DataType::Dictionary(_, values) => has_floats(values),
        _ => false,
    }
}
