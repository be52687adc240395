use std::collections::HashMap;

use arrow_array::builder::{ListBuilder, MapBuilder, StringBuilder};
use arrow_array::{Array, Float64Array, Int64Array, StringArray, StructArray};
use arrow_schema::Field;
use proptest::prelude::*;

use super::*;
use crate::determinant::{encode_marks, encode_results, encode_row_numbers};
use crate::id::{Epoch, Partition};
use crate::task::{PoolAnswer, PoolQuestion, PoolRows, TaskOptions, values_header};

fn task(partition: u32) -> TaskId {
    let (query, operator, epoch) = ("q".into(), "f".into(), Epoch::Batch(1));
    TaskId { query, operator, epoch, partition: Partition(partition) }
}

fn header() -> Bytes {
    values_header(&TaskOptions::new(task(0), TaskMode::Result, 7)).unwrap()
}

fn results(fingerprints: &[u64], values: &ArrayRef) -> Bytes {
    let mut builder = BlockBuilder::new();
    builder.push_results(fingerprints, &encode_results(values).unwrap()).unwrap();
    builder.finish()
}

fn numbers(values: &[i64]) -> ArrayRef {
    Arc::new(Int64Array::from(values.to_vec()))
}

fn folder() -> (tempfile::TempDir, Arc<SpillDir>) {
    let folder = tempfile::tempdir().unwrap();
    let dir = Arc::new(SpillDir::create(folder.path(), 1 << 30, true).unwrap());
    (folder, dir)
}

/// All rows, once they stand in one order; a few entries at a time.
fn settled(builder: &mut Builder) -> Rows {
    loop {
        if let Some(rows) = builder.settle(7).unwrap() {
            return rows;
        }
    }
}

fn add(builder: &mut Builder, partition: u32, block: &Bytes) {
    while !builder.tidy(7).unwrap() {}
    builder.add(&task(partition), block).unwrap();
}

/// The rows of an answer.
fn given(rows: &PoolRows) -> Vec<(u64, ArrayRef)> {
    let mut all = Vec::new();
    for determinant in rows.blocks.iter().flat_map(|block| BlockReader::new(block).unwrap()) {
        if let Determinant::Results { fingerprints, arrow } = determinant.unwrap() {
            let mut keys = Vec::new();
            fingerprints.extend_into(&mut keys);
            let values = decode_results(arrow).unwrap();
            all.extend(keys.into_iter().zip((0..values.len()).map(|row| values.slice(row, 1))));
        }
    }
    all
}

fn ask(fingerprint: u64, from: u32, wanted: u32) -> PoolQuestion {
    PoolQuestion { fingerprint, from, wanted }
}

fn given_numbers(rows: &PoolRows) -> Vec<(u64, i64)> {
    let number = |value: &ArrayRef| value.as_any().downcast_ref::<Int64Array>().unwrap().value(0);
    given(rows).iter().map(|(key, value)| (*key, number(value))).collect()
}

#[test]
fn rows_are_found_in_the_order_of_their_logs_and_none_of_the_own_one() {
    let (_folder, dir) = folder();
    let mut builder = Builder::new(&dir).unwrap();
    for (partition, values) in [(3, [30, 31, 32]), (1, [10, 11, 12]), (2, [20, 21, 22])] {
        add(&mut builder, partition, &header());
        add(&mut builder, partition, &results(&[5, 6, 5], &numbers(&values)));
    }
    let rows = settled(&mut builder);
    let answer = rows.answer(&task(1), &[ask(5, 0, 9), ask(6, 1, 1), ask(7, 0, 1)], false, 1 << 20).unwrap();
    let answers: Vec<_> = answer.answers.iter().map(|answer| (answer.given, answer.left)).collect();
    assert_eq!(answers, [(4, 0), (1, 0), (0, 0)]);
    assert_eq!(given_numbers(&answer), [(5, 30), (5, 32), (5, 20), (5, 22), (6, 21)]);
    // Nothing is behind the last, and for a log that is not there all rows are others'.
    let none = rows.answer(&task(1), &[ask(5, 4, 1)], false, 1 << 20).unwrap();
    assert_eq!(none.answers, [PoolAnswer { given: 0, left: 0 }]);
    let all = rows.answer(&task(9), &[ask(5, 0, 1)], false, 1 << 20).unwrap();
    assert_eq!(all.answers, [PoolAnswer { given: 1, left: 5 }]);
}

