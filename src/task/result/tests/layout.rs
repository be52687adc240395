//! Scenarios of another layout: rows of one task are in the logs of others.

use super::*;

fn other_layout() -> TaskOptions {
    TaskOptions { layout_changed: true, ..result_options() }
}

/// The rows of another partition: values from 10.
fn others(rows: &[&str]) -> Others {
    let mut attempt = Attempt::new(Vec::new(), 10);
    attempt.run(&words(rows)).unwrap();
    Others::of(&attempt.log, &result_options())
}

#[test]
fn rows_that_other_partitions_recorded_are_found_and_copied() {
    let mut second = Attempt::with(other_layout(), recorded(&[&["a", "b"]]), 100);
    second.others = others(&["c", "d", "b2"]);
    let plan = second.find(&words(&["d", "b", "x", "c"])).unwrap();
    assert_eq!(plan.live, [2]);
    assert_eq!(second.complete(plan).unwrap(), [11, 2, 100, 10]);
    // "a" went to another task: nothing is missing.
    let summary = second.finish().unwrap();
    assert_eq!((summary.from_pool, summary.replayed, summary.live, summary.leftover), (2, 3, 1, 1));

    // The copies are in this task's own log: the third attempt finds them there.
    let mut third = Attempt::with(other_layout(), second.log, 1000);
    assert_eq!(third.run(&words(&["c", "x", "d", "b"])).unwrap(), [10, 100, 11, 2]);
}

#[test]
fn own_rows_and_those_of_others_are_one_bag_for_ambiguity() {
    let mut second = Attempt::with(other_layout(), recorded(&[&["a"]]), 100);
    second.others = others(&["a"]);
    assert_diverged(second.run(&words(&["a"])), Kind::AmbiguousRows, Some(0));
}

#[test]
fn rows_of_others_that_differ_are_ambiguous_and_with_a_key_come_in_their_order() {
    let mut second = Attempt::with(other_layout(), Vec::new(), 100);
    second.others = others(&["a", "a", "a"]);
    assert_diverged(second.run(&words(&["a"])), Kind::AmbiguousRows, Some(0));

    let options = TaskOptions { keyed: true, ..other_layout() };
    let mut second = Attempt::with(options, Vec::new(), 100);
    second.others = others(&["a", "b", "a", "a"]);
    assert_eq!(second.run(&words(&["a", "b"])).unwrap(), [10, 11]);
    assert_eq!(second.run(&words(&["a", "a", "a"])).unwrap(), [12, 13, 100]);
}

#[test]
fn equal_rows_of_others_are_asked_for_as_they_are_needed() {
    let mut first = Attempt::new(Vec::new(), 7);
    for _ in 0..3 {
        let plan = first.task.offer(&[words(&["a", "a"])]).unwrap();
        let block = first.task.complete(plan, Some(numbers([7, 7]))).unwrap();
        assert_eq!(values(&block), [7, 7]);
        first.log.extend(first.task.take_block());
    }
    let mut second = Attempt::with(other_layout(), Vec::new(), 7);
    second.others = Others::of(&first.log, &result_options());
    assert_eq!(second.run(&words(&["a", "a"])).unwrap(), [7, 7]);
    assert_eq!(second.others.asked, 2);
    assert_eq!(second.run(&words(&["a", "a", "a", "a", "a"])).unwrap(), [7; 5]);
    // Six were recorded. Of a fingerprint whose rows were all given nobody asks again.
    assert_eq!((second.others.asked, second.task.summary().live), (6, 1));
    second.next_value(7);
    assert_eq!(second.run(&words(&["a"])).unwrap(), [7]);
    assert_eq!(second.others.asked, 6);
    second.next_value(8);
    assert_diverged(second.run(&words(&["a"])), Kind::AmbiguousRows, Some(8));
}

