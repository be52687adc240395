//! Guarantees 2, 4 and 5 of the design: what was published is replayed, the newest attempt is the only
//! one, nothing is forgotten before its epoch is committed.

use clonos::agent::protocol::Ending;
use clonos::config::SessionConfig;
use clonos::edge::agent::{Agent, AgentConfig, Role};
use clonos::error::Error;
use clonos::id::{Epoch, LogOffset, TaskId};
use clonos::task::{Ended, Summary};

use crate::world::{World, append, close, eventually, numbered, open, open_as, opening, task, task_in, text};

#[test]
fn what_was_published_is_there_at_the_next_open() {
    let world = World::new();
    let mut worker = world.worker();
    let first = open(&mut worker, &task(0), 1, 1);
    assert!(first.prior.is_empty() && !first.lost);
    for block in ["one", "three"] {
        append(&mut worker, first.session, &text(block)).unwrap();
    }
    close(&mut worker, first.session);

    let mut other = world.worker();
    let second = open(&mut other, &task(0), 1, 2);
    assert_eq!(second.prior, [text("one"), text("three")]);
    assert!(second.recording.same_stage && !second.recording.layout_changed && !second.lost);
    assert!(second.generation > first.generation);
    append(&mut other, second.session, &text("four")).unwrap();
    // The connection breaks: no close. The log stays.
    drop(other);
    let third = open(&mut world.worker(), &task(0), 1, 3);
    assert_eq!(third.prior, [text("one"), text("three"), text("four")]);
}

#[test]
fn another_partition_has_another_log() {
    let world = World::new();
    let mut worker = world.worker();
    let opened = open(&mut worker, &task(0), 1, 1);
    append(&mut worker, opened.session, &text("mine")).unwrap();
    assert!(open(&mut worker, &task(1), 1, 1).prior.is_empty());
}

#[test]
fn publishing_runs_ahead_and_keeps_its_order() {
    let world = World::new();
    let _peer = world.executor("peer");
    let own = world.executor("own");
    let mut worker = world.worker_of(&own);
    let opened = open(&mut worker, &task(0), 1, 1);
    // Far more than an agent could answer to a worker that reads no answers.
    let blocks: Vec<_> = (0..3_000).map(|number| numbered(number, 1 + 7 * number as usize % 2_048)).collect();
    let tickets: Vec<_> =
        blocks.iter().map(|block| worker.send(opened.session, block.clone()).unwrap()).collect();
    // In any order: a later answer does not lose an earlier one.
    for ticket in tickets.into_iter().rev() {
        worker.wait(ticket).unwrap();
    }
    let again = open(&mut world.worker_of(&own), &task(0), 1, 2);
    assert!(again.prior == blocks, "all blocks in the order sent");
}

#[test]
fn a_log_larger_than_one_message_is_read_whole() {
    let world = World::new();
    let mut worker = world.worker();
    let opened = open(&mut worker, &task(0), 1, 1);
    let blocks: Vec<_> = (0..10).map(|number| numbered(number, 5 << 20)).collect();
    for block in &blocks {
        append(&mut worker, opened.session, block).unwrap();
    }
    let again = open(&mut world.worker(), &task(0), 1, 2);
    assert!(again.prior == blocks, "50 MiB in pieces");
}

#[test]
fn the_newer_attempt_fences_the_older() {
    let world = World::new();
    let mut old = world.worker();
    let first = open(&mut old, &task(0), 1, 1);
    append(&mut old, first.session, &text("a")).unwrap();
    let mut new = world.worker();
    let second = open(&mut new, &task(0), 1, 2);
    let refused = append(&mut old, first.session, &text("b")).unwrap_err();
    assert!(matches!(refused, Error::Fenced { ours, newer, .. } if ours < newer), "{refused}");
    append(&mut new, second.session, &text("c")).unwrap();
    let third = open(&mut world.worker(), &task(0), 1, 3);
    assert_eq!(third.prior, [text("a"), text("c")]);
}

#[test]
fn an_attempt_that_published_nothing_yet_is_fenced_too() {
    let world = World::new();
    // Four agents: the two writers need not have a peer in common.
    let agents: Vec<_> = (0..4).map(|n| world.executor(&format!("e{n}"))).collect();
    let mut attempt = 0;
    for partition in 0..24 {
        let (one, two) = (&agents[partition % 4], &agents[(partition + 1) % 4]);
        let task = task(u32::try_from(partition).unwrap());
        let (mut old, mut new) = (world.worker_of(one), world.worker_of(two));
        let first = open(&mut old, &task, 1, attempt);
        let second = open(&mut new, &task, 1, attempt + 1);
        attempt += 2;
        let refused = append(&mut old, first.session, &text("old"));
        assert!(matches!(refused, Err(Error::Fenced { .. })), "partition {partition}: {refused:?}");
        append(&mut new, second.session, &text("new")).unwrap();
        let again = append(&mut old, first.session, &text("old"));
        assert!(matches!(again, Err(Error::Fenced { .. })), "partition {partition}: {again:?}");
    }
}

