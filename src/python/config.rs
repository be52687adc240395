//! `SessionConfig`: settings as Python passes them, checked.

use std::collections::BTreeMap;

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::door::quick;
use crate::config::{
    AgentScope, Guarantee, NETWORK_TIMEOUT_MS_DEFAULT, OnAmbiguous, OnLost, STANDBYS_DEFAULT,
    STATE_EPOCHS_DEFAULT, SessionConfig, SpillPolicy,
};
use crate::error::{Error, Result};

/// Settings of a session.
#[pyclass(name = "SessionConfig", module = "clonos._core", frozen)]
#[derive(Clone)]
pub(super) struct PySessionConfig {
    pub(super) config: SessionConfig,
}

fn choice<T>(setting: &str, value: &str, allowed: &[(&str, T)]) -> Result<T>
where
    T: Copy,
{
    allowed.iter().find(|(name, _)| *name == value).map(|(_, choice)| *choice).ok_or_else(|| Error::Config {
        setting: setting.into(),
        reason: format!("{value:?} is not one of its values"),
    })
}

const GUARANTEES: [(&str, Guarantee); 2] =
    [("exactly_once", Guarantee::ExactlyOnce), ("at_least_once", Guarantee::AtLeastOnce)];
const SCOPES: [(&str, AgentScope); 2] = [("executor", AgentScope::Executor), ("host", AgentScope::Host)];
const SPILL_POLICIES: [(&str, SpillPolicy); 4] = [
    ("availability", SpillPolicy::Availability),
    ("eager", SpillPolicy::Eager),
    ("epoch", SpillPolicy::Epoch),
    ("off", SpillPolicy::Off),
];
const ON_LOST: [(&str, OnLost); 2] = [("rollback", OnLost::Rollback), ("at_least_once", OnLost::AtLeastOnce)];
const ON_AMBIGUOUS: [(&str, OnAmbiguous); 2] = [("error", OnAmbiguous::Error), ("any", OnAmbiguous::Any)];

fn name_of<T: PartialEq>(allowed: &'static [(&'static str, T)], value: &T) -> &'static str {
    allowed.iter().find(|(_, choice)| choice == value).map_or("", |(name, _)| name)
}

#[pymethods]
impl PySessionConfig {
    #[new]
    #[pyo3(signature = (*, app_id, secret, driver_addr, driver_socket, local, guarantee, sharing_depth,
        memory_bytes, disk_bytes, spill_policy, clock_resolution_ns, compress_frames, spill_dir, checkpoint_dir, agent_scope, on_lost, on_ambiguous,
        io_timeout_ms, network_timeout_ms = NETWORK_TIMEOUT_MS_DEFAULT, standbys = STANDBYS_DEFAULT,
        state_epochs = STATE_EPOCHS_DEFAULT, agent_ports = (0, 0), encrypt = false, encrypt_spill = false,
        storage_options = BTreeMap::new(), flush_interval_ms = 0))]
    #[expect(clippy::too_many_arguments, reason = "keyword-only, one per setting")]
    fn new(
        py: Python<'_>,
        app_id: String,
        secret: [u8; 32],
        driver_addr: String,
        driver_socket: String,
        local: bool,
        guarantee: &str,
        sharing_depth: u32,
        memory_bytes: u64,
        disk_bytes: u64,
        spill_policy: &str,
        clock_resolution_ns: u64,
        compress_frames: bool,
        spill_dir: Option<String>,
        checkpoint_dir: Option<String>,
        agent_scope: &str,
        on_lost: &str,
        on_ambiguous: &str,
        io_timeout_ms: u64,
        network_timeout_ms: u64,
        standbys: u32,
        state_epochs: u32,
        agent_ports: (u16, u16),
        encrypt: bool,
        encrypt_spill: bool,
        storage_options: BTreeMap<String, String>,
        flush_interval_ms: u64,
    ) -> PyResult<Self> {
        quick(py, || {
            let config = SessionConfig {
                app_id,
                secret,
                driver_addr,
                driver_socket,
                local,
                guarantee: choice("guarantee", guarantee, &GUARANTEES)?,
                sharing_depth,
                standbys,
                state_epochs,
                memory_bytes,
                disk_bytes,
                spill_policy: choice("spill_policy", spill_policy, &SPILL_POLICIES)?,
                clock_resolution_ns,
                compress_frames,
                spill_dir,
                checkpoint_dir,
                storage_options,
                flush_interval_ms,
                agent_scope: choice("agent_scope", agent_scope, &SCOPES)?,
                on_lost: choice("on_lost", on_lost, &ON_LOST)?,
                on_ambiguous: choice("on_ambiguous", on_ambiguous, &ON_AMBIGUOUS)?,
                io_timeout_ms,
                network_timeout_ms,
                agent_ports,
                encrypt,
                encrypt_spill,
                // Set by each agent for itself.
                host_label: String::new(),
            };
            config.validate()?;
            Ok(Self { config })
        })
    }

    #[staticmethod]
    fn from_bytes(py: Python<'_>, data: &[u8]) -> PyResult<Self> {
        quick(py, || Ok(Self { config: SessionConfig::from_bytes(data)? }))
    }

    fn to_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &quick(py, || self.config.to_bytes())?))
    }

    fn with_driver_addr(&self, addr: String) -> Self {
        Self { config: SessionConfig { driver_addr: addr, ..self.config.clone() } }
    }

    fn with_host_label(&self, label: String) -> Self {
        Self { config: SessionConfig { host_label: label, ..self.config.clone() } }
    }

    #[getter]
    fn app_id(&self) -> &str {
        &self.config.app_id
    }

    #[getter]
    const fn local(&self) -> bool {
        self.config.local
    }

    #[getter]
    fn driver_addr(&self) -> &str {
        &self.config.driver_addr
    }

    #[getter]
    fn driver_socket(&self) -> &str {
        &self.config.driver_socket
    }

    #[getter]
    fn guarantee(&self) -> &'static str {
        name_of(&GUARANTEES, &self.config.guarantee)
    }

    #[getter]
    const fn agent_ports(&self) -> (u16, u16) {
        self.config.agent_ports
    }

    #[getter]
    const fn sharing_depth(&self) -> u32 {
        self.config.sharing_depth
    }

    #[getter]
    const fn standbys(&self) -> u32 {
        self.config.standbys
    }

    #[getter]
    fn spill_policy(&self) -> &'static str {
        name_of(&SPILL_POLICIES, &self.config.spill_policy)
    }

    #[getter]
    fn agent_scope(&self) -> &'static str {
        name_of(&SCOPES, &self.config.agent_scope)
    }

    #[getter]
    fn on_lost(&self) -> &'static str {
        name_of(&ON_LOST, &self.config.on_lost)
    }

    #[getter]
    const fn encrypt(&self) -> bool {
        self.config.encrypt
    }

    #[getter]
    const fn encrypt_spill(&self) -> bool {
        self.config.encrypt_spill
    }

    #[getter]
    fn checkpoint_dir(&self) -> Option<&str> {
        self.config.checkpoint_dir.as_deref()
    }

    fn __repr__(&self) -> String {
        format!("{:?}", self.config)
    }
}
