//! What is read of the state of one operator, as it is at one version, however it goes on.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::entries::{Entries, EntriesBuilder};
use super::key::{EntryKey, KeyPrefix, RANGES, Range, RangeSet, Slot, Version, ordered, slot_of, unordered};
use super::record::corrupt;
use super::run::{Item, Merged};
use super::tree::{Layer, merged_in};
use crate::error::{Error, Result};

/// How much is read at a time, in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// About how much in all, but one entry at least.
    pub bytes: u64,
    /// About how much of a list or map of one key: what there is besides is left out.
    pub part: u64,
    /// Nothing from here on, if it says so; as [`EntryKey`]s are, or longer.
    pub until: Option<Bytes>,
}

impl Limits {
    /// Lists and maps are read as they are.
    #[must_use]
    pub const fn whole(bytes: u64) -> Self {
        Self { bytes, part: u64::MAX, until: None }
    }
}

/// Entries of some keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Read {
    /// Some of them.
    Entries {
        /// In order.
        entries: Entries,
        /// Where what was left out of lists and maps begins, in order.
        cut: Vec<EntryKey>,
        /// Where to go on, if there may be more.
        next: Option<EntryKey>,
    },
    /// It is at another version than was asked for: this.
    Behind(Version),
    /// Keys of these ranges were asked for, and they are not held.
    NotHeld(RangeSet),
}

/// Timers that are due.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Due {
    /// Some of them.
    Timers {
        /// When, and of which key, in that order.
        timers: Vec<(i64, KeyPrefix)>,
        /// Whether there may be more.
        more: bool,
    },
    /// It is at another version than was asked for: this.
    Behind(Version),
    /// Keys of these ranges were asked for, and they are not held.
    NotHeld(RangeSet),
}

/// Some of the entries of a range, to be taken over by another agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page {
    /// The range.
    pub range: Range,
    /// The version it is at.
    pub version: Version,
    /// The latest clock of the epochs until then.
    pub now_ms: i64,
    /// What the operator's slots are, if that is known.
    pub catalog: Option<Bytes>,
    /// In order; all are puts.
    pub entries: Entries,
    /// Where to go on; nowhere, if this was the last.
    pub next: Option<EntryKey>,
}

/// The earliest time that a timer of each range may be due: those before were found to be gone.
#[derive(Debug)]
pub(super) struct Floors([AtomicI64; RANGES]);

impl Floors {
    /// No range has timers.
    pub(super) fn none() -> Self {
        Self(std::array::from_fn(|_| AtomicI64::new(i64::MAX)))
    }

    /// The same, for another version.
    pub(super) fn copy(&self) -> Self {
        Self(std::array::from_fn(|at| {
            AtomicI64::new(self.0.get(at).map_or(i64::MIN, |floor| floor.load(Ordering::Relaxed)))
        }))
    }

    /// Takes a timer into account.
    pub(super) fn lower(&self, range: Range, expiry_ms: i64) {
        if let Some(floor) = self.0.get(usize::from(range.0)) {
            floor.fetch_min(expiry_ms, Ordering::Relaxed);
        }
    }

    fn raise(&self, range: Range, expiry_ms: i64) {
        if let Some(floor) = self.0.get(usize::from(range.0)) {
            floor.fetch_max(expiry_ms, Ordering::Relaxed);
        }
    }

    fn of(&self, range: Range) -> i64 {
        self.0.get(usize::from(range.0)).map_or(i64::MIN, |floor| floor.load(Ordering::Relaxed))
    }
}

/// The state of one operator at one version. It stays what it is, and can be read without holding up the store.
#[derive(Debug, Clone)]
pub struct View {
    pub(super) version: Version,
    pub(super) held: RangeSet,
    pub(super) now_ms: i64,
    pub(super) catalog: Option<Bytes>,
    pub(super) entries: Arc<[Layer]>,
    pub(super) timers: Arc<[Layer]>,
    pub(super) floors: Arc<Floors>,
}

impl View {
    /// Its version.
    #[must_use]
    pub const fn version(&self) -> Version {
        self.version
    }

    /// Ranges that are held.
    #[must_use]
    pub const fn held(&self) -> RangeSet {
        self.held
    }

