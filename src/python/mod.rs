//! The Python face of the core: the only place that knows PyO3.
//!
//! Classes are thin and frozen; what they wrap is behind a mutex, and every call that may wait or work
//! goes through [`door::enter`], which gives up the interpreter lock and turns panics and errors into
//! exceptions of `clonos.errors`.

mod agent;
mod allocator;
mod arrays;
mod client;
mod config;
mod door;
mod error;
mod exchange;
mod functions;
mod gathered_rows;
mod inspection;
mod lists;
mod location;
mod outputs;
mod result_task;
mod service_task;
mod source;
mod state_backend;
mod state_task;
mod stored;
mod traces;
mod value_task;

use pyo3::prelude::*;

/// Module `clonos._core`.
#[pymodule(gil_used = false)]
mod _core {
    #[pymodule_export]
    use super::agent::PyAgent;
    #[pymodule_export]
    use super::client::PyClient;
    #[pymodule_export]
    use super::config::PySessionConfig;
    #[pymodule_export]
    use super::exchange::{PyStage, partition_ids};
    #[pymodule_export]
    use super::functions::{
        build_profile, bytes_fingerprint, cluster_stats, ensure_agent, memory_within, row_fingerprints,
        run_executor_agent, try_checkpoint,
    };
    #[pymodule_export]
    use super::gathered_rows::PyGatheredRows;
    #[pymodule_export]
    use super::inspection::{PyEpochs, inspect};
    #[pymodule_export]
    use super::lists::plain_array;
    #[pymodule_export]
    use super::location::PyLocation;
    #[pymodule_export]
    use super::outputs::PyOutputs;
    #[pymodule_export]
    use super::result_task::{PyPlan, PyResultTask};
    #[pymodule_export]
    use super::service_task::PyServiceTask;
    #[pymodule_export]
    use super::source::{PySourceClient, PySourceReceiver};
    #[pymodule_export]
    use super::state_task::{PyLocalState, PyStateTask};
    #[pymodule_export]
    use super::stored::{PyStateRows, check_savepoint, stored_schema};
    #[pymodule_export]
    use super::value_task::PyValueTask;

    #[pymodule_init]
    fn init(module: &pyo3::Bound<'_, pyo3::types::PyModule>) -> pyo3::PyResult<()> {
        super::client::let_go_when_forked(module)
    }
}

/// A mutex whose holder may have panicked: the state machines inside refuse by themselves after a
/// failure, so the lock itself need not.
fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
