//! The answers that all tasks of an epoch share: `per="value"`.
//!
//! The driver's agent keeps a table per function and epoch. Its log is a causal log like a task's, which
//! this agent opens and appends to: segments, spilling, commit and recovery are those of any log. Other
//! agents pass on what their workers ask. The driver's agent dies with its application, so copies on other
//! agents would not help: what survives it is in the checkpoint folder.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arrow_array::{ArrayRef, UInt32Array};
use arrow_select::take::take;
use bytes::Bytes;

use super::claiming::check_run;
use super::handler::{Handler, Session, unexpected};
use super::registrar::{LocalRegistry, Registrar};
use super::works::Works;
use crate::agent::protocol::{Code, Commit, Ending, Left, OpenTask, PIECE_BYTES, Reply, Request, Use};
use crate::agent::values::messages::{AboutValues, Answers, Found, Positions, TableId, WAIT_MS_MAX, Wanted};
use crate::agent::values::{Asker, Position, Standing, Values};
use crate::determinant::{BlockReader, Determinant, decode_results, encode_results};
use crate::edge::locked;
use crate::error::{Error, Result};
use crate::id::{AgentId, Generation, LogOffset, Partition, TaskId};
use crate::task::{
    Summary, TaskMode, TaskOptions, check_values_header, recorded_by_other_code, values_header,
};

/// Ends the operator in the name of a table's log; users' names have no control characters.
const TABLE: &str = "\u{1}values";
/// The keeper of a table runs in no stage.
pub(super) const NO_STAGE: u32 = u32::MAX;
/// Numbers behind those of all attempts of Spark's.
const OPENINGS: u64 = 1 << 63;

/// One table.
struct Table {
    task: TaskId,
    generation: Generation,
    /// First block of what this opening records.
    header: Bytes,
    values: Mutex<Values>,
    /// Given when a question was answered or is free again.
    changed: Condvar,
    /// Held by whoever records.
    log: Mutex<Log>,
}

/// A table's log, open for this agent itself.
struct Log {
    session: Session,
    /// Whether this opening has said what it records.
    has_header: bool,
}

/// The tables of an application, in the driver's agent.
#[derive(Default)]
pub(in crate::edge) struct Tables {
    open: Mutex<HashMap<TableId, Arc<Table>>>,
    /// Those that are being opened, their logs read, in which run of their epoch. Another lock than that of those that are
    /// open, as that may find out that an epoch was committed, and tables are forgotten then.
    opening: Works<(TableId, u64), Arc<Table>>,
    openers: AtomicU64,
}

impl Tables {
    /// Waits until none is being opened.
    pub(super) fn finish(&self) {
        self.opening.finish();
    }
}

impl Handler {
    /// Answers a request that came over a connection: a worker's if it does not say whose it is. `asked` are
    /// the tables in which the connection may have duties.
    pub(in crate::edge) fn values_for(
        self: &Arc<Self>,
        mut about: AboutValues,
        connection: u64,
        asked: &mut HashSet<TableId>,
    ) -> Result<Reply> {
        if about.asker.is_none() {
            about.asker = Some(Asker { agent: self.info.id, connection });
            match about.wanted {
                Wanted::GiveUp { .. } => asked.remove(&about.table),
                Wanted::Ask { .. } | Wanted::Answer { .. } => asked.insert(about.table.clone()),
            };
        }
        self.values(about).map(Reply::Values)
    }

    /// A worker's connection has ended: it has no duties any more.
    pub(in crate::edge) fn values_ended(self: &Arc<Self>, connection: u64, asked: HashSet<TableId>) {
        for table in asked {
            let asker = Some(Asker { agent: self.info.id, connection });
            let wanted = Wanted::GiveUp { summary: Summary::default() };
            if let Err(error) = self.values(AboutValues { table, asker, stamp: 0, wanted }) {
                // Others wait until its silence has lasted long enough.
                tracing::info!(%error, "the end of a worker could not be told");
            }
        }
    }

    /// Answers a worker, or another agent on behalf of one.
    fn values(self: &Arc<Self>, about: AboutValues) -> Result<Found> {
        match &self.registrar {
            Registrar::There(driver) => {
                match self.connections.call_at(driver, &Request::Values(Box::new(about)))? {
                    Reply::Values(found) => Ok(found),
                    _ => Err(unexpected()),
                }
            }
            Registrar::Here(local) => self.values_here(local, about),
        }
    }

