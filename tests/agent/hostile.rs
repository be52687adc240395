//! Whoever does not hold the secret, or does not speak the protocol, is shown out; the rest goes on.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use clonos::edge::net::client::Client;

use crate::world::{World, append, open, task, text};

fn quick() -> World {
    World::with(|config, _| config.io_timeout_ms = 500)
}

/// Reads until the other side closes; how long that took.
fn closed_after(mut stream: impl Read) -> Duration {
    let began = Instant::now();
    let mut rest = [0; 1024];
    while matches!(stream.read(&mut rest), Ok(1..)) {}
    began.elapsed()
}

fn serves(world: &World, partition: u32) {
    let mut worker = world.worker();
    let opened = open(&mut worker, &task(partition), 1, 1);
    append(&mut worker, opened.session, &text("fine")).unwrap();
}

#[test]
fn a_wrong_secret_is_refused_and_not_told() {
    let world = quick();
    let mut config = world.config.clone();
    config.secret = [8; 32];
    let refused = Client::connect(&config, world.driver.socket()).unwrap_err();
    assert_eq!(refused.condition(), "AUTH_REFUSED");
    let said = format!("{refused:?} {config:?}");
    assert!(!said.contains("8, 8") && !said.contains("7, 7"), "{said}");
    serves(&world, 0);
}

#[test]
fn garbage_is_refused_on_both_sockets() {
    let world = quick();
    for round in 0..20_u8 {
        let garbage: Vec<u8> = (0..2000_u32).map(|n| (n as u8).wrapping_mul(31) ^ round).collect();
        let mut tcp = TcpStream::connect(world.driver.addr()).unwrap();
        let mut unix = UnixStream::connect(world.driver.socket()).unwrap();
        // The agent may have closed before all was written.
        let _ = tcp.write_all(&garbage);
        let _ = unix.write_all(&garbage);
        tcp.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        unix.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        assert!(closed_after(tcp) < Duration::from_secs(2));
        assert!(closed_after(unix) < Duration::from_secs(2));
    }
    serves(&world, 0);
}

#[test]
fn a_silent_connection_is_closed_in_time() {
    let world = quick();
    let silent = TcpStream::connect(world.driver.addr()).unwrap();
    silent.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    serves(&world, 0);
    assert!(closed_after(silent) < Duration::from_secs(2));
}

#[test]
fn a_connection_that_drips_is_closed_in_time() {
    let world = quick();
    let mut dripping = TcpStream::connect(world.driver.addr()).unwrap();
    let began = Instant::now();
    while dripping.write_all(b"x").is_ok() {
        assert!(began.elapsed() < Duration::from_secs(4), "one byte at a time keeps a connection open");
        std::thread::sleep(Duration::from_millis(200));
    }
    serves(&world, 0);
}

#[test]
fn unproven_connections_are_bounded_and_the_agent_serves_again() {
    let world = quick();
    let many: Vec<_> = (0..300).filter_map(|_| TcpStream::connect(world.driver.addr()).ok()).collect();
    assert!(many.len() > 100);
    std::thread::sleep(Duration::from_millis(1_500));
    serves(&world, 0);
    drop(many);
    serves(&world, 1);
}

/// Goes through the handshake by hand, as a program that holds the secret and then misbehaves.
fn proven(world: &World) -> clonos::edge::net::Connection {
    let timeout = Duration::from_millis(world.config.io_timeout_ms);
    clonos::edge::net::Connection::tcp(world.driver.addr(), &world.config.credentials(), timeout).unwrap()
}

#[test]
fn a_frame_that_is_too_large_ends_its_connection_only() {
    let world = quick();
    for len in [u32::MAX, (256 << 20) + 1] {
        let connection = proven(&world);
        let clonos::edge::net::Stream::Tcp(mut raw) = connection.stream().try_clone().unwrap() else {
            panic!("TCP")
        };
        raw.write_all(&len.to_le_bytes()).unwrap();
        raw.write_all(&[0; 100]).unwrap();
        assert!(closed_after(raw) < Duration::from_secs(2));
    }
    serves(&world, 0);
}

#[test]
fn nonsense_after_the_handshake_ends_its_connection_only() {
    let world = quick();
    for kind in 0..=255_u8 {
        let connection = proven(&world);
        let clonos::edge::net::Stream::Tcp(mut raw) = connection.stream().try_clone().unwrap() else {
            panic!("TCP")
        };
        let mut frame = 41_u32.to_le_bytes().to_vec();
        frame.push(kind);
        frame.extend([0xff; 40]);
        raw.write_all(&frame).unwrap();
        let _ = raw.shutdown(std::net::Shutdown::Write);
        assert!(closed_after(raw) < Duration::from_secs(2), "kind {kind}");
    }
    serves(&world, 0);
}

#[test]
fn a_frame_that_stops_halfway_ends_with_its_connection() {
    let world = quick();
    let connection = proven(&world);
    let clonos::edge::net::Stream::Tcp(mut raw) = connection.stream().try_clone().unwrap() else {
        panic!("TCP")
    };
    raw.write_all(&1000_u32.to_le_bytes()).unwrap();
    raw.write_all(&[1; 10]).unwrap();
    serves(&world, 0);
    raw.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    assert!(closed_after(raw) < Duration::from_secs(3), "half a frame does not hold a thread for ever");
    drop(connection);
}

#[test]
fn a_session_of_another_connection_cannot_be_used() {
    let world = quick();
    let mut worker = world.worker();
    let opened = open(&mut worker, &task(0), 1, 1);
    let mut other = world.worker();
    let refused = append(&mut other, opened.session, &text("not mine")).unwrap_err();
    assert_eq!(refused.condition(), "PROTOCOL");
    append(&mut worker, opened.session, &text("mine")).unwrap();
    assert_eq!(open(&mut world.worker(), &task(0), 1, 2).prior, [text("mine")]);
}
