mod interleavings;
mod taking_over;

use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::super::rubbish::{RUBBISH_AGE, prune};
use super::super::store::{Folder, Store};
use super::super::testing::{APP, FaultyDisk, faulty_writer, record, writer};
use super::super::{DiskWriter, FileSystem, RawFile, RealDisk, SegmentRecord, segment_files};
use super::*;
use crate::edge::disk::recovery::recover_claimed;
use crate::id::{AgentId, Epoch, Generation, Partition, TaskId};

fn named(name: &str) -> EpochKey {
    EpochKey { query: "batch".into(), epoch: Epoch::Named(name.to_owned()) }
}

fn of(key: &EpochKey, offset: u64, block: &[u8]) -> SegmentRecord {
    let plain = record(0, 1, offset, block);
    let task = TaskId { query: key.query.clone(), epoch: key.epoch.clone(), ..plain.task };
    SegmentRecord { task, ..plain }
}

/// The one segment of an epoch.
fn epoch_file(root: &Path, key: &EpochKey) -> PathBuf {
    let store = Folder::at(root);
    let used = newest(&store, key).unwrap().unwrap().used;
    let mut files = layout::epoch_files(&store, key, used).unwrap();
    assert_eq!(files.len(), 1);
    files.pop().unwrap()
}

/// A folder whose disk fails when told to.
fn on(disk: &FaultyDisk, root: &Path) -> Folder {
    Folder::on(Arc::new(disk.clone()), root).unwrap()
}

/// Bytes of logs that whoever claims the epoch finds.
fn found(root: &Path, key: &EpochKey, claim: Claim) -> u64 {
    let found = recover_claimed(&(Arc::new(Folder::at(root)) as Arc<dyn Store>), key, claim.used).unwrap();
    found.tasks.iter().flat_map(|task| &task.blocks).map(|block| block.bytes()).sum()
}

/// An application that has attached, with its writer.
fn attached(root: &Path, app: &str) -> (u64, DiskWriter) {
    std::fs::create_dir_all(root).unwrap();
    let incarnation = attach(&Folder::at(root), app).unwrap();
    let writer = DiskWriter::start(root, AgentId(100 + incarnation), APP + incarnation).unwrap();
    writer.own(incarnation);
    (incarnation, writer)
}

fn claimed(root: &Path, key: &EpochKey, incarnation: u64) -> Claim {
    take(&Folder::at(root), key, incarnation, ("app", APP + incarnation)).unwrap()
}

#[test]
fn each_application_has_a_higher_incarnation_than_those_before() {
    let root = tempfile::tempdir().unwrap();
    let drawn: Vec<u64> = (0..3).map(|_| attach(&Folder::at(root.path()), "app").unwrap()).collect();
    assert_eq!(drawn, [1, 2, 3]);
    assert_eq!(Folder::at(root.path()).entries(root.path()).unwrap().len(), 1);
}

