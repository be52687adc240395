mod claims;

use std::time::Instant;

use object_store::ObjectStoreExt;

use super::testing::{Fault, Faulty, faulty, over};
use super::*;
use crate::edge::disk::recovery::{Recovery, recover_claimed};
use crate::edge::disk::segment::claim::{self, Claim};
use crate::edge::disk::segment::rubbish::prune;
use crate::edge::disk::segment::testing::{APP, record};
use crate::edge::disk::segment::{DiskWriter, SegmentRecord, layout};
use crate::id::{AgentId, Epoch, EpochKey, TaskId};

fn key() -> EpochKey {
    EpochKey { query: "batch".into(), epoch: Epoch::Named("daily".to_owned()) }
}

fn of(partition: u32, offset: u64, block: &[u8]) -> SegmentRecord {
    let plain = record(partition, 1, offset, block);
    let task = TaskId { query: key().query, epoch: key().epoch, ..plain.task };
    SegmentRecord { task, ..plain }
}

/// An application that has attached and claimed the epoch, with its writer.
fn attached(store: &Arc<Objects>, app: &str) -> (u64, Claim, DiskWriter) {
    let incarnation = claim::attach(store.as_ref(), app).unwrap();
    let by = (AgentId(100 + incarnation), APP + incarnation);
    let writer = DiskWriter::start_on(Arc::clone(store) as _, by, Duration::ZERO).unwrap();
    writer.own(incarnation);
    let claim = claim::take(store.as_ref(), &key(), incarnation, (app, APP + incarnation)).unwrap();
    (incarnation, claim, writer)
}

fn recovered(bucket: &Arc<Faulty>, claim: Claim) -> Result<Recovery> {
    let store: Arc<dyn Store> = Arc::new(over(bucket));
    recover_claimed(&store, &key(), claim.used)
}

/// The log of a partition, as whoever comes next finds it.
fn log(bucket: &Arc<Faulty>, claim: Claim, partition: u32) -> String {
    let found = recovered(bucket, claim).unwrap();
    let wanted = found.tasks.iter().filter(|task| task.task.partition.0 == partition);
    let read = |block: &crate::causal_log::BlockRef| match &block.place {
        crate::causal_log::Place::Spilled(place, _) => found.files.read(place).unwrap(),
        crate::causal_log::Place::Memory(_) => panic!("recovered blocks are in the store"),
    };
    let bytes: Vec<u8> = wanted.flat_map(|task| &task.blocks).flat_map(read).collect();
    String::from_utf8(bytes).unwrap()
}

/// Names of all objects of segments.
fn objects(bucket: &Faulty) -> Vec<object_store::path::Path> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let listed = futures_util::TryStreamExt::try_collect::<Vec<_>>(object_store::ObjectStore::list(
        &bucket.inner,
        None,
    ));
    let all = runtime.block_on(listed).unwrap().into_iter().map(|found| found.location);
    all.filter(|name| name.as_ref().contains(".seg/")).collect()
}

fn delete(bucket: &Faulty, name: &object_store::path::Path) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(bucket.inner.delete(name)).unwrap();
}

