//! Rows of other partitions, for tasks that were laid out otherwise when they were recorded.
//!
//! Any row of such a task may be in any of the epoch's logs, and these may be larger than memory. So the first
//! task that asks has its agent read them all into files in which rows are found by fingerprint, for all tasks
//! of its stage. Who asks meanwhile helps to read; a request takes one step, so none takes long.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::handler::{Handler, Session, unexpected};
use crate::agent::protocol::{AgentInfo, PoolEntry, Reply, Request};
use crate::agent::registry::first_part;
use crate::edge::disk::Rescued;
use crate::edge::disk::pool::{Builder, Rows};
use crate::edge::locked;
use crate::error::{Error, Result};
use crate::id::{EpochKey, Generation, LogOffset, TaskId};
use crate::task::PoolQuestion;

/// How long a request waits for one that is at it.
const TURN: Duration = Duration::from_millis(500);
/// Entries that are merged in one step.
const MERGED: usize = 1 << 20;
/// Bytes of values in one answer: each connection has some times as much in hand while it answers.
const ANSWER_BYTES: usize = 256 << 10;
/// How long the registry is left to hear what an attempt that opens a log found of it.
const TAKING_OVER_PAUSE: Duration = Duration::from_millis(20);
/// A pool that nobody asked for so long is dropped.
const IDLE: Duration = Duration::from_secs(60);

/// Tasks that may ask for the same rows.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct PoolKey {
    epoch: EpochKey,
    operator: Arc<str>,
    /// Other uses in whose logs rows may be.
    pooled: Vec<Arc<str>>,
    app: u64,
    stage: u32,
}

/// The pools of an agent.
#[derive(Default)]
pub(in crate::edge) struct Pools(Mutex<HashMap<PoolKey, Arc<Pool>>>);

/// The rows of one epoch that a stage's tasks may ask for.
struct Pool {
    work: Mutex<Work>,
    /// Readings that were begun.
    begun: AtomicU64,
    done: Mutex<Done>,
    asked: Mutex<Instant>,
}

/// What was read.
#[derive(Default)]
struct Done {
    /// Number of the last reading that came to its end.
    reading: u64,
    rows: Option<Arc<Rows>>,
    /// Logs that could be read nowhere.
    lost: Vec<TaskId>,
}

/// What is being read.
#[derive(Default)]
struct Work {
    builder: Option<Builder>,
    /// Of each log that was read, which attempts had written it.
    written: HashMap<TaskId, Generation>,
    reading: Option<Reading>,
}

/// One pass over all logs that there are.
struct Reading {
    number: u64,
    entries: VecDeque<PoolEntry>,
    /// The last of those that the registry has told of.
    last: Option<TaskId>,
    is_whole: bool,
    /// The last log that was read.
    before: Option<TaskId>,
    /// A log that was found in the checkpoint folder.
    rescued: Option<(TaskId, Rescued)>,
    lost: Vec<TaskId>,
    /// Some log is of an attempt that never came to its end.
    may_lack_rows: bool,
}

impl Reading {
    fn goes_on_with(&mut self, entries: Vec<PoolEntry>) {
        self.last = entries.last().map(|entry| entry.task.clone());
        self.entries = entries.into();
    }
}

/// A piece of a log, as somebody has it.
enum Piece {
    /// None at its end.
    Blocks(Vec<Bytes>),
    /// A later attempt than was told of has opened it; in which generation it has recorded, where that was read.
    Later(Option<Generation>),
}

/// What came of one step.
enum Step {
    Some,
    /// Nothing is left to be read.
    All,
    /// Another attempt went on with a log, and perhaps not with all that was read of it.
    Stale,
}

/// What a task has of a pool.
pub(in crate::edge) struct PoolView {
    pool: Arc<Pool>,
    /// The reading that was begun after it asked first: what was recorded before is in it.
    reading: u64,
    rows: Option<Arc<Rows>>,
}

impl Pools {
    fn of(&self, session: &Session) -> Arc<Pool> {
        let key = PoolKey {
            epoch: session.task.epoch_key(),
            operator: first_part(&session.task.operator).into(),
            pooled: session.grant.pooled.clone(),
            app: session.grant.layout.app,
            stage: session.grant.layout.stage,
        };
        // The driver's agent has no beat with which to look.
        self.sweep();
        let new = || {
            let (work, begun, done) = (Mutex::default(), AtomicU64::new(0), Mutex::default());
            Arc::new(Pool { work, begun, done, asked: Mutex::new(Instant::now()) })
        };
        Arc::clone(locked(&self.0).entry(key).or_insert_with(new))
    }

    /// Drops what nobody asked for in a while.
    pub(super) fn sweep(&self) {
        let is_used = |pool: &Arc<Pool>| Arc::strong_count(pool) > 1 || locked(&pool.asked).elapsed() < IDLE;
        locked(&self.0).retain(|_, pool| is_used(pool));
    }

