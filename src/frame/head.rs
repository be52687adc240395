//! The head of a frame, and where its parts are.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::version::LogVersion;
use crate::error::{Error, Result};
use crate::id::{Partition, TaskId};

/// Bytes of a frame's head.
pub const HEAD_BYTES: usize = 64;
const MAGIC: [u8; 4] = *b"CLFR";
const VERSION: u8 = 1;
const OPENS: u8 = 1;
const CLOSES: u8 = 2;
const NAMED: u8 = 4;
/// Payloads start and frames end at multiples of this, so that Arrow can use them where they are.
const ALIGNMENT: usize = 8;

/// What a frame says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// Hash of the sender's task id.
    pub task: u64,
    /// The sender's partition.
    pub partition: Partition,
    /// The consumer's partition.
    pub channel: Partition,
    /// Number of the frame on its channel.
    pub sequence: u32,
    /// Rows in the payload.
    pub rows: u32,
    /// Version of the sender's log, this frame's delta included.
    pub log: LogVersion,
    /// Whether the log is longer than what the channel's frames bring of it: other agents have it.
    pub named: bool,
    /// Whether this is the channel's last frame.
    pub closes: bool,
}

/// Who sends, in the first frame of a channel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opening {
    /// The sender.
    pub task: TaskId,
    /// How many such tasks send to the consumer, where known.
    pub tasks: Option<u32>,
}

impl Opening {
    /// Hash of the sender's task id, as heads carry it.
    #[must_use]
    pub fn task_hash(&self) -> u64 {
        xxhash_rust::xxh3::xxh3_64(self.task.to_string().as_bytes())
    }
}

/// A frame whose checksums held.
#[derive(Debug, Clone)]
pub struct Frame {
    /// Its head.
    pub head: Head,
    /// Who sends, if it is the channel's first.
    pub opening: Option<Opening>,
    /// The delta, encoded.
    pub delta: Bytes,
    /// Arrow IPC messages; aligned if the frame is.
    pub payload: Bytes,
    /// Checksum of everything after the head: equal frames have equal ones.
    pub sum: u32,
}

/// Zeros up to the alignment.
fn pad(out: &mut Vec<u8>, from: usize) {
    let len = out.len() - from;
    out.resize(from + len.next_multiple_of(ALIGNMENT), 0);
}

/// Completes a frame that starts at `start` of `out`: [`HEAD_BYTES`] of room for the head, then what
/// `fill` writes. `fill` is given the buffer and writes the payload.
///
/// # Errors
/// Those of `fill`; [`Error::Misuse`] for a frame of 2 GiB or more.
pub fn seal(
    out: &mut Vec<u8>,
    head: &Head,
    opening: Option<&Opening>,
    delta: &[u8],
    fill: impl FnOnce(&mut Vec<u8>) -> Result<()>,
) -> Result<()> {
    let start = out.len();
    out.resize(start + HEAD_BYTES, 0);
    if let Some(opening) = opening {
        let taken = std::mem::take(out);
        *out = postcard::to_extend(opening, taken).map_err(|e| Error::Protocol { what: e.to_string() })?;
    }
    let opening_len = out.len() - start - HEAD_BYTES;
    out.extend_from_slice(delta);
    pad(out, start);
    let payload_start = out.len();
    fill(out)?;
    let payload_len = out.len() - payload_start;
    pad(out, start);
    let lengths = [opening_len, delta.len(), payload_len].map(u32::try_from);
    let [Ok(opening_len), Ok(delta_len), Ok(payload_len)] = lengths else {
        return Err(Error::Misuse { what: "a frame of more than 2 GiB; use smaller batches".into() });
    };
    let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
    let flags = flag(opening.is_some(), OPENS) | flag(head.closes, CLOSES) | flag(head.named, NAMED);
    let Some((room, rest)) =
        out.get_mut(start..).and_then(|frame| frame.split_first_chunk_mut::<HEAD_BYTES>())
    else {
        return Err(Error::Misuse { what: "a frame without room for its head".into() });
    };
    let sum = crc32fast::hash(rest);
    let mut at = 0;
    let mut put = |bytes: &[u8]| {
        if let Some(field) = room.get_mut(at..at + bytes.len()) {
            field.copy_from_slice(bytes);
        }
        at += bytes.len();
    };
    put(&MAGIC);
    put(&[VERSION, flags, 0, 0]);
    put(&head.task.to_le_bytes());
    for number in [head.partition.0, head.channel.0, head.sequence, head.rows] {
        put(&number.to_le_bytes());
    }
    put(&head.log.0.to_le_bytes());
    for number in [opening_len, delta_len, payload_len, sum, 0] {
        put(&number.to_le_bytes());
    }
    let (said, head_sum) = room.split_at_mut(HEAD_BYTES - 4);
    head_sum.copy_from_slice(&crc32fast::hash(said).to_le_bytes());
    Ok(())
}

