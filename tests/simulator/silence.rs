//! Hosts that are cut off for a while, one way or both, from all others or from one, and may be taken for dead meanwhile.

use clonos::agent::protocol::AgentStanding;
use clonos::agent::registry::Registry;
use clonos::error::{Error, Result};
use clonos::id::AgentId;

use crate::Mutation;
use crate::cluster::Cluster;
use crate::dice::Dice;
use crate::host::{Host, info};

/// Who is cut off.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cut {
    pub(crate) host: usize,
    pub(crate) way: Way,
}

/// What does not arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// What others send to the host.
    To,
    /// What it sends to others, the registry among them.
    From,
    Both,
    /// What it sends to one other host.
    Between(usize),
}

impl Cut {
    pub(crate) fn of_some(host: usize, hosts: usize, dice: &mut Dice) -> Self {
        let way = match dice.below(4) {
            0 => Way::To,
            1 => Way::From,
            2 => Way::Both,
            // The driver's host, too.
            _ => Way::Between((host + dice.between(1, hosts - 1)) % hosts),
        };
        Self { host, way }
    }

    fn lets_through(self, from: usize, to: usize) -> bool {
        match self.way {
            Way::To => to != self.host,
            Way::From => from != self.host,
            Way::Both => to != self.host && from != self.host,
            Way::Between(other) => (from, to) != (self.host, other),
        }
    }
}

impl Cluster {
    /// A while passes, and agents beat; whether the one that was cut off is to end, as others have gone on
    /// without it.
    pub(crate) fn beat(&mut self) -> Option<usize> {
        self.now += 200;
        self.registry.look_at_clock(self.now);
        let mut dead = None;
        for number in 0..self.hosts.len() {
            if !self.reaches_registry(number) {
                continue;
            }
            self.hears(number);
            let standing = self.registry.heartbeat(self.hosts[number].info.id, 0, self.now).0;
            match standing {
                AgentStanding::Dead if self.mutation == Mutation::DeadGoesOn => self.goes_on(number),
                AgentStanding::Dead => dead = Some(number),
                _ => {}
            }
        }
        dead
    }

    /// An agent that was taken for dead goes on with all that it has. Under its own name it is granted nothing.
    fn goes_on(&mut self, number: usize) {
        let host = &mut self.hosts[number];
        host.lives += 1;
        host.info = info(number, host.lives);
        self.registry.register(host.info.clone(), "", self.now);
    }

    /// Hosts whose agents are not taken for dead.
    pub(crate) fn living(&mut self) -> impl Iterator<Item = &Host> {
        let alive = self.registry.alive(self.now);
        self.hosts.iter().filter(move |host| alive.iter().any(|info| info.id == host.info.id))
    }

    pub(crate) fn reaches(&self, from: usize, to: AgentId) -> bool {
        let Some(cut) = self.cut else { return true };
        let to = self.hosts.iter().position(|known| known.info.id == to);
        // Whoever is gone does not answer in any case.
        to.is_none_or(|to| to == from || cut.lets_through(from, to))
    }

    pub(crate) fn reaches_registry(&self, from: usize) -> bool {
        !self.cut.is_some_and(|cut| cut.host == from && matches!(cut.way, Way::From | Way::Both))
    }

    pub(crate) fn registry_of(&mut self, from: usize) -> Result<&mut Registry> {
        let agent = "the driver's".to_owned();
        let cut = || Error::AgentUnreachable { agent, reason: "cut off".into() };
        if self.reaches_registry(from) { Ok(&mut self.registry) } else { Err(cut()) }
    }

    /// As `Handler::may_answer_yet`, for somebody who does not answer.
    pub(crate) fn is_dead(&mut self, asker: usize, silent: AgentId) -> bool {
        let now = self.now;
        let is_dead = self.mutation == Mutation::SlowIsDead
            || self.registry_of(asker).is_ok_and(|registry| registry.is_dead(silent, false, now));
        self.waits |= !is_dead;
        is_dead
    }
}
