use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

fn asker(number: u64) -> Asker {
    Asker { agent: AgentId(number % 2), connection: number }
}

fn ask(values: &mut Values, number: u64, questions: &[u64]) -> Vec<Standing> {
    values.ask(asker(number), questions, usize::MAX, 0, |_| true)
}

#[test]
fn one_asks_and_the_others_wait_for_its_answer() {
    let mut values = Values::new();
    assert_eq!(ask(&mut values, 1, &[7, 8]), [Standing::Yours; 2]);
    assert_eq!(ask(&mut values, 2, &[8, 9]), [Standing::Open, Standing::Yours]);
    values.answered(Some(asker(1)), LogOffset(5), &[7, 8]);
    let eight = Position { block: LogOffset(5), row: 1 };
    assert_eq!(ask(&mut values, 2, &[8, 9]), [Standing::Answered(eight), Standing::Yours]);
}

#[test]
fn a_request_that_is_repeated_has_the_same_answer() {
    let mut values = Values::new();
    assert_eq!(ask(&mut values, 1, &[7]), [Standing::Yours]);
    assert_eq!(ask(&mut values, 1, &[7]), [Standing::Yours]);
}

#[test]
fn an_asker_takes_no_more_than_it_can_answer() {
    let mut values = Values::new();
    let standing = values.ask(asker(1), &[1, 2, 3], 2, 0, |_| true);
    assert_eq!(standing, [Standing::Yours, Standing::Yours, Standing::Open]);
    assert_eq!(ask(&mut values, 2, &[3]), [Standing::Yours]);
}

#[test]
fn duties_go_to_another_with_their_askers_end_its_agents_death_or_its_silence() {
    let mut values = Values::new();
    ask(&mut values, 1, &[1, 2, 3]);
    assert!(values.give_up(asker(1)));
    assert_eq!(ask(&mut values, 2, &[1]), [Standing::Yours]);
    let dead = |agent| agent != asker(2).agent;
    assert_eq!(values.ask(asker(3), &[1], 1, 0, dead), [Standing::Yours]);
    assert_eq!(values.ask(asker(5), &[1], 1, SILENCE_MS_MAX, |_| true), [Standing::Open]);
    assert_eq!(values.ask(asker(5), &[1], 1, SILENCE_MS_MAX + 1, |_| true), [Standing::Yours]);
}

#[test]
fn the_first_answer_counts() {
    let mut values = Values::new();
    values.answered(None, LogOffset(0), &[1]);
    assert_eq!(values.answered(None, LogOffset(9), &[1, 2, 2]), [1, 2]);
    let first = Position { block: LogOffset(0), row: 0 };
    assert_eq!(ask(&mut values, 1, &[1]), [Standing::Answered(first)]);
    let first = Position { block: LogOffset(9), row: 1 };
    assert_eq!(ask(&mut values, 1, &[2]), [Standing::Answered(first)]);
    assert_eq!(values.len(), 2);
}

/// What may happen to a task that works through its questions.
#[derive(Debug, Clone, Copy)]
enum Event {
    Step,
    Raise,
    Die,
    Pause,
}

fn event() -> impl Strategy<Value = (u64, Event)> {
    let what = prop_oneof![
        8 => Just(Event::Step),
        1 => Just(Event::Raise),
        1 => Just(Event::Die),
        1 => Just(Event::Pause),
    ];
    (0..TASKS, what)
}

const TASKS: u64 = 4;

/// Tasks as workers do it: they ask, answer what is theirs, and only then ask again.
struct World {
    values: Values,
    now_ms: u64,
    next_block: u64,
    duties: BTreeMap<u64, Vec<u64>>,
    known: BTreeMap<u64, BTreeMap<u64, Position>>,
    recorded: BTreeMap<u64, Position>,
}

impl World {
    fn new() -> Self {
        let (duties, known, recorded) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { values: Values::new(), now_ms: 0, next_block: 0, duties, known, recorded }
    }

    fn step(&mut self, task: u64, questions: &[u64]) {
        if let Some(mine) = self.duties.remove(&task).filter(|mine| !mine.is_empty()) {
            self.next_block += 1;
            let block = LogOffset(self.next_block);
            self.values.heard(asker(task), self.now_ms);
            let late = self.values.answered(Some(asker(task)), block, &mine);
            for (row, question) in (0..).zip(mine) {
                if !late.contains(&question) {
                    let before = self.recorded.insert(question, Position { block, row });
                    assert_eq!(before, None, "a second answer counts");
                }
            }
            return;
        }
        let standing = self.values.ask(asker(task), questions, 2, self.now_ms, |_| true);
        for (question, standing) in questions.iter().zip(standing) {
            match standing {
                Standing::Answered(position) => {
                    assert_eq!(self.recorded.get(question), Some(&position));
                    let before = self.known.entry(task).or_default().insert(*question, position);
                    assert!(before.is_none_or(|before| before == position), "an answer changed");
                }
                Standing::Yours => self.duties.entry(task).or_default().push(*question),
                Standing::Open => {}
            }
        }
    }

    fn is_done(&self, task: u64, questions: &[u64]) -> bool {
        let known = self.known.get(&task);
        questions.iter().all(|question| known.is_some_and(|known| known.contains_key(question)))
    }
}

