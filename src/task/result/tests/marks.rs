//! Rows with equal arguments that trade places, and what else is seen of them tells which is which.

use super::*;

/// Marks of the columns numbered `columns`, for rows whose other columns hold these.
fn marks(columns: u64, rows: &[u64]) -> Vec<u64> {
    rows.iter().map(|row| (row + 1) << 17 | columns << 1).collect()
}

/// The same where a column is not in them.
fn partial(rows: &[u64]) -> Vec<u64> {
    marks(1, rows).into_iter().map(|mark| mark | 1).collect()
}

impl Attempt {
    fn run_marked(&mut self, batch: &[&str], marks: Vec<u64>) -> Result<Vec<i64>> {
        let mut fingerprints = Vec::new();
        row_fingerprints(&[words(batch)], &mut fingerprints)?;
        let Self { task, others, .. } = self;
        let plan = task.find(fingerprints, marks, |questions, checks| others.answer(questions, checks))?;
        self.complete(plan)
    }
}

/// An attempt after others that all failed before their end.
fn after_failures(log: Vec<Bytes>) -> Attempt {
    Attempt::with(TaskOptions { ended: Ended::Never, ..result_options() }, log, 100)
}

/// The log of an attempt that took this batch.
fn recorded_marked(batch: &[&str], marks: Vec<u64>) -> Vec<Bytes> {
    recorded_by(Attempt::new(Vec::new(), 1), batch, marks)
}

fn recorded_by(mut first: Attempt, batch: &[&str], marks: Vec<u64>) -> Vec<Bytes> {
    first.run_marked(batch, marks).unwrap();
    first.log
}

fn of_choice(choice: u16) -> TaskOptions {
    TaskOptions { choice: Choice(choice), ..result_options() }
}

fn chosen(choice: u16, log: Vec<Bytes>, first: i64) -> Attempt {
    Attempt::with(of_choice(choice), log, first)
}

/// An attempt of a stage that reads no shuffle.
fn in_order(log: Vec<Bytes>, first: i64) -> Attempt {
    chosen(5, log, first)
}

#[test]
fn each_row_gets_its_own_answer_where_arguments_come_in_the_recorded_order() {
    let log = recorded_marked(&["a", "a", "b", "a"], marks(1, &[10, 20, 30, 40]));
    let mut second = Attempt::new(log, 100);
    assert_eq!(second.run_marked(&["a", "a", "b", "a"], marks(1, &[20, 40, 30, 10])).unwrap(), [2, 4, 3, 1]);
    assert_eq!(second.finish().unwrap().live, 0);
}

#[test]
fn in_another_order_they_are_not_ambiguous() {
    let log = recorded_marked(&["a", "b", "a"], marks(1, &[10, 20, 30]));
    let mut second = Attempt::new(log, 100);
    assert_eq!(second.run_marked(&["b"], marks(1, &[20])).unwrap(), [2]);
    assert_eq!(second.run_marked(&["a", "a"], marks(1, &[30, 10])).unwrap(), [3, 1]);
    second.finish().unwrap();
}

#[test]
fn rows_that_an_attempt_did_not_come_to_do_not_take_the_answers_of_others() {
    // It died after two of four rows with equal arguments.
    let log = recorded_marked(&["a", "a"], marks(1, &[10, 20]));
    let mut second = after_failures(log.clone());
    let rows = second.run_marked(&["a", "a", "a", "a"], marks(1, &[40, 20, 30, 10]));
    assert_eq!(rows.unwrap(), [100, 2, 101, 1]);
    let mut third = Attempt::new(second.log.clone(), 500);
    assert_eq!(
        third.run_marked(&["a", "a", "a", "a"], marks(1, &[10, 20, 30, 40])).unwrap(),
        [1, 2, 101, 100]
    );
    assert_eq!(third.finish().unwrap().live, 0);
    // In batches, the first of which has no row that is recorded.
    let mut second = after_failures(log);
    assert_eq!(second.run_marked(&["a", "a"], marks(1, &[30, 40])).unwrap(), [100, 101]);
    assert_eq!(second.run_marked(&["a", "a"], marks(1, &[20, 10])).unwrap(), [2, 1]);
    assert_eq!(second.finish().unwrap().live, 2);
}

