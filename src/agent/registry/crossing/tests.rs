//! Who waits for whom, and who does not.

use super::*;
use crate::agent::protocol::{AgentInfo, Ending, Left, Sent, Use};
use crate::id::{AgentId, Epoch, Generation, LogOffset};
use crate::task::Summary;

/// Agents 1 to 3, and who asks.
struct Asking {
    registry: Registry,
    now_ms: u64,
    asked: u64,
}

fn task(operator: &str, partition: u32) -> TaskId {
    let (query, operator) = ("q".into(), operator.into());
    TaskId { query, operator, epoch: Epoch::Batch(1), partition: Partition(partition) }
}

#[derive(Debug, PartialEq, Eq)]
enum Told {
    Yes(Generation),
    Busy,
    Crossed,
}

impl Asking {
    fn new() -> Self {
        let mut registry = Registry::new();
        for id in 1..4 {
            let (addr, host) = (format!("{id}"), format!("{id}"));
            registry.register(AgentInfo { id: AgentId(id), addr, host, driver: false }, "", 0);
        }
        Self { registry, now_ms: 0, asked: 0 }
    }

    /// A task of a stage of so many, at an agent, asks for the log of an operator.
    fn ask(&mut self, operator: &str, (stage, tasks): (u32, u32), partition: u32, agent: u64) -> Told {
        self.asked += 1;
        self.now_ms += 1;
        let open = OpenTask {
            task: task(operator, partition),
            used: Use::default(),
            execution: None,
            app: 1,
            stage,
            attempt: u64::from(100 * stage + partition),
            worker: u64::from(operator.as_bytes()[0]),
            inside: false,
            stamp: 0,
            of_rdd: None,
        };
        let sent = Sent { by: AgentId(agent), number: self.asked };
        match self.registry.grant(&open, sent, 0, Some(tasks), self.now_ms) {
            Granted::Yes(grant) => Told::Yes(grant.generation),
            Granted::Busy => Told::Busy,
            Granted::Crossed => Told::Crossed,
            Granted::Left | Granted::Unknown | Granted::Refused(_) | Granted::Twice => {
                panic!("nothing has ended")
            }
        }
    }

    fn opens(&mut self, operator: &str, stage: (u32, u32), partition: u32, agent: u64) -> Generation {
        let Told::Yes(generation) = self.ask(operator, stage, partition, agent) else {
            panic!("nobody is in the way")
        };
        generation
    }

    fn ends(&mut self, operator: &str, partition: u32, generation: Generation, agent: u64) -> bool {
        let (summary, ending) = (Summary::default(), Ending { done: true, ..Ending::default() });
        let left = Left { by: AgentId(agent), lost: false, end: None };
        self.registry.closed(&task(operator, partition), generation, &summary, ending, left).is_ok()
    }

    fn holds(&mut self, operator: &str, partition: u32, generation: Generation, agent: u64) -> bool {
        self.asked += 1;
        let sent = Sent { by: AgentId(agent), number: self.asked };
        let (task, holders) = (task(operator, partition), [AgentId(agent)]);
        self.registry.holding(&task, generation, &holders, None, true, sent).is_ok()
    }
}

const FOUR: (u32, u32) = (1, 4);
const TWO: (u32, u32) = (2, 2);

#[test]
fn no_two_stages_that_are_cut_otherwise_have_an_operator_open_at_the_same_time() {
    let mut all = Asking::new();
    let (first, second) = (all.opens("f", FOUR, 2, 1), all.opens("f", FOUR, 3, 2));
    assert_eq!(all.ask("f", TWO, 0, 3), Told::Busy, "rows of it may be in any of those");
    let waited_for = [1, 2].map(|agent| all.registry.waited_for(AgentId(agent)).len());
    assert_eq!(waited_for.iter().sum::<usize>(), 1);
    // Those are the rows of another partition.
    let alike = all.opens("f", (3, 4), 0, 3);
    assert!(all.ends("f", 0, alike, 3));
    assert!(all.ends("f", 2, first, 1));
    assert_eq!(all.ask("f", TWO, 0, 3), Told::Busy);
    assert!(all.ends("f", 3, second, 2));
    all.opens("f", TWO, 0, 3);
    assert_eq!(all.ask("f", FOUR, 1, 1), Told::Busy, "and now these wait");
}

