//! Rows of Arrow columns as bytes, and back.
//!
//! Keys, user keys and values of state are rows. Their bytes outlive the process and the version that wrote them,
//! so the format is our own (`docs/formats.md` has it), and equal rows have equal bytes:
//!
//! ```text
//! row     bitmap of the fields that are not null (1 bit each, lowest first, whole bytes) · those fields, in order
//! field   boolean            1 byte
//!         fixed width        its bytes, little-endian
//!         text, binary       length (varint) · bytes
//!         struct             as a row
//!         list               items (varint) · bitmap of those that are not null · those items
//!         map                entries (varint) · each as a row of key and value
//! ```
//!
//! What a null covers is not written, how an array is sliced or dictionary-encoded does not count, and nor does the
//! width of its offsets. Bytes do not say their type: a value names the schema that it was written with.

mod decode;
mod encode;
mod evolve;
mod names;
mod plain;
mod schema;

#[cfg(test)]
pub(in crate::state) mod tests;

pub use decode::decode;
pub use encode::{Rows, encode};
pub use evolve::{evolve, evolve_key, renamed, same_meaning};
pub use names::{Named, NamedFields};
pub use plain::{canonical_keys, plain, plain_fields, plain_struct};
pub use schema::{decode_schema, encode_schema};

use crate::error::Error;

/// An error of reading fields, which are those of logs too, said of state.
pub(in crate::state) fn of_state(error: Error) -> Error {
    match error {
        Error::CorruptBlock { reason } => Error::CorruptState { reason },
        other => other,
    }
}

/// Bytes of a bitmap of so many bits.
const fn bitmap_bytes(bits: usize) -> usize {
    bits.div_ceil(8)
}

// Fixed-width values are copied as they lie in Arrow's buffers, which are those of the machine.
const _: () = assert!(cfg!(target_endian = "little"), "state is little-endian");
