//! Copies of logs on other agents. Whoever needs them says which logs and how many, and [`Handler::see_that`] sees to
//! it: what to do next says the machine of `agent::copying`, what an agent lacks says the store.
//!
//! There are two messages, by what they promise. Who holds the log of an attempt has all that was published of it, which
//! the registry counts on: it is fenced, whole or not, and begun anew if it is another attempt's. What was absorbed may
//! be of an attempt that does not count, and is held beside what others have only as far as that agrees.

use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::Instant;

use super::asking::SILENCE_PAUSE;
use super::handler::{Handler, unexpected};
use crate::agent::copying::{Copying, Step};
use crate::agent::placement;
use crate::agent::protocol::{AgentInfo, PIECE_BYTES, Piece, Repair, Request, Sent};
use crate::agent::store::{Arriving, Outgoing, Part};
use crate::edge::locked;
use crate::error::{Error, Result};
use crate::id::{AgentId, ChannelId, Generation, LogOffset, TaskId};

/// Logs to be copied, all of one epoch.
#[derive(Clone, Copy)]
pub(super) struct Logs<'a> {
    tasks: &'a [TaskId],
    /// It says which agents come first: copies of what a task has absorbed go where those of its own log do.
    near: &'a TaskId,
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    /// The log of the attempt in this generation, and whether all that was published of it is here.
    Own(Generation, bool),
    /// What was absorbed by a task of this generation.
    Absorbed(Generation),
}

impl<'a> Logs<'a> {
    /// The log of an attempt.
    pub(super) const fn own(task: &'a TaskId, generation: Generation) -> Self {
        Self { tasks: std::slice::from_ref(task), near: task, kind: Kind::Own(generation, true) }
    }

    /// A log of which other copies are to be made.
    pub(super) const fn of(repair: &'a Repair) -> Self {
        let Repair { task, generation, whole, .. } = repair;
        Self { tasks: std::slice::from_ref(task), near: task, kind: Kind::Own(*generation, *whole) }
    }

    /// What was absorbed of these logs, by a task of this generation last.
    pub(super) const fn absorbed(near: &'a TaskId, tasks: &'a [TaskId], born: Generation) -> Self {
        Self { tasks, near, kind: Kind::Absorbed(born) }
    }

    const fn channel(&self, peer: &AgentInfo) -> ChannelId {
        match self.kind {
            Kind::Own(generation, _) => channel(generation, peer),
            Kind::Absorbed(_) => channel(Generation::NONE, peer),
        }
    }
}

impl Handler {
    /// Copies of each log that are wanted besides this agent's.
    pub(super) fn depth(&self) -> usize {
        usize::try_from(self.config.sharing_depth).unwrap_or(usize::MAX)
    }

    /// Sees that as many agents as are wanted have these logs.
    ///
    /// # Errors
    /// As [`Copying::next`] and [`Copying::answered`].
    pub(super) fn see_that(&self, logs: Logs<'_>, copying: &mut Copying) -> Result<()> {
        let began = Instant::now();
        loop {
            match copying.next(began.elapsed())? {
                Step::Send(peer) => {
                    let sent = self.send_all(logs, &peer);
                    if let Err(error) = &sent {
                        tracing::info!(task = %logs.near, peer = %peer.addr, %error, "not a peer");
                    }
                    copying.answered(peer, sent)?;
                }
                Step::Choose => copying.choose(self.candidates(logs)),
                Step::LeaveOut => copying.leave_out(|peer| self.is_dead(peer)),
                Step::Wait => sleep(SILENCE_PAUSE),
                Step::Done => return Ok(()),
            }
        }
    }

    /// Who may hold copies, best first. What was absorbed goes to whoever answers.
    fn candidates(&self, logs: Logs<'_>) -> Vec<AgentInfo> {
        let members = self.members_now();
        match logs.kind {
            Kind::Own(..) => self.peers(logs.near, &members),
            Kind::Absorbed(_) => {
                let mut peers = placement::candidates(logs.near, self.info.id, &self.info.host, &members);
                peers.sort_by_cached_key(|peer| self.connections.failed_lately(&peer.addr));
                peers
            }
        }
    }

    /// Who may hold copies of a task's own log, best first. It stays where it is copied to once, so that is another node,
    /// however slow they may be just now; among those, whoever answers.
    pub(super) fn peers(&self, task: &TaskId, members: &[AgentInfo]) -> Vec<AgentInfo> {
        let is_slow = |peer: &AgentInfo| self.connections.failed_lately(&peer.addr);
        placement::candidates_but(task, self.info.id, &self.info.host, members, is_slow)
    }

    /// Sends a peer all that it lacks of these logs; all there is, if it has something else than we think.
    pub(super) fn send_all(&self, logs: Logs<'_>, peer: &AgentInfo) -> Result<()> {
        let channel = logs.channel(peer);
        // Who was overtaken by a copy begun anew would find a gap, and begin it anew once more.
        let _turn = self.sending.take((logs.near.epoch_key(), channel));
        match self.send_rest(logs, peer, channel) {
            Err(Error::LogGap { .. } | Error::LogFork { .. }) => {
                for task in logs.tasks {
                    locked(&self.store).rewind(task, channel, LogOffset::START);
                }
                self.send_rest(logs, peer, channel)
            }
            sent => sent,
        }
    }

