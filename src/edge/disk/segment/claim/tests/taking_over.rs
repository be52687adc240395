//! Applications that die, or are slow, while they take an epoch over.

use super::*;

/// What an application leaves that is slow to claim a use, and dies, or hears of an error, when its claim is made.
fn half_claimed(root: &Path, key: &EpochKey, incarnation: u64, used: u64) -> Claim {
    let claim = Claim { incarnation, used };
    std::fs::create_dir_all(layout::claim_dir(root, key)).unwrap();
    std::fs::write(claim.path(root, key), "slow").unwrap();
    claim
}

#[test]
fn a_late_claim_whose_maker_did_not_look_brings_back_nothing_that_was_committed() {
    let root = tempfile::tempdir().unwrap();
    let key = named("daily");
    let (first, writer) = attached(root.path(), "app-1");
    let claim = claimed(root.path(), &key, first);
    writer.submit(of(&key, 0, b"abc")).wait().unwrap();
    let ((slow, _), (third, _)) = (attached(root.path(), "app-2"), attached(root.path(), "app-3"));
    give_up(&Folder::at(root.path()), &key, claim).unwrap();
    half_claimed(root.path(), &key, slow, claim.used);
    assert_eq!(newest(&Folder::at(root.path()), &key).unwrap(), None);
    // Whoever made it tries again, with the segments still there.
    let again = claimed(root.path(), &key, slow);
    assert_ne!(again.used, claim.used);
    assert_eq!(found(root.path(), &key, again), 0);
    assert_eq!(Claims::find(&Folder::at(root.path()), &key).unwrap().all, [again]);
    // Or another comes.
    give_up(&Folder::at(root.path()), &key, again).unwrap();
    half_claimed(root.path(), &key, slow, claim.used);
    let other = claimed(root.path(), &key, third);
    assert!(other.used != claim.used && other.used != again.used);
    assert_eq!(Claims::find(&Folder::at(root.path()), &key).unwrap().all, [other]);
}

#[test]
fn whoever_dies_while_it_takes_over_leaves_what_was_recorded() {
    // It dies before it looked, before it has said what it saw, and when the older claim is gone.
    for (said, removed) in [(false, false), (true, false), (true, true)] {
        let root = tempfile::tempdir().unwrap();
        let (key, store) = (named("daily"), Folder::at(root.path()));
        let (first, writer) = attached(root.path(), "app-1");
        let claim = claimed(root.path(), &key, first);
        writer.submit(of(&key, 0, b"abc")).wait().unwrap();
        let ((second, _), (third, _)) = (attached(root.path(), "app-2"), attached(root.path(), "app-3"));
        let half = half_claimed(root.path(), &key, second, claim.used);
        if said {
            sure::announce(&store, &key, half).unwrap();
        }
        if removed {
            give_up_name(&store, &key, claim).unwrap();
        }
        assert_eq!(newest(&store, &key).unwrap(), Some(if said { half } else { claim }));
        for application in [second, third] {
            let taken = claimed(root.path(), &key, application);
            assert_eq!((taken.incarnation, taken.used), (application, claim.used));
            assert_eq!(found(root.path(), &key, taken), 3);
            let left = Claims::find(&store, &key).unwrap();
            assert_eq!((left.all, left.sure), (vec![taken], HashSet::from([taken])));
        }
        give_up(&store, &key, Claim { incarnation: third, ..claim }).unwrap();
        assert_eq!(newest(&store, &key).unwrap(), None);
    }
}

#[test]
fn a_takeover_that_could_not_say_what_it_saw_says_it_before_older_claims_go() {
    let root = tempfile::tempdir().unwrap();
    let key = named("daily");
    let (first, writer) = attached(root.path(), "app-1");
    let claim = claimed(root.path(), &key, first);
    writer.submit(of(&key, 0, b"abc")).wait().unwrap();
    let (second, _) = attached(root.path(), "app-2");
    let disk = FaultyDisk::default();
    disk.0.fail_removes(true);
    let half = Claim { incarnation: second, used: claim.used };
    take(&on(&disk, root.path()), &key, second, ("app-2", APP + second)).unwrap_err();
    let left = Claims::find(&Folder::at(root.path()), &key).unwrap();
    assert!(left.all.len() == 2 && left.sure.contains(&half), "{:?}", left.all);
}