#[test]
fn a_row_of_which_something_is_another_each_time_is_found_by_its_arguments() {
    let log = recorded_marked(&["a", "b", "c", "b"], marks(1, &[10, 20, 30, 40]));
    for mut second in [Attempt::new(log.clone(), 100), after_failures(log.clone())] {
        // The mark of c is not known, and that of one b.
        let found = second.run_marked(&["c", "b", "b", "a"], marks(1, &[31, 40, 20, 10]));
        assert_eq!(found.unwrap(), [3, 4, 2, 1]);
        assert_eq!(second.finish().unwrap().live, 0);
    }
    // Of two that are not known neither can be told, unless they may as well be new.
    let unknown = |mut attempt: Attempt| attempt.run_marked(&["a", "b", "b"], marks(1, &[10, 21, 41]));
    assert_diverged(unknown(Attempt::new(log.clone(), 100)), Kind::AmbiguousRows, Some(1));
    assert_eq!(unknown(after_failures(log.clone())).unwrap(), [1, 100, 101]);
    let any = TaskOptions { on_ambiguous: OnAmbiguous::Any, ..result_options() };
    assert_eq!(unknown(Attempt::with(any, log.clone(), 100)).unwrap(), [1, 2, 4]);
    // One that is not known takes what is left of them.
    let mut second = Attempt::new(log, 100);
    assert_eq!(second.run_marked(&["b", "b", "a"], marks(1, &[21, 20, 10])).unwrap(), [4, 2, 1]);
}

#[test]
fn a_row_that_comes_after_another_took_its_answer_must_agree() {
    let log = recorded_marked(&["a", "b"], marks(1, &[10, 20]));
    let mut second = after_failures(log);
    assert_eq!(second.run_marked(&["b", "a"], marks(1, &[20, 11])).unwrap(), [2, 1]);
    assert_diverged(second.run_marked(&["a"], marks(1, &[10])), Kind::AmbiguousRows, Some(2));
}

#[test]
fn equal_answers_are_anybodys() {
    let mut first = Attempt::new(Vec::new(), 1);
    let mut fingerprints = Vec::new();
    row_fingerprints(&[words(&["a", "b", "b"])], &mut fingerprints).unwrap();
    let nobody = |_: &[PoolQuestion], _: bool| Ok(PoolRows::default());
    let plan = first.task.find(fingerprints, marks(1, &[10, 20, 30]), nobody).unwrap();
    first.task.complete(plan, Some(numbers([7, 8, 8]))).unwrap();
    let mut second = Attempt::new(vec![first.task.take_block().unwrap()], 100);
    assert_eq!(second.run_marked(&["b", "b", "a"], marks(1, &[21, 31, 10])).unwrap(), [8, 8, 7]);
}

#[test]
fn no_two_rows_have_one_number_among_equal_ones() {
    let mut first = Attempt::new(Vec::new(), 1);
    let mut fingerprints = Vec::new();
    row_fingerprints(&[words(&["a", "a", "b"])], &mut fingerprints).unwrap();
    let nobody = |_: &[PoolQuestion], _: bool| Ok(PoolRows::default());
    let plan = first.task.find(fingerprints, marks(1, &[10, 20, 30]), nobody).unwrap();
    assert_eq!([0, 1, 2].map(|row| plan.occurrence(row)), [Some(0), Some(1), Some(0)]);
    first.complete(plan).unwrap();
    let mut second = after_failures(first.log);
    let mut fingerprints = Vec::new();
    row_fingerprints(&[words(&["a", "a", "a", "a"])], &mut fingerprints).unwrap();
    let plan = second.task.find(fingerprints.clone(), marks(1, &[40, 20, 10, 50]), nobody).unwrap();
    assert_eq!((plan.occurrence(0), plan.occurrence(3)), (Some(2), Some(3)));
    assert_eq!((plan.number(0), plan.number(3)), (3, 6));
    second.task.abandon(&plan).unwrap();
    let again = second.task.find(fingerprints, marks(1, &[50, 20, 10, 40]), nobody).unwrap();
    assert_eq!((again.occurrence(0), again.occurrence(3)), (Some(2), Some(3)));
}

