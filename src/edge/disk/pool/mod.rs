//! Recorded rows of many logs, found by their fingerprints: for tasks whose rows may be in any of them.
//!
//! They may be more than memory holds, so all but a few bytes per page is on disk, without a name, out of the
//! budget of the spill folder. Two kinds of files: the values, row by row and in no order, each preceded by the
//! number of its type; and where they stand, as sorted runs that are merged into one.
//!
//! ```text
//! blocks of logs --add--> values   type u16 | a row, as Arrow's row format has it
//!                         entries  fingerprint, log, offset, length, hash of the value
//!                                  --sort--> runs --settle--> one run --> Rows, which tasks ask
//! ```

mod count;
mod rows;
mod run;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use arrow_array::ArrayRef;
use arrow_row::{RowConverter, RowParser, SortField};
use arrow_schema::DataType;
use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

use self::count::{Count, Orphans};
use self::rows::Numbers;
pub(in crate::edge) use self::rows::Rows;
use self::run::{Entry, Merge, Role, Run};
use super::spill::{Scratch, SpillDir};
use crate::agent::registry::first_part;
use crate::determinant::{
    BlockBuilder, BlockReader, Determinant, decode_results, marks as read_marks, row_numbers,
};
use crate::error::{Error, Result};
use crate::id::{LogOffset, TaskId};
use crate::task::{TaskMode, columns_of_mark, marked_key};

/// Entries that are sorted in memory: a megabyte of them.
const SORTED_MAX: usize = if cfg!(test) { 64 } else { 1 << 15 };
/// Rows of a block that are taken out of it at a time.
const ROWS_AT_ONCE: usize = if cfg!(test) { 16 } else { 1 << 10 };
/// Runs of one size that are merged, so that each entry is written a few times at most.
const RUNS: usize = if cfg!(test) { 3 } else { 32 };
/// Bytes before a row.
const KIND: usize = 2;

/// A type of values.
struct Kind {
    converter: RowConverter,
    parser: RowParser,
    data_type: DataType,
}

/// One of the logs.
struct Log {
    /// How much of it was added.
    end: LogOffset,
    /// The last header of each Python version and mode, as places in `Builder::headers`.
    headers: Vec<usize>,
    /// Whether it is of another grammar: whoever reads its header refuses it.
    is_foreign: bool,
}

/// What a log may begin with, or go on with.
struct Header {
    block: Bytes,
    mode: u8,
    python: String,
}

/// Takes logs in.
pub(in crate::edge) struct Builder {
    dir: Arc<SpillDir>,
    logs: Vec<Log>,
    numbers: HashMap<TaskId, u32>,
    /// All that were met.
    headers: Vec<Header>,
    kinds: Vec<Arc<Kind>>,
    /// Of which columns marks are.
    columns: BTreeSet<u64>,
    /// Rows of all that are no copies.
    count: Count,
    /// How many rows have but copies, where that was counted since the last block was added.
    orphans: Option<u64>,
    counting: Option<Orphans>,
    /// Whose tasks ask, so that what they take of each other's logs is a copy.
    operator: String,
    values: Arc<Scratch>,
    entries: Vec<Entry>,
    /// With how often their entries were merged.
    runs: Vec<(u32, Arc<Run>)>,
    merging: Option<Merging>,
}

/// A merge of the runs of a level and those below it.
struct Merging {
    level: u32,
    runs: usize,
    merge: Merge,
}

impl Builder {
    pub(in crate::edge::disk) fn new(dir: &Arc<SpillDir>) -> Result<Self> {
        Ok(Self {
            dir: Arc::clone(dir),
            logs: Vec::new(),
            numbers: HashMap::new(),
            headers: Vec::new(),
            kinds: Vec::new(),
            columns: BTreeSet::new(),
            count: Count::default(),
            orphans: None,
            counting: None,
            operator: String::new(),
            values: Arc::new(Scratch::create(dir)?),
            entries: Vec::new(),
            runs: Vec::new(),
            merging: None,
        })
    }

    /// The same for tasks of an operator.
    pub(in crate::edge) fn of(mut self, operator: &str) -> Self {
        first_part(operator).clone_into(&mut self.operator);
        self
    }

