//! Where recorded rows stand, in the order of their fingerprints: sorted runs on disk.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::sync::Arc;

use crate::edge::disk::spill::{Scratch, SpillDir};
use crate::error::Result;

/// Bytes of an entry on disk.
const ENTRY: usize = 32;
/// Entries that are read at a time to find one.
const PAGE: usize = if cfg!(test) { 4 } else { 128 };
/// Pages that are written, or read to be merged, at a time.
const PAGES: usize = if cfg!(test) { 2 } else { 8 };

/// What an entry stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) enum Role {
    /// A row, where it was recorded first.
    #[default]
    Original,
    /// A row that was copied from another log of the same use.
    Copy,
    /// A row that was copied from a log of another use.
    OfOtherUse,
    /// A row that has an entry already, to be found by its mark, too.
    Marked,
}

impl Role {
    const ALL: [Self; 4] = [Self::Original, Self::Copy, Self::OfOtherUse, Self::Marked];
    /// Where it stands in the number of the log: there are not so many.
    const SHIFT: u32 = u32::BITS - 2;

    const fn with(self, log: u32) -> u32 {
        log | (self as u32) << Self::SHIFT
    }

    fn split(both: u32) -> (Self, u32) {
        let role = Self::ALL.get((both >> Self::SHIFT) as usize).copied().unwrap_or_default();
        (role, both & !(u32::MAX << Self::SHIFT))
    }
}

/// One recorded row. Entries are in the order of fingerprints; equal ones in that of logs and of rows in them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct Entry {
    pub(super) fingerprint: u64,
    /// Number of the log.
    pub(super) log: u32,
    /// Where its value stands.
    pub(super) offset: u64,
    pub(super) len: u32,
    /// Hash of the value.
    pub(super) value: u64,
    pub(super) role: Role,
}

impl Entry {
    /// Position behind the value.
    pub(super) const fn end(&self) -> u64 {
        self.offset + self.len as u64
    }

    fn write(self, out: &mut Vec<u8>) {
        out.extend(self.fingerprint.to_le_bytes());
        out.extend(self.offset.to_le_bytes());
        out.extend(self.value.to_le_bytes());
        out.extend(self.role.with(self.log).to_le_bytes());
        out.extend(self.len.to_le_bytes());
    }

    fn read(bytes: &[u8; ENTRY]) -> Self {
        let (longs, ints) = (bytes.as_chunks::<8>().0, bytes.as_chunks::<4>().0);
        let long = |at: usize| longs.get(at).map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let int = |at: usize| ints.get(at).map_or(0, |bytes| u32::from_le_bytes(*bytes));
        let (role, log) = Role::split(int(6));
        Self { fingerprint: long(0), offset: long(1), value: long(2), log, len: int(7), role }
    }
}

/// Sorted entries.
#[derive(Debug)]
pub(super) struct Run {
    file: Scratch,
    len: u64,
    /// First fingerprint and log, and checksum, of each page.
    pages: Vec<(u64, u32, u32)>,
}

/// The page that was read last.
#[derive(Debug, Default)]
pub(super) struct Page {
    number: Option<usize>,
    bytes: Vec<u8>,
}

impl Run {
    /// Writes sorted entries.
    pub(super) fn write(dir: &Arc<SpillDir>, sorted: &[Entry]) -> Result<Self> {
        let mut writer = Writer::new(dir)?;
        sorted.iter().try_for_each(|entry| writer.push(*entry))?;
        writer.finish()
    }

    pub(super) const fn len(&self) -> u64 {
        self.len
    }

    /// Place of the first entry of this fingerprint and log, or of the next there is.
    pub(super) fn first_of(&self, fingerprint: u64, log: u32, page: &mut Page) -> Result<u64> {
        let wanted = (fingerprint, log);
        // A page whose first entry equals the wanted may follow others that end with it.
        let after = self.pages.partition_point(|&(fingerprint, log, _)| (fingerprint, log) < wanted);
        let Some(number) = after.checked_sub(1) else { return Ok(0) };
        let is_before = |entry: &[u8; ENTRY]| {
            let Entry { fingerprint, log, .. } = Entry::read(entry);
            (fingerprint, log) < wanted
        };
        let within = self.page(number, page)?.partition_point(is_before);
        Ok((number * PAGE + within) as u64)
    }

    /// The entry at a place.
    pub(super) fn at(&self, place: u64, page: &mut Page) -> Result<Entry> {
        let number = usize::try_from(place / PAGE as u64).unwrap_or(usize::MAX);
        let entries = self.page(number, page)?;
        let within = usize::try_from(place % PAGE as u64).unwrap_or(usize::MAX);
        entries.get(within).map(Entry::read).ok_or_else(|| self.file.corrupt(place * ENTRY as u64))
    }

