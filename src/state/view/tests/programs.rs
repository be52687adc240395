//! Random programs against maps in memory, from epoch to epoch.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const KEYS: [&str; 4] = ["a", "b", "c", ""];
const USERS: [&str; 3] = ["", "x", "y"];

/// What a program does to a variable of a key.
#[derive(Debug, Clone)]
enum Step {
    Value(usize, Option<i64>),
    Append(usize, i64),
    ClearList(usize),
    Map(usize, usize, Option<i64>),
    ClearMap(usize),
    Timer(usize, i64, bool),
}

fn step() -> impl Strategy<Value = Step> {
    let (key, value) = (0..KEYS.len(), prop::option::of(any::<i64>()));
    prop_oneof![
        (key.clone(), value.clone()).prop_map(|(key, value)| Step::Value(key, value)),
        (key.clone(), any::<i64>()).prop_map(|(key, value)| Step::Append(key, value)),
        key.clone().prop_map(Step::ClearList),
        (key.clone(), 0..USERS.len(), value).prop_map(|(key, user, value)| Step::Map(key, user, value)),
        key.clone().prop_map(Step::ClearMap),
        (key, -3..3_i64, any::<bool>()).prop_map(|(key, expiry, there)| Step::Timer(key, expiry, there)),
    ]
}

/// All that there is, by key.
#[derive(Debug, Default, PartialEq)]
struct Model {
    values: BTreeMap<String, i64>,
    lists: BTreeMap<String, Vec<i64>>,
    maps: BTreeMap<(String, String), i64>,
    timers: BTreeMap<(String, i64), ()>,
}

impl Model {
    fn apply(&mut self, step: &Step) {
        match step {
            Step::Value(key, Some(value)) => drop(self.values.insert(KEYS[*key].into(), *value)),
            Step::Value(key, None) => drop(self.values.remove(KEYS[*key])),
            Step::Append(key, value) => self.lists.entry(KEYS[*key].into()).or_default().push(*value),
            Step::ClearList(key) => drop(self.lists.remove(KEYS[*key])),
            Step::Map(key, user, value) => {
                let place = (KEYS[*key].to_owned(), USERS[*user].to_owned());
                match value {
                    Some(value) => drop(self.maps.insert(place, *value)),
                    None => drop(self.maps.remove(&place)),
                }
            }
            Step::ClearMap(key) => self.maps.retain(|(of, _), _| of != KEYS[*key]),
            Step::Timer(key, expiry, true) => drop(self.timers.insert((KEYS[*key].into(), *expiry), ())),
            Step::Timer(key, expiry, false) => drop(self.timers.remove(&(KEYS[*key].into(), *expiry))),
        }
    }

    fn read(task: &mut Task, keys: &[u32]) -> Self {
        let name = |number: u32| KEYS[keys.iter().position(|key| *key == number).unwrap()].to_owned();
        let mut model = Self::default();
        for (key, _, value) in found(task, 0) {
            assert_eq!(model.values.insert(name(key), value), None);
        }
        for (key, _, value) in all(task, 1) {
            model.lists.entry(name(key)).or_default().push(value);
        }
        for (key, user, value) in all(task, 2) {
            assert_eq!(model.maps.insert((name(key), user.unwrap()), value), None);
        }
        for (key, expiry) in task.timers(0).unwrap() {
            assert_eq!(model.timers.insert((name(key), expiry), ()), None);
        }
        model
    }
}

/// Entries of a variable, with what was not loaded with its keys, read piece by piece.
fn all(task: &mut Task, variable: usize) -> Vec<(u32, Option<String>, i64)> {
    let mut all = found(task, variable);
    for key in task.cut(variable, 0).unwrap() {
        assert!(all.iter().any(|(of, ..)| *of == key), "one entry at least is there");
        let mut from = None;
        loop {
            let piece = task.piece(variable, key, from, 1).unwrap();
            let values = piece.values.column(0).as_primitive::<Int64Type>();
            let users = piece.user_keys.as_ref().map(|users| users.column(0).as_string::<i32>());
            let user = |at| users.map(|users| users.value(at).to_owned());
            assert!(values.len() <= 1);
            all.extend((0..values.len()).map(|at| (key, user(at), values.value(at))));
            from = piece.next;
            if from.is_none() {
                break;
            }
        }
    }
    all
}

/// Each pair of a map is loaded with its key, or found where it is looked up.
fn look_up(task: &mut Task, keys: &[u32], model: &Model) {
    let loaded: Vec<_> = found(task, 2).into_iter().map(|(key, user, _)| (key, user.unwrap())).collect();
    for key in task.cut(2, 0).unwrap() {
        let name = KEYS[keys.iter().position(|of| *of == key).unwrap()];
        for user in USERS {
            let found = task.lookup(2, key, &texts(&[user]), None).unwrap();
            let found = found.map(|value| value.column(0).as_primitive::<Int64Type>().value(0));
            let is_loaded = loaded.contains(&(key, user.to_owned()));
            let there = model.maps.get(&(name.to_owned(), user.to_owned())).filter(|_| !is_loaded);
            assert_eq!(found.as_ref(), there);
        }
    }
}

fn run(task: &mut Task, keys: &[u32], step: &Step) {
    let put_or = |value: &Option<i64>, other| if value.is_some() { Did::Put } else { other };
    match step {
        Step::Value(key, value) => {
            let rows = value.map(|value| numbers(&[value]));
            task.write(0, &[keys[*key]], &[put_or(value, Did::Delete)], None, rows.as_ref()).unwrap();
        }
        Step::Append(key, value) => {
            task.write(1, &[keys[*key]], &[Did::Put], None, Some(&numbers(&[*value]))).unwrap();
        }
        Step::ClearList(key) => task.write(1, &[keys[*key]], &[Did::Clear], None, None).unwrap(),
        Step::Map(key, user, value) => {
            let (rows, users) = (value.map(|value| numbers(&[value])), texts(&[USERS[*user]]));
            let did = [put_or(value, Did::Delete)];
            task.write(2, &[keys[*key]], &did, Some(&users), rows.as_ref()).unwrap();
        }
        Step::ClearMap(key) => task.write(2, &[keys[*key]], &[Did::Clear], None, None).unwrap(),
        Step::Timer(key, expiry, there) => task.write_timers(&[keys[*key]], &[*there], &[*expiry]).unwrap(),
    }
}

proptest! {
    #[test]
    fn a_program_reads_what_it_left(
        epochs in prop::collection::vec(prop::collection::vec(step(), 0..12), 1..5),
        part in prop_oneof![Just(u64::MAX), 0..60_u64],
    ) {
        let states = LocalStates::new();
        let mut model = Model::default();
        for (epoch, steps) in (0..).zip(&epochs) {
            // The first attempt is lost after its end; the second does the same.
            let mut fingerprints = Vec::new();
            for _ in 0..2 {
                let (mut task, keys) = task_in_parts(&states, epoch, &KEYS, part);
                prop_assert_eq!(&Model::read(&mut task, &keys), &model);
                look_up(&mut task, &keys, &model);
                steps.iter().for_each(|step| run(&mut task, &keys, step));
                fingerprints.push(task.commit().unwrap());
            }
            prop_assert_eq!(fingerprints[0], fingerprints[1]);
            states.commit(&id(), epoch).unwrap();
            steps.iter().for_each(|step| model.apply(step));
        }
        let (mut task, keys) = task(&states, 99, &KEYS);
        prop_assert_eq!(&Model::read(&mut task, &keys), &model);
    }
}
