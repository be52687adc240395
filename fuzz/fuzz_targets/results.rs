//! Any bytes as results: Arrow's reader behind the checks of ours, and fingerprints of what comes out.
#![no_main]

use arrow_array::Array;
use clonos::determinant::{decode_results, encode_results, row_fingerprints};
use clonos::error::Error;
use clonos_fuzz::let_panics_be_caught;
use libfuzzer_sys::fuzz_target;

fuzz_target!(init: let_panics_be_caught(), |bytes: &[u8]| {
    match decode_results(bytes) {
        Ok(values) => {
            let mut rows = Vec::new();
            match row_fingerprints(std::slice::from_ref(&values), &mut rows) {
                Ok(()) => assert_eq!(rows.len(), values.len()),
                Err(_) => assert!(rows.is_empty()),
            }
            let _ = encode_results(&values);
        }
        Err(Error::CorruptBlock { .. }) => (),
        Err(other) => panic!("{other:?}"),
    }
});
