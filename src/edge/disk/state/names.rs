//! Names of files of state.

use std::fmt;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64;

use crate::id::Generation;
use crate::state::kept::{Base, Begun, Written};
use crate::state::{Range, RangeSet, StateId, Version};

pub(in crate::edge::disk) const FOLDER: &str = "state";
const BEGUN: &str = "begun";
const DELTA: &str = "delta";
const BASE: &str = "base";
/// Stands for no version.
const NONE: &str = "none";

/// The folder of one state, in that of its query.
pub(super) fn state_dir(query: &Path, id: &StateId) -> PathBuf {
    query.join(FOLDER).join(format!("{:016x}", xxh3_64(id.operator.as_bytes())))
}

impl fmt::Display for Begun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{}.{BEGUN}", self.after.0, self.epoch)
    }
}

impl Begun {
    pub(super) fn parse(name: &str) -> Option<Self> {
        let (after, epoch) = name.strip_suffix(BEGUN)?.strip_suffix('.')?.split_once('-')?;
        Some(Self { after: generation(after)?, epoch: epoch.parse().ok()? })
    }
}

impl fmt::Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { generation, partition, partitions, base } = self;
        let base = base.0.map_or_else(|| NONE.to_owned(), |epoch| epoch.to_string());
        write!(f, "{:016x}-{partition}-{partitions}-{base}.{DELTA}", generation.0)
    }
}

impl Written {
    pub(super) fn parse(name: &str) -> Option<Self> {
        let mut parts = name.strip_suffix(DELTA)?.strip_suffix('.')?.split('-');
        let mut part = || parts.next();
        let generation = generation(part()?)?;
        let (partition, partitions) = (part()?.parse().ok()?, part()?.parse().ok()?);
        let base = match part()? {
            NONE => Version::NONE,
            epoch => Version(Some(epoch.parse().ok()?)),
        };
        (part().is_none() && partition < partitions).then_some(Self {
            generation,
            partition,
            partitions,
            base,
        })
    }
}

impl fmt::Display for Base {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-", self.after.0)?;
        let of = |byte: u8| {
            let is_in = |bit: &u8| self.ranges.contains(Range(byte * 8 + bit));
            (0..8).filter(is_in).fold(0_u8, |bits, bit| bits | 1 << bit)
        };
        (0..32).try_for_each(|byte| write!(f, "{:02x}", of(byte)))?;
        write!(f, ".{BASE}")
    }
}

impl Base {
    pub(super) fn parse(name: &str) -> Option<Self> {
        let (after, hex) = name.strip_suffix(BASE)?.strip_suffix('.')?.split_once('-')?;
        if hex.len() != 64 || !hex.is_ascii() {
            return None;
        }
        let mut ranges = RangeSet::EMPTY;
        for byte in 0..32_u8 {
            let at = usize::from(byte) * 2;
            let bits = u8::from_str_radix(hex.get(at..at + 2)?, 16).ok()?;
            (0..8).filter(|bit| bits >> bit & 1 == 1).for_each(|bit| ranges.insert(Range(byte * 8 + bit)));
        }
        Some(Self { after: generation(after)?, ranges })
    }
}

fn generation(hex: &str) -> Option<Generation> {
    u64::from_str_radix(hex, 16).ok().filter(|_| hex.len() == 16).map(Generation)
}
