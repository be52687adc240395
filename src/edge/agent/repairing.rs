//! Copies made anew when a holder has died, in the background.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::handler::Handler;
use super::registrar::Registrar;
use crate::agent::placement;
use crate::agent::protocol::{Repair, Request};
use crate::edge::net::server::Server;
use crate::error::Result;

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
        let wanted = usize::try_from(self.config.sharing_depth).unwrap_or(usize::MAX).saturating_add(1);
        let (mut holders, agents) = (repair.holders.clone(), self.members_now());
        for candidate in placement::candidates(&repair.task, self.info.id, &self.info.host, &agents) {
            if holders.len() >= wanted {
                break;
            }
            let holds = holders.iter().any(|holder| holder.id == candidate.id);
            if !holds && self.send_all(&repair.task, repair.generation, &candidate).is_ok() {
                tracing::info!(task = %repair.task, peer = %candidate.addr, "copied again");
                holders.push(candidate);
            }
        }
        if holders.len() == repair.holders.len() {
            // Nothing has changed; who leaves is not among them, and still has it.
            return Ok(());
        }
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
        )
    }
}
