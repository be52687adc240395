//! Bytes of a segment file. All numbers are little-endian; `postcard` is its wire format, version 1.
//!
//! ```text
//! header :=  magic "CLSG" | version u16 = 4 | body_len u32 | crc32 u32 (of body) | body
//! body   :=  postcard { agent u64, app u64, query str, epoch }
//!
//! record :=  mark C1 'R' 'E' 'C' | is_last 1 bit, len 31 bits | meta_len u32 | crc32 u32 (of meta) | crc32 u32 (of block) | durable u64
//!            | crc32 u32 (of the 28 bytes before) | meta (meta_len bytes) | block; both together len bytes
//! meta   :=  postcard { task, generation, app, stage, tasks, plan, borders, offset }
//! ```
//!
//! `is_last` stands in the last of the records that were written at once, which count together.
//! `durable` is the length of the file that was on disk for certain when the record was written,
//! 0 in a file's first group. The record's own checksum over its first 28 bytes lets a reader trust the lengths and `durable`
//! without having read the rest, and that of `meta` lets it pass over the block of another log.

use std::path::Path;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::SegmentRecord;
use crate::agent::protocol::{Borders, Plan};
use crate::error::{Error, Result};
use crate::id::{AgentId, Epoch, EpochKey, Generation, LogOffset, TaskId};

/// Version of the format that this code writes and reads.
pub(in crate::edge) const VERSION: u16 = 4;
/// First bytes of every segment.
pub(super) const MAGIC: [u8; 4] = *b"CLSG";
/// First bytes of every record. The first can't begin a UTF-8 character that follows another.
pub(super) const MARK: [u8; 4] = [0xC1, b'R', b'E', b'C'];
/// Bytes of the header before its body.
pub(super) const HEADER_FIXED: usize = 14;
/// Bytes of a record before its payload.
pub(super) const FRAME: usize = 32;
/// Stands in the length of a record that is the last of those that were written at once: no payload is so long.
const LAST: u32 = 1 << 31;
/// Longest body of a header, in bytes: names of queries and epochs are short.
pub(super) const HEADER_BODY_MAX: usize = 1 << 20;
/// Longest payload of a record, in bytes: the longest network frame (256 MiB) and some.
pub(super) const PAYLOAD_MAX: usize = 257 << 20;

/// What the header of a segment says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::edge) struct SegmentHeader {
    /// The agent that wrote the file.
    pub(in crate::edge) agent: AgentId,
    /// Hash of the application the agent belonged to.
    pub(in crate::edge) app: u64,
    /// The query, in full: the folder's name holds its hash only.
    pub(in crate::edge) query: String,
    /// The epoch.
    pub(in crate::edge) epoch: Epoch,
}

impl SegmentHeader {
    /// The header of `agent`'s file for `key`.
    pub(super) fn new(agent: AgentId, app: u64, key: &EpochKey) -> Self {
        Self { agent, app, query: key.query.as_ref().to_owned(), epoch: key.epoch.clone() }
    }

    /// The bytes a file starts with.
    pub(super) fn encode(&self) -> Result<Vec<u8>> {
        let body = postcard::to_stdvec(self).map_err(|e| unencodable(&e))?;
        if body.len() > HEADER_BODY_MAX {
            return Err(too_long("names of query and epoch", body.len(), HEADER_BODY_MAX));
        }
        let mut bytes = Vec::with_capacity(HEADER_FIXED + body.len());
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&length(body.len()).to_le_bytes());
        bytes.extend_from_slice(&crc32fast::hash(&body).to_le_bytes());
        bytes.extend_from_slice(&body);
        Ok(bytes)
    }
}

/// The part of a record that is not its block.
#[derive(Debug, Serialize, Deserialize)]
struct RecordMeta<'a> {
    #[serde(borrow)]
    query: &'a str,
    #[serde(borrow)]
    operator: &'a str,
    epoch: Epoch,
    partition: crate::id::Partition,
    generation: Generation,
    app: u64,
    stage: u32,
    tasks: Option<u32>,
    plan: Option<Plan>,
    borders: Borders,
    offset: LogOffset,
}

/// A record's payload in two pieces, so that the block is not copied, and their checksums.
#[derive(Debug)]
pub(in crate::edge) struct Payload {
    /// The encoded part before the block.
    pub(super) meta: Vec<u8>,
    /// The block.
    pub(super) block: Bytes,
    meta_crc: u32,
    block_crc: u32,
}

impl Payload {
    /// Encodes a record, and sums it: done by whoever submits, not by the writer's thread.
    pub(super) fn new(record: &SegmentRecord) -> Result<Self> {
        let meta = postcard::to_stdvec(&RecordMeta {
            query: &record.task.query,
            operator: &record.task.operator,
            epoch: record.task.epoch.clone(),
            partition: record.task.partition,
            generation: record.generation,
            app: record.app,
            stage: record.stage,
            tasks: record.tasks,
            plan: record.plan,
            borders: record.borders,
            offset: record.offset,
        })
        .map_err(|e| unencodable(&e))?;
        let len = meta.len() + record.block.len();
        if len > PAYLOAD_MAX {
            return Err(too_long("a block", len, PAYLOAD_MAX));
        }
        let (meta_crc, block_crc) = (crc32fast::hash(&meta), crc32fast::hash(&record.block));
        Ok(Self { meta, block: record.block.clone(), meta_crc, block_crc })
    }

    /// Bytes of the payload.
    pub(super) fn len(&self) -> usize {
        self.meta.len() + self.block.len()
    }

