//! What stands in files of state.
//!
//! ```text
//! file  = head · body
//! head  = "CK" · version (1 byte, 2) · kind (1 byte) · length (4 bytes) · crc32 (4 bytes) · what it is of
//! delta = as it travels
//! base  = pages: length (4 bytes, never 0) · crc32 (4 bytes) · range (1 byte) · entries; then a length of 0
//! ```
//!
//! Numbers are little-endian.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::state::StateId;

const MAGIC: &[u8; 2] = b"CK";
const VERSION: u8 = 2;
/// Bytes before what a file is of.
const FIXED: usize = 12;

/// What kind of file it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u8)]
pub(super) enum Kind {
    Delta = 1,
    Base = 2,
}

/// What a file is of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Head {
    pub(super) kind: Kind,
    pub(super) id: StateId,
    pub(super) epoch: u64,
    /// Of bases: what the operator said of its variables.
    pub(super) catalog: Bytes,
    /// When the first timer is due: of a delta, in the task's partition, once the delta is applied.
    pub(super) due_ms: Option<i64>,
}

impl Head {
    /// Of what a task decided in an epoch.
    pub(super) fn of_delta(id: &StateId, epoch: u64, due_ms: Option<i64>) -> Self {
        Self { kind: Kind::Delta, id: id.clone(), epoch, catalog: Bytes::new(), due_ms }
    }

    /// Of ranges as they were at the end of one.
    pub(super) fn of_base(id: &StateId, epoch: u64, catalog: Bytes, due_ms: Option<i64>) -> Self {
        Self { kind: Kind::Base, id: id.clone(), epoch, catalog, due_ms }
    }

    pub(super) fn encode(&self) -> Result<Vec<u8>> {
        let of = postcard::to_allocvec(self).map_err(|e| Error::Protocol { what: e.to_string() })?;
        let mut out = Vec::with_capacity(FIXED + of.len());
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&[VERSION, self.kind as u8]);
        out.extend_from_slice(&u32::try_from(of.len()).unwrap_or(u32::MAX).to_le_bytes());
        out.extend_from_slice(&crc32fast::hash(&of).to_le_bytes());
        out.extend_from_slice(&of);
        Ok(out)
    }

    /// Reads what a file begins with; and where its body begins.
    pub(super) fn decode(bytes: &[u8]) -> Result<(Self, usize), String> {
        let cut_off = || "it is cut off".to_owned();
        let (fixed, rest) = bytes.split_first_chunk::<FIXED>().ok_or_else(cut_off)?;
        let [m0, m1, version, kind, l0, l1, l2, l3, sum @ ..] = fixed;
        if [*m0, *m1] != *MAGIC {
            return Err("it is no file of state".to_owned());
        }
        if *version != VERSION {
            return Err(format!("it has version {version}; this Clonos reads version {VERSION}"));
        }
        let len = u32::from_le_bytes([*l0, *l1, *l2, *l3]) as usize;
        let of = rest.get(..len).ok_or_else(cut_off)?;
        if crc32fast::hash(of) != u32::from_le_bytes(*sum) {
            return Err("its checksum does not fit".to_owned());
        }
        let head: Self = postcard::from_bytes(of).map_err(|error| error.to_string())?;
        if head.kind as u8 != *kind {
            return Err("it is of two kinds".to_owned());
        }
        Ok((head, FIXED + len))
    }

    /// Whether it is of this.
    pub(super) fn check(&self, kind: Kind, id: &StateId, epoch: u64) -> Result<(), String> {
        if self.kind == kind && self.id == *id && self.epoch == epoch {
            return Ok(());
        }
        Err(format!("it is of state {} in epoch {}", self.id, self.epoch))
    }
}

/// The body of a file that is of this.
pub(super) fn body(bytes: &Bytes, kind: Kind, id: &StateId, epoch: u64) -> Result<Bytes, String> {
    let (head, at) = Head::decode(bytes)?;
    head.check(kind, id, epoch)?;
    Ok(bytes.slice(at..))
}
