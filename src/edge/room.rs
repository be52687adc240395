//! Keeping an agent's logs inside its memory: what does not fit goes to disk, oldest first.

use std::thread::sleep;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::handler::Handler;
use super::locked;
use crate::agent::store::Absorbed;
use crate::error::{Error, Result};
use crate::id::{Generation, LogOffset, TaskId};

/// How often a writer looks whether there is room again.
const PAUSE: Duration = Duration::from_millis(20);

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
        let (bytes, limit) = (block.len() as u64, self.config.memory_bytes);
        if bytes > limit {
            return Err(Error::MemoryBudget { bytes, limit });
        }
        let deadline = Instant::now() + Duration::from_millis(self.config.io_timeout_ms);
        loop {
            if let Absorbed::At(index) = locked(&self.store).absorb(task, generation, from, block)? {
                return Ok(index);
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
        let mut failed = None;
        let all = locked(&self.store).make_room(bytes);
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