#[test]
fn rows_that_are_equal_in_all_that_is_seen_may_have_each_others_answers() {
    let log = recorded_marked(&["a", "b", "a"], marks(1, &[10, 20, 10]));
    let mut second = Attempt::new(log.clone(), 100);
    assert_eq!(
        second.run_marked(&["b", "a", "a", "a"], marks(1, &[20, 10, 10, 10])).unwrap(),
        [2, 1, 3, 100]
    );
    let mut in_part = Attempt::new(recorded_marked(&["a", "b", "a"], partial(&[10, 20, 10])), 100);
    let error = in_part.run_marked(&["b", "a", "a"], partial(&[20, 10, 10]));
    assert_diverged(error, Kind::AmbiguousRows, Some(1));
}

#[test]
fn a_query_that_shows_other_columns_finds_rows_by_arguments() {
    let log = recorded_marked(&["a", "b", "a"], marks(1, &[10, 20, 30]));
    let mut second = Attempt::new(log.clone(), 100);
    assert_eq!(second.run_marked(&["a", "b", "a"], marks(2, &[11, 21, 31])).unwrap(), [1, 2, 3]);
    let mut unmarked = Attempt::new(log.clone(), 100);
    assert_eq!(unmarked.run(&words(&["a", "b", "a"])).unwrap(), [1, 2, 3]);
    let mut other_order = Attempt::new(log, 100);
    let error = other_order.run_marked(&["b", "a", "a"], marks(2, &[21, 31, 11]));
    assert_diverged(error, Kind::AmbiguousRows, Some(1));
}

#[test]
fn in_an_order_that_tells_nothing_they_are_refused() {
    let rows = ["a", "a", "b", "b"];
    let log = recorded_marked(&rows, marks(1, &[10, 20, 30, 40]));
    for seen in [marks(2, &[11, 21, 31, 41]), Vec::new()] {
        let mut sorted = Attempt::new(log.clone(), 100);
        assert_diverged(sorted.run_marked(&rows, seen.clone()), Kind::AmbiguousRows, Some(0));
        let any = TaskOptions { on_ambiguous: OnAmbiguous::Any, ..result_options() };
        assert_eq!(Attempt::with(any, log.clone(), 100).run_marked(&rows, seen).unwrap(), [1, 2, 3, 4]);
    }
    let unmarked = recorded(&[&rows]);
    let mut marked = Attempt::new(unmarked, 100);
    assert_diverged(marked.run_marked(&rows, marks(1, &[10, 20, 30, 40])), Kind::AmbiguousRows, Some(0));
    // The same columns as then, of which one is another in each run.
    let mut changed = Attempt::new(log, 100);
    assert_diverged(changed.run_marked(&rows, marks(1, &[11, 21, 31, 41])), Kind::AmbiguousRows, Some(0));
}

#[test]
fn a_stage_that_reads_no_shuffle_has_its_rows_in_their_order_if_the_one_that_recorded_had() {
    let rows = ["a", "a", "b", "b"];
    let of = |attempt| recorded_by(attempt, &rows, marks(1, &[10, 20, 30, 40]));
    let (ordered, shuffled) = (of(in_order(Vec::new(), 1)), of(Attempt::new(Vec::new(), 1)));
    let seen = || marks(2, &[11, 21, 31, 41]);
    assert_eq!(in_order(ordered.clone(), 100).run_marked(&rows, seen()).unwrap(), [1, 2, 3, 4]);
    for mut other in [Attempt::new(ordered, 100), in_order(shuffled, 100)] {
        assert_diverged(other.run_marked(&rows, seen()), Kind::AmbiguousRows, Some(0));
    }
}

