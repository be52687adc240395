//! Append, delta, absorb, and where each block's bytes are.

use std::collections::HashMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

use crate::error::{Error, Result};
use crate::id::{ChannelId, LogOffset};

/// Where a spilled block's bytes are on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SpillRef {
    /// Number of the file, given by whoever wrote it.
    pub file: u64,
    /// Position of the bytes in the file.
    pub pos: u64,
    /// Length in bytes.
    pub len: u32,
}

/// Where a block's bytes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// In memory.
    Memory(Bytes),
    /// On disk, and what stands for them.
    Spilled(SpillRef, BlockHash),
}

/// Stands for a block's bytes. Ten million blocks are kept by one log, so it takes no more room than it must.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockHash([u8; 16]);

impl BlockHash {
    /// Of a block.
    #[must_use]
    pub fn of(block: &[u8]) -> Self {
        Self(xxh3_128(block).to_le_bytes())
    }

    /// As a number.
    #[must_use]
    pub const fn number(self) -> u128 {
        u128::from_le_bytes(self.0)
    }
}

/// One block of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockRef {
    /// Where it starts in the log.
    pub offset: LogOffset,
    /// Where its bytes are.
    pub place: Place,
}

impl BlockRef {
    /// Its length in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match &self.place {
            Place::Memory(bytes) => bytes.len() as u64,
            Place::Spilled(place, _) => u64::from(place.len),
        }
    }

    /// Position after the block.
    #[must_use]
    pub fn end(&self) -> LogOffset {
        self.offset.plus(self.bytes())
    }

    /// What stands for its bytes.
    #[must_use]
    pub fn hash(&self) -> BlockHash {
        match &self.place {
            Place::Memory(bytes) => BlockHash::of(bytes),
            Place::Spilled(_, hash) => *hash,
        }
    }
}

/// The part of a log that a channel does not have yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delta {
    /// Position of the first block.
    pub from: LogOffset,
    /// The blocks, in order.
    pub blocks: Vec<BlockRef>,
}

/// A task's determinants, in order.
#[derive(Debug, Clone, Default)]
pub struct CausalLog {
    blocks: Vec<BlockRef>,
    end: LogOffset,
    memory_bytes: u64,
    cursors: HashMap<ChannelId, LogOffset>,
}

impl CausalLog {
    /// An empty log.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A log of blocks that are on disk already.
    #[must_use]
    pub fn from_spilled(blocks: impl IntoIterator<Item = (SpillRef, BlockHash)>) -> Self {
        let mut log = Self::new();
        for (spilled, hash) in blocks {
            log.push(spilled.len, Place::Spilled(spilled, hash));
        }
        log
    }

    /// Appends one block; the offset at which it starts.
    ///
    /// # Errors
    /// [`Error::Misuse`] for a block of 4 GiB or more. The log is unchanged then.
    pub fn append(&mut self, block: Bytes) -> Result<LogOffset> {
        let len = block_len(block.len())?;
        self.memory_bytes += u64::from(len);
        Ok(self.push(len, Place::Memory(block)))
    }

    fn push(&mut self, len: u32, place: Place) -> LogOffset {
        let offset = self.end;
        self.blocks.push(BlockRef { offset, place });
        self.end = offset.plus(u64::from(len));
        offset
    }

    /// Position after the last block.
    #[must_use]
    pub const fn end(&self) -> LogOffset {
        self.end
    }

    /// Blocks that end after `from`, in order.
    #[must_use]
    pub fn blocks(&self, from: LogOffset) -> &[BlockRef] {
        let first = self.blocks.partition_point(|block| block.end() <= from);
        self.blocks.get(first..).unwrap_or_default()
    }

    /// What `channel` does not have, as far as is known: what is on its way too, until [`Self::arrived`]. A
    /// channel that was rewound into a block gets the whole block again, as blocks are never split.
    #[must_use]
    pub fn delta(&self, channel: ChannelId) -> Option<Delta> {
        let from = self.cursors.get(&channel).copied().unwrap_or_default();
        if from >= self.end {
            return None;
        }
        let blocks = self.blocks(from).to_vec();
        let from = blocks.first()?.offset;
        Some(Delta { from, blocks })
    }

