//! Logs in stores whose memory is not bounded.

use bytes::Bytes;
use clonos::agent::store::{Absorbed, Store};
use clonos::causal_log::Place;
use clonos::error::Result;
use clonos::id::{Generation, LogOffset, TaskId};

pub(crate) fn in_memory(blocks: &[clonos::causal_log::BlockRef]) -> Vec<Bytes> {
    let bytes = |place: &Place| match place {
        Place::Memory(bytes) => bytes.clone(),
        Place::Spilled(..) => unreachable!("memory is not bounded here"),
    };
    blocks.iter().map(|block| bytes(&block.place)).collect()
}

/// All blocks of a log in a store.
pub(crate) fn blocks(store: &Store, task: &TaskId) -> Vec<Bytes> {
    let mut all = Vec::new();
    let mut from = LogOffset::START;
    while let Some(piece) = store.piece(task, from).filter(|piece| !piece.is_empty()) {
        from = piece.last().map_or(from, clonos::causal_log::BlockRef::end);
        all.extend(in_memory(&piece));
    }
    all
}

pub(crate) fn hold_all(
    store: &mut Store,
    task: &TaskId,
    generation: Generation,
    mut from: LogOffset,
    blocks: &[Bytes],
) -> Result<()> {
    for block in blocks {
        assert!(matches!(store.absorb(task, generation, from, block)?, Absorbed::At(_)));
        from = from.plus(block.len() as u64);
    }
    Ok(())
}

pub(crate) fn bytes_of(blocks: &[Bytes]) -> u64 {
    blocks.iter().map(|block| block.len() as u64).sum()
}
