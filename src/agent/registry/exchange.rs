//! What the registry knows of exchanges: what became visible, what was taken in, and whether it fits together.

use std::collections::{BTreeMap, BTreeSet};

use super::{Entry, Registry};
use crate::agent::protocol::{Beginning, Counting, Ending, Layout, Recovery, Sharer};
use crate::error::{Error, Result};
use crate::id::{AgentId, EpochKey, Generation, TaskId};
use crate::task::Ended;

/// Logs of which it is told at a time what counts: a few hundred bytes for each.
const COUNTED_MAX: usize = 1_024;

impl Entry {
    /// The newest attempt is over.
    pub(super) fn ended(&mut self, ending: Ending, by: (AgentId, Layout), input: u64) {
        if !ending.done {
            return;
        }
        match ending.recovery {
            Recovery::Live => self.ran_live += 1,
            Recovery::Replayed => self.ran_replayed += 1,
            Recovery::Resent => self.resent += 1,
        }
        if ending.has_frames {
            self.frames = Some(by);
        }
        if ending.recovery != Recovery::Resent {
            self.used = ending.used;
            self.ended = Ended::With(input);
        }
    }

    /// What agents have of it is to be disregarded.
    pub(super) fn begin_anew(&mut self) {
        self.discarded = Some(self.generation);
        self.holders.clear();
        self.frames = None;
        self.used.clear();
    }
}