    fn values_here(self: &Arc<Self>, local: &LocalRegistry, about: AboutValues) -> Result<Found> {
        let AboutValues { table: id, asker, stamp, wanted } = about;
        let asker = asker.ok_or_else(|| Error::Protocol { what: "a question of nobody".into() })?;
        if !matches!(wanted, Wanted::GiveUp { .. }) {
            check_run(local, &table_task(&id).epoch_key(), stamp)?;
        }
        match wanted {
            Wanted::GiveUp { summary } => self.free(local, &id, asker, summary),
            Wanted::Ask { questions, duties_max, patient } => {
                let questions = questions.read()?;
                let longest = self.peer_patience().min(Duration::from_millis(WAIT_MS_MAX));
                let Some(table) = self.table(&id, stamp, longest)? else {
                    // As if all were asked already: whoever asks does so again.
                    return Ok(Found::Standing { yours: Positions::default(), answered: Vec::new() });
                };
                let patience = if patient { longest } else { Duration::ZERO };
                let standing = table.wait(local, asker, &questions, duties_max, patience);
                self.tell(&table, &standing)
            }
            Wanted::Answer { block } => {
                // Not opened for it: a worker left behind must not answer in an epoch that is committed.
                let Some(table) = self.known_table(&id) else {
                    return Err(Error::Fenced {
                        task: table_task(&id),
                        newer: Generation::NONE,
                        ours: Generation::NONE,
                    });
                };
                let recorded = self.record(local, &table, asker, &block);
                if recorded.is_err() {
                    // Nothing may be recorded behind what failed: the next one opens the log again.
                    let mut open = locked(&self.tables.open);
                    if open.get(&id).is_some_and(|known| Arc::ptr_eq(known, &table)) {
                        open.remove(&id);
                    }
                }
                recorded.map(Found::Late)
            }
        }
    }

    /// The asker has no duties any more.
    fn free(&self, local: &LocalRegistry, id: &TableId, asker: Asker, summary: Summary) -> Result<Found> {
        if let Some(table) = self.known_table(id) {
            if locked(&table.values).give_up(asker) {
                table.changed.notify_all();
            }
            let (task, generation) = (table.task.clone(), table.generation);
            let (ending, left) = (Ending::default(), Left { by: self.info.id, lost: false, end: None });
            let closed = Request::Closed { task, generation, summary, ending, left };
            local.handle(&closed).transpose()?;
        }
        Ok(Found::Freed)
    }

    /// The table, opened if it is not; what an earlier application recorded is in it. `None` while that is read.
    fn table(self: &Arc<Self>, id: &TableId, stamp: u64, patience: Duration) -> Result<Option<Arc<Table>>> {
        if let Some(table) = self.known_table(id) {
            return Ok(Some(table));
        }
        let (handler, meant) = (Arc::clone(self), id.clone());
        self.tables.opening.wait(&(id.clone(), stamp), patience, move || match handler.known_table(&meant) {
            Some(table) => Ok(table),
            None => handler.keep_table(&meant, stamp),
        })
    }

    fn known_table(&self, id: &TableId) -> Option<Arc<Table>> {
        locked(&self.tables.open).get(id).cloned()
    }

    fn keep_table(&self, id: &TableId, stamp: u64) -> Result<Arc<Table>> {
        let table = Arc::new(self.open_table(id, stamp)?);
        self.show_table(id, &table)?;
        Ok(table)
    }

    /// Lets others find a table, unless a newer one was opened or its epoch committed meanwhile.
    fn show_table(&self, id: &TableId, table: &Arc<Table>) -> Result<()> {
        let Registrar::Here(local) = &self.registrar else { return Err(unexpected()) };
        // Held throughout: a commit that comes after that forgets this one, too.
        let mut open = locked(&self.tables.open);
        locked(&local.registry).is_newest(&table.task, table.generation)?;
        open.insert(id.clone(), Arc::clone(table));
        Ok(())
    }

