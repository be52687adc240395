//! What there is at a place, for the command line: as JSON.

use std::path::{Path, PathBuf};

use pyo3::prelude::*;
use serde_json::{Value, json};

use super::door::enter;
use super::functions::json as text_of;
use super::location::PyLocation;
use super::stored::{savepoint_report, state_report};
use crate::edge::disk::epochs::Epochs;
use crate::edge::disk::inspection::Inspection;
use crate::error::Result;

/// The argument that names what is looked into.
const PATH: &str = "path";
/// The setting whose epochs are listed.
const CHECKPOINT_DIR: &str = "checkpoint_dir";

/// What is in segments, savepoints and keyed state at a place and below it: JSON. All of it is read.
#[pyfunction]
pub(super) fn inspect(py: Python<'_>, location: &PyLocation) -> PyResult<String> {
    enter(py, || {
        let found = Inspection::open(&location.0, PATH)?;
        let mut problems = found.problems.clone();
        let mut savepoints = Vec::new();
        for folder in &found.savepoints {
            let shown = folder.display();
            match saved(&found, folder, &mut problems) {
                Ok(report) => savepoints.push(report),
                Err(error) => problems.push(format!("{shown}: {error}")),
            }
        }
        let states = if found.has_state { states(&found, &mut problems) } else { Vec::new() };
        let mut segments = Vec::new();
        for path in &found.segments {
            match found.segment(path) {
                Ok(report) => segments.push(report),
                Err(error) => problems.push(format!("{}: {error}", path.display())),
            }
        }
        Ok(json!({ "savepoints": savepoints, "states": states, "segments": segments, "problems": problems })
            .to_string())
    })
}

/// A savepoint; what is damaged of it is a problem.
fn saved(found: &Inspection, folder: &Path, problems: &mut Vec<String>) -> Result<Value> {
    let savepoint = found.savepoint(folder)?;
    problems.extend(savepoint.check().err().map(|error| error.to_string()));
    let mut report = savepoint_report(savepoint.manifest());
    if let Some(report) = report.as_object_mut() {
        report.insert("folder".into(), folder.display().to_string().into());
    }
    Ok(report)
}

/// Keyed state of a checkpoint.
fn states(found: &Inspection, problems: &mut Vec<String>) -> Vec<Value> {
    let stored = match found.stored() {
        Ok(stored) => stored,
        Err(error) => {
            problems.push(error.to_string());
            return Vec::new();
        }
    };
    problems.extend(stored.problems.iter().cloned());
    let mut reports = Vec::new();
    for state in &stored.states {
        match state_report(state) {
            Ok(report) => reports.push(report),
            Err(error) => problems.push(error.to_string()),
        }
    }
    reports
}

/// The epochs of a checkpoint that were not committed.
#[pyclass(name = "Epochs", module = "clonos._core", frozen)]
pub(super) struct PyEpochs(Epochs);

#[pymethods]
impl PyEpochs {
    #[staticmethod]
    fn open(py: Python<'_>, location: &PyLocation) -> PyResult<Self> {
        enter(py, || Ok(Self(Epochs::open(&location.0, CHECKPOINT_DIR)?)))
    }

    /// All of them, those that were written longest ago first: JSON.
    fn list(&self, py: Python<'_>) -> PyResult<String> {
        enter(py, || text_of(&self.0.list()?))
    }

    /// Drops one, by its folder.
    fn drop_epoch(&self, py: Python<'_>, folder: PathBuf) -> PyResult<()> {
        enter(py, || self.0.drop_epoch(&folder))
    }
}
