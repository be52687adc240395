//! Guarantee 1 and 7: what was acknowledged survives as many losses of agents as the user asked for, and
//! what did not survive is said to be lost, never replaced by silence.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clonos::config::SessionConfig;
use clonos::edge::agent::{Agent, AgentConfig, Role};
use clonos::edge::net::client::Client;
use clonos::error::Error;
use clonos::id::{Epoch, Partition, TaskId};

use crate::world::{World, append, close, eventually, numbered, open, opening, task, text};

#[test]
fn a_killed_agents_logs_are_read_elsewhere() {
    let world = World::new();
    let survivor = world.executor("survivor");
    for partition in 0..6 {
        let victim = world.process(&format!("victim-{partition}"));
        let mut worker = Client::connect(&world.config, &victim.socket).unwrap();
        let opened = open(&mut worker, &task(partition), 1, u64::from(partition));
        let blocks: Vec<_> = (0..20).map(|n| numbered(n, 10_000)).collect();
        for block in &blocks {
            append(&mut worker, opened.session, block).unwrap();
        }
        victim.kill();
        assert!(append(&mut worker, opened.session, &text("late")).is_err());
        let began = Instant::now();
        let again = open(&mut world.worker_of(&survivor), &task(partition), 1, 100 + u64::from(partition));
        assert!(again.prior == blocks, "partition {partition}: everything acknowledged is there");
        assert!(!again.lost);
        assert!(began.elapsed() < Duration::from_secs(1), "a dead holder is noticed at once");
    }
}

#[test]
fn killed_while_it_publishes_nothing_acknowledged_is_missing() {
    let world = World::new();
    let survivor = world.executor("survivor");
    let victim = world.process("victim");
    let (config, socket) = (world.config.clone(), victim.socket.clone());
    let publisher = std::thread::spawn(move || {
        let mut worker = Client::connect(&config, &socket).unwrap();
        let opened = open(&mut worker, &task(0), 1, 1);
        let mut acknowledged = 0;
        while append(&mut worker, opened.session, &numbered(acknowledged, 500)).is_ok() {
            acknowledged += 1;
        }
        acknowledged
    });
    std::thread::sleep(Duration::from_millis(300));
    victim.kill();
    let acknowledged = usize::try_from(publisher.join().unwrap()).unwrap();
    assert!(acknowledged > 10);
    let again = open(&mut world.worker_of(&survivor), &task(0), 1, 2);
    assert!(again.prior.len() >= acknowledged, "{} of {acknowledged}", again.prior.len());
    for (number, block) in again.prior.iter().enumerate() {
        assert_eq!(*block, numbered(number as u64, 500));
    }
}

#[test]
fn a_dead_peer_is_replaced_and_its_successor_has_the_whole_log() {
    let world = World::new();
    let own = world.process("own");
    let mut worker = Client::connect(&world.config, &own.socket).unwrap();
    // The only other executor is every task's first peer; the driver is next in line.
    let peer = world.process("peer");
    let opened = open(&mut worker, &task(0), 1, 1);
    for number in 0..10 {
        append(&mut worker, opened.session, &numbered(number, 2_000)).unwrap();
    }
    peer.kill();
    for number in 10..20 {
        append(&mut worker, opened.session, &numbered(number, 2_000)).unwrap();
    }
    own.kill();
    let again = open(&mut world.worker(), &task(0), 1, 2);
    assert!(!again.lost);
    assert!(again.prior == (0..20).map(|n| numbered(n, 2_000)).collect::<Vec<_>>());
}

#[test]
fn failures_one_after_the_other_are_survived() {
    let world = World::new();
    let mut blocks = Vec::new();
    let mut now = world.process("0");
    for round in 1..6_u64 {
        let next = world.process(&round.to_string());
        let mut worker = Client::connect(&world.config, &now.socket).unwrap();
        let opened = open(&mut worker, &task(0), 1, round);
        assert!(opened.prior == blocks && !opened.lost, "round {round}");
        for number in 0..5 {
            let block = numbered(100 * round + number, 3_000);
            append(&mut worker, opened.session, &block).unwrap();
            blocks.push(block);
        }
        now.kill();
        now = next;
    }
}

