//! One host: its agent's logs, in memory as far as that goes, the others on a disk that takes nothing now and then.

use bytes::Bytes;
use clonos::agent::protocol::AgentInfo;
use clonos::agent::store::{Absorbed, Store};
use clonos::causal_log::{BlockRef, Place, SpillRef};
use clonos::error::{Error, Result};
use clonos::id::{AgentId, Generation, LogOffset, TaskId};

use crate::Mutation;
use crate::dice::{Dice, mixed};

/// What agents have for their logs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    /// Bytes of them that may be in memory.
    pub(crate) memory: u64,
    /// Of a hundred writes, how many the disk does not take.
    pub(crate) refused: usize,
    /// Which of them.
    pub(crate) seed: u64,
}

impl Room {
    /// All is in memory.
    pub(crate) const PLENTY: Self = Self { memory: 1 << 40, refused: 0, seed: 0 };
}

/// One host: its agent, and how often it has died.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) info: AgentInfo,
    pub(crate) store: Store,
    disk: Disk,
    pub(crate) lives: u64,
    /// Whether its agent was told that the registry knows it: no task is begun before.
    pub(crate) is_known: bool,
    /// Commits that it has heard of.
    pub(crate) heard: u64,
}

/// Where blocks go that leave memory. It is gone with its agent.
#[derive(Debug)]
struct Disk {
    blocks: Vec<Bytes>,
    dice: Dice,
    refused: usize,
    mutation: Mutation,
}

pub(crate) fn info(number: usize, lives: u64) -> AgentInfo {
    let id = AgentId(number as u64 + 1000 * lives);
    AgentInfo { id, addr: format!("{number}"), host: format!("h{number}"), driver: number == 0 }
}

impl Host {
    pub(crate) fn new(number: usize, lives: u64, room: Room, mutation: Mutation) -> Self {
        let info = info(number, lives);
        let dice = Dice::new(mixed(room.seed) ^ info.id.0);
        let disk = Disk { blocks: Vec::new(), dice, refused: room.refused, mutation };
        Self { info, store: Store::new(room.memory), disk, lives, is_known: false, heard: 0 }
    }

    /// Puts a block into a log, as `Handler::hold_with`: what does not fit leaves memory for it.
    pub(crate) fn hold(
        &mut self,
        block: &Bytes,
        absorb: impl Fn(&mut Store) -> Result<Absorbed>,
    ) -> Result<Absorbed> {
        loop {
            match absorb(&mut self.store)? {
                Absorbed::NoRoom => self.spill_for(block.len() as u64)?,
                held => return Ok(held),
            }
        }
    }

    /// As `Handler::spill_for`.
    fn spill_for(&mut self, bytes: u64) -> Result<()> {
        let all = self.store.make_room(bytes);
        let mut refused = None;
        for victims in all {
            match self.disk.write(&victims.blocks) {
                Ok(places) if refused.is_none() => self.store.spilled(&victims, &places),
                Ok(_) => self.store.not_spilled(&victims),
                Err(error) => {
                    self.store.not_spilled(&victims);
                    refused = Some(error);
                }
            }
        }
        refused.map_or(Ok(()), Err)
    }

    pub(crate) fn hold_all(
        &mut self,
        task: &TaskId,
        generation: Generation,
        mut from: LogOffset,
        blocks: &[Bytes],
    ) -> Result<()> {
        for block in blocks {
            let held = self.hold(block, |store| store.absorb(task, generation, from, block))?;
            assert!(matches!(held, Absorbed::At(_)));
            from = from.plus(block.len() as u64);
        }
        Ok(())
    }

    /// The bytes of blocks, wherever they are.
    pub(crate) fn read(&self, blocks: &[BlockRef]) -> Vec<Bytes> {
        let bytes = |place: &Place| match place {
            Place::Memory(bytes) => bytes.clone(),
            Place::Spilled(place, _) => self.disk.read(place),
        };
        blocks.iter().map(|block| bytes(&block.place)).collect()
    }

    /// One piece of a log.
    pub(crate) fn piece(&self, task: &TaskId, from: LogOffset) -> Vec<Bytes> {
        self.store.piece(task, from).map(|piece| self.read(&piece)).unwrap_or_default()
    }

    /// All blocks of a log.
    pub(crate) fn blocks(&self, task: &TaskId) -> Vec<Bytes> {
        let mut all = Vec::new();
        let mut from = LogOffset::START;
        loop {
            let piece = self.piece(task, from);
            if piece.is_empty() {
                return all;
            }
            from = from.plus(bytes_of(&piece));
            all.extend(piece);
        }
    }

    /// Whether something has left its memory.
    pub(crate) fn has_spilled(&self) -> bool {
        !self.disk.blocks.is_empty()
    }
}

impl Disk {
    fn write(&mut self, blocks: &[(usize, Bytes)]) -> Result<Vec<SpillRef>> {
        let refuses = self.dice.chance(self.refused);
        if refuses && self.mutation != Mutation::RefusedIsWritten {
            return Err(Error::DiskBudget { limit: 0 });
        }
        let write = |(_, block): &(usize, Bytes)| {
            let (pos, len) = (self.blocks.len() as u64, block.len() as u32);
            self.blocks.push(if refuses { Bytes::from(vec![0; block.len()]) } else { block.clone() });
            SpillRef { file: 0, pos, len }
        };
        Ok(blocks.iter().map(write).collect())
    }

    fn read(&self, place: &SpillRef) -> Bytes {
        self.blocks[place.pos as usize].clone()
    }
}

pub(crate) fn bytes_of(blocks: &[Bytes]) -> u64 {
    blocks.iter().map(|block| block.len() as u64).sum()
}
