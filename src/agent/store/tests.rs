//! The store: copies, what is spilled when, and that it knows how much memory it uses.

mod absorbing;
mod committing;
mod copying;

use proptest::prelude::*;

use super::*;
use crate::agent::protocol::{Beginning, Borders, Code, Fence};
use crate::config::SpillPolicy;
use crate::id::{AgentId, Epoch, Partition};

const CODE: Code = Code { fingerprint: 0, python: 0 };
const LAYOUT: Layout =
    Layout { app: 1, stage: 2, tasks: Some(3), code: CODE, plan: None, borders: Borders::UNKNOWN };
const MEMORY: u64 = 1_000;

fn task(operator: &str, epoch: u64, partition: u32) -> TaskId {
    TaskId {
        query: "orders".into(),
        operator: operator.into(),
        epoch: Epoch::Batch(epoch),
        partition: Partition(partition),
    }
}

fn epoch(number: u64) -> EpochKey {
    task("up", number, 0).epoch_key()
}

fn block(byte: u8, len: usize) -> Bytes {
    Bytes::from(vec![byte; len])
}

/// One whose blocks take nothing but their bytes.
fn store() -> Store {
    Store { besides: (0, 0, 0), ..Store::new(MEMORY) }
}

/// A log that is there, with blocks of these lengths.
fn with_log(store: &mut Store, task: &TaskId, blocks: &[usize]) {
    store.begin(task, Generation(1), LAYOUT).unwrap();
    for len in blocks {
        let from = store.end(task).unwrap();
        let absorbed = store.absorb(task, Generation(1), from, &block(7, *len)).unwrap();
        assert!(matches!(absorbed, Absorbed::At(_)));
    }
}

fn bytes_of(victims: &[Victims]) -> Vec<(TaskId, Vec<usize>)> {
    let blocks = |victims: &Victims| victims.blocks.iter().map(|(index, _)| *index).collect();
    victims.iter().map(|victims| (victims.task.clone(), blocks(victims))).collect()
}

fn spill(store: &mut Store, all: Vec<Victims>) {
    for victims in all {
        let place = |(index, block): &(usize, Bytes)| SpillRef {
            file: 9,
            pos: *index as u64,
            len: block.len() as u32,
        };
        let places: Vec<_> = victims.blocks.iter().map(place).collect();
        store.spilled(&victims, &places);
    }
}

/// What the store says of its memory is what its logs say, and each block in memory can be spilled.
fn check(store: &Store, under_way: &[Victims]) {
    let sum = |only_frames: bool| -> u64 {
        let logs = store.held.iter().filter(|(task, _)| !only_frames || task.is_in_flight());
        logs.map(|(_, held)| held.log.memory_bytes()).sum()
    };
    assert_eq!(store.memory_bytes, sum(false));
    assert_eq!(store.in_flight_bytes(), sum(true));
    let stats = store.stats();
    assert_eq!(stats.memory_bytes, sum(false) + store.list_bytes());
    assert_eq!(store.blocks, store.held.values().map(|held| held.log.count() as u64).sum::<u64>());
    assert_eq!(stats.spilled_bytes, stats.held.iter().map(|held| held.spilled).sum::<u64>());
    for (task, held) in &store.held {
        for (index, found) in held.log.blocks(LogOffset::START).iter().enumerate() {
            let place = (held.version, index);
            let leaves = |v: &&Victims| v.version == held.version && v.blocks.iter().any(|b| b.0 == index);
            let queued = store.queue.iter().filter(|queued| **queued == place).count();
            let known = queued + under_way.iter().filter(leaves).count();
            let wanted = usize::from(matches!(found.place, Place::Memory(_)));
            // A block that became durable while it was written is gone already.
            assert!(known == wanted || wanted == 0, "block {index} of {task} waits {known} times");
        }
    }
}

#[test]
fn a_block_that_is_here_already_stands_where_it_stood() {
    let mut store = store();
    let up = task("up", 1, 0);
    with_log(&mut store, &up, &[10, 20, 30]);
    for (from, index, len) in [(0, 0, 10), (10, 1, 20), (30, 2, 30)] {
        let again = store.absorb(&up, Generation(1), LogOffset(from), &block(7, len)).unwrap();
        assert_eq!(again, Absorbed::At(index));
    }
}

