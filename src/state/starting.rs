//! State that begins with what a savepoint holds.
//!
//! Where nothing was committed yet, a task reads the savepoint in the place of the version that there is not, and what
//! it decides is all that the savepoint has of its partition, changed by the program. So the first epoch's deltas are the
//! whole state: they are held, kept, compared and thrown away with their epoch as any others, and from the first commit
//! on nobody asks for the savepoint again.

use std::collections::BTreeSet;
use std::iter::Peekable;

use bytes::Bytes;

use super::catalog::Catalog;
use super::delta::Delta;
use super::entries::{Entries, EntriesBuilder, Entry, Op};
use super::key::{EntryKey, KeyPrefix, Slot, Version, element};
use super::view::{Backend, Begun, Loaded};
use crate::error::Result;

/// What a savepoint holds of one operator's keys in one partition.
pub trait Origin {
    /// What the operator's slots were.
    ///
    /// # Errors
    /// Whatever keeps the savepoint from being read.
    fn catalog(&mut self) -> Result<Bytes>;

    /// All entries of the partition's keys, in order, all of them puts.
    ///
    /// # Errors
    /// Whatever keeps the savepoint from being read.
    fn entries(&mut self) -> Result<Vec<Entries>>;
}

/// A task's state, which begins with a savepoint where nothing was committed.
pub struct Starting<B, O> {
    backend: B,
    origin: O,
    /// What the savepoint holds; nothing where something was committed.
    held: Option<Held>,
}

/// What was read of a savepoint.
struct Held {
    entries: Vec<Entries>,
    lists: BTreeSet<Slot>,
    now_ms: i64,
}

impl<B: Backend, O: Origin> Starting<B, O> {
    /// A task's state that begins with this.
    pub const fn new(backend: B, origin: O) -> Self {
        Self { backend, origin, held: None }
    }
}

impl<B: Backend, O: Origin> Backend for Starting<B, O> {
    fn begin(&mut self) -> Result<Begun> {
        let mut begun = self.backend.begin()?;
        if begun.version == Version::NONE {
            let catalog = self.origin.catalog()?;
            let lists = Catalog::decode(&catalog)?.lists();
            self.held = Some(Held { entries: self.origin.entries()?, lists, now_ms: begun.now_ms });
            begun.catalog = catalog;
        }
        Ok(begun)
    }

    fn read(&mut self, keys: &[KeyPrefix], part: u64) -> Result<Loaded> {
        match &self.held {
            // Here it is in memory anyway.
            Some(held) => Ok(Loaded { entries: vec![held.read(keys)?], cut: Vec::new() }),
            None => self.backend.read(keys, part),
        }
    }

    fn read_on(
        &mut self,
        key: &KeyPrefix,
        from: &EntryKey,
        until: &Bytes,
        bytes: u64,
    ) -> Result<(Entries, Option<EntryKey>)> {
        match &self.held {
            Some(_) => Ok((Entries::default(), None)),
            None => self.backend.read_on(key, from, until, bytes),
        }
    }

    fn due(&mut self, until_ms: i64) -> Result<Vec<(i64, KeyPrefix)>> {
        match &self.held {
            Some(held) => held.due(until_ms),
            None => self.backend.due(until_ms),
        }
    }

    fn write(&mut self, mut delta: Delta) -> Result<()> {
        if let Some(held) = self.held.take() {
            delta.entries = held.changed(&delta)?;
        }
        self.backend.write(delta)
    }
}