    fn open_table(&self, id: &TableId, stamp: u64) -> Result<Table> {
        let opener = self.tables.openers.fetch_add(1, Ordering::Relaxed) + 1;
        let task = table_task(id);
        // No attempt of Spark's: each opening is one of its own, and newer than those before.
        let (attempt, worker) = (OPENINGS + opener, opener);
        // Functions of one name are told apart, and found again, by their code.
        let used =
            Use { code: Code::new(id.code, &id.python), token: (id.code ^ id.shape) | 1, named: id.named };
        let (app, stage, execution) = (id.app, NO_STAGE, None);
        let open = OpenTask {
            task,
            used,
            execution,
            app,
            stage,
            attempt,
            worker,
            inside: false,
            stamp,
            of_rdd: None,
        };
        let mut sessions = HashMap::new();
        if let Registrar::Here(local) = &self.registrar {
            self.attend(local, &open.task.epoch_key())?;
        }
        self.open(&open, &mut sessions)?;
        let mut log = sessions.into_values().next().ok_or_else(unexpected)?;
        // Nobody waits for its end.
        locked(&self.attempts).over(&(log.task.clone(), log.grant.generation));
        if log.lost {
            return Err(Error::CausalLogLost { task: log.task });
        }
        log.peers.clear();
        let mut options = TaskOptions::new(log.task.clone(), TaskMode::Values, id.code);
        (options.python, options.label, options.app) = (id.python.clone(), id.label.clone(), id.app);
        (options.stage, options.allow_code_change) = (NO_STAGE, id.allow_code_change);
        self.warn_of_other_code(id, &options);
        Ok(Table {
            task: log.task.clone(),
            generation: log.grant.generation,
            header: values_header(&options)?,
            values: Mutex::new(self.recorded_before(&options)?),
            changed: Condvar::new(),
            log: Mutex::new(Log { session: log, has_header: false }),
        })
    }

    /// Nobody knows whether what an earlier run left behind in this name was recorded by this function. It may have been:
    /// then all is asked again, which is not to be a surprise.
    fn warn_of_other_code(&self, id: &TableId, options: &TaskOptions) {
        let is_new = locked(&self.store).end(&options.task).is_none_or(|end| end == LogOffset::START);
        let Registrar::Here(local) = &self.registrar else { return };
        if id.named || !is_new {
            return;
        }
        let left = locked(&local.registry).left_by(&options.task, &format!("{}{TABLE}{TABLE}", id.operator));
        let recorded_by = |other: &TaskId| {
            let header = self.read(other, LogOffset::START).ok()?.into_iter().next()?;
            recorded_by_other_code(options, &header).ok().flatten()
        };
        if let Some(code) = left.iter().find_map(recorded_by) {
            tracing::warn!(
                "epoch {} has answers by {code}, for which this run has not asked so far: what they answered is asked \
                 again. To keep them, let the function not depend on what differs from run to run, or declare it with \
                 @causal(..., uid=..., code_version=...)",
                id.epoch_key()
            );
        }
    }

    /// Reads a table's log.
    fn recorded_before(&self, options: &TaskOptions) -> Result<Values> {
        let mut values = Values::new();
        let mut from = LogOffset::START;
        loop {
            let blocks = self.read(&options.task, from)?;
            if blocks.is_empty() {
                return Ok(values);
            }
            for block in &blocks {
                check_values_header(options, block)?;
                if let Some(results) = Recorded::read(block)? {
                    values.answered(None, from, &results.questions);
                }
                from = from.plus(block.len() as u64);
            }
        }
    }

    /// Makes answers stable; the questions that were answered before.
    fn record(&self, local: &LocalRegistry, table: &Table, asker: Asker, block: &Bytes) -> Result<Vec<u64>> {
        let Some(Recorded { questions, .. }) = Recorded::read(block)? else {
            return Err(Error::Protocol { what: "a block without answers".into() });
        };
        locked(&table.values).heard(asker, local.now_ms());
        let mut log = locked(&table.log);
        if !log.has_header {
            self.append(&mut log.session, &table.header)?;
            log.has_header = true;
        }
        let at = locked(&self.store).end(&table.task).unwrap_or_default();
        self.append(&mut log.session, block)?;
        // What two have answered at once stands there twice, and the first counts for whoever reads it.
        let late = locked(&table.values).answered(Some(asker), at, &questions);
        table.changed.notify_all();
        Ok(late)
    }

    /// Reads the answers out of the log: those of one piece, the rest is told at the next asking.
    fn tell(&self, table: &Table, standing: &[Standing]) -> Result<Found> {
        let task = &table.task;
        let mut yours = Vec::new();
        let mut blocks: BTreeMap<LogOffset, Vec<(u32, u32)>> = BTreeMap::new();
        for (question, standing) in (0_u32..).zip(standing) {
            match standing {
                Standing::Yours => yours.push(question),
                Standing::Open => {}
                Standing::Answered(Position { block, row }) => {
                    blocks.entry(*block).or_default().push((question, *row));
                }
            }
        }
        let (mut answered, mut bytes) = (Vec::new(), 0);
        for (at, wanted) in blocks {
            if bytes >= PIECE_BYTES {
                break;
            }
            let block = self.block_at(task, at)?;
            let recorded =
                Recorded::read(&block)?.ok_or_else(|| Error::CausalLogLost { task: task.clone() })?;
            let arrow = recorded.rows(&wanted)?;
            bytes += arrow.len() as u64;
            answered.push(Answers {
                questions: wanted.into_iter().map(|(question, _)| question).collect(),
                arrow,
            });
        }
        Ok(Found::Standing { yours: yours.into_iter().collect(), answered })
    }

