//! Functions of `clonos._core`.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::{ArrayRef, UInt64Array};
use pyo3::prelude::*;
use pyo3_arrow::PyArray;
use serde::Serialize;

use super::allocator::give_back_soon;
use super::arrays::{arrays, to_pyarrow};
use super::config::PySessionConfig;
use super::door::{enter, quick};
use crate::config::SessionConfig;
use crate::determinant;
use crate::edge::addresses;
use crate::edge::agent::process;
use crate::edge::disk;
use crate::edge::net::client::Client;
use crate::error::{Error, Result};

pub(super) fn json<T: Serialize>(value: &T) -> Result<String> {
    serde_json::to_string(value).map_err(|error| Error::Protocol { what: error.to_string() })
}

#[pyfunction]
pub(super) fn ensure_agent(
    py: Python<'_>,
    config: &PySessionConfig,
    folder: &str,
    spawn: Py<PyAny>,
) -> PyResult<String> {
    let mut raised = None;
    let socket = enter(py, || {
        process::ensure_agent(&config.config, Path::new(folder), || {
            let has_ended = Python::attach(|py| spawn.call0(py)).map_err(|error| {
                let message = error.to_string();
                raised = Some(error);
                Error::Io { context: "starting an agent".into(), message }
            })?;
            Ok(move || {
                let ended = Python::attach(|py| has_ended.call0(py).and_then(|ended| ended.extract(py)));
                ended.unwrap_or(false)
            })
        })
    });
    match (raised, socket) {
        (Some(error), _) => Err(error),
        (None, socket) => Ok(socket?.display().to_string()),
    }
}

#[pyfunction]
pub(super) fn run_executor_agent(
    py: Python<'_>,
    config: &PySessionConfig,
    watch_pid: u32,
    folder: &str,
    executor: String,
) -> PyResult<()> {
    // Only this process is an agent and nothing else, so only it may set up where traces go.
    let filter = tracing_subscriber::EnvFilter::try_from_env("CLONOS_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .try_init();
    enter(py, || {
        let memory_bytes = give_back_soon(config.config.memory_bytes)?;
        let config = SessionConfig { memory_bytes, ..config.config.clone() };
        process::run_executor_agent(config, watch_pid, Path::new(folder), executor)
    })
}

#[pyfunction]
pub(super) fn cluster_stats(py: Python<'_>, config: &PySessionConfig) -> PyResult<String> {
    let config = &config.config;
    enter(py, || json(&Client::connect(config, Path::new(&config.driver_socket))?.cluster_stats()?))
}

#[pyfunction]
#[pyo3(signature = (checkpoint_dir, options, patience_s, encrypt=false))]
pub(super) fn try_checkpoint(
    py: Python<'_>,
    checkpoint_dir: &str,
    options: BTreeMap<String, String>,
    patience_s: f64,
    encrypt: bool,
) -> PyResult<f64> {
    enter(py, || {
        let patience = Duration::from_secs_f64(patience_s);
        Ok(disk::try_checkpoint(checkpoint_dir, &options, encrypt, patience)?.as_secs_f64())
    })
}

#[pyfunction]
pub(super) fn bytes_fingerprint(data: &[u8]) -> u64 {
    determinant::bytes_fingerprint(data)
}

#[pyfunction]
pub(super) fn row_fingerprints(py: Python<'_>, columns: Vec<PyArray>) -> PyResult<Py<PyAny>> {
    let columns = arrays(columns);
    let rows = quick(py, || {
        let mut rows = Vec::new();
        determinant::row_fingerprints(&columns, &mut rows)?;
        Ok(rows)
    })?;
    let array: ArrayRef = Arc::new(UInt64Array::from(rows));
    to_pyarrow(py, array)
}

/// How many of the bytes of `memory` an agent can have within so much address space; 0 if it cannot run there.
#[pyfunction]
pub(super) fn memory_within(addresses: u64, memory: u64) -> u64 {
    addresses::memory_within(addresses, memory)
}

#[pyfunction]
pub(super) const fn build_profile() -> &'static str {
    if cfg!(debug_assertions) { "debug" } else { "release" }
}
