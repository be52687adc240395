//! How tasks of other numbers find what was recorded.

use super::*;
use crate::agent::code::{Execution, Placed};
use crate::agent::protocol::{AgentInfo, AgentStanding, Recording, Sent};
use crate::agent::registry::{Granted, Recorded};
use crate::id::Epoch;

fn task(partition: u32) -> TaskId {
    let (query, operator) = ("q".into(), "f".into());
    TaskId { query, operator, epoch: Epoch::Batch(1), partition: Partition(partition) }
}

/// An attempt of a stage of so many tasks opens a log; with `tells`, it says that it has it.
fn opens(
    registry: &mut Registry,
    (stage, tasks): (u32, u32),
    partition: u32,
    agent: u64,
    tells: bool,
) -> Layout {
    let attempt = u64::from(100 * stage + partition);
    let open = OpenTask {
        task: task(partition),
        used: Use::default(),
        execution: None,
        app: 1,
        stage,
        attempt,
        worker: attempt,
        inside: false,
        stamp: 0,
        of_rdd: None,
    };
    let (by, number) = (AgentId(agent), attempt);
    let Granted::Yes(grant) = registry.grant(&open, Sent { by, number }, 0, Some(tasks), 0) else {
        panic!("nobody is in the way");
    };
    if tells {
        let sent = Sent { by, number };
        let adopted = Some((LogOffset(5), grant.layout));
        registry.holding(&grant.task, grant.generation, &[by], adopted, true, sent).unwrap();
        registry.over(by, &[(grant.task.clone(), grant.generation)]);
    }
    grant.layout
}

#[test]
fn a_silent_agent_is_dead_only_if_the_log_that_it_takes_over_is_waited_for() {
    let mut registry = Registry::new();
    for id in [1, 2, 3] {
        let (addr, host) = (format!("{id}"), format!("{id}"));
        registry.register(AgentInfo { id: AgentId(id), addr, host, driver: false }, "", 0);
    }
    for partition in 0..2 {
        opens(&mut registry, (1, 4), partition, 1, true);
    }
    opens(&mut registry, (2, 2), 0, 2, false);
    let layout = opens(&mut registry, (2, 2), 1, 3, true);
    let mut now_ms = 0;
    for (after, waits, standing) in [
        (None, false, AgentStanding::Alive),
        (Some(task(0)), true, AgentStanding::Alive),
        (None, true, AgentStanding::Dead),
    ] {
        for _ in 0..20 {
            now_ms += 500;
            registry.look_at_clock(now_ms);
        }
        let page = registry.pool(&task(1), &layout, after.as_ref(), waits, now_ms).unwrap();
        assert!(!page.is_empty());
        assert_eq!(registry.heartbeat(AgentId(2), 0, now_ms).0, standing);
    }
}

#[test]
fn a_pool_is_the_same_in_whichever_pages_it_is_read() {
    let mut registry = Registry::new();
    let (addr, host) = ("1".to_owned(), "1".to_owned());
    registry.register(AgentInfo { id: AgentId(1), addr, host, driver: false }, "", 0);
    let other = opens(&mut registry, (1, 4), 0, 1, true);
    let layout = opens(&mut registry, (2, 3), 1, 1, true);
    let recorded = Recorded { layout: other, relaid: false, has_moved: false };
    for operator in ["f", "f~1", "f~2", "g", "g~1", "h"] {
        for partition in if operator == "f" { 2..4 } else { 0..3 } {
            let id = TaskId { operator: operator.into(), ..task(partition) };
            registry.recovered(id, Generation(1), recorded, AgentId(1));
        }
    }
    registry.tasks.get_mut(&task(1)).unwrap().pooled = vec!["g".into()];
    let page = |after: Option<&TaskId>, count| {
        let page = registry.pool_behind(&task(1), &layout, after, count).unwrap();
        page.into_iter().map(|entry| (entry.task, entry.may_lack_rows)).collect::<Vec<_>>()
    };
    let all = page(None, 100);
    assert_eq!((all.len(), all.iter().filter(|(_, lacks)| *lacks).count()), (9 + 6, 1));
    for count in 1..=7 {
        let mut read = page(None, count);
        while let Some((last, _)) = read.last().cloned() {
            let next = page(Some(&last), count);
            if next.is_empty() {
                break;
            }
            read.extend(next);
        }
        assert_eq!(read, all, "in pages of {count}");
    }
    for stranger in [TaskId { operator: "h".into(), ..task(0) }, task(1), task(9)] {
        assert!(registry.pool_behind(&task(1), &layout, Some(&stranger), 9).is_err());
    }
}

