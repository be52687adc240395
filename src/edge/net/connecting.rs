//! Making a connection: every address of a name, a time-out on each kind of socket, and patience with a
//! crowd at the other side's door.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::net::sockopt::{self, Timeout};
use rustix::net::{SocketAddrUnix, connect};

use crate::edge::platform::unix_socket;
use crate::error::{Error, Result};

/// First pause before another try; each is twice as long as the one before.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// An idle connection is asked for a sign of life after this time, then this often, so many times.
const KEEP_ALIVE_IDLE: Duration = Duration::from_secs(30);
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEP_ALIVE_COUNT: u32 = 3;

/// Tries until `attempt` gives something, with growing pauses; at most `patience`.
pub(super) fn patiently<T>(
    agent: &str,
    patience: Duration,
    mut attempt: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let deadline = Instant::now() + patience;
    let mut pause = PAUSE_MIN;
    loop {
        if let Some(made) = attempt()? {
            return Ok(made);
        }
        if Instant::now() + pause > deadline {
            let reason =
                "it closes connections before a word: too many wait there (or ulimit -n is low)".to_owned();
            return Err(Error::AgentUnreachable { agent: agent.to_owned(), reason });
        }
        sleep(pause.mul_f64(between_half_and_one()));
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Those who were sent away together do not come back together.
fn between_half_and_one() -> f64 {
    let mut byte = [0];
    // Without chance the pause is the longest.
    if getrandom::fill(&mut byte).is_err() {
        return 1.0;
    }
    0.5 + f64::from(byte[0]) / 512.0
}

/// Connects to a name's addresses, one after the other, until one answers.
pub(super) fn tcp(addr: &str, timeout: Duration) -> Result<TcpStream> {
    let named = addr.to_socket_addrs().map(Iterator::collect::<Vec<_>>);
    let stream = named.map_err(|e| e.to_string()).and_then(|addresses| first_of(&addresses, timeout));
    let stream = stream.and_then(|stream| prepare(&stream).map(|()| stream).map_err(|e| e.to_string()));
    stream.map_err(|reason| Error::AgentUnreachable { agent: addr.into(), reason })
}

fn first_of(addresses: &[SocketAddr], timeout: Duration) -> Result<TcpStream, String> {
    let deadline = Instant::now() + timeout;
    let mut reasons = Vec::new();
    for (number, address) in addresses.iter().enumerate() {
        // One that is silent leaves time for those behind it.
        let behind = u32::try_from(addresses.len() - number).unwrap_or(u32::MAX);
        let left = deadline.saturating_duration_since(Instant::now()) / behind;
        match TcpStream::connect_timeout(address, left.max(PAUSE_MIN)) {
            Ok(stream) => return Ok(stream),
            Err(error) => reasons.push(format!("{address}: {error}")),
        }
    }
    if reasons.is_empty() {
        reasons.push("the name has no address".into());
    }
    Err(reasons.join("; "))
}

/// No waiting for more to send, and a sign of life when nothing is sent: the other side's machine may be
/// switched off without a word.
pub(super) fn prepare(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEP_ALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEP_ALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, KEEP_ALIVE_COUNT)?;
    Ok(())
}

/// Connects to a Unix socket; behind one whose owner does not accept, this would wait for ever.
pub(super) fn unix(path: &Path, timeout: Duration) -> Result<UnixStream> {
    let connected = || -> rustix::io::Result<UnixStream> {
        let address = SocketAddrUnix::new(path)?;
        let socket = unix_socket()?;
        sockopt::set_socket_timeout(&socket, Timeout::Send, Some(timeout))?;
        connect(&socket, &address)?;
        Ok(socket.into())
    };
    connected().map_err(|error| {
        let (error, agent) = (std::io::Error::from(error), path.display().to_string());
        if error.kind() == ErrorKind::WouldBlock {
            let millis = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
            return Error::Timeout { what: format!("being let in by {agent}"), millis };
        }
        Error::AgentUnreachable { agent, reason: error.to_string() }
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn each_address_of_a_name_is_tried() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let here = listener.local_addr().unwrap();
        let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let timeout = Duration::from_secs(1);
        let stream = first_of(&[nobody, here], timeout).unwrap();
        assert_eq!(stream.peer_addr().unwrap(), here);
        let reason = first_of(&[nobody, nobody], timeout).unwrap_err();
        assert_eq!(reason.matches("refused").count(), 2, "{reason}");
        assert!(first_of(&[], timeout).unwrap_err().contains("no address"));
    }

    #[test]
    fn who_is_silent_is_asked_for_a_sign_of_life() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let here = listener.local_addr().unwrap().to_string();
        let stream = tcp(&here, Duration::from_secs(1)).unwrap();
        assert!(sockopt::socket_keepalive(&stream).unwrap());
        let dead_after = sockopt::tcp_keepidle(&stream).unwrap()
            + sockopt::tcp_keepintvl(&stream).unwrap() * sockopt::tcp_keepcnt(&stream).unwrap();
        assert!(dead_after <= Duration::from_secs(60), "{dead_after:?}");
    }

    #[test]
    fn what_is_refused_a_while_is_tried_again() {
        let mut tries = 0;
        let made = patiently("it", Duration::from_secs(2), || {
            tries += 1;
            Ok((tries == 5).then_some(tries))
        });
        assert_eq!(made.unwrap(), 5);
        let began = Instant::now();
        let given_up = patiently("it", Duration::from_millis(100), || Ok(None::<()>)).unwrap_err();
        assert!(given_up.to_string().contains("too many wait"), "{given_up}");
        assert!(began.elapsed() < Duration::from_secs(1));
    }
}
