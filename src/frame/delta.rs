//! The delta of a frame: pieces of causal logs, grouped by task.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::id::{LogOffset, Partition};

/// Blocks of one task's log, in order and without gaps. Query and epoch are the frame's own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// Operator of the task.
    pub operator: String,
    /// Partition of the task.
    pub partition: Partition,
    /// Edges between the task and the frame's consumer, this one included: 1 for the sender's own log.
    pub hops: u32,
    /// Where the first block starts in its log.
    pub from: LogOffset,
    /// The blocks.
    pub blocks: Vec<Bytes>,
}

impl Group {
    /// Position after the last block.
    #[must_use]
    pub fn end(&self) -> LogOffset {
        self.from.plus(self.blocks.iter().map(|block| block.len() as u64).sum())
    }
}

/// Appends groups to `out`; nothing for none.
///
/// # Errors
/// [`Error::Protocol`] if serialisation fails.
pub fn encode_groups(groups: &[Group], out: &mut Vec<u8>) -> Result<()> {
    if groups.is_empty() {
        return Ok(());
    }
    let taken = std::mem::take(out);
    *out = postcard::to_extend(groups, taken).map_err(|error| Error::Protocol { what: error.to_string() })?;
    Ok(())
}

/// Inverse of [`encode_groups`].
///
/// # Errors
/// [`Error::CorruptFrame`] for other bytes.
pub fn decode_groups(bytes: &[u8]) -> Result<Vec<Group>> {
    if bytes.is_empty() {
        return Ok(Vec::new());
    }
    let corrupt = |what: &str| Error::CorruptFrame { reason: format!("its delta {what}") };
    let (groups, rest): (Vec<Group>, _) =
        postcard::take_from_bytes(bytes).map_err(|_| corrupt("cannot be read"))?;
    if !rest.is_empty() {
        return Err(corrupt("is followed by other bytes"));
    }
    let fits = |group: &Group| {
        let bytes =
            group.blocks.iter().try_fold(group.from.0, |at, block| at.checked_add(block.len() as u64));
        bytes.is_some() && group.blocks.iter().all(|block| !block.is_empty())
    };
    if groups.iter().all(fits) {
        Ok(groups)
    } else {
        Err(corrupt("has an empty block, or a position that is too high"))
    }
}
