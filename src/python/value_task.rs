//! `ValueTask`: one answer per distinct argument, whatever task asks.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use arrow_array::{ArrayRef, UInt32Array};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use pyo3_arrow::PyArray;

use super::client::{Connection, PyClient, UseNumber, epoch, get, text};
use super::door::{enter, quick};
use super::lock;
use super::result_task::{arrays, to_pyarrow};
use crate::agent::values::messages::{AboutValues, Found, QUESTIONS_MAX, Questions, TableId, Wanted};
use crate::determinant::{bytes_fingerprint, decode_results};
use crate::edge::net::client::Ticket;
use crate::error::{Error, Result};
use crate::id::{Partition, TaskId};
use crate::task::{CallPosition, Caller, Publication, Summary, ValueTask, idempotency_key, place_of_batch};

/// Stands for the number of equal rows before, in keys of calls: here there is one call for all of them.
const ANY_ROW: u64 = u64::MAX;

/// One attempt of a task under `per="value"`.
#[pyclass(name = "ValueTask", module = "clonos._core", frozen)]
pub(super) struct PyValueTask {
    task: Mutex<ValueTask>,
    /// Held while answers are on their way and somebody waits for them.
    publishing: Mutex<()>,
    /// Those on their way for which nobody waits yet.
    ahead: Mutex<Option<(Publication, Ticket)>>,
    /// What was asked before anybody waits for it. Whoever takes it out decides what becomes of the duties.
    asking: Mutex<Option<Asking>>,
    connection: Arc<Connection>,
    table: TableId,
    used: UseNumber,
}

/// Questions on their way.
struct Asking {
    ticket: Ticket,
    since: Instant,
}

impl PyValueTask {
    fn about(&self, wanted: Wanted) -> AboutValues {
        AboutValues { table: self.table.clone(), asker: None, wanted }
    }

    fn want(&self, wanted: Wanted) -> Result<Found> {
        self.connection.with(|client| client.values(self.about(wanted)))
    }

    /// Waits until answers are stable.
    fn publish(&self, publication: Publication) -> Result<()> {
        let block = publication.block.clone();
        let Found::Late(late) = self.want(Wanted::Answer { block })? else { return Err(unexpected()) };
        lock(&self.task).recorded(publication, &late);
        Ok(())
    }

    /// Waits until the answers sent ahead are stable; whether all of them were the first.
    fn wait_ahead(&self) -> Result<bool> {
        let Some((publication, ticket)) = lock(&self.ahead).take() else { return Ok(true) };
        let Found::Late(late) = self.connection.with(|client| client.found(ticket))? else {
            return Err(unexpected());
        };
        lock(&self.task).recorded(publication, &late);
        Ok(late.is_empty())
    }

    /// Sends the questions of the batch; `None` when all are answered.
    fn start_asking(&self, duties_max: u32) -> Result<Option<Asking>> {
        let questions = lock(&self.task).questions(QUESTIONS_MAX);
        if questions.is_empty() {
            return Ok(None);
        }
        let about = self.about(Wanted::Ask { questions: Questions::new(&questions), duties_max });
        let ticket = self.connection.with(|client| client.values_later(about))?;
        Ok(Some(Asking { ticket, since: Instant::now() }))
    }

    /// Asks once, or waits for what was asked ahead: rows to call the function for; `None` when all are
    /// answered.
    fn ask_once(&self, duties_max: u32) -> Result<Option<Vec<u32>>> {
        let sent = lock(&self.asking).take();
        let asking = sent.map_or_else(|| self.start_asking(duties_max), |asking| Ok(Some(asking)))?;
        let Some(Asking { ticket, .. }) = asking else { return Ok(None) };
        let Found::Standing { yours, answered } = self.connection.with(|client| client.found(ticket))? else {
            return Err(unexpected());
        };
        let decoded = answered.iter().map(|answers| decode_results(&answers.arrow));
        let decoded = decoded.collect::<Result<Vec<ArrayRef>>>()?;
        let mut task = lock(&self.task);
        let positions = answered.iter().map(|answers| answers.questions.iter());
        task.standing(yours.iter(), positions.zip(decoded))?;
        Ok(Some(task.live_rows()))
    }
}

#[pymethods]
impl PyValueTask {
    #[staticmethod]
    #[pyo3(signature = (client, **arguments))]
    fn open(client: &PyClient, arguments: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let none = || pyo3::exceptions::PyTypeError::new_err("open() needs keyword arguments");
        let arguments = arguments.ok_or_else(none)?;
        let table = TableId {
            query: text(arguments, "query")?,
            epoch: epoch(&get(arguments, "epoch")?)?,
            operator: text(arguments, "operator")?,
            named: get(arguments, "named")?.extract()?,
            code: get(arguments, "code")?.extract()?,
            shape: bytes_fingerprint(text(arguments, "shape")?.as_bytes()),
            python: text(arguments, "python")?,
            label: text(arguments, "label")?,
            allow_code_change: get(arguments, "allow_code_change")?.extract()?,
            app: get(arguments, "app")?.extract()?,
        };
        let connection = Arc::clone(&client.shared);
        let task = Mutex::new(ValueTask::new());
        let (publishing, ahead, asking) = (Mutex::new(()), Mutex::new(None), Mutex::new(None));
        Ok(Self { task, publishing, ahead, asking, connection, table, used: UseNumber::default() })
    }

