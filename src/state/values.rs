//! Values as they are kept, each with the number of the schema that it was written with.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, StructArray};
use arrow_select::interleave::interleave;

use super::catalog::{Catalog, Variable};
use super::codec::{decode, evolve};
use super::key::Slot;
use crate::determinant::codec::Fields as Reader;
use crate::error::Result;

/// Values of a variable as its declared fields have them, whichever schemas they were written with.
///
/// # Errors
/// [`crate::error::Error::CorruptState`]; [`crate::error::Error::StateSchema`] if one does not become what is declared.
pub(super) fn decode_values<'a>(
    catalog: &Catalog,
    slot: Slot,
    variable: &Variable,
    values: impl ExactSizeIterator<Item = &'a [u8]>,
) -> Result<StructArray> {
    let mut by_schema: BTreeMap<usize, Vec<&[u8]>> = BTreeMap::new();
    let mut places = Vec::with_capacity(values.len());
    for value in values {
        let (schema, row) = split_value(value)?;
        let rows = by_schema.entry(schema).or_default();
        places.push((schema, rows.len()));
        rows.push(row);
    }
    let mut arrays: Vec<ArrayRef> = Vec::new();
    let mut numbers = BTreeMap::new();
    for (schema, rows) in by_schema {
        let rows = decode(catalog.schema(slot, schema)?, rows.into_iter())?;
        numbers.insert(schema, arrays.len());
        arrays.push(Arc::new(evolve(&variable.name, &rows, &variable.value)?));
    }
    match arrays.as_slice() {
        [] => decode(&variable.value, std::iter::empty()),
        [only] => Ok(only.as_struct().clone()),
        _ => {
            let arrays: Vec<&dyn Array> = arrays.iter().map(AsRef::as_ref).collect();
            let places =
                places.into_iter().map(|(schema, row)| (numbers.get(&schema).copied().unwrap_or(0), row));
            Ok(interleave(&arrays, &places.collect::<Vec<_>>())?.as_struct().clone())
        }
    }
}

/// A value's schema number and row.
fn split_value(bytes: &[u8]) -> Result<(usize, &[u8])> {
    let mut fields = Reader::new(bytes);
    let schema = fields.small().map_err(super::codec::of_state)?;
    let row = bytes.get(bytes.len() - fields.len()..).unwrap_or_default();
    Ok((schema, row))
}
