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

/// Whose calls keys are made for.
#[derive(Debug, Clone, Copy)]
pub struct Caller<'a> {
    /// The task.
    pub task: &'a TaskId,
    /// Number of the epoch's use: another one when its name is used again after a commit.
    pub used: u64,
    /// Whether fingerprints tell all rows of the epoch apart (`row_key=`), whichever task has them. Otherwise
    /// the partition does: equal rows of two partitions are two calls.
    pub keyed: bool,
}

/// The key of one call: 32 lower-case hexadecimal digits (128 bits), a pure function of query, operator,
/// epoch, use of the epoch's name, `position` and, for rows without a key, partition. It carries neither
/// attempt nor generation, so every attempt of the same call gives the same key, also where another number
/// of partitions has moved the row.
#[must_use]
pub fn idempotency_key(caller: Caller<'_>, position: CallPosition) -> String {
    let Caller { task, used, keyed } = caller;
    let mut hash = Xxh3::new();
    text(&mut hash, &task.query);
    text(&mut hash, if keyed { without_part(&task.operator) } else { &task.operator });
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
    hash.update(&used.to_le_bytes());
    if !keyed {
        hash.update(&task.partition.0.to_le_bytes());
    }
    hash.update(&position.fingerprint.to_le_bytes());
    hash.update(&position.occurrence.to_le_bytes());
    hash.update(&position.ordinal.to_le_bytes());
    format!("{:032x}", hash.digest128())
}

/// The operator's name without the number of a part: which part computes a row changes as its partition does.
fn without_part(operator: &str) -> &str {
    match operator.rsplit_once('~') {
        Some((first, part)) if part.parse::<usize>().is_ok() => first,
        _ => operator,
    }
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

    fn key_of(task: &TaskId, position: CallPosition) -> String {
        idempotency_key(Caller { task, used: 0, keyed: false }, position)
    }

    const FIRST: CallPosition = CallPosition { fingerprint: 1, occurrence: 0, ordinal: 0 };

    #[test]
    fn every_part_of_the_place_makes_another_key() {
        let base = || task("q", "op", Epoch::Batch(3), 0);
        let keys = [
            key_of(&base(), FIRST),
            key_of(&task("qo", "p", Epoch::Batch(3), 0), FIRST),
            key_of(&task("q", "op", Epoch::Batch(4), 0), FIRST),
            key_of(&task("q", "op", Epoch::Named("3".into()), 0), FIRST),
            key_of(&task("q", "op", Epoch::Batch(3), 1), FIRST),
            key_of(&base(), CallPosition { fingerprint: 2, ..FIRST }),
            key_of(&base(), CallPosition { occurrence: 1, ..FIRST }),
            key_of(&base(), CallPosition { ordinal: 1, ..FIRST }),
        ];
        assert!(keys.iter().all(|k| k.len() == 32 && k.bytes().all(|b| b.is_ascii_hexdigit())));
        assert_eq!(keys.iter().collect::<HashSet<_>>().len(), keys.len());
    }

    #[test]
    fn a_row_with_a_key_has_the_same_one_in_every_partition() {
        let keyed = |partition, operator: &str| {
            let task = task("q", operator, Epoch::Batch(3), partition);
            idempotency_key(Caller { task: &task, used: 0, keyed: true }, FIRST)
        };
        assert_eq!(keyed(0, "op"), keyed(5, "op"));
        // Where one task computes several partitions in turn, the parts after the first have names of their own.
        assert_eq!(keyed(0, "op#2"), keyed(1, "op#2~3"));
        assert_ne!(keyed(0, "op"), keyed(0, "op#2"), "another use of the function");
    }

    #[test]
    fn a_name_used_again_has_other_keys() {
        let task = task("batch", "op", Epoch::Named("daily".into()), 0);
        let of_use = |used| idempotency_key(Caller { task: &task, used, keyed: true }, FIRST);
        assert_ne!(of_use(0), of_use(1));
    }

    #[test]
    fn keys_do_not_change_between_versions() {
        let key = key_of(&task("orders", "score", Epoch::Batch(7), 2), FIRST);
        assert_eq!(key, "e90cdfec666248089dafedda30d94cb9");
    }
}
