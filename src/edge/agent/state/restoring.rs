//! Ranges that no agent has, out of the checkpoint folder; and writing them there as they are, so that there is never too
//! much to be read.

use super::super::handler::Handler;
use crate::agent::state::asking::{Basis, Join, ToRegistry};
use crate::edge::disk::state::StateFolder;
use crate::error::{Error, Result};
use crate::state::kept::Survey;
use crate::state::{DeltaPart, StateStore, Version};

/// One in so many bytes of an agent's memory is for what is being restored.
const RESTORE_SHARE: u64 = 8;
/// Bytes that are moved at a time.
const PAGE_BYTES: usize = 1 << 20;

impl Handler {
    /// Reads ranges that nobody has.
    pub(super) fn restore(&self, join: &Join) -> Result<()> {
        let id = &join.state;
        let folder = self.disk.states().ok_or_else(|| Error::StateLost {
            state: id.to_string(),
            what: "nobody has it, and there is no checkpoint_dir".into(),
        })?;
        let survey = folder.survey(id)?;
        let pending = pending(folder, &survey, join)?;
        let Version(Some(version)) = join.version else {
            self.states.held.write().fill(id, join.life, &join.ranges, join.version, pending)?;
            return join.ranges.iter().try_for_each(|range| self.tell_joined(join, range));
        };
        let chain = survey.chain(version, &join.ranges).map_err(|what| Error::StateLost {
            state: id.to_string(),
            what: format!("{what}, in {}", folder.place(id)),
        })?;
        for (base, ranges) in chain.by_base() {
            let memory_bytes = self.config.memory_bytes / RESTORE_SHARE;
            let _taken = self.states.memory.take(memory_bytes);
            let store = StateStore::with_files(memory_bytes, self.disk.state_files());
            let view = folder.rebuild(id, &chain, (base, &ranges), store)?;
            self.follow(join, join.version)?;
            let part = |part: &DeltaPart| -> Result<DeltaPart> {
                let ranges = part.ranges.intersection(&ranges);
                Ok(DeltaPart { delta: part.delta.of(&ranges)?, ranges, ..part.clone() })
            };
            let parts = pending.iter().map(part).collect::<Result<Vec<_>>>()?;
            let missing = self.states.held.write().fill(id, join.life, &ranges, join.version, parts)?;
            for range in ranges.iter() {
                let mut from = None;
                while missing.contains(range) {
                    let page = view.page(range, from.as_ref(), PAGE_BYTES)?;
                    self.states.held.write().store.install(id, &page)?;
                    from = page.next;
                    if from.is_none() {
                        break;
                    }
                }
                self.tell_joined(join, range)?;
            }
        }
        tracing::info!(state = %id, ranges = join.ranges.len(), version, "restored from checkpoint_dir");
        Ok(())
    }

    /// Writes ranges to the checkpoint folder as they are, and tells the registry.
    pub(super) fn write_base(&self, basis: &Basis) -> Result<()> {
        let Basis { state: id, life, after, ranges } = basis;
        let Some((folder, view)) = self.disk.states().zip(self.states.held.view(id, *life)) else {
            return Ok(());
        };
        let ranges = ranges.intersection(&view.held());
        if ranges.is_empty() || view.version() == Version::NONE {
            return Ok(());
        }
        let bytes = folder.write_base(self.disk.incarnation(), id, *after, &ranges, &view)?;
        let (state, life, version) = (id.clone(), *life, view.version());
        self.ask_states(ToRegistry::Based { state, life, ranges, version, bytes }).map(drop)
    }
}

/// What was decided and is not committed, of the ranges that are restored.
fn pending(folder: &StateFolder, survey: &Survey, join: &Join) -> Result<Vec<DeltaPart>> {
    let mut all = Vec::new();
    for part in &join.pending {
        let written =
            survey.find(part.epoch, part.partition, part.generation).ok_or_else(|| Error::StateLost {
                state: join.state.to_string(),
                what: format!(
                    "{} has no delta of partition {} in epoch {}",
                    folder.place(&join.state),
                    part.partition,
                    part.epoch
                ),
            })?;
        let ranges = part.ranges.intersection(&join.ranges);
        let delta = folder.delta(&join.state, part.epoch, &written)?.of(&ranges)?;
        all.push(DeltaPart { partition: part.partition, generation: part.generation, ranges, delta });
    }
    Ok(all)
}
