//! One attempt of a task that records what its function takes from the causal services.

use std::collections::HashSet;

use bytes::Bytes;

use super::choice::Choice;
use super::divergence::{
    Claim, KEY_ADVICE, LAYOUT_ADVICE, ROWS_ADVICE, SERVICE_ADVICE, Standing, misuse, row_name,
};
use super::header;
use super::key::CallPosition;
use super::matching::{Found, Index, Occurrences};
use super::options::TaskOptions;
use super::segments::{Cursor, Input, Next, Order, Recorded, ServiceLog};
use super::summary::Summary;
use crate::determinant::{BlockBuilder, Determinant, FingerprintMap};
use crate::error::{DivergenceKind, Error, Result};

mod exchange;
mod replay;

use replay::input_name;

/// How a call of a service is to be answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallDecision {
    /// The recorded outcome; the service must not be called.
    Replayed {
        /// Whether the service returned (`true`) or raised (`false`).
        ok: bool,
        /// What it returned or raised, as it was given to `record_call`.
        value: Bytes,
    },
    /// Nothing is recorded: call the service, then [`ServiceTask::record_call`].
    Live,
}

/// Where the function stands.
#[derive(Debug, Clone, Copy)]
enum Place {
    /// In a recorded segment.
    Recorded(Cursor),
    /// Where nothing is recorded.
    Live,
}

/// How rows find their segments.
#[derive(Debug)]
enum Matching {
    Positional { next: usize },
    Indexed(Index),
}

/// Before the first row.
const START: CallPosition = CallPosition { fingerprint: 0, occurrence: 0, ordinal: 0 };
/// No key was asked for.
const NO_KEY: (CallPosition, u64) = (CallPosition { ordinal: u64::MAX, ..START }, 0);

/// The record/replay machine of one attempt in services mode, and of operators on whole partitions.
/// Sans I/O: the host reads the clock, draws seeds, calls services and publishes blocks.
///
/// Functions of rows announce each row with [`begin_row`](Self::begin_row); operators on whole
/// partitions announce each input batch with [`input`](Self::input). What is asked before the first
/// row belongs to the task's prologue. Services asked while a live call is under way (between
/// [`call`](Self::call) and [`record_call`](Self::record_call)) are part of that call: they are
/// answered live and not recorded.
///
/// After a divergence every call repeats it.
#[derive(Debug)]
pub struct ServiceTask {
    options: TaskOptions,
    same_stage: bool,
    /// Whether other stages of one run have written to the log.
    of_several_stages: bool,
    log: ServiceLog,
    matching: Matching,
    /// How often rows are recorded that were others, by their fingerprints.
    others: FingerprintMap<usize>,
    place: Place,
    occurrences: Occurrences,
    builder: BlockBuilder,
    has_header: bool,
    seed: Option<u64>,
    /// Frames taken live since the last block, all from one sender.
    run: Option<Order>,
    /// The services whose names the log says.
    named: HashSet<u64>,
    /// Names of the live calls under way, outermost first.
    pending: Vec<u64>,
    /// Calls that failed since something else was recorded: nothing depends on them yet.
    failed: Vec<(u64, Bytes)>,
    position: CallPosition,
    /// Where a key was asked for last, and how many had been asked for there before.
    keys: (CallPosition, u64),
    /// Number of the first call for the row or batch.
    first_call: u64,
    rows_used: usize,
    first_live: Option<(u64, u64)>,
    summary: Summary,
    standing: Standing,
}

impl ServiceTask {
    /// An attempt with the blocks of the task's own log. `same_stage`: they were recorded by the
    /// same stage of the same application, so all their rows must come again.
    ///
    /// # Errors
    /// Damaged blocks; [`Error::Divergence`] if the log was recorded in another mode or by other
    /// code.
    pub fn new(options: TaskOptions, prior: Vec<Bytes>, same_stage: bool) -> Result<Self> {
        let (log, headers) = ServiceLog::read(&prior)?;
        let mut standing = Standing::new(options.task.clone());
        header::check(&headers, &options, &mut standing)?;
        let of_several_stages = header::of_several_stages(&headers, &options);
        let same_stage = same_stage && header::of_this_stage(&headers, &options);
        let others = match options.checks_ambiguity() {
            true => log.of_other_choices(options.choice, (options.app, options.stage)),
            false => FingerprintMap::default(),
        };
        let place = if headers.is_empty() { Place::Live } else { Place::Recorded(log.prologue()) };
        Ok(Self {
            standing,
            options,
            same_stage,
            of_several_stages,
            seed: log.seed(),
            named: log.named().collect(),
            log,
            matching: Matching::Positional { next: 0 },
            others,
            place,
            occurrences: Occurrences::default(),
            builder: BlockBuilder::new(),
            has_header: false,
            run: None,
            pending: Vec::new(),
            failed: Vec::new(),
            position: START,
            keys: NO_KEY,
            first_call: 0,
            rows_used: 0,
            first_live: None,
            summary: Summary::default(),
        })
    }

