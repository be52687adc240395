use super::*;
use crate::agent::protocol::Borders;
use crate::id::Epoch;

fn code(fingerprint: u64) -> Code {
    Code { fingerprint, python: 0x030b }
}

fn used(fingerprint: u64, token: u64) -> Use {
    Use { code: code(fingerprint), token, named: false }
}

fn placed(fingerprint: u64, token: u64) -> Placed {
    // Over a table of its own, as it were.
    asked_over(fingerprint, token, token)
}

fn asked_over(fingerprint: u64, token: u64, over: u64) -> Placed {
    Placed { operator: "f".into(), used: used(fingerprint, token), over, tables: over, plan: Plan::default() }
}

/// Asked over a table that no later run has, in a query that it has.
pub(super) fn in_query(fingerprint: u64, token: u64, exact: u32, shape: u32) -> Placed {
    Placed { plan: Plan { exact, shape, data: 0 }, ..placed(fingerprint, token) }
}

/// What a use of known plan is given.
fn alone(operator: &str) -> Named {
    Named {
        operator: operator.into(),
        others: vec![],
        uncertain: false,
        changed: false,
        plan: Some(Plan::default()),
        replaces: None,
    }
}

/// How a log that is found in a checkpoint was recorded.
pub(super) fn recorded(fingerprint: u64, exact: u32, shape: u32) -> Layout {
    let plan = Some(Plan { exact, shape, data: 0 });
    Layout { app: 1, stage: 1, tasks: None, code: code(fingerprint), plan, borders: Borders::UNKNOWN }
}

pub(super) fn name(uses: &mut Uses, fingerprint: u64, token: u64) -> String {
    uses.name(&"f".into(), used(fingerprint, token), None).unwrap().operator.to_string()
}

#[test]
fn each_use_has_a_log_of_its_own_and_keeps_it() {
    let mut uses = Uses::default();
    assert_eq!(name(&mut uses, 1, 10), "f");
    assert_eq!(name(&mut uses, 1, 11), "f#2");
    assert_eq!(name(&mut uses, 1, 10), "f");
}

#[test]
fn the_order_of_the_plan_decides_not_who_asks_first() {
    let mut uses = Uses::default();
    uses.plan(7, &[placed(1, 10), placed(1, 11)]);
    assert_eq!(name(&mut uses, 1, 11), "f#2");
    assert_eq!(name(&mut uses, 1, 10), "f");
}

#[test]
fn functions_are_found_again_by_their_code_in_any_order() {
    let mut uses = Uses::default();
    uses.plan(7, &[placed(1, 10), placed(100, 11)]);
    uses.begin_run();
    uses.plan(8, &[placed(100, 20), placed(1, 21)]);
    assert_eq!(name(&mut uses, 100, 20), "f#2");
    assert_eq!(name(&mut uses, 1, 21), "f");
}

#[test]
fn changed_code_is_given_the_log_of_the_code_that_is_gone() {
    let mut uses = Uses::default();
    uses.plan(7, &[placed(1, 10), placed(2, 11)]);
    uses.begin_run();
    // 2 is still there; 3 stands where 1 stood.
    uses.plan(8, &[placed(3, 20), placed(2, 21)]);
    assert_eq!(name(&mut uses, 3, 20), "f");
    assert_eq!(name(&mut uses, 2, 21), "f#2");
}

#[test]
fn under_a_name_that_the_user_gave_other_code_is_changed_code_at_once() {
    let mut uses = Uses::default();
    let named = |fingerprint, token| Use { named: true, ..used(fingerprint, token) };
    let placed = |used| Placed { operator: "f".into(), used, over: 0, tables: 0, plan: Plan::default() };
    uses.plan(7, &[placed(named(1, 10)), placed(named(2, 11))]);
    assert_eq!(name(&mut uses, 2, 11), "f#2");
    uses.plan(8, &[placed(named(3, 20))]);
    assert_eq!(name(&mut uses, 3, 20), "f");
}

