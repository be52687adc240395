//! `Agent`: the driver's agent, embedded in the user's process.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Once;

use pyo3::prelude::*;

use super::allocator::give_back_soon;
use super::client::{epoch, epoch as client_epoch, epoch_object};
use super::config::PySessionConfig;
use super::door::enter;
use super::location::PyLocation;
use super::stored::savepoint_report;
use super::traces::{keep_traces, take_traces};
use crate::agent::protocol::{Borders, Code, Execution, OpenTask, Placed, Plan, Use};
use crate::agent::state::messages::Clock;
use crate::config::SessionConfig;
use crate::edge::agent::{
    Agent, AgentConfig, Clocks, Cut, NextBatch, NextBatches, OfStage, Plans, Role, Side, Stage,
};
use crate::error::Error;
use crate::id::{EpochKey, Partition};

/// Operator, code, Python version, token, whether the user named it; hashes of what it is asked over: in this
/// process, whichever rows of it, as a later process has it, and without numbers.
type PlacedUse = (String, u64, String, u64, bool, u64, u64, u32, u32, u32);

/// The driver's agent, with the registry.
#[pyclass(name = "Agent", module = "clonos._core", frozen)]
pub(super) struct PyAgent {
    agent: Agent,
}

#[pymethods]
impl PyAgent {
    #[staticmethod]
    #[expect(clippy::too_many_arguments, reason = "one per callback, in their order")]
    fn start(
        py: Python<'_>,
        config: &PySessionConfig,
        host: String,
        port: u16,
        stages: Py<PyAny>,
        was_lost: Py<PyAny>,
        plan_uses: Py<PyAny>,
        borders: Py<PyAny>,
        clocks: Py<PyAny>,
        next_batches: Py<PyAny>,
    ) -> PyResult<Self> {
        keep_traces();
        let memory_bytes = enter(py, || give_back_soon(config.config.memory_bytes))?;
        let ask = move |of: OfStage| -> Option<Stage> {
            // Spark may not know, or be shutting down; then the layout counts as unchanged.
            let known: Option<(u32, bool, bool)> = Python::attach(|py| {
                let asked = (of.number, of.rdd, of.of_stream);
                stages.call1(py, asked).and_then(|stage| stage.extract(py)).ok().flatten()
            });
            known.map(|(tasks, was_complete, writes)| Stage { tasks, was_complete, writes })
        };
        let lost = move |stage: u32, partition: Partition| -> bool {
            Python::attach(|py| was_lost.call1(py, (stage, partition.0)).and_then(|lost| lost.extract(py)))
                .unwrap_or(false)
        };
        let session = SessionConfig { memory_bytes, ..config.config.clone() };
        let socket = PathBuf::from(&session.driver_socket);
        let role = Role::Driver {
            bind_host: host,
            port,
            stages: Box::new(ask),
            was_lost: Box::new(lost),
            plans: asks_plans(plan_uses, borders),
            clocks: ask_clock(clocks),
            next_batches: asks_next_batches(next_batches),
        };
        let agent = enter(py, || Agent::start(AgentConfig { session, role, socket }))?;
        Ok(Self { agent })
    }

    #[getter]
    fn addr(&self) -> &str {
        self.agent.addr()
    }

    #[pyo3(name = "commit_epoch")]
    fn commit(
        &self,
        py: Python<'_>,
        query: &str,
        #[pyo3(from_py_with = epoch)] epoch: crate::id::Epoch,
    ) -> PyResult<()> {
        enter(py, || self.agent.commit_epoch(query, &epoch))
    }

    /// Spark has these executors and does not let them go.
    fn executors_are(&self, py: Python<'_>, executors: HashSet<String>) -> PyResult<()> {
        enter(py, || self.agent.executors_are(executors))
    }

    /// The program has made an RDD by a function, within a run of an epoch or a batch's execution.
    #[expect(clippy::too_many_arguments, reason = "the epoch, and what tells a use from others")]
    fn rdd_is_made(
        &self,
        py: Python<'_>,
        query: &str,
        #[pyo3(from_py_with = epoch)] epoch: crate::id::Epoch,
        stamp: u64,
        execution: Option<u64>,
        operator: &str,
        code: u64,
        python: &str,
        token: u64,
        named: bool,
    ) -> PyResult<()> {
        let used = Use { code: Code::new(code, python), token, named };
        let key = EpochKey { query: query.into(), epoch };
        enter(py, || self.agent.rdd_is_made(key, (stamp, execution), operator, used))
    }

    /// The program begins an epoch, or all those of a query, anew; `stamp` tells that run of an epoch from others.
    #[pyo3(signature = (query, epoch = None, stamp = 0))]
    fn begin_run(
        &self,
        py: Python<'_>,
        query: &str,
        epoch: Option<&Bound<'_, PyAny>>,
        stamp: u64,
    ) -> PyResult<()> {
        let epoch = epoch.map(client_epoch).transpose()?;
        enter(py, || {
            match &epoch {
                Some(epoch) if stamp != 0 => self.agent.begin_stamped(query, epoch, stamp),
                epoch => self.agent.begin_run(query, epoch.as_ref()),
            }
            Ok(())
        })
    }