#[test]
fn what_lists_of_blocks_take_is_no_room_for_blocks() {
    const ALL: u64 = 100 * (LISTED + QUEUED);
    let (mut store, up) = (Store::new(ALL), task("up", 1, 0));
    store.begin(&up, Generation(1), LAYOUT).unwrap();
    let add = |store: &mut Store, bytes: u64| {
        let from = store.end(&up).unwrap();
        let block = block(7, bytes as usize);
        while store.absorb(&up, Generation(1), from, &block).unwrap() == Absorbed::NoRoom {
            let victims = store.make_room(bytes);
            assert!(!victims.is_empty(), "nothing would ever find room");
            spill(store, victims);
        }
    };
    for blocks in 1..=150 {
        add(&mut store, LISTED);
        let most = ALL + LISTED + QUEUED;
        assert!(store.stats().memory_bytes <= most, "{blocks} blocks");
        check(&store, &[]);
    }
    // With more than fit, blocks go on being taken, one after the other; also one that is larger than what is left.
    (150..500).for_each(|_| add(&mut store, LISTED));
    add(&mut store, ALL / 2);
    check(&store, &[]);
    store.commit(&epoch(1), Generation(2));
    assert_eq!(store.stats().memory_bytes, 0);
}

#[test]
fn lists_of_blocks_take_no_more_than_all_there_is() {
    const MIB: u64 = 1 << 20;
    for (memory, most) in [(8, 32), (64, 56)] {
        let mut store = Store { besides: (MIB, 0, 0), ..Store::new(memory * MIB) };
        let up = task("up", 1, 0);
        store.begin(&up, Generation(1), LAYOUT).unwrap();
        store.complete(&up, Generation(1));
        let mut add = |at: u64| store.absorb(&up, Generation(1), LogOffset(8 * at), &block(7, 8));
        assert!((0..=most).all(|at| add(at).is_ok()));
        let refused = add(most + 1).unwrap_err();
        assert!(refused.to_string().contains("raise `memory`"), "{refused}");
        assert!(add(most).is_ok(), "it is here already");
        check(&store, &[]);
    }
}

#[test]
fn what_is_found_of_a_log_is_taken_over_however_many_blocks_there_are() {
    const MIB: u64 = 1 << 20;
    let mut store = Store { besides: (MIB, 0, 0), ..Store::new(8 * MIB) };
    let (up, found, live) = (task("up", 1, 0), task("up", 1, 1), task("up", 1, 2));
    let hold = |store: &mut Store, task: &TaskId| {
        let from = store.end(task).unwrap();
        store.absorb(task, Generation(1), from, &block(7, 8))
    };
    for task in [&up, &found] {
        store.begin(task, Generation(1), LAYOUT).unwrap();
        (0..40).for_each(|_| drop(hold(&mut store, task).unwrap()));
        store.complete(task, Generation(1));
    }
    // They keep nothing else from being recorded, as they did where they were.
    store.begin(&live, Generation(1), LAYOUT).unwrap();
    store.complete(&live, Generation(1));
    assert!((0..=32).all(|_| hold(&mut store, &live).is_ok()));
    for task in [&live, &up] {
        assert!(matches!(hold(&mut store, task), Err(Error::ListBudget { .. })));
    }
    check(&store, &[]);
    store.commit(&epoch(1), Generation(2));
    store.begin(&live, Generation(3), LAYOUT).unwrap();
    store.complete(&live, Generation(3));
    let add = |store: &mut Store| {
        let from = store.end(&live).unwrap();
        store.absorb(&live, Generation(3), from, &block(7, 8)).is_ok()
    };
    assert_eq!((0..40).filter(|_| add(&mut store)).count(), 33);
}

