//! Clonos: exactly-once, locally recovered execution of nondeterministic Python on Spark.
//!
//! The core. It knows nothing of Python (`python/`, behind a feature, does) and, outside `edge/`, does
//! no I/O, reads no clock and draws no random number. Folders are in reading order; each may use what
//! stands above it:
//!
//! ```text
//! id, error, config   names and positions, what can go wrong, settings
//! arrays              what others' Arrow leaves out
//! determinant         recorded outcomes, and the blocks they travel in
//! causal_log          a task's blocks, with per-channel deltas
//! task                record and replay of one attempt of a task
//! frame               the buffers that cross Spark's shuffle
//! exchange            scatter, gather, and which determinants each frame carries
//! source              logs of what can be received only once
//! state               what operators remember of their keys, by version
//! agent               logs of many tasks; registry, placement, protocol
//! edge                files, sockets, threads, clocks: disk, net, agent, source
//! python              PyO3
//! ```
#![warn(clippy::todo, clippy::unimplemented, clippy::dbg_macro)]
#![cfg_attr(not(test), warn(clippy::print_stdout))]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::indexing_slicing))]

pub mod agent;
pub mod arrays;
pub mod causal_log;
pub mod config;
pub mod determinant;
pub mod edge;
pub mod error;
pub mod exchange;
pub mod frame;
pub mod id;
#[cfg(feature = "python")]
mod python;
pub mod source;
pub mod state;
pub mod task;
