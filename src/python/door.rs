//! The one door from Python into the core.

use std::panic::{AssertUnwindSafe, catch_unwind};

use pyo3::prelude::*;

use super::error::to_py;
use crate::error::{Error, Result};

/// Runs `work` without the interpreter lock; errors and panics become exceptions.
pub(super) fn enter<T: Send>(py: Python<'_>, work: impl FnOnce() -> Result<T> + Send) -> PyResult<T> {
    py.detach(|| guarded(work)).map_err(|error| to_py(py, &error))
}

/// Runs `work` with the lock held: for calls of some nanoseconds, where giving it up costs more.
pub(super) fn quick<T>(py: Python<'_>, work: impl FnOnce() -> Result<T>) -> PyResult<T> {
    guarded(work).map_err(|error| to_py(py, &error))
}

fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    // What a panic leaves half done is behind a mutex and refused by its machine afterwards.
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_default();
        Err(Error::Misuse { what: format!("the core panicked: {text}; please report this") })
    })
}
