//! Results as Arrow IPC: one stream with one batch of one column.

use std::io::Cursor;
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_ipc::CompressionType;
use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::{IpcWriteOptions, StreamWriter};
use arrow_schema::{Field, Schema};

use crate::error::{Error, Result};

/// Compression is tried on more bytes than this.
const COMPRESS_FROM_BYTES: usize = 4 << 10;

/// Serialises an array. LZ4 is used where it saves a tenth or more.
///
/// # Errors
/// [`Error::Arrow`] if Arrow cannot write the type.
pub fn encode_results(array: &ArrayRef) -> Result<Vec<u8>> {
    let plain = write(array, None)?;
    if plain.len() < COMPRESS_FROM_BYTES {
        return Ok(plain);
    }
    let packed = write(array, Some(CompressionType::LZ4_FRAME))?;
    Ok(if packed.len() * 10 <= plain.len() * 9 { packed } else { plain })
}

fn write(array: &ArrayRef, compression: Option<CompressionType>) -> Result<Vec<u8>> {
    let field = Field::new("r", array.data_type().clone(), true);
    let schema = Arc::new(Schema::new(vec![field]));
    let batch = RecordBatch::try_new(Arc::clone(&schema), vec![Arc::clone(array)])?;
    let options = IpcWriteOptions::default().try_with_compression(compression)?;
    let out = Vec::with_capacity(array.get_array_memory_size() / 2 + 512);
    let mut writer = StreamWriter::try_new_with_options(out, &schema, options)?;
    writer.write(&batch)?;
    Ok(writer.into_inner()?)
}

/// Inverse of [`encode_results`].
///
/// # Errors
/// [`Error::CorruptBlock`] if the bytes are not what it writes.
pub fn decode_results(bytes: &[u8]) -> Result<ArrayRef> {
    let corrupt = |reason: String| Error::CorruptBlock { reason };
    let mut reader = StreamReader::try_new(Cursor::new(bytes), None).map_err(|e| corrupt(e.to_string()))?;
    let batch = reader.next().ok_or_else(|| corrupt("results have no batch".into()))?;
    let batch = batch.map_err(|e| corrupt(e.to_string()))?;
    match batch.columns() {
        [column] => Ok(Arc::clone(column)),
        columns => Err(corrupt(format!("results have {} columns", columns.len()))),
    }
}
