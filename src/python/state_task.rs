//! `StateTask`: what one task reads of its operator's keyed state, and what it changes.

use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use arrow_array::cast::AsArray;
use arrow_array::types::{Int64Type, UInt8Type, UInt32Type};
use arrow_array::{Array, ArrayRef, Int32Array, Int64Array, RecordBatch, RecordBatchOptions, StructArray};
use arrow_cast::cast;
use arrow_schema::{DataType, Fields, Schema};
use bytes::Bytes;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use pyo3_arrow::{PyArray, PyRecordBatch, PySchema};

use super::arrays::{array, batch, batch_to_py, to_pyarrow};
use super::client::{epoch, get, text};
use super::config::PySessionConfig;
use super::door::{enter, quick};
use super::gathered_rows::PyGatheredRows;
use super::location::PyLocation;
use super::lock;
use super::service_task::PyServiceTask;
use super::state_backend::AtAgent;
use crate::agent::protocol::PIECE_BYTES;
use crate::edge::disk::Location;
use crate::edge::disk::savepoint::SavedPartition;
use crate::error::{Error, Result};
use crate::id::Epoch;
use crate::state::catalog::{Kind, Variable};
use crate::state::local::{LocalStates, Nothing};
use crate::state::starting::Starting;
use crate::state::view::{Backend, Begun, Did, TaskState};
use crate::state::{StateId, Version, partition_hashes};

/// The argument that names a savepoint.
pub(super) const STATE_FROM: &str = "state_from";

type AnyBackend = Box<dyn Backend + Send>;

/// State that this process keeps for itself, from task to task.
#[pyclass(name = "LocalState", module = "clonos._core", frozen)]
pub(super) struct PyLocalState {
    states: LocalStates,
    /// What tasks are told of the time: now, watermark, the watermark below which rows are late.
    clock: Mutex<(i64, i64, i64)>,
}

#[pymethods]
impl PyLocalState {
    #[new]
    #[pyo3(signature = (now_ms=0, watermark_ms=-1, late_ms=-1))]
    fn new(now_ms: i64, watermark_ms: i64, late_ms: i64) -> Self {
        Self { states: LocalStates::new(), clock: Mutex::new((now_ms, watermark_ms, late_ms)) }
    }

    #[pyo3(signature = (now_ms, watermark_ms=-1, late_ms=-1))]
    fn set_clock(&self, now_ms: i64, watermark_ms: i64, late_ms: i64) {
        *lock(&self.clock) = (now_ms, watermark_ms, late_ms);
    }

    fn commit(&self, py: Python<'_>, query: &str, operator: &str, epoch: u64) -> PyResult<()> {
        let id = StateId { query: query.into(), operator: operator.into() };
        enter(py, || self.states.commit(&id, epoch))
    }

    fn version(&self, query: &str, operator: &str) -> Option<u64> {
        self.states.version(&StateId { query: query.into(), operator: operator.into() }).0
    }
}

/// What a task's state is opened with; read from the keyword arguments.
struct Opening {
    id: StateId,
    epoch: Epoch,
    partition: u32,
    partitions: u32,
    keys: Fields,
    variables: Vec<Variable>,
    /// Names of variables that are to be gone.
    deleted: Vec<String>,
    /// About how much of a list or map is loaded with its key, in bytes; all of it if nothing is said.
    part_bytes: Option<u64>,
    local: Option<Py<PyLocalState>>,
    /// The savepoint that it begins with, and its mark.
    state_from: Option<(Location, u64)>,
}

/// A variable, as Python declares it.
pub(super) type Declaration = (String, String, Option<PySchema>, PySchema, i64);

