//! Reading a savepoint: its manifest at once, its pages by range.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, BufReader, Read};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

use super::manifest::{Manifest, SavedRange, SavedState, VERSION, Wrong};
use super::{MANIFEST, file_name};
use crate::edge::disk::location::Location;
use crate::edge::disk::segment::store::Store;
use crate::edge::disk::state::pages::read_page;
use crate::error::{Error, Result};
use crate::state::starting::Origin;
use crate::state::{Entries, EntriesBuilder, Page, Range, Version};

/// Names that are told of what lies where no savepoint is.
const NAMES: usize = 8;
/// Bytes that are read ahead.
const BUFFER_BYTES: usize = 1 << 18;

/// A savepoint in its folder.
#[derive(Debug, Clone)]
pub struct Savepoint {
    store: Arc<dyn Store>,
    path: PathBuf,
    manifest: Manifest,
    /// What names of its files begin with.
    number: Option<u64>,
    mark: u64,
}

impl Savepoint {
    /// Looks into a folder; `setting` is what said that there is a savepoint.
    ///
    /// # Errors
    /// [`Error::Config`] if there is none; [`Error::CorruptState`] if its manifest is damaged, or a file is not as
    /// long as it was; [`Error::UnsupportedVersion`]; [`Error::Io`].
    pub fn open(location: impl Into<Location>, setting: &str) -> Result<Self> {
        let store = location.into().open(setting)?;
        let path = store.root().to_owned();
        Self::open_in(store, &path, setting)
    }

    /// As [`Self::open`], in what was opened.
    pub(in crate::edge::disk) fn open_in(store: Arc<dyn Store>, path: &Path, setting: &str) -> Result<Self> {
        let file = path.join(MANIFEST);
        let bytes = store.read(&file).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Error::Config {
                setting: setting.to_owned(),
                reason: format!(
                    "{} is no savepoint: {}",
                    path.display(),
                    what_is_there(store.as_ref(), path)
                ),
            },
            _ => Error::io(format!("reading {}", file.display()), &e),
        })?;
        let (manifest, number) = Manifest::decode(&bytes).map_err(|wrong| match wrong {
            Wrong::Version(found) => Error::UnsupportedVersion {
                what: format!("the savepoint {}", path.display()),
                found: found.into(),
                known: VERSION.into(),
            },
            Wrong::Damaged(why) => damaged(&file, &why),
        })?;
        let savepoint = Self { store, path: path.to_owned(), manifest, number, mark: xxh3_64(&bytes) };
        for (place, state) in savepoint.manifest.states.iter().enumerate() {
            savepoint.check_length(place, state)?;
        }
        Ok(savepoint)
    }

    fn check_length(&self, place: usize, state: &SavedState) -> Result<()> {
        let path = self.file(place);
        match self.store.size(&path) {
            Ok(found) if found == state.bytes => Ok(()),
            Ok(found) => {
                Err(damaged(&path, &format!("it has {found} bytes, of {} that were written", state.bytes)))
            }
            Err(e) => Err(unread(&path, &e, "")),
        }
    }

    fn file(&self, place: usize) -> PathBuf {
        self.path.join(file_name(self.number, place))
    }

    /// What is in it.
    #[must_use]
    pub const fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Tells this savepoint from any other.
    #[must_use]
    pub const fn mark(&self) -> u64 {
        self.mark
    }

    /// The state of the operator with this uid: its place in the manifest.
    ///
    /// # Errors
    /// [`Error::Config`] says what there is instead.
    pub fn find(&self, uid: &str, setting: &str) -> Result<usize> {
        self.manifest.find(uid).map_err(|what| Error::Config {
            setting: setting.to_owned(),
            reason: format!("{}: {what}", self.path.display()),
        })
    }

    /// A state by its place.
    ///
    /// # Errors
    /// [`Error::Misuse`] if there is none.
    pub fn state(&self, place: usize) -> Result<&SavedState> {
        let missing =
            || Error::Misuse { what: format!("state {place} of savepoint {}", self.path.display()) };
        self.manifest.states.get(place).ok_or_else(missing)
    }

    /// Pages of the ranges of a state in which keys with such hashes are, in order.
    ///
    /// # Errors
    /// As [`Self::state`]; [`Error::CorruptState`] if the file is gone; [`Error::Io`].
    pub fn pages(&self, place: usize, hashes: &RangeInclusive<u64>) -> Result<Pages> {
        let (state, path) = (self.state(place)?, self.file(place));
        let wanted = Range::of(*hashes.start())..=Range::of(*hashes.end());
        let ranges = state.ranges.iter().filter(|saved| !hashes.is_empty() && wanted.contains(&saved.range));
        let ranges: VecDeque<SavedRange> = ranges.copied().collect();
        let at = ranges.front().map_or(0, |first| first.at);
        // No more is asked for than these ranges are, which stand one behind the other.
        let end = ranges.back().map_or(at, |last| last.at + last.bytes);
        let file = self.store.stream(&path, at..end).map_err(|e| unread(&path, &e, ""))?;
        Ok(Pages {
            path,
            file: BufReader::with_capacity(BUFFER_BYTES, file),
            version: Version(Some(state.version)),
            catalog: state.catalog.clone(),
            ranges,
            at,
        })
    }

    /// Reads all of it, to see whether it is whole.
    ///
    /// # Errors
    /// [`Error::CorruptState`]; [`Error::Io`].
    pub fn check(&self) -> Result<()> {
        for place in 0..self.manifest.states.len() {
            let mut pages = self.pages(place, &(0..=u64::MAX))?;
            while let Some(page) = pages.next()? {
                page.entries
                    .iter()
                    .try_for_each(|entry| entry.map(drop))
                    .map_err(|error| damaged(&pages.path, &error.to_string()))?;
            }
        }
        Ok(())
    }
}

