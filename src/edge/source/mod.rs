//! The receiver of a source: its log on disk, the socket it reads, and those who read the log.
//!
//! ```text
//! sender ──▶ socket.rs, http.rs ──▶ log.rs ──▶ committer.rs: segments, synced ──▶ acknowledgement to the sender
//!                                     ▲              └ ownership.rs: while the log is this receiver's
//! Spark: driver, executors ───────────┘ server.rs: bounds, read, commit
//! ```

mod client;
mod committer;
mod counters;
mod http;
mod log;
mod malformed;
mod ownership;
mod server;
mod socket;
#[cfg(test)]
mod tests;

pub use client::SourceClient;
pub use http::{HttpSettings, receive_http};
pub use log::{Durability, LogSettings, SourceLog, now_micros};
pub use ownership::Taker;
pub use server::SourceServer;
pub use socket::{SocketSettings, receive_socket};
