//! Bytes that are appended in pieces and read by place, sealed page by page.
//!
//! A piece is what was appended at once. It stands in the file as pages of [`PAGE`] bytes, the last one shorter,
//! each with its tag behind it. Where pieces stand and with which nonces is known in memory alone.

use super::sealing::{Sealer, Spot, TAG};
use crate::edge::disk::segment::RawFile;
use crate::error::Result;

/// Bytes that are sealed together: to read one of them, all are read. A page of the pool is as large, and a block
/// of keyed state half of it.
pub(super) const PAGE: usize = 4096;
const SEALED_PAGE: usize = PAGE + TAG;
/// Pages that are read at a time.
const PAGES: usize = 64;

/// Something that was appended.
#[derive(Debug, Clone, Copy)]
struct Piece {
    /// Position of its first byte, as those who read say it, and of the one behind its last.
    from: u64,
    to: u64,
    /// Where it stands in the file.
    at: u64,
    /// Of its first page; each other has the next.
    nonce: u64,
}

/// Where all pieces stand.
#[derive(Debug, Default)]
pub(super) struct Pieces(Vec<Piece>);

/// How much so many bytes take in the file.
pub(super) const fn sealed_len(bytes: usize) -> usize {
    bytes + bytes.div_ceil(PAGE) * TAG
}

impl Piece {
    const fn len(&self) -> usize {
        (self.to - self.from) as usize
    }

    const fn sealed_end(&self) -> u64 {
        self.at + sealed_len(self.len()) as u64
    }
}

impl Pieces {
    /// Where the next piece goes, in the file.
    pub(super) fn sealed_end(&self) -> u64 {
        self.0.last().map_or(0, Piece::sealed_end)
    }

    /// Seals what is appended behind `from`; it is there once it was [added](Self::add).
    pub(super) fn seal(&self, sealer: &Sealer, file: u64, bytes: &[u8]) -> Result<(u64, Vec<u8>)> {
        let mut out = Vec::with_capacity(sealed_len(bytes.len()));
        let nonce = sealer.nonces(bytes.len().div_ceil(PAGE) as u64);
        let at = self.sealed_end();
        for (page, number) in bytes.chunks(PAGE).zip(nonce..) {
            let pos = at + out.len() as u64;
            sealer.seal(number, Spot { file, pos }, page, &mut out)?;
        }
        Ok((nonce, out))
    }

    /// A piece was written.
    pub(super) fn add(&mut self, from: u64, bytes: usize, nonce: u64) {
        if bytes > 0 {
            let at = self.sealed_end();
            self.0.push(Piece { from, to: from + bytes as u64, at, nonce });
        }
    }

    /// Forgets the pieces from a position on, at which one began.
    pub(super) fn cut(&mut self, to: u64) {
        let left = self.0.partition_point(|piece| piece.from < to);
        self.0.truncate(left);
    }

    /// What is to be read for `len` bytes from `from` on: of each piece some pages. Nothing if not all of it is there.
    pub(super) fn find(&self, from: u64, len: usize) -> Option<Vec<Run>> {
        let (mut at, end) = (from, from + len as u64);
        let first = self.0.partition_point(|piece| piece.to <= from);
        let mut runs = Vec::new();
        for piece in self.0.get(first..).unwrap_or_default() {
            while at < end && at < piece.to {
                let run = Run::of(piece, at, end);
                at += run.wanted as u64;
                runs.push(run);
            }
            if at == end {
                break;
            }
        }
        (at == end).then_some(runs)
    }
}

/// Pages that stand together in a file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    pos: u64,
    sealed: usize,
    nonce: u64,
    /// Bytes before those that are wanted, and how many those are.
    skipped: usize,
    wanted: usize,
}

impl Run {
    /// From `at` on, which is in the piece, as many pages as are read at a time.
    fn of(piece: &Piece, at: u64, end: u64) -> Self {
        let within = (at - piece.from) as usize;
        let (first, skipped) = (within / PAGE, within % PAGE);
        let wanted = (end.min(piece.to) - at) as usize;
        let wanted = wanted.min(PAGES * PAGE - skipped);
        let last = (first * PAGE + skipped + wanted).next_multiple_of(PAGE).min(piece.len());
        let sealed = sealed_len(last - first * PAGE);
        let pos = piece.at + (first * SEALED_PAGE) as u64;
        Self { pos, sealed, nonce: piece.nonce + first as u64, skipped, wanted }
    }

    /// Fills the beginning of `out`; what was filled, and what is left. Nothing is left where a page is not what
    /// was written.
    pub(super) fn read<'a>(
        &self,
        raw: &dyn RawFile,
        (sealer, file): (&Sealer, u64),
        scratch: &mut Vec<u8>,
        out: &'a mut [u8],
    ) -> std::io::Result<Option<&'a mut [u8]>> {
        scratch.resize(self.sealed, 0);
        raw.read_at(scratch, self.pos)?;
        let (mut out, rest) = out.split_at_mut_checked(self.wanted).unwrap_or_default();
        let (mut pos, mut skipped) = (self.pos, self.skipped);
        for (page, nonce) in scratch.chunks_mut(SEALED_PAGE).zip(self.nonce..) {
            let len = page.len() as u64;
            let Some(opened) = sealer.open(nonce, Spot { file, pos }, page) else { return Ok(None) };
            let opened = opened.get(skipped..).unwrap_or_default();
            let opened = opened.get(..out.len()).unwrap_or(opened);
            let (filled, left) = out.split_at_mut_checked(opened.len()).unwrap_or_default();
            filled.copy_from_slice(opened);
            (out, skipped, pos) = (left, 0, pos + len);
        }
        Ok(Some(rest))
    }
}