    /// The function goes on to the row with this fingerprint.
    ///
    /// # Errors
    /// [`Error::Divergence`] if the row before asked for less than recorded, equal rows with
    /// different records come in another order, or the row may be recorded by another partition.
    pub fn begin_row(&mut self, fingerprint: u64) -> Result<()> {
        self.end_row()?;
        let row = self.summary.rows;
        self.position =
            CallPosition { fingerprint, occurrence: self.occurrences.next(fingerprint), ordinal: 0 };
        self.first_call = 0;
        self.summary.rows += 1;
        self.summary.took(&[fingerprint]);
        self.refuse_alike(fingerprint, row)?;
        if let Some(recorded) = self.find_row(fingerprint, row)? {
            self.rows_used += 1;
            self.summary.replayed += 1;
            self.place = Place::Recorded(self.log.row(recorded));
            return Ok(());
        }
        self.refuse_other_layout(|| row_name(row, fingerprint))?;
        self.first_live.get_or_insert((row, fingerprint));
        self.summary.live += 1;
        self.place = Place::Live;
        self.record(&Determinant::Row { fingerprint })
    }

    /// The current row is done. Called by [`begin_row`](Self::begin_row) and
    /// [`finish`](Self::finish); call it before rows leave, so that a row that asked for less than
    /// recorded does not.
    ///
    /// # Errors
    /// [`Error::Divergence`] if more is recorded for the row than it asked for.
    pub fn end_row(&mut self) -> Result<()> {
        self.standing.check()?;
        if !self.pending.is_empty() {
            return misuse("a row ends within a live call".to_owned());
        }
        let Place::Recorded(mut cursor) = self.place else {
            return Ok(());
        };
        match self.log.peek(&mut cursor) {
            Next::Event(event) => {
                let recorded = self.describe(event);
                Err(self.mismatch(recorded, "the end of the row".to_owned()))
            }
            Next::Open(_) | Next::Closed => Ok(()),
        }
    }

    /// The operator takes its next input batch.
    ///
    /// # Errors
    /// [`Error::Divergence`] if another batch, or something other than a batch, is recorded here.
    pub fn input(&mut self, rows: u32, fingerprint: u64) -> Result<()> {
        self.standing.check()?;
        let asked = Input { rows, fingerprint };
        let first_row = self.summary.rows;
        self.first_call = self.position.ordinal;
        match self.next(
            |_| input_name(asked),
            |event| match event {
                Recorded::Input(input) => Some(input),
                _ => None,
            },
        )? {
            Some(input) if input == asked => self.summary.replayed += u64::from(rows),
            Some(input) => {
                let (recorded, asked) = (input_name(input), input_name(asked));
                return Err(self.rows_differ(first_row, recorded, asked));
            }
            None => {
                self.refuse_other_layout(|| input_name(asked))?;
                self.first_live.get_or_insert((first_row, fingerprint));
                self.summary.live += u64::from(rows);
                self.record(&Determinant::Input { rows, fingerprint })?;
            }
        }
        self.summary.rows += u64::from(rows);
        self.summary.took(&[fingerprint]);
        Ok(())
    }

    /// The time to give the function, nanoseconds since the Unix epoch: the recorded one, else
    /// `now`.
    ///
    /// # Errors
    /// [`Error::Divergence`] if something else is recorded here.
    pub fn time(&mut self, now: i64) -> Result<i64> {
        self.standing.check()?;
        if !self.pending.is_empty() {
            return Ok(now);
        }
        let recorded = self.next(
            |_| "the time".to_owned(),
            |event| match event {
                Recorded::Time(unix_ns) => Some(unix_ns),
                _ => None,
            },
        )?;
        if let Some(unix_ns) = recorded {
            return Ok(unix_ns);
        }
        self.push_header()?;
        self.builder.push_time(now);
        Ok(now)
    }

    /// The task's seed: the recorded one, else `fresh`. Always the same within an attempt.
    ///
    /// # Errors
    /// [`Error::Divergence`] if the recorded attempt was past this place and drew nothing.
    pub fn seed(&mut self, fresh: u64) -> Result<u64> {
        self.standing.check()?;
        if let Some(seed) = self.seed {
            return Ok(seed);
        }
        if let Place::Recorded(mut cursor) = self.place {
            let recorded = match self.log.peek(&mut cursor) {
                Next::Event(event) => Some(self.describe(event)),
                Next::Closed => Some("the end of the row".to_owned()),
                Next::Open(_) => None,
            };
            if let Some(recorded) = recorded {
                return Err(self.mismatch(recorded, "random numbers".to_owned()));
            }
        }
        // The seed belongs to the task and not to a segment: no Resume, only a header.
        self.push_header()?;
        self.builder.push(&Determinant::Seed { seed: fresh })?;
        self.seed = Some(fresh);
        Ok(fresh)
    }

    /// Says what people call the service that [`call`](Self::call) is about to be asked for; errors
    /// and the log name it so.
    pub fn meet(&mut self, name: u64, text: &str) {
        self.log.name(name, text);
    }

