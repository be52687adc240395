//! Which uses of epochs are over.

use std::collections::HashMap;

use crate::id::{Epoch, EpochKey, Generation};

/// Epochs that are remembered. Requests come late by seconds, so the last ones will do.
const EPOCHS_MAX: usize = 1_024;

/// Commits, as far as a request of before may come still.
#[derive(Debug, Default)]
pub(crate) struct Committed(HashMap<EpochKey, (Epoch, Generation)>);

impl Committed {
    /// An epoch was committed: what was recorded of it has generations below `below`.
    pub(crate) fn insert(&mut self, key: &EpochKey, below: Generation) {
        let known = self.0.entry(slot(key)).or_insert_with(|| (key.epoch.clone(), below));
        // News of an older one may come later.
        if known.1 <= below {
            *known = (key.epoch.clone(), below);
        }
        if self.0.len() > EPOCHS_MAX {
            let mut all: Vec<Generation> = self.0.values().map(|(_, below)| *below).collect();
            let (_, median, _) = all.select_nth_unstable(EPOCHS_MAX / 2);
            let median = *median;
            self.0.retain(|_, (_, below)| *below >= median);
        }
    }

    /// Below which generation an epoch is over.
    pub(crate) fn below(&self, key: &EpochKey) -> Option<Generation> {
        let (epoch, below) = self.0.get(&slot(key))?;
        let committed = EpochKey { query: key.query.clone(), epoch: epoch.clone() };
        committed.covers(key).then_some(*below)
    }
}

/// The micro-batches of a query take one place: a commit covers those before.
fn slot(key: &EpochKey) -> EpochKey {
    let epoch = if matches!(key.epoch, Epoch::Batch(_)) { Epoch::Batch(0) } else { key.epoch.clone() };
    EpochKey { query: key.query.clone(), epoch }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(number: u64) -> EpochKey {
        EpochKey { query: "q".into(), epoch: Epoch::Batch(number) }
    }

    fn named(name: &str) -> EpochKey {
        EpochKey { query: "batch".into(), epoch: Epoch::Named(name.into()) }
    }

    #[test]
    fn a_commit_covers_the_batches_before_and_one_name() {
        let mut committed = Committed::default();
        committed.insert(&batch(7), Generation(70));
        committed.insert(&batch(6), Generation(60));
        assert_eq!(committed.below(&batch(3)), Some(Generation(70)));
        assert_eq!(committed.below(&batch(7)), Some(Generation(70)));
        assert_eq!(committed.below(&batch(8)), None);
        assert_eq!(committed.below(&named("daily")), None);
        committed.insert(&named("daily"), Generation(80));
        assert_eq!(committed.below(&named("daily")), Some(Generation(80)));
    }

    #[test]
    fn the_newest_are_remembered() {
        let mut committed = Committed::default();
        for number in 0..10_000 {
            committed.insert(&named(&number.to_string()), Generation(number));
            assert!(committed.0.len() <= EPOCHS_MAX);
        }
        assert_eq!(committed.below(&named("9999")), Some(Generation(9_999)));
        assert_eq!(committed.below(&named("9600")), Some(Generation(9_600)));
    }
}
