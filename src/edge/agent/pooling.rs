//! Logs of other partitions, read for a task that was laid out otherwise when they were recorded.
//!
//! They may be larger than memory, so they pass through here in pieces.

use bytes::Bytes;

use super::handler::{Handler, Session, unexpected};
use crate::agent::protocol::{AgentInfo, PIECE_BYTES, PoolEntry, PoolPiece, PoolPlace, Reply, Request};
use crate::edge::disk::Rescued;
use crate::error::{Error, Result};
use crate::id::LogOffset;

/// The logs that a task reads, in the order in which it does.
#[derive(Default)]
pub(in crate::edge) struct Pool {
    /// Some of them, and the number of the first.
    page: Vec<PoolEntry>,
    first: u32,
    /// Number of the log that was looked for in the checkpoint folder last, and what was found.
    rescued: Option<(u32, Rescued)>,
}

impl Handler {
    /// Logs of the other partitions from a place on, as far as they were recorded under another layout.
    pub(in crate::edge) fn pool(&self, session: &mut Session, mut at: PoolPlace) -> Result<Reply> {
        // Anew from the beginning, with the logs that there are by then.
        let pool = match &mut session.pool {
            Some(pool) if at != PoolPlace::default() => pool,
            other => other.insert(Pool::default()),
        };
        let (mut pieces, mut bytes) = (Vec::new(), 0);
        loop {
            let Pool { page, first, rescued } = &mut *pool;
            let Some(place) = at.log.checked_sub(*first) else {
                return Err(Error::Misuse { what: "a pool is read forwards".into() });
            };
            let Some(entry) = page.get(place as usize) else {
                let last = page.last().map(|entry| entry.task.clone());
                let (task, layout) = (&session.task, session.grant.layout);
                let next = self.registrar.pool(&self.connections, task, layout, last)?;
                if next.is_empty() {
                    return Ok(Reply::Pool { pieces, next: None });
                }
                *first += u32::try_from(page.len()).unwrap_or(u32::MAX);
                *page = next;
                continue;
            };
            if bytes >= PIECE_BYTES {
                return Ok(Reply::Pool { pieces, next: Some(at) });
            }
            let blocks = self.pooled(entry, at, rescued)?;
            if blocks.is_empty() {
                at = PoolPlace { log: at.log + 1, from: LogOffset::START };
                continue;
            }
            let read: u64 = blocks.iter().map(|block| block.len() as u64).sum();
            bytes += read;
            pieces.push(PoolPiece { log: at.log, partition: entry.task.partition, blocks });
            at.from = at.from.plus(read);
        }
    }

    /// One piece of a log, from whoever has it; none at its end.
    fn pooled(
        &self,
        entry: &PoolEntry,
        place: PoolPlace,
        rescued: &mut Option<(u32, Rescued)>,
    ) -> Result<Vec<Bytes>> {
        let PoolPlace { log, from } = place;
        if from >= entry.until {
            return Ok(Vec::new());
        }
        let mut blocks = match rescued {
            Some((number, rescued)) if *number == log => rescued.piece(from)?,
            _ => match self.read_anywhere(entry, from)? {
                Some(blocks) => blocks,
                None => {
                    let lost = || Error::CausalLogLost { task: entry.task.clone() };
                    let found = self.disk.rescue(&entry.task)?.ok_or_else(lost)?;
                    rescued.insert((log, found)).1.piece(from)?
                }
            },
        };
        let mut at = from;
        blocks.retain(|block| {
            let is_meant = at < entry.until;
            at = at.plus(block.len() as u64);
            is_meant
        });
        Ok(blocks)
    }

    /// One piece of a log from one of its holders, this agent before others; `None` if all are gone.
    fn read_anywhere(&self, entry: &PoolEntry, from: LogOffset) -> Result<Option<Vec<Bytes>>> {
        let mut holders: Vec<AgentInfo> = entry.holders.clone();
        holders.sort_by_key(|holder| holder.id != self.info.id);
        self.first_of(&holders, |holder| {
            if holder.id == self.info.id {
                return self.read_copy(&entry.task, from, true);
            }
            let read = Request::Read { task: entry.task.clone(), from, whole: true };
            match self.connections.call(&holder.addr, &read)? {
                Reply::Blocks(piece) => Ok(piece),
                _ => Err(unexpected()),
            }
        })
    }
}
