//! Finds the recorded rows of a task in result mode: by order, and once order fails, by
//! fingerprint, or by what tells rows with equal fingerprints apart.

mod lookup;
mod unrecorded;

use arrow_array::{Array, ArrayRef};

use super::choice::Chosen;
use super::header;
use super::matching::Index;
use super::plan::{Plan, Run, Runs};
use super::pool::{Asked, PoolQuestion, PoolRows};
use super::recorded::RecordedRows;
use super::told::ToldApart;
use crate::determinant::{FingerprintMap, row_fingerprints};
use crate::error::Result;

impl Matching {
    /// In recorded order.
    fn of(recorded: &RecordedRows) -> Self {
        let Some(numbers) = recorded.numbers() else { return Self::Positional { next: 0 } };
        let mut rows: Vec<_> = numbers.iter().copied().zip(0..recorded.own()).collect();
        rows.sort_unstable();
        Self::Numbered(Numbered { rows, next: 0 })
    }
}

/// Equal rows that can't be told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ambiguous {
    /// Row in this attempt's input.
    pub(super) row: u64,
    pub(super) fingerprint: u64,
    /// Position in the log of a recorded row whose value differs.
    pub(super) position: usize,
}

/// How input rows find their recorded values.
#[derive(Debug)]
enum Matching {
    /// Rows came in recorded order so far; `next` is the next recorded position.
    Positional { next: usize },
    /// Rows came in recorded order so far, and some between recorded ones have no value yet.
    Numbered(Numbered),
    /// They did not: rows are looked up by fingerprint from here on.
    Indexed(Index),
}

/// How far rows were matched before the plan that was made last.
#[derive(Debug, Default)]
struct Before {
    /// Recorded rows used in order.
    next: usize,
    /// Where that plan gave up order: how rows were matched until then.
    order: Option<Matching>,
}

/// Recorded rows in the order of their numbers in the input.
#[derive(Debug)]
struct Numbered {
    /// Number and position of each.
    rows: Vec<(u64, usize)>,
    /// How many of them are used.
    next: usize,
}

/// By what recorded rows are found.
#[derive(Debug)]
enum Keys {
    /// No row came yet that is like a recorded one.
    Open,
    Arguments,
    Marks(ToldApart),
}

/// The recorded rows and which of them are used.
#[derive(Debug)]
pub(super) struct Matcher {
    pub(super) recorded: RecordedRows,
    keys: Keys,
    matching: Matching,
    before: Before,
    /// Rows of other partitions that are among the recorded ones.
    asked: Asked,
    pub(super) checks_ambiguity: bool,
    /// No attempt came to its end: rows may be missing in the log.
    may_lack_rows: bool,
    /// Rows may be in logs of others.
    pub(super) has_others: bool,
    /// Others may have rows that are recorded here.
    pub(super) others_may_take: bool,
    /// How the rows are chosen that come here, beside those that were recorded.
    pub(super) chosen: Chosen,
    /// That arguments come in the recorded order says nothing of rows with equal ones.
    pub(super) doubts_order: bool,
    /// A row was met again with its mark.
    knows_marks: bool,
    /// Marks of all that is recorded are of the same columns as those of this task's rows.
    are_alike: bool,
    /// Keys of own rows, where others of them have no mark like those of this task's.
    known_keys: Option<FingerprintMap<()>>,
    /// Rows may be missing also where others have them.
    pub(super) others_may_lack: bool,
    /// Arguments of rows that got an answer of others without their mark.
    borrowed: FingerprintMap<()>,
    /// How many rows others have recorded, where they were asked for.
    known: u64,
    /// Whether those of the own log are among them.
    counts_own: bool,
}

impl Matcher {
    /// `any_order`: the task's rows are not expected in recorded order.
    pub(super) fn new(
        recorded: RecordedRows,
        any_order: bool,
        checks_ambiguity: bool,
        may_lack_rows: bool,
        has_others: bool,
    ) -> Self {
        let (before, asked) = (Before::default(), Asked::default());
        let (keys, matching) = (Keys::Open, Matching::of(&recorded));
        let mut matcher = Self {
            recorded,
            keys,
            matching,
            before,
            asked,
            checks_ambiguity,
            may_lack_rows,
            has_others,
            others_may_take: has_others,
            chosen: Chosen::Unknown,
            doubts_order: false,
            knows_marks: false,
            are_alike: true,
            known_keys: None,
            others_may_lack: false,
            borrowed: FingerprintMap::default(),
            known: 0,
            counts_own: false,
        };
        if any_order {
            matcher.give_up_order();
        }
        matcher
    }

