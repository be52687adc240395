//! The agents that are alive, as the registry tells them and as an agent knows them.
//!
//! An application has up to some thousand agents, and each opens tasks all the time: nobody is told what it
//! knows. Each change has a number, and who asks is told the changes after the last one that it knows of.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::protocol::AgentInfo;
use crate::id::AgentId;

/// Changes kept for those who have not heard of them; who missed more is told all there are.
const CHANGES_MAX: usize = 4_096;

/// An agent comes or goes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// It is alive from now on.
    Here(AgentInfo),
    /// It is silent, or dead.
    Gone(AgentId),
}

/// What an agent is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct News {
    /// Number of the last change before these; `None` if these are all agents there are.
    since: Option<u64>,
    changes: Vec<Change>,
    /// Number of the last of them.
    version: u64,
}

/// Changes in the order in which they happened.
#[derive(Debug, Default)]
pub struct Changes {
    kept: VecDeque<Change>,
    dropped: u64,
}

impl Changes {
    /// The next one.
    pub fn push(&mut self, change: Change) {
        self.kept.push_back(change);
        if self.kept.len() > CHANGES_MAX {
            self.kept.pop_front();
            self.dropped += 1;
        }
    }

    /// Number of the last one.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.dropped + self.kept.len() as u64
    }

    /// What is to be told to whoever knows the first `seen`; `all` are the agents that are alive.
    pub fn news<'a>(&self, seen: u64, all: impl Iterator<Item = &'a AgentInfo>) -> News {
        let version = self.version();
        let first = seen.checked_sub(self.dropped).and_then(|first| usize::try_from(first).ok());
        match first.filter(|_| (1..=version).contains(&seen)) {
            Some(first) => {
                News { since: Some(seen), changes: self.kept.range(first..).cloned().collect(), version }
            }
            None => News { since: None, changes: all.cloned().map(Change::Here).collect(), version },
        }
    }
}

/// The agents that are alive, as far as one of them was told.
#[derive(Debug, Default)]
pub struct Members {
    version: u64,
    by_id: BTreeMap<AgentId, AgentInfo>,
    all: Arc<[AgentInfo]>,
}

impl Members {
    /// Number of the last change that was told.
    #[must_use]
    pub const fn version(&self) -> u64 {
        self.version
    }

    /// All of them, by their ids.
    #[must_use]
    pub fn all(&self) -> Arc<[AgentInfo]> {
        Arc::clone(&self.all)
    }

    /// Takes what was told. News may come twice and in any order: what is known already, and what has a gap
    /// before it, changes nothing.
    pub fn hear(&mut self, news: News) {
        let News { since, changes, version } = news;
        if version <= self.version || since.is_some_and(|since| since > self.version) {
            return;
        }
        let known = match since {
            Some(since) => usize::try_from(self.version - since).unwrap_or(usize::MAX),
            None => {
                self.by_id.clear();
                0
            }
        };
        for change in changes.into_iter().skip(known) {
            match change {
                Change::Here(info) => drop(self.by_id.insert(info.id, info)),
                Change::Gone(id) => drop(self.by_id.remove(&id)),
            }
        }
        self.version = version;
        self.all = self.by_id.values().cloned().collect();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn info(id: u64) -> AgentInfo {
        AgentInfo { id: AgentId(id), addr: format!("{id}:1"), host: format!("h{id}"), driver: false }
    }

    proptest! {
        /// Whatever comes and goes, whoever asks now and then, and is answered late or twice, knows in the
        /// end what there is.
        #[test]
        fn who_asks_knows_all(
            steps in prop::collection::vec((0..6_u64, any::<bool>(), any::<bool>()), 1..60),
            missed in 0..2_usize,
        ) {
            let (mut changes, mut there) = (Changes::default(), BTreeMap::new());
            let (mut members, mut answers) = (Members::default(), Vec::new());
            for _ in 0..missed * (CHANGES_MAX + 7) {
                changes.push(Change::Gone(AgentId(99)));
            }
            for (id, comes, asks) in steps {
                let id = AgentId(id);
                let change = if comes { Change::Here(info(id.0)) } else { Change::Gone(id) };
                match comes {
                    true => drop(there.insert(id, info(id.0))),
                    false => drop(there.remove(&id)),
                }
                changes.push(change);
                if asks {
                    answers.push(changes.news(members.version(), there.values()));
                    if answers.len() > 2 {
                        members.hear(answers.remove(1));
                    }
                }
            }
            for late in answers {
                members.hear(late);
            }
            members.hear(changes.news(members.version(), there.values()));
            prop_assert_eq!(&*members.all(), &*there.into_values().collect::<Vec<_>>());
            prop_assert_eq!(members.version(), changes.version());
        }
    }

    #[test]
    fn who_knows_nearly_all_is_told_the_rest() {
        let mut changes = Changes::default();
        (0..1_000).for_each(|id| changes.push(Change::Here(info(id))));
        let all: Vec<_> = (0..1_000).map(info).collect();
        assert_eq!(changes.news(998, all.iter()).changes.len(), 2);
        assert_eq!(changes.news(1_000, all.iter()).changes, []);
        // Of an earlier registry, or of nothing.
        assert_eq!(changes.news(1_001, all.iter()).changes.len(), 1_000);
        assert_eq!(changes.news(0, all.iter()).changes.len(), 1_000);
    }
}
