//! Names of files, and files that are torn.

use std::fs;

use bytes::Bytes;

use super::*;
use crate::edge::disk::segment::store::{Folder, faulty};
use crate::id::AgentId;
use crate::state::{
    CommitPoint, DeltaPart, EntriesBuilder, EntryKey, KeyPrefix, Op, Range, Slot, StateStore,
};

fn written(generation: u64, partition: u32, partitions: u32, base: Option<u64>) -> Written {
    Written { generation: Generation(generation), partition, partitions, base: Version(base) }
}

fn base(after: u64, ranges: &RangeSet) -> Base {
    Base { after: Generation(after), ranges: *ranges }
}

#[test]
fn names_say_what_they_were_made_of() {
    let task = written(0xabc, 3, 7, Some(12));
    assert_eq!(Written::parse(&task.to_string()), Some(task));
    let first = written(1, 0, 1, None);
    assert_eq!(Written::parse(&first.to_string()), Some(first));
    assert_eq!(Written::parse("0000000000000001-1-1-none.delta"), None, "a partition behind the last");
    let ranges: RangeSet = [0, 1, 77, 255].map(Range).into_iter().collect();
    let some = base(5, &ranges);
    assert_eq!(Base::parse(&some.to_string()), Some(some));
    let begun = Begun { after: Generation(1 << 40), epoch: 7 };
    assert_eq!(Begun::parse(&begun.to_string()), Some(begun));
}

#[test]
fn a_file_of_another_state_or_with_a_wrong_byte_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let folder = StateFolder::new(Arc::new(Folder::at(root.path())), AgentId(1));
    let id = StateId { query: "q".into(), operator: "f".into() };
    let delta = Delta {
        epoch: 3,
        base: Version(Some(2)),
        now_ms: 5,
        catalog: Bytes::from_static(b"c"),
        entries: EntriesBuilder::new().finish(),
    };
    let name = written(9, 0, 1, Some(2));
    let kept = Kept {
        id: &id,
        epoch: 3,
        partition: 0,
        partitions: 1,
        generation: Generation(9),
        base: delta.base,
        due_ms: None,
    };
    folder.keep(1, &kept, &delta.encode()).unwrap();
    assert_eq!(folder.delta(&id, 3, &name).unwrap(), delta);
    let path = folder.dir(&id).join("3").join(name.to_string());
    let bytes = fs::read(&path).unwrap();
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        fs::write(&path, &damaged).unwrap();
        let refused = folder.delta(&id, 3, &name).unwrap_err();
        assert!(refused.to_string().contains(path.to_str().unwrap()), "{refused}");
        fs::write(&path, &bytes[..at]).unwrap();
        assert!(folder.delta(&id, 3, &name).is_err());
    }
    fs::write(&path, &bytes).unwrap();
    let other = StateId { operator: "g".into(), ..id.clone() };
    fs::create_dir_all(folder.dir(&other).join("3")).unwrap();
    fs::copy(&path, folder.dir(&other).join("3").join(name.to_string())).unwrap();
    assert!(folder.delta(&other, 3, &name).unwrap_err().to_string().contains("it is of state f@q"));
}

/// A store with one value, decided in epoch 3.
fn at_epoch_3(id: &StateId) -> StateStore {
    let mut store = StateStore::new();
    store.begin(id, RangeSet::ALL, Version::NONE).unwrap();
    let mut entries = EntriesBuilder::new();
    let key = EntryKey::new(&KeyPrefix::new(1 << 56, b"k"), Slot(1), &[]);
    entries.push(&key, &Op::Put { expires_ms: 0, value: Bytes::from_static(b"value") });
    let (base_of, catalog, entries) = (Version::NONE, Bytes::from_static(b"c"), entries.finish());
    let delta = Delta { epoch: 3, base: base_of, now_ms: 5, catalog, entries };
    let part = DeltaPart { partition: 0, generation: Generation(1), ranges: RangeSet::ALL, delta };
    store.hold(id, &part).unwrap();
    store.advance(id, &CommitPoint { epoch: 3, partitions: 1, tasks: vec![(0, Generation(1))] }).unwrap();
    store
}

#[test]
fn a_base_that_is_cut_off_or_has_a_wrong_byte_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let folder = StateFolder::new(Arc::new(Folder::at(root.path())), AgentId(1));
    let id = StateId { query: "q".into(), operator: "f".into() };
    let store = at_epoch_3(&id);
    let ranges: RangeSet = [1, 2].map(Range).into_iter().collect();
    folder.write_base(1, &id, Generation(1), &ranges, &store.view(&id).unwrap()).unwrap();
    let name = base(1, &ranges);
    let read = || {
        let mut base = folder.base(&id, 3, &name)?;
        let mut pages = 0;
        while base.next()?.is_some() {
            pages += 1;
        }
        Ok::<_, Error>(pages)
    };
    assert_eq!(read().unwrap(), 2);
    let path = folder.dir(&id).join("3").join(name.to_string());
    let bytes = fs::read(&path).unwrap();
    for at in 0..bytes.len() {
        fs::write(&path, &bytes[..at]).unwrap();
        assert_eq!(read().unwrap_err().condition(), "STATE_LOST", "cut off at {at}");
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        fs::write(&path, &damaged).unwrap();
        // There is nothing behind the last length that its checksum could be of.
        let is_end = at >= bytes.len() - 4;
        assert_eq!(read().is_ok(), is_end, "byte {at} of {}", bytes.len());
    }
}

