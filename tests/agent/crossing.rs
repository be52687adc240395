//! What can be read by others: on the network between two agents, and in the files they spill to.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::spawn;

use bytes::Bytes;
use clonos::config::SessionConfig;
use clonos::edge::agent::{Agent, AgentConfig, Role};

use crate::world::{World, append, close, eventually, open, task};

/// Stands in each block.
const TEXT: &[u8] = b"an answer that stands nowhere else";
const BLOCKS: usize = 60;

/// Everything that crossed a relay, both ways.
type Seen = Arc<Mutex<Vec<u8>>>;

fn copy(mut from: TcpStream, mut to: TcpStream, seen: Seen) {
    spawn(move || {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(read @ 1..) = from.read(&mut buffer) {
            seen.lock().unwrap().extend_from_slice(&buffer[..read]);
            if to.write_all(&buffer[..read]).is_err() {
                break;
            }
        }
        to.shutdown(Shutdown::Both).ok();
    });
}

/// A driver that all others reach through a relay, which stands at its address and writes down what crosses.
fn behind_a_relay(set: impl FnOnce(&mut SessionConfig)) -> (World, Seen) {
    let world = World::with(|config, _| {
        config.driver_addr = "127.0.0.2".into();
        set(config);
    });
    let port = world.driver.addr().port();
    let listener = TcpListener::bind(("127.0.0.2", port)).unwrap();
    let seen = Seen::default();
    let noted = Arc::clone(&seen);
    spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(driver) = TcpStream::connect(("127.0.0.1", port)) else { break };
            let ends = (client.try_clone().unwrap(), driver.try_clone().unwrap());
            copy(client, driver, Arc::clone(&noted));
            copy(ends.1, ends.0, Arc::clone(&noted));
        }
    });
    (world, seen)
}

trait Port {
    fn port(&self) -> u16;
}

impl Port for str {
    fn port(&self) -> u16 {
        self.rsplit_once(':').unwrap().1.parse().unwrap()
    }
}

fn stands_in(bytes: &[u8]) -> bool {
    bytes.windows(TEXT.len()).any(|part| part == TEXT)
}

/// What stands in the files of a folder that this process has open, under whatever name or none.
fn spilled(folder: &Path) -> Vec<u8> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd").unwrap() {
        let entry = entry.unwrap().path();
        if std::fs::read_link(&entry).is_ok_and(|target| target.starts_with(folder)) {
            let file = std::fs::File::open(entry).unwrap();
            let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
            file.read_exact_at(&mut bytes, 0).unwrap();
            all.append(&mut bytes);
        }
    }
    all
}

/// A block of some 40 KB, of which no two are equal.
fn block(number: usize) -> Bytes {
    let line = [TEXT, &number.to_le_bytes()].concat();
    line.repeat(1_000).into()
}

#[test]
fn what_agents_say_and_spill_can_be_read_by_others_unless_it_is_encrypted() {
    for encrypt in [false, true] {
        let (world, seen) = behind_a_relay(|config| {
            (config.encrypt, config.encrypt_spill) = (encrypt, encrypt);
            config.memory_bytes = 1 << 20;
        });
        let executor = world.executor("executor");
        let mut worker = world.worker_of(&executor);
        let opened = open(&mut worker, &task(0), 1, 1);
        for number in 0..BLOCKS {
            append(&mut worker, opened.session, &block(number)).unwrap();
        }
        let folder = world.folder.path().join("spill");
        eventually("both have spilled", || spilled(&folder).len() > BLOCKS * block(0).len());
        assert_eq!(stands_in(&spilled(&folder)), !encrypt, "on disk, encrypted: {encrypt}");
        let crossed = seen.lock().unwrap().clone();
        assert!(crossed.len() > BLOCKS * block(0).len(), "copies went through the relay");
        assert_eq!(stands_in(&crossed), !encrypt, "on the network, encrypted: {encrypt}");
        // What is read back, from disk and from the other agent, is what was written.
        close(&mut worker, opened.session);
        executor.stop();
        let again = open(&mut world.worker(), &task(0), 1, 2);
        assert_eq!(again.prior.len(), BLOCKS);
        assert!((0..BLOCKS).all(|number| again.prior[number] == block(number)));
    }
}

#[test]
fn an_agent_that_was_told_otherwise_than_the_drivers_does_not_start() {
    for encrypt in [false, true] {
        let world = World::with(|config, _| config.encrypt = encrypt);
        let session = SessionConfig { encrypt: !encrypt, ..world.config.clone() };
        let (role, socket) = (Role::Executor { id: String::new() }, world.folder.path().join("other.sock"));
        let refused = Agent::start(AgentConfig { session, role, socket }).err().unwrap();
        assert_eq!(refused.condition(), "ENCRYPTION_DIFFERS");
        assert!(refused.to_string().contains("spark.network.crypto.enabled"), "{refused}");
        // Workers beside it are not concerned.
        open(&mut world.worker(), &task(0), 1, 1);
    }
}
