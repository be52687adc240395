//! Epochs in a folder and in an object store are listed and dropped alike.

use std::sync::OnceLock;
use std::time::Duration;

use super::*;
use crate::edge::disk::inspection::Inspection;
use crate::edge::disk::segment::claim::{self, Claim};
use crate::edge::disk::segment::store::{Folder, faulty};
use crate::edge::disk::segment::testing::{APP, record};
use crate::edge::disk::segment::{DiskWriter, FileSystem, RawFile, RealDisk, SegmentRecord};
use crate::id::{AgentId, Epoch, EpochKey, TaskId};

fn of(key: &EpochKey, offset: u64, block: &[u8]) -> SegmentRecord {
    let plain = record(0, 1, offset, block);
    let task = TaskId { query: key.query.clone(), epoch: key.epoch.clone(), ..plain.task };
    SegmentRecord { task, ..plain }
}

fn named(name: &str) -> EpochKey {
    EpochKey { query: "batch".into(), epoch: Epoch::Named(name.to_owned()) }
}

fn batch(number: u64) -> EpochKey {
    EpochKey { query: "clicks".into(), epoch: Epoch::Batch(number) }
}

/// An application that has written two blocks in each of these epochs, one after the other.
fn written(store: &Arc<dyn Store>, keys: &[EpochKey]) -> (u64, Vec<Claim>) {
    let incarnation = claim::attach(store.as_ref(), "app").unwrap();
    let writer = DiskWriter::start_on(Arc::clone(store), (AgentId(7), APP), Duration::ZERO).unwrap();
    writer.own(incarnation);
    let claims = keys.iter().map(|key| {
        let claim = claim::take(store.as_ref(), key, incarnation, ("app", APP)).unwrap();
        for (offset, block) in [(0, b"ab"), (2, b"cd")] {
            writer.submit(of(key, offset, block)).wait().unwrap();
        }
        claim
    });
    (incarnation, claims.collect())
}

fn both(test: impl Fn(&Arc<dyn Store>)) {
    let folder = tempfile::tempdir().unwrap();
    test(&(Arc::new(Folder::open(folder.path()).unwrap()) as Arc<dyn Store>));
    test(&(faulty().0 as Arc<dyn Store>));
}

fn epochs(store: &Arc<dyn Store>) -> Epochs {
    Epochs { store: Arc::clone(store), seen: Mutex::default() }
}

fn listed(store: &Arc<dyn Store>) -> Vec<EpochFiles> {
    epochs(store).list().unwrap()
}

fn dropped(store: &Arc<dyn Store>, name: &str) {
    let found = listed(store).into_iter().find(|epoch| epoch.name == name).unwrap();
    epochs(store).drop_epoch(&found.folder).unwrap();
}

#[test]
fn an_epoch_is_listed_as_its_segments_say_and_its_claim_goes_with_it() {
    both(|store| {
        let keys = [named("daily"), named("weekly")];
        let (incarnation, claims) = written(store, &keys);
        let found = listed(store);
        let names: BTreeSet<&str> = found.iter().map(|epoch| &*epoch.name).collect();
        assert_eq!(names, BTreeSet::from(["batch/daily", "batch/weekly"]));
        let inspected = Inspection::over(Arc::clone(store), "path");
        assert_eq!(inspected.segments.len(), 2);
        for (epoch, segment) in found.iter().zip(&inspected.segments) {
            let report = inspected.segment(segment).unwrap();
            assert_eq!((report.bytes, report.records, report.torn_at), (epoch.bytes, 2, None));
            assert_eq!((report.tasks[0].blocks, report.tasks[0].bytes), (2, 4));
            assert_eq!(epoch.files, if store.numbers_segments() { 2 } else { 1 });
            assert_eq!(epoch.applications, BTreeSet::from([format!("{APP:016x}")]));
            assert!(epoch.written_ms > 1_700_000_000_000);
        }
        dropped(store, "batch/daily");
        assert_eq!(listed(store).len(), 1);
        assert_eq!(claim::newest(store.as_ref(), &keys[0]).unwrap(), None);
        assert_eq!(claim::newest(store.as_ref(), &keys[1]).unwrap(), Some(claims[1]));
        // Whoever comes next begins anew.
        let next = claim::take(store.as_ref(), &keys[0], incarnation + 1, ("next", 1)).unwrap();
        assert_ne!(next.used, claims[0].used);
    });
}

