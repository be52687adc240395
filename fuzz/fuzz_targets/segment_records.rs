//! A segment file whose checksums fit: records, what they say, and how they follow each other.
#![no_main]

use clonos_fuzz::{read_as_segment, with_segment_sums};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some(segment) = with_segment_sums(bytes) {
        read_as_segment(&segment);
    }
});