#[test]
fn what_was_written_over_behind_a_takeover_counts_for_nobody() {
    let root = tempfile::tempdir().unwrap();
    let key = named("daily");
    let (old, first) = attached(root.path(), "app-1");
    claimed(root.path(), &key, old);
    first.submit(of(&key, 0, b"abc")).wait().unwrap();
    // Half of a large write has come when the epoch is taken over, and is written over when there is room again.
    let path = epoch_file(root.path(), &key);
    let whole = std::fs::metadata(&path).unwrap().len();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(whole + 4_000).unwrap();
    let (new, _second) = attached(root.path(), "app-2");
    let claim = claimed(root.path(), &key, new);
    assert_eq!(found(root.path(), &key, claim), 3);
    first.submit(of(&key, 3, b"late")).wait().unwrap_err();
    assert!(std::fs::metadata(&path).unwrap().len() >= whole + 4);
    assert_eq!(found(root.path(), &key, claim), 3);
}

#[test]
fn a_commit_goes_on_without_whoever_died_while_it_took_the_epoch_over() {
    let root = tempfile::tempdir().unwrap();
    let key = named("daily");
    let (first, _) = attached(root.path(), "app-1");
    let claim = claimed(root.path(), &key, first);
    let (second, _) = attached(root.path(), "app-2");
    half_claimed(root.path(), &key, second, claim.used);
    give_up(&Folder::at(root.path()), &key, claim).unwrap();
    assert!(Claims::find(&Folder::at(root.path()), &key).unwrap().all.is_empty());
    assert_ne!(claimed(root.path(), &key, second).used, claim.used);
}

#[test]
fn a_claim_that_a_commit_went_on_without_is_never_said_to_count() {
    let root = tempfile::tempdir().unwrap();
    let (key, store) = (named("daily"), Folder::at(root.path()));
    let (first, _) = attached(root.path(), "app-1");
    let claim = claimed(root.path(), &key, first);
    let (second, _) = attached(root.path(), "app-2");
    let half = half_claimed(root.path(), &key, second, claim.used);
    assert!(sure::refuse(&store, &key, half).unwrap());
    // Its maker has looked before, and says so now; then the claim is removed.
    assert!(!Claims::find(&store, &key).unwrap().is_sure(half));
    assert!(!sure::announce(&store, &key, half).unwrap());
    give_up(&store, &key, claim).unwrap();
    assert!(Claims::find(&store, &key).unwrap().all.is_empty());
    assert_ne!(claimed(root.path(), &key, second).used, claim.used);
}

#[test]
fn a_commit_does_not_remove_a_claim_that_counts_or_may() {
    // It was said in full just now, in part, or what is there is not known.
    for said in [&b"this claim counts\n"[..], b"this cl", b"", b"something else"] {
        let root = tempfile::tempdir().unwrap();
        let (key, store) = (named("daily"), Folder::at(root.path()));
        let (first, writer) = attached(root.path(), "app-1");
        let claim = claimed(root.path(), &key, first);
        writer.submit(of(&key, 0, b"abc")).wait().unwrap();
        let (second, _) = attached(root.path(), "app-2");
        let half = half_claimed(root.path(), &key, second, claim.used);
        std::fs::write(layout::claim_dir(root.path(), &key).join(half.name("sure")), said).unwrap();
        let told = give_up(&store, &key, claim).unwrap_err();
        let left = Claims::find(&store, &key).unwrap();
        assert!(left.all.contains(&half), "{told}");
        // Whoever made it may go on: all that was recorded is there.
        if left.is_sure(half) {
            assert_eq!(found(root.path(), &key, claimed(root.path(), &key, second)), 3);
        }
    }
}

#[test]
fn a_takeover_of_which_only_a_part_was_said_says_it_again() {
    let root = tempfile::tempdir().unwrap();
    let key = named("daily");
    let (first, writer) = attached(root.path(), "app-1");
    let claim = claimed(root.path(), &key, first);
    writer.submit(of(&key, 0, b"abc")).wait().unwrap();
    let (second, _) = attached(root.path(), "app-2");
    let half = half_claimed(root.path(), &key, second, claim.used);
    std::fs::write(layout::claim_dir(root.path(), &key).join(half.name("sure")), "this cl").unwrap();
    assert_eq!(newest(&Folder::at(root.path()), &key).unwrap(), Some(claim));
    assert_eq!(claimed(root.path(), &key, second), half);
    assert_eq!(found(root.path(), &key, half), 3);
}

#[test]
fn whoever_was_slow_to_begin_a_use_removes_no_claim_of_another() {
    let root = tempfile::tempdir().unwrap();
    let (key, store) = (named("daily"), Folder::at(root.path()));
    let ((first, writer), (second, _), (third, _)) =
        (attached(root.path(), "app-1"), attached(root.path(), "app-2"), attached(root.path(), "app-3"));
    // It has looked, and found that nobody else is there.
    let slow = half_claimed(root.path(), &key, second, 5);
    let newer = claimed(root.path(), &key, third);
    assert_eq!(Claims::find(&store, &key).unwrap().all, [newer], "what did not count yet is refused");
    give_up(&store, &key, newer).unwrap();
    let older = claimed(root.path(), &key, first);
    writer.submit(of(&key, 0, b"abc")).wait().unwrap();
    // Now it goes on.
    assert!(!sure::announce(&store, &key, slow).unwrap() || !is_there(&store, &key, slow).unwrap());
    remove_older(&store, &key, slow).unwrap();
    let taken = claimed(root.path(), &key, second);
    assert_eq!((taken.used, found(root.path(), &key, taken)), (older.used, 3));
}

