use super::*;
use crate::agent::protocol::{AgentInfo, Borders, Code, Ending, Left, OpenTask, Sent, Use};
use crate::agent::registry::Granted;
use crate::id::{AgentId, Epoch};

#[test]
fn what_could_not_be_written_is_written_later_unless_its_epoch_is_over() {
    let mut registry = Registry::new();
    let refused = |registry: &mut Registry| {
        let task = task(0);
        let moved = &mut registry.uses_of(&task).moved;
        let (first, second) = (ended(moved, 0, 3, 4, 0), ended(moved, 1, 3, 0, 4));
        assert!(first && !second);
        let mut newly = registry.newly_refused();
        assert!(registry.newly_refused().is_empty());
        newly.pop().unwrap()
    };
    let (task, used, execution, inside, stamp) = (task(0), Use::default(), None, false, 0);
    let (app, stage, attempt, worker) = (STAGE.app, STAGE.stage, 1, 1);
    let open = OpenTask { task, used, execution, app, stage, attempt, worker, inside, stamp, of_rdd: None };
    registry.grant(&open, Sent { by: AgentId(1), number: 1 }, 0, Some(2), 0);
    let (divergence, since) = refused(&mut registry);
    assert_eq!(since, Generation(1));
    registry.not_written(divergence.clone());
    assert_eq!(registry.newly_refused(), [(divergence.clone(), since)]);
    registry.commit(&divergence.task.epoch_key());
    registry.not_written(divergence);
    assert!(registry.newly_refused().is_empty());
}

const STAGE: Layout =
    Layout { app: 1, stage: 3, tasks: Some(2), code: CODE, plan: None, borders: Borders::UNKNOWN };
const CODE: Code = Code { fingerprint: 7, python: 0x030b };

fn task(partition: u32) -> TaskId {
    TaskId {
        query: "q".into(),
        operator: "f".into(),
        epoch: Epoch::Batch(0),
        partition: Partition(partition),
    }
}

fn ended(moved: &mut Moved, partition: u32, stage: u32, unasked: u64, live: u64) -> bool {
    let summary = Summary { unasked, live, ..Summary::default() };
    moved.ended(&task(partition), &Layout { stage, ..STAGE }, &summary);
    moved.check(&task(partition)).is_ok()
}

#[test]
fn one_stage_that_asks_less_in_one_task_and_more_in_another_is_refused_for_good() {
    for first in [0, 1] {
        let mut moved = Moved::default();
        assert!(ended(&mut moved, first, 3, [4, 0][first as usize], [0, 4][first as usize]));
        assert!(!ended(&mut moved, 1 - first, 3, [0, 4][first as usize], [4, 0][first as usize]));
        assert!(!ended(&mut moved, 0, 9, 0, 0), "also when it is tried again");
        assert_eq!(moved.unwritten.len(), 1);
        let mut after_a_restart = Moved::default();
        assert!(after_a_restart.refuse(moved.unwritten.remove(0)));
        assert!(!ended(&mut after_a_restart, 0, 3, 0, 0));
    }
}

#[test]
fn what_is_known_of_stages_does_not_grow_with_the_jobs_of_an_epoch() {
    let mut moved = Moved::default();
    for stage in 0..3 * STAGES_MAX as u32 {
        let layout = Layout { stage, ..STAGE };
        // Of the first alone, all tasks came to their end.
        for partition in 0..if stage == 0 { 2 } else { 1 } {
            moved.opened(&task(partition), &layout);
            moved.closed(&task(partition), &layout, true, 10);
        }
    }
    assert!(moved.stages.len() <= STAGES_MAX);
    assert!(moved.is_whole(&task(0), &Layout { stage: 9_999, ..STAGE }));
}

#[test]
fn a_stage_that_only_asks_less_or_only_more_is_none_of_this() {
    let mut moved = Moved::default();
    assert!(ended(&mut moved, 0, 3, 4, 0));
    assert!(ended(&mut moved, 1, 3, 4, 0));
    assert!(ended(&mut moved, 0, 4, 0, 4), "another stage");
    assert!(ended(&mut moved, 1, 4, 0, 0));
}

/// A task of a later stage, which takes so many of ten rows that others have recorded.
fn takes(moved: &mut Moved, partition: u32, taken: u64) -> bool {
    let (task, layout) = (task(partition), Layout { stage: 7, ..STAGE });
    moved.opened(&task, &layout);
    moved.closed(&task, &layout, true, 10);
    moved.took(&task, &layout, &Summary { taken, known: 10, ..Summary::default() }, &[]);
    moved.check(&task).is_ok()
}

#[test]
fn more_answers_than_there_are_rows_are_refused_where_rows_may_be_missing() {
    for done in [1, 2] {
        let mut moved = Moved::default();
        for partition in 0..2 {
            moved.opened(&task(partition), &STAGE);
        }
        (0..done).for_each(|partition| moved.closed(&task(partition), &STAGE, true, 10));
        assert!(takes(&mut moved, 0, 6));
        assert!(takes(&mut moved, 0, 6), "the same task, run again");
        assert!(takes(&mut moved, 1, 4));
        assert_eq!(takes(&mut moved, 1, 5), done == 2, "of a stage that came to its end anybody may take");
    }
}

