//! Where a task's state is: at the agents, behind the task's connection; or in this process.

use bytes::Bytes;
use pyo3::prelude::*;

use super::service_task::PyServiceTask;
use crate::agent::protocol::PIECE_BYTES;
use crate::agent::state::messages::{Found, Wanted};
use crate::error::{Error, Result};
use crate::state::view::{Backend, Begun, Loaded};
use crate::state::{Delta, Entries, EntryKey, KeyPrefix, Limits};

/// Keys that are asked for at a time, by number and by bytes.
const KEYS_MAX: usize = 1 << 15;
const KEY_BYTES_MAX: usize = 4 << 20;

/// The state of a task that is open at the agent.
pub(super) struct AtAgent {
    pub(super) task: Py<PyServiceTask>,
    pub(super) partition: u32,
    pub(super) partitions: u32,
}

impl AtAgent {
    fn ask(&self, wanted: Wanted) -> Result<Found> {
        self.task.get().publisher.state(wanted)
    }
}

fn unexpected() -> Error {
    Error::Protocol { what: "an answer to another question about state".into() }
}

impl Backend for AtAgent {
    fn begin(&mut self) -> Result<Begun> {
        let wanted = Wanted::Begin { partition: self.partition, partitions: self.partitions };
        let Found::Begun { version, clock, catalog } = self.ask(wanted)? else { return Err(unexpected()) };
        let (now_ms, watermark_ms, late_ms) = (clock.now_ms, clock.watermark_ms, clock.late_ms);
        Ok(Begun { version, now_ms, watermark_ms, late_ms, catalog })
    }

    fn read(&mut self, keys: &[KeyPrefix], part: u64) -> Result<Loaded> {
        let mut all = Loaded::default();
        let mut rest = keys;
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = |key: &&KeyPrefix| {
                bytes += key.as_bytes().len();
                bytes <= KEY_BYTES_MAX
            };
            // One at least, however long it is.
            let count = rest.iter().take(KEYS_MAX).take_while(fits).count().max(1);
            let (asked, later) = rest.split_at(count);
            self.read_some(asked, part, &mut all)?;
            rest = later;
        }
        Ok(all)
    }

    fn read_on(
        &mut self,
        key: &KeyPrefix,
        from: &EntryKey,
        until: &Bytes,
        bytes: u64,
    ) -> Result<(Entries, Option<EntryKey>)> {
        let (keys, from) = (vec![key.as_bytes().clone()], Some(from.as_bytes().clone()));
        let limits = Limits { until: Some(until.clone()), ..Limits::whole(bytes) };
        let (entries, _, next) = self.page(keys, from, limits)?;
        Ok((entries, next.map(EntryKey::from_bytes).transpose()?))
    }

    fn due(&mut self, until_ms: i64) -> Result<Vec<(i64, KeyPrefix)>> {
        let mut all: Vec<(i64, KeyPrefix)> = Vec::new();
        loop {
            let after = all.last().map(|(expiry, key)| (*expiry, key.as_bytes().clone()));
            let Found::Due { timers, more } = self.ask(Wanted::Due { until_ms, after })? else {
                return Err(unexpected());
            };
            let is_end = timers.is_empty() || !more;
            for (expiry, key) in timers {
                all.push((expiry, KeyPrefix::from_bytes(key)?));
            }
            if is_end {
                return Ok(all);
            }
        }
    }

    fn write(&mut self, delta: Delta) -> Result<()> {
        let mut rest = delta.encode();
        loop {
            let piece = rest.split_to(rest.len().min(PIECE_BYTES as usize));
            let last = rest.is_empty();
            let Found::Written = self.ask(Wanted::Write { piece, last })? else { return Err(unexpected()) };
            if last {
                return Ok(());
            }
        }
    }
}

impl AtAgent {
    /// Some entries, where what was left out begins, and where to go on.
    fn page(
        &self,
        keys: Vec<Bytes>,
        from: Option<Bytes>,
        limits: Limits,
    ) -> Result<(Entries, Vec<Bytes>, Option<Bytes>)> {
        match self.ask(Wanted::Read { keys, from, limits })? {
            Found::Entries { entries, cut, next } => Ok((Entries::from_bytes(entries), cut, next)),
            _ => Err(unexpected()),
        }
    }

    /// What there is of some keys, page by page.
    fn read_some(&self, keys: &[KeyPrefix], part: u64, all: &mut Loaded) -> Result<()> {
        let mut from: Option<Bytes> = None;
        loop {
            // Keys whose entries are all here are not asked for again.
            let done = from.as_ref().map_or(0, |from| keys.partition_point(|key| is_before(key, from)));
            let asked = keys.get(done..).unwrap_or_default();
            let keys = asked.iter().map(|key| key.as_bytes().clone()).collect();
            let (entries, cut, next) =
                self.page(keys, from, Limits { part, ..Limits::whole(PIECE_BYTES) })?;
            all.entries.push(entries);
            for at in cut {
                all.cut.push(EntryKey::from_bytes(at)?);
            }
            if next.is_none() {
                return Ok(());
            }
            from = next;
        }
    }
}

/// Whether all entries of a key stand before an entry's key.
fn is_before(key: &KeyPrefix, entry: &Bytes) -> bool {
    let key: &[u8] = key.as_bytes();
    key < entry.as_ref() && !entry.starts_with(key)
}
