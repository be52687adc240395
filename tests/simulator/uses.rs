//! Commits, of which hosts hear some time later, and a name that is used again meanwhile.

use clonos::agent::protocol::{Fence, Grant};
use clonos::id::{Epoch, EpochKey, Generation};

use crate::Mutation;
use crate::cluster::Cluster;
use crate::dice::Dice;
use crate::host::Host;

pub(crate) fn epoch() -> EpochKey {
    EpochKey { query: "sim".into(), epoch: Epoch::Named("daily".into()) }
}

impl Cluster {
    /// A program begins to use the name.
    pub(crate) fn begin_use(&mut self) {
        self.stamp += 1;
        self.published.clear();
        self.registry.stamp(epoch(), self.stamp);
    }

    /// Spark has committed the epoch. The driver's agent knows it, others are told with what they are told next.
    pub(crate) fn commit(&mut self) {
        self.registry.end_run(&epoch());
        self.registry.commit(&epoch());
        self.hears(0);
    }

    /// As `Handler::heard`.
    pub(crate) fn hears(&mut self, host: usize) {
        let Host { store, heard, .. } = &mut self.hosts[host];
        let (committed, commits) = self.registry.commits_since(*heard);
        committed.iter().for_each(|commit| drop(store.commit(&commit.key, commit.below)));
        *heard = commits;
    }

    /// Some host beats, or opens something else.
    pub(crate) fn somebody_hears(&mut self, dice: &mut Dice) {
        let is_news = |host: &Host| host.heard < self.commits();
        if self.hosts.iter().any(is_news) && dice.chance(5) {
            let host = self.any_host(dice);
            if self.reaches_registry(host) && self.hears_registry(host) {
                self.hears(host);
            }
        }
    }

    pub(crate) fn all_hear(&mut self) {
        for host in 0..self.hosts.len() {
            if self.reaches_registry(host) {
                self.hears(host);
            }
        }
    }

    /// How many commits there were.
    pub(crate) fn commits(&self) -> u64 {
        self.registry.commits_since(u64::MAX).1
    }

    pub(crate) fn fence_of(&self, grant: &Grant, host: usize, all_count: bool) -> Fence {
        let Grant { generation, over, shown, .. } = *grant;
        let over = if self.mutation == Mutation::OlderUsesCount { Generation::NONE } else { over };
        let reopened_at = all_count.then(|| self.hosts[host].info.clone());
        Fence { generation, over, reopened_at, shown }
    }
}
