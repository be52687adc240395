//! Scenarios of result mode: what an attempt sees after earlier ones died.

use std::sync::Arc;

use arrow_array::{Array, ArrayRef, Float64Array, NullArray};
use arrow_schema::DataType;

use super::super::fixtures::{Attempt, Others, assert_diverged, numbers, options, values, words};
use super::super::{Ended, TaskMode, TaskOptions};
use super::*;
use crate::config::OnAmbiguous;
use crate::error::DivergenceKind as Kind;

fn result_options() -> TaskOptions {
    options(TaskMode::Result)
}

/// The log of one attempt that took `batches` and died.
fn recorded(batches: &[&[&str]]) -> Vec<Bytes> {
    let mut first = Attempt::new(Vec::new(), 1);
    for batch in batches {
        first.run(&words(batch)).unwrap();
    }
    first.log
}

#[test]
fn a_first_attempt_runs_every_row_and_publishes_one_block_per_batch() {
    let mut first = Attempt::new(Vec::new(), 1);
    assert_eq!(first.run(&words(&["a", "b"])).unwrap(), [1, 2]);
    assert_eq!(first.run(&words(&["c"])).unwrap(), [3]);
    assert_eq!(first.log.len(), 2);
    let summary = first.finish().unwrap();
    assert_eq!((summary.rows, summary.live, summary.replayed), (3, 3, 0));
    assert_eq!(summary.bytes, first.log.iter().map(|b| b.len() as u64).sum::<u64>());
}

#[test]
fn a_second_attempt_replays_without_calls_and_records_nothing() {
    let mut second = Attempt::new(recorded(&[&["a", "b"], &["c"]]), 100);
    assert_eq!(second.run(&words(&["a", "b"])).unwrap(), [1, 2]);
    assert_eq!(second.run(&words(&["c"])).unwrap(), [3]);
    assert_eq!(second.log.len(), 2);
    let summary = second.finish().unwrap();
    assert_eq!((summary.replayed, summary.live, summary.bytes), (3, 0, 0));
}

#[test]
fn a_whole_recorded_batch_is_replayed_without_a_copy() {
    let mut second = Attempt::new(recorded(&[&["a", "b", "c"]]), 100);
    let plan = second.task.offer(&[words(&["a", "b"])]).unwrap();
    let two = second.task.complete(plan, None).unwrap();
    let plan = second.task.offer(&[words(&["c"])]).unwrap();
    let one = second.task.complete(plan, None).unwrap();
    let start = |a: &ArrayRef| a.to_data().buffers()[0].as_ptr() as usize;
    // The second slice starts two values of eight bytes behind the first, in one buffer.
    assert_eq!(start(&one) - start(&two), 16);
    assert_eq!(values(&one), [3]);
}

#[test]
fn other_batch_boundaries_change_nothing_and_the_rest_goes_live() {
    let mut second = Attempt::new(recorded(&[&["a", "b"], &["c", "d"], &["e"]]), 100);
    assert_eq!(second.run(&words(&["a", "b", "c"])).unwrap(), [1, 2, 3]);
    assert_eq!(second.run(&words(&["d", "e", "f", "g"])).unwrap(), [4, 5, 100, 101]);
    let summary = second.finish().unwrap();
    assert_eq!((summary.replayed, summary.live), (5, 2));
}

#[test]
fn a_third_attempt_reads_what_the_first_two_recorded() {
    let mut second = Attempt::new(recorded(&[&["a", "b"]]), 100);
    // It got the rows in another order, and died after this batch.
    assert_eq!(second.run(&words(&["x", "b", "a", "y"])).unwrap(), [100, 2, 1, 101]);
    let mut third = Attempt::new(second.log.clone(), 1000);
    assert_eq!(third.run(&words(&["y", "a", "z", "b", "x"])).unwrap(), [101, 1, 1000, 2, 100]);
    assert_eq!(third.finish().unwrap().leftover, 0);
    let mut fourth = Attempt::new(third.log, 5000);
    assert_eq!(fourth.run(&words(&["a", "b", "x", "y", "z"])).unwrap(), [1, 2, 100, 101, 1000]);
    assert_eq!(fourth.finish().unwrap().live, 0);
}

#[test]
fn several_batches_may_be_offered_before_the_first_completes() {
    let mut second = Attempt::new(recorded(&[&["a"]]), 100);
    let one = second.task.offer(&[words(&["a", "b"])]).unwrap();
    let two = second.task.offer(&[words(&["c"])]).unwrap();
    assert_eq!((one.first_row(), two.first_row()), (0, 2));
    assert_eq!(second.complete(one).unwrap(), [1, 100]);
    assert_eq!(second.complete(two).unwrap(), [101]);
    assert_eq!(second.finish().unwrap().rows, 3);
}