#[test]
fn a_column_used_twice_has_two_logs_in_one_attempt() {
    let world = World::new();
    let (mut up, mut down) = (world.worker(), world.worker());
    let first = open(&mut up, &task(0), 1, 1);
    let second = open(&mut down, &task(0), 1, 1);
    assert_eq!([&*first.task.operator, &*second.task.operator], ["f", "f~1"]);
    append(&mut up, first.session, &text("of the first")).unwrap();
    append(&mut down, second.session, &text("of the second")).unwrap();
    let again = [open(&mut up, &task(0), 1, 2), open(&mut down, &task(0), 1, 2)];
    assert_eq!(
        again.each_ref().map(|opened| opened.prior.clone()),
        [[text("of the first")], [text("of the second")]]
    );
}

#[test]
fn an_open_that_is_sent_again_is_the_same_open() {
    let world = World::new();
    let mut worker = world.worker();
    let asked = opening(&task(0), 1, 1);
    let lost = worker.open(asked.clone()).unwrap();
    let mut other = world.worker();
    let opened = other.open(asked).unwrap();
    assert_eq!(opened.task, lost.task);
    append(&mut other, opened.session, &text("a")).unwrap();
    let refused = append(&mut worker, lost.session, &text("b")).unwrap_err();
    assert_eq!(refused.condition(), "FENCED");
}

#[test]
fn parts_that_one_attempt_computes_in_turn_have_logs_of_their_own() {
    let world = World::new();
    for attempt in 1..4 {
        let mut tasks = Vec::new();
        for part in 0..3_u64 {
            // Parts may come from other processes.
            let mut worker = world.worker();
            let opened = open(&mut worker, &task(0), 1, attempt);
            let expected: Vec<_> = (1..attempt).map(|before| numbered(10 * before + part, 30)).collect();
            assert_eq!(opened.prior, expected, "part {part} of attempt {attempt}");
            append(&mut worker, opened.session, &numbered(10 * attempt + part, 30)).unwrap();
            close(&mut worker, opened.session);
            tasks.push(opened.task.operator.to_string());
        }
        assert_eq!(tasks, ["f", "f~1", "f~2"]);
    }
}

#[test]
fn a_newer_attempt_fences_each_part_of_the_older() {
    let world = World::new();
    let (mut old, mut new) = (world.worker(), world.worker());
    let first = open(&mut old, &task(0), 1, 1);
    close(&mut old, first.session);
    let second = open(&mut old, &task(0), 1, 1);
    let other = open(&mut new, &task(0), 1, 2);
    append(&mut old, second.session, &text("its second part is its own still")).unwrap();
    close(&mut new, other.session);
    let other = open(&mut new, &task(0), 1, 2);
    assert_eq!(other.task, second.task);
    let refused = append(&mut old, second.session, &text("no more")).unwrap_err();
    assert_eq!(refused.condition(), "FENCED");
}

#[test]
fn another_stage_waits_for_the_one_that_has_the_task_open() {
    let world = World::new();
    let mut first = world.worker();
    let opened = open(&mut first, &task(0), 1, 1);
    append(&mut first, opened.session, &text("a")).unwrap();
    let (config, socket) = (world.config.clone(), world.driver.socket().to_owned());
    let second = std::thread::spawn(move || {
        let mut worker = clonos::edge::net::client::Client::connect(&config, &socket).unwrap();
        open(&mut worker, &task(0), 2, 2)
    });
    std::thread::sleep(std::time::Duration::from_millis(300));
    append(&mut first, opened.session, &text("b")).unwrap();
    close(&mut first, opened.session);
    let second = second.join().unwrap();
    assert_eq!(second.prior, [text("a"), text("b")]);
    assert!(!second.recording.same_stage);
}

#[test]
fn of_two_stages_at_once_that_wait_for_each_other_one_is_refused_and_the_other_goes_on() {
    let world = World::new();
    let g = TaskId { operator: "g".into(), ..task(0) };
    let (mut first, mut second) = (world.worker(), world.worker());
    let opened = open(&mut first, &task(0), 1, 1);
    append(&mut first, opened.session, &text("a")).unwrap();
    let other = open(&mut second, &g, 2, 2);
    append(&mut second, other.session, &text("b")).unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| open(&mut first, &g, 1, 1));
        let refused = open_as(&mut second, &task(0), 2, 2).unwrap_err();
        assert_eq!(refused.condition(), "OPERATOR_USED_TWICE");
        assert!(!waits.is_finished());
        close(&mut second, other.session);
        assert_eq!(waits.join().unwrap().prior, [text("b")]);
    });
    append(&mut first, opened.session, &text("c")).unwrap();
}