    /// How much of a log was added.
    pub(in crate::edge) fn end_of(&self, task: &TaskId) -> LogOffset {
        let log = self.numbers.get(task).and_then(|number| self.logs.get(*number as usize));
        log.map_or(LogOffset::START, |log| log.end)
    }

    /// Adds the next block of a log, once all is [tidy](Self::tidy). After an error nothing of it was added.
    ///
    /// # Errors
    /// Damaged blocks; [`Error::Arrow`] for a type that cannot be cut into rows; [`Error::DiskBudget`],
    /// [`Error::DiskFull`], [`Error::Io`].
    pub(in crate::edge) fn add(&mut self, task: &TaskId, block: &Bytes) -> Result<()> {
        (self.orphans, self.counting) = (None, None);
        let number = self.number(task);
        let at = number as usize;
        let known = self.logs.get(at).map(|log| (log.headers.clone(), log.is_foreign));
        let (mut headers, mut is_foreign) = known.unwrap_or_default();
        let (before, values_before, count) = (self.entries.len(), self.values.end(), self.count);
        if let Err(error) = self.read(number, block, &mut headers, &mut is_foreign) {
            self.entries.truncate(before);
            self.count = count;
            self.values.cut(values_before);
            return Err(error);
        }
        if let Some(log) = self.logs.get_mut(at) {
            (log.headers, log.is_foreign) = (headers, is_foreign);
            log.end = log.end.plus(block.len() as u64);
        }
        Ok(())
    }

    fn number(&mut self, task: &TaskId) -> u32 {
        if let Some(number) = self.numbers.get(task) {
            return *number;
        }
        let number = u32::try_from(self.logs.len()).unwrap_or(u32::MAX);
        self.logs.push(Log { end: LogOffset::START, headers: Vec::new(), is_foreign: false });
        self.numbers.insert(task.clone(), number);
        number
    }

    fn read(
        &mut self,
        log: u32,
        block: &Bytes,
        headers: &mut Vec<usize>,
        is_foreign: &mut bool,
    ) -> Result<()> {
        let (mut marked, mut copies, mut of_uses) = (None, Vec::new(), Vec::new());
        for determinant in BlockReader::new(block)? {
            if *is_foreign {
                return Ok(());
            }
            match determinant? {
                header @ Determinant::Header { mode, python, .. } => {
                    *is_foreign = mode != TaskMode::Result.code();
                    let place = self.header(&header, mode, python)?;
                    let of =
                        |place: &usize| self.headers.get(*place).map(|known| (known.mode, &*known.python));
                    headers.retain(|known| of(known) != Some((mode, python)));
                    headers.push(place);
                }
                _ if headers.is_empty() => {
                    return Err(Error::CorruptLog { what: "a log without a header".to_owned() });
                }
                Determinant::Results { fingerprints, arrow } => {
                    let mut numbers = Vec::new();
                    fingerprints.extend_into(&mut numbers);
                    let values = decode_results(arrow)?;
                    if values.len() != numbers.len() {
                        let what = format!("{} fingerprints but {} results", numbers.len(), values.len());
                        return Err(Error::CorruptLog { what });
                    }
                    let roles =
                        roles(numbers.len(), std::mem::take(&mut copies), std::mem::take(&mut of_uses));
                    let of = |role| roles.iter().filter(|of| **of == role).count();
                    self.count.add(numbers.len(), of(Role::Copy), of(Role::OfOtherUse));
                    let marks: Vec<u64> = marked.take().unwrap_or_default();
                    for (first, numbers) in (0..).step_by(ROWS_AT_ONCE).zip(numbers.chunks(ROWS_AT_ONCE)) {
                        let marks = marks.get(first..).unwrap_or_default();
                        let roles = roles.get(first..).unwrap_or_default();
                        self.add_rows(log, numbers, marks, roles, &values.slice(first, numbers.len()))?;
                    }
                }
                Determinant::Marks { marks } => marked = Some(read_marks(marks)?),
                Determinant::Copies { places } => copies = row_numbers(places)?,
                Determinant::OfOtherUses { places } => of_uses = row_numbers(places)?,
                // Where rows came in their partition tells a task nothing that reads another.
                Determinant::Rows { .. } | Determinant::Choice { .. } | Determinant::EpochMark => {}
                other => return Err(Error::CorruptLog { what: format!("{other:?} in a log of results") }),
            }
        }
        Ok(())
    }

