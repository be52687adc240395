//! Requests that are repeated, as their answers were lost, and requests that come late.

use clonos::agent::protocol::{Request, Sent};
use clonos::agent::store::Arriving;
use clonos::error::Result;
use clonos::id::{AgentId, Generation};

use crate::Mutation;
use crate::cluster::Cluster;
use crate::dice::Dice;
use crate::silence::Way;

const REPEATED: usize = 10;
const OVERTAKEN: usize = 5;

/// What is still on its way.
#[derive(Debug)]
pub(crate) struct Late {
    dice: Dice,
    /// With the agents that they are for; the registry, if none.
    messages: Vec<(Option<AgentId>, Request)>,
    requests: u64,
    /// Of a hundred requests, how many come a second time, some turns later.
    repeated: usize,
    /// Of a hundred parts of copies, how many are not answered, so that they are sent again, and come later.
    overtaken: usize,
}

impl Late {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            dice: Dice::new(!seed),
            messages: Vec::new(),
            requests: 0,
            repeated: REPEATED,
            overtaken: OVERTAKEN,
        }
    }

    /// Nothing is repeated.
    pub(crate) fn never() -> Self {
        Self { repeated: 0, overtaken: 0, ..Self::new(0) }
    }

    /// Whether the answer to a request is lost, so that it is made again.
    pub(crate) fn is_repeated(&mut self) -> bool {
        self.dice.chance(self.repeated)
    }

    /// Whether the one who asked has given up, and asks anew; or whoever is to beat has not come to it yet.
    pub(crate) fn is_given_up(&mut self) -> bool {
        self.dice.chance(50)
    }

    /// A request is under way for some turns.
    pub(crate) fn comes_later(&mut self, to: Option<AgentId>, request: Request) {
        self.messages.push((to, request));
    }

    /// Whether a part of a copy is not answered: it comes when others that were sent behind it have.
    pub(crate) fn is_overtaken(&mut self, to: AgentId, request: &Request) -> bool {
        let overtaken = self.dice.chance(self.overtaken);
        if overtaken {
            self.messages.push((Some(to), request.clone()));
        }
        overtaken
    }

    pub(crate) fn next_request(&mut self, by: AgentId) -> Sent {
        self.requests += 1;
        Sent { by, number: self.requests }
    }

    /// One that comes now, if any does and whom it is for is not paused.
    fn comes(&mut self, is_paused: impl Fn(Option<AgentId>) -> bool) -> Option<(Option<AgentId>, Request)> {
        if self.messages.is_empty() || !self.dice.chance(10) {
            return None;
        }
        let number = self.dice.below(self.messages.len());
        let to = self.messages[number].0;
        (!is_paused(to)).then(|| self.messages.swap_remove(number))
    }
}

impl Cluster {
    /// Carries out a request, of an agent or else of the registry, now and perhaps once more, later.
    pub(crate) fn carry_out(&mut self, to: Option<AgentId>, request: Request) -> Result<()> {
        if self.late.is_repeated() {
            self.late.messages.push((to, request.clone()));
        }
        self.receive(to, request)
    }

    /// Something that was sent some turns ago is carried out.
    pub(crate) fn receive_late(&mut self) {
        let (cuts, hosts) = (&self.cuts, &self.hosts);
        let is_paused = |to: Option<AgentId>| {
            let number = to.map_or(Some(0), |to| hosts.iter().position(|host| host.info.id == to));
            cuts.iter().any(|cut| Some(cut.host) == number && cut.way == Way::Paused)
        };
        let Some((to, mut request)) = self.late.comes(is_paused) else { return };
        if self.mutation == Mutation::LateIsNew {
            let now = self.late.next_request(AgentId(0)).number;
            match &mut request {
                Request::Grant { sent, .. }
                | Request::Replicate { sent, .. }
                | Request::Holding { sent, .. } => sent.number = now,
                Request::Forget { generation, .. } => *generation = Generation(u64::MAX),
                _ => {}
            }
        }
        // Whoever sent it waits no more for the answer.
        let _refused = self.receive(to, request);
    }

    /// As `edge/net/server.rs`.
    fn receive(&mut self, to: Option<AgentId>, request: Request) -> Result<()> {
        let Some(to) = to else { return self.registry_receives(request) };
        let Some(host) = self.agent(to) else { return Ok(()) };
        let store = &mut host.store;
        match request {
            Request::Replicate { task, generation, over, layout, reset, from, blocks, all, whole, sent } => {
                let end = blocks.iter().fold(from, |end, block| end.plus(block.len() as u64));
                let arriving = Arriving { generation, over, layout, reset, end, all, whole, sent };
                store.begin_copy(&task, &arriving)?;
                let mut from = from;
                for block in &blocks {
                    host.hold(block, |store| store.absorb_arriving(&task, &arriving, from, block))?;
                    from = from.plus(block.len() as u64);
                }
                if all {
                    host.store.complete_copy(&task, &arriving)?;
                }
            }
            Request::Fence { task, fence } => drop(store.fence_for(&task, fence)),
            Request::Forget { task, generation } => store.forget(&task, generation),
            other => unreachable!("{other:?}"),
        }
        Ok(())
    }

    /// As `edge/agent/registrar.rs`.
    fn registry_receives(&mut self, request: Request) -> Result<()> {
        let registry = &mut self.registry;
        match request {
            Request::Holding { task, generation, holders, adopted, whole, sent } => {
                registry.holding(&task, generation, &holders, adopted, whole, sent)?;
                if whole {
                    self.published.insert(task);
                }
                Ok(())
            }
            Request::Grant { open, sent, commits_seen } => {
                registry.grant(&open, sent, commits_seen, None, self.now);
                Ok(())
            }
            Request::Closed { task, generation, summary, ending, left } => {
                registry.closed(&task, generation, &summary, ending, left)
            }
            Request::Visible { tasks, holders, by } => registry.visible_at(by, &tasks, &holders),
            Request::Withdrawn { task, generation } => {
                registry.withdrawn(&task, generation);
                Ok(())
            }
            Request::Discarded { task, generation } => registry.discarded(&task, generation),
            Request::Forgotten { task, generation } => {
                registry.forgotten(&task, generation);
                Ok(())
            }
            other => unreachable!("{other:?}"),
        }
    }
}
