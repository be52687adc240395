//! Where a checkpoint lies: a folder that all reach, or a prefix in a bucket of an object store.
//!
//! Both have names in folders. A folder's file grows; an object never changes, so that a segment is a row of them there.

mod folder;
mod gathering;
mod objects;

use std::fmt::Debug;
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;

pub(in crate::edge) use self::folder::{Folder, UNFINISHED};
#[cfg(test)]
pub(in crate::edge) use self::objects::{Fault, faulty, over};
pub(in crate::edge) use self::objects::{is_url, kind_of, look_into, open, part_name, without_secrets};
use super::disk::RawFile;
use super::format::Payload;
use crate::error::Result;

/// A name in a folder.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::edge) struct Entry {
    /// The name, with all above it.
    pub(in crate::edge) path: PathBuf,
    /// Whether it has names below it.
    pub(in crate::edge) is_folder: bool,
}

/// A segment that is there to be read.
#[derive(Debug, Clone)]
pub(in crate::edge) struct Segment {
    /// Its name.
    pub(in crate::edge) path: PathBuf,
    /// Where its objects end, counted from the start of the first; of a file, where that ends.
    pub(in crate::edge) ends: Arc<[u64]>,
}

impl Segment {
    /// Bytes of it.
    pub(in crate::edge) fn len(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }
}

/// What a segment takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::edge) struct Measured {
    /// Files, or objects.
    pub(in crate::edge) files: u64,
    /// Bytes of them.
    pub(in crate::edge) bytes: u64,
    /// When the newest was written.
    pub(in crate::edge) modified: SystemTime,
}

/// A file or an object of a segment, each of which begins with a header.
pub(in crate::edge) struct Piece {
    /// For messages.
    pub(in crate::edge) path: PathBuf,
    /// What stands before it in the segment, in bytes.
    pub(in crate::edge) base: u64,
    /// Bytes that count.
    pub(in crate::edge) len: u64,
    /// Its bytes.
    pub(in crate::edge) raw: Arc<dyn RawFile>,
    /// Whether all of it was whole once: then what is wrong with it is no torn write.
    pub(in crate::edge) is_whole: bool,
}

/// A place where checkpoints lie. What it does is durable when it returns, unless it says otherwise.
pub(in crate::edge) trait Store: Debug + Send + Sync {
    /// What the user's setting names; all paths begin with it.
    fn root(&self) -> &Path;

    /// Whether each segment has a name that was never used before.
    fn numbers_segments(&self) -> bool;

    /// Sees that what is promised here is kept; how long a put takes.
    ///
    /// # Errors
    /// [`crate::error::Error::Config`] if a put overwrites what is there though it must not; [`crate::error::Error::Io`].
    fn check(&self) -> Result<Duration>;

    /// How many segments are best read at once.
    fn readers(&self) -> usize;

    /// How many segments are best written at once.
    fn writers(&self) -> usize;

    /// Sorted names in a folder; none if it is gone, since agents remove what is committed.
    fn entries(&self, dir: &Path) -> io::Result<Vec<Entry>>;

    /// All of a file.
    fn read(&self, path: &Path) -> io::Result<Bytes>;

    /// Whether a file is there, asked of whoever knows, not of what is remembered.
    fn exists(&self, path: &Path) -> io::Result<bool>;

    /// When a file was last written.
    fn modified(&self, path: &Path) -> io::Result<SystemTime>;

    /// Bytes of a file.
    fn size(&self, path: &Path) -> io::Result<u64>;

    /// Creates a file. If the same was asked for before, by a request of which no answer came, that one counts: so
    /// content that two may write must tell them apart.
    ///
    /// # Errors
    /// `AlreadyExists` if it is there with other content.
    fn create(&self, path: &Path, content: &[u8]) -> io::Result<()>;

    /// Makes a file young that somebody needs who has it for long: it is there afterwards, be it that it was gone.
    fn renew(&self, path: &Path, content: &[u8]) -> io::Result<()>;

    /// Removes a file, which may be back after a crash until [`Self::settle`]; one that is gone is no error.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Removes a file for ever, after [`Self::settle`]: no request to create it that is still on its way brings it back.
    fn give_up(&self, path: &Path) -> io::Result<()>;