proptest! {
    #[test]
    fn in_any_interleaving_there_is_one_answer_and_nobody_waits_for_ever(
        events in prop::collection::vec(event(), 0..120),
        asked in prop::collection::vec(prop::collection::btree_set(0_u64..8, 1..6), TASKS as usize),
    ) {
        let asked: Vec<Vec<u64>> = asked.into_iter().map(BTreeSet::into_iter).map(Iterator::collect).collect();
        let mut world = World::new();
        for (task, event) in events {
            let questions = &asked[task as usize];
            match event {
                Event::Step => world.step(task, questions),
                Event::Raise | Event::Die => {
                    // An exception frees the duties at once; of a death nobody need have heard.
                    world.duties.remove(&task);
                    world.known.remove(&task);
                    if matches!(event, Event::Raise) {
                        world.values.give_up(asker(task));
                    }
                }
                Event::Pause => world.now_ms += SILENCE_MS_MAX / 2,
            }
        }
        // From here on nothing fails: everybody comes to its end. One task may have died holding duties.
        world.now_ms += SILENCE_MS_MAX + 1;
        for _ in 0..200 {
            for task in 0..TASKS {
                world.step(task, &asked[task as usize]);
            }
        }
        for task in 0..TASKS {
            prop_assert!(world.is_done(task, &asked[task as usize]), "task {task} waits for ever");
        }
    }
}

/// What [`Values`] is to do, without lists: the holder of each question, or its answer.
#[derive(Default)]
struct Model {
    questions: BTreeMap<u64, Result<Position, Option<u64>>>,
    heard_ms: BTreeMap<u64, u64>,
}

impl Model {
    fn ask(&mut self, number: u64, questions: &[u64], duties_max: usize, now_ms: u64) -> Vec<Standing> {
        self.heard_ms.insert(number, now_ms);
        let mut taken = 0;
        let mut stand = |question: &u64| {
            let holder = match self.questions.get(question) {
                Some(Ok(position)) => return Standing::Answered(*position),
                Some(Err(holder)) => *holder,
                None => None,
            };
            let is_others = |of: u64| of != number && now_ms - self.heard_ms[&of] <= SILENCE_MS_MAX;
            if holder.is_some_and(is_others) || taken == duties_max {
                return Standing::Open;
            }
            taken += 1;
            self.questions.insert(*question, Err(Some(number)));
            Standing::Yours
        };
        questions.iter().map(&mut stand).collect()
    }

    fn answered(&mut self, block: LogOffset, questions: &[u64]) -> Vec<u64> {
        let mut late = Vec::new();
        for (row, question) in (0..).zip(questions) {
            if matches!(self.questions.get(question), Some(Ok(_))) {
                late.push(*question);
            } else {
                self.questions.insert(*question, Ok(Position { block, row }));
            }
        }
        late
    }
}

#[derive(Debug, Clone)]
enum Deed {
    Ask {
        questions: Vec<u64>,
        duties_max: usize,
    },
    /// What it was last given, in that order.
    AnswerAll,
    Answer(Vec<u64>),
    GiveUp,
    Wait,
}

fn deed() -> impl Strategy<Value = (u64, Deed)> {
    let questions = || prop::collection::vec(0_u64..12, 1..8);
    let what = prop_oneof![
        4 => (questions(), 0_usize..9).prop_map(|(questions, duties_max)| Deed::Ask { questions, duties_max }),
        3 => Just(Deed::AnswerAll),
        1 => questions().prop_map(Deed::Answer),
        1 => Just(Deed::GiveUp),
        1 => Just(Deed::Wait),
    ];
    (0_u64..3, what)
}

proptest! {
    #[test]
    fn lists_of_duties_are_a_matter_of_speed_only(deeds in prop::collection::vec(deed(), 0..80)) {
        let (mut values, mut model) = (Values::new(), Model::default());
        let mut given: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        let mut now_ms = 0;
        for (at, (number, deed)) in (1..).zip(deeds) {
            let block = LogOffset(at);
            let answer = match deed {
                Deed::Ask { questions, duties_max } => {
                    let standing = values.ask(asker(number), &questions, duties_max, now_ms, |_| true);
                    prop_assert_eq!(&standing, &model.ask(number, &questions, duties_max, now_ms));
                    let yours = questions.iter().zip(&standing).filter(|(_, of)| **of == Standing::Yours);
                    given.insert(number, yours.map(|(question, _)| *question).collect());
                    continue;
                }
                Deed::AnswerAll => given.get(&number).cloned().unwrap_or_default(),
                Deed::Answer(questions) => questions,
                Deed::GiveUp => {
                    values.give_up(asker(number));
                    for holder in model.questions.values_mut() {
                        if *holder == Err(Some(number)) {
                            *holder = Err(None);
                        }
                    }
                    continue;
                }
                Deed::Wait => {
                    now_ms += SILENCE_MS_MAX / 2 + 1;
                    continue;
                }
            };
            let late = values.answered(Some(asker(number)), block, &answer);
            prop_assert_eq!(late, model.answered(block, &answer));
            prop_assert_eq!(values.len(), model.questions.values().filter(|state| state.is_ok()).count());
        }
        // Lists to which nothing refers are used again.
        let lists = values.places.values().map(|place| place.list).collect::<BTreeSet<u32>>().len();
        let answered = values.lists.iter().filter(|list| matches!(list, List::Answered(_))).count();
        prop_assert!(values.lists.len() - values.unused.len() <= lists + answered);
    }
}
