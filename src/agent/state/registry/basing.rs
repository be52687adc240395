//! When ranges are written to the checkpoint folder as they are, so that a restart reads a bounded number of files.

use super::States;
use crate::agent::placement;
use crate::agent::protocol::AgentInfo;
use crate::agent::state::asking::{Basis, FromRegistry};
use crate::agent::state::registry::Cluster;
use crate::id::AgentId;
use crate::state::{RANGES, Range, RangeSet, StateId, Version};

/// Fewer epochs than this are read one by one.
const EPOCHS_MIN: u64 = 8;
/// More are never, however small they are.
const EPOCHS_MAX: u64 = 64;

/// What of a state was written as it was, and when.
#[derive(Debug)]
pub(super) struct Basing {
    /// Epochs that were committed.
    epochs: u64,
    /// As many there were when each range was written.
    written: [u64; RANGES],
    /// Bytes that were decided since all of them were.
    bytes: u64,
    /// Bytes that writing all of them took the last time, and so far this time.
    last_bytes: u64,
    written_bytes: u64,
}

impl Default for Basing {
    fn default() -> Self {
        Self { epochs: 0, written: [0; RANGES], bytes: 0, last_bytes: 0, written_bytes: 0 }
    }
}

impl Basing {
    /// The state was restored from so many epochs.
    pub(super) const fn restored(&mut self, epochs: u64) {
        self.epochs = epochs;
    }

    /// An epoch was committed.
    pub(super) const fn committed(&mut self, bytes: u64) {
        self.epochs += 1;
        self.bytes += bytes;
    }

    /// Ranges that are to be written.
    fn due(&self) -> RangeSet {
        // As much is written for bases as for deltas, at most.
        let is_much = self.bytes >= self.last_bytes;
        let of = |range: &Range| self.written.get(usize::from(range.0)).copied().unwrap_or_default();
        let is_due = |range: &Range| {
            let behind = self.epochs - of(range);
            behind >= EPOCHS_MAX || (behind >= EPOCHS_MIN && is_much)
        };
        Range::all().filter(is_due).collect()
    }

    /// Ranges were written, so many epochs ago.
    fn wrote(&mut self, ranges: &RangeSet, ago: u64, bytes: u64) {
        let at = self.epochs.saturating_sub(ago);
        for range in ranges.iter() {
            if let Some(written) = self.written.get_mut(usize::from(range.0)) {
                *written = at.max(*written);
            }
        }
        self.written_bytes += bytes;
        if self.due().is_empty() {
            self.last_bytes = std::mem::take(&mut self.written_bytes);
            self.bytes = 0;
        }
    }
}

impl States {
    /// What an agent is to write to the checkpoint folder: of each range one agent is told.
    pub(super) fn bases(&self, agent: AgentId, cluster: &dyn Cluster) -> Vec<Basis> {
        if !self.keeping.durable {
            return Vec::new();
        }
        let of = |(id, state): (&StateId, &super::State)| {
            let is_first = |range: &Range| {
                let ready: Vec<AgentInfo> =
                    state.holders.ready(*range).filter_map(|agent| cluster.info(agent)).collect();
                placement::holders(id, *range, &ready).first().is_some_and(|first| first.id == agent)
            };
            let own = state.basing.due().intersection(&state.holders.own(agent));
            let ranges: RangeSet = own.iter().filter(is_first).collect();
            let basis = Basis { state: id.clone(), life: state.life, after: state.after, ranges };
            (!ranges.is_empty()).then_some(basis)
        };
        self.states.iter().filter_map(of).collect()
    }

    /// Whether an agent has something that is to be written.
    pub(super) fn has_bases(&self, agent: AgentId) -> bool {
        let has =
            |state: &super::State| !state.basing.due().intersection(&state.holders.own(agent)).is_empty();
        self.keeping.durable && self.states.values().any(has)
    }

    /// An agent has written ranges as they were at a version.
    pub fn based(
        &mut self,
        id: &StateId,
        life: u64,
        ranges: &RangeSet,
        at: Version,
        bytes: u64,
    ) -> FromRegistry {
        if let Some(state) = self.states.get_mut(id).filter(|state| state.life == life) {
            let ago = state.points(at).map_or(u64::MAX, |since| since.len() as u64);
            state.basing.wrote(ranges, ago, bytes);
        }
        FromRegistry::Heard
    }

    /// The version of a state.
    #[must_use]
    pub fn version(&self, id: &StateId) -> Version {
        self.states.get(id).map_or(Version::NONE, |state| state.version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_written_when_enough_was_decided_since() {
        let mut basing = Basing::default();
        (1..EPOCHS_MIN).for_each(|_| basing.committed(10));
        assert_eq!(basing.due(), RangeSet::EMPTY);
        basing.committed(10);
        assert_eq!(basing.due(), RangeSet::ALL);
        // All but one, and that one an epoch later.
        let one: RangeSet = [Range(7)].into_iter().collect();
        basing.wrote(&RangeSet::ALL.without(&one), 0, 5_000);
        assert_eq!(basing.due(), one);
        basing.committed(10);
        basing.wrote(&one, 1, 50);
        assert_eq!(basing.due(), RangeSet::EMPTY);
        // It is large: it is written again when as much was decided, or when there are many epochs.
        (0..EPOCHS_MAX - 2).for_each(|_| basing.committed(10));
        assert_eq!(basing.due(), RangeSet::EMPTY);
        basing.committed(10);
        assert_eq!(basing.due(), RangeSet::ALL);
    }
}
