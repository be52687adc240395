//! `ValueTask`: one answer per distinct argument, whatever task asks.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use arrow_array::{ArrayRef, UInt32Array};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use pyo3_arrow::PyArray;

use super::arrays::{array, arrays, to_pyarrow};
use super::client::{Connection, PyClient, UseNumber, epoch, get, stamp, text};
use super::door::{enter, quick};
use super::lock;
use crate::agent::values::messages::{AboutValues, Found, QUESTIONS_MAX, Questions, TableId, Wanted};
use crate::determinant::{bytes_fingerprint, decode_results};
use crate::edge::net::client::Ticket;
use crate::error::{Error, Result};
use crate::id::{Partition, TaskId};
use crate::task::{CallPosition, Caller, Publication, Summary, ValueTask, idempotency_key, place_of_batch};

/// Stands for the number of equal rows before, in keys of calls: here there is one call for all of them.
const ANY_ROW: u64 = u64::MAX;

/// A batch of as many questions as this is worked on in parts: while the function is called for one, the
/// agent is busy with the others. More might not be taken in by the agent's socket at once, where each would
/// then wait for the other to read.
const PARTS: usize = 2;
const PARTS_QUESTIONS_MIN: usize = 1 << 11;
const PARTS_QUESTIONS_MAX: usize = 1 << 14;

/// One attempt of a task under `per="value"`.
#[pyclass(name = "ValueTask", module = "clonos._core", frozen)]
pub(super) struct PyValueTask {
    task: Mutex<ValueTask>,
    /// Held while answers are on their way and somebody waits for them.
    publishing: Mutex<()>,
    /// Those on their way for which nobody waits yet, in the order in which they were sent.
    ahead: Mutex<VecDeque<(Publication, Ticket)>>,
    asking: Mutex<Asking>,
    /// Whether the function may be called for a part of a batch while the rest is asked about.
    in_parts: bool,
    connection: Arc<Connection>,
    table: TableId,
    /// Of the run that the task is of.
    stamp: u64,
    used: UseNumber,
}

/// What was asked and not looked at yet, in the order in which it was asked. Whoever takes it out decides
/// what becomes of the duties.
#[derive(Default)]
struct Asking {
    requests: VecDeque<Asked>,
    /// Whether the task is at work on what was asked together with these.
    begun: bool,
    /// Whether the batch was asked about: what is open then is for others to answer, and to be waited for.
    again: bool,
}

struct Asked {
    since: Instant,
    said: Said,
}

/// What the agent says to a request.
enum Said {
    Later(Ticket),
    Found(Found),
}

impl PyValueTask {
    fn about(&self, wanted: Wanted) -> AboutValues {
        AboutValues { table: self.table.clone(), asker: None, stamp: self.stamp, wanted }
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
        let mut all = true;
        while let Some((publication, ticket)) = lock(&self.ahead).pop_front() {
            let Found::Late(late) = self.found(ticket)? else { return Err(unexpected()) };
            lock(&self.task).recorded(publication, &late);
            all &= late.is_empty();
        }
        Ok(all)
    }

    fn found(&self, ticket: Ticket) -> Result<Found> {
        self.connection.with(|client| client.found(ticket))
    }

    fn said(&self, said: Said) -> Result<Found> {
        match said {
            Said::Later(ticket) => self.found(ticket),
            Said::Found(found) => Ok(found),
        }
    }

    /// Sends the questions of the batch that have no answer; nothing, when all have.
    fn start_asking(&self, asking: &mut Asking, duties_max: u32) -> Result<()> {
        let unasked = lock(&self.task).unasked();
        let in_parts = self.in_parts
            && !std::mem::replace(&mut asking.again, true)
            && (PARTS_QUESTIONS_MIN..=PARTS_QUESTIONS_MAX).contains(&unasked)
            && unasked <= duties_max as usize;
        let most = if in_parts { unasked.div_ceil(PARTS) } else { QUESTIONS_MAX };
        loop {
            let questions = lock(&self.task).questions(most);
            if questions.is_empty() {
                return Ok(());
            }
            let questions = Questions::new(&questions);
            let about = self.about(Wanted::Ask { questions, duties_max, patient: !in_parts });
            let ticket = self.connection.with(|client| client.values_later(about))?;
            asking.requests.push_back(Asked { since: Instant::now(), said: Said::Later(ticket) });
            if !in_parts || lock(&self.task).unasked() == 0 {
                return Ok(());
            }
        }
    }

