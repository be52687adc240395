//! A frame whose lengths and checksums fit: everything behind them.
#![no_main]

use clonos_fuzz::{check_frame, let_panics_be_caught, with_frame_sums};
use libfuzzer_sys::fuzz_target;

fuzz_target!(init: let_panics_be_caught(), |bytes: &[u8]| {
    if let Some(frame) = with_frame_sums(bytes) {
        check_frame(&frame);
    }
});
