//! Writes a run, entry by entry.

use std::sync::Arc;

use super::super::record::{Record, corrupt};
use super::{BLOCK, Block, CHUNK, Filters, Index, Place, Run, head};
use crate::determinant::codec::put_varint;
use crate::error::Result;
use crate::state::files::RunFile;
use crate::state::memory::{Memory, Taken};

/// A run that is being written.
#[derive(Debug)]
pub(in crate::state) struct RunBuilder {
    memory: Memory,
    /// What it takes, as of the last chunk.
    taken: Taken,
    index: Index,
    chunks: Vec<Place>,
    file: Option<Arc<dyn RunFile>>,
    /// Bytes of chunks in memory.
    resident_bytes: u64,
    /// The chunk that is not whole yet.
    open: Vec<u8>,
    /// Where its last block begins.
    block: usize,
    /// Where the last key stands in it.
    last: (usize, usize),
    /// Heads of its keys, if there are to be filters.
    heads: Option<Vec<u64>>,
}

impl RunBuilder {
    /// In memory, or in a file, chunk by chunk.
    pub(in crate::state) fn new(memory: &Memory, file: Option<Arc<dyn RunFile>>) -> Self {
        Self {
            memory: memory.clone(),
            taken: memory.take(0),
            index: Index::default(),
            chunks: Vec::new(),
            file,
            resident_bytes: 0,
            open: Vec::new(),
            block: 0,
            last: (0, 0),
            heads: None,
        }
    }

    /// The same for keys that begin with hashes, so that there is no looking for those that are not there.
    pub(in crate::state) fn by_hash(memory: &Memory, file: Option<Arc<dyn RunFile>>) -> Self {
        let index = Index { filters: Some(Filters::default()), ..Index::default() };
        Self { index, heads: Some(Vec::new()), ..Self::new(memory, file) }
    }

    /// Gets ready for all that is in some runs: what grows bit by bit is there twice each time that it does.
    pub(in crate::state) fn reserve<'a>(&mut self, runs: impl Iterator<Item = &'a Arc<Run>> + Clone) {
        let blocks = runs.clone().map(|run| run.index.blocks.len()).sum();
        self.index.heads.reserve_exact(blocks);
        self.index.blocks.reserve_exact(blocks);
        if let Some(filters) = &mut self.index.filters {
            filters.reserve(runs.filter_map(|run| run.index.filters.as_ref()));
        }
        self.count();
    }

    /// Bytes of memory that it takes.
    pub(in crate::state) const fn memory_bytes(&self) -> u64 {
        self.taken.bytes()
    }

    /// Bytes of it that can go to a file.
    pub(in crate::state) const fn resident_bytes(&self) -> u64 {
        self.resident_bytes
    }

    /// Moves what there is to a file, where the rest goes too.
    pub(in crate::state) fn spill(&mut self, file: &Arc<dyn RunFile>) -> Result<()> {
        let file = self.file.get_or_insert_with(|| Arc::clone(file));
        for chunk in &mut self.chunks {
            if let Place::Memory(bytes) = chunk {
                let (len, from) = (bytes.len(), file.append(bytes)?);
                *chunk = Place::File { from, len };
                self.resident_bytes -= len as u64;
            }
        }
        self.count();
        Ok(())
    }

    fn count(&mut self) {
        let heads = self.heads.as_ref().map_or(0, |heads| heads.capacity() * size_of::<u64>());
        let open = (self.open.capacity() + heads) as u64;
        self.taken.resize(open + self.resident_bytes + self.index.bytes());
    }

    /// The last key, if the chunk that is being written has one.
    pub(in crate::state) fn last_key(&self) -> &[u8] {
        self.open.get(self.last.0..self.last.1).unwrap_or_default()
    }

    /// Adds an entry as it stands among others. Keys do not descend.
    pub(in crate::state) fn push(&mut self, record: &Record, bytes: &[u8]) -> Result<()> {
        let key = record.key(bytes);
        self.begin_entry(key)?;
        let key_at = self.open.len() + record.key_at();
        self.last = (key_at, key_at + key.len());
        self.open.extend_from_slice(record.whole(bytes));
        if record.expires_ms > 0 {
            self.index.expiring_bytes += record.whole(bytes).len() as u64;
            self.index.expired_ms = self.index.expired_ms.max(record.expires_ms);
        }
        Ok(())
    }

    /// Adds an entry in pieces: `rest` is all that follows its key.
    pub(in crate::state) fn push_parts(&mut self, key: &[u8], rest: &[u8]) -> Result<()> {
        self.begin_entry(key)?;
        put_varint(&mut self.open, key.len() as u64);
        let key_at = self.open.len();
        self.open.extend_from_slice(key);
        self.last = (key_at, key_at + key.len());
        self.open.extend_from_slice(rest);
        Ok(())
    }

    fn begin_entry(&mut self, key: &[u8]) -> Result<()> {
        let is_first = self.open.is_empty();
        if is_first || (self.open.len() - self.block >= BLOCK && self.last_key() != key) {
            self.end_block();
            if self.open.len() >= CHUNK {
                self.end_chunk()?;
            }
            self.begin_block(key)?;
        }
        self.index.entries += 1;
        if let Some(heads) = &mut self.heads {
            let head = head(key);
            if heads.last() != Some(&head) {
                heads.push(head);
            }
        }
        Ok(())
    }

    fn begin_block(&mut self, key: &[u8]) -> Result<()> {
        let too_large = |_| corrupt("a run has more bytes than it can have");
        let head = head(key);
        let number = u32::try_from(self.index.blocks.len()).map_err(too_large)?;
        let offset = u32::try_from(self.open.len()).map_err(too_large)?;
        let chunk = u32::try_from(self.chunks.len()).map_err(too_large)?;
        if self.index.heads.last() == Some(&head) {
            self.index.keys.push((number, key.into()));
        }
        self.index.heads.push(head);
        self.index.blocks.push(Block { chunk, offset, sum: 0 });
        self.block = self.open.len();
        Ok(())
    }

    fn end_block(&mut self) {
        if let (false, Some(block)) = (self.open.is_empty(), self.index.blocks.last_mut()) {
            block.sum = crc32fast::hash(self.open.get(self.block..).unwrap_or_default());
        }
    }

    fn end_chunk(&mut self) -> Result<()> {
        let place = match &self.file {
            Some(file) => {
                let place = Place::File { from: file.append(&self.open)?, len: self.open.len() };
                self.open.clear();
                place
            }
            None => {
                self.resident_bytes += self.open.len() as u64;
                Place::Memory(std::mem::take(&mut self.open).into_boxed_slice().into())
            }
        };
        self.chunks.push(place);
        if let (Some(filters), Some(heads)) = (&mut self.index.filters, &mut self.heads) {
            filters.push(heads);
            heads.clear();
        }
        (self.block, self.last) = (0, (0, 0));
        self.count();
        Ok(())
    }

    /// All of it.
    pub(in crate::state) fn finish(mut self) -> Result<Run> {
        self.end_block();
        if !self.open.is_empty() {
            self.end_chunk()?;
        }
        self.index.heads.shrink_to_fit();
        self.index.blocks.shrink_to_fit();
        if let Some(filters) = &mut self.index.filters {
            filters.shrink();
        }
        self.index.taken = Some(self.memory.take(self.index.bytes()));
        Ok(Run::new(Arc::new(self.index), self.chunks, self.file, &self.memory))
    }
}
