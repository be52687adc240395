//! `SourceReceiver` and `SourceClient`: the log of a source, and those who read it.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow_array::{ArrayRef, StructArray};
use pyo3::prelude::*;
use pyo3_arrow::PyRecordBatch;

use super::arrays::to_pyarrow;
use super::door::{enter, quick};
use super::location::PyLocation;
use super::lock;
use crate::config::Credentials;
use crate::edge::disk::Location;
use crate::edge::source::{
    Durability, HttpSettings, LogSettings, SocketSettings, SourceClient, SourceLog, SourceServer, Taker,
    now_micros, receive_http, receive_socket,
};
use crate::error::{Error, Result};

/// The receiver's side of a log: takes in rows and serves those who read them.
#[pyclass(name = "SourceReceiver", module = "clonos._core", frozen)]
pub(super) struct PySourceReceiver {
    log: Arc<SourceLog>,
    server: SourceServer,
    stop: Arc<AtomicBool>,
}

#[pymethods]
impl PySourceReceiver {
    #[staticmethod]
    #[pyo3(signature = (
        *, folder, log = None, name = "a receiver".to_owned(), reader = String::new(), after = None,
        secret, host, ports, memory, disk, eager, encrypt
    ))]
    #[expect(clippy::too_many_arguments, reason = "keyword-only, one per setting")]
    fn start(
        py: Python<'_>,
        folder: PathBuf,
        log: Option<&PyLocation>,
        name: String,
        reader: String,
        after: Option<u64>,
        secret: [u8; 32],
        host: &str,
        ports: Vec<u16>,
        memory: u64,
        disk: u64,
        eager: bool,
        encrypt: bool,
    ) -> PyResult<Self> {
        // A receiver's process is nothing else, so it may set up where traces go.
        let filter = tracing_subscriber::EnvFilter::try_from_env("CLONOS_LOG")
            .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
        let _ = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            .with_ansi(false)
            .try_init();
        let location = log.map_or_else(|| Location::from(&folder.join("log")), |log| log.0.clone());
        enter(py, || {
            let durability = if eager { Durability::Eager } else { Durability::Availability };
            let taker = Taker { name, reader, after };
            let settings = LogSettings { folder, location, taker, memory, disk, durability };
            let log = Arc::new(SourceLog::open(settings)?);
            let server =
                SourceServer::start(Arc::clone(&log), Credentials { secret, encrypt }, host, &ports)?;
            Ok(Self { log, server, stop: Arc::new(AtomicBool::new(false)) })
        })
    }

    #[getter]
    fn addr(&self) -> &str {
        self.server.addr()
    }

    #[getter]
    fn incarnation(&self) -> u64 {
        self.log.incarnation()
    }

    #[getter]
    fn taken(&self) -> u64 {
        self.log.taken()
    }

    #[getter]
    fn stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.log.is_stopped()
    }

    fn append(&self, py: Python<'_>, rows: PyRecordBatch, taken: u64) -> PyResult<u64> {
        let rows = StructArray::from(rows.into_inner());
        enter(py, || self.log.append(Some(&rows), taken, now_micros()))
    }

    fn is_full(&self, size: u64) -> bool {
        self.log.is_full(size)
    }

    fn wait(&self, py: Python<'_>, position: u64) -> PyResult<()> {
        enter(py, || self.log.wait(position))
    }

    #[pyo3(signature = (*, addr, line_max, repair, keep_malformed, acknowledge, back_off_max))]
    #[expect(clippy::too_many_arguments, reason = "keyword-only, one per setting")]
    fn receive_socket(
        &self,
        py: Python<'_>,
        addr: String,
        line_max: usize,
        repair: bool,
        keep_malformed: bool,
        acknowledge: bool,
        back_off_max: f64,
    ) -> PyResult<()> {
        enter(py, || {
            let back_off_max = Duration::try_from_secs_f64(back_off_max).unwrap_or(Duration::MAX);
            let settings =
                SocketSettings { addr, line_max, repair, keep_malformed, acknowledge, back_off_max };
            receive_socket(&self.log, &settings, &self.stop)
        })
    }

    #[pyo3(signature = (*, addr, path, body_max, repair, keep_malformed, token))]
    #[expect(clippy::too_many_arguments, reason = "keyword-only, one per setting")]
    fn receive_http(
        &self,
        py: Python<'_>,
        addr: String,
        path: String,
        body_max: usize,
        repair: bool,
        keep_malformed: bool,
        token: Option<String>,
    ) -> PyResult<()> {
        enter(py, || {
            let settings = HttpSettings { addr, path, body_max, repair, keep_malformed, token };
            receive_http(&self.log, &settings, &self.stop)
        })
    }

    fn is_idle(&self, linger: f64) -> bool {
        self.server.is_idle(Duration::try_from_secs_f64(linger).unwrap_or(Duration::MAX))
    }

    fn fail(&self, py: Python<'_>) -> PyResult<()> {
        quick(py, || self.log.failure().map_or(Ok(()), Err))
    }

    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        enter(py, || {
            self.stop.store(true, Ordering::Relaxed);
            self.server.stop();
            self.log.stop();
            Ok(())
        })
    }

    fn stats(&self, py: Python<'_>) -> PyResult<String> {
        enter(py, || json(&self.log.stats()))
    }

    fn __repr__(&self) -> String {
        format!("<receiver of {} at {}>", self.log.location(), self.server.addr())
    }
}

