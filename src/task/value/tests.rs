use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Date32Array, Int32Array, Int64Array};

use super::*;

fn column(values: &[i64]) -> Vec<ArrayRef> {
    vec![Arc::new(Int64Array::from(values.to_vec()))]
}

fn numbers(array: &ArrayRef) -> Vec<i64> {
    array.as_primitive::<Int64Type>().values().to_vec()
}

fn answers(values: &[i64]) -> ArrayRef {
    Arc::new(Int64Array::from(values.to_vec()))
}

fn stand(task: &mut ValueTask, yours: &[u32], answered: Vec<(Vec<u32>, ArrayRef)>) {
    let answered = answered.into_iter().map(|(positions, answers)| (positions.into_iter(), answers));
    task.standing(yours.iter().copied(), answered).unwrap();
}

fn publish(task: &mut ValueTask, places: Option<&[u32]>, values: &[i64], late: &[u64]) {
    let publication = task.publication(places, &answers(values)).unwrap().unwrap();
    task.recorded(publication, late);
}

#[test]
fn each_distinct_row_is_asked_once_in_the_tasks_life() {
    let mut task = ValueTask::new();
    task.offer(&column(&[5, 6, 5, 6, 7])).unwrap();
    assert_eq!(task.questions(9).len(), 3);
    // One is ours, one is answered, one is another's.
    stand(&mut task, &[0], vec![(vec![1], answers(&[60]))]);
    assert_eq!(task.live_rows(), [0]);
    publish(&mut task, None, &[50], &[]);
    assert!(task.complete().unwrap().is_none());
    assert_eq!(task.questions(9).len(), 1);
    stand(&mut task, &[], vec![(vec![0], answers(&[70]))]);
    assert_eq!(numbers(&task.complete().unwrap().unwrap()), [50, 60, 50, 60, 70]);
    task.offer(&column(&[7, 5])).unwrap();
    assert_eq!(task.questions(9), [0_u64; 0]);
    assert_eq!(numbers(&task.complete().unwrap().unwrap()), [70, 50]);
    let Summary { rows, live, calls, saved, .. } = task.summary();
    assert_eq!((rows, live, calls, saved), (7, 1, 1, 6));
}

#[test]
fn an_answer_that_comes_late_is_not_used() {
    let mut task = ValueTask::new();
    task.offer(&column(&[5])).unwrap();
    let question = task.questions(1);
    stand(&mut task, &[0], vec![]);
    publish(&mut task, None, &[50], &question);
    assert_eq!(task.questions(1), question);
    stand(&mut task, &[], vec![(vec![0], answers(&[51]))]);
    assert_eq!(numbers(&task.complete().unwrap().unwrap()), [51]);
}

#[test]
fn some_answers_can_be_published_before_the_rest_and_are_not_published_twice() {
    let mut task = ValueTask::new();
    task.offer(&column(&[5, 6, 7])).unwrap();
    task.questions(9);
    stand(&mut task, &[0, 1, 2], vec![]);
    publish(&mut task, Some(&[1]), &[60], &[]);
    let rest = task.publication(None, &answers(&[50, 60, 70])).unwrap().unwrap();
    assert_eq!(rest.questions.len(), 2);
    task.recorded(rest, &[]);
    assert!(task.publication(None, &answers(&[50, 60, 70])).unwrap().is_none());
    assert_eq!(numbers(&task.complete().unwrap().unwrap()), [50, 60, 70]);
}

#[test]
fn where_nothing_comes_again_nothing_is_kept_for_a_while() {
    let mut task = ValueTask::new();
    let batch = KEPT_MIN as i64 + 1;
    let mut number = 0;
    let mut work = |task: &mut ValueTask| {
        let rows: Vec<i64> = (number * batch..(number + 1) * batch).collect();
        number += 1;
        task.offer(&column(&rows)).unwrap();
        let asked: Vec<u32> = (0..task.questions(usize::MAX).len() as u32).collect();
        stand(task, &asked, vec![]);
        publish(task, None, &rows, &[]);
        assert_eq!(numbers(&task.complete().unwrap().unwrap()), rows);
        asked.len()
    };
    for _ in 0..=UNKEPT_ROWS / batch as u64 {
        assert_eq!(work(&mut task), batch as usize);
        assert_eq!(task.arrays.len(), 1);
    }
    assert!(task.known.is_empty());
    work(&mut task);
    assert_eq!(task.known.len(), batch as usize);
    task.offer(&column(&[(number - 1) * batch])).unwrap();
    assert_eq!(task.questions(1), [0_u64; 0]);
}

#[test]
fn equal_bits_of_another_type_are_another_question_and_widths_are_not() {
    let mut task = ValueTask::new();
    let mut asked = |column: ArrayRef| {
        task.offer(&[column]).unwrap();
        task.questions(1)
    };
    let long = asked(Arc::new(Int64Array::from(vec![3])));
    assert_eq!(asked(Arc::new(Int32Array::from(vec![3]))), long);
    assert_ne!(asked(Arc::new(Date32Array::from(vec![3]))), long);
}