#[test]
fn rows_of_which_nothing_but_the_arguments_is_read_are_anybodys() {
    let log = recorded_by(chosen(4, Vec::new(), 1), &["a", "a", "b"], marks(1, &[10, 20, 30]));
    let nothing = || vec![2 << 1; 3];
    let mut second = chosen(4, log.clone(), 100);
    assert_eq!(second.run_marked(&["a", "a", "b"], nothing()).unwrap(), [1, 2, 3]);
    let mut other_order = chosen(4, log.clone(), 100);
    assert_eq!(other_order.run_marked(&["a", "b", "a"], nothing()).unwrap(), [1, 3, 2]);
    // A column that may be another by itself is read, too.
    let mut in_part = chosen(4, log.clone(), 100);
    let seen = vec![2 << 1 | 1; 3];
    assert_diverged(in_part.run_marked(&["a", "a", "b"], seen), Kind::AmbiguousRows, Some(0));
    // Of another frame rows are told apart by which of them come.
    for choice in [6, 0] {
        let mut other = chosen(choice, log.clone(), 100);
        assert_diverged(other.run_marked(&["a", "a", "b"], nothing()), Kind::AmbiguousRows, Some(0));
    }
}

#[test]
fn of_other_rows_none_is_known_by_its_place() {
    let rows = ["a", "b", "a", "b", "c"];
    // A filter below the function lets the second of each pair through.
    let few = ["a", "b"];
    let recorded = recorded_by(chosen(5, Vec::new(), 1), &rows, marks(1, &[10, 20, 30, 40, 50]));
    let mut filtered = chosen(7, recorded, 100);
    assert_diverged(filtered.run_marked(&few, marks(2, &[31, 41])), Kind::AmbiguousRows, Some(0));
    // So also where rows have no marks.
    let unmarked = recorded_by(chosen(5, Vec::new(), 1), &rows, Vec::new());
    assert_diverged(chosen(7, unmarked.clone(), 100).run(&words(&few)), Kind::AmbiguousRows, Some(0));
    for choice in [5, 4, 0] {
        assert_eq!(chosen(choice, unmarked.clone(), 100).run(&words(&few)).unwrap(), [1, 2]);
    }
    // What has no arguments of another is known by these, and others are new.
    assert_eq!(chosen(7, unmarked.clone(), 100).run(&words(&["c", "d"])).unwrap(), [5, 100]);
    let mut any =
        Attempt::with(TaskOptions { on_ambiguous: OnAmbiguous::Any, ..of_choice(7) }, unmarked, 100);
    assert_eq!(any.run(&words(&few)).unwrap(), [1, 2]);
}

#[test]
fn answers_of_a_query_that_shows_other_columns_are_found_beside_those_of_the_first() {
    let mut first = Attempt::new(recorded_marked(&["a", "b"], marks(1, &[10, 20])), 100);
    assert_eq!(first.run_marked(&["a", "b", "c"], marks(2, &[11, 21, 31])).unwrap(), [1, 2, 100]);
    let mut again = Attempt::new(first.log, 500);
    assert_eq!(again.run_marked(&["c", "b", "a"], marks(1, &[30, 20, 10])).unwrap(), [100, 2, 1]);
    assert_eq!(again.finish().unwrap().live, 0);
}

