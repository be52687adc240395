//! Restoring the number of copies after a holder has died, or before it does.
//!
//! A log whose attempt is over is written to by nobody, so nobody would notice that fewer agents hold it
//! than `sharing_depth` wants. One of the holders that are left is told to make another copy; failures one
//! after the other are survived then, as long as there is time for that between them. Whoever leaves is no holder
//! any more, but may be the one that makes the copy.

use std::collections::{BTreeMap, BTreeSet};

use super::{Entry, Live, Registry};
use crate::agent::protocol::Repair;
use crate::id::{AgentId, TaskId};

/// Repairs told at a time.
const REPAIRS_MAX: usize = 64;
/// All logs are looked at no more often: of many agents that come one after the other, each may have copies.
const LOOK_PERIOD_MS: u64 = 1_000;

/// Logs that have fewer copies than wanted.
#[derive(Debug, Default)]
pub(super) struct Short {
    /// Agents that are to hold each log.
    wanted: usize,
    /// Those of which another copy can be made, by the agent that is to make it.
    due: BTreeMap<AgentId, BTreeSet<TaskId>>,
    /// Whether some have perhaps fewer still, for want of agents that could have one.
    are_few: bool,
    /// Whether agents have come since that was looked at.
    has_room: bool,
    /// When it may be looked at again.
    next_ms: u64,
}

impl Short {
    /// An agent makes no copies any more: others are told to.
    pub(super) fn of_dead(&mut self, agent: AgentId) {
        self.due.remove(&agent);
    }
}

impl Registry {
    /// So many agents are to hold each log, its own included.
    pub const fn want_copies(&mut self, copies: usize) {
        self.short.wanted = copies;
    }

    /// Whether `agent` may have copies to make.
    #[must_use]
    pub fn has_repairs(&self, agent: AgentId) -> bool {
        self.short.due.contains_key(&agent)
    }

    /// Logs of which `agent` is to make another copy. An agent with an attempt at work that was silent for longer than
    /// `patience_ms` counts as dead, though nobody else waits for it.
    pub fn repairs(&mut self, agent: AgentId, patience_ms: u64, now_ms: u64) -> Vec<Repair> {
        self.look_for_silent(now_ms);
        let wanted = self.short.wanted.min(self.agents.count_staying());
        let mut repairs = Vec::new();
        for task in self.short.due.remove(&agent).unwrap_or_default() {
            let Some(entry) = self.tasks.get(&task).filter(|entry| entry.published) else { continue };
            let holders: Vec<AgentId> = self.staying_holders(entry).collect();
            if holders.len() >= wanted {
                self.short.are_few |= self.is_few(entry);
                continue;
            }
            // Kept until the holders are as many as wanted: a repair may fail.
            let repairer = self.repairer(entry);
            if repairer == Some(agent) && repairs.len() < REPAIRS_MAX {
                if self.is_left(&task, patience_ms, now_ms) {
                    let known = self.tasks.get(&task).map(|entry| (entry.generation, entry.whole));
                    let (generation, whole) = known.unwrap_or_default();
                    let holders = self.infos(&holders);
                    repairs.push(Repair { task: task.clone(), generation, holders, whole });
                } else {
                    self.ask_after(&task, patience_ms, now_ms);
                }
            }
            self.is_due(task, repairer);
        }
        repairs
    }

    /// Whoever was granted a log may never have heard of that, or have told in vain that it is over. It is asked when no
    /// answer can be on its way any more.
    fn ask_after(&mut self, task: &TaskId, patience_ms: u64, now_ms: u64) {
        let live = self.tasks.get(task).and_then(|entry| entry.live);
        if live.is_some_and(|live| now_ms.saturating_sub(live.granted_ms) >= patience_ms) {
            self.waits_for(task);
        }
    }

    /// Whether nobody writes to a log. An attempt at an agent that is dead may go on for a while: what is copied is of a
    /// generation of its own, which the holders hold against that one.
    fn is_left(&mut self, task: &TaskId, patience_ms: u64, now_ms: u64) -> bool {
        let Some(entry) = self.tasks.get(task) else { return false };
        let Some(live) = entry.live.filter(|live| !live.is_over) else { return true };
        // What rode in frames stands in the attempt's name at whoever has absorbed it.
        if !entry.whole || !self.is_gone(live.agent, patience_ms, now_ms) {
            return false;
        }
        self.give_up(task);
        true
    }

