//! What is handled range by range is what would be handled at once.

use arrow_array::types::Int64Type;
use arrow_array::{Array, Int64Array, StringArray};
use arrow_schema::{Field, Schema};
use proptest::prelude::*;

use super::*;
use crate::exchange::InMemory;
use crate::state::group::group;
use crate::state::partition_hashes;

/// Keys, a text beside each, and the number of the row.
fn batch(keys: &[u8], first: usize) -> RecordBatch {
    let texts: StringArray =
        keys.iter().map(|key| (key % 5 > 0).then(|| "x".repeat(usize::from(*key)))).collect();
    let numbers = Int64Array::from_iter_values((first..first + keys.len()).map(|row| row as i64));
    let columns: Vec<ArrayRef> = vec![
        Arc::new(StringArray::from_iter_values(keys.iter().map(|key| format!("key {}", key / 4)))),
        Arc::new(texts),
        Arc::new(numbers),
    ];
    let fields: Vec<Field> = ["k", "text", "row"]
        .iter()
        .zip(&columns)
        .map(|(name, column)| Field::new(*name, column.data_type().clone(), *name == "text"))
        .collect();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap()
}

fn gathered(batches: &[RecordBatch], bytes_max: usize) -> Gathered<InMemory> {
    let fields: Fields = vec![Arc::clone(&batches[0].schema().fields()[0])].into();
    let mut rows = Gathered::new((vec![0], fields), partition_hashes(0, 1), bytes_max, InMemory::default());
    for batch in batches {
        rows.add(batch.clone()).unwrap();
    }
    rows
}

/// Each key with the numbers of its rows, in the order in which they are handled; and in how many parts.
fn handled(mut rows: Gathered<InMemory>) -> (Vec<(String, Vec<i64>)>, usize) {
    let (mut all, mut parts) = (Vec::new(), 0);
    loop {
        let batches = rows.take().unwrap();
        if batches.is_empty() {
            return (all, parts);
        }
        parts += 1;
        let fields: Fields = vec![Arc::clone(&batches[0].schema().fields()[0])].into();
        let groups = group(&batches, &[0], &fields).unwrap();
        let numbers = groups.rows.column(2).as_primitive::<Int64Type>().values();
        let names = groups.keys.column(0).as_string::<i32>();
        for (name, bounds) in names.iter().zip(groups.offsets.windows(2)) {
            let of_key = numbers[bounds[0] as usize..bounds[1] as usize].to_vec();
            all.push((name.unwrap().to_owned(), of_key));
        }
    }
}

proptest! {
    #[test]
    fn range_by_range_keys_and_their_rows_come_as_at_once(
        keys in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..12),
        bytes_max in prop::sample::select(vec![0_usize, 100, 1_000, 5_000]),
    ) {
        let mut first = 0;
        let batches: Vec<RecordBatch> = keys
            .iter()
            .map(|keys| {
                let made = batch(keys, first);
                first += keys.len();
                // As a piece of something larger, too.
                if keys.len() > 2 { made.slice(1, keys.len() - 1) } else { made }
            })
            .collect();
        let (whole, parts) = handled(gathered(&batches, usize::MAX));
        prop_assert!(parts <= 1);
        let (ranged, _) = handled(gathered(&batches, bytes_max));
        prop_assert_eq!(whole, ranged);
    }
}

#[test]
fn what_is_past_the_limit_does_not_stay_in_memory_and_comes_in_parts() {
    let batches: Vec<RecordBatch> =
        (0..100_usize).map(|at| batch(&[(at * 7 % 256) as u8; 50], at * 50)).collect();
    let mut rows = gathered(&batches, 20_000);
    assert!(rows.bytes <= 20_000 && rows.batches.len() < 10);
    let first = rows.take().unwrap();
    let count: usize = first.iter().map(RecordBatch::num_rows).sum();
    assert!(count > 0 && count < 5_000 / 4, "{count}");
    assert!(rows.batches.is_empty(), "the last ones are in pieces, too");
    assert!(handled(gathered(&batches, 20_000)).1 > 20);
}

#[test]
fn ranges_ascend_with_the_hash_and_cover_the_partition() {
    for partitions in [1, 3, 200] {
        for partition in [0, partitions / 2, partitions - 1] {
            let hashes = partition_hashes(partition, partitions);
            let (first, last) = (*hashes.start(), *hashes.end());
            let middle = first + (last - first) / 2;
            let places = [0, first, middle, last, u64::MAX].map(|hash| range_of(hash, &hashes));
            assert_eq!(places, [0, 0, 63, 127, 127]);
        }
    }
}