#[test]
fn plans_out_of_order_or_with_too_few_values_are_refused() {
    let mut task = Attempt::new(Vec::new(), 1).task;
    let one = task.offer(&[words(&["a"])]).unwrap();
    let two = task.offer(&[words(&["b"])]).unwrap();
    assert_eq!(task.complete(two, Some(numbers([1]))).unwrap_err().condition(), "MISUSE");
    assert_eq!(task.finish().unwrap_err().condition(), "MISUSE");
    assert_eq!(task.complete(one, None).unwrap_err().condition(), "MISUSE");
}

#[test]
fn equal_rows_with_different_values_may_not_change_order() {
    let log = recorded(&[&["a", "b", "a"]]);
    let mut same_order = Attempt::new(log.clone(), 100);
    assert_eq!(same_order.run(&words(&["a", "b", "a"])).unwrap(), [1, 2, 3]);

    let mut other_order = Attempt::new(log.clone(), 100);
    let error = other_order.run(&words(&["b", "a", "a"]));
    let divergence = assert_diverged(error, Kind::AmbiguousRows, Some(1));
    assert!(divergence.advice.contains("row_key="));
    // A machine that diverged stays so.
    assert_diverged(other_order.run(&words(&["b"])), Kind::AmbiguousRows, Some(1));
    assert_diverged(other_order.finish(), Kind::AmbiguousRows, Some(1));

    for lenient in [
        TaskOptions { keyed: true, ..result_options() },
        TaskOptions { on_ambiguous: OnAmbiguous::Any, ..result_options() },
    ] {
        let mut attempt = Attempt::with(lenient, log.clone(), 100);
        assert_eq!(attempt.run(&words(&["b", "a", "a"])).unwrap(), [2, 1, 3]);
    }
}

#[test]
fn equal_rows_with_equal_values_may_come_in_any_order() {
    let mut first = Attempt::new(Vec::new(), 1);
    let plan = first.task.offer(&[words(&["a", "b", "a"])]).unwrap();
    first.task.complete(plan, Some(numbers([7, 8, 7]))).unwrap();
    let log = vec![first.task.take_block().unwrap()];
    let mut second = Attempt::new(log, 100);
    assert_eq!(second.run(&words(&["b", "a", "a"])).unwrap(), [8, 7, 7]);
}

#[test]
fn a_live_row_that_equals_a_recorded_one_must_agree_once_order_is_lost() {
    let log = recorded(&[&["a", "b"]]);
    let mut second = Attempt::new(log.clone(), 100);
    // Was the recorded "a" the first or the second of these? Its value says: unknown.
    assert_diverged(second.run(&words(&["b", "a", "a"])), Kind::AmbiguousRows, Some(2));

    let mut agreeing = Attempt::new(log.clone(), 1);
    assert_eq!(agreeing.run(&words(&["b", "a", "a"])).unwrap(), [2, 1, 1]);

    let mut in_order = Attempt::new(log, 100);
    assert_eq!(in_order.run(&words(&["a", "b", "a"])).unwrap(), [1, 2, 100]);
}

#[test]
fn rows_that_did_not_come_though_others_did_are_a_divergence() {
    let mut second = Attempt::new(recorded(&[&["a", "b", "c"]]), 100);
    second.run(&words(&["a", "x", "c"])).unwrap();
    let divergence = assert_diverged(second.finish(), Kind::RowsChanged, Some(1));
    assert!(divergence.recorded.contains("row 1 "), "{divergence}");
}

#[test]
fn rows_that_did_not_come_at_all_are_a_divergence_in_the_same_stage_only() {
    let log = recorded(&[&["a", "b", "c"]]);
    let mut second = Attempt::new(log.clone(), 100);
    second.run(&words(&["a"])).unwrap();
    assert_diverged(second.finish(), Kind::RowsMissing, Some(1));

    let mut elsewhere = ResultTask::new(result_options(), log, false).unwrap();
    let plan = elsewhere.offer(&[words(&["a"])]).unwrap();
    elsewhere.complete(plan, None).unwrap();
    assert_eq!(elsewhere.finish().unwrap().leftover, 2);
}

#[test]
fn changed_code_is_refused_unless_allowed_or_written_by_another_python() {
    let log = recorded(&[&["a"]]);
    let changed = || TaskOptions { code: 0xbeef, ..result_options() };
    let divergence = assert_diverged(Attempt::try_with(changed(), log.clone(), 9), Kind::CodeChanged, None);
    assert!(divergence.recorded.contains("shop.score (000000000000c0de)"), "{divergence}");

    let allowed = TaskOptions { allow_code_change: true, ..changed() };
    let mut second = Attempt::with(allowed, log.clone(), 100);
    assert_eq!(second.run(&words(&["a", "b"])).unwrap(), [1, 100]);
    // The change is in the log now: a third attempt need not allow it again.
    assert!(Attempt::try_with(changed(), second.log, 9).is_ok());

    let other_python = TaskOptions { python: "3.12".to_owned(), ..changed() };
    assert!(Attempt::try_with(other_python, log, 9).is_ok());
}