#[test]
fn the_claim_of_a_query_goes_with_the_last_of_its_epochs() {
    both(|store| {
        let keys = [batch(7), batch(8)];
        let (_, claims) = written(store, &keys);
        assert_eq!(claims[0], claims[1]);
        dropped(store, "clicks/7");
        assert_eq!(claim::newest(store.as_ref(), &keys[0]).unwrap(), Some(claims[0]));
        dropped(store, "clicks/8");
        assert_eq!(claim::newest(store.as_ref(), &keys[0]).unwrap(), None);
        assert!(folders_in(store.as_ref(), store.root()).unwrap().is_empty() || store.numbers_segments());
        // Keyed state is nobody's to take over without a claim.
        let (_, claims) = written(store, &keys[..1]);
        let query = listed(store)[0].folder.parent().unwrap().to_owned();
        store.create(&query.join("state").join("0").join("x.begun"), b"").unwrap();
        dropped(store, "clicks/7");
        assert!(listed(store).is_empty());
        assert_eq!(claim::newest(store.as_ref(), &keys[0]).unwrap(), Some(claims[0]));
    });
}

#[test]
fn a_damaged_epoch_is_listed_and_nothing_but_an_epoch_is_dropped() {
    both(|store| {
        written(store, &[named("daily")]);
        let found = listed(store);
        let epochs = epochs(store);
        for other in [store.root(), found[0].folder.parent().unwrap(), Path::new("/elsewhere")] {
            assert_eq!(epochs.drop_epoch(other).unwrap_err().condition(), "MISUSE");
        }
        let segment = &Inspection::over(Arc::clone(store), "path").segments[0];
        match store.numbers_segments() {
            // Nothing says whose it is.
            true => store.remove(&segment.join("00000000")).unwrap(),
            false => std::fs::write(segment, b"no segment").unwrap(),
        }
        let named = listed(store);
        assert!(named[0].name.ends_with(&*found[0].folder.file_name().unwrap().to_string_lossy()));
        epochs.drop_epoch(&named[0].folder).unwrap();
        assert!(listed(store).is_empty());
    });
}

/// A file system on which an application claims an epoch just before the first claim is removed.
struct Crossing {
    root: PathBuf,
    claimed: OnceLock<Claim>,
}

impl FileSystem for Crossing {
    fn create(&self, path: &Path, mode: u32) -> io::Result<Arc<dyn RawFile>> {
        RealDisk.create(path, mode)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.claimed.get_or_init(|| {
            let store = Folder::at(&self.root);
            let incarnation = claim::attach(&store, "late").unwrap();
            claim::take(&store, &named("daily"), incarnation, ("late", 1)).unwrap()
        });
        RealDisk.remove(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        RealDisk.sync_dir(dir)
    }
}

#[test]
fn an_epoch_that_is_claimed_while_it_is_dropped_stays_with_whoever_has_it() {
    let folder = tempfile::tempdir().unwrap();
    let store: Arc<dyn Store> = Arc::new(Folder::open(folder.path()).unwrap());
    written(&store, &[named("daily")]);
    let disk = Arc::new(Crossing { root: folder.path().to_owned(), claimed: OnceLock::new() });
    let crossed: Arc<dyn Store> = Arc::new(Folder::at_on(Arc::clone(&disk) as _, folder.path()));
    let path = listed(&store)[0].folder.clone();
    let refused = Epochs { store: crossed, seen: Mutex::default() }.drop_epoch(&path).unwrap_err();
    assert!(refused.to_string().contains("was claimed by an application just now"), "{refused}");
    assert_eq!(claim::newest(store.as_ref(), &named("daily")).unwrap(), disk.claimed.get().copied());
    assert_eq!(listed(&store)[0].files, 1);
}

#[test]
fn what_was_claimed_since_it_was_listed_stays() {
    both(|store| {
        for key in [named("daily"), batch(3)] {
            written(store, std::slice::from_ref(&key));
            let epochs = epochs(store);
            let found = epochs.list().unwrap().remove(0);
            let next = claim::attach(store.as_ref(), "next").unwrap();
            let taken = claim::take(store.as_ref(), &key, next, ("next", APP + 1)).unwrap();
            assert!(matches!(epochs.drop_epoch(&found.folder), Err(Error::Config { .. })));
            assert_eq!(claim::newest(store.as_ref(), &key).unwrap(), Some(taken));
            assert_eq!(listed(store), std::slice::from_ref(&found));
            epochs.list().unwrap();
            epochs.drop_epoch(&found.folder).unwrap();
        }
    });
}
