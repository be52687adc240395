//! Copies of other tasks' logs, absorbed from frames.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::{Absorbed, Held, Reopened, Store};
use crate::agent::protocol::{AgentInfo, Beginning, Fence, HeldCopy, Layout};
use crate::causal_log::{BlockHash, CausalLog, Place};
use crate::error::{Error, Result};
use crate::id::{AgentId, EpochKey, Generation, LogOffset, TaskId};

/// The beginning of a log, as a task has taken it in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    version: u64,
    beginning: Beginning,
}

impl Taken {
    /// How much of it.
    #[must_use]
    pub const fn end(&self) -> LogOffset {
        self.beginning.end
    }
}

impl Store {
    /// Holds a block that came with a frame.
    ///
    /// A sender that was opened again has taken over what agents had absorbed until then. What a consumer
    /// absorbs later may come from a frame of the attempt before, which it had in hand all the time: such a
    /// block is held only if the new attempt's agent has it too. `born` is the generation of the task that
    /// absorbs it.
    ///
    /// # Errors
    /// [`Error::LogGap`]; [`Error::StaleFrame`] if it is not what the new attempt has; [`Error::LogFork`] if
    /// the copy here is of another run, which is dropped, so that a second try takes the new one.
    pub fn absorb_copy(
        &mut self,
        task: &TaskId,
        born: Generation,
        from: LogOffset,
        block: &Bytes,
    ) -> Result<Absorbed> {
        self.absorb_confirmed(task, Generation::NONE, born, from, block)
    }

    /// As [`Store::absorb_copy`], for a block that the attempt in generation `by` has, unless a newer one was opened
    /// since it was asked.
    ///
    /// # Errors
    /// As [`Store::absorb_copy`].
    pub fn absorb_confirmed(
        &mut self,
        task: &TaskId,
        by: Generation,
        born: Generation,
        from: LogOffset,
        block: &Bytes,
    ) -> Result<Absorbed> {
        let beyond = from.plus(block.len() as u64) > self.end(task).unwrap_or_default();
        if let Some(newest) = self.newest(task).filter(|newest| beyond && newest.generation > by) {
            return Ok(Absorbed::Unconfirmed(newest.clone()));
        }
        self.refuse_committed(task, born)?;
        if !self.held.contains_key(task) {
            let version = self.next_version(task);
            // Of no stage, until the task is opened here.
            let layout = Layout::default();
            let mut held = Held::new(CausalLog::new(), task, Generation::NONE, layout, version);
            held.absorbed = true;
            self.held.insert(task.clone(), held);
        }
        let generation = self.generation(task).unwrap_or(Generation::NONE);
        let absorbed = self.absorb(task, generation, from, block);
        if let Some(held) = self.held.get_mut(task).filter(|_| absorbed.is_ok()) {
            held.born = held.born.max(born);
        }
        if matches!(absorbed, Err(Error::LogFork { .. })) {
            // What a task that ran here has recorded counts, and so does what a new attempt has confirmed.
            let newest = self.newest(task).cloned();
            let is_vouched = newest.as_ref().is_some_and(|newest| self.vouched(task).0 >= newest.generation);
            // A copy that its sender went on with is whole, though it came with frames at first.
            // And one that is on its way from there will be.
            let is_replaced = self.held.get(task).is_some_and(|held| held.replaced.is_some());
            if self.is_own(task) || self.is_whole(task) || is_vouched || is_replaced {
                return Err(Error::StaleFrame { upstream: task.clone() });
            }
            self.remove(task);
            if let Some(newest) = newest {
                return Ok(Absorbed::Unconfirmed(newest));
            }
        }
        let end = from.plus(block.len() as u64);
        if matches!(absorbed, Ok(Absorbed::At(_)))
            && let Some(held) = self.held.get_mut(task)
            && (held.vouched == (by, from) || (from == LogOffset::START && by > held.vouched.0))
        {
            held.vouched = (by, end);
        }
        // Also where the sender ran here and its log is no news: others may not have it.
        if matches!(absorbed, Ok(Absorbed::At(_)))
            && let Some(held) = self.held.get_mut(task).filter(|held| end > held.depended_on)
        {
            held.depended_on = end;
            self.fresh.entry(task.epoch_key()).or_default().insert(task.clone());
        }
        absorbed
    }

    /// A sender is opened again, at `holder`: raises the fence; the length of the log, if it is here.
    pub fn reopened(&mut self, task: &TaskId, generation: Generation, holder: AgentInfo) -> Option<HeldCopy> {
        let all = self.reopened.entry(task.clone()).or_default();
        // One that comes late says where an older attempt was.
        let place = all.partition_point(|known| known.generation < generation);
        if all.get(place).is_none_or(|known| known.generation != generation) {
            all.insert(place, Reopened { generation, at: holder });
        }
        self.fence(task, generation)
    }