#[test]
fn two_tables_in_turn_have_two_logs_under_a_name_that_the_user_gave_too() {
    let mut uses = Uses::default();
    let named = |token, over| {
        let used = Use { named: true, ..used(1, token) };
        Placed { operator: "f".into(), used, over, tables: over, plan: Plan::default() }
    };
    uses.plan(7, &[named(10, 1)]);
    uses.plan(8, &[named(11, 2)]);
    assert_eq!([10, 11].map(|token| name(&mut uses, 1, token)), ["f", "f#2"]);
}

#[test]
fn a_function_that_had_no_log_yet_is_new_if_all_logs_are_accounted_for() {
    let mut uses = Uses::default();
    uses.plan(7, &[placed(1, 10)]);
    uses.begin_run();
    uses.plan(8, &[placed(2, 20), placed(1, 21)]);
    assert_eq!(name(&mut uses, 2, 20), "f#2");
    assert_eq!(name(&mut uses, 1, 21), "f");
}

#[test]
fn where_several_logs_of_one_code_wait_all_are_searched() {
    let mut uses = Uses::default();
    uses.plan(7, &[placed(1, 10)]);
    uses.plan(8, &[placed(1, 11)]);
    uses.begin_run();
    let first = uses.name(&"f".into(), used(1, 20), None).unwrap();
    assert_eq!((&*first.operator, first.others), ("f", vec!["f#2".into()]));
    let last = uses.name(&"f".into(), used(1, 21), None).unwrap();
    assert_eq!((&*last.operator, last.others.is_empty()), ("f#2", true));
}

#[test]
fn two_tables_in_turn_are_told_apart_in_the_next_run() {
    let mut uses = Uses::default();
    uses.plan(7, &[asked_over(1, 10, 5)]);
    uses.plan(8, &[asked_over(1, 11, 6)]);
    uses.begin_run();
    // In another order.
    uses.plan(9, &[asked_over(1, 20, 6)]);
    uses.plan(10, &[asked_over(1, 21, 5)]);
    let named = |uses: &mut Uses, token| uses.name(&"f".into(), used(1, token), None).unwrap();
    assert_eq!(named(&mut uses, 20), alone("f#2"));
    assert_eq!(named(&mut uses, 21), alone("f"));
}

#[test]
fn a_query_that_is_made_again_has_the_logs_it_had() {
    let mut uses = Uses::default();
    uses.plan(7, &[asked_over(1, 10, 5), asked_over(1, 11, 5)]);
    uses.plan(8, &[asked_over(1, 20, 6)]);
    uses.plan(9, &[asked_over(1, 30, 5), asked_over(1, 31, 5)]);
    assert_eq!([10, 11, 20, 30, 31].map(|token| name(&mut uses, 1, token)), ["f", "f#2", "f#3", "f", "f#2"]);
}

#[test]
fn a_column_made_before_keeps_its_log_in_the_next_run() {
    let mut uses = Uses::default();
    assert_eq!(name(&mut uses, 1, 10), "f");
    assert_eq!(name(&mut uses, 1, 11), "f#2");
    uses.begin_run();
    assert_eq!(name(&mut uses, 1, 11), "f#2");
    assert_eq!(name(&mut uses, 1, 20), "f");
}

#[test]
fn a_column_over_two_tables_is_two_uses() {
    let mut uses = Uses::default();
    let f = "f".into();
    uses.plan(7, &[asked_over(1, 10, 5)]);
    uses.plan(8, &[asked_over(1, 10, 6)]);
    uses.plan(9, &[asked_over(1, 10, 5)]);
    let of = |uses: &mut Uses, execution| uses.name(&f, used(1, 10), Some(execution)).unwrap();
    assert_eq!(
        [7, 8, 9].map(|execution| of(&mut uses, execution).operator),
        ["f", "f#2", "f"].map(Arc::from)
    );
    // The next run may ask in another order, of the same column or of another.
    uses.begin_run();
    uses.plan(10, &[asked_over(1, 10, 6)]);
    uses.plan(11, &[asked_over(1, 20, 5)]);
    assert_eq!(&*of(&mut uses, 10).operator, "f#2");
    assert_eq!(name(&mut uses, 1, 20), "f");
    // A task of the run before still has its own.
    assert_eq!(&*of(&mut uses, 8).operator, "f#2");
}

