//! Runs one above the other, the newest on top, and how they become fewer.
//!
//! Runs that lie beside each other and are of about one size become one; and all become one when those above the
//! lowest are together a quarter of it. So each entry is written again some ten times, and a key is looked for in
//! few runs. What deletes, and what is over, goes when nothing lies below; and if a quarter of the lowest run is over,
//! the last of what ends in it included, though nothing was put on top since.

use std::sync::Arc;

use super::files::RunFile;
use super::key::{RANGES, Range, RangeSet, Slot, slot_of};
use super::memory::Memory;
use super::run::{Item, Merged, Run, RunBuilder};
use crate::error::Result;
use crate::state::entries::{CLEAR, DELETE};

/// Runs of one size that become one.
const FAN: usize = 4;
/// Bytes of runs of the smallest size; each size is [`FAN`] times the one below.
const SMALLEST: u64 = if cfg!(test) { 128 } else { 64 << 10 };
/// By what part of the lowest run those above may be larger until all become one.
const LOWEST_PART: u64 = 4;

/// A run, and what of it counts.
#[derive(Debug, Clone)]
pub(super) struct Layer {
    number: u64,
    pub(super) run: Arc<Run>,
    pub(super) ranges: RangeSet,
}

/// Runs, from the oldest to the newest.
#[derive(Debug)]
pub(super) struct Tree {
    memory: Memory,
    layers: Vec<Layer>,
    merges: Vec<Merge>,
    numbers: u64,
    /// Whether keys begin with hashes.
    is_by_hash: bool,
}

/// Some layers that become one.
#[derive(Debug)]
struct Merge {
    /// Numbers of the layers, which lie beside each other.
    layers: Vec<u64>,
    bytes: u64,
    input: Merged,
    has_begun: bool,
    output: RunBuilder,
    keep: Keep,
}

/// What of a merge's entries has to be kept though it has no value.
#[derive(Debug, Clone)]
pub(super) struct Keep {
    /// What expires until then is over.
    pub(super) now_ms: i64,
    /// Ranges in which nothing lies below: what deletes can go.
    pub(super) lowest: RangeSet,
    /// Slots of which all is over.
    pub(super) deleted: Arc<[Slot]>,
}

impl Keep {
    /// All that deletes, and all that has a value.
    pub(super) fn all() -> Self {
        Self { now_ms: i64::MIN, lowest: RangeSet::EMPTY, deleted: Arc::default() }
    }

    fn is_deleted(&self, key: &[u8]) -> bool {
        // Most operators have deleted none.
        !self.deleted.is_empty() && slot_of(key).is_some_and(|slot| self.deleted.contains(&slot))
    }
}

/// What has bytes in memory that can go to a file.
#[derive(Debug, Clone, Copy)]
enum Large {
    /// The layer at this place.
    Layer(usize),
    /// What is being made of some: the merge at this place.
    Output(usize),
}

impl Tree {
    /// Of none yet.
    pub(super) const fn new(memory: Memory) -> Self {
        Self { memory, layers: Vec::new(), merges: Vec::new(), numbers: 0, is_by_hash: false }
    }

    /// Whose keys begin with hashes.
    pub(super) const fn by_hash(memory: Memory) -> Self {
        Self { memory, layers: Vec::new(), merges: Vec::new(), numbers: 0, is_by_hash: true }
    }

    /// Begins a run of such keys.
    pub(super) fn builder(&self, file: Option<Arc<dyn RunFile>>) -> RunBuilder {
        match self.is_by_hash {
            true => RunBuilder::by_hash(&self.memory, file),
            false => RunBuilder::new(&self.memory, file),
        }
    }

    /// Puts a run on top.
    pub(super) fn push(&mut self, run: Arc<Run>, ranges: RangeSet) {
        let layer = self.layer(run, ranges);
        self.layers.extend(layer);
    }

    /// Puts a run below all.
    pub(super) fn push_below(&mut self, run: Arc<Run>, ranges: RangeSet) {
        if let Some(layer) = self.layer(run, ranges) {
            self.layers.insert(0, layer);
        }
    }

    fn layer(&mut self, run: Arc<Run>, ranges: RangeSet) -> Option<Layer> {
        self.numbers += 1;
        let is_some = !run.is_empty() && !ranges.is_empty();
        is_some.then_some(Layer { number: self.numbers, run, ranges })
    }

    /// From the oldest to the newest.
    pub(super) fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// Layers that have something in the same range, at the most.
    pub(super) fn depth(&self) -> usize {
        let mut depths = [0_usize; RANGES];
        for range in self.layers.iter().flat_map(|layer| layer.ranges.iter()) {
            if let Some(depth) = depths.get_mut(usize::from(range.0)) {
                *depth += 1;
            }
        }
        depths.into_iter().max().unwrap_or(0)
    }

