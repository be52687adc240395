//! Columns of any type that PySpark hands over, made at random.

use std::sync::Arc;

use arrow_array::builder::{BinaryViewBuilder, StringViewBuilder};
use arrow_array::{
    ArrayRef, BinaryArray, BooleanArray, FixedSizeBinaryArray, LargeBinaryArray, LargeListArray,
    LargeStringArray, ListArray, MapArray, NullArray, StringArray, StructArray, make_array,
};
use arrow_buffer::{MutableBuffer, NullBuffer, OffsetBuffer};
use arrow_data::ArrayData;
use arrow_schema::{DataType, Field, FieldRef, Fields, IntervalUnit, TimeUnit};

/// Numbers that follow from a seed.
#[derive(Debug, Clone)]
pub(in crate::state) struct Dice(pub(in crate::state) u64);

impl Dice {
    pub(in crate::state) fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    pub(in crate::state) fn roll(&mut self, sides: usize) -> usize {
        (self.word() % sides as u64) as usize
    }
}

/// Types without others in them.
fn leaves() -> Vec<DataType> {
    use DataType::*;
    let zone = || Some("Europe/Berlin".into());
    vec![
        Null,
        Boolean,
        Int8,
        Int16,
        Int32,
        Int64,
        UInt8,
        UInt16,
        UInt32,
        UInt64,
        Float16,
        Float32,
        Float64,
        Decimal128(38, 3),
        Decimal128(5, 0),
        Decimal256(60, 2),
        Utf8,
        LargeUtf8,
        Utf8View,
        Binary,
        LargeBinary,
        BinaryView,
        FixedSizeBinary(3),
        Date32,
        Date64,
        Timestamp(TimeUnit::Microsecond, None),
        Timestamp(TimeUnit::Microsecond, zone()),
        Timestamp(TimeUnit::Nanosecond, None),
        Duration(TimeUnit::Microsecond),
        Interval(IntervalUnit::YearMonth),
        Interval(IntervalUnit::DayTime),
        Interval(IntervalUnit::MonthDayNano),
        Time64(TimeUnit::Microsecond),
    ]
}

/// Some fields, with types of at most this depth.
pub(in crate::state) fn fields(dice: &mut Dice, depth: usize) -> Fields {
    // More than eight, now and then: their bitmap has a second byte.
    let count = if dice.roll(8) == 0 { 10 } else { dice.roll(4) };
    (0..count).map(|at| Field::new(format!("f{at}"), kind(dice, depth), true)).collect()
}

fn kind(dice: &mut Dice, depth: usize) -> DataType {
    let item = |dice: &mut Dice| Arc::new(Field::new("item", kind(dice, depth - 1), true));
    match if depth == 0 { 9 } else { dice.roll(10) } {
        0 | 1 => DataType::Struct(fields(dice, depth - 1)),
        2 => DataType::List(item(dice)),
        3 => DataType::LargeList(item(dice)),
        4 => {
            let key = Field::new("key", kind(dice, 0), false);
            // Keys are never null, which there is nothing but of this type.
            let key =
                if *key.data_type() == DataType::Null { key.with_data_type(DataType::Int8) } else { key };
            let entry = Fields::from(vec![key, Field::new("value", kind(dice, depth - 1), true)]);
            DataType::Map(Arc::new(Field::new("entries", DataType::Struct(entry), false)), false)
        }
        _ => {
            let leaves = leaves();
            leaves[dice.roll(leaves.len())].clone()
        }
    }
}

/// Random values, about a quarter of them null unless told otherwise, with others below the nulls.
pub(in crate::state) fn array(kind: &DataType, len: usize, dice: &mut Dice) -> ArrayRef {
    let with_nulls = dice.roll(3) > 0;
    array_with(kind, len, with_nulls, dice)
}

