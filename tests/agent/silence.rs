//! Who does not answer is not dead, a copy that is being made is none, and who was declared dead stays so.

use std::net::TcpListener;
use std::sync::mpsc::channel;
use std::time::Duration;

use clonos::agent::protocol::{
    AgentInfo, AgentStanding, Borders, Code, Layout, OpenTask, Reply, Request, Sent,
};
use clonos::agent::registry::AGENT_SILENCE_MS_MAX;
use clonos::config::SessionConfig;
use clonos::edge::agent::{Agent, AgentConfig, Role};
use clonos::error::Error;
use clonos::frame::Group;
use clonos::id::{AgentId, Generation, LogOffset, Partition, TaskId};

use crate::line::line;
use crate::world::{APP, Peer, World, append, close, eventually, open, opening, task, text};

/// An agent that beats, and answers nobody.
struct Silent {
    info: AgentInfo,
    // Connections are accepted by the system, and never by anybody else.
    _listener: TcpListener,
}

impl Silent {
    fn new(world: &World) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap().to_string();
        let info = AgentInfo { id: AgentId(77), addr, host: "elsewhere".into(), driver: false };
        let silent = Self { info, _listener: listener };
        let registered = Peer::of(world, world.driver.addr())
            .ask(&Request::Register { info: silent.info.clone(), executor: String::new() });
        assert!(matches!(registered, Reply::Registered { .. }));
        silent
    }

    fn beat(&self, world: &World) -> AgentStanding {
        let beat = Request::Heartbeat { agent: self.info.id, commits_seen: 0 };
        match Peer::of(world, world.driver.addr()).ask(&beat) {
            Reply::Beat { standing, .. } => standing,
            other => panic!("{other:?}"),
        }
    }
}

/// Says that `holder` alone has the task's log, as it does after the death of everybody else.
pub(super) fn is_held_by(world: &World, holder: &AgentInfo) -> Generation {
    let mut worker = world.worker();
    let opened = open(&mut worker, &task(0), 1, 1);
    append(&mut worker, opened.session, &text("recorded")).unwrap();
    close(&mut worker, opened.session);
    says(world, opened.generation, holder.id, 1);
    opened.generation
}

/// The first agent's request of this number says who has the log.
pub(super) fn says(world: &World, generation: Generation, holder: AgentId, number: u64) {
    let sent = Sent { by: AgentId(7), number };
    let (task, holders) = (task(0), vec![holder]);
    let holding = Request::Holding { task, generation, holders, adopted: None, whole: true, sent };
    assert!(matches!(Peer::of(world, world.driver.addr()).ask(&holding), Reply::Done));
}

#[test]
fn nothing_is_decided_without_a_holder_that_lives_and_does_not_answer() {
    let world = World::with(|config, _| {
        (config.io_timeout_ms, config.sharing_depth) = (600, 0);
        config.network_timeout_ms = AGENT_SILENCE_MS_MAX;
    });
    let silent = Silent::new(&world);
    is_held_by(&world, &silent.info);
    std::thread::scope(|scope| {
        let opens = scope.spawn(|| world.worker().open(opening(&task(0), 1, 2)));
        while !opens.is_finished() {
            assert_eq!(silent.beat(&world), AgentStanding::Alive);
            std::thread::sleep(Duration::from_millis(200));
        }
        let refused = opens.join().unwrap().unwrap_err();
        assert!(matches!(refused, Error::Timeout { .. }), "neither lost nor begun anew: {refused}");
    });
    // The open that failed does not keep others out.
    std::thread::sleep(Duration::from_millis(AGENT_SILENCE_MS_MAX));
    let opened = open(&mut world.worker(), &task(0), 7, 3);
    assert!(opened.lost, "now the silent one is dead, and the log with it");
    // It comes back, and is told.
    assert_eq!(silent.beat(&world), AgentStanding::Dead);
    assert!(matches!(
        Peer::of(&world, world.driver.addr())
            .ask(&Request::Register { info: silent.info.clone(), executor: String::new() }),
        Reply::Registered { .. }
    ));
    assert_eq!(silent.beat(&world), AgentStanding::Dead);
}

