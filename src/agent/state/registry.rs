//! What the registry knows of states: their versions, who holds them, and what their tasks have decided.
//!
//! A machine without I/O. What an epoch's tasks have decided is a state's next version once the epoch is committed;
//! until then it is pending, and the epoch may run again.

mod basing;
mod committing;
mod holders;
mod saving;
mod telling;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;

use self::basing::Basing;
pub use self::holders::Cluster;
use self::holders::Holders;
use crate::agent::state::messages::FirstDue;
use crate::agent::stats::StateFigures;
use crate::error::{Error, Result};
use crate::id::{AgentId, Epoch, EpochKey, Generation, TaskId};
use crate::state::{CommitPoint, RangeSet, StateId, Version, partition_ranges};

/// Commits of a state that are kept for holders that have not heard of them. Each hears of them with the next epoch.
const POINTS_MAX: usize = 64;

/// How states are held.
#[derive(Debug, Clone, Copy)]
pub struct Keeping {
    /// Agents that hold each range.
    pub copies: usize,
    /// Whether everything is in the checkpoint folder, too.
    pub durable: bool,
    /// Whether state of which nothing is known begins empty in a query that has gone on before.
    pub begins_anew: bool,
}

impl Default for Keeping {
    fn default() -> Self {
        Self { copies: 2, durable: false, begins_anew: false }
    }
}

/// A state as it was found in the checkpoint folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restored {
    /// Its last version that counts.
    pub version: Version,
    /// What the operator said of its variables.
    pub catalog: Bytes,
    /// Epochs since that of its oldest base.
    pub epochs: u64,
    /// When its first timer is due.
    pub due_ms: Option<i64>,
}

/// What is known of a state's first timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KnownDue {
    /// When it is due, if there is one.
    First(FirstDue),
    /// Nothing of the state.
    Nothing,
    /// The state has gone on since: what it was then is in the checkpoint folder.
    Older,
}

/// A task's place: which state, and which part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asker<'a> {
    /// The task.
    pub task: &'a TaskId,
    /// The attempt.
    pub generation: Generation,
    /// Which of its operator's partitions it computes.
    pub partition: u32,
    /// Partitions that its operator has.
    pub partitions: u32,
}

impl Asker<'_> {
    fn ranges(&self) -> RangeSet {
        partition_ranges(self.partition, self.partitions)
    }

    pub(crate) fn epoch(&self) -> Result<u64> {
        match self.task.epoch {
            Epoch::Batch(epoch) if self.partition < self.partitions => Ok(epoch),
            Epoch::Batch(_) => Err(Error::Misuse { what: "a partition behind the last".into() }),
            Epoch::Named(_) => Err(Error::Misuse { what: "state of an epoch that is no micro-batch".into() }),
        }
    }

    fn fenced(&self) -> Error {
        Error::Fenced { task: self.task.clone(), newer: Generation::NONE, ours: self.generation }
    }
}

/// The state that a task's operator has. Where one Spark task computes several partitions, the logs after the first have
/// names of their own; the state has not.
#[must_use]
pub fn state_of(task: &TaskId) -> StateId {
    let operator = crate::agent::registry::first_part(&task.operator).into();
    StateId { query: Arc::clone(&task.query), operator }
}

/// What a task has decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Decided {
    generation: Generation,
    fingerprint: u64,
    bytes: u64,
    due_ms: Option<i64>,
}

/// An epoch that is not committed.
#[derive(Debug)]
struct Pending {
    /// Partitions that the operator has in it, as the newest attempt said.
    partitions: u32,
    newest: Generation,
    base: Version,
    decided: BTreeMap<u32, Decided>,
    /// Whether some of that was lost, as nobody has it any more: all of it is decided again, or it is incomplete.
    has_lost: bool,
    catalog: Option<Bytes>,
}

/// One state.
#[derive(Debug)]
struct State {
    /// How often it was restored in this application.
    life: u64,
    /// The attempts of its application that came before it was begun, or begun anew, end with this one.
    after: Generation,
    version: Version,
    /// The last commits, and the version before the first of them.
    points: VecDeque<CommitPoint>,
    before_points: Version,
    catalog: Bytes,
    /// When the first timer is due.
    due_ms: Option<i64>,
    holders: Holders,
    basing: Basing,
    /// Ranges that standbys have served since another holder's death.
    promoted: u64,
    pending: BTreeMap<u64, Pending>,
    /// Why nobody may read it any more, and since which epoch, if it can be gone back to that.
    broken: Option<(Error, Option<u64>)>,
    /// Why it could not be restored when that was tried last.
    not_restored: Option<Error>,
    /// Whether its query has begun anew since: it may go on some epochs back.
    may_go_back: bool,
}

impl State {
    fn new(life: u64, after: Generation, version: Version, catalog: Bytes) -> Self {
        Self {
            life,
            after,
            version,
            points: VecDeque::new(),
            before_points: version,
            catalog,
            due_ms: None,
            holders: Holders::default(),
            basing: Basing::default(),
            promoted: 0,
            pending: BTreeMap::new(),
            broken: None,
            not_restored: None,
            may_go_back: false,
        }
    }

    /// Ranges of which nothing was decided so far: whoever holds them begins with nothing.
    fn untouched(&self) -> RangeSet {
        if self.version != Version::NONE {
            return RangeSet::EMPTY;
        }
        let decided = self.pending.values().flat_map(|pending| {
            pending.decided.keys().map(|partition| partition_ranges(*partition, pending.partitions))
        });
        decided.fold(RangeSet::ALL, |untouched, decided| untouched.without(&decided))
    }
}

