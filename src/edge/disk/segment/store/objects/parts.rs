//! The objects of a segment, read as if they were one file.

use std::io::{self, IoSlice};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use bytes::Bytes;

use super::client::Client;
use super::object;
use crate::edge::disk::segment::disk::RawFile;
use crate::edge::disk::segment::store::Segment;
use crate::edge::locked;

/// Bytes that are read at once of an object.
const PIECE: u64 = 2 << 20;
/// Objects that are read at once, if they are smaller than that together.
const AHEAD: usize = 8;

/// The objects of a segment.
pub(super) struct Parts {
    client: Arc<Client>,
    segment: PathBuf,
    ends: Ends,
}

/// Where the objects end.
enum Ends {
    /// Of a segment that is there.
    Known(Arc<[u64]>),
    /// Of one that is being written.
    Growing(RwLock<Vec<u64>>),
}

impl Parts {
    pub(super) fn new(client: Arc<Client>, segment: &Segment) -> Self {
        Self { client, segment: segment.path.clone(), ends: Ends::Known(Arc::clone(&segment.ends)) }
    }

    /// Of a segment that is begun.
    pub(super) fn none(client: Arc<Client>, segment: PathBuf) -> Self {
        Self { client, segment, ends: Ends::Growing(RwLock::default()) }
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.with(<[u64]>::len)
    }

    /// Where one begins.
    pub(super) fn start(&self, number: usize) -> u64 {
        self.with(|ends| number.checked_sub(1).and_then(|before| ends.get(before)).copied().unwrap_or(0))
    }

    /// Adds one to a segment that is being written.
    pub(super) fn push(&self, len: u64) {
        if let Ends::Growing(ends) = &self.ends {
            let mut ends = ends.write().unwrap_or_else(PoisonError::into_inner);
            let end = ends.last().copied().unwrap_or(0) + len;
            ends.push(end);
        }
    }

    /// How many objects from this one on are to be read at once: one at least, and not too many or too large ones.
    pub(super) fn ahead(&self, from: usize, most: usize, bytes: u64) -> usize {
        let start = self.start(from);
        self.with(|ends| {
            let next = ends.iter().skip(from).take(most);
            next.take_while(|end| **end - start <= bytes).count().max(1)
        })
    }

    /// Reads objects at once.
    pub(super) fn read_all(&self, numbers: Range<usize>) -> io::Result<Vec<Bytes>> {
        let paths: Vec<PathBuf> = numbers.map(|number| object(&self.segment, number)).collect();
        self.client.get_all(&paths)
    }

    fn with<T>(&self, look: impl FnOnce(&[u64]) -> T) -> T {
        match &self.ends {
            Ends::Known(ends) => look(ends),
            Ends::Growing(ends) => look(&ends.read().unwrap_or_else(PoisonError::into_inner)),
        }
    }

    /// A piece of an object, which has `len` bytes.
    fn piece(&self, number: usize, len: u64, piece: u64) -> io::Result<Bytes> {
        let path = object(&self.segment, number);
        if let Some(known) = locked(&self.client.remembered).get(&path, piece) {
            return Ok(known);
        }
        if len > PIECE {
            let from = piece * PIECE;
            let read = self.client.get_range(&path, from..len.min(from + PIECE))?;
            locked(&self.client.remembered).insert(path, piece, read.clone());
            return Ok(read);
        }
        let numbers = number..number + self.ahead(number, AHEAD, PIECE);
        let read = self.read_all(numbers.clone())?;
        let first = read.first().cloned().unwrap_or_default();
        let mut remembered = locked(&self.client.remembered);
        for (number, bytes) in numbers.zip(read) {
            remembered.insert(object(&self.segment, number), 0, bytes);
        }
        Ok(first)
    }
}

impl RawFile for Parts {
    fn write_at(&self, _pieces: &mut [IoSlice<'_>], _offset: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let number = self.with(|ends| ends.partition_point(|end| *end <= offset));
        let (start, end) = (self.start(number), self.start(number + 1));
        // A record never goes on in the next object. Behind the last, the end is 0.
        if offset + buffer.len() as u64 > end {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let (mut at, mut buffer) = (offset - start, buffer);
        while !buffer.is_empty() {
            let piece = self.piece(number, end - start, at / PIECE)?;
            let skip = usize::try_from(at % PIECE).unwrap_or(usize::MAX);
            let found = piece.get(skip..).filter(|found| !found.is_empty());
            let found = found.ok_or(io::ErrorKind::UnexpectedEof)?;
            let len = found.len().min(buffer.len());
            let (now, later) = buffer.split_at_mut(len);
            now.copy_from_slice(found.get(..len).unwrap_or_default());
            (at, buffer) = (at + len as u64, later);
        }
        Ok(())
    }

    fn set_len(&self, _len: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}
