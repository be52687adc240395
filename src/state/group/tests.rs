//! Groups against a model: rows by key in a map.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, Float64Array, Int64Array, StringArray};
use arrow_cast::cast;
use arrow_schema::{DataType, Field, Schema};
use proptest::prelude::*;

use super::*;
use crate::exchange::partitions_of;
use crate::state::codec::tests::columns::{Dice, array, fields};
use crate::state::{Range, partition_hashes, partition_ranges};

/// A batch of the columns and the row's own number.
fn batch(columns: Vec<ArrayRef>, rows: std::ops::Range<usize>) -> RecordBatch {
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(rows.map(|row| row as i64)));
    let columns: Vec<_> = columns.into_iter().chain([ids]).collect();
    let fields = columns.iter().enumerate();
    let fields: Fields =
        fields.map(|(at, column)| Field::new(format!("c{at}"), column.data_type().clone(), true)).collect();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap()
}

fn ids(groups: &Groups) -> Vec<i64> {
    groups.rows.columns().last().unwrap().as_primitive::<Int64Type>().values().to_vec()
}

fn check(batches: &[RecordBatch], columns: &[usize], partitions: u32) {
    let schema = batches[0].schema();
    let key_fields: Fields = columns.iter().map(|column| Arc::clone(&schema.fields()[*column])).collect();
    let groups = group(batches, columns, &key_fields).unwrap();
    let whole = concat_batches(&schema, batches).unwrap();
    let keys: Vec<ArrayRef> = columns.iter().map(|column| Arc::clone(whole.column(*column))).collect();
    let canonical = canonical_keys(&keys).unwrap();
    let bytes = encode(&canonical, whole.num_rows(), &[]).unwrap();
    let mut model: BTreeMap<&[u8], Vec<i64>> = BTreeMap::new();
    for (row, key) in bytes.iter().enumerate() {
        model.entry(key).or_default().push(row as i64);
    }
    let mut targets = Vec::new();
    partitions_of(&keys, partitions, &mut targets).unwrap();

    assert_eq!(groups.rows.num_rows(), whole.num_rows());
    assert_eq!((groups.prefixes.len(), groups.keys.len()), (model.len(), model.len()));
    assert!(groups.prefixes.is_sorted_by(|one, other| one < other));
    assert_eq!(groups.offsets.len(), model.len() + 1);
    let (ids, found) = (ids(&groups), encode(groups.keys.columns(), model.len(), &[]).unwrap());
    for (at, prefix) in groups.prefixes.iter().enumerate() {
        let rows = &ids[groups.offsets[at] as usize..groups.offsets[at + 1] as usize];
        assert_eq!(rows, model[prefix.key()]);
        assert_eq!(found.get(at), prefix.key());
        let partition = targets[rows[0] as usize];
        assert!(partition_hashes(partition, partitions).contains(&prefix.hash()));
        assert!(partition_ranges(partition, partitions).contains(Range::of(prefix.hash())));
    }
}

proptest! {
    #[test]
    fn rows_stand_together_by_key_in_the_order_in_which_they_came(
        seed in any::<u64>(), sizes in prop::collection::vec(0..30_usize, 1..5), partitions in 1..300_u32,
    ) {
        let mut dice = Dice(seed);
        let mut fields = fields(&mut dice, 2).to_vec();
        fields.push(Arc::new(Field::new("k", DataType::Int8, true)));
        let mut first = 0;
        let batches: Vec<_> = sizes.iter().map(|size| {
            let columns = fields.iter().map(|field| array(field.data_type(), *size, &mut dice)).collect();
            first += size;
            batch(columns, first - size..first)
        }).collect();
        let columns: Vec<usize> = (0..fields.len()).collect();
        check(&batches, &columns, partitions);
    }

    #[test]
    fn hashes_are_sorted_whatever_they_are(
        hashes in prop::collection::vec(prop_oneof![any::<u64>(), 0..9_u64, (u64::MAX - 3)..=u64::MAX], 0..80),
    ) {
        let mut wanted: Vec<_> = hashes.iter().copied().zip(0..).collect();
        wanted.sort();
        prop_assert_eq!(by_hash(&hashes, hashes.len() as u32), wanted);
    }
}

#[test]
fn keys_with_one_hash_are_told_apart() {
    let keys: ArrayRef = Arc::new(StringArray::from(vec!["bb", "a", "bb", "c", "a"]));
    let rows = encode(&[keys], 5, &[]).unwrap();
    let mut order = by_hash(&[7; 5], 5);
    let offsets = split_by_key(&mut order, &rows);
    assert_eq!(offsets, [0, 2, 3, 5]);
    assert_eq!(order.iter().map(|(_, row)| *row).collect::<Vec<_>>(), [1, 4, 3, 0, 2]);
}

#[test]
fn nothing_comes_to_no_keys() {
    let none: ArrayRef = Arc::new(StringArray::from(Vec::<&str>::new()));
    check(&[batch(vec![none], 0..0)], &[0], 3);
    let fields = Fields::from(vec![Field::new("k", DataType::Utf8, true)]);
    assert!(matches!(group(&[], &[0], &fields), Err(Error::Misuse { .. })));
    let rows = batch(vec![], 0..2);
    assert!(matches!(group(&[rows], &[], &Fields::empty()), Err(Error::Misuse { .. })));
}

#[test]
fn a_key_is_shown_as_it_is_kept() {
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["b", "a", "b"]));
    let kind = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
    let zeros: ArrayRef = Arc::new(Float64Array::from(vec![-0.0, 1.0, 0.0]));
    let rows = batch(vec![cast(&texts, &kind).unwrap(), zeros], 0..3);
    let fields = vec![Field::new("t", DataType::LargeUtf8, true), Field::new("f", DataType::Float64, true)];
    let groups = group(&[rows], &[0, 1], &fields.into()).unwrap();
    assert_eq!(groups.keys.len(), 2);
    let texts = groups.keys.column(0).as_string::<i64>();
    let at = texts.iter().position(|text| text == Some("b")).unwrap();
    let zero = groups.keys.column(1).as_primitive::<arrow_array::types::Float64Type>().value(at);
    assert_eq!(zero.to_bits(), 0.0_f64.to_bits());
}
