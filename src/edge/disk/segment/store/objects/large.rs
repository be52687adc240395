//! Objects that may be larger than memory.

use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::{Buf, Bytes, BytesMut};
use object_store::ObjectMeta;

use super::client::{Client, Parts};
use crate::edge::disk::segment::store::Filling;

/// Bytes that are read and written at once; stores want at least five MiB.
const PART: usize = if cfg!(test) { 8 << 10 } else { 8 << 20 };

/// An object that is read piece by piece. One that is replaced meanwhile is an error.
pub(super) struct Stream {
    client: Arc<Client>,
    path: PathBuf,
    found: ObjectMeta,
    at: u64,
    end: u64,
    read: Bytes,
}

impl Stream {
    pub(super) fn open(client: Arc<Client>, path: &Path, bytes: Range<u64>) -> io::Result<Self> {
        let found = client.head(path)?;
        let end = found.size.min(bytes.end);
        Ok(Self { client, path: path.to_owned(), found, at: bytes.start, end, read: Bytes::new() })
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.read.is_empty() && self.at < self.end {
            let end = self.end.min(self.at + PART as u64);
            self.read = self.client.get_part(&self.path, &self.found, self.at..end)?;
            self.at = end;
        }
        let len = buffer.len().min(self.read.len());
        let (piece, _) = buffer.split_at_mut(len);
        self.read.copy_to_slice(piece);
        Ok(len)
    }
}

/// An object that is being written. What is small is one put.
pub(super) struct Upload {
    client: Arc<Client>,
    path: PathBuf,
    next: BytesMut,
    written: u64,
    parts: Option<Parts>,
}

impl Upload {
    pub(super) fn new(client: Arc<Client>, path: &Path) -> Self {
        Self { client, path: path.to_owned(), next: BytesMut::new(), written: 0, parts: None }
    }

    fn put_part(&mut self) -> io::Result<()> {
        let part = self.next.split().freeze();
        let mut parts = match self.parts.take() {
            Some(parts) => parts,
            None => self.client.begin_parts(&self.path)?,
        };
        let put = self.client.put_part(&self.path, &mut parts, &part);
        self.parts = Some(parts);
        put
    }
}

impl Filling for Upload {
    fn push(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        self.written += bytes.len() as u64;
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(PART - self.next.len()));
            self.next.extend_from_slice(now);
            bytes = later;
            if self.next.len() == PART {
                self.put_part()?;
            }
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> io::Result<u64> {
        if self.parts.is_some() && !self.next.is_empty() {
            self.put_part()?;
        }
        match self.parts.take() {
            Some(parts) => self.client.finish_parts(&self.path, parts)?,
            None => self.client.put(&self.path, &self.next.split().freeze())?,
        }
        Ok(self.written)
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if let Some(parts) = self.parts.take() {
            self.client.give_up_parts(&self.path, &parts);
        }
    }
}
