//! Connections to other agents, kept a while for the next request.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::messages::Connection;
use super::stream::Deadline;
use crate::agent::protocol::{AgentInfo, Reply, Request};
use crate::config::Credentials;
use crate::edge::locked;
use crate::edge::progress::Progress;
use crate::error::{Error, Result};
use crate::id::AgentId;

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
    ours: Credentials,
    /// For a request and its answer, with all that is done for them.
    allowed: Duration,
    idle: Mutex<Idle>,
    /// When each agent last failed to answer; one that answers is not in it.
    failed: Mutex<HashMap<String, Instant>>,
}

#[derive(Debug)]
struct Idle {
    kept: HashMap<String, Vec<(Instant, Connection)>>,
    looked: Instant,
}

impl Connections {
    /// Whoever waits here for what others answer waits for `timeout` itself: it is told in time.
    pub(in crate::edge) fn new(ours: Credentials, timeout: Duration) -> Self {
        let idle = Mutex::new(Idle { kept: HashMap::new(), looked: Instant::now() });
        Self { ours, allowed: timeout / 2, idle, failed: Mutex::default() }
    }

    /// Asks an agent and reads the answer.
    pub(in crate::edge) fn call(&self, agent: &AgentInfo, request: &Request) -> Result<Reply> {
        self.call_within(&agent.addr, Some(agent.id), request, self.allowed)
    }

    /// Asks whoever listens there: the driver, which is known by its address alone.
    pub(in crate::edge) fn call_at(&self, addr: &str, request: &Request) -> Result<Reply> {
        self.call_within(addr, None, request, self.allowed)
    }

    /// As [`Self::call_at`], for what the driver may first have to read from the checkpoint folder. Only for those who
    /// ask it on behalf of a worker's open, which waits longer.
    pub(in crate::edge) fn call_driver(&self, addr: &str, request: &Request) -> Result<Reply> {
        self.call_within(addr, None, request, 2 * self.allowed)
    }

    fn call_within(
        &self,
        addr: &str,
        agent: Option<AgentId>,
        request: &Request,
        allowed: Duration,
    ) -> Result<Reply> {
        let reply = self.ask(addr, agent, request, Deadline::within(allowed));
        self.note(addr, reply.is_ok());
        match reply? {
            Reply::Failed(error) => Err(error),
            reply => Ok(reply),
        }
    }

    /// A connection that was kept and turns out dead is replaced once.
    fn ask(
        &self,
        addr: &str,
        agent: Option<AgentId>,
        request: &Request,
        deadline: Deadline,
    ) -> Result<Reply> {
        let asked = self.send(addr, agent, request, deadline)?;
        match self.answer(addr, asked) {
            Err(Error::AgentUnreachable { .. }) => {
                locked(&self.idle).kept.remove(addr);
                let asked = self.send(addr, agent, request, deadline)?;
                self.answer(addr, asked)
            }
            answer => answer,
        }
    }

    fn answer(&self, addr: &str, mut asked: Connection) -> Result<Reply> {
        let reply = asked.read()?;
        Progress::step();
        let mut idle = locked(&self.idle);
        let kept = idle.kept.entry(addr.to_owned()).or_default();
        if kept.len() < IDLE_MAX {
            kept.push((Instant::now(), asked));
        }
        Ok(reply)
    }

    fn send(
        &self,
        addr: &str,
        agent: Option<AgentId>,
        request: &Request,
        deadline: Deadline,
    ) -> Result<Connection> {
        let is_meant = |connection: &Connection| agent.is_none_or(|agent| agent == connection.agent());
        let kept = locked(&self.idle).kept.get_mut(addr).and_then(Vec::pop);
        if let Some((since, mut connection)) = kept
            && since.elapsed() < IDLE_PATIENCE
            && is_meant(&connection)
        {
            connection.set_deadline(Some(deadline))?;
            // The other side may have gone since; then a fresh connection decides.
            if connection.write(request).is_ok() {
                return Ok(connection);
            }
        }
        let mut connection =
            Connection::tcp_before(addr, &self.ours, deadline).map_err(|error| of_another(addr, error))?;
        if !is_meant(&connection) {
            // Of the same application: it has none of what was asked for, and must not say so in the other's name.
            return Err(has_another(addr));
        }
        connection.write(request)?;
        Ok(connection)
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

/// An agent that ended leaves its port to whoever comes next, such as an agent of another application: it is as
/// silent as one whose port nobody has.
fn of_another(addr: &str, error: Error) -> Error {
    match error {
        Error::AuthRefused { .. } | Error::EncryptionDiffers { .. } => has_another(addr),
        error => error,
    }
}

fn has_another(addr: &str) -> Error {
    Error::AgentUnreachable {
        agent: addr.to_owned(),
        reason: "who listens there is not the agent that was meant: the address may be another's by now"
            .into(),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::thread::sleep;

    use super::*;
    use crate::agent::protocol::PROTOCOL_VERSION;
    use crate::edge::net::Stream;

    const OURS: Credentials = Credentials { secret: [7; 32], encrypt: false };
    const US: AgentId = AgentId(7);

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
                .map(|stream| {
                    Connection::accept(Stream::Tcp(stream), "us".into(), &OURS, US, timeout).unwrap()
                })
                .collect::<Vec<_>>()
        });
        let connections = Connections::new(OURS, timeout);
        let [old, new] = [(); 2].map(|()| Connection::tcp(&addr, &OURS, timeout).unwrap());
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
        let asked = connections.send(&addr, None, &Request::Stats, Deadline::within(timeout)).unwrap();
        assert!(matches!(second.read().unwrap(), Request::Stats));
        drop(asked);
    }