fn corrupt(reason: &str) -> Error {
    Error::CorruptFrame { reason: reason.into() }
}

fn number(head: &[u8; HEAD_BYTES], at: usize) -> u32 {
    let bytes = head.get(at..).and_then(|rest| rest.first_chunk::<4>());
    bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

fn long(head: &[u8; HEAD_BYTES], at: usize) -> u64 {
    u64::from(number(head, at)) | u64::from(number(head, at + 4)) << 32
}

/// Reads a frame's head, whose own checksum holds; nothing else is looked at.
///
/// # Errors
/// [`Error::CorruptFrame`], [`Error::UnsupportedVersion`].
pub fn read_head(bytes: &[u8]) -> Result<Head> {
    let head = raw_head(bytes)?;
    Ok(Head {
        task: long(head, 8),
        partition: Partition(number(head, 16)),
        channel: Partition(number(head, 20)),
        sequence: number(head, 24),
        rows: number(head, 28),
        log: LogVersion(long(head, 32)),
        named: flags(head) & NAMED != 0,
        closes: flags(head) & CLOSES != 0,
    })
}

fn raw_head(bytes: &[u8]) -> Result<&[u8; HEAD_BYTES]> {
    let Some(head) = bytes.first_chunk::<HEAD_BYTES>() else {
        return Err(corrupt("its head is cut off"));
    };
    if !head.starts_with(&MAGIC) {
        return Err(corrupt("it does not start with its magic bytes"));
    }
    let [_, _, _, _, version, ..] = *head;
    if version != VERSION {
        let what = "a frame".to_owned();
        return Err(Error::UnsupportedVersion { what, found: version.into(), known: VERSION.into() });
    }
    if number(head, 60) != head.get(..60).map_or(0, crc32fast::hash) {
        return Err(corrupt("the checksum of its head does not match"));
    }
    if flags(head) & !(OPENS | CLOSES | NAMED) != 0 {
        return Err(corrupt("its flags are unknown"));
    }
    Ok(head)
}

const fn flags(head: &[u8; HEAD_BYTES]) -> u8 {
    let [_, _, _, _, _, flags, ..] = *head;
    flags
}

/// Reads a frame: checks its sums and finds its parts.
///
/// # Errors
/// [`Error::CorruptFrame`], [`Error::UnsupportedVersion`].
pub fn read(bytes: &Bytes) -> Result<Frame> {
    let raw = raw_head(bytes)?;
    let head = read_head(bytes)?;
    let sum = number(raw, 52);
    if sum != bytes.get(HEAD_BYTES..).map_or(0, crc32fast::hash) {
        return Err(corrupt("its checksum does not match"));
    }
    let [opening_len, delta_len, payload_len] =
        [number(raw, 40), number(raw, 44), number(raw, 48)].map(|len| len as usize);
    let delta_at = HEAD_BYTES + opening_len;
    let payload_at = (delta_at + delta_len).next_multiple_of(ALIGNMENT);
    if (payload_at + payload_len).next_multiple_of(ALIGNMENT) != bytes.len() {
        return Err(corrupt("the lengths of its parts do not add up"));
    }
    let opening = if flags(raw) & OPENS == 0 {
        None
    } else {
        let part = bytes.get(HEAD_BYTES..delta_at).unwrap_or_default();
        Some(postcard::from_bytes::<Opening>(part).map_err(|_| corrupt("its opening cannot be read"))?)
    };
    Ok(Frame {
        head,
        opening,
        delta: bytes.slice(delta_at..delta_at + delta_len),
        payload: bytes.slice(payload_at..payload_at + payload_len),
        sum,
    })
}
