//! Shared by the scenarios: options, batches, and a function whose every call gives a new value.

use std::sync::Arc;

use arrow_array::{Array, ArrayRef, Int64Array, StringArray};
use bytes::Bytes;

use super::marks;
use super::{
    Plan, PoolAnswer, PoolQuestion, PoolRows, ResultTask, Summary, TaskMode, TaskOptions, values_header,
};
use crate::determinant::{
    BlockBuilder, BlockReader, Determinant, decode_results, encode_results, marks as read_marks,
    row_fingerprints,
};
use crate::error::{Divergence, DivergenceKind, Error, Result};
use crate::id::{Epoch, Partition, TaskId};

/// Options of partition 2 of a streaming query, with nothing special.
pub(super) fn options(mode: TaskMode) -> TaskOptions {
    let task = TaskId {
        query: "orders".into(),
        operator: "score".into(),
        epoch: Epoch::Batch(7),
        partition: Partition(2),
    };
    TaskOptions {
        python: "3.11".to_owned(),
        label: "shop.score".to_owned(),
        ..TaskOptions::new(task, mode, 0xc0de)
    }
}

/// A column of words.
pub(super) fn words(rows: &[&str]) -> ArrayRef {
    Arc::new(StringArray::from(rows.to_vec()))
}

/// A column of numbers.
pub(super) fn numbers(rows: impl IntoIterator<Item = i64>) -> ArrayRef {
    Arc::new(Int64Array::from_iter_values(rows))
}

/// The numbers of a column.
pub(super) fn values(column: &ArrayRef) -> Vec<i64> {
    column.as_any().downcast_ref::<Int64Array>().unwrap().values().to_vec()
}

/// The divergence of a result.
pub(super) fn divergence<T: std::fmt::Debug>(result: Result<T>) -> Divergence {
    match result {
        Err(Error::Divergence(divergence)) => *divergence,
        other => panic!("no divergence: {other:?}"),
    }
}

/// Asserts the kind of a divergence and that its message names the place.
pub(super) fn assert_diverged<T: std::fmt::Debug>(
    result: Result<T>,
    kind: DivergenceKind,
    row: Option<u64>,
) -> Divergence {
    let divergence = divergence(result);
    assert_eq!((divergence.kind, divergence.row), (kind, row), "{divergence}");
    let message = divergence.to_string();
    for part in ["score", "orders", "7", "2", divergence.advice.as_str()] {
        assert!(message.contains(part), "{part} is not in: {message}");
    }
    divergence
}

/// One attempt in result mode, with a function that returns 1, 2, 3, ... for the rows it is called
/// for.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) task: ResultTask,
    /// Every block published so far, of earlier attempts too.
    pub(super) log: Vec<Bytes>,
    /// Rows of other partitions.
    pub(super) others: Others,
    next_value: i64,
}

/// Rows that other partitions recorded, and how often they were asked for.
#[derive(Debug, Default)]
pub(super) struct Others {
    header: Vec<Bytes>,
    rows: Vec<(u64, i64)>,
    columns: Vec<u64>,
    pub(super) may_lack_rows: bool,
    pub(super) asked: usize,
}

impl Others {
    /// The rows of a log that `options` recorded.
    pub(super) fn of(log: &[Bytes], options: &TaskOptions) -> Self {
        let (mut rows, mut columns, mut marked) = (Vec::new(), Vec::new(), Vec::new());
        for determinant in log.iter().flat_map(|block| BlockReader::new(block).unwrap()) {
            match determinant.unwrap() {
                Determinant::Marks { marks } => marked = read_marks(marks).unwrap(),
                Determinant::Results { fingerprints, arrow } => {
                    let mut keys = Vec::new();
                    fingerprints.extend_into(&mut keys);
                    let values = values(&decode_results(arrow).unwrap());
                    let unmarked = if marked.is_empty() { Some(0) } else { None };
                    columns.extend(marked.iter().map(|mark| marks::columns(*mark)).chain(unmarked));
                    let both = keys.iter().zip(marked.drain(..)).map(|(key, mark)| marks::key(*key, mark));
                    rows.extend(both.zip(values.iter().copied()));
                    rows.extend(keys.into_iter().zip(values));
                }
                _ => {}
            }
        }
        Self { header: vec![values_header(options).unwrap()], rows, columns, may_lack_rows: false, asked: 0 }
    }

