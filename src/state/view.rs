//! What one task reads of its state, and what it changes.
//!
//! A task groups its rows, loads what there is of their keys in one request, and looks at it variable by variable.
//! What it changes is a list of operations in the order of what the program did; at the end that is one delta. The
//! same program on the same version makes the same bytes.

mod backend;
mod changes;
mod keys;
mod large;

use std::collections::BTreeMap;

use arrow_array::{Array, RecordBatch, StructArray};
use arrow_schema::Fields;
use bytes::Bytes;

pub use self::backend::{Backend, Begun, Loaded};
use self::changes::{Change, Changes, Written, check_sizes};
use self::keys::Keys;
pub use self::large::Piece;
use super::catalog::{Catalog, Declared, Kind, Variable};
use super::codec::{canonical_keys, decode, encode, evolve, plain_fields};
use super::delta::Delta;
use super::entries::{Entry, Op};
use super::group::{Groups, group};
use super::key::{EntryKey, KeyPrefix, Slot, unordered};
use super::record::corrupt;
use super::values::decode_values;
use crate::determinant::codec::put_varint;
use crate::error::{Error, Result};

/// Entries of a variable: numbers of their keys, which ascend; user keys, of a map; values.
#[derive(Debug, Clone)]
pub struct Found {
    /// Number of each entry's key.
    pub keys: Vec<i32>,
    /// User key of each entry of a map.
    pub user_keys: Option<StructArray>,
    /// The values.
    pub values: StructArray,
}

/// What a program did to a variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Did {
    /// A value was set, or an element appended.
    Put,
    /// A value was removed.
    Delete,
    /// All values of the key were removed.
    Clear,
}

impl Did {
    /// As Python numbers them.
    ///
    /// # Errors
    /// [`Error::Misuse`] for another number.
    pub fn from_number(number: u8) -> Result<Self> {
        match number {
            0 => Ok(Self::Put),
            1 => Ok(Self::Delete),
            2 => Ok(Self::Clear),
            other => Err(Error::Misuse { what: format!("operation {other} on a state variable") }),
        }
    }
}

/// An entry that was loaded.
#[derive(Debug, Clone)]
struct Kept {
    key: u32,
    sub: Bytes,
    value: Bytes,
}

/// One task's state.
pub struct TaskState<B> {
    backend: B,
    begun: Begun,
    epoch: u64,
    catalog: Catalog,
    variables: Vec<(Variable, Declared)>,
    keys: Keys,
    /// By slot, in the order of their keys' numbers.
    kept: BTreeMap<Slot, Vec<Kept>>,
    /// How much of a list or map is loaded with its key, in bytes; and where what is not begins.
    part: u64,
    cut: BTreeMap<(Slot, u32), EntryKey>,
    changes: Changes,
    /// What kept something from being read: a program that goes on all the same has not seen what there is.
    failed: Option<Error>,
    is_done: bool,
}

impl<B: Backend> TaskState<B> {
    /// The state of a task of an epoch, whose keys and variables are these; those of the `deleted` names are gone.
    ///
    /// # Errors
    /// As [`Backend::begin`] and [`Catalog::open`].
    pub fn open(
        mut backend: B,
        epoch: u64,
        keys: &Fields,
        variables: Vec<Variable>,
        deleted: &[String],
    ) -> Result<Self> {
        let begun = backend.begin()?;
        let (catalog, declared) = Catalog::open(&begun.catalog, keys, &variables, deleted)?;
        let keys = Keys::new(plain_fields(keys));
        let mut variables: Vec<_> = variables.into_iter().zip(declared).collect();
        for (variable, _) in &mut variables {
            variable.value = plain_fields(&variable.value);
            variable.user_key = variable.user_key.as_ref().map(plain_fields);
        }
        let changes = Changes::default();
        Ok(Self {
            backend,
            begun,
            epoch,
            catalog,
            variables,
            keys,
            kept: BTreeMap::new(),
            part: u64::MAX,
            cut: BTreeMap::new(),
            changes,
            failed: None,
            is_done: false,
        })
    }

    /// The same, of whose lists and maps about so many bytes are loaded with their keys, and the rest when it is asked
    /// for.
    #[must_use]
    pub fn in_parts(self, bytes: u64) -> Self {
        Self { part: bytes, ..self }
    }

