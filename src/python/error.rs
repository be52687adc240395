//! Errors of the core as exceptions of `clonos.errors`.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::error::Error;

/// Name of the exception class for an error.
const fn class_of(error: &Error) -> &'static str {
    match error {
        Error::Divergence(_) => "ReplayDivergence",
        Error::CausalLogLost { .. } => "CausalLogLost",
        Error::Fenced { .. } | Error::AttemptUnknown { .. } | Error::StaleFrame { .. } => "Fenced",
        Error::InputCutShort { .. } => "InputCutShort",
        Error::UpstreamChanged { .. } => "UpstreamChanged",
        Error::InconsistentEpoch { .. } => "InconsistentEpoch",
        Error::StateIncomplete { .. } => "StateIncomplete",
        Error::StateLost { .. } => "StateLost",
        Error::SourceInUse { .. } => "SourceInUse",
        Error::OperatorUsedTwice { .. } | Error::PartitionComputedTwice { .. } => "OperatorUsedTwice",
        Error::LogGap { .. }
        | Error::LogFork { .. }
        | Error::CorruptBlock { .. }
        | Error::CorruptLog { .. }
        | Error::CorruptSegment { .. }
        | Error::CorruptSpill { .. }
        | Error::CorruptFrame { .. }
        | Error::CorruptState { .. }
        | Error::SourceTruncated { .. }
        | Error::UnsupportedVersion { .. } => "CorruptLog",
        Error::DiskBudget { .. }
        | Error::DiskFull { .. }
        | Error::MemoryBudget { .. }
        | Error::ListBudget { .. } => "ResourceExhausted",
        Error::Config { .. } => "ConfigError",
        Error::UnsupportedType { .. } => "UnsupportedType",
        Error::ForkedProcess { .. } => "ForkedProcess",
        Error::AuthRefused { .. } | Error::EncryptionDiffers { .. } => "AuthRefused",
        Error::Timeout { .. } => "AgentTimeout",
        Error::AgentUnreachable { .. } | Error::Protocol { .. } => "AgentError",
        _ => "ClonosError",
    }
}

/// The exception for an error; its `condition` is the error's.
pub(super) fn to_py(py: Python<'_>, error: &Error) -> PyErr {
    let text = for_people(&error.to_string());
    let made = || -> PyResult<PyErr> {
        let class = py.import("clonos.errors")?.getattr(class_of(error))?;
        Ok(PyErr::from_value(class.call1((text.as_str(), error.condition()))?))
    };
    made().unwrap_or_else(|_| PyRuntimeError::new_err(text.clone()))
}

/// Without the ends of the names that tell an operator's logs apart, which begin with a control character.
fn for_people(text: &str) -> String {
    let mut parts = text.split('\u{1}');
    let first = parts.next().unwrap_or_default().to_owned();
    let rest = parts.map(|part| part.trim_start_matches(|c: char| c.is_ascii_alphanumeric()));
    rest.fold(first, |text, part| text + part)
}
