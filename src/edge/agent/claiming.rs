//! The driver's agent claims an epoch, and finds its logs, before it grants the first task of it.
//!
//! Nothing is read when the application attaches: what is wrong with one epoch's files is told to whoever
//! opens a task of that epoch, and an epoch that another application is at work on is left to it.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;

use super::handler::{Handler, unexpected};
use super::refusals::is_refusal;
use super::registrar::{LocalRegistry, Registrar};
use crate::agent::protocol::{Layout, OpenTask, Reply, Request};
use crate::agent::registry::Recorded;
use crate::causal_log::{Place, SpillRef};
use crate::edge::disk::recovery::RecoveredTask;
use crate::edge::locked;
use crate::error::{Error, Result};
use crate::id::{EpochKey, Generation};

/// Bits of a generation that count the grants of one application; those above are its incarnation. So no
/// generation of an older application is ever newer than one of a younger.
const GRANT_BITS: u32 = 40;

/// The first generation of an application, less one.
pub(super) const fn before_first(incarnation: u64) -> Generation {
    Generation(incarnation << GRANT_BITS)
}

/// What the application has claimed, in the driver's agent.
#[derive(Default)]
pub(in crate::edge) struct Claims {
    /// Numbers of the uses of the epochs that are this application's. They have other numbers after each
    /// commit: drawn in the checkpoint folder or, without one, counted.
    uses: Mutex<HashMap<EpochKey, u64>>,
    /// Epochs of which it is not known whether their last commit was carried out: it failed, perhaps when all was
    /// done but told.
    doubtful: Mutex<HashSet<EpochKey>>,
    /// Held by whoever claims or commits.
    turn: Mutex<()>,
}

impl Handler {
    /// In the driver: sees that an epoch is this application's. The number of its use.
    pub(in crate::edge) fn attend(&self, local: &LocalRegistry, key: &EpochKey) -> Result<u64> {
        match self.known_use(key).filter(|_| !self.is_doubtful(key)) {
            Some(used) => Ok(used),
            None => {
                let _turn = locked(&self.claims.turn);
                self.settle(local, key)?;
                self.claim(local, key)
            }
        }
    }

    fn is_doubtful(&self, key: &EpochKey) -> bool {
        locked(&self.claims.doubtful).contains(key)
    }

    /// Finds out whether a commit that failed was carried out: then the name's next use begins.
    fn settle(&self, local: &LocalRegistry, key: &EpochKey) -> Result<()> {
        if self.is_doubtful(key) {
            if !self.known_use(key).map_or(Ok(false), |used| self.disk.has_claimed(key, used))? {
                self.committed(local, key);
                self.catch_up(local);
            }
            locked(&self.claims.doubtful).remove(key);
        }
        Ok(())
    }

    /// [`Self::attend`] for a task that is about to be opened.
    pub(in crate::edge) fn attend_to(&self, local: &LocalRegistry, open: &OpenTask) -> Result<()> {
        let key = open.task.epoch_key();
        check_run(local, &key, open.stamp)?;
        self.attend(local, &key).map(drop)
    }

    /// The number of an epoch's use, for a worker.
    pub(in crate::edge) fn use_of(&self, key: EpochKey) -> Result<u64> {
        let driver = match &self.registrar {
            Registrar::Here(local) => return self.attend(local, &key),
            Registrar::There(driver) => driver,
        };
        match self.connections.call_driver(driver, &Request::UseOf(key))? {
            Reply::UseIs(used) => Ok(used),
            _ => Err(unexpected()),
        }
    }

    /// The number of the use of an epoch that was claimed.
    pub(super) fn known_use(&self, key: &EpochKey) -> Option<u64> {
        locked(&self.claims.uses).get(&key.claimed()).copied()
    }