#[test]
fn a_log_of_the_other_mode_is_refused() {
    let log = recorded(&[&["a"]]);
    assert_diverged(
        super::super::ServiceTask::new(options(TaskMode::Services), log, true),
        Kind::ModeChanged,
        None,
    );
}

#[test]
fn another_result_type_is_refused() {
    let log = recorded(&[&["a"]]);
    let float: ArrayRef = Arc::new(Float64Array::from(vec![1.5]));
    let mut second = Attempt::new(log.clone(), 100).task;
    let plan = second.offer(&[words(&["a", "b"])]).unwrap();
    assert_diverged(second.complete(plan, Some(float)), Kind::TypeChanged, Some(1));

    let declared = TaskOptions { value_type: Some(DataType::Float64), ..result_options() };
    let mut all_replayed = Attempt::with(declared, log, 100);
    assert_diverged(all_replayed.run(&words(&["a"])), Kind::TypeChanged, Some(0));
}

#[test]
fn batches_without_rows_and_without_columns_work() {
    let declared = TaskOptions { value_type: Some(DataType::Int64), ..result_options() };
    let mut first = Attempt::with(declared, Vec::new(), 1);
    assert!(first.run(&words(&[])).unwrap().is_empty());
    let plan = first.task.offer_fingerprints(vec![0; 2]).unwrap();
    assert_eq!(first.complete(plan).unwrap(), [1, 2]);
    let mut second = Attempt::new(first.log, 100);
    let plan = second.task.offer_fingerprints(vec![0; 3]).unwrap();
    assert_eq!(second.complete(plan).unwrap(), [1, 2, 100]);
}

#[test]
fn values_of_a_type_without_fingerprints_are_compared_too() {
    let nulls = |n| Arc::new(NullArray::new(n)) as ArrayRef;
    let mut first = Attempt::new(Vec::new(), 1).task;
    let plan = first.offer(&[words(&["a", "b", "a"])]).unwrap();
    first.complete(plan, Some(nulls(3))).unwrap();
    let mut second = ResultTask::new(result_options(), vec![first.take_block().unwrap()], true).unwrap();
    let plan = second.offer(&[words(&["b", "a", "a"])]).unwrap();
    assert_eq!(second.complete(plan, None).unwrap().len(), 3);
}

#[test]
fn occurrences_count_equal_rows_whether_replayed_or_live() {
    let mut second = Attempt::new(recorded(&[&["a"]]), 100);
    let plan = second.task.offer(&[words(&["a", "b", "a"])]).unwrap();
    assert_eq!(plan.live, [1, 2]);
    assert_eq!([plan.occurrence(0), plan.occurrence(1), plan.occurrence(2)], [Some(0), Some(0), Some(1)]);
    assert_eq!((plan.fingerprint(0), plan.fingerprint(3)), (plan.fingerprint(2), None));
}

mod given_back;
mod layout;
mod marks;

/// Offers four rows, keeps the values of some of them, and dies.
fn kept(places: &[u32], rows: &[&str]) -> Vec<Bytes> {
    let mut task = ResultTask::new(result_options(), Vec::new(), true).unwrap();
    let mut plan = task.offer(&[words(rows)]).unwrap();
    for &place in places {
        task.keep(&mut plan, &[place], &numbers([i64::from(place) + 1])).unwrap();
    }
    task.take_block().into_iter().collect()
}

#[test]
fn what_was_kept_of_a_batch_is_not_asked_again() {
    let log = kept(&[3, 1], &["a", "b", "c", "d"]);
    let mut second = ResultTask::new(result_options(), log.clone(), true).unwrap();
    let plan = second.offer(&[words(&["a", "b", "c", "d"])]).unwrap();
    assert_eq!((plan.live.as_slice(), plan.replayed), ([0, 2].as_slice(), 2));
    let out = second.complete(plan, Some(numbers([10, 30]))).unwrap();
    assert_eq!(values(&out), [10, 2, 30, 4]);
    let mut log = log;
    log.extend(second.take_block());
    second.finish().unwrap();
    let mut third = Attempt::new(log, 100);
    assert_eq!(third.run(&words(&["a", "b", "c", "d"])).unwrap(), [10, 2, 30, 4]);
    assert_eq!(third.finish().unwrap().replayed, 4);
}

