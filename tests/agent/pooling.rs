//! Rows of other partitions are found wherever they were recorded, once the layout is another one.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::{ArrayRef, StringArray};
use bytes::Bytes;
use clonos::agent::protocol::{Borders, Code, Layout, OpenTask, Reply, Request, Sent};
use clonos::determinant::{BlockBuilder, BlockReader, encode_results};
use clonos::edge::net::Connection;
use clonos::edge::net::client::Client;
use clonos::error::{Error, Result};
use clonos::id::LogOffset;
use clonos::task::{PoolQuestion, PoolQuestions, TaskMode, TaskOptions, values_header};

use crate::memory::{block, given};
use crate::reopened::fail;
use crate::world::{
    APP, Peer, World, append, close, eventually, fence_of, open, opening, restarted, start_driver, task,
};

/// A log's block: rows of these fingerprints, each with a value that says where it was recorded.
pub fn rows(keys: Range<u64>, value: &str) -> Bytes {
    let options = TaskOptions::new(task(0), TaskMode::Result, 7);
    let header = values_header(&options).unwrap();
    let mut builder = BlockBuilder::new();
    builder.push(&BlockReader::new(&header).unwrap().next().unwrap().unwrap()).unwrap();
    let keys: Vec<u64> = keys.collect();
    let values: ArrayRef = Arc::new(StringArray::from(vec![value; keys.len()]));
    builder.push_results(&keys, &encode_results(&values).unwrap()).unwrap();
    builder.finish()
}

/// What a task is told of the first row of each fingerprint.
pub fn found(
    worker: &mut Client,
    partition: u32,
    keys: impl Iterator<Item = u64>,
) -> Result<Vec<(u64, String)>> {
    let mut questions: Vec<_> =
        keys.map(|fingerprint| PoolQuestion { fingerprint, from: 0, wanted: 1 }).collect();
    let mut all = Vec::new();
    while !questions.is_empty() {
        let answer = worker.pool(&task(partition), &questions, false)?;
        questions.drain(..answer.answers.len());
        for (keys, values) in given(&answer) {
            all.extend(keys.into_iter().zip(values.iter().map(|value| value.unwrap().to_owned())));
        }
    }
    Ok(all)
}

pub fn told(rows: &[(u64, &str)]) -> Vec<(u64, String)> {
    rows.iter().map(|(key, value)| (*key, (*value).to_owned())).collect()
}

#[test]
fn another_number_of_tasks_is_another_layout_and_its_rows_are_found() {
    let world = World::new();
    let mut worker = world.worker();
    for partition in 0..4 {
        let opened = open(&mut worker, &task(partition), 104, u64::from(partition));
        let key = u64::from(partition);
        append(&mut worker, opened.session, &rows(key..key + 1, &format!("by {partition}"))).unwrap();
        close(&mut worker, opened.session);
    }
    let first = open(&mut worker, &task(0), 102, 20);
    assert!(first.recording.layout_changed && !first.recording.same_stage);
    assert_eq!(first.prior, [rows(0..1, "by 0")]);
    // All but its own.
    let others = told(&[(1, "by 1"), (2, "by 2"), (3, "by 3")]);
    assert_eq!(found(&mut worker, 0, 0..6).unwrap(), others);
    append(&mut worker, first.session, &rows(7..8, "by the new 0")).unwrap();
    let second = open(&mut worker, &task(1), 102, 21);
    assert!(second.recording.layout_changed);
    // Partition 0 as it was recorded, without what the new layout added.
    let others = told(&[(0, "by 0"), (2, "by 2"), (3, "by 3")]);
    assert_eq!(found(&mut worker, 1, 0..9).unwrap(), others);
}