    /// Entries of some keys, which ascend; without what is over at `now_ms`.
    ///
    /// # Errors
    /// [`Error::Misuse`] for keys that do not ascend; those of files, and for runs that are corrupt.
    pub fn read(
        &self,
        version: Version,
        keys: &[KeyPrefix],
        from: Option<&EntryKey>,
        now_ms: i64,
        limits: &Limits,
    ) -> Result<Read> {
        if version != self.version {
            return Ok(Read::Behind(self.version));
        }
        let wanted: RangeSet = keys.iter().map(|key| Range::of(key.hash())).collect();
        let missing = wanted.without(&self.held);
        if !missing.is_empty() {
            return Ok(Read::NotHeld(missing));
        }
        if !keys.is_sorted() {
            return Err(Error::Misuse { what: "keys of state are read in order".into() });
        }
        // Merging drops what was over at the last epoch's clock, so a clock that went back counts for nothing.
        let now_ms = now_ms.max(self.now_ms);
        let mut input = merged_in(&self.entries, &wanted);
        let [bytes_max, part_max] =
            [limits.bytes, limits.part].map(|max| usize::try_from(max).unwrap_or(usize::MAX));
        let (mut entries, mut cut) = (EntriesBuilder::new(), Vec::new());
        let first = from.map(EntryKey::prefix);
        for key in keys.iter().filter(|key| first.as_ref().is_none_or(|first| *key >= first)) {
            match from {
                Some(from) if first.as_ref() == Some(key) => input.seek_within(from.as_bytes())?,
                _ => input.seek_prefix(key.as_bytes())?,
            }
            // The slot that is read, and where in the answer it begins.
            let mut part = (Slot::TIMERS, 0);
            while let Some(item) = input.next(key.as_bytes())? {
                if limits.until.as_ref().is_some_and(|until| input.key() >= until) {
                    return Ok(Read::Entries { entries: entries.finish(), cut, next: None });
                }
                let Item::Entry(record) = item else { continue };
                if !record.is_live(now_ms) {
                    continue;
                }
                let slot = slot_of(input.key()).unwrap_or(Slot::TIMERS);
                if slot != part.0 {
                    part = (slot, entries.len());
                } else if slot != Slot::TIMERS && entries.len() - part.1 >= part_max {
                    // Also where no more is given at a time than a part: it would be begun anew with each page.
                    cut.push(found_at(&input)?);
                    let Some(next) = slot.0.checked_add(1) else { break };
                    input.seek(EntryKey::new(key, Slot(next), &[]).as_bytes())?;
                    continue;
                }
                if entries.len() >= bytes_max && !entries.is_empty() {
                    let (entries, next) = (entries.finish(), Some(found_at(&input)?));
                    return Ok(Read::Entries { entries, cut, next });
                }
                entries.push_entry(record.whole(input.bytes()));
            }
        }
        Ok(Read::Entries { entries: entries.finish(), cut, next: None })
    }

    /// Timers due at or before `until_ms` of keys with such hashes, by time and then by key, behind `after`; at most
    /// `max`.
    ///
    /// # Errors
    /// Those of files, and for runs that are corrupt.
    pub fn due(
        &self,
        version: Version,
        hashes: &RangeInclusive<u64>,
        until_ms: i64,
        after: Option<&Timer>,
        max: usize,
    ) -> Result<Due> {
        if version != self.version {
            return Ok(Due::Behind(self.version));
        }
        let (first, last) = (Range::of(*hashes.start()), Range::of(*hashes.end()));
        let is_wanted = |range: &Range| !hashes.is_empty() && (first..=last).contains(range);
        let wanted: RangeSet = Range::all().filter(is_wanted).collect();
        let missing = wanted.without(&self.held);
        if !missing.is_empty() {
            return Ok(Due::NotHeld(missing));
        }
        let mut heap = BinaryHeap::new();
        for range in wanted.iter() {
            let first = Timers::begin(self, range, hashes, until_ms, after)?;
            heap.extend(first.map(|(first, rest)| Reverse(Next(first, rest))));
        }
        let mut timers = Vec::new();
        while let Some(mut least) = heap.peek_mut() {
            if timers.len() >= max {
                return Ok(Due::Timers { timers, more: true });
            }
            let Reverse(Next(first, rest)) = &mut *least;
            match rest.next_due()? {
                Some(next) => timers.push(std::mem::replace(first, next)),
                None => timers.push(PeekMut::pop(least).0.0),
            }
        }
        Ok(Due::Timers { timers, more: false })
    }

    /// When the first timer is due.
    ///
    /// # Errors
    /// Those of files, and for runs that are corrupt.
    pub fn next_due(&self) -> Result<Option<i64>> {
        let mut least = None;
        for range in self.held.iter() {
            let until_ms = least.unwrap_or(i64::MAX);
            if self.floors.of(range) < until_ms {
                let first = Timers::begin(self, range, &(0..=u64::MAX), until_ms, None)?;
                least = first.map(|((expiry_ms, _), _)| expiry_ms).or(least);
            }
        }
        Ok(least)
    }