#[test]
fn a_discarded_log_goes_with_its_frames() {
    let mut store = store();
    let score = task("score", 1, 0);
    with_log(&mut store, &score, &[10]);
    with_log(&mut store, &score.in_flight(), &[20]);
    with_log(&mut store, &task("score", 1, 1), &[5]);
    store.forget(&score, Generation(0));
    assert!(store.end(&score).is_some(), "that was an older attempt's");
    store.forget(&score, Generation(1));
    assert_eq!((store.memory_bytes, store.in_flight_bytes()), (5, 0));
    assert_eq!(store.end(&score.in_flight()), None);
    check(&store, &[]);
    // The next attempt's frames are absorbed, and the request comes once more.
    store.absorb_copy(&score, Generation(2), LogOffset::START, &block(1, 10)).unwrap();
    store.forget(&score, Generation(1));
    assert_eq!(store.end(&score), Some(LogOffset(10)));
}

/// Causal logs and frames of epochs 1 and 2, block by block in turn, 500 bytes of each kind.
fn mixed() -> Store {
    let mut store = Store { memory_bytes_max: 2_000, ..store() };
    for _ in 0..5 {
        for number in [1, 2] {
            for task in [task("score", number, 0), task("score", number, 0).in_flight()] {
                let from = store.end(&task);
                if from.is_none() {
                    store.begin(&task, Generation(1), LAYOUT).unwrap();
                }
                store.absorb(&task, Generation(1), from.unwrap_or_default(), &block(1, 50)).unwrap();
            }
        }
    }
    store
}

fn frames_log(number: u64) -> TaskId {
    task("score", number, 0).in_flight()
}

#[test]
fn without_an_in_flight_log_nothing_is_due() {
    assert!(mixed().overdue(SpillPolicy::Off, Some(&epoch(9))).is_empty());
}

#[test]
fn eager_spilling_moves_all_frames_and_nothing_else() {
    let mut store = mixed();
    let victims = store.overdue(SpillPolicy::Eager, None);
    let moved: u64 = victims.iter().flat_map(|v| &v.blocks).map(|(_, block)| block.len() as u64).sum();
    assert_eq!(moved, 500);
    assert!(victims.iter().all(|victims| victims.task.is_in_flight()));
    check(&store, &victims);
    assert!(store.overdue(SpillPolicy::Eager, None).is_empty(), "they are under way");
    spill(&mut store, victims);
    assert_eq!((store.memory_bytes, store.in_flight_bytes()), (500, 0));
    check(&store, &[]);
    // What is left can still be spilled when memory runs out, oldest first.
    let rest = store.make_room(2_000);
    assert_eq!(rest[0].task, task("score", 1, 0));
}

#[test]
fn frames_of_earlier_epochs_are_due_when_a_later_one_has_begun() {
    let mut store = mixed();
    for newest in [None, Some(epoch(0)), Some(epoch(1))] {
        assert!(store.overdue(SpillPolicy::Epoch, newest.as_ref()).is_empty());
    }
    let other = EpochKey { query: "other".into(), epoch: Epoch::Batch(5) };
    assert!(store.overdue(SpillPolicy::Epoch, Some(&other)).is_empty());
    let victims = store.overdue(SpillPolicy::Epoch, Some(&epoch(2)));
    assert_eq!(bytes_of(&victims), [(frames_log(1), vec![0, 1, 2, 3, 4])]);
    spill(&mut store, victims);
    check(&store, &[]);
    assert_eq!(store.in_flight_bytes(), 250);
    assert_eq!(
        bytes_of(&store.overdue(SpillPolicy::Epoch, Some(&epoch(3)))),
        [(frames_log(2), vec![0, 1, 2, 3, 4])]
    );
}

#[test]
fn frames_are_due_by_availability_above_half_of_the_memory_down_to_a_quarter() {
    let mut store = mixed();
    assert!(!store.is_half_full());
    assert!(store.overdue(SpillPolicy::Availability, None).is_empty());
    with_log(&mut store, &task("score", 3, 0), &[50]);
    assert!(store.is_half_full());
    let victims = store.overdue(SpillPolicy::Availability, None);
    // 1,050 bytes: all 500 of frames leave, more than that has to stay.
    let moved: usize = victims.iter().map(|victims| victims.blocks.len()).sum();
    assert_eq!(moved, 10);
    assert_eq!(bytes_of(&victims)[0], (frames_log(1), vec![0]));
    spill(&mut store, victims);
    check(&store, &[]);

    let mut frames = Store { memory_bytes_max: 2_000, ..self::store() };
    with_log(&mut frames, &frames_log(1), &[100; 11]);
    let victims = frames.overdue(SpillPolicy::Availability, None);
    assert_eq!(bytes_of(&victims), [(frames_log(1), vec![0, 1, 2, 3, 4, 5])]);
    spill(&mut frames, victims);
    assert_eq!(frames.memory_bytes, 500);
    check(&frames, &[]);
}