impl Registry {
    /// As [`Self::visible`], as an agent says before it lets go what depends on them.
    ///
    /// # Errors
    /// As [`Self::visible`]; as [`Self::counting`].
    pub fn visible_at(
        &mut self,
        by: Sharer,
        tasks: &[(TaskId, Generation, Beginning)],
        holders: &[AgentId],
    ) -> Result<()> {
        self.may_share(by, tasks.first().map(|(task, ..)| task))?;
        self.visible(tasks, holders)
    }

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
            if self.tasks.get(task).is_some_and(|entry| !entry.whole) {
                self.places.are(task, holders);
            }
            // Some of them may leave by now.
            self.look_if_short(task);
        }
        Ok(())
    }

    /// What counts of the first of these logs, that were absorbed by somebody. Each is given with the attempt that has
    /// vouched for what is there: nobody asks again about that.
    ///
    /// Where nobody is left who could say what the newest attempt had recorded, what the agent has takes its place,
    /// as a newer one.
    ///
    /// # Errors
    /// [`Error::AgentUnreachable`] if the agent was declared dead: others have gone on without it. [`Error::Fenced`]
    /// if the use of the epoch's name is committed that the attempt is of.
    pub fn counting(&mut self, by: Sharer, tasks: &[(TaskId, Generation)]) -> Result<Vec<Counting>> {
        self.may_share(by, tasks.first().map(|(task, _)| task))?;
        let first = tasks.iter().take(COUNTED_MAX);
        Ok(first.map(|(task, vouched)| self.counting_of(by.agent, task, *vouched)).collect())
    }

    fn may_share(&self, by: Sharer, first: Option<&TaskId>) -> Result<()> {
        self.is_not_dead(by.agent)?;
        let over = first.and_then(|task| Some((task, self.over.below(&task.epoch_key())?)));
        match over.filter(|(_, below)| by.generation < *below) {
            Some((task, newer)) => Err(Error::Fenced { task: task.clone(), newer, ours: by.generation }),
            None => Ok(()),
        }
    }

    pub(super) fn is_not_dead(&self, agent: AgentId) -> Result<()> {
        if self.agents.info(agent).is_some() {
            return Ok(());
        }
        let reason = super::DEAD.to_owned();
        Err(Error::AgentUnreachable { agent: agent.to_string(), reason })
    }

    fn counting_of(&mut self, agent: AgentId, task: &TaskId, vouched: Generation) -> Counting {
        let Some(entry) = self.tasks.get(task) else { return Counting::default() };
        let (generation, layout, published) = (entry.generation, entry.layout, entry.published);
        let first = Counting { generation, layout, published, whole: entry.whole, ..Counting::default() };
        if entry.opens < 2 || vouched == generation {
            return Counting { published: false, ..first };
        }
        if entry.whole {
            return Counting { holders: self.infos(&entry.holders), ..first };
        }
        let newest = entry.attempted.back().and_then(|(by, at)| Some((*by, self.agents.info(*at)?.clone())));
        if newest.is_some() {
            return Counting { newest, ..first };
        }
        let mut known: BTreeSet<AgentId> = BTreeSet::new();
        if published {
            known.extend(&entry.holders);
        }
        known.extend(entry.claimants.iter().filter(|claimant| **claimant != agent));
        // What attempts before the newest have was taken over by it, or counts itself if that one never began.
        known.extend(entry.attempted.iter().map(|(_, at)| at).filter(|at| **at != agent));
        let holders = self.infos(&known);
        // With the number that it has, it need not compare again what it has compared.
        let is_newest = generation > entry.granted && entry.claimants.last() == Some(&agent);
        if is_newest {
            return Counting { holders, ..first };
        }
        self.newest = self.newest.next();
        let generation = self.newest;
        if let Some(entry) = self.tasks.get_mut(task) {
            entry.generation = generation;
            entry.claimants.retain(|claimant| *claimant != agent);
            entry.claimants.push(agent);
        }
        Counting { generation, holders, ..first }
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
        entry.begin_anew();
        self.totals.discarded += 1;
        Ok(())
    }

    /// No agent has anything any more of a log that was discarded up to this attempt.
    pub fn forgotten(&mut self, task: &TaskId, generation: Generation) {
        if let Some(entry) = self.tasks.get_mut(task).filter(|entry| entry.discarded == Some(generation)) {
            entry.discarded = None;
        }
    }

    /// Tasks of the stage that ran an operator in an epoch, where known.
    #[must_use]
    pub fn tasks_of(&self, task: &TaskId, token: u64) -> Option<u32> {
        let uses = self.uses.get(&task.epoch_key());
        let operator = uses.and_then(|uses| uses.find(&task.operator, token))?;
        self.logs_of(&TaskId { operator, ..task.clone() }, None).find_map(|(_, entry)| entry.layout.tasks)
    }

    /// Checks that all tasks of each operator took in the same version of each log sent to it: had one been
    /// lost and run again with other outcomes, some would have seen the first and others the second. And that all tasks
    /// that decide state have done so.
    ///
    /// # Errors
    /// [`Error::InconsistentEpoch`] names the tasks; as [`crate::agent::state::registry::States::check`].
    pub fn check_epoch(&self, key: &EpochKey) -> Result<()> {
        self.states.check(key)?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::protocol::{AgentInfo, OpenTask, Sent, Use};
    use crate::agent::registry::Granted;
    use crate::id::{Epoch, LogOffset, Partition};

    fn task() -> TaskId {
        TaskId { query: "q".into(), operator: "f".into(), epoch: Epoch::Batch(1), partition: Partition(0) }
    }

    fn with_three() -> Registry {
        let mut registry = Registry::new();
        registry.want_copies(2);
        for id in [1, 2, 3] {
            let (addr, host) = (format!("{id}"), format!("{id}"));
            registry.register(AgentInfo { id: AgentId(id), addr, host, driver: false }, "", 0);
        }
        registry
    }

    fn open(registry: &mut Registry, agent: u64, attempt: u64) -> Generation {
        let open = OpenTask {
            task: task(),
            used: Use::default(),
            execution: None,
            app: 1,
            stage: 1,
            attempt,
            worker: attempt,
            inside: true,
            stamp: 0,
            of_rdd: None,
        };
        let sent = Sent { by: AgentId(agent), number: registry.totals.opens };
        match registry.grant(&open, sent, 0, None, 0) {
            Granted::Yes(grant) => grant.generation,
            refused => panic!("{refused:?}"),
        }
    }

    fn counting(registry: &mut Registry, agent: u64) -> Counting {
        registry.counting(sharer(agent), &[(task(), Generation::NONE)]).unwrap().remove(0)
    }

    /// Somebody there, of the newest use of the epoch's name.
    fn sharer(agent: u64) -> Sharer {
        Sharer { agent: AgentId(agent), generation: Generation(u64::MAX) }
    }

    fn beginning(end: u64) -> Beginning {
        Beginning { end: LogOffset(end), hash: u128::from(end) }
    }

    #[test]
    fn what_an_agent_has_takes_the_place_of_the_newest_attempt_once_until_another_agents_does() {
        let mut registry = with_three();
        open(&mut registry, 1, 1);
        let second = open(&mut registry, 1, 2);
        assert_eq!(counting(&mut registry, 2).newest.map(|(by, _)| by), Some(second));
        assert!(registry.is_dead(AgentId(1), false, 60_000));
        let claimed = counting(&mut registry, 2);
        assert!(claimed.newest.is_none() && claimed.generation > second);
        assert_eq!(counting(&mut registry, 2), claimed, "it need not compare again what it has compared");
        let other = counting(&mut registry, 3);
        assert!(other.generation > claimed.generation);
        assert_eq!(other.holders.iter().map(|holder| holder.id).collect::<Vec<_>>(), [AgentId(2)]);
        let again = counting(&mut registry, 2);
        assert!(again.generation > other.generation);
        assert_eq!(again.holders.iter().map(|holder| holder.id).collect::<Vec<_>>(), [AgentId(3)]);
        let third = open(&mut registry, 3, 3);
        assert!(third > again.generation);
    }

    #[test]
    fn nothing_becomes_visible_that_was_compared_before_the_newest_attempt() {
        let mut registry = with_three();
        let first = open(&mut registry, 1, 1);
        registry.visible(&[(task(), first, beginning(5))], &[AgentId(2)]).unwrap();
        let second = open(&mut registry, 1, 2);
        let late = registry.visible(&[(task(), first, beginning(9))], &[AgentId(2)]);
        assert!(matches!(late, Err(Error::Fenced { newer, .. }) if newer == second), "{late:?}");
        assert_eq!(registry.tasks[&task()].shown, beginning(5));
        registry.visible(&[(task(), second, beginning(7))], &[AgentId(3)]).unwrap();
        registry.visible(&[(task(), second, beginning(6))], &[AgentId(3)]).unwrap();
        assert_eq!(registry.tasks[&task()].shown, beginning(7), "the longest of them");
        // What became visible when nobody could be asked any more is newer than the attempt.
        assert!(registry.is_dead(AgentId(1), false, 60_000));
        let claimed = counting(&mut registry, 2).generation;
        registry.visible(&[(task(), claimed, beginning(8))], &[AgentId(2)]).unwrap();
    }

    #[test]
    fn who_is_left_of_a_use_that_was_committed_shares_nothing_in_the_next() {
        let mut registry = with_three();
        let left = Sharer { agent: AgentId(2), generation: open(&mut registry, 1, 1) };
        registry.commit(&task().epoch_key());
        let new = open(&mut registry, 1, 2);
        let told = registry.counting(left, &[(task(), Generation::NONE)]);
        assert!(matches!(told, Err(Error::Fenced { .. })), "{told:?}");
        let visible = [(task(), new, beginning(5))];
        assert!(matches!(registry.visible_at(left, &visible, &[AgentId(2)]), Err(Error::Fenced { .. })));
        assert!(!registry.tasks[&task()].published);
        registry.visible_at(Sharer { generation: new, ..left }, &visible, &[AgentId(2)]).unwrap();
        assert!(registry.tasks[&task()].published);
    }

    #[test]
    fn what_becomes_visible_is_copied_again_where_one_who_has_it_leaves() {
        let mut registry = with_three();
        let first = open(&mut registry, 1, 1);
        registry.leaving(AgentId(3));
        assert!(!registry.has_repairs(AgentId(2)));
        registry.visible(&[(task(), first, beginning(5))], &[AgentId(2), AgentId(3)]).unwrap();
        assert!(registry.has_repairs(AgentId(2)));
    }

    #[test]
    fn who_has_what_rode_in_frames_does_not_hold_what_was_published() {
        let mut registry = with_three();
        let first = open(&mut registry, 1, 1);
        let sent = Sent { by: AgentId(1), number: 1 };
        registry.holding(&task(), first, &[AgentId(1)], None, true, sent).unwrap();
        registry.visible(&[(task(), first, beginning(5))], &[AgentId(2)]).unwrap();
        let entry = &registry.tasks[&task()];
        assert!(entry.holders.iter().eq([&AgentId(1)]), "{:?}", entry.holders);
        assert_eq!(entry.shown, Beginning::default());
    }

    #[test]
    fn who_was_declared_dead_is_not_told_what_counts_and_counts_nowhere() {
        let mut registry = with_three();
        let first = open(&mut registry, 1, 1);
        registry.visible(&[(task(), first, beginning(5))], &[AgentId(1), AgentId(2)]).unwrap();
        assert!(registry.is_dead(AgentId(2), false, 60_000));
        assert!(registry.counting(sharer(2), &[(task(), first)]).is_err());
        // It says that it is there, and registers again.
        registry.heartbeat(AgentId(2), 0, 60_001);
        let info = AgentInfo { id: AgentId(2), addr: "2".into(), host: "2".into(), driver: false };
        registry.register(info, "", 60_002);
        assert!(registry.counting(sharer(2), &[(task(), first)]).is_err());
        let holders = registry.tasks[&task()].holders.clone();
        assert_eq!(registry.infos(&holders).iter().map(|info| info.id).collect::<Vec<_>>(), [AgentId(1)]);
        assert!(registry.is_dead(AgentId(2), false, 60_003), "for good");
        assert!(
            !registry.is_alive(AgentId(2), 60_003)
                && registry.repairs(AgentId(2), 120_000, 60_003).is_empty()
        );
    }
}
