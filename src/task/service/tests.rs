//! Scenarios of services mode: what a function that runs again is given.

use super::super::fixtures::{assert_diverged, options};
use super::super::{Ended, TaskMode, TaskOptions};
use super::*;
use crate::config::OnAmbiguous;
use crate::error::DivergenceKind as Kind;

const LOOKUP: u64 = 0x100c;
const OTHER: u64 = 0x07e4;

fn service_options() -> TaskOptions {
    options(TaskMode::Services)
}

fn attempt(log: &[Bytes]) -> ServiceTask {
    ServiceTask::new(service_options(), log.to_vec(), true).unwrap()
}

/// Calls a service: `Some` live answer is given if it must be called, `None` if that would be
/// wrong.
fn call(task: &mut ServiceTask, name: u64, live: Option<&str>) -> Result<String> {
    let value = match task.call(name)? {
        CallDecision::Replayed { value, .. } => value,
        CallDecision::Live => {
            let value = Bytes::from(live.expect("the service was called again").to_owned());
            task.record_call(name, true, value.clone())?;
            value
        }
    };
    Ok(String::from_utf8(value.to_vec()).unwrap())
}

/// Rows 1, 2 and 3: each takes the time, then looks itself up. The attempt dies after that.
fn recorded() -> Vec<Bytes> {
    let mut first = attempt(&[]);
    first.meet(LOOKUP, "prices.lookup");
    for row in 1..=3_u64 {
        first.begin_row(row).unwrap();
        first.time(i64::try_from(row).unwrap() * 10).unwrap();
        call(&mut first, LOOKUP, Some(&format!("answer {row}"))).unwrap();
    }
    vec![first.take_block().unwrap()]
}

/// Runs the function of `recorded` for a row that must be replayed.
fn replay_row(task: &mut ServiceTask, row: u64) {
    task.begin_row(row).unwrap();
    assert!(task.is_replaying());
    assert_eq!(task.time(-1).unwrap(), i64::try_from(row).unwrap() * 10);
    assert_eq!(call(task, LOOKUP, None).unwrap(), format!("answer {row}"));
}

#[test]
fn a_second_attempt_is_given_what_the_first_was_and_then_goes_live() {
    let mut second = attempt(&recorded());
    for row in 1..=3 {
        replay_row(&mut second, row);
    }
    assert!(second.take_block().is_none());
    second.begin_row(4).unwrap();
    assert!(!second.is_replaying());
    assert_eq!(second.time(77).unwrap(), 77);
    let summary = second.finish().unwrap();
    assert_eq!((summary.rows, summary.replayed, summary.live), (4, 3, 1));
    assert_eq!((summary.calls, summary.saved), (0, 3));
    assert!(second.take_block().is_some());
}

#[test]
fn rows_in_another_order_are_given_their_own() {
    let mut second = attempt(&recorded());
    for row in [3, 1] {
        replay_row(&mut second, row);
    }
    second.begin_row(9).unwrap();
    assert_eq!(second.time(77).unwrap(), 77);
    replay_row(&mut second, 2);
    assert_eq!(second.finish().unwrap().leftover, 0);
}

#[test]
fn more_services_than_recorded_are_a_divergence() {
    let mut second = attempt(&recorded());
    replay_row(&mut second, 1);
    let divergence = assert_diverged(second.time(5), Kind::ServiceMismatch, Some(0));
    assert_eq!((divergence.recorded.as_str(), divergence.asked.as_str()), ("nothing more here", "the time"));
    assert_diverged(second.begin_row(2), Kind::ServiceMismatch, Some(0));
}

#[test]
fn fewer_services_than_recorded_are_a_divergence() {
    let mut second = attempt(&recorded());
    second.begin_row(1).unwrap();
    second.time(5).unwrap();
    let divergence = assert_diverged(second.begin_row(2), Kind::ServiceMismatch, Some(0));
    assert_eq!(divergence.asked, "the end of the row");

    let mut last_row = attempt(&recorded());
    replay_row(&mut last_row, 1);
    replay_row(&mut last_row, 2);
    last_row.begin_row(3).unwrap();
    assert_diverged(last_row.finish(), Kind::ServiceMismatch, Some(2));
}

