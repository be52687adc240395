//! A worker's connection, and the publishing half that both kinds of task share.

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Instant;

use bytes::Bytes;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use super::config::PySessionConfig;
use super::door::enter;
use super::lock;
use crate::agent::protocol::{Code, Ending, Execution, OfRdd, OpenTask, Opened, Request, Use};
use crate::agent::state::messages::{AboutState, AboutTimers, Found, Wanted};
use crate::edge::net::client::{Client, Ticket};
use crate::error::{Error, Result};
use crate::id::{Epoch, EpochKey, LogOffset, Partition, TaskId};
use crate::task::{PoolQuestion, PoolRows, Summary, TaskMode, TaskOptions};

/// A worker's connection to its agent.
#[pyclass(name = "Client", module = "clonos._core", frozen)]
pub(super) struct PyClient {
    pub(super) shared: Arc<Connection>,
}

pub(super) struct Connection {
    client: Mutex<Client>,
    descriptor: RawFd,
    owner: u32,
    usable: AtomicBool,
}

/// All connections of this process.
static CONNECTIONS: Mutex<Vec<Weak<Connection>>> = Mutex::new(Vec::new());

/// Has processes that Python forks from this one let go of its connections: a pool that a function starts outlives a
/// worker that is killed, and the agent would take the worker for alive for as long as anybody has an end.
pub(super) fn let_go_when_forked(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let hooks = PyDict::new(module.py());
    hooks.set_item("after_in_child", wrap_pyfunction!(let_go, module)?)?;
    module.py().import("os")?.call_method("register_at_fork", (), Some(&hooks)).map(drop)
}

/// Puts an open `/dev/null` in the place of each connection. Another thread may have been using it when the process was
/// forked: what it had locked stays locked, and nobody but its owner may close the descriptor.
#[pyfunction]
fn let_go(py: Python<'_>) -> PyResult<()> {
    let os = py.import("os")?;
    // Whoever else locks this has the interpreter, as the thread that forked had. They are this process's no more: a
    // child of it must not touch what it may have opened under their numbers.
    let open: Vec<_> = std::mem::take(&mut *lock(&CONNECTIONS)).iter().filter_map(Weak::upgrade).collect();
    if open.is_empty() {
        return Ok(());
    }
    let nothing = os.call_method1("open", (os.getattr("devnull")?, os.getattr("O_RDWR")?))?;
    for connection in open {
        os.call_method1("dup2", (&nothing, connection.descriptor, false))?;
    }
    os.call_method1("close", (nothing,)).map(drop)
}

impl Connection {
    pub(super) fn with<T>(&self, work: impl FnOnce(&mut Client) -> Result<T>) -> Result<T> {
        let (owner, user) = (self.owner, std::process::id());
        if owner != user {
            // Before it is locked: what another thread had locked when this process was forked stays so.
            return Err(Error::ForkedProcess { owner, user });
        }
        let mut client = lock(&self.client);
        if !self.usable.load(Ordering::Relaxed) {
            // What failed, maybe on another thread, must not be followed by what would look whole.
            let reason = "the connection failed before".to_owned();
            return Err(Error::AgentUnreachable { agent: "the local agent".to_owned(), reason });
        }
        let result = work(&mut client);
        // After a refusal the connection is still in step; after anything else it may not be.
        if let Err(
            Error::Io { .. }
            | Error::AgentUnreachable { .. }
            | Error::Timeout { .. }
            | Error::Protocol { .. }
            | Error::ForkedProcess { .. },
        ) = &result
        {
            self.usable.store(false, Ordering::Relaxed);
        }
        result
    }
}

#[pymethods]
impl PyClient {
    #[staticmethod]
    fn connect(py: Python<'_>, config: &PySessionConfig, socket: &str) -> PyResult<Self> {
        let client = enter(py, || Client::connect(&config.config, Path::new(socket)))?;
        let (descriptor, owner, usable) = (client.descriptor(), client.pid(), AtomicBool::new(true));
        let shared = Arc::new(Connection { client: Mutex::new(client), descriptor, owner, usable });
        let mut all = lock(&CONNECTIONS);
        all.retain(|connection| connection.strong_count() > 0);
        all.push(Arc::downgrade(&shared));
        Ok(Self { shared })
    }