/// Pages of some ranges, one after the other.
pub struct Pages {
    path: PathBuf,
    file: BufReader<Box<dyn Read + Send>>,
    version: Version,
    catalog: Bytes,
    ranges: VecDeque<SavedRange>,
    /// Where in the file the next page begins.
    at: u64,
}

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pages").field("path", &self.path).field("at", &self.at).finish_non_exhaustive()
    }
}

impl Pages {
    /// The next one.
    ///
    /// # Errors
    /// [`Error::CorruptState`] names the file and where in it; [`Error::Io`].
    #[expect(clippy::should_implement_trait, reason = "an iterator would hide that it fails")]
    pub fn next(&mut self) -> Result<Option<Page>> {
        let Some(saved) = self.ranges.front().copied() else { return Ok(None) };
        let (at, end) = (self.at, saved.at + saved.bytes);
        let wrong = |why: &str| damaged(&self.path, &format!("at byte {at}, {why}"));
        if !(saved.at..end).contains(&at) {
            return Err(wrong("another range begins"));
        }
        let mut counted = Counted { file: &mut self.file, at: &mut self.at };
        let page = match read_page(&mut counted, self.version, &self.catalog) {
            // No more is read than the ranges that are wanted.
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof && self.at >= end => {
                return Err(wrong("a page goes on behind its range"));
            }
            page => page.map_err(|e| unread(&self.path, &e, &format!("at byte {at}, ")))?,
        };
        let page =
            page.filter(|page| page.range == saved.range).ok_or_else(|| wrong("another range begins"))?;
        match self.at.cmp(&end) {
            std::cmp::Ordering::Less => {}
            std::cmp::Ordering::Equal => drop(self.ranges.pop_front()),
            std::cmp::Ordering::Greater => return Err(wrong("a page goes on behind its range")),
        }
        Ok(Some(page))
    }
}

/// A file of which is known how much was read.
struct Counted<'a> {
    file: &'a mut BufReader<Box<dyn Read + Send>>,
    at: &'a mut u64,
}

impl Read for Counted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        *self.at += read as u64;
        Ok(read)
    }
}

/// What a savepoint holds of an operator in one partition: a task begins with that. The folder is looked into when it is
/// asked for: once something was committed, it may be gone.
#[derive(Debug)]
pub struct SavedPartition {
    location: Location,
    uid: String,
    setting: &'static str,
    hashes: RangeInclusive<u64>,
    mark: u64,
    opened: Option<(Savepoint, usize)>,
}

