//! The driver's agent claims an epoch, and finds its logs, before it grants the first task of it.
//!
//! Nothing is read when the application attaches: what is wrong with one epoch's files is told to whoever
//! opens a task of that epoch, and an epoch that another application is at work on is left to it.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::handler::{Handler, unexpected};
use super::refusals::is_refusal;
use super::registrar::{LocalRegistry, Registrar};
use super::works::Works;
use crate::agent::protocol::{Layout, OpenTask, Reply, Request};
use crate::agent::registry::Recorded;
use crate::causal_log::Place;
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

/// How long a claim on executions is left as it is. They share one, and whoever attaches to the folder removes what
/// is much older as nobody's.
const RENEWED_EVERY: Duration = Duration::from_secs(24 * 3600);

/// What the application has claimed, in the driver's agent.
#[derive(Default)]
pub(in crate::edge) struct Claims {
    /// Numbers of the uses of the epochs that are this application's. They have other numbers after each
    /// commit: drawn in the checkpoint folder or, without one, counted.
    uses: Mutex<HashMap<EpochKey, u64>>,
    /// Epochs of which it is not known whether their last commit was carried out: it failed, perhaps when all was
    /// done but told.
    doubtful: Mutex<HashSet<EpochKey>>,
    /// When executions were claimed last.
    renewed: Mutex<Option<Instant>>,
    /// Held by whoever claims or commits.
    turn: Mutex<()>,
    /// Epochs that are being claimed for tasks that are to be opened, in which run of them; their uses.
    being_read: Works<(EpochKey, u64), u64>,
}

impl Claims {
    /// Waits until no epoch is being claimed.
    pub(super) fn finish(&self) {
        self.being_read.finish();
    }
}

impl Handler {
    /// In the driver: sees that an epoch is this application's. The number of its use.
    pub(in crate::edge) fn attend(&self, local: &LocalRegistry, key: &EpochKey) -> Result<u64> {
        if let Some(used) = self.claimed(key) {
            return Ok(used);
        }
        let _turn = locked(&self.claims.turn);
        self.settle(local, key)?;
        self.claim(local, key)
    }

    /// The number of an epoch's use, if nothing is to be done about its claim.
    fn claimed(&self, key: &EpochKey) -> Option<u64> {
        self.known_use(key).filter(|_| !self.is_doubtful(key) && !self.is_due(key))
    }

