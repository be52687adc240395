//! Frames that version 1 wrote: they are read as what they were, and written as they stand.
//!
//! `CLONOS_BLESS=1 cargo test --test golden_frames` writes them anew, after a deliberate change of version.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test; what is missing is a failure")]

use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};

use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use bytes::Bytes;
use clonos::exchange::{Compression, Gather, InMemory, Piggyback, Scatter, ScatterOptions};
use clonos::frame::{Group, LogVersion, Opening, decode_groups, encode_groups, read, seal};
use clonos::id::{Epoch, LogOffset, Partition, TaskId};
use clonos::task::Order;

const NAMES: [&str; 3] = ["first", "second", "last"];
/// A frame that names its log, of a channel of its own.
const NAMED: &str = "named";
const OWN: [&[u8]; 2] = [b"own block one", b"two"];
const ABSORBED: [&[u8]; 2] = [b"of parse", b"more"];

fn opening() -> Opening {
    let task = TaskId {
        query: "orders".into(),
        operator: "score".into(),
        epoch: Epoch::Named("daily".into()),
        partition: Partition(300),
    };
    Opening { task, tasks: Some(301) }
}

fn group(operator: &str, partition: u32, hops: u32, from: u64, blocks: &[&'static [u8]]) -> Group {
    Group {
        operator: operator.to_owned(),
        partition: Partition(partition),
        hops,
        from: LogOffset(from),
        blocks: blocks.iter().map(|block| Bytes::from_static(block)).collect(),
    }
}

/// The rows of each frame.
fn batch(number: usize) -> Option<RecordBatch> {
    let (numbers, words) = match number {
        0 => (vec![Some(1), None, Some(i64::MIN)], vec![Some("a"), Some(""), None]),
        1 => (vec![Some(4)], vec![Some("köln")]),
        _ => return None,
    };
    let columns: [(&str, ArrayRef, bool); 2] =
        [("n", Arc::new(Int64Array::from(numbers)), true), ("w", Arc::new(StringArray::from(words)), true)];
    Some(RecordBatch::try_from_iter_with_nullable(columns).unwrap())
}

/// The delta of each frame.
fn groups(number: usize) -> Vec<Group> {
    match number {
        0 => vec![group("parse", 7, 2, 0, &ABSORBED), group("score", 300, 1, 0, &OWN[..1])],
        1 => vec![group("score", 300, 1, 13, &OWN[1..])],
        _ => Vec::new(),
    }
}

fn version(number: usize) -> LogVersion {
    let blocks = OWN.iter().take(number + 1);
    blocks.fold(LogVersion::default(), |version, block| version.after(block))
}

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/frames/v1").join(format!("{name}.bin"))
}

/// As a task with one consumer sends.
fn scatter() -> Scatter {
    Scatter::new(ScatterOptions {
        opening: opening(),
        keys: Vec::new(),
        partitions: 1,
        compression: Compression::None,
        round_bytes: 1,
        riding_bytes: u64::MAX,
    })
}

/// Writes a channel, and the first frame of one whose log does not ride.
fn bless() {
    let mut sends = scatter();
    let mut piggyback = Piggyback::new("score", Partition(300), 2);
    piggyback.absorb(&group("parse", 7, 1, 0, &ABSORBED)).unwrap();
    std::fs::create_dir_all(path("").parent().unwrap()).unwrap();
    for (number, name) in NAMES.iter().enumerate() {
        let round = match batch(number) {
            Some(batch) => {
                piggyback.record(&Bytes::from_static(OWN[number]));
                sends.push(batch).unwrap();
                sends.cut(&mut piggyback)
            }
            None => sends.finish(&mut piggyback),
        };
        std::fs::write(path(name), round.unwrap().bytes).unwrap();
    }
    std::fs::write(path(NAMED), named()).unwrap();
}

fn named() -> Bytes {
    let mut sends = scatter();
    let mut piggyback = Piggyback::new("score", Partition(300), 1).with_room(1, 0);
    piggyback.record(&Bytes::from_static(OWN[0]));
    sends.push(batch(0).unwrap()).unwrap();
    sends.cut(&mut piggyback).unwrap().bytes
}

/// The frames as they are stored; written first if that was asked for.
fn stored() -> Vec<Bytes> {
    static BLESSED: Once = Once::new();
    if std::env::var_os("CLONOS_BLESS").is_some() {
        BLESSED.call_once(bless);
    }
    let read = |path: PathBuf| std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    NAMES.iter().map(|name| Bytes::from(read(path(name)))).collect()
}

#[test]
fn frames_of_version_1_are_read_as_what_they_were_and_written_as_they_stand() {
    for (number, (name, bytes)) in NAMES.iter().zip(stored()).enumerate() {
        let frame = read(&bytes).unwrap();
        let rows = batch(number).map_or(0, |batch| batch.num_rows());
        assert_eq!(frame.head.task, opening().task_hash(), "{name}");
        assert_eq!((frame.head.partition, frame.head.channel), (Partition(300), Partition(0)), "{name}");
        assert_eq!((frame.head.sequence as usize, frame.head.rows as usize), (number, rows), "{name}");
        assert_eq!((frame.head.log, frame.head.closes), (version(number), number == 2), "{name}");
        assert!(!frame.head.named, "{name}");
        assert_eq!(frame.opening, (number == 0).then(opening), "{name}");
        assert_eq!(decode_groups(&frame.delta).unwrap(), groups(number), "{name}");

        let (mut delta, mut out) = (Vec::new(), Vec::new());
        encode_groups(&groups(number), &mut delta).unwrap();
        let fill = |out: &mut Vec<u8>| {
            out.extend_from_slice(&frame.payload);
            Ok(())
        };
        seal(&mut out, &frame.head, frame.opening.as_ref(), &delta, fill).unwrap();
        assert!(out == bytes, "{name}: the format changed without a new version");
    }
    let mut found: Vec<_> =
        std::fs::read_dir(path("").parent().unwrap()).unwrap().map(|e| e.unwrap().path()).collect();
    let mut known: Vec<_> = NAMES.iter().chain([&NAMED]).map(|name| path(name)).collect();
    found.sort();
    known.sort();
    assert_eq!(found, known, "each stored frame is looked at");
}

#[test]
fn a_frame_that_names_its_log_brings_none_of_it() {
    stored();
    let bytes = Bytes::from(std::fs::read(path(NAMED)).unwrap());
    let frame = read(&bytes).unwrap();
    assert!(frame.head.named && frame.delta.is_empty());
    assert_eq!(frame.head.log, version(0));
    assert_eq!(frame.opening, Some(opening()));
    assert!(named() == bytes, "the format changed without a new version");
}

#[test]
fn a_channel_of_version_1_is_taken_with_its_rows() {
    let mut gather = Gather::new(InMemory::default(), []);
    for (number, frame) in stored().into_iter().enumerate() {
        gather.offer(frame).unwrap();
        let taken = gather.take().unwrap().unwrap();
        assert_eq!(taken.batches, batch(number).into_iter().collect::<Vec<_>>());
        assert_eq!((taken.opening, taken.groups), (opening(), groups(number)));
        assert_eq!(taken.order, Order { channel: 300, frames: 1, version: version(number).0 });
    }
    // The opening says that there are 300 more.
    let cut_short = gather.finish(Some(1)).unwrap_err();
    assert_eq!(cut_short.condition(), "INPUT_CUT_SHORT");
}