#[test]
fn a_place_in_a_segment_is_not_taken_for_a_log_that_was_begun_anew() {
    let mut store = store();
    with_log(&mut store, &frames_log(1), &[100]);
    let before = store.version(&frames_log(1));
    // Another attempt begins its own log while the block is on its way to disk.
    with_log(&mut store, &frames_log(1), &[100]);
    store.durable(&frames_log(1), before, 0, SpillRef { file: 1, pos: 0, len: 100 });
    assert!(!store.is_durable(&frames_log(1)), "the block of another log would be read back");
}

#[test]
fn frames_that_stand_in_a_segment_leave_memory_without_being_written() {
    let mut store = store();
    with_log(&mut store, &frames_log(1), &[100, 100]);
    let version = store.version(&frames_log(1));
    store.durable(&frames_log(1), version, 0, SpillRef { file: 1, pos: 0, len: 100 });
    let victims = store.overdue(SpillPolicy::Eager, None);
    assert_eq!(bytes_of(&victims), [(frames_log(1), vec![1])]);
    assert_eq!(store.in_flight_bytes(), 100);
    store.not_spilled(&victims[0]);
    check(&store, &[]);
    assert_eq!(bytes_of(&store.overdue(SpillPolicy::Eager, None)), [(frames_log(1), vec![1])]);
}

#[test]
fn a_recovered_log_in_place_of_one_in_memory_frees_it() {
    let mut store = store();
    let score = task("score", 1, 0);
    with_log(&mut store, &score, &[100]);
    store.recovered(
        &score,
        Generation(2),
        LAYOUT,
        [(SpillRef { file: 1, pos: 0, len: 100 }, BlockHash::of(b""))],
    );
    check(&store, &[]);
}

/// One thing that happens to a store; numbers choose among what there is.
#[derive(Debug, Clone)]
enum Op {
    Begin(usize, u64),
    Reopen(usize, u64),
    Fence(usize, u64),
    Absorb(usize, u8, usize),
    AbsorbCopy(usize, u8, usize),
    Again(usize, usize, bool),
    Durable(usize, usize),
    MakeRoom(u64),
    Overdue(SpillPolicy, u64),
    Spilled(usize),
    NotSpilled(usize),
    Forget(usize, u64),
    Recovered(usize, usize),
    Commit(u64, u64),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let policies = vec![SpillPolicy::Availability, SpillPolicy::Eager, SpillPolicy::Epoch, SpillPolicy::Off];
    let log = 0_usize..8;
    let op = prop_oneof![
        3 => (log.clone(), 0_u64..5).prop_map(|(log, generation)| Op::Begin(log, generation)),
        1 => (log.clone(), 0_u64..5).prop_map(|(log, generation)| Op::Reopen(log, generation)),
        1 => (log.clone(), 0_u64..5).prop_map(|(log, generation)| Op::Fence(log, generation)),
        9 => (log.clone(), 0_u8..2, 1_usize..300).prop_map(|(log, byte, len)| Op::Absorb(log, byte, len)),
        9 => (log.clone(), 0_u8..2, 1_usize..300).prop_map(|(log, byte, len)| Op::AbsorbCopy(log, byte, len)),
        3 => (log.clone(), 0_usize..6, any::<bool>()).prop_map(|(log, at, forks)| Op::Again(log, at, forks)),
        3 => (log.clone(), 0_usize..6).prop_map(|(log, index)| Op::Durable(log, index)),
        3 => (0_u64..1_200).prop_map(Op::MakeRoom),
        3 => (prop::sample::select(policies), 0_u64..3)
            .prop_map(|(policy, newest)| Op::Overdue(policy, newest)),
        4 => (0_usize..4).prop_map(Op::Spilled),
        2 => (0_usize..4).prop_map(Op::NotSpilled),
        1 => (log.clone(), 0_u64..5).prop_map(|(log, generation)| Op::Forget(log, generation)),
        1 => (log, 0_usize..4).prop_map(|(log, blocks)| Op::Recovered(log, blocks)),
        1 => (0_u64..3, 0_u64..6).prop_map(|(epoch, below)| Op::Commit(epoch, below)),
    ];
    prop::collection::vec(op, 0..120)
}