    /// Goes on without the attempt at a dead agent that has a log open: whoever asks a holder from now on does so in a
    /// newer generation, against which that attempt adds nothing.
    pub(super) fn give_up(&mut self, task: &TaskId) {
        self.newest = self.newest.next();
        let generation = self.newest;
        self.change(task, |entry| {
            entry.live = entry.live.map(|live| Live { is_over: true, ..live });
            entry.generation = generation;
        });
    }

    /// Notes the logs of an agent that are held by some who are silent, dead or about to leave, as it may be itself; or it is
    /// back.
    pub(super) fn look_for_short(&mut self, agent: AgentId) {
        let logs = self.places.of(agent).filter_map(|task| self.tasks.get_key_value(task));
        let short = logs.filter(|(_, entry)| self.has_few(entry) && self.is_short(entry));
        let short: Vec<_> = short.map(|(id, entry)| (self.repairer(entry), id.clone())).collect();
        for (repairer, task) in short {
            self.is_due(task, repairer);
        }
    }

    /// If nobody can make the copy, as all who have one are silent, it is due when one of them is back.
    fn is_due(&mut self, task: TaskId, repairer: Option<AgentId>) {
        match repairer {
            Some(repairer) => drop(self.short.due.entry(repairer).or_default().insert(task)),
            None => self.short.are_few = true,
        }
    }

    fn is_short(&self, entry: &Entry) -> bool {
        !entry.holders.iter().all(|id| self.agents.stays(*id))
    }

    /// As [`Self::look_for_short`], of one log that somebody has said something of: it may have begun with fewer copies.
    pub(super) fn look_if_short(&mut self, task: &TaskId) {
        let Some(entry) = self.tasks.get(task).filter(|entry| self.is_few(entry)) else { return };
        self.short.are_few = true;
        // Who writes to it sees to that.
        let is_left = entry.live.is_none_or(|live| live.is_over);
        let may_have_more = is_left && self.staying_holders(entry).count() < self.agents.count_staying();
        if may_have_more || self.is_short(entry) {
            self.is_due(task.clone(), self.repairer(entry));
        }
    }

    /// Whether there are fewer copies than wanted, be it that there is nobody who could have another.
    fn is_few(&self, entry: &Entry) -> bool {
        // What stands in a checkpoint, and nobody has written to since, needs no copies. Nor does what rides in frames,
        // as whoever depends on it has it: what became visible of that has holders.
        self.has_few(entry) && (entry.whole || self.is_short(entry))
    }

    /// Looks at no more holders than are wanted, if they stay: what rides far may have as many as there are agents.
    fn has_few(&self, entry: &Entry) -> bool {
        self.staying_holders(entry).take(self.short.wanted).count() < self.short.wanted
    }

    /// An agent has come, or is back, which may have copies of what has too few.
    pub(super) fn has_room(&mut self, now_ms: u64) {
        self.short.has_room = true;
        self.look_for_few(now_ms);
    }

    /// Looks for logs that have too few copies, if some of them could have more by now.
    pub(super) fn look_for_few(&mut self, now_ms: u64) {
        let short = &mut self.short;
        if !(short.are_few && short.has_room) || now_ms < short.next_ms {
            return;
        }
        (short.are_few, short.has_room, short.next_ms) = (false, false, now_ms + LOOK_PERIOD_MS);
        let few = self.tasks.iter().filter(|(_, entry)| self.is_few(entry));
        for task in few.map(|(id, _)| id.clone()).collect::<Vec<_>>() {
            self.look_if_short(&task);
        }
    }

    fn staying_holders<'a>(&'a self, entry: &'a Entry) -> impl Iterator<Item = AgentId> + 'a {
        entry.holders.iter().copied().filter(|id| self.agents.stays(*id))
    }

    /// The holder that makes the copy: one that leaves only if no other has it, the driver's agent only then or never.
    fn repairer(&self, entry: &Entry) -> Option<AgentId> {
        let alive = entry.holders.iter().copied().filter(|id| self.agents.may_copy(*id));
        let is_driver = |id| self.agents.info(id).is_some_and(|info| info.driver);
        alive.min_by_key(|id| (!self.agents.stays(*id), is_driver(*id), *id))
    }
}
