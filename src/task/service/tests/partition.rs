//! Scenarios of operators on whole partitions: strictly in order, batch by batch.

use super::*;

/// Takes a batch of `rows` rows, then the time.
fn step(task: &mut ServiceTask, rows: u32, now: i64) -> Result<i64> {
    task.input(rows, u64::from(rows) + 1000)?;
    task.time(now)
}

fn recorded_steps() -> Vec<Bytes> {
    let mut first = attempt(&[]);
    first.time(1).unwrap();
    step(&mut first, 10, 2).unwrap();
    step(&mut first, 20, 3).unwrap();
    vec![first.take_block().unwrap()]
}

#[test]
fn batches_and_services_are_replayed_in_order_over_three_attempts() {
    let mut log = recorded_steps();
    let mut second = attempt(&log);
    assert_eq!(second.time(99).unwrap(), 1);
    assert_eq!(step(&mut second, 10, 99).unwrap(), 2);
    assert_eq!(step(&mut second, 20, 99).unwrap(), 3);
    assert_eq!(step(&mut second, 30, 4).unwrap(), 4);
    log.push(second.take_block().unwrap());

    let mut third = attempt(&log);
    assert_eq!(third.time(99).unwrap(), 1);
    for (rows, time) in [(10, 2), (20, 3), (30, 4)] {
        assert!(third.is_replaying());
        assert_eq!(step(&mut third, rows, 99).unwrap(), time);
    }
    assert!(!third.is_replaying());
    assert_eq!(third.time(5).unwrap(), 5);
    log.push(third.take_block().unwrap());
    let summary = third.finish().unwrap();
    assert_eq!((summary.rows, summary.replayed, summary.live), (60, 60, 0));

    let mut fourth = attempt(&log);
    fourth.time(99).unwrap();
    for rows in [10, 20, 30] {
        step(&mut fourth, rows, 99).unwrap();
    }
    assert_eq!(fourth.time(99).unwrap(), 5);
    fourth.finish().unwrap();
}

#[test]
fn another_batch_is_a_divergence() {
    let mut second = attempt(&recorded_steps());
    second.time(99).unwrap();
    step(&mut second, 10, 99).unwrap();
    let divergence = assert_diverged(second.input(21, 0), Kind::RowsChanged, Some(10));
    assert!(divergence.recorded.contains("20 rows"), "{divergence}");
    assert!(divergence.asked.contains("21 rows"), "{divergence}");

    let mut service = attempt(&recorded_steps());
    assert_diverged(service.input(10, 1010), Kind::ServiceMismatch, None);
}

#[test]
fn an_end_before_the_recorded_one_is_a_divergence_in_the_same_stage() {
    let mut second = attempt(&recorded_steps());
    second.time(99).unwrap();
    step(&mut second, 10, 99).unwrap();
    assert_diverged(second.finish(), Kind::RowsMissing, Some(10));

    let mut elsewhere = ServiceTask::new(service_options(), recorded_steps(), false).unwrap();
    elsewhere.time(99).unwrap();
    step(&mut elsewhere, 10, 99).unwrap();
    assert_eq!(elsewhere.finish().unwrap().leftover, 20);

    let mut asked_less = attempt(&recorded_steps());
    asked_less.time(99).unwrap();
    asked_less.input(10, 1010).unwrap();
    assert_diverged(asked_less.finish(), Kind::ServiceMismatch, Some(9));
}

#[test]
fn another_layout_is_refused_at_the_first_batch_not_recorded() {
    let options = TaskOptions { layout_changed: true, ..service_options() };
    let mut second = ServiceTask::new(options, Vec::new(), false).unwrap();
    assert_diverged(second.input(5, 5), Kind::LayoutChanged, None);
}

#[test]
fn damaged_logs_are_errors_and_no_panic() {
    let error = |determinants: &[Determinant<'_>]| {
        let mut builder = BlockBuilder::new();
        for determinant in determinants {
            builder.push(determinant).unwrap();
        }
        ServiceTask::new(service_options(), vec![builder.finish()], true).unwrap_err().condition()
    };
    let options = service_options();
    let header = header::ours(&options);
    let time = Determinant::Time { unix_ns: 1 };
    let row = Determinant::Row { fingerprint: 1 };
    assert_eq!(error(&[time]), "CORRUPT_LOG");
    // A second generation that goes on with nothing, with what was complete, with what is not
    // there.
    assert_eq!(error(&[header, time, header, time]), "CORRUPT_LOG");
    assert_eq!(error(&[header, row, header, Determinant::Resume { segment: 0 }]), "CORRUPT_LOG");
    assert_eq!(error(&[header, row, header, Determinant::Resume { segment: 9 }]), "CORRUPT_LOG");
    // Results in a log of services.
    let mut builder = BlockBuilder::new();
    builder.push(&header).unwrap();
    builder.push_results(&[1], b"").unwrap();
    let log = vec![builder.finish()];
    assert_eq!(ServiceTask::new(service_options(), log, true).unwrap_err().condition(), "CORRUPT_LOG");
}
