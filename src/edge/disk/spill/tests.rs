use std::fs;
use std::sync::Arc;

use bytes::Bytes;

use super::{RunFiles, SpillDir};
use crate::causal_log::SpillRef;
use crate::edge::disk::segment::testing::{FaultyDisk, epoch};
use crate::error::Error;
use crate::id::{Epoch, EpochKey};
use crate::state::Files;

fn other_epoch() -> EpochKey {
    EpochKey { query: "clicks".into(), epoch: Epoch::Named("nightly".to_owned()) }
}

#[test]
fn blocks_come_back_until_their_epoch_is_released() {
    let dir = tempfile::tempdir().unwrap();
    let spill = SpillDir::create(&dir.path().join("spill"), 1 << 20).unwrap();
    let blocks = [Bytes::from_static(b"one"), Bytes::new(), Bytes::from(vec![7; 100_000])];
    let places = spill.write(&epoch(), &blocks).unwrap();
    let others = spill.write(&other_epoch(), &blocks[..1]).unwrap();
    for (place, block) in places.iter().zip(&blocks) {
        assert_eq!((spill.read(place).unwrap(), place.len as usize), (block.clone(), block.len()));
    }
    assert_eq!(spill.used_bytes(), 100_003 + 3 * 8 + 3 + 8);
    spill.release(&epoch());
    assert_eq!(spill.used_bytes(), 3 + 8);
    assert!(matches!(spill.read(&places[0]), Err(Error::Io { .. })));
    assert!(!spill.owns(&places[0]) && spill.owns(&others[0]));
    assert_eq!(spill.read(&others[0]).unwrap(), "one");
}

#[test]
fn nothing_has_a_name_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("spill");
    let spill = SpillDir::create(&path, 1 << 20).unwrap();
    spill.write(&epoch(), &[Bytes::from_static(b"secret")]).unwrap();
    assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
}

#[test]
fn the_budget_is_kept_and_released_with_epochs() {
    let dir = tempfile::tempdir().unwrap();
    let spill = SpillDir::create(dir.path(), 1000).unwrap();
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
    let spill = SpillDir::create_on(Arc::new(disk.clone()), dir.path(), 1 << 20).unwrap();
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
    let spill = SpillDir::create(dir.path(), 1000).unwrap();
    let place = spill.write(&epoch(), &[Bytes::from_static(b"content")]).unwrap()[0];
    for wrong in [SpillRef { pos: 1, ..place }, SpillRef { len: 3, ..place }] {
        assert!(spill.read(&wrong).is_err());
    }
}

#[test]
fn runs_of_keyed_state_take_from_the_budget_and_give_back() {
    let dir = tempfile::tempdir().unwrap();
    let spill = Arc::new(SpillDir::create(dir.path(), 100).unwrap());
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
