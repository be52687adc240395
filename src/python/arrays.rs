//! Arrays and batches of pyarrow, over the same buffers.

use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions};
use pyo3::prelude::*;
use pyo3_arrow::{PyArray, PyRecordBatch};

use crate::arrays::with_offsets;
use crate::error::Result;

/// Columns that Python hands over.
pub(super) fn arrays(columns: Vec<PyArray>) -> Vec<ArrayRef> {
    columns.into_iter().map(array).collect()
}

/// A column that Python hands over.
pub(super) fn array(column: PyArray) -> ArrayRef {
    with_offsets(column.into_inner().0)
}

/// Rows that Python hands over.
pub(super) fn batch(rows: PyRecordBatch) -> Result<RecordBatch> {
    let (schema, columns, count) = rows.into_inner().into_parts();
    let columns = columns.into_iter().map(with_offsets).collect();
    // Of batches without columns nothing else tells.
    let options = RecordBatchOptions::new().with_row_count(Some(count));
    Ok(RecordBatch::try_new_with_options(schema, columns, &options)?)
}

/// A `pyarrow.Array` over the same buffers.
pub(super) fn to_pyarrow(py: Python<'_>, array: ArrayRef) -> PyResult<Py<PyAny>> {
    let array = PyArray::from_array_ref(array);
    Ok(array.to_pyarrow(py)?.unbind())
}

/// A `pyarrow.RecordBatch` over the same buffers.
pub(super) fn batch_to_py(py: Python<'_>, batch: RecordBatch) -> PyResult<Py<PyAny>> {
    Ok(PyRecordBatch::new(batch).into_pyarrow(py)?.unbind())
}
