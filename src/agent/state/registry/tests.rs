//! Which versions count, who holds them, and who may say so.

mod losing;

use std::sync::Mutex;

use bytes::Bytes;

use super::*;
use crate::agent::protocol::AgentInfo;
use crate::agent::state::asking::{Done, FromRegistry, Holding, Join, Located};
use crate::agent::state::messages::Clock;
use crate::id::Partition;
use crate::state::Range;

const CLOCK: Clock = Clock { now_ms: 1, watermark_ms: -1, late_ms: -1 };

/// Agents that a test starts and kills.
struct Agents(Mutex<(u64, Vec<AgentInfo>)>);

impl Agents {
    fn new(count: u64) -> Self {
        let agents = Self(Mutex::new((1, Vec::new())));
        (1..=count).for_each(|id| agents.start(id));
        agents
    }

    fn start(&self, id: u64) {
        let info =
            AgentInfo { id: AgentId(id), addr: format!("{id}"), host: format!("h{id}"), driver: false };
        let mut agents = self.0.lock().unwrap();
        agents.0 += 1;
        agents.1.push(info);
    }

    fn kill(&self, states: &mut States, id: u64) {
        let mut agents = self.0.lock().unwrap();
        agents.0 += 1;
        agents.1.retain(|agent| agent.id != AgentId(id));
        drop(agents);
        states.died(AgentId(id));
    }
}

impl Cluster for Agents {
    fn version(&self) -> u64 {
        self.0.lock().unwrap().0
    }

    fn staying(&self) -> Vec<AgentInfo> {
        self.0.lock().unwrap().1.clone()
    }

    fn info(&self, agent: AgentId) -> Option<AgentInfo> {
        self.staying().into_iter().find(|known| known.id == agent)
    }
}

fn states(copies: usize, durable: bool) -> States {
    let mut states = States::default();
    states.keep(Keeping { copies, durable, begins_anew: false });
    states.seen(&"q".into(), 0);
    states
}

fn task(epoch: u64, partition: u32) -> TaskId {
    let (query, operator) = ("q".into(), "f".into());
    TaskId { query, operator, epoch: Epoch::Batch(epoch), partition: Partition(partition) }
}

fn id() -> StateId {
    state_of(&task(0, 0))
}

/// A task that begins: as (epoch, attempt, partition, partitions).
fn ask(
    states: &mut States,
    agents: &Agents,
    (epoch, attempt, partition, partitions): (u64, u64, u32, u32),
) -> Result<FromRegistry> {
    let task = task(epoch, partition);
    let asker = Asker { task: &task, generation: Generation(attempt), partition, partitions };
    states.locate(&asker, CLOCK, agents)
}

fn begin(states: &mut States, agents: &Agents, of: (u64, u64, u32, u32)) -> Located {
    match ask(states, agents, of).unwrap() {
        FromRegistry::Located(located) => *located,
        other => panic!("{other:?}"),
    }
}

/// What a task says that has had its delta held by all it was told of.
fn done(located: &Located, of: (u64, u64, u32, u32), fingerprint: u64) -> Done {
    let (epoch, attempt, partition, partitions) = of;
    let takes = |holding: &Holding| holding.ready.union(&holding.joining);
    let held = located.holders.iter().map(|holding| (holding.agent.id, located.as_of, takes(holding)));
    Done {
        task: task(epoch, partition),
        generation: Generation(attempt),
        partition,
        partitions,
        life: located.life,
        base: located.version,
        fingerprint,
        bytes: 10,
        catalog: None,
        due_ms: None,
        held: held.collect(),
        silent: Vec::new(),
    }
}

/// Runs an epoch of one partition.
fn decide(states: &mut States, agents: &Agents, epoch: u64) {
    let of = (epoch, epoch + 100, 0, 1);
    let located = begin(states, agents, of);
    assert!(matches!(states.done(&done(&located, of, epoch), agents), Ok(FromRegistry::Counts)));
    states.commit("q", epoch);
}

fn joins(states: &mut States, agents: &Agents, agent: u64) -> Vec<Join> {
    let FromRegistry::Joins { joins, .. } = states.joins(AgentId(agent), agents) else { panic!("no joins") };
    joins
}

