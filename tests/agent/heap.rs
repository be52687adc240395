//! How much memory this program has asked for, so that a test can tell what an agent takes besides its logs.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

static NOW: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, counted.
struct Counted;

#[cfg(not(feature = "python"))]
#[global_allocator]
static COUNTED: Counted = Counted;
/// The library has one of its own then, and no test is run with it.
#[cfg(feature = "python")]
const _: Counted = Counted;

#[expect(unsafe_code, reason = "an allocator is; each call is handed on as it is")]
// SAFETY: as the system's.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        taken(layout.size());
        // SAFETY: as for whoever calls.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as for whoever calls.
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        taken(layout.size());
        // SAFETY: as for whoever calls.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Both are there while one is copied to the other.
        taken(size);
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as for whoever calls.
        unsafe { System.realloc(place, layout, size) }
    }
}

fn taken(bytes: usize) {
    let now = NOW.fetch_add(bytes, Ordering::Relaxed) + bytes;
    MOST.fetch_max(now, Ordering::Relaxed);
}

/// Bytes that were asked for and not given back, at the most so far.
pub fn most() -> usize {
    MOST.load(Ordering::Relaxed)
}
