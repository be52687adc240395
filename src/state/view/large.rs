//! Lists and maps of which a task has loaded no more than the beginning: the rest is read when it is asked for.

use arrow_array::{Array, StructArray};
use bytes::Bytes;

use super::{Backend, TaskState};
use crate::error::{Error, Result};
use crate::state::catalog::Kind;
use crate::state::codec::decode;
use crate::state::key::{EntryKey, KeyPrefix, Slot};

/// Some elements of a list, or pairs of a map, that were not loaded with their key.
#[derive(Debug, Clone)]
pub struct Piece {
    /// User key of each entry of a map.
    pub user_keys: Option<StructArray>,
    /// The values.
    pub values: StructArray,
    /// Where to go on, unless this was the end.
    pub next: Option<Bytes>,
}

impl<B: Backend> TaskState<B> {
    /// Keys from a number on of whose list or map there is more than was loaded.
    ///
    /// # Errors
    /// [`Error::Misuse`] for a variable that is not there.
    pub fn cut(&self, variable: usize, first: u32) -> Result<Vec<u32>> {
        let slot = self.variable(variable)?.1.slot;
        Ok(self.cut.range((slot, first)..=(slot, u32::MAX)).map(|((_, key), _)| *key).collect())
    }

    /// What follows of a list or map of one key: about `bytes`, but one entry at least, from where a piece before ended;
    /// the first begins where what was loaded ends. It is as it was when the task began.
    ///
    /// # Errors
    /// [`Error::Misuse`] for a variable or key that is not there, or is all loaded; those of [`Backend::read_on`];
    /// [`Error::CorruptState`].
    pub fn piece(&mut self, variable: usize, key: u32, from: Option<Bytes>, bytes: u64) -> Result<Piece> {
        self.check_read()?;
        let piece = self.read_piece(variable, key, from, bytes);
        self.noted(piece)
    }

    fn read_piece(&mut self, variable: usize, key: u32, from: Option<Bytes>, bytes: u64) -> Result<Piece> {
        let slot = self.variable(variable)?.1.slot;
        let (prefix, cut) = self.cut_of(slot, key)?;
        let from = from.map_or_else(|| Ok(cut.clone()), EntryKey::from_bytes)?;
        if from.prefix() != prefix || from.slot() != slot {
            return Err(Error::Misuse {
                what: "a piece of state is asked for amid that of another key".into(),
            });
        }
        let (entries, next) = self.backend.read_on(&prefix, &from, &end_of(&prefix, slot), bytes)?;
        let (mut subs, mut values) = (Vec::new(), Vec::new());
        for entry in entries.iter() {
            let entry = entry?;
            if let Some(value) = self.live(&entry) {
                subs.push(entry.key.as_bytes().slice_ref(entry.key.sub()));
                values.push(value);
            }
        }
        let (variable, declared) = self.variable(variable)?;
        let user_keys = variable.user_key.as_ref();
        let user_keys = user_keys.map(|fields| decode(fields, subs.iter().map(|sub| &**sub))).transpose()?;
        let values = self.decoded(variable, declared, values.iter().map(|value| &**value))?;
        Ok(Piece { user_keys, values, next: next.map(|next| next.as_bytes().clone()) })
    }

    /// The value of a user key, one row, in the map of a key of which not all is loaded: one row, if there is any behind
    /// what was loaded, or from where a piece ended.
    ///
    /// # Errors
    /// As [`Self::piece`]; [`Error::StateSchema`] for a row of another schema.
    pub fn lookup(
        &mut self,
        variable: usize,
        key: u32,
        user_key: &StructArray,
        from: Option<&Bytes>,
    ) -> Result<Option<StructArray>> {
        self.check_read()?;
        let found = self.read_one(variable, key, user_key, from);
        self.noted(found)
    }

    fn read_one(
        &mut self,
        variable: usize,
        key: u32,
        user_key: &StructArray,
        from: Option<&Bytes>,
    ) -> Result<Option<StructArray>> {
        let (of_variable, declared) = self.variable(variable)?;
        let slot = declared.slot;
        let fields = of_variable.user_key.as_ref().filter(|_| of_variable.kind == Kind::Map);
        let encoded =
            fields.map(|fields| of_variable.encoded(Some(user_key), fields, &[], true)).transpose()?;
        let Some(rows) = encoded.flatten().filter(|_| user_key.len() == 1) else {
            return Err(Error::Misuse { what: "a value is looked up that is not one of a map".into() });
        };
        let (prefix, cut) = self.cut_of(slot, key)?;
        let wanted = EntryKey::new(&prefix, slot, &rows.bytes(0));
        if wanted.as_bytes() < from.unwrap_or_else(|| cut.as_bytes()) {
            return Ok(None);
        }
        let behind: Bytes = [wanted.as_bytes(), &[0_u8][..]].concat().into();
        let (entries, _) = self.backend.read_on(&prefix, &wanted, &behind, 1)?;
        let first = entries.iter().next().transpose()?;
        let found = first.filter(|entry| entry.key == wanted).and_then(|entry| self.live(&entry));
        let (variable, declared) = self.variable(variable)?;
        found.map(|value| self.decoded(variable, declared, std::iter::once(&*value))).transpose()
    }

    /// A key of which not all of a slot is loaded, and where what is not begins.
    fn cut_of(&self, slot: Slot, key: u32) -> Result<(KeyPrefix, &EntryKey)> {
        let prefix = self.keys.prefixes().get(key as usize).cloned();
        let all_here = || Error::Misuse { what: format!("all state of key number {key} is loaded") };
        prefix.zip(self.cut.get(&(slot, key))).ok_or_else(all_here)
    }
}

/// What stands behind all entries of a slot.
fn end_of(prefix: &KeyPrefix, slot: Slot) -> Bytes {
    let mut end = EntryKey::new(prefix, slot, &[]).as_bytes().to_vec();
    // As a number that is one more: of the last slot, the next key's, which nobody reads.
    for byte in end.iter_mut().rev() {
        *byte = byte.wrapping_add(1);
        if *byte != 0 {
            break;
        }
    }
    end.into()
}
