//! Connections to other agents, kept a while for the next request.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::messages::Connection;
use crate::agent::protocol::{Reply, Request};
use crate::edge::locked;
use crate::error::{Error, Result};

/// Idle connections kept per agent.
const IDLE_MAX: usize = 8;
/// How long a connection is kept for the next request.
const IDLE_PATIENCE: Duration = Duration::from_secs(60);
/// Time between two looks for those that were kept too long.
const IDLE_PERIOD: Duration = Duration::from_secs(5);
/// How long it counts that an agent did not answer.
const FAILED_LATELY: Duration = Duration::from_secs(60);

/// Connections to agents, by address.
#[derive(Debug)]
pub(in crate::edge) struct Connections {
    secret: [u8; 32],
    timeout: Duration,
    idle: Mutex<Idle>,
    /// When each agent last failed to answer; one that answers is not in it.
    failed: Mutex<HashMap<String, Instant>>,
}

#[derive(Debug)]
struct Idle {
    kept: HashMap<String, Vec<(Instant, Connection)>>,
    looked: Instant,
}

/// A request whose answer is still to be read.
#[derive(Debug)]
pub(in crate::edge) struct Asked {
    addr: String,
    connection: Connection,
}

impl Connections {
    pub(in crate::edge) fn new(secret: [u8; 32], timeout: Duration) -> Self {
        let idle = Mutex::new(Idle { kept: HashMap::new(), looked: Instant::now() });
        Self { secret, timeout, idle, failed: Mutex::default() }
    }

    /// Sends a request; the answer is read with [`Self::answer`].
    pub(in crate::edge) fn ask(&self, addr: &str, request: &Request) -> Result<Asked> {
        let asked = self.send(addr, request);
        if asked.is_err() {
            self.note(addr, false);
        }
        asked
    }

    fn send(&self, addr: &str, request: &Request) -> Result<Asked> {
        let kept = locked(&self.idle).kept.get_mut(addr).and_then(Vec::pop);
        if let Some((since, mut connection)) = kept
            && since.elapsed() < IDLE_PATIENCE
        {
            // The other side may have gone since; then a fresh connection decides.
            if connection.write(request).is_ok() {
                return Ok(Asked { addr: addr.to_owned(), connection });
            }
        }
        let mut connection = Connection::tcp(addr, &self.secret, self.timeout)?;
        connection.write(request)?;
        Ok(Asked { addr: addr.to_owned(), connection })
    }

    /// Reads the answer to a request.
    pub(in crate::edge) fn answer(&self, mut asked: Asked) -> Result<Reply> {
        let reply = asked.connection.read();
        self.note(&asked.addr, reply.is_ok());
        let reply = reply?;
        let mut idle = locked(&self.idle);
        let kept = idle.kept.entry(asked.addr).or_default();
        if kept.len() < IDLE_MAX {
            kept.push((Instant::now(), asked.connection));
        }
        match reply {
            Reply::Failed(error) => Err(error),
            reply => Ok(reply),
        }
    }

    /// Asks and reads the answer. A connection that was kept and turns out dead is replaced once.
    pub(in crate::edge) fn call(&self, addr: &str, request: &Request) -> Result<Reply> {
        match self.answer(self.ask(addr, request)?) {
            Err(Error::AgentUnreachable { .. }) => {
                locked(&self.idle).kept.remove(addr);
                self.answer(self.ask(addr, request)?)
            }
            answer => answer,
        }
    }

    /// Closes what was kept for too long; now and then, however often it is called.
    pub(in crate::edge) fn close_idle(&self) {
        let mut idle = locked(&self.idle);
        if idle.looked.elapsed() < IDLE_PERIOD {
            return;
        }
        idle.looked = Instant::now();
        idle.kept.retain(|_, kept| {
            kept.retain(|(since, _)| since.elapsed() < IDLE_PATIENCE);
            !kept.is_empty()
        });
        drop(idle);
        locked(&self.failed).retain(|_, at| at.elapsed() < FAILED_LATELY);
    }

    /// Whether an agent did not answer lately, and has not since.
    pub(in crate::edge) fn failed_lately(&self, addr: &str) -> bool {
        locked(&self.failed).get(addr).is_some_and(|at| at.elapsed() < FAILED_LATELY)
    }

    fn note(&self, addr: &str, answered: bool) {
        let mut failed = locked(&self.failed);
        if answered {
            failed.remove(addr);
        } else {
            failed.insert(addr.to_owned(), Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::edge::net::Stream;

    const SECRET: [u8; 32] = [7; 32];

    fn long_ago() -> Instant {
        Instant::now().checked_sub(IDLE_PATIENCE + IDLE_PERIOD).expect("this machine runs for a minute")
    }

    #[test]
    fn what_is_not_used_is_closed() {
        let timeout = Duration::from_secs(5);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap().to_string();
        let other_side = std::thread::spawn(move || {
            let accepted = (0..2).map(|_| listener.accept().unwrap().0);
            accepted
                .map(|stream| Connection::accept(Stream::Tcp(stream), "us".into(), &SECRET, timeout).unwrap())
                .collect::<Vec<_>>()
        });
        let connections = Connections::new(SECRET, timeout);
        let [old, new] = [(); 2].map(|()| Connection::tcp(&addr, &SECRET, timeout).unwrap());
        let [mut first, mut second] = <[Connection; 2]>::try_from(other_side.join().unwrap()).unwrap();
        {
            let mut idle = locked(&connections.idle);
            idle.kept.insert(addr.clone(), vec![(long_ago(), old), (Instant::now(), new)]);
            idle.kept.insert("gone".into(), Vec::new());
        }
        connections.close_idle();
        assert_eq!(locked(&connections.idle).kept.len(), 2, "not looked at each time");
        locked(&connections.idle).looked = long_ago();
        connections.close_idle();
        let kept: Vec<usize> = locked(&connections.idle).kept.values().map(Vec::len).collect();
        assert_eq!(kept, [1]);
        assert_eq!(first.read::<Reply>().unwrap_err().condition(), "AGENT_UNREACHABLE");
        // The other is used for the next request.
        let asked = connections.ask(&addr, &Request::Stats).unwrap();
        assert!(matches!(second.read().unwrap(), Request::Stats));
        drop(asked);
    }
}
