//! One attempt of a task that records its function's results.

mod others;

use arrow_array::{Array, ArrayRef, UInt32Array, new_empty_array};
use arrow_schema::DataType;
use arrow_select::filter::filter;
use arrow_select::take::take;
use bytes::Bytes;

use super::assemble::{AssembleError, assemble};
use super::choice::Choice;
use super::divergence::{Claim, ROWS_ADVICE, Standing, ambiguous_rows, misuse, row_name, type_changed};
use super::header;
use super::matcher::{Ambiguous, Matcher};
use super::matching::Occurrences;
use super::options::TaskOptions;
use super::plan::{Plan, Runs};
use super::pool::{PoolQuestion, PoolRows};
use super::recorded::{Copied, RecordedRows};
use super::summary::{Ended, Summary};
use crate::determinant::{BlockBuilder, Determinant, encode_results, encode_row_numbers, row_fingerprints};
use crate::error::{DivergenceKind, Error, Result};

/// The record/replay machine of one attempt in result mode. Sans I/O: the host runs the user's
/// function and publishes blocks.
///
/// ```text
///  input batch --offer--> Plan --(host runs the function for plan.live)--> complete --> all values
///                                                                             |
///                                     take_block -> publish, and only then let the values leave
/// ```
///
/// After a divergence every call repeats it.
#[derive(Debug)]
pub struct ResultTask {
    options: TaskOptions,
    same_stage: bool,
    /// Whether other stages of one run have written to the log.
    of_several_stages: bool,
    /// Rows of the log that were recorded in another layout.
    before_this_stage: usize,
    matcher: Matcher,
    /// Whether rows are looked for in logs of other partitions, too.
    has_pool: bool,
    /// Whether it is to be asked how many rows there are, as some of them were taken before.
    asks_count: bool,
    occurrences: Occurrences,
    builder: BlockBuilder,
    has_header: bool,
    /// Number that a reader gives the next row recorded, if nothing else is stated.
    next_number: u64,
    value_type: Option<DataType>,
    rows_offered: u64,
    plans_offered: u64,
    plans_completed: u64,
    own_used: usize,
    /// Row number and fingerprint.
    first_live: Option<(u64, u64)>,
    summary: Summary,
    standing: Standing,
}

impl ResultTask {
    /// An attempt with the blocks of the task's own log. `same_stage`: they were recorded by the
    /// same stage of the same application, so all their rows must come again.
    ///
    /// # Errors
    /// Damaged blocks; [`Error::Divergence`] if the log was recorded in another mode or by other
    /// code.
    pub fn new(options: TaskOptions, prior: Vec<Bytes>, same_stage: bool) -> Result<Self> {
        let (recorded, headers) = RecordedRows::read(&prior)?;
        let mut standing = Standing::new(options.task.clone());
        header::check(&headers, &options, &mut standing)?;
        let of_several_stages = header::of_several_stages(&headers, &options);
        let same_stage = same_stage && header::of_this_stage(&headers, &options);
        let before_this_stage = header::before_this_stage(&headers, &options, recorded.own());
        // A task of which nothing is recorded knows no row by its order.
        let has_others = options.pooled || (options.dealt && recorded.own() == 0);
        let asks_count = options.pooled && options.checks_ambiguity() && recorded.has_copies();
        let next_number = recorded.next_number();
        let mut matcher = Matcher::new(
            recorded,
            options.layout_changed || options.uncertain,
            options.checks_ambiguity(),
            options.ended == Ended::Never,
            options.layout_changed || has_others || options.uncertain,
        );
        matcher.others_may_take |= options.dealt;
        matcher.chosen = matcher.recorded.chosen(options.choice, (options.app, options.stage));
        Ok(Self {
            next_number,
            matcher,
            value_type: options.value_type.clone(),
            // Any row may be there.
            has_pool: options.layout_changed || options.uncertain,
            asks_count,
            options,
            same_stage,
            of_several_stages,
            before_this_stage,
            occurrences: Occurrences::default(),
            builder: BlockBuilder::new(),
            has_header: false,
            rows_offered: 0,
            plans_offered: 0,
            plans_completed: 0,
            own_used: 0,
            first_live: None,
            summary: Summary::default(),
            standing,
        })
    }

