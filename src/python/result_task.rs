//! `ResultTask` and `Plan`: recording of whole results.

use std::sync::{Arc, Mutex};

use arrow_array::{Array, ArrayRef, Int64Array, UInt32Array};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use pyo3_arrow::PyArray;

use super::arrays::{array, arrays, to_pyarrow};
use super::client::{Opening, Publisher, PyClient, summary_dict};
use super::config::PySessionConfig;
use super::door::{enter, quick};
use super::lock;
use crate::agent::protocol::{Ending, Recording};
use crate::determinant::row_fingerprints;
use crate::error::{Error, Result};
use crate::task::{
    CallPosition, Caller, Plan, PoolQuestion, ResultTask, Summary, TaskMode, idempotency_key, place_of_batch,
};

/// Which rows of one batch have recorded values.
#[pyclass(name = "Plan", module = "clonos._core", frozen)]
pub(super) struct PyPlan {
    rows: usize,
    live: Option<Arc<UInt32Array>>,
    live_count: usize,
    /// Taken by `complete`; the key of a call in progress is made from it until then.
    plan: Mutex<Option<Plan>>,
}

#[pymethods]
impl PyPlan {
    #[getter]
    const fn rows(&self) -> usize {
        self.rows
    }

    #[getter]
    const fn live_count(&self) -> usize {
        self.live_count
    }

    #[getter]
    fn live(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let Some(live) = &self.live else { return Ok(None) };
        let array: ArrayRef = Arc::clone(live) as ArrayRef;
        to_pyarrow(py, array).map(Some)
    }
}

/// One attempt of a task under `record="result"`.
#[pyclass(name = "ResultTask", module = "clonos._core", frozen)]
pub(super) struct PyResultTask {
    task: Mutex<ResultTask>,
    id: crate::id::TaskId,
    publisher: Publisher,
    lost: bool,
    /// Whether another stage published some of it.
    of_others: bool,
    /// Whether `row_key` tells rows apart.
    keyed: bool,
    /// Whether the epoch was recorded with another number of partitions.
    relaid: bool,
}

impl PyResultTask {
    fn start(client: &PyClient, mut opening: Opening) -> Result<Self> {
        let (publisher, opened) = Publisher::open(client, &opening)?;
        // A part of an attempt that computes several partitions in turn has a name of its own.
        let id = opened.task.clone();
        opening.options.task = opened.task.clone();
        let Recording {
            same_stage, layout_changed, pooled, uncertain, any_part, ended, run, replaces, ..
        } = opened.recording;
        let of_others = opened.recording.of_others;
        opening.options.replaces = replaces;
        opening.options.layout_changed = layout_changed;
        opening.options.pooled = pooled;
        opening.options.dealt = opened.recording.dealt;
        opening.options.choice = opened.recording.choice;
        opening.options.uncertain = uncertain;
        (opening.options.any_part, opening.options.ended) = (any_part, ended);
        opening.options.app = opening.in_run(run);
        let keyed = opening.options.keyed;
        let task = ResultTask::new(opening.options, opened.prior, same_stage)?;
        let (lost, relaid) = (opened.lost, layout_changed);
        Ok(Self { task: Mutex::new(task), id, publisher, lost, of_others, keyed, relaid })
    }
}

impl PyResultTask {
    /// Finds the rows of a batch: in logs of others only where there are such, and the own one lacks some.
    fn found(&self, columns: &[ArrayRef], marks: Option<&ArrayRef>) -> Result<Plan> {
        let mut fingerprints = Vec::with_capacity(columns.first().map_or(0, |column| column.len()));
        row_fingerprints(columns, &mut fingerprints)?;
        let ask = |questions: &[PoolQuestion], ambiguous| self.publisher.pool(&self.id, questions, ambiguous);
        lock(&self.task).find(fingerprints, marks.map_or_else(|| Ok(Vec::new()), marks_of)?, ask)
    }
}

/// Marks as Spark hands them over.
fn marks_of(column: &ArrayRef) -> Result<Vec<u64>> {
    let marks = column.as_any().downcast_ref::<Int64Array>();
    let marks =
        marks.ok_or_else(|| Error::Misuse { what: "marks of rows that are not whole numbers".into() })?;
    Ok(marks.iter().map(|mark| mark.unwrap_or_default().cast_unsigned()).collect())
}

#[pymethods]
impl PyResultTask {
    #[staticmethod]
    #[pyo3(signature = (client, config, **arguments))]
    fn open(
        py: Python<'_>,
        client: &PyClient,
        config: &PySessionConfig,
        arguments: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let opening = Opening::read(config, TaskMode::Result, arguments)?;
        enter(py, || Self::start(client, opening))
    }

