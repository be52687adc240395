//! A commit: what goes with it, and what comes after it.

use super::*;
use crate::id::AgentId;

#[test]
fn what_comes_late_of_a_committed_use_is_not_the_next_ones() {
    let mut store = Store::new(1 << 20);
    let id = task("score", 1, 0);
    store.begin(&id, Generation(3), LAYOUT).unwrap();
    store.commit(&id.epoch_key(), Generation(5));
    assert!(matches!(store.begin(&id, Generation(3), LAYOUT), Err(Error::Fenced { .. })));
    let absorbed = store.absorb_copy(&id, Generation(4), LogOffset(0), &block(1, 5));
    assert!(matches!(absorbed, Err(Error::Fenced { .. })));
    assert_eq!(store.end(&id), None);
    store.begin(&id, Generation(5), LAYOUT).unwrap();
}

#[test]
fn late_news_of_a_commit_spares_what_was_absorbed_for_the_next_use_of_the_name() {
    let mut store = Store::new(1_000);
    let (old, new) = (task("old", 1, 0), task("new", 1, 0));
    store.absorb_copy(&old, Generation(3), LogOffset(0), &block(1, 5)).unwrap();
    store.absorb_copy(&new, Generation(7), LogOffset(0), &block(1, 5)).unwrap();
    store.commit(&old.epoch_key(), Generation(7));
    assert_eq!(store.end(&old), None);
    assert_eq!(store.end(&new), Some(LogOffset(5)));
    assert_eq!(store.take_fresh(&old.epoch_key(), |_| true), [new], "its output waits until it is shared");
}

#[test]
fn late_news_of_a_commit_spares_who_has_the_log_that_counts_in_the_next_use_of_the_name() {
    let mut store = Store::new(1_000);
    let holder = || AgentInfo { id: AgentId(1), addr: "a:1".into(), host: "a".into(), driver: false };
    let (old, new) = (task("old", 1, 0), task("new", 1, 0));
    store.reopened(&old, Generation(3), holder());
    store.reopened(&new, Generation(7), holder());
    store.commit(&old.epoch_key(), Generation(7));
    let mut absorb = |task| store.absorb_copy(task, Generation(8), LogOffset(0), &block(1, 5)).unwrap();
    assert_eq!(absorb(&new), Absorbed::Unconfirmed(Reopened { generation: Generation(7), at: holder() }));
    assert_eq!(absorb(&old), Absorbed::At(0));
}

#[test]
fn what_an_older_use_of_the_name_recorded_does_not_count_though_news_of_its_commit_is_late() {
    let mut store = store();
    let (id, beside) = (task("score", 1, 0), task("beside", 1, 0));
    for id in [&id, &beside] {
        store.begin(id, Generation(3), LAYOUT).unwrap();
        store.complete(id, Generation(3));
    }
    let fence = |generation, over| Fence { generation, over, reopened_at: None, shown: Beginning::default() };
    assert!(store.fence_for(&id, fence(Generation(4), Generation::NONE)).is_some());
    assert!(store.fence_for(&id, fence(Generation(7), Generation(6))).is_none());
    assert_eq!(store.end(&beside), None);
    store.begin(&id, Generation(7), LAYOUT).unwrap();
    assert!(store.fence_for(&id, fence(Generation(8), Generation(6))).is_some());
    // One of the older use comes late, and says nothing of who has what counts.
    let reopened_at = Some(AgentInfo { id: AgentId(1), addr: "a:1".into(), host: "a".into(), driver: false });
    assert!(store.fence_for(&id, Fence { reopened_at, ..fence(Generation(5), Generation::NONE) }).is_none());
    assert_eq!(store.counting_at(&id, AgentId(1)), None);
    // It comes now, and takes nothing of the next use.
    store.commit(&id.epoch_key(), Generation(6));
    assert!(store.end(&id).is_some());
}

#[test]
fn a_commit_forgets_logs_frames_and_what_was_not_shared() {
    let mut store = store();
    for number in 1..=3 {
        with_log(&mut store, &task("score", number, 0), &[10]);
        with_log(&mut store, &task("score", number, 0).in_flight(), &[20]);
        store.absorb_copy(&task("up", number, 0), Generation::NONE, LogOffset(0), &block(1, 5)).unwrap();
    }
    assert_eq!(store.commit(&epoch(2), Generation(9)), [epoch(1), epoch(2)]);
    for number in [1, 2] {
        assert!(!store.holds(&epoch(number)) && !store.has_fresh(&epoch(number)));
    }
    assert!(store.holds(&epoch(3)) && store.has_fresh(&epoch(3)));
    assert_eq!((store.memory_bytes, store.in_flight_bytes(), store.queue.len()), (35, 20, 3));
    // Logs of a later run of the epoch are not meant.
    assert_eq!(store.commit(&epoch(3), Generation(1)), [epoch(3)]);
    assert_eq!(store.end(&task("score", 3, 0)), Some(LogOffset(10)));
    check(&store, &[]);
}