    /// Whether a claim may soon look as if nobody had it.
    fn is_due(&self, key: &EpochKey) -> bool {
        key.is_execution() && locked(&self.claims.renewed).is_none_or(|at| at.elapsed() >= RENEWED_EVERY)
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

    /// [`Self::attend`] for a task that is about to be opened. Whether it is done: whoever asks is to ask again while logs
    /// are read.
    pub(in crate::edge) fn attend_to(
        self: &Arc<Self>,
        local: &LocalRegistry,
        epoch: EpochKey,
        stamp: u64,
    ) -> Result<bool> {
        check_run(local, &epoch, stamp)?;
        if self.claimed(&epoch).is_some() {
            return Ok(true);
        }
        let (handler, key) = (Arc::clone(self), epoch.clone());
        let attended = self.claims.being_read.wait(&(epoch, stamp), self.peer_patience(), move || {
            let Registrar::Here(local) = &handler.registrar else { return Err(unexpected()) };
            handler.attend(local, &key)
        });
        attended.map(|used| used.is_some())
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

    /// In the driver: of which use an attempt is that opens a task now. To be asked before it is granted: if the name is
    /// committed meanwhile, what the attempt writes down counts in neither.
    pub(in crate::edge) fn use_now(&self, open: &OpenTask) -> u64 {
        self.known_use(&open.task.epoch_key()).unwrap_or_default()
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
        if let Some(used) = self.known_use(key).filter(|_| !self.is_due(key)) {
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
        if key.is_execution() {
            *locked(&self.claims.renewed) = Some(Instant::now());
        }
        locked(&self.claims.uses).insert(key.claimed(), used);
        Ok(used)
    }

    /// Takes over logs that an earlier application left in the checkpoint folder.
    fn recovered(&self, local: &LocalRegistry, found: Vec<RecoveredTask>) {
        let mut registry = locked(&local.registry);
        let mut store = locked(&self.store);
        for found in found {
            let RecoveredTask { app, stage, tasks, code, plan, borders, relaid, has_moved, .. } = found;
            let layout = Layout { app, stage, tasks, code, plan, borders };
            let places = found.blocks.iter().filter_map(|block| match &block.place {
                Place::Spilled(place, hash) => Some((*place, *hash)),
                Place::Memory(_) => None,
            });
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

#[cfg(test)]
pub(super) mod tests {
    use std::fs;
    use std::path::PathBuf;
    use std::time::SystemTime;

    use super::super::plans::Plans;
    use super::*;
    use crate::agent::protocol::AgentInfo;
    use crate::config::SessionConfig;
    use crate::edge::disk::Disk;
    use crate::edge::disk::segment::RealDisk;
    use crate::id::{AgentId, Epoch, application_query};

    fn claim_in(folder: &tempfile::TempDir) -> Option<PathBuf> {
        let inside = |dir: PathBuf| fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        let all = inside(folder.path().to_owned()).filter(|path| path.is_dir()).flat_map(inside);
        all.into_iter().find(|path| path.extension().is_some_and(|ending| ending == "claim"))
    }

    pub(in crate::edge::agent) fn driver(config: SessionConfig) -> Handler {
        let disk = Disk::open(&config, Arc::new(RealDisk), AgentId(1), 1).unwrap();
        disk.own(disk.attach().unwrap());
        let info = AgentInfo { id: AgentId(1), addr: String::new(), host: "h".into(), driver: true };
        let (stages, plans) = (Box::new(|_| None), Plans::unknown());
        let clocks = Box::new(|_: &str, _| Err("there is none".to_owned()));
        let local =
            LocalRegistry::new(stages, Box::new(|_, _| false), plans, clocks, Box::new(|_| None), 1, 120_000);
        Handler::new(config, info, disk, Registrar::Here(Box::new(local)), String::new())
    }

    fn local(driver: &Handler) -> &LocalRegistry {
        let Registrar::Here(local) = &driver.registrar else { unreachable!() };
        local
    }

    fn execution(number: u64) -> EpochKey {
        EpochKey { query: application_query("app").into(), epoch: Epoch::Named(format!("sql-{number}")) }
    }

    #[test]
    fn whoever_opens_a_task_is_told_to_ask_again_while_its_epoch_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = SessionConfig::new("app", [7; 32]);
        config.checkpoint_dir = Some(folder.path().display().to_string());
        config.io_timeout_ms = 100;
        let driver = Arc::new(driver(config));
        let is_attended = |number| driver.attend_to(local(&driver), execution(number), 0).unwrap();
        let takes_long = locked(&driver.claims.turn);
        assert!(!is_attended(1) && !is_attended(1));
        drop(takes_long);
        while !is_attended(1) {}
        assert!(driver.known_use(&execution(1)).is_some());
        driver.finish_works();
    }

    #[test]
    fn the_claim_of_a_living_application_does_not_grow_old() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = SessionConfig::new("app", [7; 32]);
        config.checkpoint_dir = Some(folder.path().display().to_string());
        let driver = driver(config);
        let attend = |number| driver.attend(local(&driver), &execution(number)).unwrap();
        let used = attend(1);
        let claim = claim_in(&folder).unwrap();
        let long_ago = SystemTime::now() - 10 * RENEWED_EVERY;
        fs::File::options().write(true).open(&claim).unwrap().set_modified(long_ago).unwrap();
        let age = || fs::metadata(claim_in(&folder).unwrap()).unwrap().modified().unwrap().elapsed().unwrap();
        assert_eq!(attend(2), used);
        assert!(age() > RENEWED_EVERY, "it was looked after a moment ago");
        *locked(&driver.claims.renewed) = None;
        assert_eq!(attend(3), used);
        assert!(age() < RENEWED_EVERY);
        // Removed all the same, while nothing was asked for.
        fs::remove_file(&claim).unwrap();
        *locked(&driver.claims.renewed) = None;
        attend(4);
        assert!(claim_in(&folder).is_some());
    }
}