#[test]
fn a_claim_whose_refusal_is_forgotten_removes_none_that_counts() {
    let root = tempfile::tempdir().unwrap();
    let key = named("daily");
    let (first, writer) = attached(root.path(), "app-1");
    let claim = claimed(root.path(), &key, first);
    writer.submit(of(&key, 0, b"abc")).wait().unwrap();
    let (second, _) = attached(root.path(), "app-2");
    let (path, of) = (root.path().to_owned(), key.clone());
    let refused = move || {
        let half = Claim { incarnation: second, ..claim };
        assert!(refuse(&Folder::at(&path), &of, [half].into_iter()).unwrap());
    };
    let slow = before(root.path(), vec![(".sure", Box::new(refused))]);
    let taken = take(&slow, &key, second, ("app-2", APP + second)).unwrap();
    assert_eq!((taken.used, found(root.path(), &key, taken)), (claim.used, 3));
}

#[test]
fn a_use_that_was_committed_does_not_come_back_beside_the_next() {
    let root = tempfile::tempdir().unwrap();
    let key = named("daily");
    let (first, _) = attached(root.path(), "app-1");
    let claim = claimed(root.path(), &key, first);
    let (second, _) = attached(root.path(), "app-2");
    // While the second makes its claim, the first commits and begins the next use, which it commits a moment later.
    let (path, of) = (root.path().to_owned(), key.clone());
    let next = move || {
        give_up(&Folder::at(&path), &of, claim).unwrap();
        assert_ne!(claimed(&path, &of, first).used, claim.used);
    };
    let (path, of) = (root.path().to_owned(), key.clone());
    let over = move || {
        let store = Folder::at(&path);
        give_up(&store, &of, newest(&store, &of).unwrap().unwrap()).unwrap();
    };
    let slow = before(root.path(), vec![(".claim", Box::new(next)), (".sure", Box::new(over))]);
    let taken = take(&slow, &key, second, ("app-2", APP + second)).unwrap();
    assert_ne!(taken.used, claim.used);
}

#[test]
fn whoever_dies_while_it_writes_shuts_no_name() {
    let root = tempfile::tempdir().unwrap();
    let (key, store) = (named("daily"), Folder::at(root.path()));
    let (first, _) = attached(root.path(), "app-1");
    let disk = FaultyDisk::default();
    // There is room for the claim, and not for what says that it counts.
    disk.0.leave_space(Some(10));
    take(&on(&disk, root.path()), &key, first, ("app-1", APP + first)).unwrap_err();
    let left = Claims::find(&store, &key).unwrap();
    assert!(left.all.len() == 1 && left.sure.is_empty());
    // Or it was killed there.
    let draft = layout::draft(&layout::claim_dir(root.path(), &key).join(left.all[0].name("sure"))).unwrap();
    std::fs::write(&draft, "this cl").unwrap();
    let (second, _) = attached(root.path(), "app-2");
    let claim = claimed(root.path(), &key, second);
    assert_eq!(Claims::find(&store, &key).unwrap().all, [claim]);
    give_up(&store, &key, claim).unwrap();
    assert_eq!(prune(&store, Duration::ZERO).unwrap(), 1);
    assert!(!draft.exists() && !layout::claim_dir(root.path(), &key).exists());
}

#[test]
fn where_files_have_one_name_each_they_are_written_under_it() {
    struct Unlinked;

    impl FileSystem for Unlinked {
        fn create(&self, path: &Path, mode: u32) -> io::Result<Arc<dyn RawFile>> {
            RealDisk.create(path, mode)
        }

        fn remove(&self, path: &Path) -> io::Result<()> {
            RealDisk.remove(path)
        }

        fn sync_dir(&self, dir: &Path) -> io::Result<()> {
            RealDisk.sync_dir(dir)
        }

        fn link(&self, _from: &Path, _to: &Path) -> io::Result<()> {
            Err(io::Error::from_raw_os_error(1))
        }
    }

    let root = tempfile::tempdir().unwrap();
    let store = Folder::on(Arc::new(Unlinked), root.path()).unwrap();
    let path = root.path().join("name");
    store.create(&path, b"one").unwrap();
    assert_eq!(store.create(&path, b"two").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    assert_eq!(&store.read(&path).unwrap()[..], b"one");
    assert_eq!(store.entries(root.path()).unwrap().len(), 1);
}