    pub(super) fn newest(&self, task: &TaskId) -> Option<&Reopened> {
        self.reopened.get(task)?.last()
    }

    /// An open in this generation came to nothing: the attempt before it counts.
    pub fn drop_reopened(&mut self, task: &TaskId, generation: Generation) {
        self.retain_reopened(task, |known| known != generation);
    }

    fn retain_reopened(&mut self, task: &TaskId, stays: impl Fn(Generation) -> bool) {
        if let Some(all) = self.reopened.get_mut(task) {
            all.retain(|known| stays(known.generation));
            if all.is_empty() {
                self.reopened.remove(task);
            }
        }
    }

    /// An open here came to nothing, and others were told of it.
    pub fn withdraw(&mut self, task: &TaskId, generation: Generation) {
        self.withdrawn.entry(task.clone()).or_default().insert(generation);
        self.drop_reopened(task, generation);
    }

    /// Whether an open here came to nothing.
    #[must_use]
    pub fn has_withdrawn(&self, task: &TaskId, generation: Generation) -> bool {
        self.withdrawn.get(task).is_some_and(|all| all.contains(&generation))
    }

    /// Whether an attempt of this generation, or a newer one, was begun here; its log may be discarded. A fence that
    /// was raised for one at a copy says nothing of the copy.
    #[must_use]
    pub fn has_begun(&self, task: &TaskId, generation: Generation) -> bool {
        let forgotten = self.forgotten.get(task).is_some_and(|forgotten| *forgotten >= generation);
        forgotten || (self.is_own(task) && self.generation(task) >= Some(generation))
    }

    /// Raises the fence for a new attempt. The copy here, if there is one.
    pub fn fence_for(&mut self, task: &TaskId, fence: Fence) -> Option<HeldCopy> {
        let Fence { generation, over, reopened_at, shown } = fence;
        let epoch = task.epoch_key();
        self.end_uses_below(&epoch, over);
        if generation < self.over_below(&epoch) {
            // It comes so late that the attempt's use of the name is over: what counts in the next one is not at its agent.
            return None;
        }
        let copy = match reopened_at {
            Some(holder) => self.reopened(task, generation, holder),
            None => self.fence(task, generation),
        };
        copy.map(|copy| HeldCopy { is_shown: self.begins_with(task, &shown), ..copy })
    }

    /// The attempt whose log counts since its task was opened again, if that is `agent`'s.
    #[must_use]
    pub fn counting_at(&self, task: &TaskId, agent: AgentId) -> Option<Generation> {
        self.newest(task).filter(|reopened| reopened.at.id == agent).map(|reopened| reopened.generation)
    }

    /// The agent that had the log that counts since this generation is gone, and the log with it.
    pub fn nobody_confirms(&mut self, task: &TaskId, generation: Generation) {
        // A newer attempt may have been opened while it was asked.
        self.retain_reopened(task, |known| known > generation);
    }

    /// Drops what is here of a log that was discarded in this generation, but nothing of newer ones. Once: what is
    /// absorbed after that is of a newer one, and copies do not tell.
    pub fn forget(&mut self, task: &TaskId, generation: Generation) {
        let forgotten = self.forgotten.entry(task.clone()).or_insert(Generation::NONE);
        if *forgotten >= generation {
            return;
        }
        *forgotten = generation;
        for task in [task, &task.in_flight()] {
            if self.held.get(task).is_some_and(|held| held.generation <= generation) {
                self.remove(task);
            }
        }
        self.retain_reopened(task, |known| known > generation);
    }

    /// Whether the log of a task that ran here is here, and not only a copy.
    #[must_use]
    pub fn is_own(&self, task: &TaskId) -> bool {
        self.held.get(task).is_some_and(|held| !held.absorbed)
    }

    /// Absorbed logs, by the newest task that took something of them.
    #[must_use]
    pub fn absorbed(&self) -> BTreeMap<Generation, Vec<TaskId>> {
        let mut all: BTreeMap<Generation, Vec<TaskId>> = BTreeMap::new();
        for (task, held) in self.held.iter().filter(|(_, held)| held.absorbed) {
            all.entry(held.born).or_default().push(task.clone());
        }
        all
    }

    /// What a task has taken in of a log, given what it had before: up to `end`.
    #[must_use]
    pub fn taken(&self, task: &TaskId, before: Option<Taken>, end: LogOffset) -> Option<Taken> {
        let held = self.held.get(task)?;
        let before = before.filter(|before| before.version == held.version && before.end() <= end);
        let Beginning { end: mut at, mut hash } = before.map(|before| before.beginning).unwrap_or_default();
        for block in held.log.blocks(at).iter().take_while(|block| block.end() <= end) {
            let own = block.hash().number();
            hash = BlockHash::of(&[hash.to_le_bytes(), own.to_le_bytes()].concat()).number();
            at = block.end();
        }
        (at == end).then_some(Taken { version: held.version, beginning: Beginning { end, hash } })
    }