#[test]
fn rows_with_marks_are_found_by_arguments_and_by_both() {
    let (_folder, dir) = folder();
    let mut builder = Builder::new(&dir).unwrap();
    let mut block = BlockBuilder::new();
    let marks: Vec<u64> =
        (0..40).map(|row| if row == 39 { 0 } else { ((row + 1) << 17) | (2 << 1) }).collect();
    block.push(&Determinant::Marks { marks: &encode_marks(marks.iter().copied()) }).unwrap();
    block.push_results(&[5; 40], &encode_results(&numbers(&(0..40).collect::<Vec<_>>())).unwrap()).unwrap();
    add(&mut builder, 1, &header());
    add(&mut builder, 1, &block.finish());
    // Without marks: those before are not of these.
    add(&mut builder, 1, &results(&[5], &numbers(&[40])));
    let rows = settled(&mut builder);
    let key = |row: usize| marked_key(5, marks[row]);
    let asked = [
        ask(key(30), 0, 2),
        ask(key(7), 0, 1),
        ask(5, 38, 9),
        ask(marked_key(5, (77 << 17) | (2 << 1)), 0, 1),
    ];
    let answer = rows.answer(&task(2), &asked, true, 1 << 20).unwrap();
    assert_eq!(given_numbers(&answer)[..2], [(key(30), 30), (key(7), 7)]);
    assert_eq!(answer.answers[3], PoolAnswer { given: 0, left: 0 });
    assert_eq!(answer.columns, [0, 2 << 1]);
    let by_arguments = rows.answer(&task(2), &[ask(5, 38, 9)], false, 1 << 20).unwrap();
    assert_eq!(given_numbers(&by_arguments), [(5, 38), (5, 39), (5, 40)]);
}

#[test]
fn copies_do_not_count_again_and_who_takes_a_row_of_the_same_operator_has_one() {
    let (_folder, dir) = folder();
    let mut builder = Builder::new(&dir).unwrap().of("f~2");
    let mut block = BlockBuilder::new();
    block.push(&Determinant::Copies { places: &encode_row_numbers(&[1]) }).unwrap();
    block.push_results(&[5, 6], &encode_results(&numbers(&[1, 2])).unwrap()).unwrap();
    add(&mut builder, 1, &header());
    add(&mut builder, 1, &block.finish());
    let other = TaskId { operator: "f#2".into(), ..task(1) };
    builder.add(&other, &header()).unwrap();
    builder.add(&other, &results(&[6, 7], &numbers(&[2, 3]))).unwrap();
    let rows = settled(&mut builder);
    let answer = rows.answer(&task(2), &[5, 6, 7].map(|row| ask(row, 0, 1)), false, 1 << 20).unwrap();
    assert_eq!(answer.count, 3);
    assert_eq!(given_numbers(&answer), [(5, 1), (6, 2), (7, 3)]);
    let read = answer.blocks.iter().flat_map(|block| BlockReader::new(block).unwrap());
    let copies = read.filter_map(|determinant| match determinant.unwrap() {
        Determinant::Copies { places } => Some(row_numbers(places).unwrap()),
        _ => None,
    });
    assert_eq!(copies.collect::<Vec<_>>(), [[0, 1]]);
}

#[test]
fn a_row_of_which_there_are_but_copies_counts_once() {
    let (_folder, dir) = folder();
    let mut builder = Builder::new(&dir).unwrap().of("f");
    let copies = |keys: &[u64]| {
        let mut block = BlockBuilder::new();
        let places: Vec<u64> = (0..keys.len() as u64).collect();
        block.push(&Determinant::Copies { places: &encode_row_numbers(&places) }).unwrap();
        block
            .push(&Determinant::Marks { marks: &encode_marks(keys.iter().map(|key| key << 17 | 2 << 1)) })
            .unwrap();
        block.push_results(keys, &encode_results(&numbers(&vec![1; keys.len()])).unwrap()).unwrap();
        block.finish()
    };
    // Of 0 to 49 there are copies in two logs; of the even ones also what they were copied from.
    let keys: Vec<u64> = (0..50).collect();
    for partition in [1, 2] {
        add(&mut builder, partition, &header());
        add(&mut builder, partition, &copies(&keys));
    }
    let even: Vec<u64> = (0..50).step_by(2).collect();
    add(&mut builder, 3, &header());
    add(&mut builder, 3, &results(&even, &numbers(&[1; 25])));
    let count = |builder: &mut Builder| {
        let rows = settled(builder);
        rows.answer(&task(4), &[ask(5, 0, 1)], false, 1 << 20).unwrap().count
    };
    assert_eq!(count(&mut builder), 50);
    // Those that come later are counted anew.
    add(&mut builder, 3, &results(&[1, 77], &numbers(&[1, 1])));
    assert_eq!(count(&mut builder), 51);
}

