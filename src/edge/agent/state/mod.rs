//! Keyed state: a task's agent reads what the task needs from the agents that hold it, and has them hold what it
//! decides.
//!
//! ```text
//! task          what a worker wants of its task's state
//! reading       entries and timers, from whoever has them
//! writing       a delta, to all who hold its ranges; then the registry is told
//! registering   what the driver's agent answers
//! held          what this agent holds
//! holding       what it does for the agents of tasks
//! gathered      bytes that come in pieces
//! giving        what it does for agents that make ranges their own
//! joining       making ranges its own, in the background
//! saving        a savepoint: all states of a query at one version
//! timers        whether the next batch is to find one that is due
//! restoring     the same from the checkpoint folder; and writing them there as they are
//! ```

mod gathered;
mod giving;
mod held;
mod holding;
mod joining;
mod reading;
mod registering;
mod restoring;
mod saving;
mod task;
mod timers;
mod writing;

use std::collections::{BTreeSet, HashSet};
use std::sync::{Arc, Mutex};

use self::giving::Views;
use self::held::Held;
use self::holding::Uploads;
pub(super) use self::joining::join;
pub use self::registering::Clocks;
pub(super) use self::registering::{KnownClocks, keeping};
pub(super) use self::task::StateTask;
use self::timers::FolderDue;
pub(super) use self::timers::KnownReaders;
pub use self::timers::{NextBatch, NextBatches};
use super::handler::{Handler, unexpected};
use super::registrar::Registrar;
use crate::agent::protocol::{AgentInfo, HeldState, Reply, Request};
use crate::agent::state::asking::{FromRegistry, ToRegistry};
use crate::agent::state::holders::{Answer, ToHolder};
use crate::config::SessionConfig;
use crate::edge::locked;
use crate::edge::net::signal::Signal;
use crate::error::Result;
use crate::id::AgentId;
use crate::state::memory::Memory;
use crate::state::{Files, RangeSet, StateId};

/// One in so many bytes of an agent's memory is for state: the rest is for logs.
const STATE_SHARE: u64 = 2;

/// The states that an agent has something to do with.
pub(in crate::edge) struct States {
    held: Held,
    /// Counts what is held, and what is on its way.
    memory: Memory,
    uploads: Uploads,
    views: Views,
    /// What this agent has given up of its own, as long as the registry may count it.
    untold: Mutex<Vec<GivenUp>>,
    /// From whom something could not be copied when that was tried last.
    passed_over: Mutex<HashSet<(StateId, AgentId)>>,
    /// Held by whoever asks what is this agent's, until the rest is forgotten.
    listing: Mutex<()>,
    /// Held by whoever looks into the checkpoint folder for a state.
    looking: Mutex<()>,
    /// What was found there of timers, of states that this application does not know yet.
    folder_due: FolderDue,
    /// States of which some is in the checkpoint folder that nobody can go back to any more.
    prune_due: Mutex<BTreeSet<StateId>>,
    /// Given when there may be ranges to make this agent's own.
    pub(in crate::edge) join_due: Signal,
}

/// Ranges that are no more what they are counted for.
#[derive(Debug, Clone, PartialEq, Eq)]
struct GivenUp {
    state: StateId,
    life: u64,
    ranges: RangeSet,
    as_of: u64,
}

impl States {
    pub(super) fn new(config: &SessionConfig, files: Arc<dyn Files>) -> Self {
        let held = Held::new(config.memory_bytes / STATE_SHARE, files);
        let memory = held.read().store.memory().clone();
        Self {
            held,
            uploads: Uploads::new(&memory),
            memory,
            views: Views::default(),
            untold: Mutex::default(),
            passed_over: Mutex::default(),
            listing: Mutex::default(),
            looking: Mutex::default(),
            folder_due: FolderDue::default(),
            prune_due: Mutex::default(),
            join_due: Signal::default(),
        }
    }
}

impl States {
    /// A query begins anew: what it finds in the checkpoint folder may be other than before.
    pub(super) fn forget_timers(&self, query: &str) {
        locked(&self.folder_due).retain(|id, _| &*id.query != query);
    }

    /// What is held, for people.
    pub(super) fn figures(&self) -> Vec<HeldState> {
        let held = self.held.read();
        let of = |id: &StateId| {
            let (version, ranges) = held.store.held(id)?;
            let stats = held.store.stats(id)?;
            Some(HeldState {
                state: id.clone(),
                version,
                ranges: u32::try_from(ranges.len()).unwrap_or(u32::MAX),
                bytes: stats.bytes,
                memory_bytes: stats.memory_bytes,
            })
        };
        held.store.ids().filter_map(of).collect()
    }
}

impl Handler {
    /// Asks the registry.
    fn ask_states(&self, told: ToRegistry) -> Result<FromRegistry> {
        match &self.registrar {
            Registrar::Here(local) => self.states_here(local, &told),
            Registrar::There(driver) => {
                let is_open = matches!(told, ToRegistry::Where { .. });
                let request = Request::StateRegistry(Box::new(told));
                let reply = match is_open {
                    true => self.connections.call_driver(driver, &request),
                    false => self.connections.call_at(driver, &request),
                };
                match reply? {
                    Reply::StateRegistry(answer) => Ok(answer),
                    _ => Err(unexpected()),
                }
            }
        }
    }

    /// Asks a holder.
    fn ask_holder(&self, holder: &AgentInfo, asked: ToHolder) -> Result<Answer> {
        if holder.id == self.info.id {
            return self.state_asked(asked);
        }
        match self.connections.call(holder, &Request::StateHolder(Box::new(asked)))? {
            Reply::StateHolder(answer) => Ok(answer),
            _ => Err(unexpected()),
        }
    }
}