#[test]
fn what_nobody_holds_any_more_is_lost_and_stays_lost() {
    let world = World::with(|config, _| config.sharing_depth = 0);
    let victim = world.process("victim");
    let mut worker = Client::connect(&world.config, &victim.socket).unwrap();
    let opened = open(&mut worker, &task(0), 1, 1);
    append(&mut worker, opened.session, &text("only here")).unwrap();
    let unpublished = open(&mut worker, &task(1), 1, 1);
    assert!(!unpublished.lost);
    victim.kill();
    // Each attempt is told, not only the first: nothing was published since.
    for attempt in 2..4 {
        let mut other = world.worker();
        let again = open(&mut other, &task(0), 1, attempt);
        assert!(again.lost && again.prior.is_empty(), "attempt {attempt}");
        close(&mut other, again.session);
    }
    let other = open(&mut world.worker(), &task(1), 1, 9);
    assert!(!other.lost, "nothing was published: nothing is lost");
    // Who goes on live begins a new log.
    let mut live = world.worker();
    let session = open(&mut live, &task(0), 1, 10);
    append(&mut live, session.session, &text("anew")).unwrap();
    let again = open(&mut world.worker(), &task(0), 1, 11);
    assert_eq!((again.prior, again.lost), (vec![text("anew")], false));
    assert!(world.driver.stats().unwrap().totals.lost >= 1);
}

#[test]
fn a_lost_log_does_not_lock_out_copies_of_its_stage() {
    let world = World::with(|config, _| config.sharing_depth = 0);
    let victim = world.process("victim");
    let mut worker = Client::connect(&world.config, &victim.socket).unwrap();
    let opened = open(&mut worker, &task(0), 1, 1);
    append(&mut worker, opened.session, &text("gone soon")).unwrap();
    victim.kill();
    let (mut one, mut two) = (world.worker(), world.worker());
    let first = open(&mut one, &task(0), 2, 2);
    let began = Instant::now();
    let second = open(&mut two, &task(0), 2, 3);
    assert!(first.lost && second.lost);
    assert!(began.elapsed() < Duration::from_secs(2), "a copy of the same stage does not wait");
}

#[test]
fn a_copy_outlives_late_word_of_the_commit_before_it() {
    let world = World::new();
    let survivor = world.executor("survivor");
    let daily = TaskId { epoch: Epoch::Named("daily".into()), ..task(0) };
    for round in 0..3_u64 {
        let victim = world.process(&round.to_string());
        let mut worker = Client::connect(&world.config, &victim.socket).unwrap();
        let first = open(&mut worker, &daily, 1, 10 * round);
        append(&mut worker, first.session, &numbered(round, 100)).unwrap();
        close(&mut worker, first.session);
        world.driver.commit_epoch("q", &daily.epoch).unwrap();
        // At once: the survivor holds this copy before it hears of the commit.
        let second = open(&mut worker, &daily, 1, 10 * round + 1);
        append(&mut worker, second.session, &numbered(100 + round, 100)).unwrap();
        std::thread::sleep(Duration::from_millis(1_200));
        victim.kill();
        let again = open(&mut world.worker_of(&survivor), &daily, 1, 10 * round + 2);
        assert!(!again.lost, "round {round}");
        assert_eq!(again.prior, [numbered(100 + round, 100)], "round {round}");
        world.driver.commit_epoch("q", &daily.epoch).unwrap();
    }
}