    /// What the task was told.
    #[must_use]
    pub const fn begun(&self) -> &Begun {
        &self.begun
    }

    /// Rows by key; and the number of each key.
    ///
    /// # Errors
    /// As [`group`].
    pub fn group(&mut self, batches: &[RecordBatch], columns: &[usize]) -> Result<(Groups, Vec<u32>)> {
        let groups = group(batches, columns, self.keys.fields())?;
        let numbers = self.keys.add(&groups.prefixes, &groups.keys)?;
        Ok((groups, numbers))
    }

    /// What keys are, without what does not count.
    #[must_use]
    pub const fn key_fields(&self) -> &Fields {
        self.keys.fields()
    }

    /// All keys, by number.
    ///
    /// # Errors
    /// [`Error::Arrow`].
    pub fn keys(&self) -> Result<StructArray> {
        self.keys.all()
    }

    /// Loads what there is of all keys that are not loaded.
    ///
    /// # Errors
    /// As [`Backend::read`]; [`Error::CorruptState`] for entries that were not asked for.
    pub fn load(&mut self) -> Result<()> {
        let loaded = self.load_wanted();
        self.noted(loaded)
    }

    fn load_wanted(&mut self) -> Result<()> {
        let wanted = self.keys.take_wanted();
        if wanted.is_empty() {
            return Ok(());
        }
        let prefixes: Vec<KeyPrefix> = wanted.iter().map(|(prefix, _)| prefix.clone()).collect();
        let loaded = self.backend.read(&prefixes, self.part)?;
        for at in loaded.cut {
            let found = wanted.binary_search_by(|(prefix, _)| prefix.cmp(&at.prefix()));
            let (_, key) = found.ok().and_then(|found| wanted.get(found)).ok_or_else(not_asked)?;
            self.cut.insert((at.slot(), *key), at);
        }
        let mut kept: Vec<(Slot, Kept)> = Vec::new();
        let mut rest = wanted.iter();
        let mut at = rest.next();
        for entries in loaded.entries {
            for entry in entries.iter() {
                let entry = entry?;
                let stands: &[u8] = entry.key.as_bytes();
                // No prefix is the beginning of another one.
                let is_of = |prefix: &KeyPrefix| stands.starts_with(prefix.as_bytes());
                while at.is_some_and(|(wanted, _)| wanted.as_bytes() < stands && !is_of(wanted)) {
                    at = rest.next();
                }
                let Some((_, key)) = at.filter(|(wanted, _)| is_of(wanted)) else { return Err(not_asked()) };
                if let Some(value) = self.live(&entry) {
                    let sub = entry.key.as_bytes().slice_ref(entry.key.sub());
                    kept.push((entry.key.slot(), Kept { key: *key, sub, value }));
                }
            }
        }
        // Keys were asked for in the order of their hash, and later loads have higher numbers.
        kept.sort_by_key(|(_, kept)| kept.key);
        for (slot, entry) in kept {
            self.kept.entry(slot).or_default().push(entry);
        }
        Ok(())
    }

    /// Timers that are due in the version that is read: number of the key and expiry, by expiry. Keys that are new are
    /// loaded.
    ///
    /// # Errors
    /// As [`Backend::due`] and [`Self::load`].
    pub fn due(&mut self, until_ms: i64) -> Result<Vec<(u32, i64)>> {
        let timers = self.backend.due(until_ms)?;
        let prefixes: Vec<KeyPrefix> = timers.iter().map(|(_, prefix)| prefix.clone()).collect();
        let numbers = self.keys.add_prefixes(&prefixes)?;
        self.load()?;
        Ok(numbers.into_iter().zip(timers).map(|(number, (expiry, _))| (number, expiry)).collect())
    }

    /// Entries of a variable, as they were loaded, of keys from a number on.
    ///
    /// # Errors
    /// [`Error::Misuse`] for a variable that is not there; [`Error::CorruptState`].
    pub fn values(&self, variable: usize, first: u32) -> Result<Found> {
        let (variable, declared) = self.variable(variable)?;
        let kept = self.kept_from(declared.slot, first);
        let keys = kept.iter().map(|kept| i32::try_from(kept.key).unwrap_or(i32::MAX)).collect();
        let user_keys = variable.user_key.as_ref();
        let user_keys =
            user_keys.map(|fields| decode(fields, kept.iter().map(|kept| &*kept.sub))).transpose()?;
        let values = self.decoded(variable, declared, kept.iter().map(|kept| &*kept.value))?;
        Ok(Found { keys, user_keys, values })
    }

