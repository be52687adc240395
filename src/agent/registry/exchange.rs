//! What the registry knows of exchanges: what became visible, what was taken in, and whether it fits together.

use std::collections::BTreeMap;

use super::{Entry, Registry};
use crate::agent::protocol::{Beginning, Counting, Ending, Recovery};
use crate::error::{Error, Result};
use crate::id::{AgentId, EpochKey, Generation, TaskId};
use crate::task::Ended;

impl Entry {
    /// The newest attempt is over.
    pub(super) fn ended(&mut self, ending: Ending, agent: AgentId, input: u64) {
        if !ending.done {
            return;
        }
        match ending.recovery {
            Recovery::Live => self.ran_live += 1,
            Recovery::Replayed => self.ran_replayed += 1,
            Recovery::Resent => self.resent += 1,
        }
        if ending.has_frames {
            self.frames = Some(agent);
        }
        if ending.recovery != Recovery::Resent {
            self.used = ending.used;
            self.ended = Ended::With(input);
        }
    }
}

impl Registry {
    /// Something visible depends on these logs, as far as they are told, which `holders` have: losing them all is a
    /// loss from now on.
    ///
    /// # Errors
    /// [`Error::Fenced`] if one of them was opened since it was compared: it may go on otherwise. Nothing has become
    /// visible then.
    pub fn visible(&mut self, tasks: &[(TaskId, Generation, Beginning)], holders: &[AgentId]) -> Result<()> {
        for (task, compared, _) in tasks {
            let newer = self.tasks.get(task).map(|entry| entry.granted).filter(|granted| granted > compared);
            if let Some(newer) = newer {
                return Err(Error::Fenced { task: task.clone(), newer, ours: *compared });
            }
        }
        for (task, _, beginning) in tasks {
            // A commit may have been faster; then nobody needs the log any more.
            self.change(task, |entry| {
                entry.published = true;
                // Who has it whole is known; these have no more of it than what rode in frames.
                if !entry.whole {
                    entry.holders.extend(holders);
                    if beginning.end > entry.shown.end {
                        entry.shown = *beginning;
                    }
                }
            });
        }
        Ok(())
    }

    /// What counts of logs that were absorbed at `agent`. Each is given with the attempt that has vouched for what
    /// is there: nobody asks again about that.
    ///
    /// Where nobody is left who could say what the newest attempt had recorded, what the agent has takes its place,
    /// as a newer one.
    ///
    /// # Errors
    /// [`Error::AgentUnreachable`] if the agent was declared dead: others have gone on without it.
    pub fn counting(&mut self, agent: AgentId, tasks: &[(TaskId, Generation)]) -> Result<Vec<Counting>> {
        if self.agents.info(agent).is_none() {
            let reason = "it was declared dead".to_owned();
            return Err(Error::AgentUnreachable { agent: agent.to_string(), reason });
        }
        Ok(tasks.iter().map(|(task, vouched)| self.counting_of(agent, task, *vouched)).collect())
    }

    fn counting_of(&mut self, agent: AgentId, task: &TaskId, vouched: Generation) -> Counting {
        let Some(entry) = self.tasks.get(task) else { return Counting::default() };
        let (generation, published) = (entry.generation, entry.published);
        let first = Counting { generation, published, ..Counting::default() };
        if entry.opens < 2 || vouched == generation {
            return Counting { published: false, ..first };
        }
        if entry.whole {
            return Counting { holders: self.infos(&entry.holders), whole: true, ..first };
        }
        let newest = entry.attempted.back().and_then(|(by, at)| Some((*by, self.agents.info(*at)?.clone())));
        if newest.is_some() {
            return Counting { newest, ..first };
        }
        let known = if published { entry.holders.iter().copied().collect() } else { Vec::new() };
        let claimants = entry.claimants.iter().filter(|claimant| **claimant != agent);
        let holders = self.infos(known.iter().chain(claimants));
        self.newest = self.newest.next();
        let generation = self.newest;
        if let Some(entry) = self.tasks.get_mut(task) {
            entry.generation = generation;
            if !entry.claimants.contains(&agent) {
                entry.claimants.push(agent);
            }
        }
        Counting { generation, newest: None, holders, whole: false, published }
    }

    /// An attempt that was granted came to nothing, as its agent says.
    pub fn withdrawn(&mut self, task: &TaskId, generation: Generation) {
        if let Some(entry) = self.tasks.get_mut(task) {
            entry.attempted.retain(|(by, _)| *by != generation);
        }
    }

    /// A task's log was recorded with inputs that are gone: the next attempt begins anew.
    ///
    /// # Errors
    /// [`Error::CausalLogLost`] if something visible depends on the log; [`Error::Fenced`] if a newer
    /// attempt has opened the task.
    pub fn discarded(&mut self, task: &TaskId, generation: Generation) -> Result<()> {
        let newer = self.tasks.get(task).map_or(Generation::NONE, |entry| entry.generation);
        let Some(entry) = self.tasks.get_mut(task).filter(|entry| entry.generation == generation) else {
            return Err(Error::Fenced { task: task.clone(), newer, ours: generation });
        };
        if entry.published {
            return Err(Error::CausalLogLost { task: task.clone() });
        }
        entry.discarded = true;
        entry.holders.clear();
        entry.frames = None;
        entry.used.clear();
        self.totals.discarded += 1;
        Ok(())
    }

    /// Tasks of the stage that ran an operator in an epoch, where known.
    #[must_use]
    pub fn tasks_of(&self, task: &TaskId, token: u64) -> Option<u32> {
        let uses = self.uses.get(&task.epoch_key());
        let operator = uses.and_then(|uses| uses.find(&task.operator, token))?;
        self.logs_of(&TaskId { operator, ..task.clone() }).find_map(|(_, entry)| entry.layout.tasks)
    }

    /// Checks that all tasks of each operator took in the same version of each log sent to it: had one been
    /// lost and run again with other outcomes, some would have seen the first and others the second.
    ///
    /// # Errors
    /// [`Error::InconsistentEpoch`] names the tasks.
    pub fn check_epoch(&self, key: &EpochKey) -> Result<()> {
        let mut first: BTreeMap<(&str, &str), (u64, &TaskId)> = BTreeMap::new();
        let epoch = |task: &TaskId| task.query == key.query && task.epoch == key.epoch;
        for (task, entry) in self.tasks.iter().filter(|(task, _)| epoch(task)) {
            for (sender, versions) in &entry.used {
                let (seen, other) = *first.entry((&task.operator, sender)).or_insert((*versions, task));
                if seen != *versions {
                    let (partition, other) = (task.partition, other.partition);
                    let what = format!(
                        "in epoch {key}, partitions {other} and {partition} of operator {:?} used different logs of operator {sender:?}",
                        task.operator
                    );
                    return Err(Error::InconsistentEpoch { what });
                }
            }
        }
        Ok(())
    }
}
