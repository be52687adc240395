//! Writes a run, entry by entry.

use std::sync::Arc;

use super::super::record::{Record, corrupt};
use super::{BLOCK, Block, CHUNK, Filters, Index, Place, Run, head};
use crate::determinant::codec::put_varint;
use crate::error::Result;
use crate::state::files::RunFile;

/// A run that is being written.
#[derive(Debug, Default)]
pub(in crate::state) struct RunBuilder {
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
    pub(in crate::state) fn new(file: Option<Arc<dyn RunFile>>) -> Self {
        Self { file, ..Self::default() }
    }

    /// The same for keys that begin with hashes, so that there is no looking for those that are not there.
    pub(in crate::state) fn by_hash(file: Option<Arc<dyn RunFile>>) -> Self {
        let index = Index { filters: Some(Filters::default()), ..Index::default() };
        Self { file, index, heads: Some(Vec::new()), ..Self::default() }
    }

    /// Bytes of memory that it takes.
    pub(in crate::state) fn memory_bytes(&self) -> u64 {
        self.open.capacity() as u64 + self.resident_bytes + self.index.bytes()
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
        Ok(Run::new(Arc::new(self.index), self.chunks, self.file))
    }
}