    /// Nobody asks for the rows of a committed epoch.
    pub(super) fn forget(&self, epoch: &EpochKey) {
        locked(&self.0).retain(|key, _| key.epoch != *epoch);
    }
}

impl Pool {
    /// A turn at the work; `None` if it does not come soon.
    fn turn(&self) -> Option<MutexGuard<'_, Work>> {
        let deadline = Instant::now() + TURN;
        loop {
            match self.work.try_lock() {
                Ok(work) => return Some(work),
                Err(TryLockError::Poisoned(work)) => return Some(work.into_inner()),
                Err(TryLockError::WouldBlock) if Instant::now() >= deadline => return None,
                Err(TryLockError::WouldBlock) => sleep(Duration::from_millis(5)),
            }
        }
    }
}

impl Handler {
    /// Rows that others recorded; or that their logs are being read.
    pub(in crate::edge) fn pool(
        &self,
        session: &mut Session,
        questions: &[PoolQuestion],
        checks_ambiguity: bool,
    ) -> Result<Reply> {
        let mut view = session.pool.take().unwrap_or_else(|| {
            let pool = self.pools.of(session);
            let reading = pool.begun.load(Ordering::Acquire) + 1;
            PoolView { pool, reading, rows: None }
        });
        let answer = self.answer(session, &mut view, questions, checks_ambiguity);
        session.pool = Some(view);
        answer
    }

    fn answer(
        &self,
        session: &Session,
        view: &mut PoolView,
        questions: &[PoolQuestion],
        checks_ambiguity: bool,
    ) -> Result<Reply> {
        let pool = &view.pool;
        *locked(&pool.asked) = Instant::now();
        let rows = match &view.rows {
            Some(rows) => rows,
            None => {
                let Some(mut work) = pool.turn() else { return Ok(Reply::NotYet) };
                if locked(&pool.done).reading < view.reading {
                    let read = self.read_some(session, pool, &mut work);
                    if read.as_ref().is_err_and(Error::is_full) {
                        // It would keep logs from the disk on which it does not fit itself.
                        *work = Work::default();
                    }
                    read?;
                }
                let done = locked(&pool.done);
                let Some(rows) = done.rows.as_ref().filter(|_| done.reading >= view.reading) else {
                    return Ok(Reply::NotYet);
                };
                // Whether its own can be done without is not for the pool to say.
                if let Some(lost) = done.lost.iter().find(|lost| **lost != session.task) {
                    let lost = lost.clone();
                    view.reading = pool.begun.load(Ordering::Acquire) + 1;
                    return Err(Error::CausalLogLost { task: lost });
                }
                view.rows.insert(Arc::clone(rows))
            }
        };
        rows.answer(&session.task, questions, checks_ambiguity, ANSWER_BYTES).map(Reply::Pool)
    }

    /// One step of reading. After an error the next begins to read again, behind what was read.
    fn read_some(&self, session: &Session, pool: &Pool, work: &mut Work) -> Result<()> {
        let begun = work.reading.take();
        let mut reading = begun.unwrap_or_else(|| {
            let number = pool.begun.fetch_add(1, Ordering::AcqRel) + 1;
            let (entries, last, is_whole, before) = (VecDeque::new(), None, false, None);
            Reading {
                number,
                entries,
                last,
                is_whole,
                before,
                rescued: None,
                lost: Vec::new(),
                may_lack_rows: false,
            }
        });
        match self.read_step(session, work, &mut reading)? {
            Step::Some => {
                work.reading = Some(reading);
                return Ok(());
            }
            Step::Stale => {
                *work = Work::default();
                return Ok(());
            }
            Step::All => {}
        }
        let rows = match &mut work.builder {
            Some(builder) => builder.settle(MERGED)?,
            None => work.builder.insert(self.disk.pool()?.of(&session.task.operator)).settle(MERGED)?,
        };
        let Some(rows) = rows else {
            work.reading = Some(reading);
            return Ok(());
        };
        let rows = Some(Arc::new(rows.lacking(reading.may_lack_rows)));
        *locked(&pool.done) = Done { reading: reading.number, rows, lost: reading.lost };
        Ok(())
    }