    /// Forgets what is in some ranges.
    pub(super) fn drop_ranges(&mut self, ranges: &RangeSet) {
        self.layers.iter_mut().for_each(|layer| layer.ranges = layer.ranges.without(ranges));
        let is_merged = |number: &u64| self.merges.iter().any(|merge| merge.layers.contains(number));
        self.layers.retain(|layer| !layer.ranges.is_empty() || is_merged(&layer.number));
    }

    /// Bytes of memory it takes.
    pub(super) fn memory_bytes(&self) -> u64 {
        let runs: u64 = self.layers.iter().map(|layer| layer.run.memory_bytes()).sum();
        runs + self.merges.iter().map(|merge| merge.output.memory_bytes()).sum::<u64>()
    }

    /// Bytes of its entries, wherever they are.
    pub(super) fn bytes(&self) -> u64 {
        self.layers.iter().map(|layer| layer.run.bytes()).sum()
    }

    /// Entries, those that others take the place of included.
    pub(super) fn entries(&self) -> u64 {
        self.layers.iter().map(|layer| layer.run.entries()).sum()
    }

    fn large(&self) -> Option<(Large, u64)> {
        let layers = self.layers.iter().enumerate();
        let layers = layers.map(|(at, layer)| (Large::Layer(at), layer.run.resident_bytes()));
        let merges = self.merges.iter().enumerate();
        let outputs = merges.map(|(at, merge)| (Large::Output(at), merge.output.resident_bytes()));
        layers.chain(outputs).max_by_key(|(_, bytes)| *bytes)
    }

    /// Bytes in memory of the largest run that can go to a file.
    pub(super) fn largest(&self) -> u64 {
        self.large().map_or(0, |(_, bytes)| bytes)
    }

    /// Moves that run to a file.
    pub(super) fn spill_largest(&mut self, file: &Arc<dyn RunFile>) -> Result<()> {
        match self.large() {
            Some((Large::Layer(at), _)) => {
                let Some(layer) = self.layers.get_mut(at) else { return Ok(()) };
                let spilled = Arc::new(layer.run.spilled(file)?);
                self.merges.iter_mut().for_each(|merge| merge.input.moved(&layer.run, &spilled));
                layer.run = spilled;
                Ok(())
            }
            Some((Large::Output(at), _)) => {
                self.merges.get_mut(at).map_or(Ok(()), |merge| merge.output.spill(file))
            }
            None => Ok(()),
        }
    }

    /// Merges on for about so many bytes; what is left of them, which is nothing unless there is no more to do.
    /// `file` makes the file for a run that will be so large and should not be in memory.
    ///
    /// # Errors
    /// Of files, and for runs that are corrupt. The merge begins anew the next time.
    pub(super) fn merge(
        &mut self,
        keep: Keep,
        mut bytes: u64,
        mut file: impl FnMut(u64) -> Result<Option<Arc<dyn RunFile>>>,
    ) -> Result<u64> {
        while bytes > 0 {
            while let Some((first, last)) = self.candidates(keep.now_ms) {
                self.begin(first, last, &keep, &mut file)?;
            }
            // The smallest first: it is done soonest, and reading gets faster.
            let smallest = self.merges.iter().enumerate().min_by_key(|(_, merge)| merge.bytes);
            let Some((at, _)) = smallest else { break };
            let mut merge = self.merges.swap_remove(at);
            let is_done = merge.advance(&mut bytes)?;
            if is_done { self.end(merge)? } else { self.merges.push(merge) }
        }
        Ok(bytes)
    }

    fn is_merged(&self, number: u64) -> bool {
        self.merges.iter().any(|merge| merge.layers.contains(&number))
    }

    /// The first and the last of some layers that should become one.
    fn candidates(&self, now_ms: i64) -> Option<(usize, usize)> {
        let free = |layer: &Layer| !self.is_merged(layer.number);
        let sizes: Vec<Option<u32>> =
            self.layers.iter().map(|layer| free(layer).then(|| size_class(layer.run.bytes()))).collect();
        let largest = sizes.iter().flatten().max().copied()?;
        for class in 0..=largest {
            let mut from = 0;
            // Pieces that lie between larger ones, and those that are being merged.
            for piece in sizes.split(|size| size.is_none_or(|size| size > class)) {
                if piece.iter().filter(|size| **size == Some(class)).count() >= FAN {
                    return Some((from, from + piece.len() - 1));
                }
                from += piece.len() + 1;
            }
        }
        let (lowest, above) = self.layers.split_first()?;
        let more: u64 = above.iter().take_while(|layer| free(layer)).map(|layer| layer.run.bytes()).sum();
        let all = above.iter().take_while(|layer| free(layer)).count();
        if !free(lowest) {
            return None;
        }
        if all > 0 && more * LOWEST_PART >= lowest.run.bytes() {
            return Some((0, all));
        }
        let expired = lowest.run.expired_bytes(now_ms);
        (expired > 0 && expired * LOWEST_PART >= lowest.run.bytes()).then_some((0, 0))
    }

