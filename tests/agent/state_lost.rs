//! Agents that hold state are killed, paused, cut off or come late: as many losses at a time as `standbys` says cost
//! nothing, and more are told.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use clonos::agent::protocol::{OpenTask, Request, StateFigures};
use clonos::agent::state::asking::{Done, ToRegistry};
use clonos::config::SessionConfig;
use clonos::edge::agent::{Agent, AgentConfig, Role};
use clonos::edge::net::client::Client;
use clonos::id::{Epoch, Generation};
use clonos::state::Version;

use crate::states::{Counting, all_are, condition, count_all, counters, in_partition};
use crate::world::{AgentProcess, World, eventually, open, opening, task, task_in, text};

fn worker_of(world: &World, agent: &AgentProcess) -> Client {
    Client::connect(&world.config, &agent.socket).unwrap()
}

pub fn figures(world: &World) -> StateFigures {
    world.driver.stats().unwrap().states.into_iter().next().unwrap_or_default()
}

/// Waits until every range has so many copies, and nobody makes another.
fn has_copies(world: &World, copies: u32) {
    eventually("all ranges have their copies", || {
        let figures = figures(world);
        figures.copies == copies && figures.joining == 0
    });
}

#[test]
fn a_killed_holders_ranges_are_served_by_its_standby_at_once() {
    let world = World::new();
    let (victim, _other) = (world.process("victim"), world.process("other"));
    let mut worker = world.worker();
    count_all(&mut worker, 0, 4, 0..500).unwrap();
    // The version is known to holders that take deltas of the next epoch.
    count_all(&mut worker, 1, 4, 0..500).unwrap();
    victim.kill();
    let began = Instant::now();
    assert_eq!(counters(&mut worker, 2, 4, 0..500).unwrap(), all_are(0..500, 2));
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
}

#[test]
fn deaths_one_after_the_other_are_survived_while_there_is_time_between_them() {
    let world = World::new();
    let mut agents: Vec<AgentProcess> = (0..4).map(|number| world.process(&format!("e{number}"))).collect();
    let mut worker = world.worker();
    let mut epoch = 0;
    while let Some(victim) = agents.pop() {
        for _ in 0..2 {
            assert_eq!(
                counters(&mut worker, epoch, 3, 0..300).unwrap(),
                all_are(0..if epoch == 0 { 0 } else { 300 }, epoch)
            );
            count_all(&mut worker, epoch, 3, 0..300).unwrap();
            epoch += 1;
        }
        has_copies(&world, 2);
        victim.kill();
        // Writing needs all holders, so the dead one is found out.
        count_all(&mut worker, epoch, 3, 0..300).unwrap();
        epoch += 1;
    }
    assert_eq!(counters(&mut worker, epoch, 3, 0..300).unwrap(), all_are(0..300, epoch));
    assert!(figures(&world).promoted > 0);
}

#[test]
fn state_that_nobody_holds_any_more_is_lost_and_never_empty() {
    let world = World::with(|config, _| config.standbys = 0);
    let victim = world.process("victim");
    let mut worker = world.worker();
    count_all(&mut worker, 0, 2, 0..100).unwrap();
    count_all(&mut worker, 1, 2, 0..100).unwrap();
    victim.kill();
    for _ in 0..2 {
        let lost = (|| {
            let task = Counting::begin(&mut worker, 2, 0, 2)?;
            task.read(&mut worker, &in_partition(0..100, 0, 2))
        })();
        let error = lost.unwrap_err();
        assert_eq!(error.condition(), "STATE_LOST");
        assert!(
            error.to_string().contains("standbys=0") && error.to_string().contains("checkpoint_dir"),
            "{error}"
        );
    }
}

#[test]
fn what_a_delta_depends_on_is_found_wherever_the_delta_is() {
    let world = World::new();
    let (victim, _other) = (world.process("victim"), world.process("other"));
    let mut worker = worker_of(&world, &victim);
    // Its determinants would travel in its frames, and nobody has any yet.
    let task = task_in(Epoch::Batch(0), 0);
    let opened = worker.open(OpenTask { inside: true, ..opening(&task, 101, 1) }).unwrap();
    let kept = worker.start(&Request::Keep { session: opened.session, block: text("a call") }).unwrap();
    worker.wait(kept).unwrap();
    let counting = Counting::begin_in(&mut worker, opened.session, 0, (0, 1)).unwrap();
    counting.count(&mut worker, 0..100).unwrap();
    victim.kill();
    let again = open(&mut world.worker(), &task, 101, 2);
    assert_eq!((again.prior, again.lost), (vec![text("a call")], false));
}