/// Causal logs and frames of two partitions in two epochs.
fn log_of(number: usize) -> TaskId {
    let task = task("score", number as u64 / 4, number as u32 / 2 % 2);
    if number.is_multiple_of(2) { task } else { task.in_flight() }
}

fn apply(store: &mut Store, under_way: &mut Vec<Victims>, op: &Op) {
    match *op {
        Op::Begin(log, generation) => drop(store.begin(&log_of(log), Generation(generation), LAYOUT)),
        Op::Reopen(log, generation) => drop(store.reopen(&log_of(log), Generation(generation), LAYOUT)),
        Op::Fence(log, generation) => drop(store.fence(&log_of(log), Generation(generation))),
        Op::Absorb(log, byte, len) => {
            let from = store.end(&log_of(log)).unwrap_or_default();
            drop(store.absorb(&log_of(log), Generation(4), from, &block(byte, len)));
        }
        Op::AbsorbCopy(log, byte, len) => {
            let from = store.end(&log_of(log)).unwrap_or_default();
            match store.absorb_copy(&log_of(log), Generation::NONE, from, &block(byte, len)) {
                // Of an epoch that was committed.
                Ok(_) | Err(Error::Fenced { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        Op::Again(log, at, forks) => {
            let blocks = store.piece(&log_of(log), LogOffset::START).unwrap_or_default();
            let Some(found) = blocks.get(at) else { return };
            let (from, len) = (found.offset, found.bytes() as usize + usize::from(forks));
            drop(store.absorb_copy(&log_of(log), Generation::NONE, from, &block(0, len)));
        }
        Op::Durable(log, index) => {
            let blocks = store.piece(&log_of(log), LogOffset::START).unwrap_or_default();
            let Some(found) = blocks.get(index) else { return };
            let version = store.version(&log_of(log));
            store.durable(
                &log_of(log),
                version,
                index,
                SpillRef { file: 1, pos: 0, len: found.bytes() as u32 },
            );
        }
        Op::MakeRoom(bytes) => under_way.extend(store.make_room(bytes)),
        Op::Overdue(policy, newest) => under_way.extend(store.overdue(policy, Some(&epoch(newest)))),
        Op::Spilled(at) if at < under_way.len() => {
            let victims = under_way.swap_remove(at);
            spill(store, vec![victims]);
        }
        Op::NotSpilled(at) if at < under_way.len() => store.not_spilled(&under_way.swap_remove(at)),
        Op::Spilled(_) | Op::NotSpilled(_) => {}
        Op::Forget(log, generation) => store.forget(&log_of(log), Generation(generation)),
        Op::Recovered(log, blocks) => {
            // At the start, before anything else is here.
            if store.end(&log_of(log)).is_none() {
                let place = |pos| SpillRef { file: 2, pos, len: 40 };
                store.recovered(
                    &log_of(log),
                    Generation(1),
                    LAYOUT,
                    (0..blocks as u64).map(|at| (place(at), BlockHash::of(b""))),
                );
            }
        }
        Op::Commit(number, below) => {
            store.commit(&epoch(number), Generation(below));
            assert!(store.fresh.values().flatten().all(|task| store.held.contains_key(task)));
        }
    }
}

proptest! {
    #[test]
    fn the_store_knows_what_it_holds_in_memory_whatever_happens(ops in ops()) {
        let (mut store, mut under_way) = (store(), Vec::new());
        for op in &ops {
            apply(&mut store, &mut under_way, op);
            check(&store, &under_way);
            prop_assert!(store.memory_bytes <= MEMORY);
        }
        under_way.drain(..).for_each(|victims| store.not_spilled(&victims));
        let rest = store.make_room(u64::MAX);
        spill(&mut store, rest);
        check(&store, &[]);
        prop_assert_eq!((store.memory_bytes, store.in_flight_bytes()), (0, 0));
    }
}
