//! Columns of many types whose values follow from small numbers, so that equality is known without Arrow.

use arrow_array::builder::{
    BinaryBuilder, Int32Builder, ListBuilder, MapBuilder, StringBuilder, StringDictionaryBuilder,
};
use arrow_array::types::Int32Type;
use arrow_array::{
    Array, BooleanArray, Date32Array, Decimal128Array, Float64Array, Int32Array, StringArray, StructArray,
    TimestampMicrosecondArray,
};
use arrow_buffer::NullBuffer;
use arrow_schema::{DataType, Field};
use arrow_select::concat::concat_batches;
use arrow_select::nullif::nullif;
use arrow_select::take::take_record_batch;

use super::*;

/// A type of column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Int,
    Text,
    Binary,
    List,
    Struct,
    Map,
    Decimal,
    Timestamp,
    Dictionary,
    Boolean,
    Date,
    Float,
}

pub(super) const KINDS: [Kind; 12] = [
    Kind::Int,
    Kind::Text,
    Kind::Binary,
    Kind::List,
    Kind::Struct,
    Kind::Map,
    Kind::Decimal,
    Kind::Timestamp,
    Kind::Dictionary,
    Kind::Boolean,
    Kind::Date,
    Kind::Float,
];

/// The number that stands for null.
const NULL: u8 = 0;

fn text(value: u8) -> Option<String> {
    (value != NULL).then(|| format!("{value}").repeat(usize::from(value) % 7))
}

fn number<T: From<u8>>(value: u8) -> Option<T> {
    (value != NULL).then(|| T::from(value))
}

/// The column of a type in which equal numbers, and no others, are equal values. Booleans have but two.
fn column(kind: Kind, rows: &[u8]) -> ArrayRef {
    let each = rows.iter().copied();
    match kind {
        Kind::Int => Arc::new(each.map(number::<i32>).collect::<Int32Array>()),
        Kind::Text => Arc::new(each.map(|value| text(value).map(|t| t + "é")).collect::<StringArray>()),
        Kind::Binary => {
            let mut out = BinaryBuilder::new();
            each.for_each(|value| out.append_option(number::<u8>(value).map(|n| vec![n; usize::from(n)])));
            Arc::new(out.finish())
        }
        Kind::List => {
            let mut out = ListBuilder::new(Int32Builder::new());
            let items = |n: u8| (0..n).map(|at| (at % 3 != 2).then(|| i32::from(at)));
            each.for_each(|value| out.append_option(number::<u8>(value).map(items)));
            Arc::new(out.finish())
        }
        Kind::Struct => structs(rows),
        Kind::Map => maps(rows),
        Kind::Decimal => {
            let wide = each.map(|value| number::<i128>(value).map(|n| n << 64)).collect::<Decimal128Array>();
            Arc::new(wide.with_precision_and_scale(38, 2).unwrap())
        }
        Kind::Timestamp => {
            let times = each.map(|value| number::<i64>(value).map(|n| n * 1_000_000_007));
            Arc::new(times.collect::<TimestampMicrosecondArray>().with_timezone("Europe/Berlin"))
        }
        Kind::Dictionary => {
            let mut out = StringDictionaryBuilder::<Int32Type>::new();
            each.for_each(|value| out.append_option(text(value).map(|text| format!("{value}:{text}"))));
            Arc::new(out.finish())
        }
        Kind::Boolean => {
            Arc::new(each.map(|v| number::<u8>(v).map(|n| n % 2 == 1)).collect::<BooleanArray>())
        }
        Kind::Date => Arc::new(each.map(number::<i32>).collect::<Date32Array>()),
        Kind::Float => {
            Arc::new(each.map(|v| number::<u8>(v).map(|n| f64::from(n) - 0.5)).collect::<Float64Array>())
        }
    }
}

fn structs(rows: &[u8]) -> ArrayRef {
    let field = |name: &str, kind| Arc::new(Field::new(name, kind, true));
    let valid = NullBuffer::from_iter(rows.iter().map(|value| *value != NULL));
    let columns = vec![column(Kind::Int, rows), column(Kind::Text, rows)];
    let fields = vec![field("n", DataType::Int32), field("t", DataType::Utf8)];
    Arc::new(StructArray::new(fields.into(), columns, Some(valid)))
}

