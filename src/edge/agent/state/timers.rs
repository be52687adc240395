//! Whether an operator's timers are due: asked before each batch, by a source that has Spark begin one if they are.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use super::super::handler::Handler;
use super::super::registrar::LocalRegistry;
use super::registering::unix_ms;
use crate::agent::registry::name_of;
use crate::agent::state::messages::{AboutTimers, FirstDue};
use crate::agent::state::registry::KnownDue;
use crate::edge::disk::state::StateFolder;
use crate::edge::locked;
use crate::error::{Error, Result};
use crate::state::{RangeSet, StateId, Version};

/// The batch that a query is about to begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NextBatch {
    /// The query.
    pub query: Arc<str>,
    /// The batch's number.
    pub epoch: u64,
    /// The watermark that it will have.
    pub watermark_ms: i64,
}

/// Tells of the batch that the query of a reader is about to begin, if it knows: by the name in the reader's offsets.
pub type NextBatches = Box<dyn Fn(&str) -> Option<NextBatch> + Send + Sync>;

/// Readers whose queries are remembered.
const READERS_MAX: usize = 1_024;

/// The readers of timers that have asked.
pub(in crate::edge::agent) struct KnownReaders {
    ask: NextBatches,
    queries: Mutex<HashMap<String, Arc<str>>>,
}

impl KnownReaders {
    pub(in crate::edge::agent) fn new(ask: NextBatches) -> Self {
        Self { ask, queries: Mutex::default() }
    }

    /// Asked without a lock: the answer comes from the user's process and may take its time.
    fn next(&self, reader: &str) -> Option<NextBatch> {
        (self.ask)(reader)
    }

    /// The query of a reader, which stays the same; none before the end of its first batch.
    fn query(&self, reader: &str) -> Option<Arc<str>> {
        if let Some(query) = locked(&self.queries).get(reader) {
            return Some(Arc::clone(query));
        }
        let query = self.next(reader)?.query;
        let mut queries = locked(&self.queries);
        if queries.len() >= READERS_MAX {
            queries.clear();
        }
        queries.insert(reader.to_owned(), Arc::clone(&query));
        Some(query)
    }
}

/// What the checkpoint folder has of timers, of states that this application does not know as they were; and of which
/// batch that was asked.
pub(super) type FolderDue = Mutex<BTreeMap<StateId, (u64, Option<FirstDue>)>>;

impl Handler {
    /// In the driver: the first of an operator's timers that is due, if the next batch is to find one.
    ///
    /// # Errors
    /// Those of the checkpoint folder.
    pub(in crate::edge) fn timer_due(
        &self,
        local: &LocalRegistry,
        about: &AboutTimers,
    ) -> Result<Option<FirstDue>> {
        let Some(query) = local.readers.query(&about.reader) else { return Ok(None) };
        let Some(first) = self.first_timer(local, &query, about)? else { return Ok(None) };
        let reached_ms = if about.by_watermark {
            let Some(next) = local.readers.next(&about.reader) else { return Ok(None) };
            next.watermark_ms
        } else {
            unix_ms().min(about.until_ms.unwrap_or(i64::MAX))
        };
        Ok(Some(first).filter(|first| first.due_ms.is_some_and(|due_ms| due_ms <= reached_ms)))
    }

    /// The first timer of all states that an operator has: it may stand in several places of a query.
    fn first_timer(
        &self,
        local: &LocalRegistry,
        query: &Arc<str>,
        about: &AboutTimers,
    ) -> Result<Option<FirstDue>> {
        let mut least: Option<FirstDue> = None;
        // Whoever asks is about to begin the epoch behind all that are known, unless the query has begun anew.
        let mut next = u64::MAX;
        if locked(&local.registry).may_go_back(query) {
            let Some(batch) = local.readers.next(&about.reader) else { return Ok(None) };
            next = batch.epoch;
        }
        // Once a batch has opened its tasks, the folder knows no more than the registry.
        let mut is_new = false;
        for index in 0.. {
            let id = StateId { query: Arc::clone(query), operator: name_of(&about.operator, index) };
            let known = locked(&local.registry).first_due(&id, next);
            is_new |= index == 0 && known == KnownDue::Nothing;
            let first = match known {
                KnownDue::First(first) => Some(first),
                KnownDue::Nothing if !is_new => None,
                KnownDue::Nothing | KnownDue::Older => {
                    self.first_timer_in_folder(local, &id, &about.reader)?
                }
            };
            let Some(first) = first else { break };
            let is_earlier = |than: FirstDue| than.due_ms.is_none_or(|due_ms| first.due_ms < Some(due_ms));
            if first.due_ms.is_some() && least.is_none_or(is_earlier) {
                least = Some(first);
            }
        }
        Ok(least)
    }

    /// The same of a state as the checkpoint folder has it, if it is there: no task of this application has asked for it,
    /// or its query goes back.
    fn first_timer_in_folder(
        &self,
        local: &LocalRegistry,
        id: &StateId,
        reader: &str,
    ) -> Result<Option<FirstDue>> {
        let Some(folder) = self.disk.states() else { return Ok(None) };
        let Some(next) = local.readers.next(reader) else { return Ok(None) };
        if let Some((epoch, found)) = locked(&self.states.folder_due).get(id)
            && *epoch == next.epoch
        {
            return Ok(*found);
        }
        let found = found_below(folder, id, next.epoch)?;
        locked(&self.states.folder_due).insert(id.clone(), (next.epoch, found));
        Ok(found)
    }
}

/// What a folder has of a state's timers before an epoch.
fn found_below(folder: &StateFolder, id: &StateId, epoch: u64) -> Result<Option<FirstDue>> {
    let survey = folder.survey(id)?;
    let Some(version) = survey.newest_below(epoch) else { return Ok(None) };
    let chain = survey.chain(version, &RangeSet::ALL).map_err(|what| Error::StateLost {
        state: id.to_string(),
        what: format!("{what}, in {}", folder.place(id)),
    })?;
    Ok(Some(FirstDue { version: Version(Some(version)), due_ms: folder.first_due(id, &chain)? }))
}