    fn begin(
        &mut self,
        first: usize,
        last: usize,
        keep: &Keep,
        file: &mut impl FnMut(u64) -> Result<Option<Arc<dyn RunFile>>>,
    ) -> Result<()> {
        let layers = self.layers.get(first..=last).unwrap_or_default();
        let bytes = layers.iter().map(|layer| layer.run.bytes()).sum();
        let lowest = if first == 0 { keep.lowest } else { RangeSet::EMPTY };
        let mut output = self.builder(file(bytes)?);
        output.reserve(layers.iter().map(|layer| &layer.run));
        self.merges.push(Merge {
            layers: layers.iter().map(|layer| layer.number).collect(),
            bytes,
            input: merged(layers),
            has_begun: false,
            output,
            keep: Keep { lowest, ..keep.clone() },
        });
        Ok(())
    }

    fn end(&mut self, merge: Merge) -> Result<()> {
        let run = Arc::new(merge.output.finish()?);
        let is_in = |layer: &Layer| merge.layers.contains(&layer.number);
        let Some(at) = self.layers.iter().position(is_in) else { return Ok(()) };
        let ranges = self.layers.iter().filter(|layer| is_in(layer));
        let ranges = ranges.fold(RangeSet::EMPTY, |all, layer| all.union(&layer.ranges));
        self.layers.retain(|layer| !is_in(layer));
        if let Some(layer) = self.layer(run, ranges) {
            self.layers.insert(at, layer);
        }
        Ok(())
    }
}

/// All of some layers as one.
fn merged(layers: &[Layer]) -> Merged {
    merged_in(layers, &RangeSet::ALL)
}

/// All of those layers as one that have something in some ranges, however many others there are.
pub(super) fn merged_in(layers: &[Layer], ranges: &RangeSet) -> Merged {
    let wanted = layers.iter().filter(|layer| !layer.ranges.intersection(ranges).is_empty());
    Merged::new(wanted.rev().map(|layer| (&layer.run, layer.ranges)))
}

impl Merge {
    /// Takes entries until there are no more, or `bytes` are used up; whether there are no more.
    fn advance(&mut self, bytes: &mut u64) -> Result<bool> {
        if !self.has_begun {
            self.input.seek(&[])?;
            self.has_begun = true;
        }
        while *bytes > 0 {
            let Some(more) = copy_next(&mut self.input, &self.keep, &mut self.output)? else {
                return Ok(true);
            };
            *bytes = bytes.saturating_sub(more as u64);
        }
        Ok(false)
    }
}

/// Makes one run of all that is in some.
pub(super) fn merge_now(mut input: Merged, keep: &Keep, mut output: RunBuilder) -> Result<Run> {
    input.seek(&[])?;
    while copy_next(&mut input, keep, &mut output)?.is_some() {}
    output.finish()
}

/// Copies what is next, if it is to be kept. Bytes that it had; `None` at the end.
fn copy_next(input: &mut Merged, keep: &Keep, output: &mut RunBuilder) -> Result<Option<usize>> {
    let Some(item) = input.next(&[])? else { return Ok(None) };
    let key = input.key();
    let is_lowest = key.first().is_some_and(|range| keep.lowest.contains(Range(*range)));
    match item {
        Item::Entry(record) if record.is_live(keep.now_ms) && !keep.is_deleted(key) => {
            output.push(&record, input.bytes())?;
            return Ok(Some(record.end - record.at));
        }
        // What was put below might not be over, so the place of what is over has to be taken.
        Item::Entry(_) if !is_lowest => output.push_parts(key, &[DELETE])?,
        Item::Clear if !is_lowest => output.push_parts(key, &[CLEAR])?,
        Item::Entry(_) | Item::Clear => {}
    }
    Ok(Some(key.len() + 2))
}

/// Which size a run is of.
const fn size_class(bytes: u64) -> u32 {
    let mut class = 0;
    let mut limit = SMALLEST;
    while bytes > limit {
        limit = limit.saturating_mul(FAN as u64);
        class += 1;
    }
    class
}
