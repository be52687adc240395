//! Values that were kept under an older schema, as the newer one has them.

use std::mem::discriminant;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{
    Array, ArrayRef, GenericListArray, MapArray, OffsetSizeTrait, StructArray, make_array, new_null_array,
};
use arrow_cast::cast;
use arrow_schema::{DataType, FieldRef, Fields};

use super::names::Named;
use crate::error::{Error, Result};

/// A variable's values under newer fields: by name, as Spark compares names, added ones null, dropped ones gone, numbers
/// widened.
///
/// # Errors
/// [`Error::StateSchema`] names the variable, the field and both types if they cannot be.
pub fn evolve(variable: &str, array: &StructArray, to: &Fields) -> Result<StructArray> {
    evolve_fields(&Place { variable, field: None }, array, to)
}

/// Where in a variable's values we are, for errors.
#[derive(Debug, Clone, Copy)]
struct Place<'a> {
    variable: &'a str,
    /// The name of a field, and where that one is.
    field: Option<(&'a Self, &'a str)>,
}

impl Place<'_> {
    fn path(&self) -> String {
        match self.field {
            Some((above, name)) if above.field.is_some() => format!("{}.{name}", above.path()),
            Some((_, name)) => name.to_owned(),
            None => String::new(),
        }
    }

    fn refuse(&self, from: &DataType, to: &DataType) -> Error {
        Error::StateSchema {
            variable: self.variable.to_owned(),
            what: format!(
                "[STATE_STORE_INVALID_VALUE_SCHEMA_EVOLUTION] field {:?} was kept as {}, which does not become {}: declare it as before, or under another name",
                self.path(),
                Named(from),
                Named(to)
            ),
        }
    }
}

/// A column of a key as its declared field has it.
///
/// # Errors
/// [`Error::StateSchema`].
pub fn evolve_key(field: &FieldRef, column: &ArrayRef) -> Result<ArrayRef> {
    let key = Place { variable: "key", field: None };
    evolve_array(&Place { variable: "key", field: Some((&key, field.name())) }, column, field.data_type())
}

fn evolve_fields(place: &Place<'_>, array: &StructArray, to: &Fields) -> Result<StructArray> {
    if array.fields() == to {
        return Ok(array.clone());
    }
    let columns = to.iter().map(|field| {
        let place = Place { variable: place.variable, field: Some((place, field.name())) };
        match kept_as(array.fields(), to, field.name()).map(|at| array.column(at)) {
            Some(column) => evolve_array(&place, column, field.data_type()),
            None if field.is_nullable() => Ok(new_null_array(field.data_type(), array.len())),
            None => Err(Error::StateSchema {
                variable: place.variable.to_owned(),
                what: format!(
                    "[STATE_STORE_INVALID_VALUE_SCHEMA_EVOLUTION] field {:?} is new, so it must be nullable",
                    place.path()
                ),
            }),
        }
    });
    let columns = columns.collect::<Result<Vec<_>>>()?;
    Ok(StructArray::try_new_with_length(to.clone(), columns, array.nulls().cloned(), array.len())?)
}

fn evolve_array(place: &Place<'_>, array: &ArrayRef, to: &DataType) -> Result<ArrayRef> {
    let from = array.data_type();
    Ok(match (from, to) {
        _ if from == to => Arc::clone(array),
        (DataType::Struct(_), DataType::Struct(fields)) => {
            Arc::new(evolve_fields(place, array.as_struct(), fields)?)
        }
        (DataType::List(_), DataType::List(item)) => {
            Arc::new(evolve_list(place, array.as_list::<i32>(), item)?)
        }
        (DataType::LargeList(_), DataType::LargeList(item)) => {
            Arc::new(evolve_list(place, array.as_list::<i64>(), item)?)
        }
        (DataType::Map(..), DataType::Map(entry, ordered)) => {
            Arc::new(evolve_map(place, array.as_map(), entry, *ordered)?)
        }
        (DataType::Timestamp(unit, Some(_)), DataType::Timestamp(other, Some(_))) if unit == other => {
            make_array(array.to_data().into_builder().data_type(to.clone()).build()?)
        }
        _ if is_same_text(from, to) || widens(from, to) => cast(array, to)?,
        _ => return Err(place.refuse(from, to)),
    })
}

fn evolve_list<O: OffsetSizeTrait>(
    place: &Place<'_>,
    array: &GenericListArray<O>,
    item: &FieldRef,
) -> Result<GenericListArray<O>> {
    let (_, offsets, items, nulls) = array.clone().into_parts();
    let place = Place { variable: place.variable, field: Some((place, "[]")) };
    let items = evolve_array(&place, &items, item.data_type())?;
    Ok(GenericListArray::try_new(Arc::clone(item), offsets, items, nulls)?)
}