#[test]
fn a_use_is_one_where_only_one_of_its_plans_is_known() {
    let mut uses = Uses::default();
    assert_eq!(name(&mut uses, 1, 10), "f");
    uses.plan(7, &[asked_over(1, 10, 5)]);
    uses.plan(8, &[asked_over(1, 10, 6)]);
    let f = "f".into();
    let logs = [Some(7), Some(8), None].map(|execution| uses.name(&f, used(1, 10), execution).unwrap());
    assert_eq!(logs.map(|log| log.operator), ["f"; 3].map(Arc::from));
}

#[test]
fn a_column_is_one_use_wherever_it_stands_in_a_query() {
    let mut uses = Uses::default();
    let f = "f".into();
    let of = |uses: &mut Uses, execution| uses.name(&f, used(1, 10), Some(execution)).unwrap();
    // What is filtered by it, and what is then shown with it.
    uses.plan(7, &[asked_over(1, 10, 5)]);
    uses.plan(8, &[asked_over(1, 10, 6), asked_over(1, 10, 5)]);
    uses.plan(9, &[asked_over(1, 10, 6)]);
    assert_eq!([7, 8, 9].map(|execution| of(&mut uses, execution)), ["f"; 3].map(alone));
    uses.begin_run();
    // In another order, and of another column.
    uses.plan(10, &[asked_over(1, 20, 6), asked_over(1, 20, 5)]);
    uses.plan(11, &[asked_over(1, 20, 5)]);
    assert_eq!(name(&mut uses, 1, 20), "f");
    assert_eq!(uses.name(&f, used(1, 20), Some(11)).unwrap(), alone("f"));
}

#[test]
fn a_column_over_two_tables_in_turn_and_then_in_one_query_searches_both_logs() {
    let mut uses = Uses::default();
    uses.plan(7, &[asked_over(1, 10, 5)]);
    uses.plan(8, &[asked_over(1, 10, 6)]);
    uses.plan(9, &[asked_over(1, 10, 5), asked_over(1, 10, 6)]);
    let both = uses.name(&"f".into(), used(1, 10), Some(9)).unwrap();
    assert_eq!(both, Named { others: vec!["f".into()], uncertain: true, ..alone("f#2") });
}

#[test]
fn where_a_plan_is_not_known_the_rows_of_all_tables_may_be_meant() {
    let mut uses = Uses::default();
    uses.plan(7, &[asked_over(1, 10, 5)]);
    uses.plan(8, &[asked_over(1, 10, 6)]);
    let either = uses.name(&"f".into(), used(1, 10), Some(9)).unwrap();
    assert_eq!(either, Named { others: vec!["f#2".into()], uncertain: true, ..alone("f") });
    uses.begin_run();
    assert_eq!(uses.name(&"f".into(), used(1, 10), Some(10)).unwrap(), either);
}

#[test]
fn a_plan_that_spark_rewrites_over_the_same_tables_is_the_same_use() {
    let mut uses = Uses::default();
    let over = |over| Placed { tables: 1, ..asked_over(1, 10, over) };
    uses.plan(7, &[over(5)]);
    uses.plan(8, &[over(6)]);
    let logs = [7, 8].map(|execution| uses.name(&"f".into(), used(1, 10), Some(execution)).unwrap());
    assert_eq!(logs, ["f"; 2].map(alone));
}

