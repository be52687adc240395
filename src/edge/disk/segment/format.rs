//! Bytes of a segment file. All numbers are little-endian; `postcard` is its wire format, version 1.
//!
//! ```text
//! header :=  magic "CLSG" | version u16 = 1 | body_len u32 | crc32 u32 (of body) | body
//! body   :=  postcard { agent u64, app u64, query str, epoch }
//!
//! record :=  mark C1 'R' 'E' 'C' | len u32 | crc32 u32 (of payload) | durable u64
//!            | crc32 u32 (of the 20 bytes before) | payload (len bytes)
//! payload := postcard { task, generation, app, stage, tasks, plan, offset } | block (the rest)
//! ```
//!
//! `durable` is the length of the file that was on disk for certain when the record was written,
//! 0 in a file's first group. The record's own checksum over its first 20 bytes lets a reader trust
//! `len` and `durable` without having read the payload.

use std::path::Path;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::SegmentRecord;
use crate::agent::protocol::Plan;
use crate::error::{Error, Result};
use crate::id::{AgentId, Epoch, EpochKey, Generation, LogOffset, TaskId};

/// Version of the format that this code writes and reads.
pub(in crate::edge) const VERSION: u16 = 1;
/// First bytes of every segment.
pub(super) const MAGIC: [u8; 4] = *b"CLSG";
/// First bytes of every record. The first can't begin a UTF-8 character that follows another.
pub(super) const MARK: [u8; 4] = [0xC1, b'R', b'E', b'C'];
/// Bytes of the header before its body.
pub(super) const HEADER_FIXED: usize = 14;
/// Bytes of a record before its payload.
pub(super) const FRAME: usize = 24;
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
    offset: LogOffset,
}

/// A record's payload in two pieces, so that the block is not copied, and its checksum.
#[derive(Debug)]
pub(in crate::edge) struct Payload {
    /// The encoded part before the block.
    pub(super) meta: Vec<u8>,
    /// The block.
    pub(super) block: Bytes,
    crc: u32,
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
            offset: record.offset,
        })
        .map_err(|e| unencodable(&e))?;
        let len = meta.len() + record.block.len();
        if len > PAYLOAD_MAX {
            return Err(too_long("a block", len, PAYLOAD_MAX));
        }
        let mut sum = crc32fast::Hasher::new();
        sum.update(&meta);
        sum.update(&record.block);
        Ok(Self { meta, block: record.block.clone(), crc: sum.finalize() })
    }

    /// Bytes of the payload.
    pub(super) fn len(&self) -> usize {
        self.meta.len() + self.block.len()
    }

    /// The bytes that stand before the payload in a file of which `durable` bytes are on disk.
    pub(super) fn frame(&self, durable: u64) -> [u8; FRAME] {
        Frame { len: length(self.len()), crc: self.crc, durable }.encode()
    }
}

/// The bytes before a record's payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Frame {
    /// Bytes of the payload.
    pub(super) len: u32,
    /// Checksum of the payload.
    pub(super) crc: u32,
    /// Length of the file that was durable when this record was written.
    pub(super) durable: u64,
}

impl Frame {
    fn encode(self) -> [u8; FRAME] {
        let mut bytes = [0; FRAME];
        let (head, sum) = bytes.split_at_mut(FRAME - 4);
        let fields = MARK.into_iter().chain(self.len.to_le_bytes()).chain(self.crc.to_le_bytes());
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
        let (len, rest) = rest.split_first_chunk::<4>()?;
        let (crc, rest) = rest.split_first_chunk::<4>()?;
        let durable = rest.first_chunk::<8>()?;
        (*mark == MARK && u32::from_le_bytes(*len) as usize <= PAYLOAD_MAX).then(|| Self {
            len: u32::from_le_bytes(*len),
            crc: u32::from_le_bytes(*crc),
            durable: u64::from_le_bytes(*durable),
        })
    }

    /// Whether `payload` is what was written.
    pub(super) fn fits(&self, payload: &[u8]) -> bool {
        payload.len() == self.len as usize && crc32fast::hash(payload) == self.crc
    }
}

/// Decodes a payload whose checksum fits. The block is a slice of `payload`, not a copy.
///
/// # Errors
/// What is wrong, in words, if the bytes are no record: they were never written by this version.
pub(super) fn decode_payload(payload: &Bytes) -> std::result::Result<SegmentRecord, String> {
    let (meta, block) = postcard::take_from_bytes::<RecordMeta<'_>>(payload)
        .map_err(|e| format!("a record that can't be decoded: {e}"))?;
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
        offset: meta.offset,
        block: payload.slice_ref(block),
    })
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
