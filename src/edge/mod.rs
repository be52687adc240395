//! Where the core meets the world: files, sockets, threads, clocks. Nothing above uses it.

pub mod agent;
pub mod auth;
pub mod client;
mod cluster;
mod disk;
mod exchanging;
mod handler;
mod heartbeat;
mod links;
pub mod net;
mod opening;
pub mod parking;
pub mod process;
mod publishing;
pub mod recovery;
mod registrar;
mod repairing;
mod room;
pub mod segment;
mod server;
mod signal;
pub mod source;
pub mod spill;

/// A mutex whose holder may have panicked: what is behind it is left consistent between statements.
fn locked<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