/// What happens, once, before a file is made with this in its name, or removed.
type Happening = (&'static str, Box<dyn FnOnce() + Send>);

/// A disk on which things happen, one after the other.
struct Before(Mutex<Vec<Happening>>);

impl Before {
    fn happens(&self, path: &Path) {
        let mut left = self.0.lock().unwrap();
        let is_it = left.first().is_some_and(|(name, _)| path.to_str().unwrap().contains(name));
        let next = is_it.then(|| left.remove(0));
        drop(left);
        next.into_iter().for_each(|(_, happens)| happens());
    }
}

impl FileSystem for Before {
    fn create(&self, path: &Path, mode: u32) -> io::Result<Arc<dyn RawFile>> {
        self.happens(path);
        RealDisk.create(path, mode)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.happens(path);
        RealDisk.remove(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        RealDisk.sync_dir(dir)
    }
}

fn before(root: &Path, happens: Vec<Happening>) -> Folder {
    Folder::on(Arc::new(Before(Mutex::new(happens))), root).unwrap()
}

fn late(root: &Path, happens: impl FnOnce() + Send + 'static) -> Folder {
    before(root, vec![("", Box::new(happens))])
}

#[test]
fn whoever_was_slow_to_attach_does_not_share_a_number_with_one_who_came_between() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().to_owned();
    let between = move || {
        let drawn: Vec<u64> = (0..2).map(|_| attach(&Folder::at(&path), "app").unwrap()).collect();
        assert_eq!(drawn, [1, 2]);
    };
    assert_eq!(attach(&late(root.path(), between), "app").unwrap(), 3);
    assert_eq!(Folder::at(root.path()).entries(root.path()).unwrap().len(), 1);
}

#[test]
fn whoever_was_slow_to_claim_does_not_bring_back_what_was_committed_between() {
    let root = tempfile::tempdir().unwrap();
    let key = named("daily");
    let (first, _) = attached(root.path(), "app-1");
    let used = claimed(root.path(), &key, first).used;
    let (slow, _) = attached(root.path(), "app-2");
    let (fast, _) = attached(root.path(), "app-3");
    let (path, of) = (root.path().to_owned(), key.clone());
    let between = move || {
        let claim = claimed(&path, &of, fast);
        assert_eq!(claim.used, used);
        give_up(&Folder::at(&path), &of, claim).unwrap();
    };
    let claim = take(&late(root.path(), between), &key, slow, ("app", APP + slow)).unwrap();
    assert_ne!(claim.used, used);
    assert_eq!(newest(&Folder::at(root.path()), &key).unwrap(), Some(claim));
}

#[test]
fn who_gives_way_to_a_newer_application_leaves_no_claim() {
    let root = tempfile::tempdir().unwrap();
    let key = named("daily");
    let ((slow, _), (fast, _)) = (attached(root.path(), "app-1"), attached(root.path(), "app-2"));
    let (path, of) = (root.path().to_owned(), key.clone());
    let between = move || {
        claimed(&path, &of, fast);
    };
    take(&late(root.path(), between), &key, slow, ("app", APP + slow)).unwrap_err();
    let left = Claims::find(&Folder::at(root.path()), &key).unwrap().all;
    assert_eq!(left.iter().map(|claim| claim.incarnation).collect::<Vec<_>>(), [fast]);
}

#[test]
fn what_was_taken_over_while_it_was_committed_is_not_committed() {
    let root = tempfile::tempdir().unwrap();
    let key = named("daily");
    let ((first, writer), (second, _)) = (attached(root.path(), "app-1"), attached(root.path(), "app-2"));
    let claim = claimed(root.path(), &key, first);
    writer.submit(of(&key, 0, b"answered")).wait().unwrap();
    let (path, of) = (root.path().to_owned(), key.clone());
    let between = move || {
        claimed(&path, &of, second);
    };
    let told = give_up(&late(root.path(), between), &key, claim).unwrap_err().to_string();
    assert!(told.contains("was taken over by application"), "{told}");
    let theirs = newest(&Folder::at(root.path()), &key).unwrap().unwrap();
    assert_eq!((theirs.incarnation, theirs.used), (second, claim.used));
    assert_eq!(found(root.path(), &key, theirs), 8);
}

#[test]
fn a_commit_that_is_made_again_gives_up_no_other_use() {
    let root = tempfile::tempdir().unwrap();
    let key = named("daily");
    let ((older, _), (newer, _)) = (attached(root.path(), "app-1"), attached(root.path(), "app-2"));
    let claim = claimed(root.path(), &key, newer);
    give_up(&Folder::at(root.path()), &key, claim).unwrap();
    let theirs = claimed(root.path(), &key, older);
    give_up(&Folder::at(root.path()), &key, claim).unwrap();
    assert_eq!(newest(&Folder::at(root.path()), &key).unwrap(), Some(theirs));
}

#[test]
fn who_claims_later_finds_what_was_acknowledged_before_and_the_other_is_told() {
    let root = tempfile::tempdir().unwrap();
    let (key, other) = (named("daily"), named("hourly"));
    let (old, first) = attached(root.path(), "app-1");
    let before = claimed(root.path(), &key, old);
    claimed(root.path(), &other, old);
    first.submit(of(&key, 0, b"abc")).wait().unwrap();
    first.submit(of(&other, 0, b"abc")).wait().unwrap();

    let (new, second) = attached(root.path(), "app-2");
    let claim = take(&Folder::at(root.path()), &key, new, ("app-2", APP + new)).unwrap();
    assert_eq!((claim.used, claim.incarnation), (before.used, new));
    assert_eq!(found(root.path(), &key, claim), 3);

    let told = first.submit(of(&key, 3, b"d")).wait().unwrap_err();
    let Error::Config { setting, reason } = &told else { panic!("{told}") };
    assert!(setting == "checkpoint_dir" && reason.contains("app-2"), "{told}");
    assert!(take(&Folder::at(root.path()), &key, old, ("app-1", APP + old)).is_err());
    // It removes nothing of what is another's now.
    assert!(give_up(&Folder::at(root.path()), &key, before).is_err());
    assert!(first.drop_epoch(&key).is_err());
    assert!(first.drop_epoch_all(&key, before.used).is_err());
    assert_eq!(newest(&Folder::at(root.path()), &key).unwrap(), Some(claim));
    assert!(found(root.path(), &key, claim) >= 3);

    // What nobody took goes on, and so does who took.
    first.submit(of(&other, 3, b"d")).wait().unwrap();
    second.submit(of(&key, 0, b"abc")).wait().unwrap();
}

#[test]
fn an_older_claim_that_stays_keeps_the_epoch_from_being_claimed_anew() {
    let root = tempfile::tempdir().unwrap();
    let key = named("daily");
    let (old, first) = attached(root.path(), "app-1");
    claimed(root.path(), &key, old);
    first.submit(of(&key, 0, b"abc")).wait().unwrap();
    let (new, _second) = attached(root.path(), "app-2");
    let disk = FaultyDisk::default();
    disk.0.fail_removes(true);
    for _ in 0..2 {
        // Its writer finds its claim, and would go on.
        assert!(take(&on(&disk, root.path()), &key, new, ("app-2", APP + new)).is_err());
    }
    disk.0.fail_removes(false);
    let claim = take(&on(&disk, root.path()), &key, new, ("app-2", APP + new)).unwrap();
    assert_eq!(Claims::find(&Folder::at(root.path()), &key).unwrap().all, [claim]);
    assert!(first.submit(of(&key, 3, b"d")).wait().is_err());
}

#[test]
fn a_late_writer_brings_no_committed_name_back() {
    let root = tempfile::tempdir().unwrap();
    let key = named("daily");
    let (incarnation, writer) = attached(root.path(), "app");
    let late = DiskWriter::start(root.path(), AgentId(7), APP).unwrap();
    late.own(incarnation);
    let claim = claimed(root.path(), &key, incarnation);
    late.submit(of(&key, 0, b"abc")).wait().unwrap();
    give_up(&Folder::at(root.path()), &key, claim).unwrap();
    writer.drop_epoch_all(&key, claim.used).unwrap();
    // Its file is gone, but open; and another has none yet.
    for (writer, offset) in [(&late, 3), (&writer, 0)] {
        let refused = writer.submit(of(&key, offset, b"d")).wait().unwrap_err();
        assert!(matches!(refused, Error::Fenced { newer: Generation::NONE, .. }), "{refused}");
    }
    // What it wrote when it died before it looked.
    let path = layout::segment_path(root.path(), (AgentId(7), APP, None), claim.used, &key);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, b"whatever").unwrap();
    assert_eq!(newest(&Folder::at(root.path()), &key).unwrap(), None);
    let again = claimed(root.path(), &key, incarnation);
    assert_ne!(again.used, claim.used, "a name used again is another epoch");
    assert_eq!(found(root.path(), &key, again), 0);
}

