//! Round trips, hostile bytes, and fingerprints that must never change.

use std::sync::Arc;

use arrow_array::types::{Int32Type, Int64Type};
use arrow_array::{
    Array, ArrayRef, BooleanArray, DictionaryArray, FixedSizeListArray, Float64Array, Int64Array,
    LargeListArray, LargeStringArray, ListArray, NullArray, StringArray, StringViewArray, StructArray,
};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{DataType, Field};
use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::error::Error;

fn fingerprints(columns: &[ArrayRef]) -> Vec<u64> {
    let mut out = Vec::new();
    row_fingerprints(columns, &mut out).expect("a supported type");
    out
}

fn array(values: impl Array + 'static) -> ArrayRef {
    Arc::new(values)
}

fn sample() -> Bytes {
    let mut builder = BlockBuilder::new();
    let header = Determinant::Header {
        format: FORMAT,
        mode: 0,
        code: 7,
        python: "3.11",
        label: "is_banned",
        stage: 3,
        app: 9,
    };
    builder.push(&header).unwrap();
    builder.push_time(1_700_000_000_000_000_000);
    builder.push_time(1_700_000_000_000_000_001);
    builder.push_time(-5);
    builder.push(&Determinant::Seed { seed: u64::MAX }).unwrap();
    builder.push_results(&[1, 2, 3], b"arrow").unwrap();
    builder.push_results(&[8, 8, 8], b"same").unwrap();
    builder.push(&Determinant::Call { name: 1, ok: false, value: b"err" }).unwrap();
    builder.push(&Determinant::Row { fingerprint: 5 }).unwrap();
    builder.push(&Determinant::Input { rows: 300, fingerprint: 6 }).unwrap();
    builder.push(&Determinant::EpochMark).unwrap();
    builder.push(&Determinant::Resume { segment: 200 }).unwrap();
    builder.push(&Determinant::Order { channel: 3, frames: 2, version: 77 }).unwrap();
    for unix_ns in [9, 9, 9] {
        builder.push_time(unix_ns);
    }
    builder.push(&Determinant::Output { round: 4 }).unwrap();
    builder.push(&Determinant::Service { name: 1, text: "lookup" }).unwrap();
    builder.push(&Determinant::Marks { marks: &[7; 16] }).unwrap();
    builder.push(&Determinant::Copies { places: &[0, 2] }).unwrap();
    builder.push(&Determinant::OfOtherUses { places: &[2] }).unwrap();
    builder.finish()
}

#[test]
fn what_is_pushed_is_read_back() {
    let block = sample();
    let read: Vec<_> = BlockReader::new(&block).unwrap().map(Result::unwrap).collect();
    assert_eq!(read.len(), 20);
    assert_eq!(read[16], Determinant::Service { name: 1, text: "lookup" });
    assert_eq!(read[17], Determinant::Marks { marks: &[7; 16] });
    assert_eq!(read[18], Determinant::Copies { places: &[0, 2] });
    assert_eq!(read[19], Determinant::OfOtherUses { places: &[2] });
    assert_eq!(read[2], Determinant::Time { unix_ns: 1_700_000_000_000_000_001 });
    assert_eq!(read[3], Determinant::Time { unix_ns: -5 });
    let rows = |index: usize| match read[index] {
        Determinant::Results { fingerprints, .. } => {
            let mut out = Vec::new();
            fingerprints.extend_into(&mut out);
            out
        }
        other => panic!("{other:?}"),
    };
    assert_eq!((rows(5), rows(6)), (vec![1, 2, 3], vec![8, 8, 8]));
    assert_eq!(read[11], Determinant::Resume { segment: 200 });
    assert_eq!(read[12], Determinant::Order { channel: 3, frames: 2, version: 77 });
    assert_eq!(read[13..15], [Determinant::Time { unix_ns: 9 }, Determinant::TimeAgain { count: 2 }]);
    assert_eq!(read[15], Determinant::Output { round: 4 });
}

