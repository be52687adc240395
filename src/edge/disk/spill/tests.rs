use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use super::pages::{PAGE, sealed_len};
use super::{RunFiles, Scratch, SpillDir};
use crate::causal_log::SpillRef;
use crate::edge::disk::segment::testing::{FaultyDisk, epoch};
use crate::error::Error;
use crate::id::{Epoch, EpochKey};
use crate::state::Files;

fn other_epoch() -> EpochKey {
    EpochKey { query: "clicks".into(), epoch: Epoch::Named("nightly".to_owned()) }
}

/// The files of a folder that have no name any more, by what this process has open.
fn unnamed(folder: &Path) -> Vec<fs::File> {
    let all = fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
    let is_one = |entry: &PathBuf| fs::read_link(entry).is_ok_and(|target| target.starts_with(folder));
    // All before the first is opened: else those that are opened here may be among them.
    let found: Vec<PathBuf> = all.filter(is_one).collect();
    let open = |entry| fs::OpenOptions::new().read(true).write(true).open(entry).unwrap();
    found.into_iter().map(open).collect()
}

/// Whether a text stands in a file.
fn stands_in(file: &fs::File, text: &[u8]) -> bool {
    let mut bytes = vec![0; usize::try_from(file.metadata().unwrap().len()).unwrap()];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes.windows(text.len()).any(|part| part == text)
}

#[test]
fn blocks_come_back_until_their_epoch_is_released() {
    for (encrypt, extra) in [(false, 8), (true, 24)] {
        let dir = tempfile::tempdir().unwrap();
        let spill = SpillDir::create(&dir.path().join("spill"), 4 << 20, encrypt).unwrap();
        // The last are more than is encrypted at once.
        let sizes = [3, 0, 100_000, 900_000, 900_000, 5];
        let blocks = sizes.map(|size| (0..size).map(|n| n as u8).collect::<Vec<u8>>().into());
        let places = spill.write(&epoch(), &blocks).unwrap();
        let others = spill.write(&other_epoch(), &blocks[..1]).unwrap();
        let more = spill.write(&epoch(), &blocks[2..3]).unwrap();
        for (place, block) in places.iter().zip(&blocks).chain([(&more[0], &blocks[2])]) {
            assert_eq!((spill.read(place).unwrap(), place.len as usize), (block.clone(), block.len()));
        }
        assert_eq!(spill.used_bytes(), 2_000_011 + 8 * extra);
        spill.release(&epoch());
        assert_eq!(spill.used_bytes(), 3 + extra);
        assert!(matches!(spill.read(&places[0]), Err(Error::Io { .. })));
        assert!(!spill.owns(&places[0]) && spill.owns(&others[0]));
        assert_eq!(spill.read(&others[0]).unwrap(), blocks[0]);
    }
}

const TEXT: &[u8] = b"a text that stands nowhere else";

#[test]
fn what_is_spilled_can_be_read_on_disk_unless_it_is_encrypted() {
    for encrypt in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let spill = Arc::new(SpillDir::create(dir.path(), 1 << 20, encrypt).unwrap());
        spill.write(&epoch(), &[Bytes::from_static(TEXT)]).unwrap();
        let scratch = Scratch::create(&spill).unwrap();
        scratch.append(TEXT).unwrap();
        let files = unnamed(dir.path());
        assert_eq!(files.len(), 2);
        assert!(files.iter().all(|file| stands_in(file, TEXT) != encrypt), "encrypted: {encrypt}");
    }
}

#[test]
fn what_was_changed_on_disk_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let spill = Arc::new(SpillDir::create(dir.path(), 1 << 20, true).unwrap());
    let scratch = Scratch::create(&spill).unwrap();
    scratch.append(&[TEXT; 500].concat()).unwrap();
    let [pages] = <[fs::File; 1]>::try_from(unnamed(dir.path())).unwrap();
    let blocks = [Bytes::from_static(TEXT), Bytes::from(vec![1; TEXT.len()])];
    let places = spill.write(&epoch(), &blocks).unwrap();
    let file = unnamed(dir.path()).into_iter().find(|file| file.metadata().unwrap().len() < 1_000).unwrap();
    let mut sealed = [[0; 24 + TEXT.len()]; 2];
    for (bytes, place) in sealed.iter_mut().zip(&places) {
        file.read_exact_at(bytes, place.pos).unwrap();
    }
    for at in 0..sealed[0].len() {
        let mut changed = sealed[0];
        changed[at] ^= 1;
        file.write_all_at(&changed, places[0].pos).unwrap();
        assert!(matches!(spill.read(&places[0]), Err(Error::CorruptSpill { .. })), "byte {at}");
    }
    // Each in the other's place.
    file.write_all_at(&sealed[1], places[0].pos).unwrap();
    assert!(matches!(spill.read(&places[0]), Err(Error::CorruptSpill { .. })));
    file.write_all_at(&sealed[0], places[0].pos).unwrap();
    assert_eq!(spill.read(&places[0]).unwrap(), TEXT);
    // The second page for the first.
    let (mut page, mut bytes) = ([0; PAGE + 16], [0; 10]);
    pages.read_exact_at(&mut page, PAGE as u64 + 16).unwrap();
    pages.write_all_at(&page, 0).unwrap();
    scratch.read(&mut bytes, PAGE as u64).unwrap();
    assert!(matches!(scratch.read(&mut bytes, 0), Err(Error::CorruptSpill { .. })));
}

