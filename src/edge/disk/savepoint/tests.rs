//! Folders that are whole, torn, damaged, or something else.

mod objects;

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use tempfile::TempDir;

use super::*;
use crate::edge::disk::segment::store::Folder;
use crate::edge::disk::segment::testing::FaultyDisk;
use crate::error::Error;
use crate::state::starting::Origin;
use crate::state::{Entries, EntriesBuilder, EntryKey, KeyPrefix, Op, Page, Range, Slot, Version};

fn page(range: u8, keys: std::ops::Range<u64>, version: u64) -> Page {
    let mut entries = EntriesBuilder::new();
    for key in keys {
        let prefix = KeyPrefix::new(u64::from(range) << 56 | key << 40, &key.to_be_bytes());
        entries.push(&EntryKey::timer(&prefix, 7), &Op::Put { expires_ms: 0, value: Bytes::new() });
        let value = Bytes::from(key.to_be_bytes().to_vec());
        entries.push(&EntryKey::new(&prefix, Slot(1), &[]), &Op::Put { expires_ms: 0, value });
    }
    let version = Version(Some(version));
    Page { range: Range(range), version, now_ms: 5, catalog: None, entries: entries.finish(), next: None }
}

/// Two operators; the first has two pages in range 1, and one in the last.
fn write(path: &std::path::Path) -> Manifest {
    let mut writer = SavepointWriter::create(path, "q", 9, 1).unwrap();
    writer.begin_state("f", 9, Bytes::from_static(b"catalog")).unwrap();
    for page in [page(0, 0..0, 9), page(1, 0..3, 9), page(1, 3..5, 9), page(255, 0..4, 9)] {
        writer.push(&page).unwrap();
    }
    writer.begin_state("g#2", 4, Bytes::new()).unwrap();
    writer.finish().unwrap()
}

fn folder() -> (TempDir, PathBuf) {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("deep").join("saved");
    (root, path)
}

fn keys(pages: Result<Pages, Error>) -> Result<Vec<u64>, Error> {
    let mut pages = pages?;
    let mut keys = Vec::new();
    while let Some(page) = pages.next()? {
        assert_eq!((page.version, page.now_ms), (Version(Some(9)), 5));
        for entry in page.entries.iter() {
            let entry = entry?;
            if entry.key.expiry_ms().is_none() {
                keys.push(u64::from_be_bytes(entry.key.prefix().key().try_into().unwrap()));
            }
        }
    }
    Ok(keys)
}

#[test]
fn all_tasks_of_a_query_begin_with_one_savepoint() {
    let (_root, path) = folder();
    write(&path);
    let mark = Savepoint::open(&path, "x").unwrap().mark();
    let task = || SavedPartition::new(&path, "f", "state_from", 0..=u64::MAX, mark);
    assert!(!task().entries().unwrap().is_empty());
    fs::remove_dir_all(&path).unwrap();
    let mut other = SavepointWriter::create(&path, "q", 10, 1).unwrap();
    other.begin_state("f", 10, Bytes::new()).unwrap();
    other.finish().unwrap();
    let refused = task().entries().unwrap_err();
    assert_eq!(refused.condition(), "CONFIG");
    assert!(refused.to_string().contains("is another savepoint than"), "{refused}");
}