#[test]
fn what_a_dead_agent_had_open_is_gone_on_without_and_nothing_is_added_to_it() {
    let mut all = Asking::new();
    let (published, new) = (all.opens("f", FOUR, 2, 2), all.opens("f", FOUR, 3, 2));
    assert!(all.holds("f", 2, published, 2));
    for now_ms in (0..6_000).step_by(500) {
        all.registry.look_at_clock(now_ms);
        all.registry.heartbeat(AgentId(3), 0, now_ms);
    }
    all.now_ms = 6_000;
    all.opens("f", TWO, 0, 3);
    let layout = Layout { app: 1, stage: TWO.0, tasks: Some(TWO.1), ..Layout::default() };
    let pool = all.registry.pool(&task("f", 0), &layout, None, false, 6_000).unwrap();
    assert!(pool[0].newest > published, "whoever reads it has a newer generation to say");
    assert_eq!(pool[0].until, LogOffset(u64::MAX));
    // It comes back, and has heard of nothing.
    assert!(!all.holds("f", 2, published, 2) && !all.holds("f", 3, new, 2));
    assert!(!all.ends("f", 2, published, 2) && !all.ends("f", 3, new, 2));
}

#[test]
fn of_two_stages_that_wait_for_each_other_the_younger_fails_and_they_are_kept_apart() {
    for (other, partition) in [(TWO, 0), ((2, 4), 1)] {
        let mut all = Asking::new();
        let (f, g) = (all.opens("f", FOUR, 1, 1), all.opens("g", other, partition, 2));
        assert_eq!(all.ask("g", FOUR, 1, 1), Told::Busy);
        assert_eq!(all.ask("f", other, partition, 2), Told::Crossed);
        assert!(all.ends("g", partition, g, 2));
        // The attempt after it has nothing open, and waits for all that the other stage has.
        assert_eq!(all.ask("g", other, partition, 3), Told::Busy);
        let of_first = all.opens("g", FOUR, 1, 1);
        assert!(all.ends("f", 1, f, 1));
        assert_eq!(all.ask("f", other, partition, 3), Told::Busy);
        assert!(all.ends("g", 1, of_first, 1));
        all.opens("f", other, partition, 3);
        assert_eq!(all.ask("g", FOUR, 2, 1), Told::Busy);
    }
}

#[test]
fn who_has_something_open_does_not_wait_for_tasks_that_begin_after_it() {
    let mut all = Asking::new();
    all.opens("f", FOUR, 1, 1);
    let other = all.opens("g", TWO, 0, 2);
    assert_eq!(all.ask("g", FOUR, 1, 1), Told::Busy);
    assert_eq!(all.ask("g", TWO, 1, 3), Told::Busy, "it would hold up the other in its turn");
    assert!(all.ends("g", 0, other, 2));
    let first = all.opens("g", FOUR, 1, 1);
    assert!(all.ends("g", 1, first, 1));
    all.opens("g", TWO, 0, 2);
    // One that has gone while it waited holds up nobody for long.
    assert_eq!(all.ask("g", FOUR, 1, 1), Told::Busy);
    assert_eq!(all.ask("g", TWO, 1, 3), Told::Busy);
    all.now_ms += ASKED_MS;
    all.opens("g", TWO, 1, 3);
}

#[test]
fn who_waits_for_any_partition_may_wait_for_the_one_that_another_has() {
    let (one, other) = ((1, 1, 0), (1, 2, 0));
    let waits =
        |stage, other, partition| Wait { stage, other, partition, recorded: 0, since_ms: 0, asked_ms: 0 };
    for partitions in [[None, Some(Partition(3))], [Some(Partition(3)), None]] {
        let mut crossing = Crossing::default();
        assert!(!crossing.waits(1, waits(one, other, partitions[0])));
        assert!(crossing.waits(2, waits(other, one, partitions[1])));
    }
}

