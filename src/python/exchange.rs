//! `Stage`: frames in, frames out, for one attempt of a task.

use std::sync::{Arc, Mutex};

use arrow_array::{Array, ArrayRef, BinaryArray, Int32Array, RecordBatch, make_array};
use arrow_buffer::{Buffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::{DataType, Field, Schema};
use bytes::Bytes;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use pyo3_arrow::{PyArray, PyRecordBatch};

use super::arrays::{arrays, batch, batch_to_py};
use super::client::{epoch, get, text};
use super::config::PySessionConfig;
use super::door::enter;
use super::lock;
use super::service_task::PyServiceTask;
use crate::agent::protocol::{Recovery, Request};
use crate::config::{SessionConfig, SpillPolicy};
use crate::edge::agent::pending_frames::PendingFrames;
use crate::error::{Error, Result};
use crate::exchange::{Compression, Cut, Gather, RIDING_BYTES_MAX, Round, Scatter, ScatterOptions, Stage};
use crate::frame::{Opening, read_head};
use crate::id::{LogOffset, Partition, TaskId};

/// Bytes of a frame, on average, before compression: large enough that what stands around the rows does not
/// count, small enough that Java's collector (G1, with regions of 1 MiB) takes it for an ordinary object.
const FRAME_BYTES: usize = 128 << 10;
/// Bytes of a round, however many channels there are.
const ROUND_BYTES_MAX: usize = 64 << 20;
/// Messages to the agent that may be under way while the task goes on.
const UNDER_WAY_MAX: usize = 8;

/// The exchanges at both ends of one attempt.
#[pyclass(name = "Stage", module = "clonos._core", frozen)]
pub(super) struct PyStage {
    stage: Mutex<Stage<PendingFrames>>,
    /// Records and replays; without one nothing is recorded.
    task: Option<Py<PyServiceTask>>,
    in_flight: bool,
    /// Operator that sends to it, and which use of it.
    sender: Option<(String, u64)>,
}

/// What a stage is made with, read from the keyword arguments.
struct Ends {
    id: TaskId,
    sender: Option<(String, u64)>,
    scatters: Option<(Vec<usize>, u32)>,
}

impl Ends {
    fn read(arguments: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let arguments = arguments.ok_or_else(|| PyTypeError::new_err("a stage needs keyword arguments"))?;
        Ok(Self {
            id: TaskId {
                query: text(arguments, "query")?.into(),
                operator: text(arguments, "operator")?.into(),
                epoch: epoch(&get(arguments, "epoch")?)?,
                partition: Partition(get(arguments, "partition")?.extract()?),
            },
            sender: get(arguments, "sender")?.extract()?,
            scatters: get(arguments, "scatters")?.extract()?,
        })
    }

    fn scatter(&self, id: &TaskId, tasks: Option<u32>, config: Option<&SessionConfig>) -> Option<Scatter> {
        let (keys, partitions) = self.scatters.clone()?;
        let compressed = config.is_none_or(|config| config.compress_frames);
        Some(Scatter::new(ScatterOptions {
            opening: Opening { task: id.clone(), tasks },
            keys,
            partitions,
            compression: if compressed { Compression::Lz4 } else { Compression::None },
            round_bytes: ROUND_BYTES_MAX.min(FRAME_BYTES * partitions as usize),
            riding_bytes: RIDING_BYTES_MAX,
        }))
    }

    fn stage(&self, task: Option<&PyServiceTask>, config: Option<&SessionConfig>) -> Stage<PendingFrames> {
        let id = task.map_or(&self.id, |task| &task.id);
        let pending = PendingFrames::new(config, id.epoch_key());
        let depth = config.map_or(0, SessionConfig::hops);
        let inner = task.map(|task| lock(&task.inner));
        let service = inner.as_ref().map(|inner| &inner.task);
        let orders = service.map(|service| service.orders().to_vec()).unwrap_or_default();
        let gather = self.sender.is_some().then(|| Gather::new(pending, orders));
        let tasks = task.and_then(|task| task.tasks);
        let scatter = self.scatter(id, tasks, config);
        let prior = task.map(|task| std::mem::take(&mut *lock(&task.prior))).unwrap_or_default();
        Stage::new(id, depth, gather, scatter, service, &prior)
    }
}

#[pymethods]
impl PyStage {
    #[new]
    #[pyo3(signature = (task, config, **arguments))]
    fn new(
        py: Python<'_>,
        task: Option<Py<PyServiceTask>>,
        config: Option<&PySessionConfig>,
        arguments: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let ends = Ends::read(arguments)?;
        let config = config.map(|config| &config.config);
        let recorder = task.as_ref().map(|task| task.get());
        let stage = enter(py, || Ok(ends.stage(recorder, config)))?;
        let in_flight = config.is_some_and(|config| config.spill_policy != SpillPolicy::Off);
        let in_flight = in_flight && ends.scatters.is_some();
        Ok(Self { stage: Mutex::new(stage), task, in_flight, sender: ends.sender })
    }

    /// Frames have come: a binary array.
    fn offer(&self, py: Python<'_>, frames: PyArray) -> PyResult<()> {
        let frames = frames.into_inner().0;
        enter(py, || {
            let mut stage = lock(&self.stage);
            frames_of(&frames)?.into_iter().try_for_each(|frame| stage.offer(frame))
        })
    }

    /// The next rows, in one batch or several; ``None`` until more frames come.
    fn take(&self, py: Python<'_>) -> PyResult<Option<Vec<Py<PyAny>>>> {
        let task = self.task.as_ref().map(|task| task.get());
        let taken = enter(py, || {
            let mut stage = lock(&self.stage);
            loop {
                let taken = match task {
                    Some(task) => stage.take(Some(&mut lock(&task.inner).task)),
                    None => stage.take(None),
                };
                let Some(input) = taken.map_err(|error| discarding(task, error))? else { return Ok(None) };
                if let Some(task) = task.filter(|_| !input.absorb.is_empty()) {
                    task.absorbed(input.absorb)?;
                }
                if !input.batches.is_empty() {
                    return Ok(Some(input.batches));
                }
            }
        })?;
        taken.map(|batches| batches.into_iter().map(|batch| batch_to_py(py, batch)).collect()).transpose()
    }

    /// The input is at its end; raises if it was cut short.
    fn end_input(&self, py: Python<'_>) -> PyResult<()> {
        let task = self.task.as_ref().map(|task| task.get());
        enter(py, || {
            let mut stage = lock(&self.stage);
            // Where no frame came, the registry knows whether there was anyone to send one.
            let expected = match (task, &self.sender) {
                (Some(task), Some(sender)) if !stage.has_input() => {
                    task.publisher.senders(sender.0.clone(), sender.1)?
                }
                _ => None,
            };
            if let Some(used) = stage.end_input(expected)?
                && let Some(task) = task
            {
                lock(&task.ending).used = vec![used];
            }
            Ok(())
        })
    }

    /// Rows to be sent; whether a round is full and ``cut`` due.
    fn push(&self, py: Python<'_>, rows: PyRecordBatch) -> PyResult<bool> {
        let rows = batch(rows);
        enter(py, || lock(&self.stage).push(rows?))
    }

    /// The frames of a round, as a batch of ``(pid, frame)``; ``None`` if there are none.
    fn cut(&self, py: Python<'_>, last: bool) -> PyResult<Option<Py<PyAny>>> {
        let task = self.task.as_ref().map(|task| task.get());
        let batch = enter(py, || {
            let mut stage = lock(&self.stage);
            let cut = match task {
                Some(task) => stage.cut(Some(&mut lock(&task.inner).task), last)?,
                None => stage.cut(None, last)?,
            };
            if let Some(task) = task {
                self.sent(task, &cut, last)?;
            }
            (!cut.round.ends.is_empty()).then(|| frames_batch(cut.round)).transpose()
        })?;
        batch.map(|batch| batch_to_py(py, batch)).transpose()
    }

    /// The function has failed: what it was answered until then is kept.
    fn publish_answers(&self, py: Python<'_>) -> PyResult<()> {
        enter(py, || {
            let task = self.task()?;
            let stage = lock(&self.stage);
            let answers = stage.answers(&mut lock(&task.inner).task);
            task.publisher.publish(answers).map(drop)
        })
    }

    /// Whether all frames of an earlier attempt can be read.
    #[getter]
    fn has_frames(&self) -> bool {
        self.in_flight && self.task.as_ref().is_some_and(|task| task.get().has_frames)
    }

    /// A piece of an earlier attempt's frames from byte `start` on, and where the next starts; ``None`` at
    /// their end.
    fn resend(&self, py: Python<'_>, start: u64) -> PyResult<Option<(Py<PyAny>, u64)>> {
        let read = enter(py, || {
            let task = self.task()?;
            let frames = task.publisher.resend(LogOffset(start))?;
            if frames.is_empty() {
                lock(&task.ending).recovery = Recovery::Resent;
                return Ok(None);
            }
            let round = joined(&frames)?;
            let next = start + round.bytes.len() as u64;
            Ok(Some((frames_batch(round)?, next)))
        })?;
        read.map(|(batch, next)| Ok((batch_to_py(py, batch)?, next))).transpose()
    }
}

/// Frames that were read one by one, back to back.
fn joined(frames: &[Bytes]) -> Result<Round> {
    let mut round = Round::default();
    let mut bytes = Vec::with_capacity(frames.iter().map(Bytes::len).sum());
    for frame in frames {
        round.channels.push(read_head(frame)?.channel.0);
        bytes.extend_from_slice(frame);
        round.ends.push(bytes.len());
    }
    round.bytes = Bytes::from(bytes);
    Ok(round)
}

impl PyStage {
    fn task(&self) -> Result<&PyServiceTask> {
        let none = || Error::Misuse { what: "this stage records nothing".into() };
        self.task.as_ref().map(|task| task.get()).ok_or_else(none)
    }

    /// Tells the agent of a round.
    fn sent(&self, task: &PyServiceTask, cut: &Cut, last: bool) -> Result<()> {
        let publisher = &task.publisher;
        let session = publisher.session();
        match cut.keep.clone() {
            // Stable when it is answered, which is waited for before the last frames leave.
            Some(block) if cut.named => drop(publisher.publish(Some(block))?),
            Some(block) => publisher.start(&Request::Keep { session, block })?,
            None => {}
        }
        if self.in_flight && !cut.round.ends.is_empty() {
            let frames = cut.round.frames().map(|(_, frame)| frame).collect();
            publisher.start(&Request::Send { session, frames })?;
        }
        if last {
            lock(&task.ending).has_frames = self.in_flight;
        }
        publisher.settle_all_but(UNDER_WAY_MAX)
    }
}

/// Tells the agent if the log is of no use any more; the error itself.
fn discarding(task: Option<&PyServiceTask>, error: Error) -> Error {
    match (task, error) {
        (Some(task), error @ Error::UpstreamChanged { .. }) => match task.publisher.discard() {
            Ok(()) => error,
            // Something visible depends on the log: that is what the user must know, or why its input is another.
            Err(refused) => lock(&task.inner).task.input_changed().err().unwrap_or(refused),
        },
        (_, error) => error,
    }
}

/// Keeps an Arrow buffer alive under the bytes of its frames.
struct Owned(Buffer);

impl AsRef<[u8]> for Owned {
    fn as_ref(&self) -> &[u8] {
        self.0.as_slice()
    }
}

/// The frames of a column, without copying them.
fn frames_of(column: &ArrayRef) -> Result<Vec<Bytes>> {
    let wrong =
        || Error::UnsupportedType { data_type: format!("{} (frames are binary)", column.data_type()) };
    if *column.data_type() != DataType::Binary || column.null_count() > 0 {
        return Err(wrong());
    }
    let array = make_array(column.to_data());
    let array = array.as_any().downcast_ref::<BinaryArray>().ok_or_else(wrong)?;
    let bytes = Bytes::from_owner(Owned(array.values().clone()));
    let ends = array.value_offsets().iter().map(|offset| usize::try_from(*offset).unwrap_or(0));
    let starts = ends.clone();
    Ok(starts.zip(ends.skip(1)).map(|(start, end)| bytes.slice(start..end)).collect())
}

/// A round as Spark moves it.
fn frames_batch(round: Round) -> Result<RecordBatch> {
    let too_large = || Error::Misuse { what: "a round of more than 2 GiB; use smaller batches".into() };
    let number = |value: usize| i32::try_from(value).map_err(|_| too_large());
    let offsets = std::iter::once(0).chain(round.ends).map(number).collect::<Result<Vec<_>>>()?;
    let channels =
        round.channels.iter().map(|channel| number(*channel as usize)).collect::<Result<Vec<_>>>()?;
    let offsets = OffsetBuffer::new(ScalarBuffer::from(offsets));
    let frames = BinaryArray::try_new(offsets, Buffer::from(round.bytes), None)?;
    let schema = Schema::new(vec![
        Field::new("pid", DataType::Int32, false),
        Field::new("frame", DataType::Binary, false),
    ]);
    Ok(RecordBatch::try_new(Arc::new(schema), vec![Arc::new(Int32Array::from(channels)), Arc::new(frames)])?)
}

/// The partition of each row by its keys, as ``clonos.exchange`` assigns it.
#[pyfunction]
pub(super) fn partition_ids<'py>(
    py: Python<'py>,
    keys: Vec<PyArray>,
    partitions: u32,
) -> PyResult<Bound<'py, PyBytes>> {
    let keys = arrays(keys);
    let ids = enter(py, || {
        let mut ids = Vec::new();
        crate::exchange::partitions_of(&keys, partitions, &mut ids)?;
        Ok(ids)
    })?;
    let bytes: Vec<u8> = ids.into_iter().flat_map(u32::to_le_bytes).collect();
    Ok(PyBytes::new(py, &bytes))
}