    /// Place of a header among those that were met: there are few.
    fn header(&mut self, header: &Determinant<'_>, mode: u8, python: &str) -> Result<usize> {
        let mut builder = BlockBuilder::new();
        builder.push(header)?;
        let block = builder.finish();
        if let Some(place) = self.headers.iter().position(|known| known.block == block) {
            return Ok(place);
        }
        self.headers.push(Header { block, mode, python: python.to_owned() });
        Ok(self.headers.len() - 1)
    }

    /// Adds some rows, to be found by their arguments, and those that have marks also by both.
    fn add_rows(
        &mut self,
        log: u32,
        fingerprints: &[u64],
        marks: &[u64],
        roles: &[Role],
        values: &ArrayRef,
    ) -> Result<()> {
        let (number, kind) = self.kind(values.data_type())?;
        let rows = kind.converter.convert_columns(std::slice::from_ref(values))?;
        let mut bytes = Vec::with_capacity(rows.size() + KIND * fingerprints.len());
        let before = self.entries.len();
        let marks = marks.iter().copied().chain(std::iter::repeat(0)).take(fingerprints.len());
        let mut columns: Vec<u64> = marks.clone().map(columns_of_mark).collect();
        columns.dedup();
        self.columns.extend(columns);
        let roles = roles.iter().copied().chain(std::iter::repeat(Role::Original));
        for (((&fingerprint, mark), role), row) in fingerprints.iter().zip(marks).zip(roles).zip(rows.iter())
        {
            let start = bytes.len();
            bytes.extend(number.to_le_bytes());
            bytes.extend(row.as_ref());
            let row = bytes.get(start..).unwrap_or_default();
            let len = u32::try_from(row.len()).map_err(|_| Error::Misuse {
                what: "a value of more than 4 GiB cannot be found again".to_owned(),
            })?;
            let value = xxh3_64(row);
            let entry = Entry { fingerprint, log, offset: start as u64, len, value, role };
            self.entries.push(entry);
            let key = marked_key(fingerprint, mark);
            if key != fingerprint {
                self.entries.push(Entry { fingerprint: key, role: Role::Marked, ..entry });
            }
        }
        let from = self.values.append(&bytes)?;
        self.entries.iter_mut().skip(before).for_each(|entry| entry.offset += from);
        Ok(())
    }

    fn kind(&mut self, data_type: &DataType) -> Result<(u16, Arc<Kind>)> {
        let known = self.kinds.iter().position(|kind| kind.data_type == *data_type);
        let place = known.unwrap_or(self.kinds.len());
        let number = u16::try_from(place)
            .map_err(|_| Error::CorruptLog { what: "results of 65,536 types in one epoch".to_owned() })?;
        if known.is_none() {
            let converter = RowConverter::new(vec![SortField::new(data_type.clone())])?;
            let (parser, data_type) = (converter.parser(), data_type.clone());
            self.kinds.push(Arc::new(Kind { converter, parser, data_type }));
        }
        let kind = self.kinds.get(place).map(Arc::clone);
        Ok((number, kind.ok_or_else(|| Error::Misuse { what: "a type that is not there".to_owned() })?))
    }

    fn sort(&mut self) -> Result<()> {
        if self.entries.is_empty() {
            return Ok(());
        }
        self.entries.sort_unstable();
        let run = Run::write(&self.dir, &self.entries)?;
        self.entries.clear();
        self.runs.push((0, Arc::new(run)));
        Ok(())
    }

    /// Merges some more entries; whether there is nothing to be merged before more blocks are added.
    ///
    /// # Errors
    /// As [`Builder::add`]. What was merged until then is merged again.
    pub(in crate::edge) fn tidy(&mut self, entries: usize) -> Result<bool> {
        if self.merging.is_none() {
            if self.entries.len() >= SORTED_MAX {
                self.sort()?;
            }
            let full = |level: &u32| self.runs.iter().filter(|(of, _)| of == level).count() >= RUNS;
            let Some(level) = self.runs.iter().map(|(level, _)| *level).find(full) else { return Ok(true) };
            self.begin_merge(level)?;
        }
        self.advance(entries)?;
        Ok(false)
    }

