//! Executors that Spark lets go: what their agents hold is elsewhere before they end.

use std::collections::HashSet;

use clonos::agent::protocol::{OpenTask, Reply, Request};
use clonos::edge::agent::Agent;
use clonos::edge::net::client::Client;
use clonos::frame::Group;
use clonos::id::{Epoch, LogOffset, TaskId};

use super::world::*;

fn listed(world: &World, names: &[&str]) {
    world.driver.executors_are(names.iter().map(|name| (*name).to_owned()).collect::<HashSet<_>>()).unwrap();
}

/// Whether an agent has all of task 0's log.
pub(super) fn has(world: &World, agent: &Agent) -> bool {
    let read = Request::Read { task: task(0), from: LogOffset::START, whole: true, newest: None };
    matches!(Peer::of(world, agent.addr()).ask(&read), Reply::Blocks(blocks) if !blocks.is_empty())
}

#[test]
fn what_only_leaving_agents_hold_is_copied_to_those_that_stay() {
    let world = World::with(|config, _| config.sharing_depth = 1);
    // They are each other's peers: the driver is the last that is chosen.
    let (one, two) = (world.executor("one"), world.executor("two"));
    let mut blocks = Vec::new();
    {
        let mut worker = world.worker_of(&one);
        let opened = open(&mut worker, &task(0), 1, 1);
        for number in 0..20 {
            blocks.push(numbered(number, 3_000));
            append(&mut worker, opened.session, &blocks[number as usize]).unwrap();
        }
        close(&mut worker, opened.session);
    }
    listed(&world, &["one", "two"]);
    let (three, four) = (world.executor("three"), world.executor("four"));
    listed(&world, &["one", "two", "three", "four"]);
    listed(&world, &["three", "four"]);
    eventually("their logs are copied", || has(&world, &three) && has(&world, &four));
    one.stop();
    two.stop();
    let again = open(&mut world.worker_of(&three), &task(0), 1, 2);
    assert!(!again.lost && again.prior == blocks);
}

#[test]
fn who_was_told_that_it_is_not_needed_is_not_counted_on() {
    let world = World::with(|config, _| config.sharing_depth = 1);
    let (one, two) = (world.executor("one"), world.executor("two"));
    let mut worker = world.worker_of(&one);
    let opened = open(&mut worker, &task(0), 1, 1);
    append(&mut worker, opened.session, &text("a")).unwrap();
    close(&mut worker, opened.session);
    // The other has the log, and is needed then, whichever of them is preferred otherwise.
    assert!(!one.is_needed() && two.is_needed());
    eventually("it is copied", || !two.is_needed());
    one.stop();
    two.stop();
    let again = open(&mut world.worker(), &task(0), 1, 2);
    assert!(!again.lost && again.prior == [text("a")]);
}

#[test]
fn who_leaves_is_nobodys_peer() {
    let world = World::with(|config, _| config.sharing_depth = 1);
    let (own, gone) = (world.executor("own"), world.executor("gone"));
    let mut worker = world.worker_of(&own);
    // It has heard of the other, and hears of changes from now on.
    let before = open(&mut worker, &task(1), 1, 7);
    append(&mut worker, before.session, &text("b")).unwrap();
    listed(&world, &["own", "gone"]);
    listed(&world, &["own"]);
    let opened = open(&mut worker, &task(0), 1, 1);
    append(&mut worker, opened.session, &text("a")).unwrap();
    assert!(has(&world, &world.driver) && !has(&world, &gone));
    own.stop();
    assert_eq!(open(&mut world.worker(), &task(0), 1, 2).prior, [text("a")]);
}

#[test]
fn a_task_that_ends_on_a_leaving_executor_is_copied_then() {
    let world = World::with(|config, _| config.sharing_depth = 0);
    let (own, stays) = (world.executor("own"), world.executor("stays"));
    let mut worker = world.worker_of(&own);
    let opened = open(&mut worker, &task(0), 1, 1);
    listed(&world, &["own", "stays"]);
    listed(&world, &["stays"]);
    append(&mut worker, opened.session, &text("a")).unwrap();
    close(&mut worker, opened.session);
    eventually("it is copied", || has(&world, &stays));
    own.stop();
    assert_eq!(open(&mut world.worker_of(&stays), &task(0), 1, 2).prior, [text("a")]);
}

fn inside(task: &TaskId, attempt: u64) -> OpenTask {
    OpenTask { inside: true, ..opening(task, 1, attempt) }
}

/// A sender's log comes to its consumer's agent with a frame.
fn rides(sender: &mut Client, consumer: &mut Client, task: &TaskId, attempt: u64) {
    let session = sender.open(inside(task, attempt)).unwrap().session;
    let kept = sender.start(&Request::Keep { session, block: text("rides") }).unwrap();
    sender.wait(kept).unwrap();
    close(sender, session);
    let taker = TaskId { operator: "g".into(), ..task.clone() };
    let session = consumer.open(inside(&taker, 10 + attempt)).unwrap().session;
    let group = Group {
        operator: "f".into(),
        partition: task.partition,
        hops: 1,
        from: LogOffset::START,
        blocks: vec![text("rides")],
    };
    let absorbed = consumer.start(&Request::Absorb { session, groups: vec![group] }).unwrap();
    consumer.wait(absorbed).unwrap();
    close(consumer, session);
}

#[test]
fn what_only_leaving_agents_absorbed_is_given_to_one_that_stays() {
    let world = World::with(|config, _| config.sharing_depth = 1);
    let (one, two) = (world.executor("one"), world.executor("two"));
    // Its consumer's output stays inside, too: two agents have the log, and the registry knows neither.
    rides(&mut world.worker_of(&one), &mut world.worker_of(&two), &task(0), 1);
    let stays = world.executor("stays");
    for agent in [&one, &two] {
        assert!(!agent.is_needed());
    }
    one.hand_over().unwrap();
    two.hand_over().unwrap();
    one.stop();
    two.stop();
    let again = world.worker_of(&stays).open(inside(&task(0), 2)).unwrap();
    assert_eq!(again.prior, [text("rides")]);
}

#[test]
fn a_commit_that_a_leaving_agent_has_not_heard_of_does_not_keep_it_from_giving_on_the_rest() {
    let world = World::with(|config, _| config.sharing_depth = 1);
    let (one, two, stays) = (world.executor("one"), world.executor("two"), world.executor("stays"));
    let (mut sender, mut consumer, mut other) =
        (world.worker_of(&one), world.worker_of(&two), world.worker_of(&stays));
    let queries: Vec<TaskId> =
        ["q", "r"].map(|query| TaskId { query: query.into(), ..task_in(Epoch::Batch(1), 0) }).into();
    for (attempt, task) in (1..).zip(&queries) {
        rides(&mut sender, &mut consumer, task, attempt);
    }
    // The next batch of the first query begins, and so is the one before committed, as those hear at once who open
    // something.
    let next = TaskId { epoch: Epoch::Batch(2), ..queries[0].clone() };
    other.open(inside(&next, 20)).unwrap();
    world.worker().open(inside(&TaskId { operator: "h".into(), ..next }, 21)).unwrap();
    for agent in [&one, &two] {
        assert!(!agent.is_needed());
    }
    two.hand_over().unwrap();
    one.hand_over().unwrap();
    one.stop();
    two.stop();
    let again = other.open(inside(&queries[1], 30)).unwrap();
    assert_eq!(again.prior, [text("rides")]);
}
