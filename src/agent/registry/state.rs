//! The registry's part in keyed state: which attempts may speak of it, and which agents may hold it.

use super::Registry;
use super::agents::Agents;
use crate::agent::protocol::{AgentInfo, StateFigures};
use crate::agent::state::asking::{Done, FromRegistry, Located, ToRegistry};
use crate::agent::state::messages::Clock;
use crate::agent::state::registry::{Asker, Cluster, Keeping, KnownDue, Restored, state_of};
use crate::error::{Error, Result};
use crate::id::{AgentId, Epoch, Generation, TaskId};
use crate::state::{StateId, Version};

impl Cluster for Agents {
    fn version(&self) -> u64 {
        Self::version(self)
    }

    fn staying(&self) -> Vec<AgentInfo> {
        Self::staying(self).cloned().collect()
    }

    fn info(&self, agent: AgentId) -> Option<AgentInfo> {
        Self::info(self, agent).cloned()
    }
}

impl Registry {
    /// Says how states are held from now on.
    pub const fn keep_states(&mut self, keeping: Keeping) {
        self.states.keep(keeping);
    }

    /// If a task's state is to be looked for in the checkpoint folder before [`Self::locate_state`]: after which attempt
    /// those are that go on with it.
    ///
    /// # Errors
    /// [`Error::Fenced`] if the attempt does not count any more.
    pub fn wants_folder(&self, asker: &Asker<'_>) -> Result<Option<Generation>> {
        self.is_newest(asker.task, asker.generation)?;
        Ok(self.states.wants_folder(asker))
    }

    /// What was found there.
    pub fn state_found(&mut self, asker: &Asker<'_>, restored: Option<Restored>) {
        self.states.found(asker, restored);
    }

    /// A task that has state begins.
    ///
    /// # Errors
    /// [`Error::Fenced`] if the attempt does not count any more; [`Error::Config`] if it is not certain which of several
    /// operators of one name is meant; as [`crate::agent::state::registry::States::locate`].
    pub fn locate_state(&mut self, asker: &Asker<'_>, clock: Clock) -> Result<FromRegistry> {
        self.is_newest(asker.task, asker.generation)?;
        self.is_certain(asker.task)?;
        self.states.locate(asker, clock, &self.agents)
    }

    /// Answers what agents tell of states; `None` for a task that begins.
    pub fn state(&mut self, told: &ToRegistry) -> Option<Result<FromRegistry>> {
        Some(match told {
            ToRegistry::Where { .. } => return None,
            ToRegistry::Points { state, life, after } => self.states.points(state, *life, *after),
            ToRegistry::Done(done) => self.state_done(done),
            ToRegistry::Lacks { agent, state, life, ranges, as_of } => {
                self.states.lacks(*agent, state, *life, ranges, *as_of);
                Ok(FromRegistry::Heard)
            }
            ToRegistry::Based { state, life, ranges, version, bytes } => {
                Ok(self.states.based(state, *life, ranges, *version, *bytes))
            }
            ToRegistry::NotJoined { state, life, error } => {
                self.states.not_joined(state, *life, error.clone());
                Ok(FromRegistry::Heard)
            }
            ToRegistry::Joins { agent } => Ok(self.states.joins(*agent, &self.agents)),
            ToRegistry::Joined { agent, number, state, range, version } => {
                self.states.joined(*agent, *number, state, *range, *version)
            }
        })
    }

    /// When the first timer of a state is due, as epoch `next` will find it.
    #[must_use]
    pub fn first_due(&self, id: &StateId, next: u64) -> KnownDue {
        self.states.first_due(id, next)
    }

    /// Whether a query has begun anew and has not said yet with which epoch.
    #[must_use]
    pub fn may_go_back(&self, query: &str) -> bool {
        self.states.may_go_back(query)
    }

    /// All states of a query as its last committed epoch left them: see [`crate::agent::state::registry::States::cut`].
    ///
    /// # Errors
    /// As there.
    pub fn state_cut(&mut self, query: &str) -> Result<Vec<Located>> {
        self.states.cut(query, &self.agents)
    }

    /// What there is to say of each state; what agents know is filled in from them.
    #[must_use]
    pub fn state_figures(&self) -> Vec<(StateId, StateFigures)> {
        self.states.figures()
    }

    /// The version of a state.
    #[must_use]
    pub fn state_version(&self, id: &StateId) -> Version {
        self.states.version(id)
    }

    /// Whether an agent should ask which ranges it has.
    #[must_use]
    pub fn has_joins(&self, agent: AgentId) -> bool {
        self.states.has_joins(agent, &self.agents)
    }

    fn state_done(&mut self, done: &Done) -> Result<FromRegistry> {
        self.is_newest(&done.task, done.generation)?;
        self.states.done(done, &self.agents)
    }

    /// That a task's operator is the same one in each epoch. Which of several comes first in a batch function, or
    /// where the plan is not known, may be another one each time, and would be given the other's state.
    fn is_certain(&self, task: &TaskId) -> Result<()> {
        let StateId { operator, .. } = state_of(task);
        let uses = self.uses.get(&task.epoch_key());
        if uses.is_none_or(|uses| uses.are_of_places(&operator)) {
            return Ok(());
        }
        let reason = format!(
            "epoch {}/{} has state of {operator:?}: that uid stands in two places, or in another one than when the epoch \
             ran first; state is found again by the uid, so give each place its own",
            task.query, task.epoch
        );
        Err(Error::Config { setting: "uid".into(), reason })
    }

