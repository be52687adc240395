//! Which recorded position belongs to an input row once rows come in another order than recorded.

use crate::determinant::FingerprintMap;

/// Positions of one index: there may be millions, so each takes four bytes.
pub(super) const POSITIONS_MAX: usize = u32::MAX as usize;
/// No position.
const NONE: u32 = u32::MAX;

/// The recorded positions of one fingerprint, a list threaded through `Index::next`.
#[derive(Debug, Clone, Copy)]
struct Queue {
    first: u32,
    last: u32,
    unused: u32,
    /// Whether their values are known to be equal.
    is_equal: bool,
}

/// The answer to one lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// This recorded position is the row's, and is used up now.
    At(usize),
    /// The fingerprint is recorded, but every position is used; one of them is given.
    Exhausted(usize),
    /// No row like this is recorded.
    Unknown,
    /// Equal rows have different recorded values (at these two positions): which one is meant?
    Ambiguous(usize, usize),
}

/// A multiset of recorded rows: fingerprint to the positions not used yet, oldest first.
///
/// Without a key, rows with equal fingerprints can't be told apart. That does no harm as long as
/// their recorded values are equal; where they differ, a lookup answers [`Found::Ambiguous`].
/// Positions already used count too: had the rows been swapped, the earlier one got the wrong
/// value.
#[derive(Debug, Default)]
pub(super) struct Index {
    queues: FingerprintMap<Queue>,
    next: Vec<u32>,
}

/// A position as it is kept; at most [`POSITIONS_MAX`] rows are read.
fn kept(position: usize) -> u32 {
    u32::try_from(position).unwrap_or(NONE)
}

impl Index {
    /// Adds the positions after those added so far. The first `used` of them are used already.
    pub(super) fn extend(&mut self, fingerprints: &[u64], used: usize) {
        let base = self.next.len();
        self.queues.reserve(fingerprints.len());
        for (i, &fingerprint) in fingerprints.iter().enumerate() {
            self.insert(base + i, fingerprint, i < used);
        }
    }

    /// Adds an unused position. `is_same`: its value is known to be that of the one of its fingerprint that was
    /// added last.
    pub(super) fn push(&mut self, position: usize, fingerprint: u64, is_same: bool) {
        let before = self.queues.get(&fingerprint).map(|queue| queue.is_equal);
        self.insert(position, fingerprint, false);
        if let (true, Some(is_equal), Some(queue)) = (is_same, before, self.queues.get_mut(&fingerprint)) {
            queue.is_equal = is_equal;
        }
    }

    /// Adds one position, as the newest of its fingerprint. Used ones come before unused ones.
    pub(super) fn insert(&mut self, position: usize, fingerprint: u64, used: bool) {
        if self.next.len() <= position {
            self.next.resize(position + 1, NONE);
        }
        let position = kept(position);
        let unused = if used { NONE } else { position };
        let queue = self.queues.entry(fingerprint).or_insert(Queue {
            first: position,
            last: position,
            unused,
            is_equal: true,
        });
        if queue.last == position {
            return;
        }
        if let Some(next) = self.next.get_mut(queue.last as usize) {
            *next = position;
        }
        queue.last = position;
        queue.is_equal = false;
        if queue.unused == NONE {
            queue.unused = unused;
        }
    }

    /// Whether rows of this fingerprint are recorded.
    pub(super) fn knows(&self, fingerprint: u64) -> bool {
        self.queues.contains_key(&fingerprint)
    }

    /// The oldest position not used, over all fingerprints. Walks the whole index: for messages
    /// only.
    pub(super) fn first_unused(&self) -> Option<usize> {
        self.queues.values().map(|q| q.unused).filter(|&p| p != NONE).min().map(|p| p as usize)
    }

    /// Takes the oldest unused position of `fingerprint`. `same` says whether two positions hold
    /// equal values; `None` switches the check for ambiguity off.
    pub(super) fn take<E>(
        &mut self,
        fingerprint: u64,
        same: Option<impl FnMut(usize, usize) -> Result<bool, E>>,
    ) -> Result<Found, E> {
        let Some(queue) = self.queues.get_mut(&fingerprint) else {
            return Ok(Found::Unknown);
        };
        if let Some(same) = same.filter(|_| !queue.is_equal) {
            if let Some(other) = differing(queue, &self.next, same)? {
                return Ok(Found::Ambiguous(queue.first as usize, other));
            }
            queue.is_equal = true;
        }
        let position = queue.unused;
        match self.next.get(position as usize) {
            Some(&next) => {
                queue.unused = next;
                Ok(Found::At(position as usize))
            }
            None => Ok(Found::Exhausted(queue.first as usize)),
        }
    }