    /// Returns when what was removed from a folder stays removed.
    fn settle(&self, dir: &Path) -> io::Result<()>;

    /// Removes files that nobody needs, segments among them, and then each of the folders that is empty, inner ones
    /// first; perhaps in the background.
    fn discard(&self, files: &[PathBuf], dirs: &[PathBuf]) -> io::Result<()>;

    /// Removes a segment; one that is gone is no error.
    fn remove_segment(&self, path: &Path) -> io::Result<()>;

    /// Looks what a segment takes, though some of it may be missing; none if it is gone.
    fn measure(&self, segment: &Path) -> io::Result<Option<Measured>>;

    /// Looks how long a segment is; none if it is gone, or about to be.
    ///
    /// # Errors
    /// [`crate::error::Error::CorruptSegment`] if some of it is missing; [`crate::error::Error::Io`].
    fn segment(&self, path: &Path) -> Result<Option<Segment>>;

    /// Reads a segment piece by piece, all of it, or up to a position before which all was whole; `false` if it went away
    /// meanwhile: then nothing of it counts.
    ///
    /// # Errors
    /// Those of `each`; [`crate::error::Error::Io`].
    fn scan(
        &self,
        segment: &Segment,
        end: Option<u64>,
        each: &mut dyn FnMut(Piece) -> Result<()>,
    ) -> Result<bool>;

    /// What blocks of a segment are read with.
    fn reader(&self, segment: &Segment) -> io::Result<Arc<dyn RawFile>>;

    /// Reads these bytes of a file, or as many of them as there are, a piece at a time.
    fn stream(&self, path: &Path, bytes: Range<u64>) -> io::Result<Box<dyn Read + Send>>;

    /// Begins a file that is there when it is finished, in place of one that was there before. `writer` is a name
    /// that nobody else uses.
    fn fill(&self, path: &Path, writer: &str) -> io::Result<Box<dyn Filling>>;

    /// Begins a folder that is there when all of its files are. `number` is one that nobody else uses.
    ///
    /// # Errors
    /// `AlreadyExists` if there is something.
    fn gather(&self, dir: &Path, number: u64) -> io::Result<Box<dyn Gathering>>;

    /// Begins a segment that nobody else writes.
    fn begin(&self, path: &Path, header: Vec<u8>) -> io::Result<Box<dyn Sink>>;
}

/// A file that is being written; dropped before it is finished, it never was.
pub(in crate::edge) trait Filling {
    /// Appends bytes.
    fn push(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Gives it its name; its bytes.
    fn finish(self: Box<Self>) -> io::Result<u64>;
}

/// A folder that is being written; dropped before it is finished, it never was.
pub(in crate::edge) trait Gathering: Send {
    /// What tells the names of its files from those of others that write at the same place; none where nobody can.
    fn number(&self) -> Option<u64>;

    /// Ends a file, and begins the next.
    fn begin(&mut self, name: &str) -> io::Result<()>;

    /// Appends to the file that was begun last.
    fn push(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Ends the last file, and adds one with which all are there.
    ///
    /// # Errors
    /// `AlreadyExists` if there is something by now. After another error it may be there, whole.
    fn finish(self: Box<Self>, name: &str, content: &[u8]) -> io::Result<()>;
}

/// A segment that is being written, at its end.
pub(in crate::edge) trait Sink: Send {
    /// What its blocks are read with.
    fn reader(&self) -> Arc<dyn RawFile>;

    /// Appends records, which are durable after [`Self::sync`]; where each begins. After an error any part may have
    /// been written.
    fn write(&mut self, records: &[&Payload]) -> io::Result<Vec<u64>>;

    /// Takes back what a failed write has left.
    fn cut(&mut self) -> io::Result<()>;

    /// Returns when all that was written is durable; by how many bytes it lies behind where it was said to, because
    /// something written earlier, of which that was not known, turned out to be there.
    fn sync(&mut self) -> io::Result<u64>;

    /// Whether nothing may be written any more once a sync has failed.
    fn ends_with_a_failed_sync(&self) -> bool;
}
