//! What encryption costs, beside the same in clear, in one run: messages between two agents over TCP, blocks and
//! runs of keyed state that are spilled, and stable appends to an agent with a peer.
//! `cargo bench --bench encrypted`.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a benchmark has nobody to report to")]

mod common;

use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::thread::spawn;
use std::time::{Duration, Instant};

use bytes::Bytes;
use clonos::agent::protocol::{Ending, OpenTask, Use};
use clonos::config::{Credentials, SessionConfig};
use clonos::edge::agent::{Agent, AgentConfig, Role};
use clonos::edge::disk::spill::{RunFiles, SpillDir};
use clonos::edge::net::client::Client;
use clonos::edge::net::{Connection, Stream};
use clonos::id::{AgentId, Epoch, EpochKey, Partition, TaskId};
use clonos::state::Files;
use clonos::task::Summary;

const TIMEOUT: Duration = Duration::from_secs(20);
/// About 10,000 rows' results.
const BLOCK: usize = 80 << 10;
/// Bytes of each measurement of a rate.
const ALL: usize = 400 << 20;
const ROUNDS: usize = 5;

/// In clear and encrypted in turn, so that what disturbs disturbs both; the best of each counts.
fn compare(what: &str, unit: &str, more_is_better: bool, mut run: impl FnMut(bool) -> f64) {
    let (mut clear, mut encrypted) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        clear.push(run(false));
        encrypted.push(run(true));
    }
    let best =
        |all: Vec<f64>| all.into_iter().reduce(if more_is_better { f64::max } else { f64::min }).unwrap();
    let (clear, encrypted) = (best(clear), best(encrypted));
    let ratio = encrypted / clear;
    println!("{what:<44} clear {clear:>9.1} {unit:<5} encrypted {encrypted:>9.1} {unit:<5} {ratio:>5.2}x");
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64() * 1e6
}

/// An agent's end of a connection, where each message is read and `answers` tells whether it is sent back.
fn server(ours: Credentials, answers: bool) -> (String, std::thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    let serving = spawn(move || {
        let stream = listener.accept().unwrap().0;
        stream.set_nodelay(true).unwrap();
        let mut connection =
            Connection::accept(Stream::Tcp(stream), "bench".into(), &ours, AgentId(1), TIMEOUT).unwrap();
        while let Ok(message) = connection.read::<Bytes>() {
            if answers {
                connection.write(&message).unwrap();
            }
        }
    });
    (addr, serving)
}

const fn credentials(encrypt: bool) -> Credentials {
    Credentials { secret: [7; 32], encrypt }
}

/// Microseconds until a connection is there.
fn connecting(encrypt: bool) -> f64 {
    let ours = credentials(encrypt);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    let serving = spawn(move || {
        for _ in 0..200 {
            let stream = Stream::Tcp(listener.accept().unwrap().0);
            drop(Connection::accept(stream, "bench".into(), &ours, AgentId(1), TIMEOUT));
        }
    });
    let times = (0..200).map(|_| {
        let began = Instant::now();
        drop(Connection::tcp(&addr, &ours, TIMEOUT).unwrap());
        began.elapsed()
    });
    let times = times.collect();
    serving.join().unwrap();
    median(times)
}

/// Microseconds until a message has come back.
fn round_trip(encrypt: bool, len: usize) -> f64 {
    let ours = credentials(encrypt);
    let (addr, serving) = server(ours, true);
    let mut connection = Connection::tcp(&addr, &ours, TIMEOUT).unwrap();
    let message = Bytes::from(vec![7; len]);
    let times = (0..2_000).map(|_| {
        let began = Instant::now();
        connection.write(&message).unwrap();
        connection.read::<Bytes>().unwrap();
        began.elapsed()
    });
    let times = times.collect();
    drop(connection);
    serving.join().unwrap();
    median(times)
}

fn rate(bytes: usize, began: Instant) -> f64 {
    bytes as f64 / began.elapsed().as_secs_f64() / 1e6
}

/// MB/s of messages one way.
fn one_way(encrypt: bool, len: usize) -> f64 {
    let ours = credentials(encrypt);
    let (addr, serving) = server(ours, false);
    let mut connection = Connection::tcp(&addr, &ours, TIMEOUT).unwrap();
    let message = Bytes::from(vec![7; len]);
    let began = Instant::now();
    for _ in 0..ALL / len {
        connection.write(&message).unwrap();
    }
    drop(connection);
    serving.join().unwrap();
    rate(ALL, began)
}