#[test]
fn a_commit_forgets_its_epoch_everywhere_and_no_other() {
    let world = World::new();
    let (one, two) = (world.executor("one"), world.executor("two"));
    let mut worker = world.worker_of(&one);
    for batch in 1..=3 {
        let opened = open(&mut worker, &task_in(Epoch::Batch(batch), 0), 1, batch);
        append(&mut worker, opened.session, &numbered(batch, 1000)).unwrap();
        close(&mut worker, opened.session);
    }
    world.driver.commit_epoch("q", &Epoch::Batch(2)).unwrap();
    eventually("agents forget batches 1 and 2", || {
        let stats = world.driver.stats().unwrap();
        // And what blocks take besides.
        (2_000..2_500).contains(&stats.agents.iter().map(|agent| agent.memory_bytes).sum::<u64>())
    });
    assert_eq!(world.driver.live_epochs().unwrap().len(), 1);
    let opened = open(&mut world.worker_of(&two), &task_in(Epoch::Batch(3), 0), 1, 9);
    assert_eq!(opened.prior, [numbered(3, 1000)]);
}

#[test]
fn the_next_batch_commits_the_one_before() {
    let world = World::new();
    let mut worker = world.worker();
    let opened = open(&mut worker, &task_in(Epoch::Batch(4), 0), 1, 1);
    append(&mut worker, opened.session, &text("old")).unwrap();
    close(&mut worker, opened.session);
    open(&mut worker, &task_in(Epoch::Batch(5), 0), 2, 2);
    let epochs = world.driver.live_epochs().unwrap();
    assert!(epochs.iter().all(|key| key.epoch == Epoch::Batch(5)), "{epochs:?}");
}

#[test]
fn a_named_epoch_can_be_used_again_after_its_commit() {
    let world = World::new();
    let (one, _two) = (world.executor("one"), world.executor("two"));
    let daily = task_in(Epoch::Named("daily".into()), 0);
    for round in 0..4_u64 {
        let mut worker = world.worker_of(&one);
        let opened = open(&mut worker, &daily, 1, 10 * round);
        assert!(opened.prior.is_empty(), "round {round} starts anew");
        append(&mut worker, opened.session, &numbered(round, 100)).unwrap();
        // Longer than a heartbeat: the commit of the round before reaches the agents meanwhile.
        std::thread::sleep(std::time::Duration::from_millis(if round % 2 == 0 { 0 } else { 1_200 }));
        let again = open(&mut world.worker_of(&one), &daily, 1, 10 * round + 1);
        assert_eq!(again.prior, [numbered(round, 100)], "round {round} is kept until its commit");
        drop(worker);
        world.driver.commit_epoch("q", &daily.epoch).unwrap();
    }
}

#[test]
fn the_same_number_of_tasks_in_another_stage_is_the_same_layout() {
    let world = World::new();
    let mut worker = world.worker();
    let opened = open(&mut worker, &task(0), 104, 1);
    append(&mut worker, opened.session, &text("a")).unwrap();
    close(&mut worker, opened.session);
    let again = open(&mut worker, &task(0), 104, 2);
    assert!(again.recording.same_stage && !again.recording.layout_changed);
}

#[test]
fn attempts_are_counted() {
    let world = World::new();
    let own = world.executor("own");
    let mut worker = world.worker_of(&own);
    let opened = open(&mut worker, &task(0), 1, 1);
    append(&mut worker, opened.session, &numbered(1, 100)).unwrap();
    let summary = Summary { rows: 10, live: 10, bytes: 100, ..Summary::default() };
    worker.close(opened.session, summary, Ending { done: true, ..Ending::default() }).unwrap();
    let again = open(&mut worker, &task(0), 1, 2);
    assert_eq!(again.prior.len() as u64, LogOffset(1).0);
    worker
        .close(
            again.session,
            Summary { rows: 10, replayed: 10, ..Summary::default() },
            Ending { done: true, ..Ending::default() },
        )
        .unwrap();
    for stats in [world.driver.stats().unwrap(), worker.cluster_stats().unwrap()] {
        assert_eq!(stats.agents.len(), 2);
        let [task] = stats.tasks.as_slice() else { panic!("one task: {:?}", stats.tasks) };
        assert_eq!((task.opens, task.rows, task.replayed, task.live), (2, 10, 10, 10));
        assert_eq!((task.bytes, task.holders.len(), task.lost), (100, 2, 0));
    }
}

