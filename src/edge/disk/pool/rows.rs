//! All rows that were taken in, for whoever asks.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use arrow_cast::cast;
use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

use super::run::{Entry, Page, Run};
use super::{KIND, Kind};
use crate::determinant::{BlockBuilder, Determinant, FingerprintMap, encode_results, encode_row_numbers};
use crate::edge::disk::spill::Scratch;
use crate::edge::locked;
use crate::error::{Error, Result};
use crate::id::TaskId;
use crate::task::{PoolAnswer, PoolQuestion, PoolRows};

/// Rows of one fingerprint that are compared each time that they are asked for.
const COMPARED_MAX: u64 = if cfg!(test) { 4 } else { 64 };

/// Bytes between two values that are read along, and bytes that are read at a time unless one value has more.
const GAP: u64 = if cfg!(test) { 8 } else { 256 };
const READ_BYTES: u64 = if cfg!(test) { 64 } else { 64 << 10 };

/// Recorded rows, as they were when the last log was read.
pub(in crate::edge) struct Rows {
    run: Option<Arc<Run>>,
    values: Arc<Scratch>,
    logs: Numbers,
    headers: Vec<Bytes>,
    kinds: Vec<Arc<Kind>>,
    /// Of which columns their marks are.
    columns: Vec<u64>,
    /// How many were recorded: copies do not count again.
    count: u64,
    may_lack_rows: bool,
    /// Of fingerprints with many rows: the first whose value is not that of the first of all.
    differing: Mutex<FingerprintMap<Option<u64>>>,
}

/// Numbers of the logs.
pub(super) struct Numbers {
    pub(super) all: HashMap<TaskId, u32>,
    /// Of those that tasks of the same operator have recorded: who takes a row of theirs has a copy.
    pub(super) siblings: HashSet<u32>,
}

impl Numbers {
    pub(super) fn has_other_uses(&self) -> bool {
        self.siblings.len() < self.all.len()
    }
}

/// The rows of one fingerprint: places in the run.
struct Group {
    all: Range<u64>,
    /// Those of the log of whoever asks.
    own: Range<u64>,
}

impl Group {
    const fn others(&self) -> u64 {
        self.all.end - self.all.start - (self.own.end - self.own.start)
    }

    /// Place of a row, by its number among those of others.
    const fn place(&self, number: u64) -> u64 {
        let place = self.all.start + number;
        if place < self.own.start { place } else { place + (self.own.end - self.own.start) }
    }
}

/// Rows with values of one type: their fingerprints, their values, and which of them are copies for whoever takes them.
type OfKind<'a> = (Vec<u64>, Vec<&'a [u8]>, Vec<u64>);

/// Values that were read, for entries in their order.
#[derive(Default)]
struct Values {
    bytes: Vec<u8>,
    /// Where the value of each entry starts.
    starts: Vec<usize>,
}

impl Rows {
    pub(super) fn new(
        run: Option<Arc<Run>>,
        values: Arc<Scratch>,
        logs: Numbers,
        headers: Vec<Bytes>,
        kinds: Vec<Arc<Kind>>,
        columns: Vec<u64>,
        count: u64,
    ) -> Self {
        Self {
            run,
            values,
            logs,
            headers,
            kinds,
            columns,
            count,
            may_lack_rows: false,
            differing: Mutex::default(),
        }
    }

    /// The same, whether or not rows may be missing in the logs that were read.
    pub(in crate::edge) fn lacking(self, may_lack_rows: bool) -> Self {
        Self { may_lack_rows, ..self }
    }

    /// Answers the first questions, up to about `bytes_max` bytes of values: at least one of them. Rows of
    /// `own` log are not given.
    ///
    /// `checks_ambiguity`: who asks can't tell rows with one fingerprint apart, so all their values must be
    /// equal. Where they are not, two that differ are given, and said to be all: enough to see it.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::CorruptSpill`] if what was written reads otherwise.
    pub(in crate::edge) fn answer(
        &self,
        own: &TaskId,
        questions: &[PoolQuestion],
        checks_ambiguity: bool,
        bytes_max: usize,
    ) -> Result<PoolRows> {
        let own = self.logs.all.get(own).copied();
        let mut answers = Vec::with_capacity(questions.len());
        let (mut given, mut bytes, mut page) = (Vec::new(), 0, Page::default());
        for question in questions {
            if bytes >= bytes_max && !answers.is_empty() {
                break;
            }
            let Some(run) = &self.run else {
                answers.push(PoolAnswer { given: 0, left: 0 });
                continue;
            };
            let group = group(run, question.fingerprint, own, &mut page)?;
            let differing = match checks_ambiguity {
                true => self.differing(run, question.fingerprint, &group, &mut page)?,
                false => None,
            };
            let before = given.len();
            let left = match differing {
                Some(differing) => {
                    for place in [group.all.start, differing] {
                        if !group.own.contains(&place) {
                            let entry = run.at(place, &mut page)?;
                            bytes += entry.len as usize;
                            given.push(entry);
                        }
                    }
                    0
                }
                None => {
                    let mut next = question.from.into();
                    let end = group.others().min(u64::from(question.from) + u64::from(question.wanted));
                    while next < end && (bytes < bytes_max || given.len() == before) {
                        let entry = run.at(group.place(next), &mut page)?;
                        bytes += entry.len as usize;
                        given.push(entry);
                        next += 1;
                    }
                    group.others().saturating_sub(next)
                }
            };
            let given = u32::try_from(given.len() - before).unwrap_or(u32::MAX);
            answers.push(PoolAnswer { given, left });
        }
        Ok(PoolRows {
            answers,
            blocks: self.blocks(&given)?,
            columns: self.columns.clone(),
            may_lack_rows: self.may_lack_rows,
            count: self.count,
            has_own: own.is_some(),
        })
    }

