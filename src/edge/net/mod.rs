//! Messages over sockets: between a worker and its agent, between agents, and to a source's receiver.
//!
//! ```text
//! worker: client.rs ────────────────┐
//!                                   ├──▶ server.rs ──▶ the agent's handler
//! other agents: connections.rs ─────┘
//! ```
//!
//! A connection is made by `connecting.rs`, waits at `door.rs`, begins with `auth.rs` and carries the frames of `messages.rs`.

mod auth;
pub mod client;
pub(super) mod cluster;
mod connecting;
pub(super) mod connections;
mod door;
mod messages;
pub(super) mod server;
pub(super) mod signal;

pub use messages::{Connection, Stream};