    /// The bytes that stand before the payload in a file of which `durable` bytes are on disk. `is_last` of those that are
    /// written at once.
    pub(super) fn frame(&self, durable: u64, is_last: bool) -> [u8; FRAME] {
        let (len, meta_len) = (length(self.len()), length(self.meta.len()));
        let Self { meta_crc, block_crc, .. } = *self;
        Frame { len, meta_len, meta_crc, block_crc, durable, is_last }.encode()
    }
}

/// The bytes before a record's payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Frame {
    /// Bytes of the payload.
    pub(super) len: u32,
    /// Of these, those before the block.
    pub(super) meta_len: u32,
    /// Checksum of what stands before the block.
    pub(super) meta_crc: u32,
    /// Checksum of the block.
    pub(super) block_crc: u32,
    /// Length of the file that was durable when this record was written.
    pub(super) durable: u64,
    /// Whether all is there that was written at once with this record.
    pub(super) is_last: bool,
}

impl Frame {
    fn encode(self) -> [u8; FRAME] {
        let mut bytes = [0; FRAME];
        let (head, sum) = bytes.split_at_mut(FRAME - 4);
        let len = self.len | if self.is_last { LAST } else { 0 };
        let numbers = [len, self.meta_len, self.meta_crc, self.block_crc].map(u32::to_le_bytes);
        let fields = MARK.into_iter().chain(numbers.into_iter().flatten());
        for (to, from) in head.iter_mut().zip(fields.chain(self.durable.to_le_bytes())) {
            *to = from;
        }
        sum.copy_from_slice(&crc32fast::hash(head).to_le_bytes());
        bytes
    }

    /// Reads a frame; `None` if these bytes are not one.
    pub(super) fn decode(bytes: &[u8; FRAME]) -> Option<Self> {
        let (head, sum) = bytes.split_last_chunk::<4>()?;
        if u32::from_le_bytes(*sum) != crc32fast::hash(head) {
            return None;
        }
        let (mark, rest) = head.split_first_chunk::<4>()?;
        let (numbers, rest) = rest.split_first_chunk::<16>()?;
        let durable = u64::from_le_bytes(*rest.first_chunk::<8>()?);
        let mut numbers = numbers.chunks_exact(4).filter_map(|n| Some(u32::from_le_bytes(*n.first_chunk()?)));
        let mut next = || numbers.next();
        let len = next()?;
        let (len, is_last) = (len & !LAST, len & LAST != 0);
        let frame = Self { len, meta_len: next()?, meta_crc: next()?, block_crc: next()?, durable, is_last };
        let is_whole = *mark == MARK && frame.len as usize <= PAYLOAD_MAX && frame.meta_len <= frame.len;
        is_whole.then_some(frame)
    }

    /// Whether this is what was written before the block.
    pub(super) fn fits_meta(&self, meta: &[u8]) -> bool {
        meta.len() == self.meta_len as usize && crc32fast::hash(meta) == self.meta_crc
    }

    /// Whether `payload` is what was written.
    pub(super) fn fits(&self, payload: &[u8]) -> bool {
        let parts = payload.split_at_checked(self.meta_len as usize);
        parts.is_some_and(|(meta, block)| {
            payload.len() == self.len as usize
                && self.fits_meta(meta)
                && crc32fast::hash(block) == self.block_crc
        })
    }
}

/// Whether a record is of this log, by what stands before its block, whose checksum fits.
///
/// # Errors
/// As [`decode_payload`].
pub(super) fn is_of(meta: &[u8], task: &TaskId) -> std::result::Result<bool, String> {
    let (meta, _) = postcard::take_from_bytes::<RecordMeta<'_>>(meta).map_err(|e| undecodable(&e))?;
    Ok(meta.partition == task.partition
        && *meta.operator == *task.operator
        && *meta.query == *task.query
        && meta.epoch == task.epoch)
}

/// Decodes a payload whose checksum fits. The block is a slice of `payload`, not a copy.
///
/// # Errors
/// What is wrong, in words, if the bytes are no record: they were never written by this version.
pub(super) fn decode_payload(payload: &Bytes) -> std::result::Result<SegmentRecord, String> {
    let (meta, block) = postcard::take_from_bytes::<RecordMeta<'_>>(payload).map_err(|e| undecodable(&e))?;
    Ok(SegmentRecord {
        task: TaskId {
            query: meta.query.into(),
            operator: meta.operator.into(),
            epoch: meta.epoch,
            partition: meta.partition,
        },
        generation: meta.generation,
        app: meta.app,
        stage: meta.stage,
        tasks: meta.tasks,
        plan: meta.plan,
        borders: meta.borders,
        offset: meta.offset,
        block: payload.slice_ref(block),
    })
}

fn undecodable(error: &postcard::Error) -> String {
    format!("a record that can't be decoded: {error}")
}

/// Refuses files of other versions.
pub(super) fn check_version(file: &Path, found: u16) -> Result<()> {
    if found == VERSION {
        return Ok(());
    }
    Err(Error::UnsupportedVersion {
        what: format!("segment {}", file.display()),
        found: u32::from(found),
        known: u32::from(VERSION),
    })
}

/// Lengths here are bounded by [`PAYLOAD_MAX`] and [`HEADER_BODY_MAX`], which fit.
fn length(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

fn unencodable(error: &postcard::Error) -> Error {
    invalid(format!("a segment record can't be encoded: {error}"))
}

fn too_long(what: &str, len: usize, max: usize) -> Error {
    invalid(format!("{what}: {len} bytes, a segment takes at most {max}"))
}

fn invalid(what: String) -> Error {
    Error::Io { context: "writing a segment".to_owned(), message: what }
}
