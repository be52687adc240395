//! A segment that is being written: each group of records is an object.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use super::client::Client;
use super::object;
use super::parts::Parts;
use crate::edge::disk::segment::disk::RawFile;
use crate::edge::disk::segment::format::Payload;
use crate::edge::disk::segment::store::Sink;

/// A segment's next object, and those before it.
pub(super) struct PutSink {
    client: Arc<Client>,
    path: PathBuf,
    header: Bytes,
    parts: Arc<Parts>,
    /// The object that is to be put.
    next: Vec<Bytes>,
}

impl PutSink {
    pub(super) fn new(client: Arc<Client>, path: &Path, header: Vec<u8>) -> Self {
        let parts = Arc::new(Parts::none(Arc::clone(&client), path.to_owned()));
        Self { client, path: path.to_owned(), header: header.into(), parts, next: Vec::new() }
    }
}

impl Sink for PutSink {
    fn reader(&self) -> Arc<dyn RawFile> {
        Arc::clone(&self.parts) as Arc<dyn RawFile>
    }

    fn write(&mut self, records: &[&Payload]) -> io::Result<Vec<u64>> {
        let mut at = self.parts.start(self.parts.count()) + self.header.len() as u64;
        let mut places = Vec::with_capacity(records.len());
        self.next = vec![self.header.clone()];
        for payload in records {
            // Nothing in an object was there before the rest of it.
            let frame = payload.frame(0, true);
            places.push(at);
            at += (frame.len() + payload.len()) as u64;
            let meta = Bytes::copy_from_slice(&payload.meta);
            self.next.extend([Bytes::copy_from_slice(&frame), meta, payload.block.clone()]);
        }
        Ok(places)
    }

    fn cut(&mut self) -> io::Result<()> {
        self.next.clear();
        Ok(())
    }

    fn sync(&mut self) -> io::Result<u64> {
        let next = std::mem::take(&mut self.next);
        let mut moved = 0;
        loop {
            let path = object(&self.path, self.parts.count());
            let (len, is_ours) = match self.client.create(&path, &next) {
                Ok(()) => (next.iter().map(|piece| piece.len() as u64).sum(), true),
                // An object that was put earlier, and of which no answer came. Nobody was told that it is there, and
                // nobody is told that it is not.
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => (self.client.head(&path)?.size, false),
                Err(e) => return Err(e),
            };
            self.parts.push(len);
            if is_ours {
                return Ok(moved);
            }
            moved += len;
        }
    }

    // Whether the object is there is found out by the next one, which takes its place or comes after it.
    fn ends_with_a_failed_sync(&self) -> bool {
        false
    }
}