impl Held {
    fn iter(&self) -> impl Iterator<Item = Result<Entry>> + '_ {
        let is_over = |entry: &Entry| matches!(entry.op, Op::Put { expires_ms, .. } if expires_ms != 0 && expires_ms <= self.now_ms);
        let all = self.entries.iter().flat_map(Entries::iter);
        all.filter(move |entry| entry.as_ref().map_or(true, |entry| !is_over(entry)))
    }

    /// Entries of some keys, which ascend.
    fn read(&self, keys: &[KeyPrefix]) -> Result<Entries> {
        let mut found = EntriesBuilder::new();
        let mut rest = keys.iter().peekable();
        for entry in self.iter() {
            let entry = entry?;
            let stands: &[u8] = entry.key.as_bytes();
            // No prefix is the beginning of another one.
            let is_of = |key: &KeyPrefix| stands.starts_with(key.as_bytes());
            while rest.next_if(|key| key.as_bytes() < stands && !is_of(key)).is_some() {}
            match rest.peek() {
                Some(key) if is_of(key) => found.push(&entry.key, &entry.op),
                Some(_) => {}
                None => break,
            }
        }
        Ok(found.finish())
    }

    fn due(&self, until_ms: i64) -> Result<Vec<(i64, KeyPrefix)>> {
        let mut timers = Vec::new();
        for entry in self.iter() {
            let entry = entry?;
            if let Some(expiry_ms) = entry.key.expiry_ms().filter(|at| *at <= until_ms) {
                timers.push((expiry_ms, entry.key.prefix()));
            }
        }
        timers.sort_unstable();
        Ok(timers)
    }

    /// All entries after a delta.
    fn changed(&self, delta: &Delta) -> Result<Entries> {
        let mut out = Merged { entries: EntriesBuilder::new(), lists: &self.lists, delta, list: None };
        let mut olds = self.iter().peekable();
        let mut news = delta.entries.iter().peekable();
        let mut cleared: Option<(KeyPrefix, Slot)> = None;
        loop {
            let (old, new) = (peeked(&mut olds)?, peeked(&mut news)?);
            let of_old = old.as_ref().map(|entry| (entry.key.prefix(), entry.key.slot()));
            if of_old.is_some() && of_old == cleared {
                olds.next();
                continue;
            }
            let is_list = of_old.as_ref().is_some_and(|(_, slot)| self.lists.contains(slot));
            match (old, new) {
                (None, None) => break,
                (_, Some(new))
                    if new.op == Op::Clear && of_old.as_ref().is_none_or(|of| of >= &of_key(&new)) =>
                {
                    cleared = Some(of_key(&new));
                    news.next();
                }
                // Elements of a list stand before those that are appended now, whatever epochs they name.
                (Some(old), Some(new)) if stands_before(&old, &new, is_list) => {
                    out.push(&old);
                    olds.next();
                }
                (Some(old), None) => {
                    out.push(&old);
                    olds.next();
                }
                (old, Some(new)) => {
                    if !is_list && old.is_some_and(|old| old.key == new.key) {
                        olds.next();
                    }
                    if new.op != Op::Delete {
                        out.push(&new);
                    }
                    news.next();
                }
            }
        }
        Ok(out.entries.finish())
    }
}

fn of_key(entry: &Entry) -> (KeyPrefix, Slot) {
    (entry.key.prefix(), entry.key.slot())
}

fn stands_before(old: &Entry, new: &Entry, is_list: bool) -> bool {
    match is_list {
        true => of_key(old) <= of_key(new),
        false => old.key < new.key,
    }
}

fn peeked(entries: &mut Peekable<impl Iterator<Item = Result<Entry>>>) -> Result<Option<Entry>> {
    match entries.peek() {
        Some(Ok(entry)) => Ok(Some(entry.clone())),
        Some(Err(error)) => Err(error.clone()),
        None => Ok(None),
    }
}

/// Entries that are written one after the other; elements of lists are numbered anew, as appended in this epoch: the
/// epochs that they name are another query's.
struct Merged<'a> {
    entries: EntriesBuilder,
    lists: &'a BTreeSet<Slot>,
    delta: &'a Delta,
    /// The list that was written last, and how many elements it has.
    list: Option<(KeyPrefix, Slot, u64)>,
}

impl Merged<'_> {
    fn push(&mut self, entry: &Entry) {
        let (prefix, slot) = of_key(entry);
        if !self.lists.contains(&slot) {
            return self.entries.push(&entry.key, &entry.op);
        }
        let number = match self.list.take() {
            Some((list, of, number)) if (&list, of) == (&prefix, slot) => number + 1,
            _ => 0,
        };
        let key = EntryKey::new(&prefix, slot, &element(self.delta.epoch, number));
        self.entries.push(&key, &entry.op);
        self.list = Some((prefix, slot, number));
    }
}

#[cfg(test)]
mod tests;
