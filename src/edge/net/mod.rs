//! Messages over sockets: between a worker and its agent, between agents, and to a source's receiver.
//!
//! ```text
//! worker: client.rs ────────────────┐
//!                                   ├──▶ server.rs ──▶ the agent's handler
//! other agents: connections.rs ─────┘
//! ```
//!
//! Each connection begins with `auth.rs` and carries the frames of `messages.rs`.

mod auth;
pub mod client;
pub(super) mod cluster;
pub(super) mod connections;
mod messages;
pub(super) mod server;
pub(super) mod signal;

pub use messages::{Connection, Stream};