    /// Place of a row whose value is not that of the first.
    fn differing(&self, run: &Run, fingerprint: u64, group: &Group, page: &mut Page) -> Result<Option<u64>> {
        let rows = group.all.end - group.all.start;
        if rows > COMPARED_MAX
            && let Some(known) = locked(&self.differing).get(&fingerprint)
        {
            return Ok(*known);
        }
        let (mut found, mut first) = (None, None);
        for place in group.all.clone() {
            let value = run.at(place, page)?.value;
            if *first.get_or_insert(value) != value {
                found = Some(place);
                break;
            }
        }
        if rows > COMPARED_MAX {
            locked(&self.differing).insert(fingerprint, found);
        }
        Ok(found)
    }

    /// Reads the values of entries. Those that stand together are read together: tasks that are cut otherwise
    /// mostly take their rows from a few places.
    fn read(&self, given: &[Entry]) -> Result<Values> {
        let mut order: Vec<usize> = (0..given.len()).collect();
        let at = |index: &usize| given.get(*index).copied().unwrap_or_default();
        order.sort_unstable_by_key(|index| at(index).offset);
        let all = given.iter().map(|entry| entry.len as usize).sum();
        let mut values = Values { bytes: Vec::with_capacity(all), starts: vec![0; given.len()] };
        let (mut piece, mut rest) = (Vec::new(), order.as_slice());
        while let Some(first) = rest.first().map(at) {
            let follows = |pair: &[usize]| match pair {
                [a, b] => at(b).offset <= at(a).end() + GAP && at(b).end() <= first.offset + READ_BYTES,
                _ => false,
            };
            let together = 1 + rest.windows(2).take_while(|pair| follows(pair)).count();
            let (read, left) = rest.split_at(together);
            let end = read.last().map(at).map_or(first.offset, |last| last.end());
            piece.resize(usize::try_from(end.saturating_sub(first.offset)).unwrap_or(usize::MAX), 0);
            self.values.read(&mut piece, first.offset)?;
            for index in read {
                let entry = at(index);
                let within = usize::try_from(entry.offset - first.offset).unwrap_or(usize::MAX);
                let value = piece.get(within..).and_then(|rest| rest.get(..entry.len as usize));
                if let Some(start) = values.starts.get_mut(*index) {
                    *start = values.bytes.len();
                }
                values.bytes.extend_from_slice(value.ok_or_else(|| self.values.corrupt(entry.offset))?);
            }
            rest = left;
        }
        Ok(values)
    }

    /// Rows as blocks of a log: one for each type.
    fn blocks(&self, given: &[Entry]) -> Result<Vec<Bytes>> {
        let mut blocks = self.headers.clone();
        let values = self.read(given)?;
        let mut of_kind: Vec<OfKind<'_>> = vec![Default::default(); self.kinds.len()];
        for (entry, start) in given.iter().zip(&values.starts) {
            let corrupt = || self.values.corrupt(entry.offset);
            let row = values.bytes.get(*start..*start + entry.len as usize).ok_or_else(corrupt)?;
            let (kind, value) = row.split_first_chunk::<KIND>().ok_or_else(corrupt)?;
            let of_kind = of_kind.get_mut(usize::from(u16::from_le_bytes(*kind)));
            if xxh3_64(row) != entry.value {
                return Err(corrupt());
            }
            let (fingerprints, rows, copies) = of_kind.ok_or_else(corrupt)?;
            if self.logs.siblings.contains(&entry.log) {
                copies.push(rows.len() as u64);
            }
            fingerprints.push(entry.fingerprint);
            rows.push(value);
        }
        for (kind, (fingerprints, rows, copies)) in self.kinds.iter().zip(of_kind) {
            if rows.is_empty() {
                continue;
            }
            let columns = kind.converter.convert_rows(rows.into_iter().map(|row| kind.parser.parse(row)))?;
            let [values] = columns.as_slice() else {
                return Err(Error::Misuse { what: format!("{} columns of one", columns.len()) });
            };
            // Rows know no dictionaries, and a result's type is compared with what was recorded.
            let values = cast(values, &kind.data_type)?;
            let mut builder = BlockBuilder::new();
            if !copies.is_empty() {
                builder.push(&Determinant::Copies { places: &encode_row_numbers(&copies) })?;
            }
            builder.push_results(&fingerprints, &encode_results(&values)?)?;
            blocks.push(builder.finish());
        }
        Ok(blocks)
    }
}

/// Where the rows of a fingerprint are.
fn group(run: &Run, fingerprint: u64, own: Option<u32>, page: &mut Page) -> Result<Group> {
    let start = run.first_of(fingerprint, 0, page)?;
    let log_of = |place: u64, page: &mut Page| -> Result<Option<u32>> {
        if place >= run.len() {
            return Ok(None);
        }
        let entry = run.at(place, page)?;
        Ok((entry.fingerprint == fingerprint).then_some(entry.log))
    };
    // Mostly there is one, or none.
    if log_of(start, page)?.is_none() {
        return Ok(Group { all: start..start, own: start..start });
    }
    if log_of(start + 1, page)?.is_none() {
        let is_own = log_of(start, page)? == own;
        return Ok(Group { all: start..start + 1, own: start..start + u64::from(is_own) });
    }
    let end = run.first_of(fingerprint, u32::MAX, page)?;
    let own = match own {
        Some(own) => run.first_of(fingerprint, own, page)?..run.first_of(fingerprint, own + 1, page)?,
        None => start..start,
    };
    Ok(Group { all: start..end, own })
}

impl fmt::Debug for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = self.run.as_ref().map_or(0, |run| run.len());
        f.debug_struct("Rows").field("rows", &rows).finish_non_exhaustive()
    }
}