    /// The positions of `fingerprint` that `is_used` does not name, oldest first; those before are not walked
    /// again.
    pub(super) fn unused(
        &mut self,
        fingerprint: u64,
        is_used: impl Fn(usize) -> bool,
    ) -> impl Iterator<Item = usize> {
        let next = &self.next;
        let following = |at: u32| next.get(at as usize).copied().filter(|at| *at != NONE);
        let is_free = move |at: &u32| !is_used(*at as usize);
        let first = self.queues.get_mut(&fingerprint).and_then(|queue| {
            let from = Some(queue.unused).filter(|at| *at != NONE);
            let free = std::iter::successors(from, |at| following(*at)).find(&is_free);
            queue.unused = free.unwrap_or(NONE);
            free
        });
        std::iter::successors(first, move |at| following(*at)).filter(is_free).map(|at| at as usize)
    }

    /// A position of `fingerprint`, used or not.
    pub(super) fn first(&self, fingerprint: u64) -> Option<usize> {
        self.queues.get(&fingerprint).map(|queue| queue.first as usize)
    }

    /// Whether one position has `fingerprint`, and no other.
    pub(super) fn is_only_one(&self, fingerprint: u64) -> bool {
        self.queues.get(&fingerprint).is_some_and(|queue| queue.first == queue.last)
    }

    /// All positions may be unused again.
    pub(super) fn start_again(&mut self) {
        self.queues.values_mut().for_each(|queue| queue.unused = queue.first);
    }

    /// The position that was taken last of `fingerprint` is not used after all.
    pub(super) fn give_back(&mut self, fingerprint: u64, position: usize) {
        if let Some(queue) = self.queues.get_mut(&fingerprint) {
            queue.unused = kept(position);
        }
    }
}

/// The first position of a queue whose value is not that of its first.
fn differing<E>(
    queue: &Queue,
    next: &[u32],
    mut same: impl FnMut(usize, usize) -> Result<bool, E>,
) -> Result<Option<usize>, E> {
    let mut at = queue.first;
    while let Some(&following) = next.get(at as usize) {
        at = following;
        if at != NONE && !same(queue.first as usize, at as usize)? {
            return Ok(Some(at as usize));
        }
    }
    Ok(None)
}

/// How many equal rows came before, per fingerprint.
#[derive(Debug, Default)]
pub(super) struct Occurrences(FingerprintMap<u64>);

impl Occurrences {
    /// The occurrence of the next row with this fingerprint, from 0.
    pub(super) fn next(&mut self, fingerprint: u64) -> u64 {
        let count = self.0.entry(fingerprint).or_insert(0);
        let occurrence = *count;
        *count += 1;
        occurrence
    }

    /// So many more rows came before.
    pub(super) fn add(&mut self, counts: FingerprintMap<u64>) {
        counts.into_iter().for_each(|(fingerprint, count)| *self.0.entry(fingerprint).or_default() += count);
    }

    /// The last row with this fingerprint did not come.
    pub(super) fn back(&mut self, fingerprint: u64) {
        if let Some(count) = self.0.get_mut(&fingerprint) {
            *count = count.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    fn take(index: &mut Index, fingerprint: u64, values: &[u8]) -> Found {
        let same = |a: usize, b: usize| Ok::<_, Infallible>(values.get(a) == values.get(b));
        index.take(fingerprint, Some(same)).unwrap_or(Found::Unknown)
    }

    #[test]
    fn equal_rows_are_taken_oldest_first_and_run_out() {
        let mut index = Index::default();
        index.extend(&[5, 6, 5], 0);
        assert_eq!(take(&mut index, 5, b"aba"), Found::At(0));
        assert_eq!(take(&mut index, 5, b"aba"), Found::At(2));
        assert_eq!(take(&mut index, 5, b"aba"), Found::Exhausted(0));
        assert_eq!(take(&mut index, 7, b"aba"), Found::Unknown);
    }

    #[test]
    fn positions_used_before_the_index_was_built_are_not_given_again() {
        let mut index = Index::default();
        index.extend(&[5, 6, 5], 2);
        assert_eq!(take(&mut index, 5, b"aba"), Found::At(2));
        assert_eq!(take(&mut index, 6, b"aba"), Found::Exhausted(1));
    }

    #[test]
    fn equal_rows_with_different_values_are_ambiguous_even_when_one_is_used() {
        let mut index = Index::default();
        index.extend(&[5, 6, 5], 1);
        assert_eq!(take(&mut index, 5, b"abc"), Found::Ambiguous(0, 2));
        assert_eq!(take(&mut index, 6, b"abc"), Found::At(1));
    }

    #[test]
    fn without_the_check_order_decides() {
        let mut index = Index::default();
        index.extend(&[5, 5], 0);
        let none = None::<fn(usize, usize) -> Result<bool, Infallible>>;
        assert_eq!(index.take(5, none), Ok(Found::At(0)));
        assert_eq!(index.take(5, none), Ok(Found::At(1)));
    }

    #[test]
    fn a_pool_refills_what_had_run_out() {
        let mut index = Index::default();
        index.extend(&[5], 0);
        assert_eq!(take(&mut index, 5, b"aa"), Found::At(0));
        index.extend(&[5], 0);
        assert_eq!(take(&mut index, 5, b"aa"), Found::At(1));
        assert_eq!(index.first_unused(), None);
    }
}