#[test]
fn rows_may_be_missing_where_some_attempt_never_came_to_its_end() {
    for ends in [true, false] {
        let world = World::new();
        let mut worker = world.worker();
        for partition in 0..4 {
            let opened = open(&mut worker, &task(partition), 104, u64::from(partition));
            let key = u64::from(partition);
            append(&mut worker, opened.session, &rows(key..key + 1, "old")).unwrap();
            match partition != 2 || ends {
                true => close(&mut worker, opened.session),
                false => fail(&mut worker, opened.session),
            }
        }
        let question = [PoolQuestion { fingerprint: 1, from: 0, wanted: 1 }];
        // Also where the new task has begun with the log that was never ended.
        for partition in [2, 0] {
            let opened = open(&mut worker, &task(partition), 103, u64::from(partition) + 20);
            assert_eq!(worker.pool(&task(partition), &question, false).unwrap().may_lack_rows, !ends);
            close(&mut worker, opened.session);
        }
    }
}

/// The opening of a task in a stage of another application.
pub fn opening_of(app: u64, partition: u32, stage: u32) -> OpenTask {
    OpenTask { app, ..opening(&task(partition), stage, app) }
}

#[test]
fn rows_of_another_number_of_tasks_are_found_when_the_last_number_comes_again() {
    let world = World::new();
    let mut worker = world.worker();
    for (stage, key) in [(104, 1), (102, 2)] {
        let opened = open(&mut worker, &task(0), stage, key);
        append(&mut worker, opened.session, &rows(key..key + 1, &format!("by {stage}"))).unwrap();
        close(&mut worker, opened.session);
    }
    // Tasks are two again. Which of them opens first does not matter.
    for (app, partitions) in [(APP + 1, [1, 0]), (APP + 2, [0, 1])] {
        for partition in partitions {
            let opened = worker.open(opening_of(app, partition, 102)).unwrap();
            assert!(opened.recording.layout_changed, "partition {partition} of application {app}");
            if partition == 1 {
                let both = told(&[(1, "by 104"), (2, "by 102")]);
                assert_eq!(found(&mut worker, 1, 0..4).unwrap(), both);
            }
            close(&mut worker, opened.session);
        }
    }
}

#[test]
fn rows_that_were_recorded_meanwhile_are_found_by_who_opens_later() {
    let world = World::new();
    let mut worker = world.worker();
    let old = worker.open(opening_of(APP + 1, 9, 110)).unwrap();
    append(&mut worker, old.session, &rows(1..2, "first")).unwrap();
    let mut other = world.worker();
    open(&mut other, &task(0), 102, 20);
    assert_eq!(found(&mut other, 0, 1..3).unwrap(), told(&[(1, "first")]));
    append(&mut worker, old.session, &rows(2..3, "second")).unwrap();
    // Who has asked before goes on with what there was then.
    assert_eq!(found(&mut other, 0, 1..3).unwrap(), told(&[(1, "first")]));
    open(&mut other, &task(1), 102, 21);
    assert_eq!(found(&mut other, 1, 1..3).unwrap(), told(&[(1, "first"), (2, "second")]));
}

#[test]
fn a_log_that_another_attempt_went_on_with_is_read_anew_and_once() {
    let world = World::new();
    let mut worker = world.worker();
    let first = worker.open(opening_of(APP + 1, 9, 110)).unwrap();
    append(&mut worker, first.session, &rows(1..2, "of the first attempt")).unwrap();
    let mut other = world.worker();
    open(&mut other, &task(0), 102, 20);
    assert_eq!(found(&mut other, 0, 1..3).unwrap(), told(&[(1, "of the first attempt")]));
    let second = worker.open(opening_of(APP + 2, 9, 110)).unwrap();
    append(&mut worker, second.session, &rows(2..3, "of the second")).unwrap();
    open(&mut other, &task(1), 102, 21);
    let both = told(&[(1, "of the first attempt"), (2, "of the second")]);
    assert_eq!(found(&mut other, 1, 1..3).unwrap(), both);
    let question = PoolQuestion { fingerprint: 1, from: 0, wanted: 9 };
    assert_eq!(other.pool(&task(1), &[question], true).unwrap().answers[0].given, 1);
}