#[test]
fn where_order_holds_rows_of_others_are_looked_for_once_one_is_missing() {
    let pooled = TaskOptions { pooled: true, ..result_options() };
    let mut second = Attempt::with(pooled, recorded(&[&["a", "b"]]), 100);
    second.others = others(&["c", "d"]);
    assert_eq!(second.run(&words(&["a"])).unwrap(), [1]);
    assert_eq!(second.others.asked, 0);
    assert_eq!(second.run(&words(&["b", "d", "e"])).unwrap(), [2, 11, 100]);
    assert_eq!(second.run(&words(&["c"])).unwrap(), [10]);
    let summary = second.finish().unwrap();
    assert_eq!((summary.from_pool, summary.leftover), (2, 0));
}

#[test]
fn rows_of_others_are_found_beside_own_ones_with_gaps_between_them() {
    let mut first = Attempt::new(Vec::new(), 1);
    let mut plan = first.task.offer(&[words(&["a", "b", "c"])]).unwrap();
    // Of three calls under way one was answered when the attempt died.
    first.task.keep(&mut plan, &[2], &numbers([3])).unwrap();
    first.log.extend(first.task.take_block());
    let pooled = TaskOptions { pooled: true, ..result_options() };
    let mut second = Attempt::with(pooled, first.log, 100);
    second.others = others(&["b", "d", "e", "f"]);
    assert_eq!(second.run(&words(&["a", "b", "c"])).unwrap(), [100, 10, 3]);
    assert_eq!(second.run(&words(&["f", "x", "e"])).unwrap(), [13, 101, 12]);
    assert_eq!(second.run(&words(&["d"])).unwrap(), [11]);
}

#[test]
fn a_batch_taken_whole_from_others_is_recorded_whole() {
    let mut second = Attempt::with(other_layout(), Vec::new(), 100);
    second.others = others(&["c", "d"]);
    assert_eq!(second.run(&words(&["c", "d"])).unwrap(), [10, 11]);
    let mut third = Attempt::new(second.log, 1000);
    assert_eq!(third.run(&words(&["c", "d"])).unwrap(), [10, 11]);
    assert_eq!(third.finish().unwrap().from_pool, 0);
}

#[test]
fn rows_that_a_failed_attempt_took_of_another_use_are_counted_when_the_next_one_finds_them() {
    let pooled = TaskOptions { pooled: true, ..result_options() };
    let mut second = Attempt::with(pooled.clone(), Vec::new(), 100);
    second.others = others(&["c", "d", "e"]);
    assert_eq!(second.run(&words(&["c", "x", "d"])).unwrap(), [10, 100, 11]);
    let mut third = Attempt::with(pooled.clone(), second.log, 200);
    third.others = others(&["c", "d", "e"]);
    assert_eq!(third.run(&words(&["c", "x"])).unwrap(), [10, 100]);
    assert_eq!(third.run(&words(&["d"])).unwrap(), [11]);
    assert_eq!(third.others.asked, 1, "how many there are");
    let summary = third.finish().unwrap();
    assert_eq!((summary.taken, summary.known, summary.from_pool), (2, 3, 0));
}

#[test]
fn rows_of_the_own_log_that_another_stage_recorded_are_counted_though_nobody_asked_others() {
    let pooled = TaskOptions { pooled: true, stage: 5, ..result_options() };
    let mut second = Attempt::with(pooled, recorded(&[&["a", "b"]]), 100);
    second.others = others(&["c"]);
    assert_eq!(second.run(&words(&["a", "b"])).unwrap(), [1, 2]);
    let summary = second.finish().unwrap();
    assert_eq!((summary.taken, summary.known, second.others.asked), (2, 0, 0));
}

#[test]
fn rows_that_other_code_recorded_are_refused() {
    let options = TaskOptions { code: 0xbeef, ..other_layout() };
    let mut second = Attempt::with(options, Vec::new(), 100);
    second.others = others(&["c"]);
    assert_diverged(second.run(&words(&["c"])), Kind::CodeChanged, None);
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
