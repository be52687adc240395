//! The header of each generation: written before the first determinant, checked before replay.

use std::collections::HashMap;

use bytes::Bytes;

use super::divergence::{CODE_ADVICE, Claim, MODE_ADVICE, Standing};
use super::options::{TaskMode, TaskOptions};
use crate::determinant::{BlockBuilder, BlockReader, Determinant, FORMAT};
use crate::error::{DivergenceKind, Result};

/// What replay needs of a recorded header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Recorded {
    pub(super) mode: u8,
    pub(super) code: u64,
    pub(super) python: String,
    pub(super) label: String,
    pub(super) stage: u32,
    pub(super) app: u64,
    /// How many rows stand before it.
    pub(super) before: usize,
}

/// Whether several stages of one run have written the log: Spark computed the same column in each, and
/// none of them need have seen all rows.
pub(super) fn of_several_stages(headers: &[Recorded], options: &TaskOptions) -> bool {
    let ours = (options.app, options.stage);
    let mut stages = headers.iter().map(|header| (header.app, header.stage)).chain([ours]);
    let Some(mut before) = stages.next() else { return false };
    stages.any(|stage| {
        let several = stage.0 == before.0 && stage.1 != before.1;
        before = stage;
        several
    })
}

/// Whether this stage wrote the log, and did not only take it over.
pub(super) fn of_this_stage(headers: &[Recorded], options: &TaskOptions) -> bool {
    headers.iter().any(|header| (header.app, header.stage) == (options.app, options.stage))
}

/// How many rows of a log of `rows` were recorded before this stage wrote it.
pub(super) fn before_this_stage(headers: &[Recorded], options: &TaskOptions, rows: usize) -> usize {
    let ours = headers.iter().find(|header| (header.app, header.stage) == (options.app, options.stage));
    ours.map_or(rows, |header| header.before)
}

/// This attempt's header.
pub(super) fn ours(options: &TaskOptions) -> Determinant<'_> {
    Determinant::Header {
        format: FORMAT,
        mode: options.mode.code(),
        code: options.code,
        python: &options.python,
        label: &options.label,
        stage: options.stage,
        app: options.app,
    }
}

/// The block that opens the log of a table of answers.
///
/// # Errors
/// None; see [`BlockBuilder::push`].
pub fn values_header(options: &TaskOptions) -> Result<Bytes> {
    let mut builder = BlockBuilder::new();
    builder.push(&ours(options))?;
    Ok(builder.finish())
}

/// Refuses a block of a table of answers that other code recorded.
///
/// # Errors
/// [`Error::Divergence`](crate::error::Error::Divergence); damaged blocks.
pub fn check_values_header(options: &TaskOptions, block: &Bytes) -> Result<()> {
    for determinant in BlockReader::new(block)? {
        if let Determinant::Header { mode, code, python, label, stage, app, .. } = determinant? {
            let (python, label) = (python.to_owned(), label.to_owned());
            let header = Recorded { mode, code, python, label, stage, app, before: 0 };
            check(&[header], options, &mut Standing::new(options.task.clone()))?;
        }
    }
    Ok(())
}

/// What a table of answers that other code recorded, of which this is the first block, says of that: the name of its
/// function, and what is another one in it now. `None` if it is no such table, or has a lambda's answers where other code
/// need not be that lambda's.
///
/// # Errors
/// Damaged blocks.
pub fn recorded_by_other_code(options: &TaskOptions, block: &Bytes) -> Result<Option<String>> {
    for determinant in BlockReader::new(block)? {
        let Determinant::Header { code, python, label, .. } = determinant? else { continue };
        let is_comparable = python == options.python && name_of(label) == name_of(&options.label);
        let changed = changed(label, &options.label);
        let is_unsure = label.contains(LAMBDA) && (changed.is_empty() || changed.contains(CODE));
        return Ok((is_comparable && code != options.code && !is_unsure)
            .then(|| format!("{} ({code:016x}){changed}", name_of(label))));
    }
    Ok(None)
}

