//! A log in an object store: what was acknowledged is there, once, whatever happens to store and receivers.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use arrow_array::{Array, ArrayRef, Int64Array, StructArray};
use arrow_schema::{DataType, Field};

use super::ownership::{Taker, record_of};
use super::{Durability, LogSettings, SourceLog};
use crate::edge::disk::Location;
use crate::edge::disk::segment::DiskWriter;
use crate::edge::disk::segment::store::{Fault, Folder, Store, faulty, over};
use crate::error::{Error, Result};
use crate::id::{AgentId, LogOffset};
use crate::source::{Span, read_block, write_block, write_rows};

fn settings(name: &str, location: Location) -> LogSettings {
    let taker = Taker { name: name.to_owned(), reader: format!("reader of {name}"), after: None };
    let (memory, disk, durability) = (1 << 20, 1 << 30, Durability::Eager);
    LogSettings { folder: PathBuf::from("/nowhere"), location, taker, memory, disk, durability }
}

fn stored(name: &str) -> LogSettings {
    settings(name, Location::from(Path::new("s3://bucket/prefix")))
}

fn open(store: impl Store + 'static, name: &str) -> SourceLog {
    SourceLog::open_on(Arc::new(store), stored(name)).unwrap()
}

fn numbers(rows: std::ops::Range<u64>) -> StructArray {
    let column: ArrayRef = Arc::new(Int64Array::from_iter_values(rows.map(|n| n as i64)));
    StructArray::from(vec![(Arc::new(Field::new("n", DataType::Int64, true)), column)])
}

/// Appends numbers, each at the position of its own; they need not be safe.
fn push(log: &SourceLog, rows: std::ops::Range<u64>) -> u64 {
    let taken = rows.end - rows.start;
    log.append(Some(&numbers(rows)), taken, 0).unwrap()
}

/// Appends numbers; they are acknowledged when this is no error.
fn append(log: &SourceLog, rows: std::ops::Range<u64>) -> Result<()> {
    let taken = rows.end - rows.start;
    let end = log.append(Some(&numbers(rows)), taken, 0)?;
    log.wait(end)
}

fn read(log: &SourceLog) -> Vec<u64> {
    let bounds = log.bounds();
    let (mut found, mut at) = (Vec::new(), bounds.first);
    while at < bounds.safe {
        for block in log.read(at, bounds.safe).unwrap() {
            let part = read_block(&block, at, bounds.safe).unwrap().unwrap();
            let column = part.rows.column(0).as_any().downcast_ref::<Int64Array>().unwrap();
            found.extend(column.values().iter().map(|n| *n as u64));
            at += part.rows.len() as u64;
        }
    }
    found
}

fn all(rows: std::ops::Range<u64>) -> Vec<u64> {
    rows.collect()
}

