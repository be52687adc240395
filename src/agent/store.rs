//! The logs that one agent holds, its own tasks' and copies of others', inside a memory budget.
//!
//! A machine without I/O: it says which blocks must go to disk, the edge moves them.

mod copies;
mod copying;
mod durable;
mod memory;
mod policy;

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, VecDeque};

use bytes::Bytes;

pub use self::copies::Taken;
pub use self::copying::Arriving;
use self::durable::Durable;
pub use self::memory::Victims;
use self::memory::{LISTED, PLACED, QUEUED};
use super::committed::Committed;
use super::protocol::{AgentInfo, AgentStats, HeldCopy, HeldStats, Layout, PIECE_BYTES, Sent};
use crate::causal_log::{BlockHash, BlockRef, CausalLog, Place, SpillRef};
use crate::error::{Error, Result};
use crate::id::{EpochKey, Generation, LogOffset, TaskId};

/// Where a sender was opened again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reopened {
    /// The new attempt's generation.
    pub generation: Generation,
    /// Its agent.
    pub at: AgentInfo,
}

/// One log.
#[derive(Debug)]
struct Held {
    log: CausalLog,
    generation: Generation,
    layout: Layout,
    /// Changes whenever the log is replaced, so that an old place in the queue is not mistaken.
    version: u64,
    durable: Durable,
    /// Blocks that it had when it was taken over, or copied from where it was.
    found: u64,
    /// The attempt of whose log it had all when it came to be whole: those that are of one attempt do not differ. A copy
    /// begun anew is not, until it was sent all.
    whole: Option<Generation>,
    /// Whether another copy comes in its place, and how far it has come: what lies behind is what was here before.
    replaced: Option<LogOffset>,
    /// Whether something of it could not be read: it is no copy then, whatever it was.
    spoiled: bool,
    /// Whether all of it came with frames: it is a copy of another task's log.
    absorbed: bool,
    /// Of absorbed logs: the newest generation that was granted here before. What was committed before
    /// that was gone when they came.
    born: Generation,
    in_flight: bool,
    /// Of copies: the last request that brought something.
    sent: Option<Sent>,
    /// How far consumers here have absorbed it, be it that it was here before.
    depended_on: LogOffset,
    /// Of what was absorbed: the attempt whose log it is known to be a part of, and how far.
    vouched: (Generation, LogOffset),
}

impl Held {
    fn new(log: CausalLog, task: &TaskId, generation: Generation, layout: Layout, version: u64) -> Self {
        let (durable, in_flight) = (Durable::default(), task.is_in_flight());
        let (whole, absorbed, born, depended_on) = (None, false, Generation::NONE, LogOffset::START);
        let found = 0;
        Self {
            log,
            generation,
            layout,
            version,
            durable,
            found,
            whole,
            replaced: None,
            spoiled: false,
            absorbed,
            born,
            in_flight,
            sent: None,
            depended_on,
            vouched: (Generation::NONE, LogOffset::START),
        }
    }

    /// Whether it is being taken over, or copied: what comes was recorded before.
    const fn is_being_found(&self) -> bool {
        let is_arriving = self.replaced.is_some() || (self.whole.is_none() && !self.absorbed);
        is_arriving && !self.in_flight
    }
}

/// What became of a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Absorbed {
    /// It stands in memory, at this index of its log (or did so before).
    At(usize),
    /// Something must be spilled first; nothing has changed.
    NoRoom,
    /// The sender was opened again: that agent has the log that counts, and must say that it has the block.
    Unconfirmed(Reopened),
}

/// The part of a log that a peer does not have.
#[derive(Debug)]
pub struct Outgoing {
    /// Whether the peer is to begin a new copy.
    pub reset: bool,
    /// Which part it is.
    pub part: Part,
    /// The blocks; those on disk must be read first.
    pub blocks: Vec<BlockRef>,
    /// Layout of the log.
    pub layout: Layout,
    /// Whether that is all there is.
    pub all: bool,
}

/// A part of a log as it was when it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    version: u64,
    /// Position of the first block.
    pub from: LogOffset,
    /// Position after the last block.
    pub end: LogOffset,
}

impl Part {
    /// Which version of the log it is of.
    #[must_use]
    pub const fn version(&self) -> u64 {
        self.version
    }

    /// How much it is.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.end.0 - self.from.0
    }
}