#[test]
fn rows_that_two_queries_recorded_with_marks_of_other_columns_come_in_their_places() {
    let (few, all) = (["a", "a"], ["a", "a", "a", "b", "a"]);
    let taken = recorded_by(in_order(Vec::new(), 1), &few, marks(1, &[10, 20]));
    let mut first = in_order(taken, 100);
    let answers = [1, 2, 100, 101, 102];
    assert_eq!(first.run_marked(&all, marks(2, &[11, 21, 31, 41, 51])).unwrap(), answers);
    for seen in [marks(1, &[10, 20, 30, 40, 50]), marks(2, &[11, 21, 31, 41, 51])] {
        let mut again = Attempt::new(first.log.clone(), 500);
        assert_eq!(again.run_marked(&all, seen).unwrap(), answers);
        assert_eq!(again.finish().unwrap().live, 0);
    }
    // What is known of some shows that they are in another order.
    for (seen, ambiguous) in [(marks(1, &[20, 10, 30, 40, 50]), 2), (marks(2, &[51, 21, 31, 41, 11]), 1)] {
        let mut other_order = Attempt::new(first.log.clone(), 500);
        assert_diverged(other_order.run_marked(&all, seen), Kind::AmbiguousRows, Some(ambiguous));
    }
}

#[test]
fn a_row_that_is_known_elsewhere_by_its_mark_is_not_the_one_whose_place_it_has() {
    let mut first = Attempt::new(recorded_marked(&["a"], marks(1, &[10])), 100);
    assert_eq!(first.run_marked(&["a", "a"], marks(2, &[11, 21])).unwrap(), [1, 100]);
    let mut swapped = Attempt::new(first.log, 500);
    assert_eq!(swapped.run_marked(&["a", "a"], marks(2, &[21, 11])).unwrap(), [100, 1]);
}

#[test]
fn that_no_mark_of_a_batch_is_known_says_nothing_of_the_next_where_some_have_marks_of_other_columns() {
    let mut first = in_order(recorded_by(in_order(Vec::new(), 1), &["a", "a"], marks(1, &[10, 20])), 100);
    assert_eq!(first.run_marked(&["a", "a"], marks(2, &[11, 21])).unwrap(), [1, 2]);
    assert_eq!(first.run_marked(&["a", "a"], marks(2, &[31, 41])).unwrap(), [100, 101]);
    let mut swapped = Attempt::new(first.log, 500);
    assert_eq!(swapped.run_marked(&["a", "a"], marks(2, &[11, 21])).unwrap(), [1, 2]);
    assert_eq!(swapped.run_marked(&["a", "a"], marks(2, &[41, 31])).unwrap(), [101, 100]);
}

#[test]
fn marks_that_are_others_in_each_run_are_of_no_use_and_do_no_harm() {
    let log = recorded_marked(&["a", "b", "a"], marks(1, &[10, 20, 30]));
    let mut second = Attempt::new(log, 100);
    assert_eq!(second.run_marked(&["a", "b"], marks(1, &[11, 21])).unwrap(), [1, 2]);
    // Found out once: that one is known later on changes nothing.
    assert_eq!(second.run_marked(&["a"], marks(1, &[10])).unwrap(), [3]);
    second.finish().unwrap();
}

#[test]
fn batches_that_are_new_leave_it_open_how_rows_are_found() {
    let log = recorded_marked(&["a", "b", "a"], marks(1, &[10, 20, 30]));
    let mut second = Attempt::new(log, 100);
    assert_eq!(second.run_marked(&["x", "y"], marks(1, &[50, 60])).unwrap(), [100, 101]);
    assert_eq!(second.run_marked(&["z"], marks(1, &[70])).unwrap(), [102]);
    assert_eq!(second.run_marked(&["a", "b", "a"], marks(1, &[30, 20, 10])).unwrap(), [3, 2, 1]);
    second.finish().unwrap();
}

/// An attempt of which another number of tasks has recorded `log`, and this one's predecessor `own`.
fn relaid(own: Vec<Bytes>, log: &[Bytes]) -> Attempt {
    let options = TaskOptions { layout_changed: true, ..result_options() };
    let mut attempt = Attempt::with(options.clone(), own, 100);
    attempt.others = Others::of(log, &options);
    attempt
}

