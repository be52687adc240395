use super::*;
use crate::id::{Epoch, Generation, LogOffset, Partition, TaskId};

const PATIENCE: Duration = Duration::from_millis(1_000);
const PAUSE: Duration = Duration::from_millis(100);

fn agent(id: u64) -> AgentInfo {
    AgentInfo { id: AgentId(id), addr: id.to_string(), host: id.to_string(), driver: false }
}

fn agents(ids: &[u64]) -> Vec<AgentInfo> {
    ids.iter().map(|id| agent(*id)).collect()
}

fn ids(agents: &[AgentInfo]) -> Vec<u64> {
    agents.iter().map(|agent| agent.id.0).collect()
}

fn silent() -> Error {
    Error::Timeout { what: "an answer".into(), millis: 1 }
}

fn full() -> Error {
    Error::DiskBudget { limit: 9 }
}

fn refusal() -> Error {
    Error::LogGap { from: LogOffset(1), end: LogOffset::START }
}

fn fenced() -> Error {
    let epoch = Epoch::Batch(1);
    let task = TaskId { query: "q".into(), operator: "f".into(), epoch, partition: Partition(0) };
    Error::Fenced { task, newer: Generation(2), ours: Generation(1) }
}

/// The agents there are, and what each answers, the last time again and again.
struct World {
    candidates: Vec<u64>,
    answers: Vec<(u64, Vec<Result<()>>)>,
    dead: Vec<u64>,
    /// Who was sent to, in order.
    sent: Vec<u64>,
    /// How often it was asked who else there is, and who is dead.
    chosen: usize,
    left_out: usize,
    waited: Duration,
}

impl World {
    fn new(candidates: &[u64]) -> Self {
        let (candidates, answers, dead, sent) = (candidates.to_vec(), Vec::new(), Vec::new(), Vec::new());
        Self { candidates, answers, dead, sent, chosen: 0, left_out: 0, waited: Duration::ZERO }
    }

    fn answers(mut self, id: u64, answers: impl IntoIterator<Item = Result<()>>) -> Self {
        self.answers.push((id, answers.into_iter().collect()));
        self
    }

    fn dead(mut self, id: u64) -> Self {
        self.dead.push(id);
        self.answers(id, [Err(silent())])
    }

    /// Who has them in the end, or why that failed.
    fn run(&mut self, copying: &mut Copying) -> std::result::Result<Vec<u64>, &'static str> {
        self.steps(copying).map_err(|error| error.condition())
    }

    fn steps(&mut self, copying: &mut Copying) -> Result<Vec<u64>> {
        loop {
            match copying.next(self.waited)? {
                Step::Send(peer) => {
                    let times = self.sent.iter().filter(|id| **id == peer.id.0).count();
                    self.sent.push(peer.id.0);
                    let known = self.answers.iter().find(|(id, _)| *id == peer.id.0);
                    let answer = known.and_then(|(_, all)| all.get(times).or(all.last()));
                    copying.answered(peer, answer.cloned().unwrap_or(Ok(())))?;
                }
                Step::Choose => {
                    self.chosen += 1;
                    copying.choose(agents(&self.candidates));
                }
                Step::LeaveOut => {
                    self.left_out += 1;
                    copying.leave_out(|agent| self.dead.contains(&agent.id.0));
                }
                Step::Wait => self.waited += PAUSE,
                Step::Done => return Ok(ids(copying.holders())),
            }
            assert!(self.sent.len() < 1_000, "it does not end");
        }
    }
}

fn wanted(copies: usize) -> Copying {
    Copying::new(copies, PATIENCE)
}

fn at(peers: &[u64]) -> Copying {
    Copying::new(peers.len(), PATIENCE).first_to(agents(peers))
}

#[test]
fn as_many_as_are_wanted_are_sent_to_best_first() {
    let mut world = World::new(&[4, 2, 7, 1]);
    assert_eq!(world.run(&mut wanted(2)), Ok(vec![4, 2]));
    assert_eq!(world.sent, [4, 2]);
    let mut world = World::new(&[4, 2]);
    assert_eq!(world.run(&mut wanted(0)), Ok(vec![]));
    assert_eq!(world.chosen, 0, "nobody is asked who there is");
}

#[test]
fn peers_that_all_answer_are_all_there_is_to_ask() {
    let (mut world, mut copying) = (World::new(&[4, 2, 7, 1]), at(&[7, 1]));
    assert_eq!(world.run(&mut copying), Ok(vec![7, 1]));
    assert_eq!((world.sent, world.chosen, copying.has_moved()), (vec![7, 1], 0, false));
}