#[test]
fn a_builder_is_empty_after_finish() {
    let mut builder = BlockBuilder::new();
    builder.push_time(5);
    let first = builder.finish();
    assert!(builder.is_empty());
    builder.push_time(5);
    assert_eq!(builder.finish(), first, "time starts anew in each block");
}

#[test]
fn every_flipped_bit_and_every_cut_is_noticed() {
    let block = sample();
    for index in 0..block.len() * 8 {
        let mut bytes = block.to_vec();
        bytes[index / 8] ^= 1 << (index % 8);
        assert!(BlockReader::new(&Bytes::from(bytes)).is_err(), "bit {index}");
    }
    for cut in 0..block.len() {
        assert!(BlockReader::new(&block.slice(..cut)).is_err(), "cut at {cut}");
    }
}

#[test]
fn results_survive_the_round_trip_and_compress_where_it_pays() {
    let same = array(Int64Array::from(vec![7; 10_000]));
    let bytes = encode_results(&same).unwrap();
    assert!(bytes.len() < 4_000, "{}", bytes.len());
    assert_eq!(&decode_results(&bytes).unwrap(), &same);
    let few = array(BooleanArray::from(vec![Some(true), None]));
    assert_eq!(&decode_results(&encode_results(&few).unwrap()).unwrap(), &few);
}

/// Results of all shapes: with and without bytes, children, dictionaries and compression.
fn results() -> Vec<ArrayRef> {
    let dictionary: DictionaryArray<Int32Type> = ["a", "b", "a"].into_iter().collect();
    let field = Arc::new(Field::new("d", dictionary.data_type().clone(), true));
    let nested = StructArray::from(vec![(field, array(dictionary.clone()))]);
    let lists = || [Some(vec![Some(1), None]), None, Some(vec![])];
    vec![
        array(Int64Array::from_iter_values(0..3)),
        array(Int64Array::from(vec![7; 10_000])),
        array(NullArray::new(1_000_000)),
        array(StructArray::new_empty_fields(3, None)),
        array(StringViewArray::from(vec!["short", "too long to be kept inline"])),
        array(StringArray::from(Vec::<&str>::new())),
        array(dictionary),
        array(nested),
        array(ListArray::from_iter_primitive::<Int64Type, _, _>(lists()).slice(1, 2)),
        array(FixedSizeListArray::from_iter_primitive::<Int64Type, _, _>([Some(vec![None, None])], 2)),
    ]
}

#[test]
fn results_of_every_shape_come_back() {
    for values in results() {
        let read = decode_results(&encode_results(&values).unwrap());
        assert_eq!(&read.unwrap_or_else(|e| panic!("{}: {e}", values.data_type())), &values);
    }
}

#[test]
fn damaged_results_are_refused_as_corrupt_or_read_as_others() {
    for values in results() {
        let whole = encode_results(&values).unwrap();
        for index in 0..whole.len() * 8 {
            let mut bytes = whole.clone();
            bytes[index / 8] ^= 1 << (index % 8);
            match decode_results(&bytes) {
                Ok(other) => drop(row_fingerprints(&[other], &mut Vec::new())),
                Err(Error::CorruptBlock { .. }) => (),
                Err(other) => panic!("{} bit {index}: {other:?}", values.data_type()),
            }
        }
        for cut in 0..whole.len() {
            let refused = decode_results(&whole[..cut]);
            assert!(matches!(refused, Err(Error::CorruptBlock { .. })), "cut at {cut}");
        }
    }
}

#[test]
fn no_stated_length_makes_results_allocate_more_than_their_bytes_can_hold() {
    let whole = encode_results(&array(Int64Array::from(vec![7; 10_000]))).unwrap();
    let stated = 80_000_i64.to_le_bytes();
    let at = whole.windows(8).rposition(|bytes| bytes == stated).expect("the length before compression");
    for absurd in [i64::MAX, -2, 1 << 40] {
        let mut bytes = whole.clone();
        bytes[at..at + 8].copy_from_slice(&absurd.to_le_bytes());
        let refused = decode_results(&bytes).unwrap_err();
        assert!(refused.to_string().contains("impossible length"), "{refused}");
    }
    let none = encode_results(&array(NullArray::new(1 << 40))).unwrap();
    let refused = decode_results(&none).unwrap_err();
    assert!(refused.to_string().contains("more values than bytes"), "{refused}");
}