#[test]
fn what_was_written_is_read_by_range() {
    let (_root, path) = folder();
    let written = write(&path);
    let saved = Savepoint::open(&path, "x").unwrap();
    assert_eq!(saved.manifest(), &written);
    assert_eq!((written.query.as_str(), written.epoch), ("q", 9));
    let of = &written.states[0];
    assert_eq!((of.sum(|r| r.keys), of.sum(|r| r.entries), of.sum(|r| r.timers)), (9, 18, 9));
    assert_eq!(keys(saved.pages(0, &(0..=u64::MAX))).unwrap(), [0, 1, 2, 3, 4, 0, 1, 2, 3]);
    assert_eq!(keys(saved.pages(0, &(2 << 56..=u64::MAX))).unwrap(), [0, 1, 2, 3]);
    assert_eq!(keys(saved.pages(0, &(2 << 56..=3 << 56))).unwrap(), [] as [u64; 0]);
    assert_eq!(keys(saved.pages(1, &(0..=u64::MAX))).unwrap(), [] as [u64; 0]);
    saved.check().unwrap();
    // An operator is found by the name that the user gave it.
    assert_eq!(saved.find("g", "x").unwrap(), 1);
    let refused = saved.find("h", "state_from").unwrap_err();
    assert_eq!(refused.condition(), "CONFIG");
    let text = refused.to_string();
    assert!(
        text.contains("\"f\", \"g\"") && text.contains("epoch 9") && text.contains("state_from"),
        "{text}"
    );
}

#[test]
fn a_partition_is_given_its_own_keys_and_no_others() {
    let (_root, path) = folder();
    write(&path);
    let whole: Entries = page(1, 0..3, 9).entries;
    assert_eq!(within(&whole, &(1 << 56..=(2 << 56) - 1)).unwrap(), whole);
    let first = 1_u64 << 56 | 1 << 40;
    let of = within(&whole, &(first..=first)).unwrap();
    let keys: Vec<u64> = of.iter().map(|entry| entry.unwrap().key.hash()).collect();
    assert_eq!(keys, [first, first]);
}

#[test]
fn a_folder_is_there_whole_or_not_at_all() {
    let (root, path) = folder();
    let mut writer = SavepointWriter::create(&path, "q", 9, 1).unwrap();
    writer.begin_state("f", 9, Bytes::new()).unwrap();
    writer.push(&page(1, 0..3, 9)).unwrap();
    assert_eq!(writer.push(&page(2, 0..3, 8)).unwrap_err().condition(), "MISUSE", "another version");
    assert!(!path.exists());
    drop(writer);
    assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 0, "what is unfinished is removed");
    write(&path);
    // What is there stays as it is.
    let refused = SavepointWriter::create(&path, "q", 10, 2).unwrap_err();
    assert!(refused.to_string().contains("exists already"), "{refused}");
    let file = root.path().join("file");
    fs::write(&file, "text").unwrap();
    assert_eq!(SavepointWriter::create(&file, "q", 1, 1).unwrap_err().condition(), "CONFIG");
    assert_eq!(SavepointWriter::create(&file.join("x"), "q", 1, 1).unwrap_err().condition(), "CONFIG");
    // Somebody was quicker.
    let other = root.path().join("other");
    let late = SavepointWriter::create(&other, "q", 9, 3).unwrap();
    write(&other);
    assert!(late.finish().unwrap_err().to_string().contains("exists already"));
    Savepoint::open(&other, "x").unwrap().check().unwrap();
}

#[test]
fn any_wrong_byte_is_found_and_the_file_named() {
    let (_root, path) = folder();
    write(&path);
    for name in [MANIFEST, "0.state"] {
        let file = path.join(name);
        let bytes = fs::read(&file).unwrap();
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            fs::write(&file, &damaged).unwrap();
            let found = Savepoint::open(&path, "x").and_then(|saved| saved.check());
            let text = found.unwrap_err().to_string();
            // Where the version stands, it is a newer one's.
            let is_version = name == MANIFEST && at == 2;
            assert!(text.contains(name) || is_version, "byte {at}: {text}");
            fs::write(&file, &bytes[..at]).unwrap();
            assert!(Savepoint::open(&path, "x").is_err(), "cut off at {at}");
        }
        fs::write(&file, [&bytes[..], b"more"].concat()).unwrap();
        assert!(Savepoint::open(&path, "x").is_err());
        fs::write(&file, &bytes).unwrap();
    }
    Savepoint::open(&path, "x").unwrap().check().unwrap();
    fs::remove_file(path.join("1.state")).unwrap();
    assert!(Savepoint::open(&path, "x").unwrap_err().to_string().contains("1.state"));
}