    /// What to ask of other partitions' rows before a batch is decided.
    pub(super) fn questions(&self, fingerprints: impl Iterator<Item = u64>) -> Vec<PoolQuestion> {
        self.asked.questions(fingerprints)
    }

    /// Adds rows of other partitions. Returns the headers under which they were recorded, and what is still to
    /// be asked.
    pub(super) fn add_pool(
        &mut self,
        questions: &[PoolQuestion],
        rows: &PoolRows,
    ) -> Result<(Vec<header::Recorded>, Vec<PoolQuestion>)> {
        let before = self.recorded.len();
        self.hears_count(rows);
        if let Keys::Marks(told) = &self.keys {
            self.others_may_lack |= rows.may_lack_rows;
            self.are_alike &= rows.columns.iter().all(|columns| *columns == told.columns());
        }
        let headers = self.recorded.append(&rows.blocks)?;
        if let Matching::Indexed(index) = &mut self.matching {
            let added = self.recorded.fingerprints(before..self.recorded.len());
            for (position, fingerprint) in (before..).zip(added) {
                // Whoever answers has compared all of a fingerprint when it gives the first.
                index.push(position, *fingerprint, self.asked.has(*fingerprint));
            }
        }
        Ok((headers, self.asked.answered(questions, &rows.answers)?))
    }

    /// Decides every row of a new plan.
    pub(super) fn decide(&mut self, plan: &mut Plan) -> Result<Option<Ambiguous>> {
        let next = match &self.matching {
            Matching::Positional { next } | Matching::Numbered(Numbered { next, .. }) => *next,
            Matching::Indexed(_) => 0,
        };
        self.before = Before { next, order: None };
        let decided = self.in_order(plan);
        let has_met = plan.runs.as_slice().iter().any(|run| matches!(run, Run::Recorded { len: 1.., .. }));
        self.knows_marks |= has_met && matches!(self.keys, Keys::Marks(_));
        self.look_up_all(plan, decided..plan.rows)
    }

    /// Looks again for the live rows of a plan.
    pub(super) fn decide_live(&mut self, plan: &mut Plan) -> Result<Option<Ambiguous>> {
        self.give_up_order();
        self.keep_order_given_up();
        let runs = std::mem::take(&mut plan.runs);
        plan.live.clear();
        plan.doubtful.clear();
        let mut row = 0;
        for &run in runs.as_slice() {
            let end = row + run.len();
            if let Run::Recorded { .. } = run {
                plan.runs.push(run);
                row = end;
            }
            if let Some(ambiguous) = self.look_up_all(plan, row..end)? {
                return Ok(Some(ambiguous));
            }
            row = end;
        }
        Ok(None)
    }

    /// Matches the front of a batch by order. Returns how many rows are decided.
    fn in_order(&mut self, plan: &mut Plan) -> usize {
        let next = match &self.matching {
            Matching::Positional { next } => *next,
            Matching::Numbered(_) => return self.by_number(plan),
            Matching::Indexed(_) => return 0,
        };
        let (same, was_last) = self.positional(plan, next);
        plan.runs.push(Run::Recorded { position: next, len: same });
        self.matching = Matching::Positional { next: next + same };
        if same == plan.rows {
            return same;
        }
        if was_last {
            // All that is recorded was used, in order: no index is needed to know that the rest is
            // new.
            plan.runs.push(Run::Live { len: plan.rows - same });
            plan.live.extend((same..plan.rows).map(index_u32));
            return plan.rows;
        }
        self.give_up_order();
        same
    }

    /// How many rows come in recorded order behind so many, and whether nothing is recorded behind these.
    fn positional(&self, plan: &Plan, next: usize) -> (usize, bool) {
        let own = self.recorded.own();
        let recorded = self.recorded.fingerprints(next..own.min(next + plan.rows));
        let same = plan.common_prefix(recorded, self.keys_beside_places());
        (same, next + same == own && self.recorded.len() == own)
    }

    /// Whether a batch will be matched by order.
    pub(super) fn comes_in_order(&self, plan: &Plan) -> bool {
        match &self.matching {
            Matching::Positional { next } => {
                let (same, was_last) = self.positional(plan, *next);
                same == plan.rows || was_last
            }
            Matching::Numbered(_) => self.numbered(plan).is_some(),
            Matching::Indexed(_) => false,
        }
    }