    fn permits(&self, py: Python<'_>, name: String, interval_ns: u64, count: u32) -> PyResult<u64> {
        enter(py, || self.shared.with(|client| client.permits(name, interval_ns, count)))
    }

    /// The first timer that is due, if the next batch is to find one: when, and the version that has it.
    fn timer_due(
        &self,
        py: Python<'_>,
        reader: String,
        operator: String,
        by_watermark: bool,
        until_ms: Option<i64>,
    ) -> PyResult<Option<(i64, Option<u64>)>> {
        let about = AboutTimers { reader, operator, by_watermark, until_ms };
        let first = enter(py, || self.shared.with(|client| client.timer_due(about)))?;
        Ok(first.and_then(|first| Some((first.due_ms?, first.version.0))))
    }

    fn is_usable(&self) -> bool {
        self.shared.usable.load(Ordering::Relaxed)
    }
}

/// What a task is opened with; read from the keyword arguments of `open`.
pub(super) struct Opening {
    pub(super) options: TaskOptions,
    used: Use,
    execution: Option<Execution>,
    attempt: u64,
    worker: u64,
    pub(super) inside: bool,
    stamp: u64,
    of_rdd: Option<OfRdd>,
}

impl Opening {
    pub(super) fn read(
        config: &PySessionConfig,
        mode: TaskMode,
        arguments: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let arguments = arguments.ok_or_else(|| PyTypeError::new_err("open() needs keyword arguments"))?;
        let task = TaskId {
            query: text(arguments, "query")?.into(),
            operator: text(arguments, "operator")?.into(),
            epoch: epoch(&get(arguments, "epoch")?)?,
            partition: Partition(get(arguments, "partition")?.extract()?),
        };
        let mut options = TaskOptions::new(task, mode, get(arguments, "code")?.extract()?);
        options.python = text(arguments, "python")?;
        options.label = text(arguments, "label")?;
        options.stage = get(arguments, "stage")?.extract()?;
        options.app = get(arguments, "app")?.extract()?;
        options.keyed = get(arguments, "keyed")?.extract()?;
        options.allow_code_change = get(arguments, "allow_code_change")?.extract()?;
        options.count_occurrences = get(arguments, "count_occurrences")?.extract()?;
        options.draws = arguments.get_item("draws")?.map_or(Ok(false), |draws| draws.extract())?;
        options.on_ambiguous = config.config.on_ambiguous;
        let used = Use {
            code: Code::new(options.code, &options.python),
            token: get(arguments, "token")?.extract()?,
            named: get(arguments, "named")?.extract()?,
        };
        let execution: Option<(u64, u64)> = get(arguments, "execution")?.extract()?;
        let of_rdd: Option<(u32, u32)> =
            arguments.get_item("of_rdd")?.map_or(Ok(None), |of_rdd| of_rdd.extract())?;
        Ok(Self {
            options,
            used,
            execution: execution.map(|(id, root)| Execution { id, root }),
            attempt: get(arguments, "attempt")?.extract()?,
            worker: get(arguments, "worker")?.extract()?,
            inside: arguments.get_item("inside")?.map_or(Ok(false), |inside| inside.extract())?,
            stamp: stamp(arguments)?,
            of_rdd: of_rdd.map(|(number, task)| OfRdd { number, task: Partition(task), recorded: 0 }),
        })
    }
}

impl Opening {
    /// Hash of the application and of the run of the epoch: what one run recorded in several stages are
    /// several readings of one use.
    pub(super) const fn in_run(&self, run: u32) -> u64 {
        self.options.app ^ ((run as u64) << 32)
    }
}

/// Which run of a named epoch the program was in; 0 if it does not say so.
pub(super) fn stamp(arguments: &Bound<'_, PyDict>) -> PyResult<u64> {
    arguments.get_item("stamp")?.map_or(Ok(0), |stamp| stamp.extract())
}

pub(super) fn get<'py>(arguments: &Bound<'py, PyDict>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    arguments.get_item(name)?.ok_or_else(|| PyTypeError::new_err(format!("open() needs {name}=")))
}

pub(super) fn text(arguments: &Bound<'_, PyDict>, name: &str) -> PyResult<String> {
    get(arguments, name)?.extract()
}

