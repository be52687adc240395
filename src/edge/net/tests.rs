//! Two ends of a connection, and what stands between them and changes what crosses.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::spawn;
use std::time::Duration;

use super::{Connection, Stream};
use crate::config::Credentials;
use crate::edge::locked;
use crate::error::{Error, Result};
use crate::id::AgentId;

const CLEAR: Credentials = Credentials { secret: [7; 32], encrypt: false };
const ENCRYPTED: Credentials = Credentials { secret: [7; 32], encrypt: true };
const TIMEOUT: Duration = Duration::from_secs(2);
/// Bytes of the greeting, and of what the client says in an encrypted handshake.
const GREETING: usize = 49;
const FIRST: usize = 1 + 48;
const TEXT: &str = "a text that stands nowhere else";

/// What becomes of the bytes from the client, given how many there were before.
type Change = Box<dyn Fn(usize, Vec<u8>) -> Vec<u8> + Send>;

/// Copies until one end closes; what crossed.
fn relay(mut from: TcpStream, mut to: TcpStream, change: Change) -> Arc<Mutex<Vec<u8>>> {
    let seen = Arc::<Mutex<Vec<u8>>>::default();
    let noted = Arc::clone(&seen);
    spawn(move || {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(read @ 1..) = from.read(&mut buffer) {
            let before = locked(&noted).len();
            locked(&noted).extend_from_slice(&buffer[..read]);
            if to.write_all(&change(before, buffer[..read].to_vec())).is_err() {
                break;
            }
        }
        let _ = to.shutdown(std::net::Shutdown::Both);
    });
    seen
}

/// Both ends, and what crossed between them.
struct Line {
    client: Result<Connection>,
    server: Result<Connection>,
    asked: Arc<Mutex<Vec<u8>>>,
    answered: Arc<Mutex<Vec<u8>>>,
}

/// A connection through somebody who changes what the client sends.
fn line_that(client: Credentials, server: Credentials, change: Change) -> Line {
    let [agent, between] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let (agent_addr, addr) = (agent.local_addr().unwrap(), between.local_addr().unwrap().to_string());
    let serving = spawn(move || {
        let stream = agent.accept().unwrap().0;
        Connection::accept(Stream::Tcp(stream), "the client".into(), &server, AgentId(7), TIMEOUT)
    });
    let relaying = spawn(move || {
        let (client, server) = (between.accept().unwrap().0, TcpStream::connect(agent_addr).unwrap());
        let back = (server.try_clone().unwrap(), client.try_clone().unwrap());
        (relay(client, server, change), relay(back.0, back.1, Box::new(|_, bytes| bytes)))
    });
    let client = Connection::tcp(&addr, &client, TIMEOUT);
    let (asked, answered) = relaying.join().unwrap();
    Line { client, server: serving.join().unwrap(), asked, answered }
}

fn line(client: Credentials, server: Credentials) -> Line {
    line_that(client, server, Box::new(|_, bytes| bytes))
}

fn condition(made: &Result<Connection>) -> &'static str {
    made.as_ref().map_or_else(Error::condition, |_| "MADE")
}

fn crossed(seen: &Mutex<Vec<u8>>, text: &str) -> bool {
    locked(seen).windows(text.len()).any(|part| part == text.as_bytes())
}

#[test]
fn what_is_said_crosses_in_clear_unless_it_is_encrypted() {
    for ours in [CLEAR, ENCRYPTED] {
        let Line { client, server, asked, answered } = line(ours, ours);
        let (mut client, mut server) = (client.unwrap(), server.unwrap());
        client.write(&TEXT).unwrap();
        assert_eq!(server.read::<String>().unwrap(), TEXT);
        server.write(&TEXT).unwrap();
        assert_eq!(client.read_next::<String>(|| false).unwrap(), TEXT);
        for seen in [asked, answered] {
            assert_eq!(crossed(&seen, TEXT), !ours.encrypt);
        }
    }
}

#[test]
fn messages_of_any_size_come_as_they_were_sent() {
    let Line { client, server, .. } = line(ENCRYPTED, ENCRYPTED);
    let (mut client, mut server) = (client.unwrap(), server.unwrap());
    // Around the size of a record, of a part, and more records than are written with one key.
    let sizes = [0, 1, 65_515, 65_516, 65_519, 65_520, 131_038, (1 << 20) - 1, 1 << 20, 3_000_000, 7];
    let messages = sizes.map(|size| (0..size).map(|n: u32| (n % 251) as u8).collect::<Vec<u8>>());
    let sent = messages.clone();
    let sending = spawn(move || sent.iter().for_each(|message| client.write(message).unwrap()));
    for message in &messages {
        assert!(server.read_next::<Vec<u8>>(|| true).unwrap() == *message, "{} bytes", message.len());
    }
    sending.join().unwrap();
    assert_eq!(server.read::<String>().unwrap_err().condition(), "AGENT_UNREACHABLE");
}

#[test]
fn a_wrong_secret_is_refused_by_both_sides() {
    for encrypt in [false, true] {
        let ours = Credentials { encrypt, ..CLEAR };
        let Line { client, server, .. } = line(Credentials { secret: [8; 32], encrypt }, ours);
        assert_eq!([condition(&client), condition(&server)], ["AUTH_REFUSED"; 2]);
    }
}