/// All logs of one agent.
#[derive(Debug)]
pub struct Store {
    held: HashMap<TaskId, Held>,
    /// Blocks in memory in the order they came, for spilling the oldest: the log's version, and the block's index.
    queue: VecDeque<(u64, usize)>,
    /// The logs by their versions.
    versions_of: HashMap<u64, TaskId>,
    /// How many blocks all logs have, be they in memory or on disk.
    blocks: u64,
    /// Those that were found.
    found: u64,
    /// What each takes besides its bytes, what more it takes in memory, and what more there if some stand in segments.
    besides: (u64, u64, u64),
    has_places: bool,
    memory_bytes: u64,
    memory_bytes_max: u64,
    /// The same, if nothing else were kept.
    memory_bytes_all: u64,
    /// Bytes of frames in memory, of all.
    in_flight_bytes: u64,
    versions: u64,
    /// Absorbed logs that have blocks which were not shared with peers yet.
    fresh: HashMap<EpochKey, BTreeSet<TaskId>>,
    /// Senders that were opened again, and who has the log that counts since: the newest last, never none.
    reopened: HashMap<TaskId, Vec<Reopened>>,
    /// Opens here that came to nothing.
    withdrawn: HashMap<TaskId, BTreeSet<Generation>>,
    /// Newest generation of each log that was discarded.
    forgotten: HashMap<TaskId, Generation>,
    committed: Committed,
}

impl Store {
    /// An empty store that keeps at most `memory_bytes_max` bytes of logs in memory.
    #[must_use]
    pub fn new(memory_bytes_max: u64) -> Self {
        Self {
            held: HashMap::new(),
            queue: VecDeque::new(),
            versions_of: HashMap::new(),
            blocks: 0,
            found: 0,
            besides: (LISTED, QUEUED, PLACED),
            has_places: false,
            memory_bytes: 0,
            memory_bytes_max,
            memory_bytes_all: memory_bytes_max,
            in_flight_bytes: 0,
            versions: 0,
            fresh: HashMap::new(),
            reopened: HashMap::new(),
            withdrawn: HashMap::new(),
            forgotten: HashMap::new(),
            committed: Committed::default(),
        }
    }

    /// Begins the log of a new attempt, in place of any older copy. It counts as a copy from
    /// [`Store::complete`] on.
    ///
    /// # Errors
    /// [`Error::Fenced`] if a newer generation was here.
    pub fn begin(&mut self, task: &TaskId, generation: Generation, layout: Layout) -> Result<()> {
        self.refuse_committed(task, generation)?;
        if let Some(held) = self.held.get(task).filter(|held| held.generation > generation) {
            return Err(fenced(task, held.generation, generation));
        }
        self.remove(task);
        let version = self.next_version(task);
        let held = Held::new(CausalLog::new(), task, generation, layout, version);
        self.held.insert(task.clone(), held);
        Ok(())
    }

    /// Goes on with the log that is here, for a new attempt.
    ///
    /// # Errors
    /// [`Error::Fenced`] if a newer generation was here; [`Error::CausalLogLost`] if the log is not.
    pub fn reopen(&mut self, task: &TaskId, generation: Generation, layout: Layout) -> Result<()> {
        let Some(held) = self.held.get_mut(task) else {
            return Err(Error::CausalLogLost { task: task.clone() });
        };
        if held.generation > generation {
            return Err(fenced(task, held.generation, generation));
        }
        held.generation = generation;
        held.layout = layout;
        (held.absorbed, held.replaced) = (false, None);
        Ok(())
    }

    /// Takes over a log whose blocks are on disk already.
    pub fn recovered(
        &mut self,
        task: &TaskId,
        generation: Generation,
        layout: Layout,
        blocks: impl IntoIterator<Item = (SpillRef, BlockHash)>,
    ) {
        self.remove(task);
        let version = self.next_version(task);
        let log = CausalLog::from_spilled(blocks);
        let found = log.count() as u64;
        self.blocks += found;
        self.found += found;
        let mut held = Held::new(log, task, generation, layout, version);
        held.found = found;
        held.whole = Some(generation);
        self.held.insert(task.clone(), held);
    }

    /// Raises the fence: lower generations are refused from now on. The copy here, if there is one.
    pub fn fence(&mut self, task: &TaskId, generation: Generation) -> Option<HeldCopy> {
        let held = self.held.get_mut(task)?;
        if held.generation < generation {
            // The rest of a copy that was on its way is refused from now on: what is here is what counts.
            (held.generation, held.replaced) = (generation, None);
        }
        let whole = held.whole.is_some();
        (!held.spoiled).then_some(HeldCopy { end: held.log.end(), whole, is_shown: false })
    }

