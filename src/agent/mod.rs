//! Logs of many tasks, and who holds what: the agent's state without its sockets and files.

pub mod borders;
pub mod code;
pub(crate) mod committed;
pub mod copying;
pub mod members;
pub mod permits;
pub mod placement;
pub mod protocol;
pub mod registry;
pub mod state;
pub mod stats;
pub mod store;
pub mod values;