#[test]
fn rows_that_are_in_other_partitions_now_are_found_by_their_marks() {
    let others = recorded_marked(&["a", "a", "b", "c"], marks(1, &[30, 40, 50, 60]));
    let own = || recorded_marked(&["a", "a"], marks(1, &[10, 20]));
    let mut second = relaid(own(), &others);
    let found = second.run_marked(&["a", "b", "a", "a"], marks(1, &[40, 50, 20, 30]));
    assert_eq!(found.unwrap(), [2, 3, 2, 1]);
    assert_eq!(second.run_marked(&["a"], marks(1, &[10])).unwrap(), [1]);
    assert_eq!(second.finish().unwrap().live, 0);
    // What it took is in its own log, with their marks.
    let mut third = Attempt::new(second.log, 500);
    assert_eq!(third.run_marked(&["a", "a", "b"], marks(1, &[30, 40, 50])).unwrap(), [1, 2, 3]);
}

#[test]
fn rows_that_nobody_has_are_new_where_others_were_known_by_their_marks() {
    let others = recorded_marked(&["a", "a", "b"], marks(1, &[30, 40, 50]));
    let mut second = relaid(recorded_marked(&["c"], marks(1, &[60])), &others);
    let found = second.run_marked(&["a", "a", "a", "a", "b"], marks(1, &[40, 70, 30, 80, 51]));
    assert_eq!(found.unwrap(), [2, 100, 1, 101, 102]);
    // Alone in their batches, too: these answers are others'.
    assert_eq!(second.run_marked(&["a"], marks(1, &[31])).unwrap(), [103]);
    assert_eq!(second.run_marked(&["c"], marks(1, &[61])).unwrap(), [104]);
    assert_eq!(second.run_marked(&["c"], marks(1, &[60])).unwrap(), [1]);
}

#[test]
fn so_they_are_where_who_recorded_them_did_not_come_to_an_end() {
    let mut second = relaid(Vec::new(), &recorded_marked(&["a", "a"], marks(1, &[30, 40])));
    second.others.may_lack_rows = true;
    assert_eq!(second.run_marked(&["a", "a"], marks(1, &[31, 41])).unwrap(), [100, 101]);
    assert_eq!(second.run_marked(&["a"], marks(1, &[40])).unwrap(), [2]);
}

#[test]
fn so_they_are_where_own_rows_came_in_their_order() {
    let others = recorded_marked(&["a"], marks(1, &[30]));
    let options = TaskOptions { pooled: true, ..result_options() };
    let mut second = Attempt::with(options.clone(), recorded_marked(&["b", "c"], marks(1, &[10, 20])), 100);
    second.others = Others::of(&others, &options);
    assert_eq!(second.run_marked(&["b", "c"], marks(1, &[10, 20])).unwrap(), [1, 2]);
    assert_eq!(second.run_marked(&["a"], marks(1, &[31])).unwrap(), [100]);
    assert_eq!(second.run_marked(&["a"], marks(1, &[30])).unwrap(), [1]);
}

#[test]
fn before_a_mark_is_known_a_row_of_others_is_found_by_its_arguments_and_not_again_by_its_mark() {
    let others = recorded_marked(&["a", "b"], marks(1, &[30, 50]));
    let mut second = relaid(Vec::new(), &others);
    assert_eq!(second.run_marked(&["a"], marks(1, &[99])).unwrap(), [1]);
    assert_eq!(second.run_marked(&["b"], marks(1, &[50])).unwrap(), [2]);
    assert_diverged(second.run_marked(&["a"], marks(1, &[30])), Kind::AmbiguousRows, Some(2));
}

#[test]
fn nor_is_one_found_whose_arguments_are_those_of_an_own_row_with_another_answer() {
    let others = recorded_marked(&["b", "a"], marks(1, &[50, 70]));
    let mut second = relaid(recorded_marked(&["a"], marks(1, &[10])), &others);
    assert_diverged(second.run_marked(&["a"], marks(1, &[90])), Kind::AmbiguousRows, Some(0));
}

