//! What an operator's slots are: its variables, and the schemas that values were written with.
//!
//! ```text
//! catalog   version (1 byte, 2) · schema of keys · slots (varint) · each of them, from slot 1 on
//! slot      name (text) · kind (1 byte: 0 value, 1 list, 2 map) · TTL in milliseconds (zigzag; version 1: none) ·
//!           schema of user keys · schemas of values (varint) · each
//! schema    length (varint), that many bytes of Arrow IPC; without any: none
//! ```
//!
//! A value names its schema by its number, so a number never means another one. Slots are given to variables in the
//! order in which they are first declared, and never again: one that was deleted keeps its place, without a name and
//! schemas. Agents keep a catalog with each version; of what is in it they look for those alone.

use std::collections::BTreeSet;

use arrow_schema::{DataType, FieldRef, Fields};
use bytes::Bytes;

use super::codec::{
    NamedFields, decode, decode_schema, encode_schema, evolve, of_state, plain_fields, renamed, same_meaning,
};
use super::key::Slot;
use super::record::corrupt;
use crate::determinant::codec::{Fields as Reader, put_bytes, put_varint, put_zigzag};
use crate::error::{Error, Result};

const VERSION: u8 = 2;
/// The version before, which says nothing of TTL.
const WITHOUT_TTL: u8 = 1;

/// What a variable holds of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// One value.
    Value,
    /// Values in order.
    List,
    /// Values by user key.
    Map,
}

impl Kind {
    const fn byte(self) -> u8 {
        match self {
            Self::Value => 0,
            Self::List => 1,
            Self::Map => 2,
        }
    }

    fn from_byte(byte: u8) -> Result<Self> {
        match byte {
            0 => Ok(Self::Value),
            1 => Ok(Self::List),
            2 => Ok(Self::Map),
            _ => Err(corrupt("a state variable is of no kind")),
        }
    }

    /// As Python names it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Value => "value",
            Self::List => "list",
            Self::Map => "map",
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Value => "a value",
            Self::List => "a list",
            Self::Map => "a map",
        }
    }
}

/// A variable as the program declares it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// What it holds.
    pub kind: Kind,
    /// Fields of a map's user keys; none for other kinds.
    pub user_key: Option<Fields>,
    /// Fields of its values.
    pub value: Fields,
    /// How long a value lives from the batch in which it was written, in milliseconds; 0 for ever.
    pub ttl_ms: i64,
}

/// A slot, as it is remembered.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Remembered {
    name: String,
    kind: Kind,
    user_key: Option<Fields>,
    /// Schemas of values by their number.
    values: Vec<Fields>,
    /// How long values live, as it was declared last.
    ttl_ms: i64,
}

/// What is remembered of an operator's variables, old ones included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Catalog {
    keys: Fields,
    slots: Vec<Remembered>,
}

/// Where a declared variable stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Declared {
    /// Its slot.
    pub slot: Slot,
    /// Number of the schema that its values are written with.
    pub schema: usize,
}

impl Catalog {
    /// What is remembered, if anything is, with what this program declares; and where its variables stand. Variables
    /// that it deletes are gone first, so one of such a name is a new one.
    ///
    /// # Errors
    /// [`Error::StateSchema`] if something kept cannot be read as it is declared now; [`Error::CorruptState`];
    /// [`Error::UnsupportedVersion`].
    pub fn open(
        remembered: &[u8],
        keys: &Fields,
        variables: &[Variable],
        deleted: &[String],
    ) -> Result<(Self, Vec<Declared>)> {
        let keys = plain_fields(keys);
        let mut catalog = match remembered {
            [] => Self { keys: keys.clone(), slots: Vec::new() },
            bytes => Self::decode(bytes)?,
        };
        catalog.check_keys(&keys)?;
        catalog.name_keys(&keys);
        deleted.iter().for_each(|name| catalog.delete(name));
        let declared =
            variables.iter().map(|variable| catalog.declare(variable)).collect::<Result<Vec<_>>>()?;
        let mut slots: Vec<Slot> = declared.iter().map(|variable| variable.slot).collect();
        slots.sort_unstable();
        if slots.windows(2).any(|pair| pair.first() == pair.last()) {
            return Err(Error::Misuse { what: "a state variable is declared twice".into() });
        }
        Ok((catalog, declared))
    }