#[test]
fn a_store_that_is_away_has_lost_nothing() {
    let (store, bucket) = faulty();
    let folder = StateFolder::new(store, AgentId(1));
    let id = StateId { query: "q".into(), operator: "f".into() };
    let ranges: RangeSet = [1, 2].map(Range).into_iter().collect();
    folder.write_base(1, &id, Generation(1), &ranges, &at_epoch_3(&id).view(&id).unwrap()).unwrap();
    let read =
        || folder.base(&id, 3, &base(1, &ranges)).and_then(|mut base| base.next().map(|page| page.is_some()));
    assert!(read().unwrap());
    bucket.is_down(true);
    assert_eq!(read().unwrap_err().condition(), "IO");
    bucket.is_down(false);
    assert!(read().unwrap());
    assert_eq!(
        folder.base(&id, 4, &base(1, &ranges)).err().unwrap().condition(),
        "STATE_LOST",
        "it was never there"
    );
}

/// Keeps deltas of epochs 0 to 9, each of one task.
fn ten_epochs(folder: &StateFolder, id: &StateId) {
    let (catalog, entries) = (Bytes::new(), EntriesBuilder::new().finish());
    for epoch in 0..10_u64 {
        let base = Version(epoch.checked_sub(1));
        let delta = Delta { epoch, base, now_ms: 0, catalog: catalog.clone(), entries: entries.clone() };
        let (partition, partitions, generation) = (0, 1, Generation(epoch + 1));
        let kept = Kept { id, epoch, partition, partitions, generation, base, due_ms: None };
        folder.keep(1, &kept, &delta.encode()).unwrap();
    }
}

#[test]
fn what_can_be_gone_back_to_is_kept_and_the_rest_removed() {
    let root = tempfile::tempdir().unwrap();
    let folder = StateFolder::new(Arc::new(Folder::at(root.path())), AgentId(1));
    let id = StateId { query: "q".into(), operator: "f".into() };
    ten_epochs(&folder, &id);
    for epoch in [1, 3, 8] {
        fs::write(folder.dir(&id).join(format!("{epoch}/{}", base(0, &RangeSet::ALL))), "a base").unwrap();
    }
    // Versions 7, 8 and 9.
    folder.prune(1, &id, 9, 3).unwrap();
    let survey = folder.survey(&id).unwrap();
    assert!(survey.deltas.keys().copied().eq(4..10) && survey.bases.keys().copied().eq([3, 8]));
    assert_eq!(survey.epochs(7).unwrap(), [4, 5, 6, 7]);
    assert_eq!(survey.epochs(9).unwrap(), [9]);
    folder.prune(1, &id, 9, 1).unwrap();
    let survey = folder.survey(&id).unwrap();
    assert!(survey.deltas.keys().copied().eq([9]) && survey.bases.keys().copied().eq([8]));
    assert!(survey.epochs(7).is_err());
}

#[test]
fn who_was_cut_off_writes_and_removes_nothing_where_another_application_goes_on() {
    let root = tempfile::tempdir().unwrap();
    let id = StateId { query: "q".into(), operator: "f".into() };
    let key = EpochKey { query: id.query.clone(), epoch: Epoch::Batch(0) };
    let [older, newer] =
        [1, 2].map(|agent| StateFolder::new(Arc::new(Folder::at(root.path())), AgentId(agent)));
    claim::take(&Folder::at(root.path()), &key, 1, ("older", 1)).unwrap();
    ten_epochs(&older, &id);
    fs::write(older.dir(&id).join(format!("8/{}", base(0, &RangeSet::ALL))), "a base").unwrap();
    let store = at_epoch_3(&id);
    let view = store.view(&id).unwrap();
    older.write_base(1, &id, Generation(0), &RangeSet::ALL, &view).unwrap();
    // The other one goes back to epoch 5.
    claim::take(&Folder::at(root.path()), &key, 2, ("newer", 2)).unwrap();
    newer.begin(&id, Generation(10), 5).unwrap();
    let before = newer.survey(&id).unwrap();
    assert_eq!(older.prune(1, &id, 9, 1).unwrap_err().condition(), "CONFIG");
    let some: RangeSet = [1, 2].map(Range).into_iter().collect();
    let written = older.write_base(1, &id, Generation(0), &some, &view);
    assert_eq!(written.unwrap_err().condition(), "CONFIG");
    let survey = newer.survey(&id).unwrap();
    assert!(survey.deltas.keys().eq(before.deltas.keys()) && survey.bases == before.bases);
    assert_eq!(survey.epochs(4).unwrap(), [4]);
    newer.prune(2, &id, 4, 1).unwrap();
    assert!(newer.survey(&id).unwrap().deltas.keys().copied().eq(4..10));
}
