//! What a savepoint is made of.

use std::collections::BTreeSet;

use super::States;
use super::holders::Cluster;
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
    /// [`Error::Config`] if there is no such query, or nothing was committed; [`Error::StateLost`],
    /// [`Error::StateIncomplete`] if nobody may read one of them any more, or it could not be restored.
    pub fn cut(&mut self, query: &str, cluster: &dyn Cluster) -> Result<Vec<Located>> {
        self.choose(cluster);
        let as_of = self.numbers;
        let mut cut = Vec::new();
        let mut is_known = false;
        for (id, state) in self.states.iter_mut().filter(|(id, _)| &*id.query == query) {
            is_known = true;
            if let Some(error) = state.broken.clone().or_else(|| state.not_restored.take()) {
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