    /// In the driver: Spark has committed an epoch.
    ///
    /// # Errors
    /// If it could not be carried out, or its answer was lost: whoever runs the epoch again finds its logs, or begins
    /// it anew, as it stands in the folder then.
    pub(in crate::edge) fn commit(&self, local: &LocalRegistry, key: &EpochKey) -> Result<()> {
        let turn = locked(&self.claims.turn);
        let used = match self.known_use(key) {
            Some(used) => used,
            // Of which this run has opened no task: an earlier one may have.
            None if key.is_claimed_alone() && self.disk.is_claimed(key)? => self.claim(local, key)?,
            // Micro-batches before the first that is opened are committed with it.
            None => return Ok(()),
        };
        let epochs = locked(&local.registry).covered(key);
        for epoch in epochs.iter().filter(|epoch| !epoch.is_claimed_alone()) {
            // Before anyone hears of it: who does may use the name again, in a new file.
            self.disk.commit(epoch, used)?;
        }
        if key.is_claimed_alone() {
            self.disk.commit(key, used).inspect_err(|_| {
                locked(&self.claims.doubtful).insert(key.clone());
            })?;
            locked(&self.claims.doubtful).remove(key);
        }
        self.committed(local, key);
        drop(turn);
        self.catch_up(local);
        Ok(())
    }

    /// Nothing of an epoch stands in the folder: it is forgotten.
    fn committed(&self, local: &LocalRegistry, key: &EpochKey) {
        if key.is_claimed_alone() {
            let mut uses = locked(&self.claims.uses);
            let used = uses.remove(key);
            if !self.disk.has_segments() {
                uses.insert(key.clone(), used.unwrap_or_default() + 1);
            }
        }
        locked(&local.registry).commit(key);
    }

    /// Claims an epoch unless that was done; the number of its use.
    fn claim(&self, local: &LocalRegistry, key: &EpochKey) -> Result<u64> {
        if let Some(used) = self.known_use(key) {
            return Ok(used);
        }
        let taken = self.disk.take(key).inspect_err(|error| {
            tracing::error!(epoch = %key, %error, "an epoch cannot be used; others can");
        })?;
        let (used, found) = taken.unwrap_or_default();
        if !found.is_empty() {
            tracing::info!(epoch = %key, logs = found.len(), "recovered");
        }
        let (refusals, found) = found.into_iter().partition(is_refusal);
        self.recovered(local, found);
        self.refuse_again(local, refusals)?;
        locked(&self.claims.uses).insert(key.claimed(), used);
        Ok(used)
    }

    /// Takes over logs that an earlier application left in the checkpoint folder.
    fn recovered(&self, local: &LocalRegistry, found: Vec<RecoveredTask>) {
        let mut registry = locked(&local.registry);
        let mut store = locked(&self.store);
        for found in found {
            let RecoveredTask { app, stage, tasks, code, plan, relaid, has_moved, .. } = found;
            let layout = Layout { app, stage, tasks, code, plan };
            let places = found.blocks.iter().filter_map(|block| match (&block.place, block.hash) {
                (Place::Spilled(place), Some(hash)) => Some((*place, hash)),
                _ => None,
            });
            let places: Vec<(SpillRef, u128)> = places.collect();
            let generation = found.generation.max(Generation(1));
            store.recovered(&found.task, generation, layout, places);
            let recorded = Recorded { layout, relaid, has_moved };
            registry.recovered(found.task, generation, recorded, self.info.id);
        }
    }
}

/// Checks that work that began in a run of a named epoch is not left behind by it: what it recorded would be taken for
/// an answer of the next one.
///
/// # Errors
/// [`Error::Config`] says what to do.
pub(super) fn check_run(local: &LocalRegistry, key: &EpochKey, stamp: u64) -> Result<()> {
    if locked(&local.registry).admits(key, stamp) {
        return Ok(());
    }
    Err(Error::Config {
        setting: "session.epoch".to_owned(),
        reason: format!(
            "epoch {key} has ended, or was begun anew, since this work began in it: wait within the block for threads \
             that belong to it, wrap what a pool runs there, and read an iterator to its end or close it"
        ),
    })
}
