//! A checkpoint in a bucket of an object store.
//!
//! ```text
//! <query>/<epoch>/<use>-<agent>-<application>-<number>.seg/<n>    one put: what all tasks had waiting, and a header
//! ```
//!
//! The objects of a segment are numbered without a gap: the next is put only when the one before is there. If that is
//! not known, because no answer came, the same name is tried again, and a put succeeds only where nothing is. So a
//! put that arrives late is either the object of its number or nothing, and a number that is missing was removed.
//! Whoever removes a segment removes its first object first: without that there is no segment, however much is left.
//!
//! A put that is late could bring back a claim that was given up, and with it what was committed. So a claim is given up
//! by emptying it: its name stays for a day, longer than any request lives, and an object without a byte is none.

mod client;
mod gathering;
mod large;
mod parts;
mod remembered;
mod removing;
mod url;
mod writing;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;

use self::client::{Client, Told};
use self::gathering::Parted;
pub(in crate::edge) use self::gathering::part_name;
use self::large::{Stream, Upload};
use self::parts::Parts;
#[cfg(test)]
pub(in crate::edge) use self::testing::{Fault, faulty, over};
pub(in crate::edge) use self::url::{is_url, kind_of, without_secrets};
use self::writing::PutSink;
use super::super::SETTING;
use super::super::disk::{FileSystem, RawFile};
use super::super::layout::is_segment;
use super::super::scan::Whole;
use super::{Entry, Filling, Folder, Gathering, Measured, Piece, Segment, Sink, Store};
use crate::error::{Error, Result};

/// Segments that are read at once.
const READERS: usize = 4;
/// Epochs whose segments are put at once: each takes as long as the store does to answer some requests.
const WRITERS: usize = 16;
/// Objects of one segment that are read at once.
const AHEAD: usize = 8;
/// Bytes of them.
const AHEAD_BYTES: u64 = 8 << 20;

/// What `checkpoint_dir` names: a folder of `files`, or a prefix of an object store. Its answer is waited for, and asked for again, for `patience`.
///
/// # Errors
/// [`Error::Config`] for what names nothing, and for `options` that its store does not know; [`Error::DiskFull`];
/// [`Error::Io`].
pub(in crate::edge) fn open(
    checkpoint_dir: &str,
    files: &Arc<dyn FileSystem>,
    options: &BTreeMap<String, String>,
    encrypt: bool,
    patience: Duration,
) -> Result<Arc<dyn Store>> {
    if !is_url(checkpoint_dir) {
        return Ok(Arc::new(Folder::on(Arc::clone(files), Path::new(checkpoint_dir))?));
    }
    look_into(checkpoint_dir, options, encrypt, patience, SETTING)
}

/// What a URL names, which `setting` is; it is asked as [`open`] says.
///
/// # Errors
/// Those of [`open`].
pub(in crate::edge) fn look_into(
    url: &str,
    options: &BTreeMap<String, String>,
    encrypt: bool,
    patience: Duration,
    setting: &str,
) -> Result<Arc<dyn Store>> {
    let (bucket, prefix) = url::open(url, options, encrypt, setting)?;
    let root = PathBuf::from(url.trim_end_matches('/'));
    let told = Told { setting: setting.to_owned(), secrets: url::secrets(options) };
    let client = Client::start(bucket, root, prefix, patience, told)?;
    Ok(Arc::new(Objects { client: Arc::new(client) }))
}

/// A prefix of an object store.
#[derive(Debug)]
pub(in crate::edge) struct Objects {
    client: Arc<Client>,
}

/// The object of a segment with a number.
fn object(segment: &Path, number: usize) -> PathBuf {
    segment.join(format!("{number:08x}"))
}

fn number_of(object: &Path) -> Option<usize> {
    usize::from_str_radix(object.file_name()?.to_str()?, 16).ok()
}

impl Objects {
    /// Lengths of a segment's objects, in order. A listing may have missed one that was put meanwhile, and shown a
    /// later one: each that it lacks is asked for.
    fn lengths(&self, segment: &Path) -> io::Result<Lengths> {
        let listed: BTreeMap<usize, u64> = self
            .client
            .list(segment)?
            .into_iter()
            .filter_map(|(path, found)| Some((number_of(&path)?, found.size)))
            .collect();
        let Some((last, _)) = listed.last_key_value() else { return Ok(Lengths::Gone) };
        let mut lengths = Vec::with_capacity(listed.len());
        for number in 0..=*last {
            lengths.push(match listed.get(&number) {
                Some(len) => *len,
                None => match self.client.head(&object(segment, number)) {
                    Ok(found) => found.size,
                    Err(e) if e.kind() == io::ErrorKind::NotFound => {
                        return Ok(if self.client.is_there(&object(segment, 0))? {
                            Lengths::Missing(number, lengths.iter().sum())
                        } else {
                            Lengths::Gone
                        });
                    }
                    Err(e) => return Err(e),
                },
            });
        }
        Ok(Lengths::Whole(lengths))
    }
}

/// What there is of a segment.
enum Lengths {
    Whole(Vec<u64>),
    /// It was removed, or somebody is at it.
    Gone,
    /// Damage: an object that was there, and what stands before it.
    Missing(usize, u64),
}

fn missing(segment: &Path, number: usize, offset: u64) -> Error {
    let file = object(segment, number).display().to_string();
    Error::CorruptSegment { file, offset, reason: "the object is gone, and later ones are there".to_owned() }
}

impl Store for Objects {
    fn root(&self) -> &Path {
        self.client.root()
    }

    fn numbers_segments(&self) -> bool {
        true
    }