/// MB/s of blocks that are spilled, or read back.
fn blocks(folder: &Path, encrypt: bool, reads: bool) -> f64 {
    let spill = SpillDir::create(folder, u64::MAX, encrypt).unwrap();
    let key = EpochKey { query: "bench".into(), epoch: Epoch::Batch(0) };
    let group = vec![Bytes::from(vec![7; BLOCK]); 16];
    let began = Instant::now();
    let mut places = Vec::new();
    for _ in 0..ALL / BLOCK / group.len() {
        places.extend(spill.write(&key, &group).unwrap());
    }
    if !reads {
        return rate(places.len() * BLOCK, began);
    }
    let began = Instant::now();
    for place in &places {
        spill.read(place).unwrap();
    }
    rate(places.len() * BLOCK, began)
}

/// Microseconds of reading 2 KiB from any place of a run of keyed state.
fn lookups(folder: &Path, encrypt: bool) -> f64 {
    let spill = Arc::new(SpillDir::create(folder, u64::MAX, encrypt).unwrap());
    let file = RunFiles::new(spill).create().unwrap();
    let (chunk, chunks) = (vec![7; 256 << 10], 200);
    for _ in 0..chunks {
        file.append(&chunk).unwrap();
    }
    let (mut state, mut bytes) = (1_u64, [0; 2048]);
    let mut one = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let from = (state >> 20) % (chunks * chunk.len() - bytes.len()) as u64;
        let began = Instant::now();
        file.read(&mut bytes, from).unwrap();
        began.elapsed()
    };
    median((0..20_000).map(|_| one()).collect())
}

/// MB/s of appends to an agent that copies each to another before it answers.
fn appends(folder: &Path, encrypt: bool) -> f64 {
    let mut config = SessionConfig::new("bench", [7; 32]);
    config.memory_bytes = 2 << 30;
    config.encrypt = encrypt;
    let role = common::driver();
    let socket = folder.join("driver.sock");
    let driver = Agent::start(AgentConfig { session: config.clone(), role, socket }).unwrap();
    config.driver_addr = driver.addr().to_owned();
    let (role, socket) = (Role::Executor { id: String::new() }, folder.join("executor.sock"));
    let agent = Agent::start(AgentConfig { session: config.clone(), role, socket }).unwrap();
    let mut client = Client::connect(&config, agent.socket()).unwrap();
    let (query, operator) = ("bench".into(), "append".into());
    let task = TaskId { query, operator, epoch: Epoch::Batch(1), partition: Partition(0) };
    let used = Use::default();
    let open = OpenTask {
        task,
        used,
        execution: None,
        app: 1,
        stage: 1,
        attempt: 1,
        worker: 1,
        inside: false,
        stamp: 0,
        of_rdd: None,
    };
    let session = client.open(open).unwrap().session;
    let (block, began) = (Bytes::from(vec![7; BLOCK]), Instant::now());
    let appends = 1_000;
    let mut waiting = std::collections::VecDeque::new();
    for _ in 0..appends {
        if waiting.len() == 4 {
            client.wait(waiting.pop_front().unwrap()).unwrap();
        }
        waiting.push_back(client.send(session, block.clone()).unwrap());
    }
    for ticket in waiting {
        client.wait(ticket).unwrap();
    }
    let rate = rate(appends * BLOCK, began);
    client.close(session, Summary::default(), Ending { done: true, ..Ending::default() }).unwrap();
    drop(client);
    agent.stop();
    driver.stop();
    rate
}

fn main() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    compare("a connection is made", "us", false, connecting);
    compare("200 bytes there and back", "us", false, |encrypt| round_trip(encrypt, 200));
    compare("80 KiB there and back", "us", false, |encrypt| round_trip(encrypt, BLOCK));
    compare("messages of 80 KiB one way", "MB/s", true, |encrypt| one_way(encrypt, BLOCK));
    compare("messages of 8 MiB one way", "MB/s", true, |encrypt| one_way(encrypt, 8 << 20));
    compare("appends of 80 KiB, one peer, 4 under way", "MB/s", true, |encrypt| appends(folder, encrypt));
    compare("blocks of 80 KiB spilled", "MB/s", true, |encrypt| blocks(folder, encrypt, false));
    compare("blocks of 80 KiB read back", "MB/s", true, |encrypt| blocks(folder, encrypt, true));
    compare("2 KiB of keyed state read", "us", false, |encrypt| lookups(folder, encrypt));
}
