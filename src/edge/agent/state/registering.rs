//! What the driver's agent answers about states, with what it needs of the driver and of the checkpoint folder.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use super::super::handler::Handler;
use super::super::registrar::LocalRegistry;
use crate::agent::state::asking::{FromRegistry, ToRegistry};
use crate::agent::state::messages::Clock;
use crate::agent::state::registry::{Asker, Keeping, Restored, state_of};
use crate::config::{OnLost, SessionConfig};
use crate::edge::locked;
use crate::error::{Error, Result};
use crate::state::{RangeSet, Version};

/// Tells the times of a query's micro-batch, as they stand in Spark's own log; or says why it cannot.
pub type Clocks = Box<dyn Fn(&str, u64) -> Result<Clock, String> + Send + Sync>;

/// Micro-batches of a query whose times are kept: those before are over.
const CLOCKS_MAX: usize = 8;

/// How states are held with these settings.
pub(in crate::edge::agent) fn keeping(config: &SessionConfig) -> Keeping {
    Keeping {
        copies: usize::try_from(config.standbys).unwrap_or(usize::MAX).saturating_add(1),
        durable: config.checkpoint_dir.is_some(),
        begins_anew: config.on_lost == OnLost::AtLeastOnce,
    }
}

/// The times of micro-batches, as they were told first.
pub(in crate::edge::agent) struct KnownClocks {
    ask: Clocks,
    known: Mutex<HashMap<Arc<str>, BTreeMap<u64, Clock>>>,
}

impl KnownClocks {
    pub(in crate::edge::agent) fn new(ask: Clocks) -> Self {
        Self { ask, known: Mutex::default() }
    }

    /// # Errors
    /// [`Error::ClockUnknown`]: a clock of the driver's own would be another one when the batch runs again.
    fn of(&self, query: &Arc<str>, epoch: u64) -> Result<Clock> {
        if let Some(clock) = locked(&self.known).get(query).and_then(|known| known.get(&epoch)) {
            return Ok(*clock);
        }
        // Asked without a lock: the answer comes from the user's process and may take its time.
        let clock = (self.ask)(query, epoch).map_err(|reason| Error::ClockUnknown {
            query: query.to_string(),
            epoch,
            reason,
        })?;
        let mut all = locked(&self.known);
        let known = all.entry(Arc::clone(query)).or_default();
        let clock = *known.entry(epoch).or_insert(clock);
        while known.len() > CLOCKS_MAX {
            known.pop_first();
        }
        Ok(clock)
    }

    /// A query begins anew, so batches that it runs again may have other times than they had.
    pub(in crate::edge::agent) fn forget(&self, query: &str) {
        locked(&self.known).remove(query);
    }
}

pub(super) fn unix_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

impl Handler {
    /// In the driver: answers what agents ask and tell.
    pub(in crate::edge) fn states_here(
        &self,
        local: &LocalRegistry,
        told: &ToRegistry,
    ) -> Result<FromRegistry> {
        if let ToRegistry::Where { task, generation, partition, partitions } = told {
            let (generation, partition, partitions) = (*generation, *partition, *partitions);
            return self.locate(local, &Asker { task, generation, partition, partitions });
        }
        let now_ms = local.now_ms();
        let mut registry = locked(&local.registry);
        registry.look_at_clock(now_ms);
        let answer = registry.state(told);
        if let ToRegistry::Based { state, .. } = told {
            locked(&self.states.prune_due).insert(state.clone());
        }
        answer.unwrap_or_else(|| Err(Error::Protocol { what: "a question about no state".into() }))
    }

    fn locate(&self, local: &LocalRegistry, asker: &Asker<'_>) -> Result<FromRegistry> {
        let epoch = asker.epoch()?;
        // Before anything is written for it: an attempt that cannot go on begins nothing.
        let clock = local.clocks.of(&asker.task.query, epoch)?;
        self.look_into_folder(local, asker, epoch)?;
        let now_ms = local.now_ms();
        let mut registry = locked(&local.registry);
        registry.look_at_clock(now_ms);
        registry.locate_state(asker, clock)
    }

    /// Finds a state that this application does not know, or whose query has gone back, in the checkpoint folder.
    fn look_into_folder(&self, local: &LocalRegistry, asker: &Asker<'_>, epoch: u64) -> Result<()> {
        let wants = || locked(&local.registry).wants_folder(asker);
        let Some(folder) = self.disk.states().filter(|_| wants().is_ok_and(|after| after.is_some())) else {
            return Ok(());
        };
        let _turn = locked(&self.states.looking);
        let Some(after) = wants()? else { return Ok(()) };
        let id = state_of(asker.task);
        // Before it is read: what is written there from now on by others does not count.
        folder.begin(&id, after, epoch)?;
        let survey = folder.survey(&id)?;
        let restored = match survey.newest_below(epoch) {
            None => None,
            Some(version) => {
                let chain = survey.chain(version, &RangeSet::ALL).map_err(|what| Error::StateLost {
                    state: id.to_string(),
                    what: format!("{what}, in {}", folder.place(&id)),
                })?;
                let (catalog, due_ms) = (folder.catalog(&id, &chain)?, folder.first_due(&id, &chain)?);
                tracing::info!(state = %id, version, epochs = chain.epochs.len(), "found in the checkpoint folder");
                let (version, epochs) = (Version(Some(version)), chain.epochs.len() as u64);
                Some(Restored { version, catalog, epochs, due_ms })
            }
        };
        locked(&local.registry).state_found(asker, restored);
        Ok(())
    }

    /// In the driver: removes what nobody can go back to any more.
    pub(super) fn prune_states(&self, local: &LocalRegistry) {
        let due = std::mem::take(&mut *locked(&self.states.prune_due));
        let Some(folder) = self.disk.states() else { return };
        for id in due {
            let Version(Some(version)) = locked(&local.registry).state_version(&id) else { continue };
            let epochs = u64::from(self.config.state_epochs);
            if let Err(error) = folder.prune(self.disk.incarnation(), &id, version, epochs) {
                tracing::warn!(state = %id, %error, "old state could not be removed");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};

    use super::*;

    #[test]
    fn the_times_of_a_batch_are_those_told_first_until_its_query_begins_anew() {
        let told = Arc::new(AtomicI64::new(0));
        let asked = Arc::clone(&told);
        let clocks = KnownClocks::new(Box::new(move |_, _| match asked.fetch_add(1, Ordering::Relaxed) {
            0 => Err("the driver is busy".into()),
            now_ms => Ok(Clock { now_ms, watermark_ms: -1, late_ms: -1 }),
        }));
        let query: Arc<str> = "orders".into();
        // Nothing stands in for what is not known, and it is asked for again.
        let unknown = clocks.of(&query, 3).unwrap_err();
        assert_eq!(unknown.condition(), "CLOCK_UNKNOWN");
        assert!(unknown.to_string().contains("the driver is busy"), "{unknown}");
        assert_eq!(clocks.of(&query, 3).unwrap().now_ms, 1);
        assert_eq!(clocks.of(&query, 3).unwrap().now_ms, 1);
        clocks.forget("others");
        assert_eq!(clocks.of(&query, 3).unwrap().now_ms, 1);
        clocks.forget("orders");
        assert_eq!(clocks.of(&query, 3).unwrap().now_ms, 2);
        assert_eq!(told.load(Ordering::Relaxed), 3);
    }
}
