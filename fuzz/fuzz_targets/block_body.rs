//! A block whose checksum fits: everything behind it.
#![no_main]

use clonos_fuzz::{check_block, with_block_sums};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some(block) = with_block_sums(bytes) {
        check_block(&block);
    }
});
