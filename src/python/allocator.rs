//! The allocator of workers, drivers and agents, and what agents ask of it.

use std::ffi::{c_int, c_long};

/// Columns come and go by the megabyte; the system's allocator gives their pages back each time, and getting
/// them again costs more than all that is done with them.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[expect(unsafe_code, reason = "the crate that links mimalloc does not name its options")]
// SAFETY: as mimalloc.h declares them.
unsafe extern "C" {
    safe fn mi_option_get(option: c_int) -> c_long;
    safe fn mi_option_set(option: c_int, value: c_long);
}

/// `mi_option_purge_delay`: for how many milliseconds pages are kept that nobody uses.
const PURGE_DELAY: c_int = 15;
/// Unless `MIMALLOC_PURGE_DELAY` says otherwise.
const PURGE_DELAY_MS: c_long = 1_000;
/// An agent takes no more than it was given: what goes to disk within 10 ms is 15 MiB already where many work at it.
const PURGE_DELAY_OF_AGENTS_MS: c_long = 0;

/// This process has an agent: pages that nobody uses are given back at once.
pub(super) fn give_back_at_once() {
    if mi_option_get(PURGE_DELAY) == PURGE_DELAY_MS {
        mi_option_set(PURGE_DELAY, PURGE_DELAY_OF_AGENTS_MS);
    }
}