#[test]
fn what_was_copied_from_another_use_counts_once_be_that_among_the_logs_or_not() {
    for (has_other, count) in [(false, 2), (true, 3)] {
        let (_folder, dir) = folder();
        let mut builder = Builder::new(&dir).unwrap().of("f");
        let mut block = BlockBuilder::new();
        block.push(&Determinant::OfOtherUses { places: &encode_row_numbers(&[0]) }).unwrap();
        block.push_results(&[5, 6], &encode_results(&numbers(&[1, 2])).unwrap()).unwrap();
        add(&mut builder, 1, &header());
        add(&mut builder, 1, &block.finish());
        if has_other {
            let other = TaskId { operator: "f#2".into(), ..task(1) };
            builder.add(&other, &header()).unwrap();
            builder.add(&other, &results(&[5, 7], &numbers(&[1, 3]))).unwrap();
        }
        let answer = settled(&mut builder).answer(&task(2), &[ask(5, 0, 1)], false, 1 << 20).unwrap();
        assert_eq!(answer.count, count);
    }
}

#[test]
fn a_full_message_answers_what_it_can_and_at_least_one_row() {
    let (_folder, dir) = folder();
    let mut builder = Builder::new(&dir).unwrap();
    add(&mut builder, 1, &header());
    add(&mut builder, 1, &results(&[5; 4], &numbers(&[1; 4])));
    add(&mut builder, 1, &results(&[6], &numbers(&[2])));
    let rows = settled(&mut builder);
    let answer = rows.answer(&task(0), &[ask(5, 0, 3), ask(6, 0, 1)], true, 1).unwrap();
    assert_eq!(answer.answers, [PoolAnswer { given: 1, left: 3 }]);
    assert_eq!(given_numbers(&answer), [(5, 1)]);
}

#[test]
fn of_rows_that_cannot_be_told_apart_two_that_differ_are_shown() {
    let (_folder, dir) = folder();
    let mut builder = Builder::new(&dir).unwrap();
    add(&mut builder, 1, &header());
    add(&mut builder, 1, &results(&[5; 9], &numbers(&[1, 1, 1, 1, 1, 1, 1, 8, 9])));
    add(&mut builder, 2, &header());
    add(&mut builder, 2, &results(&[6, 7, 7], &numbers(&[1, 2, 2])));
    let rows = settled(&mut builder);
    for _ in 0..2 {
        let answer = rows.answer(&task(0), &[ask(5, 0, 1)], true, 1 << 20).unwrap();
        assert_eq!(answer.answers, [PoolAnswer { given: 2, left: 0 }]);
        assert_eq!(given_numbers(&answer), [(5, 1), (5, 8)]);
    }
    let answer = rows.answer(&task(0), &[ask(7, 0, 1)], true, 1 << 20).unwrap();
    assert_eq!(answer.answers, [PoolAnswer { given: 1, left: 1 }]);
    // All are the asker's own: it has them, and sees for itself.
    let own = rows.answer(&task(1), &[ask(5, 0, 1)], true, 1 << 20).unwrap();
    assert_eq!(own.answers, [PoolAnswer { given: 0, left: 0 }]);
}

