//! Deltas and runs whose bytes are not what was written.

use std::sync::{Arc, Mutex};

use proptest::prelude::*;

use super::super::files::RunFile;
use super::model::{Write, delta_of};
use super::*;
use crate::error::Result;

fn written() -> Delta {
    let write =
        |key: u8| Write { key, slot: u16::from(key % 3), op: key % 6, sub: 2, expires_ms: 5, value: key };
    let writes: Vec<Write> = (0..KEYS).map(write).collect();
    delta_of(7, Version(Some(5)), -3, &writes.iter().collect::<Vec<_>>())
}

/// A delta of one partition.
fn whole(delta: Delta) -> DeltaPart {
    DeltaPart { partition: 0, generation: Generation(1), ranges: RangeSet::ALL, delta }
}

fn commit(epoch: u64) -> CommitPoint {
    CommitPoint { epoch, partitions: 1, tasks: vec![(0, Generation(1))] }
}

#[test]
fn a_delta_is_read_as_it_was_written() {
    let delta = written();
    assert_eq!(Delta::decode(&delta.encode()).unwrap(), delta);
    let first = Delta { epoch: 0, base: Version::NONE, ..delta.clone() };
    assert_eq!(Delta::decode(&first.encode()).unwrap(), first);
    assert_ne!(first.fingerprint(), delta.fingerprint());
    let other =
        Delta { entries: delta.of(&[Range(1)].into_iter().collect()).unwrap().entries, ..delta.clone() };
    assert_ne!(other.fingerprint(), delta.fingerprint());
}

#[test]
fn the_bytes_that_a_delta_came_in_are_not_kept() {
    let catalog = Bytes::from_static(b"catalog");
    let bytes = Delta { epoch: 0, base: Version::NONE, catalog: catalog.clone(), ..written() }.encode();
    let mut store = StateStore::new();
    store.begin(&id(), RangeSet::ALL, Version::NONE).unwrap();
    store.hold(&id(), &whole(Delta::decode(&bytes).unwrap())).unwrap();
    assert!(bytes.is_unique(), "it is pending");
    store.advance(&id(), &commit(0)).unwrap();
    assert_eq!(store.catalog(&id()), Some(catalog));
    assert!(bytes.is_unique(), "it was committed");
}

#[test]
fn bytes_of_a_delta_stay_what_they_are() {
    let prefix = KeyPrefix::new(0x0102_0304_0506_0708, b"k");
    let mut entries = EntriesBuilder::new();
    entries.push(&EntryKey::timer(&prefix, 5), &Op::Delete);
    entries.push(&EntryKey::new(&prefix, Slot(1), b""), &Op::Clear);
    entries.push(
        &EntryKey::new(&prefix, Slot(1), b"s"),
        &Op::Put { expires_ms: 9, value: Bytes::from_static(b"v") },
    );
    let (base, catalog) = (Version(Some(2)), Bytes::from_static(b"c"));
    let delta = Delta { epoch: 300, base, now_ms: -1, catalog, entries: entries.finish() };
    let hex: String = delta.encode().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(
        hex,
        "43530100f60ef837ac0203010163170102030405060708000000016b00008000000000000005010f0102030405060708000000016b000102100102030405060708000000016b00017300120176"
    );
}

#[test]
fn a_delta_that_is_cut_off_or_changed_is_refused() {
    let bytes = written().encode();
    for len in 0..bytes.len() {
        assert!(Delta::decode(&bytes.slice(..len)).is_err(), "{len} bytes");
    }
    for bit in 0..bytes.len() * 8 {
        let mut changed = bytes.to_vec();
        changed[bit / 8] ^= 1 << (bit % 8);
        let refused = Delta::decode(&changed.into()).unwrap_err();
        assert!(
            matches!(refused, Error::CorruptState { .. } | Error::UnsupportedVersion { .. }),
            "bit {bit}"
        );
    }
    let mut longer = bytes.to_vec();
    longer.push(0);
    assert!(Delta::decode(&longer.into()).is_err());
}

/// A store at version 5 and its delta of epoch 7, with other entries.
fn held(entries: Entries) -> Result<Held> {
    let mut store = StateStore::new();
    store.begin(&id(), RangeSet::ALL, Version(Some(5))).unwrap();
    store.hold(&id(), &whole(Delta { entries, ..written() }))
}

proptest! {
    #[test]
    fn entries_that_make_no_sense_are_refused_or_taken_but_never_a_panic(
        at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = written().entries.as_bytes().to_vec();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        bytes.truncate(cut.index(bytes.len()) + 1);
        match held(Entries::from_bytes(bytes.into())) {
            Ok(held) => prop_assert_eq!(held, Held::Taken),
            Err(error) => {
                let is_said = matches!(error, Error::CorruptState { .. } | Error::CorruptBlock { .. });
                prop_assert!(is_said, "{error}");
            }
        }
    }
}