#[test]
fn no_block_is_acknowledged_that_nobody_else_has_while_somebody_lives() {
    let world = World::with(|config, _| config.io_timeout_ms = 600);
    let silent = Silent::new(&world);
    let mut worker = world.worker();
    let opened = open(&mut worker, &task(0), 1, 1);
    std::thread::scope(|scope| {
        let appends = scope.spawn(|| append(&mut worker, opened.session, &text("recorded")));
        while !appends.is_finished() {
            assert_eq!(silent.beat(&world), AgentStanding::Alive);
            std::thread::sleep(Duration::from_millis(200));
        }
        let refused = appends.join().unwrap().unwrap_err();
        assert!(refused.is_silence(), "it may answer yet: {refused}");
    });
    close(&mut worker, opened.session);
    let opened = open(&mut worker, &task(0), 1, 2);
    append(&mut worker, opened.session, &text("recorded")).unwrap();
    assert_eq!(silent.beat(&world), AgentStanding::Dead, "it has said nothing for too long");
}

pub(super) fn replicated(generation: Generation, all: bool, number: u64) -> Request {
    let layout = Layout {
        app: APP,
        stage: 1,
        tasks: None,
        code: Code { fingerprint: 0, python: 0 },
        plan: None,
        borders: Borders::UNKNOWN,
    };
    Request::Replicate {
        task: task(0),
        generation,
        over: Generation::NONE,
        layout,
        reset: true,
        from: LogOffset::START,
        blocks: vec![text("the first of two")],
        all,
        whole: true,
        sent: Sent { by: AgentId(7), number },
    }
}

#[test]
fn a_copy_that_is_being_made_is_none() {
    let world = World::with(|config, _| config.sharing_depth = 0);
    let holder = world.process("holder");
    let mut peer = {
        let mut stats = world.worker();
        let agents = stats.cluster_stats().unwrap().agents;
        let holder = agents.into_iter().find(|agent| agent.addr != world.driver.addr()).unwrap();
        Peer::of(&world, &holder.addr)
    };
    let mut worker = world.worker();
    let opened = open(&mut worker, &task(0), 1, 1);
    append(&mut worker, opened.session, &text("recorded")).unwrap();
    close(&mut worker, opened.session);
    // A copy is begun, by somebody who dies in the middle of it.
    assert!(matches!(peer.ask(&replicated(opened.generation, false, 1)), Reply::Done));
    let read = |whole| Request::Read { task: task(0), from: LogOffset::START, whole, newest: None };
    assert!(matches!(peer.ask(&read(true)), Reply::Failed(Error::CausalLogLost { .. })));
    // The driver's own copy counts.
    let again = open(&mut world.worker(), &task(0), 1, 2);
    assert_eq!(again.prior, [text("recorded")]);
    drop(peer);
    holder.kill();
}

#[test]
fn a_copy_that_is_being_made_is_none_also_where_the_rest_rides_in_frames() {
    let world = World::with(|config, _| config.sharing_depth = 0);
    let (first_holder, holder) = (world.executor("first"), world.executor("holder"));
    let inside = |attempt| OpenTask { inside: true, ..opening(&task(0), 1, attempt) };
    let mut worker = world.worker_of(&first_holder);
    let first = worker.open(inside(1)).unwrap();
    append(&mut worker, first.session, &text("recorded")).unwrap();
    let made = Peer::of(&world, holder.addr()).ask(&replicated(first.generation, false, 1));
    assert!(matches!(made, Reply::Done));
    says(&world, first.generation, world.id_of(&holder), 1);
    let again = world.worker().open(inside(2)).unwrap();
    assert!(again.lost && again.prior.is_empty(), "{:?}", again.prior);
}

#[test]
fn who_has_a_copy_is_sent_only_what_it_lacks_when_the_task_is_opened_again() {
    let world = World::new();
    let own = world.executor("own");
    let sent = || match Peer::of(&world, own.addr()).ask(&Request::Stats) {
        Reply::Stats(stats) => stats.sent_bytes,
        other => panic!("{other:?}"),
    };
    let mut worker = world.worker_of(&own);
    let first = open(&mut worker, &task(0), 1, 1);
    append(&mut worker, first.session, &text("recorded")).unwrap();
    let before = sent();
    let second = open(&mut worker, &task(0), 1, 2);
    assert_eq!((second.prior, sent()), (vec![text("recorded")], before));
    append(&mut worker, second.session, &text("more")).unwrap();
    assert_eq!(sent(), before + 4);
}