fn until(what: impl Fn() -> bool) {
    let began = Instant::now();
    while !what() {
        assert!(began.elapsed() < Duration::from_secs(10));
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn what_was_acknowledged_is_read_back_by_reference_and_after_a_restart() {
    let (store, bucket) = faulty();
    let (_, claim, writer) = attached(&store, "app");
    let places: Vec<_> = ["one", "three", "x"]
        .into_iter()
        .scan(0, |at, block| {
            let place = writer.submit(of(0, *at, block.as_bytes())).wait().unwrap();
            *at += block.len() as u64;
            Some((place, block))
        })
        .collect();
    writer.submit(of(1, 0, b"another")).wait().unwrap();
    for (place, block) in places {
        assert_eq!(writer.read(&place).unwrap(), block);
    }
    assert_eq!(objects(&bucket).len(), 4);
    assert_eq!((log(&bucket, claim, 0), log(&bucket, claim, 1)), ("onethreex".into(), "another".into()));
    assert_eq!(recovered(&bucket, claim).unwrap().tasks.len(), 2);
}

#[test]
fn what_queues_up_during_a_put_shares_the_next_one() {
    let (store, bucket) = faulty();
    let (_, claim, writer) = attached(&store, "app");
    bucket.slow(Duration::from_millis(50));
    let waiting: Vec<_> = (0..100).map(|at| writer.submit(of(at % 4, u64::from(at / 4), b"x"))).collect();
    for pending in waiting {
        pending.wait().unwrap();
    }
    assert!(objects(&bucket).len() <= 3);
    assert_eq!(log(&bucket, claim, 3), "x".repeat(25));
}

#[test]
fn the_epochs_of_one_group_are_put_beside_each_other() {
    const EPOCHS: u64 = 6;
    let (store, bucket) = faulty();
    let (incarnation, claim, _) = attached(&store, "app");
    let by = (AgentId(7), APP + incarnation);
    let writer = DiskWriter::start_on(Arc::clone(&store) as _, by, Duration::from_secs(1)).unwrap();
    writer.own(incarnation);
    let epoch = |at: u64| EpochKey { epoch: Epoch::Named(format!("daily-{at}")), ..key() };
    let claims: Vec<_> = (0..EPOCHS)
        .map(|at| claim::take(store.as_ref(), &epoch(at), incarnation, ("app", APP + incarnation)).unwrap())
        .collect();
    writer.submit(of(0, 0, b"first")).wait().unwrap();
    // They come before the next group is due, and each of their puts waits for all of them.
    bucket.only(".seg/");
    bucket.together(EPOCHS);
    let waiting: Vec<_> = (0..EPOCHS)
        .map(|at| {
            let plain = of(0, 0, b"x");
            let task = TaskId { epoch: epoch(at).epoch, ..plain.task };
            writer.submit(SegmentRecord { task, ..plain })
        })
        .collect();
    for pending in waiting {
        pending.wait().unwrap();
    }
    bucket.together(0);
    assert_eq!(log(&bucket, claim, 0), "first");
    for (at, claim) in (0..EPOCHS).zip(claims) {
        let store: Arc<dyn Store> = Arc::new(over(&bucket));
        assert_eq!(recover_claimed(&store, &epoch(at), claim.used).unwrap().tasks.len(), 1);
    }
}

#[test]
fn blocks_of_any_size_are_read_in_any_order() {
    let (store, bucket) = faulty();
    let (_, claim, writer) = attached(&store, "app");
    let block =
        |at: usize, len: usize| -> Vec<u8> { (0..len).map(|byte| ((byte + at) % 251) as u8).collect() };
    let sizes = [1, 3 << 20, 100, (2 << 20) - 300, 5 << 20, 7, 1 << 20];
    let mut offset = 0;
    // The first alone, the others in a few objects.
    bucket.slow(Duration::from_millis(50));
    let waiting: Vec<_> = sizes
        .iter()
        .enumerate()
        .map(|(at, len)| {
            let pending = writer.submit(of(0, offset, &block(at, *len)));
            offset += *len as u64;
            pending
        })
        .collect();
    let places: Vec<_> = waiting.into_iter().map(|pending| pending.wait().unwrap()).collect();
    let found = recovered(&bucket, claim).unwrap();
    for at in [6, 0, 4, 4, 1, 2, 3, 5] {
        assert!(writer.read(&places[at]).unwrap() == block(at, sizes[at]));
        let crate::causal_log::Place::Spilled(place, _) = &found.tasks[0].blocks[at].place else { panic!() };
        assert!(found.files.read(place).unwrap() == block(at, sizes[at]));
    }
}

#[test]
fn a_segment_may_have_more_objects_than_a_listing_gives_at_once() {
    let (store, bucket) = faulty();
    let (_, claim, writer) = attached(&store, "app");
    let count = 1000 + 23;
    for at in 0..count {
        writer.submit(of(0, at, b"x")).wait().unwrap();
    }
    assert_eq!(log(&bucket, claim, 0).len() as u64, count);
}

#[test]
fn an_agent_waits_from_one_put_to_the_next_as_long_as_it_was_told() {
    let (store, bucket) = faulty();
    let interval = Duration::from_millis(100);
    let writer = DiskWriter::start_on(store, (AgentId(1), APP), interval).unwrap();
    let began = Instant::now();
    for at in 0..3 {
        writer.submit(of(0, at, b"x")).wait().unwrap();
    }
    assert!(began.elapsed() >= 2 * interval);
    assert_eq!(objects(&bucket).len(), 3);
}

#[test]
fn a_put_whose_answer_is_lost_is_made_once_and_succeeds() {
    let (store, bucket) = faulty();
    let (_, claim, writer) = attached(&store, "app");
    bucket.next_puts(&[Fault::AnswerLost, Fault::Refused]);
    writer.submit(of(0, 0, b"once")).wait().unwrap();
    writer.submit(of(0, 4, b"more")).wait().unwrap();
    assert_eq!(objects(&bucket).len(), 2);
    assert_eq!(log(&bucket, claim, 0), "oncemore");
    // A claim, and the file that counts applications.
    bucket.next_puts(&[Fault::AnswerLost]);
    let next = claim::attach(store.as_ref(), "app").unwrap();
    bucket.next_puts(&[Fault::AnswerLost]);
    let taken = claim::take(store.as_ref(), &key(), next, ("app", APP + next)).unwrap();
    assert_eq!((taken.used, taken.incarnation), (claim.used, next));
    assert_eq!(claim::newest(store.as_ref(), &key()).unwrap(), Some(taken));
}

#[test]
fn a_store_that_is_away_fails_a_publish_within_the_bound_and_is_used_when_it_is_back() {
    let (store, bucket) = faulty();
    let (_, claim, writer) = attached(&store, "app");
    writer.submit(of(0, 0, b"before")).wait().unwrap();
    bucket.is_down(true);
    let began = Instant::now();
    let failed = writer.submit(of(0, 6, b"lost")).wait().unwrap_err();
    assert!(began.elapsed() < Duration::from_secs(2));
    let text = failed.to_string();
    for part in ["checkpoint_dir", "s3://bucket/prefix/", "503", "times in"] {
        assert!(text.contains(part), "{text}");
    }
    assert!(!text.contains("hunter2"), "{text}");
    bucket.is_down(false);
    assert!(!writer.has_failed());
    // It has lost its predecessor.
    let gap = writer.submit(of(0, 10, b"later")).wait().unwrap_err();
    assert!(matches!(gap, Error::LogGap { .. }), "{gap}");
    writer.submit(of(0, 6, b", after")).wait().unwrap();
    assert_eq!(log(&bucket, claim, 0), "before, after");
}

#[test]
fn a_put_that_arrives_late_is_the_object_of_its_number_or_nothing() {
    for is_first in [true, false] {
        let (store, bucket) = faulty();
        let (_, claim, writer) = attached(&store, "app");
        writer.submit(of(0, 0, b"a")).wait().unwrap();
        bucket.next_puts(&[Fault::Late; 100]);
        let unsure = writer.submit(of(0, 1, b"unsure")).wait();
        assert!(unsure.is_err());
        bucket.next_puts(&[]);
        if is_first {
            bucket.deliver();
        }
        // What was not acknowledged may be there, and is the same if it is written again.
        let again = writer.submit(of(0, 1, b"unsure")).wait().unwrap();
        let other = writer.submit(of(1, 0, b"other")).wait().unwrap();
        bucket.deliver();
        let last = writer.submit(of(0, 7, b"b")).wait().unwrap();
        for (place, block) in [(again, "unsure"), (other, "other"), (last, "b")] {
            assert_eq!(writer.read(&place).unwrap(), block);
        }
        assert_eq!(objects(&bucket).len(), 4);
        assert_eq!((log(&bucket, claim, 0), log(&bucket, claim, 1)), ("aunsureb".into(), "other".into()));
    }
}

#[test]
fn what_another_wrote_in_a_put_that_came_late_is_passed_by() {
    let (store, bucket) = faulty();
    let (_, claim, writer) = attached(&store, "app");
    writer.submit(of(0, 0, b"a")).wait().unwrap();
    bucket.next_puts(&[Fault::Late; 100]);
    assert!(writer.submit(of(0, 1, b"never acknowledged")).wait().is_err());
    bucket.next_puts(&[]);
    bucket.deliver();
    let other = writer.submit(of(1, 0, b"other")).wait().unwrap();
    assert_eq!(writer.read(&other).unwrap(), "other");
    assert_eq!(objects(&bucket).len(), 3);
    assert_eq!(log(&bucket, claim, 0), "anever acknowledged");
    assert_eq!(log(&bucket, claim, 1), "other");
}

#[test]
fn an_object_that_is_gone_is_damage_and_without_the_first_there_is_no_segment() {
    let (store, bucket) = faulty();
    let (_, claim, writer) = attached(&store, "app");
    for (at, partition) in [0, 0, 1, 0].into_iter().enumerate() {
        let offset = if partition == 1 { 0 } else { at.min(2) as u64 };
        writer.submit(of(partition, offset, b"x")).wait().unwrap();
    }
    let names = objects(&bucket);
    // Nothing else would tell: no other record of its task is there.
    delete(&bucket, &names[2]);
    let told = recovered(&bucket, claim).unwrap_err();
    assert!(matches!(&told, Error::CorruptSegment { file, .. } if file.ends_with(".seg/00000002")), "{told}");
    delete(&bucket, &names[0]);
    assert!(recovered(&bucket, claim).unwrap().tasks.is_empty());
}

#[test]
fn a_changed_byte_is_damage() {
    let (store, bucket) = faulty();
    let (_, claim, writer) = attached(&store, "app");
    writer.submit(of(0, 0, b"content")).wait().unwrap();
    let name = objects(&bucket).remove(0);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let whole = runtime.block_on(async { bucket.inner.get(&name).await.unwrap().bytes().await.unwrap() });
    for cut in 1..whole.len() {
        runtime.block_on(bucket.inner.put(&name, whole.slice(..cut).into())).unwrap();
        // Behind its header an object may end, as one that was put does where its last record does.
        if recovered(&bucket, claim).is_ok_and(|found| !found.tasks.is_empty()) {
            panic!("cut at {cut}");
        }
    }
    for at in 0..whole.len() {
        let mut changed = whole.to_vec();
        changed[at] ^= 0x10;
        runtime.block_on(bucket.inner.put(&name, changed.into())).unwrap();
        assert!(recovered(&bucket, claim).is_err(), "changed at {at}");
    }
}

#[test]
fn what_nobody_will_ask_for_goes_once_it_is_old() {
    let (store, bucket) = faulty();
    let (_, claim, writer) = attached(&store, "app");
    writer.submit(of(0, 0, b"x")).wait().unwrap();
    writer.submit(of(0, 1, b"x")).wait().unwrap();
    assert_eq!(prune(store.as_ref(), Duration::ZERO).unwrap(), 0, "it is claimed");
    claim::give_up(store.as_ref(), &key(), claim).unwrap();
    assert_eq!(prune(store.as_ref(), Duration::from_secs(60)).unwrap(), 0, "it may be written just now");
    assert_eq!(prune(store.as_ref(), Duration::ZERO).unwrap(), 1);
    until(|| objects(&bucket).is_empty());
}

#[test]
fn large_objects_are_put_in_parts_and_read_a_piece_at_a_time() {
    let (store, _bucket) = faulty();
    for len in [0, 1, (8 << 10) - 1, 8 << 10, (20 << 10) + 7] {
        let content: Vec<u8> = (0..len).map(|at: usize| (at % 251) as u8).collect();
        let path = store.root().join("dir").join(format!("{len}.base"));
        let mut filling = store.fill(&path, "me").unwrap();
        content.chunks(1_003).for_each(|piece| filling.push(piece).unwrap());
        assert!(!store.exists(&path).unwrap());
        assert_eq!(filling.finish().unwrap(), len as u64);
        let mut read = Vec::new();
        store.stream(&path, 0..u64::MAX).unwrap().read_to_end(&mut read).unwrap();
        assert!(read == content, "{len} bytes");
        assert!(store.read(&path).unwrap() == content, "{len} bytes at once");
    }
}

#[test]
fn urls_that_name_nothing_are_refused_by_name_and_values_of_options_are_not_shown() {
    let tried = |url: &str, options: &[(&str, &str)]| {
        let options = options.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        look_into(url, &options, false, Duration::from_secs(1), SETTING).map(drop)
    };
    for (url, options, part) in [
        ("s3://", &[][..], "names no bucket"),
        ("s3:///prefix", &[], "names no bucket"),
        ("hdfs://host/dir", &[], "s3://bucket/prefix"),
        ("s3://key:hunter2@bucket/x", &[], "storage_options"),
        ("s3://bucket/a//b", &[], "checkpoint_dir"),
        ("s3://key:hunter2//x@bucket/a", &[], "s3://***@bucket/a"),
        ("abfss://key:hunter2@bucket/x", &[], "abfss://***@bucket/x"),
        ("s3://bucket", &[("aws_secret_acess_key", "hunter2")], "aws_secret_acess_key"),
        ("s3://bucket", &[("allow_http", "hunter2")], "checkpoint_dir"),
    ] {
        let told = tried(url, options).unwrap_err().to_string();
        assert!(told.contains(part), "{told}");
        assert!(!told.contains("hunter2") || options.iter().any(|(name, _)| *name == "allow_http"), "{told}");
    }
    tried("s3://bucket/some/prefix/", &[("region", "eu-central-1"), ("access_key_id", "a")]).unwrap_err();
    tried("s3://bucket/some/prefix/", &[("region", "eu-central-1")]).unwrap();
}

#[test]
fn where_all_else_is_encrypted_a_store_elsewhere_is_not_reached_in_clear() {
    let tried = |encrypt: bool, url: &str, options: &[(&str, &str)]| {
        let options = options.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        look_into(url, &options, encrypt, Duration::from_secs(1), SETTING).map(drop)
    };
    let (s3, azure) = ("s3://bucket/prefix", "abfss://files@account.dfs.core.windows.net/prefix");
    let elsewhere = "HTTP://minio.example:9000";
    for (url, options) in [
        (s3, ("endpoint", elsewhere)),
        (s3, ("aws_endpoint_url_s3", elsewhere)),
        ("gs://bucket", ("base_url", elsewhere)),
        (azure, ("azure_storage_endpoint", elsewhere)),
    ] {
        let told = tried(true, url, &[options]).map_err(|e| e.to_string()).expect_err(options.0);
        assert!(told.contains("http://minio.example is not encrypted"), "{told}");
        tried(false, url, &[options]).unwrap();
        tried(true, url, &[options, ("allow_http", "TRUE")]).unwrap();
        tried(true, url, &[(options.0, "https://minio.example:9000")]).unwrap();
    }
    for here in ["http://127.0.0.1:7070", "http://localhost", "http://[::1]:7070"] {
        tried(true, s3, &[("endpoint", here)]).unwrap();
    }
    tried(true, azure, &[("use_emulator", "true")]).unwrap();
    // What counts is not what stands first.
    tried(true, s3, &[("endpoint", elsewhere), ("aws_endpoint_url_s3", "https://s3.example")]).unwrap();
}

#[test]
fn segments_have_names_of_their_own() {
    let names = [Some(1), Some(17), None]
        .map(|number| layout::segment_path(Path::new("s3://b/p"), (AgentId(1), APP, number), 3, &key()));
    for name in &names {
        assert!(is_segment(name) && layout::is_by(name, APP) && !layout::is_by(name, 3));
    }
    assert!(names[0] != names[1] && names[1] != names[2]);
}

#[test]
fn a_put_that_was_refused_for_another_that_came_to_nothing_is_made_again() {
    let (store, bucket) = faulty();
    let path = store.root().join("name");
    bucket.next_puts(&[Fault::Conflict, Fault::Conflict]);
    store.create(&path, b"ours").unwrap();
    assert_eq!(&store.read(&path).unwrap()[..], b"ours");
    bucket.next_puts(&[Fault::Conflict; 1_000]);
    let refused = store.create(&store.root().join("never"), b"ours").unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
}

#[test]
fn a_part_of_which_no_answer_came_is_put_again_and_an_object_is_made_once() {
    let (store, bucket) = faulty();
    let path = store.root().join("large");
    let content: Vec<u8> = (0..50_000_u32).map(|at| at.to_le_bytes()[0] ^ at.to_le_bytes()[1]).collect();
    for faults in [
        vec![Fault::Refused, Fault::AnswerLost],
        vec![Fault::AnswerLost; 3],
        // Six parts and a rest are put well, and then the answer to the last request is lost.
        vec![],
    ] {
        let mut filling = store.fill(&path, "me").unwrap();
        bucket.next_puts(&faults);
        filling.push(&content).unwrap();
        if faults.is_empty() {
            bucket.ends(Some(Fault::AnswerLost));
        }
        assert_eq!(filling.finish().unwrap(), 50_000);
        let mut read = Vec::new();
        store.stream(&path, 0..u64::MAX).unwrap().read_to_end(&mut read).unwrap();
        assert_eq!(read, content);
        store.remove(&path).unwrap();
    }
}

#[test]
fn a_large_object_of_which_a_part_is_refused_for_long_is_none() {
    let (store, bucket) = faulty();
    let path = store.root().join("large");
    let mut filling = store.fill(&path, "me").unwrap();
    filling.push(&[1; 9_000]).unwrap();
    bucket.is_down(true);
    assert_eq!(filling.push(&[1; 9_000]).unwrap_err().kind(), io::ErrorKind::TimedOut);
    drop(filling);
    bucket.is_down(false);
    assert!(!store.exists(&path).unwrap());
}

#[test]
fn an_object_that_had_the_name_and_the_size_before_is_not_taken_for_the_new_one() {
    let (store, bucket) = faulty();
    let path = store.root().join("large");
    let write = |byte: u8| {
        let mut filling = store.fill(&path, "me").unwrap();
        filling.push(&[byte; 20_000]).unwrap();
        bucket.ends((byte == 2).then_some(Fault::Refused));
        filling.finish()
    };
    write(1).unwrap();
    assert_eq!(write(2).unwrap_err().kind(), io::ErrorKind::TimedOut);
    assert_eq!(store.read(&path).unwrap()[0], 1);
    write(3).unwrap();
    assert_eq!(store.read(&path).unwrap()[0], 3);
}
