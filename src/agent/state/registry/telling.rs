//! What agents are told of states, and tell.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::holders::{Chosen, Cluster, Terms};
use super::{Asker, Decided, Pending, State, States, state_of};
use crate::agent::state::asking::{Done, FromRegistry, Holding, Join, Located};
use crate::agent::state::holders::Part;
use crate::agent::state::messages::Clock;
use crate::error::{Divergence, DivergenceKind, Error, Result};
use crate::id::{AgentId, Generation};
use crate::state::{Range, RangeSet, StateId, Version, partition_ranges};

impl States {
    /// A task begins: what it reads, and who holds it. The newest attempt is known to be this one.
    ///
    /// # Errors
    /// [`Error::StateLost`], [`Error::StateIncomplete`] if there is nothing that it may read; [`Error::Fenced`] if its
    /// epoch is over.
    pub fn locate(&mut self, asker: &Asker<'_>, clock: Clock, cluster: &dyn Cluster) -> Result<FromRegistry> {
        let (epoch, id) = (asker.epoch()?, state_of(asker.task));
        self.begin(&id, epoch)?;
        self.choose(cluster);
        let as_of = self.numbers;
        let state = self.states.get_mut(&id).ok_or_else(|| asker.fenced())?;
        state.readable(epoch)?;
        if state.version >= Version(Some(epoch)) {
            return Err(if state.may_go_back {
                went_back(&id, epoch, state.version, self.keeping.durable)
            } else {
                asker.fenced()
            });
        }
        if std::mem::take(&mut state.may_go_back) {
            // Later epochs are other ones from here on.
            state.pending.retain(|decided, _| *decided <= epoch);
            state.broken = None;
        }
        let done = state.attempt(asker, epoch);
        let ranges = asker.ranges();
        if !state.holders.absent().intersection(&ranges).is_empty() {
            if let Some(error) = state.not_restored.take() {
                return Err(error);
            }
            return Ok(FromRegistry::IsRestored);
        }
        Ok(FromRegistry::Located(Box::new(Located {
            life: state.life,
            version: state.version,
            holders: state.holders.of(&ranges, cluster),
            as_of,
            clock,
            catalog: state.catalog.clone(),
            done,
            has_timers: state.due_ms.is_some(),
            state: id,
        })))
    }

    /// Begins a state of which nothing is known.
    fn begin(&mut self, id: &StateId, epoch: u64) -> Result<()> {
        if self.states.contains_key(id) {
            return Ok(());
        }
        let has_begun = self.first.get(&id.query).is_some_and(|first| *first > 0) && epoch > 0;
        if has_begun && !self.keeping.begins_anew {
            let kept = if self.keeping.durable { "the folder has none" } else { "checkpoint_dir is not set" };
            return Err(Error::StateLost {
                state: id.to_string(),
                what: format!(
                    "this application began with epoch {epoch} of the query and knows of no earlier state: {kept}. \
                     State survives the application in checkpoint_dir. If the operator is new in the query, attach \
                     once with on_lost=\"at_least_once\""
                ),
            });
        }
        self.states.insert(id.clone(), State::new(1, self.after(id), Version::NONE, Bytes::new()));
        Ok(())
    }

    /// Chooses holders anew where agents have come or gone.
    pub(super) fn choose(&mut self, cluster: &dyn Cluster) {
        let members = cluster.version();
        let have_changed = self.members != members;
        let is_due = |state: &State| state.holders.is_due || state.holders.absent() == RangeSet::ALL;
        if !have_changed && !self.states.values().any(is_due) {
            return;
        }
        self.members = members;
        let staying = cluster.staying();
        for (id, state) in &mut self.states {
            if !have_changed && !is_due(state) {
                continue;
            }
            self.numbers += 1;
            if !self.keeping.durable {
                state.forget_first_epoch();
            }
            let terms =
                Terms { copies: self.keeping.copies, untouched: state.untouched(), number: self.numbers };
            let Chosen { absent, relieved } = state.holders.choose(id, &staying, &terms);
            self.told.extend(relieved);
            if !absent.is_empty() && !self.keeping.durable && state.broken.is_none() {
                state.broken = Some((lost(id, &absent, self.keeping.copies), None));
            }
        }
    }