/// An epoch as Python writes it: a micro-batch's number, or a name.
pub(super) fn epoch(value: &Bound<'_, PyAny>) -> PyResult<Epoch> {
    if value.is_instance_of::<PyString>() {
        Ok(Epoch::Named(value.extract()?))
    } else {
        Ok(Epoch::Batch(value.extract()?))
    }
}

/// An epoch as Python reads it.
pub(super) fn epoch_object<'py>(py: Python<'py>, epoch: &Epoch) -> PyResult<Bound<'py, PyAny>> {
    match epoch {
        Epoch::Batch(number) => Ok(number.into_pyobject(py)?.into_any()),
        Epoch::Named(name) => Ok(name.into_pyobject(py)?.into_any()),
    }
}

/// The number of an epoch's use, once it is known.
#[derive(Debug, Default)]
pub(super) struct UseNumber(OnceLock<u64>);

impl UseNumber {
    pub(super) fn get(&self, connection: &Connection, epoch: EpochKey) -> Result<u64> {
        // Only the name of an epoch that is committed can come again.
        if !epoch.is_claimed_alone() {
            return Ok(0);
        }
        if let Some(used) = self.0.get() {
            return Ok(*used);
        }
        let used = connection.with(|client| client.use_of(epoch))?;
        Ok(*self.0.get_or_init(|| used))
    }
}

/// How long the user's code, or a service, was at work for what nothing recorded.
#[derive(Debug, Default)]
pub(super) struct Work {
    begun: Mutex<Option<Instant>>,
    nanos: AtomicU64,
}

impl Work {
    /// Work begins, unless it has.
    pub(super) fn begin(&self) {
        lock(&self.begun).get_or_insert_with(Instant::now);
    }

    /// Work ends.
    pub(super) fn end(&self) {
        if let Some(begun) = lock(&self.begun).take() {
            let nanos = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.nanos.fetch_add(nanos, Ordering::Relaxed);
        }
    }
}

/// What was sent and not waited for. Marks count what was sent.
#[derive(Default)]
struct Tickets {
    sent: u64,
    waiting: VecDeque<(u64, Ticket)>,
}

/// Publishes the blocks of one opened task: sends without waiting, waits when told.
pub(super) struct Publisher {
    connection: Arc<Connection>,
    session: u64,
    tickets: Mutex<Tickets>,
    /// Held by whoever waits for a ticket: of what it has taken nobody else knows that it is waited for.
    settling: Mutex<()>,
    /// Why something that was to be published is not stable. Whoever learnt of it first may not be who lets output go:
    /// a thread that saves answers in between, a function that goes on after an exception.
    failed: OnceLock<Error>,
    closed: AtomicBool,
    pub(super) work: Work,
    used: UseNumber,
}

impl Publisher {
    /// Opens the task at the agent.
    pub(super) fn open(client: &PyClient, opening: &Opening) -> Result<(Self, Opened)> {
        let options = &opening.options;
        let request = OpenTask {
            task: options.task.clone(),
            used: opening.used,
            execution: opening.execution,
            app: options.app,
            stage: options.stage,
            attempt: opening.attempt,
            worker: opening.worker,
            inside: opening.inside,
            stamp: opening.stamp,
            of_rdd: opening.of_rdd,
        };
        let connection = Arc::clone(&client.shared);
        let opened = connection.with(|client| client.open(request))?;
        let session = opened.session;
        let publisher = Self {
            connection,
            session,
            tickets: Mutex::default(),
            settling: Mutex::default(),
            failed: OnceLock::new(),
            closed: AtomicBool::new(false),
            work: Work::default(),
            used: UseNumber::default(),
        };
        Ok((publisher, opened))
    }

    /// Logs of the other partitions, recorded under another layout.
    pub(super) fn pool(
        &self,
        task: &TaskId,
        questions: &[PoolQuestion],
        checks_ambiguity: bool,
    ) -> Result<PoolRows> {
        self.connection.with(|client| client.pool(task, questions, checks_ambiguity))
    }

