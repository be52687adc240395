//! State that lies in files, to be looked at: in a savepoint, or in a checkpoint.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::ops::RangeInclusive;
use std::sync::Arc;

use bytes::Bytes;

use super::location::Location;
use super::savepoint::{MANIFEST, Pages, Savepoint, uid_of};
use super::segment::store::Store;
use super::state::{StateFolder, found_states};
use crate::error::{Error, Result};
use crate::id::AgentId;
use crate::state::catalog::Catalog;
use crate::state::kept::{Chain, Survey};
use crate::state::table::{Shown, Table};
use crate::state::{Entry, EntryKey, Page, Range, RangeSet, StateId, StateStore, View};

/// Ranges of which what there is is counted at a time.
const PART: u8 = 32;
/// Bytes of entries that are made rows at a time, about.
const PAGE_BYTES: usize = 1 << 20;

/// All states in a folder.
pub struct Stored {
    /// Each of them.
    pub states: Vec<StoredState>,
    /// Folders of states of which nothing can be read, and why.
    pub problems: Vec<String>,
}

/// One state in a folder.
pub struct StoredState {
    /// Whose it is.
    pub id: StateId,
    /// Versions that can be read, older ones first.
    pub versions: Vec<u64>,
    source: Source,
}

enum Source {
    Savepoint { savepoint: Savepoint, place: usize },
    Folder { folder: StateFolder, survey: Survey },
}

impl Stored {
    /// Looks into a folder, or a prefix of an object store; `setting` is what named it.
    ///
    /// # Errors
    /// [`Error::Config`] if there is no state in it; as [`Savepoint::open`].
    pub fn open(location: impl Into<Location>, setting: &str) -> Result<Self> {
        Self::open_in(location.into().open(setting)?, setting)
    }

    /// As [`Self::open`], in what was opened.
    pub(in crate::edge::disk) fn open_in(store: Arc<dyn Store>, setting: &str) -> Result<Self> {
        let root = store.root().to_owned();
        let manifest = root.join(MANIFEST);
        let is_savepoint = match store.exists(&manifest) {
            Err(e) if e.kind() == io::ErrorKind::NotADirectory => false,
            found => found.map_err(|e| Error::io(format!("reading {}", manifest.display()), &e))?,
        };
        if is_savepoint {
            let savepoint = Savepoint::open_in(store, &root, setting)?;
            let states = savepoint.manifest().states.iter().enumerate().map(|(place, state)| StoredState {
                id: StateId {
                    query: savepoint.manifest().query.as_str().into(),
                    operator: state.operator.as_str().into(),
                },
                versions: vec![state.version],
                source: Source::Savepoint { savepoint: savepoint.clone(), place },
            });
            return Ok(Self { states: states.collect(), problems: Vec::new() });
        }
        let mut stored = Self { states: Vec::new(), problems: Vec::new() };
        for found in found_states(store.as_ref())? {
            match found {
                Ok(id) => {
                    let folder = StateFolder::new(Arc::clone(&store), AgentId(0));
                    let survey = folder.survey(&id)?;
                    let versions = survey.versions();
                    if versions.is_empty() {
                        stored
                            .problems
                            .push(format!("no version of the state {id} in {} is whole", folder.place(&id)));
                    }
                    stored.states.push(StoredState {
                        id,
                        versions,
                        source: Source::Folder { folder, survey },
                    });
                }
                Err(problem) => stored.problems.push(problem),
            }
        }
        if stored.states.is_empty() && stored.problems.is_empty() {
            return Err(Error::Config {
                setting: setting.to_owned(),
                reason: format!(
                    "{} is neither a savepoint nor a checkpoint_dir with state in it",
                    root.display()
                ),
            });
        }
        Ok(stored)
    }

