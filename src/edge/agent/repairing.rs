//! Copies made anew when a holder has died, in the background.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::copying::Logs;
use super::handler::Handler;
use super::registrar::Registrar;
use crate::agent::copying::Copying;
use crate::agent::protocol::{Repair, Request};
use crate::edge::locked;
use crate::edge::net::server::Server;
use crate::error::{Error, Result};
use crate::id::AgentId;

/// How often the driver's agent looks. Others are told with their beats.
const PERIOD: Duration = Duration::from_millis(500);
/// How soon a stopping agent is noticed.
const PAUSE: Duration = Duration::from_millis(50);

/// Makes the copies that are wanted, until the server stops.
pub(super) fn repair(server: &Arc<Server>) {
    let handler = server.handler();
    let looks = matches!(handler.registrar, Registrar::Here(_));
    let mut next = Instant::now();
    while !server.is_stopping() {
        let told = handler.repair_due.wait(PAUSE);
        if !told && (!looks || Instant::now() < next) {
            continue;
        }
        next = Instant::now() + PERIOD;
        if let Registrar::Here(local) = &handler.registrar {
            let dead = locked(&local.registry).buried();
            if let Err(error) = handler.disk.bury(&dead) {
                // It is done when somebody reads what they wrote.
                tracing::info!(%error, "what says that dead agents live could not be removed");
            }
        }
        // An unreachable registry has nothing to be told; the heartbeat notices if it stays so.
        for repair in handler.registrar.repairs(&handler.connections, handler.info.id).unwrap_or_default() {
            if server.is_stopping() {
                return;
            }
            if let Err(error) = handler.copy_again(&repair) {
                tracing::info!(task = %repair.task, %error, "no other copy could be made");
            }
        }
    }
}

impl Handler {
    /// Makes copies until as many agents hold the log as are wanted, and tells the registry.
    fn copy_again(&self, repair: &Repair) -> Result<()> {
        let before = repair.holders.len();
        locked(&self.store).fence(&repair.task, repair.generation);
        if repair.whole && !locked(&self.store).is_whole(&repair.task) {
            return self.is_no_holder(repair);
        }
        let wanted = self.depth().saturating_add(1);
        let mut copying = Copying::new(wanted, Duration::ZERO).held_by(repair.holders.clone());
        let seen = self.see_that(Logs::of(repair), &mut copying);
        let holders = copying.into_holders();
        if holders.len() == before {
            // Nothing has changed; who leaves is not among them, and still has it.
            return seen;
        }
        tracing::info!(task = %repair.task, copies = holders.len() - before, "copied again");
        self.registrar.tell(
            &self.connections,
            Request::Holding {
                task: repair.task.clone(),
                generation: repair.generation,
                holders: holders.iter().map(|holder| holder.id).collect(),
                adopted: None,
                whole: false,
                sent: self.next_request(),
            },
        )?;
        seen
    }

    /// What is here was being sent again by an attempt that is gone, and is a part of the log. Others have all of it, and are
    /// to copy it.
    fn is_no_holder(&self, repair: &Repair) -> Result<()> {
        let others = repair.holders.iter().map(|holder| holder.id).filter(|holder| *holder != self.info.id);
        let holders: Vec<AgentId> = others.collect();
        if holders.is_empty() {
            return Err(Error::CausalLogLost { task: repair.task.clone() });
        }
        let (task, generation, sent) = (repair.task.clone(), repair.generation, self.next_request());
        self.registrar.tell(
            &self.connections,
            Request::Holding { task, generation, holders, adopted: None, whole: false, sent },
        )
    }
}