#[test]
fn whoever_does_not_take_a_copy_is_replaced_by_the_next_who_was_not_asked_yet() {
    for error in [silent(), refusal(), full()] {
        let mut world =
            World::new(&[1, 2, 3, 4, 5]).answers(1, [Err(error.clone())]).answers(2, [Err(error)]);
        let mut copying = at(&[1, 2, 3]);
        assert_eq!(world.run(&mut copying), Ok(vec![3, 4, 5]));
        assert!(copying.has_moved());
        assert_eq!((world.sent, world.chosen, world.left_out), (vec![1, 2, 3, 4, 5], 1, 0));
    }
}

#[test]
fn fewer_do_where_there_are_not_more_who_take_them() {
    assert_eq!(World::new(&[1]).run(&mut wanted(3)), Ok(vec![1]));
    for error in [silent(), refusal()] {
        let mut world = World::new(&[1, 2, 3]).answers(1, [Err(error.clone())]).answers(3, [Err(error)]);
        assert_eq!(world.run(&mut wanted(2)), Ok(vec![2]));
        assert_eq!(world.left_out, 0, "nobody is made dead for being slow");
        assert_eq!(world.waited, Duration::ZERO);
    }
}

#[test]
fn want_of_room_is_no_excuse_for_fewer() {
    for peers in [wanted(2), at(&[2, 1])] {
        let mut world = World::new(&[1, 2, 3]).answers(2, [Err(full())]).answers(3, [Err(silent())]);
        let mut copying = peers;
        assert_eq!(world.run(&mut copying), Err(full().condition()));
        assert_eq!(ids(copying.holders()), [1], "others are asked before");
    }
}

#[test]
fn none_do_only_if_nobody_else_is_alive() {
    assert_eq!(World::new(&[]).run(&mut wanted(2)), Ok(vec![]));
    assert_eq!(World::new(&[1, 2]).dead(1).dead(2).run(&mut wanted(1)), Ok(vec![]));
    assert_eq!(World::new(&[1, 2]).dead(1).dead(2).run(&mut at(&[1])), Ok(vec![]));
    // Who refuses lives, and need not be waited for.
    let mut world = World::new(&[1, 2, 3]).answers(1, [Err(silent())]).answers(2, [Err(refusal())]).dead(3);
    assert_eq!(world.run(&mut wanted(1)), Err(refusal().condition()));
    assert_eq!((world.left_out, world.waited), (0, Duration::ZERO));
}

#[test]
fn who_is_silent_and_not_dead_is_waited_for_as_long_as_there_is_patience() {
    let answers = [Err(silent()), Err(silent()), Ok(())];
    let mut world = World::new(&[1, 2]).dead(1).answers(2, answers);
    assert_eq!(world.run(&mut wanted(2)), Ok(vec![2]));
    assert_eq!(world.sent, [1, 2, 2, 2], "the dead are left alone");
    assert_eq!((world.chosen, world.left_out, world.waited), (1, 2, PAUSE * 2));
    let mut world = World::new(&[1, 2]).answers(1, [Err(silent())]).dead(2);
    assert_eq!(world.run(&mut wanted(1)), Err(silent().condition()));
    assert_eq!(world.waited, PATIENCE);
    let mut hasty = Copying::new(1, Duration::ZERO);
    let mut world = World::new(&[1, 2]).answers(1, [Err(silent())]).answers(2, [Err(silent())]);
    assert_eq!(world.run(&mut hasty), Err(silent().condition()));
    assert_eq!(world.sent, [1, 2]);
}

#[test]
fn what_one_answers_after_it_was_waited_for_counts_as_any_answer() {
    for outcome in [refusal(), full(), fenced()] {
        let mut world = World::new(&[1]).answers(1, [Err(silent()), Err(outcome.clone())]);
        assert_eq!(world.run(&mut wanted(1)), Err(outcome.condition()));
        assert_eq!(world.sent, [1, 1]);
    }
}

#[test]
fn who_has_them_already_is_not_sent_them() {
    let mut world = World::new(&[1, 2, 3]);
    let mut copying = wanted(3).held_by(agents(&[1, 3]));
    assert_eq!(world.run(&mut copying), Ok(vec![1, 3, 2]));
    assert_eq!(world.sent, [2]);
    assert_eq!(ids(&copying.into_holders()), [1, 3, 2]);
}

#[test]
fn a_fence_ends_it_whoever_else_would_take_them() {
    let mut world = World::new(&[1, 2, 3]).answers(2, [Err(fenced())]);
    assert_eq!(world.run(&mut wanted(2)), Err(fenced().condition()));
    assert_eq!(world.sent, [1, 2]);
}