/// All states of an application.
#[derive(Debug, Default)]
pub struct States {
    keeping: Keeping,
    states: BTreeMap<StateId, State>,
    /// The first micro-batch of each query that this application has seen.
    first: HashMap<Arc<str>, u64>,
    /// The newest attempt of all when each query began anew; of others, when the application did.
    runs: HashMap<Arc<str>, Generation>,
    began: Generation,
    /// Counts the times that an agent was told to make ranges its own.
    numbers: u64,
    /// Agents that have something that is not theirs any more.
    told: HashSet<AgentId>,
    /// The change of who is alive up to which holders were chosen.
    members: u64,
}

impl States {
    /// Says how states are held from now on.
    pub const fn keep(&mut self, keeping: Keeping) {
        self.keeping = keeping;
    }

    /// A micro-batch of a query is about to begin.
    pub(crate) fn seen(&mut self, query: &Arc<str>, batch: u64) {
        let first = self.first.entry(Arc::clone(query)).or_insert(batch);
        *first = batch.min(*first);
    }

    /// The application's attempts come after this one.
    pub(crate) fn begin_after(&mut self, began: Generation) {
        self.began = self.began.max(began);
    }

    /// A query begins anew, after the newest attempt of all: it may go on some epochs back.
    pub(crate) fn begin_run(&mut self, query: &str, newest: Generation) {
        self.runs.insert(query.into(), newest);
        for (id, state) in &mut self.states {
            if &*id.query == query {
                state.may_go_back = true;
                // What nobody has come to the end of is begun anew.
                state.pending.retain(|_, pending| !pending.decided.is_empty() || pending.has_lost);
            }
        }
    }

    fn after(&self, id: &StateId) -> Generation {
        self.runs.get(&id.query).map_or(self.began, |run| self.began.max(*run))
    }

    /// If a task's state is to be looked for in the checkpoint folder before it begins: after which attempt those are
    /// that go on with it.
    #[must_use]
    pub fn wants_folder(&self, asker: &Asker<'_>) -> Option<Generation> {
        let (epoch, id) = (asker.epoch().ok()?, state_of(asker.task));
        let wants = self.keeping.durable && self.states.get(&id).is_none_or(|state| state.goes_back(epoch));
        wants.then(|| self.after(&id))
    }

    /// What was found there.
    pub fn found(&mut self, asker: &Asker<'_>, restored: Option<Restored>) {
        // Another task may have been quicker.
        let Some(after) = self.wants_folder(asker) else { return };
        let id = state_of(asker.task);
        let known = self.states.get(&id).map(|state| state.life);
        let life = known.unwrap_or(0) + 1;
        let state = match restored {
            Some(Restored { version, catalog, epochs, due_ms }) => {
                let mut state = State::new(life, after, version, catalog);
                state.basing.restored(epochs);
                state.due_ms = due_ms;
                state
            }
            // It goes back to where it began.
            None if known.is_some() && asker.epoch().is_ok_and(|epoch| epoch == 0) => {
                State::new(life, after, Version::NONE, Bytes::new())
            }
            None => return,
        };
        self.states.insert(id, state);
    }

    fn state(&self, id: &StateId) -> Result<&State> {
        self.states.get(id).ok_or_else(|| Error::Misuse { what: format!("state {id} was not begun") })
    }

    /// Whether what a query's epoch has decided is all there. Operators that are not in the query any more decide nothing:
    /// what is known of them is from before it began anew.
    ///
    /// # Errors
    /// [`Error::StateIncomplete`] names what is missing.
    pub fn check(&self, key: &EpochKey) -> Result<()> {
        let Epoch::Batch(epoch) = key.epoch else { return Ok(()) };
        for (id, state) in self.states.iter().filter(|(id, _)| id.query == key.query) {
            let is_of_run = |pending: &&Pending| pending.newest > self.after(id);
            let Some(pending) = state.pending.get(&epoch).filter(is_of_run) else { continue };
            state.readable(epoch).and_then(|()| pending.check(id, epoch))?;
        }
        Ok(())
    }

    /// When the first timer of a state is due, after the last epoch below `next` whose tasks have all come to their end.
    #[must_use]
    pub fn first_due(&self, id: &StateId, next: u64) -> KnownDue {
        let Some(state) = self.states.get(id) else { return KnownDue::Nothing };
        if state.may_go_back && state.version >= Version(Some(next)) {
            return KnownDue::Older;
        }
        let mut decided =
            state.pending.range(..next).rev().filter(|(epoch, pending)| pending.check(id, **epoch).is_ok());
        let (version, due_ms) = decided.next().map_or((state.version, state.due_ms), |(epoch, pending)| {
            (Version(Some(*epoch)), pending.due_ms())
        });
        KnownDue::First(FirstDue { version, due_ms })
    }

    /// Whether a query has begun anew and has not said yet with which epoch.
    #[must_use]
    pub fn may_go_back(&self, query: &str) -> bool {
        self.states.iter().any(|(id, state)| &*id.query == query && state.may_go_back)
    }

    /// What there is to say of each.
    #[must_use]
    pub fn figures(&self) -> Vec<(StateId, StateFigures)> {
        let of = |(id, state): (&StateId, &State)| {
            let (copies, joining) = state.holders.figures();
            let (version, promoted) = (state.version.0, state.promoted);
            let figures = StateFigures {
                state: id.to_string(),
                version,
                copies,
                joining,
                promoted,
                ..Default::default()
            };
            (id.clone(), figures)
        };
        self.states.iter().map(of).collect()
    }
}