#[test]
fn a_boolean_result_costs_at_most_nine_bytes_a_row() {
    let rows = 10_000_u64;
    let values = array((0..rows).map(|n| Some(n % 3 == 0)).collect::<BooleanArray>());
    let mut builder = BlockBuilder::new();
    let marks: Vec<u64> = (0..rows).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
    builder.push_results(&marks, &encode_results(&values).unwrap()).unwrap();
    let per_row = builder.finish().len() as f64 / rows as f64;
    assert!(per_row <= 9.0, "{per_row}");
}

#[test]
fn fingerprints_are_part_of_the_format() {
    let columns = [
        array(Int64Array::from(vec![Some(1), None])),
        array(StringArray::from(vec![Some("word"), Some("")])),
        array(BooleanArray::from(vec![true, false])),
        array(Float64Array::from(vec![f64::NAN, -0.0])),
    ];
    assert_eq!(fingerprints(&columns), GOLDEN_ROWS);
    assert_eq!(bytes_fingerprint(b"clonos"), GOLDEN_BYTES);
}

// Computed once by version 1; a change here means that old logs no longer match their rows.
const GOLDEN_ROWS: [u64; 2] = [3_743_148_381_841_712_763, 3_859_076_673_291_067_432];
const GOLDEN_BYTES: u64 = 4033194837196263591;

#[test]
fn a_fingerprint_depends_on_the_value_alone() {
    let text = ["a", "", "a longer text than a view keeps inline"];
    let plain = fingerprints(&[array(StringArray::from(text.to_vec()))]);
    assert_eq!(fingerprints(&[array(LargeStringArray::from(text.to_vec()))]), plain);
    assert_eq!(fingerprints(&[array(StringViewArray::from(text.to_vec()))]), plain);
    let dictionary: DictionaryArray<Int32Type> = text.into_iter().collect();
    assert_eq!(fingerprints(&[array(dictionary)]), plain);
    let padded = StringArray::from(vec!["x", text[0], text[1], text[2], "y"]).slice(1, 3);
    assert_eq!(fingerprints(&[array(padded)]), plain);
    let with_validity = array(Int64Array::from(vec![Some(4), None, Some(5)]).slice(0, 1));
    assert_eq!(fingerprints(&[with_validity]), fingerprints(&[array(Int64Array::from(vec![4]))]));
}

#[test]
fn columns_and_nesting_are_told_apart() {
    let one = array(Int64Array::from(vec![1]));
    let two = array(Int64Array::from(vec![2]));
    let pair = |a: &ArrayRef, b: &ArrayRef| fingerprints(&[Arc::clone(a), Arc::clone(b)]);
    assert_ne!(pair(&one, &two), pair(&two, &one));
    let lists = ListArray::from_iter_primitive::<Int64Type, _, _>(vec![
        Some(vec![Some(1), Some(2)]),
        Some(vec![Some(2), Some(1)]),
        Some(vec![]),
        None,
    ]);
    let marks = fingerprints(&[array(lists)]);
    let distinct: std::collections::HashSet<_> = marks.iter().collect();
    assert_eq!(distinct.len(), 4);
    let field = Arc::new(Field::new("a", DataType::Int64, true));
    let nested = StructArray::from(vec![(field, Arc::clone(&one))]);
    assert_ne!(fingerprints(&[array(nested)]), fingerprints(&[one]));
}

#[test]
fn no_value_vanishes_and_none_is_mistaken_for_a_null() {
    let one = |value: Option<i64>| array(Int64Array::from(vec![value]));
    let other = one(Some(1));
    // The constants that fingerprints are mixed with.
    for constant in
        [0, 0x9e37_79b9_7f4a_7c15, 0x7f4a_7c15_9e37_79b9, 0xd6e8_feb8_6659_fd93, 0x2545_f491_4f6c_dd1d_u64]
    {
        let constant = one(Some(constant as i64));
        let both = |a: &ArrayRef, b: &ArrayRef| fingerprints(&[Arc::clone(a), Arc::clone(b)]);
        let alone = fingerprints(std::slice::from_ref(&other));
        assert_ne!(both(&constant, &other), alone);
        assert_ne!(both(&other, &constant), alone);
        assert_ne!(both(&constant, &constant), fingerprints(std::slice::from_ref(&constant)));
        assert_ne!(fingerprints(&[constant]), fingerprints(&[one(None)]));
    }
}

