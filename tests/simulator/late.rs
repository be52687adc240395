//! Requests that are repeated, as their answers were lost, and requests that come late.

use clonos::agent::protocol::{Request, Sent};
use clonos::agent::store::Arriving;
use clonos::error::Result;
use clonos::id::{AgentId, Generation};

use crate::Mutation;
use crate::cluster::Cluster;
use crate::dice::Dice;

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

    /// Whether the one who asked has given up, and asks anew.
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

    /// One that comes now, if any does.
    fn comes(&mut self) -> Option<(Option<AgentId>, Request)> {
        if self.messages.is_empty() || !self.dice.chance(10) {
            return None;
        }
        let number = self.dice.below(self.messages.len());
        Some(self.messages.swap_remove(number))
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
        let Some((to, mut request)) = self.late.comes() else { return };
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
        if let Request::Holding { task, generation, holders, adopted, whole, sent } = request {
            return self.registry.holding(&task, generation, &holders, adopted, whole, sent);
        }
        if let Request::Grant { open, sent, commits_seen } = request {
            self.registry.grant(&open, sent, commits_seen, None, self.now);
            return Ok(());
        }
        let Some(host) = to.and_then(|to| self.agent(to)) else { return Ok(()) };
        let store = &mut host.store;
        match request {
            Request::Replicate { task, generation, layout, reset, from, blocks, all, sent } => {
                let end = blocks.iter().fold(from, |end, block| end.plus(block.len() as u64));
                store.begin_copy(&task, &Arriving { generation, layout, reset, end, all, sent })?;
                host.hold_all(&task, generation, from, &blocks)?;
                if all {
                    host.store.complete(&task, generation);
                }
            }
            Request::Fence { task, fence } => drop(store.fence_for(&task, fence)),
            Request::Forget { task, generation } => store.forget(&task, generation),
            other => unreachable!("{other:?}"),
        }
        Ok(())
    }
}
