//! Calls that failed: recorded where something depends on them.

use super::*;

/// A live call that fails.
fn fail(task: &mut ServiceTask, name: u64) {
    assert_eq!(task.call(name).unwrap(), CallDecision::Live);
    task.record_call(name, false, Bytes::from_static(b"timeout")).unwrap();
}

fn failed() -> CallDecision {
    CallDecision::Replayed { ok: false, value: Bytes::from_static(b"timeout") }
}

#[test]
fn a_failure_that_ended_the_attempt_is_asked_again() {
    let mut first = attempt(&[]);
    first.begin_row(1).unwrap();
    call(&mut first, LOOKUP, Some("answer")).unwrap();
    fail(&mut first, OTHER);
    fail(&mut first, OTHER);
    let mut second = attempt(&[first.take_answers().unwrap()]);
    second.begin_row(1).unwrap();
    assert_eq!(call(&mut second, LOOKUP, None).unwrap(), "answer");
    assert_eq!(call(&mut second, OTHER, Some("now")).unwrap(), "now");
}

#[test]
fn failures_that_the_function_went_on_from_are_given_again() {
    let go_on: [fn(&mut ServiceTask); 4] = [
        |task| drop(call(task, LOOKUP, Some("answer")).unwrap()),
        |task| {
            task.time(5).unwrap();
        },
        |task| task.begin_row(2).unwrap(),
        |_| {},
    ];
    for (number, go_on) in go_on.into_iter().enumerate() {
        let mut first = attempt(&[]);
        first.begin_row(1).unwrap();
        fail(&mut first, OTHER);
        go_on(&mut first);
        // The last one goes on to the end of the batch, and its row leaves.
        let block = if number == 3 { first.take_block() } else { first.take_answers() };
        let mut second = attempt(&[block.unwrap()]);
        second.begin_row(1).unwrap();
        assert_eq!(second.call(OTHER).unwrap(), failed());
    }
}