    /// A task's delta is held.
    ///
    /// # Errors
    /// [`Error::Divergence`] if an earlier attempt has decided otherwise; [`Error::Fenced`] if this one does not count.
    pub fn done(&mut self, done: &Done, cluster: &dyn Cluster) -> Result<FromRegistry> {
        let asker = Asker {
            task: &done.task,
            generation: done.generation,
            partition: done.partition,
            partitions: done.partitions,
        };
        let (epoch, id) = (asker.epoch()?, state_of(&done.task));
        self.choose(cluster);
        let as_of = self.numbers;
        let state = self.states.get_mut(&id).ok_or_else(|| asker.fenced())?;
        state.readable(epoch)?;
        if state.life != done.life || state.version != done.base {
            return Err(asker.fenced());
        }
        let pending = state.pending.get(&epoch).ok_or_else(|| asker.fenced())?;
        if pending.partitions != done.partitions {
            return Err(asker.fenced());
        }
        match pending.decided.get(&done.partition) {
            Some(before) if before.fingerprint != done.fingerprint => {
                return Err(diverged(&asker, before, done));
            }
            Some(before) if before.generation >= done.generation => return Ok(FromRegistry::Counts),
            _ => {}
        }
        if let Some(lacking) = state.lacking(done) {
            let mut holders = state.holders.of(&asker.ranges(), cluster);
            for Holding { agent, ready, joining } in &mut holders {
                let lacks = lacking.get(&agent.id).copied().unwrap_or_default();
                (*ready, *joining) = (ready.intersection(&lacks), joining.intersection(&lacks));
            }
            holders.retain(|holding| !holding.ready.is_empty() || !holding.joining.is_empty());
            return Ok(FromRegistry::Also { holders, as_of });
        }
        let decided = Decided {
            generation: done.generation,
            fingerprint: done.fingerprint,
            bytes: done.bytes,
            due_ms: done.due_ms,
        };
        if let Some(pending) = state.pending.get_mut(&epoch) {
            pending.decided.insert(done.partition, decided);
            if done.catalog.is_some() {
                pending.catalog.clone_from(&done.catalog);
            }
        }
        Ok(FromRegistry::Counts)
    }

    /// What was committed after a version.
    ///
    /// # Errors
    /// [`Error::StateLost`] if that is too long ago, or of another life.
    pub fn points(&self, id: &StateId, life: u64, after: Version) -> Result<FromRegistry> {
        let state = self.state(id)?;
        let points = if state.life == life { state.points(after) } else { None };
        points.map(FromRegistry::Points).ok_or_else(|| Error::StateLost {
            state: id.to_string(),
            what: format!("an agent has it at version {after}, which nobody can bring up to date"),
        })
    }

    /// What an agent has, and is to make its own.
    pub fn joins(&mut self, agent: AgentId, cluster: &dyn Cluster) -> FromRegistry {
        self.choose(cluster);
        let as_of = self.numbers;
        self.told.remove(&agent);
        let (mut own, mut joins) = (Vec::new(), Vec::new());
        for (id, state) in &self.states {
            let ranges = state.holders.own(agent);
            if !ranges.is_empty() {
                own.push((id.clone(), state.life, ranges));
            }
            for (number, ranges) in state.holders.joins(agent) {
                let absent = state.holders.absent();
                for (ranges, is_absent) in
                    [(ranges.without(&absent), false), (ranges.intersection(&absent), true)]
                {
                    if !ranges.is_empty() {
                        joins.push(state.join(id, (number, as_of), ranges, is_absent, cluster));
                    }
                }
            }
        }
        FromRegistry::Joins { own, joins, bases: self.bases(agent, cluster), as_of }
    }

