//! Goes through a run, forward.

use std::sync::Arc;

use bytes::Bytes;

use super::super::record::Record;
use super::{Run, head};
use crate::error::Result;

/// Blocks that are read at a time, once many are read in a row.
const AHEAD_MAX: usize = 128;

/// A place in a run.
#[derive(Debug)]
pub(in crate::state) struct Cursor {
    run: Arc<Run>,
    /// The block it is in, or would be.
    block: usize,
    /// The block that the record is in.
    entered: Option<usize>,
    /// Bytes of the chunk, or some of its blocks, and where they begin in it.
    data: Bytes,
    base: usize,
    /// The chunk that `data` is of.
    chunk: Option<u32>,
    /// Where the block ends in `data`.
    block_end: usize,
    /// Blocks to read at a time.
    ahead: usize,
    record: Record,
    /// Head of the record's key.
    head: u64,
    state: Standing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// Before the first entry; nothing is read yet.
    Before,
    /// At an entry.
    At,
    /// Before keys that are not in the run.
    Aside,
    /// Behind the last.
    Behind,
}

impl Cursor {
    /// Before the first entry.
    pub(in crate::state) fn new(run: Arc<Run>) -> Self {
        Self {
            run,
            block: 0,
            entered: None,
            data: Bytes::new(),
            base: 0,
            chunk: None,
            block_end: 0,
            ahead: 1,
            record: Record::default(),
            head: 0,
            state: Standing::Before,
        }
    }

    /// Goes on in the same run at another place, if it is that one.
    pub(in crate::state) fn moved(&mut self, from: &Arc<Run>, to: &Arc<Run>) {
        if Arc::ptr_eq(&self.run, from) {
            self.run = Arc::clone(to);
        }
    }

    /// Head of its key, if it is at an entry.
    #[inline]
    pub(in crate::state) fn head(&self) -> Option<u64> {
        (self.state == Standing::At).then_some(self.head)
    }

    /// The key of its entry.
    #[inline]
    pub(in crate::state) fn key(&self) -> &[u8] {
        self.record.key(&self.data)
    }

    /// The bytes that its entry stands in.
    #[inline]
    pub(in crate::state) fn bytes(&self) -> &[u8] {
        &self.data
    }

    /// What is known of its entry.
    #[inline]
    pub(in crate::state) const fn record(&self) -> &Record {
        &self.record
    }

    /// Goes on to the next entry.
    pub(in crate::state) fn next(&mut self) -> Result<()> {
        match self.state {
            Standing::Behind => Ok(()),
            Standing::Before => self.enter(0),
            // What is next depends on what it is asked for.
            Standing::Aside => self.enter(self.block),
            Standing::At if self.record.end < self.block_end => self.read(self.record.end),
            Standing::At => {
                self.ahead = (2 * self.ahead).min(AHEAD_MAX);
                self.enter(self.block + 1)
            }
        }
    }

    /// Goes on to the first entry whose key is not below `key`; stays where its own is not.
    pub(in crate::state) fn seek(&mut self, key: &[u8]) -> Result<()> {
        if self.is_passed(key) {
            return Ok(());
        }
        let (block, _) = self.run.index.find(key, self.block);
        self.go_on(block, key)
    }

    /// Goes on to the first entry whose key begins with `prefix`, which has a hash at its beginning. If there is none, it
    /// is at no entry, or behind it, and reads no more than it must.
    pub(in crate::state) fn seek_prefix(&mut self, prefix: &[u8]) -> Result<()> {
        if self.is_passed(prefix) {
            return Ok(());
        }
        let (block, has_head) = self.run.index.find(prefix, self.block);
        if has_head || self.run.index.may_have(block, head(prefix)) {
            return self.go_on(block, prefix);
        }
        (self.block, self.state) = (block, Standing::Aside);
        Ok(())
    }

    /// Is at no entry until it is sent to one.
    pub(in crate::state) fn step_aside(&mut self) {
        if self.state != Standing::Behind {
            self.state = Standing::Aside;
        }
    }

    /// Whether it is not before `key`.
    fn is_passed(&self, key: &[u8]) -> bool {
        match self.state {
            Standing::Behind => true,
            Standing::At => !self.is_below(head(key), key),
            Standing::Before | Standing::Aside => false,
        }
    }

    /// Goes on to a key from the beginning of a block, or from where it is in it.
    fn go_on(&mut self, block: usize, key: &[u8]) -> Result<()> {
        if self.entered == Some(block) {
            self.state = Standing::At;
        } else {
            self.ahead = 1;
            self.enter(block)?;
        }
        let wanted = head(key);
        while self.state == Standing::At && self.is_below(wanted, key) {
            self.next()?;
        }
        Ok(())
    }

    /// Passes all that is left.
    pub(in crate::state) fn leave(&mut self) {
        self.state = Standing::Behind;
        self.data = Bytes::new();
        (self.chunk, self.entered) = (None, None);
    }

    #[inline]
    fn is_below(&self, wanted: u64, key: &[u8]) -> bool {
        self.head < wanted || (self.head == wanted && self.key() < key)
    }

    fn enter(&mut self, number: usize) -> Result<()> {
        let Some(block) = self.run.index.blocks.get(number).copied() else {
            self.leave();
            return Ok(());
        };
        let (offset, end) = (block.offset as usize, self.run.block_end(number));
        let is_here =
            self.chunk == Some(block.chunk) && self.base <= offset && end <= self.base + self.data.len();
        if !is_here {
            (self.data, self.base) = self.run.load(number, self.ahead)?;
            self.chunk = Some(block.chunk);
        }
        (self.block, self.entered, self.block_end) = (number, Some(number), end - self.base);
        self.read(offset - self.base)
    }

    #[inline]
    fn read(&mut self, at: usize) -> Result<()> {
        self.record = Record::read(&self.data, at)?;
        self.head = head(self.record.key(&self.data));
        self.state = Standing::At;
        Ok(())
    }
}
