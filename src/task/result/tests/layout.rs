//! Scenarios of another layout: rows of one task are in the logs of others.

use super::*;

fn other_layout() -> TaskOptions {
    TaskOptions { layout_changed: true, ..result_options() }
}

/// The log of another partition: values from 10.
fn pool(rows: &[&str]) -> Vec<(Partition, Vec<Bytes>)> {
    let mut attempt = Attempt::new(Vec::new(), 10);
    attempt.run(&words(rows)).unwrap();
    vec![(Partition(5), attempt.log)]
}

#[test]
fn rows_recorded_by_other_partitions_are_found_in_the_pool_and_copied() {
    let mut second = Attempt::with(other_layout(), recorded(&[&["a", "b"]]), 100);
    let plan = second.task.offer(&[words(&["d", "b", "x", "c"])]).unwrap();
    assert!(plan.needs_pool);
    assert_eq!(plan.live, [0, 2, 3]);
    second.task.supply_pool(pool(&["c", "d"])).unwrap();
    let plan = second.task.look_again(plan).unwrap();
    assert!(!plan.needs_pool);
    assert_eq!(plan.live, [2]);
    assert_eq!(second.complete(plan).unwrap(), [11, 2, 100, 10]);
    // "a" went to another task: nothing is missing.
    let summary = second.finish().unwrap();
    assert_eq!((summary.from_pool, summary.replayed, summary.live, summary.leftover), (2, 3, 1, 1));

    // The copies are in this task's own log: the third attempt needs no pool.
    let mut third = Attempt::with(other_layout(), second.log, 1000);
    assert_eq!(third.run(&words(&["c", "x", "d", "b"])).unwrap(), [10, 100, 11, 2]);
}

#[test]
fn a_pool_is_not_asked_for_when_everything_is_in_the_own_log() {
    let mut second = Attempt::with(other_layout(), recorded(&[&["a", "b"]]), 100);
    let plan = second.task.offer(&[words(&["b"])]).unwrap();
    assert!(!plan.needs_pool);
    assert_eq!(second.complete(plan).unwrap(), [2]);
    assert_eq!(second.finish().unwrap().leftover, 1);
}

#[test]
fn own_log_and_pool_are_one_bag_for_ambiguity() {
    let mut second = Attempt::with(other_layout(), recorded(&[&["a"]]), 100);
    second.task.supply_pool(pool(&["a"])).unwrap();
    assert_diverged(second.run(&words(&["a"])), Kind::AmbiguousRows, Some(0));
}

#[test]
fn a_pool_supplied_under_the_same_layout_is_searched_after_the_own_log() {
    let mut second = Attempt::new(recorded(&[&["a", "b"]]), 100);
    second.task.supply_pool(pool(&["c", "d"])).unwrap();
    assert_eq!(second.run(&words(&["a", "b", "d", "e"])).unwrap(), [1, 2, 11, 100]);
    let summary = second.finish().unwrap();
    assert_eq!((summary.from_pool, summary.leftover), (1, 0));
}

#[test]
fn a_batch_taken_whole_from_the_pool_is_recorded_whole() {
    let mut second = Attempt::with(other_layout(), Vec::new(), 100);
    second.task.supply_pool(pool(&["c", "d"])).unwrap();
    assert_eq!(second.run(&words(&["c", "d"])).unwrap(), [10, 11]);
    let mut third = Attempt::new(second.log, 1000);
    assert_eq!(third.run(&words(&["c", "d"])).unwrap(), [10, 11]);
    assert_eq!(third.finish().unwrap().from_pool, 0);
}

#[test]
fn a_pool_recorded_by_other_code_is_refused() {
    let options = TaskOptions { code: 0xbeef, ..other_layout() };
    let mut second = Attempt::with(options, Vec::new(), 100);
    assert_diverged(second.task.supply_pool(pool(&["c"])), Kind::CodeChanged, None);
}

#[test]
fn a_damaged_log_is_an_error_and_no_panic() {
    let mut log = recorded(&[&["a", "b"]]);
    let mut bytes = log.remove(0).to_vec();
    *bytes.last_mut().unwrap() ^= 1;
    let error = ResultTask::new(result_options(), vec![bytes.into()], true).unwrap_err();
    assert_eq!(error.condition(), "CORRUPT_BLOCK");

    let mut builder = BlockBuilder::new();
    builder.push(&header::ours(&result_options())).unwrap();
    builder.push_time(5);
    let error = ResultTask::new(result_options(), vec![builder.finish()], true).unwrap_err();
    assert_eq!(error.condition(), "CORRUPT_LOG");

    builder.push_results(&[1, 2], &encode_results(&numbers([7])).unwrap()).unwrap();
    let headless = builder.finish();
    let error = ResultTask::new(result_options(), vec![headless.clone()], true).unwrap_err();
    assert_eq!(error.condition(), "CORRUPT_LOG");

    builder.push(&header::ours(&result_options())).unwrap();
    let log = vec![builder.finish(), headless];
    let mut task = ResultTask::new(result_options(), log, true).unwrap();
    let plan = task.offer_fingerprints(vec![1]).unwrap();
    assert_eq!(task.complete(plan, None).unwrap_err().condition(), "CORRUPT_LOG");
}
