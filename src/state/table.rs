//! State as rows, for people: of one variable, or the timers.

use arrow_array::{Array, StructArray};
use bytes::Bytes;

use super::catalog::{Catalog, Kind, Variable};
use super::codec::decode;
use super::entries::{Entry, Op};
use super::key::{KeyPrefix, Slot};
use super::record::corrupt;
use super::values::decode_values;
use crate::error::{Error, Result};

/// What of an operator's state is looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shown {
    /// Its timers.
    Timers,
    /// One of its variables.
    Variable(Slot, Variable),
}

/// Some keys, and what one variable holds of them.
#[derive(Debug, Clone)]
pub struct Table {
    /// The keys, each once.
    pub keys: StructArray,
    /// Where the rows of each key begin, and where the last one's end.
    pub offsets: Vec<i32>,
    /// User keys of a map.
    pub user_keys: Option<StructArray>,
    /// Values, but of timers.
    pub values: Option<StructArray>,
    /// When each value is over, in milliseconds since 1970, 0 for never; when each timer is due.
    pub times: Vec<i64>,
}

impl Shown {
    /// A variable by its name.
    ///
    /// # Errors
    /// Those that there are.
    pub fn variable(catalog: &Catalog, name: &str) -> Result<Self, String> {
        let found = catalog.variables().find(|(_, variable)| variable.name == name);
        found.map(|(slot, variable)| Self::Variable(slot, variable)).ok_or_else(|| {
            let names: Vec<String> = catalog.variables().map(|(_, variable)| variable.name).collect();
            match names.as_slice() {
                [] => format!("there is no state variable {name:?}, nor another one"),
                names => format!("there is no state variable {name:?}; there is {}", names.join(", ")),
            }
        })
    }

    /// Where it stands.
    #[must_use]
    pub const fn slot(&self) -> Slot {
        match self {
            Self::Timers => Slot::TIMERS,
            Self::Variable(slot, _) => *slot,
        }
    }

    /// Entries of its slot, in order, as rows.
    ///
    /// # Errors
    /// [`Error::CorruptState`], [`Error::StateSchema`].
    pub fn table(&self, catalog: &Catalog, entries: &[Entry]) -> Result<Table> {
        let mut keys: Vec<KeyPrefix> = Vec::new();
        let mut offsets = Vec::new();
        let (mut values, mut times): (Vec<&Bytes>, Vec<i64>) = (Vec::new(), Vec::new());
        for (entry, place) in entries.iter().zip(0..) {
            let Op::Put { expires_ms, value } = &entry.op else {
                return Err(corrupt("an entry of state that is kept is no value"));
            };
            let prefix = entry.key.prefix();
            if keys.last() != Some(&prefix) {
                keys.push(prefix);
                offsets.push(place);
            }
            values.push(value);
            times.push(match self {
                Self::Timers => {
                    entry.key.expiry_ms().ok_or_else(|| corrupt("a timer of state has no expiry"))?
                }
                Self::Variable(..) => *expires_ms,
            });
        }
        let too_many = |_| Error::Arrow("one key has more than 2^31 entries".into());
        offsets.push(i32::try_from(entries.len()).map_err(too_many)?);
        let keys = decode(catalog.keys(), keys.iter().map(KeyPrefix::key))?;
        let (mut user_keys, mut rows) = (None, None);
        if let Self::Variable(slot, variable) = self {
            rows = Some(decode_values(catalog, *slot, variable, values.iter().map(|value| &***value))?);
            if let (Kind::Map, Some(fields)) = (variable.kind, &variable.user_key) {
                user_keys = Some(decode(fields, entries.iter().map(|entry| entry.key.sub()))?);
            }
        }
        debug_assert!(rows.as_ref().is_none_or(|rows| rows.len() == times.len()), "a row of each entry");
        Ok(Table { keys, offsets, user_keys, values: rows, times })
    }
}
