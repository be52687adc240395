//! Reading segments: from the first record on, and one block at a time.

use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use super::SegmentRecord;
use super::disk::RawFile;
use super::format::{
    FRAME, Frame, HEADER_BODY_MAX, HEADER_FIXED, MAGIC, MARK, PAYLOAD_MAX, SegmentHeader, check_version,
    decode_payload, is_of,
};
use super::store::Piece;
use crate::causal_log::SpillRef;
use crate::error::{Error, Result};
use crate::id::TaskId;

/// Bytes read at once of a record: its frame, and of most what stands before the block.
const BEGINNING: usize = 512;
/// Bytes read at once in search of what lies behind damage.
const SEARCH: usize = 1 << 20;

/// One step through a segment.
#[derive(Debug)]
pub(in crate::edge) enum Step {
    /// The next record, and the position in the file at which it starts.
    Record(u64, Box<SegmentRecord>),
    /// A record of another log than the one that is looked for; its block was not read.
    Other,
    /// The rest, from this position on, was being written when the writer died.
    Torn(u64),
    /// Nothing more.
    End,
}

/// Walks through a segment's file, or one of its objects. What is appended after it was opened is not seen.
pub(in crate::edge) struct SegmentScan {
    path: PathBuf,
    raw: Arc<dyn RawFile>,
    len: u64,
    is_whole: bool,
    /// Start of the next record; `None` once the end was told.
    at: Option<u64>,
    header: Option<SegmentHeader>,
    /// Where the last group ends of which all was met.
    whole: u64,
    /// The log that is looked for, unless all are.
    only: Option<TaskId>,
}

impl SegmentScan {
    /// Looks at a piece of a segment and reads its header.
    ///
    /// # Errors
    /// [`Error::CorruptSegment`] if this is no segment or its header is damaged,
    /// [`Error::UnsupportedVersion`], [`Error::Io`].
    pub(in crate::edge) fn over(piece: Piece) -> Result<Self> {
        let Piece { path, len, raw, is_whole, .. } = piece;
        let mut scan = Self { path, raw, len, is_whole, at: Some(0), header: None, whole: 0, only: None };
        scan.read_header()?;
        Ok(scan)
    }

    /// Passes over the records of all other logs.
    pub(in crate::edge) fn of(self, only: Option<TaskId>) -> Self {
        Self { only, ..self }
    }

    /// The header; `None` if the writer died while it created the file.
    pub(in crate::edge) const fn header(&self) -> Option<&SegmentHeader> {
        self.header.as_ref()
    }

    /// Where the last group of records ends that is whole, of those that were passed. What a writer has begun behind it, it may
    /// write over.
    pub(in crate::edge) const fn whole_groups(&self) -> u64 {
        self.whole
    }

    /// Length of the file in bytes, when it was opened.
    pub(in crate::edge) const fn file_bytes(&self) -> u64 {
        self.len
    }

    /// Takes the next step. After `Torn` comes `End`.
    ///
    /// # Errors
    /// [`Error::CorruptSegment`] if the record was whole once; [`Error::Io`].
    pub(in crate::edge) fn step(&mut self) -> Result<Step> {
        let Some(at) = self.at.take() else { return Ok(Step::End) };
        if at == self.len {
            return Ok(Step::End);
        }
        if self.header.is_none() {
            return Ok(Step::Torn(at));
        }
        let left = usize::try_from(self.len - at).unwrap_or(usize::MAX);
        let beginning = self.read(at, left.min(BEGINNING))?;
        let Some(frame) = beginning.first_chunk().and_then(Frame::decode) else {
            return self.damaged(at, "no record starts here");
        };
        let end = at + FRAME as u64 + u64::from(frame.len);
        if end > self.len {
            return self.damaged(at, "a record is cut short");
        }
        if self.is_of_another(at, &frame, &beginning)? {
            self.passed(&frame, end);
            return Ok(Step::Other);
        }
        let payload = Bytes::from(self.read(at + FRAME as u64, frame.len as usize)?);
        if !frame.fits(&payload) {
            return self.damaged(at, "a record's checksum does not fit");
        }
        let record = decode_payload(&payload).map_err(|e| self.corrupt(at, e))?;
        let header = self.header.as_ref();
        if header.is_some_and(|h| *h.query != *record.task.query || h.epoch != record.task.epoch) {
            let task = &record.task;
            return Err(self.corrupt(at, format!("a record of another epoch, of task {task}")));
        }
        self.passed(&frame, end);
        Ok(Step::Record(at, Box::new(record)))
    }

    fn passed(&mut self, frame: &Frame, end: u64) {
        self.at = Some(end);
        if frame.is_last {
            self.whole = end;
        }
    }

    fn read_header(&mut self) -> Result<()> {
        let fixed = self.read(0, HEADER_FIXED.min(usize::try_from(self.len).unwrap_or(usize::MAX)))?;
        let known = fixed.iter().zip(MAGIC).all(|(found, magic)| *found == magic);
        if !known && fixed.iter().any(|byte| *byte != 0) {
            return Err(self.corrupt(0, "this is not a segment".to_owned()));
        }
        if let Some(body) = self.header_body(&fixed)? {
            let header = postcard::from_bytes(&body)
                .map_err(|e| self.corrupt(0, format!("a header that can't be decoded: {e}")))?;
            self.header = Some(header);
            self.at = Some((HEADER_FIXED + body.len()) as u64);
            return Ok(());
        }
        self.damaged(0, "the header is damaged").map(|_torn| self.at = Some(0))
    }