#[test]
fn who_has_not_heard_of_a_commit_writes_nothing_into_the_next_use_of_the_name() {
    let root = tempfile::tempdir().unwrap();
    let key = named("daily");
    let (incarnation, writer) = attached(root.path(), "app");
    let paused = DiskWriter::start(root.path(), AgentId(7), APP + incarnation).unwrap();
    paused.own(incarnation);
    let claim = claimed(root.path(), &key, incarnation);
    // One has a file by then, the other was granted its task and has written nothing.
    writer.submit_of(of(&key, 0, b"abc"), claim.used).wait().unwrap();
    give_up(&Folder::at(root.path()), &key, claim).unwrap();
    let again = claimed(root.path(), &key, incarnation);
    for (writer, offset) in [(&paused, 0), (&writer, 3)] {
        let refused = writer.submit_of(of(&key, offset, b"late"), claim.used).wait().unwrap_err();
        assert!(matches!(refused, Error::Fenced { newer: Generation::NONE, .. }), "{refused}");
    }
    assert_eq!(found(root.path(), &key, again), 0);
    // Nor does what they have keep them from what they are granted now; whatever comes late beside it.
    for (writer, partition) in [(&paused, 1), (&writer, 2)] {
        let record = |offset, block| {
            let record = of(&key, offset, block);
            SegmentRecord { task: TaskId { partition: Partition(partition), ..record.task }, ..record }
        };
        let late = writer.submit_of(record(0, b"late"), claim.used);
        writer.submit_of(record(0, b"new"), again.used).wait().unwrap();
        assert!(matches!(late.wait(), Err(Error::Fenced { .. })));
        assert!(writer.submit_of(record(3, b"late"), claim.used).wait().is_err());
    }
    assert_eq!(found(root.path(), &key, again), 6);
}