    fn decoded<'a>(
        &self,
        variable: &Variable,
        declared: &Declared,
        values: impl ExactSizeIterator<Item = &'a [u8]>,
    ) -> Result<StructArray> {
        decode_values(&self.catalog, declared.slot, variable, values)
    }

    /// What an entry holds, unless it is over.
    fn live(&self, entry: &Entry) -> Option<Bytes> {
        match &entry.op {
            Op::Put { expires_ms, value } if *expires_ms == 0 || *expires_ms > self.begun.now_ms => {
                Some(value.clone())
            }
            _ => None,
        }
    }

    /// Timers, as they were loaded, of keys from a number on: number of the key and expiry, ascending.
    ///
    /// # Errors
    /// [`Error::CorruptState`].
    pub fn timers(&self, first: u32) -> Result<Vec<(u32, i64)>> {
        let timers = self.kept_from(Slot::TIMERS, first).iter();
        let expiry = |sub| unordered(sub).ok_or_else(|| corrupt("a timer of state has no expiry"));
        timers.map(|kept| Ok((kept.key, expiry(&kept.sub)?))).collect()
    }

    /// Notes what the program did to a variable: to which keys, and what. `values` has a row for each put, `user_keys`
    /// for each put and delete of a map.
    ///
    /// # Errors
    /// [`Error::Misuse`] if these do not fit together; [`Error::StateSchema`] for rows of another schema.
    pub fn write(
        &mut self,
        variable: usize,
        keys: &[u32],
        did: &[Did],
        user_keys: Option<&StructArray>,
        values: Option<&StructArray>,
    ) -> Result<()> {
        self.check_keys(keys)?;
        let (variable, declared) = self.variable(variable)?;
        let written = variable.rows(declared, keys, did, user_keys, values)?;
        let places = keys.iter().filter_map(|key| self.keys.prefixes().get(*key as usize));
        check_sizes(&variable.name, places.zip(&written))?;
        let expires_ms = match variable.ttl_ms {
            0 => 0,
            ttl => self.begun.now_ms.saturating_add(ttl),
        };
        let (slot, kind) = (declared.slot, variable.kind);
        self.changes.push(keys.iter().copied().zip(written).map(|(key, what)| match what {
            // What a value has below its slot is nothing: it is all there is.
            Written::Clear if kind == Kind::Value => (key, slot, Change::Delete { sub: Bytes::new() }),
            Written::Clear => (key, slot, Change::Clear),
            Written::Delete { sub } => (key, slot, Change::Delete { sub }),
            Written::Put { value, .. } if kind == Kind::List => {
                (key, slot, Change::Append { value, expires_ms })
            }
            Written::Put { sub, value } => (key, slot, Change::Put { sub, value, expires_ms }),
        }));
        Ok(())
    }

    /// Notes timers that the program registered (`true`) and deleted.
    ///
    /// # Errors
    /// [`Error::Misuse`] for a key that is not there.
    pub fn write_timers(&mut self, keys: &[u32], registered: &[bool], expiries: &[i64]) -> Result<()> {
        self.check_keys(keys)?;
        if keys.len() != registered.len() || keys.len() != expiries.len() {
            return Err(Error::Misuse { what: "timers whose columns differ in length".into() });
        }
        self.changes.push(keys.iter().zip(registered).zip(expiries).map(|((key, registered), expiry)| {
            let sub = Bytes::copy_from_slice(&super::key::ordered(*expiry));
            let change = match registered {
                true => Change::Put { sub, value: Bytes::new(), expires_ms: 0 },
                false => Change::Delete { sub },
            };
            (*key, Slot::TIMERS, change)
        }));
        Ok(())
    }

    /// Has all that was changed held as one delta; its fingerprint. Once, at the end.
    ///
    /// # Errors
    /// As [`Backend::write`]; [`Error::Misuse`] the second time.
    pub fn commit(&mut self) -> Result<u64> {
        self.check_open()?;
        self.check_read()?;
        self.is_done = true;
        let entries = std::mem::take(&mut self.changes).into_entries(self.keys.prefixes(), self.epoch);
        let delta = Delta {
            epoch: self.epoch,
            base: self.begun.version,
            now_ms: self.begun.now_ms,
            catalog: self.catalog.encode(),
            entries,
        };
        let fingerprint = delta.fingerprint();
        self.backend.write(delta)?;
        Ok(fingerprint)
    }

    fn kept_from(&self, slot: Slot, first: u32) -> &[Kept] {
        let kept = self.kept.get(&slot).map(Vec::as_slice).unwrap_or_default();
        kept.get(kept.partition_point(|kept| kept.key < first)..).unwrap_or_default()
    }

    fn variable(&self, number: usize) -> Result<(&Variable, &Declared)> {
        let found = self.variables.get(number).map(|(variable, declared)| (variable, declared));
        found.ok_or_else(|| Error::Misuse { what: format!("state variable number {number}") })
    }

    fn check_keys(&self, keys: &[u32]) -> Result<()> {
        self.check_open()?;
        match keys.iter().find(|key| **key as usize >= self.keys.len()) {
            Some(key) => Err(Error::Misuse { what: format!("key number {key} of {}", self.keys.len()) }),
            None => Ok(()),
        }
    }

    /// What was read, or why it was not: that is what each later question is answered with, and the end.
    fn noted<T>(&mut self, read: Result<T>) -> Result<T> {
        if let Err(error) = &read
            && !matches!(error, Error::Misuse { .. } | Error::StateSchema { .. })
        {
            self.failed.get_or_insert_with(|| error.clone());
        }
        read
    }

    fn check_read(&self) -> Result<()> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    fn check_open(&self) -> Result<()> {
        let done = || Error::Misuse { what: "the state of a task was changed after its end".into() };
        if self.is_done { Err(done()) } else { Ok(()) }
    }
}