    /// The body of the header if it is whole.
    fn header_body(&self, fixed: &[u8]) -> Result<Option<Vec<u8>>> {
        let Some(fixed) = fixed.first_chunk::<HEADER_FIXED>() else { return Ok(None) };
        let [c, l, s, g, v0, v1, l0, l1, l2, l3, s0, s1, s2, s3] = *fixed;
        if [c, l, s, g] != MAGIC {
            return Ok(None);
        }
        check_version(&self.path, u16::from_le_bytes([v0, v1]))?;
        let len = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        if len > HEADER_BODY_MAX || (HEADER_FIXED + len) as u64 > self.len {
            return Ok(None);
        }
        let body = self.read(HEADER_FIXED as u64, len)?;
        Ok((crc32fast::hash(&body) == u32::from_le_bytes([s0, s1, s2, s3])).then_some(body))
    }

    /// Whether a record is certainly of another log than the one that is looked for. What is damaged may be of any.
    fn is_of_another(&self, at: u64, frame: &Frame, beginning: &[u8]) -> Result<bool> {
        let Some(only) = &self.only else { return Ok(false) };
        let meta = beginning.get(FRAME..FRAME + frame.meta_len as usize);
        let Some(meta) = meta.filter(|meta| frame.fits_meta(meta)) else { return Ok(false) };
        is_of(meta, only).map(|is_of| !is_of).map_err(|e| self.corrupt(at, e))
    }

    /// Tells a torn tail from damage: what lies below a position that a later record calls durable
    /// was whole when that record was written.
    fn damaged(&self, at: u64, what: &str) -> Result<Step> {
        if self.is_whole {
            return Err(self.corrupt(at, what.to_owned()));
        }
        let mut from = at + 1;
        while from < self.len {
            let want = usize::try_from(self.len - from).unwrap_or(usize::MAX).min(SEARCH);
            let bytes = self.read(from, want)?;
            let marked = bytes.windows(FRAME).filter(|bytes| bytes.starts_with(&MARK));
            let mut frames = marked.filter_map(|b| b.first_chunk().and_then(Frame::decode));
            if frames.any(|frame| frame.durable > at) {
                return Err(self.corrupt(at, what.to_owned()));
            }
            if want < SEARCH {
                break;
            }
            // A frame may lie across the border of two reads.
            from += (SEARCH - FRAME + 1) as u64;
        }
        Ok(Step::Torn(at))
    }

    fn read(&self, at: u64, len: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.raw.read_at(&mut bytes, at).map_err(|e| reading(&self.path, &e))?;
        Ok(bytes)
    }

    /// Says what is wrong with this file, and where.
    pub(in crate::edge) fn corrupt(&self, offset: u64, reason: String) -> Error {
        corrupt(&self.path, offset, reason)
    }
}

/// Bytes in memory, to be read as a file.
pub(super) struct Whole(pub(super) Bytes);

impl RawFile for Whole {
    fn write_at(&self, _pieces: &mut [IoSlice<'_>], _offset: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let from = usize::try_from(offset).ok();
        let piece = from.and_then(|from| self.0.get(from..from.checked_add(buffer.len())?));
        buffer.copy_from_slice(piece.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, _len: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads the block of the record that starts at `place.pos`, and checks its sum.
///
/// # Errors
/// [`Error::CorruptSegment`] if the bytes changed since they were written; [`Error::Io`].
pub(in crate::edge) fn read_block(path: &Path, raw: &dyn RawFile, place: &SpillRef) -> Result<Bytes> {
    let mut frame = [0; FRAME];
    raw.read_at(&mut frame, place.pos).map_err(|e| reading(path, &e))?;
    // The length is bounded before it is used: a reference may be to another file altogether.
    let frame = Frame::decode(&frame)
        .filter(|frame| frame.len >= place.len && frame.len as usize <= PAYLOAD_MAX)
        .ok_or_else(|| corrupt(path, place.pos, "no record starts here".to_owned()))?;
    let mut payload = vec![0; frame.len as usize];
    raw.read_at(&mut payload, place.pos + FRAME as u64).map_err(|e| reading(path, &e))?;
    if !frame.fits(&payload) {
        return Err(corrupt(path, place.pos, "a record's checksum does not fit".to_owned()));
    }
    let payload = Bytes::from(payload);
    Ok(payload.slice((frame.len - place.len) as usize..))
}

/// An error that says what is wrong with a file, and where.
pub(in crate::edge) fn corrupt(path: &Path, offset: u64, reason: String) -> Error {
    Error::CorruptSegment { file: path.display().to_string(), offset, reason }
}

fn reading(path: &Path, error: &io::Error) -> Error {
    Error::io(format!("reading segment {}", path.display()), error)
}
