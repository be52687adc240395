//! Any bytes as a delta: what is read is written and read again.
#![no_main]

use bytes::Bytes;
use clonos::frame::{decode_groups, encode_groups};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(groups) = decode_groups(&Bytes::copy_from_slice(bytes)) else { return };
    let mut again = Vec::new();
    encode_groups(&groups, &mut again).expect("what was read can be written");
    assert_eq!(decode_groups(&Bytes::from(again)).expect("what was written can be read"), groups);
});