#[test]
fn an_hour_begins_anew_when_something_is_recorded_and_it_is_said_once_that_it_may_be_in_vain() {
    let mut crossing = Crossing::default();
    let (mut told, mut failed) = (Vec::new(), None);
    for now_ms in (0..3 * PATIENCE_MS).step_by(1_000) {
        let recorded = now_ms.min(PATIENCE_MS / 2);
        let (stage, other) = ((1, 1, 0), (1, 2, 0));
        let wait = Wait { stage, other, partition: None, recorded, since_ms: now_ms, asked_ms: now_ms };
        told.extend(crossing.is_long(1, &wait).then_some(now_ms));
        if crossing.waits(1, wait) {
            failed = Some(now_ms);
            break;
        }
    }
    assert_eq!(told, [PATIENCE_MS / 2 + TOLD_MS + 1_000]);
    assert_eq!(failed, Some(PATIENCE_MS / 2 + PATIENCE_MS + 1_000));
}

#[test]
fn of_stages_that_wait_in_a_circle_the_youngest_fails_and_all_are_kept_apart() {
    let stages = [(1, 1, 0), (1, 2, 0), (1, 3, 0)];
    let waits = |of: usize, partition| Wait {
        stage: stages[of],
        other: stages[(of + 1) % 3],
        partition,
        recorded: 0,
        since_ms: 0,
        asked_ms: 0,
    };
    let [one, other] = [1, 2].map(|partition| Some(Partition(partition)));
    for partitions in [[one, one, one], [one, None, one], [None, None, None]] {
        let mut crossing = Crossing::default();
        assert!(!crossing.waits(2, waits(2, partitions[2])), "nobody waits for the youngest");
        assert!(!crossing.waits(0, waits(0, partitions[0])), "it is not closed");
        assert!(!crossing.waits(1, waits(1, partitions[1])), "the youngest is to fail");
        assert!(crossing.waits(2, waits(2, partitions[2])));
        assert!(crossing.are_apart(stages[0], stages[2]) && crossing.are_apart(stages[1], stages[2]));
        crossing.waits(0, waits(0, partitions[0]));
        assert!(crossing.circle(&waits(0, partitions[0])).is_none(), "the youngest waits no more");
    }
    let mut crossing = Crossing::default();
    for (of, partition) in [(0, one), (1, other), (2, one), (0, one)] {
        assert!(!crossing.waits(of as u64, waits(of, partition)), "nobody has what the next waits for");
    }
}

#[test]
fn stages_that_open_alike_are_not_taken_for_such() {
    let mut all = Asking::new();
    // In some partitions the one is ahead, in others the other.
    all.opens("f", FOUR, 0, 1);
    all.opens("g", (2, 4), 0, 2);
    all.opens("g", FOUR, 1, 1);
    all.opens("f", (2, 4), 1, 2);
    for _ in 0..3 {
        assert_eq!(all.ask("g", FOUR, 0, 1), Told::Busy);
        assert_eq!(all.ask("g", (2, 4), 1, 2), Told::Busy);
    }
}

#[test]
fn who_has_nothing_open_waits_for_as_long_as_it_takes_and_others_for_an_hour() {
    let mut all = Asking::new();
    all.opens("g", FOUR, 0, 1);
    all.opens("f", TWO, 1, 2);
    let mut told = Vec::new();
    while all.now_ms < PATIENCE_MS + 10_000 {
        all.now_ms += 1_000;
        (1..4).for_each(|agent| {
            all.registry.heartbeat(AgentId(agent), 0, all.now_ms);
        });
        assert_eq!(all.ask("g", TWO, 0, 3), Told::Busy);
        told.push(all.ask("g", TWO, 1, 2));
    }
    let crossed: Vec<_> = (0..told.len()).filter(|i| told[*i] == Told::Crossed).collect();
    assert!(matches!(crossed[..], [one] if one > 3_500), "{crossed:?}");
}
