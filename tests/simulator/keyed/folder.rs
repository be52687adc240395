//! A checkpoint folder: what is in its files, by what their names say.

use std::collections::BTreeMap;

use clonos::agent::state::asking::Join;
use clonos::agent::state::registry::{Asker, Restored};
use clonos::error::{Error, Result};
use clonos::id::Generation;
use clonos::state::kept::{Base, Begun, Chain, Survey, Written};
use clonos::state::{Delta, DeltaPart, Page, RangeSet, StateStore, Version, View, partition_ranges};

use super::{Mutation, state};

#[derive(Debug, Default)]
pub(crate) struct Folder {
    pub(crate) survey: Survey,
    deltas: BTreeMap<(u64, u32, Generation), Delta>,
    pages: BTreeMap<(u64, Generation), Vec<Page>>,
}

impl Folder {
    /// A task's delta is written.
    pub(crate) fn keep(&mut self, epoch: u64, written: Written, delta: Delta) {
        let known = self.deltas.insert((epoch, written.partition, written.generation), delta);
        if known.is_none() {
            self.survey.deltas.entry(epoch).or_default().push(written);
        }
    }

    /// As `Handler::look_into_folder`.
    pub(crate) fn look(
        &mut self,
        asker: &Asker<'_>,
        epoch: u64,
        after: Generation,
        mutation: Mutation,
    ) -> Result<Option<Restored>> {
        let begun = Begun { after, epoch };
        if !self.survey.begun.contains(&begun) && mutation != Mutation::NobodyBegins {
            self.survey.begun.push(begun);
        }
        let Some(version) = self.survey.newest_below(epoch) else { return Ok(None) };
        let chain = self.survey.chain(version, &RangeSet::ALL).map_err(|what| lost(asker, what))?;
        let (version, epochs) = (Version(Some(version)), chain.epochs.len() as u64);
        Ok(Some(Restored { version, catalog: bytes::Bytes::new(), epochs, due_ms: None }))
    }

    /// As `restoring::pending`.
    pub(crate) fn pending(&self, join: &Join) -> Result<Vec<DeltaPart>> {
        let part = |part: &clonos::agent::state::holders::Part| {
            let found = self.survey.find(part.epoch, part.partition, part.generation);
            let found = found.and_then(|_| self.deltas.get(&(part.epoch, part.partition, part.generation)));
            let delta = found.ok_or_else(|| Error::StateLost {
                state: state().to_string(),
                what: format!("no delta of partition {} in epoch {}", part.partition, part.epoch),
            })?;
            let ranges = part.ranges.intersection(&join.ranges);
            let (partition, generation, delta) = (part.partition, part.generation, delta.of(&ranges)?);
            Ok(DeltaPart { partition, generation, ranges, delta })
        };
        join.pending.iter().map(part).collect()
    }

    /// The files that make up a version of some ranges.
    pub(crate) fn chain(&self, version: u64, ranges: &RangeSet) -> Result<Chain> {
        let lost = |what| Error::StateLost { state: state().to_string(), what };
        self.survey.chain(version, ranges).map_err(lost)
    }

    /// As `StateFolder::rebuild`.
    pub(crate) fn rebuild(&self, chain: &Chain, base: Version, ranges: &RangeSet) -> Result<View> {
        let (id, mut store) = (state(), StateStore::new());
        match base {
            Version::NONE => store.begin(&id, *ranges, base)?,
            _ => store.fill(&id, *ranges, base)?,
        }
        for (epoch, file) in chain.bases.iter().filter(|(epoch, _)| Version(Some(*epoch)) == base) {
            let pages = self.pages.get(&(*epoch, file.after)).into_iter().flatten();
            for page in pages.filter(|page| ranges.contains(page.range) && file.ranges.contains(page.range)) {
                store.install(&id, page)?;
            }
        }
        for (epoch, tasks) in chain.epochs.iter().filter(|(epoch, _)| Version(Some(*epoch)) > base) {
            for task in tasks {
                let ranges = partition_ranges(task.partition, task.partitions).intersection(ranges);
                let delta = self.deltas[&(*epoch, task.partition, task.generation)].of(&ranges)?;
                let (partition, generation) = (task.partition, task.generation);
                store.hold(&id, &DeltaPart { partition, generation, ranges, delta })?;
            }
            store.advance(&id, &Chain::point(*epoch, tasks))?;
        }
        Ok(store.view(&id).expect("something was begun"))
    }

    /// Ranges are written as they are.
    pub(crate) fn write_base(&mut self, after: Generation, ranges: &RangeSet, view: &View) -> Result<()> {
        let Version(Some(epoch)) = view.version() else { return Ok(()) };
        let pages = self.pages.entry((epoch, after)).or_default();
        for range in ranges.iter() {
            pages.retain(|page| page.range != range);
            pages.push(view.page(range, None, usize::MAX)?);
        }
        let base = Base { after, ranges: *ranges };
        let known = self.survey.bases.entry(epoch).or_default();
        if !known.contains(&base) {
            known.push(base);
        }
        Ok(())
    }
}

fn lost(asker: &Asker<'_>, what: String) -> Error {
    Error::StateLost { state: asker.task.operator.to_string(), what }
}