#[test]
fn an_agent_that_leaves_gives_what_only_it_has_to_others_first() {
    let world = World::with(|config, _| config.standbys = 0);
    let (leaving, _other) = (world.executor("leaving"), world.executor("other"));
    let mut worker = world.worker();
    count_all(&mut worker, 0, 2, 0..300).unwrap();
    count_all(&mut worker, 1, 2, 0..300).unwrap();
    assert!(leaving.is_needed());
    eventually("others have what it had", || !leaving.is_needed());
    leaving.stop();
    assert_eq!(counters(&mut worker, 2, 2, 0..300).unwrap(), all_are(0..300, 2));
}

#[test]
fn ranges_move_to_agents_that_come_while_epochs_go_on_and_none_is_lost() {
    for standbys in [0, 1] {
        let world = World::with(|config, _| config.standbys = standbys);
        let mut agents = vec![world.executor("e0")];
        let mut worker = world.worker();
        for epoch in 0..60 {
            if epoch % 12 == 6 {
                agents.push(world.executor(&format!("e{epoch}")));
            }
            count_all(&mut worker, epoch, 3, 0..300).unwrap();
            std::thread::sleep(Duration::from_millis(60));
        }
        has_copies(&world, standbys + 1);
        assert_eq!(counters(&mut worker, 60, 2, 0..300).unwrap(), all_are(0..300, 60));
        let holding = world.driver.stats().unwrap().agents;
        let holding =
            holding.iter().filter(|agent| agent.state_bytes > 0 && agent.addr != world.driver.addr());
        assert!(holding.count() >= 4, "they are spread");
    }
}

#[test]
fn an_agent_that_comes_later_takes_its_part_while_epochs_go_on() {
    let world = World::new();
    let first = world.process("first");
    let mut worker = world.worker();
    let task = Counting::begin(&mut worker, 0, 0, 1).unwrap();
    let large = task.delta(&all_are(0..2_000, 1), 4_000);
    task.write_delta(&mut worker, &large).unwrap();
    count_all(&mut worker, 1, 2, 0..2_000).unwrap();
    let late = world.process("late");
    for epoch in 2..6 {
        count_all(&mut worker, epoch, 2, 0..2_000).unwrap();
    }
    eventually("the later one holds ranges", || {
        let agents = world.driver.stats().unwrap().agents;
        agents.iter().filter(|agent| agent.state_bytes > 0).count() >= 2 && figures(&world).joining == 0
    });
    has_copies(&world, 2);
    first.kill();
    let mut on_late = worker_of(&world, &late);
    assert_eq!(counters(&mut on_late, 6, 3, 0..2_000).unwrap(), all_are(0..2_000, 6));
    count_all(&mut on_late, 6, 3, 0..2_000).unwrap();
    assert_eq!(counters(&mut on_late, 7, 3, 0..2_000).unwrap(), all_are(0..2_000, 7));
}

#[test]
fn a_holder_that_pauses_delays_nobody_for_ever_and_takes_nothing_back() {
    let world = World::with(|config, _| config.io_timeout_ms = 1_500);
    let (paused, _other) = (world.process("paused"), world.process("other"));
    let mut worker = world.worker();
    count_all(&mut worker, 0, 2, 0..200).unwrap();
    count_all(&mut worker, 1, 2, 0..200).unwrap();
    paused.signal("-STOP");
    let began = Instant::now();
    assert_eq!(counters(&mut worker, 2, 2, 0..200).unwrap(), all_are(0..200, 2));
    assert!(began.elapsed() < Duration::from_secs(3), "a standby answers: {:?}", began.elapsed());
    count_all(&mut worker, 2, 2, 0..200).unwrap();
    count_all(&mut worker, 3, 2, 0..200).unwrap();
    paused.signal("-CONT");
    for epoch in 4..6 {
        assert_eq!(counters(&mut worker, epoch, 2, 0..200).unwrap(), all_are(0..200, epoch));
        count_all(&mut worker, epoch, 2, 0..200).unwrap();
    }
}

#[test]
fn what_the_first_epoch_decided_and_nobody_has_any_more_is_decided_again() {
    let world = World::with(|config, _| config.standbys = 0);
    let victim = world.process("victim");
    let mut worker = world.worker();
    count_all(&mut worker, 0, 2, 0..100).unwrap();
    victim.kill();
    std::thread::sleep(Duration::from_millis(4_500));
    // It is run again, as Spark does when something of it is gone.
    for _ in 0..2 {
        count_all(&mut worker, 0, 2, 0..100).unwrap();
    }
    assert_eq!(counters(&mut worker, 1, 2, 0..100).unwrap(), all_are(0..100, 1));
}

/// Makes zeros of all that an agent has spilled to a folder, whether or not the files still have names.
fn spoil(folder: &Path) {
    for entry in std::fs::read_dir("/proc/self/fd").unwrap() {
        let entry = entry.unwrap().path();
        if std::fs::read_link(&entry).is_ok_and(|target| target.starts_with(folder)) {
            let file = std::fs::OpenOptions::new().write(true).open(&entry).unwrap();
            let zeros = vec![0; file.metadata().unwrap().len() as usize];
            file.write_all_at(&zeros, 0).unwrap();
        }
    }
}

