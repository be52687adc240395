//! Savepoints in an object store: whole or not there, whoever writes at the same time and whatever fails.

use super::*;
use crate::edge::disk::inspection::Inspection;
use crate::edge::disk::segment::store::{Fault, Store, faulty, over};
use crate::edge::disk::stored::Stored;

/// Begins one with as many keys of one range as are many parts of an object, and some of another operator.
fn begun(store: &dyn Store, number: u64, keys: u64) -> SavepointWriter {
    let mut writer = SavepointWriter::create_in(store, "q", 9, number).unwrap();
    writer.begin_state("f", 9, Bytes::from_static(b"catalog")).unwrap();
    for range in [1, 200] {
        for first in (0..keys).step_by(100) {
            writer.push(&page(range, first..keys.min(first + 100), 9)).unwrap();
        }
    }
    writer.begin_state("g", 4, Bytes::new()).unwrap();
    writer
}

fn open(store: Arc<dyn Store>) -> Result<Savepoint, Error> {
    let root = store.root().to_owned();
    Savepoint::open_in(store, &root, "state_from")
}

/// Names below the place.
fn names(store: &dyn Store) -> Vec<String> {
    let found = store.entries(store.root()).unwrap().into_iter();
    found.map(|entry| entry.path.file_name().unwrap().to_string_lossy().into_owned()).collect()
}

#[test]
fn what_was_written_to_a_store_is_read_by_range() {
    let (store, _bucket) = faulty();
    let written = begun(store.as_ref(), 0xAB, 1_000).finish().unwrap();
    assert_eq!(
        names(store.as_ref()),
        ["part-00000000000000ab-0.state", "part-00000000000000ab-1.state", "savepoint"]
    );
    assert_eq!(store.read(&store.root().join(MANIFEST)).unwrap()[2], 2, "names of files need version 2");
    let saved = open(Arc::clone(&store) as _).unwrap();
    assert_eq!(saved.manifest(), &written);
    assert!(written.states[0].bytes > 16 << 10, "it is put in parts");
    saved.check().unwrap();
    assert_eq!(keys(saved.pages(0, &(0..=u64::MAX))).unwrap().len(), 2_000);
    assert_eq!(keys(saved.pages(0, &(2 << 56..=u64::MAX))).unwrap().len(), 1_000);
    assert_eq!(keys(saved.pages(1, &(0..=u64::MAX))).unwrap().len(), 0);
    let stored = Stored::open_in(store, "path").unwrap();
    assert_eq!(stored.find(None, Some("f")).unwrap().figures(9).unwrap().keys, 2_000);
}

#[test]
fn what_is_there_is_refused_and_what_others_left_behind_is_not() {
    let (store, bucket) = faulty();
    let told = open(Arc::clone(&store) as _).unwrap_err();
    assert!(told.to_string().contains("s3://bucket/prefix is no savepoint: there is nothing"), "{told}");
    // Who dies leaves its objects.
    std::mem::forget(begun(store.as_ref(), 1, 10));
    assert_eq!(names(store.as_ref()), ["part-0000000000000001-0.state"]);
    assert!(open(Arc::clone(&store) as _).is_err());
    begun(store.as_ref(), 2, 20).finish().unwrap();
    let saved = open(Arc::clone(&store) as _).unwrap();
    assert_eq!(keys(saved.pages(0, &(0..=u64::MAX))).unwrap().len(), 40);
    for (below, what) in [("", "a savepoint"), ("/used", "an object of others")] {
        let place = store.root().join(below.trim_start_matches('/'));
        store.create(&place.join("notes"), b"mine").unwrap();
        let refused = store.gather(&place, 3).map(drop).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::AlreadyExists, "{what}");
    }
    let refused = SavepointWriter::create_in(&over(&bucket), "q", 9, 3).unwrap_err();
    assert_eq!(refused.condition(), "CONFIG");
    assert!(refused.to_string().contains("s3://bucket/prefix exists already"), "{refused}");
}

#[test]
fn of_two_that_write_at_once_one_is_there_and_the_other_leaves_nothing() {
    let (store, bucket) = faulty();
    let late = begun(store.as_ref(), 1, 10);
    begun(&over(&bucket), 2, 20).finish().unwrap();
    let refused = late.finish().unwrap_err();
    assert!(refused.to_string().contains("exists already"), "{refused}");
    let began = std::time::Instant::now();
    while names(store.as_ref()).iter().any(|name| name.contains("-0000000000000001") || name.contains("01-"))
    {
        assert!(began.elapsed().as_secs() < 10, "{:?}", names(store.as_ref()));
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let saved = open(store).unwrap();
    saved.check().unwrap();
    assert_eq!(keys(saved.pages(0, &(0..=u64::MAX))).unwrap().len(), 40);
}

#[test]
fn a_manifest_of_which_no_answer_comes_is_that_of_a_whole_savepoint_or_never_there() {
    // The answer is lost.
    let (store, bucket) = faulty();
    bucket.only(MANIFEST);
    bucket.next_puts(&[Fault::AnswerLost]);
    begun(store.as_ref(), 1, 10).finish().unwrap();
    open(store).unwrap().check().unwrap();
    // It is refused until nobody waits any more, and what is written again is there.
    let (store, bucket) = faulty();
    bucket.only(MANIFEST);
    bucket.next_puts(&[Fault::Refused; 1_000]);
    let failed = begun(store.as_ref(), 1, 10).finish().unwrap_err();
    assert_eq!(failed.condition(), "IO");
    assert!(!failed.to_string().contains("hunter2"), "{failed}");
    assert!(open(Arc::clone(&store) as _).is_err());
    bucket.next_puts(&[]);
    begun(store.as_ref(), 2, 20).finish().unwrap();
    open(store).unwrap().check().unwrap();
    // It arrives when nobody waits any more: with all that it names.
    let (store, bucket) = faulty();
    bucket.only(MANIFEST);
    bucket.next_puts(&[[Fault::Late; 1].as_slice(), &[Fault::Refused; 1_000]].concat());
    begun(store.as_ref(), 1, 10).finish().unwrap_err();
    assert!(open(Arc::clone(&store) as _).is_err());
    bucket.deliver();
    open(Arc::clone(&store) as _).unwrap().check().unwrap();
    assert!(SavepointWriter::create_in(store.as_ref(), "q", 9, 2).is_err());
}

#[test]
fn a_store_that_is_away_is_no_damage_and_an_object_that_is_gone_is() {
    let (store, bucket) = faulty();
    begun(store.as_ref(), 1, 10).finish().unwrap();
    let saved = open(Arc::clone(&store) as _).unwrap();
    bucket.is_down(true);
    assert_eq!(saved.check().unwrap_err().condition(), "IO");
    assert_eq!(open(Arc::clone(&store) as _).unwrap_err().condition(), "IO");
    bucket.is_down(false);
    let found = Inspection::over(Arc::clone(&store) as _, "path");
    assert_eq!((found.savepoints.len(), found.segments.len(), found.has_state), (1, 0, false));
    found.savepoint(store.root()).unwrap().check().unwrap();
    store.remove(&store.root().join("part-0000000000000001-1.state")).unwrap();
    let told = open(store).unwrap_err();
    assert!(told.to_string().contains("1.state of a savepoint cannot be read: it is gone"), "{told}");
}