    /// Merges some more entries; all rows, once they stand in one order.
    ///
    /// # Errors
    /// As [`Builder::tidy`].
    pub(in crate::edge) fn settle(&mut self, entries: usize) -> Result<Option<Rows>> {
        if self.merging.is_none() {
            self.sort()?;
            match self.runs.as_slice() {
                [] => return Ok(Some(self.rows(None))),
                [(_, run)] => {
                    let run = Arc::clone(run);
                    return Ok(self.has_counted(&run, entries)?.then(|| self.rows(Some(run))));
                }
                runs => self.begin_merge(runs.iter().map(|(level, _)| *level).max().unwrap_or(0))?,
            }
        }
        self.advance(entries)?;
        Ok(None)
    }

    fn begin_merge(&mut self, level: u32) -> Result<()> {
        // Those of higher levels stay in front.
        self.runs.sort_by_key(|(level, _)| Reverse(*level));
        let first = self.runs.partition_point(|(of, _)| *of > level);
        let runs: Vec<_> = self.runs.iter().skip(first).map(|(_, run)| Arc::clone(run)).collect();
        let merge = Merge::new(&self.dir, &runs)?;
        self.merging = Some(Merging { level, runs: runs.len(), merge });
        Ok(())
    }

    fn advance(&mut self, entries: usize) -> Result<()> {
        let Some(mut merging) = self.merging.take() else { return Ok(()) };
        // After an error it is not put back.
        if !merging.merge.advance(entries)? {
            self.merging = Some(merging);
            return Ok(());
        }
        let run = merging.merge.finish()?;
        self.runs.truncate(self.runs.len() - merging.runs);
        self.runs.push((merging.level + 1, Arc::new(run)));
        Ok(())
    }

    /// Looks at some more entries for rows that have but copies; whether all were looked at.
    fn has_counted(&mut self, run: &Arc<Run>, entries: usize) -> Result<bool> {
        if !self.count.has_copies() || self.orphans.is_some() {
            return Ok(true);
        }
        // After an error it is begun again.
        let mut counting =
            self.counting.take().unwrap_or_else(|| Orphans::of(run, self.logs().has_other_uses()));
        self.orphans = counting.advance(entries)?;
        if self.orphans.is_none() {
            self.counting = Some(counting);
        }
        Ok(self.orphans.is_some())
    }

    fn logs(&self) -> Numbers {
        let of_operator = |(task, _): &(&TaskId, &u32)| first_part(&task.operator) == self.operator;
        let siblings: HashSet<u32> =
            self.numbers.iter().filter(of_operator).map(|(_, number)| *number).collect();
        Numbers { all: self.numbers.clone(), siblings }
    }

    fn rows(&self, run: Option<Arc<Run>>) -> Rows {
        let last: BTreeSet<usize> = self.logs.iter().flat_map(|log| &log.headers).copied().collect();
        let headers = last.into_iter().filter_map(|place| self.headers.get(place));
        let headers = headers.map(|header| header.block.clone()).collect();
        let logs = self.logs();
        let count = self.count.known(logs.has_other_uses()) + self.orphans.unwrap_or(0);
        Rows::new(
            run,
            Arc::clone(&self.values),
            logs,
            headers,
            self.kinds.clone(),
            self.columns.iter().copied().collect(),
            count,
        )
    }
}

/// What rows are of which some, by their places, are copies.
fn roles(rows: usize, copies: Vec<u64>, of_uses: Vec<u64>) -> Vec<Role> {
    if copies.is_empty() && of_uses.is_empty() {
        return Vec::new();
    }
    let mut roles = vec![Role::Original; rows];
    for (places, role) in [(copies, Role::Copy), (of_uses, Role::OfOtherUse)] {
        for place in places {
            if let Some(of) = usize::try_from(place).ok().and_then(|place| roles.get_mut(place)) {
                *of = role;
            }
        }
    }
    roles
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("logs", &self.logs.len()).finish_non_exhaustive()
    }
}
