//! Which blocks of a log stand in a segment file already.

use std::collections::HashMap;

use crate::causal_log::SpillRef;

const BITS: usize = u64::BITS as usize;

/// Blocks by index. A place is kept for those alone that are in memory, too: the others know where they are.
#[derive(Debug, Default)]
pub(super) struct Durable {
    places: HashMap<usize, SpillRef>,
    bits: Vec<u64>,
    count: usize,
}

impl Durable {
    /// A block stands at this place; `is_in_memory`, and may leave it.
    pub(super) fn insert(&mut self, index: usize, place: SpillRef, is_in_memory: bool) {
        if self.bits.len() <= index / BITS {
            self.bits.resize(index / BITS + 1, 0);
        }
        if is_in_memory {
            self.places.insert(index, place);
        }
        if !self.contains(index)
            && let Some(bits) = self.bits.get_mut(index / BITS)
        {
            *bits |= bit(index);
            self.count += 1;
        }
    }

    /// Whether a block does.
    pub(super) fn contains(&self, index: usize) -> bool {
        self.bits.get(index / BITS).is_some_and(|bits| bits & bit(index) != 0)
    }

    /// How many do.
    pub(super) const fn count(&self) -> usize {
        self.count
    }

    /// Where a block stands that leaves memory.
    pub(super) fn leaves_memory(&mut self, index: usize) -> Option<SpillRef> {
        self.places.remove(&index)
    }

    /// Blocks from this one on are given up.
    pub(super) fn cut(&mut self, from: usize) {
        self.places.retain(|index, _| *index < from);
        self.bits.truncate(from.div_ceil(BITS));
        if let Some(last) = self.bits.get_mut(from / BITS) {
            *last &= bit(from) - 1;
        }
        self.count = self.bits.iter().map(|bits| bits.count_ones() as usize).sum();
    }
}

const fn bit(index: usize) -> u64 {
    1 << (index % BITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: SpillRef = SpillRef { file: 1, pos: 0, len: 8 };

    #[test]
    fn a_place_is_kept_while_the_block_is_in_memory() {
        let mut durable = Durable::default();
        durable.insert(3, PLACE, true);
        durable.insert(70, PLACE, false);
        durable.insert(70, PLACE, false);
        assert_eq!(durable.count(), 2);
        assert_eq!((durable.leaves_memory(3), durable.leaves_memory(3)), (Some(PLACE), None));
        assert_eq!(durable.leaves_memory(70), None);
        assert_eq!([3, 4, 70, 700].map(|at| durable.contains(at)), [true, false, true, false]);
    }

    #[test]
    fn what_is_cut_off_is_not_there() {
        for (from, left) in [(0, 0), (3, 1), (64, 3), (65, 4), (130, 4)] {
            let mut durable = Durable::default();
            [1, 3, 63, 64].into_iter().for_each(|at| durable.insert(at, PLACE, true));
            durable.cut(from);
            assert_eq!(durable.count(), left, "from {from}");
            assert!([1, 3, 63, 64].into_iter().all(|at| durable.contains(at) == (at < from)), "from {from}");
            assert_eq!(durable.leaves_memory(64).is_some(), from > 64);
        }
    }
}