    /// Sends a block, if there is one. Returns the mark to settle: of this block or, if there is none, of
    /// what was sent last.
    pub(super) fn publish(&self, block: Option<Bytes>) -> Result<u64> {
        self.check()?;
        if let Some(block) = block {
            let ticket = self.with(|client| client.send(self.session, block))?;
            self.sent(ticket);
        }
        Ok(lock(&self.tickets).sent)
    }

    /// # Errors
    /// What kept anything so far from being stable.
    fn check(&self) -> Result<()> {
        self.failed.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Sends what is to be stable, or waits until it is.
    fn with<T>(&self, work: impl FnOnce(&mut Client) -> Result<T>) -> Result<T> {
        self.connection.with(work).inspect_err(|error| drop(self.failed.set(error.clone())))
    }

    fn sent(&self, ticket: Ticket) {
        let mut tickets = lock(&self.tickets);
        tickets.sent += 1;
        let mark = tickets.sent;
        tickets.waiting.push_back((mark, ticket));
    }

    /// Sends anything that is answered with nothing but success; waited for with the blocks.
    pub(super) fn start(&self, request: &Request) -> Result<()> {
        let ticket = self.with(|client| client.start(request))?;
        self.sent(ticket);
        Ok(())
    }

    /// The number of the use of a task's epoch, asked for once and only where keys are made.
    pub(super) fn use_of(&self, task: &TaskId) -> Result<u64> {
        self.used.get(&self.connection, task.epoch_key())
    }

    /// Names the open task.
    pub(super) const fn session(&self) -> u64 {
        self.session
    }

    /// A piece of an earlier attempt's frames.
    pub(super) fn resend(&self, from: LogOffset) -> Result<Vec<Bytes>> {
        self.connection.with(|client| client.resend(self.session, from))
    }

    /// About the task's keyed state.
    pub(super) fn state(&self, wanted: Wanted) -> Result<Found> {
        self.connection.with(|client| client.state(AboutState { session: self.session, wanted }))
    }

    /// How many tasks of an operator were opened in this epoch, where known.
    pub(super) fn senders(&self, operator: String, token: u64) -> Result<Option<u32>> {
        self.connection.with(|client| client.senders(self.session, operator, token))
    }

    /// The task's log was recorded with inputs that are gone.
    pub(super) fn discard(&self) -> Result<()> {
        self.connection.with(|client| client.discard(self.session))
    }

    /// Waits until everything up to a mark is stable.
    pub(super) fn settle(&self, mark: u64) -> Result<()> {
        self.settle_while(|tickets| tickets.waiting.front().is_some_and(|(sent, _)| *sent <= mark))
    }

    /// Waits until at most `outstanding` requests are under way.
    pub(super) fn settle_all_but(&self, outstanding: usize) -> Result<()> {
        self.settle_while(|tickets| tickets.waiting.len() > outstanding)
    }

    fn settle_while(&self, due: impl Fn(&Tickets) -> bool) -> Result<()> {
        loop {
            let _turn = lock(&self.settling);
            let mut tickets = lock(&self.tickets);
            if !due(&tickets) {
                break;
            }
            let Some((_, ticket)) = tickets.waiting.pop_front() else { break };
            // Others may send while this waits.
            drop(tickets);
            self.with(|client| client.wait(ticket))?;
        }
        self.check()
    }

    pub(super) fn close(&self, summary: &Summary, ending: Ending) -> Result<()> {
        if ending.done {
            // Before it counts as closed: an attempt that cannot end well is to be closed as one that failed.
            self.settle(u64::MAX)?;
        }
        if self.closed.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        if !self.connection.usable.load(Ordering::Relaxed) {
            return Ok(());
        }
        let summary = Summary { live_ns: self.work.nanos.load(Ordering::Relaxed), ..*summary };
        self.connection.with(|client| client.close(self.session, summary, ending))
    }
}

/// What `finish` tells Python of an attempt.
pub(super) fn summary_dict<'py>(py: Python<'py>, summary: &Summary) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for (name, value) in [
        ("rows", summary.rows),
        ("replayed", summary.replayed),
        ("live", summary.live),
        ("from_pool", summary.from_pool),
        ("leftover", summary.leftover),
        ("calls", summary.calls),
        ("saved", summary.saved),
        ("bytes", summary.bytes),
    ] {
        dict.set_item(name, value)?;
    }
    Ok(dict)
}
