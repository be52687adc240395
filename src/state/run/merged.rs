//! Several runs as one: of each key what the newest says, and nothing that was cleared since.

use std::cmp::Ordering;
use std::sync::Arc;

use super::super::entries::CLEAR;
use super::super::key::{Range, RangeSet, SLOT, prefix_len};
use super::super::record::Record;
use super::{Cursor, Run};
use crate::error::Result;

/// What is next.
#[derive(Debug, Clone, Copy)]
pub(in crate::state) enum Item {
    /// All that stands in a slot in runs that are not read here is gone.
    Clear,
    /// What has become of an entry.
    Entry(Record),
}

/// Goes through several runs at once.
#[derive(Debug)]
pub(in crate::state) struct Merged {
    /// The newest first.
    sources: Vec<Source>,
    /// The slot that was cleared last, and by which source; older ones have nothing there.
    cleared: Vec<u8>,
    clearer: usize,
    /// Where the next entry is, which was found but not passed yet.
    found: Option<usize>,
}

#[derive(Debug)]
struct Source {
    cursor: Cursor,
    /// Ranges that count.
    ranges: RangeSet,
}

impl Source {
    /// Passes entries of ranges that do not count.
    #[inline]
    fn settle(&mut self) -> Result<()> {
        if self.ranges == RangeSet::ALL {
            return Ok(());
        }
        while self.cursor.head().is_some() {
            let range = Range(self.cursor.key().first().copied().unwrap_or(0));
            if self.ranges.contains(range) {
                break;
            }
            let next = self.ranges.iter().find(|next| *next > range);
            match next {
                Some(next) => self.cursor.seek(&[next.0])?,
                None => self.cursor.leave(),
            }
        }
        Ok(())
    }

    fn next(&mut self) -> Result<()> {
        self.cursor.next()?;
        self.settle()
    }

    fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.cursor.seek(key)?;
        self.settle()
    }

    fn seek_prefix(&mut self, prefix: &[u8]) -> Result<()> {
        if !prefix.first().is_some_and(|range| self.ranges.contains(Range(*range))) {
            self.cursor.step_aside();
            return Ok(());
        }
        self.cursor.seek_prefix(prefix)?;
        self.settle()
    }
}

impl Merged {
    /// Of runs with the ranges of each that count, the newest first. It stands nowhere until [`Self::seek`].
    pub(in crate::state) fn new<'a>(runs: impl Iterator<Item = (&'a Arc<Run>, RangeSet)>) -> Self {
        let source =
            |(run, ranges): (&Arc<Run>, RangeSet)| Source { cursor: Cursor::new(Arc::clone(run)), ranges };
        Self { sources: runs.map(source).collect(), cleared: Vec::new(), clearer: 0, found: None }
    }

    /// Reads a run from where it lies now.
    pub(in crate::state) fn moved(&mut self, from: &Arc<Run>, to: &Arc<Run>) {
        self.sources.iter_mut().for_each(|source| source.cursor.moved(from, to));
    }

    /// Goes on to the first entry that is not below `key`.
    pub(in crate::state) fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.found = None;
        self.sources.iter_mut().try_for_each(|source| source.seek(key))
    }

    /// As [`Self::seek`], for a key's prefix; what does not begin with it may be missing.
    pub(in crate::state) fn seek_prefix(&mut self, prefix: &[u8]) -> Result<()> {
        self.found = None;
        self.sources.iter_mut().try_for_each(|source| source.seek_prefix(prefix))
    }

    /// As [`Self::seek`], for a key that may be amid others of its slot: what was cleared there counts.
    pub(in crate::state) fn seek_within(&mut self, key: &[u8]) -> Result<()> {
        let slot = prefix_len(key).and_then(|len| key.get(..len + SLOT)).unwrap_or_default();
        self.seek(slot)?;
        let clears = |source: &Source| {
            source.cursor.head().is_some()
                && source.cursor.record().op == CLEAR
                && source.cursor.key() == slot
        };
        if !slot.is_empty()
            && let Some(clearer) = self.sources.iter().position(clears)
        {
            self.cleared.clear();
            self.cleared.extend_from_slice(slot);
            self.clearer = clearer;
        }
        // Where the slot itself is wanted, what clears it is found by what follows.
        if slot.len() < key.len() { self.seek(key) } else { Ok(()) }
    }

    /// Finds what is next, if its key begins with `within`; its key is [`Self::key`]. The one found before is passed, and
    /// nothing else: what clears a slot behind `within` will be found when that is read.
    pub(in crate::state) fn next(&mut self, within: &[u8]) -> Result<Option<Item>> {
        if let Some(found) = self.found.take() {
            self.pass(found)?;
        }
        loop {
            let Some(first) = self.first() else { return Ok(None) };
            let Some(source) = self.sources.get(first) else { return Ok(None) };
            if !source.cursor.key().starts_with(within) {
                return Ok(None);
            }
            let record = *source.cursor.record();
            let is_hidden = first > self.clearer
                && !self.cleared.is_empty()
                && source.cursor.key().starts_with(&self.cleared);
            if is_hidden {
                self.pass(first)?;
                continue;
            }
            if record.op != CLEAR {
                self.found = Some(first);
                return Ok(Some(Item::Entry(record)));
            }
            self.cleared.clear();
            self.cleared.extend_from_slice(source.cursor.key());
            self.clearer = first;
            self.sources.get_mut(first).map_or(Ok(()), Source::next)?;
            return Ok(Some(Item::Clear));
        }
    }

    /// The key of the entry that was found, or of the slot that is cleared.
    pub(in crate::state) fn key(&self) -> &[u8] {
        match self.found.and_then(|found| self.sources.get(found)) {
            Some(source) => source.cursor.key(),
            None => &self.cleared,
        }
    }

    /// The bytes that the entry that was found stands in.
    pub(in crate::state) fn bytes(&self) -> &[u8] {
        let source = self.found.and_then(|found| self.sources.get(found));
        source.map_or(&[], |source| source.cursor.bytes())
    }

    /// The newest source of those with the lowest key; of those that clear its slot, if any does.
    #[inline]
    fn first(&self) -> Option<usize> {
        let mut first: Option<(usize, u64, &Cursor)> = None;
        for (number, Source { cursor, .. }) in self.sources.iter().enumerate() {
            let Some(head) = cursor.head() else { continue };
            let is_first = match first {
                None => true,
                Some((_, least, _)) if head != least => head < least,
                Some((_, _, other)) => match cursor.key().cmp(other.key()) {
                    Ordering::Less => true,
                    Ordering::Equal => cursor.record().op == CLEAR && other.record().op != CLEAR,
                    Ordering::Greater => false,
                },
            };
            if is_first {
                first = Some((number, head, cursor));
            }
        }
        first.map(|(number, ..)| number)
    }

    /// Passes an entry, and what older sources say of its key.
    fn pass(&mut self, found: usize) -> Result<()> {
        let (_, rest) = self.sources.split_at_mut_checked(found).unwrap_or_default();
        let Some((source, older)) = rest.split_first_mut() else { return Ok(()) };
        let Some(head) = source.cursor.head() else { return Ok(()) };
        for old in older {
            while old.cursor.head() == Some(head) && old.cursor.key() == source.cursor.key() {
                old.next()?;
            }
        }
        source.next()
    }
}