    /// The state of an operator by its uid; of the only query that has it, if none is named.
    ///
    /// # Errors
    /// [`Error::Config`] says what there is.
    pub fn find(&self, query: Option<&str>, uid: Option<&str>) -> Result<&StoredState> {
        let is_wanted = |state: &&StoredState| {
            query.is_none_or(|query| &*state.id.query == query)
                && uid.is_none_or(|uid| uid_of(&state.id.operator) == uid || &*state.id.operator == uid)
        };
        let mut found: Vec<&StoredState> = self.states.iter().filter(is_wanted).collect();
        if found.len() > 1 {
            // Several operators of one uid: the log of the first is called as all of them are.
            let exact: Vec<&StoredState> =
                found.iter().copied().filter(|state| Some(&*state.id.operator) == uid).collect();
            found = if exact.is_empty() { found } else { exact };
        }
        if let [only] = found.as_slice() {
            return Ok(only);
        }
        let what: BTreeSet<String> = self
            .states
            .iter()
            .map(|state| format!("operator {:?} of query {:?}", &*state.id.operator, &*state.id.query))
            .collect();
        let what: Vec<String> = what.into_iter().chain(self.problems.iter().cloned()).collect();
        let reason = match found.len() {
            0 => format!("there is no such state; there is {}", what.join(", ")),
            several => format!("{several} states are meant by that: there is {}", what.join(", ")),
        };
        Err(Error::Config { setting: "operator, query".into(), reason })
    }
}

impl StoredState {
    /// The name that the user gave the operator.
    #[must_use]
    pub fn uid(&self) -> &str {
        uid_of(&self.id.operator)
    }

    /// The version that was asked for, or the newest.
    ///
    /// # Errors
    /// [`Error::Config`] says which there are.
    pub fn version(&self, wanted: Option<u64>) -> Result<u64> {
        let found = match wanted {
            Some(wanted) => self.versions.iter().find(|version| **version == wanted),
            None => self.versions.last(),
        };
        found.copied().ok_or_else(|| {
            let versions: Vec<String> = self.versions.iter().map(u64::to_string).collect();
            let reason = match (versions.is_empty(), wanted) {
                (true, _) => format!("no version of the state {} is whole", self.id),
                (_, wanted) => format!(
                    "the state {} is there as epochs {} left it, and not as {} did",
                    self.id,
                    versions.join(", "),
                    wanted.map_or_else(String::new, |wanted| wanted.to_string())
                ),
            };
            Error::Config { setting: "batchId".into(), reason }
        })
    }

    /// What the operator's variables are in a version.
    ///
    /// # Errors
    /// [`Error::CorruptState`], [`Error::StateLost`] for files that are damaged.
    pub fn catalog(&self, version: u64) -> Result<Catalog> {
        let bytes = match &self.source {
            Source::Savepoint { savepoint, place } => savepoint.state(*place)?.catalog.clone(),
            Source::Folder { folder, survey } => {
                folder.catalog(&self.id, &self.chain(folder, survey, version)?)?
            }
        };
        Catalog::decode(&bytes)
    }

    fn chain(&self, folder: &StateFolder, survey: &Survey, version: u64) -> Result<Chain> {
        survey.chain(version, &RangeSet::ALL).map_err(|what| Error::StateLost {
            state: self.id.to_string(),
            what: format!("{what}, in {}", folder.place(&self.id)),
        })
    }

    /// What is shown of keys in some ranges.
    ///
    /// # Errors
    /// As [`Self::catalog`].
    pub fn rows(&self, version: u64, shown: Shown, ranges: RangeInclusive<u8>) -> Result<Rows> {
        let (catalog, input) = (self.catalog(version)?, self.input(version, ranges)?);
        Ok(Rows { input, catalog, shown, waiting: Vec::new(), is_over: false })
    }

    /// Pages of some ranges.
    fn input(&self, version: u64, ranges: RangeInclusive<u8>) -> Result<Input> {
        let hashes = u64::from(*ranges.start()) << 56..=u64::from(*ranges.end()) << 56 | (u64::MAX >> 8);
        Ok(match &self.source {
            Source::Savepoint { savepoint, place } => Input::Pages(savepoint.pages(*place, &hashes)?),
            Source::Folder { folder, survey } => {
                let wanted: RangeSet = ranges.map(Range).collect();
                let chain = survey.chain(version, &wanted).map_err(|what| Error::StateLost {
                    state: self.id.to_string(),
                    what: format!("{what}, in {}", folder.place(&self.id)),
                })?;
                let mut views = VecDeque::new();
                for (base, ranges) in chain.by_base() {
                    let view = folder.rebuild(&self.id, &chain, (base, &ranges), StateStore::new())?;
                    ranges.iter().for_each(|range| views.push_back((range, view.clone())));
                }
                Input::Views { views, from: None }
            }
        })
    }
}