#[test]
fn another_service_than_recorded_is_a_divergence() {
    let mut kind = attempt(&recorded());
    kind.begin_row(1).unwrap();
    assert_diverged(kind.call(LOOKUP), Kind::ServiceMismatch, Some(0));

    let mut name = attempt(&recorded());
    name.begin_row(1).unwrap();
    name.time(5).unwrap();
    name.meet(OTHER, "stock.lookup");
    let divergence = assert_diverged(name.call(OTHER), Kind::ServiceMismatch, Some(0));
    assert!(divergence.recorded.contains("prices.lookup"), "{divergence}");
    assert!(divergence.asked.contains("stock.lookup"), "{divergence}");
}

#[test]
fn an_exception_is_recorded_and_raised_again() {
    let mut first = attempt(&[]);
    first.begin_row(1).unwrap();
    assert_eq!(first.call(LOOKUP).unwrap(), CallDecision::Live);
    first.record_call(LOOKUP, false, Bytes::from_static(b"TimeoutError")).unwrap();
    let mut second = attempt(&[first.take_block().unwrap()]);
    second.begin_row(1).unwrap();
    let value = Bytes::from_static(b"TimeoutError");
    assert_eq!(second.call(LOOKUP).unwrap(), CallDecision::Replayed { ok: false, value });
}

#[test]
fn a_row_the_attempt_died_in_goes_on_live_where_its_log_ends() {
    let mut first = attempt(&[]);
    first.begin_row(1).unwrap();
    first.time(10).unwrap();
    let mut log = vec![first.take_block().unwrap()];

    // The second takes another row first, resumes row 1, and dies after one more determinant.
    let mut second = attempt(&log);
    second.begin_row(2).unwrap();
    second.time(20).unwrap();
    second.begin_row(1).unwrap();
    assert_eq!(second.time(99).unwrap(), 10);
    assert_eq!(call(&mut second, LOOKUP, Some("one")).unwrap(), "one");
    log.push(second.take_block().unwrap());

    // The third finds both parts of row 1 and adds to it.
    let mut third = attempt(&log);
    third.begin_row(1).unwrap();
    assert_eq!(third.time(99).unwrap(), 10);
    assert_eq!(call(&mut third, LOOKUP, None).unwrap(), "one");
    assert!(!third.is_replaying());
    assert_eq!(third.time(30).unwrap(), 30);
    log.push(third.take_block().unwrap());
    third.begin_row(2).unwrap();
    assert_eq!(third.time(99).unwrap(), 20);
    assert_eq!(third.finish().unwrap().leftover, 0);

    // Row 2 was complete: the second attempt had gone on to row 1.
    let mut fourth = attempt(&log);
    fourth.begin_row(2).unwrap();
    fourth.time(99).unwrap();
    assert_diverged(fourth.time(99), Kind::ServiceMismatch, Some(0));
}

#[test]
fn the_seed_is_the_same_whatever_row_comes_first() {
    let mut first = attempt(&[]);
    for row in [1, 2] {
        first.begin_row(row).unwrap();
        assert_eq!(first.seed(42 + row).unwrap(), 43);
        first.time(1).unwrap();
    }
    let mut log = vec![first.take_block().unwrap()];
    let mut second = attempt(&log);
    second.begin_row(2).unwrap();
    assert_eq!(second.seed(7).unwrap(), 43);
    second.time(1).unwrap();
    second.begin_row(3).unwrap();
    assert_eq!(second.seed(7).unwrap(), 43);
    log.extend(second.take_block());
    assert_eq!(attempt(&log).seed(7).unwrap(), 43);
}

#[test]
fn a_seed_first_asked_in_a_row_that_never_drew_is_a_divergence() {
    let mut second = attempt(&recorded());
    replay_row(&mut second, 1);
    let divergence = assert_diverged(second.seed(7), Kind::ServiceMismatch, Some(0));
    assert_eq!(divergence.asked, "random numbers");
    // Past the end of the log it is drawn.
    let mut past = attempt(&recorded());
    for row in 1..=3 {
        replay_row(&mut past, row);
    }
    assert_eq!(past.seed(7).unwrap(), 7);
    let mut log = recorded();
    log.extend(past.take_block());
    assert_eq!(attempt(&log).seed(8).unwrap(), 7);
}