fn maps(rows: &[u8]) -> ArrayRef {
    let mut out = MapBuilder::new(None, StringBuilder::new(), Int32Builder::new());
    for value in rows {
        for entry in 0..*value {
            out.keys().append_value(format!("k{entry}"));
            out.values().append_option((entry % 2 == 0).then_some(i32::from(entry)));
        }
        out.append(*value != NULL).unwrap();
    }
    Arc::new(out.finish())
}

/// A table: numbers of rows by batch and column, and rows that stand around a batch in a larger one.
#[derive(Debug, Clone)]
pub(super) struct Table {
    pub(super) kinds: Vec<Kind>,
    pub(super) sizes: Vec<usize>,
    pub(super) seed: u64,
}

impl Table {
    pub(super) fn rows(&self) -> usize {
        self.sizes.iter().sum()
    }

    /// Per kind, the numbers that its column is made of, for rows `first..` and so many.
    fn numbers(&self, kind: usize, first: usize, rows: usize) -> Vec<u8> {
        let salt = self.seed ^ (kind as u64) << 40;
        (first..first + rows).map(|row| Dice(salt ^ (row as u64) << 8).roll(12) as u8).collect()
    }

    /// What column `kind` of a row is: equal for equal values.
    pub(super) fn class(&self, kind: usize, row: usize) -> u8 {
        let number = self.numbers(kind, row, 1)[0];
        match (self.kinds[kind], number) {
            (Kind::Boolean, 1..) => 1 + number % 2,
            (_, number) => number,
        }
    }

    /// Rows of the kinds, then the row's own number.
    fn batch(&self, first: usize, rows: usize) -> RecordBatch {
        let mut columns: Vec<(String, ArrayRef, bool)> = Vec::new();
        for (place, kind) in self.kinds.iter().enumerate() {
            let numbers = self.numbers(place, first, rows);
            columns.push((format!("c{place}"), column(*kind, &numbers), true));
        }
        let ids = Int64Array::from_iter_values((first..first + rows).map(|row| row as i64));
        columns.push(("id".to_owned(), Arc::new(ids), false));
        RecordBatch::try_from_iter_with_nullable(columns).unwrap()
    }

    pub(super) fn batches(&self) -> Vec<RecordBatch> {
        let mut first = 0;
        let mut next = |rows: &usize| {
            first += rows;
            self.batch(first - rows, *rows)
        };
        self.sizes.iter().map(&mut next).collect()
    }

    /// The same batches with something below their nulls, which is something else with another `salt`.
    pub(super) fn with_junk(&self, salt: u64) -> Vec<RecordBatch> {
        let mut first = 0;
        let mut batches = self.batches();
        for batch in &mut batches {
            let rows = batch.num_rows();
            let mut columns = batch.columns().to_vec();
            for (place, kind) in self.kinds.iter().enumerate() {
                let mut numbers = self.numbers(place, first, rows);
                let below = BooleanArray::from_iter(numbers.iter().map(|value| Some(*value == NULL)));
                for (row, value) in numbers.iter_mut().enumerate().filter(|(_, value)| **value == NULL) {
                    *value = 1 + Dice(salt ^ row as u64).roll(9) as u8;
                }
                columns[place] = nullif(&column(*kind, &numbers), &below).unwrap();
            }
            *batch = RecordBatch::try_new(batch.schema(), columns).unwrap();
            first += rows;
        }
        batches
    }

    /// The same batches as slices of one.
    pub(super) fn slices(&self, around: usize) -> Vec<RecordBatch> {
        let whole = self.batch(0, self.rows());
        let before = self.batch(1_000_000, around);
        let after = self.batch(2_000_000, around);
        let larger = concat_batches(&whole.schema(), [&before, &whole, &after]).unwrap();
        let mut first = around;
        let mut next = |rows: &usize| {
            first += rows;
            larger.slice(first - rows, *rows)
        };
        self.sizes.iter().map(&mut next).collect()
    }

    /// The rows with these numbers.
    pub(super) fn select(&self, ids: &[i64]) -> RecordBatch {
        let ids = Int64Array::from(ids.to_vec());
        take_record_batch(&self.batch(0, self.rows()), &ids).unwrap()
    }
}

pub(super) fn ids(batch: &RecordBatch) -> Vec<i64> {
    let column = batch.column(batch.num_columns() - 1);
    column.as_any().downcast_ref::<Int64Array>().unwrap().values().to_vec()
}