#[test]
fn entries_out_of_order_or_of_other_ranges_are_refused() {
    let put = Op::Put { expires_ms: 0, value: Bytes::new() };
    let expiring = Op::Put { expires_ms: 1, value: Bytes::new() };
    let prefix = |hash| KeyPrefix::new(hash, b"key");
    let entry = |hash, slot, sub: &[u8], op: &Op| (EntryKey::new(&prefix(hash), Slot(slot), sub), op.clone());
    let timer = |op: &Op| (EntryKey::timer(&prefix(0), 9), op.clone());
    let all: &[(Vec<(EntryKey, Op)>, bool)] = &[
        (vec![entry(0, 1, b"", &Op::Clear), entry(0, 1, b"", &put)], true),
        (vec![entry(0, 1, b"", &Op::Clear), entry(0, 1, b"", &Op::Delete)], true),
        (vec![entry(0, 1, b"", &put), entry(0, 1, b"", &Op::Clear)], false),
        (vec![entry(0, 1, b"", &Op::Clear), entry(0, 1, b"", &Op::Clear)], false),
        (vec![entry(0, 1, b"", &put), entry(0, 1, b"", &put)], false),
        (vec![entry(0, 2, b"", &put), entry(0, 1, b"", &put)], false),
        (vec![entry(1, 1, b"", &put), entry(0, 1, b"", &put)], false),
        (vec![entry(0, 1, b"below", &Op::Clear)], false),
        (vec![timer(&put)], true),
        (vec![timer(&Op::Delete)], true),
        (vec![timer(&expiring)], false),
        (vec![entry(0, 0, b"no time", &put)], false),
    ];
    for (entries, is_sound) in all {
        let mut builder = EntriesBuilder::new();
        entries.iter().for_each(|(key, op)| builder.push(key, op));
        assert_eq!(held(builder.finish()).is_ok(), *is_sound, "{entries:?}");
    }
    let mut store = StateStore::new();
    store.begin(&id(), RangeSet::ALL, Version(Some(5))).unwrap();
    let elsewhere = DeltaPart { ranges: [Range(9)].into_iter().collect(), ..whole(written()) };
    assert!(matches!(store.hold(&id(), &elsewhere), Err(Error::CorruptState { .. })));
    assert!(store.pending(&id(), &RangeSet::ALL).unwrap().is_empty());
}

/// Files whose bytes are changed when they are read.
#[derive(Debug, Default)]
struct BadFiles(Arc<Mutex<Option<u64>>>);

#[derive(Debug)]
struct BadFile(Arc<dyn RunFile>, Arc<Mutex<Option<u64>>>);

impl Files for BadFiles {
    fn create(&self) -> Result<Arc<dyn RunFile>> {
        Ok(Arc::new(BadFile(MemoryFiles.create()?, Arc::clone(&self.0))))
    }
}

impl RunFile for BadFile {
    fn append(&self, bytes: &[u8]) -> Result<u64> {
        self.0.append(bytes)
    }

    fn read(&self, into: &mut [u8], from: u64) -> Result<()> {
        self.0.read(into, from)?;
        let bit = self.1.lock().unwrap().filter(|bit| (from..from + into.len() as u64).contains(&(bit / 8)));
        if let Some(bit) = bit {
            into[usize::try_from(bit / 8 - from).unwrap()] ^= 1 << (bit % 8);
        }
        Ok(())
    }
}

#[test]
fn a_run_that_reads_otherwise_than_it_was_written_is_refused() {
    let bad = Arc::new(Mutex::new(None));
    let mut store = StateStore::with_files(0, Arc::new(BadFiles(Arc::clone(&bad))));
    store.begin(&id(), RangeSet::ALL, Version(Some(5))).unwrap();
    store.hold(&id(), &whole(written())).unwrap();
    assert_eq!(store.advance(&id(), &commit(7)).unwrap(), Advanced::Done);
    store.tidy(0).unwrap();
    let all: Vec<KeyPrefix> = Model::default().keys(KEYS);
    let read =
        |store: &StateStore| store.read(&id(), Version(Some(7)), &all, None, 0, &Limits::whole(u64::MAX));
    let Read::Entries { entries, .. } = read(&store).unwrap() else { panic!("not read") };
    let (bytes, mut refused) = (entries.as_bytes().len() as u64, 0);
    for bit in 0..8 * bytes {
        *bad.lock().unwrap() = Some(bit);
        match read(&store) {
            Err(Error::CorruptState { .. }) => refused += 1,
            Ok(Read::Entries { entries: found, .. }) => assert_eq!(found, entries),
            other => panic!("{other:?}"),
        }
    }
    assert!(refused > 4 * bytes, "{refused} of {bytes} bytes");
    *bad.lock().unwrap() = None;
    // Merging says so too, and loses nothing.
    let base = Version(Some(7));
    store.hold(&id(), &whole(Delta { epoch: 8, base, ..written() })).unwrap();
    assert_eq!(store.advance(&id(), &commit(8)).unwrap(), Advanced::Done);
    *bad.lock().unwrap() = Some(0);
    assert!(matches!(store.tidy(1 << 20), Err(Error::CorruptState { .. })));
    *bad.lock().unwrap() = None;
    assert!(store.tidy(1 << 20).unwrap());
    let Read::Entries { entries: found, .. } =
        store.read(&id(), Version(Some(8)), &all, None, 0, &Limits::whole(u64::MAX)).unwrap()
    else {
        panic!("not read")
    };
    assert_eq!(found, entries);
    assert_eq!(store.stats(&id()).unwrap().runs, 1);
}
