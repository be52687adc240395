//! Requests that are repeated, as their answers were lost, and requests that come late.

use bytes::Bytes;
use clonos::agent::protocol::{AgentInfo, Layout, Sent};
use clonos::error::Result;
use clonos::id::{AgentId, Generation, LogOffset, TaskId};

use crate::Mutation;
use crate::cluster::Cluster;
use crate::dice::Dice;
use crate::stores::hold_all;

const REPEATED: usize = 10;

/// A request that may be carried out again.
#[derive(Debug, Clone)]
pub(crate) enum Message {
    /// `Request::Replicate`.
    Replicate {
        to: AgentId,
        task: TaskId,
        generation: Generation,
        layout: Layout,
        reset: bool,
        from: LogOffset,
        blocks: Vec<Bytes>,
        all: bool,
        sent: Sent,
    },
    /// `Request::Holding`.
    Holding {
        task: TaskId,
        generation: Generation,
        holders: Vec<AgentId>,
        adopted: Option<(LogOffset, Layout)>,
        sent: Sent,
    },
    /// `Request::Fence`, where determinants travel in frames.
    Reopened { to: AgentId, task: TaskId, generation: Generation, at: AgentInfo },
    /// `Request::Forget`.
    Forget { to: AgentId, task: TaskId, generation: Generation },
}

/// What is still on its way.
#[derive(Debug)]
pub(crate) struct Late {
    dice: Dice,
    messages: Vec<Message>,
    requests: u64,
    /// Of a hundred requests, how many come a second time, some turns later.
    repeated: usize,
}

impl Late {
    pub(crate) fn new(seed: u64) -> Self {
        Self { dice: Dice::new(!seed), messages: Vec::new(), requests: 0, repeated: REPEATED }
    }

    /// Nothing is repeated.
    pub(crate) fn never() -> Self {
        Self { repeated: 0, ..Self::new(0) }
    }

    /// Whether the answer to a request is lost, so that it is made again.
    pub(crate) fn is_repeated(&mut self) -> bool {
        self.dice.chance(self.repeated)
    }

    pub(crate) fn next_request(&mut self, by: AgentId) -> Sent {
        self.requests += 1;
        Sent { by, number: self.requests }
    }

    /// One that comes now, if any does.
    fn comes(&mut self) -> Option<Message> {
        if self.messages.is_empty() || !self.dice.chance(10) {
            return None;
        }
        let number = self.dice.below(self.messages.len());
        Some(self.messages.swap_remove(number))
    }
}

impl Cluster {
    /// Carries out a request, now and perhaps once more, later.
    pub(crate) fn carry_out(&mut self, message: Message) -> Result<()> {
        if self.late.is_repeated() {
            self.late.messages.push(message.clone());
        }
        self.receive(message)
    }

    /// Something that was sent some turns ago is carried out.
    pub(crate) fn receive_late(&mut self) {
        let Some(mut message) = self.late.comes() else { return };
        if self.mutation == Mutation::LateIsNew {
            let now = self.late.next_request(AgentId(0)).number;
            if let Message::Replicate { sent, .. } | Message::Holding { sent, .. } = &mut message {
                sent.number = now;
            }
        }
        // Whoever sent it waits no more for the answer.
        let _refused = self.receive(message);
    }

    fn receive(&mut self, message: Message) -> Result<()> {
        match message {
            Message::Replicate { to, task, generation, layout, reset, from, blocks, all, sent } => {
                let Some(store) = self.agent(to) else { return Ok(()) };
                if !store.begin_copy(&task, generation, layout, reset, sent)? {
                    return Ok(());
                }
                hold_all(store, &task, generation, from, &blocks)?;
                if all {
                    store.complete(&task, generation);
                }
                Ok(())
            }
            Message::Holding { task, generation, holders, adopted, sent } => {
                self.registry.holding(&task, generation, &holders, adopted, true, sent)
            }
            Message::Reopened { to, task, generation, at } => {
                if let Some(store) = self.agent(to) {
                    store.reopened(&task, generation, at);
                }
                Ok(())
            }
            Message::Forget { to, task, generation } => {
                let newest =
                    if self.mutation == Mutation::LateIsNew { Generation(u64::MAX) } else { generation };
                if let Some(store) = self.agent(to) {
                    store.forget(&task, newest);
                }
                Ok(())
            }
        }
    }
}