    /// That an attempt is its task's newest, and its epoch not over.
    ///
    /// # Errors
    /// [`Error::Fenced`].
    pub fn is_newest(&self, task: &TaskId, ours: Generation) -> Result<()> {
        let newer = self.tasks.get(task).map_or(Generation::NONE, |entry| entry.generation);
        let is_over = match task.epoch {
            Epoch::Batch(batch) => self.batches.get(&task.query).is_some_and(|newest| *newest > batch),
            Epoch::Named(_) => false,
        };
        if newer == ours && !is_over {
            return Ok(());
        }
        Err(Error::Fenced { task: task.clone(), newer: if is_over { Generation::NONE } else { newer }, ours })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::protocol::{OpenTask, Placed, Plan, Sent, Use};
    use crate::agent::registry::{Granted, Uses};
    use crate::agent::state::asking::Holding;
    use crate::id::{EpochKey, Partition};

    const AGENT: AgentId = AgentId(1);
    const CLOCK: Clock = Clock { now_ms: 1, watermark_ms: -1, late_ms: -1 };

    fn registry() -> Registry {
        let mut registry = Registry::new();
        let info = AgentInfo { id: AGENT, addr: "1".into(), host: "1".into(), driver: true };
        registry.register(info, "", 0);
        registry
    }

    /// A task of an epoch is opened; the attempt.
    fn open(registry: &mut Registry, epoch: u64, attempt: u64) -> (TaskId, Generation) {
        open_use(registry, epoch, attempt, Use::default())
    }

    fn open_use(registry: &mut Registry, epoch: u64, attempt: u64, used: Use) -> (TaskId, Generation) {
        let (query, operator, epoch) = ("q".into(), "f".into(), Epoch::Batch(epoch));
        let task = TaskId { query, operator, epoch, partition: Partition(0) };
        let open = OpenTask {
            task,
            used,
            execution: None,
            app: 1,
            stage: 1,
            attempt,
            worker: attempt,
            inside: false,
            stamp: 0,
            of_rdd: None,
        };
        let sent = Sent { by: AGENT, number: registry.totals.opens };
        match registry.grant(&open, sent, 0, None, 0) {
            Granted::Yes(grant) => (grant.task, grant.generation),
            other => panic!("{other:?}"),
        }
    }

    fn locate(registry: &mut Registry, (task, generation): &(TaskId, Generation)) -> Result<Located> {
        let asker = Asker { task, generation: *generation, partition: 0, partitions: 1 };
        registry.wants_folder(&asker)?;
        match registry.locate_state(&asker, CLOCK)? {
            FromRegistry::Located(located) => Ok(*located),
            other => panic!("{other:?}"),
        }
    }

    fn decide(
        registry: &mut Registry,
        (task, generation): &(TaskId, Generation),
        located: &Located,
    ) -> Result<FromRegistry> {
        let of = |holding: &Holding| (holding.agent.id, located.as_of, holding.ready);
        let held = located.holders.iter().map(of).collect();
        let done = Done {
            task: task.clone(),
            generation: *generation,
            partition: 0,
            partitions: 1,
            life: located.life,
            base: located.version,
            fingerprint: generation.0,
            bytes: 1,
            catalog: None,
            due_ms: None,
            held,
            silent: Vec::new(),
        };
        registry.state(&ToRegistry::Done(done)).unwrap()
    }

    fn is_fenced<T>(told: Result<T>) -> bool {
        matches!(told.map(drop), Err(Error::Fenced { .. }))
    }

    #[test]
    fn only_the_newest_attempt_of_an_epoch_that_is_not_over_reads_and_decides() {
        let mut registry = registry();
        let first = open(&mut registry, 0, 1);
        let located = locate(&mut registry, &first).unwrap();
        let second = open(&mut registry, 0, 2);
        assert!(is_fenced(decide(&mut registry, &first, &located)));
        assert!(is_fenced(locate(&mut registry, &first)));
        decide(&mut registry, &second, &located).unwrap();
        // The next epoch begins.
        let third = open(&mut registry, 1, 3);
        assert_eq!(locate(&mut registry, &third).unwrap().version, Version(Some(0)));
        assert!(is_fenced(decide(&mut registry, &second, &located)));
        assert!(is_fenced(locate(&mut registry, &second)));
        // One of the epoch before that begins only now, as Spark has left it behind.
        let late = open(&mut registry, 0, 4);
        assert!(is_fenced(locate(&mut registry, &late)));
    }

    #[test]
    fn several_operators_of_one_name_have_states_if_the_plan_tells_them_apart() {
        let used = |token| Use { token, ..Use::default() };
        let mut unplanned = registry();
        // In a batch function each has a plan of its own.
        let first = open_use(&mut unplanned, 0, 1, used(1));
        locate(&mut unplanned, &first).unwrap();
        let second = open_use(&mut unplanned, 0, 2, used(2));
        assert_eq!(&*second.0.operator, "f#2");
        for task in [&first, &second] {
            let refused = locate(&mut unplanned, task).unwrap_err();
            assert_eq!(refused.condition(), "CONFIG");
            assert!(refused.to_string().starts_with("uid: epoch q/0 has state of \"f"), "{refused}");
        }
        let mut planned = registry();
        let placed = |token| Placed {
            operator: "f".into(),
            used: used(token),
            over: token,
            tables: token,
            plan: Plan::default(),
        };
        let key = EpochKey { query: "q".into(), epoch: Epoch::Batch(0) };
        planned.uses.entry(key.clone()).or_insert_with(|| Uses::of(&key)).plan(1, &[placed(1), placed(2)]);
        for (token, operator) in [(2, "f#2"), (1, "f")] {
            let task = open_use(&mut planned, 0, token, used(token));
            assert_eq!(&*task.0.operator, operator);
            locate(&mut planned, &task).unwrap();
        }
    }
}
