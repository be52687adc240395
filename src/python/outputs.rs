//! What Spark takes a task's output from.

use pyo3::exceptions::PyStopIteration;
use pyo3::intern;
use pyo3::prelude::*;

/// An iterator that hands on what another yields. In tracebacks it has no line, so that those of a user's function
/// begin with the function.
#[pyclass(name = "Outputs", module = "clonos._core", frozen)]
pub(super) struct PyOutputs {
    inner: Py<PyAny>,
    cleaned: Py<PyAny>,
}

#[pymethods]
impl PyOutputs {
    #[new]
    const fn new(inner: Py<PyAny>, cleaned: Py<PyAny>) -> Self {
        Self { inner, cleaned }
    }

    const fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        match self.inner.call_method0(py, intern!(py, "__next__")) {
            Ok(output) => Ok(Some(output)),
            Err(end) if end.is_instance_of::<PyStopIteration>(py) => Ok(None),
            Err(error) => {
                let error = self.cleaned.call1(py, (error.into_value(py),))?;
                Err(PyErr::from_value(error.into_bound(py)))
            }
        }
    }
}
