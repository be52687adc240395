//! Copies of other tasks' logs, from frames.

use super::*;

fn at(id: u64) -> AgentInfo {
    AgentInfo { id: AgentId(id), addr: format!("a:{id}"), host: "a".into(), driver: false }
}

#[test]
fn a_copy_is_absorbed_by_position() {
    let mut store = store();
    let up = task("up", 1, 0);
    let absorb = |store: &mut Store, from, byte, len| {
        store.absorb_copy(&up, Generation::NONE, LogOffset(from), &block(byte, len))
    };
    assert_eq!(absorb(&mut store, 0, 1, 10).unwrap(), Absorbed::At(0));
    assert_eq!(absorb(&mut store, 10, 2, 5).unwrap(), Absorbed::At(1));
    // Again, as it comes with every channel.
    absorb(&mut store, 0, 1, 10).unwrap();
    assert_eq!((store.end(&up), store.generation(&up)), (Some(LogOffset(15)), Some(Generation::NONE)));
    let gap = absorb(&mut store, 16, 3, 5);
    assert!(matches!(gap, Err(Error::LogGap { from: LogOffset(16), end: LogOffset(15) })), "{gap:?}");
    assert_eq!(store.end(&up), Some(LogOffset(15)));
    assert_eq!(absorb(&mut store, 15, 3, 1_000).unwrap(), Absorbed::NoRoom);
    assert_eq!(store.end(&up), Some(LogOffset(15)));
    check(&store, &[]);
}

#[test]
fn a_gap_at_the_beginning_of_a_copy_is_refused() {
    let mut store = store();
    let gap = store.absorb_copy(&task("up", 1, 0), Generation::NONE, LogOffset(3), &block(1, 5));
    assert!(matches!(gap, Err(Error::LogGap { .. })), "{gap:?}");
    assert!(!store.has_fresh(&epoch(1)));
    check(&store, &[]);
}

#[test]
fn a_fork_drops_the_copy_so_that_the_next_try_takes_the_new_one() {
    let mut store = store();
    let up = task("up", 1, 0);
    for (from, byte) in [(0, 1), (10, 2)] {
        store.absorb_copy(&up, Generation::NONE, LogOffset(from), &block(byte, 10)).unwrap();
    }
    let fork = store.absorb_copy(&up, Generation::NONE, LogOffset(0), &block(9, 10));
    assert!(matches!(fork, Err(Error::LogFork { at: LogOffset(0) })), "{fork:?}");
    assert_eq!((store.end(&up), store.memory_bytes), (None, 0));
    assert!(!store.holds(&epoch(1)));
    assert_eq!(
        store.absorb_copy(&up, Generation::NONE, LogOffset(0), &block(9, 10)).unwrap(),
        Absorbed::At(0)
    );
    assert_eq!(store.take_fresh(&epoch(1), |_| true), [up]);
    // Places of the dropped copy in the queue are not mistaken for the new one's.
    assert_eq!(bytes_of(&store.make_room(MEMORY)), [(task("up", 1, 0), vec![0])]);
}

#[test]
fn a_fork_with_a_frame_of_an_older_run_leaves_the_tasks_own_log_alone() {
    let mut store = store();
    let up = task("up", 1, 0);
    with_log(&mut store, &up, &[10]);
    let fork = store.absorb_copy(&up, Generation::NONE, LogOffset(0), &block(9, 10));
    assert!(matches!(fork, Err(Error::StaleFrame { .. })), "{fork:?}");
    assert_eq!(store.end(&up), Some(LogOffset(10)));
}

#[test]
fn that_one_holder_is_gone_says_nothing_of_a_newer_one() {
    let mut store = Store::new(1 << 20);
    let id = task("score", 1, 0);
    store.reopened(&id, Generation(2), at(2));
    store.reopened(&id, Generation(3), at(3));
    store.nobody_confirms(&id, Generation(2));
    let absorbed = store.absorb_copy(&id, Generation(9), LogOffset(0), &block(1, 5)).unwrap();
    assert_eq!(absorbed, Absorbed::Unconfirmed(Reopened { generation: Generation(3), at: at(3) }));
    store.nobody_confirms(&id, Generation(3));
    assert_eq!(store.absorb_copy(&id, Generation(9), LogOffset(0), &block(1, 5)).unwrap(), Absorbed::At(0));
}

#[test]
fn an_attempt_that_came_to_nothing_leaves_the_one_before() {
    let mut store = store();
    let up = task("up", 1, 0);
    let absorb =
        |store: &mut Store| store.absorb_copy(&up, Generation(9), LogOffset(0), &block(1, 5)).unwrap();
    store.reopened(&up, Generation(2), at(2));
    let before = Absorbed::Unconfirmed(Reopened { generation: Generation(2), at: at(2) });
    for drop in [Store::drop_reopened, Store::withdraw] {
        store.reopened(&up, Generation(3), at(3));
        drop(&mut store, &up, Generation(3));
        assert_eq!(absorb(&mut store), before);
    }
    assert!(store.has_withdrawn(&up, Generation(3)) && !store.has_withdrawn(&up, Generation(2)));
    // A discarded log is all that there was, but for what is newer.
    store.reopened(&up, Generation(4), at(4));
    store.forget(&up, Generation(2));
    assert_eq!(absorb(&mut store), Absorbed::Unconfirmed(Reopened { generation: Generation(4), at: at(4) }));
    store.forget(&up, Generation(4));
    assert_eq!(absorb(&mut store), Absorbed::At(0));
    store.fence(&up, Generation(6));
    store.forget(&up, Generation(5));
    assert_eq!(store.end(&up), Some(LogOffset(5)));
}