    #[test]
    fn whoever_has_the_address_of_an_agent_that_ended_is_not_that_agent() {
        let timeout = Duration::from_secs(5);
        let others = [
            (Credentials { secret: [8; 32], encrypt: false }, "AUTH_REFUSED"),
            (Credentials { secret: [8; 32], encrypt: true }, "ENCRYPTION_DIFFERS"),
        ];
        for (theirs, said) in others {
            let another = peer(move |stream| {
                let accepted = Connection::accept(Stream::Tcp(stream), "us".into(), &theirs, US, timeout);
                assert_eq!(accepted.unwrap_err().condition(), said);
            });
            let connections = Connections::new(OURS, timeout);
            let told = connections.call_at(&another, &Request::Stats).unwrap_err();
            assert!(told.is_silence() && told.to_string().contains("another's by now"), "{told}");
            assert!(connections.failed_lately(&another));
        }
    }

    /// Answers all that is asked, as an agent of these tests that has nothing.
    fn has_nothing(ours: Credentials, stream: TcpStream) {
        let timeout = Duration::from_secs(5);
        let accepted = Connection::accept(Stream::Tcp(stream), "us".into(), &ours, US, timeout);
        let Ok(mut connection) = accepted else { return };
        while connection.read::<Request>().is_ok() {
            connection.write(&Reply::Done).unwrap();
        }
    }

    #[test]
    fn an_agent_of_the_application_does_not_answer_for_one_that_had_its_address() {
        for encrypt in [false, true] {
            let ours = Credentials { encrypt, ..OURS };
            let addr = peer(move |stream| has_nothing(ours, stream));
            let agent =
                |id| AgentInfo { id: AgentId(id), addr: addr.clone(), host: "h".into(), driver: false };
            let connections = Connections::new(ours, Duration::from_secs(5));
            // The first time nothing is kept; then there is a connection to the one that is there now.
            for _ in 0..2 {
                let told = connections.call(&agent(8), &Request::Stats).unwrap_err();
                assert!(told.is_silence(), "{told}");
                assert!(connections.failed_lately(&addr));
                assert!(matches!(connections.call(&agent(7), &Request::Stats), Ok(Reply::Done)));
            }
        }
    }

    /// How long a peer in these tests is listened to. It speaks more often than that, and for longer.
    const ALLOWED: Duration = Duration::from_millis(300);

    fn dribble(mut stream: &TcpStream, bytes: &[u8]) {
        for byte in bytes {
            sleep(Duration::from_millis(20));
            // Whoever is not listened to any more is told so.
            if stream.write_all(&[*byte]).is_err() {
                return;
            }
        }
    }

    /// The address of a peer that answers each connection so.
    fn peer(answer: impl Fn(TcpStream) + Send + 'static) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || listener.incoming().for_each(|stream| answer(stream.unwrap())));
        addr
    }

    #[test]
    fn an_answer_that_drips_in_is_not_waited_for_longer_than_one_that_does_not_come() {
        let greeting = [b"CLON", &PROTOCOL_VERSION.to_le_bytes()[..], &[0; 41]].concat();
        let greets = peer(move |stream| dribble(&stream, &greeting));
        let answers = peer(|stream| {
            let copy = stream.try_clone().unwrap();
            let timeout = Duration::from_secs(5);
            let mut connection =
                Connection::accept(Stream::Tcp(stream), "us".into(), &OURS, US, timeout).unwrap();
            connection.read::<Request>().unwrap();
            let reply = postcard::to_stdvec(&Reply::Blocks(vec![vec![7; 100].into()])).unwrap();
            let head = u32::try_from(reply.len()).unwrap().to_le_bytes();
            dribble(&copy, &[&head[..], &reply].concat());
        });
        let connections = Connections::new(OURS, 2 * ALLOWED);
        for addr in [greets, answers] {
            let told = connections.call_at(&addr, &Request::Stats);
            assert!(matches!(&told, Err(Error::Timeout { millis: 300, .. })), "{told:?}");
            assert!(connections.failed_lately(&addr));
            let told = connections.call_driver(&addr, &Request::Stats);
            assert!(
                matches!(&told, Err(Error::Timeout { millis: 600, .. })),
                "the driver may read first: {told:?}"
            );
        }
    }
}
