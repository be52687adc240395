//! What must hold at the end of each use of the epoch's name.

use std::collections::BTreeMap;

use bytes::Bytes;
use clonos::error::{Error, Result};
use clonos::id::TaskId;

use super::{Check, Job};
use crate::Mutation;
use crate::attempt::{Attempt, Step, task_id};
use crate::cluster::Cluster;
use crate::dice::Dice;
use crate::host::{Host, Room};
use crate::late::Late;
use crate::shuffle::{Output, inputs};
use crate::uses::epoch;

impl Job {
    /// All copies of one log that count are prefixes of one another.
    pub(super) fn check_copies(&mut self) -> Check {
        if !self.bounded() {
            return Ok(());
        }
        // Elsewhere there may be what is left of an older use of the name.
        self.cluster.all_hear();
        let holders = self.holders();
        for (task, stage) in self.tasks() {
            let mut longest: Vec<Bytes> = Vec::new();
            for copy in self.copies_that_count(&task, stage, &holders) {
                if !copy.iter().zip(&longest).all(|(a, b)| a == b) {
                    return Err(format!("two copies of the log of {task} differ"));
                }
                if copy.len() > longest.len() {
                    longest = copy;
                }
            }
        }
        Ok(())
    }

    /// Who has each log, as the registry knows.
    fn holders(&self) -> BTreeMap<TaskId, Vec<String>> {
        let stats = self.cluster.registry.task_stats().into_iter();
        stats.map(|(task, stats)| (task, stats.holders)).collect()
    }

    /// Of the last operator's logs those copies count that the registry knows of, and of others that have too much to ride:
    /// what a fenced attempt appended last stands in none of them. Of what rides all do.
    fn copies_that_count(
        &mut self,
        task: &TaskId,
        stage: usize,
        holders: &BTreeMap<TaskId, Vec<String>>,
    ) -> Vec<Vec<Bytes>> {
        let commits = self.cluster.commits();
        let is_holder = |host: &Host| holders.get(task).is_some_and(|known| known.contains(&host.info.addr));
        let rides = stage < self.last() && !self.cluster.published.contains(task);
        let hosts = self.cluster.living().filter(|host| host.heard == commits);
        hosts.filter(|host| rides || is_holder(host)).map(|host| host.blocks(task)).collect()
    }

    fn tasks(&self) -> Vec<(TaskId, usize)> {
        let stage = |(stage, count): (usize, &usize)| {
            (0..*count).map(move |partition| (task_id(stage, partition), stage))
        };
        self.setting.tasks.iter().enumerate().flat_map(stage).collect()
    }

    /// Runs the whole job once more without failures, from the logs alone: it must show the same rows.
    pub(super) fn check_story(&mut self) -> Check {
        let mut frames: BTreeMap<(usize, usize), Output> = BTreeMap::new();
        let mut scratch = Cluster::new(1, 0, Mutation::None, Late::never(), Room::PLENTY);
        for (stage, count) in self.setting.tasks.clone().into_iter().enumerate() {
            for partition in 0..count {
                let task = task_id(stage, partition);
                let log = self.log_that_counts(&task, stage);
                let made = self.replayed(&mut scratch, stage, partition, &log, &frames);
                let output = made.map_err(|error| format!("{task} cannot be replayed: {error}"))?;
                frames.insert((stage, partition), Output { host: 1, frames: output });
            }
        }
        Ok(())
    }

    /// What the story is told from: the longest copy that counts.
    fn log_that_counts(&mut self, task: &TaskId, stage: usize) -> Vec<Bytes> {
        if !self.bounded() {
            // Copies may be gone; whether what was shown is one story can still be told.
            return self.truth.get(task).cloned().unwrap_or_default();
        }
        let holders = self.holders();
        let copies = self.copies_that_count(task, stage, &holders);
        copies.into_iter().max_by_key(Vec::len).unwrap_or_default()
    }

    fn replayed(
        &mut self,
        scratch: &mut Cluster,
        stage: usize,
        partition: usize,
        log: &[Bytes],
        before: &BTreeMap<(usize, usize), Output>,
    ) -> Result<Vec<Vec<Bytes>>> {
        let senders = self.shape(stage).senders;
        let inputs = inputs(&mut self.dice, before, senders, stage, partition);
        let inside = stage < self.last();
        let opened = scratch.open(&task_id(stage, partition), stage as u32, 1, 1, inside)?;
        let (session, _) = opened.ok_or_else(|| Error::Misuse { what: "busy".into() })?;
        let shape = self.shape(stage);
        let mut attempt = Attempt::new(session, partition, shape, log, inputs, Mutation::None)?;
        let mut dice = Dice::new(!self.setting.seed);
        loop {
            match attempt.step(scratch, &mut dice, i64::MAX, &mut || false)? {
                Step::Going => {}
                Step::Rows(place, state) => {
                    if self.visible.get(&(partition, place)) != Some(&state) {
                        let what = format!("row {place} of partition {partition} is of another run");
                        return Err(Error::Misuse { what });
                    }
                }
                Step::Done(frames) => return Ok(frames),
            }
        }
    }

    pub(super) fn check_forgotten(&self) -> Check {
        let left = self.cluster.hosts.iter().any(|host| host.store.holds(&epoch()));
        if left { Err("logs are left after their epoch's commit".into()) } else { Ok(()) }
    }
}
