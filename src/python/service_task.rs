//! `ServiceTask`: recording of what a function takes from the causal services.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyInt};
use pyo3_arrow::PyArray;

use super::arrays::arrays;
use super::client::{Opening, Publisher, PyClient, summary_dict};
use super::config::PySessionConfig;
use super::door::{enter, quick};
use super::lock;
use crate::agent::protocol::{Ending, Recording, Recovery, Request};
use crate::agent::registry::number_of_part;
use crate::determinant::{batch_fingerprint, bytes_fingerprint, row_fingerprints};
use crate::error::{Error, Result};
use crate::frame::Group;
use crate::id::TaskId;
use crate::task::{CallDecision, Caller, RowRng, ServiceTask, TaskMode, idempotency_key};

/// Most random bits asked for at once.
const RANDOM_BITS_MAX: usize = 1 << 20;

pub(super) struct Inner {
    pub(super) task: ServiceTask,
    random: Option<RowRng>,
    /// Fingerprints of the batch whose rows are being worked on.
    rows: Vec<u64>,
}

impl Inner {
    /// The row's random numbers; the task's seed is drawn and recorded at the first use.
    fn random(&mut self) -> Result<&mut RowRng> {
        let seed = match &self.random {
            Some(_) => None,
            None => {
                let mut fresh = [0; 8];
                getrandom::fill(&mut fresh).map_err(|error| Error::Io {
                    context: "drawing a seed".into(),
                    message: error.to_string(),
                })?;
                Some(self.task.seed(u64::from_le_bytes(fresh))?)
            }
        };
        let place = self.task.position();
        Ok(self.random.get_or_insert_with(|| {
            let mut random = RowRng::new(seed.unwrap_or_default());
            random.reset_row(place.fingerprint, place.occurrence);
            random
        }))
    }
}

/// One attempt of a task under `record="services"`, or of an operator on a partition.
#[pyclass(name = "ServiceTask", module = "clonos._core", frozen)]
pub(super) struct PyServiceTask {
    pub(super) inner: Mutex<Inner>,
    pub(super) id: TaskId,
    pub(super) publisher: Publisher,
    pub(super) ending: Mutex<Ending>,
    /// Tasks of the stage, where known.
    pub(super) tasks: Option<u32>,
    pub(super) has_frames: bool,
    /// The task's log when it was opened, for a stage that sends it on.
    pub(super) prior: Mutex<Vec<Bytes>>,
    /// Whether something was absorbed since the last publish.
    absorbed: AtomicBool,
    /// Nanoseconds between two different readings of the clock.
    resolution: i64,
    lost: bool,
    /// Whether another stage published some of it.
    of_others: bool,
    /// Whether `row_key` tells rows apart.
    keyed: bool,
}

impl PyServiceTask {
    fn now_ns(&self) -> i64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = i64::try_from(since.as_nanos()).unwrap_or(i64::MAX);
        now - now % self.resolution
    }

    /// The clock, or its recorded reading.
    pub(super) fn recorded_time_ns(&self) -> Result<i64> {
        lock(&self.inner).task.time(self.now_ns())
    }

    /// Hands determinants that came with a frame to the agent.
    pub(super) fn absorbed(&self, groups: Vec<Group>) -> Result<()> {
        self.absorbed.store(true, Ordering::Relaxed);
        self.publisher.start(&Request::Absorb { session: self.publisher.session(), groups })
    }
}

