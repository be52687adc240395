//! Rows and catalogs of keyed state that versions 1 and 2 wrote: they are read as what they were, and written as they stand.
//!
//! `CLONOS_BLESS=1 cargo test --test golden_state` writes them anew, after a deliberate change of version.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test; what is missing is a failure")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::builder::{ListBuilder, MapBuilder, StringBuilder};

use arrow_array::{
    ArrayRef, BinaryArray, BooleanArray, Date32Array, Decimal128Array, DurationMicrosecondArray,
    Float32Array, Float64Array, Int8Array, Int16Array, Int32Array, Int64Array, IntervalDayTimeArray,
    IntervalYearMonthArray, LargeStringArray, NullArray, StringArray, StringViewArray, StructArray,
    TimestampMicrosecondArray,
};
use arrow_buffer::{IntervalDayTime, NullBuffer};
use arrow_schema::{DataType, Field, Fields};
use clonos::state::catalog::{Catalog, Kind, Variable};
use clonos::state::codec::{decode, encode};

fn table(columns: Vec<ArrayRef>) -> StructArray {
    let fields: Fields = columns
        .iter()
        .enumerate()
        .map(|(at, column)| Field::new(format!("c{at}"), column.data_type().clone(), true))
        .collect();
    StructArray::new(fields, columns, None)
}

fn numbers() -> StructArray {
    let decimals = Decimal128Array::from(vec![Some(-12_345), None, Some(i128::from(i64::MAX) * 1_000)]);
    table(vec![
        Arc::new(BooleanArray::from(vec![Some(true), None, Some(false)])),
        Arc::new(Int8Array::from(vec![Some(-1), None, Some(i8::MAX)])),
        Arc::new(Int16Array::from(vec![Some(-2), None, Some(i16::MAX)])),
        Arc::new(Int32Array::from(vec![Some(-3), None, Some(i32::MAX)])),
        Arc::new(Int64Array::from(vec![Some(-4), None, Some(i64::MAX)])),
        Arc::new(Float32Array::from(vec![Some(-0.0), None, Some(0.1)])),
        Arc::new(Float64Array::from(vec![Some(-0.0), None, Some(0.1)])),
        Arc::new(decimals.with_precision_and_scale(38, 2).unwrap()),
        Arc::new(NullArray::new(3)),
    ])
}

fn texts() -> StructArray {
    let long = "é".repeat(100);
    let texts = vec![Some(""), None, Some(long.as_str())];
    table(vec![
        Arc::new(StringArray::from(texts.clone())),
        Arc::new(LargeStringArray::from(texts.clone())),
        Arc::new(StringViewArray::from(texts)),
        Arc::new(BinaryArray::from(vec![Some(&[0_u8, 255][..]), None, Some(&[][..])])),
    ])
}

fn times() -> StructArray {
    let times = TimestampMicrosecondArray::from(vec![Some(1_700_000_000_000_001), None, Some(-1)]);
    let intervals = vec![Some(IntervalDayTime::new(2, -3)), None, Some(IntervalDayTime::new(0, 1))];
    table(vec![
        Arc::new(Date32Array::from(vec![Some(19_000), None, Some(-1)])),
        Arc::new(times.clone()),
        Arc::new(times.with_timezone("UTC")),
        Arc::new(DurationMicrosecondArray::from(vec![Some(5), None, Some(-5)])),
        Arc::new(IntervalYearMonthArray::from(vec![Some(13), None, Some(-1)])),
        Arc::new(IntervalDayTimeArray::from(intervals)),
    ])
}

fn nested() -> StructArray {
    let mut lists = ListBuilder::new(StringBuilder::new());
    lists.append_value([Some("a"), None, Some("")]);
    lists.append_null();
    lists.append_value([None::<&str>; 0]);
    let mut maps = MapBuilder::new(None, StringBuilder::new(), arrow_array::builder::Int32Builder::new());
    maps.keys().append_value("k");
    maps.values().append_value(1);
    maps.keys().append_value("l");
    maps.values().append_null();
    maps.append(true).unwrap();
    maps.append(false).unwrap();
    maps.append(true).unwrap();
    let (fields, columns, _) = texts().into_parts();
    let valid = NullBuffer::from(vec![true, false, true]);
    table(vec![
        Arc::new(lists.finish()),
        Arc::new(maps.finish()),
        Arc::new(StructArray::new(fields, columns, Some(valid))),
    ])
}