#[test]
fn an_own_row_whose_answer_was_given_away_is_not_found_among_others() {
    let mut second = relaid(recorded_marked(&["a"], marks(1, &[10])), &[]);
    assert_eq!(second.run_marked(&["a"], marks(1, &[90])).unwrap(), [1]);
    assert_diverged(second.run_marked(&["a"], marks(1, &[10])), Kind::AmbiguousRows, Some(1));
}

#[test]
fn where_rows_may_be_dealt_otherwise_one_that_moved_in_does_not_take_the_answer_of_one_that_moved_out() {
    let mut other = Attempt::new(Vec::new(), 50);
    other.run_marked(&["x", "a"], marks(1, &[40, 30])).unwrap();
    let dealt = TaskOptions { dealt: true, stage: 9, ..result_options() };
    let attempt_of = |options: &TaskOptions, others: &[Bytes]| {
        let log = recorded_marked(&["b", "a", "c"], marks(1, &[5, 10, 20]));
        let mut attempt = Attempt::with(options.clone(), log, 100);
        attempt.others = Others::of(others, options);
        attempt
    };
    let attempt = |others: &[Bytes]| attempt_of(&dealt, others);
    let mut second = attempt(&other.log);
    assert_eq!(second.run_marked(&["b"], marks(1, &[5])).unwrap(), [1]);
    assert_eq!(second.others.asked, 0, "it came in its place");
    assert_eq!(second.run_marked(&["a", "c"], marks(1, &[30, 20])).unwrap(), [51, 3]);
    let summary = second.finish().unwrap();
    assert_eq!((summary.from_pool, summary.leftover, summary.taken + summary.marked), (1, 1, 2));
    // No row of the first batch may be known here.
    // Also where the borders are known to be others.
    for pooled in [false, true] {
        let mut moved = attempt_of(&TaskOptions { pooled, ..dealt.clone() }, &other.log);
        assert_eq!(moved.run_marked(&["a"], marks(1, &[30])).unwrap(), [51]);
        assert_eq!(moved.run_marked(&["c", "a"], marks(1, &[20, 10])).unwrap(), [3, 2]);
    }
    // Where nobody else has it, it is the own row, of which something is another each time.
    let mut alone = attempt(&[]);
    assert_eq!(alone.run_marked(&["c", "a", "b"], marks(1, &[20, 30, 5])).unwrap(), [3, 2, 1]);
    // Or it is new, if who recorded did not come to all rows.
    let mut lacking = attempt(&[]);
    lacking.others.may_lack_rows = true;
    assert_eq!(lacking.run_marked(&["c", "a", "b"], marks(1, &[20, 30, 5])).unwrap(), [3, 100, 1]);
    assert_eq!(lacking.run_marked(&["a"], marks(1, &[10])).unwrap(), [2]);
}

#[test]
fn where_any_answer_will_do_each_row_gets_one() {
    let others = recorded_marked(&["a", "b"], marks(1, &[30, 50]));
    let options = TaskOptions { layout_changed: true, on_ambiguous: OnAmbiguous::Any, ..result_options() };
    let mut second = Attempt::with(options.clone(), recorded_marked(&["a"], marks(1, &[10])), 100);
    second.others = Others::of(&others, &options);
    assert_eq!(second.run_marked(&["a"], marks(1, &[99])).unwrap(), [1]);
    assert_eq!(second.run_marked(&["b", "a", "a"], marks(1, &[50, 30, 10])).unwrap(), [2, 1, 100]);
}

#[test]
fn rows_that_others_recorded_with_marks_of_other_columns_are_found_by_arguments() {
    let mut others = recorded_marked(&["a", "b"], marks(1, &[30, 50]));
    others.extend(recorded_marked(&["x", "c"], marks(2, &[60, 70])));
    let mut second = relaid(Vec::new(), &others);
    // A mark is known, and that of c is none that would be there.
    assert_eq!(second.run_marked(&["a", "c"], marks(1, &[30, 71])).unwrap(), [1, 2]);
    assert_eq!(second.run_marked(&["b"], marks(1, &[51])).unwrap(), [2]);
}