#[test]
fn values_of_every_type_come_back_as_they_were() {
    let mut list = ListBuilder::new(StringBuilder::new());
    list.append_value([Some("a"), None, Some("")]);
    list.append_null();
    let mut map = MapBuilder::new(None, StringBuilder::new(), StringBuilder::new());
    map.keys().append_value("k");
    map.values().append_value("v");
    map.append(true).unwrap();
    map.append(false).unwrap();
    let field = Arc::new(Field::new("x", DataType::Float64, true));
    let floats: ArrayRef = Arc::new(Float64Array::from(vec![Some(-0.0), None]));
    let all: [ArrayRef; 6] = [
        Arc::new(list.finish()),
        Arc::new(map.finish()),
        Arc::new(StructArray::from(vec![(field, floats)])),
        Arc::new(StringArray::from(vec![Some("long enough to stand in several pieces of a row"), None])),
        Arc::new(Float64Array::from(vec![f64::NAN, f64::NEG_INFINITY])),
        Arc::new(arrow_array::NullArray::new(2)),
    ];
    let (_folder, dir) = folder();
    let mut builder = Builder::new(&dir).unwrap();
    add(&mut builder, 1, &header());
    for (at, values) in (0_u64..).zip(&all) {
        add(&mut builder, 1, &results(&[2 * at, 2 * at + 1], values));
    }
    let rows = settled(&mut builder);
    for (at, values) in (0_u64..).zip(&all) {
        let answer =
            rows.answer(&task(0), &[ask(2 * at, 0, 1), ask(2 * at + 1, 0, 1)], true, 1 << 20).unwrap();
        let found = given(&answer);
        assert_eq!(found.len(), 2);
        for (row, (_, value)) in found.iter().enumerate() {
            assert_eq!(value.to_data(), values.slice(row, 1).to_data(), "{}", values.data_type());
        }
    }
}

#[test]
fn what_is_added_later_is_in_later_rows_alone() {
    let (_folder, dir) = folder();
    let mut builder = Builder::new(&dir).unwrap();
    assert_eq!(settled(&mut builder).answer(&task(0), &[ask(5, 0, 1)], true, 1).unwrap().answers.len(), 1);
    add(&mut builder, 1, &header());
    add(&mut builder, 1, &results(&[5], &numbers(&[1])));
    let before = settled(&mut builder);
    add(&mut builder, 1, &results(&[5], &numbers(&[1])));
    assert_eq!(builder.end_of(&task(1)).0, (header().len() + 2 * results(&[5], &numbers(&[1])).len()) as u64);
    let after = settled(&mut builder);
    for (rows, left) in [(before, 0), (after, 1)] {
        let answer = rows.answer(&task(0), &[ask(5, 0, 1)], true, 1 << 20).unwrap();
        assert_eq!(answer.answers, [PoolAnswer { given: 1, left }]);
    }
}

#[test]
fn a_block_that_fails_leaves_nothing_and_its_space_is_free_in_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let dir = Arc::new(SpillDir::create(folder.path(), 200, false).unwrap());
    let mut builder = Builder::new(&dir).unwrap();
    let error = builder.add(&task(1), &results(&[5], &numbers(&[1]))).unwrap_err();
    assert_eq!(error.condition(), "CORRUPT_LOG");
    add(&mut builder, 1, &header());
    let many = numbers(&(0..100).collect::<Vec<_>>());
    let error = builder.add(&task(1), &results(&(0..100).collect::<Vec<_>>(), &many)).unwrap_err();
    assert_eq!(error.condition(), "DISK_BUDGET");
    assert_eq!(dir.used_bytes(), 0);
    add(&mut builder, 1, &results(&[3], &numbers(&[33])));
    let rows = settled(&mut builder);
    let answer = rows.answer(&task(0), &[ask(3, 0, 1), ask(4, 0, 1)], true, 1 << 20).unwrap();
    assert_eq!(given_numbers(&answer), [(3, 33)]);
    assert!(dir.used_bytes() > 0);
    drop((builder, rows));
    assert_eq!(dir.used_bytes(), 0);
}

#[test]
fn a_block_that_fails_again_and_again_takes_no_more_space() {
    let folder = tempfile::tempdir().unwrap();
    let dir = Arc::new(SpillDir::create(folder.path(), 2_000, false).unwrap());
    let mut builder = Builder::new(&dir).unwrap();
    add(&mut builder, 1, &header());
    let mut block = BlockBuilder::new();
    block.push_results(&[1], &encode_results(&numbers(&[1])).unwrap()).unwrap();
    let many = numbers(&(0..1_000).collect::<Vec<_>>());
    block.push_results(&(0..1_000).collect::<Vec<_>>(), &encode_results(&many).unwrap()).unwrap();
    let block = block.finish();
    for _ in 0..20 {
        assert_eq!(builder.add(&task(1), &block).unwrap_err().condition(), "DISK_BUDGET");
    }
    assert!(dir.used_bytes() < 50, "{}", dir.used_bytes());
}

