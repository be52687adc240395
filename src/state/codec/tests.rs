//! Rows of every type, nested at will, with nulls anywhere and something else below them.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Float64Type;
use arrow_array::{
    Array, ArrayRef, Float64Array, Int32Array, Int64Array, StringArray, StructArray, new_empty_array,
};
use arrow_schema::{DataType, Field, Fields, TimeUnit};
use arrow_select::concat::concat;
use arrow_select::take::take;
use proptest::prelude::*;

use super::*;
use crate::error::{Error, Result};

pub(in crate::state) mod columns;
mod evolution;

use columns::{Dice, array, fields};

fn rows_of(array: &StructArray) -> Rows {
    encode(array.columns(), array.len(), &[]).unwrap()
}

fn read(fields: &Fields, rows: &Rows) -> Result<StructArray> {
    decode(fields, rows.iter())
}

/// Random columns of random types, of so many rows.
fn table(seed: u64, len: usize) -> StructArray {
    let mut dice = Dice(seed);
    let fields = fields(&mut dice, 3);
    let columns = fields.iter().map(|field| array(field.data_type(), len, &mut dice)).collect();
    StructArray::try_new_with_length(fields, columns, None, len).unwrap()
}

proptest! {
    #[test]
    fn what_is_written_is_read(seed in any::<u64>(), len in 0..40_usize) {
        let table = table(seed, len);
        let rows = rows_of(&table);
        prop_assert_eq!(rows.len(), len);
        prop_assert_eq!(read(table.fields(), &rows).unwrap(), table);
    }

    #[test]
    fn equal_rows_have_equal_bytes_however_they_lie(seed in any::<u64>(), len in 1..40_usize, from in 0..40_usize) {
        let table = table(seed, len);
        let rows = rows_of(&table);
        // What is read has nothing below its nulls.
        let plain = read(table.fields(), &rows).unwrap();
        let again = rows_of(&plain);
        let from = from.min(len - 1);
        let part = rows_of(&table.slice(from, len - from));
        let shuffled = rows_of(take(&table, &Int32Array::from_iter_values((0..len as i32).rev()), None).unwrap().as_struct());
        for row in 0..len {
            prop_assert_eq!(rows.get(row), again.get(row));
            prop_assert_eq!(rows.get(row), shuffled.get(len - 1 - row));
        }
        for row in from..len {
            prop_assert_eq!(rows.get(row), part.get(row - from));
        }
    }

    #[test]
    fn unequal_rows_have_unequal_bytes(seed in any::<u64>(), len in 2..12_usize) {
        let table = table(seed, len);
        let rows = rows_of(&table);
        for (one, other) in (0..len).flat_map(|one| (0..one).map(move |other| (one, other))) {
            let equal = table.slice(one, 1) == table.slice(other, 1);
            prop_assert_eq!(rows.get(one) == rows.get(other), equal);
        }
    }

    #[test]
    fn bad_bytes_are_refused_or_are_other_rows(seed in any::<u64>(), junk in prop::collection::vec(any::<u8>(), 0..60)) {
        let table = table(seed, 1);
        let good = rows_of(&table);
        let _ = decode(table.fields(), [&junk[..]].into_iter());
        for at in 0..good.get(0).len().min(40) {
            let mut bytes = good.get(0).to_vec();
            bytes[at] ^= 1 << (seed % 8);
            let _ = decode(table.fields(), [&bytes[..]].into_iter());
            prop_assert!(decode(table.fields(), [&bytes[..at]].into_iter()).is_err());
        }
    }

    #[test]
    fn a_head_stands_before_each_row(seed in any::<u64>(), head in prop::collection::vec(any::<u8>(), 0..4)) {
        let table = table(seed, 9);
        let (plain, headed) = (rows_of(&table), encode(table.columns(), 9, &head).unwrap());
        for row in 0..9 {
            prop_assert_eq!(headed.get(row).strip_prefix(&head[..]).unwrap(), plain.get(row));
            prop_assert_eq!(&headed.bytes(row)[..], headed.get(row));
        }
    }

    #[test]
    fn schemas_are_read_as_they_were_written(seed in any::<u64>()) {
        let fields = fields(&mut Dice(seed), 3);
        let bytes = encode_schema(&fields);
        for at in 0..9 {
            let amid = [&vec![0; at][..], &bytes].concat();
            prop_assert_eq!(&decode_schema(&amid[at..]).unwrap(), &fields);
        }
    }

    #[test]
    fn bad_schemas_are_refused(seed in any::<u64>(), at in any::<prop::sample::Index>(), flip in 1..=255_u8) {
        let mut bytes = encode_schema(&fields(&mut Dice(seed), 2));
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        let _ = decode_schema(&bytes);
        let _ = decode_schema(&bytes[..at]);
    }
}

