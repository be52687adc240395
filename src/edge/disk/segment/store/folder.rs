//! A checkpoint in a folder.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, IoSlice, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;

use super::super::disk::{FileSystem, RawFile, RealDisk, write_error};
use super::super::format::Payload;
use super::super::{SETTING, layout};
use super::gathering::Gathered;
use super::{Entry, Filling, Gathering, Measured, Piece, Segment, Sink, Store};
use crate::error::{Error, Result};

/// Times that a folder is made anew if another agent, emptying it, removes it meanwhile.
const TRIES: usize = 8;
/// Ending of the name of a file that is being written.
pub(in crate::edge) const UNFINISHED: &str = "unfinished";

/// A folder that all agents reach.
#[derive(Clone)]
pub(in crate::edge) struct Folder {
    root: PathBuf,
    disk: Arc<dyn FileSystem>,
}

impl Folder {
    /// The folder at `root`, made if need be.
    ///
    /// # Errors
    /// [`Error::DiskFull`], [`Error::Io`].
    pub(in crate::edge) fn open(root: &Path) -> Result<Self> {
        Self::on(Arc::new(RealDisk), root)
    }

    /// The folder at `root`, if there is one: to be read.
    pub(in crate::edge) fn at(root: &Path) -> Self {
        Self { root: root.to_owned(), disk: Arc::new(RealDisk) }
    }

    /// [`Self::at`] on a given file system.
    #[cfg(test)]
    pub(in crate::edge) fn at_on(disk: Arc<dyn FileSystem>, root: &Path) -> Self {
        Self { root: root.to_owned(), disk }
    }

    /// [`Self::open`] on a given file system.
    pub(in crate::edge) fn on(disk: Arc<dyn FileSystem>, root: &Path) -> Result<Self> {
        fs::create_dir_all(root).map_err(|e| no_folder(root, &e))?;
        Ok(Self { root: root.to_owned(), disk })
    }

    /// Runs `create` in `dir`, which is made, durably, if it does not exist.
    pub(in crate::edge::disk) fn in_dir<T>(
        &self,
        dir: &Path,
        create: impl Fn() -> io::Result<T>,
    ) -> io::Result<T> {
        let mut tries = 0;
        loop {
            tries += 1;
            match self.make_dirs(dir).and_then(|()| create()) {
                Err(e) if e.kind() == io::ErrorKind::NotFound && tries < TRIES => {}
                result => return result,
            }
        }
    }

    /// Makes `dir` and the folders between the root and it. Each folder's name is synced in its parent,
    /// even if the folder was there: the agent that made it may not have come to that yet.
    fn make_dirs(&self, dir: &Path) -> io::Result<()> {
        fs::create_dir_all(dir)?;
        let above = dir.ancestors().skip(1);
        for parent in above.take_while(|parent| parent.starts_with(&self.root)) {
            self.disk.sync_dir(parent)?;
        }
        Ok(())
    }

    fn write(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        let file = self.disk.create(path, 0o666)?;
        file.write_at(&mut [IoSlice::new(content)], 0)?;
        file.sync()
    }

    fn dir_of<'a>(&'a self, path: &'a Path) -> &'a Path {
        path.parent().unwrap_or(&self.root)
    }
}

/// Why the user's setting names no folder that can be written to.
fn no_folder(root: &Path, error: &io::Error) -> Error {
    match write_error(root, SETTING, error) {
        Error::Io { .. } => Error::Config {
            setting: SETTING.to_owned(),
            reason: format!("{} cannot be made, or written to: {error}", root.display()),
        },
        full => full,
    }
}

/// Whether files have one name each in this file system.
fn has_no_links(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Unsupported | io::ErrorKind::PermissionDenied)
}

impl fmt::Debug for Folder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Folder").field("root", &self.root).finish_non_exhaustive()
    }
}

impl Store for Folder {
    fn root(&self) -> &Path {
        &self.root
    }

    fn numbers_segments(&self) -> bool {
        false
    }

    /// A folder is the file system's affair, but one may be another user's, or mounted to be read.
    fn check(&self) -> Result<Duration> {
        let draft = layout::draft(&self.root.join("written"));
        let written = draft.and_then(|draft| {
            let written = self.write(&draft, b"whether this can be written to\n");
            let _rubbish = self.disk.remove(&draft);
            written
        });
        written.map_err(|e| no_folder(&self.root, &e))?;
        Ok(Duration::ZERO)
    }