    /// Something of this version of the log could not be read.
    pub fn spoil(&mut self, task: &TaskId, version: u64) {
        if let Some(held) = self.held.get_mut(task).filter(|held| held.version == version) {
            held.spoiled = true;
        }
    }

    /// The log of this generation has all that was published of it.
    pub fn complete(&mut self, task: &TaskId, generation: Generation) {
        if let Some(held) = self.held.get_mut(task).filter(|held| held.generation == generation) {
            held.whole = Some(generation);
        }
    }

    /// Whether the log here has all that was published of it.
    #[must_use]
    pub fn is_whole(&self, task: &TaskId) -> bool {
        self.held.get(task).is_some_and(|held| held.whole.is_some() && !held.spoiled)
    }

    /// Generation that holds the task here.
    #[must_use]
    pub fn generation(&self, task: &TaskId) -> Option<Generation> {
        self.held.get(task).map(|held| held.generation)
    }

    /// Appends or absorbs a block that starts at `from`.
    ///
    /// # Errors
    /// [`Error::Fenced`] for an older generation, [`Error::LogGap`], [`Error::LogFork`]; nothing is
    /// changed then.
    pub fn absorb(
        &mut self,
        task: &TaskId,
        generation: Generation,
        from: LogOffset,
        block: &Bytes,
    ) -> Result<Absorbed> {
        let end = LogOffset::START;
        let held = self.held.get_mut(task).ok_or(Error::LogGap { from, end })?;
        if held.generation > generation {
            return Err(fenced(task, held.generation, generation));
        }
        let (bytes, is_new) = (block.len() as u64, from == held.log.end());
        let is_found = held.is_being_found();
        if is_new && !is_found && self.recorded_list_bytes() > self.list_bytes_max() {
            return Err(Error::ListBudget { blocks: self.blocks, limit: self.memory_bytes_all });
        }
        if is_new && self.memory_bytes.saturating_add(bytes) > self.room_for(bytes) {
            return Ok(Absorbed::NoRoom);
        }
        let Some(held) = self.held.get_mut(task) else { return Err(Error::LogGap { from, end }) };
        let new_bytes = held.log.absorb(from, std::slice::from_ref(block))?;
        let index = held.log.blocks(LogOffset::START).partition_point(|known| known.offset < from);
        if new_bytes > 0 {
            self.memory_bytes += new_bytes;
            self.in_flight_bytes += if held.in_flight { new_bytes } else { 0 };
            self.queue.push_back((held.version, index));
            self.blocks += 1;
            held.found += u64::from(is_found);
            self.found += u64::from(is_found);
        }
        Ok(Absorbed::At(index))
    }

    /// Position after the log's last block.
    #[must_use]
    pub fn end(&self, task: &TaskId) -> Option<LogOffset> {
        self.held.get(task).map(|held| held.log.end())
    }

    /// Blocks from `from` on, of one piece; empty at the end, `None` if there is no such log.
    #[must_use]
    pub fn piece(&self, task: &TaskId, from: LogOffset) -> Option<Vec<BlockRef>> {
        Some(one_piece(self.held.get(task)?.log.blocks(from)))
    }

    /// Whether every block stands in a segment file of this agent.
    #[must_use]
    pub fn is_durable(&self, task: &TaskId) -> bool {
        self.held.get(task).is_none_or(|held| held.durable.count() == held.log.count())
    }

    /// Whether one block stands in a segment file of this agent.
    #[must_use]
    pub fn is_block_durable(&self, task: &TaskId, index: usize) -> bool {
        self.held.get(task).is_some_and(|held| held.durable.contains(index))
    }

    /// Another number each time a log is begun anew, for [`Self::durable`]; asked for before its blocks are.
    #[must_use]
    pub fn version(&self, task: &TaskId) -> Option<u64> {
        self.held.get(task).map(|held| held.version)
    }

    /// A block of this version of the log now stands in a segment file, and need not be written again to be
    /// spilled. Of a log that was replaced meanwhile it says nothing.
    pub fn durable(&mut self, task: &TaskId, version: Option<u64>, index: usize, place: SpillRef) {
        if let Some(held) = self.held.get_mut(task).filter(|held| Some(held.version) == version) {
            let block = held.log.block(index);
            let is_in_memory = block.is_some_and(|block| matches!(block.place, Place::Memory(_)));
            held.durable.insert(index, place, is_in_memory);
            self.has_places = true;
        }
    }