#[test]
fn a_dictionary_comes_back_as_one() {
    let values: arrow_array::Int8DictionaryArray = vec!["a", "b"].into_iter().collect();
    let values: ArrayRef = Arc::new(values);
    let (_folder, dir) = folder();
    let mut builder = Builder::new(&dir).unwrap();
    add(&mut builder, 1, &header());
    add(&mut builder, 1, &results(&[0, 1], &values));
    let rows = settled(&mut builder);
    let answer = rows.answer(&task(0), &[ask(0, 0, 1)], true, 1 << 20).unwrap();
    assert_eq!(given(&answer)[0].1.data_type(), values.data_type());
}

#[test]
fn a_value_that_reads_otherwise_than_it_was_written_is_not_given() {
    let (_folder, dir) = folder();
    let mut builder = Builder::new(&dir).unwrap();
    add(&mut builder, 1, &header());
    add(&mut builder, 1, &results(&[5], &numbers(&[1])));
    let rows = settled(&mut builder);
    let mut bytes = vec![0; usize::try_from(builder.values.end()).unwrap()];
    builder.values.read(&mut bytes, 0).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    builder.values.cut(0);
    builder.values.append(&bytes).unwrap();
    let refused = rows.answer(&task(0), &[ask(5, 0, 1)], false, 1 << 20).unwrap_err();
    assert!(matches!(refused, Error::CorruptSpill { .. }), "{refused}");
}

#[test]
fn rows_of_another_grammar_are_left_to_whoever_reads_their_header() {
    let (_folder, dir) = folder();
    let mut builder = Builder::new(&dir).unwrap();
    let foreign = values_header(&TaskOptions::new(task(0), TaskMode::Services, 7)).unwrap();
    add(&mut builder, 1, &foreign);
    add(&mut builder, 1, &results(&[5], &numbers(&[1])));
    let rows = settled(&mut builder);
    let answer = rows.answer(&task(0), &[ask(5, 0, 1)], true, 1 << 20).unwrap();
    assert_eq!((answer.answers, answer.blocks), (vec![PoolAnswer { given: 0, left: 0 }], vec![foreign]));
}

#[test]
fn of_each_log_the_last_header_is_told() {
    let (_folder, dir) = folder();
    let mut builder = Builder::new(&dir).unwrap();
    let of = |code| values_header(&TaskOptions::new(task(0), TaskMode::Result, code)).unwrap();
    for (partition, codes) in [(1, [7, 8]), (2, [9, 8])] {
        for code in codes {
            add(&mut builder, partition, &of(code));
        }
    }
    add(&mut builder, 3, &of(9));
    let rows = settled(&mut builder);
    let answer = rows.answer(&task(0), &[ask(5, 0, 1)], true, 1 << 20).unwrap();
    assert_eq!(answer.blocks, [of(8), of(9)]);
}

proptest! {
    #[test]
    fn the_same_is_found_as_in_memory(
        logs in prop::collection::vec(prop::collection::vec((0_u64..20, 0_i64..3), 0..40), 1..12),
        own in 0_u32..12,
        step in 1_u32..5,
        again in 0_usize..12,
    ) {
        let (_folder, dir) = folder();
        let mut builder = Builder::new(&dir).unwrap();
        for (partition, log) in (0..).zip(&logs) {
            add(&mut builder, partition, &header());
            for part in log.chunks(7) {
                let (keys, values): (Vec<u64>, Vec<i64>) = part.iter().copied().unzip();
                add(&mut builder, partition, &results(&keys, &numbers(&values)));
            }
            if again == partition as usize {
                settled(&mut builder);
            }
        }
        let rows = settled(&mut builder);
        let mut expected: HashMap<u64, Vec<i64>> = HashMap::new();
        for (_, log) in (0..).zip(&logs).filter(|(partition, _)| *partition != own) {
            log.iter().for_each(|(key, value)| expected.entry(*key).or_default().push(*value));
        }
        for key in 0..20 {
            let mut found = Vec::new();
            loop {
                let question = ask(key, u32::try_from(found.len()).unwrap(), step);
                let answer = rows.answer(&task(own), &[question], false, 16).unwrap();
                found.extend(given_numbers(&answer).into_iter().map(|(_, value)| value));
                let PoolAnswer { given, left } = answer.answers[0];
                prop_assert!(given <= step && (given > 0 || left == 0));
                if left == 0 {
                    break;
                }
            }
            prop_assert_eq!(found, expected.remove(&key).unwrap_or_default());
        }
    }
}
