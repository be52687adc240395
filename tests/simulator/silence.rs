//! Hosts that are cut off for a while, one way or both, from all others or from one, and hosts that pause: they may be
//! taken for dead meanwhile.

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

/// What does not arrive: neither requests nor answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// What others send to the host, the registry among them.
    To,
    /// What it sends to others, the registry among them.
    From,
    Both,
    /// What it sends to one other host. The registry is on host 0.
    Between(usize),
    /// Its processes stand still. What others have sent it by then arrives when they go on.
    Paused,
}

impl Cut {
    pub(crate) fn of_some(host: usize, hosts: usize, dice: &mut Dice) -> Self {
        let way = match dice.below(6) {
            0 => Way::To,
            1 => Way::From,
            2 => Way::Both,
            3 | 4 => Way::Paused,
            // The driver's host, too.
            _ => Way::Between((host + dice.between(1, hosts - 1)) % hosts),
        };
        Self { host, way }
    }

    /// The driver's host, where the registry is.
    pub(crate) const fn of_driver() -> Self {
        Self { host: 0, way: Way::Paused }
    }

    /// Whether the registry does not hear the host, and may take it for dead. Whom it hears it waits for, and nothing is
    /// lost. While it stands still itself, it takes nobody for dead.
    pub(crate) fn may_kill(self) -> bool {
        self.host > 0 && !self.lets_through(self.host, 0)
    }

    fn lets_through(self, from: usize, to: usize) -> bool {
        match self.way {
            Way::To => to != self.host,
            Way::From => from != self.host,
            Way::Both | Way::Paused => to != self.host && from != self.host,
            Way::Between(other) => (from, to) != (self.host, other),
        }
    }
}

impl Cluster {
    /// A while passes, and agents beat; those who were cut off and hear that they are to end, as others have gone on
    /// without them.
    pub(crate) fn beat(&mut self) -> Vec<usize> {
        self.now += 200;
        if self.is_paused(0) {
            return Vec::new();
        }
        if self.mutation != Mutation::PauseIsSilence {
            self.registry.look_at_clock(self.now);
        }
        let driver_goes_on = std::mem::take(&mut self.driver_goes_on);
        let mut dead = Vec::new();
        for number in 0..self.hosts.len() {
            // Not all come to it at once.
            let is_late = driver_goes_on && self.late.is_given_up();
            if is_late || !self.reaches_registry(number) {
                continue;
            }
            let standing = self.registry.heartbeat(self.hosts[number].info.id, 0, self.now).0;
            if !self.hears_registry(number) {
                continue;
            }
            self.hears(number);
            match standing {
                // It came up in a dead one's place while that was cut off.
                AgentStanding::Unknown => self.register(number),
                AgentStanding::Dead if self.mutation == Mutation::DeadGoesOn => self.goes_on(number),
                AgentStanding::Dead => dead.push(number),
                _ => {}
            }
        }
        dead
    }

    /// While a host that has died is silent, the others go on beating.
    pub(crate) fn others_beat(&mut self, dead: usize) {
        if self.is_paused(0) {
            return;
        }
        if self.mutation != Mutation::PauseIsSilence {
            self.registry.look_at_clock(self.now);
        }
        for number in (0..self.hosts.len()).filter(|number| *number != dead) {
            if self.reaches_registry(number) {
                self.registry.heartbeat(self.hosts[number].info.id, 0, self.now);
            }
        }
    }

    /// An agent that was taken for dead goes on with all that it has. Under its own name it is granted nothing.
    fn goes_on(&mut self, number: usize) {
        let host = &mut self.hosts[number];
        host.lives += 1;
        host.info = info(number, host.lives);
        self.register(number);
    }

    pub(crate) fn register(&mut self, number: usize) {
        self.registry.register(self.hosts[number].info.clone(), "", self.now);
        self.hosts[number].is_known |= self.hears_registry(number);
    }

    /// Hosts whose agents are not taken for dead.
    pub(crate) fn living(&mut self) -> impl Iterator<Item = &Host> {
        let alive = self.registry.alive(self.now);
        self.hosts.iter().filter(move |host| alive.iter().any(|info| info.id == host.info.id))
    }

    fn arrives(&self, from: usize, to: usize) -> bool {
        from == to || self.cuts.iter().all(|cut| cut.lets_through(from, to))
    }

    /// Whether nobody on a host does anything just now.
    pub(crate) fn is_paused(&self, host: usize) -> bool {
        self.cuts.iter().any(|cut| cut.host == host && cut.way == Way::Paused)
    }

    /// Whether a request stays where it was sent to until somebody there goes on, who then carries it out.
    pub(crate) fn stays_on_its_way(&self, from: usize, to: AgentId) -> bool {
        self.number_of(to).is_some_and(|to| from != to && self.is_paused(to))
    }

    /// Whether a request arrives.
    pub(crate) fn reaches(&self, from: usize, to: AgentId) -> bool {
        // Whoever is gone does not answer in any case.
        self.number_of(to).is_none_or(|to| self.arrives(from, to))
    }

    /// Whether a request is answered, if it arrives: it is carried out even so.
    pub(crate) fn is_answered(&self, from: usize, by: AgentId) -> bool {
        self.reaches(from, by) && self.number_of(by).is_none_or(|by| self.arrives(by, from))
    }

    fn number_of(&self, agent: AgentId) -> Option<usize> {
        self.hosts.iter().position(|known| known.info.id == agent)
    }

    pub(crate) fn reaches_registry(&self, from: usize) -> bool {
        self.arrives(from, 0)
    }

    pub(crate) fn hears_registry(&self, at: usize) -> bool {
        self.arrives(0, at)
    }

    /// The registry carries out a request, if that arrives; what it answers, if that does.
    pub(crate) fn ask<T>(
        &mut self,
        from: usize,
        request: impl FnOnce(&mut Registry) -> Result<T>,
    ) -> Result<T> {
        let cut =
            || Error::AgentUnreachable { agent: "the driver's".to_owned(), reason: "cut off".to_owned() };
        if !self.reaches_registry(from) {
            return Err(cut());
        }
        let answer = request(&mut self.registry);
        if self.hears_registry(from) { answer } else { Err(cut()) }
    }

    /// As `Handler::may_answer_yet`, for somebody who does not answer.
    pub(crate) fn is_dead(&mut self, asker: usize, silent: AgentId) -> bool {
        let now = self.now;
        let is_dead = self.mutation == Mutation::SlowIsDead
            || self.ask(asker, |registry| Ok(registry.is_dead(silent, false, now))).unwrap_or(false);
        self.waits |= !is_dead;
        is_dead
    }
}
