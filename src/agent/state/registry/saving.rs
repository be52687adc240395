//! What a savepoint is made of.

use std::collections::BTreeSet;

use super::holders::Cluster;
use super::{State, States};
use crate::agent::state::asking::Located;
use crate::agent::state::messages::Clock;
use crate::error::{Error, Result};
use crate::state::{RangeSet, Version};

/// Queries that are named in a message.
const NAMED_MAX: usize = 8;

impl States {
    /// All states of a query as its last committed epoch left them, and who holds them: a commit is of all of them or
    /// of none. States of which nothing was committed are left out.
    ///
    /// # Errors
    /// [`Error::Config`] if there is no such query, nothing was committed, or it is going back; [`Error::StateLost`],
    /// [`Error::StateIncomplete`] if nobody may read one of them any more, or it could not be restored.
    pub fn cut(&mut self, query: &str, cluster: &dyn Cluster) -> Result<Vec<Located>> {
        self.choose(cluster);
        self.is_at_one(query)?;
        let as_of = self.numbers;
        let mut cut = Vec::new();
        let mut is_known = false;
        for (id, state) in self.states.iter_mut().filter(|(id, _)| &*id.query == query) {
            is_known = true;
            if let Some((error, _)) = &state.broken {
                return Err(error.clone());
            }
            let is_restored = state.holders.absent().is_empty();
            if let Some(error) = state.not_restored.take().filter(|_| !is_restored) {
                return Err(error);
            }
            if state.version == Version::NONE {
                continue;
            }
            cut.push(Located {
                state: id.clone(),
                life: state.life,
                version: state.version,
                holders: state.holders.of(&RangeSet::ALL, cluster),
                as_of,
                clock: Clock { now_ms: 0, watermark_ms: -1, late_ms: -1 },
                catalog: state.catalog.clone(),
                done: None,
                has_timers: state.due_ms.is_some(),
            });
        }
        if cut.is_empty() {
            let reason = if is_known {
                format!(
                    "query {query} has committed nothing that has state yet: it is saved after its first epoch"
                )
            } else {
                self.no_such_query(query)
            };
            return Err(Error::Config { setting: "query".into(), reason });
        }
        Ok(cut)
    }

    /// A query that has begun anew may go back, its operators one after the other: some of them are at what it has left
    /// behind meanwhile.
    fn is_at_one(&self, query: &str) -> Result<()> {
        let states = || self.states.iter().filter(|(id, _)| &*id.query == query).map(|(_, state)| state);
        let (may_go_back, version) = (|state: &State| state.may_go_back, |state: &State| state.version);
        let versions: BTreeSet<Version> = states().map(version).collect();
        if versions.len() > 1 && states().any(may_go_back) && !states().all(may_go_back) {
            let reason = format!(
                "query {query} was started again, and not all of its operators have begun: it is saved after the next epoch"
            );
            return Err(Error::Config { setting: "query".into(), reason });
        }
        Ok(())
    }

    fn no_such_query(&self, query: &str) -> String {
        let known: BTreeSet<&str> = self.states.keys().map(|id| &*id.query).collect();
        let named: Vec<&str> = known.iter().copied().take(NAMED_MAX).collect();
        let known = match named.as_slice() {
            [] => "of none".to_owned(),
            named if known.len() > named.len() => format!("of {} and others", named.join(", ")),
            named => format!("of {}", named.join(", ")),
        };
        format!(
            "this application knows of no keyed state of query {query}, but {known}: a query has it once it ran here"
        )
    }
}