fn evolve_map(place: &Place<'_>, array: &MapArray, entry: &FieldRef, ordered: bool) -> Result<MapArray> {
    let (_, offsets, entries, nulls, _) = array.clone().into_parts();
    let DataType::Struct(fields) = entry.data_type() else {
        return Err(place.refuse(array.data_type(), &DataType::Map(Arc::clone(entry), ordered)));
    };
    // Key and value are known by their places, whatever they are called.
    let columns = entries.columns().iter().zip(fields).map(|(column, field)| {
        let place = Place { variable: place.variable, field: Some((place, field.name())) };
        evolve_array(&place, column, field.data_type())
    });
    let columns = columns.collect::<Result<Vec<_>>>()?;
    let entries = StructArray::try_new(fields.clone(), columns, entries.nulls().cloned())?;
    Ok(MapArray::try_new(Arc::clone(entry), offsets, entries, nulls, ordered)?)
}

/// Where a field of `to` is kept in `from`. Names that differ in their case are one name, unless both have a field.
fn kept_as(from: &Fields, to: &Fields, name: &str) -> Option<usize> {
    let is_alike = |other: &str| other.to_lowercase() == name.to_lowercase() && to.find(other).is_none();
    from.find(name).map(|(at, _)| at).or_else(|| from.iter().position(|field| is_alike(field.name())))
}

/// A field that is gone, and a new one of its type: its values would be lost if that is what it is called now.
#[must_use]
pub fn renamed(from: &Fields, to: &Fields) -> Option<(String, String)> {
    let mut gone = from.iter().enumerate().filter(|(at, _)| {
        let mut kept = to.iter().filter_map(|field| kept_as(from, to, field.name()));
        !kept.any(|kept| kept == *at)
    });
    let new = || to.iter().filter(|field| kept_as(from, to, field.name()).is_none());
    let of_its_type = |gone: &FieldRef| new().find(|new| is_of_kind(gone.data_type(), new.data_type()));
    let here = gone.find_map(|(_, gone)| Some((gone.name().clone(), of_its_type(gone)?.name().clone())));
    here.or_else(|| {
        to.iter().find_map(|field| {
            let before = from.get(kept_as(from, to, field.name())?)?;
            renamed_within(before.data_type(), field.data_type())
        })
    })
}

/// Whether values of one type may be meant to go on as those of another, though not all of them can.
fn is_of_kind(from: &DataType, to: &DataType) -> bool {
    same_meaning(from, to) || widens(from, to) || (from.is_nested() && discriminant(from) == discriminant(to))
}

fn renamed_within(from: &DataType, to: &DataType) -> Option<(String, String)> {
    match (from, to) {
        (DataType::Struct(from), DataType::Struct(to)) => renamed(from, to),
        (DataType::List(from), DataType::List(to)) | (DataType::LargeList(from), DataType::LargeList(to)) => {
            renamed_within(from.data_type(), to.data_type())
        }
        (DataType::Map(from, _), DataType::Map(to, _)) => match (from.data_type(), to.data_type()) {
            (DataType::Struct(from), DataType::Struct(to)) => {
                // Keys and values are known by their places.
                from.iter().zip(to).find_map(|(from, to)| renamed_within(from.data_type(), to.data_type()))
            }
            _ => None,
        },
        _ => None,
    }
}

/// Whether every number of one type is one of the other.
const fn widens(from: &DataType, to: &DataType) -> bool {
    use DataType::{Float16, Float32, Float64, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64};
    matches!(
        (from, to),
        (Int8, Int16 | Int32 | Int64 | Float32 | Float64)
            | (Int16, Int32 | Int64 | Float32 | Float64)
            | (Int32, Int64 | Float64)
            | (UInt8, UInt16 | UInt32 | UInt64)
            | (UInt16, UInt32 | UInt64)
            | (UInt32, UInt64)
            | (Float16, Float32 | Float64)
            | (Float32, Float64)
    )
}

const fn is_same_text(one: &DataType, other: &DataType) -> bool {
    use DataType::{Binary, BinaryView, LargeBinary, LargeUtf8, Utf8, Utf8View};
    matches!((one, other), (Utf8 | LargeUtf8 | Utf8View, Utf8 | LargeUtf8 | Utf8View))
        || matches!((one, other), (Binary | LargeBinary | BinaryView, Binary | LargeBinary | BinaryView))
}

/// Whether equal values of two types have equal bytes. Names count inside of structs, not for keys and values of
/// maps.
#[must_use]
pub fn same_meaning(one: &DataType, other: &DataType) -> bool {
    match (one, other) {
        (DataType::Struct(one), DataType::Struct(other)) => {
            one.len() == other.len()
                && one.iter().zip(other).all(|(one, other)| {
                    one.name() == other.name() && same_meaning(one.data_type(), other.data_type())
                })
        }
        (
            DataType::List(one) | DataType::LargeList(one),
            DataType::List(other) | DataType::LargeList(other),
        ) => same_meaning(one.data_type(), other.data_type()),
        (DataType::Map(one, _), DataType::Map(other, _)) => match (one.data_type(), other.data_type()) {
            (DataType::Struct(one), DataType::Struct(other)) => {
                one.iter().zip(other).all(|(one, other)| same_meaning(one.data_type(), other.data_type()))
            }
            _ => false,
        },
        (DataType::Timestamp(unit, Some(_)), DataType::Timestamp(other, Some(_))) => unit == other,
        _ => one == other || is_same_text(one, other),
    }
}