    /// The function calls the service whose name hashes to `name`.
    ///
    /// # Errors
    /// [`Error::Divergence`] if something else, or a call of another service, is recorded here.
    pub fn call(&mut self, name: u64) -> Result<CallDecision> {
        self.standing.check()?;
        if self.pending.is_empty() {
            let recorded = self.next(
                |task| task.call_name(name),
                |event| match event {
                    Recorded::Call(call) if call.name == name => Some(call.clone()),
                    _ => None,
                },
            )?;
            if let Some(call) = recorded {
                self.position.ordinal += 1;
                self.summary.saved += 1;
                return Ok(CallDecision::Replayed { ok: call.ok, value: call.value });
            }
        }
        self.pending.push(name);
        Ok(CallDecision::Live)
    }

    /// Records the outcome of the innermost live call. `value` is what [`CallDecision::Replayed`]
    /// gives back later: the result if `ok`, else the exception.
    ///
    /// An exception is held back until something else is recorded, or everything is published, after it:
    /// if the attempt ends before that, nothing depends on it, and the next attempt asks again.
    ///
    /// # Errors
    /// [`Error::Misuse`] if no such call is under way.
    pub fn record_call(&mut self, name: u64, ok: bool, value: Bytes) -> Result<()> {
        self.standing.check()?;
        match self.pending.pop() {
            Some(pending) if pending == name => {}
            _ => {
                return misuse(format!("the outcome of {}, which is not under way", self.call_name(name)));
            }
        }
        if !self.pending.is_empty() {
            return Ok(());
        }
        self.position.ordinal += 1;
        self.summary.calls += 1;
        if !ok {
            self.failed.push((name, value));
            return Ok(());
        }
        self.record_name(name)?;
        self.record(&Determinant::Call { name, ok, value: &value })
    }

    /// Whether a live call is under way. Random numbers drawn within it must not come from the row's
    /// stream: at replay the call does not run, and what is drawn after it would shift.
    #[must_use]
    pub const fn in_call(&self) -> bool {
        !self.pending.is_empty()
    }

    /// The place for the key that is asked for now, for [`idempotency_key`](super::idempotency_key). Within a
    /// call it is that call's, however often it asks; outside, each key is another.
    pub fn next_key(&mut self) -> CallPosition {
        if self.in_call() {
            let handed = u64::from(self.keys.0 == self.position) << (u64::BITS - 1);
            return CallPosition { ordinal: self.position.ordinal | handed, ..self.position };
        }
        let before = match self.keys {
            (place, before) if place == self.position => before + 1,
            _ => 0,
        };
        self.keys = (self.position, before);
        CallPosition { ordinal: self.position.ordinal | (before << u32::BITS), ..self.position }
    }

    /// The row or batch is worked on once more: its calls have the keys that they had.
    pub const fn keys_again(&mut self) {
        self.position.ordinal = self.first_call;
        self.keys = NO_KEY;
    }

    /// The place of the call under way, or of the next one, for
    /// [`RowRng::reset_row`](super::RowRng::reset_row).
    #[must_use]
    pub const fn position(&self) -> CallPosition {
        self.position
    }

    /// Whether the function stands in the recorded part of its log: what it asks next is answered
    /// from it or is a divergence.
    #[must_use]
    pub fn is_replaying(&self) -> bool {
        match self.place {
            Place::Recorded(mut cursor) => !matches!(self.log.peek(&mut cursor), Next::Open(_)),
            Place::Live => false,
        }
    }

    /// End of input: checks that what is recorded was asked for.
    ///
    /// # Errors
    /// [`Error::Divergence`] if recorded rows did not come though others ran live, or, in the same
    /// stage, if they did not come at all, or if the last row or the operator asked for less than
    /// recorded.
    pub fn finish(&mut self) -> Result<Summary> {
        self.standing.check()?;
        self.finish_inputs()?;
        self.standing.finish();
        self.summary.leftover += (self.log.fingerprints().len() - self.rows_used) as u64;
        let TaskOptions { layout_changed, any_part, ended, .. } = self.options;
        let others = layout_changed || any_part || self.of_several_stages;
        if self.summary.leftover == 0 || others || ended.allows(&self.summary) {
            return Ok(self.summary);
        }
        let recorded = format!("{} more rows", self.summary.leftover);
        if let Some((row, fingerprint)) = self.first_live {
            let asked = format!("{}, which is not recorded", row_name(row, fingerprint));
            return Err(self.rows_differ(row, recorded, asked));
        }
        if self.same_stage {
            let row = self.summary.rows;
            let asked = format!("the end of input after {row} rows");
            let kind = DivergenceKind::RowsMissing;
            return Err(self.diverge(Claim { kind, row: Some(row), recorded, asked, advice: ROWS_ADVICE }));
        }
        self.summary.unasked = self.summary.leftover;
        Ok(self.summary)
    }

    /// What this attempt did so far.
    #[must_use]
    pub const fn summary(&self) -> Summary {
        self.summary
    }
}

#[cfg(test)]
mod tests;