/// The golden rows by name.
fn golden() -> [(&'static str, StructArray); 4] {
    [("numbers", numbers()), ("texts", texts()), ("times", times()), ("nested", nested())]
}

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/state/v1").join(format!("{name}.bin"))
}

/// What is stored; written first if that was asked for.
fn stored(name: &str, written: &[u8]) -> Vec<u8> {
    let path = path(name);
    if std::env::var_os("CLONOS_BLESS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, written).unwrap();
    }
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Rows, each behind its length in four bytes.
fn framed(table: &StructArray) -> Vec<u8> {
    let rows = encode(table.columns(), arrow_array::Array::len(table), &[]).unwrap();
    rows.iter().flat_map(|row| [&(row.len() as u32).to_le_bytes()[..], row].concat()).collect()
}

fn rows(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut rows = Vec::new();
    while let Some((len, rest)) = bytes.split_first_chunk::<4>() {
        let (row, rest) = rest.split_at(u32::from_le_bytes(*len) as usize);
        rows.push(row);
        bytes = rest;
    }
    rows
}

fn one(name: &str, kind: DataType) -> Fields {
    vec![Field::new(name, kind, true)].into()
}

fn variables() -> Vec<Variable> {
    let user_key = Some(one("word", DataType::Utf8));
    let value = one("n", DataType::Int64);
    let name = |name: &str| name.to_owned();
    vec![
        Variable { name: name("sum"), kind: Kind::Value, user_key: None, value: value.clone(), ttl_ms: 0 },
        Variable { name: name("last"), kind: Kind::List, user_key: None, value: value.clone(), ttl_ms: 9 },
        Variable { name: name("counts"), kind: Kind::Map, user_key, value, ttl_ms: 0 },
    ]
}

#[test]
fn rows_of_version_1_are_read_as_what_they_were_and_written_as_they_stand() {
    for (name, table) in golden() {
        let stored = stored(name, &framed(&table));
        let read = decode(table.fields(), rows(&stored).into_iter()).unwrap();
        assert_eq!(read, table, "{name}");
        assert!(framed(&table) == stored, "{name}: the format changed without a new version");
    }
    let mut known: Vec<_> = golden().iter().map(|(name, _)| path(name)).chain([path("catalog")]).collect();
    let folder = std::fs::read_dir(path("").parent().unwrap()).unwrap();
    let mut found: Vec<_> = folder.map(|entry| entry.unwrap().path()).collect();
    known.sort();
    found.sort();
    assert_eq!(found, known, "each stored file is looked at");
}

#[test]
fn a_catalog_of_version_1_is_read_as_what_it_was() {
    let keys = one("user", DataType::Utf8);
    let (catalog, declared) = Catalog::open(&[], &keys, &variables(), &[]).unwrap();
    let old = std::fs::read(path("catalog")).unwrap();
    assert_eq!(old[0], 1);
    // It says nothing of TTL, which the program does.
    let (read, again) = Catalog::open(&old, &keys, &variables(), &[]).unwrap();
    assert_eq!((read, again), (catalog, declared));
}

#[test]
fn a_catalog_of_version_2_is_read_as_what_it_was_and_written_as_it_stands() {
    let keys = one("user", DataType::Utf8);
    let (catalog, declared) = Catalog::open(&[], &keys, &variables(), &[]).unwrap();
    let stored = stored("../v2/catalog", &catalog.encode());
    assert!(catalog.encode() == stored, "the format changed without a new version");
    assert_eq!(Catalog::decode(&stored).unwrap(), catalog);
    let (read, again) = Catalog::open(&stored, &keys, &variables(), &[]).unwrap();
    assert_eq!((read, again), (catalog, declared));
    let mut newer = stored;
    newer[0] = 3;
    assert!(Catalog::open(&newer, &keys, &variables(), &[]).is_err());
}
