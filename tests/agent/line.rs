//! A line to the driver's agent on which a test reads what is asked, holds it up and loses it.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{sleep, spawn};
use std::time::Duration;

use clonos::agent::protocol::Request;

/// Bytes of each part of the handshake, in which anything may stand: see `edge/net/auth.rs`.
const PROOF_OF_CLIENT: &[usize] = &[65];
const PROOF_OF_SERVER: &[usize] = &[49, 32];

/// One connection on a line.
#[derive(Clone, Default)]
pub struct Talk {
    is_marked: Arc<AtomicBool>,
}

impl Talk {
    /// The answers of this connection are meant from here on.
    pub fn mark(&self) {
        self.is_marked.store(true, Ordering::SeqCst);
    }

    pub fn is_marked(&self) -> bool {
        self.is_marked.load(Ordering::SeqCst)
    }
}

/// One message without its length.
fn message(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut head = [0; 4];
    from.read_exact(&mut head)?;
    let mut message = vec![0; u32::from_le_bytes(head) as usize];
    from.read_exact(&mut message)?;
    Ok(message)
}

/// Takes messages from one end to the other as long as both are there. Those that do not `pass` are lost.
fn forward(
    from: &TcpStream,
    to: &TcpStream,
    proof: &[usize],
    mut pass: impl FnMut(&[u8]) -> bool,
) -> io::Result<()> {
    let (mut from, mut to) = (from, to);
    for bytes in proof {
        let mut part = vec![0; *bytes];
        from.read_exact(&mut part)?;
        to.write_all(&part)?;
    }
    loop {
        let message = message(&mut from)?;
        if pass(&message) {
            let mut framed = u32::try_from(message.len()).unwrap().to_le_bytes().to_vec();
            framed.extend(message);
            to.write_all(&framed)?;
        }
    }
}

/// The address of a line to the driver. Each request and each answer waits for `asked` and `answered`, which say
/// whether it arrives.
pub fn line(
    driver: &str,
    asked: impl Fn(&Talk, &Request) -> bool + Send + Sync + 'static,
    answered: impl Fn(&Talk) -> bool + Send + Sync + 'static,
) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (addr, driver) = (listener.local_addr().unwrap().to_string(), driver.to_owned());
    let (asked, answered) = (Arc::new(asked), Arc::new(answered));
    spawn(move || {
        for client in listener.incoming() {
            let client = Arc::new(client.unwrap());
            let server = Arc::new(TcpStream::connect(&driver).unwrap());
            let talk = Talk::default();
            let (asked, from, to, of) = (asked.clone(), client.clone(), server.clone(), talk.clone());
            spawn(move || {
                let pass = |message: &[u8]| asked(&of, &postcard::from_bytes(message).unwrap());
                forward(&from, &to, PROOF_OF_CLIENT, pass).ok();
                to.shutdown(Shutdown::Both).ok();
            });
            let answered = answered.clone();
            spawn(move || {
                forward(&server, &client, PROOF_OF_SERVER, |_| answered(&talk)).ok();
                client.shutdown(Shutdown::Both).ok();
            });
        }
    });
    addr
}

/// What becomes of the first request of a kind.
#[derive(Clone, Default)]
pub struct Hold {
    seen: Arc<AtomicBool>,
    may_go_on: Arc<AtomicBool>,
}

impl Hold {
    /// It was asked.
    pub fn is_seen(&self) -> bool {
        self.seen.load(Ordering::SeqCst)
    }

    /// It, or its answer, arrives.
    pub fn go_on(&self) {
        self.may_go_on.store(true, Ordering::SeqCst);
    }

    fn is_first(&self) -> bool {
        !self.seen.swap(true, Ordering::SeqCst)
    }

    fn wait(&self) {
        while !self.may_go_on.load(Ordering::SeqCst) {
            sleep(Duration::from_millis(5));
        }
    }
}

/// A line on which the first request that is `meant` waits.
pub fn holds_request(driver: &str, meant: fn(&Request) -> bool) -> (String, Hold) {
    let hold = Hold::default();
    let held = hold.clone();
    let asked = move |_: &Talk, request: &Request| {
        if meant(request) && held.is_first() {
            held.wait();
        }
        true
    };
    (line(driver, asked, |_| true), hold)
}

/// A line on which the answer to the first request that is `meant` waits.
pub fn holds_answer(driver: &str, meant: fn(&Request) -> bool) -> (String, Hold) {
    let hold = Hold::default();
    let (first, held) = (hold.clone(), hold.clone());
    let asked = move |talk: &Talk, request: &Request| {
        if meant(request) && first.is_first() {
            talk.mark();
        }
        true
    };
    let answered = move |talk: &Talk| {
        if talk.is_marked() {
            held.wait();
        }
        true
    };
    (line(driver, asked, answered), hold)
}

/// A line on which the answer to the first request that is `meant` is lost, and what follows on that connection.
pub fn loses_answer(driver: &str, meant: fn(&Request) -> bool) -> String {
    let hold = Hold::default();
    let asked = move |talk: &Talk, request: &Request| {
        if meant(request) && hold.is_first() {
            talk.mark();
        }
        true
    };
    line(driver, asked, |talk| !talk.is_marked())
}
