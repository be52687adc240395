use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;

use super::store::Folder;
use super::testing::{APP, epoch, faulty_writer, record, task, writer};
use super::{DiskWriter, Pending, SegmentRecord, segment_files};
use crate::edge::disk::recovery::{RecoveredTask, recover};
use crate::error::Error;
use crate::id::{AgentId, Epoch, EpochKey, Generation, LogOffset};

/// The one segment below `root`.
fn only_segment(root: &Path) -> PathBuf {
    let mut files = segment_files(&Folder::at(root)).unwrap();
    assert_eq!(files.len(), 1);
    files.pop().unwrap()
}

/// The recovered log of a partition as one string of bytes.
fn recovered(root: &Path, partition: u32) -> Vec<u8> {
    let found = recover(root).unwrap();
    let wanted = |t: &&RecoveredTask| t.task == task(partition);
    let Some(log) = found.tasks.iter().find(wanted) else { return Vec::new() };
    let read = |block: &crate::causal_log::BlockRef| match &block.place {
        crate::causal_log::Place::Spilled(place, _) => found.files.read(place).unwrap(),
        crate::causal_log::Place::Memory(_) => panic!("recovered blocks are on disk"),
    };
    log.blocks.iter().flat_map(read).collect()
}

fn append(writer: &DiskWriter, partition: u32, generation: u64, offset: u64, block: &[u8]) {
    writer.submit(record(partition, generation, offset, block)).wait().unwrap();
}

#[test]
fn the_writer_can_be_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    fn sent<T: Send>() {}
    shared::<DiskWriter>();
    sent::<Pending>();
}

#[test]
fn what_was_acknowledged_is_read_back_by_reference_and_after_a_restart() {
    let root = tempfile::tempdir().unwrap();
    let writer = writer(root.path());
    let first = writer.submit(record(0, 1, 0, b"one")).wait().unwrap();
    let second = writer.submit(record(0, 1, 3, b"three")).wait().unwrap();
    assert_eq!(writer.read(&first).unwrap(), "one");
    assert_eq!(writer.read(&second).unwrap(), "three");
    assert_eq!(second.len, 5);
    assert!(writer.owns(&first));
    drop(writer);
    assert_eq!(recovered(root.path(), 0), b"onethree");
    let found = &recover(root.path()).unwrap().tasks[0];
    assert_eq!((found.generation, found.app, found.stage), (Generation(1), APP, 3));
    assert_eq!(found.tasks, Some(4));
}

#[test]
fn what_queues_up_during_a_sync_shares_the_next_one() {
    let root = tempfile::tempdir().unwrap();
    let (writer, faults) = faulty_writer(root.path());
    faults.hold_syncs(true);
    let records = (0..100).map(|index| record(index % 4, 1, u64::from(index / 4), b"x"));
    let waiting: Vec<_> = records.map(|record| writer.submit(record)).collect();
    faults.hold_syncs(false);
    for pending in waiting {
        pending.wait().unwrap();
    }
    // One for what the thread had taken when the sync was held, one for all the rest.
    assert!(faults.syncs.load(Ordering::Relaxed) <= 2);
    drop(writer);
    for partition in 0..4 {
        assert_eq!(recovered(root.path(), partition), [b'x'; 25]);
    }
}

#[test]
fn a_log_in_a_file_starts_at_its_start_and_has_no_gap() {
    let root = tempfile::tempdir().unwrap();
    let writer = writer(root.path());
    let gap = writer.submit(record(0, 1, 5, b"late")).wait().unwrap_err();
    assert!(matches!(gap, Error::LogGap { from: LogOffset(5), end: LogOffset(0) }), "{gap}");
    append(&writer, 0, 1, 0, b"abc");
    let gap = writer.submit(record(0, 1, 4, b"late")).wait().unwrap_err();
    assert!(matches!(gap, Error::LogGap { from: LogOffset(4), end: LogOffset(3) }), "{gap}");
}

#[test]
fn an_older_generation_is_refused_and_a_newer_one_may_go_back() {
    let root = tempfile::tempdir().unwrap();
    let writer = writer(root.path());
    append(&writer, 0, 1, 0, b"abc");
    append(&writer, 0, 1, 3, b"old");
    // Written again, as several tasks do that have absorbed one log; what goes on goes on behind it.
    append(&writer, 0, 1, 0, b"abc");
    append(&writer, 0, 1, 6, b"er");
    assert_eq!(recovered(root.path(), 0), b"abcolder");
    append(&writer, 0, 2, 3, b"new");
    let fenced = writer.submit(record(0, 1, 6, b"zombie")).wait().unwrap_err();
    assert!(matches!(fenced, Error::Fenced { newer: Generation(2), .. }), "{fenced}");
    append(&writer, 0, 2, 6, b"er");
    drop(writer);
    assert_eq!(recovered(root.path(), 0), b"abcnewer");
}