#[test]
fn a_micro_batch_knows_its_uses_by_their_tokens() {
    let epoch = EpochKey { query: "query".into(), epoch: Epoch::Batch(1) };
    let mut uses = Uses::of(&epoch);
    // What is written, and then what is counted; its tables are others in each plan and each run.
    let f = "f".into();
    for execution in [7, 8, 9, 10] {
        if execution == 9 {
            uses.begin_run();
        }
        uses.plan(execution, &[asked_over(1, 10, execution), asked_over(1, 11, execution)]);
        let logs = [11, 10].map(|token| uses.name(&f, used(1, token), Some(execution)).unwrap());
        assert_eq!(logs, ["f#2", "f"].map(alone));
    }
}

#[test]
fn an_execution_that_is_an_epoch_needs_no_plan() {
    let epoch = EpochKey { query: "app:1".into(), epoch: Epoch::Named("sql-7".into()) };
    let mut uses = Uses::of(&epoch);
    assert!(!uses.wants_plan(used(1, 10), 7));
    // Two functions under a name that the user gave are two, though no plan has said so.
    let named = |fingerprint, token| Use { named: true, ..used(fingerprint, token) };
    let two = [(1, 20), (2, 21), (1, 20)];
    let two = two.map(|(code, token)| uses.name(&"g".into(), named(code, token), Some(7)).unwrap());
    assert_eq!(two.map(|named| named.operator), ["g", "g#2", "g"].map(Arc::from));
}

#[test]
fn a_task_that_a_run_left_behind_takes_nothing_from_the_next() {
    let mut uses = Uses::default();
    let f = "f".into();
    uses.name(&f, used(1, 10), Some(7)).unwrap();
    uses.begin_run();
    let late = uses.name(&f, used(1, 10), Some(7)).unwrap();
    assert_eq!(&*late.operator, "f");
    assert_eq!(uses.name(&f, used(1, 11), Some(7)), None);
    // Nor does its plan, which told more uses than those that had begun.
    assert!(!uses.wants_plan(used(1, 11), 7));
    uses.plan(7, &[placed(1, 10), placed(1, 11)]);
    assert_eq!(&*uses.name(&f, used(1, 20), Some(8)).unwrap().operator, "f");
}

#[test]
fn logs_of_a_checkpoint_wait_for_their_uses() {
    let mut uses = Uses::default();
    uses.recovered("f#2", &Layout { plan: None, ..recorded(5, 0, 0) });
    uses.recovered("f", &Layout { plan: None, ..recorded(4, 0, 0) });
    uses.plan(1, &[placed(5, 1), placed(4, 2)]);
    assert_eq!(name(&mut uses, 5, 1), "f#2");
    assert_eq!(name(&mut uses, 4, 2), "f");
}

#[test]
fn what_was_not_published_leaves_its_place_empty() {
    let mut uses = Uses::default();
    uses.recovered("f#2", &Layout { plan: None, ..recorded(2, 0, 0) });
    uses.plan(1, &[placed(1, 1), placed(2, 2)]);
    assert_eq!(name(&mut uses, 2, 2), "f#2");
    assert_eq!(name(&mut uses, 1, 1), "f#3");
}

#[test]
fn in_a_stream_the_place_tells_uses_apart_that_are_alike() {
    let batch = || Uses::of(&EpochKey { query: "q".into(), epoch: Epoch::Batch(3) });
    // The first recorded nothing, or other rows.
    for first in [false, true] {
        let mut uses = batch();
        uses.recovered("f#2", &recorded(1, 7, 7));
        if first {
            uses.recovered("f", &recorded(1, 7, 7));
        }
        uses.plan(1, &[in_query(1, 10, 7, 7), in_query(1, 11, 7, 7)]);
        assert_eq!([11, 10].map(|token| name(&mut uses, 1, token)), ["f#2", "f"]);
        assert!(uses.are_of_places("f"));
        // What has been given its log keeps it, and records in it.
        uses.begin_run();
        uses.plan(2, &[in_query(1, 20, 7, 7), in_query(1, 21, 7, 7)]);
        assert_eq!([21, 20].map(|token| name(&mut uses, 1, token)), ["f#2", "f"]);
    }
    // A program with one use fewer: nothing says that it is the first.
    let mut uses = batch();
    uses.recovered("f#2", &recorded(1, 7, 7));
    uses.plan(1, &[in_query(1, 10, 7, 7)]);
    assert_eq!(name(&mut uses, 1, 10), "f#2");
}