#[pymethods]
impl PyServiceTask {
    #[staticmethod]
    #[pyo3(signature = (client, config, **arguments))]
    fn open(
        py: Python<'_>,
        client: &PyClient,
        config: &PySessionConfig,
        arguments: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let mut opening = Opening::read(config, TaskMode::Services, arguments)?;
        let resolution = i64::try_from(config.config.clock_resolution_ns).unwrap_or(i64::MAX).max(1);
        enter(py, || {
            let (publisher, opened) = Publisher::open(client, &opening)?;
            let id = opened.task.clone();
            opening.options.task = opened.task.clone();
            let Recording {
                same_stage,
                layout_changed,
                moved,
                uncertain,
                choice,
                any_part,
                ended,
                run,
                replaces,
                ..
            } = opened.recording;
            opening.options.choice = choice;
            opening.options.replaces = replaces;
            // What was recorded by row under another use cannot be followed either, nor by tasks with other borders.
            opening.options.layout_changed = layout_changed || moved || uncertain;
            (opening.options.any_part, opening.options.ended) = (any_part, ended);
            opening.options.app = opening.in_run(run);
            let prior = if opening.inside { opened.prior.clone() } else { Vec::new() };
            let recovery = if opened.prior.is_empty() { Recovery::Live } else { Recovery::Replayed };
            let keyed = opening.options.keyed;
            let task = ServiceTask::new(opening.options, opened.prior, same_stage)?;
            Ok(Self {
                inner: Mutex::new(Inner { task, random: None, rows: Vec::new() }),
                id,
                publisher,
                ending: Mutex::new(Ending { recovery, ..Ending::default() }),
                tasks: opened.tasks,
                has_frames: opened.has_frames,
                prior: Mutex::new(prior),
                absorbed: AtomicBool::new(false),
                resolution,
                lost: opened.lost,
                of_others: opened.recording.of_others,
                keyed,
            })
        })
    }

    #[getter]
    const fn lost(&self) -> bool {
        self.lost
    }

    #[getter]
    const fn tasks(&self) -> Option<u32> {
        self.tasks
    }

    #[getter]
    const fn partition(&self) -> u32 {
        self.id.partition.0
    }

    #[getter]
    fn part(&self) -> u32 {
        number_of_part(&self.id.operator)
    }

    #[getter]
    const fn of_others(&self) -> bool {
        self.of_others
    }

    fn time_ns(&self, py: Python<'_>) -> PyResult<i64> {
        quick(py, || self.recorded_time_ns())
    }

    fn random(&self, py: Python<'_>) -> PyResult<f64> {
        // 53 bits, as many as a double holds: the way of Python's own random().
        quick(py, || Ok((lock(&self.inner).random()?.next_u64() >> 11) as f64 / (1_u64 << 53) as f64))
    }

