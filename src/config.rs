//! Settings of a session: what the driver tells every task and agent.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::agent::protocol::PROTOCOL_VERSION;
use crate::error::{Error, Result};

/// Least memory an agent works with.
pub const MEMORY_BYTES_MIN: u64 = 1 << 20;
/// Default memory of an agent.
pub const MEMORY_BYTES_DEFAULT: u64 = 512 << 20;
/// Default disk budget of an agent.
pub const DISK_BYTES_DEFAULT: u64 = 16 << 30;
/// Default time to wait for an agent.
pub const IO_TIMEOUT_MS_DEFAULT: u64 = 10_000;
/// Default time without the driver after which an agent ends: Spark's own.
pub const NETWORK_TIMEOUT_MS_DEFAULT: u64 = 120_000;
/// Default resolution of `clonos.time()`.
pub const CLOCK_RESOLUTION_NS_DEFAULT: u64 = 1_000_000;
/// Default number of standbys of each range of keyed state.
pub const STANDBYS_DEFAULT: u32 = 1;
/// Default number of epochs of keyed state that are kept in `checkpoint_dir`: as many as Spark keeps.
pub const STATE_EPOCHS_DEFAULT: u32 = 100;
/// Sharing depth that means every agent there is.
pub const FULL_DEPTH: u32 = u32::MAX;

/// What is promised when something fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
pub enum Guarantee {
    /// Determinants are recorded and replayed.
    #[default]
    ExactlyOnce,
    /// Nothing is recorded: what runs again decides again.
    AtLeastOnce,
}

/// How many agents there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
pub enum AgentScope {
    /// One per executor, sharing its fate.
    #[default]
    Executor,
    /// One per host and application.
    Host,
}

/// When frames of the in-flight log go to disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
pub enum SpillPolicy {
    /// When half of the memory is in use, oldest first.
    #[default]
    Availability,
    /// At once.
    Eager,
    /// When a later epoch has begun; before, only if memory runs out.
    Epoch,
    /// There is no in-flight log.
    Off,
}

/// What to do when a published log can be read nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
pub enum OnLost {
    /// Leave it to Spark's global recovery.
    #[default]
    Rollback,
    /// Go on live.
    AtLeastOnce,
}

/// What to do when rows that look alike had different answers and came in another order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
pub enum OnAmbiguous {
    /// Raise.
    #[default]
    Error,
    /// Take them in the recorded order.
    Any,
}

/// What both sides of a connection must have in common. `Debug` leaves the secret out.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Credentials {
    /// Proves that the other side belongs here.
    pub secret: [u8; 32],
    /// Whether what crosses between hosts is encrypted.
    pub encrypt: bool,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("encrypt", &self.encrypt).finish_non_exhaustive()
    }
}