    fn offer(&self, py: Python<'_>, columns: Vec<PyArray>) -> PyResult<()> {
        let columns = arrays(columns);
        enter(py, || {
            // Of another batch: its duties stay ours until they are asked for again.
            let asking = lock(&self.asking).take();
            if let Some(Asking { ticket, .. }) = asking {
                self.connection.with(|client| client.found(ticket))?;
            }
            lock(&self.task).offer(&columns)
        })
    }

    fn ask_ahead(&self, py: Python<'_>, duties_max: u32) -> PyResult<()> {
        enter(py, || {
            let mut asking = lock(&self.asking);
            if asking.is_none() {
                *asking = self.start_asking(duties_max)?;
            }
            Ok(())
        })
    }

    fn lapse(&self, py: Python<'_>, seconds: f64) -> PyResult<bool> {
        enter(py, || {
            // Held until the duties are given up: the next asking gets others.
            let mut asking = lock(&self.asking);
            let is_old = |asking: &mut Asking| asking.since.elapsed() >= Duration::from_secs_f64(seconds);
            let Some(Asking { ticket, .. }) = asking.take_if(is_old) else { return Ok(false) };
            self.connection.with(|client| client.found(ticket))?;
            self.want(Wanted::GiveUp { summary: Summary::default() })?;
            Ok(true)
        })
    }

    fn ask(&self, py: Python<'_>, duties_max: u32) -> PyResult<Option<Py<PyAny>>> {
        let rows = enter(py, || self.ask_once(duties_max))?;
        rows.map(|rows| to_pyarrow(py, Arc::new(UInt32Array::from(rows)))).transpose()
    }

    #[pyo3(signature = (values, places = None))]
    fn answer(&self, py: Python<'_>, values: PyArray, places: Option<Vec<u32>>) -> PyResult<()> {
        let values = values.into_inner().0;
        enter(py, || {
            // One at a time: what another thread publishes meanwhile must not be published twice.
            let _turn = lock(&self.publishing);
            let Some(publication) = lock(&self.task).publication(places.as_deref(), &values)? else {
                return Ok(());
            };
            self.publish(publication)
        })
    }

    fn answer_ahead(&self, py: Python<'_>, values: PyArray) -> PyResult<bool> {
        let values = values.into_inner().0;
        enter(py, || {
            let _turn = lock(&self.publishing);
            let mut task = lock(&self.task);
            let Some(mut publication) = task.publication(None, &values)? else { return Ok(false) };
            let whole = task.sent(&mut publication);
            drop(task);
            if !whole {
                return self.publish(publication).map(|()| false);
            }
            let about = self.about(Wanted::Answer { block: publication.block.clone() });
            let ticket = self.connection.with(|client| client.values_later(about))?;
            match lock(&self.ahead).replace((publication, ticket)) {
                None => Ok(true),
                Some(_) => Err(Error::Misuse { what: "answers were sent before others were settled".into() }),
            }
        })
    }

    fn settle(&self, py: Python<'_>) -> PyResult<bool> {
        enter(py, || self.wait_ahead())
    }

    fn complete(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let values = enter(py, || {
            let open = || Error::Misuse { what: "a batch was completed before it was answered".into() };
            lock(&self.task).complete()?.ok_or_else(open)
        })?;
        to_pyarrow(py, values)
    }

    #[pyo3(signature = (live_row, ordinal))]
    fn key(&self, py: Python<'_>, live_row: Option<usize>, ordinal: u64) -> PyResult<String> {
        let table = &self.table;
        let task = TaskId {
            query: table.query.as_str().into(),
            operator: format!("{}\u{1}{:016x}", table.operator, table.code ^ table.shape).into(),
            epoch: table.epoch.clone(),
            partition: Partition(0),
        };
        let used = enter(py, || self.used.get(&self.connection, task.epoch_key()))?;
        let caller = Caller { task: &task, used, keyed: true };
        quick(py, || {
            let gone = || Error::Misuse { what: "an idempotency key of an answered row".into() };
            let task = lock(&self.task);
            let position = match live_row {
                Some(row) => {
                    let fingerprint = task.question(row).ok_or_else(gone)?;
                    CallPosition { fingerprint, occurrence: ANY_ROW, ordinal }
                }
                None => place_of_batch(task.duties(), 0, ordinal),
            };
            Ok(idempotency_key(caller, position))
        })
    }

    /// The attempt is over: what it was to answer and did not is for others.
    fn close(&self, py: Python<'_>) {
        // Whatever this answers: the end of the connection says the same.
        let _ = enter(py, || {
            // What was answered counts in the summary.
            let _ = self.wait_ahead();
            let summary: Summary = lock(&self.task).summary();
            self.want(Wanted::GiveUp { summary })
        });
    }
}

fn unexpected() -> Error {
    Error::Protocol { what: "an answer to another question".into() }
}
