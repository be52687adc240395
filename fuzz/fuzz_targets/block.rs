//! Any bytes as a block: header and checksum.
#![no_main]

use bytes::Bytes;
use clonos_fuzz::check_block;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| check_block(&Bytes::copy_from_slice(bytes)));