#[test]
fn services_inside_a_live_call_are_part_of_it() {
    let mut first = attempt(&[]);
    first.begin_row(1).unwrap();
    assert_eq!(first.call(LOOKUP).unwrap(), CallDecision::Live);
    assert_eq!(first.time(5).unwrap(), 5);
    assert_eq!(first.call(OTHER).unwrap(), CallDecision::Live);
    assert_eq!(first.begin_row(2).unwrap_err().condition(), "MISUSE");
    assert_eq!(first.record_call(LOOKUP, true, Bytes::new()).unwrap_err().condition(), "MISUSE");

    let mut first = attempt(&[]);
    first.begin_row(1).unwrap();
    first.call(LOOKUP).unwrap();
    assert!(first.in_call());
    first.time(5).unwrap();
    // The seed belongs to the task, wherever it is asked for first.
    first.seed(42).unwrap();
    call(&mut first, OTHER, Some("inner")).unwrap();
    first.record_call(LOOKUP, true, Bytes::from_static(b"outer")).unwrap();
    let mut second = attempt(&[first.take_block().unwrap()]);
    second.begin_row(1).unwrap();
    assert_eq!(call(&mut second, LOOKUP, None).unwrap(), "outer");
    assert!(!second.in_call());
    assert_eq!(second.seed(7).unwrap(), 42);
    assert_eq!(second.finish().unwrap().rows, 1);
}

#[test]
fn equal_rows_with_different_records_may_not_change_order() {
    let mut first = attempt(&[]);
    for (row, time) in [(1, 10), (2, 20), (1, 11)] {
        first.begin_row(row).unwrap();
        first.time(time).unwrap();
    }
    let log = vec![first.take_block().unwrap()];
    let mut second = attempt(&log);
    second.begin_row(2).unwrap();
    second.time(0).unwrap();
    assert_diverged(second.begin_row(1), Kind::AmbiguousRows, Some(1));

    let any = TaskOptions { on_ambiguous: OnAmbiguous::Any, ..service_options() };
    let mut lenient = ServiceTask::new(any, log, true).unwrap();
    for (row, time) in [(2, 20), (1, 10), (1, 11)] {
        lenient.begin_row(row).unwrap();
        assert_eq!(lenient.time(0).unwrap(), time);
    }
}

#[test]
fn rows_missing_and_rows_changed() {
    let mut missing = attempt(&recorded());
    replay_row(&mut missing, 1);
    assert_diverged(missing.finish(), Kind::RowsMissing, Some(1));

    let mut changed = attempt(&recorded());
    replay_row(&mut changed, 1);
    changed.begin_row(9).unwrap();
    assert_diverged(changed.finish(), Kind::RowsChanged, Some(1));

    let mut elsewhere = ServiceTask::new(service_options(), recorded(), false).unwrap();
    replay_row(&mut elsewhere, 1);
    assert_eq!(elsewhere.finish().unwrap().leftover, 2);
}

#[test]
fn another_layout_replays_own_rows_and_refuses_the_others() {
    let options = TaskOptions { layout_changed: true, ..service_options() };
    let mut second = ServiceTask::new(options, recorded(), false).unwrap();
    replay_row(&mut second, 2);
    let divergence = assert_diverged(second.begin_row(9), Kind::LayoutChanged, Some(1));
    assert!(divergence.advice.contains("record=\"result\""));
    // Nor is what frames of other tasks bring what it was recorded over.
    let options = TaskOptions { layout_changed: true, ..service_options() };
    let mut third = ServiceTask::new(options, recorded(), false).unwrap();
    assert_diverged(third.input_changed(), Kind::LayoutChanged, None);
    ServiceTask::new(service_options(), recorded(), false).unwrap().input_changed().unwrap();
}

