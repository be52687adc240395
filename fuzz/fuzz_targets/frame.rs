//! Any bytes as a frame: head, opening, delta and payload, through a consumer's side of an exchange.
#![no_main]

use clonos_fuzz::check_frame;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| check_frame(bytes));