#[test]
fn more_rows_than_memory_holds_are_found_by_many_at_once() {
    let world = World::with(|config, _| config.memory_bytes = 4 << 20);
    let mut worker = world.worker();
    // 64 MiB of other partitions' logs.
    let (logs, keys) = (4_u64, 16_384);
    let value = |log: u64| format!("{log}").repeat(1_024);
    for log in 0..logs {
        let opened = open(&mut worker, &task(u32::try_from(log).unwrap() + 10), 120, log);
        for keys in (0..16).map(|part| log * keys + part * 1_024..log * keys + (part + 1) * 1_024) {
            append(&mut worker, opened.session, &rows(keys, &value(log))).unwrap();
        }
        close(&mut worker, opened.session);
    }
    std::thread::scope(|scope| {
        for partition in 0..4_u32 {
            let (world, value) = (&world, &value);
            scope.spawn(move || {
                let mut worker = world.worker();
                assert!(
                    open(&mut worker, &task(partition), 102, 50 + u64::from(partition))
                        .recording
                        .layout_changed
                );
                let asked = (0..logs * keys).filter(|key| key % 4 == u64::from(partition)).step_by(37);
                let found = found(&mut worker, partition, asked.clone()).unwrap();
                assert_eq!(found.len(), asked.clone().count());
                assert!(asked.zip(found).all(|(key, row)| row == (key, value(key / keys))));
            });
        }
    });
}

#[test]
fn more_logs_than_one_answer_has_are_told_of_page_by_page() {
    let world = World::new();
    let mut worker = world.worker();
    let logs: u32 = 10_000;
    for partition in 0..logs {
        let opened = open(&mut worker, &task(partition), 100 + logs, u64::from(partition));
        append(&mut worker, opened.session, &rows(partition.into()..u64::from(partition) + 1, "x")).unwrap();
        close(&mut worker, opened.session);
    }
    let opened = open(&mut worker, &task(0), 102, u64::from(logs));
    assert!(opened.recording.layout_changed);
    let found = found(&mut worker, 0, 0..logs.into()).unwrap();
    assert_eq!(found.iter().map(|(key, _)| *key).collect::<Vec<_>>(), (1..logs.into()).collect::<Vec<_>>());
    // Who asks for what is behind a log that nobody knows is not told that there is no more.
    let (code, after) = (Code { fingerprint: 1, python: 1 }, Some(task(logs + 1)));
    let layout = Layout { app: APP, stage: 1, tasks: Some(2), code, plan: None, borders: Borders::UNKNOWN };
    let told = Peer::of(&world, world.driver.addr()).ask(&Request::PoolOf {
        task: task(0),
        layout,
        after,
        waits: false,
    });
    assert!(matches!(told, Reply::Failed(Error::Misuse { .. })), "{told:?}");
}

#[test]
fn rows_of_an_application_that_is_gone_are_found_in_its_checkpoint() {
    let world = World::with(|config, folder| {
        config.checkpoint_dir = Some(folder.path().join("checkpoint").display().to_string());
    });
    let mut worker = world.worker();
    for partition in 0..4_u64 {
        let opened = open(&mut worker, &task(u32::try_from(partition).unwrap()), 104, partition);
        append(&mut worker, opened.session, &rows(partition..partition + 1, "before")).unwrap();
    }
    let (driver, config) = restarted(&world);
    driver.stop();
    let (driver, config) = start_driver(config, world.folder.path().join("third.sock"));
    let mut worker = Client::connect(&config, driver.socket()).unwrap();
    assert!(worker.open(opening_of(APP + 2, 0, 102)).unwrap().recording.layout_changed);
    let others = told(&[(1, "before"), (2, "before"), (3, "before")]);
    assert_eq!(found(&mut worker, 0, 0..4).unwrap(), others);
}

