//! Who keeps a state for a savepoint: those that are at its version, each let go whatever becomes of it.

use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::thread::spawn;
use std::time::Duration;

use tempfile::TempDir;

use super::*;
use crate::agent::protocol::{Reply, Request, Silence};
use crate::agent::state::asking::Holding;
use crate::agent::state::messages::Clock;
use crate::config::{Credentials, SessionConfig};
use crate::edge::agent::registrar::Registrar;
use crate::edge::disk::Disk;
use crate::edge::disk::segment::RealDisk;
use crate::edge::net::{Connection, Stream};
use crate::id::AgentId;
use crate::state::StateId;

const SECRET: [u8; 32] = [7; 32];
const VERSION: Version = Version(Some(5));

/// An agent that answers so, or not at all, and what it was asked.
struct Stub {
    info: AgentInfo,
    asked: Arc<Mutex<Vec<Request>>>,
}

impl Stub {
    fn new(id: u64, answer: impl Fn(&Request) -> Option<Reply> + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap().to_string();
        let asked = Arc::<Mutex<Vec<Request>>>::default();
        let heard = Arc::clone(&asked);
        spawn(move || {
            for guest in listener.incoming() {
                let (stream, timeout) = (Stream::Tcp(guest.unwrap()), Duration::from_secs(5));
                // Some only look whether anybody listens.
                let ours = Credentials { secret: SECRET, encrypt: false };
                let accepted = Connection::accept(stream, "a guest".into(), &ours, AgentId(id), timeout);
                let Ok(mut guest) = accepted else { continue };
                while let Ok(request) = guest.read::<Request>() {
                    let answer = answer(&request);
                    locked(&heard).push(request);
                    if let Some(answer) = answer {
                        guest.write(&answer).unwrap();
                    }
                }
            }
        });
        Self { info: AgentInfo { id: AgentId(id), addr, host: id.to_string(), driver: false }, asked }
    }

    /// One that keeps what it has at a version.
    fn at(id: u64, version: Version) -> Self {
        Self::new(id, move |request| {
            let Request::StateHolder(asked) = request else { panic!("{request:?}") };
            Some(Reply::StateHolder(match asked.asked {
                Asked::Open { .. } => Answer::Opened { view: id, version, pending: Vec::new() },
                _ => Answer::Closed,
            }))
        })
    }

    fn was_let_go(&self) -> bool {
        let is_close = |request: &Request| matches!(request, Request::StateHolder(asked) if matches!(asked.asked, Asked::Close { .. }));
        locked(&self.asked).iter().any(is_close)
    }

    /// Holds these ranges.
    fn holds(&self, ranges: RangeSet) -> Holding {
        Holding { agent: self.info.clone(), ready: ranges, joining: RangeSet::EMPTY }
    }
}

fn agent(folder: &TempDir, registry: &Stub) -> Handler {
    let mut config = SessionConfig::new("app", SECRET);
    config.io_timeout_ms = 800;
    config.spill_dir = Some(folder.path().join("spill").display().to_string());
    let disk = Disk::open(&config, Arc::new(RealDisk), AgentId(1), 1).unwrap();
    let info = AgentInfo { id: AgentId(1), addr: String::new(), host: "host".into(), driver: false };
    Handler::new(config, info, disk, Registrar::There(registry.info.addr.clone()), String::new())
}

fn opened(holders: Vec<Holding>) -> Opened {
    let located = Located {
        state: StateId { query: "q".into(), operator: "f".into() },
        life: 0,
        version: VERSION,
        holders,
        as_of: 0,
        clock: Clock { now_ms: 0, watermark_ms: -1, late_ms: -1 },
        catalog: Bytes::new(),
        done: None,
        has_timers: false,
    };
    Opened { located, kept: Vec::new() }
}

/// A registry to which everybody is alive.
fn registry() -> Stub {
    Stub::new(2, |_| Some(Reply::SilenceIs(Silence::Heard)))
}

#[test]
fn who_has_gone_on_does_not_keep_the_version_that_is_saved() {
    let folder = tempfile::tempdir().unwrap();
    let half: RangeSet = (0..128).map(Range).collect();
    let (one, ahead) = (Stub::at(3, VERSION), Stub::at(4, Version(Some(6))));
    let mut opened = opened(vec![one.holds(half), ahead.holds(RangeSet::ALL)]);
    let state = agent(&folder, &registry()).open_state(&mut opened).unwrap();
    assert!(matches!(state, Open::Again));
    assert!(opened.kept.iter().map(|kept| kept.view).eq([3]));
    assert!(ahead.was_let_go() && !one.was_let_go());
}

#[test]
fn what_is_kept_is_known_also_if_another_holder_fails() {
    let folder = tempfile::tempdir().unwrap();
    let broken = Stub::new(3, |_| {
        Some(Reply::Failed(Error::Io { context: "reading state".into(), message: "broken".into() }))
    });
    let keeps = Stub::at(4, VERSION);
    let mut opened = opened(vec![broken.holds(RangeSet::ALL), keeps.holds(RangeSet::ALL)]);
    let agent = agent(&folder, &registry());
    assert_eq!(agent.open_state(&mut opened).unwrap_err().condition(), "IO");
    agent.let_all_go(&[opened]);
    assert!(keeps.was_let_go());
}

#[test]
fn who_is_slow_is_let_off_as_long_as_others_keep_what_it_has() {
    let folder = tempfile::tempdir().unwrap();
    let (registry, slow, keeps) = (registry(), Stub::new(3, |_| None), Stub::at(4, VERSION));
    let agent = agent(&folder, &registry);
    let mut both = opened(vec![slow.holds(RangeSet::ALL), keeps.holds(RangeSet::ALL)]);
    assert!(matches!(agent.open_state(&mut both).unwrap(), Open::All));
    assert!(locked(&registry.asked).is_empty(), "nobody asks whether it is dead");
    // Where nobody else has it the registry says, and it stays alive.
    let mut alone = opened(vec![slow.holds(RangeSet::ALL)]);
    assert!(matches!(agent.open_state(&mut alone).unwrap(), Open::Again));
    assert!(matches!(locked(&registry.asked).as_slice(), [Request::Silent { agent: AgentId(3), .. }]));
}
