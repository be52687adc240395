//! Keeping an agent's logs inside its memory: what does not fit goes to disk, oldest first.

use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::handler::Handler;
use crate::agent::store::{Absorbed, Arriving, Reopened, Store, Victims};
use crate::config::SpillPolicy;
use crate::edge::locked;
use crate::edge::net::server::Server;
use crate::error::{Error, Result};
use crate::id::{Generation, LogOffset, TaskId};

/// How often a writer looks whether there is room again.
const PAUSE: Duration = Duration::from_millis(20);
/// How soon the background writer notices that the agent stops.
const IDLE: Duration = Duration::from_millis(100);

/// What became of a block for which there was room.
enum Held {
    At(usize),
    Unconfirmed(Reopened),
}

impl Handler {
    /// Puts a block into a log that is here; its index there. Spills until it fits, and slows the
    /// writer for a while if the disk budget is used up.
    pub(super) fn hold(
        &self,
        task: &TaskId,
        generation: Generation,
        from: LogOffset,
        block: &Bytes,
    ) -> Result<usize> {
        match self.hold_with(None, block, |store| store.absorb(task, generation, from, block))? {
            Held::At(index) => Ok(index),
            Held::Unconfirmed(_) => Err(Error::Misuse { what: "an own log needs no confirmation".into() }),
        }
    }

    /// As [`Self::hold`], of a copy, whose sender does not wait for longer than that.
    pub(super) fn hold_arriving(
        &self,
        deadline: Option<Instant>,
        task: &TaskId,
        arriving: &Arriving,
        from: LogOffset,
        block: &Bytes,
    ) -> Result<()> {
        let absorb = |store: &mut Store| store.absorb_arriving(task, arriving, from, block);
        self.hold_with(deadline, block, absorb).map(drop)
    }

    /// Puts a block of an absorbed log beside the logs that are here; spills as [`Handler::hold`] does. `by` is the
    /// attempt that is known to have it.
    pub(super) fn hold_copy(
        &self,
        deadline: Option<Instant>,
        task: &TaskId,
        by: Generation,
        born: Generation,
        from: LogOffset,
        block: &Bytes,
    ) -> Result<()> {
        let mut is_again = false;
        loop {
            match self.hold_with(deadline, block, |store| store.absorb_confirmed(task, by, born, from, block))
            {
                Ok(Held::At(_)) => return Ok(()),
                Ok(Held::Unconfirmed(newest)) => self.confirm(task, born, &newest)?,
                // What was here was of another run, and is dropped. Whose consumer had it is told when it commits.
                Err(Error::LogFork { .. }) if from == LogOffset::START && !is_again => is_again = true,
                Err(error) => return Err(error),
            }
        }
    }

    fn hold_with(
        &self,
        deadline: Option<Instant>,
        block: &Bytes,
        absorb: impl Fn(&mut Store) -> Result<Absorbed>,
    ) -> Result<Held> {
        let (bytes, limit) = (block.len() as u64, self.config.memory_bytes);
        if bytes > limit {
            return Err(Error::MemoryBudget { bytes, limit });
        }
        // A writer of this agent is slowed for so long, block by block.
        let slowed = Duration::from_millis(self.config.io_timeout_ms);
        let deadline = deadline.unwrap_or_else(|| Instant::now() + slowed);
        loop {
            match absorb(&mut locked(&self.store))? {
                Absorbed::At(index) => return Ok(Held::At(index)),
                Absorbed::Unconfirmed(newest) => return Ok(Held::Unconfirmed(newest)),
                Absorbed::NoRoom => {}
            }
            match self.spill_for(bytes) {
                Ok(()) if Instant::now() < deadline => {}
                Ok(()) => return Err(Error::MemoryBudget { bytes, limit }),
                Err(Error::DiskBudget { .. }) if Instant::now() < deadline => sleep(PAUSE),
                Err(error) => return Err(error),
            }
        }
    }

    /// Moves the oldest blocks to disk. The store is free for others while files are written.
    fn spill_for(&self, bytes: u64) -> Result<()> {
        // One at a time: whoever waited finds room made by the one before.
        let _turn = locked(&self.spilling);
        let all = locked(&self.store).make_room(bytes);
        self.write_out(all)
    }

    /// Whether frames may have to go to disk now that `log` has more of them.
    pub(super) fn frames_due(&self, log: &TaskId) -> bool {
        match self.config.spill_policy {
            SpillPolicy::Off => false,
            SpillPolicy::Eager => true,
            SpillPolicy::Availability => locked(&self.store).is_half_full(),
            SpillPolicy::Epoch => {
                let epoch = log.epoch_key();
                let mut newest = locked(&self.newest_epoch);
                let later = newest.as_ref() != Some(&epoch);
                *newest = Some(epoch);
                later
            }
        }
    }

    /// Moves the frames to disk that the policy wants there; whether that went well.
    pub(super) fn spill_frames(&self) -> Result<()> {
        let _turn = locked(&self.spilling);
        let newest = locked(&self.newest_epoch).clone();
        let all = locked(&self.store).overdue(self.config.spill_policy, newest.as_ref());
        self.write_out(all)
    }

    /// Writes victims; those that could not be written stay in memory.
    fn write_out(&self, all: Vec<Victims>) -> Result<()> {
        let mut failed = None;
        for victims in all {
            let written = match &failed {
                None => {
                    let blocks: Vec<Bytes> = victims.blocks.iter().map(|(_, block)| block.clone()).collect();
                    self.disk.spill(&victims.task.epoch_key(), &blocks)
                }
                Some(_) => Ok(Vec::new()),
            };
            let mut store = locked(&self.store);
            match written {
                Ok(places) if failed.is_none() => store.spilled(&victims, &places),
                Ok(_) => store.not_spilled(&victims),
                Err(error) => {
                    store.not_spilled(&victims);
                    failed = Some(error);
                }
            }
        }
        failed.map_or(Ok(()), Err)
    }
}

/// Writes frames to disk in the background, until the server stops: writers are not held up by it.
pub(super) fn spill(server: &Arc<Server>) {
    while !server.is_stopping() {
        if !server.handler().spill_due.wait(IDLE) {
            continue;
        }
        if let Err(error) = server.handler().spill_frames() {
            // They stay in memory; a writer that finds no room there is told.
            tracing::warn!(%error, "frames could not be spilled");
        }
    }
}