    /// Reads what the agent says to all that was asked. Whoever sends it something large does this first:
    /// each of the two may wait for the other to read, otherwise.
    fn read_asked(&self) -> Result<()> {
        let mut asking = lock(&self.asking);
        let requests = std::mem::take(&mut asking.requests).into_iter();
        let read = requests.map(|Asked { since, said }| {
            let said = Said::Found(self.said(said)?);
            Ok(Asked { since, said })
        });
        asking.requests = read.collect::<Result<_>>()?;
        Ok(())
    }

    /// Asks once, or waits for what was asked ahead: rows to call the function for; `None` when all are
    /// answered.
    fn ask_once(&self, duties_max: u32) -> Result<Option<Vec<u32>>> {
        let mut asking = lock(&self.asking);
        if asking.requests.is_empty() {
            self.start_asking(&mut asking, duties_max)?;
        }
        asking.begun = true;
        let Some(Asked { said, .. }) = asking.requests.pop_front() else { return Ok(None) };
        drop(asking);
        let Found::Standing { yours, answered } = self.said(said)? else { return Err(unexpected()) };
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
        let (publishing, ahead, asking) = (Mutex::default(), Mutex::default(), Mutex::default());
        let (in_parts, used) = (get(arguments, "in_parts")?.extract()?, UseNumber::default());
        let stamp = stamp(arguments)?;
        Ok(Self { task, publishing, ahead, asking, in_parts, connection, table, stamp, used })
    }

    fn offer(&self, py: Python<'_>, columns: Vec<PyArray>) -> PyResult<()> {
        let columns = arrays(columns);
        enter(py, || {
            // Of another batch: its duties stay ours until they are asked for again.
            self.read_asked()?;
            *lock(&self.asking) = Asking::default();
            lock(&self.task).offer(&columns)
        })
    }

    fn ask_ahead(&self, py: Python<'_>, duties_max: u32) -> PyResult<()> {
        enter(py, || {
            let mut asking = lock(&self.asking);
            if asking.requests.is_empty() {
                asking.begun = false;
                self.start_asking(&mut asking, duties_max)?;
            }
            Ok(())
        })
    }

    fn lapse(&self, py: Python<'_>, seconds: f64) -> PyResult<bool> {
        enter(py, || {
            // Held until the duties are given up: the next asking gets others.
            let mut asking = lock(&self.asking);
            let is_old = |asked: &Asked| asked.since.elapsed() >= Duration::from_secs_f64(seconds);
            if asking.begun || !asking.requests.front().is_some_and(is_old) {
                return Ok(false);
            }
            for Asked { said, .. } in asking.requests.drain(..) {
                self.said(said)?;
            }
            lock(&self.task).forget_asked();
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
        let values = array(values);
        enter(py, || {
            // One at a time: what another thread publishes meanwhile must not be published twice.
            let _turn = lock(&self.publishing);
            self.read_asked()?;
            let Some(publication) = lock(&self.task).publication(places.as_deref(), &values)? else {
                return Ok(());
            };
            self.publish(publication)
        })
    }

    fn answer_ahead(&self, py: Python<'_>, values: PyArray) -> PyResult<()> {
        let values = array(values);
        enter(py, || {
            let _turn = lock(&self.publishing);
            self.read_asked()?;
            let one_of_many = !lock(&self.asking).requests.is_empty() || !lock(&self.ahead).is_empty();
            let mut task = lock(&self.task);
            let Some(mut publication) = task.publication(None, &values)? else { return Ok(()) };
            let counts = task.sent(&mut publication, one_of_many);
            drop(task);
            if !counts {
                return self.publish(publication);
            }
            let about = self.about(Wanted::Answer { block: publication.block.clone() });
            let ticket = self.connection.with(|client| client.values_later(about))?;
            lock(&self.ahead).push_back((publication, ticket));
            Ok(())
        })
    }

    fn is_settled(&self, py: Python<'_>) -> PyResult<bool> {
        quick(py, || Ok(lock(&self.ahead).is_empty()))
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
            let _ = self.read_asked();
            lock(&self.asking).requests.clear();
            lock(&self.task).forget_asked();
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