#[test]
fn another_python_version_makes_other_bytecode_of_the_same_function() {
    let mut uses = Uses::default();
    uses.recovered(
        "f",
        &Layout { code: Code { fingerprint: 9, python: 0x030c }, plan: None, ..recorded(1, 0, 0) },
    );
    assert_eq!(name(&mut uses, 1, 1), "f");
}

#[test]
fn two_queries_over_tables_that_are_made_again_are_told_apart() {
    let mut uses = Uses::default();
    uses.plan(7, &[in_query(1, 10, 1, 1)]);
    uses.plan(8, &[in_query(1, 11, 2, 2)]);
    uses.begin_run();
    // Each comes alone, and in another order.
    uses.plan(9, &[in_query(1, 20, 2, 2)]);
    uses.plan(10, &[in_query(1, 21, 1, 1)]);
    let named = |uses: &mut Uses, token| uses.name(&"f".into(), used(1, token), None).unwrap();
    let of = |operator, exact| Named { plan: Some(Plan { exact, shape: exact, data: 0 }), ..alone(operator) };
    assert_eq!([20, 21].map(|token| named(&mut uses, token)), [of("f#2", 2), of("f", 1)]);
}

#[test]
fn one_query_over_several_tables_is_found_again_in_its_order() {
    let mut uses = Uses::default();
    for token in [10, 11, 12] {
        uses.plan(token, &[in_query(1, token, 5, 5)]);
    }
    uses.begin_run();
    for (token, log) in [(20, "f"), (21, "f#2"), (22, "f#3")] {
        uses.plan(token, &[in_query(1, token, 5, 5)]);
        let named = uses.name(&"f".into(), used(1, token), None).unwrap();
        assert_eq!((&*named.operator, named.others), (log, vec![]));
    }
}

#[test]
fn what_a_use_over_an_empty_table_was_given_is_found_by_the_next() {
    let mut uses = Uses::default();
    // The first use of the run before has nothing published.
    uses.recovered("f#2", &recorded(1, 5, 5));
    uses.begin_run();
    for token in [20, 21] {
        uses.plan(token, &[in_query(1, token, 5, 5)]);
    }
    let named = [20, 21].map(|token| uses.name(&"f".into(), used(1, token), None).unwrap());
    assert_eq!((&*named[0].operator, &*named[0].others), ("f#2", &[][..]));
    assert_eq!((&*named[1].operator, &*named[1].others), ("f#3", &["f#2".into()][..]));
}

#[test]
fn the_log_of_a_query_that_is_skipped_is_not_given_to_another() {
    let mut uses = Uses::default();
    uses.recovered("f", &recorded(1, 1, 1));
    uses.plan(9, &[in_query(1, 20, 2, 2)]);
    assert_eq!(name(&mut uses, 1, 20), "f#2");
    // Nor is it gone.
    uses.plan(10, &[in_query(1, 21, 1, 1)]);
    assert_eq!(name(&mut uses, 1, 21), "f");
}