enum Input {
    Pages(Pages),
    Views { views: VecDeque<(Range, View)>, from: Option<EntryKey> },
}

impl Input {
    fn next(&mut self) -> Result<Option<Page>> {
        match self {
            Self::Pages(pages) => pages.next(),
            Self::Views { views, from } => {
                let Some((range, view)) = views.front() else { return Ok(None) };
                let page = view.page(*range, from.as_ref(), PAGE_BYTES)?;
                from.clone_from(&page.next);
                if from.is_none() {
                    views.pop_front();
                }
                Ok(Some(page))
            }
        }
    }
}

/// Rows of a state, some keys at a time.
pub struct Rows {
    input: Input,
    catalog: Catalog,
    shown: Shown,
    /// Entries of keys of which there may be more.
    waiting: Vec<Entry>,
    is_over: bool,
}

impl Rows {
    /// Some more keys; none at the end.
    ///
    /// # Errors
    /// Whatever is wrong with the files.
    #[expect(clippy::should_implement_trait, reason = "an iterator would hide that it fails")]
    pub fn next(&mut self) -> Result<Option<Table>> {
        while !self.is_over {
            match self.input.next()? {
                Some(page) => {
                    for entry in page.entries.iter() {
                        let entry = entry?;
                        if entry.key.slot() == self.shown.slot() {
                            self.waiting.push(entry);
                        }
                    }
                }
                None => self.is_over = true,
            }
            let whole = if self.is_over { self.waiting.len() } else { self.whole() };
            if whole > 0 {
                let rest = self.waiting.split_off(whole);
                let entries = std::mem::replace(&mut self.waiting, rest);
                return self.shown.table(&self.catalog, &entries).map(Some);
            }
        }
        Ok(None)
    }

    /// How many entries are of keys that have no more.
    fn whole(&self) -> usize {
        let Some(last) = self.waiting.last().map(|entry| entry.key.prefix()) else { return 0 };
        self.waiting.partition_point(|entry| entry.key.prefix() < last)
    }
}

/// Figures of a state, for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct Figures {
    /// Keys that have something.
    pub keys: u64,
    /// Bytes of all entries.
    pub bytes: u64,
    /// Entries, but for timers.
    pub entries: u64,
    /// Timers.
    pub timers: u64,
}

impl StoredState {
    /// Reads all of a version, and counts.
    ///
    /// # Errors
    /// Whatever is wrong with the files.
    pub fn figures(&self, version: u64) -> Result<Figures> {
        let mut figures = Figures::default();
        // A part at a time: what lies in a checkpoint folder is put together in memory.
        for first in (0..=u8::MAX).step_by(PART.into()) {
            let mut input = self.input(version, first..=first + (PART - 1))?;
            let mut last: Option<Bytes> = None;
            while let Some(page) = input.next()? {
                figures.bytes += page.entries.as_bytes().len() as u64;
                for entry in page.entries.iter() {
                    let key = entry?.key;
                    let is_timer = key.expiry_ms().is_some();
                    figures.timers += u64::from(is_timer);
                    figures.entries += u64::from(!is_timer);
                    let prefix = key.prefix().as_bytes().clone();
                    if last.as_ref() != Some(&prefix) {
                        figures.keys += 1;
                        last = Some(prefix);
                    }
                }
            }
        }
        Ok(figures)
    }

    /// Where its files are, for people.
    #[must_use]
    pub fn place(&self) -> String {
        match &self.source {
            Source::Savepoint { .. } => "savepoint".to_owned(),
            Source::Folder { folder, .. } => folder.place(&self.id),
        }
    }
}