    fn check_keys(&self, keys: &Fields) -> Result<()> {
        // Their columns are known by place: one that is called otherwise is the same key.
        let same = self.keys.len() == keys.len()
            && self
                .keys
                .iter()
                .zip(keys)
                .all(|(one, other)| same_meaning(one.data_type(), other.data_type()));
        let names =
            |fields: &Fields| fields.iter().map(|field| field.name().to_lowercase()).collect::<Vec<_>>();
        let (before, now) = (names(&self.keys), names(keys));
        // The same columns in another order would find each other's state.
        let has_moved = now.iter().zip(&before).any(|(name, here)| name != here && before.contains(name));
        if same && has_moved {
            let what = format!(
                "[STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE] the grouping key was kept as ({}) and is ({}) now: group by its \
                 columns in the same order",
                before.join(", "),
                now.join(", ")
            );
            return Err(Error::StateSchema { variable: "key".into(), what });
        }
        if same {
            return Ok(());
        }
        let what = format!(
            "[STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE] the grouping key was kept as ({}) and is ({}) now: group by columns of \
             these types, or give the operator another uid, which begins without state",
            NamedFields(&self.keys),
            NamedFields(keys)
        );
        Err(Error::StateSchema { variable: "key".into(), what })
    }

    /// By the names that they have now, another order is noticed the next time.
    fn name_keys(&mut self, keys: &Fields) {
        let named = |(kept, now): (&FieldRef, &FieldRef)| kept.as_ref().clone().with_name(now.name());
        self.keys = self.keys.iter().zip(keys).map(named).collect();
    }

    fn delete(&mut self, name: &str) {
        if let Some(slot) = self.slots.iter_mut().find(|slot| slot.name == name) {
            slot.name.clear();
            (slot.user_key, slot.values, slot.ttl_ms) = (None, Vec::new(), 0);
        }
    }

    /// Slots of variables that were deleted: what stands in them is over.
    pub(super) fn deleted_slots(bytes: &[u8]) -> Result<Vec<Slot>> {
        let catalog = Self::decode(bytes)?;
        let numbered = catalog.slots.iter().zip(1..);
        Ok(numbered.filter(|(slot, _)| slot.name.is_empty()).map(|(_, number)| Slot(number)).collect())
    }

    fn declare(&mut self, variable: &Variable) -> Result<Declared> {
        let value = plain_fields(&variable.value);
        let user_key = variable.user_key.as_ref().map(plain_fields);
        if (variable.kind == Kind::Map) != user_key.as_ref().is_some_and(|fields| !fields.is_empty()) {
            let what = format!("state variable {:?}: a map, and nothing else, has user keys", variable.name);
            return Err(Error::Misuse { what });
        }
        let found = self.slots.iter_mut().zip(1..).find(|(slot, _)| slot.name == variable.name);
        let Some((slot, number)) = found else {
            let number = u16::try_from(self.slots.len() + 1);
            let number =
                number.map_err(|_| Error::Misuse { what: "more than 65,534 state variables".into() })?;
            let (name, kind) = (variable.name.clone(), variable.kind);
            let (values, ttl_ms) = (vec![value], variable.ttl_ms);
            self.slots.push(Remembered { name, kind, user_key, values, ttl_ms });
            return Ok(Declared { slot: Slot(number), schema: 0 });
        };
        slot.check(variable, user_key.as_ref(), &value)?;
        slot.ttl_ms = variable.ttl_ms;
        if let Some(last) = slot.values.last().filter(|_| !slot.values.contains(&value))
            && let Some((gone, new)) = renamed(last, &value)
        {
            let what = format!(
                "[STATE_STORE_INVALID_VALUE_SCHEMA_EVOLUTION] field {gone:?} is gone, and {new:?} of its type is new: if that is its name now, its values would be \
                 lost. Keep the name; or leave {gone:?} out in one version of the program, and add {new:?} in the next"
            );
            return Err(Error::StateSchema { variable: variable.name.clone(), what });
        }
        // The last is what was declared last, also where a program goes back to an older one.
        if slot.values.last() != Some(&value) {
            slot.values.push(value);
        }
        Ok(Declared { slot: Slot(number), schema: slot.values.len() - 1 })
    }

    /// Fields of the key.
    #[must_use]
    pub const fn keys(&self) -> &Fields {
        &self.keys
    }

    /// What is remembered.
    ///
    /// # Errors
    /// [`Error::CorruptState`], [`Error::UnsupportedVersion`].
    pub fn decode(remembered: &[u8]) -> Result<Self> {
        Self::read(remembered).map_err(of_state)
    }

