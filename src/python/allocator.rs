//! The allocator of workers, drivers and agents, and what agents ask of it.

use std::ffi::{c_int, c_long};

use rustix::process::{Resource, getrlimit};

use crate::edge::addresses::memory_within;
use crate::error::{Error, Result};

/// Columns come and go by the megabyte; the system's allocator gives their pages back each time, and getting
/// them again costs more than all that is done with them.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[expect(unsafe_code, reason = "the crate that links mimalloc does not name its options")]
// SAFETY: as mimalloc.h declares them.
unsafe extern "C" {
    safe fn mi_option_set(option: c_int, value: c_long);
}

/// `mi_option_purge_delay`: for how many milliseconds pages are kept that nobody uses.
const PURGE_DELAY: c_int = 15;
/// Says so for all processes.
const PURGE_DELAY_VARIABLE: &str = "MIMALLOC_PURGE_DELAY";
/// An agent takes no more than it was given: what goes to disk within 10 ms is 15 MiB already where many work at it.
const PURGE_DELAY_OF_AGENTS_MS: c_long = 0;
/// Pages that go at once come back one by one and not in large ones, so that all that is sent costs a tenth more. An
/// agent that has much keeps them, and a part of it for them: as much as goes to disk in that time.
const PURGE_DELAY_OF_LARGE_AGENTS_MS: c_long = 100;
const LARGE_AGENT_BYTES: u64 = 4 << 30;
const KEPT_BYTES: u64 = 150 << 20;

/// This process has an agent that may have so many bytes in memory: how many are left for what it holds besides pages
/// that nobody uses, which are given back soon. PySpark may have limited the addresses of whoever started it, for good.
///
/// # Errors
/// [`Error::Config`] if no agent can run within that limit.
pub(super) fn give_back_soon(memory_bytes: u64) -> Result<u64> {
    let addresses = getrlimit(Resource::As).current;
    let within = addresses.map_or(memory_bytes, |addresses| memory_within(addresses, memory_bytes));
    if within == 0 {
        return Err(Error::Config {
            setting: "spark.executor.pyspark.memory".into(),
            reason: format!(
                "{} bytes of address space are too few for an agent; where that is not set, the process has a limit \
                 of its own (`ulimit -v`)",
                addresses.unwrap_or_default()
            ),
        });
    }
    if within < memory_bytes {
        tracing::warn!(
            within,
            memory_bytes,
            "an agent keeps less in memory, as its address space is limited"
        );
    }
    let memory_bytes = within;
    let (delay, kept) = match memory_bytes < LARGE_AGENT_BYTES {
        true => (PURGE_DELAY_OF_AGENTS_MS, 0),
        false => (PURGE_DELAY_OF_LARGE_AGENTS_MS, KEPT_BYTES),
    };
    if std::env::var_os(PURGE_DELAY_VARIABLE).is_none() {
        mi_option_set(PURGE_DELAY, delay);
    }
    Ok(memory_bytes - kept)
}
