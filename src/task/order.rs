//! What the order of arguments says of rows that have the same ones.

use crate::determinant::FingerprintMap;

/// Whether rows that come again with their arguments in this order are, one by one, those that came before, though
/// nothing else is known of them.
///
/// Behind a shuffle equal rows may trade places. Where arguments come mixed, as rows arrived, rows that came in another
/// order would show: hardly ever do others have just these. Where a sort or a merge join puts equal ones side by side, or
/// a join gives several rows for one, the same order comes of any. So they must return after others came between, and
/// not lie side by side much more often than they would by chance.
pub(super) fn tells_rows(fingerprints: &[u64]) -> bool {
    let mut counts: FingerprintMap<u32> = FingerprintMap::default();
    fingerprints.iter().for_each(|fingerprint| *counts.entry(*fingerprint).or_default() += 1);
    let (rows, distinct) = (fingerprints.len(), counts.len());
    let repeated = rows - distinct;
    if repeated == 0 {
        return true;
    }
    let beside = fingerprints.windows(2).filter(|pair| pair.first() == pair.last()).count();
    let returns = repeated - beside;
    let pairs: f64 = counts.values().map(|count| f64::from(*count) * (f64::from(*count) - 1.0)).sum();
    let by_chance = pairs / as_float(rows);
    returns * 8 >= repeated && as_float(beside) <= 1.5 * by_chance + 3.0 * by_chance.sqrt()
}

/// Tasks have fewer rows than a float tells apart.
#[expect(clippy::cast_precision_loss, reason = "an estimate")]
const fn as_float(count: usize) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::tells_rows;

    /// Numbers below `of`, as if by chance.
    fn mixed(rows: u64, of: u64) -> Vec<u64> {
        (0..rows).map(|row| (row.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) % of).collect()
    }

    /// As if by chance, most of them the same.
    fn mostly_one(rows: u64) -> Vec<u64> {
        mixed(rows, 1_000).into_iter().map(|number| number.saturating_sub(900)).collect()
    }

    fn sorted(mut fingerprints: Vec<u64>) -> Vec<u64> {
        fingerprints.sort_unstable();
        fingerprints
    }

    #[test]
    fn arguments_that_come_mixed_tell_rows_and_sorted_ones_do_not() {
        for fingerprints in [mixed(1_000, 2), mixed(1_000, 20), mixed(100_000, 1_000), mostly_one(10_000)] {
            assert!(tells_rows(&fingerprints));
            assert!(!tells_rows(&sorted(fingerprints)));
        }
    }

    #[test]
    fn where_all_are_others_there_is_nothing_to_tell_and_where_all_are_equal_nothing_tells() {
        assert!(tells_rows(&[]) && tells_rows(&[7]) && tells_rows(&[3, 1, 2]));
        assert!(!tells_rows(&[7, 7]) && !tells_rows(&[7; 1_000]) && !tells_rows(&[1, 1, 2, 2]));
        assert!(tells_rows(&[1, 2, 1, 3, 2]));
    }

    #[test]
    fn several_rows_for_each_of_another_side_are_not_told() {
        let thrice = mixed(1_000, 20).into_iter().flat_map(|number| [number; 3]).collect::<Vec<_>>();
        assert!(!tells_rows(&thrice));
        // Sorted within each of ten parts.
        let parts = (0..10).flat_map(|_| sorted(mixed(1_000, 20))).collect::<Vec<_>>();
        assert!(!tells_rows(&parts));
    }
}
