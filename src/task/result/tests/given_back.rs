//! Plans that are given back, as the function raised and whoever called it goes on.

use proptest::prelude::*;

use super::*;

#[test]
fn a_plan_that_is_given_back_leaves_no_trace() {
    let options = TaskOptions { count_occurrences: true, ..result_options() };
    let mut task = ResultTask::new(options, Vec::new(), true).unwrap();
    let plan = task.offer(&[words(&["a"])]).unwrap();
    task.abandon(&plan).unwrap();
    assert!(matches!(task.abandon(&plan), Err(Error::Misuse { .. })));
    let plan = task.offer(&[words(&["a"])]).unwrap();
    assert_eq!(plan.occurrence(0), Some(0));
    task.complete(plan, Some(numbers([1]))).unwrap();
    assert_eq!(task.finish().unwrap().rows, 1);
}

/// Offers a batch whose function raises.
fn raises(attempt: &mut Attempt, rows: &[&str]) {
    let plan = attempt.task.offer(&[words(rows)]).unwrap();
    attempt.task.abandon(&plan).unwrap();
}

#[test]
fn equal_rows_that_came_again_after_an_exception_are_in_the_same_order() {
    let mut first = Attempt::new(Vec::new(), 1);
    assert_eq!(first.run(&words(&["x"])).unwrap(), [1]);
    raises(&mut first, &["x"]);
    assert_eq!(first.run(&words(&["x"])).unwrap(), [2]);
    assert_eq!(first.run(&words(&["x"])).unwrap(), [3]);
    let mut second = Attempt::new(first.log, 100);
    for value in 1..=3 {
        assert_eq!(second.run(&words(&["x"])).unwrap(), [value]);
    }
    assert_eq!(second.finish().unwrap().live, 0);
}

#[test]
fn recorded_rows_beside_one_that_raised_are_found_again() {
    let mut second = Attempt::new(recorded(&[&["a", "b"]]), 100);
    raises(&mut second, &["a", "b", "c"]);
    assert_eq!(second.run(&words(&["a", "b", "c"])).unwrap(), [1, 2, 100]);
    assert_eq!(second.finish().unwrap().replayed, 2);
    let mut third = Attempt::new(second.log, 1_000);
    assert_eq!(third.run(&words(&["a", "b", "c"])).unwrap(), [1, 2, 100]);
    assert_eq!(third.finish().unwrap().live, 0);
}

#[test]
fn a_row_that_raises_again_takes_no_order_from_those_behind_it() {
    let mut first = Attempt::new(Vec::new(), 1);
    raises(&mut first, &["x"]);
    assert_eq!(first.run(&words(&["y", "y"])).unwrap(), [1, 2]);
    let mut second = Attempt::new(first.log, 100);
    raises(&mut second, &["x"]);
    assert_eq!(second.run(&words(&["y", "y"])).unwrap(), [1, 2]);
    second.finish().unwrap();
}

#[test]
fn behind_others_the_rows_of_a_plan_have_come() {
    let options = || TaskOptions { count_occurrences: true, ..result_options() };
    let mut first = Attempt::with(options(), Vec::new(), 1);
    let one = first.task.offer(&[words(&["x", "y"])]).unwrap();
    let other = first.task.offer(&[words(&["x"])]).unwrap();
    first.task.abandon(&one).unwrap();
    assert_eq!((other.occurrence(0), other.first_row()), (Some(1), 2));
    assert_eq!(first.complete(other).unwrap(), [1]);
    let next = first.task.offer(&[words(&["x"])]).unwrap();
    assert_eq!((next.occurrence(0), next.first_row()), (Some(2), 3), "no other row has its key");
    assert_eq!(first.complete(next).unwrap(), [2]);
    // Nothing recorded tells the row that raised from the others, should it come again: no value is guessed.
    let mut second = Attempt::with(options(), first.log, 100);
    assert_diverged(second.run(&words(&["x", "y"])), Kind::AmbiguousRows, Some(0));
    // What a plan has used that was given back from behind another does not count as missing.
    let mut used = Attempt::new(recorded(&[&["x", "y"], &["z"]]), 100);
    let one = used.task.offer(&[words(&["x", "y"])]).unwrap();
    let other = used.task.offer(&[words(&["z"])]).unwrap();
    used.task.abandon(&one).unwrap();
    assert_eq!(used.complete(other).unwrap(), [3]);
    assert_eq!(used.finish().unwrap().leftover, 0);
}

#[test]
fn what_was_kept_of_a_plan_stays_its_own_when_the_plan_is_given_back() {
    let mut first = Attempt::new(Vec::new(), 1);
    let mut plan = first.task.offer(&[words(&["x", "x"])]).unwrap();
    first.task.keep(&mut plan, &[1], &numbers([50])).unwrap();
    first.task.abandon(&plan).unwrap();
    first.log.extend(first.task.take_block());
    let next = first.task.offer(&[words(&["x"])]).unwrap();
    assert_eq!(next.first_row(), 2);
    assert_eq!(first.complete(next).unwrap(), [1]);
    let mut second = Attempt::new(first.log, 100);
    let plan = second.task.offer(&[words(&["x", "x"])]).unwrap();
    assert_eq!((plan.live.as_slice(), plan.replayed), ([0].as_slice(), 1));
    assert_eq!(second.complete(plan).unwrap(), [100, 50]);
    assert_eq!(second.run(&words(&["x"])).unwrap(), [1]);
}

fn batches() -> impl Strategy<Value = Vec<Vec<&'static str>>> {
    let batch = prop::collection::vec(prop::sample::select(vec!["a", "b", "c", "d"]), 0..4);
    prop::collection::vec(batch, 0..8)
}

/// A log, with gaps in the numbers of its rows where `gaps` says so.
fn recorded_with(batches: &[Vec<&'static str>], gaps: bool) -> Vec<Bytes> {
    let mut first = Attempt::with(declared(), Vec::new(), 1);
    for batch in batches {
        if gaps && batch.len() > 1 {
            // It died, or so another attempt may think, while the first row was under way.
            let mut plan = first.task.offer(&[words(batch)]).unwrap();
            let places: Vec<u32> = (1..plan.live.len() as u32).collect();
            first.task.keep(&mut plan, &places, &numbers(places.iter().map(|_| 7))).unwrap();
            first.task.abandon(&plan).unwrap();
            first.log.extend(first.task.take_block());
        } else {
            first.run(&words(batch)).unwrap();
        }
    }
    first.log
}

fn declared() -> TaskOptions {
    TaskOptions { value_type: Some(DataType::Int64), keyed: true, ..result_options() }
}

proptest! {
    #[test]
    fn an_attempt_goes_on_as_if_what_raised_had_not_been_offered(
        before in batches(),
        gaps in any::<bool>(),
        now in prop::collection::vec((batches(), prop::collection::vec(
            prop::sample::select(vec!["a", "b", "c", "d"]), 0..4)), 0..6),
    ) {
        let log = recorded_with(&before, gaps);
        let mut calm = Attempt::with(declared(), log.clone(), 1_000);
        let mut troubled = Attempt::with(declared(), log, 1_000);
        for (raising, batch) in now {
            raising.iter().for_each(|rows| raises(&mut troubled, rows));
            let (wanted, got) = (calm.run(&words(&batch)), troubled.run(&words(&batch)));
            prop_assert_eq!(wanted.unwrap(), got.unwrap());
            prop_assert_eq!(&calm.log, &troubled.log);
        }
        let (wanted, got) = (calm.finish(), troubled.finish());
        prop_assert_eq!(format!("{wanted:?}"), format!("{got:?}"));
    }
}
