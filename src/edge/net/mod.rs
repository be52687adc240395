//! Messages over sockets: between a worker and its agent, between agents, and to a source's receiver.
//!
//! ```text
//! worker: client.rs ────────────────┐
//!                                   ├──▶ server.rs ──▶ the agent's handler
//! other agents: connections.rs ─────┘
//! ```
//!
//! An agent listens by `listening.rs`. A connection is made by `connecting.rs`, waits at `door.rs`, begins with `auth.rs` and carries the frames of `messages.rs`
//! over `stream.rs`: between hosts in the encrypted records of `records.rs`, if the session wants that. A worker whose answer
//! takes long is told so by `working.rs`.

use std::time::Duration;

mod auth;
pub mod client;
pub(super) mod cluster;
mod connecting;
pub(super) mod connections;
mod door;
mod listening;
mod messages;
mod records;
pub(super) mod server;
pub(super) mod signal;
mod stream;
#[cfg(test)]
mod tests;
mod working;

pub(super) use listening::{listen, reached_at};
pub use messages::Connection;
pub use stream::Stream;

/// A host that lives refuses at once.
const REFUSAL_PATIENCE: Duration = Duration::from_millis(500);

/// Whether nobody listens at an address any more: its process has ended, or a firewall says so.
pub(super) fn nobody_listens(addr: &str) -> bool {
    use std::net::{TcpStream, ToSocketAddrs};

    let Ok(mut addrs) = addr.to_socket_addrs() else { return false };
    addrs.all(|addr| {
        let connected = TcpStream::connect_timeout(&addr, REFUSAL_PATIENCE);
        connected.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
    })
}