#[test]
fn where_a_holder_cannot_read_what_it_has_another_one_is_asked() {
    let world = World::with(|config, _| config.memory_bytes = 1 << 20);
    let spill = world.folder.path().join("spoilt");
    let session = SessionConfig { spill_dir: Some(spill.display().to_string()), ..world.config.clone() };
    let (role, socket) = (Role::Executor { id: "one".into() }, world.folder.path().join("one.sock"));
    let one = Agent::start(AgentConfig { session, role, socket }).unwrap();
    let _two = world.executor("two");
    let mut worker = world.worker_of(&one);
    let task = Counting::begin(&mut worker, 0, 0, 1).unwrap();
    task.write_delta(&mut worker, &task.delta(&all_are(0..3_000, 1), 1_000)).unwrap();
    count_all(&mut worker, 1, 2, 0..10).unwrap();
    spoil(&spill);
    let mut expected = all_are(0..3_000, 1);
    expected.extend(all_are(0..10, 2));
    assert_eq!(counters(&mut worker, 2, 2, 0..3_000).unwrap(), expected);
}

/// Forwards to the driver; the answers to the first requests of a kind are lost, `count` of them.
fn loses_answers(driver: String, count: usize) -> String {
    let done = ToRegistry::Done(Done {
        task: task(0),
        generation: Generation(1),
        partition: 0,
        partitions: 1,
        life: 1,
        base: Version::NONE,
        fingerprint: 0,
        bytes: 0,
        catalog: None,
        due_ms: None,
        held: Vec::new(),
        silent: Vec::new(),
    });
    let kind = postcard::to_allocvec(&Request::StateRegistry(Box::new(done))).unwrap()[..2].to_vec();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    let lost = Arc::new(AtomicUsize::new(0));
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (mut client, mut server) = (client.unwrap(), TcpStream::connect(&driver).unwrap());
            let (mut back, mut answers) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            let (lost, kind) = (Arc::clone(&lost), kind.clone());
            std::thread::spawn(move || {
                let mut buffer = vec![0; 1 << 16];
                while let Ok(read @ 1..) = client.read(&mut buffer) {
                    let is_meant = read > 6 && buffer[4..6] == kind[..];
                    if server.write_all(&buffer[..read]).is_err() {
                        break;
                    }
                    if is_meant && lost.fetch_add(1, Ordering::SeqCst) < count {
                        std::thread::sleep(Duration::from_millis(200));
                        client.shutdown(Shutdown::Both).ok();
                        break;
                    }
                }
                server.shutdown(Shutdown::Both).ok();
            });
            std::thread::spawn(move || {
                let mut buffer = vec![0; 1 << 16];
                let mut held = Vec::new();
                while let Ok(read @ 1..) = answers.read(&mut buffer) {
                    held.extend_from_slice(&buffer[..read]);
                    if back.write_all(&held).is_err() {
                        break;
                    }
                    held.clear();
                }
                back.shutdown(Shutdown::Both).ok();
            });
        }
    });
    addr
}

#[test]
fn an_answer_that_is_lost_costs_an_attempt_and_decides_nothing_twice() {
    let world = World::new();
    let mut config = world.config.clone();
    config.driver_addr = loses_answers(world.driver.addr().to_owned(), 6);
    let socket = world.folder.path().join("b.sock");
    let role = Role::Executor { id: "b".into() };
    let agent = Agent::start(AgentConfig { session: config, role, socket }).unwrap();
    for epoch in 0..4 {
        for partition in 0..2 {
            let mut tries = 0;
            loop {
                let mut worker = world.worker_of(&agent);
                let counted = Counting::begin(&mut worker, epoch, partition, 2)
                    .and_then(|task| task.count(&mut worker, 0..100));
                tries += 1;
                assert!(tries < 20, "{counted:?}");
                if counted.is_ok() {
                    break;
                }
            }
        }
    }
    assert_eq!(counters(&mut world.worker(), 4, 3, 0..100).unwrap(), all_are(0..100, 4));
}

#[test]
fn an_attempt_left_behind_in_an_epoch_that_is_over_reads_and_decides_nothing() {
    let world = World::new();
    let mut worker = world.worker();
    let mut late = world.worker();
    count_all(&mut worker, 0, 1, 0..50).unwrap();
    let left = Counting::begin(&mut late, 0, 0, 1).unwrap();
    count_all(&mut worker, 1, 1, 0..50).unwrap();
    count_all(&mut worker, 2, 1, 0..50).unwrap();
    assert_eq!(condition(left.write(&mut late, &all_are(0..50, 99))), "FENCED");
    // One that begins only now.
    assert_eq!(condition(Counting::begin(&mut late, 0, 0, 1)), "FENCED");
    assert_eq!(counters(&mut worker, 3, 1, 0..50).unwrap(), all_are(0..50, 3));
}