    /// Finds the recorded values of a batch, whose fingerprints the caller has, and per row a mark of all that can
    /// be seen of it (0: nothing), or none. Also those that other partitions recorded under another layout, for
    /// which it asks with `ask`: its arguments are the questions, and whether rows with one fingerprint cannot be
    /// told apart. Their headers are checked as the own log's are. Rows found there are recorded again, as
    /// copies, in this task's log.
    ///
    /// # Errors
    /// As [`ResultTask::new`] and [`ResultTask::offer`]; what `ask` fails with.
    pub fn find(
        &mut self,
        fingerprints: Vec<u64>,
        marks: Vec<u64>,
        mut ask: impl FnMut(&[PoolQuestion], bool) -> Result<PoolRows>,
    ) -> Result<Plan> {
        self.standing.check()?;
        if !marks.is_empty() && marks.len() != fingerprints.len() {
            return misuse(format!("{} marks for {} rows", marks.len(), fingerprints.len()));
        }
        let keys = self.matcher.keys(&fingerprints, &marks);
        self.ask_count(&fingerprints, &mut ask)?;
        if self.has_pool {
            self.ask_others(&fingerprints, &keys, &mut ask)?;
        }
        let plan = Plan { marks, keys, first_row: self.rows_offered, ..Plan::of(fingerprints) };
        if self.options.dealt && !self.has_pool && !self.matcher.comes_in_order(&plan) {
            self.ask_before(&plan, &mut ask)?;
        }
        let plan = self.decide(plan)?;
        if !plan.needs_pool {
            return Ok(plan);
        }
        let of_live = |all: &[u64]| -> Vec<u64> {
            plan.live.iter().filter_map(|row| all.get(*row as usize).copied()).collect()
        };
        let keys = of_live(&plan.keys);
        let known = self.matcher.recorded.len();
        self.ask_others(&of_live(&plan.fingerprints), &keys, &mut ask)?;
        if !self.has_found_others(known) {
            return Ok(Plan { needs_pool: false, ..plan });
        }
        self.look_again(plan)
    }

    /// Fingerprints the rows of a batch (the function's arguments, or the key columns if the user
    /// gave `row_key=`) and finds their recorded values.
    ///
    /// # Errors
    /// Columns of a type without fingerprints; [`Error::Divergence`] if equal rows with different
    /// recorded values come in another order.
    pub fn offer(&mut self, columns: &[ArrayRef]) -> Result<Plan> {
        let mut fingerprints = Vec::with_capacity(columns.first().map_or(0, |c| c.len()));
        row_fingerprints(columns, &mut fingerprints)?;
        self.offer_fingerprints(fingerprints)
    }

    /// A batch whose fingerprints the caller has already.
    ///
    /// # Errors
    /// As [`ResultTask::offer`].
    pub fn offer_fingerprints(&mut self, fingerprints: Vec<u64>) -> Result<Plan> {
        let keys = self.matcher.keys(&fingerprints, &[]);
        self.decide(Plan { keys, ..Plan::of(fingerprints) })
    }

    fn decide(&mut self, mut plan: Plan) -> Result<Plan> {
        self.standing.check()?;
        (plan.sequence, plan.first_row) = (self.plans_offered, self.rows_offered);
        let ambiguous = self.matcher.decide(&mut plan)?;
        self.seal(&mut plan, ambiguous)?;
        self.count(&mut plan);
        self.plans_offered += 1;
        self.rows_offered += plan.rows as u64;
        Ok(plan)
    }

    /// Counts equal rows. Where they may have traded places, those that are new come after those that are recorded.
    fn count(&mut self, plan: &mut Plan) {
        if let Some(counts) = self.matcher.counts() {
            self.occurrences.add(counts);
        }
        if !plan.keys.is_empty() {
            plan.recorded_before = self.matcher.recorded.own() as u64;
        }
        if self.options.count_occurrences {
            plan.occurrences = vec![0; plan.rows];
            for row in plan.counted_rows() {
                if let (Some(of), Some(fingerprint)) =
                    (plan.occurrences.get_mut(row), plan.fingerprints.get(row))
                {
                    *of = self.occurrences.next(*fingerprint);
                }
            }
        }
    }

