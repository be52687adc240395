//! The receiver of a source: its log on disk, the socket it reads, and those who read the log.
//!
//! ```text
//! sender ──▶ socket.rs, http.rs ──▶ log.rs ──▶ segments, synced ──▶ acknowledgement to the sender
//!                                     ▲
//! Spark: driver, executors ───────────┘ server.rs: bounds, read, commit
//! ```

mod client;
mod counters;
mod http;
mod log;
mod malformed;
mod server;
mod socket;

pub use client::SourceClient;
pub use http::{HttpSettings, receive_http};
pub use log::{Durability, LogSettings, SourceLog, now_micros};
pub use server::SourceServer;
pub use socket::{SocketSettings, receive_socket};