    /// All variables that were ever declared and not deleted, with the schema that each was given last, and their slots.
    pub fn variables(&self) -> impl Iterator<Item = (Slot, Variable)> + '_ {
        let there = self.slots.iter().zip(1..).filter(|(slot, _)| !slot.name.is_empty());
        there.map(|(slot, number)| {
            let Remembered { name, kind, user_key, values, ttl_ms } = slot.clone();
            let value = values.last().cloned().unwrap_or_default();
            (Slot(number), Variable { name, kind, user_key, value, ttl_ms })
        })
    }

    /// Slots that hold lists.
    #[must_use]
    pub fn lists(&self) -> BTreeSet<Slot> {
        self.variables().filter(|(_, variable)| variable.kind == Kind::List).map(|(slot, _)| slot).collect()
    }

    /// Fields of the values that name this schema.
    pub(super) fn schema(&self, slot: Slot, number: usize) -> Result<&Fields> {
        let slot = usize::from(slot.0).checked_sub(1).and_then(|place| self.slots.get(place));
        let fields = slot.and_then(|slot| slot.values.get(number));
        fields.ok_or_else(|| corrupt("a value of state names a schema that is not known"))
    }

    /// As agents keep it.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut out = vec![VERSION];
        put_bytes(&mut out, &encode_schema(&self.keys));
        put_varint(&mut out, self.slots.len() as u64);
        for slot in &self.slots {
            put_bytes(&mut out, slot.name.as_bytes());
            out.push(slot.kind.byte());
            put_zigzag(&mut out, slot.ttl_ms);
            put_bytes(&mut out, &slot.user_key.as_ref().map(encode_schema).unwrap_or_default());
            put_varint(&mut out, slot.values.len() as u64);
            slot.values.iter().for_each(|fields| put_bytes(&mut out, &encode_schema(fields)));
        }
        out.into()
    }

    fn read(bytes: &[u8]) -> Result<Self> {
        let mut fields = Reader::new(bytes);
        let version = match fields.byte()? {
            known @ (WITHOUT_TTL | VERSION) => known,
            other => {
                let (found, known) = (u32::from(other), u32::from(VERSION));
                let what = "what is known of the variables of keyed state".into();
                return Err(Error::UnsupportedVersion { what, found, known });
            }
        };
        let keys = decode_schema(fields.bytes()?)?;
        let mut slots = Vec::new();
        for _ in 0..fields.varint()? {
            let name = fields.text()?.to_owned();
            let kind = Kind::from_byte(fields.byte()?)?;
            let ttl_ms = if version == WITHOUT_TTL { 0 } else { fields.zigzag()? };
            let user_key = match fields.bytes()? {
                [] => None,
                schema => Some(decode_schema(schema)?),
            };
            let mut values = Vec::new();
            for _ in 0..fields.varint()? {
                values.push(decode_schema(fields.bytes()?)?);
            }
            slots.push(Remembered { name, kind, user_key, values, ttl_ms });
        }
        if fields.is_empty() { Ok(Self { keys, slots }) } else { Err(corrupt("a catalog of state goes on")) }
    }
}

impl Remembered {
    fn check(&self, variable: &Variable, user_key: Option<&Fields>, value: &Fields) -> Result<()> {
        let refuse = |what: String| {
            let what = format!(
                "{what}: declare it as before, or under another name; `deleteIfExists`, in one start of the program and \
                 no later one, makes room for a new one of this name"
            );
            Err(Error::StateSchema { variable: self.name.clone(), what })
        };
        if self.kind != variable.kind {
            let (was, is) = (self.kind.name(), variable.kind.name());
            return refuse(format!(
                "[STATE_STORE_INVALID_VARIABLE_TYPE_CHANGE] it was {was} and is {is} now"
            ));
        }
        if let (Some(one), Some(other)) = (&self.user_key, user_key) {
            let whole = |fields: &Fields| DataType::Struct(fields.clone());
            if !same_meaning(&whole(one), &whole(other)) {
                let (one, other) = (NamedFields(one), NamedFields(other));
                return refuse(format!(
                    "[STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE] its user key was kept as ({one}) and is ({other}) now"
                ));
            }
        }
        // Whether values under an old schema are left is not known, so each of them must be readable.
        self.values
            .iter()
            .try_for_each(|fields| evolve(&self.name, &decode(fields, std::iter::empty())?, value).map(drop))
    }
}