    /// Takes the values of a plan's live rows, in the order of `plan.live`, and returns the values
    /// of all its rows in input order. They may leave once [`ResultTask::take_block`]'s block is
    /// published. For a batch of no rows pass an empty array if you have one.
    ///
    /// # Errors
    /// [`Error::Divergence`] if types differ or a live value shows that equal rows can't be told
    /// apart; [`Error::Misuse`] if plans come out of order or the number of values is wrong;
    /// damaged logs.
    pub fn complete(&mut self, plan: Plan, live: Option<ArrayRef>) -> Result<ArrayRef> {
        self.standing.check()?;
        if plan.sequence != self.plans_completed {
            return misuse(format!("plan {} completed, {} is next", plan.sequence, self.plans_completed));
        }
        let got = live.as_ref().map_or(0, |l| l.len());
        if got != plan.live.len() {
            return misuse(format!("{got} values for {} rows", plan.live.len()));
        }
        let expected = self.checked_type(&plan, live.as_ref())?;
        if let Some(ambiguous) = self.matcher.check_doubtful(&plan, live.as_ref())? {
            return Err(self.ambiguous(ambiguous));
        }
        let values = if plan.rows == 0 {
            live.unwrap_or_else(|| new_empty_array(&expected))
        } else {
            let values = self.assembled(&plan, &plan.runs, live.as_ref(), &expected)?;
            self.record(&plan, live.as_ref(), &expected)?;
            values
        };
        self.account(&plan);
        Ok(values)
    }

    /// Records the values of some of a plan's live rows before the others are there: those at `places` in
    /// `plan.live`. Handed to [`ResultTask::complete`] again with the rest.
    ///
    /// # Errors
    /// As [`ResultTask::complete`]; [`Error::Misuse`] for a place that is not in the plan, or was kept
    /// before.
    pub fn keep(&mut self, plan: &mut Plan, places: &[u32], values: &ArrayRef) -> Result<()> {
        self.standing.check()?;
        if places.is_empty() {
            return Ok(());
        }
        if values.len() != places.len() {
            return misuse(format!("{} values for {} rows", values.len(), places.len()));
        }
        self.checked_type(plan, Some(values))?;
        plan.kept.resize(plan.live.len(), false);
        let (mut rows, mut kept) = (Vec::with_capacity(places.len()), Vec::with_capacity(places.len()));
        for (at, &place) in (0_u32..).zip(places) {
            // Whether rows that equal recorded ones can be told apart is known when all values are there.
            let is_doubtful = plan.is_doubtful(place);
            match (plan.live.get(place as usize), plan.kept.get_mut(place as usize)) {
                (Some(_), Some(false)) if is_doubtful => {}
                (Some(&row), Some(is_kept @ false)) => {
                    *is_kept = true;
                    rows.push(row);
                    kept.push(at);
                }
                _ => return misuse(format!("the value at place {place} of a plan is kept already")),
            }
        }
        if rows.is_empty() {
            return Ok(());
        }
        let values = match rows.len() == places.len() {
            true => ArrayRef::clone(values),
            false => take(values, &UInt32Array::from(kept), None)?,
        };
        self.push(plan, Some(&rows), &values, &Copied::default())
    }

    /// Gives a plan back whose rows were not decided, as the function raised; the next may come.
    ///
    /// One that was offered last leaves no trace: its rows can come again, with the same numbers, and find
    /// what is recorded of them. Otherwise rows behind it are numbered, counted and matched already; and what
    /// was [kept](Self::keep) of a plan is recorded. Then its rows have come, without values.
    ///
    /// # Errors
    /// [`Error::Misuse`] if plans come out of order.
    pub fn abandon(&mut self, plan: &Plan) -> Result<()> {
        if plan.sequence != self.plans_completed {
            return misuse(format!("plan {} given back, {} is next", plan.sequence, self.plans_completed));
        }
        self.plans_completed += 1;
        if self.plans_completed < self.plans_offered || plan.kept.contains(&true) {
            self.own_used += self.own_rows(plan);
            return Ok(());
        }
        self.rows_offered = plan.first_row;
        self.matcher.give_back(plan);
        if self.options.count_occurrences {
            plan.counted_rows()
                .into_iter()
                .filter_map(|row| plan.fingerprint(row))
                .for_each(|of| self.occurrences.back(of));
        }
        Ok(())
    }

