//! To which partition a row goes.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float16Type, Float32Type, Float64Type};
use arrow_array::{Array, ArrayRef, make_array};
use arrow_schema::DataType;

use crate::determinant::row_fingerprints;
use crate::error::Result;
use crate::id::Partition;

/// The NaN of each width that stands for all: quiet and positive. Keys of state hold it.
const NAN_16: u16 = 0x7e00;
const NAN_32: u32 = 0x7fc0_0000;
const NAN_64: u64 = 0x7ff8_0000_0000_0000;

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
    let keys = keys.iter().map(canonical_floats).collect::<Result<Vec<_>>>()?;
    let mut hashes = Vec::with_capacity(keys.first().map_or(0, |key| key.len()));
    row_fingerprints(&keys, &mut hashes)?;
    out.clear();
    out.extend(hashes.into_iter().map(|hash| partition_of(hash, partitions).0));
    Ok(())
}

/// The same values with `-0.0` as `0.0`, and all NaNs as one, wherever there are floats.
pub(crate) fn canonical_floats(array: &ArrayRef) -> Result<ArrayRef> {
    // Adding zero turns -0.0 into 0.0 and leaves every other number as it is.
    Ok(match array.data_type() {
        DataType::Float16 => {
            let one =
                |v: half::f16| if v.is_nan() { half::f16::from_bits(NAN_16) } else { v + half::f16::ZERO };
            Arc::new(array.as_primitive::<Float16Type>().unary::<_, Float16Type>(one))
        }
        DataType::Float32 => {
            let one = |v: f32| if v.is_nan() { f32::from_bits(NAN_32) } else { v + 0.0 };
            Arc::new(array.as_primitive::<Float32Type>().unary::<_, Float32Type>(one))
        }
        DataType::Float64 => {
            let one = |v: f64| if v.is_nan() { f64::from_bits(NAN_64) } else { v + 0.0 };
            Arc::new(array.as_primitive::<Float64Type>().unary::<_, Float64Type>(one))
        }
        kind if has_floats(kind) => {
            let data = array.to_data();
            let children = data.child_data().iter();
            let children = children
                .map(|child| Ok(canonical_floats(&make_array(child.clone()))?.to_data()))
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