#[test]
fn rows_for_which_the_disk_has_no_room_do_not_keep_logs_from_it() {
    const MIB: u64 = 1 << 20;
    let world = World::with(|config, _| {
        (config.memory_bytes, config.disk_bytes) = (2 * MIB, 8 * MIB);
        config.io_timeout_ms = 1_000;
    });
    let mut worker = world.worker();
    // 6 MiB, of which 4 are on disk already.
    for log in 0..3_u32 {
        let opened = open(&mut worker, &task(log + 10), 120, log.into());
        for part in 0..2 {
            let keys = u64::from(2 * log + part) * 1_024;
            append(&mut worker, opened.session, &block(keys..keys + 1_024, 1_024)).unwrap();
        }
        close(&mut worker, opened.session);
    }
    let asking = open(&mut worker, &task(0), 102, 50);
    let refused = found(&mut worker, 0, 0..10).unwrap_err();
    assert_eq!(refused.condition(), "DISK_BUDGET");
    fail(&mut worker, asking.session);
    let mut other = world.worker();
    let opened = open(&mut other, &task(30), 120, 60);
    for part in 0..3 {
        append(&mut other, opened.session, &block(part * 1_000..part * 1_000 + 1_000, 1_000)).unwrap();
    }
}

/// An open task that asks for rows of others, one step at a time.
pub struct Asking {
    connection: Connection,
    session: u64,
}

impl Asking {
    pub fn of(world: &World, stage: u32) -> Self {
        let mut connection =
            Connection::unix(world.driver.socket(), &world.config.secret, Duration::from_secs(20)).unwrap();
        connection.write(&Request::Open(opening(&task(0), stage, 900 + u64::from(stage)))).unwrap();
        let Reply::Opened { session, .. } = connection.read().unwrap() else { panic!("not opened") };
        Self { connection, session }
    }

    pub fn step(&mut self) -> Reply {
        let questions = PoolQuestions::new(&[PoolQuestion { fingerprint: 1, from: 0, wanted: 1 }]);
        let pool = Request::Pool { session: self.session, questions, checks_ambiguity: false };
        self.connection.write(&pool).unwrap();
        self.connection.read().unwrap()
    }

    pub fn all(&mut self) -> Reply {
        let began = Instant::now();
        loop {
            match self.step() {
                Reply::NotYet => assert!(began.elapsed() < Duration::from_secs(60), "it waits for ever"),
                reply => return reply,
            }
        }
    }
}

#[test]
fn a_log_that_has_moved_since_the_registry_told_of_it_is_not_lost() {
    let world = World::with(|config, _| config.sharing_depth = 0);
    let one = world.executor("one");
    let mut worker = world.worker_of(&one);
    let recorded = open(&mut worker, &task(9), 110, 1);
    append(&mut worker, recorded.session, &rows(1..2, "recorded")).unwrap();
    close(&mut worker, recorded.session);
    let mut asking = Asking::of(&world, 102);
    assert!(matches!(asking.step(), Reply::NotYet));
    // Its executor is let go, as nobody needs it: what it holds is elsewhere before it ends.
    let stays = world.executor("stays");
    let listed = |names: &[&str]| {
        world.driver.executors_are(names.iter().map(|name| (*name).to_owned()).collect()).unwrap();
    };
    listed(&["one", "stays"]);
    listed(&["stays"]);
    let read = Request::Read { task: task(9), from: LogOffset::START, whole: true, newest: None };
    eventually("it is copied", || {
        let reply = Peer::of(&world, stays.addr()).ask(&read);
        matches!(reply, Reply::Blocks(blocks) if !blocks.is_empty()) && !one.is_needed()
    });
    one.stop();
    let answer = asking.all();
    let Reply::Pool(found) = answer else { panic!("{answer:?}") };
    assert_eq!(found.answers[0].given, 1);
}

#[test]
fn a_holder_that_does_not_answer_is_waited_for_once() {
    let world = World::with(|config, _| config.sharing_depth = 1);
    let (p, q) = (world.process("p"), world.process("q"));
    let mut worker = Client::connect(&world.config, &p.socket).unwrap();
    for partition in 9..17_u32 {
        let recorded = open(&mut worker, &task(partition), 110, partition.into());
        append(&mut worker, recorded.session, &rows(1..2, "recorded")).unwrap();
        close(&mut worker, recorded.session);
    }
    let mut took = Vec::new();
    for (stage, holder) in [(102, &p), (103, &q)] {
        let mut asking = Asking::of(&world, stage);
        holder.signal("-STOP");
        let began = Instant::now();
        let answer = asking.all();
        took.push(began.elapsed());
        holder.signal("-CONT");
        let Reply::Pool(found) = answer else { panic!("{answer:?}, {took:?}") };
        assert_eq!(found.answers[0].given, 1);
        assert!(took.iter().all(|took| *took < Duration::from_secs(8)), "{took:?}");
        // Who was asked in vain for long is dead.
        if took.last().is_some_and(|took| *took > Duration::from_secs(2)) {
            break;
        }
    }
}