#[test]
fn an_attempt_whose_agent_died_may_have_had_more_rows_than_the_one_before() {
    let mut registry = Registry::new();
    let info = |id: u64| {
        let (addr, host) = (format!("{id}"), format!("{id}"));
        AgentInfo { id: AgentId(id), addr, host, driver: false }
    };
    for id in [1, 2] {
        registry.register(info(id), "", 0);
    }
    let closes = |registry: &mut Registry, generation, agent: u64, done, rows| {
        let summary = Summary { rows, ..Summary::default() };
        let ending = Ending { done, ..Ending::default() };
        let left = Left { by: AgentId(agent), lost: false, end: None };
        registry.closed(&task(0), generation, &summary, ending, left)
    };
    let attempt = |registry: &mut Registry, number: u64, agent: u64, end: Option<(bool, u64)>| {
        let (task, used, execution) = (task(0), Use::default(), None);
        let (app, stage, inside, stamp) = (STAGE.app, STAGE.stage, false, 0);
        let (attempt, worker) = (number, number);
        let open =
            OpenTask { task, used, execution, app, stage, attempt, worker, inside, stamp, of_rdd: None };
        let by = AgentId(agent);
        let Granted::Yes(grant) = registry.grant(&open, Sent { by, number }, 0, Some(1), 0) else {
            panic!("it is one stage");
        };
        if let Some((done, rows)) = end {
            closes(registry, grant.generation, agent, done, rows).unwrap();
        }
        grant.generation
    };
    let later = Layout { stage: 7, ..STAGE };
    let is_whole = |registry: &mut Registry| registry.uses_of(&task(0)).moved.is_whole(&task(0), &later);
    attempt(&mut registry, 1, 1, Some((true, 10)));
    assert!(is_whole(&mut registry));
    attempt(&mut registry, 2, 2, None);
    assert!(registry.is_dead(AgentId(2), false, 60_000));
    attempt(&mut registry, 3, 1, Some((false, 9)));
    assert!(!is_whole(&mut registry));
    attempt(&mut registry, 4, 1, Some((true, 20)));
    assert!(is_whole(&mut registry));
    // That one came to its end is told too late.
    registry.register(info(3), "", 60_000);
    let late = attempt(&mut registry, 5, 3, None);
    assert!(registry.is_dead(AgentId(3), false, 120_000));
    assert!(closes(&mut registry, late, 3, true, 30).is_err());
    assert!(!is_whole(&mut registry));
}

#[test]
fn an_attempt_that_ends_beside_a_newer_one_counts() {
    let mut registry = Registry::new();
    let by = AgentId(1);
    let info = AgentInfo { id: by, addr: "a".into(), host: "a".into(), driver: false };
    registry.register(info, "", 0);
    let attempt = |registry: &mut Registry, number: u64, partition: u32| {
        let (used, execution, inside, stamp) = (Use::default(), None, false, 0);
        let (app, stage, attempt, worker) = (STAGE.app, STAGE.stage, number, number);
        let task = task(partition);
        let open =
            OpenTask { task, used, execution, app, stage, attempt, worker, inside, stamp, of_rdd: None };
        let Granted::Yes(grant) = registry.grant(&open, Sent { by, number }, 0, Some(2), 0) else {
            panic!("it is one stage");
        };
        grant.generation
    };
    let closes = |registry: &mut Registry, partition, generation, summary: Summary, done| {
        let (ending, left) = (Ending { done, ..Ending::default() }, Left { by, lost: false, end: None });
        registry.closed(&task(partition), generation, &summary, ending, left)
    };
    // The epoch was recorded, and is begun again.
    for partition in 0..2 {
        let generation = attempt(&mut registry, u64::from(partition), partition);
        closes(&mut registry, partition, generation, Summary::default(), true).unwrap();
    }
    registry.begin_run("q", Some(&Epoch::Batch(0)));
    let older = attempt(&mut registry, 10, 0);
    let newer = attempt(&mut registry, 11, 0);
    let unasked = Summary { rows: 4, unasked: 1, ..Summary::default() };
    closes(&mut registry, 0, older, unasked, true).unwrap();
    closes(&mut registry, 0, newer, Summary { rows: 2, ..Summary::default() }, false).unwrap();
    let live = Summary { rows: 6, live: 1, ..Summary::default() };
    let other = attempt(&mut registry, 12, 1);
    assert!(closes(&mut registry, 1, other, live, true).is_err());
}

#[test]
fn a_task_that_is_opened_again_has_not_come_to_its_end() {
    let mut moved = Moved::default();
    for partition in 0..2 {
        moved.opened(&task(partition), &STAGE);
        moved.closed(&task(partition), &STAGE, true, 10);
    }
    let later = Layout { stage: 7, ..STAGE };
    assert!(moved.is_whole(&task(0), &later));
    // Its input may have broken off.
    moved.opened(&task(1), &STAGE);
    assert!(!moved.is_whole(&task(0), &later));
    // It was only slower.
    moved.closed(&task(1), &STAGE, false, 9);
    assert!(moved.is_whole(&task(0), &later));
    // It had.
    moved.opened(&task(1), &STAGE);
    moved.closed(&task(1), &STAGE, false, 11);
    assert!(!moved.is_whole(&task(0), &later));
    moved.opened(&task(1), &STAGE);
    moved.closed(&task(1), &STAGE, true, 20);
    assert!(moved.is_whole(&task(0), &later));
}

#[test]
fn a_duplicate_that_is_killed_does_not_undo_the_end_of_the_other() {
    let mut moved = Moved::default();
    for partition in 0..2 {
        moved.opened(&task(partition), &STAGE);
    }
    moved.closed(&task(0), &STAGE, true, 10);
    moved.opened(&task(1), &STAGE);
    moved.done_beside(&task(1), &STAGE, 10);
    let later = Layout { stage: 7, ..STAGE };
    assert!(!moved.is_whole(&task(0), &later), "the newer one may have more rows");
    moved.closed(&task(1), &STAGE, false, 0);
    assert!(moved.is_whole(&task(0), &later));
    moved.opened(&task(1), &STAGE);
    moved.closed(&task(1), &STAGE, false, 0);
    assert!(!moved.is_whole(&task(0), &later), "of that one nobody knows how many came");
}
