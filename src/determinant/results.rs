//! Results as Arrow IPC: one stream with one batch of one column.

use std::io::Cursor;
use std::panic::catch_unwind;
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::{IpcWriteOptions, StreamWriter};
use arrow_ipc::{CompressionType, Message, root_as_message};
use arrow_schema::{Field, Schema};

use super::codec::corrupt;
use crate::error::Result;

/// Compression is tried on more bytes than this.
const COMPRESS_FROM_BYTES: usize = 4 << 10;
/// What each message of a stream starts with, before the length of its metadata.
const CONTINUATION: [u8; 4] = [0xff; 4];
/// Bytes of a compressed buffer's own length, which stand before it.
const PREFIX: usize = 8;
/// LZ4 makes at most this many bytes of one.
const LZ4_RATIO_MAX: u64 = 255;
/// Values that may have no bytes behind them, as nulls and empty structs do: the rows of a batch.
const WITHOUT_BYTES_MAX: u64 = 1 << 26;

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
/// [`Error::CorruptBlock`](crate::error::Error::CorruptBlock) if the bytes are not what it writes.
pub fn decode_results(bytes: &[u8]) -> Result<ArrayRef> {
    check_stream(bytes)?;
    // The last resort. What is checked above bounds what Arrow allocates; but where metadata contradicts
    // itself (a list without a child, an integer of 7 bits), its reader panics instead of refusing.
    catch_unwind(|| read(bytes)).unwrap_or_else(|_| Err(corrupt("results that Arrow cannot read")))
}

fn read(bytes: &[u8]) -> Result<ArrayRef> {
    let mut reader = StreamReader::try_new(Cursor::new(bytes), None).map_err(|e| corrupt(&e.to_string()))?;
    let batch = reader.next().ok_or_else(|| corrupt("results have no batch"))?;
    let batch = batch.map_err(|e| corrupt(&e.to_string()))?;
    match batch.columns() {
        [column] => Ok(Arc::clone(column)),
        columns => Err(corrupt(&format!("results have {} columns", columns.len()))),
    }
}

/// Checks that this is one stream with one batch, and every length by which Arrow would allocate.
fn check_stream(bytes: &[u8]) -> Result<()> {
    let (mut rest, mut batches) = (bytes, 0);
    while let Some(part) = split_message(rest)? {
        rest = part.rest;
        if let Some(batch) = part.message.header_as_record_batch() {
            batches += 1;
            check_batch(&batch, part.body)?;
        } else if let Some(dictionary) = part.message.header_as_dictionary_batch() {
            if dictionary.isDelta() {
                return Err(corrupt("results have a dictionary in pieces"));
            }
            let values = dictionary.data().ok_or_else(|| corrupt("results have an empty dictionary"))?;
            check_batch(&values, part.body)?;
        }
    }
    if batches == 1 { Ok(()) } else { Err(corrupt(&format!("results have {batches} batches"))) }
}

/// A message, its body and what follows.
struct Part<'a> {
    message: Message<'a>,
    body: &'a [u8],
    rest: &'a [u8],
}

/// The first message; `None` at the end of the stream.
fn split_message(bytes: &[u8]) -> Result<Option<Part<'_>>> {
    let cut = || corrupt("results are cut off");
    let rest = bytes.strip_prefix(&CONTINUATION).ok_or_else(cut)?;
    let (len, rest) = rest.split_first_chunk::<4>().ok_or_else(cut)?;
    let len = u32::from_le_bytes(*len) as usize;
    if len == 0 {
        return if rest.is_empty() { Ok(None) } else { Err(corrupt("bytes follow the results")) };
    }
    let (metadata, rest) = rest.split_at_checked(len).ok_or_else(cut)?;
    let message = root_as_message(metadata).map_err(|e| corrupt(&format!("results: {e}")))?;
    let body = usize::try_from(message.bodyLength()).map_err(|_| cut())?;
    let (body, rest) = rest.split_at_checked(body).ok_or_else(cut)?;
    Ok(Some(Part { message, body, rest }))
}

fn check_batch(batch: &arrow_ipc::RecordBatch<'_>, body: &[u8]) -> Result<()> {
    let (mut packed_bytes, mut bytes) = (0, 0);
    for place in batch.buffers().into_iter().flatten() {
        let buffer = slice(body, place.offset(), place.length())
            .ok_or_else(|| corrupt("results have a buffer outside of their body"))?;
        packed_bytes += buffer.len();
        bytes += if batch.compression().is_some() { unpacked_len(buffer)? } else { buffer.len() as u64 };
    }
    // Each may be as long as the body only if it is the only one.
    if packed_bytes > body.len() {
        return Err(corrupt("results have buffers that overlap"));
    }
    let most = bytes.saturating_mul(8).max(WITHOUT_BYTES_MAX);
    let fits = |len: i64| u64::try_from(len).is_ok_and(|len| len <= most);
    let mut nodes = batch.nodes().into_iter().flatten();
    if fits(batch.length()) && nodes.all(|node| fits(node.length()) && fits(node.null_count())) {
        return Ok(());
    }
    Err(corrupt("results have more values than bytes for them"))
}

fn slice(body: &[u8], offset: i64, len: i64) -> Option<&[u8]> {
    let (_, rest) = body.split_at_checked(usize::try_from(offset).ok()?)?;
    rest.get(..usize::try_from(len).ok()?)
}

/// How long a compressed buffer says that it is without compression.
fn unpacked_len(buffer: &[u8]) -> Result<u64> {
    let Some((len, packed)) = buffer.split_first_chunk::<PREFIX>() else {
        return if buffer.is_empty() { Ok(0) } else { Err(corrupt("results have a buffer that is cut off")) };
    };
    let packed = packed.len() as u64;
    match i64::from_le_bytes(*len) {
        // Left as it was.
        -1 => Ok(packed),
        len => u64::try_from(len)
            .ok()
            .filter(|len| *len <= packed.saturating_mul(LZ4_RATIO_MAX))
            .ok_or_else(|| corrupt("results have a compressed buffer of an impossible length")),
    }
}