/// Fills the disk, makes room, goes on; nothing acknowledged is lost and nothing else is kept.
fn survives_a_full_disk(root: &Path, writer: DiskWriter, make_room: impl FnOnce()) {
    let block = vec![0xAB; 64 << 10];
    let mut kept = 0;
    let full = loop {
        match writer.submit(record(0, 1, kept, &block)).wait() {
            Ok(_) => kept += block.len() as u64,
            Err(error) => break error,
        }
        assert!(kept < 64 << 20, "the disk never fills up");
    };
    let segment = only_segment(root);
    let Error::DiskFull { path, setting } = &full else { panic!("{full}") };
    assert_eq!((path.as_str(), setting.as_str()), (segment.to_str().unwrap(), "checkpoint_dir"));
    assert!(kept > 0);
    // The next block of the log has lost its predecessor; another task's small one still fits.
    let next = writer.submit(record(0, 1, kept + block.len() as u64, b"x")).wait();
    assert!(matches!(next, Err(Error::LogGap { .. })), "{next:?}");
    assert!(recover(root).unwrap().torn.is_empty(), "the failed write was not cut off");
    make_room();
    append(&writer, 0, 1, kept, &block);
    drop(writer);
    assert_eq!(recovered(root, 0).len() as u64, kept + block.len() as u64);
    assert!(recovered(root, 0).iter().all(|byte| *byte == 0xAB));
}

#[test]
fn a_full_disk_is_named_and_survived() {
    let root = tempfile::tempdir().unwrap();
    let (writer, faults) = faulty_writer(root.path());
    faults.leave_space(Some(300_000));
    survives_a_full_disk(root.path(), writer, || faults.leave_space(None));
}

/// Unmounts a file system, also when the test fails.
struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _already_failing = Command::new("umount").arg(self.0).status();
    }
}

#[test]
fn a_really_full_file_system_is_named_and_survived() {
    let dir = tempfile::tempdir().unwrap();
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"]).arg(dir.path());
    if !mount.output().is_ok_and(|done| done.status.success()) {
        // Only root may mount; others write to a file system that pretends.
        let (writer, faults) = faulty_writer(dir.path());
        faults.leave_space(Some(700_001));
        return survives_a_full_disk(dir.path(), writer, || faults.leave_space(None));
    }
    let mounted = Mounted(dir.path());
    let (filler, root) = (mounted.0.join("filler"), mounted.0.join("checkpoints"));
    fs::write(&filler, vec![1; 256 << 10]).unwrap();
    let writer = writer(&root);
    survives_a_full_disk(&root, writer, || fs::remove_file(filler).unwrap());
}

#[test]
fn a_failed_sync_poisons_the_writer_for_good() {
    let root = tempfile::tempdir().unwrap();
    let (writer, faults) = faulty_writer(root.path());
    let before = writer.submit(record(0, 1, 0, b"safe")).wait().unwrap();
    faults.fail_syncs(true);
    let failed = writer.submit(record(0, 1, 4, b"lost")).wait().unwrap_err();
    assert!(matches!(&failed, Error::Poisoned { what } if what.contains(".seg")), "{failed}");
    faults.fail_syncs(false);
    for other in [record(0, 1, 4, b"lost"), record(1, 1, 0, b"another task")] {
        let refused = writer.submit(other).wait().unwrap_err();
        assert!(matches!(refused, Error::Poisoned { .. }), "{refused}");
    }
    assert!(writer.has_failed(), "whoever runs it can see that it is of no use");
    assert_eq!(writer.read(&before).unwrap(), "safe");
    assert_eq!(faults.syncs.load(Ordering::Relaxed), 1, "a failed sync must not be repeated");
}

#[test]
fn a_failed_write_that_cannot_be_cut_off_poisons_the_writer() {
    let root = tempfile::tempdir().unwrap();
    let (writer, faults) = faulty_writer(root.path());
    append(&writer, 0, 1, 0, b"safe");
    faults.leave_space(Some(20));
    faults.fail_cuts();
    let full = writer.submit(record(0, 1, 4, b"half written")).wait().unwrap_err();
    assert!(matches!(full, Error::DiskFull { .. }), "{full}");
    faults.leave_space(None);
    let refused = writer.submit(record(0, 1, 4, b"behind it")).wait().unwrap_err();
    assert!(matches!(refused, Error::Poisoned { .. }), "{refused}");
    drop(writer);
    assert_eq!(recovered(root.path(), 0), b"safe");
}