#[test]
fn without_a_mark_that_is_known_rows_of_others_are_found_by_arguments() {
    let others = recorded_marked(&["a", "a", "b"], marks(1, &[30, 40, 50]));
    let mut second = relaid(Vec::new(), &others);
    assert_eq!(second.run_marked(&["b"], marks(2, &[51])).unwrap(), [3]);
    let error = second.run_marked(&["a", "a"], marks(2, &[31, 41]));
    assert_diverged(error, Kind::AmbiguousRows, Some(1));
    let mut unmarked = relaid(Vec::new(), &others);
    assert_eq!(unmarked.run(&words(&["b"])).unwrap(), [3]);
}

#[test]
fn equal_rows_of_others_with_two_answers_are_ambiguous_as_another_task_may_have_one() {
    let others = recorded_marked(&["a", "a"], marks(1, &[30, 30]));
    let mut second = relaid(Vec::new(), &others);
    assert_diverged(second.run_marked(&["a"], marks(1, &[30])), Kind::AmbiguousRows, Some(0));
}

#[test]
fn gaps_that_calls_under_way_left_are_known_by_the_rows_around_them() {
    let mut first = Attempt::new(Vec::new(), 1);
    let mut fingerprints = Vec::new();
    row_fingerprints(&[words(&["a", "a", "a"])], &mut fingerprints).unwrap();
    let nobody = |_: &[PoolQuestion], _: bool| Ok(PoolRows::default());
    let mut plan = first.task.find(fingerprints, marks(1, &[10, 20, 30]), nobody).unwrap();
    first.task.keep(&mut plan, &[0, 2], &numbers([1, 3])).unwrap();
    let log = vec![first.task.take_block().unwrap()];
    let mut same = Attempt::new(log.clone(), 100);
    assert_eq!(same.run_marked(&["a", "a", "a"], marks(1, &[10, 20, 30])).unwrap(), [1, 100, 3]);
    let mut traded = Attempt::new(log, 100);
    assert_eq!(traded.run_marked(&["a", "a", "a"], marks(1, &[30, 20, 10])).unwrap(), [3, 100, 1]);
}

#[test]
fn a_plan_that_is_given_back_gives_its_rows_back() {
    let log = recorded_marked(&["a", "a"], marks(1, &[10, 20]));
    let mut second = Attempt::new(log, 100);
    let mut fingerprints = Vec::new();
    row_fingerprints(&[words(&["a", "a", "b"])], &mut fingerprints).unwrap();
    let nobody = |_: &[PoolQuestion], _: bool| Ok(PoolRows::default());
    let plan = second.task.find(fingerprints, marks(1, &[20, 10, 30]), nobody).unwrap();
    second.task.abandon(&plan).unwrap();
    assert_eq!(second.run_marked(&["b", "a", "a"], marks(1, &[30, 10, 20])).unwrap(), [100, 1, 2]);
}

#[test]
fn as_many_marks_as_rows_are_needed() {
    let mut task = Attempt::new(Vec::new(), 1).task;
    let nobody = |_: &[PoolQuestion], _: bool| Ok(PoolRows::default());
    assert_eq!(task.find(vec![1, 2], vec![3], nobody).unwrap_err().condition(), "MISUSE");
    let mut builder = BlockBuilder::new();
    builder.push(&header::ours(&result_options())).unwrap();
    builder.push(&Determinant::Marks { marks: &[0; 16] }).unwrap();
    builder.push_results(&[1], &encode_results(&numbers([7])).unwrap()).unwrap();
    let log = vec![builder.finish()];
    assert_eq!(ResultTask::new(result_options(), log, true).unwrap_err().condition(), "CORRUPT_LOG");
}