#[test]
fn a_slice_of_lists_is_its_rows_alone() {
    let rows = vec![Some(vec![Some(1), Some(2)]), None, Some(vec![]), Some(vec![Some(3), None])];
    let lists = array(ListArray::from_iter_primitive::<Int64Type, _, _>(rows));
    let all = fingerprints(std::slice::from_ref(&lists));
    assert_eq!(fingerprints(&[lists.slice(1, 3)]), all[1..]);
    assert_eq!(fingerprints(&[lists.slice(0, 2)]), all[..2]);
    assert!(fingerprints(&[lists.slice(4, 0)]).is_empty());
    // Its first row has more items than there is memory for their fingerprints.
    let field = Arc::new(Field::new("n", DataType::Null, true));
    let offsets = OffsetBuffer::new(vec![0_i64, 1 << 50, (1 << 50) + 3].into());
    let long = LargeListArray::new(field, offsets, array(NullArray::new((1 << 50) + 3)), None);
    assert_eq!(fingerprints(&[array(long.slice(1, 1))]).len(), 1);
}

#[test]
fn fingerprints_that_fail_leave_what_was_there() {
    let numbers = array(Int64Array::from(vec![1, 2]));
    let longer = array(Int64Array::from(vec![1, 2, 3]));
    let unknown =
        arrow_array::new_null_array(&DataType::ListView(Arc::new(Field::new("n", DataType::Null, true))), 2);
    let mut out = vec![4];
    for second in [longer, unknown] {
        assert!(row_fingerprints(&[Arc::clone(&numbers), second], &mut out).is_err());
        assert_eq!(out, [4]);
    }
}

#[test]
fn an_unknown_type_is_named() {
    let union = arrow_array::new_empty_array(&DataType::RunEndEncoded(
        Arc::new(Field::new("run_ends", DataType::Int32, false)),
        Arc::new(Field::new("values", DataType::Int64, true)),
    ));
    let refused = row_fingerprints(&[union], &mut Vec::new());
    assert!(matches!(refused, Err(Error::UnsupportedType { data_type }) if data_type.contains("RunEnd")));
}

proptest! {
    #[test]
    fn no_bytes_make_decoding_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = decode_results(&bytes);
        if let Ok(reader) = BlockReader::new(&Bytes::from(bytes)) {
            for determinant in reader {
                if determinant.is_err() {
                    break;
                }
            }
        }
    }

    #[test]
    fn no_body_with_a_valid_checksum_makes_decoding_panic(
        body in prop::collection::vec(any::<u8>(), 0..200), count in 0u32..20,
    ) {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&[0]);
        hasher.update(&count.to_le_bytes());
        hasher.update(&body);
        let mut block = b"CB\x01\x00".to_vec();
        block.extend((body.len() as u32).to_le_bytes());
        block.extend(count.to_le_bytes());
        block.extend(hasher.finalize().to_le_bytes());
        block.extend(&body);
        let block = Bytes::from(block);
        let read = BlockReader::new(&block).expect("the checksum holds");
        prop_assert!(read.take(100).count() <= count as usize + 1);
    }

    #[test]
    fn times_survive_the_round_trip(times in prop::collection::vec(any::<i64>(), 0..50)) {
        let mut builder = BlockBuilder::new();
        times.iter().for_each(|time| builder.push_time(*time));
        let block = builder.finish();
        let read: Vec<i64> = BlockReader::new(&block).unwrap().map(|d| match d.unwrap() {
            Determinant::Time { unix_ns } => unix_ns,
            other => panic!("{other:?}"),
        }).collect();
        prop_assert_eq!(read, times);
    }
}
