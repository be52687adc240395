//! Connections to other agents, kept for the next request.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use super::messages::Connection;
use crate::agent::protocol::{Reply, Request};
use crate::error::{Error, Result};

/// Idle connections kept per agent.
const IDLE_MAX: usize = 8;

/// Connections to agents, by address.
#[derive(Debug)]
pub(in crate::edge) struct Connections {
    secret: [u8; 32],
    timeout: Duration,
    idle: Mutex<HashMap<String, Vec<Connection>>>,
}

/// A request whose answer is still to be read.
#[derive(Debug)]
pub(in crate::edge) struct Asked {
    addr: String,
    connection: Connection,
}

impl Connections {
    pub(in crate::edge) fn new(secret: [u8; 32], timeout: Duration) -> Self {
        Self { secret, timeout, idle: Mutex::default() }
    }

    /// Sends a request; the answer is read with [`Self::answer`].
    pub(in crate::edge) fn ask(&self, addr: &str, request: &Request) -> Result<Asked> {
        let kept = crate::edge::locked(&self.idle).get_mut(addr).and_then(Vec::pop);
        if let Some(mut connection) = kept {
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
        let reply = asked.connection.read()?;
        let mut idle = crate::edge::locked(&self.idle);
        let kept = idle.entry(asked.addr).or_default();
        if kept.len() < IDLE_MAX {
            kept.push(asked.connection);
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
                crate::edge::locked(&self.idle).remove(addr);
                self.answer(self.ask(addr, request)?)
            }
            answer => answer,
        }
    }
}