    /// Answers one question at a time, with one row, as a message that is full does.
    pub(super) fn answer(&mut self, questions: &[PoolQuestion], checks_ambiguity: bool) -> Result<PoolRows> {
        self.asked += 1;
        let question = questions[0];
        let all: Vec<i64> = self
            .rows
            .iter()
            .filter(|(key, _)| *key == question.fingerprint)
            .map(|(_, value)| *value)
            .collect();
        let other = all.iter().find(|value| **value != all[0]).filter(|_| checks_ambiguity);
        let from = question.from as usize;
        let (given, left) = match other {
            Some(other) => (vec![all[0], *other], 0),
            None => {
                let given: Vec<i64> =
                    all.iter().skip(from).take(question.wanted.min(1) as usize).copied().collect();
                let left = all.len() - from - given.len();
                (given, left)
            }
        };
        let mut blocks = self.header.clone();
        if !given.is_empty() {
            let mut builder = BlockBuilder::new();
            let arrow = encode_results(&numbers(given.iter().copied())).unwrap();
            builder.push_results(&vec![question.fingerprint; given.len()], &arrow).unwrap();
            blocks.push(builder.finish());
        }
        let answer = PoolAnswer { given: u32::try_from(given.len()).unwrap(), left: left as u64 };
        Ok(PoolRows {
            answers: vec![answer],
            blocks,
            columns: self.columns.clone(),
            may_lack_rows: self.may_lack_rows,
            count: self.rows.len() as u64,
            has_own: false,
        })
    }
}

impl Attempt {
    /// An attempt in the same stage as the recorded ones. Its function counts from `first_value`.
    pub(super) fn new(log: Vec<Bytes>, first_value: i64) -> Self {
        Self::with(options(TaskMode::Result), log, first_value)
    }

    pub(super) fn with(options: TaskOptions, log: Vec<Bytes>, first_value: i64) -> Self {
        Self::try_with(options, log, first_value).unwrap()
    }

    pub(super) fn try_with(options: TaskOptions, log: Vec<Bytes>, first_value: i64) -> Result<Self> {
        let task = ResultTask::new(options, log.clone(), true)?;
        Ok(Self { task, log, others: Others::default(), next_value: first_value })
    }

    /// Runs one batch and publishes its block.
    pub(super) fn run(&mut self, batch: &ArrayRef) -> Result<Vec<i64>> {
        let plan = self.find(batch)?;
        self.complete(plan)
    }

    /// Finds the recorded rows of a batch, those of others too.
    pub(super) fn find(&mut self, batch: &ArrayRef) -> Result<Plan> {
        let mut fingerprints = Vec::new();
        row_fingerprints(std::slice::from_ref(batch), &mut fingerprints)?;
        let Self { task, others, .. } = self;
        let marks = Vec::new();
        task.find(fingerprints, marks, |questions, checks_ambiguity| {
            others.answer(questions, checks_ambiguity)
        })
    }

    /// Calls the function for a plan's live rows and publishes the block.
    pub(super) fn complete(&mut self, plan: Plan) -> Result<Vec<i64>> {
        let first = self.next_value;
        self.next_value += i64::try_from(plan.live.len()).unwrap();
        let live = (!plan.live.is_empty()).then(|| numbers(first..self.next_value));
        let out = self.task.complete(plan, live)?;
        self.log.extend(self.task.take_block());
        Ok(values(&out))
    }

    /// What its function returns next.
    pub(super) const fn next_value(&mut self, value: i64) {
        self.next_value = value;
    }

    pub(super) fn finish(&mut self) -> Result<Summary> {
        self.task.finish()
    }
}
