//! Sorted entries that never change, in memory or in a file.
//!
//! ```text
//! run   = chunk*        each in memory, or somewhere in the run's file
//! chunk = block*
//! block = entry*        as in [`super::entries`]; never begins with the key that the one before ends with
//! ```
//!
//! What is known of each block, its first key and its checksum, stays in memory: some twenty bytes for 2 KiB;
//! and of each key ten bits, which say whether it may be there.

mod builder;
mod cursor;
mod filter;
mod merged;

use std::sync::Arc;

use bytes::Bytes;

pub(super) use self::builder::RunBuilder;
pub(super) use self::cursor::Cursor;
use self::filter::Filters;
pub(super) use self::merged::{Item, Merged};
use super::files::RunFile;
use super::memory::{Memory, Taken};
use super::record::corrupt;
use crate::error::Result;

/// Bytes after which a block ends.
const BLOCK: usize = if cfg!(test) { 64 } else { 2 << 10 };
/// Bytes after which a chunk ends.
const CHUNK: usize = if cfg!(test) { 256 } else { 256 << 10 };

/// The first eight bytes of a key as a number, in the same order.
#[inline]
pub(super) fn head(key: &[u8]) -> u64 {
    if let Some(first) = key.first_chunk::<8>() {
        return u64::from_be_bytes(*first);
    }
    let mut padded = [0; 8];
    padded.iter_mut().zip(key).for_each(|(to, from)| *to = *from);
    u64::from_be_bytes(padded)
}

/// Where a block stands.
#[derive(Debug, Clone, Copy)]
struct Block {
    chunk: u32,
    offset: u32,
    sum: u32,
}

/// What is known of each block.
#[derive(Debug, Default)]
struct Index {
    /// Heads of the first keys.
    heads: Vec<u64>,
    blocks: Vec<Block>,
    /// First keys of those blocks whose heads are those of the blocks before.
    keys: Vec<(u32, Box<[u8]>)>,
    /// By chunk; none where keys do not begin with hashes.
    filters: Option<Filters>,
    entries: u64,
    /// Bytes of puts that are over at some time.
    expiring_bytes: u64,
    /// When the last of them is.
    expired_ms: i64,
    /// Its memory, once all of it is there.
    taken: Option<Taken>,
}

impl Index {
    /// The last block, not before `from`, whose entries before a key need not be looked at: the one to begin at. And
    /// whether there are keys with the key's head for certain.
    fn find(&self, key: &[u8], from: usize) -> (usize, bool) {
        let wanted = head(key);
        let rest = self.heads.get(from..).unwrap_or_default();
        // Keys come in order and are seldom far apart.
        let mut bound = 1;
        while rest.get(bound).is_some_and(|head| *head < wanted) {
            bound *= 2;
        }
        let near = rest.get(bound / 2..rest.len().min(bound + 1)).unwrap_or_default();
        let equal = from + bound / 2 + near.partition_point(|head| *head < wanted);
        if self.heads.get(equal) == Some(&wanted) {
            let first = self.keys.partition_point(|(block, _)| *block as usize <= equal);
            let more = self.keys.get(first..).unwrap_or_default();
            let is_before = |(block, first): &(u32, Box<[u8]>)| {
                self.heads.get(*block as usize) == Some(&wanted) && **first <= *key
            };
            let last = more.partition_point(is_before).checked_sub(1).and_then(|at| more.get(at));
            if let Some((block, _)) = last {
                return (*block as usize, true);
            }
        }
        (equal.saturating_sub(1).max(from), self.heads.get(equal) == Some(&wanted))
    }

    /// Whether keys with this head may be in a block.
    fn may_have(&self, block: usize, head: u64) -> bool {
        match (&self.filters, self.blocks.get(block)) {
            (Some(filters), Some(block)) => filters.may_have(block.chunk as usize, head),
            _ => true,
        }
    }

    fn bytes(&self) -> u64 {
        let keys: usize = self.keys.iter().map(|(_, key)| key.len() + size_of::<(u32, Box<[u8]>)>()).sum();
        let filters = self.filters.as_ref().map_or(0, Filters::bytes);
        let (heads, blocks) = (self.heads.capacity(), self.blocks.capacity());
        (heads * size_of::<u64>() + blocks * size_of::<Block>() + keys + filters) as u64
    }
}

#[derive(Debug, Clone)]
enum Place {
    Memory(Bytes),
    File { from: u64, len: usize },
}

