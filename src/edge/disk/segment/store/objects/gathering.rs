//! A folder of objects, the last of which says that the others are there.
//!
//! Each who writes at a place has names of its own, so that nobody takes another's object for its own, nor overwrites it.
//! The last object has one name for all, and is put where there is none: what it does not name is nobody's.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use super::client::Client;
use super::large::Upload;
use crate::edge::disk::segment::store::{Filling, Gathering};

/// What the names of objects begin with of which a later one tells whether they are there.
const PART: &str = "part-";

/// The name of a file of a folder, if there may be others of that name.
pub(in crate::edge) fn part_name(number: Option<u64>, name: String) -> String {
    match number {
        None => name,
        Some(number) => format!("{PART}{number:016x}-{name}"),
    }
}

/// A folder of which the last object was not put.
pub(super) struct Parted {
    client: Arc<Client>,
    dir: PathBuf,
    number: u64,
    file: Option<Box<Upload>>,
    /// Objects that may have been put.
    put: Vec<PathBuf>,
}

impl Parted {
    pub(super) fn create(client: Arc<Client>, dir: &Path, number: u64) -> io::Result<Self> {
        // What others have left behind who died is in nobody's way.
        let is_part = |path: &Path| {
            path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(PART))
        };
        if client.names(dir)?.iter().any(|found| found.is_folder || !is_part(&found.path)) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        Ok(Self { client, dir: dir.to_owned(), number, file: None, put: Vec::new() })
    }

    fn end(&mut self) -> io::Result<()> {
        self.file.take().map_or(Ok(()), |file| file.finish().map(drop))
    }
}

impl Gathering for Parted {
    fn number(&self) -> Option<u64> {
        Some(self.number)
    }

    fn begin(&mut self, name: &str) -> io::Result<()> {
        self.end()?;
        let path = self.dir.join(name);
        self.file = Some(Box::new(Upload::new(Arc::clone(&self.client), &path)));
        self.put.push(path);
        Ok(())
    }

    fn push(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.as_mut().ok_or(io::ErrorKind::InvalidInput)?.push(bytes)
    }

    fn finish(mut self: Box<Self>, name: &str, content: &[u8]) -> io::Result<()> {
        self.end()?;
        let path = self.dir.join(name);
        let created = self.client.create(&path, &[Bytes::copy_from_slice(content)]);
        // Where it is not known whether it was put, the others stay: it is whole, or not there.
        let put = std::mem::take(&mut self.put);
        let is_lost = |e: &io::Error| {
            e.kind() == io::ErrorKind::AlreadyExists && self.client.get(&path).is_ok_and(|it| it != content)
        };
        if created.as_ref().is_err_and(is_lost) {
            self.put = put;
        }
        created
    }
}

impl Drop for Parted {
    fn drop(&mut self) {
        self.file = None;
        self.put.iter().for_each(|path| self.client.discard(path));
    }
}