    /// What must be published before the rows completed since the last call leave. `None`: nothing
    /// new.
    pub fn take_block(&mut self) -> Option<Bytes> {
        if self.builder.is_empty() {
            return None;
        }
        let block = self.builder.finish();
        self.summary.bytes += block.len() as u64;
        Some(block)
    }

    /// End of input: checks that the recorded rows came.
    ///
    /// # Errors
    /// [`Error::Divergence`] if recorded rows did not come though others ran live, or, in the same
    /// stage, if they did not come at all, and somebody may have used them; [`Error::Misuse`] if plans
    /// are not completed or this is called twice.
    pub fn finish(&mut self) -> Result<Summary> {
        self.standing.check()?;
        if self.plans_completed != self.plans_offered {
            return misuse(format!("{} plans not completed", self.plans_offered - self.plans_completed));
        }
        self.standing.finish();
        self.summary.leftover = (self.matcher.recorded.own() - self.own_used) as u64;
        let elsewhere = self.is_cut_otherwise() || self.summary.from_pool > 0;
        let others = elsewhere || self.options.any_part || self.of_several_stages;
        if self.summary.leftover == 0 || others || self.options.ended.allows(&self.summary) {
            return Ok(self.summary);
        }
        let (first, fingerprint) = self.matcher.first_unused();
        let first = row_name(first as u64, fingerprint);
        let recorded = format!("{} more rows, the first being {first}", self.summary.leftover);
        let (kind, row, asked) = match self.first_live {
            Some((row, fingerprint)) => {
                let asked = format!("{}, which is not recorded", row_name(row, fingerprint));
                (DivergenceKind::RowsChanged, row, asked)
            }
            None if self.same_stage => {
                let row = self.summary.rows;
                (DivergenceKind::RowsMissing, row, format!("the end of input after {row} rows"))
            }
            None => {
                self.summary.unasked = self.summary.leftover;
                return Ok(self.summary);
            }
        };
        Err(self.standing.diverge(Claim { kind, row: Some(row), recorded, asked, advice: ROWS_ADVICE }))
    }

    /// What this attempt did so far.
    #[must_use]
    pub const fn summary(&self) -> Summary {
        self.summary
    }

    /// Completes a plan once its rows are decided.
    fn seal(&mut self, plan: &mut Plan, ambiguous: Option<Ambiguous>) -> Result<()> {
        if let Some(ambiguous) = ambiguous {
            return Err(self.ambiguous(ambiguous));
        }
        plan.replayed = plan.rows - plan.live.len();
        let elsewhere = self.is_cut_otherwise() || self.options.dealt;
        plan.needs_pool = elsewhere && !self.has_pool && !plan.live.is_empty();
        Ok(())
    }

    /// The type values must have; `None` if nothing says so yet.
    fn expected_type(&mut self, live: Option<&ArrayRef>) -> Result<Option<DataType>> {
        if self.value_type.is_none() {
            let recorded = self.matcher.recorded.value_type()?;
            self.value_type = recorded.or_else(|| live.map(|l| l.data_type().clone()));
        }
        Ok(self.value_type.clone())
    }

    fn assembled(
        &mut self,
        plan: &Plan,
        runs: &Runs,
        live: Option<&ArrayRef>,
        expected: &DataType,
    ) -> Result<ArrayRef> {
        match assemble(&mut self.matcher.recorded, runs.as_slice(), live, expected) {
            Ok(values) => Ok(values),
            Err(AssembleError::Other(error)) => Err(error),
            Err(AssembleError::Type(recorded)) => Err(self.type_changed(plan.first_row, &recorded, expected)),
        }
    }

    /// Writes the rows this task's log does not have yet, in input order.
    fn record(&mut self, plan: &Plan, live: Option<&ArrayRef>, expected: &DataType) -> Result<()> {
        let (runs, rows) = self.matcher.unrecorded(plan);
        if runs.as_slice().is_empty() {
            return Ok(());
        }
        let fresh = match live.filter(|_| !plan.kept.is_empty()) {
            None => None,
            Some(live) => Some(filter(live, &plan.kept.iter().map(|kept| Some(!kept)).collect())?),
        };
        let values = self.assembled(plan, &runs, fresh.as_ref().or(live), expected)?;
        let copied = self.matcher.copied(&runs);
        self.push(plan, rows.as_deref(), &values, &copied)
    }

