//! An executor's agent tells the registry that it lives, and hears what was committed; the driver's tells
//! the others that it ends.

use std::sync::Arc;
use std::thread::{Builder, sleep};
use std::time::{Duration, Instant};

use super::handler::Handler;
use super::registrar::Registrar;
use crate::agent::protocol::{AgentInfo, AgentStanding, Reply, Request};
use crate::edge::locked;
use crate::edge::net::Connection;
use crate::edge::net::server::Server;
use crate::error::Result;

/// How soon a stopping agent is noticed.
const PAUSE: Duration = Duration::from_millis(50);
/// Time between two beats.
const PERIOD: Duration = Duration::from_millis(500);
/// How long the driver's agent may take to tell all others that it ends, and each of them to hear it.
const FAREWELL_PATIENCE: Duration = Duration::from_secs(2);
/// Agents that are told at a time.
const FAREWELL_THREADS: usize = 16;

/// Beats until the server stops, the driver has been silent for as long as Spark bears, or it takes this
/// agent for dead.
pub(super) fn beat(server: &Arc<Server>) {
    let config = &server.handler().config;
    let patience = Duration::from_millis(config.network_timeout_ms);
    // A round has two requests at most. No more time of one that fails counts as silence: an agent that was itself
    // paused has not listened.
    let round_max = Duration::from_millis(config.io_timeout_ms) + PERIOD;
    let mut silent = Duration::ZERO;
    while !server.is_stopping() {
        let began = Instant::now();
        let beaten = beat_once(server);
        let next = Instant::now() + PERIOD;
        while !server.is_stopping() && Instant::now() < next {
            sleep(PAUSE);
        }
        match beaten {
            Ok(AgentStanding::Dead) => {
                tracing::warn!("this agent was silent for too long, and others have gone on without it");
                server.driver_is_gone();
                return;
            }
            Ok(_) => silent = Duration::ZERO,
            Err(error) => {
                silent += began.elapsed().min(round_max);
                if silent > patience {
                    tracing::info!(%error, "the driver is gone");
                    server.driver_is_gone();
                    return;
                }
            }
        }
    }
}

fn beat_once(server: &Arc<Server>) -> Result<AgentStanding> {
    let handler = server.handler();
    handler.pools.sweep();
    let Registrar::There(driver) = &handler.registrar else { return Ok(AgentStanding::Alive) };
    let request = Request::Heartbeat { agent: handler.info.id, commits_seen: handler.commits_seen() };
    match handler.connections.call_at(driver, &request)? {
        Reply::Beat { standing: AgentStanding::Alive, committed, commits, repairs, waited_for } => {
            handler.heard(&committed, commits);
            if repairs {
                handler.repair_due.give();
                handler.states.join_due.give();
            }
            handler.look_for(waited_for);
            Ok(AgentStanding::Alive)
        }
        Reply::Beat { standing: AgentStanding::Dead, .. } => Ok(AgentStanding::Dead),
        _ => {
            handler.registrar.register(
                &handler.connections,
                handler.info.clone(),
                handler.executor.clone(),
            )?;
            Ok(AgentStanding::Unknown)
        }
    }
}

/// Tells all agents that the driver ends, if this is the driver's: they would wait for it as long as Spark
/// bears. Whom it does not reach does wait.
pub(super) fn farewell(handler: &Handler) {
    let Registrar::Here(local) = &handler.registrar else { return };
    let mut agents = locked(&local.registry).alive(local.now_ms());
    agents.retain(|agent| agent.id != handler.info.id);
    let deadline = Instant::now() + FAREWELL_PATIENCE;
    std::thread::scope(|scope| {
        for some in agents.chunks(agents.len().div_ceil(FAREWELL_THREADS).max(1)) {
            let tell = move || {
                for agent in some.iter().take_while(|_| Instant::now() < deadline) {
                    if let Err(error) = part(handler, agent) {
                        tracing::info!(agent = %agent.addr, %error, "not told that the driver ends");
                    }
                }
            };
            if let Err(error) = Builder::new().name("clonos-farewell".into()).spawn_scoped(scope, tell) {
                tracing::info!(%error, "some agents are not told that the driver ends");
            }
        }
    });
}

fn part(handler: &Handler, agent: &AgentInfo) -> Result<()> {
    let timeout = FAREWELL_PATIENCE.min(Duration::from_millis(handler.config.io_timeout_ms));
    let mut connection = Connection::tcp(&agent.addr, &handler.config.credentials(), timeout)?;
    connection.write(&Request::Farewell)?;
    connection.read::<Reply>().map(drop)
}