    fn page<'a>(&self, number: usize, page: &'a mut Page) -> Result<&'a [[u8; ENTRY]]> {
        if page.number != Some(number) {
            page.number = None;
            self.read(number, 1, &mut page.bytes)?;
            page.number = Some(number);
        }
        Ok(page.bytes.as_chunks::<ENTRY>().0)
    }

    /// Reads some pages.
    fn read(&self, first: usize, pages: usize, into: &mut Vec<u8>) -> Result<()> {
        let from = first * PAGE;
        let len = usize::try_from(self.len).unwrap_or(usize::MAX).saturating_sub(from).min(pages * PAGE);
        into.resize(len * ENTRY, 0);
        self.file.read(into, (from * ENTRY) as u64)?;
        for (page, number) in into.chunks(PAGE * ENTRY).zip(first..) {
            let sum = self.pages.get(number).map(|(_, _, sum)| *sum);
            if sum != Some(crc32fast::hash(page)) {
                return Err(self.file.corrupt((number * PAGE * ENTRY) as u64));
            }
        }
        Ok(())
    }
}

/// Writes a run, entry by entry.
#[derive(Debug)]
struct Writer {
    run: Run,
    page: Vec<u8>,
    unwritten: Vec<u8>,
}

impl Writer {
    fn new(dir: &Arc<SpillDir>) -> Result<Self> {
        let run = Run { file: Scratch::create(dir)?, len: 0, pages: Vec::new() };
        Ok(Self { run, page: Vec::with_capacity(PAGE * ENTRY), unwritten: Vec::new() })
    }

    fn push(&mut self, entry: Entry) -> Result<()> {
        if self.page.is_empty() {
            self.run.pages.push((entry.fingerprint, entry.log, 0));
        }
        entry.write(&mut self.page);
        self.run.len += 1;
        if self.page.len() == PAGE * ENTRY {
            self.end_page();
        }
        if self.unwritten.len() >= PAGES * PAGE * ENTRY { self.write() } else { Ok(()) }
    }

    fn end_page(&mut self) {
        if let Some((_, _, sum)) = self.run.pages.last_mut() {
            *sum = crc32fast::hash(&self.page);
        }
        self.unwritten.append(&mut self.page);
    }

    fn write(&mut self) -> Result<()> {
        self.run.file.append(&self.unwritten)?;
        self.unwritten.clear();
        Ok(())
    }

    fn finish(mut self) -> Result<Run> {
        if !self.page.is_empty() {
            self.end_page();
        }
        if !self.unwritten.is_empty() {
            self.write()?;
        }
        Ok(self.run)
    }
}

/// Some runs that become one.
#[derive(Debug)]
pub(super) struct Merge {
    sources: Vec<Entries>,
    /// The next entry of each source that has one.
    next: BinaryHeap<Reverse<(Entry, usize)>>,
    writer: Writer,
}

/// The entries of a run, one after the other.
#[derive(Debug)]
pub(super) struct Entries {
    run: Arc<Run>,
    /// The next page that is not read.
    page: usize,
    bytes: Vec<u8>,
    at: usize,
}

impl Entries {
    pub(super) fn of(run: &Arc<Run>) -> Self {
        Self { run: Arc::clone(run), page: 0, bytes: Vec::new(), at: 0 }
    }

    pub(super) fn next(&mut self) -> Result<Option<Entry>> {
        if self.at == self.bytes.as_chunks::<ENTRY>().0.len() {
            if self.page >= self.run.pages.len() {
                return Ok(None);
            }
            self.run.read(self.page, PAGES, &mut self.bytes)?;
            (self.page, self.at) = (self.page + PAGES, 0);
        }
        self.at += 1;
        Ok(self.bytes.as_chunks::<ENTRY>().0.get(self.at - 1).map(Entry::read))
    }
}

impl Merge {
    pub(super) fn new(dir: &Arc<SpillDir>, runs: &[Arc<Run>]) -> Result<Self> {
        let mut merge = Self {
            sources: runs.iter().map(Entries::of).collect(),
            next: BinaryHeap::new(),
            writer: Writer::new(dir)?,
        };
        for (number, source) in merge.sources.iter_mut().enumerate() {
            merge.next.extend(source.next()?.map(|entry| Reverse((entry, number))));
        }
        Ok(merge)
    }

    /// Takes so many entries. Whether that was all.
    pub(super) fn advance(&mut self, entries: usize) -> Result<bool> {
        for _ in 0..entries {
            let Some(mut first) = self.next.peek_mut() else { return Ok(true) };
            let Reverse((entry, number)) = *first;
            self.writer.push(entry)?;
            match self.sources.get_mut(number).map_or(Ok(None), Entries::next)? {
                Some(entry) => *first = Reverse((entry, number)),
                None => drop(PeekMut::pop(first)),
            }
        }
        Ok(self.next.is_empty())
    }

    pub(super) fn finish(self) -> Result<Run> {
        self.writer.finish()
    }
}
