//! Entries that came from elsewhere, checked, as runs: what of a delta is pending, and pages of a range.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;

use super::entries::{CLEAR, DELETE, Entries, EntriesBuilder, PUT};
use super::key::{KeyPrefix, Range, RangeSet, SLOT, Slot, prefix_len, unordered};
use super::memory::Memory;
use super::reading::timer_key;
use super::record::{Record, corrupt};
use super::run::{Cursor, Run, RunBuilder};
use crate::error::Result;

/// Sorted entries, and the timers among them in their order.
#[derive(Debug, Clone)]
pub(super) struct Piece {
    pub(super) entries: Arc<Run>,
    pub(super) timers: Arc<Run>,
    /// Keys whose timers are all gone, but for those that are put here.
    pub(super) cleared: Vec<KeyPrefix>,
    /// The first timer of each range that gets any.
    pub(super) first: Vec<(Range, i64)>,
}

/// A timer that is put or deleted.
type TimerOp<'a> = (Range, i64, &'a [u8], u8);

impl Piece {
    /// Of what a delta has in some ranges. All its entries have to be in order and of `allowed` ranges.
    pub(super) fn new(
        memory: &Memory,
        entries: &Entries,
        allowed: &RangeSet,
        ranges: &RangeSet,
    ) -> Result<Self> {
        Self::read(memory, entries, (allowed, ranges), &BTreeSet::new())
    }

    /// Of a page of some ranges: there are puts only. Timers of keys in `cleared` are no timers any more.
    pub(super) fn of_page(
        memory: &Memory,
        entries: &Entries,
        ranges: &RangeSet,
        cleared: &BTreeSet<Bytes>,
    ) -> Result<Self> {
        let piece = Self::read(memory, entries, (ranges, ranges), cleared)?;
        let mut cursor = Cursor::new(Arc::clone(&piece.entries));
        cursor.next()?;
        while cursor.head().is_some() {
            if cursor.record().op != PUT {
                return Err(corrupt("what was copied of a state is no value"));
            }
            cursor.next()?;
        }
        Ok(piece)
    }

    fn read(
        memory: &Memory,
        entries: &Entries,
        (allowed, ranges): (&RangeSet, &RangeSet),
        without: &BTreeSet<Bytes>,
    ) -> Result<Self> {
        let bytes = entries.as_bytes();
        let mut run = RunBuilder::by_hash(memory, None);
        let (mut timers, mut cleared) = (Vec::new(), Vec::new());
        let mut last: Option<Record> = None;
        let mut at = 0;
        while at < bytes.len() {
            let record = Record::read(bytes, at)?;
            let range = checked(&record, last.as_ref(), bytes)?;
            if !allowed.contains(range) {
                return Err(corrupt("an entry is not in the ranges that it was said to be in"));
            }
            if ranges.contains(range) {
                run.push(&record, bytes)?;
                note_timers(&record, bytes, &mut timers, &mut cleared)?;
            }
            at = record.end;
            last = Some(record);
        }
        timers.retain(|(_, _, prefix, _)| !without.contains(*prefix));
        let (timers, first) = timer_run(memory, timers)?;
        Ok(Self { entries: Arc::new(run.finish()?), timers: Arc::new(timers), cleared, first })
    }

    /// Its entries in some ranges, as they came.
    pub(super) fn entries_of(&self, ranges: &RangeSet) -> Result<Entries> {
        let mut entries = EntriesBuilder::new();
        let mut cursor = Cursor::new(Arc::clone(&self.entries));
        for range in ranges.iter() {
            cursor.seek(&[range.0])?;
            while cursor.head().is_some() && cursor.key().first() == Some(&range.0) {
                entries.push_entry(cursor.record().whole(cursor.bytes()));
                cursor.next()?;
            }
        }
        Ok(entries.finish())
    }
}

/// The range of an entry that makes sense behind the one before.
fn checked(record: &Record, last: Option<&Record>, bytes: &[u8]) -> Result<Range> {
    let key = record.key(bytes);
    let slot = prefix_len(key).map(|len| len + SLOT).filter(|slot| *slot <= key.len());
    let slot = slot.ok_or_else(|| corrupt("a key is cut off"))?;
    if record.op == CLEAR && slot < key.len() {
        return Err(corrupt("a slot is cleared by an entry that is below it"));
    }
    if let Some(last) = last {
        let last_key = last.key(bytes);
        let is_behind = last_key < key || (last_key == key && last.op == CLEAR && record.op != CLEAR);
        if !is_behind {
            return Err(corrupt("entries are not in order"));
        }
    }
    key.first().copied().map(Range).ok_or_else(|| corrupt("a key is cut off"))
}

fn note_timers<'a>(
    record: &Record,
    bytes: &'a [u8],
    timers: &mut Vec<TimerOp<'a>>,
    cleared: &mut Vec<KeyPrefix>,
) -> Result<()> {
    let key = record.key(bytes);
    let (prefix, rest) = prefix_len(key).and_then(|len| key.split_at_checked(len)).unwrap_or_default();
    let (slot, sub) = rest.split_at_checked(SLOT).unwrap_or_default();
    if slot != Slot::TIMERS.0.to_be_bytes() {
        return Ok(());
    }
    if record.op == CLEAR {
        cleared.push(KeyPrefix::from_bytes(Bytes::copy_from_slice(prefix))?);
        return Ok(());
    }
    let expiry_ms = unordered(sub).filter(|_| record.expires_ms == 0);
    let expiry_ms = expiry_ms.ok_or_else(|| corrupt("what stands among timers is none"))?;
    timers.push((Range(key.first().copied().unwrap_or(0)), expiry_ms, prefix, record.op));
    Ok(())
}

/// Timers in their order, and the first one that is put in each range.
fn timer_run(memory: &Memory, mut timers: Vec<TimerOp<'_>>) -> Result<(Run, Vec<(Range, i64)>)> {
    timers.sort_unstable();
    let mut run = RunBuilder::new(memory, None);
    let mut first: Vec<(Range, i64)> = Vec::new();
    for (range, expiry_ms, prefix, op) in timers {
        // Behind a put: for ever, and no value.
        let rest: &[u8] = if op == PUT { &[PUT, 0, 0] } else { &[DELETE] };
        run.push_parts(&timer_key(range, expiry_ms, prefix), rest)?;
        if op == PUT && first.last().is_none_or(|(last, _)| *last != range) {
            first.push((range, expiry_ms));
        }
    }
    Ok((run.finish()?, first))
}

/// What deletes timers, as they stand among all; in any order.
pub(super) fn deleted_timers(memory: &Memory, mut keys: Vec<Vec<u8>>) -> Result<Run> {
    keys.sort_unstable();
    let mut run = RunBuilder::new(memory, None);
    keys.iter().try_for_each(|key| run.push_parts(key, &[DELETE]))?;
    run.finish()
}
