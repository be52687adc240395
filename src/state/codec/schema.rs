//! Fields as bytes: the schema message of Arrow IPC.

use std::panic::catch_unwind;

use arrow_buffer::Buffer;
use arrow_ipc::convert::{IpcSchemaEncoder, fb_to_schema};
use arrow_ipc::root_as_schema;
use arrow_schema::{Fields, Schema};

use super::plain_fields;
use crate::error::Result;
use crate::state::record::corrupt;

/// Fields as a schema of Arrow IPC, without its framing.
#[must_use]
pub fn encode_schema(fields: &Fields) -> Vec<u8> {
    IpcSchemaEncoder::new().schema_to_fb(&Schema::new(fields.clone())).finished_data().to_vec()
}

/// Inverse of [`encode_schema`].
///
/// # Errors
/// [`crate::error::Error::CorruptState`].
pub fn decode_schema(bytes: &[u8]) -> Result<Fields> {
    // What is read must be aligned, and stands anywhere.
    let aligned = Buffer::from_slice_ref(bytes);
    let read = root_as_schema(&aligned).map_err(|error| corrupt(&format!("a schema of state: {error}")))?;
    // Where a schema contradicts itself (a list without an item), Arrow's reader panics instead of refusing.
    let schema = catch_unwind(|| fb_to_schema(read));
    let schema = schema.map_err(|_| corrupt("a schema of state that Arrow cannot read"))?;
    Ok(plain_fields(&schema.fields))
}