impl SavedPartition {
    /// That of the operator with this uid, of keys with such hashes, in the savepoint with this mark: all tasks read one.
    #[must_use]
    pub fn new(
        location: impl Into<Location>,
        uid: &str,
        setting: &'static str,
        hashes: RangeInclusive<u64>,
        mark: u64,
    ) -> Self {
        Self { location: location.into(), uid: uid.to_owned(), setting, hashes, mark, opened: None }
    }

    fn open(&mut self) -> Result<&(Savepoint, usize)> {
        let opened = match self.opened.take() {
            Some(opened) => opened,
            None => {
                let savepoint = Savepoint::open(self.location.clone(), self.setting)?;
                if savepoint.mark() != self.mark {
                    return Err(Error::Config {
                        setting: self.setting.to_owned(),
                        reason: format!(
                            "{} is another savepoint than the one with which the query was started: start it again, \
                             with a new checkpointLocation if none of its batches was committed",
                            self.location
                        ),
                    });
                }
                let place = savepoint.find(&self.uid, self.setting)?;
                (savepoint, place)
            }
        };
        Ok(self.opened.insert(opened))
    }
}

impl Origin for SavedPartition {
    fn catalog(&mut self) -> Result<Bytes> {
        let (savepoint, place) = self.open()?;
        Ok(savepoint.state(*place)?.catalog.clone())
    }

    fn entries(&mut self) -> Result<Vec<Entries>> {
        let hashes = self.hashes.clone();
        let (savepoint, place) = self.open()?;
        let mut pages = savepoint.pages(*place, &hashes)?;
        let mut all = Vec::new();
        while let Some(page) = pages.next()? {
            all.push(
                within(&page.entries, &hashes).map_err(|error| damaged(&pages.path, &error.to_string()))?,
            );
        }
        Ok(all)
    }
}

/// Entries of keys with such hashes: a range may be of several partitions.
///
/// # Errors
/// [`Error::CorruptState`] for entries that make no sense.
pub fn within(entries: &Entries, hashes: &RangeInclusive<u64>) -> Result<Entries> {
    let is_within = |range: u8| {
        let first = u64::from(range) << 56;
        hashes.contains(&first) && hashes.contains(&(first | u64::MAX >> 8))
    };
    if entries.as_bytes().is_empty() {
        return Ok(entries.clone());
    }
    let mut kept = EntriesBuilder::new();
    let mut is_whole = None;
    for entry in entries.iter() {
        let entry = entry?;
        let whole = *is_whole.get_or_insert_with(|| is_within(Range::of(entry.key.hash()).0));
        if whole {
            return Ok(entries.clone());
        }
        if hashes.contains(&entry.key.hash()) {
            kept.push(&entry.key, &entry.op);
        }
    }
    Ok(kept.finish())
}

/// What is at a path where no savepoint is.
fn what_is_there(store: &dyn Store, path: &Path) -> String {
    let entries = match store.entries(path) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotADirectory => return "it is no folder".to_owned(),
        Err(e) => return e.to_string(),
    };
    let names = entries.iter().filter_map(|entry| Some(entry.path.file_name()?.to_string_lossy()));
    let names: Vec<_> = names.take(NAMES).collect();
    match names.as_slice() {
        [] => "there is nothing".to_owned(),
        names => format!("there is {}", names.join(", ")),
    }
}

/// A store that is away has what it had: only what is gone, or cut off, or not what was written is damaged.
fn unread(path: &Path, error: &io::Error, place: &str) -> Error {
    match error.kind() {
        io::ErrorKind::NotFound => damaged(path, "it is gone"),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData => {
            damaged(path, &format!("{place}{error}"))
        }
        _ => Error::io(format!("reading {}", path.display()), error),
    }
}

fn damaged(path: &Path, why: &str) -> Error {
    Error::CorruptState { reason: format!("{} of a savepoint cannot be read: {why}", path.display()) }
}
