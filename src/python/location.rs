//! `Location`: a folder, or a prefix of an object store, that is looked into or written to.

use std::collections::BTreeMap;
use std::path::PathBuf;

use pyo3::prelude::*;

use super::config::PySessionConfig;
use crate::edge::disk::Location;

/// A folder or a URL, and what its store is told. `repr` shows nothing that is secret.
#[pyclass(name = "Location", module = "clonos._core", frozen)]
pub(super) struct PyLocation(pub(super) Location);

#[pymethods]
impl PyLocation {
    #[new]
    #[pyo3(signature = (path, session=None, options=BTreeMap::new(), encrypt=false))]
    fn new(
        path: PathBuf,
        session: Option<&PySessionConfig>,
        options: BTreeMap<String, String>,
        encrypt: bool,
    ) -> Self {
        let location = match session {
            Some(session) => Location::of_session(path, &session.config),
            None => Location::new(path, options),
        };
        Self(if encrypt { location.encrypted() } else { location })
    }

    fn __repr__(&self) -> String {
        format!("{:?}", self.0)
    }
}
