//! The two threads behind a log: one writes what waits, the other removes what Spark has committed.

use std::sync::{MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::counters::add;
use super::log::{Durability, LOOK_PERIOD, Shared, State};
use super::ownership::record_of;
use crate::edge::disk::segment::{Pending, SegmentRecord};
use crate::edge::locked;
use crate::error::{Error, Result};
use crate::id::LogOffset;

/// Bytes of one group: more would only make its first block wait.
const GROUP_BYTES: u64 = 16 << 20;
/// How long to wait until a full disk, or a store that is away, is tried again.
const PAUSE: Duration = Duration::from_millis(500);
/// How long nothing is written until the log is looked after: whoever took it over may have found a silent sender.
const OWNER_PERIOD: Duration = Duration::from_secs(2);

/// How far the part that is being written is safe.
#[derive(Debug, Clone, Copy)]
struct End {
    part: u64,
    offset: LogOffset,
}

/// Blocks that are written together, each with its length; those that stay in memory are not written.
type Group = Vec<(Option<Pending>, u64)>;

impl Shared {
    /// Writes what waits, again and again, until the log is stopped or takes nothing more.
    pub(super) fn write(&self) {
        let mut end = End { part: u64::MAX, offset: LogOffset::START };
        let mut looked = Instant::now();
        while let Some(group) = self.next_group(&mut end) {
            // The writer looks whose the log is with each write; nobody does for what stays in memory.
            let is_written = group.iter().any(|(pending, _)| pending.is_some());
            let is_due = !is_written && looked.elapsed() >= OWNER_PERIOD;
            if is_written || is_due {
                looked = Instant::now();
            }
            let looked_after = if is_due { self.look_after() } else { Ok(()) };
            let Err(error) = looked_after.and_then(|()| self.settle(group, &mut end)) else { continue };
            if let Err(error) = self.overcome(error) {
                tracing::error!(%error, "a source's log takes nothing more");
                self.fail(error);
                return;
            }
        }
    }

    /// Nothing more is taken in, for this reason.
    pub(super) fn fail(&self, error: Error) {
        locked(&self.state).failed.get_or_insert(error);
        self.changed.notify_all();
    }

    /// Waits for blocks and submits all there are, for one write; none if nothing came for a while. `None` when stopped
    /// and nothing waits.
    fn next_group(&self, end: &mut End) -> Option<Group> {
        let mut state = locked(&self.state);
        let since = Instant::now();
        while state.backlog.unsettled(0).is_none() {
            if state.stopping || state.failed.is_some() {
                return None;
            }
            if since.elapsed() >= OWNER_PERIOD {
                return Some(Vec::new());
            }
            state = self.pause(state);
        }
        let (blocks, records) = self.collect(&state, end);
        drop(state);
        let mut pending = self.writer.submit_all(records).into_iter();
        let submitted = |(is_written, bytes): (bool, u64)| {
            let pending = if is_written { pending.next() } else { None };
            (pending, bytes)
        };
        Some(blocks.into_iter().map(submitted).collect())
    }

    /// The blocks of the next group: whether each is written, and its length; and what is written. They are all of one
    /// part, so that what is durable of them is so at once.
    fn collect(&self, state: &State, end: &mut End) -> (Vec<(bool, u64)>, Vec<SegmentRecord>) {
        let (mut blocks, mut records) = (Vec::new(), Vec::new());
        let (mut number, mut memory, mut offset) = (state.backlog.settled(), 0, LogOffset::START);
        while let Some(entry) = state.backlog.unsettled(number) {
            number += 1;
            let in_memory = self.settings.durability == Durability::Availability
                && entry.span.rows > 0
                && state.backlog.fits_memory(memory + entry.bytes);
            let Some(block) = entry.place.memory.clone().filter(|_| !in_memory) else {
                memory += entry.bytes;
                blocks.push((false, entry.bytes));
                continue;
            };
            if records.is_empty() {
                if entry.part != end.part {
                    *end = End { part: entry.part, offset: LogOffset::START };
                }
                offset = end.offset;
            } else if entry.part != end.part || offset.0 - end.offset.0 >= GROUP_BYTES {
                break;
            }
            records.push(record_of(end.part, offset, block));
            offset = offset.plus(entry.bytes);
            blocks.push((true, entry.bytes));
        }
        (blocks, records)
    }

    /// Waits until a group is safe, block by block.
    fn settle(&self, group: Group, end: &mut End) -> Result<()> {
        for (pending, bytes) in group {
            let place = pending.map(Pending::wait).transpose()?;
            if place.is_some() {
                end.offset = end.offset.plus(bytes);
            }
            locked(&self.state).backlog.settle(place);
            self.changed.notify_all();
        }
        Ok(())
    }

    /// What is to be done about a failed write: nothing of it is lost, as its blocks are in memory still.
    ///
    /// # Errors
    /// The one after which nothing more is taken in.
    fn overcome(&self, error: Error) -> Result<()> {
        if let Ok(Some(lost)) = self.ownership.lost() {
            return Err(lost);
        }
        match &error {
            Error::DiskFull { path, .. } => {
                tracing::warn!(%path, "no space left for a source's log: its sender is held back");
                // It goes to a new file.
                locked(&self.state).backlog.leave_part();
            }
            // The same blocks are written to the same place again: whether they are there is not known.
            Error::Io { .. } if self.ownership.is_stored() => {
                tracing::warn!(%error, "a source's log cannot be written: its sender is held back");
                add(&self.counters.failed_writes, 1);
            }
            _ => return Err(error),
        }
        if self.rest(PAUSE) { Ok(()) } else { Err(error) }
    }

    /// Fails if the log is another receiver's by now; who cannot be asked takes nothing away.
    fn look_after(&self) -> Result<()> {
        match self.ownership.lost() {
            Ok(Some(lost)) => Err(lost),
            Ok(None) => Ok(()),
            Err(error) => {
                tracing::debug!(%error, "whose a source's log is could not be looked at");
                Ok(())
            }
        }
    }

    /// Removes parts that Spark has committed, one after the other, until the log is stopped or taken by another one.
    pub(super) fn remove(&self) {
        while let Some(part) = self.next_doomed() {
            match self.ownership.remove(part, &self.writer) {
                Ok(()) => drop(locked(&self.state).doomed.pop_front()),
                Err(error) => {
                    tracing::warn!(%error, part, "a committed part of a source's log could not be removed");
                    // Whoever opens the log finds it again.
                    if matches!(error, Error::SourceInUse { .. }) || !self.rest(PAUSE) {
                        return;
                    }
                }
            }
        }
    }

    fn next_doomed(&self) -> Option<u64> {
        let mut state = locked(&self.state);
        while state.doomed.is_empty() {
            if state.stopping || state.failed.is_some() {
                return None;
            }
            state = self.pause(state);
        }
        state.doomed.front().copied()
    }

    /// Waits for something to change, but not for long.
    pub(super) fn pause<'a>(&'a self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let waited = self.changed.wait_timeout(state, LOOK_PERIOD);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Does nothing for a while; `false` if the log was stopped.
    fn rest(&self, time: Duration) -> bool {
        let since = Instant::now();
        while since.elapsed() < time && !locked(&self.state).stopping {
            sleep(LOOK_PERIOD);
        }
        !locked(&self.state).stopping
    }
}
