//! What a stable append costs a worker, beside an echo over a plain Unix socket, in one run.
//! `cargo bench --bench agent`.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a benchmark has nobody to report to")]

mod common;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use clonos::agent::protocol::{Ending, OpenTask, Use};
use clonos::config::SessionConfig;
use clonos::edge::agent::{Agent, AgentConfig, Role};
use clonos::edge::net::client::Client;
use clonos::id::{Epoch, Partition, TaskId};
use clonos::task::Summary;

/// A small publish: one call's outcome.
const SMALL: usize = 200;
/// A large one: about 10,000 rows' results.
const LARGE: usize = 80 << 10;
const APPENDS: usize = 2_000;
const OPENS: usize = 500;
/// Publishes under way at once, where they run ahead.
const WINDOW: usize = 4;

fn report(what: &str, mut times: Vec<Duration>) {
    times.sort();
    let at = |part: usize| times[(times.len() - 1) * part / 100].as_secs_f64() * 1e6;
    println!("{what:<52} p50 {:>8.1} us   p99 {:>8.1} us", at(50), at(99));
}

fn timed(count: usize, mut work: impl FnMut(usize)) -> Vec<Duration> {
    (0..count)
        .map(|number| {
            let began = Instant::now();
            work(number);
            began.elapsed()
        })
        .collect()
}

/// The least that any protocol over a Unix socket costs: the bytes there, one byte back.
fn echo(len: usize) {
    let (mut here, mut there) = UnixStream::pair().unwrap();
    let server = std::thread::spawn(move || {
        let mut bytes = vec![0; len];
        while there.read_exact(&mut bytes).is_ok() {
            if there.write_all(&[1]).is_err() {
                break;
            }
        }
    });
    let (bytes, mut answer) = (vec![7; len], [0]);
    let times = timed(APPENDS, |_| {
        here.write_all(&bytes).unwrap();
        here.read_exact(&mut answer).unwrap();
    });
    report(&format!("plain socket, {len} bytes and an answer"), times);
    drop(here);
    server.join().unwrap();
}

fn opening(partition: usize, attempt: usize) -> OpenTask {
    let partition = Partition(u32::try_from(partition).unwrap());
    let (query, operator) = ("bench".into(), "append".into());
    let task = TaskId { query, operator, epoch: Epoch::Batch(1), partition };
    OpenTask {
        task,
        used: Use::default(),
        execution: None,
        app: 1,
        stage: 1,
        attempt: attempt as u64,
        worker: 1,
        inside: false,
        stamp: 0,
        of_rdd: None,
    }
}

/// Appends, each waited for; then running ahead.
fn appends(what: &str, client: &mut Client, partition: usize) {
    let session = client.open(opening(partition, partition)).unwrap().session;
    for len in [SMALL, LARGE] {
        let block = Bytes::from(vec![7; len]);
        let times = timed(APPENDS, |_| {
            let ticket = client.send(session, block.clone()).unwrap();
            client.wait(ticket).unwrap();
        });
        report(&format!("{what}, append of {len} bytes"), times);
    }
    let (block, began) = (Bytes::from(vec![7; LARGE]), Instant::now());
    let mut waiting = std::collections::VecDeque::new();
    for _ in 0..APPENDS {
        if waiting.len() == WINDOW {
            client.wait(waiting.pop_front().unwrap()).unwrap();
        }
        waiting.push_back(client.send(session, block.clone()).unwrap());
    }
    for ticket in waiting {
        client.wait(ticket).unwrap();
    }
    let rate = (APPENDS * LARGE) as f64 / began.elapsed().as_secs_f64() / 1e6;
    println!("{:<52} {rate:>12.0} MB/s", format!("{what}, {LARGE} bytes, {WINDOW} under way"));
    client.close(session, Summary::default(), Ending { done: true, ..Ending::default() }).unwrap();
}

fn opens(what: &str, client: &mut Client, base: usize) {
    let times = timed(OPENS, |number| {
        let session = client.open(opening(base + number, number)).unwrap().session;
        client.close(session, Summary::default(), Ending { done: true, ..Ending::default() }).unwrap();
    });
    report(&format!("{what}, open and close of an empty log"), times);
    let times = timed(20, |number| {
        let session = client.open(opening(0, base + number)).unwrap().session;
        client.close(session, Summary::default(), Ending { done: true, ..Ending::default() }).unwrap();
    });
    report(&format!("{what}, open of partition 0 with its log"), times);
}

fn run(folder: &Path, mut config: SessionConfig, what: &str, executors: usize) {
    std::fs::create_dir_all(folder).unwrap();
    let role = common::driver();
    let socket = folder.join("driver.sock");
    let driver = Agent::start(AgentConfig { session: config.clone(), role, socket }).unwrap();
    config.driver_addr = driver.addr().to_owned();
    let start = |number: usize| {
        let socket = folder.join(format!("executor-{number}.sock"));
        Agent::start(AgentConfig {
            session: config.clone(),
            role: Role::Executor { id: String::new() },
            socket,
        })
        .unwrap()
    };
    let agents: Vec<Agent> = (0..executors).map(start).collect();
    let own = agents.first().unwrap_or(&driver);
    let mut client = Client::connect(&config, own.socket()).unwrap();
    appends(what, &mut client, 0);
    opens(what, &mut client, 1_000);
    drop(client);
    agents.iter().for_each(Agent::stop);
    driver.stop();
}

fn main() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = SessionConfig::new("bench", [7; 32]);
    config.memory_bytes = 2 << 30;
    echo(SMALL);
    echo(LARGE);
    run(&folder.path().join("alone"), config.clone(), "no peer", 0);
    run(&folder.path().join("peer"), config.clone(), "one peer", 2);
    config.checkpoint_dir = Some(folder.path().join("checkpoint").display().to_string());
    run(&folder.path().join("synced"), config, "one peer, checkpoint", 2);
}