    /// Whether what a task has taken in of a log is what stands here: a copy may have been replaced since.
    #[must_use]
    pub fn has(&self, task: &TaskId, taken: &Taken) -> bool {
        self.version(task) == Some(taken.version) || self.begins_with(task, &taken.beginning)
    }

    /// Whether the log here begins so.
    #[must_use]
    pub fn begins_with(&self, task: &TaskId, beginning: &Beginning) -> bool {
        self.beginning(task, beginning.end) == Some(*beginning)
    }

    /// The first part of the log here, up to `end`.
    #[must_use]
    pub fn beginning(&self, task: &TaskId, end: LogOffset) -> Option<Beginning> {
        self.taken(task, None, end).map(|taken| taken.beginning)
    }

    /// The attempt whose log what is here is known to be a part of, and how far.
    #[must_use]
    pub fn vouched(&self, task: &TaskId) -> (Generation, LogOffset) {
        self.held.get(task).map_or((Generation::NONE, LogOffset::START), |held| held.vouched)
    }

    /// This version of a log is a part of that attempt's, so far.
    pub fn vouch(&mut self, task: &TaskId, version: Option<u64>, generation: Generation, upto: LogOffset) {
        if let Some(held) = self.held.get_mut(task).filter(|held| Some(held.version) == version) {
            held.vouched = (generation, upto);
        }
    }

    /// This version of a log is of another run than what counts, but for what lies before `same`: the rest is dropped,
    /// so that the next try takes what does. What something visible depends on may be part of what stays.
    pub fn drop_stale(&mut self, task: &TaskId, version: Option<u64>, same: LogOffset) {
        let Some(held) = self.held.get(task).filter(|held| Some(held.version) == version) else { return };
        if held.log.blocks(LogOffset::START).first().is_none_or(|first| first.end() > same) {
            self.remove(task);
        } else {
            self.cut(task, same);
        }
    }

    /// Drops what lies behind `to`.
    pub(super) fn cut(&mut self, task: &TaskId, to: LogOffset) {
        let Some(held) = self.held.get_mut(task) else { return };
        let (before, count, in_flight) = (held.log.memory_bytes(), held.log.count(), held.in_flight);
        held.log.cut(to);
        let left = held.log.memory_bytes();
        self.blocks -= (count - held.log.count()) as u64;
        let found = held.found.min(held.log.count() as u64);
        self.found -= std::mem::replace(&mut held.found, found) - found;
        self.freed(before - left, in_flight);
        let fresh = self.next_version(task);
        let Some(held) = self.held.get_mut(task) else { return };
        self.versions_of.remove(&std::mem::replace(&mut held.version, fresh));
        let blocks = held.log.blocks(LogOffset::START);
        held.durable.cut(blocks.len());
        held.depended_on = held.depended_on.min(held.log.end());
        held.vouched.1 = held.vouched.1.min(held.log.end());
        held.replaced = held.replaced.map(|upto| upto.min(held.log.end()));
        let in_memory =
            blocks.iter().enumerate().filter(|(_, block)| matches!(block.place, Place::Memory(_)));
        self.queue.extend(in_memory.map(|(index, _)| (fresh, index)));
    }

    /// Those of an epoch's absorbed logs that are meant and have blocks which were not shared yet; they count as shared
    /// from now on.
    pub fn take_fresh(&mut self, epoch: &EpochKey, is_meant: impl Fn(&TaskId) -> bool) -> Vec<TaskId> {
        let fresh = self.fresh.remove(epoch).unwrap_or_default();
        let (taken, left): (BTreeSet<_>, BTreeSet<_>) = fresh.into_iter().partition(|task| is_meant(task));
        if !left.is_empty() {
            self.fresh.insert(epoch.clone(), left);
        }
        taken.into_iter().collect()
    }

    /// They could not be shared. Those that were dropped meanwhile need not be.
    pub fn not_shared(&mut self, epoch: &EpochKey, tasks: Vec<TaskId>) {
        let held = tasks.into_iter().filter(|task| self.held.contains_key(task));
        let held: Vec<TaskId> = held.collect();
        if !held.is_empty() {
            self.fresh.entry(epoch.clone()).or_default().extend(held);
        }
    }

    /// Whether some absorbed log of the epoch was not shared yet.
    #[must_use]
    pub fn has_fresh(&self, epoch: &EpochKey) -> bool {
        self.fresh.contains_key(epoch)
    }
}