#[test]
fn depth_two_survives_two_at_once() {
    let world = World::with(|config, _| config.sharing_depth = 2);
    let agents: Vec<_> = (0..3).map(|n| world.process(&n.to_string())).collect();
    let survivor = world.executor("survivor");
    let mut worker = Client::connect(&world.config, &agents[0].socket).unwrap();
    for partition in 0..8 {
        let opened = open(&mut worker, &task(partition), 1, u64::from(partition));
        append(&mut worker, opened.session, &numbered(partition.into(), 4_000)).unwrap();
        close(&mut worker, opened.session);
    }
    let mut agents = agents.into_iter();
    agents.next().unwrap().kill();
    agents.next().unwrap().kill();
    let mut other = world.worker_of(&survivor);
    for partition in 0..8 {
        let again = open(&mut other, &task(partition), 1, 100 + u64::from(partition));
        assert_eq!(again.prior, [numbered(partition.into(), 4_000)]);
    }
}

#[test]
fn many_workers_at_once_on_several_agents() {
    let world = World::new();
    let agents: Vec<_> = (0..3).map(|n| world.executor(&n.to_string())).collect();
    std::thread::scope(|scope| {
        for (at, agent) in agents.iter().enumerate() {
            for worker in 0..4 {
                let world = &world;
                scope.spawn(move || {
                    let mut client = world.worker_of(agent);
                    let number = u32::try_from(4 * at + worker).unwrap();
                    for round in 0..10_u32 {
                        let task = task(number + 100 * round);
                        let opened = open(&mut client, &task, 1, u64::from(number));
                        for block in 0..10 {
                            append(&mut client, opened.session, &numbered(block, 1_000)).unwrap();
                        }
                        close(&mut client, opened.session);
                    }
                });
            }
        }
    });
    let stats = world.driver.stats().unwrap();
    assert_eq!(stats.tasks.len(), 120);
    assert!(stats.tasks.iter().all(|task| task.bytes == 10_000 && task.holders.len() == 2));
}

#[test]
fn logs_that_began_with_too_few_agents_get_their_copies_when_more_come() {
    let world = World::with(|config, _| config.sharing_depth = 2);
    let first = world.executor("first");
    let mut worker = world.worker_of(&first);
    let [goes_on, ends] =
        [0, 1].map(|partition| open(&mut worker, &task(partition), 1, partition.into()).session);
    for session in [goes_on, ends] {
        append(&mut worker, session, &text("before")).unwrap();
    }
    close(&mut worker, ends);
    let holders = |partition: usize| world.driver.stats().unwrap().tasks[partition].holders.len();
    assert_eq!([holders(0), holders(1)], [2, 2]);
    let _second = world.executor("second");
    eventually("another copy of the log that is over", || holders(1) == 3);
    assert_eq!(holders(0), 2, "who writes to it sees to that");
    // With it the agent hears who has come.
    open(&mut worker, &task(2), 1, 2);
    append(&mut worker, goes_on, &text("after")).unwrap();
    assert_eq!(holders(0), 3);
}

#[test]
fn stopping_is_quick_clean_and_twice_harmless() {
    let world = World::new();
    let executor = world.executor("executor");
    let mut worker = world.worker_of(&executor);
    let opened = open(&mut worker, &task(0), 1, 1);
    append(&mut worker, opened.session, &text("a")).unwrap();
    let began = Instant::now();
    executor.stop();
    executor.stop();
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    assert!(!executor.socket().exists());
    let late = append(&mut worker, opened.session, &text("b")).unwrap_err();
    assert_eq!(late.condition(), "AGENT_UNREACHABLE");
    let refused = Client::connect(&world.config, executor.socket()).unwrap_err();
    assert!(refused.is_retryable(), "{refused}");
}

#[test]
fn stopping_does_not_need_the_sockets_file() {
    let world = World::new();
    let executor = world.executor("executor");
    std::fs::remove_file(executor.socket()).unwrap();
    let (done, stopped) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        executor.stop();
        // Nobody listens any more if it took too long.
        let _ = done.send(());
    });
    stopped.recv_timeout(Duration::from_secs(5)).expect("stopped without its socket's file");
}

#[test]
fn an_executor_without_its_driver_notices() {
    let world = World::new();
    let executor = world.executor("executor");
    world.driver.stop();
    let mut worker = world.worker_of(&executor);
    let refused = worker.open(opening(&task(0), 1, 1)).unwrap_err();
    assert!(matches!(refused, Error::AgentUnreachable { .. } | Error::Timeout { .. }), "{refused}");
    eventually("the driver says that it ends", || executor.driver_gone());
}

