//! Any bytes as a segment file.
#![no_main]

use clonos_fuzz::read_as_segment;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| read_as_segment(bytes));