#[test]
fn a_folder_has_its_name_when_all_of_it_is_on_disk() {
    let (root, path) = folder();
    let on = |disk: &FaultyDisk| {
        let mut writer =
            SavepointWriter::create_in(&Folder::at_on(Arc::new(disk.clone()), &path), "q", 9, 1).unwrap();
        writer.begin_state("f", 9, Bytes::new()).unwrap();
        writer.push(&page(1, 0..3, 9)).unwrap();
        writer
    };
    let disk = FaultyDisk::default();
    disk.0.fail_syncs(true);
    assert!(on(&disk).finish().is_err() && !path.exists());
    // What is in the first file is, and the second is not.
    disk.0.fail_syncs(false);
    let mut writer = on(&disk);
    writer.begin_state("g", 9, Bytes::new()).unwrap();
    assert_eq!(disk.0.syncs.load(Ordering::Relaxed), 1);
    drop(writer);
    fs::remove_dir(path.parent().unwrap()).unwrap();
    let disk = FaultyDisk::default();
    on(&disk).finish().unwrap();
    let dirs = disk.0.dirs.lock().unwrap().clone();
    assert_eq!(dirs[1..], [path.parent().unwrap(), root.path()], "a folder that was made has its name, too");
    fs::remove_dir_all(&path).unwrap();
    let disk = FaultyDisk::default();
    disk.0.fail_dir_syncs(true);
    assert!(on(&disk).finish().is_err() && !path.exists());
    disk.0.fail_dir_syncs(false);
    on(&disk).finish().unwrap();
    assert_eq!(disk.0.syncs.load(Ordering::Relaxed), 2 + 2, "the state and the manifest, twice");
    let dirs = disk.0.dirs.lock().unwrap().clone();
    assert!(dirs.len() == 2 && dirs[0] != path && dirs[1] == path.parent().unwrap(), "{dirs:?}");
}

#[test]
fn a_file_of_another_savepoint_is_none_of_this_though_it_is_as_long() {
    let (root, path) = folder();
    let write = |path: &std::path::Path, pages: [Page; 2]| {
        let mut writer = SavepointWriter::create(path, "q", 9, 1).unwrap();
        writer.begin_state("f", 9, Bytes::new()).unwrap();
        pages.iter().for_each(|page| writer.push(page).unwrap());
        writer.finish().unwrap();
    };
    write(&path, [page(1, 0..3, 9), page(2, 0..4, 9)]);
    let others = [
        ("another range begins", [page(3, 0..3, 9), page(4, 0..4, 9)]),
        ("behind its range", [page(1, 0..4, 9), page(2, 0..3, 9)]),
    ];
    for (told, pages) in others {
        let other = root.path().join(told);
        write(&other, pages);
        fs::copy(other.join("0.state"), path.join("0.state")).unwrap();
        // What is read of it, though the rest is not.
        let read = keys(Savepoint::open(&path, "x").unwrap().pages(0, &(1 << 56..=1 << 56)));
        assert!(read.as_ref().is_err_and(|error| error.to_string().contains(told)), "{read:?}");
    }
}

#[test]
fn what_is_no_savepoint_or_a_newer_one_is_said() {
    let (root, path) = folder();
    write(&path);
    let told = |path: &std::path::Path| Savepoint::open(path, "state_from").unwrap_err().to_string();
    assert!(told(&root.path().join("nowhere")).contains("there is nothing"));
    assert!(told(root.path()).contains("there is deep"));
    assert!(told(&path.join("0.state")).contains("it is no folder"));
    let manifest = path.join(MANIFEST);
    let mut bytes = fs::read(&manifest).unwrap();
    bytes[2] = 7;
    fs::write(&manifest, &bytes).unwrap();
    let newer = Savepoint::open(&path, "x").unwrap_err();
    assert_eq!(newer.condition(), "UNSUPPORTED_VERSION");
    assert!(newer.to_string().contains("version 7"), "{newer}");
}