    fn readers(&self) -> usize {
        1
    }

    // One disk: they would be in each other's way.
    fn writers(&self) -> usize {
        1
    }

    fn entries(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        let listing = match fs::read_dir(dir) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            listing => listing?,
        };
        let entry = |entry: io::Result<fs::DirEntry>| {
            let path = entry?.path();
            let is_folder = path.is_dir();
            Ok(Entry { path, is_folder })
        };
        let mut found = listing.map(entry).collect::<io::Result<Vec<_>>>()?;
        found.sort_unstable();
        Ok(found)
    }

    fn read(&self, path: &Path) -> io::Result<Bytes> {
        fs::read(path).map(Bytes::from)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        // Opened, as a network's file system may answer anything less from what it remembers.
        match File::open(path) {
            Ok(_) => Ok(true),
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::StaleNetworkFileHandle) => {
                Ok(false)
            }
            Err(e) => Err(e),
        }
    }

    fn modified(&self, path: &Path) -> io::Result<SystemTime> {
        fs::metadata(path)?.modified()
    }

    fn size(&self, path: &Path) -> io::Result<u64> {
        Ok(fs::metadata(path)?.len())
    }

    fn create(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        let dir = self.dir_of(path);
        self.in_dir(dir, || {
            // Under another name first: whoever finds this one finds all of it.
            let draft = layout::draft(path)?;
            let made = self.write(&draft, content).and_then(|()| self.disk.link(&draft, path));
            let _rubbish = self.disk.remove(&draft);
            match made {
                Err(e) if has_no_links(&e) => self.write(path, content)?,
                made => made?,
            }
            self.disk.sync_dir(dir)
        })
    }

    fn renew(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        match File::options().write(true).open(path) {
            Ok(file) => file.set_modified(SystemTime::now()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => self.create(path, content),
            Err(e) => Err(e),
        }
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.disk.remove(path)
    }

    fn give_up(&self, path: &Path) -> io::Result<()> {
        self.disk.remove(path)
    }

    fn settle(&self, dir: &Path) -> io::Result<()> {
        self.disk.sync_dir(dir)
    }

    fn discard(&self, files: &[PathBuf], dirs: &[PathBuf]) -> io::Result<()> {
        files.iter().try_for_each(|file| self.disk.remove(file))?;
        let mut last = None;
        for dir in dirs {
            last = Some(dir.as_path());
            // Another agent's segment keeps the folder, which is no error; that agent removes it later.
            if fs::remove_dir(dir).is_err() {
                break;
            }
            last = Some(self.dir_of(dir));
        }
        match last.map_or(Ok(()), |dir| self.disk.sync_dir(dir)) {
            // Another agent has removed it: that is what it syncs.
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }

    fn remove_segment(&self, path: &Path) -> io::Result<()> {
        self.disk.remove(path)
    }

    fn measure(&self, segment: &Path) -> io::Result<Option<Measured>> {
        match fs::metadata(segment) {
            Ok(found) => Ok(Some(Measured { files: 1, bytes: found.len(), modified: found.modified()? })),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn segment(&self, path: &Path) -> Result<Option<Segment>> {
        // Of a file that is opened, as a network's file system may remember what it was before.
        match File::open(path).and_then(|file| file.metadata()) {
            Ok(found) => Ok(Some(Segment { path: path.to_owned(), ends: Arc::new([found.len()]) })),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(Error::io(format!("reading segment {}", path.display()), &e)),
        }
    }

    fn scan(
        &self,
        segment: &Segment,
        end: Option<u64>,
        each: &mut dyn FnMut(Piece) -> Result<()>,
    ) -> Result<bool> {
        let path = segment.path.clone();
        let raw = match self.reader(segment) {
            // An agent removed it, with its epoch, since it was looked at.
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
            raw => raw.map_err(|e| Error::io(format!("opening segment {}", path.display()), &e))?,
        };
        each(Piece { path, base: 0, len: end.unwrap_or(segment.len()), raw, is_whole: end.is_some() })?;
        Ok(true)
    }

    fn reader(&self, segment: &Segment) -> io::Result<Arc<dyn RawFile>> {
        Ok(Arc::new(File::open(&segment.path)?))
    }

    fn stream(&self, path: &Path, bytes: Range<u64>) -> io::Result<Box<dyn Read + Send>> {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::Start(bytes.start))?;
        Ok(Box::new(file.take(bytes.end.saturating_sub(bytes.start))))
    }

    fn fill(&self, path: &Path, writer: &str) -> io::Result<Box<dyn Filling>> {
        let dir = self.dir_of(path);
        let unfinished = dir.join(format!("{writer}.{UNFINISHED}"));
        let raw = self.in_dir(dir, || self.disk.create(&unfinished, 0o666))?;
        let (disk, path) = (Arc::clone(&self.disk), path.to_owned());
        Ok(Box::new(Unfinished { disk, unfinished, path, raw, end: 0, is_done: false }))
    }

    fn gather(&self, dir: &Path, number: u64) -> io::Result<Box<dyn Gathering>> {
        Ok(Box::new(Gathered::create(Arc::clone(&self.disk), dir, number)?))
    }

    fn begin(&self, path: &Path, header: Vec<u8>) -> io::Result<Box<dyn Sink>> {
        let raw = self.in_dir(self.dir_of(path), || match self.disk.create(path, 0o666) {
            // The name is this agent's alone: it dropped the file, and could not remove it.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                self.disk.remove(path)?;
                self.disk.create(path, 0o666)
            }
            created => created,
        })?;
        let (disk, dir) = (Arc::clone(&self.disk), self.dir_of(path).to_owned());
        Ok(Box::new(Growing { disk, dir, raw, header, end: 0, durable: 0, named: false }))
    }
}

/// A file that has no name yet.
struct Unfinished {
    disk: Arc<dyn FileSystem>,
    unfinished: PathBuf,
    path: PathBuf,
    raw: Arc<dyn RawFile>,
    end: u64,
    is_done: bool,
}

impl Filling for Unfinished {
    fn push(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.raw.write_at(&mut [IoSlice::new(bytes)], self.end)?;
        self.end += bytes.len() as u64;
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> io::Result<u64> {
        self.raw.sync()?;
        fs::rename(&self.unfinished, &self.path)?;
        self.is_done = true;
        self.path.parent().map_or(Ok(()), |dir| self.disk.sync_dir(dir))?;
        Ok(self.end)
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.is_done {
            let _rubbish = self.disk.remove(&self.unfinished);
        }
    }
}

/// A file that grows.
struct Growing {
    disk: Arc<dyn FileSystem>,
    dir: PathBuf,
    raw: Arc<dyn RawFile>,
    header: Vec<u8>,
    /// Bytes that are whole. What lies behind is of a failed write.
    end: u64,
    /// Bytes that are on disk for certain.
    durable: u64,
    /// Whether the file's name is on disk.
    named: bool,
}

impl Sink for Growing {
    fn reader(&self) -> Arc<dyn RawFile> {
        Arc::clone(&self.raw)
    }

    fn write(&mut self, records: &[&Payload]) -> io::Result<Vec<u64>> {
        let last = records.len().saturating_sub(1);
        let frame = |(at, payload): (usize, &&Payload)| payload.frame(self.durable, at == last);
        let frames: Vec<_> = records.iter().enumerate().map(frame).collect();
        let mut pieces = Vec::with_capacity(1 + 3 * records.len());
        let mut at = self.end;
        if at == 0 {
            pieces.push(IoSlice::new(&self.header));
            at = self.header.len() as u64;
        }
        let mut places = Vec::with_capacity(records.len());
        for (payload, frame) in records.iter().zip(&frames) {
            places.push(at);
            at += (frame.len() + payload.len()) as u64;
            pieces.extend([IoSlice::new(frame), IoSlice::new(&payload.meta), IoSlice::new(&payload.block)]);
        }
        self.raw.write_at(&mut pieces, self.end)?;
        self.end = at;
        Ok(places)
    }

    fn cut(&mut self) -> io::Result<()> {
        self.raw.set_len(self.end)
    }

    fn sync(&mut self) -> io::Result<u64> {
        self.raw.sync()?;
        if !self.named {
            // A file whose name is not on disk is gone after a power failure, synced or not.
            self.disk.sync_dir(&self.dir)?;
            self.named = true;
        }
        self.durable = self.end;
        Ok(0)
    }

    // After a failed fsync the kernel has dropped the pages and calls the file clean: a second
    // one succeeds without writing them (Rebello et al., "Can Applications Recover from fsync
    // Failures?", ATC 2020). Only a new process that reads the file can know what is there.
    fn ends_with_a_failed_sync(&self) -> bool {
        true
    }
}