    /// Matches a batch by the numbers of its rows; all of it or, where order does not hold, nothing.
    ///
    /// An attempt that died with calls under way left gaps. That a row falls into one, and not that rows
    /// come in another order, is known from the recorded rows around it.
    fn by_number(&mut self, plan: &mut Plan) -> usize {
        let found = self.numbered(plan);
        let (Matching::Numbered(numbered), Some((runs, here))) = (&mut self.matching, found) else {
            self.give_up_order();
            return 0;
        };
        numbered.next += here;
        let mut row = 0;
        for run in runs.as_slice() {
            if let Run::Live { len } = run {
                plan.live.extend((row..row + len).map(index_u32));
            }
            row += run.len();
        }
        plan.runs = runs;
        plan.rows
    }

    /// What [`Self::by_number`] comes to, and how many recorded rows that takes; nothing if order does not hold.
    fn numbered(&self, plan: &Plan) -> Option<(Runs, usize)> {
        let known = self.keys_beside_places();
        let Matching::Numbered(numbered) = &self.matching else { return None };
        let left = numbered.rows.get(numbered.next..).unwrap_or_default();
        let end = plan.first_row + plan.rows as u64;
        let here = left.partition_point(|(number, _)| *number < end);
        let mut runs = Runs::default();
        let (mut row, mut in_order) = (0, true);
        for &(number, position) in left.iter().take(here) {
            let at = number.checked_sub(plan.first_row).and_then(|at| usize::try_from(at).ok());
            let recorded = self.recorded.fingerprints(position..position + 1).first();
            match at {
                Some(at) if at >= row && plan.is_like(at, recorded, known) => {
                    runs.push(Run::Live { len: at - row });
                    runs.push(Run::Recorded { position, len: 1 });
                    row = at + 1;
                }
                _ => in_order = false,
            }
        }
        // Rows with a key may have come in another order by the same right.
        let proven = here > 0 && self.checks_ambiguity && !matches!(self.keys, Keys::Marks(_));
        if !in_order || (here < plan.rows && here < left.len() && !proven) {
            return None;
        }
        runs.push(Run::Live { len: plan.rows - row });
        Some((runs, here))
    }

    /// If a row that has a mark may be one that was recorded with none like it, as it comes in its place, the keys that it must
    /// not have: no row is missing here, and none is elsewhere.
    fn keys_beside_places(&self) -> Option<&FingerprintMap<()>> {
        self.known_keys.as_ref().filter(|_| !self.has_others && !self.may_lack_rows)
    }

    /// Whether rows came in recorded order so far.
    pub(super) const fn is_in_order(&self) -> bool {
        !matches!(self.matching, Matching::Indexed(_))
    }

    fn give_up_order(&mut self) {
        let mut index = Index::default();
        match &self.matching {
            Matching::Positional { next } => {
                index.extend(self.recorded.fingerprints(0..self.recorded.len()), *next);
            }
            Matching::Numbered(Numbered { rows, next }) => {
                for (place, &(_, position)) in rows.iter().enumerate() {
                    let fingerprint = self.recorded.fingerprints(position..position + 1);
                    if let [fingerprint] = *fingerprint {
                        index.insert(position, fingerprint, place < *next);
                    }
                }
                // Rows of others have no numbers here.
                let (own, all) = (self.recorded.own(), self.recorded.len());
                for (position, fingerprint) in (own..).zip(self.recorded.fingerprints(own..all)) {
                    index.insert(position, *fingerprint, false);
                }
            }
            Matching::Indexed(_) => return,
        }
        self.note_used();
        self.before.order = Some(std::mem::replace(&mut self.matching, Matching::Indexed(index)));
    }

    /// Notes the rows that were found by their order.
    fn note_used(&mut self) {
        let Keys::Marks(told) = &mut self.keys else { return };
        match &self.matching {
            Matching::Positional { next } => {
                for position in 0..*next {
                    told.take(position);
                }
            }
            Matching::Numbered(Numbered { rows, next }) => {
                for (_, position) in rows.iter().take(*next) {
                    told.take(*position);
                }
            }
            Matching::Indexed(_) => {}
        }
    }

    /// What came of giving up order cannot be undone: from here on a plan that is given back does not bring
    /// it back.
    pub(super) fn keep_order_given_up(&mut self) {
        self.before.order = None;
    }