    /// All entries of a range, page by page; about `bytes_max` in each, but one at least. The catalog comes with the
    /// first.
    ///
    /// # Errors
    /// [`Error::Misuse`] if the range is not held; those of files, and for runs that are corrupt.
    pub fn page(&self, range: Range, from: Option<&EntryKey>, bytes_max: usize) -> Result<Page> {
        if !self.held.contains(range) {
            return Err(Error::Misuse { what: format!("range {} of state is not held", range.0) });
        }
        let mut input = merged_in(&self.entries, &[range].into_iter().collect());
        match from {
            Some(from) => input.seek_within(from.as_bytes())?,
            None => input.seek(&[range.0])?,
        }
        let (mut entries, mut next) = (EntriesBuilder::new(), None);
        while let Some(item) = input.next(&[range.0])? {
            let Item::Entry(record) = item else { continue };
            if !record.is_live(self.now_ms) {
                continue;
            }
            if entries.len() >= bytes_max && !entries.is_empty() {
                next = Some(found_at(&input)?);
                break;
            }
            entries.push_entry(record.whole(input.bytes()));
        }
        let catalog = self.catalog.clone().filter(|_| from.is_none());
        let (version, now_ms) = (self.version, self.now_ms);
        Ok(Page { range, version, now_ms, catalog, entries: entries.finish(), next })
    }
}

/// Where the entry stands that was found last.
fn found_at(input: &Merged) -> Result<EntryKey> {
    EntryKey::from_bytes(Bytes::copy_from_slice(input.key()))
}

/// When a timer is due, and of which key it is.
type Timer = (i64, KeyPrefix);

/// Timers of a range, in order.
struct Timers<'a> {
    range: Range,
    hashes: &'a RangeInclusive<u64>,
    until_ms: i64,
    input: Merged,
}

impl<'a> Timers<'a> {
    /// Those that are wanted, and the first of them, if there is one.
    fn begin(
        view: &View,
        range: Range,
        hashes: &'a RangeInclusive<u64>,
        until_ms: i64,
        after: Option<&Timer>,
    ) -> Result<Option<(Timer, Self)>> {
        let floor = view.floors.of(range);
        if floor > until_ms {
            return Ok(None);
        }
        let from = after.map_or(i64::MIN, |(expiry_ms, _)| *expiry_ms);
        let ranges = [range].into_iter().collect();
        let mut timers = Self { range, hashes, until_ms, input: merged_in(&view.timers, &ranges) };
        timers.input.seek(&timer_key(range, floor.max(from), &[]))?;
        let mut next = timers.next()?;
        if from <= floor {
            // Whatever was passed is gone.
            view.floors.raise(range, next.as_ref().map_or(i64::MAX, |(expiry_ms, _)| *expiry_ms));
        }
        while let Some(timer) = next {
            if timer.0 > until_ms {
                break;
            }
            if after.is_none_or(|after| *after < timer) && hashes.contains(&timer.1.hash()) {
                return Ok(Some((timer, timers)));
            }
            next = timers.next()?;
        }
        Ok(None)
    }

    /// The next that is wanted.
    fn next_due(&mut self) -> Result<Option<Timer>> {
        while let Some(timer) = self.next()? {
            if timer.0 > self.until_ms {
                break;
            }
            if self.hashes.contains(&timer.1.hash()) {
                return Ok(Some(timer));
            }
        }
        Ok(None)
    }

    fn next(&mut self) -> Result<Option<Timer>> {
        while let Some(item) = self.input.next(&[self.range.0])? {
            if matches!(item, Item::Entry(record) if record.is_live(0)) {
                return timer_of(self.input.key()).map(Some);
            }
        }
        Ok(None)
    }
}

/// A range's next timer and what follows it; compared by the timer.
struct Next<'a>(Timer, Timers<'a>);

impl PartialEq for Next<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for Next<'_> {}

impl PartialOrd for Next<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Next<'_> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.cmp(&other.0)
    }
}

/// Where a timer stands among all: by range, time and key.
pub(super) fn timer_key(range: Range, expiry_ms: i64, prefix: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(1 + 8 + prefix.len());
    key.push(range.0);
    key.extend_from_slice(&ordered(expiry_ms));
    key.extend_from_slice(prefix);
    key
}

fn timer_of(key: &[u8]) -> Result<Timer> {
    let parts = key.get(1..).and_then(|rest| rest.split_at_checked(8));
    let timer = parts.and_then(|(expiry, prefix)| Some((unordered(expiry)?, prefix)));
    let (expiry_ms, prefix) = timer.ok_or_else(|| corrupt("a timer is cut off"))?;
    Ok((expiry_ms, KeyPrefix::from_bytes(Bytes::copy_from_slice(prefix))?))
}
