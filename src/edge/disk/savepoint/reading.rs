//! Reading a savepoint: its manifest at once, its pages by range.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, BufReader, Seek, SeekFrom};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

use super::manifest::{Manifest, SavedRange, SavedState, VERSION, Wrong};
use super::{MANIFEST, file_name};
use crate::edge::disk::state::pages::read_page;
use crate::error::{Error, Result};
use crate::state::starting::Origin;
use crate::state::{Entries, EntriesBuilder, Page, Range, Version};

/// A savepoint in its folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Savepoint {
    path: PathBuf,
    manifest: Manifest,
    mark: u64,
}

impl Savepoint {
    /// Looks into a folder; `setting` is what said that there is a savepoint.
    ///
    /// # Errors
    /// [`Error::Config`] if there is none; [`Error::CorruptState`] if its manifest is damaged, or a file is not as
    /// long as it was; [`Error::UnsupportedVersion`].
    pub fn open(path: &Path, setting: &str) -> Result<Self> {
        let file = path.join(MANIFEST);
        let bytes = fs::read(&file).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Error::Config {
                setting: setting.to_owned(),
                reason: format!("{} is no savepoint: {}", path.display(), what_is_there(path)),
            },
            _ => Error::io(format!("reading {}", file.display()), &e),
        })?;
        let manifest = Manifest::decode(&bytes).map_err(|wrong| match wrong {
            Wrong::Version(found) => Error::UnsupportedVersion {
                what: format!("the savepoint {}", path.display()),
                found: found.into(),
                known: VERSION.into(),
            },
            Wrong::Damaged(why) => damaged(&file, &why),
        })?;
        let savepoint = Self { path: path.to_owned(), manifest, mark: xxh3_64(&bytes) };
        for (place, state) in savepoint.manifest.states.iter().enumerate() {
            savepoint.check_length(place, state)?;
        }
        Ok(savepoint)
    }

    fn check_length(&self, place: usize, state: &SavedState) -> Result<()> {
        let path = self.path.join(file_name(place));
        match fs::metadata(&path) {
            Ok(found) if found.len() == state.bytes => Ok(()),
            Ok(found) => Err(damaged(
                &path,
                &format!("it has {} bytes, of {} that were written", found.len(), state.bytes),
            )),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Err(damaged(&path, "it is gone")),
            Err(e) => Err(Error::io(format!("reading {}", path.display()), &e)),
        }
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
    /// As [`Self::state`]; [`Error::CorruptState`] if the file is gone.
    pub fn pages(&self, place: usize, hashes: &RangeInclusive<u64>) -> Result<Pages> {
        let state = self.state(place)?;
        let path = self.path.join(file_name(place));
        let file = File::open(&path).map_err(|e| damaged(&path, &e.to_string()))?;
        let wanted = Range::of(*hashes.start())..=Range::of(*hashes.end());
        let ranges = state.ranges.iter().filter(|saved| !hashes.is_empty() && wanted.contains(&saved.range));
        Ok(Pages {
            path,
            file: BufReader::with_capacity(1 << 18, file),
            version: Version(Some(state.version)),
            catalog: state.catalog.clone(),
            ranges: ranges.copied().collect(),
            at: None,
        })
    }

    /// Reads all of it, to see whether it is whole.
    ///
    /// # Errors
    /// [`Error::CorruptState`].
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
#[derive(Debug)]
pub struct Pages {
    path: PathBuf,
    file: BufReader<File>,
    version: Version,
    catalog: Bytes,
    ranges: VecDeque<SavedRange>,
    /// Where in the first of them the file is.
    at: Option<u64>,
}

impl Pages {
    /// The next one.
    ///
    /// # Errors
    /// [`Error::CorruptState`] names the file and where in it.
    #[expect(clippy::should_implement_trait, reason = "an iterator would hide that it fails")]
    pub fn next(&mut self) -> Result<Option<Page>> {
        let Some(saved) = self.ranges.front().copied() else { return Ok(None) };
        let at = match self.at {
            Some(at) => at,
            None => {
                let sought = self.file.seek(SeekFrom::Start(saved.at));
                sought.map_err(|e| damaged(&self.path, &e.to_string()))?
            }
        };
        let wrong = |why: &str| damaged(&self.path, &format!("at byte {at}, {why}"));
        let page = read_page(&mut self.file, self.version, &self.catalog);
        let page = page.map_err(|e| wrong(&e.to_string()))?;
        let page =
            page.filter(|page| page.range == saved.range).ok_or_else(|| wrong("another range begins"))?;
        let next = self.file.stream_position().map_err(|e| wrong(&e.to_string()))?;
        match next.cmp(&(saved.at + saved.bytes)) {
            std::cmp::Ordering::Less => self.at = Some(next),
            std::cmp::Ordering::Equal => {
                self.ranges.pop_front();
                self.at = None;
            }
            std::cmp::Ordering::Greater => return Err(wrong("a page goes on behind its range")),
        }
        Ok(Some(page))
    }
}

/// What a savepoint holds of an operator in one partition: a task begins with that. The folder is looked into when it is
/// asked for: once something was committed, it may be gone.
#[derive(Debug)]
pub struct SavedPartition {
    path: PathBuf,
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
        path: &Path,
        uid: &str,
        setting: &'static str,
        hashes: RangeInclusive<u64>,
        mark: u64,
    ) -> Self {
        Self { path: path.to_owned(), uid: uid.to_owned(), setting, hashes, mark, opened: None }
    }

    fn open(&mut self) -> Result<&(Savepoint, usize)> {
        let opened = match self.opened.take() {
            Some(opened) => opened,
            None => {
                let savepoint = Savepoint::open(&self.path, self.setting)?;
                if savepoint.mark() != self.mark {
                    return Err(Error::Config {
                        setting: self.setting.to_owned(),
                        reason: format!(
                            "{} is another savepoint than the one with which the query was started: start it again, \
                             with a new checkpointLocation if none of its batches was committed",
                            self.path.display()
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
fn what_is_there(path: &Path) -> String {
    let Ok(entries) = fs::read_dir(path) else {
        return match fs::metadata(path) {
            Ok(_) => "it is no folder".to_owned(),
            Err(_) => "there is nothing".to_owned(),
        };
    };
    let mut names: Vec<String> =
        entries.flatten().take(8).map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    match names.as_slice() {
        [] => "the folder is empty".to_owned(),
        names => format!("in the folder there is {}", names.join(", ")),
    }
}

fn damaged(path: &Path, why: &str) -> Error {
    Error::CorruptState { reason: format!("{} of a savepoint cannot be read: {why}", path.display()) }
}