#[test]
fn a_refused_query_opens_nothing_until_it_begins_anew() {
    let world = World::new();
    let executor = world.executor("executor");
    let (setting, reason) = ("asyncProgressTrackingEnabled".to_owned(), "it commits late".to_owned());
    world.driver.refuse_query("q", setting, reason).unwrap();
    for agent in [&world.driver, &executor] {
        let refused = world.worker_of(agent).open(opening(&task(0), 1, 1)).unwrap_err();
        assert_eq!(refused.condition(), "CONFIG");
        assert!(refused.to_string().contains("asyncProgressTrackingEnabled"), "{refused}");
    }
    let another = TaskId { query: "another".into(), ..task(0) };
    open(&mut world.worker_of(&executor), &another, 1, 1);
    world.driver.begin_run("q", None);
    open(&mut world.worker_of(&executor), &task(0), 1, 2);
}

#[test]
fn a_labelled_host_is_known_by_its_label() {
    let world = World::with(|config, _| config.host_label = "node-1".to_owned());
    let session = SessionConfig { host_label: "node-2".to_owned(), ..world.config.clone() };
    let socket = world.folder.path().join("labelled.sock");
    let _labelled =
        Agent::start(AgentConfig { session, role: Role::Executor { id: String::new() }, socket }).unwrap();
    let session = SessionConfig { host_label: String::new(), ..world.config.clone() };
    let socket = world.folder.path().join("plain.sock");
    let _plain =
        Agent::start(AgentConfig { session, role: Role::Executor { id: String::new() }, socket }).unwrap();
    let agents = world.driver.stats().unwrap().agents;
    let mut hosts: Vec<_> = agents.into_iter().map(|agent| agent.host).collect();
    hosts.sort();
    assert_eq!(hosts, ["127.0.0.1", "node-1", "node-2"]);
}

#[test]
fn an_attempt_knows_whether_what_earlier_ones_gave_may_have_been_used() {
    let world = World::new();
    let mut worker = world.worker();
    let mut ended = |stage, attempt, input| {
        let opened = open(&mut worker, &task(0), stage, attempt);
        let summary = Summary { input, ..Summary::default() };
        let ending = Ending { done: input > 0, ..Ending::default() };
        worker.close(opened.session, summary, ending).unwrap();
        opened.recording.ended
    };
    // Of stages before the hundredth nothing is known, others are not complete: see the world.
    let (running, unknown) = (104, 4);
    assert_eq!(ended(running, 1, 0), Ended::Never);
    assert_eq!(ended(running, 2, 7), Ended::Never);
    assert_eq!(ended(running, 3, 8), Ended::Never);
    assert_eq!(ended(unknown, 4, 9), Ended::With(8));
    assert_eq!(ended(unknown, 5, 0), Ended::With(9));
    assert_eq!(ended(running, 6, 5), Ended::With(9));
    assert_eq!(ended(running, 7, 0), Ended::With(9));
}

#[test]
fn who_writes_again_what_an_earlier_job_lost_has_lost_what_that_recorded() {
    let world = World::new();
    let mut worker = world.worker();
    // In the world's stage 200 two partitions are such.
    let (stage, rest) = (199, 200);
    let opened = open(&mut worker, &task(0), stage, 1);
    append(&mut worker, opened.session, &text("one")).unwrap();
    close(&mut worker, opened.session);
    // In the same epoch it is there.
    let known = open(&mut worker, &task(0), rest, 2);
    assert!(!known.lost && known.prior == [text("one")]);
    close(&mut worker, known.session);
    for attempt in [3, 4] {
        let lost = open(&mut worker, &task(1), rest, attempt);
        assert!(lost.lost, "also when it is tried again");
        close(&mut worker, lost.session);
    }
    let never = open(&mut worker, &task(2), rest, 5);
    assert!(!never.lost, "it was never written");
    close(&mut worker, never.session);
    assert!(!open(&mut worker, &task(3), stage, 6).lost);
}

#[test]
fn agents_listen_on_the_ports_that_are_open_to_them() {
    let port_of = |addr: &str| addr.rsplit(':').next().unwrap().parse::<u16>().unwrap();
    // A few in a row, of which this test itself has none.
    let first =
        port_of(&std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string());
    let ports = (first, first.saturating_add(20));
    let world = World::with(|config, _| config.agent_ports = ports);
    let executors = ["one", "two"].map(|name| world.executor(name));
    let taken = [&world.driver, &executors[0], &executors[1]].map(|agent| port_of(agent.addr()));
    assert!(taken.iter().all(|port| (ports.0..=ports.1).contains(port)), "{taken:?} in {ports:?}");
    assert!(taken[0] != taken[1] && taken[1] != taken[2], "{taken:?}");
    let opened = open(&mut world.worker_of(&executors[0]), &task(0), 1, 1);
    assert!(!opened.lost);
}