impl Place {
    const fn len(&self) -> usize {
        match self {
            Self::Memory(bytes) => bytes.len(),
            Self::File { len, .. } => *len,
        }
    }
}

/// Sorted entries.
#[derive(Debug)]
pub(super) struct Run {
    index: Arc<Index>,
    chunks: Vec<Place>,
    file: Option<Arc<dyn RunFile>>,
    /// Bytes of all chunks.
    bytes: u64,
    /// The memory of those that are there.
    resident: Taken,
    memory: Memory,
}

impl Run {
    fn new(index: Arc<Index>, chunks: Vec<Place>, file: Option<Arc<dyn RunFile>>, memory: &Memory) -> Self {
        let resident = |chunk: &Place| if let Place::Memory(bytes) = chunk { bytes.len() as u64 } else { 0 };
        let bytes = chunks.iter().map(|chunk| chunk.len() as u64).sum();
        let resident = memory.take(chunks.iter().map(resident).sum());
        Self { index, chunks, file, bytes, resident, memory: memory.clone() }
    }

    /// Entries in it, those that delete or clear included.
    pub(super) fn entries(&self) -> u64 {
        self.index.entries
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.index.entries == 0
    }

    /// Bytes of its entries, wherever they are.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of its entries that are over at this time, if none is left to be over later.
    pub(super) fn expired_bytes(&self, now_ms: i64) -> u64 {
        if self.index.expired_ms <= now_ms { self.index.expiring_bytes } else { 0 }
    }

    /// Bytes of its entries that are in memory.
    pub(super) const fn resident_bytes(&self) -> u64 {
        self.resident.bytes()
    }

    /// Bytes of memory it takes.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.resident.bytes() + self.index.taken.as_ref().map_or(0, Taken::bytes)
    }

    /// The same run, with all of it that was in memory in a file, unless it has one already.
    pub(super) fn spilled(&self, file: &Arc<dyn RunFile>) -> Result<Self> {
        let file = self.file.as_ref().unwrap_or(file);
        let spill = |chunk: &Place| match chunk {
            Place::Memory(bytes) => Ok(Place::File { from: file.append(bytes)?, len: bytes.len() }),
            Place::File { .. } => Ok(chunk.clone()),
        };
        let chunks = self.chunks.iter().map(spill).collect::<Result<_>>()?;
        Ok(Self::new(Arc::clone(&self.index), chunks, Some(Arc::clone(file)), &self.memory))
    }

    /// Where a block ends in its chunk.
    fn block_end(&self, block: usize) -> usize {
        let (blocks, chunks) = (&self.index.blocks, &self.chunks);
        let chunk = blocks.get(block).map_or(0, |block| block.chunk);
        match blocks.get(block + 1) {
            Some(next) if next.chunk == chunk => next.offset as usize,
            _ => chunks.get(chunk as usize).map_or(0, Place::len),
        }
    }

    /// Blocks of one chunk from a given one on, at least one and at most so many: their bytes, and where those
    /// begin in the chunk. What is in memory comes as a whole.
    fn load(&self, block: usize, blocks_max: usize) -> Result<(Bytes, usize)> {
        let missing = || corrupt("a run has no such block");
        let first = self.index.blocks.get(block).ok_or_else(missing)?;
        match self.chunks.get(first.chunk as usize).ok_or_else(missing)? {
            Place::Memory(bytes) => Ok((bytes.clone(), 0)),
            Place::File { from, .. } => {
                let rest = self.index.blocks.get(block..).unwrap_or_default();
                let of_chunk = rest.iter().take(blocks_max.max(1)).take_while(|b| b.chunk == first.chunk);
                let last = block + of_chunk.count() - 1;
                let mut bytes = vec![0; self.block_end(last) - first.offset as usize];
                let file = self.file.as_ref().ok_or_else(missing)?;
                file.read(&mut bytes, from + u64::from(first.offset))?;
                self.check(&bytes, block..=last)?;
                Ok((bytes.into(), first.offset as usize))
            }
        }
    }

    fn check(&self, mut bytes: &[u8], blocks: std::ops::RangeInclusive<usize>) -> Result<()> {
        for number in blocks {
            let Some(block) = self.index.blocks.get(number) else { break };
            let len = self.block_end(number) - block.offset as usize;
            let (mine, rest) = bytes.split_at_checked(len).unwrap_or_default();
            if crc32fast::hash(mine) != block.sum {
                return Err(corrupt("what was written to a file in the spill folder reads otherwise"));
            }
            bytes = rest;
        }
        Ok(())
    }
}