/// Refuses a log of another mode, or of other code.
///
/// Only the newest header written by our Python version counts for the code: an older one that
/// differs was accepted when the newer one was written.
pub(super) fn check(headers: &[Recorded], options: &TaskOptions, standing: &mut Standing) -> Result<()> {
    let mode = options.mode.code();
    if let Some(other) = headers.iter().find(|h| h.mode != mode) {
        return Err(standing.diverge(Claim {
            kind: DivergenceKind::ModeChanged,
            row: None,
            recorded: TaskMode::name(other.mode).to_owned(),
            asked: TaskMode::name(mode).to_owned(),
            advice: MODE_ADVICE,
        }));
    }
    if options.allow_code_change {
        return Ok(());
    }
    match headers.iter().rev().find(|h| h.python == options.python) {
        Some(other) if other.code != options.code => Err(standing.diverge(Claim {
            kind: DivergenceKind::CodeChanged,
            row: None,
            recorded: format!("{} ({:016x})", name_of(&other.label), other.code),
            asked: format!(
                "{} ({:016x}){}",
                name_of(&options.label),
                options.code,
                changed(&other.label, &options.label)
            ),
            advice: CODE_ADVICE,
        })),
        // Where nothing is recorded here: else other code would go on in the place of that of the other partitions.
        None if let Some(code) = options.replaces => Err(standing.diverge(Claim {
            kind: DivergenceKind::CodeChanged,
            row: None,
            recorded: format!("{} ({code:016x}), in other partitions", name_of(&options.label)),
            asked: format!("{} ({:016x})", name_of(&options.label), options.code),
            advice: CODE_ADVICE,
        })),
        _ => Ok(()),
    }
}

/// Between a label's name and the parts of the function, between these, and between a part and its hash.
const PARTS: char = '\u{1}';
const NEXT: char = '\u{2}';
const HASH: char = '=';

/// The part of a function that is its bytecode.
const CODE: &str = "its code";
/// What Python calls a function without a name.
const LAMBDA: &str = "<lambda>";

/// What the user calls the function.
fn name_of(label: &str) -> &str {
    label.split(PARTS).next().unwrap_or_default()
}

fn parts(label: &str) -> impl Iterator<Item = (&str, &str)> {
    let parts = label.split_once(PARTS).map_or("", |(_, parts)| parts);
    parts.split(NEXT).filter_map(|part| part.rsplit_once(HASH))
}

/// Which parts of a function are others than when it was recorded, as far as labels tell.
fn changed(recorded: &str, asked: &str) -> String {
    let before: HashMap<&str, &str> = parts(recorded).collect();
    let others = parts(asked).filter(|(part, hash)| before.get(part).is_some_and(|known| known != hash));
    let others: Vec<&str> = others.map(|(part, _)| part).collect();
    if others.is_empty() { String::new() } else { format!(", of which this changed: {}", others.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{Epoch, Partition, TaskId};

    #[test]
    fn a_table_by_other_code_is_told_from_one_of_another_function() {
        let options = |label: &str, code| {
            let task = TaskId {
                query: "q".into(),
                operator: "f".into(),
                epoch: Epoch::Batch(1),
                partition: Partition(0),
            };
            let mut options = TaskOptions::new(task, TaskMode::Values, code);
            (options.python, options.label) = ("3.12".to_owned(), label.to_owned());
            options
        };
        let told = |recorded: &str, asked: TaskOptions| {
            recorded_by_other_code(&asked, &values_header(&options(recorded, 1)).unwrap()).unwrap()
        };
        let (one, other) = ("f\u{1}its code=aa\u{2}global RUN=01", "f\u{1}its code=aa\u{2}global RUN=02");
        let changed = "f (0000000000000001), of which this changed: global RUN";
        assert_eq!(told(one, options(other, 2)).as_deref(), Some(changed));
        assert_eq!(told(one, options(other, 1)), None);
        assert_eq!(told("g", options("f", 2)), None);
        assert_eq!(told(one, TaskOptions { python: "3.13".to_owned(), ..options(other, 2) }), None);
        let lambda = |label: &str| label.replace("f\u{1}", "<lambda>\u{1}");
        assert!(told(&lambda(one), options(&lambda(other), 2)).is_some());
        let other = lambda(other).replace("=aa", "=bb");
        assert_eq!(told(&lambda(one), options(&other, 2)), None);
    }

    #[test]
    fn a_change_is_named_by_the_parts_that_changed() {
        let recorded = "shop.score\u{1}its code=aa\u{2}global PROMPT=01\u{2}variable =x=02\u{2}gone=03";
        let asked = "shop.score\u{1}its code=aa\u{2}global PROMPT=ff\u{2}variable =x=fe\u{2}new=04";
        assert_eq!(name_of(asked), "shop.score");
        assert_eq!(changed(recorded, asked), ", of which this changed: global PROMPT, variable =x");
        for (one, other) in [(recorded, "shop.score"), ("shop.score", asked), ("", ""), (asked, asked)] {
            assert_eq!(changed(one, other), "");
        }
    }
}
