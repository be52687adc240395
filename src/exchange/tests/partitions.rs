//! Where rows go: equal keys to one place, and to the same place in every version.

use arrow_array::builder::{FixedSizeListBuilder, Float64Builder, ListBuilder};
use arrow_array::types::Int32Type;
use arrow_array::{
    Array, BooleanArray, DictionaryArray, Float32Array, Float64Array, Int32Array, LargeStringArray,
    StringArray, StringViewArray, StructArray,
};
use arrow_schema::{DataType, Field};
use proptest::prelude::*;

use super::*;

fn targets(keys: &[ArrayRef], partitions: u32) -> Vec<u32> {
    // What was there before does not stay.
    let mut out = vec![77; 3];
    partitions_of(keys, partitions, &mut out).unwrap();
    out
}

fn array(values: impl Array + 'static) -> ArrayRef {
    Arc::new(values)
}

/// Equal as keys though not as bits, then one that no other equals.
fn floats() -> Vec<Option<f64>> {
    let other_nan = f64::from_bits(f64::NAN.to_bits() | 1 << 63 | 5);
    vec![Some(0.0), Some(-0.0), Some(f64::NAN), Some(other_nan), None, None, Some(f64::INFINITY), Some(1.5)]
}

/// Which of [`floats`] are equal: the number of the first that is.
const CLASSES: [usize; 8] = [0, 0, 2, 2, 4, 4, 6, 7];

/// Asserts that row `i` of `keys` holds `floats()[i]` as far as grouping sees it.
fn assert_classes(keys: &ArrayRef, name: &str) {
    // With so many partitions, keys that differ meet by bad luck only, and always or never.
    let found = targets(std::slice::from_ref(keys), u32::MAX);
    for (row, class) in CLASSES.iter().enumerate() {
        for (other, other_class) in CLASSES.iter().enumerate() {
            assert_eq!(found[row] == found[other], class == other_class, "{name}: rows {row} and {other}");
        }
    }
    for (start, len) in [(0, 8), (1, 5), (3, 1), (7, 1), (2, 0)] {
        let slice = targets(&[keys.slice(start, len)], u32::MAX);
        assert_eq!(slice, found[start..start + len], "{name}: a slice of {len} rows from {start}");
    }
}

#[test]
fn equal_floats_meet_also_within_structs_lists_and_dictionaries() {
    let plain = Float64Array::from(floats());
    assert_classes(&array(plain.clone()), "plain");
    let narrow: Vec<_> = floats().iter().map(|value| value.map(|value| value as f32)).collect();
    assert_classes(&array(Float32Array::from(narrow)), "f32");
    let half: Vec<_> = floats().iter().map(|value| value.map(half::f16::from_f64)).collect();
    assert_classes(&array(arrow_array::Float16Array::from(half)), "f16");

    let field = Arc::new(Field::new("x", DataType::Float64, true));
    let number = Arc::new(Field::new("n", DataType::Int32, true));
    let one = array(Int32Array::from(vec![1; 8]));
    let fields = StructArray::from(vec![(field, array(plain.clone())), (number, one)]);
    assert_classes(&array(fields.clone()), "struct");
    let outer = Arc::new(Field::new("s", fields.data_type().clone(), true));
    assert_classes(&array(StructArray::from(vec![(outer, array(fields))])), "struct of a struct");

    let mut lists = ListBuilder::new(Float64Builder::new());
    let mut pairs = FixedSizeListBuilder::new(Float64Builder::new(), 2);
    for value in floats() {
        lists.append_value([Some(3.5), value]);
        pairs.values().append_option(value);
        pairs.values().append_value(3.5);
        pairs.append(true);
    }
    assert_classes(&array(lists.finish()), "list");
    assert_classes(&array(pairs.finish()), "fixed-size list");

    let keys = Int32Array::from_iter_values(0..8);
    let dictionary = DictionaryArray::<Int32Type>::new(keys, array(plain));
    assert_classes(&array(dictionary), "dictionary");
}

#[test]
fn a_null_is_no_value() {
    let zero = targets(&[array(Int64Array::from(vec![Some(0), None, Some(-1)]))], u32::MAX);
    assert!(zero[0] != zero[1] && zero[1] != zero[2]);
    let text = targets(&[array(StringArray::from(vec![Some(""), None]))], u32::MAX);
    assert_ne!(text[0], text[1]);
}

#[test]
fn the_order_of_key_columns_counts() {
    let (a, b) = (array(Int64Array::from(vec![1])), array(Int64Array::from(vec![2])));
    assert_ne!(targets(&[Arc::clone(&a), Arc::clone(&b)], u32::MAX), targets(&[b, a], u32::MAX));
}

#[test]
fn a_key_without_fingerprints_is_refused_by_name() {
    let ends = Int32Array::from(vec![2]);
    let runs = arrow_array::RunArray::<Int32Type>::try_new(&ends, &Int64Array::from(vec![1])).unwrap();
    let refused = partitions_of(&[array(runs)], 4, &mut Vec::new()).unwrap_err();
    assert_eq!(refused.condition(), "UNSUPPORTED_TYPE");
}

/// A generous bound: eight standard deviations of the distribution.
fn assert_even(keys: ArrayRef, partitions: u32, name: &str) {
    let expected = keys.len() as f64 / f64::from(partitions);
    let mut counts = vec![0_u32; partitions as usize];
    targets(&[keys], partitions).iter().for_each(|target| counts[*target as usize] += 1);
    let chi: f64 = counts.iter().map(|count| (f64::from(*count) - expected).powi(2) / expected).sum();
    let freedom = f64::from(partitions - 1);
    assert!(chi < freedom + 8.0 * (2.0 * freedom).sqrt() + 8.0, "{name} over {partitions}: {chi}");
}

