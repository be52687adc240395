//! Which pieces of which logs each channel has been sent.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;

use crate::error::{Error, Result};
use crate::frame::{Group, LogVersion};
use crate::id::{LogOffset, Partition};

/// Bytes that ride in all frames of a task together, of its own log and of others'. A block rides once on each
/// channel, so this many allow for a log of 32 kB with one consumer and of 32 bytes with a thousand; above it,
/// a few copies and a name cost less.
pub const RIDING_BYTES_MAX: u64 = 32 << 10;

/// How far one channel has been sent; starts at the beginning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cursor(u64);

/// One block on its way downstream.
#[derive(Debug, Clone)]
struct Piece {
    operator: u32,
    partition: Partition,
    hops: u32,
    from: LogOffset,
    block: Bytes,
}

/// What one task knows of another's log.
#[derive(Debug, Clone, Default)]
struct Known {
    end: LogOffset,
    version: LogVersion,
}

/// The determinants that a task's frames carry: its own, and within the sharing depth those that it
/// absorbed from its own input.
///
/// Only so much rides: see [`RIDING_BYTES_MAX`]. From then on frames name the task's log, by its version, and
/// whoever keeps it sees that other agents have it before the task ends; what was absorbed is spread anyway. What
/// rides depends on the sizes of blocks alone, so it is the same at a replay.
///
/// The pieces stand in one queue in the order in which the task came to depend on them; a channel's delta is
/// what lies behind its cursor. So nothing is sent twice on one channel, and a replay that takes the same
/// input in the same order makes the same deltas.
#[derive(Debug)]
pub struct Piggyback {
    depth: u32,
    queue: VecDeque<Piece>,
    /// Pieces that all channels have.
    dropped: u64,
    operators: Vec<String>,
    own: (u32, Partition),
    own_log: Known,
    logs: HashMap<(u32, Partition), Known>,
    bytes: u64,
    channels: u32,
    /// What rides of the task's own log.
    own_room: Room,
    /// What rides of others'.
    others_room: Room,
}

/// How much may ride still.
#[derive(Debug)]
struct Room {
    bytes: u64,
    is_over: bool,
}

impl Room {
    const fn new(bytes: u64) -> Self {
        Self { bytes, is_over: false }
    }

    /// Whether so many more bytes ride. After the first that do not, none does: a log rides without gaps.
    const fn takes(&mut self, bytes: u64) -> bool {
        self.is_over |= bytes > self.bytes;
        if !self.is_over {
            self.bytes -= bytes;
        }
        !self.is_over
    }
}

impl Piggyback {
    /// Nothing known yet. `depth`: how many hops determinants travel; 0 carries none. All of them ride.
    #[must_use]
    pub fn new(operator: &str, partition: Partition, depth: u32) -> Self {
        Self {
            depth,
            queue: VecDeque::new(),
            dropped: 0,
            operators: vec![operator.to_owned()],
            own: (0, partition),
            own_log: Known::default(),
            logs: HashMap::new(),
            bytes: 0,
            channels: 1,
            own_room: Room::new(u64::MAX),
            others_room: Room::new(u64::MAX),
        }
    }

    /// With so many channels, which carry at most `bytes` together of the task's own log, and as much of others'.
    #[must_use]
    pub fn with_room(mut self, channels: u32, bytes: u64) -> Self {
        self.channels = channels;
        (self.own_room, self.others_room) = (Room::new(bytes), Room::new(bytes));
        self
    }

    /// The next block of the task's own log, recorded now or, at replay, then.
    pub fn record(&mut self, block: &Bytes) {
        let from = self.own_log.end;
        self.own_log.end = from.plus(block.len() as u64);
        self.own_log.version = self.own_log.version.after(block);
        let (operator, partition) = self.own;
        if self.own_room.takes(self.cost(block)) {
            self.push(Piece { operator, partition, hops: 1, from, block: block.clone() });
        }
    }

    /// Whether frames name the task's log from now on, instead of bringing it.
    #[must_use]
    pub const fn is_named(&self) -> bool {
        self.depth > 0 && self.own_room.is_over
    }

    fn cost(&self, block: &Bytes) -> u64 {
        (block.len() as u64).saturating_mul(self.channels.into())
    }

