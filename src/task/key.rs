//! Idempotency keys: one name per call a user's function makes, the same in every attempt.
//!
//! A call whose answer was not stable when everything that knew it died is made again. A service
//! that honours such a key then sees that it is the same request.

use xxhash_rust::xxh3::Xxh3;

use crate::id::{Epoch, TaskId};

/// Which call of which row a key is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CallPosition {
    /// Fingerprint of the row's input columns (0 where there are no rows).
    pub fingerprint: u64,
    /// How many equal rows the task took before this one.
    pub occurrence: u64,
    /// How many calls this row made before this one.
    pub ordinal: u64,
}

/// The place of a call for several rows at once. `first` tells where equal rows are not counted.
#[must_use]
pub fn place_of_batch(fingerprints: impl Iterator<Item = u64>, first: u64, ordinal: u64) -> CallPosition {
    let mut hash = Xxh3::new();
    fingerprints.for_each(|fingerprint| hash.update(&fingerprint.to_le_bytes()));
    CallPosition { fingerprint: hash.digest(), occurrence: first | 1 << 62, ordinal }
}

/// The key of one call: 32 lower-case hexadecimal digits (128 bits), a pure function of query,
/// operator, epoch, partition and `position`. It carries neither attempt nor generation, so every
/// attempt of the same call gives the same key, and it must never change between versions.
#[must_use]
pub fn idempotency_key(task: &TaskId, position: CallPosition) -> String {
    let mut hash = Xxh3::new();
    text(&mut hash, &task.query);
    text(&mut hash, &task.operator);
    match &task.epoch {
        Epoch::Batch(n) => {
            hash.update(&[0]);
            hash.update(&n.to_le_bytes());
        }
        Epoch::Named(name) => {
            hash.update(&[1]);
            text(&mut hash, name);
        }
    }
    hash.update(&task.partition.0.to_le_bytes());
    hash.update(&position.fingerprint.to_le_bytes());
    hash.update(&position.occurrence.to_le_bytes());
    hash.update(&position.ordinal.to_le_bytes());
    format!("{:032x}", hash.digest128())
}

/// Length first, so that ("ab", "c") and ("a", "bc") differ.
fn text(hash: &mut Xxh3, s: &str) {
    hash.update(&u64::try_from(s.len()).unwrap_or(u64::MAX).to_le_bytes());
    hash.update(s.as_bytes());
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::id::Partition;

    fn task(query: &str, operator: &str, epoch: Epoch, partition: u32) -> TaskId {
        TaskId { query: query.into(), operator: operator.into(), epoch, partition: Partition(partition) }
    }

    const FIRST: CallPosition = CallPosition { fingerprint: 1, occurrence: 0, ordinal: 0 };

    #[test]
    fn every_part_of_the_place_makes_another_key() {
        let base = || task("q", "op", Epoch::Batch(3), 0);
        let keys = [
            idempotency_key(&base(), FIRST),
            idempotency_key(&task("qo", "p", Epoch::Batch(3), 0), FIRST),
            idempotency_key(&task("q", "op", Epoch::Batch(4), 0), FIRST),
            idempotency_key(&task("q", "op", Epoch::Named("3".into()), 0), FIRST),
            idempotency_key(&task("q", "op", Epoch::Batch(3), 1), FIRST),
            idempotency_key(&base(), CallPosition { fingerprint: 2, ..FIRST }),
            idempotency_key(&base(), CallPosition { occurrence: 1, ..FIRST }),
            idempotency_key(&base(), CallPosition { ordinal: 1, ..FIRST }),
        ];
        assert!(keys.iter().all(|k| k.len() == 32 && k.bytes().all(|b| b.is_ascii_hexdigit())));
        assert_eq!(keys.iter().collect::<HashSet<_>>().len(), keys.len());
    }

    #[test]
    fn keys_are_those_of_the_first_release() {
        let key = idempotency_key(&task("orders", "score", Epoch::Batch(7), 2), FIRST);
        assert_eq!(key, "0736bd583810350ede87e6ce8d3e7a48");
    }
}
