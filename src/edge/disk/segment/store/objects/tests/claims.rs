//! Applications that claim one epoch, where a name that was given up cannot be had again.

use super::*;

#[test]
fn who_claims_later_finds_what_was_acknowledged_before_and_nothing_that_was_written_after() {
    let (store, bucket) = faulty();
    let (_, before, first) = attached(&store, "app-1");
    first.submit(of(0, 0, b"abc")).wait().unwrap();
    // On its way while the epoch is taken over.
    bucket.next_puts(&[Fault::Late; 100]);
    assert!(first.submit(of(0, 3, b"late")).wait().is_err());
    bucket.next_puts(&[]);
    let (_, claim, second) = attached(&store, "app-2");
    assert_eq!(claim.used, before.used);
    bucket.deliver();
    assert_eq!(log(&bucket, claim, 0), "abc");
    let told = first.submit(of(0, 3, b"later")).wait().unwrap_err();
    let Error::Config { setting, reason } = &told else { panic!("{told}") };
    assert!(setting == "checkpoint_dir" && reason.contains("app-2"), "{told}");
    second.submit(of(0, 0, b"abc")).wait().unwrap();
    second.submit(of(0, 3, b"def")).wait().unwrap();
    assert_eq!(log(&bucket, claim, 0), "abcdef");
    assert!(first.drop_epoch_all(&key(), before.used).is_err());
    let (_, claim, _third) = attached(&store, "app-3");
    assert_eq!(log(&bucket, claim, 0), "abcdef");
}

#[test]
fn a_claim_that_arrives_late_brings_nothing_back() {
    let (store, bucket) = faulty();
    bucket.slow(Duration::from_millis(1));
    let incarnation = claim::attach(store.as_ref(), "app-1").unwrap();
    // Made twice, and once it takes for ever.
    bucket.next_puts(&[Fault::Late]);
    let by = ("app-1", APP + incarnation);
    let before = claim::take(store.as_ref(), &key(), incarnation, by).unwrap();
    let writer = DiskWriter::start_on(Arc::clone(&store) as _, (AgentId(1), by.1), Duration::ZERO).unwrap();
    writer.own(incarnation);
    writer.submit(of(0, 0, b"abc")).wait().unwrap();
    let (_, claim, _second) = attached(&store, "app-2");
    bucket.deliver();
    let told = writer.submit(of(0, 3, b"late")).wait().unwrap_err();
    assert!(matches!(told, Error::Config { .. }), "{told}");
    claim::give_up(store.as_ref(), &key(), claim).unwrap();
    assert_eq!(claim::newest(store.as_ref(), &key()).unwrap(), None);
    let refused = writer.submit(of(0, 3, b"late")).wait().unwrap_err();
    assert!(matches!(refused, Error::Fenced { .. }), "{refused}");
    let (_, again, _third) = attached(&store, "app-3");
    assert_ne!(again.used, before.used);
}

#[test]
fn applications_that_attach_at_once_have_different_incarnations() {
    let (store, bucket) = faulty();
    bucket.slow(Duration::from_millis(5));
    let mut drawn: Vec<u64> = std::thread::scope(|scope| {
        let store = store.as_ref();
        let threads: Vec<_> = (0..6).map(|_| scope.spawn(move || claim::attach(store, "local-1"))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap().unwrap()).collect()
    });
    drawn.sort_unstable();
    drawn.dedup();
    assert_eq!(drawn.len(), 6);
    let left = store.entries(store.root()).unwrap();
    assert!(left.iter().any(|entry| entry.path.to_str().unwrap().contains(&format!("{:016x}.", drawn[5]))));
}

#[test]
fn a_commit_is_one_name_that_goes_and_the_rest_goes_in_the_background() {
    let (store, bucket) = faulty();
    let (incarnation, claim, writer) = attached(&store, "app");
    for at in 0..5 {
        writer.submit(of(0, at, b"x")).wait().unwrap();
    }
    claim::give_up(store.as_ref(), &key(), claim).unwrap();
    assert_eq!(claim::newest(store.as_ref(), &key()).unwrap(), None);
    let refused = writer.submit(of(0, 5, b"x")).wait().unwrap_err();
    assert!(matches!(refused, Error::Fenced { .. }), "{refused}");
    writer.drop_epoch_all(&key(), claim.used).unwrap();
    until(|| objects(&bucket).is_empty());
    let again = claim::take(store.as_ref(), &key(), incarnation, ("app", APP)).unwrap();
    assert_ne!(again.used, claim.used, "a name used again is another epoch");
    assert!(recovered(&bucket, again).unwrap().tasks.is_empty());
}

#[test]
fn a_takeover_that_failed_on_its_way_is_made_again() {
    // The claim is there, or not, and the store is away from then on.
    for faults in [&[Fault::Refused; 200][..], &[Fault::AnswerLost, Fault::Refused]] {
        let (store, bucket) = faulty();
        let (_, before, writer) = attached(&store, "app-1");
        writer.submit(of(0, 0, b"abc")).wait().unwrap();
        let next = claim::attach(store.as_ref(), "app-2").unwrap();
        let take = || claim::take(store.as_ref(), &key(), next, ("app-2", APP + next));
        let mut all = faults.to_vec();
        all.resize(200, Fault::Refused);
        bucket.next_puts(&all);
        take().unwrap_err();
        bucket.next_puts(&[]);
        let taken = take().unwrap();
        assert_eq!((taken.incarnation, taken.used), (next, before.used));
        assert_eq!(log(&bucket, taken, 0), "abc");
        assert_eq!(take().unwrap(), taken);
    }
}
