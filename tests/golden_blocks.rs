//! Blocks that version 1 wrote: they are read as what they were, and written as they stand.
//!
//! `CLONOS_BLESS=1 cargo test --test golden_blocks` writes them anew, after a deliberate change of version.

#![allow(clippy::unwrap_used, reason = "a test; what is missing is a failure")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::{ArrayRef, BooleanArray, Int64Array, StringArray};
use bytes::Bytes;
use clonos::determinant::{BlockBuilder, BlockReader, Determinant, FORMAT, decode_results, encode_results};

/// What a block holds.
enum Wanted {
    /// A determinant that is compared as it is.
    Same(Determinant<'static>),
    /// Results, by their fingerprints and values.
    Results(Vec<u64>, ArrayRef),
}
use Wanted::{Results, Same};

fn header() -> Wanted {
    let (python, label) = ("3.11", "is_banned");
    Same(Determinant::Header { format: FORMAT, mode: 1, code: u64::MAX, python, label, stage: 300, app: 9 })
}

fn time(unix_ns: i64) -> Wanted {
    Same(Determinant::Time { unix_ns })
}

/// Each kind, at the edges of its fields.
fn services() -> Vec<Wanted> {
    vec![
        header(),
        Same(Determinant::Row { fingerprint: 0x0123_4567_89ab_cdef }),
        Same(Determinant::Seed { seed: 42 }),
        Same(Determinant::Call { name: 1, ok: true, value: b"answer" }),
        Same(Determinant::Call { name: u64::MAX, ok: false, value: b"" }),
        Same(Determinant::Resume { segment: 200 }),
        Same(Determinant::Input { rows: u32::MAX, fingerprint: 6 }),
        Same(Determinant::EpochMark),
    ]
}

fn times() -> Vec<Wanted> {
    vec![
        time(1_700_000_000_000_000_000),
        time(1_700_000_000_000_001_000),
        Same(Determinant::TimeAgain { count: 2 }),
        time(-5),
        time(i64::MAX),
        time(i64::MIN),
        Same(Determinant::EpochMark),
        time(0),
        Same(Determinant::TimeAgain { count: u32::MAX }),
    ]
}

fn results() -> Vec<Wanted> {
    let some: ArrayRef = Arc::new(BooleanArray::from(vec![Some(true), None, Some(false)]));
    let words: ArrayRef = Arc::new(StringArray::from(vec![Some("a"), None, Some("")]));
    let none: ArrayRef = Arc::new(Int64Array::from(Vec::<i64>::new()));
    // Long enough, and alike enough, to be compressed.
    let packed: ArrayRef = Arc::new(Int64Array::from(vec![7; 1_000]));
    vec![
        header(),
        Results(vec![1, u64::MAX, 3], some),
        Results(vec![8, 8, 8], words),
        Results(vec![], none),
        Results(vec![5; 1_000], packed),
    ]
}

fn exchange() -> Vec<Wanted> {
    vec![
        header(),
        Same(Determinant::Order { channel: 3, frames: 2, version: u64::MAX }),
        Same(Determinant::Order { channel: u32::MAX, frames: 1, version: 0 }),
        time(9),
        Same(Determinant::Output { round: 0 }),
        Same(Determinant::Output { round: 1_000 }),
    ]
}

fn rows() -> Vec<Wanted> {
    let some: ArrayRef = Arc::new(BooleanArray::from(vec![true, false]));
    // Rows 7 and 3.
    vec![header(), Same(Determinant::Rows { numbers: &[14, 7] }), Results(vec![1, 2], some)]
}

fn marks() -> Vec<Wanted> {
    let some: ArrayRef = Arc::new(BooleanArray::from(vec![true, false]));
    let marks = [0x0000_0014_0000_0003_u64.to_le_bytes(), 0_u64.to_le_bytes()].concat();
    vec![header(), Same(Determinant::Marks { marks: marks.leak() }), Results(vec![1, 2], some)]
}

/// The golden blocks by name.
fn golden() -> [(&'static str, Vec<Wanted>); 7] {
    [
        ("empty", vec![]),
        ("services", services()),
        ("times", times()),
        ("results", results()),
        ("exchange", exchange()),
        ("rows", rows()),
        ("marks", marks()),
    ]
}

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/blocks/v1").join(format!("{name}.bin"))
}

/// The block as it is stored; written first if that was asked for.
fn stored(name: &str, wanted: &[Wanted]) -> Bytes {
    let path = path(name);
    if std::env::var_os("CLONOS_BLESS").is_some() {
        let mut builder = BlockBuilder::new();
        for wanted in wanted {
            match wanted {
                Same(determinant) => builder.push(determinant).unwrap(),
                Results(marks, values) => {
                    builder.push_results(marks, &encode_results(values).unwrap()).unwrap()
                }
            }
        }
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, builder.finish()).unwrap();
    }
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())).into()
}

fn check_same(name: &str, read: &Determinant<'_>, wanted: &Wanted) {
    match (read, wanted) {
        (Determinant::Results { fingerprints, arrow }, Results(marks, values)) => {
            let mut read = Vec::new();
            fingerprints.extend_into(&mut read);
            assert_eq!((fingerprints.len(), &read), (marks.len(), marks), "{name}");
            assert_eq!(&decode_results(arrow).unwrap(), values, "{name}");
        }
        (read, Same(wanted)) => assert_eq!(read, wanted, "{name}"),
        (read, Results(..)) => panic!("{name}: {read:?} instead of results"),
    }
}

#[test]
fn blocks_of_version_1_are_read_as_what_they_were_and_written_as_they_stand() {
    for (name, wanted) in golden() {
        let block = stored(name, &wanted);
        let read: Vec<_> = BlockReader::new(&block).unwrap().map(Result::unwrap).collect();
        assert_eq!(read.len(), wanted.len(), "{name}");
        let mut builder = BlockBuilder::new();
        for (read, wanted) in read.iter().zip(&wanted) {
            check_same(name, read, wanted);
            builder.push(read).unwrap();
        }
        assert!(builder.finish() == block, "{name}: the format changed without a new version");
    }
    let mut known: Vec<_> = golden().iter().map(|(name, _)| path(name)).collect();
    let folder = std::fs::read_dir(path("").parent().unwrap()).unwrap();
    let mut found: Vec<_> = folder.map(|entry| entry.unwrap().path()).collect();
    known.sort();
    found.sort();
    assert_eq!(found, known, "each stored block is looked at");
}