/// Settings of one application. `Debug` leaves out all that is secret.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionConfig {
    /// Spark's application id, with what tells it from another one of that id: a driver that was started again.
    pub app_id: String,
    /// Shared by all agents and workers of the application.
    pub secret: [u8; 32],
    /// `ip:port` of the driver's agent.
    pub driver_addr: String,
    /// Unix socket of the driver's agent.
    pub driver_socket: String,
    /// Whether workers run beside the driver (`local[*]`) and use its agent.
    pub local: bool,
    /// Guarantee level. Since 0.1.
    pub guarantee: Guarantee,
    /// Other agents that hold each log; default 1, [`FULL_DEPTH`] for all. Since 0.1.
    pub sharing_depth: u32,
    /// Other agents that hold each range of keyed state; default 1, [`FULL_DEPTH`] for all. Since 0.2.
    pub standbys: u32,
    /// Epochs of keyed state that are kept in `checkpoint_dir`, so that a query can go back to any of them:
    /// `spark.sql.streaming.minBatchesToRetain`, default 100, minimum 1. Since 0.2.
    pub state_epochs: u32,
    /// Bytes of logs in memory per agent; default 512 MiB, minimum 1 MiB. Since 0.1.
    pub memory_bytes: u64,
    /// Bytes of spilled logs per agent; default 16 GiB. Since 0.1.
    pub disk_bytes: u64,
    /// When frames go to disk. Since 0.1.
    pub spill_policy: SpillPolicy,
    /// Nanoseconds between two different readings of the clock; default 1 ms, 0 for each reading as it
    /// is. Since 0.1.
    pub clock_resolution_ns: u64,
    /// Whether frames are compressed with LZ4; default yes. Since 0.1.
    pub compress_frames: bool,
    /// Folder for spilled logs; default the system's temporary folder. Since 0.1.
    pub spill_dir: Option<String>,
    /// Folder for segments that survive everything; default none. Since 0.1.
    pub checkpoint_dir: Option<String>,
    /// What the object store of `checkpoint_dir` is told beside its URL, credentials among them; default nothing.
    /// Since 0.2.
    pub storage_options: BTreeMap<String, String>,
    /// Milliseconds from one write of an agent to `checkpoint_dir` to the next; default 0, so that each follows on the
    /// one before. Since 0.2.
    pub flush_interval_ms: u64,
    /// Scope of agents. Since 0.1.
    pub agent_scope: AgentScope,
    /// What a lost log leads to. Since 0.1.
    pub on_lost: OnLost,
    /// What ambiguous rows lead to. Since 0.1.
    pub on_ambiguous: OnAmbiguous,
    /// Milliseconds before a silent agent is given up; default 10,000, minimum 100. Since 0.1.
    pub io_timeout_ms: u64,
    /// Milliseconds without the driver after which an agent ends: `spark.network.timeout`, default 120,000.
    /// Since 0.1.
    pub network_timeout_ms: u64,
    /// Ports that agents listen on, the first and the last; default any, which is 0 and 0. Since 0.2.
    pub agent_ports: (u16, u16),
    /// Whether what agents send each other is encrypted; default no: `attach` says what Spark does. Since 0.2.
    pub encrypt: bool,
    /// Whether spilled logs are; default no, as before. Since 0.2.
    pub encrypt_spill: bool,
    /// Name of the node that this process runs on, for placing copies on others; default empty: its address
    /// stands for it. Each agent has its own. Since 0.1.
    pub host_label: String,
}

impl SessionConfig {
    /// Settings with every default.
    #[must_use]
    pub fn new(app_id: impl Into<String>, secret: [u8; 32]) -> Self {
        Self {
            app_id: app_id.into(),
            secret,
            driver_addr: String::new(),
            driver_socket: String::new(),
            local: false,
            guarantee: Guarantee::default(),
            sharing_depth: 1,
            standbys: STANDBYS_DEFAULT,
            state_epochs: STATE_EPOCHS_DEFAULT,
            memory_bytes: MEMORY_BYTES_DEFAULT,
            disk_bytes: DISK_BYTES_DEFAULT,
            spill_policy: SpillPolicy::default(),
            clock_resolution_ns: CLOCK_RESOLUTION_NS_DEFAULT,
            compress_frames: true,
            spill_dir: None,
            checkpoint_dir: None,
            storage_options: BTreeMap::new(),
            flush_interval_ms: 0,
            agent_scope: AgentScope::default(),
            on_lost: OnLost::default(),
            on_ambiguous: OnAmbiguous::default(),
            io_timeout_ms: IO_TIMEOUT_MS_DEFAULT,
            network_timeout_ms: NETWORK_TIMEOUT_MS_DEFAULT,
            agent_ports: (0, 0),
            encrypt: false,
            encrypt_spill: false,
            host_label: String::new(),
        }
    }

    /// By which agents of the application know each other.
    #[must_use]
    pub const fn credentials(&self) -> Credentials {
        Credentials { secret: self.secret, encrypt: self.encrypt }
    }

