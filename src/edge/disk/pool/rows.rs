//! All rows that were taken in, for whoever asks.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

use super::run::{Entry, Page, Run};
use super::{KIND, Kind};
use crate::determinant::{BlockBuilder, FingerprintMap, encode_results};
use crate::edge::disk::spill::Scratch;
use crate::edge::locked;
use crate::error::{Error, Result};
use crate::id::TaskId;
use crate::task::{PoolAnswer, PoolQuestion, PoolRows};

/// Rows of one fingerprint that are compared each time that they are asked for.
const COMPARED_MAX: u64 = if cfg!(test) { 4 } else { 64 };

/// Recorded rows, as they were when the last log was read.
pub(in crate::edge) struct Rows {
    run: Option<Arc<Run>>,
    values: Arc<Scratch>,
    /// Of the logs.
    numbers: HashMap<TaskId, u32>,
    headers: Vec<Bytes>,
    kinds: Vec<Arc<Kind>>,
    /// Of fingerprints with many rows: the first whose value is not that of the first of all.
    differing: Mutex<FingerprintMap<Option<u64>>>,
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

/// Rows of one type that are to be given.
#[derive(Default)]
struct Given {
    fingerprints: Vec<u64>,
    bytes: Vec<u8>,
    /// End of each.
    ends: Vec<usize>,
}

impl Rows {
    pub(super) fn new(
        run: Option<Arc<Run>>,
        values: Arc<Scratch>,
        numbers: HashMap<TaskId, u32>,
        headers: Vec<Bytes>,
        kinds: Vec<Arc<Kind>>,
    ) -> Self {
        Self { run, values, numbers, headers, kinds, differing: Mutex::default() }
    }

    /// Answers the first questions, up to about `bytes_max` bytes of values: at least one of them. Rows of
    /// `own` log are not given.
    ///
    /// `checks_ambiguity`: who asks can't tell rows with one fingerprint apart, so all their values must be
    /// equal. Where they are not, two that differ are given, and said to be all: enough to see it.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::CorruptSegment`] if what was written reads otherwise.
    pub(in crate::edge) fn answer(
        &self,
        own: &TaskId,
        questions: &[PoolQuestion],
        checks_ambiguity: bool,
        bytes_max: usize,
    ) -> Result<PoolRows> {
        let own = self.numbers.get(own).copied();
        let mut given: Vec<Given> = self.kinds.iter().map(|_| Given::default()).collect();
        let mut answers = Vec::with_capacity(questions.len());
        let (mut bytes, mut page, mut row) = (0, Page::default(), Vec::new());
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
            if let Some(differing) = differing {
                let of_others = |place: &u64| !group.own.contains(place);
                let pair: Vec<u64> = [group.all.start, differing].into_iter().filter(of_others).collect();
                for place in &pair {
                    bytes += self.give(run.at(*place, &mut page)?, &mut row, &mut given)?;
                }
                answers.push(PoolAnswer { given: u32::try_from(pair.len()).unwrap_or(2), left: 0 });
                continue;
            }
            let from = u64::from(question.from);
            let mut count = 0;
            while count < question.wanted && from + u64::from(count) < group.others() {
                if bytes >= bytes_max && count > 0 {
                    break;
                }
                let place = group.place(from + u64::from(count));
                bytes += self.give(run.at(place, &mut page)?, &mut row, &mut given)?;
                count += 1;
            }
            let left = group.others().saturating_sub(from + u64::from(count));
            answers.push(PoolAnswer { given: count, left });
        }
        Ok(PoolRows { answers, blocks: self.blocks(&given)? })
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

    /// Reads a row; its bytes.
    fn give(&self, entry: Entry, row: &mut Vec<u8>, given: &mut [Given]) -> Result<usize> {
        row.resize(entry.len as usize, 0);
        self.values.read(row, entry.offset)?;
        let corrupt = || self.values.corrupt(entry.offset);
        let (kind, value) = row.split_first_chunk::<KIND>().ok_or_else(corrupt)?;
        let given = given.get_mut(usize::from(u16::from_le_bytes(*kind))).ok_or_else(corrupt)?;
        if xxh3_64(row) != entry.value {
            return Err(corrupt());
        }
        given.fingerprints.push(entry.fingerprint);
        given.bytes.extend(value);
        given.ends.push(given.bytes.len());
        Ok(row.len())
    }

    fn blocks(&self, given: &[Given]) -> Result<Vec<Bytes>> {
        let mut blocks = self.headers.clone();
        for (kind, given) in self.kinds.iter().zip(given) {
            let starts = std::iter::once(&0).chain(&given.ends);
            let rows = starts.zip(&given.ends).filter_map(|(start, end)| given.bytes.get(*start..*end));
            if given.ends.is_empty() {
                continue;
            }
            let columns = kind.converter.convert_rows(rows.map(|row| kind.parser.parse(row)))?;
            let [values] = columns.as_slice() else {
                return Err(Error::Misuse { what: format!("{} columns of one", columns.len()) });
            };
            let mut builder = BlockBuilder::new();
            builder.push_results(&given.fingerprints, &encode_results(values)?)?;
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
    let end = match log_of(start + 1, page)? {
        None => start + 1,
        Some(_) => run.first_of(fingerprint, u32::MAX, page)?,
    };
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