fn own(states: &mut States, agents: &Agents, agent: u64) -> RangeSet {
    let FromRegistry::Joins { own, .. } = states.joins(AgentId(agent), agents) else { panic!("no joins") };
    own.first().map_or(RangeSet::EMPTY, |(_, _, ranges)| *ranges)
}

/// An agent makes its own what it is told to.
fn join_all(states: &mut States, agents: &Agents, agent: u64) {
    for join in joins(states, agents, agent) {
        for range in join.ranges.iter() {
            states.joined(AgentId(agent), join.number, &id(), range, join.version).unwrap();
        }
    }
}

fn copies(states: &mut States, agents: &Agents) -> Vec<usize> {
    let holders = begin(states, agents, (1_000, 5_000, 0, 1)).holders;
    let of = |range| holders.iter().filter(|holding: &&Holding| holding.ready.contains(range)).count();
    Range::all().map(of).collect()
}

#[test]
fn an_epoch_reads_the_last_version_below_it_and_the_newest_attempt_decides() {
    let (mut states, agents) = (states(2, false), Agents::new(3));
    let first = (0, 1, 0, 1);
    assert_eq!(begin(&mut states, &agents, first).version, Version::NONE);
    decide(&mut states, &agents, 0);
    decide(&mut states, &agents, 4);
    let of = (7, 200, 0, 1);
    let located = begin(&mut states, &agents, of);
    assert_eq!((located.version, located.done), (Version(Some(4)), None));
    let FromRegistry::Points(points) = states.points(&id(), 1, Version(Some(0))).unwrap() else { panic!() };
    assert_eq!(points.iter().map(|point| point.epoch).collect::<Vec<_>>(), [4]);
    assert_eq!(points[0].tasks, [(0, Generation(104))]);
    assert!(states.points(&id(), 1, Version(Some(3))).is_err(), "that was no version");
    // What belongs to an earlier version, or to another life, is refused.
    let late = Done { base: Version(Some(0)), ..done(&located, of, 1) };
    assert_eq!(states.done(&late, &agents).unwrap_err().condition(), "FENCED");
    let other = Done { life: 2, ..done(&located, of, 1) };
    assert_eq!(states.done(&other, &agents).unwrap_err().condition(), "FENCED");
    assert_eq!(ask(&mut states, &agents, (4, 201, 0, 1)).unwrap_err().condition(), "FENCED");
}

#[test]
fn a_request_that_is_repeated_is_the_same_and_another_outcome_is_a_divergence() {
    let (mut states, agents) = (states(2, false), Agents::new(3));
    let of = (0, 1, 0, 2);
    let located = begin(&mut states, &agents, of);
    for _ in 0..2 {
        assert!(matches!(states.done(&done(&located, of, 7), &agents), Ok(FromRegistry::Counts)));
    }
    let again = (0, 2, 0, 2);
    assert_eq!(begin(&mut states, &agents, again).done, Some(7));
    assert!(matches!(states.done(&done(&located, again, 7), &agents), Ok(FromRegistry::Counts)));
    let error = states.done(&done(&located, again, 8), &agents).unwrap_err();
    assert_eq!(error.condition(), "REPLAY_DIVERGENCE");
    assert!(states.check(&EpochKey { query: "q".into(), epoch: Epoch::Batch(0) }).is_err());
}