    /// Reads a piece of a log.
    fn read_step(&self, session: &Session, work: &mut Work, reading: &mut Reading) -> Result<Step> {
        let builder = match &mut work.builder {
            Some(builder) => builder,
            None => work.builder.insert(self.disk.pool()?.of(&session.task.operator)),
        };
        if !builder.tidy(MERGED)? {
            return Ok(Step::Some);
        }
        let Some(entry) = reading.entries.front() else {
            if reading.is_whole {
                return Ok(Step::All);
            }
            let next = self.entries_behind(session, reading.last.clone(), false)?;
            reading.is_whole = next.is_empty();
            reading.goes_on_with(next);
            return Ok(Step::Some);
        };
        let from = builder.end_of(&entry.task);
        let before = work.written.insert(entry.task.clone(), entry.generation);
        if from > LogOffset::START && before != Some(entry.generation) {
            return Ok(Step::Stale);
        }
        let blocks = match self.pooled(entry, from, &mut reading.rescued) {
            // What a later attempt adds is not of another layout, and the registry is about to say from where on.
            Ok(Piece::Later(generation)) => {
                sleep(TAKING_OVER_PAUSE);
                let now = self.entries_behind(session, reading.before.clone(), true)?;
                check_is_ours(&now, &entry.task, generation)?;
                reading.goes_on_with(now);
                return Ok(Step::Some);
            }
            Err(Error::CausalLogLost { task }) => {
                // It may be elsewhere since the registry told of it.
                let now = self.entries_behind(session, reading.before.clone(), false)?;
                let is_elsewhere = now.first().is_some_and(|now| {
                    now.task == task && now.holders.iter().any(|holder| !entry.holders.contains(holder))
                });
                if is_elsewhere {
                    reading.goes_on_with(now);
                    return Ok(Step::Some);
                }
                reading.lost.push(task);
                Vec::new()
            }
            Ok(Piece::Blocks(blocks)) => blocks,
            Err(error) => return Err(error),
        };
        for block in &blocks {
            builder.add(&entry.task, block)?;
        }
        if blocks.is_empty() {
            reading.before = reading.entries.pop_front().map(|entry| {
                reading.may_lack_rows |= entry.may_lack_rows;
                entry.task
            });
        }
        Ok(Step::Some)
    }

    /// The next logs that the registry tells of, of which the first is waited for or not.
    fn entries_behind(&self, session: &Session, last: Option<TaskId>, waits: bool) -> Result<Vec<PoolEntry>> {
        self.registrar.pool(&self.connections, &session.task, session.grant.layout, last, waits)
    }

    /// One piece of a log, from whoever has it.
    fn pooled(
        &self,
        entry: &PoolEntry,
        from: LogOffset,
        rescued: &mut Option<(TaskId, Rescued)>,
    ) -> Result<Piece> {
        if from >= entry.until {
            return Ok(Piece::Blocks(Vec::new()));
        }
        let mut blocks = match rescued {
            Some((task, rescued)) if *task == entry.task => rescued.piece(from)?,
            _ => match self.read_anywhere(entry, from)? {
                Some(Some(blocks)) => blocks,
                Some(None) => return Ok(Piece::Later(None)),
                None => {
                    let lost = || Error::CausalLogLost { task: entry.task.clone() };
                    let found = self.rescue(&entry.task)?.ok_or_else(lost)?;
                    if found.generation > entry.newest {
                        return Ok(Piece::Later(Some(found.generation)));
                    }
                    rescued.insert((entry.task.clone(), found)).1.piece(from)?
                }
            },
        };
        let mut at = from;
        blocks.retain(|block| {
            let is_meant = at < entry.until;
            at = at.plus(block.len() as u64);
            is_meant
        });
        Ok(Piece::Blocks(blocks))
    }

    /// One piece of a log from one of its holders, this agent before others and who did not answer lately last; `None`
    /// if all are gone.
    fn read_anywhere(&self, entry: &PoolEntry, from: LogOffset) -> Result<Option<Option<Vec<Bytes>>>> {
        let newest = Some(entry.newest);
        let mut holders: Vec<AgentInfo> = entry.holders.clone();
        holders.sort_by_cached_key(|holder| {
            (holder.id != self.info.id, self.connections.failed_lately(&holder.addr))
        });
        self.first_of(&holders, |holder| {
            if holder.id == self.info.id {
                return self.read_copy(&entry.task, from, true, newest);
            }
            let read = Request::Read { task: entry.task.clone(), from, whole: true, newest };
            match self.connections.call(holder, &read)? {
                Reply::Blocks(piece) => Ok(Some(piece)),
                Reply::Withdrawn => Ok(None),
                _ => Err(unexpected()),
            }
        })
    }
}

/// Checks that what was found of a log in the checkpoint folder may be of an attempt of this application: the registry knows
/// of those by `now`, and of no later one than that which is taking the log over.
///
/// # Errors
/// [`Error::Fenced`] if another application has gone on with it, whose epoch it is.
fn check_is_ours(now: &[PoolEntry], task: &TaskId, found: Option<Generation>) -> Result<()> {
    let known = now.first().filter(|now| now.task == *task).map(|now| now.newest);
    match known.zip(found).filter(|(known, found)| *found > known.next()) {
        Some((ours, newer)) => Err(Error::Fenced { task: task.clone(), newer, ours }),
        None => Ok(()),
    }
}