    /// The run of a named epoch that was begun with a stamp has ended.
    fn end_run(&self, py: Python<'_>, query: &str, epoch: &Bound<'_, PyAny>) -> PyResult<()> {
        let epoch = client_epoch(epoch)?;
        enter(py, || {
            self.agent.end_run(query, &epoch);
            Ok(())
        })
    }

    /// Opens no task of a query any more, until it begins anew.
    fn refuse_query(&self, py: Python<'_>, query: &str, setting: String, reason: String) -> PyResult<()> {
        enter(py, || self.agent.refuse_query(query, setting, reason))
    }

    fn check_epoch(
        &self,
        py: Python<'_>,
        query: &str,
        #[pyo3(from_py_with = epoch)] epoch: crate::id::Epoch,
    ) -> PyResult<()> {
        enter(py, || self.agent.check_epoch(query, &epoch))
    }

    /// Writes all states of a query to a folder of their own, or to a prefix of an object store; what is in it.
    fn savepoint(&self, py: Python<'_>, query: &str, location: &PyLocation) -> PyResult<String> {
        enter(py, || {
            let manifest = self.agent.savepoint(query, location.0.clone())?;
            Ok(savepoint_report(&manifest).to_string())
        })
    }

    fn live_epochs<'py>(&self, py: Python<'py>) -> PyResult<Vec<(String, Bound<'py, PyAny>)>> {
        let epochs = enter(py, || self.agent.live_epochs())?;
        epochs.iter().map(|key| Ok((key.query.to_string(), epoch_object(py, &key.epoch)?))).collect()
    }

    fn stats(&self, py: Python<'_>) -> PyResult<String> {
        enter(py, || {
            let stats = self.agent.stats()?;
            serde_json::to_string(&stats).map_err(|error| Error::Protocol { what: error.to_string() })
        })
    }

    /// Warnings since this was asked last, each with whether it is of an error, and how many did not fit in.
    #[staticmethod]
    fn take_traces(py: Python<'_>) -> PyResult<(Vec<(bool, String)>, usize)> {
        enter(py, || Ok(take_traces()))
    }

    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        enter(py, || {
            self.agent.stop();
            Ok(())
        })
    }

    fn __repr__(&self) -> String {
        format!("<driver agent at {}>", self.agent.addr())
    }
}

/// What asks Spark's plans.
fn asks_plans(plan_uses: Py<PyAny>, borders: Py<PyAny>) -> Plans {
    let cut_by = move |open: &OpenTask| -> Cut {
        let (id, root) = open.execution.map(|Execution { id, root }| (id, root)).unzip();
        let known: Option<(u64, Option<(u32, u32)>)> = Python::attach(|py| {
            let borders = borders.call1(py, (open.stage, open.used.token, id, root, open.stamp));
            borders.and_then(|borders| borders.extract(py)).ok().flatten()
        });
        known.map_or(Cut::default(), |(borders, side)| Cut {
            borders: Borders(borders),
            side: side.map(|(first, tasks)| Side { first, tasks }),
        })
    };
    let plan = move |execution: Execution| -> Option<Vec<Placed>> {
        let uses: Vec<PlacedUse> = Python::attach(|py| {
            let arguments = (execution.id, execution.root);
            plan_uses.call1(py, arguments).and_then(|uses| uses.extract(py)).ok().flatten()
        })?;
        let placed =
            |(operator, code, python, token, named, over, tables, exact, shape, data): PlacedUse| Placed {
                operator: operator.into(),
                used: Use { code: Code::new(code, &python), token, named },
                over,
                tables,
                plan: Plan { exact, shape, data },
            };
        Some(uses.into_iter().map(placed).collect())
    };
    Plans { uses: Box::new(plan), borders: Box::new(cut_by) }
}

/// Asks Python for the times of a batch; what it raises is the reason why they are not known.
fn ask_clock(clocks: Py<PyAny>) -> Clocks {
    Box::new(move |query: &str, epoch: u64| {
        let (now_ms, watermark_ms, late_ms) = Python::attach(|py| {
            clocks
                .call1(py, (query, epoch))
                .and_then(|clock| clock.extract::<(i64, i64, i64)>(py))
                .map_err(|error| error.value(py).to_string())
        })?;
        Ok(Clock { now_ms, watermark_ms, late_ms })
    })
}

/// Asks Python for the batch that a reader's query is about to begin.
fn asks_next_batches(next_batches: Py<PyAny>) -> NextBatches {
    let told = Once::new();
    Box::new(move |reader| {
        let known: Option<(String, u64, i64)> = Python::attach(|py| {
            let asked = next_batches.call1(py, (reader,)).and_then(|next| next.extract(py));
            asked
                .inspect_err(|error| {
                    told.call_once(|| {
                        tracing::warn!(%error, "it is not known which batch a query begins: its timers wait for rows");
                    });
                })
                .ok()
                .flatten()
        });
        known.map(|(query, epoch, watermark_ms)| NextBatch { query: query.into(), epoch, watermark_ms })
    })
}