    fn block_at(&self, task: &TaskId, at: LogOffset) -> Result<Bytes> {
        let lost = || Error::CausalLogLost { task: task.clone() };
        let mut piece = locked(&self.store).piece(task, at).ok_or_else(lost)?;
        piece.truncate(1);
        self.disk.read(&piece)?.into_iter().next().ok_or_else(lost)
    }

    /// Tables of a committed epoch are forgotten with their logs.
    pub(super) fn forget_tables(&self, commit: &Commit) {
        let meant = |id: &TableId, table: &Table| {
            commit.key.covers(&id.epoch_key()) && table.generation < commit.below
        };
        locked(&self.tables.open).retain(|id, table| !meant(id, table));
    }
}

impl Table {
    /// How it stands with the questions, as soon as there is anything to say.
    fn wait(
        &self,
        local: &LocalRegistry,
        asker: Asker,
        questions: &[u64],
        duties_max: u32,
        patience: Duration,
    ) -> Vec<Standing> {
        let deadline = Instant::now() + patience;
        let mut values = locked(&self.values);
        loop {
            let now_ms = local.now_ms();
            let is_alive = |agent: AgentId| locked(&local.registry).is_alive(agent, now_ms);
            let standing = values.ask(asker, questions, duties_max as usize, now_ms, is_alive);
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || standing.iter().any(|standing| *standing != Standing::Open) {
                return standing;
            }
            values = wait_for(&self.changed, values, left);
        }
    }
}

fn wait_for<'a>(changed: &Condvar, values: MutexGuard<'a, Values>, left: Duration) -> MutexGuard<'a, Values> {
    changed.wait_timeout(values, left).unwrap_or_else(PoisonError::into_inner).0
}

/// The answers of one block.
struct Recorded {
    questions: Vec<u64>,
    results: Bytes,
}

impl Recorded {
    /// `None` for a block without any: a header.
    fn read(block: &Bytes) -> Result<Option<Self>> {
        for determinant in BlockReader::new(block)? {
            if let Determinant::Results { fingerprints, arrow } = determinant? {
                let mut questions = Vec::with_capacity(fingerprints.len());
                fingerprints.extend_into(&mut questions);
                return Ok(Some(Self { questions, results: block.slice_ref(arrow) }));
            }
        }
        Ok(None)
    }

    /// These rows, each with the question that it answers.
    fn rows(&self, wanted: &[(u32, u32)]) -> Result<Bytes> {
        let all = wanted.len() == self.questions.len();
        if all && (0_u32..).zip(wanted).all(|(row, (_, wanted))| row == *wanted) {
            return Ok(self.results.clone());
        }
        let results: ArrayRef = decode_results(&self.results)?;
        let rows = UInt32Array::from_iter_values(wanted.iter().map(|(_, row)| *row));
        Ok(encode_results(&take(&results, &rows, None)?)?.into())
    }
}

/// The task under whose name a table's log stands. Tables of functions that the user named are found by
/// that name, so that changed code is noticed; all lambdas of a module have one name, and are told apart.
fn table_task(id: &TableId) -> TaskId {
    let code = if id.named { id.shape } else { id.code ^ id.shape };
    TaskId {
        query: id.query.as_str().into(),
        operator: format!("{}{TABLE}{TABLE}{code:016x}", id.operator).into(),
        epoch: id.epoch.clone(),
        partition: Partition(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SessionConfig;
    use crate::edge::agent::claiming::tests::driver;
    use crate::id::Epoch;

    #[test]
    fn a_table_that_was_opened_since_by_another_is_not_shown_and_takes_nobodys_place() {
        let driver = driver(SessionConfig::new("app", [7; 32]));
        let (query, operator, python, label) = ("q".into(), "f".into(), "3.11".into(), "f".into());
        let (epoch, named, allow_code_change) = (Epoch::Batch(1), true, false);
        let (code, shape, app) = (1, 2, 3);
        let id =
            TableId { query, epoch, operator, named, code, shape, python, label, allow_code_change, app };
        let older = Arc::new(driver.open_table(&id, 0).unwrap());
        let newer = driver.keep_table(&id, 0).unwrap();
        let refused = driver.show_table(&id, &older).unwrap_err();
        assert!(matches!(refused, Error::Fenced { .. }), "{refused}");
        assert!(driver.known_table(&id).is_some_and(|known| Arc::ptr_eq(&known, &newer)));
    }
}