#[test]
fn a_commit_that_cannot_be_made_durable_is_an_error_and_can_be_made_again() {
    let root = tempfile::tempdir().unwrap();
    let key = named("daily");
    let (incarnation, writer) = attached(root.path(), "app");
    let claim = claimed(root.path(), &key, incarnation);
    writer.submit(of(&key, 0, b"abc")).wait().unwrap();
    let disk = FaultyDisk::default();
    disk.0.fail_removes(true);
    assert!(give_up(&on(&disk, root.path()), &key, claim).is_err());
    assert_eq!(newest(&Folder::at(root.path()), &key).unwrap(), Some(claim));
    assert_eq!(found(root.path(), &key, claim), 3);
    disk.0.fail_removes(false);
    disk.0.fail_dir_syncs(true);
    let unsure = give_up(&on(&disk, root.path()), &key, claim).unwrap_err();
    assert!(unsure.to_string().contains("checkpoint_dir"), "{unsure}");
    disk.0.fail_dir_syncs(false);
    give_up(&on(&disk, root.path()), &key, claim).unwrap();
    assert_eq!(*disk.0.dirs.lock().unwrap(), [layout::claim_dir(root.path(), &key)]);
}

#[test]
fn folders_are_synced_when_something_was_removed_from_them() {
    let root = tempfile::tempdir().unwrap();
    let (writer, faults) = faulty_writer(root.path());
    writer.submit(record(0, 1, 0, b"x")).wait().unwrap();
    faults.dirs.lock().unwrap().clear();
    writer.drop_epoch(&record(0, 1, 0, b"x").task.epoch_key()).unwrap();
    assert_eq!(*faults.dirs.lock().unwrap(), [root.path()]);
    writer.submit(record(0, 1, 0, b"x")).wait().unwrap();
    faults.fail_removes(true);
    assert!(writer.drop_epoch_all(&record(0, 1, 0, b"x").task.epoch_key(), 0).is_err());
    assert_eq!(faults.syncs.load(Ordering::Relaxed), 2);
    assert_eq!(segment_files(&Folder::at(root.path())).unwrap().len(), 1);
}

#[test]
fn batches_of_a_query_and_executions_are_claimed_together() {
    let root = tempfile::tempdir().unwrap();
    let batch = |number| EpochKey { query: "clicks".into(), epoch: Epoch::Batch(number) };
    let (incarnation, writer) = attached(root.path(), "app");
    let claim = claimed(root.path(), &batch(1), incarnation);
    for number in 1..=3 {
        writer.submit(of(&batch(number), 0, b"abc")).wait().unwrap();
    }
    assert_eq!(claimed(root.path(), &batch(9), incarnation), claim);
    assert_eq!(found(root.path(), &batch(9), claim), 9);
}

#[test]
fn what_is_written_behind_a_takeover_counts_for_nobody() {
    let root = tempfile::tempdir().unwrap();
    let key = named("daily");
    let (old, first) = attached(root.path(), "app-1");
    claimed(root.path(), &key, old);
    first.submit(of(&key, 0, b"abc")).wait().unwrap();
    let (new, second) = attached(root.path(), "app-2");
    let claim = claimed(root.path(), &key, new);
    assert_eq!(found(root.path(), &key, claim), 3);
    // The first has not noticed. It is told when it has written, not before.
    first.submit(of(&key, 3, b"late")).wait().unwrap_err();
    let other = |offset, block| {
        let record = of(&key, offset, block);
        SegmentRecord { task: TaskId { partition: Partition(7), ..record.task }, ..record }
    };
    second.submit(other(0, b"defg")).wait().unwrap();
    first.submit(other(0, b"late, too")).wait().unwrap_err();
    // As if it had just been about to create a file when the epoch was taken over.
    let path = |agent| layout::segment_path(root.path(), (agent, APP + old, None), claim.used, &key);
    std::fs::copy(path(AgentId(100 + old)), path(AgentId(99))).unwrap();
    assert_eq!(found(root.path(), &key, claim), 3 + 4);
    for _ in 0..2 {
        let (third, _writer) = attached(root.path(), "app-3");
        let claim = claimed(root.path(), &key, third);
        assert_eq!(found(root.path(), &key, claim), 3 + 4, "also for who comes later");
        let beside = Folder::at(root.path()).entries(&layout::claim_dir(root.path(), &key)).unwrap();
        let mut left: Vec<_> =
            beside.into_iter().map(|entry| entry.path).filter(|path| seal::is_seal(path)).collect();
        left.sort_unstable();
        let names = ["seal", "sure"].map(|ending| std::ffi::OsString::from(claim.name(ending)));
        assert!(left.iter().map(|path| path.file_name().unwrap().to_owned()).eq(names), "{left:?}");
    }
}

