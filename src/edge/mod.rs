//! Where the core meets the world: files, sockets, threads, clocks. Nothing above uses it.
//!
//! ```text
//! disk     segments, spill files, and what is read back from them
//! net      messages over sockets: proof, server, connections, a worker's client
//! agent    what an agent does for each request, and by itself
//! source   the receiver of a source: its log, its sockets, its readers
//! platform what only Linux has, and what is said elsewhere
//! addresses   how much an agent may hold where its address space is limited
//! ```

pub mod addresses;
pub mod agent;
pub mod disk;
pub mod net;
mod platform;
mod progress;
pub mod source;

/// A mutex whose holder may have panicked: what is behind it is left consistent between statements.
fn locked<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