#[test]
fn equal_rows_keep_their_places_whatever_order_their_answers_come_in() {
    let log = kept(&[3, 1], &["x"; 5]);
    let mut second = ResultTask::new(result_options(), log, true).unwrap();
    let plan = second.offer(&[words(&["x"; 5])]).unwrap();
    assert_eq!(plan.live, [0, 2, 4]);
    let out = second.complete(plan, Some(numbers([10, 30, 50]))).unwrap();
    assert_eq!(values(&out), [10, 2, 30, 4, 50]);
    assert_eq!(second.finish().unwrap().replayed, 2);
}

#[test]
fn a_batch_that_was_kept_in_part_records_the_rest() {
    let mut first = ResultTask::new(result_options(), Vec::new(), true).unwrap();
    let mut plan = first.offer(&[words(&["a", "b", "c"])]).unwrap();
    first.keep(&mut plan, &[0], &numbers([1])).unwrap();
    let mut log: Vec<Bytes> = first.take_block().into_iter().collect();
    assert_eq!(values(&first.complete(plan, Some(numbers([1, 2, 3]))).unwrap()), [1, 2, 3]);
    log.extend(first.take_block());
    assert_eq!(log.len(), 2);
    let mut second = Attempt::new(log, 100);
    assert_eq!(second.run(&words(&["a", "b", "c"])).unwrap(), [1, 2, 3]);
    assert_eq!(second.finish().unwrap().replayed, 3);
}

#[test]
fn rows_that_come_in_another_order_are_found_though_some_are_missing() {
    let log = kept(&[3, 1], &["a", "b", "c", "d"]);
    for keyed in [false, true] {
        let options = TaskOptions { keyed, ..result_options() };
        let mut second = ResultTask::new(options, log.clone(), true).unwrap();
        let plan = second.offer(&[words(&["d", "c", "b", "a"])]).unwrap();
        assert_eq!(plan.live, [1, 3]);
        let out = second.complete(plan, Some(numbers([30, 10]))).unwrap();
        assert_eq!(values(&out), [4, 30, 2, 10]);
        second.finish().unwrap();
    }
}

#[test]
fn a_value_cannot_be_kept_twice_nor_with_another_type() {
    let mut task = ResultTask::new(result_options(), Vec::new(), true).unwrap();
    let mut plan = task.offer(&[words(&["a", "b"])]).unwrap();
    task.keep(&mut plan, &[0], &numbers([1])).unwrap();
    assert!(matches!(task.keep(&mut plan, &[0], &numbers([1])), Err(Error::Misuse { .. })));
    assert!(matches!(task.keep(&mut plan, &[7], &numbers([1])), Err(Error::Misuse { .. })));
    assert_diverged(task.keep(&mut plan, &[1], &words(&["x"])), Kind::TypeChanged, Some(0));
}

#[test]
fn beside_rows_in_doubt_the_others_are_kept() {
    let mut log = recorded(&[&["a", "b"]]);
    let rows = words(&["b", "a", "a", "c", "d"]);
    let mut second = ResultTask::new(result_options(), log.clone(), true).unwrap();
    let mut plan = second.offer(std::slice::from_ref(&rows)).unwrap();
    assert_eq!(plan.live, [2, 3, 4]);
    second.keep(&mut plan, &[0, 1], &numbers([1, 30])).unwrap();
    log.extend(second.take_block());
    let mut third = ResultTask::new(result_options(), log, true).unwrap();
    let plan = third.offer(&[rows]).unwrap();
    assert_eq!(plan.live, [2, 4]);
    assert_eq!(values(&third.complete(plan, Some(numbers([1, 50]))).unwrap()), [2, 1, 1, 30, 50]);
}

#[test]
fn rows_may_change_between_attempts_none_of_which_came_to_its_end() {
    let of = |log: &[Bytes], ended, rows: &[&str]| {
        let mut attempt = Attempt::with(TaskOptions { ended, ..result_options() }, log.to_vec(), 100);
        attempt.run(&words(rows)).unwrap();
        attempt
    };
    let first = recorded(&[&["a", "b"]]);
    let mut second = of(&first, Ended::Never, &["a", "c"]);
    let summary = second.finish().unwrap();
    assert_eq!((summary.live, summary.leftover, summary.unasked), (1, 1, 0));
    // From then on what it gave may have been used: its rows it is, whatever else is recorded.
    let ended = Ended::With(summary.input);
    assert_eq!(of(&second.log, ended, &["c", "a"]).finish().unwrap().leftover, 1);
    assert_diverged(of(&second.log, ended, &["a", "b"]).finish(), Kind::RowsMissing, Some(2));
    assert_diverged(of(&second.log, ended, &["a", "d"]).finish(), Kind::RowsChanged, Some(1));
    assert_diverged(of(&second.log, ended, &["a"]).finish(), Kind::RowsMissing, Some(1));
    assert_diverged(of(&second.log, Ended::Unknown, &["a", "c"]).finish(), Kind::RowsMissing, Some(2));
}
