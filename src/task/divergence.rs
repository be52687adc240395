//! How a machine ends: finished, or diverged for good.

use arrow_schema::DataType;

use super::matcher::Ambiguous;
use super::options::TaskOptions;
use crate::error::{Divergence, DivergenceKind, Error, Result};
use crate::id::TaskId;

pub(super) const MODE_ADVICE: &str = "run this epoch again with the record= it was recorded with, or give the \
     operator another uid. uuid() and rand() are recorded by value behind a shuffle, and by partition elsewhere: of \
     two queries over one frame Spark may leave its shuffle out of one, as a join that this does not need; give the \
     frame a shuffle by columns";
pub(super) const CODE_ADVICE: &str = "finish this epoch with the code it was recorded with, or accept \
     the change with @causal(..., allow_code_change=True): rows that were answered keep their answers, \
     the others get the new code's. A function that is new, beside the one that recorded, gets a name of its own: uid=";
pub(super) const KEY_ADVICE: &str =
    "give row_key= columns that tell the rows apart, or set on_ambiguous=\"any\"";
const ORDER_ADVICE: &str = "rows with equal arguments are told apart by the columns that are read of them, or by their \
     order. This query reads other columns than the one that recorded, or one that is another in each run, and equal \
     arguments come side by side, so that their rows may have traded places; or a filter, a join or a limit below the \
     function has it see other rows: give row_key= columns that tell the rows apart, call the function below the filter, \
     read the frame once and cache it, or set on_ambiguous=\"any\"";
const PARTITIONS_ADVICE: &str = "Spark has cut the rows into another number of partitions than was recorded, or into \
     as many with other borders, as spark.sql.adaptive.enabled lets it do by itself; or this query reads other columns of \
     the frame, as a count does, by which repartition(n) deals its rows otherwise; or a union (exceptAll, intersectAll) of a frame with itself has \
     asked its rows on both sides: give row_key= columns that tell the rows apart, keep the number \
     (spark.sql.adaptive.coalescePartitions.enabled=false), behind a shuffle ask for all rows of the frame alone before \
     the union, give each use of the function a name of its own with .with_uid(...), or set on_ambiguous=\"any\"";
const USES_ADVICE: &str = "which use of this function had which log is not known, so all were searched: \
     give each use a name of its own with .with_uid(...), and each query a call of its own, give row_key= columns that \
     tell the rows apart, or set on_ambiguous=\"any\"";
pub(super) const ROWS_ADVICE: &str = "the input of an epoch must be the same at replay: make its \
     source and what runs before this operator deterministic or causal";
const TYPE_ADVICE: &str = "finish this epoch with the return type it was recorded with";
pub(super) const SERVICE_ADVICE: &str = "between the services it asks, the function must decide by \
     its arguments and what the services gave only; take other input from a causal service";
pub(super) const LAYOUT_ADVICE: &str = "run this epoch with the number of tasks it was recorded with, and the same \
     borders between them (a stateful stream ends its batch with the spark.sql.shuffle.partitions that it began with, and \
     has another number from the next one on); or, for a UDF, use record=\"result\". Which rows are in a task Spark may decide by which columns a \
     query reads, as it joins, and reads partitions together, by these: a shuffle by columns with a number, \
     repartition(n, \"id\"), fixes it. RDDs of one function are told apart by the order in which they are made within the \
     epoch, the same in each run";

/// What a divergence is about.
#[derive(Debug)]
pub(super) struct Claim {
    pub(super) kind: DivergenceKind,
    pub(super) row: Option<u64>,
    pub(super) recorded: String,
    pub(super) asked: String,
    pub(super) advice: &'static str,
}

/// Equal rows had other values, and which is which is not known.
pub(super) fn ambiguous_rows(found: Ambiguous, options: &TaskOptions, doubts_order: bool) -> Claim {
    let (how, advice) = match options {
        TaskOptions { uncertain: true, .. } => ("of one of several uses", USES_ADVICE),
        TaskOptions { layout_changed: true, .. } => ("of another number of partitions", PARTITIONS_ADVICE),
        TaskOptions { pooled: true, .. } | TaskOptions { dealt: true, .. } => {
            ("of other partitions, or of another use", PARTITIONS_ADVICE)
        }
        _ if doubts_order => {
            ("in a query of other columns or rows, in an order that does not tell", ORDER_ADVICE)
        }
        _ => ("in another order", KEY_ADVICE),
    };
    Claim {
        kind: DivergenceKind::AmbiguousRows,
        row: Some(found.row),
        recorded: format!("equal rows with different values, one at {} of the log", found.position),
        asked: format!("{}, {how}", row_name(found.row, found.fingerprint)),
        advice,
    }
}

/// A function's results are of another type than those that are recorded.
pub(super) fn type_changed(row: u64, recorded: &DataType, asked: &DataType) -> Claim {
    Claim {
        kind: DivergenceKind::TypeChanged,
        row: Some(row),
        recorded: format!("values of type {recorded}"),
        asked: format!("values of type {asked}"),
        advice: TYPE_ADVICE,
    }
}

/// Whether a machine may go on. A machine that diverged repeats its error on every later call, so
/// that a host that caught it can't mix recorded and live values.
#[derive(Debug)]
pub(super) struct Standing {
    task: TaskId,
    finished: bool,
    failed: Option<Box<Divergence>>,
}

impl Standing {
    pub(super) const fn new(task: TaskId) -> Self {
        Self { task, finished: false, failed: None }
    }

    /// Refuses to go on after a divergence or the end.
    pub(super) fn check(&self) -> Result<()> {
        if let Some(divergence) = &self.failed {
            return Err(Error::Divergence(divergence.clone()));
        }
        if self.finished {
            return misuse("the attempt is finished".to_owned());
        }
        Ok(())
    }

    /// The divergence, if there was one.
    pub(super) fn failed(&self) -> Option<&Divergence> {
        self.failed.as_deref()
    }

    /// No more calls are expected.
    pub(super) const fn finish(&mut self) {
        self.finished = true;
    }

    /// The error to return, now and from here on.
    pub(super) fn diverge(&mut self, claim: Claim) -> Error {
        let Claim { kind, row, recorded, asked, advice } = claim;
        let (task, advice) = (self.task.clone(), advice.to_owned());
        let divergence = Box::new(Divergence { kind, task, row, recorded, asked, advice });
        self.failed = Some(divergence.clone());
        Error::Divergence(divergence)
    }
}

/// A row as errors name it.
pub(super) fn row_name(row: u64, fingerprint: u64) -> String {
    format!("row {row} (fingerprint {fingerprint:016x})")
}

/// The host broke the machine's rules.
pub(super) fn misuse<T>(what: String) -> Result<T> {
    Err(Error::Misuse { what })
}
