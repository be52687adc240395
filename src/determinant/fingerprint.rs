//! Fingerprints of rows: 64 bits per row over the logical values of its columns.
//!
//! Slicing, dictionary encoding, offset widths and validity buffers do not count; types that say the
//! same thing in other widths (`Utf8` and `LargeUtf8`) agree. A null differs from every value.
//! Mixing is by XXH3 (Collet, 2019) for bytes, and for words by a 64 to 128-bit multiply folded in half,
//! as in wyhash (Wang Yi, 2019), with its factors added so that a factor of zero loses nothing. The numbers
//! are part of the log format: they must never change.

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, downcast_primitive_array};
use arrow_buffer::{ArrowNativeType, IntervalDayTime, IntervalMonthDayNano, ToByteSlice, i256};
use arrow_schema::DataType;
use arrow_select::take::take;
use xxhash_rust::xxh3::xxh3_64;

use crate::error::{Error, Result};

const SEED: u64 = 0x9e37_79b9_7f4a_7c15;
const COLUMN: u64 = 0xd6e8_feb8_6659_fd93;
const NULL: u64 = 0x2545_f491_4f6c_dd1d;
const TRUE: u64 = 0x1b03_7387_1234_5678;
const FALSE: u64 = 0x5851_f42d_4c95_7f2d;

/// Folds `value` into `state`; not commutative.
///
/// Both factors depend on the state, so no value makes one of them zero in every state; where one is, the
/// sum still tells what the other was.
#[inline]
fn mix(state: u64, value: u64) -> u64 {
    let (left, right) = (state ^ COLUMN, value ^ state.rotate_left(32));
    let product = u128::from(left) * u128::from(right);
    ((product >> 64) as u64 ^ product as u64).rotate_left(23) ^ left.wrapping_add(right)
}

/// [`mix`] for what may be null. A null goes into the complement of the state: no constant stands for it
/// that a value could be equal to.
#[inline]
fn mix_optional(state: u64, value: Option<u64>) -> u64 {
    value.map_or_else(|| mix(!state, NULL), |value| mix(state, value))
}

/// Appends one fingerprint per row of `columns` to `out`.
///
/// # Errors
/// [`Error::UnsupportedType`] names a type without a fingerprint; [`Error::Misuse`] if the columns
/// differ in length. `out` is as it was then.
pub fn row_fingerprints(columns: &[ArrayRef], out: &mut Vec<u64>) -> Result<()> {
    let rows = columns.first().map_or(0, |column| column.len());
    if columns.iter().any(|column| column.len() != rows) {
        return Err(Error::Misuse { what: "columns of one batch differ in length".into() });
    }
    let start = out.len();
    out.resize(start + rows, SEED);
    let states = out.get_mut(start..).unwrap_or_default();
    let folded = columns.iter().try_for_each(|column| fold(column.as_ref(), states));
    if folded.is_err() {
        out.truncate(start);
    }
    folded
}

/// Fingerprint of a whole batch: of its rows, in order.
///
/// # Errors
/// As [`row_fingerprints`].
pub fn batch_fingerprint(columns: &[ArrayRef]) -> Result<u64> {
    let mut rows = Vec::new();
    row_fingerprints(columns, &mut rows)?;
    Ok(rows.iter().fold(SEED, |state, row| mix(state, *row)))
}

/// Fingerprint of bytes.
#[must_use]
pub fn bytes_fingerprint(bytes: &[u8]) -> u64 {
    xxh3_64(bytes)
}

/// Folds each value of `array` into the state of its row.
fn fold(array: &dyn Array, states: &mut [u64]) -> Result<()> {
    downcast_primitive_array!(
        array => {
            // Values under a null are arbitrary, so they are read only where valid.
            if array.null_count() == 0 {
                for (state, value) in states.iter_mut().zip(array.values()) {
                    *state = mix(*state, value.word());
                }
            } else {
                for (state, value) in states.iter_mut().zip(array.iter()) {
                    *state = mix_optional(*state, value.map(Word::word));
                }
            }
        },
        DataType::Null => states.iter_mut().for_each(|state| *state = mix_optional(*state, None)),
        DataType::Boolean => {
            for (state, value) in states.iter_mut().zip(array.as_boolean().iter()) {
                *state = mix_optional(*state, value.map(|v| if v { TRUE } else { FALSE }));
            }
        },
        DataType::Utf8 => fold_bytes(array.as_string::<i32>().iter(), states),
        DataType::LargeUtf8 => fold_bytes(array.as_string::<i64>().iter(), states),
        DataType::Utf8View => fold_bytes(array.as_string_view().iter(), states),
        DataType::Binary => fold_bytes(array.as_binary::<i32>().iter(), states),
        DataType::LargeBinary => fold_bytes(array.as_binary::<i64>().iter(), states),
        DataType::BinaryView => fold_bytes(array.as_binary_view().iter(), states),
        DataType::FixedSizeBinary(_) => fold_bytes(array.as_fixed_size_binary().iter(), states),
        _ => return fold_nested(array, states),
    );
    Ok(())
}