impl Variable {
    /// What was written, row by row.
    fn rows(
        &self,
        declared: &Declared,
        keys: &[u32],
        did: &[Did],
        user_keys: Option<&StructArray>,
        values: Option<&StructArray>,
    ) -> Result<Vec<Written>> {
        let count = |is: fn(Did) -> bool| did.iter().filter(|did| is(**did)).count();
        let puts = count(|did| did == Did::Put);
        let named = if self.kind == Kind::Map { count(|did| did != Did::Clear) } else { 0 };
        let fits = keys.len() == did.len()
            && values.map_or(0, Array::len) == puts
            && user_keys.map_or(0, Array::len) == named
            && (self.kind != Kind::List || count(|did| did == Did::Delete) == 0);
        if !fits {
            let what =
                format!("operations on state variable {:?} and their rows do not fit together", self.name);
            return Err(Error::Misuse { what });
        }
        let mut head = Vec::new();
        put_varint(&mut head, declared.schema as u64);
        let values = self.encoded(values, &self.value, &head, false)?;
        let subs = match &self.user_key {
            Some(fields) => self.encoded(user_keys, fields, &[], true)?,
            None => None,
        };
        let (mut value, mut sub) = (0.., 0..);
        let mut next_value =
            || values.as_ref().map(|rows| rows.bytes(value.next().unwrap_or(0))).unwrap_or_default();
        let mut next_sub =
            || subs.as_ref().map(|rows| rows.bytes(sub.next().unwrap_or(0))).unwrap_or_default();
        let written = did.iter().map(|did| match did {
            Did::Put => Written::Put { sub: next_sub(), value: next_value() },
            Did::Delete => Written::Delete { sub: next_sub() },
            Did::Clear => Written::Clear,
        });
        Ok(written.collect())
    }

    fn encoded(
        &self,
        rows: Option<&StructArray>,
        fields: &Fields,
        head: &[u8],
        is_key: bool,
    ) -> Result<Option<super::codec::Rows>> {
        let Some(rows) = rows else { return Ok(None) };
        if rows.null_count() > 0 {
            return Err(Error::Misuse { what: format!("a row of state variable {:?} is null", self.name) });
        }
        let plain = super::codec::plain_struct(rows)?;
        let rows = evolve(&self.name, &plain, fields)?;
        let columns = if is_key { canonical_keys(rows.columns())? } else { rows.columns().to_vec() };
        encode(&columns, rows.len(), head).map(Some)
    }
}

fn not_asked() -> Error {
    corrupt("an entry of state is of a key that was not asked for")
}

#[cfg(test)]
mod tests;