#[test]
fn a_delta_counts_when_all_have_it_and_who_does_not_answer_is_no_holder_any_more() {
    let (mut states, agents) = (states(2, false), Agents::new(2));
    let of = (0, 1, 0, 1);
    let located = begin(&mut states, &agents, of);
    let mut some = done(&located, of, 7);
    let (left_out, _, ranges) = some.held.pop().unwrap();
    let lacking = states.done(&some, &agents);
    let Ok(FromRegistry::Also { holders, .. }) = lacking else { panic!("{lacking:?}") };
    let told: Vec<_> = holders.iter().map(|holding| (holding.agent.id, holding.ready)).collect();
    assert_eq!(told, [(left_out, ranges)], "who has it is not told of");
    // Nobody at all is too few.
    let nobody = Done { held: Vec::new(), silent: vec![AgentId(1), AgentId(2)], ..some.clone() };
    assert!(matches!(states.done(&nobody, &agents), Ok(FromRegistry::Also { .. })));
    some.silent.push(left_out);
    assert!(matches!(states.done(&some, &agents), Ok(FromRegistry::Counts)));
    states.commit("q", 0);
    assert_eq!(copies(&mut states, &agents), [1; 256]);
    // It is told to begin anew, some ranges at a time.
    while !joins(&mut states, &agents, left_out.0).is_empty() {
        join_all(&mut states, &agents, left_out.0);
    }
    assert_eq!(copies(&mut states, &agents), [2; 256]);
}

#[test]
fn whoever_joins_is_sent_what_is_decided_and_counts_when_it_has_the_rest() {
    let (mut states, agents) = (states(1, false), Agents::new(1));
    decide(&mut states, &agents, 0);
    let of = (1, 101, 0, 1);
    let before = begin(&mut states, &agents, of);
    agents.start(2);
    let told = joins(&mut states, &agents, 2);
    let ranges = told[0].ranges;
    assert!(!ranges.is_empty() && ranges.len() <= 32, "not all at once: {}", ranges.len());
    assert_eq!(told[0].sources.iter().map(|source| source.agent.id).collect::<Vec<_>>(), [AgentId(1)]);
    // A task that did not know of it sends it the delta, too.
    let mut delta = done(&before, of, 7);
    let Ok(FromRegistry::Also { holders, as_of }) = states.done(&delta, &agents) else {
        panic!("it is left out")
    };
    let located = Located { holders, as_of, ..before };
    delta.held.extend(done(&located, of, 7).held);
    assert!(matches!(states.done(&delta, &agents), Ok(FromRegistry::Counts)));
    // Under another number, or at a version that is long over, it is not believed.
    let range = ranges.iter().next().unwrap();
    states.joined(AgentId(2), told[0].number + 1, &id(), range, Version(Some(0))).unwrap();
    assert!(own(&mut states, &agents, 1).contains(range));
    assert!(states.joined(AgentId(2), told[0].number, &id(), range, Version(Some(9))).is_err());
    states.joined(AgentId(2), told[0].number, &id(), range, Version(Some(0))).unwrap();
    // Whoever had it is relieved.
    assert!(!own(&mut states, &agents, 1).contains(range) && own(&mut states, &agents, 2).contains(range));
    // A task that has not heard of that asks it all the same: it has all else that it should have.
    states.lacks(AgentId(1), &id(), 1, &[range].into_iter().collect(), located.as_of);
    assert_eq!(own(&mut states, &agents, 1).len(), 255);
    while !joins(&mut states, &agents, 2).is_empty() {
        join_all(&mut states, &agents, 2);
    }
    let (first, second) = (own(&mut states, &agents, 1), own(&mut states, &agents, 2));
    assert_eq!((first.union(&second), first.intersection(&second)), (RangeSet::ALL, RangeSet::EMPTY));
    assert!(first.len() > 64 && second.len() > 64);
}

#[test]
fn what_was_said_of_a_holder_before_it_was_given_its_ranges_anew_is_not_said_of_it_now() {
    let (mut states, agents) = (states(2, false), Agents::new(2));
    decide(&mut states, &agents, 0);
    let of = (1, 101, 0, 1);
    let located = begin(&mut states, &agents, of);
    // The second lacks something, and is given all of it anew.
    let lacks = |states: &mut States, as_of| states.lacks(AgentId(2), &id(), 1, &RangeSet::ALL, as_of);
    let join = |states: &mut States| {
        while !joins(states, &agents, 2).is_empty() {
            join_all(states, &agents, 2);
        }
    };
    lacks(&mut states, located.as_of);
    assert_eq!(copies(&mut states, &agents), [1; 256]);
    join(&mut states);
    assert_eq!(copies(&mut states, &agents), [2; 256]);
    // The same once more, as it comes twice or late.
    lacks(&mut states, located.as_of);
    assert_eq!(copies(&mut states, &agents), [2; 256]);
    // It may have forgotten the delta with what it had before: it is to have it again.
    let mut late = done(&located, of, 7);
    let Ok(FromRegistry::Also { holders, as_of }) = states.done(&late, &agents) else {
        panic!("it is counted")
    };
    let told: Vec<_> = holders.iter().map(|holding| (holding.agent.id, holding.ready)).collect();
    assert_eq!(told, [(AgentId(2), RangeSet::ALL)]);
    late.held.extend(done(&Located { holders, as_of, ..located }, of, 7).held);
    assert!(matches!(states.done(&late, &agents), Ok(FromRegistry::Counts)));
    // What is said of it as it is now counts.
    lacks(&mut states, as_of);
    assert_eq!(copies(&mut states, &agents), [1; 256]);
}