    /// The rows of the plan that was made last did not come: what they used can be found again.
    pub(super) fn give_back(&mut self, plan: &Plan) {
        if let Some(order) = self.before.order.take() {
            self.matching = order;
        }
        if let Keys::Marks(told) = &mut self.keys {
            told.give_back(plan.runs.as_slice().iter().filter_map(|run| match *run {
                Run::Recorded { position, len } => Some(position..position + len),
                Run::Live { .. } => None,
            }));
        }
        let index = match &mut self.matching {
            Matching::Positional { next } | Matching::Numbered(Numbered { next, .. }) => {
                *next = self.before.next;
                return;
            }
            Matching::Indexed(index) => index,
        };
        for run in plan.runs.as_slice().iter().rev() {
            let Run::Recorded { position, len } = *run else { continue };
            let fingerprints = self.recorded.fingerprints(position..position + len);
            for (position, fingerprint) in (position..position + len).zip(fingerprints).rev() {
                index.give_back(*fingerprint, position);
            }
        }
    }

    /// Compares the live rows that equal a recorded row with it: where values differ, which of the
    /// equal rows was the recorded one is not known.
    pub(super) fn check_doubtful(
        &mut self,
        plan: &Plan,
        live: Option<&ArrayRef>,
    ) -> Result<Option<Ambiguous>> {
        let Some(live) = live.filter(|_| !plan.doubtful.is_empty()) else {
            return Ok(None);
        };
        let mut fingerprints = Vec::with_capacity(live.len());
        let known = row_fingerprints(std::slice::from_ref(live), &mut fingerprints).is_ok();
        let fingerprints = known.then_some(fingerprints.as_slice());
        for &(at, position) in &plan.doubtful {
            if !self.recorded.same_as_live(position, live, fingerprints, at)? {
                let (row, fingerprint) = plan.live_row(at).unwrap_or_default();
                return Ok(Some(Ambiguous { row, fingerprint, position }));
            }
        }
        Ok(None)
    }

    /// How many rows of a run are the own log's; the rest, behind them, is the pool's.
    pub(super) fn own_part(&self, position: usize, len: usize) -> usize {
        self.recorded.own().saturating_sub(position).min(len)
    }

    /// How many rows others have recorded, in other layouts; 0 if they were not asked for.
    pub(super) const fn known(&self) -> u64 {
        self.known
    }

    /// How many rows of a plan were answered with one of these: rows of others, copies of them in the own log, and the
    /// first `before` there. Those that were found by their arguments, and those by their marks.
    pub(super) fn taken(&self, plan: &Plan, before: usize) -> (u64, u64) {
        let (mut taken, mut marked, mut row) = (0, 0, 0);
        if !self.others_may_take && self.known == 0 && !self.recorded.has_copies() {
            return (taken, marked);
        }
        // Where others may take them, and nobody has said whether they do, they count.
        let counts_own = self.counts_own || (self.others_may_take && self.known == 0);
        for run in plan.runs.as_slice() {
            if let Run::Recorded { position, len } = *run {
                let keys = self.recorded.fingerprints(position..position + len);
                for ((place, row), key) in (position..).zip(row..).zip(keys) {
                    let counts = self.recorded.is_of_others(place) || place < before && counts_own;
                    let found = if plan.is_marked(row, *key) { &mut marked } else { &mut taken };
                    *found += u64::from(counts);
                }
            }
            row += run.len();
        }
        (taken, marked)
    }

    /// What others answered who were asked for no rows.
    pub(super) fn hears_count(&mut self, rows: &PoolRows) {
        self.known = self.known.max(rows.count);
        self.counts_own |= rows.has_own;
    }

    /// Lets go of decoded values that order says can't be asked for again.
    pub(super) fn release(&mut self, plan: &Plan) {
        if let Matching::Positional { .. } = self.matching {
            self.recorded.release_before(plan.runs.recorded_end());
        }
    }

    /// The first recorded row that did not come, by position, and its fingerprint. For messages: it
    /// may walk the whole index.
    pub(super) fn first_unused(&self) -> (usize, u64) {
        let first = match &self.matching {
            Matching::Positional { next } => *next,
            Matching::Numbered(Numbered { rows, next }) => {
                rows.get(*next).map_or(0, |(_, position)| *position)
            }
            Matching::Indexed(index) => index.first_unused().unwrap_or(0),
        };
        (first, self.recorded.fingerprints(first..first + 1).first().copied().unwrap_or(0))
    }
}

/// Arrow batches have fewer than 2^31 rows.
fn index_u32(row: usize) -> u32 {
    u32::try_from(row).unwrap_or(u32::MAX)
}