    /// Whether an agent should ask what it has.
    #[must_use]
    pub fn has_joins(&self, agent: AgentId, cluster: &dyn Cluster) -> bool {
        let of_agent = |state: &State| state.holders.has_joins(agent) || state.holders.is_due;
        self.told.contains(&agent)
            || (self.members != cluster.version() && !self.states.is_empty())
            || self.states.values().any(of_agent)
            || self.has_bases(agent)
    }

    /// An agent has a range that it was to have.
    ///
    /// # Errors
    /// [`Error::StateLost`] if what it has can't be brought up to date: it is to begin anew.
    pub fn joined(
        &mut self,
        agent: AgentId,
        number: u64,
        id: &StateId,
        range: Range,
        version: Version,
    ) -> Result<FromRegistry> {
        let state = self.states.get_mut(id).ok_or_else(|| Error::Misuse { what: "no such state".into() })?;
        if state.points(version).is_none() {
            return Err(Error::StateLost {
                state: id.to_string(),
                what: "a copy of it came too late".into(),
            });
        }
        state.holders.joined(agent, number, range);
        Ok(FromRegistry::Heard)
    }

    /// A holder, known as of then, has not all that it should have.
    pub fn lacks(&mut self, agent: AgentId, id: &StateId, life: u64, ranges: &RangeSet, as_of: u64) {
        if let Some(state) = self.states.get_mut(id).filter(|state| state.life == life) {
            state.holders.demote(agent, ranges, as_of);
        }
    }

    /// A state could not be restored; whoever asks for it is told, and it is tried again.
    pub fn not_joined(&mut self, id: &StateId, life: u64, error: Error) {
        if let Some(state) = self.states.get_mut(id).filter(|state| state.life == life) {
            state.not_restored = Some(error);
        }
    }

    /// An agent is dead.
    pub(crate) fn died(&mut self, agent: AgentId) {
        for state in self.states.values_mut() {
            state.promoted += state.holders.shared(agent);
            state.holders.demote(agent, &RangeSet::ALL, u64::MAX);
        }
    }

    /// Whether an agent has what none of the others has.
    pub(crate) fn has_alone(&self, agent: AgentId, is_other: impl Fn(&AgentId) -> bool + Copy) -> bool {
        self.states.values().any(|state| state.holders.has_alone(agent, is_other))
    }

    /// Whether an agent that is about to end has what others are to have before.
    #[must_use]
    pub(crate) fn is_needed(&mut self, agent: AgentId, cluster: &dyn Cluster) -> bool {
        self.choose(cluster);
        self.states.values().any(|state| state.holders.is_needed(agent))
    }
}

impl State {
    /// Notes an attempt; the fingerprint of what an earlier one has decided.
    fn attempt(&mut self, asker: &Asker<'_>, epoch: u64) -> Option<u64> {
        let fresh = || Pending {
            partitions: asker.partitions,
            newest: Generation::NONE,
            base: self.version,
            decided: BTreeMap::new(),
            has_lost: false,
            catalog: None,
        };
        let pending = self.pending.entry(epoch).or_insert_with(fresh);
        if asker.generation > pending.newest {
            pending.newest = asker.generation;
            if pending.partitions != asker.partitions {
                // The epoch is run again, cut otherwise: what it decides replaces what was decided.
                pending.partitions = asker.partitions;
                pending.decided.clear();
            }
        }
        pending.decided.get(&asker.partition).map(|decided| decided.fingerprint)
    }