    /// Writes the values of some rows of a plan; `None`: of all. Of those, others have recorded what was `copied`.
    fn push(&mut self, plan: &Plan, rows: Option<&[u32]>, values: &ArrayRef, copied: &Copied) -> Result<()> {
        let arrow = encode_results(values)?;
        if !self.has_header {
            self.builder.push(&header::ours(&self.options))?;
            if self.options.choice != Choice::UNKNOWN {
                self.builder.push(&Determinant::Choice { choice: self.options.choice.0 })?;
            }
            self.has_header = true;
        }
        let fingerprints: Option<Vec<u64>> =
            rows.map(|rows| rows.iter().filter_map(|&row| plan.fingerprint(row as usize)).collect());
        let count = rows.map_or(plan.rows, <[u32]>::len) as u64;
        // Where order was given up, numbers would mean another order than those recorded before.
        if self.matcher.is_in_order() {
            let number = |row: u32| plan.first_row + u64::from(row);
            let first = rows.map_or(plan.first_row, |rows| rows.first().map_or(0, |&row| number(row)));
            let follows = |rows: &[u32]| rows.iter().zip(first..).all(|(&row, next)| number(row) == next);
            if first != self.next_number || !rows.is_none_or(follows) {
                let numbers: Vec<u64> = match rows {
                    None => (first..first + count).collect(),
                    Some(rows) => rows.iter().copied().map(number).collect(),
                };
                self.builder.push(&Determinant::Rows { numbers: &encode_row_numbers(&numbers) })?;
            }
            self.next_number =
                rows.map_or(first + count, |rows| rows.last().map_or(0, |&row| number(row) + 1));
        } else {
            self.matcher.keep_order_given_up();
            self.next_number += count;
        }
        if !plan.marks.is_empty() {
            self.builder.push(&Determinant::Marks { marks: &plan.encoded_marks(rows) })?;
        }
        copied.state(&mut self.builder)?;
        self.builder.push_results(fingerprints.as_ref().unwrap_or(&plan.fingerprints), &arrow)
    }

    /// The type that values must have, if the live ones have it.
    fn checked_type(&mut self, plan: &Plan, live: Option<&ArrayRef>) -> Result<DataType> {
        let Some(expected) = self.expected_type(live)? else {
            return misuse("a batch of no rows needs an empty array for its type".to_owned());
        };
        match live.filter(|l| *l.data_type() != expected) {
            None => Ok(expected),
            Some(live) => {
                let row = plan.live_row(0).map_or(plan.first_row, |(row, _)| row);
                Err(self.type_changed(row, &expected, live.data_type()))
            }
        }
    }

    /// Counts a completed plan.
    fn account(&mut self, plan: &Plan) {
        let own = self.own_rows(plan);
        self.own_used += own;
        self.plans_completed += 1;
        self.summary.rows += plan.rows as u64;
        self.summary.took(&plan.fingerprints);
        self.summary.live += plan.live.len() as u64;
        self.summary.calls += plan.live.len() as u64;
        self.summary.replayed += plan.replayed as u64;
        self.summary.saved += plan.replayed as u64;
        self.summary.from_pool += (plan.replayed - own) as u64;
        if self.options.checks_ambiguity() {
            let (taken, marked) = self.matcher.taken(plan, self.before_this_stage);
            self.summary.taken += taken;
            self.summary.marked += marked;
            self.summary.known = self.matcher.known();
        }
        if self.first_live.is_none() {
            self.first_live = plan.live_row(0);
        }
        self.matcher.release(plan);
    }

    fn ambiguous(&mut self, found: Ambiguous) -> Error {
        self.standing.diverge(ambiguous_rows(found, &self.options, self.matcher.doubts_order))
    }

    fn type_changed(&mut self, row: u64, recorded: &DataType, asked: &DataType) -> Error {
        self.standing.diverge(type_changed(row, recorded, asked))
    }
}

#[cfg(test)]
mod tests;
