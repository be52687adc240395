//! What an error is to whoever meets it.

use super::Error;

impl Error {
    /// Stable name of the condition.
    #[must_use]
    pub const fn condition(&self) -> &'static str {
        match self {
            Self::Divergence(_) => "REPLAY_DIVERGENCE",
            Self::LogGap { .. } => "LOG_GAP",
            Self::LogFork { .. } => "LOG_FORK",
            Self::CorruptBlock { .. } => "CORRUPT_BLOCK",
            Self::CorruptLog { .. } => "CORRUPT_LOG",
            Self::CorruptFrame { .. } => "CORRUPT_FRAME",
            Self::CorruptState { .. } => "CORRUPT_STATE",
            Self::InputCutShort { .. } => "INPUT_CUT_SHORT",
            Self::UpstreamChanged { .. } => "UPSTREAM_CHANGED",
            Self::StaleFrame { .. } => "STALE_FRAME",
            Self::InconsistentEpoch { .. } => "INCONSISTENT_EPOCH",
            Self::StateIncomplete { .. } => "STATE_INCOMPLETE",
            Self::StateLost { .. } => "STATE_LOST",
            Self::ClockUnknown { .. } => "CLOCK_UNKNOWN",
            Self::CorruptSegment { .. } => "CORRUPT_SEGMENT",
            Self::CorruptSpill { .. } => "CORRUPT_SPILL",
            Self::UnsupportedVersion { .. } => "UNSUPPORTED_VERSION",
            Self::Fenced { .. } | Self::AttemptUnknown { .. } => "FENCED",
            Self::OperatorUsedTwice { .. } | Self::PartitionComputedTwice { .. } => "OPERATOR_USED_TWICE",
            Self::CausalLogLost { .. } => "CAUSAL_LOG_LOST",
            Self::SourceInUse { .. } => "SOURCE_IN_USE",
            Self::SourceTruncated { .. } => "SOURCE_TRUNCATED",
            Self::DiskBudget { .. } => "DISK_BUDGET",
            Self::DiskFull { .. } => "DISK_FULL",
            Self::MemoryBudget { .. } | Self::ListBudget { .. } => "MEMORY_BUDGET",
            Self::AuthRefused { .. } => "AUTH_REFUSED",
            Self::EncryptionDiffers { .. } => "ENCRYPTION_DIFFERS",
            Self::AgentUnreachable { .. } => "AGENT_UNREACHABLE",
            Self::Timeout { .. } => "TIMEOUT",
            Self::Protocol { .. } => "PROTOCOL",
            Self::Config { .. } => "CONFIG",
            Self::UnsupportedType { .. } => "UNSUPPORTED_TYPE",
            Self::StateSchema { .. } => "STATE_SCHEMA_CHANGED",
            Self::ForkedProcess { .. } => "FORKED_PROCESS",
            Self::Poisoned { .. } => "POISONED",
            Self::Misuse { .. } => "MISUSE",
            Self::Arrow(_) => "ARROW",
            Self::Io { .. } => "IO",
        }
    }

    /// Whether the same call may succeed when made again.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::AgentUnreachable { .. } | Self::Timeout { .. } | Self::DiskBudget { .. })
    }

    /// Whether another agent has not answered, and may have done what it was asked, or be dead.
    #[must_use]
    pub const fn is_silence(&self) -> bool {
        matches!(self, Self::AgentUnreachable { .. } | Self::Timeout { .. })
    }

    /// Whether whoever failed cannot read or write what it has: others may.
    #[must_use]
    pub const fn is_its_disks(&self) -> bool {
        matches!(self, Self::Io { .. } | Self::CorruptState { .. }) || self.is_full()
    }

    /// Whether there was no room.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        matches!(
            self,
            Self::DiskBudget { .. }
                | Self::DiskFull { .. }
                | Self::MemoryBudget { .. }
                | Self::ListBudget { .. }
        )
    }
}
