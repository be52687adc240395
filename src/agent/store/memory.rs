//! How much of the logs may be in memory, and what leaves it, oldest first.

use bytes::Bytes;

use super::Store;
use crate::causal_log::{BlockRef, Place, SpillRef};
use crate::id::TaskId;

/// What a block takes besides its bytes: its entry in the log. Blocks may be many and small: a call that is recorded by
/// itself is one.
pub(super) const LISTED: u64 = size_of::<BlockRef>() as u64;
/// What it takes besides while it is in memory: its entry in the queue, and what an allocator gives more than it was
/// asked for, for the bytes and for who shares them.
pub(super) const QUEUED: u64 = size_of::<(u64, usize)>() as u64 + 64;

/// What it takes besides while it is in memory and stands in a segment: where it does, in a table that is half full.
pub(super) const PLACED: u64 = 2 * size_of::<(usize, SpillRef)>() as u64;

/// Lists may take so much, however little memory there is.
const LISTS_MIN: u64 = 32 << 20;

/// Blocks of one log to be written to disk.
#[derive(Debug)]
pub struct Victims {
    /// The log.
    pub task: TaskId,
    pub(super) version: u64,
    /// Index and bytes of each block.
    pub blocks: Vec<(usize, Bytes)>,
}

impl Store {
    /// Something else takes so many bytes of the memory.
    pub const fn leave_room(&mut self, bytes: u64) {
        self.memory_bytes_max = self.memory_bytes_all.saturating_sub(bytes);
    }

    /// What lists of blocks take by themselves.
    pub(super) fn list_bytes(&self) -> u64 {
        let (listed, queued, placed) = self.besides;
        let queued = queued + if self.has_places { placed } else { 0 };
        self.blocks * listed + self.queue.len() as u64 * queued
    }

    /// The same without those of blocks that were found: these took as much where they were recorded.
    pub(super) fn recorded_list_bytes(&self) -> u64 {
        let (listed, ..) = self.besides;
        self.list_bytes().saturating_sub(self.found * listed)
    }

    /// How much they may: with the least room that there is for blocks, all.
    pub(super) fn list_bytes_max(&self) -> u64 {
        (self.memory_bytes_all - self.memory_bytes_all / 8).max(LISTS_MIN)
    }

    /// How much may be in memory of logs.
    pub(super) fn room(&self) -> u64 {
        // Where lists take nearly all, no block would find room any more.
        self.memory_bytes_max.saturating_sub(self.list_bytes()).max(self.memory_bytes_max / 8)
    }

    /// As [`Self::room`], for a block that is perhaps larger than that, and then alone.
    pub(super) fn room_for(&self, bytes: u64) -> u64 {
        self.room().max(bytes.min(self.memory_bytes_max))
    }

    /// Blocks to move to disk before `bytes` more fit; frees those that stand in a segment right away.
    pub fn make_room(&mut self, bytes: u64) -> Vec<Victims> {
        let mut victims: Vec<Victims> = Vec::new();
        let mut leaving = 0;
        // Some more than needed, so that files are written in larger strokes.
        let target = self.room_for(bytes).saturating_sub(bytes);
        if self.memory_bytes <= target {
            return victims;
        }
        let target = target.saturating_sub(self.memory_bytes_max / 8);
        while self.memory_bytes - leaving > target {
            let Some((version, index)) = self.queue.pop_front() else { break };
            leaving += self.evict(version, index, &mut victims);
        }
        victims
    }

    /// Takes a block out of memory: at once if it stands on disk, else as a victim; the bytes still to leave.
    pub(super) fn evict(&mut self, version: u64, index: usize, victims: &mut Vec<Victims>) -> u64 {
        let Some(task) = self.versions_of.get(&version) else { return 0 };
        let Some(held) = self.held.get_mut(task) else { return 0 };
        let Some(BlockRef { place: Place::Memory(block), .. }) = held.log.block(index).cloned() else {
            return 0;
        };
        let bytes = block.len() as u64;
        if let Some(place) = held.durable.leaves_memory(index) {
            held.log.mark_spilled(index, place);
            let in_flight = held.in_flight;
            self.freed(bytes, in_flight);
            return 0;
        }
        match victims.last_mut().filter(|last| last.version == version) {
            Some(last) => last.blocks.push((index, block)),
            None => victims.push(Victims { task: task.clone(), version, blocks: vec![(index, block)] }),
        }
        bytes
    }

    pub(super) fn freed(&mut self, bytes: u64, in_flight: bool) {
        self.memory_bytes -= bytes;
        self.in_flight_bytes -= if in_flight { bytes } else { 0 };
    }

    /// The victims were written; their memory is free.
    pub fn spilled(&mut self, victims: &Victims, places: &[SpillRef]) {
        let Some(held) = self.held.get_mut(&victims.task).filter(|held| held.version == victims.version)
        else {
            return;
        };
        let mut bytes = 0;
        for ((index, block), place) in victims.blocks.iter().zip(places) {
            // It may stand in a segment since.
            let place = held.durable.leaves_memory(*index).unwrap_or(*place);
            held.log.mark_spilled(*index, place);
            bytes += block.len() as u64;
        }
        let in_flight = held.in_flight;
        self.freed(bytes, in_flight);
    }

    /// The victims could not be written: they stay in memory, first in line.
    pub fn not_spilled(&mut self, victims: &Victims) {
        for (index, _) in victims.blocks.iter().rev() {
            self.queue.push_front((victims.version, *index));
        }
    }
}
