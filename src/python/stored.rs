//! State that lies in files: checked before a query begins with it, and read by those who look at it.

use std::sync::{Arc, Mutex};

use arrow_array::{Int32Array, Int64Array};
use arrow_schema::{Fields, Schema};
use pyo3::prelude::*;
use pyo3_arrow::PySchema;
use serde_json::{Value, json};

use super::arrays::to_pyarrow;
use super::door::enter;
use super::location::PyLocation;
use super::lock;
use super::state_task::{Declaration, STATE_FROM, variable};
use crate::edge::disk::Location;
use crate::edge::disk::savepoint::{Manifest, SavedState, Savepoint};
use crate::edge::disk::stored::{Rows, Stored, StoredState};
use crate::error::{Error, Result};
use crate::state::catalog::{Catalog, Variable};
use crate::state::codec::NamedFields;
use crate::state::table::Shown;

/// The option that names what is read.
const PATH: &str = "path";

/// A savepoint for people: JSON.
pub(super) fn savepoint_report(manifest: &Manifest) -> Value {
    let of = |state: &SavedState| {
        json!({
            "operator": state.uid(),
            "version": state.version,
            "keys": state.sum(|range| range.keys),
            "entries": state.sum(|range| range.entries - range.timers),
            "timers": state.sum(|range| range.timers),
            "bytes": state.sum(|range| range.bytes),
            "variables": Catalog::decode(&state.catalog).as_ref().map(variables).unwrap_or_default(),
        })
    };
    json!({
        "query": manifest.query,
        "epoch": manifest.epoch,
        "made_ms": manifest.made_ms,
        "made_by": manifest.made_by,
        "states": manifest.states.iter().map(of).collect::<Vec<_>>(),
    })
}

fn variables(catalog: &Catalog) -> Vec<Value> {
    let fields = |fields: &Fields| NamedFields(fields).to_string();
    let of = |variable: Variable| {
        json!({
            "name": variable.name,
            "kind": variable.kind.word(),
            "user_key": variable.user_key.as_ref().map(fields),
            "value": fields(&variable.value),
            "ttl_ms": variable.ttl_ms,
        })
    };
    catalog.variables().map(|(_, variable)| of(variable)).collect()
}

/// Checks that an operator can begin with what a savepoint holds of it; returns what tells the savepoint from others.
#[pyfunction]
pub(super) fn check_savepoint(
    py: Python<'_>,
    location: &PyLocation,
    uid: &str,
    keys: PySchema,
    variables: Vec<Declaration>,
    deleted: Vec<String>,
) -> PyResult<u64> {
    let keys = keys.into_inner().fields().clone();
    let variables = variables.into_iter().map(variable).collect::<PyResult<Vec<_>>>()?;
    enter(py, || {
        let savepoint = Savepoint::open(location.0.clone(), STATE_FROM)?;
        let place = savepoint.find(uid, STATE_FROM)?;
        Catalog::open(&savepoint.state(place)?.catalog, &keys, &variables, &deleted)?;
        Ok(savepoint.mark())
    })
}

/// The state of a checkpoint for people. All of it is read.
pub(super) fn state_report(state: &StoredState) -> Result<Value> {
    let Some(version) = state.versions.last() else { return Ok(json!({ "operator": state.uid() })) };
    let (catalog, figures) = (state.catalog(*version)?, state.figures(*version)?);
    Ok(json!({
        "query": &*state.id.query,
        "operator": state.uid(),
        "versions": state.versions,
        "keys": figures.keys,
        "entries": figures.entries,
        "timers": figures.timers,
        "bytes": figures.bytes,
        "variables": variables(&catalog),
        "folder": state.place(),
    }))
}

/// Finds the state and the version that are meant, and what is shown of it: without a variable, timers.
fn looking_at<T>(
    location: &Location,
    (query, operator): (Option<&str>, Option<&str>),
    version: Option<u64>,
    variable: Option<&str>,
    look: impl FnOnce(&StoredState, u64, &Catalog, Shown) -> Result<T>,
) -> Result<T> {
    let stored = Stored::open(location.clone(), PATH)?;
    let state = stored.find(query, operator)?;
    let version = state.version(version)?;
    let catalog = state.catalog(version)?;
    let shown = match variable {
        None => Shown::Timers,
        Some(name) => Shown::variable(&catalog, name)
            .map_err(|reason| Error::Config { setting: "stateVarName".into(), reason })?,
    };
    look(state, version, &catalog, shown)
}

/// Version; schemas of the key, of user keys and of values; kind; whether values have a TTL.
type Described = (u64, PySchema, Option<PySchema>, Option<PySchema>, Option<&'static str>, bool);

/// What a variable's columns are; of timers without one.
#[pyfunction]
#[pyo3(signature = (location, query=None, operator=None, version=None, variable=None))]
pub(super) fn stored_schema(
    py: Python<'_>,
    location: &PyLocation,
    query: Option<String>,
    operator: Option<String>,
    version: Option<u64>,
    variable: Option<String>,
) -> PyResult<Described> {
    enter(py, || {
        let schema = |fields: &Fields| PySchema::from(Arc::new(Schema::new(fields.clone())));
        let meant = (query.as_deref(), operator.as_deref());
        looking_at(&location.0, meant, version, variable.as_deref(), |_, version, catalog, shown| {
            Ok(match shown {
                Shown::Timers => (version, schema(catalog.keys()), None, None, None, false),
                Shown::Variable(_, variable) => (
                    version,
                    schema(catalog.keys()),
                    variable.user_key.as_ref().map(schema),
                    Some(schema(&variable.value)),
                    Some(variable.kind.word()),
                    variable.ttl_ms != 0,
                ),
            })
        })
    })
}

/// Rows of a state in some ranges, some keys at a time.
#[pyclass(name = "StateRows", module = "clonos._core", frozen)]
pub(super) struct PyStateRows(Mutex<Rows>);

/// Keys, where the rows of each begin, user keys, values, times.
type Chunk = (Py<PyAny>, Py<PyAny>, Option<Py<PyAny>>, Option<Py<PyAny>>, Py<PyAny>);

#[pymethods]
impl PyStateRows {
    #[staticmethod]
    #[pyo3(signature = (location, *, query, operator, version, variable, first, last))]
    #[expect(clippy::too_many_arguments, reason = "all are keywords")]
    fn open(
        py: Python<'_>,
        location: &PyLocation,
        query: Option<String>,
        operator: Option<String>,
        version: Option<u64>,
        variable: Option<String>,
        first: u8,
        last: u8,
    ) -> PyResult<Self> {
        enter(py, || {
            let meant = (query.as_deref(), operator.as_deref());
            let rows =
                looking_at(&location.0, meant, version, variable.as_deref(), |state, version, _, shown| {
                    state.rows(version, shown, first..=last)
                })?;
            Ok(Self(Mutex::new(rows)))
        })
    }

    fn next(&self, py: Python<'_>) -> PyResult<Option<Chunk>> {
        let Some(table) = enter(py, || lock(&self.0).next())? else { return Ok(None) };
        let offsets = Arc::new(Int32Array::from(table.offsets));
        let optional = |rows: Option<arrow_array::StructArray>| {
            rows.map(|rows| to_pyarrow(py, Arc::new(rows))).transpose()
        };
        Ok(Some((
            to_pyarrow(py, Arc::new(table.keys))?,
            to_pyarrow(py, offsets)?,
            optional(table.user_keys)?,
            optional(table.values)?,
            to_pyarrow(py, Arc::new(Int64Array::from(table.times)))?,
        )))
    }
}