impl Opening {
    fn read(arguments: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let arguments = arguments.ok_or_else(|| PyTypeError::new_err("open() needs keyword arguments"))?;
        let keys: PySchema = get(arguments, "keys")?.extract()?;
        let variables: Vec<Declaration> = get(arguments, "variables")?.extract()?;
        let local = arguments.get_item("local")?.filter(|local| !local.is_none());
        Ok(Self {
            id: StateId {
                query: text(arguments, "query")?.into(),
                operator: text(arguments, "operator")?.into(),
            },
            epoch: epoch(&get(arguments, "epoch")?)?,
            partition: get(arguments, "partition")?.extract()?,
            partitions: get(arguments, "partitions")?.extract()?,
            keys: keys.into_inner().fields().clone(),
            variables: variables.into_iter().map(variable).collect::<PyResult<_>>()?,
            deleted: arguments
                .get_item("deleted")?
                .map(|names| names.extract())
                .transpose()?
                .unwrap_or_default(),
            part_bytes: arguments.get_item("part_bytes")?.map(|bytes| bytes.extract()).transpose()?.flatten(),
            local: local
                .map(|local| Ok::<_, PyErr>(local.cast_into::<PyLocalState>()?.unbind()))
                .transpose()?,
            state_from: arguments
                .get_item("state_from")?
                .filter(|from| !from.is_none())
                .map(|from| from.extract::<(PyRef<'_, PyLocation>, u64)>())
                .transpose()?
                .map(|(location, mark)| (location.0.clone(), mark)),
        })
    }

    /// Where the state is, and the number of the epoch; with what it begins.
    fn backend(&self, task: Option<Py<PyServiceTask>>) -> Result<(AnyBackend, u64)> {
        let (backend, epoch) = self.kept(task)?;
        let Some((location, mark)) = &self.state_from else { return Ok((backend, epoch)) };
        let hashes = partition_hashes(self.partition, self.partitions);
        let origin = SavedPartition::new(location.clone(), &self.id.operator, STATE_FROM, hashes, *mark);
        Ok((Box::new(Starting::new(backend, origin)), epoch))
    }

    /// Where the state is kept, and the number of the epoch.
    fn kept(&self, task: Option<Py<PyServiceTask>>) -> Result<(AnyBackend, u64)> {
        let places = (self.partition, self.partitions);
        Ok(match (&self.local, &self.epoch, task) {
            (Some(local), epoch, _) => {
                let local = local.get();
                let told = told(*lock(&local.clock));
                let number = if let Epoch::Batch(number) = epoch { *number } else { 0 };
                (Box::new(local.states.task(self.id.clone(), places, told)), number)
            }
            (None, Epoch::Batch(number), Some(task)) => {
                (Box::new(AtAgent { task, partition: places.0, partitions: places.1 }), *number)
            }
            // A batch query: its state ends with its task.
            (None, epoch, task) => {
                let now_ns = match task {
                    // Recorded: the next attempt has the same time.
                    Some(task) => task.get().recorded_time_ns()?,
                    None => wall_clock_ns(),
                };
                let number = if let Epoch::Batch(number) = epoch { *number } else { 0 };
                (Box::new(Nothing(told((now_ns / 1_000_000, -1, -1)))), number)
            }
        })
    }
}

fn wall_clock_ns() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

fn told((now_ms, watermark_ms, late_ms): (i64, i64, i64)) -> Begun {
    Begun { version: Version::NONE, now_ms, watermark_ms, late_ms, catalog: Bytes::new() }
}

pub(super) fn variable((name, kind, user_key, value, ttl_ms): Declaration) -> PyResult<Variable> {
    let kind = match kind.as_str() {
        "value" => Kind::Value,
        "list" => Kind::List,
        "map" => Kind::Map,
        other => {
            let message = format!("a state variable is a value, list or map, not {other:?}");
            return Err(pyo3::exceptions::PyValueError::new_err(message));
        }
    };
    let fields = |schema: PySchema| schema.into_inner().fields().clone();
    Ok(Variable { name, kind, user_key: user_key.map(fields), value: fields(value), ttl_ms })
}

/// Key numbers, user keys of a map, values.
type Entries = (Py<PyAny>, Option<Py<PyAny>>, Py<PyAny>);
/// User keys of a map, values; where to go on.
type Piece = (Option<Py<PyAny>>, Py<PyAny>, Option<Py<PyBytes>>);

/// One task's keyed state.
#[pyclass(name = "StateTask", module = "clonos._core", frozen)]
pub(super) struct PyStateTask {
    state: Mutex<TaskState<AnyBackend>>,
    begun: Begun,
    /// The hashes of its partition's keys.
    hashes: RangeInclusive<u64>,
    /// Numbers of the keys that were grouped last.
    numbers: Mutex<Vec<u32>>,
}

#[pymethods]
impl PyStateTask {
    #[staticmethod]
    #[pyo3(signature = (task, **arguments))]
    fn open(
        py: Python<'_>,
        task: Option<Py<PyServiceTask>>,
        arguments: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let opening = Opening::read(arguments)?;
        enter(py, || {
            let (backend, epoch) = opening.backend(task)?;
            let state = TaskState::open(backend, epoch, &opening.keys, opening.variables, &opening.deleted)?;
            let state = state.in_parts(opening.part_bytes.unwrap_or(u64::MAX));
            let begun = state.begun().clone();
            let hashes = partition_hashes(opening.partition, opening.partitions);
            Ok(Self { state: Mutex::new(state), begun, hashes, numbers: Mutex::default() })
        })
    }

    #[getter]
    const fn version(&self) -> Option<u64> {
        self.begun.version.0
    }

    #[getter]
    const fn now_ms(&self) -> i64 {
        self.begun.now_ms
    }

    #[getter]
    const fn watermark_ms(&self) -> i64 {
        self.begun.watermark_ms
    }

    #[getter]
    const fn late_ms(&self) -> i64 {
        self.begun.late_ms
    }

    fn group(
        &self,
        py: Python<'_>,
        batches: Vec<PyRecordBatch>,
        keys: Vec<usize>,
    ) -> PyResult<(Py<PyAny>, Vec<u32>, Py<PyAny>)> {
        let batches: Result<Vec<RecordBatch>> = batches.into_iter().map(batch).collect();
        let (groups, distinct) = enter(py, || {
            let (groups, numbers) = lock(&self.state).group(&batches?, &keys)?;
            *lock(&self.numbers) = numbers;
            let distinct = batch_of(&groups.keys)?;
            Ok((groups, distinct))
        })?;
        Ok((batch_to_py(py, groups.rows)?, groups.offsets, batch_to_py(py, distinct)?))
    }

    #[pyo3(signature = (keys, bytes_max=None, config=None))]
    fn gathering(
        &self,
        keys: Vec<usize>,
        bytes_max: Option<usize>,
        config: Option<&PySessionConfig>,
    ) -> PyGatheredRows {
        let fields = lock(&self.state).key_fields().clone();
        PyGatheredRows::new((keys, fields), self.hashes.clone(), bytes_max, config)
    }

    fn numbers(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let numbers =
            Int32Array::from_iter_values(lock(&self.numbers).iter().map(|number| number_i32(*number)));
        to_pyarrow(py, Arc::new(numbers))
    }

    fn load(&self, py: Python<'_>) -> PyResult<()> {
        enter(py, || lock(&self.state).load())
    }

    fn due(&self, py: Python<'_>, until_ms: i64) -> PyResult<(Py<PyAny>, Py<PyAny>)> {
        let timers = enter(py, || lock(&self.state).due(until_ms))?;
        timers_to_py(py, timers)
    }

    fn keys(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let keys = enter(py, || batch_of(&lock(&self.state).keys()?))?;
        batch_to_py(py, keys)
    }

    #[pyo3(signature = (variable, first=0))]
    fn values(&self, py: Python<'_>, variable: usize, first: u32) -> PyResult<Entries> {
        let found = enter(py, || lock(&self.state).values(variable, first))?;
        let keys = to_pyarrow(py, Arc::new(Int32Array::from(found.keys)))?;
        let user_keys = found.user_keys.map(|rows| to_pyarrow(py, Arc::new(rows))).transpose()?;
        Ok((keys, user_keys, to_pyarrow(py, Arc::new(found.values))?))
    }

    #[pyo3(signature = (variable, first=0))]
    fn cut(&self, py: Python<'_>, variable: usize, first: u32) -> PyResult<Vec<u32>> {
        quick(py, || lock(&self.state).cut(variable, first))
    }

    #[pyo3(signature = (variable, key, begins=None))]
    fn piece(&self, py: Python<'_>, variable: usize, key: u32, begins: Option<Vec<u8>>) -> PyResult<Piece> {
        let from = begins.map(Bytes::from);
        let piece = enter(py, || lock(&self.state).piece(variable, key, from, PIECE_BYTES))?;
        let user_keys = piece.user_keys.map(|rows| to_pyarrow(py, Arc::new(rows))).transpose()?;
        let next = piece.next.map(|next| PyBytes::new(py, &next).unbind());
        Ok((user_keys, to_pyarrow(py, Arc::new(piece.values))?, next))
    }

    #[pyo3(signature = (variable, key, user_key, begins=None))]
    fn lookup(
        &self,
        py: Python<'_>,
        variable: usize,
        key: u32,
        user_key: PyArray,
        begins: Option<Vec<u8>>,
    ) -> PyResult<Option<Py<PyAny>>> {
        let user_key = array(user_key);
        let found = enter(py, || {
            let none = || Error::Misuse { what: "a value is looked up without a key".into() };
            let user_key = rows(Some(&user_key))?.ok_or_else(none)?;
            lock(&self.state).lookup(variable, key, user_key, begins.map(Bytes::from).as_ref())
        })?;
        found.map(|value| to_pyarrow(py, Arc::new(value))).transpose()
    }

    #[pyo3(signature = (first=0))]
    fn timers(&self, py: Python<'_>, first: u32) -> PyResult<(Py<PyAny>, Py<PyAny>)> {
        let timers = enter(py, || lock(&self.state).timers(first))?;
        timers_to_py(py, timers)
    }

    #[pyo3(signature = (variable, keys, ops, user_keys=None, values=None))]
    fn write(
        &self,
        py: Python<'_>,
        variable: usize,
        keys: PyArray,
        ops: PyArray,
        user_keys: Option<PyArray>,
        values: Option<PyArray>,
    ) -> PyResult<()> {
        let (keys, ops) = (array(keys), array(ops));
        let [user_keys, values] = [user_keys, values].map(|rows| rows.map(array));
        enter(py, || {
            let did = numbers::<UInt8Type>(&ops)?
                .iter()
                .map(|op| Did::from_number(*op))
                .collect::<Result<Vec<_>>>()?;
            let (user_keys, values) = (rows(user_keys.as_ref())?, rows(values.as_ref())?);
            lock(&self.state).write(variable, &numbers::<UInt32Type>(&keys)?, &did, user_keys, values)
        })
    }

    fn write_timers(&self, py: Python<'_>, keys: PyArray, ops: PyArray, expiries: PyArray) -> PyResult<()> {
        let [keys, ops, expiries] = [keys, ops, expiries].map(array);
        enter(py, || {
            let registered = numbers::<UInt8Type>(&ops)?.iter().map(|op| *op == 0).collect::<Vec<_>>();
            let (keys, expiries) = (numbers::<UInt32Type>(&keys)?, numbers::<Int64Type>(&expiries)?);
            lock(&self.state).write_timers(&keys, &registered, &expiries)
        })
    }

    fn commit(&self, py: Python<'_>) -> PyResult<u64> {
        enter(py, || lock(&self.state).commit())
    }
}

/// Numbers of any integer type, none of which is null.
fn numbers<T: arrow_array::ArrowPrimitiveType>(
    array: &ArrayRef,
) -> Result<arrow_buffer::ScalarBuffer<T::Native>> {
    if array.null_count() > 0 {
        return Err(Error::Misuse { what: "a number of a key, operation or time is null".into() });
    }
    let cast = cast(array, &T::DATA_TYPE)?;
    // A cast makes a null of what does not fit.
    if cast.null_count() > 0 {
        return Err(Error::Misuse { what: "a number of a key or operation is out of range".into() });
    }
    Ok(cast.as_primitive::<T>().values().clone())
}

fn rows(array: Option<&ArrayRef>) -> Result<Option<&StructArray>> {
    let wrong = |kind: &DataType| Error::Misuse { what: format!("rows of state are structs, not {kind}") };
    array.map(|array| array.as_struct_opt().ok_or_else(|| wrong(array.data_type()))).transpose()
}

fn batch_of(rows: &StructArray) -> Result<RecordBatch> {
    let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
    let schema = Arc::new(Schema::new(rows.fields().clone()));
    Ok(RecordBatch::try_new_with_options(schema, rows.columns().to_vec(), &options)?)
}

fn number_i32(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

fn timers_to_py(py: Python<'_>, timers: Vec<(u32, i64)>) -> PyResult<(Py<PyAny>, Py<PyAny>)> {
    let (keys, expiries) = quick(py, || {
        let keys = Int32Array::from_iter_values(timers.iter().map(|(key, _)| number_i32(*key)));
        Ok((keys, Int64Array::from_iter_values(timers.iter().map(|(_, expiry)| *expiry))))
    })?;
    Ok((to_pyarrow(py, Arc::new(keys))?, to_pyarrow(py, Arc::new(expiries))?))
}
