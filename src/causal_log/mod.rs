//! The causal log of one task: its determinants in order, in blocks.
//!
//! A block is what one publish made: opaque bytes here, never split or merged. A log remembers per
//! channel how far that consumer has been sent, so a delta never repeats itself. Absorbing is by
//! position: copies of one log are prefixes of each other, so what overlaps must be equal and only what
//! is new is kept (Clonos, SIGMOD 2021, §4.3).

mod log;

#[cfg(test)]
mod tests;

pub use log::{BlockHash, BlockRef, CausalLog, Delta, Place, SpillRef};