    /// `channel` has answered for the blocks between two positions. It changes nothing if the channel was
    /// rewound to before them while they were on their way.
    pub fn arrived(&mut self, channel: ChannelId, from: LogOffset, end: LogOffset) {
        let cursor = self.cursors.entry(channel).or_default();
        // Rewound into the first of them, it was sent that block whole.
        if from <= *cursor {
            *cursor = end.min(self.end).max(*cursor);
        }
    }

    /// Sets what `channel` is known to have: for a new consumer, or one that has lost something.
    pub fn rewind(&mut self, channel: ChannelId, to: LogOffset) {
        self.cursors.insert(channel, to.min(self.end));
    }

    /// Gives up all blocks that end behind `to`.
    pub fn cut(&mut self, to: LogOffset) {
        let kept = self.blocks.partition_point(|block| block.end() <= to);
        for block in self.blocks.drain(kept..) {
            if let Place::Memory(_) = block.place {
                self.memory_bytes -= block.bytes();
            }
        }
        let end = self.blocks.last().map_or(LogOffset::START, BlockRef::end);
        self.end = end;
        self.cursors.values_mut().for_each(|cursor| *cursor = end.min(*cursor));
    }

    /// Takes a copy's blocks that start at `from`, keeping what is new; the new bytes.
    ///
    /// # Errors
    /// [`Error::LogGap`] if they start beyond the end; [`Error::LogFork`] if they differ from what
    /// this log has, or cut its blocks elsewhere; [`Error::Misuse`] for a block of 4 GiB or more. The log
    /// is unchanged then.
    pub fn absorb(&mut self, from: LogOffset, blocks: &[Bytes]) -> Result<u64> {
        if from > self.end {
            return Err(Error::LogGap { from, end: self.end });
        }
        let mut at = from;
        let mut new = blocks;
        while at < self.end {
            let Some((block, rest)) = new.split_first() else { return Ok(0) };
            self.check_same(at, block)?;
            at = at.plus(block.len() as u64);
            new = rest;
        }
        // All are looked at first, so that none is taken if one is refused.
        new.iter().try_for_each(|block| block_len(block.len()).map(drop))?;
        let before = self.end;
        // One without bytes has no place of its own.
        for block in new.iter().filter(|block| !block.is_empty()) {
            self.append(block.clone())?;
        }
        Ok(self.end.0 - before.0)
    }

    fn check_same(&self, at: LogOffset, block: &Bytes) -> Result<()> {
        let own = self.blocks.binary_search_by_key(&at, |own| own.offset);
        let own = own.ok().and_then(|index| self.blocks.get(index));
        let same = own.is_some_and(|own| match &own.place {
            Place::Memory(bytes) => bytes == block,
            // Spilled bytes are not read back for this.
            Place::Spilled(place, hash) => place.len as usize == block.len() && *hash == BlockHash::of(block),
        });
        if same { Ok(()) } else { Err(Error::LogFork { at }) }
    }

    /// Bytes held in memory.
    #[must_use]
    pub const fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    /// Bytes held on disk only.
    #[must_use]
    pub const fn spilled_bytes(&self) -> u64 {
        self.end.0 - self.memory_bytes
    }

    /// How many blocks it has.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.blocks.len()
    }

    /// The block at `index`.
    #[must_use]
    pub fn block(&self, index: usize) -> Option<&BlockRef> {
        self.blocks.get(index)
    }

    /// Notes that the block at `index` is on disk; its memory is given up.
    pub fn mark_spilled(&mut self, index: usize, spilled: SpillRef) {
        if let Some(block) = self.blocks.get_mut(index)
            && let Place::Memory(bytes) = &block.place
        {
            self.memory_bytes -= bytes.len() as u64;
            block.place = Place::Spilled(spilled, BlockHash::of(bytes));
        }
    }
}

/// A block's length as logs and spill files state it.
pub(super) fn block_len(bytes: usize) -> Result<u32> {
    u32::try_from(bytes)
        .map_err(|_| Error::Misuse { what: format!("a block of {bytes} bytes: a log takes less than 4 GiB") })
}