    /// Version of the task's own log.
    #[must_use]
    pub const fn version(&self) -> LogVersion {
        self.own_log.version
    }

    /// Takes a group that came with a frame; what of it is new, in log order. Groups may come in any order,
    /// several times, and overlap, as long as each begins at or before the end of what is known.
    ///
    /// # Errors
    /// [`Error::LogGap`] if something lies between, [`Error::LogFork`] if block borders differ.
    pub fn absorb(&mut self, group: &Group) -> Result<Option<Group>> {
        let operator = self.operator(&group.operator);
        let known = self.logs.entry((operator, group.partition)).or_default();
        if group.from > known.end {
            return Err(Error::LogGap { from: group.from, end: known.end });
        }
        let mut at = group.from;
        let mut new = Vec::new();
        let from = known.end;
        for block in &group.blocks {
            let end = at.plus(block.len() as u64);
            if at >= known.end {
                new.push(block.clone());
                known.end = end;
                known.version = known.version.after(block);
            } else if end > known.end {
                return Err(Error::LogFork { at: known.end });
            }
            at = end;
        }
        if new.is_empty() {
            return Ok(None);
        }
        let hops = group.hops.saturating_add(1);
        if hops <= self.depth {
            let mut at = from;
            for block in &new {
                if !self.others_room.takes(self.cost(block)) {
                    break;
                }
                let piece =
                    Piece { operator, partition: group.partition, hops, from: at, block: block.clone() };
                at = at.plus(block.len() as u64);
                self.push(piece);
            }
        }
        Ok(Some(Group { from, blocks: new, ..group.clone() }))
    }

    /// Version of another task's log as far as it was absorbed.
    #[must_use]
    pub fn version_of(&self, operator: &str, partition: Partition) -> LogVersion {
        let number = self.operators.iter().position(|known| known == operator);
        let number = number.and_then(|number| u32::try_from(number).ok());
        let known = number.and_then(|number| self.logs.get(&(number, partition)));
        known.map(|known| known.version).unwrap_or_default()
    }

    /// What a channel has not been sent; it counts as sent from now on.
    pub fn delta(&self, cursor: &mut Cursor) -> Vec<Group> {
        let first = usize::try_from(cursor.0.saturating_sub(self.dropped)).unwrap_or(usize::MAX);
        cursor.0 = self.dropped + self.queue.len() as u64;
        let mut groups: Vec<Group> = Vec::new();
        let mut places: HashMap<(u32, Partition), usize> = HashMap::new();
        for piece in self.queue.iter().skip(first) {
            let place = *places.entry((piece.operator, piece.partition)).or_insert_with(|| {
                groups.push(Group {
                    operator: self.operators.get(piece.operator as usize).cloned().unwrap_or_default(),
                    partition: piece.partition,
                    hops: piece.hops,
                    from: piece.from,
                    blocks: Vec::new(),
                });
                groups.len() - 1
            });
            if let Some(group) = groups.get_mut(place) {
                group.blocks.push(piece.block.clone());
            }
        }
        groups
    }

    /// Forgets what lies before every one of `cursors`.
    pub fn trim(&mut self, cursors: impl Iterator<Item = Cursor>) {
        let sent = cursors.map(|cursor| cursor.0).min().unwrap_or(u64::MAX);
        while self.dropped < sent {
            let Some(piece) = self.queue.pop_front() else { return };
            self.bytes -= piece.block.len() as u64;
            self.dropped += 1;
        }
    }

    /// Bytes of blocks that some channel has not been sent.
    #[must_use]
    pub const fn pending_bytes(&self) -> u64 {
        self.bytes
    }

    fn push(&mut self, piece: Piece) {
        if self.depth > 0 {
            self.bytes += piece.block.len() as u64;
            self.queue.push_back(piece);
        }
    }

    fn operator(&mut self, name: &str) -> u32 {
        let known = self.operators.iter().position(|known| known == name);
        let number = known.unwrap_or_else(|| {
            self.operators.push(name.to_owned());
            self.operators.len() - 1
        });
        u32::try_from(number).unwrap_or(u32::MAX)
    }
}