    /// The same, in messages of bounded size.
    fn send_rest(&self, logs: Logs<'_>, peer: &AgentInfo, channel: ChannelId) -> Result<()> {
        let (mut pieces, mut parts, mut bytes) = (Vec::new(), Vec::new(), 0);
        for of in logs.tasks {
            while let Some((generation, outgoing, sent)) = self.next_piece(logs.kind, of, channel)? {
                let Outgoing { reset, part, blocks, layout, all } = outgoing;
                let blocks = self.read_blocks(of, part.version(), &blocks)?;
                let (task, from) = (of.clone(), part.from);
                parts.push((of, part));
                bytes += part.bytes();
                let request = match logs.kind {
                    Kind::Own(_, whole) => {
                        let over = locked(&self.store).over_below(&task.epoch_key());
                        Request::Replicate {
                            task,
                            generation,
                            over,
                            layout,
                            reset,
                            from,
                            blocks,
                            all,
                            whole,
                            sent,
                        }
                    }
                    Kind::Absorbed(born) => {
                        pieces.push(Piece { task, generation, from, blocks });
                        // A piece that is not the last is as large as a message may be.
                        if all && bytes < PIECE_BYTES {
                            break;
                        }
                        self.share_of(logs, std::mem::take(&mut pieces), born)
                    }
                };
                self.deliver(peer, channel, &request, std::mem::take(&mut parts))?;
                bytes = 0;
            }
        }
        match logs.kind {
            Kind::Absorbed(born) if !pieces.is_empty() => {
                self.deliver(peer, channel, &self.share_of(logs, pieces, born), parts)
            }
            _ => Ok(()),
        }
    }

    fn share_of(&self, logs: Logs<'_>, pieces: Vec<Piece>, born: Generation) -> Request {
        let over = locked(&self.store).over_below(&logs.near.epoch_key());
        Request::Share { pieces, born, over, by: self.info.id }
    }

    /// What a channel lacks, with its generation and the request's number. They are taken together: by its number a
    /// request is known to be late, so what was read later must have the larger one.
    fn next_piece(
        &self,
        kind: Kind,
        task: &TaskId,
        channel: ChannelId,
    ) -> Result<Option<(Generation, Outgoing, Sent)>> {
        let store = locked(&self.store);
        let here = store.generation(task).unwrap_or(Generation::NONE);
        let generation = match kind {
            // A newer attempt's blocks must not go out under an older one's name.
            Kind::Own(ours, _) if here > ours => {
                return Err(Error::Fenced { task: task.clone(), newer: here, ours });
            }
            Kind::Own(ours, _) => ours,
            Kind::Absorbed(_) => here,
        };
        Ok(store.outgoing(task, channel).map(|outgoing| (generation, outgoing, self.next_request())))
    }

    fn deliver(
        &self,
        peer: &AgentInfo,
        channel: ChannelId,
        request: &Request,
        parts: Vec<(&TaskId, Part)>,
    ) -> Result<()> {
        self.connections.call(peer, request)?;
        // Only now: a request that fails may have come to nothing; the next try sends the pieces again.
        let mut store = locked(&self.store);
        for (task, part) in parts {
            store.arrived(task, channel, part);
            self.sent_bytes.fetch_add(part.bytes(), Ordering::Relaxed);
        }
        Ok(())
    }

    // Of other agents.

    /// Holds a piece of an attempt's log.
    pub(in crate::edge) fn replicated(&self, request: Request) -> Result<()> {
        let Request::Replicate { task, generation, over, layout, reset, mut from, blocks, all, whole, sent } =
            request
        else {
            return Err(unexpected());
        };
        let end = blocks.iter().fold(from, |end, block| end.plus(block.len() as u64));
        let arriving = Arriving { generation, over, layout, reset, end, all, whole, sent };
        locked(&self.store).begin_copy(&task, &arriving)?;
        let deadline = Some(Instant::now() + self.peer_patience());
        for block in &blocks {
            self.hold_arriving(deadline, &task, &arriving, from, block)?;
            from = from.plus(block.len() as u64);
        }
        if all {
            locked(&self.store).complete_copy(&task, &arriving)?;
        }
        Ok(())
    }

    /// Holds what another agent has absorbed.
    pub(in crate::edge) fn shared(
        &self,
        pieces: Vec<Piece>,
        born: Generation,
        over: Generation,
        by: AgentId,
    ) -> Result<()> {
        if self.is_leaving.load(Ordering::Acquire) {
            let reason = "its executor has ended".to_owned();
            return Err(Error::AgentUnreachable { agent: self.info.addr.clone(), reason });
        }
        let deadline = Some(Instant::now() + self.peer_patience());
        for Piece { task, generation, from, blocks } in pieces {
            locked(&self.store).end_uses_below(&task.epoch_key(), over);
            // What it had before it opened the task is part of what it has since only if it said so then.
            let counts = locked(&self.store).counting_at(&task, by).filter(|counts| *counts <= generation);
            self.hold_all(deadline, &task, counts.unwrap_or(Generation::NONE), born, from, &blocks)?;
        }
        Ok(())
    }
}

/// The edge from one generation's log to one peer: a new generation begins a new copy.
pub(super) const fn channel(generation: Generation, peer: &AgentInfo) -> ChannelId {
    ChannelId(peer.id.0.rotate_left(17) ^ generation.0)
}

#[cfg(test)]
mod tests;