fn until(what: impl Fn() -> bool) {
    let began = Instant::now();
    while !what() {
        assert!(began.elapsed() < Duration::from_secs(20), "it takes too long");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn what_was_acknowledged_is_found_by_one_who_knows_the_store_alone() {
    let (_, bucket) = faulty();
    let log = open(over(&bucket), "first");
    append(&log, 0..10).unwrap();
    append(&log, 10..25).unwrap();
    // It dies without a word.
    std::mem::forget(log);
    let next = open(over(&bucket), "second");
    assert_eq!((read(&next), next.taken()), (all(0..25), 25));
    append(&next, 25..30).unwrap();
    let third = open(over(&bucket), "third");
    assert_eq!((read(&third), third.taken()), (all(0..30), 30));
}

#[test]
fn a_receiver_that_lost_the_log_acknowledges_nothing_and_what_it_writes_counts_for_nobody() {
    let (_, bucket) = faulty();
    let old = open(over(&bucket), "old");
    append(&old, 0..10).unwrap();
    let new = open(over(&bucket), "new");
    let refused = append(&old, 10..20).unwrap_err();
    let told = refused.to_string();
    assert_eq!(refused.condition(), "SOURCE_IN_USE");
    assert!(told.contains("new, which took it over") && told.contains("s3://bucket/prefix"), "{told}");
    assert!(old.is_stopped() && old.next_taken(0).is_none() && old.verify().is_err());
    append(&new, 10..13).unwrap();
    assert_eq!(read(&new), all(0..13));
    // Nor for those that come later.
    let last = open(over(&bucket), "last");
    assert_eq!(read(&last), all(0..13));
}

#[test]
fn a_write_that_was_on_its_way_when_the_log_was_taken_counts_for_nobody() {
    let (_, bucket) = faulty();
    let old = open(over(&bucket), "old");
    append(&old, 0..10).unwrap();
    // The third object of a segment, which the old receiver alone comes to.
    bucket.only("00000002");
    bucket.next_puts(&[&[Fault::Late][..], &[Fault::Refused; 1_000]].concat());
    let end = push(&old, 10..20);
    until(|| bucket.is_late());
    let new = open(over(&bucket), "new");
    bucket.deliver();
    assert_eq!(old.wait(end).unwrap_err().condition(), "SOURCE_IN_USE");
    append(&new, 10..12).unwrap();
    let last = open(over(&bucket), "last");
    assert_eq!(read(&last), all(0..12));
}

#[test]
fn a_silent_receiver_finds_out_that_it_lost_the_log() {
    let (_, bucket) = faulty();
    let old = open(over(&bucket), "old");
    let _new = open(over(&bucket), "new");
    until(|| old.is_stopped());
    assert_eq!(old.failure().unwrap().condition(), "SOURCE_IN_USE");
}

#[test]
fn a_receiver_that_keeps_rows_in_memory_finds_out_that_it_lost_the_log() {
    let (_, bucket) = faulty();
    let in_memory = LogSettings { durability: Durability::Availability, ..stored("old") };
    let old = SourceLog::open_on(Arc::new(over(&bucket)), in_memory).unwrap();
    append(&old, 0..10).unwrap();
    let _new = open(over(&bucket), "new");
    until(|| append(&old, 0..1).is_err());
    assert_eq!(old.failure().unwrap().condition(), "SOURCE_IN_USE");
}

#[test]
fn a_store_that_is_away_holds_the_sender_back_and_loses_nothing() {
    for faults in [
        vec![Fault::Refused; 12],
        vec![Fault::AnswerLost],
        vec![Fault::AnswerLost, Fault::Refused, Fault::Refused, Fault::AnswerLost],
        vec![Fault::Late, Fault::Refused],
    ] {
        let (_, bucket) = faulty();
        let log = open(over(&bucket), "first");
        append(&log, 0..10).unwrap();
        bucket.next_puts(&faults);
        let end = push(&log, 10..20);
        until(|| bucket.is_spent());
        // What came meanwhile is written with it, or after it.
        push(&log, 20..30);
        bucket.deliver();
        log.wait(end).unwrap();
        append(&log, 30..40).unwrap();
        assert_eq!(read(&log), all(0..40), "{faults:?}");
        std::mem::forget(log);
        let next = open(over(&bucket), "second");
        assert_eq!((read(&next), next.taken()), (all(0..40), 40), "{faults:?}");
    }
}

#[test]
fn a_log_whose_store_is_away_can_be_stopped_and_says_what_it_could_not_keep() {
    let (_, bucket) = faulty();
    let log = open(over(&bucket), "first");
    append(&log, 0..10).unwrap();
    bucket.is_down(true);
    let end = push(&log, 10..20);
    until(|| log.stats().failed_writes > 0);
    assert_eq!((log.bounds().safe, log.failure().is_none()), (10, true));
    log.stop();
    assert!(log.wait(end).is_err() && log.flush().is_err());
    bucket.is_down(false);
    assert_eq!(open(over(&bucket), "second").taken(), 10);
}

#[test]
fn what_comes_while_something_is_put_goes_with_the_next_put() {
    let (_, bucket) = faulty();
    let log = open(over(&bucket), "first");
    let before = bucket.puts.load(Ordering::Relaxed);
    bucket.slow(Duration::from_millis(100));
    for row in 0..50 {
        push(&log, row..row + 1);
    }
    log.flush().unwrap();
    let puts = bucket.puts.load(Ordering::Relaxed) - before;
    assert!(puts <= 3, "{puts} puts");
}

#[test]
fn committed_parts_go_in_order_also_when_the_store_was_away() {
    let (_, bucket) = faulty();
    let small = LogSettings { disk: 80_000, ..stored("first") };
    let log = SourceLog::open_on(Arc::new(over(&bucket)), small).unwrap();
    for row in (0..4_000).step_by(1_000) {
        append(&log, row..row + 1_000).unwrap();
    }
    let objects = || Store::entries(&over(&bucket), &parts(&over(&bucket))).unwrap().len();
    let before = objects();
    bucket.is_down(true);
    log.commit(3_500);
    std::thread::sleep(Duration::from_millis(300));
    bucket.is_down(false);
    until(|| objects() < before);
    log.stop();
    let next = open(over(&bucket), "second");
    let first = next.bounds().first;
    assert!((1..=3_500).contains(&first), "{first}");
    assert_eq!(read(&next), all(first..4_000));
}

/// Folder of the parts of the log in a store.
fn parts(store: &dyn Store) -> PathBuf {
    let found = store.entries(store.root()).unwrap();
    found.into_iter().find(|entry| entry.is_folder).unwrap().path
}

#[test]
fn a_part_has_a_bounded_number_of_objects() {
    let (_, bucket) = faulty();
    let log = open(over(&bucket), "first");
    for row in 0..2_100 {
        push(&log, row..row + 1);
    }
    log.flush().unwrap();
    assert_eq!(
        over(&bucket).entries(&parts(&over(&bucket))).unwrap().iter().filter(|e| e.is_folder).count(),
        3
    );
    drop(log);
    assert_eq!(read(&open(over(&bucket), "second")), all(0..2_100));
}

#[test]
fn a_receiver_that_stands_in_for_another_leaves_the_log_to_whoever_came_between() {
    let (_, bucket) = faulty();
    let again = |after: u64| {
        let mut settings = stored("first");
        settings.taker.after = Some(after);
        SourceLog::open_on(Arc::new(over(&bucket)), settings)
    };
    let first = open(over(&bucket), "first");
    let incarnation = first.incarnation();
    // Those that the same reader has started come between without harm.
    drop(again(incarnation).unwrap());
    let second = again(incarnation).unwrap();
    assert!(second.incarnation() > incarnation && first.verify().is_err());
    let other = open(over(&bucket), "other");
    let refused = again(second.incarnation()).unwrap_err();
    assert!(matches!(&refused, Error::SourceInUse { owner, .. } if owner.starts_with("other")), "{refused}");
    append(&other, 0..5).unwrap();
    // Whoever is started anew takes it.
    assert_eq!(open(over(&bucket), "first").taken(), 5);
}

#[test]
fn a_log_that_was_removed_is_no_log_to_go_on_with() {
    let root = tempfile::tempdir().unwrap();
    let log = SourceLog::open(settings("first", Location::from(root.path()))).unwrap();
    append(&log, 0..10).unwrap();
    std::fs::remove_dir_all(root.path()).unwrap();
    std::fs::create_dir_all(root.path()).unwrap();
    assert_eq!(append(&log, 10..20).unwrap_err().condition(), "CORRUPT_LOG");
}

#[test]
fn a_log_in_a_folder_that_nobody_claimed_is_gone_on_with_and_is_taken_by_one() {
    let root = tempfile::tempdir().unwrap();
    // As it was before logs were claimed.
    let writer = DiskWriter::start(root.path(), AgentId(7), 0).unwrap();
    let block = write_block(&Span::new(0, 10, 10, 0), &write_rows(&numbers(0..10)).unwrap()).unwrap();
    writer.submit(record_of(0, LogOffset::START, block)).wait().unwrap();
    drop(writer);
    let on = |name: &str| {
        let settings = settings(name, Location::from(root.path()));
        SourceLog::open_on(Arc::new(Folder::open(root.path()).unwrap()), settings).unwrap()
    };
    let old = on("old");
    append(&old, 10..20).unwrap();
    let new = on("new");
    assert_eq!(read(&new), all(0..20));
    assert_eq!(append(&old, 20..30).unwrap_err().condition(), "SOURCE_IN_USE");
    append(&new, 20..21).unwrap();
    assert_eq!(read(&on("last")), all(0..21));
}
