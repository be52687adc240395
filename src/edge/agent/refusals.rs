//! Epochs that cannot come to their end, because rows have moved from task to task, stay so after a restart.
//!
//! What was asked twice is recorded twice, so that a driver that begins again finds all rows, and nothing
//! would tell it. With a checkpoint folder the refusal is therefore a record of the epoch's segments, as a
//! log of its own: it is found, dropped and cleaned up as they are.

use bytes::Bytes;

use super::handler::Handler;
use super::registrar::{LocalRegistry, Registrar};
use crate::determinant::{BlockBuilder, BlockReader, Determinant, bytes_fingerprint};
use crate::edge::disk::recovery::RecoveredTask;
use crate::edge::disk::segment::SegmentRecord;
use crate::edge::locked;
use crate::error::{Divergence, Error, Result};
use crate::id::{Generation, LogOffset, TaskId};

/// Ends the operator in the name of a refusal's record; users' names have no control characters.
const REFUSAL: &str = "\u{1}moved";

/// Whether a log that was found is a refusal.
pub(super) fn is_refusal(found: &RecoveredTask) -> bool {
    found.task.operator.ends_with(REFUSAL)
}

impl Handler {
    /// In the driver: makes what the registry has refused lately survive it.
    pub(in crate::edge) fn keep_refusals(&self) {
        let Registrar::Here(local) = &self.registrar else { return };
        let refused = locked(&local.registry).newly_refused();
        for (divergence, since) in refused {
            if let Err(error) = self.keep_refusal(local, &divergence, since) {
                // It holds while the driver lives, and is tried again.
                tracing::warn!(%error, %divergence, "a refusal could not be written to checkpoint_dir");
                locked(&local.registry).not_written(divergence);
            }
        }
    }

    fn keep_refusal(
        &self,
        local: &LocalRegistry,
        divergence: &Divergence,
        generation: Generation,
    ) -> Result<()> {
        // In this order: of the name's next use nobody knows before the refusal is over.
        let used = self.known_use(&divergence.task.epoch_key()).unwrap_or_default();
        if !locked(&local.registry).refuses(divergence) {
            return Ok(());
        }
        let operator = format!("{}{REFUSAL}", divergence.task.operator);
        let task = TaskId { operator: operator.into(), ..divergence.task.clone() };
        let record = SegmentRecord::of_no_stage(task, generation, LogOffset::START, encode(divergence)?);
        self.disk.submit(record, used).map_or(Ok(()), |pending| pending.wait().map(drop))
    }

    /// Has the registry refuse what an earlier application refused.
    pub(super) fn refuse_again(&self, local: &LocalRegistry, found: Vec<RecoveredTask>) -> Result<()> {
        for refusal in found {
            for block in self.disk.read(&refusal.blocks)? {
                locked(&local.registry).refuse(decode(&block)?);
            }
        }
        Ok(())
    }
}

fn encode(divergence: &Divergence) -> Result<Bytes> {
    let value = postcard::to_stdvec(divergence).map_err(|error| unreadable(&error))?;
    let mut block = BlockBuilder::new();
    block.push(&Determinant::Call {
        name: bytes_fingerprint(REFUSAL.as_bytes()),
        ok: false,
        value: &value,
    })?;
    Ok(block.finish())
}

fn decode(block: &Bytes) -> Result<Divergence> {
    for determinant in BlockReader::new(block)? {
        if let Determinant::Call { value, .. } = determinant? {
            return postcard::from_bytes(value).map_err(|error| unreadable(&error));
        }
    }
    Err(Error::CorruptLog { what: "a refusal without its reason".to_owned() })
}

fn unreadable(error: &postcard::Error) -> Error {
    Error::CorruptLog { what: format!("a refusal cannot be read: {error}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::DivergenceKind;
    use crate::id::{Epoch, Partition};

    #[test]
    fn a_refusal_is_read_as_it_was_written() {
        let task = TaskId {
            query: "batch".into(),
            operator: "f#2".into(),
            epoch: Epoch::Named("daily".to_owned()),
            partition: Partition(3),
        };
        let divergence = Divergence {
            kind: DivergenceKind::RowsChanged,
            task,
            row: None,
            recorded: "4 rows".to_owned(),
            asked: "5 rows".to_owned(),
            advice: "commit".to_owned(),
        };
        assert_eq!(decode(&encode(&divergence).unwrap()).unwrap(), divergence);
        let mut empty = BlockBuilder::new();
        empty.push(&Determinant::Time { unix_ns: 1 }).unwrap();
        assert!(decode(&empty.finish()).is_err());
    }
}
