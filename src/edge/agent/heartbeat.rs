//! An executor's agent tells the registry that it lives, and hears what was committed.

use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::registrar::Registrar;
use crate::agent::protocol::{AgentStanding, Reply, Request};
use crate::edge::net::server::Server;
use crate::error::Result;

/// How soon a stopping agent is noticed.
const PAUSE: Duration = Duration::from_millis(50);
/// Time between two beats.
const PERIOD: Duration = Duration::from_millis(500);
/// An agent whose driver was silent for so long is of no use any more.
pub(super) const DRIVER_SILENCE_MAX: Duration = Duration::from_secs(12);

/// Beats until the server stops, the driver has been silent for too long, or it takes this agent for dead.
pub(super) fn beat(server: &Arc<Server>, on_driver_gone: impl FnOnce()) {
    let mut heard = Instant::now();
    while !server.is_stopping() {
        match beat_once(server) {
            Ok(AgentStanding::Dead) => {
                tracing::warn!("this agent was silent for too long, and others have gone on without it");
                on_driver_gone();
                return;
            }
            Ok(_) => heard = Instant::now(),
            Err(error) if heard.elapsed() > DRIVER_SILENCE_MAX => {
                tracing::info!(%error, "the driver is gone");
                on_driver_gone();
                return;
            }
            Err(_) => {}
        }
        let next = Instant::now() + PERIOD;
        while !server.is_stopping() && Instant::now() < next {
            sleep(PAUSE);
        }
    }
}

fn beat_once(server: &Arc<Server>) -> Result<AgentStanding> {
    let handler = server.handler();
    let Registrar::There(driver) = &handler.registrar else { return Ok(AgentStanding::Alive) };
    let request = Request::Heartbeat { agent: handler.info.id, commits_seen: handler.commits_seen() };
    match handler.connections.call(driver, &request)? {
        Reply::Beat { standing: AgentStanding::Alive, committed, commits } => {
            handler.heard(&committed, commits);
            Ok(AgentStanding::Alive)
        }
        Reply::Beat { standing: AgentStanding::Dead, .. } => Ok(AgentStanding::Dead),
        _ => {
            handler.registrar.register(&handler.connections, handler.info.clone())?;
            Ok(AgentStanding::Unknown)
        }
    }
}