#[test]
fn what_an_attempt_confirmed_is_asked_again_if_a_newer_one_was_opened_since() {
    let mut store = store();
    let up = task("up", 1, 0);
    store.absorb_copy(&up, Generation(1), LogOffset(0), &block(1, 5)).unwrap();
    store.reopened(&up, Generation(2), at(2));
    assert_eq!(store.counting_at(&up, AgentId(2)), Some(Generation(2)));
    // Its answer is under way when the next is opened, which was told of the five bytes here.
    let told = store.reopened(&up, Generation(3), at(3)).unwrap();
    assert_eq!(told.end, LogOffset(5));
    let by = Generation(2);
    let late = store.absorb_confirmed(&up, by, Generation(1), LogOffset(5), &block(2, 5)).unwrap();
    assert_eq!(late, Absorbed::Unconfirmed(Reopened { generation: Generation(3), at: at(3) }));
    assert_eq!(store.end(&up), Some(LogOffset(5)));
    let by = Generation(3);
    store.absorb_confirmed(&up, by, Generation(1), LogOffset(5), &block(3, 5)).unwrap();
    assert_eq!(store.end(&up), Some(LogOffset(10)));
}

#[test]
fn what_was_absorbed_is_shared_once_unless_that_failed() {
    let mut store = store();
    let (a, b, other) = (task("up", 1, 0), task("up", 1, 1), task("up", 2, 0));
    for (number, task) in [&b, &a, &other].into_iter().enumerate() {
        store.absorb_copy(task, Generation::NONE, LogOffset(0), &block(number as u8, 5)).unwrap();
    }
    assert!(store.has_fresh(&epoch(1)));
    let taken = store.take_fresh(&epoch(1), |_| true);
    assert_eq!(taken, [a.clone(), b.clone()]);
    assert!(!store.has_fresh(&epoch(1)) && store.has_fresh(&epoch(2)));
    assert_eq!(store.take_fresh(&epoch(1), |_| true), []);
    // Nothing new came, so nothing is to be shared.
    store.absorb_copy(&a, Generation::NONE, LogOffset(0), &block(1, 5)).unwrap();
    assert!(!store.has_fresh(&epoch(1)));
    store.not_shared(&epoch(1), taken);
    store.absorb_copy(&b, Generation::NONE, LogOffset(5), &block(8, 5)).unwrap();
    assert_eq!(store.take_fresh(&epoch(1), |_| true), [a, b]);
}

#[test]
fn a_task_that_is_opened_here_records_on_a_copy_but_its_own_blocks_are_not_fresh() {
    let mut store = store();
    let up = task("up", 1, 0);
    store.absorb_copy(&up, Generation::NONE, LogOffset(0), &block(1, 5)).unwrap();
    store.take_fresh(&epoch(1), |_| true);
    store.reopen(&up, Generation(4), LAYOUT).unwrap();
    store.absorb(&up, Generation(4), LogOffset(5), &block(2, 5)).unwrap();
    assert!(!store.has_fresh(&epoch(1)));
    // A frame asks no fence.
    store.absorb_copy(&up, Generation::NONE, LogOffset(10), &block(3, 5)).unwrap();
    assert_eq!(store.generation(&up), Some(Generation(4)));
    assert!(store.has_fresh(&epoch(1)));
}

#[test]
fn of_a_stale_copy_what_was_the_same_stays() {
    let mut store = store();
    let (up, nobody) = (task("up", 1, 0), Generation::NONE);
    for (from, byte) in [(0, 1), (10, 2), (20, 3)] {
        store.absorb_copy(&up, nobody, LogOffset(from), &block(byte, 10)).unwrap();
    }
    let taken = |store: &Store, end| store.taken(&up, None, LogOffset(end)).unwrap();
    let (shown, stale) = (taken(&store, 20), taken(&store, 30));
    store.take_fresh(&epoch(1), |_| true);
    let before = store.version(&up);
    store.drop_stale(&up, before, LogOffset(20));
    assert_eq!((store.end(&up), store.memory_bytes), (Some(LogOffset(20)), 20));
    assert!(store.has(&up, &shown) && !store.has(&up, &stale), "who took in more of it is told");
    // It was a copy that is gone.
    store.drop_stale(&up, before, LogOffset(0));
    assert_eq!(store.end(&up), Some(LogOffset(20)));
    store.absorb_copy(&up, nobody, LogOffset(20), &block(4, 10)).unwrap();
    assert_eq!(
        store.take_fresh(&epoch(1), |_| true),
        std::slice::from_ref(&up),
        "what takes its place is news"
    );
    let all = store.make_room(MEMORY);
    assert_eq!(bytes_of(&all), [(up.clone(), vec![0, 1, 2])]);
    spill(&mut store, all);
    assert_eq!((store.memory_bytes, store.stats().spilled_bytes), (0, 30));
    let version = store.version(&up);
    store.drop_stale(&up, version, LogOffset(10));
    assert_eq!((store.memory_bytes, store.stats().spilled_bytes), (0, 10));
    check(&store, &[]);
}
