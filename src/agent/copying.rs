//! Seeing that some agents have some logs to their ends: whom to send to next, when enough have them, when that has
//! failed and why.
//!
//! A machine without I/O, whatever logs they are: those who write one, take one over, absorb some, leave, or make
//! copies anew all go by it. How much of a log an agent has answered for is in the [store](super::store).
//!
//! 1. Who has answered for all of them has them. Nobody else has.
//! 2. Who does not, for whatever reason, has its place taken by the next in line.
//! 3. An attempt that is fenced has nothing to copy any more: that ends it.
//! 4. Want of room is no excuse for fewer copies than are wanted: the writer is refused.
//! 5. Otherwise fewer do, as at the start of a job: others get copies once they are there.
//! 6. None do only if nobody else is alive. Who may answer yet is waited for, and who refuses is alive.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use super::protocol::AgentInfo;
use crate::error::{Error, Result};
use crate::id::AgentId;

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Send it what it lacks, and say what it [answered](Copying::answered).
    Send(AgentInfo),
    /// Say [who else](Copying::choose) may have copies.
    Choose,
    /// Nobody has them, as nobody has answered: [leave out](Copying::leave_out) who is dead.
    LeaveOut,
    /// Wait a little.
    Wait,
    /// As many have them as are wanted, or there are.
    Done,
}

/// Logs on their way to as many agents as are wanted.
#[derive(Debug)]
pub struct Copying {
    wanted: usize,
    /// How long those are waited for who are silent, if nobody has them.
    patience: Duration,
    holders: Vec<AgentInfo>,
    /// To be sent to, in this order.
    due: VecDeque<AgentInfo>,
    failed: Vec<(AgentInfo, Error)>,
    has_chosen: bool,
    has_left_out: bool,
}

impl Copying {
    /// So many agents are to have them. As long as all are silent, they are waited for so long.
    #[must_use]
    pub fn new(wanted: usize, patience: Duration) -> Self {
        let (holders, due, failed) = (Vec::new(), VecDeque::new(), Vec::new());
        Self { wanted, patience, holders, due, failed, has_chosen: false, has_left_out: false }
    }

    /// These are to be sent them first.
    #[must_use]
    pub fn first_to(self, peers: Vec<AgentInfo>) -> Self {
        Self { due: peers.into(), ..self }
    }

    /// These have them already.
    #[must_use]
    pub fn held_by(self, holders: Vec<AgentInfo>) -> Self {
        Self { holders, ..self }
    }

    /// What to do next, after so long.
    ///
    /// # Errors
    /// If fewer agents have them than may be: what kept the others from it.
    pub fn next(&mut self, waited: Duration) -> Result<Step> {
        if self.holders.len() >= self.wanted {
            return Ok(Step::Done);
        }
        if let Some(peer) = self.due.pop_front() {
            return Ok(Step::Send(peer));
        }
        if !self.has_chosen {
            self.has_chosen = true;
            return Ok(Step::Choose);
        }
        if let Some(full) = self.first_failure(Error::is_full) {
            return Err(full);
        }
        if !self.holders.is_empty() {
            return Ok(Step::Done);
        }
        if let Some(refused) = self.first_failure(|error| !error.is_silence()) {
            return Err(refused);
        }
        if !self.has_left_out {
            self.has_left_out = true;
            return Ok(Step::LeaveOut);
        }
        match self.failed.last() {
            None => Ok(Step::Done),
            Some((_, silent)) if waited >= self.patience => Err(silent.clone()),
            Some(_) => {
                self.has_left_out = false;
                self.due.extend(self.failed.drain(..).map(|(peer, _)| peer));
                Ok(Step::Wait)
            }
        }
    }

    /// What an agent answered to all that it lacks, if it did.
    ///
    /// # Errors
    /// [`Error::Fenced`] if that is the answer.
    pub fn answered(&mut self, peer: AgentInfo, answer: Result<()>) -> Result<()> {
        match answer {
            Ok(()) => self.holders.push(peer),
            Err(fenced @ Error::Fenced { .. }) => return Err(fenced),
            Err(error) => self.failed.push((peer, error)),
        }
        Ok(())
    }

    /// Agents that may have copies, best first. Those that were sent to are not tried again.
    pub fn choose(&mut self, candidates: Vec<AgentInfo>) {
        let known = self.holders.iter().chain(self.failed.iter().map(|(peer, _)| peer));
        let known: HashSet<AgentId> = known.map(|peer| peer.id).collect();
        self.due.extend(candidates.into_iter().filter(|candidate| !known.contains(&candidate.id)));
    }

    /// Who is dead has no copies and will not. To ask makes who was silent for long dead for good, so nobody is asked
    /// about as long as others take the copies.
    pub fn leave_out(&mut self, mut is_dead: impl FnMut(&AgentInfo) -> bool) {
        self.failed.retain(|(peer, _)| !is_dead(peer));
    }

    /// Whether others were asked than those it began with.
    #[must_use]
    pub const fn has_moved(&self) -> bool {
        self.has_chosen
    }

    /// Who has them.
    #[must_use]
    pub fn holders(&self) -> &[AgentInfo] {
        &self.holders
    }

    /// As [`Self::holders`], when all is done.
    #[must_use]
    pub fn into_holders(self) -> Vec<AgentInfo> {
        self.holders
    }

    fn first_failure(&self, is_meant: impl Fn(&Error) -> bool) -> Option<Error> {
        self.failed.iter().map(|(_, error)| error).find(|error| is_meant(error)).cloned()
    }
}

#[cfg(test)]
mod tests;