#[test]
fn a_length_beyond_the_bytes_makes_nothing() {
    let item = Arc::new(Field::new("item", DataType::Int64, true));
    let kinds = [DataType::List(item), DataType::Utf8, DataType::Binary];
    for kind in kinds {
        let fields: Fields = vec![Field::new("v", kind, true)].into();
        let bytes = [1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f];
        assert!(matches!(decode(&fields, [&bytes[..]].into_iter()), Err(Error::CorruptState { .. })));
    }
}

#[test]
fn a_value_is_as_short_as_the_format_says() {
    let columns: [ArrayRef; 3] = [
        Arc::new(Int64Array::from(vec![Some(258), None])),
        Arc::new(StringArray::from(vec![Some("ab"), Some("")])),
        Arc::new(Int32Array::from(vec![None, None])),
    ];
    let rows = encode(&columns, 2, &[7]).unwrap();
    assert_eq!(rows.get(0), [7, 0b011, 2, 1, 0, 0, 0, 0, 0, 0, 2, b'a', b'b']);
    assert_eq!(rows.get(1), [7, 0b010, 0]);
    assert_eq!((rows.get(2), rows.len()), (&[][..], 2));
}

#[test]
fn keys_have_one_zero_and_one_nan_and_values_keep_theirs() {
    let nan = f64::from_bits(0xfff8_0000_0000_0001);
    let floats: ArrayRef = Arc::new(Float64Array::from(vec![0.0, -0.0, f64::NAN, nan]));
    let items = Fields::from(vec![Field::new("f", DataType::Float64, true)]);
    let nested: ArrayRef = Arc::new(StructArray::new(items, vec![Arc::clone(&floats)], None));
    for column in [floats, nested] {
        let values = encode(std::slice::from_ref(&column), 4, &[]).unwrap();
        let keys = encode(&canonical_keys(&[column]).unwrap(), 4, &[]).unwrap();
        assert!(values.get(0) != values.get(1) && values.get(2) != values.get(3));
        assert!(keys.get(0) == keys.get(1) && keys.get(2) == keys.get(3) && keys.get(0) != keys.get(2));
    }
}

#[test]
fn values_of_floats_come_back_bit_by_bit() {
    let floats = [-0.0, f64::from_bits(0xfff8_0000_0000_0001), f64::INFINITY, f64::MIN_POSITIVE / 2.0];
    let column: ArrayRef = Arc::new(Float64Array::from(floats.to_vec()));
    let fields: Fields = vec![Field::new("f", DataType::Float64, true)].into();
    let read = decode(&fields, encode(&[column], 4, &[]).unwrap().iter()).unwrap();
    let bits = read.column(0).as_primitive::<Float64Type>().values().iter().map(|f| f.to_bits());
    assert!(bits.eq(floats.iter().map(|f| f.to_bits())));
}

#[test]
fn what_has_no_rows_is_refused_by_name() {
    let union = DataType::Interval(arrow_schema::IntervalUnit::DayTime);
    assert!(encode(&[new_empty_array(&union)], 0, &[]).is_ok());
    let kind = DataType::FixedSizeList(Arc::new(Field::new("item", DataType::Int8, true)), 2);
    let refused = encode(&[new_empty_array(&kind)], 0, &[]).unwrap_err();
    assert!(matches!(refused, Error::UnsupportedType { .. }));
    let fields: Fields = vec![Field::new("l", kind, true)].into();
    assert!(matches!(decode(&fields, std::iter::empty()), Err(Error::UnsupportedType { .. })));
}

#[test]
fn dictionaries_are_their_values() {
    let texts: ArrayRef = Arc::new(StringArray::from(vec![Some("a"), None, Some("a"), Some("b")]));
    let kind = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
    let dictionary = arrow_cast::cast(&texts, &kind).unwrap();
    assert_eq!(&plain(&dictionary).unwrap(), &texts);
    let field = Fields::from(vec![Field::new("d", kind, true)]);
    let nested: ArrayRef = Arc::new(StructArray::new(field.clone(), vec![dictionary], None));
    let read = plain(&nested).unwrap();
    assert_eq!(read.as_struct().column(0), &texts);
    assert_eq!(read.as_struct().fields(), &plain_fields(&field));
}
