//! What columns are without what does not count: dictionaries, and the several faces of one number.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, GenericListArray, MapArray, OffsetSizeTrait, StructArray};
use arrow_schema::{DataType, Field, FieldRef, Fields};
use arrow_select::take::take;

use crate::error::Result;
use crate::exchange::canonical_floats;

/// The same values without dictionaries.
///
/// # Errors
/// [`crate::error::Error::Arrow`].
pub fn plain(array: &ArrayRef) -> Result<ArrayRef> {
    if !has_dictionary(array.data_type()) {
        return Ok(Arc::clone(array));
    }
    Ok(match array.data_type() {
        DataType::Dictionary(..) => {
            let dictionary = array.as_any_dictionary();
            plain(&take(dictionary.values(), dictionary.keys(), None)?)?
        }
        DataType::Struct(_) => Arc::new(plain_struct(array.as_struct())?),
        DataType::List(_) => Arc::new(plain_list(array.as_list::<i32>())?),
        DataType::LargeList(_) => Arc::new(plain_list(array.as_list::<i64>())?),
        DataType::Map(field, _) => {
            let (_, offsets, entries, nulls, ordered) = array.as_map().clone().into_parts();
            let field = plain_field(field);
            Arc::new(MapArray::try_new(field, offsets, plain_struct(&entries)?, nulls, ordered)?)
        }
        // Refused when it is encoded.
        _ => Arc::clone(array),
    })
}

/// As [`plain`], of a struct; its fields have no metadata.
///
/// # Errors
/// As [`plain`].
pub fn plain_struct(array: &StructArray) -> Result<StructArray> {
    let (fields, columns, nulls) = array.clone().into_parts();
    let columns = columns.iter().map(plain).collect::<Result<Vec<_>>>()?;
    Ok(StructArray::try_new_with_length(plain_fields(&fields), columns, nulls, array.len())?)
}

fn plain_list<O: OffsetSizeTrait>(array: &GenericListArray<O>) -> Result<GenericListArray<O>> {
    let (field, offsets, items, nulls) = array.clone().into_parts();
    Ok(GenericListArray::try_new(plain_field(&field), offsets, plain(&items)?, nulls)?)
}

/// The fields that plain columns have: no dictionaries and no metadata.
#[must_use]
pub fn plain_fields(fields: &Fields) -> Fields {
    fields.iter().map(plain_field).collect()
}

fn plain_field(field: &FieldRef) -> FieldRef {
    Arc::new(Field::new(field.name(), plain_type(field.data_type()), field.is_nullable()))
}

fn plain_type(kind: &DataType) -> DataType {
    match kind {
        DataType::Dictionary(_, values) => plain_type(values),
        DataType::Struct(fields) => DataType::Struct(plain_fields(fields)),
        DataType::List(field) => DataType::List(plain_field(field)),
        DataType::LargeList(field) => DataType::LargeList(plain_field(field)),
        DataType::Map(field, ordered) => DataType::Map(plain_field(field), *ordered),
        kind => kind.clone(),
    }
}

fn has_dictionary(kind: &DataType) -> bool {
    match kind {
        DataType::Dictionary(..) => true,
        DataType::Struct(fields) => fields.iter().any(|field| has_dictionary(field.data_type())),
        DataType::List(field) | DataType::LargeList(field) | DataType::Map(field, _) => {
            has_dictionary(field.data_type())
        }
        _ => false,
    }
}

/// Key columns of which equal ones have equal bytes: plain, `-0.0` as `0.0`, and one NaN.
///
/// # Errors
/// As [`plain`].
pub fn canonical_keys(columns: &[ArrayRef]) -> Result<Vec<ArrayRef>> {
    columns.iter().map(|column| canonical_floats(&plain(column)?)).collect()
}