#[test]
fn an_epoch_that_is_cut_otherwise_is_decided_anew_and_in_part_it_breaks_the_state() {
    let (mut states, agents) = (states(1, false), Agents::new(1));
    for partition in [0, 1] {
        let of = (0, 1 + u64::from(partition), partition, 2);
        let located = begin(&mut states, &agents, of);
        states.done(&done(&located, of, 7), &agents).unwrap();
    }
    let key = EpochKey { query: "q".into(), epoch: Epoch::Batch(0) };
    states.check(&key).unwrap();
    let of = (0, 9, 2, 3);
    let located = begin(&mut states, &agents, of);
    assert_eq!(located.done, None);
    states.done(&done(&located, of, 7), &agents).unwrap();
    // One of before comes late.
    let old = (0, 2, 1, 2);
    assert_eq!(states.done(&done(&located, old, 7), &agents).unwrap_err().condition(), "FENCED");
    let error = states.check(&key).unwrap_err();
    assert!(error.to_string().contains("0, 1 of 3"), "{error}");
    states.commit("q", 0);
    let is_broken = |states: &mut States, epoch, attempt| {
        ask(states, &agents, (epoch, attempt, 0, 3))
            .is_err_and(|error| error.condition() == "STATE_INCOMPLETE")
    };
    assert!(is_broken(&mut states, 1, 10));
    assert!(is_broken(&mut states, 0, 11), "its query has not begun anew");
    let next = EpochKey { query: "q".into(), epoch: Epoch::Batch(1) };
    states.check(&next).unwrap();
    // It goes back to what was not all there, and decides that again.
    states.begin_run("q", Generation(20));
    assert!(is_broken(&mut states, 1, 21), "not behind it");
    for partition in [0, 1] {
        let of = (0, 22 + u64::from(partition), partition, 2);
        let located = begin(&mut states, &agents, of);
        assert_eq!((located.version, located.done), (Version::NONE, None));
        states.done(&done(&located, of, 8), &agents).unwrap();
    }
    states.commit("q", 0);
    assert_eq!(begin(&mut states, &agents, (1, 30, 0, 2)).version, Version(Some(0)));
}

#[test]
fn a_query_goes_back_only_after_it_has_begun_anew() {
    let (mut states, agents) = (states(1, true), Agents::new(1));
    states.begin_after(Generation(50));
    (0..4).for_each(|epoch| decide(&mut states, &agents, epoch));
    let (back, task) = ((2, 300, 0, 1), task(2, 0));
    let asker = Asker { task: &task, generation: Generation(300), partition: 0, partitions: 1 };
    assert_eq!(states.wants_folder(&asker), None);
    assert_eq!(ask(&mut states, &agents, back).unwrap_err().condition(), "FENCED");
    states.begin_run("q", Generation(299));
    assert_eq!(states.wants_folder(&asker), Some(Generation(299)));
    let error = ask(&mut states, &agents, back).unwrap_err();
    assert!(error.to_string().contains("minBatchesToRetain"), "{error}");
    let catalog = Bytes::from_static(b"c");
    states.found(&asker, Some(Restored { version: Version(Some(1)), catalog, epochs: 2, due_ms: Some(7) }));
    assert!(matches!(ask(&mut states, &agents, back), Ok(FromRegistry::IsRestored)));
    join_all(&mut states, &agents, 1);
    let located = begin(&mut states, &agents, back);
    assert_eq!((located.version, located.life), (Version(Some(1)), 2));
    assert_eq!(states.wants_folder(&asker), None, "it has gone on from there");
}

