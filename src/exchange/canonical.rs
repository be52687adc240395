//! One encoding for equal rows: below nulls there is nothing.
//!
//! An array may hold anything below a null: Java, and many of Arrow's kernels, leave there what the memory held
//! before. It would get into frames and their checksums, and rows that are computed again, and are the same,
//! would be others to their consumer.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::ArrowDictionaryKeyType;
use arrow_array::{
    Array, ArrayRef, ArrowPrimitiveType, BooleanArray, DictionaryArray, FixedSizeBinaryArray,
    FixedSizeListArray, GenericListArray, MapArray, OffsetSizeTrait, PrimitiveArray, StructArray,
    UInt32Array, downcast_dictionary_array, downcast_primitive,
};
use arrow_buffer::{Buffer, NullBuffer};
use arrow_schema::DataType;
use arrow_select::take::take;

use crate::error::{Error, Result};

/// The same rows with nothing below nulls. `array` comes from `take`, which leaves no bytes of text and no
/// items of lists there; if nobody else holds its memory, that is changed in place.
pub(super) fn canonical(array: ArrayRef) -> Result<ArrayRef> {
    macro_rules! primitive {
        ($kind:ty, $array:ident) => {
            Arc::new(zeroed::<$kind>($array))
        };
    }
    if array.null_count() == 0 && !array.data_type().is_nested() {
        return Ok(array);
    }
    Ok(downcast_primitive! {
        array.data_type() => (primitive, array),
        DataType::Boolean => Arc::new(booleans(array.as_boolean())),
        DataType::FixedSizeBinary(width) => Arc::new(fixed_bytes(array.as_fixed_size_binary(), *width)?),
        DataType::Struct(_) => Arc::new(structs(array.as_struct())?),
        DataType::List(_) => Arc::new(lists(array.as_list::<i32>())?),
        DataType::LargeList(_) => Arc::new(lists(array.as_list::<i64>())?),
        DataType::FixedSizeList(..) => Arc::new(fixed_lists(array.as_fixed_size_list())?),
        DataType::Map(..) => Arc::new(maps(array.as_map())?),
        DataType::Dictionary(..) => {
            let keyed = array.as_ref();
            downcast_dictionary_array! {
                keyed => Arc::new(dictionary(keyed)?),
                _ => Arc::clone(&array),
            }
        }
        _ => array,
    })
}

fn zeroed<T: ArrowPrimitiveType>(array: ArrayRef) -> PrimitiveArray<T> {
    let typed = array.as_primitive::<T>().clone();
    // Now the memory may be held by `typed` alone.
    drop(array);
    let (kind, values, nulls) = typed.into_parts();
    let mut values: Vec<T::Native> = values.into();
    for (value, valid) in values.iter_mut().zip(nulls.iter().flatten()) {
        if !valid {
            *value = T::Native::default();
        }
    }
    PrimitiveArray::new(values.into(), nulls).with_data_type(kind)
}

fn booleans(array: &BooleanArray) -> BooleanArray {
    let nulls = array.nulls().cloned();
    let values =
        nulls.as_ref().map_or_else(|| array.values().clone(), |nulls| array.values() & nulls.inner());
    BooleanArray::new(values, nulls)
}

fn fixed_bytes(array: &FixedSizeBinaryArray, width: i32) -> Result<FixedSizeBinaryArray> {
    let mut bytes = array.value_data().to_vec();
    let values = bytes.chunks_exact_mut(usize::try_from(width).unwrap_or(0).max(1));
    for (value, valid) in values.zip(array.nulls().into_iter().flatten()) {
        if !valid {
            value.fill(0);
        }
    }
    Ok(FixedSizeBinaryArray::try_new(width, Buffer::from(bytes), array.nulls().cloned())?)
}

fn structs(array: &StructArray) -> Result<StructArray> {
    let (fields, columns, nulls) = array.clone().into_parts();
    let columns = columns.into_iter().map(|column| canonical(hidden(column, nulls.as_ref())?));
    let columns = columns.collect::<Result<Vec<_>>>()?;
    Ok(StructArray::try_new_with_length(fields, columns, nulls, array.len())?)
}

fn lists<O: OffsetSizeTrait>(array: &GenericListArray<O>) -> Result<GenericListArray<O>> {
    let (field, offsets, items, nulls) = array.clone().into_parts();
    Ok(GenericListArray::try_new(field, offsets, canonical(items)?, nulls)?)
}

fn fixed_lists(array: &FixedSizeListArray) -> Result<FixedSizeListArray> {
    let (field, size, items, nulls) = array.clone().into_parts();
    let below = nulls.as_ref().map(|nulls| nulls.expand(usize::try_from(size).unwrap_or(0)));
    Ok(FixedSizeListArray::try_new(field, size, canonical(hidden(items, below.as_ref())?)?, nulls)?)
}

fn maps(array: &MapArray) -> Result<MapArray> {
    let (field, offsets, entries, nulls, ordered) = array.clone().into_parts();
    Ok(MapArray::try_new(field, offsets, structs(&entries)?, nulls, ordered)?)
}

fn dictionary<K: ArrowDictionaryKeyType>(array: &DictionaryArray<K>) -> Result<DictionaryArray<K>> {
    let (keys, values) = array.clone().into_parts();
    Ok(DictionaryArray::try_new(zeroed::<K>(Arc::new(keys)), canonical(values)?)?)
}

/// A child with nulls wherever its parent has one.
fn hidden(child: ArrayRef, below: Option<&NullBuffer>) -> Result<ArrayRef> {
    let Some(below) = below.filter(|below| below.null_count() > 0) else { return Ok(child) };
    let len = u32::try_from(child.len());
    let len = len.map_err(|_| Error::Misuse { what: "a batch of more than 2^32 items".into() })?;
    let rows = UInt32Array::new((0..len).collect(), Some(below.clone()));
    Ok(take(&child, &rows, None)?)
}
