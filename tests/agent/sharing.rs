//! Output commit of absorbed logs while a peer does not answer: it is waited for once, and by those of its
//! epoch only.

use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clonos::agent::protocol::{AgentInfo, Ending, OpenTask, Request};
use clonos::edge::agent::Agent;
use clonos::edge::net::Connection;
use clonos::edge::net::client::Client;
use clonos::frame::Group;
use clonos::id::{AgentId, Epoch, LogOffset, Partition, TaskId};
use clonos::task::Summary;

use crate::world::{World, close, eventually, open, opening, task, task_in, text};

struct SetWhenDropped<'a>(&'a AtomicBool);

impl Drop for SetWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The registry counts an agent as alive that answers nobody, while `during` runs.
fn with_a_silent_agent(world: &World, during: impl FnOnce()) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    // On another host: the first to be asked.
    let info = AgentInfo { id: AgentId(1), addr, host: "elsewhere".into(), driver: false };
    let mut driver =
        Connection::tcp(world.driver.addr(), &world.config.credentials(), Duration::from_secs(5)).unwrap();
    let over = AtomicBool::new(false);
    driver.write(&Request::Register { info, executor: String::new() }).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                driver.write(&Request::Heartbeat { agent: AgentId(1), commits_seen: 0 }).unwrap();
                std::thread::sleep(Duration::from_millis(200));
            }
        });
        // Also if it fails: the thread is waited for.
        let _over = SetWhenDropped(&over);
        during();
    });
}

/// A consumer of an epoch absorbs a log and waits until it is stable; how long that takes.
fn commits_after(world: &World, executor: &Agent, epoch: u64) -> Duration {
    let mut worker = world.worker_of(executor);
    let mut open_task = opening(&task_in(Epoch::Batch(epoch), 0), 1, epoch);
    open_task.inside = true;
    let session = worker.open(open_task).unwrap().session;
    let blocks = vec![text("determinants")];
    let group = Group {
        operator: "upstream".into(),
        partition: Partition(0),
        hops: 1,
        from: LogOffset::START,
        blocks,
    };
    let absorbed = worker.start(&Request::Absorb { session, groups: vec![group] }).unwrap();
    worker.wait(absorbed).unwrap();
    let began = Instant::now();
    let stable = worker.start(&Request::Commit { session }).unwrap();
    worker.wait(stable).unwrap();
    began.elapsed()
}

#[test]
fn a_silent_peer_is_waited_for_once_and_by_no_other_epoch() {
    let world = World::with(|config, _| config.io_timeout_ms = 2_000);
    let executor = world.executor("executor");
    // The first connections are made.
    drop(open(&mut world.worker_of(&executor), &task_in(Epoch::Batch(100), 0), 1, 100));
    with_a_silent_agent(&world, || {
        let took: Vec<Duration> = std::thread::scope(|scope| {
            let (world, executor) = (&world, &executor);
            let waiting: Vec<_> =
                (1..=3).map(|epoch| scope.spawn(move || commits_after(world, executor, epoch))).collect();
            waiting.into_iter().map(|waiting| waiting.join().unwrap()).collect()
        });
        let most = took.iter().max().unwrap();
        assert!(*most < Duration::from_millis(3_500), "one time-out, not one after the other: {took:?}");
        let later = commits_after(&world, &executor, 4);
        assert!(later < Duration::from_millis(1_000), "it is asked last now: {later:?}");
    });
}

#[test]
fn a_copy_on_the_senders_agent_is_not_another_one() {
    let world = World::with(|config, _| config.sharing_depth = 2);
    let (sender, consumer, _other) =
        (world.process("sender"), world.process("consumer"), world.process("other"));
    let mut one = Client::connect(&world.config, &sender.socket).unwrap();
    let mut two = Client::connect(&world.config, &consumer.socket).unwrap();
    let inside = |task: &TaskId, attempt| OpenTask { inside: true, ..opening(task, 1, attempt) };
    for partition in 0..8 {
        let session = one.open(inside(&task(partition), 1)).unwrap().session;
        let kept = one.start(&Request::Keep { session, block: text("rides") }).unwrap();
        one.wait(kept).unwrap();
        close(&mut one, session);
        let reads = TaskId { operator: "g".into(), ..task(partition) };
        let session = two.open(inside(&reads, 50)).unwrap().session;
        let (operator, partition) = ("f".to_owned(), Partition(partition));
        let blocks = vec![text("rides")];
        let groups = vec![Group { operator, partition, hops: 1, from: LogOffset::START, blocks }];
        let absorbed = two.start(&Request::Absorb { session, groups }).unwrap();
        two.wait(absorbed).unwrap();
        close(&mut two, session);
    }
    // As many as the depth covers.
    sender.kill();
    consumer.kill();
    let mut worker = world.worker();
    for partition in 0..8 {
        let mut found = None;
        eventually("it is known who is dead", || {
            found = worker.open(inside(&task(partition), 3)).ok();
            found.is_some()
        });
        assert_eq!(found.unwrap().prior, [text("rides")], "partition {partition}");
    }
}

#[test]
fn a_task_whose_end_failed_is_not_open_for_ever() {
    let world = World::with(|config, _| config.sharing_depth = 1);
    let inside = |operator: &str, stage, attempt| {
        let task = TaskId { operator: operator.into(), ..task(0) };
        OpenTask { inside: true, ..opening(&task, stage, attempt) }
    };
    let mut worker = world.worker();
    with_a_silent_agent(&world, || {
        let sender = worker.open(inside("f", 1, 1)).unwrap().session;
        let kept = worker.start(&Request::Keep { session: sender, block: text("rides") }).unwrap();
        worker.wait(kept).unwrap();
        let session = worker.open(inside("g", 2, 2)).unwrap().session;
        let group = Group {
            operator: "f".to_owned(),
            partition: Partition(0),
            hops: 1,
            from: LogOffset::START,
            blocks: vec![text("rides")],
        };
        let absorbed = worker.start(&Request::Absorb { session, groups: vec![group] }).unwrap();
        worker.wait(absorbed).unwrap();
        // Nobody else has what it absorbed, nor can have it.
        worker.close(session, Summary::default(), Ending { done: true, ..Ending::default() }).unwrap_err();
    });
    // The job is run again, in other stages.
    worker.open(inside("g", 7, 3)).unwrap();
}
