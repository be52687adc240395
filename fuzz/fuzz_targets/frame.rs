//! Any bytes as a frame: head, opening, delta and payload, through a consumer's side of an exchange.
#![no_main]

use clonos_fuzz::{check_frame, let_panics_be_caught};
use libfuzzer_sys::fuzz_target;

fuzz_target!(init: let_panics_be_caught(), |bytes: &[u8]| check_frame(bytes));
