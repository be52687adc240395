//! Properties over random histories: attempts that die anywhere, inputs that are cut and ordered
//! anew.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use proptest::prelude::*;

use super::fixtures::{Attempt, numbers, options};
use super::{CallDecision, ServiceTask, TaskMode};

const CASES: u32 = 300;

/// Cuts `rows` into batches of the given sizes, again and again until they are used up.
fn batches<'a>(rows: &'a [u64], sizes: &'a [usize]) -> impl Iterator<Item = &'a [u64]> {
    let mut rest = rows;
    sizes.iter().cycle().map_while(move |&size| {
        let (batch, after) = rest.split_at(size.min(rest.len()));
        rest = after;
        (!batch.is_empty()).then_some(batch)
    })
}

/// Input orders of the attempts (permutations of one set of unique rows), batch sizes of each, and
/// after how many published blocks each dies.
fn history() -> impl Strategy<Value = Vec<(Vec<u64>, Vec<usize>, usize)>> {
    let rows: Vec<u64> = (0..60).collect();
    (1..60_usize, 1..5_usize).prop_flat_map(move |(count, attempts)| {
        let rows = rows.get(..count).unwrap_or_default().to_vec();
        let order = prop_oneof![Just(rows.clone()), Just(rows).prop_shuffle()];
        let sizes = prop::collection::vec(1..20_usize, 1..4);
        prop::collection::vec((order, sizes, 0..12_usize), attempts + 1)
    })
}

/// Runs a batch; returns the values, having asserted that live calls are exactly the unrecorded
/// rows.
fn result_batch(attempt: &mut Attempt, batch: &[u64], known: &HashMap<u64, i64>) -> Vec<i64> {
    let plan = attempt.task.offer(&[numbers(batch.iter().map(|&r| r.cast_signed()))]).unwrap();
    let live: Vec<u64> = plan.live.iter().map(|&i| batch[i as usize]).collect();
    let unrecorded: Vec<u64> = batch.iter().copied().filter(|r| !known.contains_key(r)).collect();
    assert_eq!(live, unrecorded);
    attempt.complete(plan).unwrap()
}

/// What attempts of a services task left behind.
#[derive(Debug, Default)]
struct Published {
    log: Vec<Bytes>,
    /// Outcome per row and call ordinal.
    known: HashMap<(u64, u64), Bytes>,
}

impl Published {
    /// Publishes what is new, unless the attempt's `lives` are used up: then it has died.
    fn publish(
        &mut self,
        task: &mut ServiceTask,
        fresh: &mut Vec<((u64, u64), Bytes)>,
        lives: &mut usize,
    ) -> bool {
        let Some(left) = lives.checked_sub(1) else {
            return false;
        };
        *lives = left;
        self.log.extend(task.take_block());
        self.known.extend(fresh.drain(..));
        true
    }
}

