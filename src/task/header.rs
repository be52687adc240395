//! The header of each generation: written before the first determinant, checked before replay.

use super::divergence::{CODE_ADVICE, Claim, MODE_ADVICE, Standing};
use super::options::{TaskMode, TaskOptions};
use crate::determinant::{Determinant, FORMAT};
use crate::error::{DivergenceKind, Result};

/// What replay needs of a recorded header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Recorded {
    pub(super) mode: u8,
    pub(super) code: u64,
    pub(super) python: String,
    pub(super) label: String,
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
            recorded: format!("{} ({:016x})", other.label, other.code),
            asked: format!("{} ({:016x})", options.label, options.code),
            advice: CODE_ADVICE,
        })),
        _ => Ok(()),
    }
}