    /// Who has not got a delta and should have it, if somebody has not, or if nobody has it who is ready. Who did not
    /// answer is no holder any more, as long as somebody else is.
    fn lacking(&mut self, done: &Done) -> Option<BTreeMap<AgentId, RangeSet>> {
        let holders = &self.holders;
        // What it had before it was given a range anew it may have forgotten since.
        let has = |agent: AgentId, range: Range| {
            done.held.iter().any(|(holder, as_of, ranges)| {
                *holder == agent && ranges.contains(range) && holders.is_of_now(agent, range, *as_of)
            })
        };
        let (mut lacking, mut missed): (BTreeMap<_, RangeSet>, BTreeMap<_, RangeSet>) = Default::default();
        let mut is_held = true;
        for range in partition_ranges(done.partition, done.partitions).iter() {
            is_held &= holders.ready(range).any(|agent| has(agent, range));
            for agent in holders.takers(range).filter(|agent| !has(*agent, range)) {
                let among = if done.silent.contains(&agent) { &mut missed } else { &mut lacking };
                among.entry(agent).or_default().insert(range);
            }
        }
        if !is_held || !lacking.is_empty() {
            return Some(lacking);
        }
        for (agent, ranges) in missed {
            self.holders.demote(agent, &ranges, u64::MAX);
        }
        None
    }

    fn join(
        &self,
        id: &StateId,
        (number, as_of): (u64, u64),
        ranges: RangeSet,
        is_absent: bool,
        cluster: &dyn Cluster,
    ) -> Join {
        let mut sources = self.holders.of(&ranges, cluster);
        sources.retain(|holding| !holding.ready.is_empty());
        let pending = if is_absent { self.parts(&ranges) } else { Vec::new() };
        let (state, life, version) = (id.clone(), self.life, self.version);
        Join { number, state, life, version, ranges, sources, as_of, pending }
    }

    /// Deltas that count and are not committed.
    fn parts(&self, wanted: &RangeSet) -> Vec<Part> {
        let parts = self.pending.iter().flat_map(|(epoch, pending)| {
            pending.decided.iter().map(|(partition, decided)| Part {
                epoch: *epoch,
                base: pending.base,
                partition: *partition,
                generation: decided.generation,
                ranges: partition_ranges(*partition, pending.partitions).intersection(wanted),
            })
        });
        parts.filter(|part| !part.ranges.is_empty()).collect()
    }

    /// If nothing was ever committed, what the first epoch has decided and nobody has any more is decided again when
    /// that epoch is run again. Until then it is incomplete.
    fn forget_first_epoch(&mut self) {
        if self.version != Version::NONE {
            return;
        }
        let absent = self.holders.absent();
        for pending in self.pending.values_mut() {
            let (partitions, before) = (pending.partitions, pending.decided.len());
            pending
                .decided
                .retain(|at, _| partition_ranges(*at, partitions).intersection(&absent).is_empty());
            pending.has_lost |= pending.decided.len() < before;
        }
    }
}

fn lost(id: &StateId, absent: &RangeSet, copies: usize) -> Error {
    Error::StateLost {
        state: id.to_string(),
        what: format!(
            "all agents that had {} of its {} ranges are gone: standbys={} survives as many losses at a time, \
             checkpoint_dir all of them",
            absent.len(),
            RangeSet::ALL.len(),
            copies.saturating_sub(1)
        ),
    }
}

fn went_back(id: &StateId, epoch: u64, version: Version, durable: bool) -> Error {
    let kept = if durable {
        "checkpoint_dir has none that is older: spark.sql.streaming.minBatchesToRetain says how many are kept"
    } else {
        "older versions are kept in checkpoint_dir alone"
    };
    Error::StateLost {
        state: id.to_string(),
        what: format!("the query goes back to epoch {epoch}, and its state is at version {version}: {kept}"),
    }
}

fn diverged(asker: &Asker<'_>, before: &Decided, done: &Done) -> Error {
    Error::Divergence(Box::new(Divergence {
        kind: DivergenceKind::StateChanged,
        task: asker.task.clone(),
        row: None,
        recorded: format!("changes of state with fingerprint {:016x}", before.fingerprint),
        asked: format!("{:016x}", done.fingerprint),
        advice: "The same input must change state in the same way: take what is not the same each time (clock, random \
                 numbers, calls) from clonos, and keep nothing between epochs but state"
            .into(),
    }))
}