#[test]
fn a_batch_is_complete_with_answers_on_their_way_and_done_again_if_they_came_late() {
    let mut task = ValueTask::new();
    task.offer(&column(&[5, 6])).unwrap();
    let questions = task.questions(9);
    stand(&mut task, &[0], vec![(vec![1], answers(&[60]))]);
    let mut publication = task.publication(None, &answers(&[50])).unwrap().unwrap();
    assert!(task.sent(&mut publication, false));
    assert_eq!(numbers(&task.complete().unwrap().unwrap()), [50, 60]);
    // The next batch is offered before the answer's fate is known, and has the same question.
    task.offer(&column(&[5, 7])).unwrap();
    assert_eq!(task.questions(9).len(), 1);
    task.recorded(publication, &questions[..1]);
    // Both are offered again, and what came late is asked for.
    task.offer(&column(&[5, 6])).unwrap();
    assert_eq!(task.questions(9), questions[..1]);
    stand(&mut task, &[], vec![(vec![0], answers(&[51]))]);
    assert_eq!(numbers(&task.complete().unwrap().unwrap()), [51, 60]);
    task.offer(&column(&[5, 7])).unwrap();
    assert_eq!(task.questions(9).len(), 1);
}

#[test]
fn nothing_counts_before_it_is_stable_where_others_are_to_answer_the_rest() {
    let mut task = ValueTask::new();
    task.offer(&column(&[5, 6])).unwrap();
    task.questions(9);
    stand(&mut task, &[0], vec![]);
    let mut publication = task.publication(None, &answers(&[50])).unwrap().unwrap();
    assert!(!task.sent(&mut publication, false));
    assert!(task.complete().unwrap().is_none());
    assert_eq!(task.questions(9).len(), 2);
    task.forget_asked();
    task.recorded(publication, &[]);
    assert_eq!(task.questions(9).len(), 1);
}

#[test]
fn parts_of_a_batch_are_asked_and_answered_one_by_one_and_count_together() {
    let mut task = ValueTask::new();
    task.offer(&column(&[5, 6, 7, 8, 9])).unwrap();
    let (first, second) = (task.questions(3), task.questions(3));
    assert_eq!((first.len(), second.len(), task.unasked()), (3, 2, 0));
    assert_eq!(task.questions(9), [0_u64; 0]);
    stand(&mut task, &[0, 1], vec![]);
    assert_eq!(task.live_rows(), [0, 1]);
    let mut sent = task.publication(None, &answers(&[50, 60])).unwrap().unwrap();
    assert!(task.sent(&mut sent, true));
    stand(&mut task, &[1], vec![(vec![0], answers(&[80]))]);
    assert_eq!(task.live_rows(), [4]);
    let mut rest = task.publication(None, &answers(&[90])).unwrap().unwrap();
    assert!(task.sent(&mut rest, true));
    // Another's: asked again once all parts were told how they stand.
    assert!(task.complete().unwrap().is_none());
    assert_eq!(task.questions(9), first[2..]);
    stand(&mut task, &[], vec![(vec![0], answers(&[70]))]);
    assert_eq!(numbers(&task.complete().unwrap().unwrap()), [50, 60, 70, 80, 90]);
    task.recorded(sent, &first[..1]);
    task.recorded(rest, &[]);
    // One of the first part's was answered before: that alone is asked when the batch is offered again.
    task.offer(&column(&[5, 6, 7, 8, 9])).unwrap();
    assert_eq!(task.questions(9), first[..1]);
}

#[test]
fn what_is_asked_and_forgotten_is_asked_again() {
    let mut task = ValueTask::new();
    task.offer(&column(&[5, 6, 7])).unwrap();
    let (first, rest) = (task.questions(2), task.questions(2));
    task.forget_asked();
    assert_eq!(task.questions(9), [first, rest].concat());
}

#[test]
fn answers_in_the_order_of_rows_are_put_behind_each_other() {
    let mut task = ValueTask::new();
    task.offer(&column(&[5, 6, 7])).unwrap();
    let places = |task: &ValueTask, places: &[Place]| task.in_order(places).map(|whole| whole.len());
    task.arrays = vec![answers(&[5, 6]), answers(&[7])];
    assert_eq!(places(&task, &[(0, 0), (0, 1), (1, 0)]), Some(2));
    assert_eq!(places(&task, &[(1, 0), (0, 0), (0, 1)]), Some(2));
    assert_eq!(places(&task, &[(0, 1), (0, 0), (1, 0)]), None);
    assert_eq!(places(&task, &[(1, 0), (0, 0)]), None);
}