    fn next_version(&mut self, task: &TaskId) -> u64 {
        self.versions += 1;
        self.versions_of.insert(self.versions, task.clone());
        self.versions
    }

    fn remove(&mut self, task: &TaskId) {
        if let Some(held) = self.held.remove(task) {
            self.versions_of.remove(&held.version);
            self.blocks -= held.log.count() as u64;
            self.found -= held.found;
            self.freed(held.log.memory_bytes(), held.in_flight);
        }
    }

    /// Forgets a committed epoch's logs of generations below `below`; the epochs that they were of.
    pub fn commit(&mut self, key: &EpochKey, below: Generation) -> Vec<EpochKey> {
        self.committed.insert(key, below);
        let meant = |(task, held): &(&TaskId, &Held)| {
            held.generation.max(held.born) < below && key.covers(&task.epoch_key())
        };
        let gone: Vec<TaskId> = self.held.iter().filter(meant).map(|(task, _)| task.clone()).collect();
        let mut epochs: Vec<EpochKey> = gone.iter().map(TaskId::epoch_key).collect();
        for task in &gone {
            self.remove(task);
        }
        self.queue.retain(|(version, _)| self.versions_of.contains_key(version));
        let stays = |task: &TaskId, born: Generation| born >= below || !key.covers(&task.epoch_key());
        self.reopened.retain(|task, all| {
            all.retain(|reopened| stays(task, reopened.generation));
            !all.is_empty()
        });
        self.withdrawn.retain(|task, all| all.iter().any(|generation| stays(task, *generation)));
        self.forgotten.retain(|task, generation| stays(task, *generation));
        // What stays and is not shared yet was absorbed for the next use of the name.
        self.fresh.retain(|_, tasks| {
            tasks.retain(|task| self.held.contains_key(task));
            !tasks.is_empty()
        });
        epochs.sort();
        epochs.dedup();
        epochs
    }

    /// What is below this generation is of a use of the epoch's name that is committed, says who is in the next one. News
    /// of the commit may be on its way still.
    pub fn end_uses_below(&mut self, key: &EpochKey, below: Generation) {
        if self.over_below(key) < below {
            self.commit(key, below);
        }
    }

    /// Below which generation an epoch is over, as far as is known here.
    #[must_use]
    pub fn over_below(&self, key: &EpochKey) -> Generation {
        self.committed.below(key).unwrap_or(Generation::NONE)
    }

    /// A request of a use of an epoch that was committed comes late: what it brings is not the next use's.
    fn refuse_committed(&self, task: &TaskId, generation: Generation) -> Result<()> {
        match self.committed.below(&task.epoch_key()) {
            Some(below) if generation < below => Err(fenced(task, below, generation)),
            _ => Ok(()),
        }
    }

    /// Whether some log of the epoch is here.
    #[must_use]
    pub fn holds(&self, epoch: &EpochKey) -> bool {
        self.held.keys().any(|task| task.query == epoch.query && task.epoch == epoch.epoch)
    }

    /// What is held.
    #[must_use]
    pub fn stats(&self) -> AgentStats {
        let memory_bytes = self.memory_bytes + self.list_bytes();
        let mut stats = AgentStats { memory_bytes, ..AgentStats::default() };
        for (task, held) in &self.held {
            let spilled = held.log.spilled_bytes();
            stats.spilled_bytes += spilled;
            stats.held.push(HeldStats {
                task: task.clone(),
                generation: held.generation,
                blocks: held.log.count() as u64,
                bytes: held.log.end().0,
                spilled,
            });
        }
        stats
    }
}

/// As many blocks as one message takes; one that is more than that goes alone.
pub(crate) fn one_piece(blocks: &[BlockRef]) -> Vec<BlockRef> {
    let mut bytes = 0;
    let fits = |block: &&BlockRef| {
        let is_first = bytes == 0;
        bytes += block.bytes();
        is_first || bytes <= PIECE_BYTES
    };
    blocks.iter().take_while(fits).cloned().collect()
}

fn fenced(task: &TaskId, newer: Generation, ours: Generation) -> Error {
    Error::Fenced { task: task.clone(), newer, ours }
}