fn array_with(kind: &DataType, len: usize, with_nulls: bool, dice: &mut Dice) -> ArrayRef {
    let nulls = with_nulls.then(|| (0..len).map(|_| dice.roll(4) > 0).collect::<NullBuffer>());
    let offsets = |dice: &mut Dice| OffsetBuffer::<i32>::from_lengths((0..len).map(|_| dice.roll(5)));
    match kind {
        DataType::Null => Arc::new(NullArray::new(len)),
        DataType::Boolean => {
            Arc::new(BooleanArray::new((0..len).map(|_| dice.roll(2) == 0).collect(), nulls))
        }
        DataType::Struct(fields) => {
            let columns = fields.iter().map(|field| array(field.data_type(), len, dice)).collect();
            Arc::new(StructArray::try_new_with_length(fields.clone(), columns, nulls, len).unwrap())
        }
        DataType::List(item) => {
            let offsets = offsets(dice);
            // Items before the first list's, and behind the last one's.
            let (before, all) = (dice.roll(3), offsets[len] as usize);
            let items = array(item.data_type(), before + all + dice.roll(3), dice);
            let moved = offsets.iter().map(|offset| offset + before as i32).collect();
            Arc::new(ListArray::new(Arc::clone(item), OffsetBuffer::new(moved), items, nulls))
        }
        DataType::LargeList(item) => {
            let offsets = OffsetBuffer::<i64>::from_lengths((0..len).map(|_| dice.roll(5)));
            let items = array(item.data_type(), offsets[len] as usize, dice);
            Arc::new(LargeListArray::new(Arc::clone(item), offsets, items, nulls))
        }
        DataType::Map(entry, ordered) => Arc::new(maps(entry, *ordered, offsets(dice), nulls, dice)),
        _ => leaf(kind, len, nulls, dice),
    }
}

fn maps(
    entry: &FieldRef,
    ordered: bool,
    offsets: OffsetBuffer<i32>,
    nulls: Option<NullBuffer>,
    dice: &mut Dice,
) -> MapArray {
    let DataType::Struct(fields) = entry.data_type() else { panic!("entries are structs") };
    let len = *offsets.last().unwrap() as usize;
    let keys = array_with(fields[0].data_type(), len, false, dice);
    let values = array(fields[1].data_type(), len, dice);
    let entries = StructArray::new(fields.clone(), vec![keys, values], None);
    MapArray::new(Arc::clone(entry), offsets, entries, nulls, ordered)
}

fn leaf(kind: &DataType, len: usize, nulls: Option<NullBuffer>, dice: &mut Dice) -> ArrayRef {
    let texts: Vec<String> =
        (0..len).map(|_| "é1".repeat(if dice.roll(9) == 0 { 60 } else { dice.roll(7) })).collect();
    let valid = |at: usize| nulls.as_ref().is_none_or(|nulls| nulls.is_valid(at));
    // Nulls that cover text, where the array can have that.
    macro_rules! bytes {
        ($array:ty) => {{
            let (offsets, values, _) = <$array>::from_iter_values(&texts).into_parts();
            Arc::new(<$array>::new(offsets, values, nulls))
        }};
    }
    match kind {
        DataType::Utf8 => bytes!(StringArray),
        DataType::LargeUtf8 => bytes!(LargeStringArray),
        DataType::Binary => bytes!(BinaryArray),
        DataType::LargeBinary => bytes!(LargeBinaryArray),
        DataType::Utf8View => {
            let mut builder = StringViewBuilder::new();
            texts.iter().enumerate().for_each(|(at, text)| builder.append_option(valid(at).then_some(text)));
            Arc::new(builder.finish())
        }
        DataType::BinaryView => {
            let mut builder = BinaryViewBuilder::new();
            texts.iter().enumerate().for_each(|(at, text)| builder.append_option(valid(at).then_some(text)));
            Arc::new(builder.finish())
        }
        DataType::FixedSizeBinary(width) => {
            let bytes: Vec<u8> = (0..len * *width as usize).map(|_| dice.roll(256) as u8).collect();
            Arc::new(FixedSizeBinaryArray::new(*width, bytes.into(), nulls))
        }
        kind => {
            let width = kind.primitive_width().unwrap();
            let mut bytes = MutableBuffer::new(len * width);
            for _ in 0..len {
                // Small numbers, which fit every precision and meet again, and of any sign.
                let value = i128::from(dice.roll(7) as i64 - 3);
                let mut wide = [if value < 0 { 0xff } else { 0 }; 32];
                wide[..16].copy_from_slice(&value.to_le_bytes());
                bytes.extend_from_slice(&wide[..width]);
            }
            let data = ArrayData::builder(kind.clone()).len(len).add_buffer(bytes.into()).nulls(nulls);
            make_array(data.build().unwrap())
        }
    }
}