#[test]
fn what_has_counted_once_counts_for_whoever_comes_third_also_if_it_is_damaged() {
    let root = tempfile::tempdir().unwrap();
    let key = named("daily");
    let (first, writer) = attached(root.path(), "app-1");
    claimed(root.path(), &key, first);
    writer.submit(of(&key, 0, b"abc")).wait().unwrap();
    writer.submit(of(&key, 3, b"d")).wait().unwrap();
    let file = epoch_file(root.path(), &key);
    let (second, _) = attached(root.path(), "app-2");
    claimed(root.path(), &key, second);
    let mut damaged = std::fs::read(&file).unwrap();
    *damaged.last_mut().unwrap() ^= 1;
    std::fs::write(&file, damaged).unwrap();
    let (third, _) = attached(root.path(), "app-3");
    let claim = claimed(root.path(), &key, third);
    let store: Arc<dyn Store> = Arc::new(Folder::at(root.path()));
    let error = recover_claimed(&store, &key, claim.used).unwrap_err();
    assert!(matches!(error, Error::CorruptSegment { .. }), "{error}");
}

#[test]
fn a_seal_that_is_torn_is_made_again() {
    let root = tempfile::tempdir().unwrap();
    let key = named("daily");
    let (old, first) = attached(root.path(), "app-1");
    claimed(root.path(), &key, old);
    first.submit(of(&key, 0, b"abc")).wait().unwrap();
    let (new, _second) = attached(root.path(), "app-2");
    let claim = claimed(root.path(), &key, new);
    let torn = layout::claim_dir(root.path(), &key).join(claim.name("seal"));
    std::fs::write(&torn, "{\"app\":1,").unwrap();
    first.submit(of(&key, 3, b"late")).wait().unwrap_err();
    // Whoever made it has opened no task, so that what came meanwhile may count.
    assert_eq!(claimed(root.path(), &key, new), claim);
    assert_eq!(found(root.path(), &key, claim), 3 + 4);
}

#[test]
fn a_host_that_sees_another_folder_than_the_driver_is_told() {
    let (root, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (incarnation, _) = attached(root.path(), "app");
    claimed(root.path(), &named("daily"), incarnation);
    let strange = DiskWriter::start(elsewhere.path(), AgentId(7), APP).unwrap();
    strange.own(incarnation);
    let told = strange.submit(of(&named("daily"), 0, b"abc")).wait().unwrap_err();
    assert!(matches!(&told, Error::Config { setting, .. } if setting == "checkpoint_dir"), "{told}");
}

#[test]
fn what_nobody_will_ask_for_goes_once_it_is_old() {
    let root = tempfile::tempdir().unwrap();
    let (incarnation, writer) = attached(root.path(), "app");
    let execution = EpochKey { query: "app:app".into(), epoch: Epoch::Named("sql-4".into()) };
    let stream = EpochKey { query: "clicks".into(), epoch: Epoch::Batch(4) };
    let committed = named("hourly");
    let kept = [named("daily"), stream];
    for key in [&execution, &committed].into_iter().chain(&kept) {
        claimed(root.path(), key, incarnation);
        writer.submit(of(key, 0, b"abc")).wait().unwrap();
    }
    let claim = claimed(root.path(), &committed, incarnation);
    give_up(&Folder::at(root.path()), &committed, claim).unwrap();
    assert_eq!(prune(&Folder::at(root.path()), RUBBISH_AGE).unwrap(), 0, "it may be written just now");
    assert_eq!(segment_files(&Folder::at(root.path())).unwrap().len(), 4);
    assert_eq!(prune(&Folder::at(root.path()), Duration::ZERO).unwrap(), 4);
    assert_eq!(segment_files(&Folder::at(root.path())).unwrap().len(), 2);
    for key in &kept {
        let claim = newest(&Folder::at(root.path()), key).unwrap().unwrap();
        assert_eq!(found(root.path(), key, claim), 3);
    }
}

#[test]
fn a_writer_without_an_owner_needs_no_claim() {
    let root = tempfile::tempdir().unwrap();
    writer(root.path()).submit(of(&named("daily"), 0, b"abc")).wait().unwrap();
}