/// Rows, and when they were received.
type TimedRows = (Py<PyAny>, i64);

/// A reader's side of a log.
#[pyclass(name = "SourceClient", module = "clonos._core", frozen)]
pub(super) struct PySourceClient {
    client: Mutex<SourceClient>,
    addr: String,
}

impl PySourceClient {
    fn ask<T: Send>(
        &self,
        py: Python<'_>,
        question: impl FnOnce(&mut SourceClient) -> Result<T> + Send,
    ) -> PyResult<T> {
        enter(py, || question(&mut lock(&self.client)))
    }
}

#[pymethods]
impl PySourceClient {
    #[staticmethod]
    fn connect(py: Python<'_>, addr: String, secret: [u8; 32], encrypt: bool) -> PyResult<Self> {
        let client = enter(py, || SourceClient::connect(&addr, &Credentials { secret, encrypt }))?;
        Ok(Self { client: Mutex::new(client), addr })
    }

    #[pyo3(signature = (owner, before = None))]
    fn claim(&self, py: Python<'_>, owner: String, before: Option<u64>) -> PyResult<u64> {
        self.ask(py, |client| client.claim(owner, before))
    }

    fn bounds(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        self.ask(py, |client| client.bounds().map(|bounds| (bounds.first, bounds.safe)))
    }

    fn read(&self, py: Python<'_>, start: u64, end: u64) -> PyResult<(Vec<TimedRows>, u64)> {
        let (parts, next) = self.ask(py, |client| client.read(start, end))?;
        let rows = parts.into_iter().map(|part| {
            let rows: ArrayRef = Arc::new(part.rows);
            Ok((to_pyarrow(py, rows)?, part.received))
        });
        Ok((rows.collect::<PyResult<Vec<_>>>()?, next))
    }

    fn commit(&self, py: Python<'_>, position: u64) -> PyResult<()> {
        self.ask(py, |client| client.commit(position))
    }

    fn stats(&self, py: Python<'_>) -> PyResult<String> {
        self.ask(py, |client| json(&client.stats()?))
    }

    fn release(&self, py: Python<'_>) -> PyResult<()> {
        self.ask(py, SourceClient::release)
    }

    fn __repr__(&self) -> String {
        format!("<connection to the receiver at {}>", self.addr)
    }
}

fn json<T: serde::Serialize>(value: &T) -> Result<String> {
    serde_json::to_string(value).map_err(|error| Error::Protocol { what: error.to_string() })
}
