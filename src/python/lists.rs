//! Lists of Python values as Arrow arrays.

use std::sync::Arc;

use arrow_array::builder::{BooleanBuilder, GenericStringBuilder, PrimitiveBuilder};
use arrow_array::types::{
    ArrowPrimitiveType, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
};
use arrow_array::{ArrayRef, OffsetSizeTrait};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyInt, PyList, PyString};

use super::arrays::to_pyarrow;

/// Text that is made room for, per value.
const TEXT_BYTES: usize = 16;

/// An array of the values, all of which are null or just of the Python type that belongs to `kind`, Arrow's name
/// of a type; `None` if one is not, does not fit, or the kind has none.
///
/// `pyarrow.array` does it more slowly, and looks at each value's type once more; at its first call it imports
/// pandas, which takes longer than all else that a worker does before its first row.
#[pyfunction]
pub(super) fn plain_array(
    py: Python<'_>,
    values: &Bound<'_, PyList>,
    kind: &str,
) -> PyResult<Option<Py<PyAny>>> {
    let array = match kind {
        "string" => texts::<i32>(values),
        "large_string" => texts::<i64>(values),
        "bool" => truths(values),
        "int8" => integers::<Int8Type>(values),
        "int16" => integers::<Int16Type>(values),
        "int32" => integers::<Int32Type>(values),
        "int64" => integers::<Int64Type>(values),
        // What is too large for it is infinite, as with pyarrow.
        #[expect(clippy::cast_possible_truncation, reason = "rounded, as the type says")]
        "float" => floats::<Float32Type>(values, |value| value as f32),
        "double" => floats::<Float64Type>(values, |value| value),
        _ => None,
    };
    array.map(|array| to_pyarrow(py, array)).transpose()
}

fn texts<O: OffsetSizeTrait>(values: &Bound<'_, PyList>) -> Option<ArrayRef> {
    let mut texts = GenericStringBuilder::<O>::with_capacity(values.len(), values.len() * TEXT_BYTES);
    for value in values {
        match value.cast_exact::<PyString>() {
            Ok(text) => {
                // Half of a surrogate pair is no text, which pyarrow says, as it does of too much of it.
                let text = text.to_str().ok()?;
                O::from_usize(texts.values_slice().len() + text.len())?;
                texts.append_value(text);
            }
            Err(_) if value.is_none() => texts.append_null(),
            Err(_) => return None,
        }
    }
    Some(Arc::new(texts.finish()))
}

fn truths(values: &Bound<'_, PyList>) -> Option<ArrayRef> {
    let mut truths = BooleanBuilder::with_capacity(values.len());
    for value in values {
        match value.cast_exact::<PyBool>() {
            Ok(truth) => truths.append_value(truth.is_true()),
            Err(_) if value.is_none() => truths.append_null(),
            Err(_) => return None,
        }
    }
    Some(Arc::new(truths.finish()))
}

fn integers<T: ArrowPrimitiveType>(values: &Bound<'_, PyList>) -> Option<ArrayRef>
where
    T::Native: TryFrom<i64>,
{
    let mut numbers = PrimitiveBuilder::<T>::with_capacity(values.len());
    for value in values {
        match value.cast_exact::<PyInt>() {
            Ok(number) => numbers.append_value(number.extract::<i64>().ok()?.try_into().ok()?),
            Err(_) if value.is_none() => numbers.append_null(),
            Err(_) => return None,
        }
    }
    Some(Arc::new(numbers.finish()))
}

fn floats<T: ArrowPrimitiveType>(
    values: &Bound<'_, PyList>,
    rounded: impl Fn(f64) -> T::Native,
) -> Option<ArrayRef> {
    let mut numbers = PrimitiveBuilder::<T>::with_capacity(values.len());
    for value in values {
        match value.cast_exact::<PyFloat>() {
            Ok(number) => numbers.append_value(rounded(number.value())),
            Err(_) if value.is_none() => numbers.append_null(),
            Err(_) => return None,
        }
    }
    Some(Arc::new(numbers.finish()))
}