#[test]
fn keys_are_spread_evenly() {
    for partitions in [2, 3, 7, 8, 9, 64, 200] {
        let rows = 20_000;
        assert_even(array(Int64Array::from_iter_values(0..rows)), partitions, "counted");
        assert_even(array(Int64Array::from_iter_values((0..rows).map(|n| n << 20))), partitions, "strided");
        let text = (0..rows).map(|n| format!("customer-{n}"));
        assert_even(array(StringArray::from_iter_values(text)), partitions, "text");
        let halves = (0..rows).map(|n| n as f64 / 2.0);
        assert_even(array(Float64Array::from_iter_values(halves)), partitions, "floats");
    }
}

/// These values must never change: a consumer's partition is recorded, and an epoch that is recovered by
/// another version must send each row to where it went before.
#[test]
fn the_partitions_of_these_keys_never_change() {
    let golden: [(&str, ArrayRef, [u32; 4]); 7] = [
        (
            "ints",
            array(Int64Array::from(vec![Some(0), Some(1), Some(-1), None])),
            [868084, 366062, 846124, 656703],
        ),
        (
            "int32",
            array(Int32Array::from(vec![Some(0), Some(1), Some(-1), None])),
            [868084, 366062, 846124, 656703],
        ),
        (
            "text",
            array(StringArray::from(vec![Some(""), Some("a"), Some("köln"), None])),
            [545342, 449445, 209922, 656703],
        ),
        (
            "bools",
            array(BooleanArray::from(vec![Some(true), Some(false), None, None])),
            [173137, 39958, 656703, 656703],
        ),
        (
            "floats",
            array(Float64Array::from(vec![-0.0, 1.5, f64::NAN, f64::INFINITY])),
            [868084, 330893, 956425, 463688],
        ),
        (
            "dates",
            array(arrow_array::Date32Array::from(vec![0, 1, 19_000, -1])),
            [868084, 366062, 415343, 846124],
        ),
        (
            "decimals",
            array(arrow_array::Decimal128Array::from(vec![0, 1, -1, i128::MAX / 4])),
            [276374, 557258, 121698, 380055],
        ),
    ];
    let mut found = Vec::new();
    for (name, keys, _) in &golden {
        found.push((*name, targets(std::slice::from_ref(keys), 1_000_000)));
    }
    let wanted: Vec<_> = golden.iter().map(|(name, _, wanted)| (*name, wanted.to_vec())).collect();
    assert_eq!(found, wanted);
    let both = targets(&[golden[0].1.clone(), golden[2].1.clone()], 1_000_000);
    assert_eq!(both, [425251, 818852, 846849, 976997], "two columns");
    for (hash, partitions, wanted) in [
        (0, 7, 0),
        (u64::MAX, 7, 6),
        (1 << 63, 8, 4),
        (u64::MAX / 3, 3, 0),
        (u64::MAX, u32::MAX, u32::MAX - 1),
    ] {
        assert_eq!(partition_of(hash, partitions), Partition(wanted), "{hash} over {partitions}");
    }
}

proptest! {
    #[test]
    fn every_partition_is_one_of_those_there_are(hash in any::<u64>(), partitions in 1_u32..) {
        prop_assert!(partition_of(hash, partitions).0 < partitions);
        prop_assert_eq!(partition_of(0, partitions), Partition(0));
        prop_assert_eq!(partition_of(u64::MAX, partitions), Partition(partitions - 1));
        prop_assert!(partition_of(hash, partitions) <= partition_of(hash.saturating_add(1), partitions));
    }

    #[test]
    fn a_text_goes_to_one_place_however_it_is_encoded(
        rows in prop::collection::vec(prop::option::of("[a-c]{0,2}|\\PC{0,20}"), 1..40),
        partitions in 1_u32..50,
        cut in (0_usize..40, 0_usize..40),
    ) {
        let plain = array(StringArray::from(rows.clone()));
        let found = targets(std::slice::from_ref(&plain), partitions);
        let dictionary: DictionaryArray<Int32Type> = rows.iter().map(Option::as_deref).collect();
        // A dictionary may hold what no row has, hold it twice, and hold nulls.
        let positions = Int32Array::from_iter_values((0..rows.len() as i32).rev());
        let reversed: Vec<_> = rows.iter().rev().cloned().chain([None, Some("unused".to_owned())]).collect();
        let indirect = DictionaryArray::<Int32Type>::new(positions, array(StringArray::from(reversed)));
        for other in [
            array(LargeStringArray::from(rows.clone())),
            array(StringViewArray::from_iter(rows.iter().map(Option::as_deref))),
            array(dictionary),
            array(indirect),
        ] {
            let others = targets(std::slice::from_ref(&other), partitions);
            prop_assert_eq!(&others, &found, "{}", other.data_type());
            let start = cut.0.min(rows.len());
            let len = cut.1.min(rows.len() - start);
            prop_assert_eq!(&targets(&[other.slice(start, len)], partitions), &found[start..start + len]);
        }
        for (row, text) in rows.iter().enumerate() {
            let first = rows.iter().position(|other| other == text).unwrap();
            prop_assert_eq!(found[row], found[first]);
        }
    }
}
