//! Answers that all tasks of an epoch share: one asks, the others wait, and whoever asks may die.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, Int64Array};
use clonos::agent::values::messages::{AboutValues, Found, Questions, TableId, Wanted};
use clonos::determinant::{BlockBuilder, decode_results, encode_results};
use clonos::edge::net::client::Client;
use clonos::error::Error;
use clonos::id::Epoch;
use clonos::task::Summary;

use crate::world::{APP, World, start_driver};

fn table(code: u64) -> TableId {
    TableId {
        named: false,
        query: "q".into(),
        epoch: Epoch::Batch(1),
        operator: "f".into(),
        code,
        shape: 0,
        python: "3.11".into(),
        label: "f".into(),
        allow_code_change: false,
        app: APP,
    }
}

fn want(client: &mut Client, code: u64, wanted: Wanted) -> Result<Found, Error> {
    client.values(AboutValues { table: table(code), asker: None, stamp: 0, wanted })
}

/// Questions that are the worker's to answer, and answers by question.
fn ask(client: &mut Client, questions: &[u64]) -> (Vec<u64>, Vec<(u64, i64)>) {
    let wanted = Wanted::Ask { questions: Questions::new(questions), duties_max: 100, patient: true };
    let Found::Standing { yours, answered } = want(client, 1, wanted).unwrap() else { panic!("no standing") };
    let at = |position: u32| questions[position as usize];
    let answered = answered.iter().flat_map(|found| {
        let values = decode_results(&found.arrow).unwrap();
        let values = values.as_primitive::<Int64Type>().values().to_vec();
        found.questions.iter().map(at).zip(values).collect::<Vec<_>>()
    });
    (yours.iter().map(at).collect(), answered.collect())
}

/// Publishes answers; the questions for which this was too late.
fn answer(client: &mut Client, answers: &[(u64, i64)]) -> Vec<u64> {
    let (questions, values): (Vec<u64>, Vec<i64>) = answers.iter().copied().unzip();
    let values: ArrayRef = Arc::new(Int64Array::from(values));
    let mut builder = BlockBuilder::new();
    builder.push_results(&questions, &encode_results(&values).unwrap()).unwrap();
    match want(client, 1, Wanted::Answer { block: builder.finish() }).unwrap() {
        Found::Late(late) => late,
        other => panic!("{other:?}"),
    }
}

#[test]
fn tasks_on_all_agents_share_one_answer() {
    let world = World::new();
    let executor = world.executor("other");
    let (mut here, mut there) = (world.worker(), world.worker_of(&executor));
    assert_eq!(ask(&mut here, &[1, 2]), (vec![1, 2], vec![]));
    assert_eq!(ask(&mut there, &[2, 3]), (vec![3], vec![]));
    assert!(answer(&mut here, &[(1, 10), (2, 20)]).is_empty());
    assert_eq!(ask(&mut there, &[2]), (vec![], vec![(2, 20)]));
    // Whoever thought that it was still its own is told what counts.
    assert_eq!(answer(&mut there, &[(2, 99), (3, 30)]), [2]);
    assert_eq!(ask(&mut here, &[3, 2, 1]).1.len(), 3);
    assert_eq!(ask(&mut there, &[2, 3]), (vec![], vec![(2, 20), (3, 30)]));
}

#[test]
fn who_waits_is_handed_the_questions_of_a_worker_that_ends_or_gives_up() {
    let world = World::new();
    let executor = world.executor("other");
    let (mut first, mut second, mut third) =
        (world.worker_of(&executor), world.worker(), world.worker_of(&executor));
    assert_eq!(ask(&mut first, &[1]).0, [1]);
    let begun = Instant::now();
    let waiting = std::thread::spawn(move || {
        while ask(&mut second, &[1]).0.is_empty() {}
        second
    });
    std::thread::sleep(Duration::from_millis(100));
    drop(first);
    let mut second = waiting.join().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(3), "it waited for the silence to be long enough");
    want(&mut second, 1, Wanted::GiveUp { summary: Summary::default() }).unwrap();
    assert_eq!(ask(&mut third, &[1]).0, [1]);
}

#[test]
fn the_questions_of_an_executor_that_dies_are_free_when_its_agent_is_silent() {
    let world = World::new();
    let victim = world.process("victim");
    let mut first = Client::connect(&world.config, &victim.socket).unwrap();
    assert_eq!(ask(&mut first, &[1]).0, [1]);
    victim.kill();
    let mut second = world.worker();
    let deadline = Instant::now() + Duration::from_secs(20);
    while ask(&mut second, &[1]).0.is_empty() {
        assert!(Instant::now() < deadline, "the questions of a dead executor are never free");
    }
}

#[test]
fn a_restarted_driver_has_the_answers_and_a_commit_forgets_them() {
    let world = World::with(|config, folder| {
        config.checkpoint_dir = Some(folder.path().join("checkpoint").display().to_string());
    });
    let mut worker = world.worker();
    assert_eq!(ask(&mut worker, &[1, 2]).0, [1, 2]);
    answer(&mut worker, &[(1, 10)]);
    answer(&mut worker, &[(2, 20)]);
    world.driver.stop();
    let mut config = world.config.clone();
    config.app_id = "app-next".into();
    let (driver, config) = start_driver(config, world.folder.path().join("next.sock"));
    let mut worker = Client::connect(&config, driver.socket()).unwrap();
    assert_eq!(ask(&mut worker, &[2, 1, 3]), (vec![3], vec![(1, 10), (2, 20)]));
    driver.commit_epoch("q", &Epoch::Batch(1)).unwrap();
    assert!(driver.live_epochs().unwrap().is_empty());
    assert_eq!(ask(&mut worker, &[1]).0, [1], "an answer outlived its epoch");
}

#[test]
fn answers_past_the_memory_budget_are_read_from_disk() {
    let world = World::with(|config, _| config.memory_bytes = 1 << 20);
    let mut worker = world.worker();
    // Opens the table: an answer to a table that nobody asked is of a worker that was left behind.
    ask(&mut worker, &[0]);
    for part in 0..40_u64 {
        let answers: Vec<(u64, i64)> =
            (part * 5_000..(part + 1) * 5_000).map(|question| (question, question as i64)).collect();
        assert!(answer(&mut worker, &answers).is_empty());
    }
    let spilled: u64 = world.driver.stats().unwrap().agents.iter().map(|agent| agent.spilled_bytes).sum();
    assert!(spilled > 0, "nothing was spilled");
    let (yours, answers) = ask(&mut worker, &[7, 123_456]);
    assert_eq!((yours, answers), (vec![], vec![(7, 7), (123_456, 123_456)]));
}

#[test]
fn functions_of_one_name_and_other_code_do_not_share() {
    let world = World::new();
    let mut worker = world.worker();
    assert_eq!(ask(&mut worker, &[1]).0, [1]);
    answer(&mut worker, &[(1, 10)]);
    let wanted = Wanted::Ask { questions: Questions::new(&[1]), duties_max: 1, patient: true };
    let Found::Standing { yours, .. } = want(&mut worker, 2, wanted).unwrap() else { panic!("no standing") };
    assert_eq!(yours, [0].into_iter().collect());
}