#[test]
fn encrypted_bytes_are_read_from_any_place() {
    let dir = tempfile::tempdir().unwrap();
    let disk = FaultyDisk::default();
    let spill = Arc::new(SpillDir::create_on(Arc::new(disk.clone()), dir.path(), 1 << 20, true).unwrap());
    let scratch = Scratch::create(&spill).unwrap();
    let mut all = Vec::new();
    let mut append = |size: usize, kept: bool| {
        let bytes: Vec<u8> = (0..size).map(|n| (n * 31 + size) as u8).collect();
        let (from, end) = (scratch.end(), scratch.end() + size as u64);
        disk.0.leave_space((!kept).then_some(size as u64 / 2));
        assert_eq!(scratch.append(&bytes).is_ok(), kept);
        disk.0.leave_space(None);
        if kept && size % 2 == 1 {
            // Taken back, and written anew.
            scratch.cut(from);
            scratch.append(&bytes).unwrap();
        }
        assert_eq!(scratch.end(), if kept { end } else { from });
        all.extend(bytes.into_iter().filter(|_| kept));
    };
    let sizes = [1, 0, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE + 7, 66 * PAGE, 5, 70 * PAGE - 1];
    sizes.iter().for_each(|size| append(*size, true));
    append(100, false);
    append(10, true);
    let sealed: usize = sizes.iter().chain([&10]).map(|size| sealed_len(*size)).sum();
    assert_eq!(spill.used_bytes(), sealed as u64);
    let mut state = 1_u64;
    for _ in 0..2_000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let from = (state >> 33) as usize % all.len();
        // Mostly little, and now and then more than is read at a time.
        let most = if state >> 62 == 0 { 80 * PAGE } else { 3_000 };
        let len = ((state >> 20) as usize % most).min(all.len() - from);
        let mut bytes = vec![0; len];
        scratch.read(&mut bytes, from as u64).unwrap();
        assert!(bytes == all[from..from + len], "{len} bytes from {from} on");
    }
    assert!(matches!(scratch.read(&mut [0; 2], all.len() as u64 - 1), Err(Error::Io { .. })));
    drop(scratch);
    assert_eq!(spill.used_bytes(), 0);
}

#[test]
fn nothing_has_a_name_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("spill");
    let spill = SpillDir::create(&path, 1 << 20, false).unwrap();
    spill.write(&epoch(), &[Bytes::from_static(b"secret")]).unwrap();
    assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
}

#[test]
fn the_budget_is_kept_and_released_with_epochs() {
    let dir = tempfile::tempdir().unwrap();
    let spill = SpillDir::create(dir.path(), 1000, false).unwrap();
    let block = [Bytes::from(vec![1; 492])];
    spill.write(&epoch(), &block).unwrap();
    spill.write(&other_epoch(), &block).unwrap();
    let over = spill.write(&epoch(), &[Bytes::new()]).unwrap_err();
    assert!(matches!(over, Error::DiskBudget { limit: 1000 }), "{over}");
    assert_eq!(spill.used_bytes(), 1000);
    spill.release(&other_epoch());
    spill.write(&epoch(), &block).unwrap();
}

#[test]
fn a_full_disk_is_named_and_what_was_spilled_stays_readable() {
    let dir = tempfile::tempdir().unwrap();
    let disk = FaultyDisk::default();
    let spill = SpillDir::create_on(Arc::new(disk.clone()), dir.path(), 1 << 20, false).unwrap();
    disk.0.leave_space(Some(50));
    let before = spill.write(&epoch(), &[Bytes::from(vec![2; 30])]).unwrap();
    let full = spill.write(&epoch(), &[Bytes::from(vec![3; 30])]).unwrap_err();
    let Error::DiskFull { path, setting } = &full else { panic!("{full}") };
    assert_eq!((path.as_str(), setting.as_str()), (dir.path().to_str().unwrap(), "spill_dir"));
    assert_eq!(spill.used_bytes(), 38);
    disk.0.leave_space(None);
    let after = spill.write(&epoch(), &[Bytes::from(vec![4; 30])]).unwrap();
    assert_eq!(spill.read(&before[0]).unwrap(), vec![2; 30]);
    assert_eq!(spill.read(&after[0]).unwrap(), vec![4; 30]);
}

#[test]
fn a_reference_that_does_not_fit_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let spill = SpillDir::create(dir.path(), 1000, false).unwrap();
    let place = spill.write(&epoch(), &[Bytes::from_static(b"content")]).unwrap()[0];
    for wrong in [SpillRef { pos: 1, ..place }, SpillRef { len: 3, ..place }] {
        assert!(spill.read(&wrong).is_err());
    }
}

#[test]
fn runs_of_keyed_state_take_from_the_budget_and_give_back() {
    let dir = tempfile::tempdir().unwrap();
    let spill = Arc::new(SpillDir::create(dir.path(), 100, false).unwrap());
    let file = RunFiles::new(Arc::clone(&spill)).create().unwrap();
    assert_eq!((file.append(b"some").unwrap(), file.append(b"more").unwrap()), (0, 4));
    let mut bytes = [0; 4];
    file.read(&mut bytes, 4).unwrap();
    assert_eq!((&bytes, spill.used_bytes()), (b"more", 8));
    assert!(matches!(file.append(&[0; 93]), Err(Error::DiskBudget { limit: 100 })));
    assert!(matches!(file.read(&mut bytes, 5), Err(Error::Io { .. })));
    drop(file);
    assert_eq!(spill.used_bytes(), 0);
}