/// The driver's agent behind a line that can be cut: where it is reached.
fn behind_a_line(driver: &str) -> (String, Arc<AtomicBool>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (addr, driver) = (listener.local_addr().unwrap().to_string(), driver.to_owned());
    let cut = Arc::new(AtomicBool::new(false));
    let is_cut = Arc::clone(&cut);
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let there = TcpStream::connect(&driver).unwrap();
            for (from, to) in [(&stream, &there), (&there, &stream)] {
                let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                let is_cut = Arc::clone(&is_cut);
                std::thread::spawn(move || {
                    let mut bytes = [0; 4096];
                    while let Ok(read @ 1..) = from.read(&mut bytes) {
                        // What is lost on the way is not answered.
                        if !is_cut.load(Ordering::Relaxed) && to.write_all(&bytes[..read]).is_err() {
                            break;
                        }
                    }
                });
            }
        }
    });
    (addr, cut)
}

#[test]
fn an_agent_bears_the_silence_of_its_driver_for_as_long_as_spark_does() {
    let world = World::with(|config, _| {
        (config.io_timeout_ms, config.network_timeout_ms) = (500, 3_000);
    });
    let (driver_addr, cut) = behind_a_line(world.driver.addr());
    let session = SessionConfig { driver_addr, ..world.config.clone() };
    let socket = world.folder.path().join("cut off.sock");
    let executor =
        Agent::start(AgentConfig { session, role: Role::Executor { id: String::new() }, socket }).unwrap();
    cut.store(true, Ordering::Relaxed);
    std::thread::sleep(Duration::from_millis(1_500));
    cut.store(false, Ordering::Relaxed);
    let mut worker = world.worker_of(&executor);
    eventually("it is back", || worker.open(opening(&task(0), 1, 1)).is_ok());
    // A few beats later the silence before does not count any more.
    std::thread::sleep(Duration::from_millis(1_500));
    let began = Instant::now();
    cut.store(true, Ordering::Relaxed);
    eventually("an agent without its driver goes", || executor.driver_gone());
    assert!(began.elapsed() > Duration::from_millis(2_000), "after {:?}", began.elapsed());
}

#[test]
fn a_worker_that_goes_without_a_word_frees_its_task_for_another_stage() {
    let world = World::new();
    let mut worker = world.worker();
    open(&mut worker, &task(0), 1, 1);
    drop(worker);
    let began = Instant::now();
    open(&mut world.worker(), &task(0), 2, 2);
    assert!(began.elapsed() < Duration::from_secs(2));
}

#[test]
fn a_dead_executor_frees_its_tasks_for_another_stage() {
    let world = World::new();
    let victim = world.process("victim");
    let mut worker = Client::connect(&world.config, &victim.socket).unwrap();
    let opened = open(&mut worker, &task(0), 1, 1);
    append(&mut worker, opened.session, &text("a")).unwrap();
    victim.kill();
    let again = open(&mut world.worker(), &task(0), 2, 2);
    assert_eq!(again.prior, [text("a")]);
}

#[test]
fn agents_that_died_are_forgotten_as_peers() {
    let world = World::new();
    world.process("victim").kill();
    let count = || world.driver.stats().unwrap().agents.iter().filter(|agent| agent.alive).count();
    eventually("the dead agent is no longer counted", || count() == 1);
    let task = TaskId {
        query: "q".into(),
        operator: "g".into(),
        epoch: Epoch::Named("x".into()),
        partition: Partition(0),
    };
    let own = world.executor("own");
    let mut worker = world.worker_of(&own);
    let opened = open(&mut worker, &task, 1, 1);
    append(&mut worker, opened.session, &text("a")).unwrap();
    own.stop();
    assert_eq!(open(&mut world.worker(), &task, 1, 2).prior, [text("a")]);
}
