//! `GatheredRows`: rows of a task until all of them are there.

use std::ops::RangeInclusive;
use std::sync::Mutex;

use arrow_array::RecordBatch;
use arrow_schema::Fields;
use pyo3::prelude::*;
use pyo3_arrow::PyRecordBatch;

use super::arrays::{batch, batch_to_py};
use super::config::PySessionConfig;
use super::door::enter;
use super::lock;
use crate::edge::agent::pending_frames::PendingFrames;
use crate::id::{Epoch, EpochKey};
use crate::state::gathered::Gathered;

/// Rows that wait for the last of them; what does not fit into memory waits in a file.
#[pyclass(name = "GatheredRows", module = "clonos._core", frozen)]
pub(super) struct PyGatheredRows {
    rows: Mutex<Gathered<PendingFrames>>,
}

impl PyGatheredRows {
    /// Nothing yet; see [`Gathered::new`].
    pub(super) fn new(
        keys: (Vec<usize>, Fields),
        partition: RangeInclusive<u64>,
        bytes_max: Option<usize>,
        config: Option<&PySessionConfig>,
    ) -> Self {
        // The file is this object's alone, whatever its name.
        let key = EpochKey { query: "".into(), epoch: Epoch::Batch(0) };
        let pieces = PendingFrames::new(config.map(|config| &config.config), key);
        Self { rows: Mutex::new(Gathered::new(keys, partition, bytes_max.unwrap_or(usize::MAX), pieces)) }
    }
}

#[pymethods]
impl PyGatheredRows {
    fn add(&self, py: Python<'_>, rows: PyRecordBatch) -> PyResult<()> {
        enter(py, || lock(&self.rows).add(batch(rows)?))
    }

    fn take(&self, py: Python<'_>) -> PyResult<Vec<Py<PyAny>>> {
        let batches: Vec<RecordBatch> = enter(py, || lock(&self.rows).take())?;
        batches.into_iter().map(|batch| batch_to_py(py, batch)).collect()
    }
}
