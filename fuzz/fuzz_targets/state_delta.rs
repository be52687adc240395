//! Any bytes as a delta of keyed state, with a checksum that fits: what a store takes, it can merge and give back.
#![no_main]

use bytes::Bytes;
use clonos::id::Generation;
use clonos::state::{CommitPoint, Delta, DeltaPart, Range, RangeSet, StateId, StateStore};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = Delta::decode(&Bytes::copy_from_slice(bytes));
    let sum = crc32fast::hash(bytes).to_le_bytes();
    let with_sum = Bytes::from([b"CS\x01\x00", &sum[..], bytes].concat());
    let Ok(delta) = Delta::decode(&with_sum) else { return };
    let again = Delta::decode(&delta.encode()).expect("what was written can be read");
    assert_eq!(again, delta);
    let id = StateId { query: "query".into(), operator: "operator".into() };
    let (epoch, generation, ranges) = (delta.epoch, Generation(1), RangeSet::ALL);
    let mut store = StateStore::new();
    store.begin(&id, ranges, delta.base).expect("nothing is here yet");
    if store.hold(&id, &DeltaPart { partition: 0, generation, ranges, delta: delta.clone() }).is_err() {
        return;
    }
    let pending = store.pending(&id, &ranges).expect("it is in memory");
    assert_eq!(pending[0].delta.entries, delta.entries);
    let point = CommitPoint { epoch, partitions: 1, tasks: vec![(0, generation)] };
    store.advance(&id, &point).expect("it was taken");
    while !store.tidy(1 << 20).expect("it is in memory") {}
    store.next_due(&id).expect("it is in memory");
    for range in Range::all() {
        let page = store.page(&id, range, None, 1 << 20).expect("it is held");
        assert!(page.entries.iter().all(|entry| entry.is_ok()));
    }
});