fn fold_bytes<T: AsRef<[u8]>>(values: impl Iterator<Item = Option<T>>, states: &mut [u64]) {
    for (state, value) in states.iter_mut().zip(values) {
        *state = mix_optional(*state, value.map(|bytes| xxh3_64(bytes.as_ref())));
    }
}

/// Structs, lists and maps fold the fingerprints of their children; dictionaries those of their values.
fn fold_nested(array: &dyn Array, states: &mut [u64]) -> Result<()> {
    match array.data_type() {
        DataType::Struct(_) => {
            let children = array.as_struct().columns();
            let mut rows = vec![SEED; array.len()];
            for child in children {
                fold(child.as_ref(), &mut rows)?;
            }
            fold_each(array, states, |row| rows.get(row).copied());
        }
        DataType::List(_) => {
            let list = array.as_list::<i32>();
            fold_lists(array, list.values(), list.value_offsets(), states)?;
        }
        DataType::LargeList(_) => {
            let list = array.as_list::<i64>();
            fold_lists(array, list.values(), list.value_offsets(), states)?;
        }
        DataType::Map(..) => {
            let map = array.as_map();
            let entries: ArrayRef = std::sync::Arc::new(map.entries().clone());
            fold_lists(array, &entries, map.value_offsets(), states)?;
        }
        DataType::FixedSizeList(_, size) => {
            let list = array.as_fixed_size_list();
            let offsets: Vec<i64> = (0..=array.len() as i64).map(|row| row * i64::from(*size)).collect();
            fold_lists(array, list.values(), &offsets, states)?;
        }
        DataType::Dictionary(..) => {
            let dictionary = array.as_any_dictionary();
            return fold(take(dictionary.values(), dictionary.keys(), None)?.as_ref(), states);
        }
        other => return Err(Error::UnsupportedType { data_type: other.to_string() }),
    }
    Ok(())
}

fn fold_each(array: &dyn Array, states: &mut [u64], hash: impl Fn(usize) -> Option<u64>) {
    for (row, state) in states.iter_mut().enumerate() {
        *state = mix_optional(*state, if array.is_null(row) { None } else { hash(row) });
    }
}

/// Hashes only the children that the offsets cover: a slice of lists keeps those of the whole array.
fn fold_lists<O: ArrowNativeType>(
    array: &dyn Array,
    values: &ArrayRef,
    offsets: &[O],
    states: &mut [u64],
) -> Result<()> {
    let (Some(first), Some(last)) = (offsets.first(), offsets.last()) else { return Ok(()) };
    let (first, last) = (first.as_usize(), last.as_usize());
    if first > last || last > values.len() {
        return Err(Error::Misuse { what: "a list's offsets lie outside of its values".into() });
    }
    let mut items = vec![SEED; last - first];
    fold(values.slice(first, last - first).as_ref(), &mut items)?;
    fold_each(array, states, |row| {
        let from = offsets.get(row)?.as_usize().checked_sub(first)?;
        let to = offsets.get(row + 1)?.as_usize().checked_sub(first)?;
        let items = items.get(from..to)?;
        Some(items.iter().fold(mix(SEED, items.len() as u64), |state, item| mix(state, *item)))
    });
    Ok(())
}

/// A native value as 64 bits that say what it means.
trait Word {
    fn word(self) -> u64;
}

macro_rules! integers {
    ($($native:ty),*) => {$(
        impl Word for $native {
            #[inline]
            fn word(self) -> u64 {
                self as i64 as u64
            }
        }
    )*};
}
integers!(i8, i16, i32, i64, u8, u16, u32, u64);

impl Word for f64 {
    #[inline]
    fn word(self) -> u64 {
        // All NaNs are one value; -0.0 and 0.0 are two.
        if self.is_nan() { Self::NAN.to_bits() } else { self.to_bits() }
    }
}

impl Word for f32 {
    #[inline]
    fn word(self) -> u64 {
        f64::from(self).word()
    }
}

impl Word for half::f16 {
    #[inline]
    fn word(self) -> u64 {
        f64::from(self).word()
    }
}

macro_rules! wide {
    ($($native:ty),*) => {$(
        impl Word for $native {
            #[inline]
            fn word(self) -> u64 {
                xxh3_64(self.to_byte_slice())
            }
        }
    )*};
}
wide!(i128, i256, IntervalDayTime, IntervalMonthDayNano);
