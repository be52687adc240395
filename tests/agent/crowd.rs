//! Many connections at once: a crowd waits and comes again, and who only stands in the door keeps nobody
//! else out.

use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use clonos::config::Credentials;
use clonos::edge::net::Connection;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, listen, socket_with};

use crate::world::World;

const OURS: Credentials = Credentials { secret: [7; 32], encrypt: false };

/// Connections from one address of this machine that never say a word.
fn silent(to: &str, from: &str, count: usize) -> Vec<TcpStream> {
    let (to, from): (SocketAddr, SocketAddr) = (to.parse().unwrap(), format!("{from}:0").parse().unwrap());
    let one = |_| {
        let socket =
            socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        bind(&socket, &from).unwrap();
        connect(&socket, &to).unwrap();
        TcpStream::from(socket)
    };
    (0..count).map(one).collect()
}

#[test]
fn one_address_does_not_shut_the_door_for_another() {
    let world = World::new();
    let crowd = silent(world.driver.addr(), "127.0.0.2", 400);
    // Accepted by now.
    std::thread::sleep(Duration::from_millis(200));
    let began = Instant::now();
    Connection::tcp(world.driver.addr(), &world.config.credentials(), Duration::from_secs(1)).unwrap();
    assert!(began.elapsed() < Duration::from_millis(500), "nobody waits: {:?}", began.elapsed());
    drop(crowd);
}

#[test]
fn who_finds_the_door_full_comes_again() {
    let world = World::with(|config, _| config.io_timeout_ms = 500);
    let crowd = silent(world.driver.addr(), "127.0.0.1", 400);
    std::thread::sleep(Duration::from_millis(100));
    Connection::tcp(world.driver.addr(), &world.config.credentials(), Duration::from_secs(5)).unwrap();
    drop(crowd);
}

#[test]
fn a_stage_may_start_on_many_executors_at_once() {
    let world = World::new();
    std::thread::scope(|scope| {
        for _ in 0..300 {
            scope.spawn(|| {
                Connection::tcp(world.driver.addr(), &world.config.credentials(), Duration::from_secs(20))
                    .unwrap()
            });
        }
    });
}

#[test]
fn a_program_that_hangs_up_at_once_is_given_up_in_time() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || listener.incoming().for_each(drop));
    let began = Instant::now();
    let refused = Connection::tcp(&addr, &OURS, Duration::from_secs(1)).unwrap_err();
    assert_eq!(refused.condition(), "AGENT_UNREACHABLE");
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    // Where nobody listens, nobody comes again.
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let began = Instant::now();
    Connection::tcp(&nobody, &OURS, Duration::from_secs(5)).unwrap_err();
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
}

#[test]
fn an_agent_that_does_not_let_in_is_given_up_in_time() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("stopped.sock");
    // Its queue is one long.
    let listener = UnixListener::bind(&path).unwrap();
    listen(&listener, 0).unwrap();
    let queued: Vec<_> = (0..1).map(|_| std::os::unix::net::UnixStream::connect(&path).unwrap()).collect();
    let began = Instant::now();
    let (done, gave_up) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        drop(done.send(Connection::unix(&path, &[7; 32], Duration::from_millis(500))))
    });
    let refused = gave_up.recv_timeout(Duration::from_secs(5)).expect("it waits for ever").unwrap_err();
    assert_eq!(refused.condition(), "TIMEOUT");
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    drop((queued, listener));
}