/// What the new layout adds to a log while another agent reads it is no row of the old one.
#[test]
fn what_is_added_to_a_log_since_the_registry_told_of_it_is_not_of_another_layout() {
    let world = World::new();
    let one = world.executor("one");
    let mut worker = world.worker_of(&one);
    let recorded = open(&mut worker, &task(9), 110, 1);
    append(&mut worker, recorded.session, &rows(5..6, "recorded")).unwrap();
    close(&mut worker, recorded.session);
    let mut asking = Asking::of(&world, 102);
    // The list of logs is asked for in the first step, and the first is read in the second.
    assert!(matches!(asking.step(), Reply::NotYet));
    let again = open(&mut worker, &task(9), 102, 2);
    assert_eq!(again.prior, [rows(5..6, "recorded")]);
    append(&mut worker, again.session, &rows(1..2, "by the new layout")).unwrap();
    let answer = asking.all();
    let Reply::Pool(found) = answer else { panic!("{answer:?}") };
    assert_eq!((found.answers[0].given, found.count), (0, 1), "one row was recorded by the old one");
}

/// The same of what is read from the checkpoint folder, as nobody else has it.
#[test]
fn what_is_added_to_a_log_in_the_folder_is_not_of_another_layout_either() {
    let world = World::with(|config, folder| {
        config.sharing_depth = 0;
        config.checkpoint_dir = Some(folder.path().join("checkpoint").display().to_string());
    });
    let one = world.process("one");
    let mut worker = Client::connect(&world.config, &one.socket).unwrap();
    let recorded = open(&mut worker, &task(9), 110, 1);
    append(&mut worker, recorded.session, &rows(5..6, "recorded")).unwrap();
    close(&mut worker, recorded.session);
    let mut asking = Asking::of(&world, 102);
    assert!(matches!(asking.step(), Reply::NotYet));
    one.kill();
    let mut worker = world.worker();
    let mut again = None;
    eventually("the dead are known", || {
        again = worker.open(opening(&task(9), 102, 2)).ok();
        again.is_some()
    });
    let again = again.unwrap();
    assert_eq!(again.prior, [rows(5..6, "recorded")]);
    append(&mut worker, again.session, &rows(1..2, "by the new layout")).unwrap();
    let answer = asking.all();
    let Reply::Pool(found) = answer else { panic!("{answer:?}") };
    assert_eq!((found.answers[0].given, found.count), (0, 1), "one row was recorded by the old one");
}

/// Whose grant was never heard of takes nothing over, and is not waited for.
#[test]
fn a_log_is_read_though_somebody_was_granted_it_who_never_opens_it() {
    let world = World::new();
    let (one, other) = (world.executor("one"), world.executor("other"));
    let mut worker = world.worker_of(&one);
    let recorded = open(&mut worker, &task(9), 110, 1);
    append(&mut worker, recorded.session, &rows(1..2, "recorded")).unwrap();
    close(&mut worker, recorded.session);
    let sent = Sent { by: world.id_of(&other), number: 0 };
    let grant = Request::Grant { open: opening(&task(9), 102, 2), sent, commits_seen: 0 };
    let granted = Peer::of(&world, world.driver.addr()).ask(&grant);
    let Reply::Granted(grant) = granted else { panic!("{granted:?}") };
    let fence = Request::Fence { task: task(9), fence: fence_of(grant.generation) };
    for holder in &grant.holders {
        Peer::of(&world, &holder.addr).ask(&fence);
    }
    let answer = Asking::of(&world, 102).all();
    let Reply::Pool(found) = answer else { panic!("{answer:?}") };
    assert_eq!(found.answers[0].given, 1);
}