#[test]
fn what_comes_late_takes_nothing_back() {
    let world = World::with(|config, _| config.sharing_depth = 0);
    let silent = Silent::new(&world);
    let generation = is_held_by(&world, &silent.info);
    says(&world, generation, AgentId(8), 0);
    let stats = world.worker().cluster_stats().unwrap();
    let holders = &stats.tasks[0].holders;
    assert!(holders.iter().eq([&silent.info.addr]), "a peer was replaced since: {holders:?}");

    let holder = world.process("holder");
    let agents = world.worker().cluster_stats().unwrap().agents;
    let is_other = |addr: &String| *addr != silent.info.addr && addr != world.driver.addr();
    let addr = agents.into_iter().map(|agent| agent.addr).find(is_other).unwrap();
    let mut peer = Peer::of(&world, &addr);
    let first = replicated(generation, true, 1);
    let Request::Replicate { blocks, layout, .. } = &first else { unreachable!() };
    let second = Request::Replicate {
        task: task(0),
        generation,
        over: Generation::NONE,
        layout: *layout,
        reset: false,
        from: LogOffset(blocks[0].len() as u64),
        blocks: vec![text("the second of two")],
        all: true,
        whole: true,
        sent: Sent { by: AgentId(7), number: 2 },
    };
    for request in [&first, &first, &second, &first] {
        assert!(matches!(peer.ask(request), Reply::Done));
    }
    match peer.ask(&Request::Read { task: task(0), from: LogOffset::START, whole: true, newest: None }) {
        Reply::Blocks(blocks) => assert_eq!(blocks, [text("the first of two"), text("the second of two")]),
        other => panic!("{other:?}"),
    }
    drop(peer);
    holder.kill();
}

#[test]
fn an_open_that_the_driver_never_answers_fails_though_it_hears_the_agent() {
    let world = World::with(|config, _| (config.io_timeout_ms, config.network_timeout_ms) = (400, 2_500));
    let driver_addr =
        line(world.driver.addr(), |_, request| !matches!(request, Request::Grant { .. }), |_| true);
    let session = SessionConfig { driver_addr, ..world.config.clone() };
    let socket = world.folder.path().join("unheard.sock");
    let agent =
        Agent::start(AgentConfig { session, role: Role::Executor { id: "unheard".into() }, socket }).unwrap();
    let mut worker = world.worker_of(&agent);
    let (tell, told) = channel();
    std::thread::spawn(move || drop(tell.send(worker.open(opening(&task(0), 1, 1)))));
    let opened = told.recv_timeout(Duration::from_secs(20)).expect("it is asked for ever");
    let refused = opened.unwrap_err();
    assert!(matches!(refused, Error::Timeout { millis: 2_500, .. }), "{refused}");
    assert!(refused.to_string().contains("the driver"), "{refused}");
    assert!(!agent.driver_gone());
}

#[test]
fn an_open_that_comes_to_nothing_does_not_make_frames_stale() {
    let world = World::with(|config, _| config.io_timeout_ms = 600);
    let (first, second) = (world.executor("first"), world.executor("second"));
    let inside = |attempt| OpenTask { inside: true, ..opening(&task(0), 1, attempt) };
    let mut sender = world.worker_of(&first);
    let session = sender.open(inside(1)).unwrap().session;
    let kept = sender.start(&Request::Keep { session, block: text("rides") }).unwrap();
    sender.wait(kept).unwrap();
    close(&mut sender, session);
    // A copy of the task, as by speculation: all agents are told of it, and one does not answer.
    let silent = Silent::new(&world);
    std::thread::scope(|scope| {
        let opens = scope.spawn(|| world.worker_of(&second).open(inside(2)));
        while !opens.is_finished() {
            assert_eq!(silent.beat(&world), AgentStanding::Alive);
            std::thread::sleep(Duration::from_millis(200));
        }
        opens.join().unwrap().unwrap_err();
    });
    // The first attempt's frames are what there is: nobody will do the task once more.
    let other = TaskId { operator: "g".into(), ..task(0) };
    eventually("the open is over, and taken back", || {
        let mut consumer = world.worker();
        let session = consumer.open(OpenTask { inside: true, ..opening(&other, 2, 3) }).unwrap().session;
        let group = Group {
            operator: "f".into(),
            partition: Partition(0),
            hops: 1,
            from: LogOffset::START,
            blocks: vec![text("rides")],
        };
        let absorbed = consumer.start(&Request::Absorb { session, groups: vec![group] }).unwrap();
        silent.beat(&world);
        consumer.wait(absorbed).is_ok()
    });
}