#[test]
fn a_query_with_other_numbers_in_it_finds_rows_in_the_log_of_its_shape() {
    let mut uses = Uses::default();
    uses.recovered("f", &recorded(1, 1, 1));
    uses.recovered("f#2", &recorded(1, 2, 2));
    uses.plan(9, &[in_query(1, 20, 4, 2)]);
    let named = uses.name(&"f".into(), used(1, 20), None).unwrap();
    assert_eq!((&*named.operator, named.others), ("f#3", vec!["f#2".into()]));
    // Not in that of one that is asked, too, nor once numbers are known to count.
    uses.plan(10, &[in_query(1, 21, 2, 2)]);
    uses.plan(11, &[in_query(1, 22, 5, 2)]);
    let third = uses.name(&"f".into(), used(1, 22), None).unwrap();
    assert_eq!((&*third.operator, third.others), ("f#4", vec![]));
    assert_eq!([20, 21].map(|token| name(&mut uses, 1, token)), ["f#3", "f#2"]);
}

#[test]
fn tables_that_the_program_makes_are_told_apart_by_what_is_in_them() {
    let mut uses = Uses::default();
    let over = |token, tables: u32, cut| Placed {
        plan: Plan { exact: 1, shape: 1, data: tables << 16 | cut },
        ..placed(1, token)
    };
    for (token, data) in [(10, 1), (11, 2)] {
        uses.plan(token, &[over(token, data, 3)]);
    }
    uses.begin_run();
    // The first is left out, and there is a third.
    for (token, data, log) in [(20, 2, "f#2"), (21, 3, "f#3"), (22, 1, "f")] {
        uses.plan(token, &[over(token, data, 3)]);
        assert_eq!(name(&mut uses, 1, token), log);
    }
    uses.begin_run();
    // Cut otherwise, their data cannot be compared, and they come in their order.
    for (token, data, log) in [(30, 4, "f"), (31, 5, "f#2"), (32, 6, "f#3")] {
        uses.plan(token, &[over(token, data, 8)]);
        assert_eq!(name(&mut uses, 1, token), log);
    }
}

#[test]
fn a_number_that_is_another_in_each_run_tells_no_queries_apart() {
    let mut uses = Uses::default();
    for run in 0..3 {
        let token = u64::from(10 + run);
        uses.plan(token, &[in_query(1, token, run, 9)]);
        let named = uses.name(&"f".into(), used(1, token), None).unwrap();
        let before = ["f", "f#2"].iter().take(run as usize).copied().map(Arc::from);
        assert_eq!(named.others, before.collect::<Vec<_>>());
        uses.begin_run();
    }
}

#[test]
fn days_that_are_done_in_turns_each_keep_their_log() {
    let mut uses = Uses::default();
    let day = |token, day| in_query(1, token, day, 9);
    // Two days, then the third without those, and then all.
    uses.plan(7, &[day(10, 1)]);
    uses.plan(8, &[day(11, 2)]);
    uses.begin_run();
    uses.plan(9, &[day(20, 3)]);
    let third = uses.name(&"f".into(), used(1, 20), None).unwrap();
    assert_eq!((&*third.operator, third.others), ("f#3", vec![]));
    uses.begin_run();
    for (token, log) in [(31, "f"), (32, "f#2"), (33, "f#3")] {
        let number = u32::try_from(token - 30).unwrap();
        uses.plan(token, &[day(token, number)]);
        assert_eq!(name(&mut uses, 1, token), log);
    }
}

#[test]
fn where_one_query_of_a_shape_was_found_again_one_with_other_numbers_is_new() {
    let mut uses = Uses::default();
    uses.recovered("f", &recorded(1, 1, 7));
    uses.recovered("f#2", &recorded(1, 2, 7));
    // The first day is left out, as it is done; the second is made again, and then comes the third.
    uses.plan(9, &[in_query(1, 20, 2, 7)]);
    uses.plan(10, &[in_query(1, 21, 3, 7)]);
    let third = uses.name(&"f".into(), used(1, 21), None).unwrap();
    assert_eq!((&*third.operator, third.others), ("f#3", vec![]));
    // The first may be made yet.
    uses.plan(11, &[in_query(1, 22, 1, 7)]);
    assert_eq!([20, 22].map(|token| name(&mut uses, 1, token)), ["f#2", "f"]);
}