    fn getrandbits<'py>(&self, py: Python<'py>, bits: usize) -> PyResult<Bound<'py, PyAny>> {
        if bits > RANDOM_BITS_MAX {
            let message = format!("at most {RANDOM_BITS_MAX} random bits at once");
            return Err(pyo3::exceptions::PyValueError::new_err(message));
        }
        let drawn = quick(py, || {
            let mut bytes = vec![0; bits.div_ceil(8)];
            lock(&self.inner).random()?.fill(&mut bytes);
            if let (Some(last), spare @ 1..) = (bytes.last_mut(), bits.div_ceil(8) * 8 - bits) {
                *last >>= spare;
            }
            Ok(bytes)
        })?;
        let int = py.get_type::<PyInt>();
        int.call_method1("from_bytes", (PyBytes::new(py, &drawn), "little"))
    }

    fn call_begin<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Option<(bool, Bound<'py, PyBytes>)>> {
        let decision = quick(py, || {
            let task = &mut lock(&self.inner).task;
            let hash = bytes_fingerprint(name.as_bytes());
            task.meet(hash, name);
            task.call(hash)
        })?;
        Ok(match decision {
            CallDecision::Replayed { ok, value } => Some((ok, PyBytes::new(py, &value))),
            CallDecision::Live => {
                self.publisher.work.begin();
                None
            }
        })
    }

    fn call_record(&self, py: Python<'_>, name: &str, ok: bool, value: &[u8]) -> PyResult<()> {
        let name = bytes_fingerprint(name.as_bytes());
        quick(py, || {
            let task = &mut lock(&self.inner).task;
            task.record_call(name, ok, Bytes::copy_from_slice(value))?;
            // A call within a call is part of its work.
            if !task.in_call() {
                self.publisher.work.end();
            }
            Ok(())
        })
    }

    fn begin_batch(&self, py: Python<'_>, columns: Vec<PyArray>) -> PyResult<()> {
        let columns = arrays(columns);
        enter(py, || {
            let mut inner = lock(&self.inner);
            inner.rows.clear();
            row_fingerprints(&columns, &mut inner.rows)
        })
    }

    fn begin_row(&self, py: Python<'_>, row: usize) -> PyResult<()> {
        quick(py, || {
            let mut inner = lock(&self.inner);
            let missing = || Error::Misuse { what: format!("row {row} of a batch that is shorter") };
            let fingerprint = *inner.rows.get(row).ok_or_else(missing)?;
            inner.task.begin_row(fingerprint)?;
            let place = inner.task.position();
            if let Some(random) = &mut inner.random {
                random.reset_row(place.fingerprint, place.occurrence);
            }
            Ok(())
        })
    }

    fn end_row(&self, py: Python<'_>) -> PyResult<()> {
        quick(py, || lock(&self.inner).task.end_row())
    }

    fn input(&self, py: Python<'_>, columns: Vec<PyArray>) -> PyResult<()> {
        let columns = arrays(columns);
        enter(py, || {
            let rows = columns.first().map_or(0, |column| column.len());
            let fingerprint = batch_fingerprint(&columns)?;
            lock(&self.inner).task.input(rows_u32(rows)?, fingerprint)
        })
    }

    fn input_bytes(&self, py: Python<'_>, rows: usize, data: &[u8]) -> PyResult<()> {
        quick(py, || lock(&self.inner).task.input(rows_u32(rows)?, bytes_fingerprint(data)))
    }

    fn idempotency_key(&self, py: Python<'_>) -> PyResult<String> {
        let used = enter(py, || self.publisher.use_of(&self.id))?;
        quick(py, || {
            let caller = Caller { task: &self.id, used, keyed: self.keyed };
            Ok(idempotency_key(caller, lock(&self.inner).task.next_key()))
        })
    }

    fn keys_again(&self) {
        lock(&self.inner).task.keys_again();
    }

    fn publish(&self, py: Python<'_>) -> PyResult<u64> {
        enter(py, || {
            // Locked until it is sent: a thread that publishes answers in between must not overtake.
            let mut inner = lock(&self.inner);
            let block = inner.task.take_block();
            let absorbed = self.absorbed.swap(false, Ordering::Relaxed);
            if block.is_none() && absorbed {
                // What leaves depends on what was absorbed, though nothing new was recorded.
                self.publisher.start(&Request::Commit { session: self.publisher.session() })?;
            }
            self.publisher.publish(block)
        })
    }

    fn publish_answers(&self, py: Python<'_>) -> PyResult<u64> {
        enter(py, || {
            let mut inner = lock(&self.inner);
            let block = inner.task.take_answers();
            self.publisher.publish(block)
        })
    }

    #[pyo3(signature = (mark=None))]
    fn settle(&self, py: Python<'_>, mark: Option<u64>) -> PyResult<()> {
        enter(py, || self.publisher.settle(mark.unwrap_or(u64::MAX)))
    }

    fn finish<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let summary = enter(py, || {
            let resent = lock(&self.ending).recovery == Recovery::Resent;
            let mut inner = lock(&self.inner);
            let summary = if resent { inner.task.summary() } else { inner.task.finish()? };
            let ending = Ending { done: true, ..lock(&self.ending).clone() };
            self.publisher.close(&summary, ending)?;
            Ok(summary)
        })?;
        summary_dict(py, &summary)
    }

    fn close(&self, py: Python<'_>) {
        // The attempt is over whatever this answers; what it published stays.
        let _ = enter(py, || {
            let summary = lock(&self.inner).task.summary();
            self.publisher.close(&summary, Ending::default())
        });
    }
}

fn rows_u32(rows: usize) -> Result<u32> {
    u32::try_from(rows).map_err(|_| Error::Misuse { what: "a batch of more than 2^32 rows".into() })
}
