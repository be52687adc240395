//! A frame whose lengths and checksums fit: everything behind them.
#![no_main]

use clonos_fuzz::{check_frame, with_frame_sums};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some(frame) = with_frame_sums(bytes) {
        check_frame(&frame);
    }
});