#[test]
fn dropping_an_epoch_removes_its_file_and_empty_folders() {
    let root = tempfile::tempdir().unwrap();
    let writer = writer(root.path());
    let place = writer.submit(record(0, 1, 0, b"x")).wait().unwrap();
    writer.drop_epoch(&EpochKey { query: "clicks".into(), epoch: Epoch::Batch(8) }).unwrap();
    assert_eq!(segment_files(&Folder::at(root.path())).unwrap().len(), 1);
    writer.drop_epoch(&epoch()).unwrap();
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    assert!(!writer.owns(&place));
    let gone = writer.read(&place).unwrap_err();
    assert!(matches!(&gone, Error::Io { message, .. } if message.contains("dropped")), "{gone}");
    // A late attempt starts over; it can't leave half a log.
    let late = writer.submit(record(0, 1, 1, b"y")).wait().unwrap_err();
    assert!(matches!(late, Error::LogGap { .. }), "{late}");
}

#[test]
fn what_waited_in_the_queue_until_its_epoch_was_committed_is_not_the_next_uses() {
    let root = tempfile::tempdir().unwrap();
    let writer = writer(root.path());
    append(&writer, 0, 1, 0, b"x");
    writer.over(&epoch(), Generation(2));
    writer.drop_epoch(&epoch()).unwrap();
    let late = writer.submit(record(1, 1, 0, b"y")).wait().unwrap_err();
    assert!(matches!(late, Error::Fenced { newer: Generation(2), .. }), "{late}");
    assert!(segment_files(&Folder::at(root.path())).unwrap().is_empty());
    writer.submit(record(1, 2, 0, b"z")).wait().unwrap();
    assert_eq!(recovered(root.path(), 1), b"z");
}

#[test]
fn only_the_driver_removes_the_files_of_others() {
    let root = tempfile::tempdir().unwrap();
    let (dead, mine) = (DiskWriter::start(root.path(), AgentId(9), 99).unwrap(), writer(root.path()));
    append(&dead, 0, 1, 0, b"x");
    append(&mine, 0, 2, 0, b"x");
    mine.drop_epoch(&epoch()).unwrap();
    assert_eq!(segment_files(&Folder::at(root.path())).unwrap().len(), 1);
    mine.drop_epoch_all(&epoch(), 0).unwrap();
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
}

#[test]
fn epochs_of_any_name_get_folders_of_their_own() {
    let root = tempfile::tempdir().unwrap();
    let writer = writer(root.path());
    let long = "n".repeat(5000);
    let names = ["../../up", "a/b", "", "nül\0", &long, "a_b"];
    for name in names {
        let plain = record(0, 1, 0, name.as_bytes());
        let mut task = plain.task;
        task.epoch = Epoch::Named(name.to_owned());
        writer.submit(SegmentRecord { task, ..plain }).wait().unwrap();
    }
    assert_eq!(segment_files(&Folder::at(root.path())).unwrap().len(), names.len());
    let found = recover(root.path()).unwrap();
    let mut epochs: Vec<_> = found.tasks.into_iter().map(|t| t.task.epoch.to_string()).collect();
    let mut wanted = names.map(str::to_owned);
    epochs.sort();
    wanted.sort();
    assert_eq!(epochs, wanted);
}

#[test]
fn a_changed_byte_is_noticed_when_one_block_is_read() {
    let root = tempfile::tempdir().unwrap();
    let writer = writer(root.path());
    let place = writer.submit(record(0, 1, 0, b"content")).wait().unwrap();
    let segment = only_segment(root.path());
    let whole = fs::read(&segment).unwrap();
    for index in usize::try_from(place.pos).unwrap()..whole.len() {
        let mut damaged = whole.clone();
        damaged[index] ^= 0x10;
        fs::write(&segment, damaged).unwrap();
        let error = writer.read(&place).unwrap_err();
        assert!(matches!(error, Error::CorruptSegment { offset, .. } if offset == place.pos));
    }
}

#[test]
fn dropping_the_writer_finishes_what_is_queued() {
    let root = tempfile::tempdir().unwrap();
    let writer = writer(root.path());
    let waiting: Vec<_> = (0..50).map(|at| writer.submit(record(0, 1, at, b"x"))).collect();
    drop(writer);
    assert_eq!(recovered(root.path(), 0), [b'x'; 50]);
    assert!(waiting.into_iter().all(|pending| pending.wait().is_ok()));
}
