//! Keys of a task by number: in the order in which they were grouped, then those whose timers are due.

use std::collections::HashMap;

use arrow_array::cast::AsArray;
use arrow_array::{Array, BooleanArray, StructArray};
use arrow_schema::Fields;
use arrow_select::concat::concat;
use arrow_select::filter::filter;

use crate::error::{Error, Result};
use crate::state::codec::decode;
use crate::state::key::KeyPrefix;

/// Keys that a task has met.
pub(super) struct Keys {
    fields: Fields,
    prefixes: Vec<KeyPrefix>,
    /// Their columns, in pieces.
    rows: Vec<StructArray>,
    /// Numbers; made when keys come a second time.
    numbers: Option<HashMap<KeyPrefix, u32>>,
    loaded: usize,
}

impl Keys {
    pub(super) const fn new(fields: Fields) -> Self {
        Self { fields, prefixes: Vec::new(), rows: Vec::new(), numbers: None, loaded: 0 }
    }

    pub(super) const fn fields(&self) -> &Fields {
        &self.fields
    }

    pub(super) const fn len(&self) -> usize {
        self.prefixes.len()
    }

    pub(super) fn prefixes(&self) -> &[KeyPrefix] {
        &self.prefixes
    }

    /// The columns of all of them.
    pub(super) fn all(&self) -> Result<StructArray> {
        let rows: Vec<&dyn Array> = self.rows.iter().map(|rows| rows as &dyn Array).collect();
        match rows.as_slice() {
            [] => decode(&self.fields, std::iter::empty()),
            rows => Ok(concat(rows)?.as_struct().clone()),
        }
    }

    /// The numbers of keys, distinct among themselves, whose columns are at hand.
    pub(super) fn add(&mut self, prefixes: &[KeyPrefix], rows: &StructArray) -> Result<Vec<u32>> {
        if self.prefixes.is_empty() {
            // Almost always there is one group, and nobody asks for numbers by key.
            number(prefixes.len())?;
            self.prefixes = prefixes.to_vec();
            self.rows.push(rows.clone());
            return Ok((0..number(prefixes.len())?).collect());
        }
        let first = number(self.prefixes.len())?;
        if self.numbers.is_none() && self.prefixes.last() < prefixes.first() {
            // The keys of the next range: all of them ascend.
            let end = number(self.prefixes.len() + prefixes.len())?;
            self.prefixes.extend_from_slice(prefixes);
            self.rows.push(rows.clone());
            return Ok((first..end).collect());
        }
        let numbers = self.numbers_of(prefixes)?;
        // Among distinct keys, each number that is new is met once, and they ascend.
        let are_new: BooleanArray = numbers.iter().map(|number| Some(*number >= first)).collect();
        self.rows.push(filter(rows, &are_new)?.as_struct().clone());
        Ok(numbers)
    }

    /// The numbers of keys that may be met several times and are known by their bytes.
    pub(super) fn add_prefixes(&mut self, prefixes: &[KeyPrefix]) -> Result<Vec<u32>> {
        let first = self.prefixes.len();
        let numbers = self.numbers_of(prefixes)?;
        let new = self.prefixes.get(first..).unwrap_or_default();
        let rows = decode(&self.fields, new.iter().map(KeyPrefix::key))?;
        self.rows.push(rows);
        Ok(numbers)
    }

    fn numbers_of(&mut self, prefixes: &[KeyPrefix]) -> Result<Vec<u32>> {
        let known = &mut self.prefixes;
        let numbers = self.numbers.get_or_insert_with(|| known.iter().cloned().zip(0..).collect());
        let each = prefixes.iter().map(|prefix| {
            let next = number(known.len())?;
            Ok(*numbers.entry(prefix.clone()).or_insert_with(|| {
                known.push(prefix.clone());
                next
            }))
        });
        each.collect()
    }

    /// Keys that were not loaded, ascending, with their numbers; from now on they are.
    pub(super) fn take_wanted(&mut self) -> Vec<(KeyPrefix, u32)> {
        let first = std::mem::replace(&mut self.loaded, self.prefixes.len());
        let new = self.prefixes.get(first..).unwrap_or_default();
        let mut wanted: Vec<_> = new.iter().cloned().zip((first as u32)..).collect();
        wanted.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        wanted
    }
}

/// As Python has it: an `int32`.
fn number(count: usize) -> Result<u32> {
    let fits = u32::try_from(count).ok().filter(|count| i32::try_from(*count).is_ok());
    fits.ok_or_else(|| Error::Misuse { what: "a task of more than 2^31 keys".into() })
}