#[test]
fn one_who_encrypts_and_one_who_does_not_refuse_each_other_and_say_why() {
    for (client, server) in [(CLEAR, ENCRYPTED), (ENCRYPTED, CLEAR)] {
        let Line { client, server, .. } = line(client, server);
        assert_eq!([condition(&client), condition(&server)], ["ENCRYPTION_DIFFERS"; 2]);
        for told in [client.unwrap_err(), server.unwrap_err()].map(|error| error.to_string()) {
            assert!(told.contains("`encrypt` of clonos.attach"), "{told}");
        }
    }
}

/// A server that is changed on its way to one that does not encrypt, and a client that believes its own settings.
#[test]
fn nobody_between_them_talks_two_who_encrypt_out_of_it() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    let between = spawn(move || {
        let mut client = listener.accept().unwrap().0;
        let mut greeting = [7; GREETING];
        greeting[..4].copy_from_slice(b"CLON");
        greeting[4..8].copy_from_slice(&crate::agent::protocol::PROTOCOL_VERSION.to_le_bytes());
        greeting[8] = 0;
        client.write_all(&greeting).unwrap();
        let mut said = Vec::new();
        let _ = client.read_to_end(&mut said);
        said
    });
    let refused = Connection::tcp(&addr, &ENCRYPTED, TIMEOUT).unwrap_err();
    assert_eq!(refused.condition(), "ENCRYPTION_DIFFERS");
    assert_eq!(between.join().unwrap(), [1], "that it encrypts, and nothing else");
    // The same, where it is the client's word that is changed.
    let clears = |before, mut bytes: Vec<u8>| {
        if before == 0 {
            bytes[0] = 0;
        }
        bytes
    };
    let Line { client, server, .. } = line_that(ENCRYPTED, ENCRYPTED, Box::new(clears));
    assert_eq!([condition(&client), condition(&server)], ["AUTH_REFUSED", "ENCRYPTION_DIFFERS"]);
}

#[test]
fn a_handshake_that_was_changed_anywhere_is_refused() {
    for place in 0..FIRST {
        let flips = move |before: usize, mut bytes: Vec<u8>| {
            if let Some(byte) = place.checked_sub(before).and_then(|at| bytes.get_mut(at)) {
                *byte ^= 0x80;
            }
            bytes
        };
        let Line { client, server, .. } = line_that(ENCRYPTED, ENCRYPTED, Box::new(flips));
        assert!(client.is_err() && server.is_err(), "byte {place}");
    }
}

#[test]
fn a_handshake_that_was_overheard_opens_no_other_connection() {
    let Line { client, asked, .. } = line(ENCRYPTED, ENCRYPTED);
    client.unwrap();
    let overheard = locked(&asked).clone();
    assert_eq!(overheard.len(), FIRST);
    let agent = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut again = TcpStream::connect(agent.local_addr().unwrap()).unwrap();
    again.write_all(&overheard).unwrap();
    let stream = Stream::Tcp(agent.accept().unwrap().0);
    let refused = Connection::accept(stream, "somebody".into(), &ENCRYPTED, AgentId(7), TIMEOUT);
    assert_eq!(condition(&refused), "AUTH_REFUSED");
}

/// What the server reads of two messages, of which somebody changes the records; how many bytes those have.
fn read_both(change: impl Fn(usize, Vec<u8>) -> Vec<u8> + Send + 'static) -> [Result<String>; 2] {
    let after = move |before: usize, bytes: Vec<u8>| match before.checked_sub(FIRST) {
        Some(before) => change(before, bytes),
        None => bytes,
    };
    let Line { client, server, .. } = line_that(ENCRYPTED, ENCRYPTED, Box::new(after));
    let (mut client, mut server) = (client.unwrap(), server.unwrap());
    client.write(&"first").unwrap();
    // So that they are changed one by one.
    std::thread::sleep(Duration::from_millis(50));
    let _may_be_gone = client.write(&"second");
    drop(client);
    [server.read(), server.read()]
}

#[test]
fn records_that_were_changed_cut_or_repeated_end_the_connection() {
    /// Length, tag, and a message of `first`.
    const RECORD: usize = 2 + 16 + 4 + 1 + 5;
    let [first, second] = read_both(|_, bytes| bytes);
    assert_eq!((first.unwrap(), second.unwrap()), ("first".into(), "second".into()));
    for place in 0..RECORD {
        let [first, second] = read_both(move |before, mut bytes| {
            if before == 0 {
                bytes[place] ^= 1;
            }
            bytes
        });
        assert_eq!(first.unwrap_err().condition(), "AGENT_UNREACHABLE", "byte {place}");
        assert!(second.is_err(), "nothing is believed after it");
    }
    // Cut at any byte of the second, and the first repeated in its place.
    for cut in 0..RECORD {
        let [first, second] = read_both(move |before, mut bytes| {
            bytes.truncate(if before == 0 { bytes.len() } else { cut });
            bytes
        });
        assert_eq!((first.unwrap().as_str(), second.is_err()), ("first", true), "cut at {cut}");
    }
    let [first, second] =
        read_both(|before, bytes| if before == 0 { [&*bytes, &*bytes].concat() } else { bytes });
    assert_eq!(first.unwrap(), "first");
    let told = second.unwrap_err().to_string();
    assert!(told.contains("repeated"), "{told}");
    // Left out, as though it had never been said.
    let [told, _] = read_both(|before, bytes| if before == 0 { Vec::new() } else { bytes });
    assert!(told.unwrap_err().to_string().contains("left out"));
}