#[test]
fn a_task_hears_that_as_many_with_other_borders_recorded() {
    let mut registry = Registry::new();
    let (addr, host) = ("1".to_owned(), "1".to_owned());
    registry.register(AgentInfo { id: AgentId(1), addr, host, driver: false }, "", 0);
    let mut recording = |stage: u32, borders: u64| {
        let (used, attempt) = (Use { token: u64::from(stage), ..Use::default() }, u64::from(stage));
        let execution = Some(Execution { id: attempt, root: attempt });
        let (app, worker, inside, stamp) = (1, attempt, false, 0);
        let open = OpenTask {
            task: task(0),
            used,
            execution,
            app,
            stage,
            attempt,
            worker,
            inside,
            stamp,
            of_rdd: None,
        };
        let plan = Plan { exact: 1, shape: 2, data: 3 };
        let operator = Arc::clone(&open.task.operator);
        registry.planned(&open, Some(vec![Placed { operator, used, over: 1, tables: 1, plan }]));
        let (sent, cut) = (
            Sent { by: AgentId(1), number: attempt },
            StageCut { tasks: Some(2), borders: Borders(borders << 17) },
        );
        let Granted::Yes(grant) = registry.grant(&open, sent, 0, cut, 0) else {
            panic!("nobody is in the way")
        };
        let adopted = Some((LogOffset(5), grant.layout));
        registry.holding(&grant.task, grant.generation, &[AgentId(1)], adopted, true, sent).unwrap();
        registry.over(AgentId(1), &[(grant.task.clone(), grant.generation)]);
        let Recording { moved, pooled, dealt, layout_changed, .. } = grant.recording;
        assert!(moved == pooled && moved == dealt && !layout_changed);
        moved
    };
    assert_eq!(
        [(1, 4), (2, 4), (3, 8), (4, 4)].map(|(stage, borders)| recording(stage, borders)),
        [false, false, true, true]
    );
}

#[test]
fn where_no_plan_is_known_borders_are() {
    let (used, execution) = (Use::default(), None);
    let (app, stage, attempt, worker, inside, stamp) = (1, 2, 3, 3, false, 0);
    let open =
        OpenTask { task: task(0), used, execution, app, stage, attempt, worker, inside, stamp, of_rdd: None };
    let of = |borders: u64| StageCut { tasks: Some(4), borders: Borders(borders << 17) }.layout(&open, None);
    assert!(of(4).is_cut_alike(&of(4)) && !of(4).has_other_borders(&of(4)));
    assert!(!of(4).is_cut_alike(&of(8)) && of(4).has_other_borders(&of(8)));
    assert!(!of(4).is_cut_alike(&of(0)) && !of(4).has_other_borders(&of(0)));
}

#[test]
fn rows_may_be_elsewhere_where_no_plan_tells_and_another_stage_has_published() {
    let mut registry = Registry::new();
    let (addr, host) = ("1".to_owned(), "1".to_owned());
    registry.register(AgentInfo { id: AgentId(1), addr, host, driver: false }, "", 0);
    let first = opens(&mut registry, (1, 4), 0, 1, true);
    let dealt = |registry: &Registry, stage, borders| {
        let borders = Borders(borders);
        registry.may_be_dealt_otherwise(&task(1), &Layout { stage, borders, ..first })
    };
    assert!(dealt(&registry, 2, 7), "the lowest bit says so");
    assert!(!dealt(&registry, 2, 6) && !dealt(&registry, 1, 7));
    registry.change(&task(0), |entry| entry.layout.borders = Borders(7));
    assert!(dealt(&registry, 2, 6), "also if that is so of the one that recorded");
    registry.change(&task(0), |entry| entry.layout.borders = Borders(6));
    opens(&mut registry, (2, 4), 0, 1, true);
    assert!(dealt(&registry, 2, 7), "also once this stage goes on with all its logs");
}