    #[getter]
    const fn lost(&self) -> bool {
        self.lost
    }

    #[getter]
    const fn of_others(&self) -> bool {
        self.of_others
    }

    #[getter]
    const fn relaid(&self) -> bool {
        self.relaid
    }

    #[pyo3(signature = (columns, marks=None))]
    fn offer(&self, py: Python<'_>, columns: Vec<PyArray>, marks: Option<PyArray>) -> PyResult<PyPlan> {
        let (columns, marks) = (arrays(columns), marks.map(array));
        let plan = enter(py, || self.found(&columns, marks.as_ref()))?;
        let live_count = plan.live.len();
        if live_count > 0 {
            self.publisher.work.begin();
        }
        let all = live_count == plan.rows;
        let live = (!all).then(|| Arc::new(UInt32Array::from(plan.live.clone())));
        Ok(PyPlan { rows: plan.rows, live, live_count, plan: Mutex::new(Some(plan)) })
    }

    fn complete(&self, py: Python<'_>, plan: &PyPlan, live: Option<PyArray>) -> PyResult<Py<PyAny>> {
        let live = live.map(array);
        if live.is_some() {
            self.publisher.work.end();
        }
        let values = enter(py, || {
            let plan = lock(&plan.plan).take();
            let plan = plan.ok_or_else(|| Error::Misuse { what: "a plan was completed twice".into() })?;
            lock(&self.task).complete(plan, live)
        })?;
        to_pyarrow(py, values)
    }

    fn abandon(&self, py: Python<'_>, plan: &PyPlan) -> PyResult<()> {
        enter(py, || {
            let plan = lock(&plan.plan).take();
            plan.map_or(Ok(()), |plan| lock(&self.task).abandon(&plan))
        })
    }

    #[pyo3(signature = (plan, live_row, ordinal))]
    fn key(&self, py: Python<'_>, plan: &PyPlan, live_row: Option<usize>, ordinal: u64) -> PyResult<String> {
        let used = enter(py, || self.publisher.use_of(&self.id))?;
        quick(py, || {
            let caller = Caller { task: &self.id, used, keyed: self.keyed };
            let plan = lock(&plan.plan);
            let gone = || Error::Misuse { what: "an idempotency key of a completed batch".into() };
            let plan = plan.as_ref().ok_or_else(gone)?;
            let Some(live_row) = live_row else {
                let rows = plan.live.iter().filter_map(|row| plan.fingerprint(*row as usize));
                return Ok(idempotency_key(caller, place_of_batch(rows, plan.first_row(), ordinal)));
            };
            let row = *plan.live.get(live_row).ok_or_else(gone)? as usize;
            let fingerprint = plan.fingerprint(row).ok_or_else(gone)?;
            // Where equal rows are not counted, the row's number keeps keys apart; it is the same in
            // another attempt as long as rows come in the same order.
            // The key of a row tells it apart by itself.
            let number = if self.keyed { 0 } else { plan.number(row) };
            let occurrence = plan.occurrence(row).unwrap_or(number | 1 << 63);
            Ok(idempotency_key(caller, CallPosition { fingerprint, occurrence, ordinal }))
        })
    }

    fn keep(&self, py: Python<'_>, plan: &PyPlan, places: Vec<u32>, values: PyArray) -> PyResult<u64> {
        let values = array(values);
        enter(py, || {
            let mut plan = lock(&plan.plan);
            let mut task = lock(&self.task);
            if let Some(plan) = plan.as_mut() {
                task.keep(plan, &places, &values)?;
            }
            let block = task.take_block();
            self.publisher.publish(block)
        })
    }

    fn publish(&self, py: Python<'_>) -> PyResult<u64> {
        enter(py, || {
            // Locked until it is sent: a thread that keeps answers in between must not overtake.
            let mut task = lock(&self.task);
            let block = task.take_block();
            self.publisher.publish(block)
        })
    }

    #[pyo3(signature = (mark=None))]
    fn settle(&self, py: Python<'_>, mark: Option<u64>) -> PyResult<()> {
        enter(py, || self.publisher.settle(mark.unwrap_or(u64::MAX)))
    }

    fn finish<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let summary = enter(py, || -> Result<Summary> {
            let summary = lock(&self.task).finish()?;
            self.publisher.close(&summary, Ending { done: true, ..Ending::default() })?;
            Ok(summary)
        })?;
        summary_dict(py, &summary)
    }

    fn close(&self, py: Python<'_>) {
        // The attempt is over whatever this answers; what it published stays.
        let _ = enter(py, || {
            let task = lock(&self.task);
            let (summary, refused) = (task.summary(), task.refused());
            drop(task);
            self.publisher.close(&summary, Ending { refused, ..Ending::default() })
        });
    }
}
