//! What is in a savepoint.
//!
//! ```text
//! manifest = "CP" · version (1 byte) · flags (1 byte, 0) · length (4 bytes) · crc32 (4 bytes) · postcard
//! ```
//!
//! Numbers are little-endian; length and checksum are of what follows them. Version 1 is that of a folder. In version 2,
//! that of an object store, the number with which names of files begin stands before the rest.

use std::collections::BTreeSet;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::state::Range;

pub(in crate::edge::disk) const MAGIC: &[u8; 2] = b"CP";
/// The version that is written for a folder.
const OF_FOLDER: u8 = 1;
/// The newest version that is read; it is written for an object store.
pub(super) const VERSION: u8 = 2;
/// Bytes before the body.
const HEAD: usize = 12;

/// What is in a savepoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The query that it was made of.
    pub query: String,
    /// The query's last epoch that was committed.
    pub epoch: u64,
    /// When it was made, in milliseconds since 1970.
    pub made_ms: u64,
    /// The version of Clonos that made it.
    pub made_by: String,
    /// States of the query's operators.
    pub states: Vec<SavedState>,
}

/// One operator's state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedState {
    /// Name of the operator's log.
    pub operator: String,
    /// The last epoch in which the operator changed it.
    pub version: u64,
    /// The clock of that epoch: what expires until then is not in it.
    pub now_ms: i64,
    /// What the operator said of its variables.
    pub catalog: Bytes,
    /// Bytes of its file.
    pub bytes: u64,
    /// Ranges in which there is something, in order.
    pub ranges: Vec<SavedRange>,
}

/// One range of a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedRange {
    /// The range.
    pub range: Range,
    /// Where its pages begin in the file.
    pub at: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Keys that have something.
    pub keys: u64,
    /// Entries, timers included.
    pub entries: u64,
    /// Timers.
    pub timers: u64,
}

/// The name that the user gave an operator, of the name of its log.
#[must_use]
pub fn uid_of(operator: &str) -> &str {
    let is_end = |c: char| matches!(c, '#' | '~') || c.is_control();
    operator.split(is_end).next().unwrap_or_default()
}

impl SavedState {
    /// The name that the user gave the operator.
    #[must_use]
    pub fn uid(&self) -> &str {
        uid_of(&self.operator)
    }

    /// Sum of some figure of all ranges.
    #[must_use]
    pub fn sum(&self, of: impl Fn(&SavedRange) -> u64) -> u64 {
        self.ranges.iter().map(of).sum()
    }
}

impl Manifest {
    /// As it stands in its file; `number` is what names of the other files begin with.
    ///
    /// # Errors
    /// [`Error::Protocol`] if it cannot be encoded.
    pub(super) fn encode(&self, number: Option<u64>) -> Result<Vec<u8>> {
        let (version, body) = match number {
            None => (OF_FOLDER, postcard::to_allocvec(self)),
            Some(number) => (VERSION, postcard::to_allocvec(&(number, self))),
        };
        let body = body.map_err(|e| Error::Protocol { what: e.to_string() })?;
        let mut out = Vec::with_capacity(HEAD + body.len());
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&[version, 0]);
        out.extend_from_slice(&u32::try_from(body.len()).unwrap_or(u32::MAX).to_le_bytes());
        out.extend_from_slice(&crc32fast::hash(&body).to_le_bytes());
        out.extend_from_slice(&body);
        Ok(out)
    }

    /// Reads one, with the number that it was encoded with; or what is wrong with it.
    pub(super) fn decode(bytes: &[u8]) -> Result<(Self, Option<u64>), Wrong> {
        let damaged = |why: &str| Wrong::Damaged(why.to_owned());
        let (head, body) = bytes.split_first_chunk::<HEAD>().ok_or_else(|| damaged("it is cut off"))?;
        let [m0, m1, version, flags, l0, l1, l2, l3, sum @ ..] = head;
        if [*m0, *m1] != *MAGIC {
            return Err(damaged("it is no manifest of a savepoint"));
        }
        if *version > VERSION || *version == 0 {
            return Err(Wrong::Version(*version));
        }
        if *flags != 0 || body.len() as u64 != u64::from(u32::from_le_bytes([*l0, *l1, *l2, *l3])) {
            return Err(damaged("it is cut off, or goes on behind its end"));
        }
        if crc32fast::hash(body) != u32::from_le_bytes(*sum) {
            return Err(damaged("its checksum does not fit"));
        }
        let read = match *version {
            OF_FOLDER => postcard::from_bytes(body).map(|manifest| (manifest, None)),
            _ => postcard::from_bytes(body).map(|(number, manifest)| (manifest, Some(number))),
        };
        read.map_err(|error| Wrong::Damaged(error.to_string()))
    }

    /// The place of the state of an operator with this uid.
    ///
    /// # Errors
    /// What there is instead.
    pub(super) fn find(&self, uid: &str) -> Result<usize, String> {
        let mut of_uid = self.states.iter().zip(0..).filter(|(state, _)| state.uid() == uid);
        match (of_uid.next(), of_uid.count()) {
            (Some((_, place)), 0) => Ok(place),
            (Some(_), more) => Err(format!(
                "{} uses of operator {uid:?} had state in it: give each a uid of its own",
                more + 1
            )),
            (None, _) => {
                let uids: BTreeSet<String> =
                    self.states.iter().map(|state| format!("{:?}", state.uid())).collect();
                let uids: Vec<String> = uids.into_iter().collect();
                Err(format!(
                    "it has no state of operator {uid:?}; it has that of {} (query {}, epoch {})",
                    uids.join(", "),
                    self.query,
                    self.epoch
                ))
            }
        }
    }
}

/// What is wrong with a manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Wrong {
    /// This version of Clonos does not read it.
    Version(u8),
    /// It is not what was written.
    Damaged(String),
}