/// Calls a service as a function would; says whether it went live, having asserted that it did
/// exactly if the call is not known.
fn service_call(
    task: &mut ServiceTask,
    place: (u64, u64),
    value: Bytes,
    known: &HashMap<(u64, u64), Bytes>,
) -> bool {
    match task.call(place.1).unwrap() {
        CallDecision::Replayed { ok, value } => {
            assert_eq!((ok, Some(&value)), (true, known.get(&place)));
            false
        }
        CallDecision::Live => {
            assert_eq!(known.get(&place), None, "a recorded call was made again");
            task.record_call(place.1, true, value).unwrap();
            true
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(CASES))]

    #[test]
    fn every_recorded_row_gets_its_value_and_only_the_others_run(history in history()) {
        let mut log = Vec::new();
        let mut known: HashMap<u64, i64> = HashMap::new();
        let last = history.len() - 1;
        for (number, (rows, sizes, blocks)) in history.iter().enumerate() {
            let first_value = i64::try_from(number).unwrap() * 1000;
            let mut attempt = Attempt::new(log.clone(), first_value);
            for (i, batch) in batches(rows, sizes).enumerate() {
                if number < last && i == *blocks {
                    break;
                }
                let values = result_batch(&mut attempt, batch, &known);
                for (row, value) in batch.iter().zip(values) {
                    prop_assert_eq!(*known.entry(*row).or_insert(value), value);
                }
            }
            if number == last {
                let summary = attempt.finish().unwrap();
                prop_assert_eq!((summary.rows, summary.leftover), (rows.len() as u64, 0));
            }
            log = attempt.log;
        }
    }

    #[test]
    fn services_answer_each_call_as_before(
        history in history(),
        calls in 0..4_u64,
        flush_call in any::<bool>(),
    ) {
        let mut published = Published::default();
        let last = history.len() - 1;
        for (number, (rows, sizes, publishes)) in history.iter().enumerate() {
            let log = published.log.clone();
            let mut task = ServiceTask::new(options(TaskMode::Services), log, true).unwrap();
            let mut lives = if number == last { usize::MAX } else { *publishes };
            let mut fresh = Vec::new();
            'attempt: for batch in batches(rows, sizes) {
                for &row in batch {
                    task.begin_row(row).unwrap();
                    for ordinal in 0..calls {
                        let place = (row, ordinal);
                        let value = Bytes::from(format!("{number}/{row}/{ordinal}"));
                        if service_call(&mut task, place, value.clone(), &published.known) {
                            fresh.push((place, value));
                        }
                        // Dies right after a publish, or on the way to the next.
                        if flush_call && !published.publish(&mut task, &mut fresh, &mut lives) {
                            break 'attempt;
                        }
                    }
                }
                if !published.publish(&mut task, &mut fresh, &mut lives) {
                    break 'attempt;
                }
            }
            if number == last {
                prop_assert_eq!(task.finish().unwrap().leftover, 0);
            }
        }
    }

    #[test]
    fn random_bytes_as_a_log_never_panic(
        blocks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..80), 0..3),
    ) {
        let blocks: Vec<Bytes> = blocks.into_iter().map(Bytes::from).collect();
        let empty = blocks.is_empty();
        let result = Attempt::try_with(options(TaskMode::Result), blocks.clone(), 1);
        prop_assert_eq!(result.is_ok(), empty);
        prop_assert_eq!(ServiceTask::new(options(TaskMode::Services), blocks, true).is_ok(), empty);
    }

    #[test]
    fn repeated_rows_of_a_deterministic_function_never_diverge(
        rows in prop::collection::vec(0..6_i64, 1..40),
        shuffled in prop::collection::vec(any::<prop::sample::Index>(), 40),
        cut in 0..40_usize,
    ) {
        let mut first = Attempt::new(Vec::new(), 0);
        let head = rows.get(..cut.min(rows.len())).unwrap_or_default();
        let plan = first.task.offer(&[numbers(head.iter().copied())]).unwrap();
        first.task.complete(plan, Some(numbers(head.iter().copied()))).unwrap();
        let log: Vec<Bytes> = first.task.take_block().into_iter().collect();
        let mut order = rows.clone();
        for (i, at) in shuffled.iter().take(rows.len()).enumerate() {
            order.swap(i, at.index(rows.len()));
        }
        let mut second = Attempt::new(log, 0);
        let plan = second.task.offer(&[numbers(order.iter().copied())]).unwrap();
        prop_assert_eq!(plan.replayed, head.len());
        let live: Vec<i64> = plan.live.iter().map(|&i| order[i as usize]).collect();
        let out = second.task.complete(plan, Some(numbers(live))).unwrap();
        prop_assert_eq!(super::fixtures::values(&out), order);
        prop_assert_eq!(second.finish().unwrap().leftover, 0);
    }
}

#[test]
fn batches_cover_all_rows_once() {
    let rows: Vec<u64> = (0..10).collect();
    let cut: Vec<&[u64]> = batches(&rows, &[3, 4]).collect();
    assert_eq!(cut.iter().map(|b| b.len()).collect::<Vec<_>>(), [3, 4, 3]);
    assert_eq!(cut.concat().into_iter().collect::<HashSet<_>>().len(), 10);
}