    fn check(&self) -> Result<Duration> {
        let mut mark = [0; 8];
        getrandom::fill(&mut mark)
            .map_err(|e| Error::Io { context: "drawing a name".to_owned(), message: e.to_string() })?;
        let path = self.root().join(format!("{:016x}.probe", u64::from_le_bytes(mark)));
        let failed = |e: io::Error| Error::io(format!("trying {}", self.root().display()), &e);
        let began = Instant::now();
        self.create(&path, b"first").map_err(failed)?;
        let took = began.elapsed();
        let again = self.create(&path, b"second");
        let found = self.read(&path).map_err(failed)?;
        self.remove(&path).map_err(failed)?;
        match again {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists && found == "first" => Ok(took),
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(failed(e)),
            _ => Err(Error::Config {
                setting: self.client.setting().to_owned(),
                reason: format!(
                    "{} overwrites what is there though it was asked not to (If-None-Match): a store without \
                     conditional puts cannot tell whose an epoch is",
                    self.root().display()
                ),
            }),
        }
    }

    fn readers(&self) -> usize {
        READERS
    }

    fn writers(&self) -> usize {
        WRITERS
    }

    fn entries(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        let mut found = self.client.names(dir)?;
        found.sort_unstable();
        Ok(found)
    }

    fn read(&self, path: &Path) -> io::Result<Bytes> {
        self.client.get(path)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.client.is_there(path)
    }

    fn modified(&self, path: &Path) -> io::Result<SystemTime> {
        if !is_segment(path) {
            return Ok(self.client.head(path)?.last_modified.into());
        }
        let all = self.client.list(path)?;
        let newest = all.into_iter().map(|(_, found)| found.last_modified.into()).max();
        newest.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn size(&self, path: &Path) -> io::Result<u64> {
        Ok(self.client.head(path)?.size)
    }

    fn create(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        self.client.create(path, &[Bytes::copy_from_slice(content)])
    }

    fn renew(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        self.client.put(path, &Bytes::copy_from_slice(content))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.client.remove(path)
    }

    fn give_up(&self, path: &Path) -> io::Result<()> {
        // Nothing was found where something was to be put: then it was not put.
        self.client.put(path, &Bytes::new()).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => io::Error::other(e.to_string()),
            _ => e,
        })
    }

    fn settle(&self, _dir: &Path) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, files: &[PathBuf], _dirs: &[PathBuf]) -> io::Result<()> {
        files.iter().for_each(|file| self.client.discard(file));
        Ok(())
    }

    fn remove_segment(&self, path: &Path) -> io::Result<()> {
        self.client.remove_segment(path)
    }

    fn measure(&self, segment: &Path) -> io::Result<Option<Measured>> {
        let all = self.client.list(segment)?;
        let bytes = all.iter().map(|(_, found)| found.size).sum();
        let newest = all.iter().map(|(_, found)| found.last_modified.into()).max();
        Ok(newest.map(|modified| Measured { files: all.len() as u64, bytes, modified }))
    }

    fn segment(&self, path: &Path) -> Result<Option<Segment>> {
        let listed = self.lengths(path);
        match listed.map_err(|e| Error::io(format!("listing segment {}", path.display()), &e))? {
            Lengths::Gone => Ok(None),
            Lengths::Missing(number, offset) => Err(missing(path, number, offset)),
            Lengths::Whole(lengths) => {
                let ends = lengths.iter().scan(0, |end, len| {
                    *end += len;
                    Some(*end)
                });
                Ok(Some(Segment { path: path.to_owned(), ends: ends.collect() }))
            }
        }
    }

    fn scan(
        &self,
        segment: &Segment,
        end: Option<u64>,
        each: &mut dyn FnMut(Piece) -> Result<()>,
    ) -> Result<bool> {
        // An end always is that of an object.
        let count = segment.ends.partition_point(|at| end.is_none_or(|end| *at <= end));
        let parts = Parts::new(Arc::clone(&self.client), segment);
        let mut next = 0;
        while next < count {
            let ahead = parts.ahead(next, AHEAD, AHEAD_BYTES).min(count - next);
            let read = match parts.read_all(next..next + ahead) {
                Ok(read) => read,
                Err(e) if e.kind() == io::ErrorKind::NotFound => {
                    // An agent removed it, with its epoch, since it was listed.
                    if self.segment(&segment.path)?.is_none() {
                        return Ok(false);
                    }
                    return Err(Error::io(format!("reading segment {}", segment.path.display()), &e));
                }
                Err(e) => return Err(Error::io(format!("reading segment {}", segment.path.display()), &e)),
            };
            for (at, bytes) in read.into_iter().enumerate() {
                let (path, base) = (object(&segment.path, next + at), parts.start(next + at));
                let len = bytes.len() as u64;
                each(Piece { path, base, len, raw: Arc::new(Whole(bytes)), is_whole: true })?;
            }
            next += ahead;
        }
        Ok(true)
    }

    fn reader(&self, segment: &Segment) -> io::Result<Arc<dyn RawFile>> {
        Ok(Arc::new(Parts::new(Arc::clone(&self.client), segment)))
    }

    fn stream(&self, path: &Path, bytes: Range<u64>) -> io::Result<Box<dyn Read + Send>> {
        Ok(Box::new(Stream::open(Arc::clone(&self.client), path, bytes)?))
    }

    fn fill(&self, path: &Path, _writer: &str) -> io::Result<Box<dyn Filling>> {
        Ok(Box::new(Upload::new(Arc::clone(&self.client), path)))
    }

    fn gather(&self, dir: &Path, number: u64) -> io::Result<Box<dyn Gathering>> {
        Ok(Box::new(Parted::create(Arc::clone(&self.client), dir, number)?))
    }

    fn begin(&self, path: &Path, header: Vec<u8>) -> io::Result<Box<dyn Sink>> {
        Ok(Box::new(PutSink::new(Arc::clone(&self.client), path, header)))
    }
}
