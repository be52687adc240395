//! An executor's agent tells the registry that it lives, and hears what was committed.

use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::registrar::Registrar;
use crate::agent::protocol::{Reply, Request};
use crate::edge::net::server::Server;
use crate::error::Result;

/// How soon a stopping agent is noticed.
const PAUSE: Duration = Duration::from_millis(50);
/// Time between two beats.
const PERIOD: Duration = Duration::from_millis(500);
/// An agent whose driver was silent for so long is of no use any more.
pub(super) const DRIVER_SILENCE_MAX: Duration = Duration::from_secs(12);

/// Beats until the server stops, or the driver has been silent for too long.
pub(super) fn beat(server: &Arc<Server>, on_driver_gone: impl FnOnce()) {
    let mut heard = Instant::now();
    while !server.is_stopping() {
        match beat_once(server) {
            Ok(()) => heard = Instant::now(),
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

fn beat_once(server: &Arc<Server>) -> Result<()> {
    let handler = server.handler();
    let Registrar::There(driver) = &handler.registrar else { return Ok(()) };
    let request = Request::Heartbeat { agent: handler.info.id, commits_seen: handler.commits_seen() };
    match handler.connections.call(driver, &request)? {
        Reply::Beat { known: true, committed, commits } => handler.heard(&committed, commits),
        _ => {
            handler.registrar.register(&handler.connections, handler.info.clone())?;
        }
    }
    Ok(())
}