#[test]
fn rows_of_another_frame_that_nothing_tells_apart_are_refused() {
    let chosen = |choice: u16, draws: bool, log: &[Bytes]| {
        let options = TaskOptions { choice: Choice(choice), draws, ..service_options() };
        ServiceTask::new(options, log.to_vec(), false).unwrap()
    };
    let mut first = chosen(4, false, &[]);
    for (row, answer) in [(1, "a"), (2, "b")] {
        first.begin_row(row).unwrap();
        call(&mut first, LOOKUP, Some(answer)).unwrap();
    }
    let mut log = vec![first.take_block().unwrap()];
    let mut second = chosen(6, false, &log);
    for row in [2, 9, 9] {
        second.begin_row(row).unwrap();
        call(&mut second, LOOKUP, Some("b")).unwrap();
    }
    log.extend(second.take_block());
    assert_diverged(second.begin_row(2), Kind::AmbiguousRows, Some(3));
    // What it has recorded itself counts as its own, whoever was there before and whatever the log was last.
    for draws in [false, true] {
        let mut again = chosen(6, draws, &log);
        again.begin_row(9).unwrap();
        again.call(LOOKUP).unwrap();
        again.begin_row(9).unwrap();
        again.call(LOOKUP).unwrap();
        again.begin_row(1).map_or_else(|_| assert!(draws), |()| assert!(!draws));
    }
    assert_diverged(chosen(6, true, &log).begin_row(1), Kind::AmbiguousRows, Some(0));
    for known in [4, 0] {
        chosen(known, true, &log[..1]).begin_row(1).unwrap();
    }
}

#[test]
fn a_log_of_the_other_mode_or_of_other_code_is_refused() {
    let code = TaskOptions { code: 1, ..service_options() };
    assert_diverged(ServiceTask::new(code, recorded(), true), Kind::CodeChanged, None);
    let mode = options(TaskMode::Result);
    assert_diverged(super::super::ResultTask::new(mode, recorded(), true), Kind::ModeChanged, None);
}

#[test]
fn positions_of_calls_are_the_same_in_every_attempt() {
    let position = |occurrence, ordinal| CallPosition { fingerprint: 1, occurrence, ordinal };
    let mut first = attempt(&[]);
    first.begin_row(1).unwrap();
    call(&mut first, LOOKUP, Some("a")).unwrap();
    let log = [first.take_block().unwrap()];
    first.call(LOOKUP).unwrap();
    assert_eq!(first.position(), position(0, 1));

    let mut second = attempt(&log);
    second.begin_row(1).unwrap();
    assert_eq!(second.position(), position(0, 0));
    call(&mut second, LOOKUP, None).unwrap();
    assert_eq!(second.call(LOOKUP).unwrap(), CallDecision::Live);
    assert_eq!(second.position(), position(0, 1));
    second.record_call(LOOKUP, true, Bytes::new()).unwrap();
    second.begin_row(1).unwrap();
    assert_eq!(second.position(), position(1, 0));
}

mod failures;
mod partition;

#[test]
fn keys_outside_calls_are_each_another_and_the_same_in_every_attempt() {
    let keys = |log: &[Bytes]| {
        let mut task = attempt(log);
        task.begin_row(1).unwrap();
        let mut keys = vec![task.next_key(), task.next_key()];
        call(&mut task, LOOKUP, log.is_empty().then_some("a")).unwrap();
        keys.extend([task.next_key(), task.next_key()]);
        (keys, task.take_block())
    };
    let (first, block) = keys(&[]);
    let (again, _) = keys(&[block.unwrap()]);
    assert_eq!(first, again);
    assert_eq!(first.iter().collect::<HashSet<_>>().len(), first.len());
}

#[test]
fn a_call_has_one_key_however_often_it_asks() {
    let mut task = attempt(&[]);
    task.begin_row(1).unwrap();
    let handed = task.next_key();
    assert_eq!(task.call(LOOKUP).unwrap(), CallDecision::Live);
    let own = task.next_key();
    assert_eq!(task.next_key(), own);
    assert_ne!(own, handed);
    task.record_call(LOOKUP, true, Bytes::new()).unwrap();
    assert!(![own, handed].contains(&task.next_key()));
}

#[test]
fn rows_may_change_between_attempts_none_of_which_came_to_its_end() {
    let asks = |ended, row| {
        let mut task =
            ServiceTask::new(TaskOptions { ended, ..service_options() }, recorded(), true).unwrap();
        replay_row(&mut task, 1);
        task.begin_row(row).unwrap();
        task.time(77).unwrap();
        task
    };
    let summary = asks(Ended::Never, 9).finish().unwrap();
    assert_eq!((summary.live, summary.leftover, summary.unasked), (1, 2, 0));
    assert_eq!(asks(Ended::With(summary.input), 9).finish().unwrap(), summary);
    assert_diverged(asks(Ended::With(summary.input), 8).finish(), Kind::RowsChanged, Some(1));
    assert_diverged(asks(Ended::Unknown, 9).finish(), Kind::RowsChanged, Some(1));
}