#[test]
fn what_was_decided_of_later_epochs_is_not_of_a_query_that_has_gone_back_before_them() {
    for durable in [false, true] {
        let (mut states, agents) = (states(1, durable), Agents::new(1));
        decide(&mut states, &agents, 0);
        // The operator ran in no epoch between.
        let of = (5, 105, 0, 1);
        let located = begin(&mut states, &agents, of);
        states.done(&done(&located, of, 5), &agents).unwrap();
        states.begin_run("q", Generation(200));
        let (back, task) = ((3, 203, 0, 1), task(3, 0));
        let asker = Asker { task: &task, generation: Generation(203), partition: 0, partitions: 1 };
        // In the folder it is not to count either.
        assert_eq!(states.wants_folder(&asker).is_some(), durable);
        if durable {
            let catalog = Bytes::from_static(b"c");
            states.found(
                &asker,
                Some(Restored { version: Version(Some(0)), catalog, epochs: 1, due_ms: None }),
            );
            ask(&mut states, &agents, back).unwrap();
            join_all(&mut states, &agents, 1);
        }
        let located = begin(&mut states, &agents, back);
        assert_eq!(located.version, Version(Some(0)));
        states.done(&done(&located, back, 3), &agents).unwrap();
        states.commit("q", 6);
        assert_eq!(states.version(&id()), Version(Some(3)));
    }
}

#[test]
fn state_of_which_nothing_is_known_begins_only_with_its_query() {
    let (mut states, agents) = (states(1, false), Agents::new(1));
    states.first.clear();
    states.seen(&"q".into(), 5);
    assert_eq!(ask(&mut states, &agents, (5, 1, 0, 1)).unwrap_err().condition(), "STATE_LOST");
    states.keep(Keeping { copies: 1, durable: false, begins_anew: true });
    assert_eq!(begin(&mut states, &agents, (5, 1, 0, 1)).version, Version::NONE);
}

#[test]
fn nothing_is_saved_while_some_operators_have_gone_back_and_others_may() {
    let (mut states, agents) = (states(1, true), Agents::new(1));
    let named = |operator: &str, epoch| TaskId { operator: operator.into(), ..task(epoch, 0) };
    let run = |states: &mut States, operator: &str, epoch: u64, attempt: u64| {
        let (of, task) = ((epoch, attempt, 0, 1), named(operator, epoch));
        let asker = Asker { task: &task, generation: Generation(attempt), partition: 0, partitions: 1 };
        let FromRegistry::Located(located) = states.locate(&asker, CLOCK, &agents).unwrap() else { panic!() };
        states.done(&Done { task: task.clone(), ..done(&located, of, 1) }, &agents).unwrap();
    };
    for epoch in 0..3 {
        run(&mut states, "f", epoch, 10 * epoch + 1);
        run(&mut states, "g", epoch, 10 * epoch + 2);
        states.commit("q", epoch);
    }
    assert_eq!(states.cut("q", &agents).unwrap().len(), 2);
    states.begin_run("q", Generation(100));
    assert_eq!(states.cut("q", &agents).unwrap().len(), 2, "nobody has gone back yet");
    for operator in ["f", "g"] {
        let task = named(operator, 1);
        let asker = Asker { task: &task, generation: Generation(101), partition: 0, partitions: 1 };
        let catalog = Bytes::from_static(b"c");
        let restored = Restored { version: Version(Some(0)), catalog, epochs: 1, due_ms: None };
        states.found(&asker, Some(restored));
        let saved = states.cut("q", &agents);
        if operator == "f" {
            assert!(saved.unwrap_err().to_string().contains("not all of its operators"));
        } else {
            assert!(saved.unwrap().iter().all(|located| located.version == Version(Some(0))));
        }
    }
}