    /// Refuses what is out of range.
    ///
    /// # Errors
    /// [`Error::Config`] names the setting.
    pub fn validate(&self) -> Result<()> {
        let refuse = |setting: &str, reason: String| Err(Error::Config { setting: setting.into(), reason });
        if self.memory_bytes < MEMORY_BYTES_MIN {
            return refuse("memory", format!("{} bytes is less than {MEMORY_BYTES_MIN}", self.memory_bytes));
        }
        if self.disk_bytes < MEMORY_BYTES_MIN {
            return refuse("disk", format!("{} bytes is less than {MEMORY_BYTES_MIN}", self.disk_bytes));
        }
        if !(100..=600_000).contains(&self.io_timeout_ms) {
            return refuse("io_timeout", format!("{} ms is not between 100 and 600000", self.io_timeout_ms));
        }
        if self.state_epochs == 0 {
            return refuse(
                "spark.sql.streaming.minBatchesToRetain",
                "0 epochs cannot be gone on from".into(),
            );
        }
        if self.network_timeout_ms == 0 {
            return refuse("spark.network.timeout", "0 gives an agent no time".into());
        }
        // Workers would take an agent that waits for one that does not answer.
        if self.flush_interval_ms > self.io_timeout_ms / 4 {
            let reason = format!(
                "{} ms is more than a quarter of io_timeout, which is {} ms: raise that",
                self.flush_interval_ms, self.io_timeout_ms
            );
            return refuse("flush_interval", reason);
        }
        if !self.storage_options.is_empty()
            && !self.checkpoint_dir.as_ref().is_some_and(|dir| dir.contains("://"))
        {
            return refuse("storage_options", "checkpoint_dir names no object store".into());
        }
        let (first, last) = self.agent_ports;
        if first > last || (first == 0) != (last == 0) {
            return refuse("agent_ports", format!("{first}-{last} is no range of ports"));
        }
        Ok(())
    }

    /// Serialised form, the secret included. It begins with the version of the messages between agents, so that
    /// a task on a node with another Clonos says so before it starts an agent that nobody talks to.
    ///
    /// # Errors
    /// [`Error::Protocol`] if serialisation fails.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut bytes = PROTOCOL_VERSION.to_le_bytes().to_vec();
        bytes.extend(postcard::to_stdvec(self).map_err(|e| Error::Protocol { what: e.to_string() })?);
        Ok(bytes)
    }

    /// How many exchanges far determinants travel: with a checkpoint at least one, as consumers write down what comes.
    #[must_use]
    pub fn hops(&self) -> u32 {
        self.sharing_depth.max(u32::from(self.checkpoint_dir.is_some()))
    }

    /// Inverse of [`Self::to_bytes`].
    ///
    /// # Errors
    /// [`Error::UnsupportedVersion`] or [`Error::Protocol`] for other bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let Some((version, rest)) = bytes.split_first_chunk() else {
            return Err(Error::Protocol { what: "empty session configuration".into() });
        };
        match u32::from_le_bytes(*version) {
            PROTOCOL_VERSION => {
                postcard::from_bytes(rest).map_err(|e| Error::Protocol { what: e.to_string() })
            }
            found => Err(Error::UnsupportedVersion {
                what: "the driver's session".into(),
                found,
                known: PROTOCOL_VERSION,
            }),
        }
    }
}

impl std::fmt::Debug for SessionConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SessionConfig")
            .field("app_id", &self.app_id)
            .field("driver_addr", &self.driver_addr)
            .field("local", &self.local)
            .field("guarantee", &self.guarantee)
            .field("sharing_depth", &self.sharing_depth)
            .field("standbys", &self.standbys)
            .field("memory_bytes", &self.memory_bytes)
            .field("disk_bytes", &self.disk_bytes)
            .field("checkpoint_dir", &self.checkpoint_dir)
            .field("agent_scope", &self.agent_scope)
            .field("encrypt", &self.encrypt)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_to_be_written_down_travels_to_those_who_do() {
        let alone = SessionConfig { sharing_depth: 0, ..SessionConfig::new("app", [0; 32]) };
        let kept = SessionConfig { checkpoint_dir: Some("/logs".into()), ..alone.clone() };
        let deep = SessionConfig { sharing_depth: 3, ..kept.clone() };
        assert_eq!([&alone, &kept, &deep].map(SessionConfig::hops), [0, 1, 3]);
    }
}
