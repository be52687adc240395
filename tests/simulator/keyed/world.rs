//! Agents that hold state, and their registry, without sockets and disks.

use std::collections::BTreeMap;
use std::sync::Arc;

use clonos::agent::protocol::{AgentInfo, AgentStanding, Sent};
use clonos::agent::registry::Registry;
use clonos::agent::state::asking::{Basis, FromRegistry, Holding, Join, Located, ToRegistry};
use clonos::agent::state::holders::Part;
use clonos::agent::state::holdings::{Holdings, Moved, Took};
use clonos::agent::state::registry::Keeping;
use clonos::error::{Error, Result};
use clonos::id::{AgentId, Generation};
use clonos::state::{
    CommitPoint, Delta, MemoryFiles, RangeSet, StateId, StateStore, Version, partition_ranges,
};

use super::folder::Folder;
use super::joining::Work;
use super::{Mutation, QUERY, Setting, lost_on_the_way, state};
use crate::dice::Dice;

/// Of a hundred messages, how many get lost, and how many come twice, the second time much later.
const LOST: usize = 2;
const LATE: usize = 4;
/// Memory of an agent: so little that some of what it holds goes to files.
const MEMORY_BYTES: u64 = 64 << 10;

/// An agent.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) info: AgentInfo,
    lives: u64,
    pub(crate) holdings: Holdings,
    /// What it has given up, of which the registry has not heard: ranges, and as of when they were its own.
    untold: Vec<(u64, RangeSet, u64)>,
    pub(crate) work: Work,
    /// Nobody reaches it, nor it anybody.
    pub(crate) is_cut: bool,
}

impl Host {
    fn new(number: usize, lives: u64) -> Self {
        let store = StateStore::with_files(MEMORY_BYTES, Arc::new(MemoryFiles));
        Self {
            info: crate::host::info(number, lives),
            lives,
            holdings: Holdings::new(store),
            untold: Vec::new(),
            work: Work::default(),
            is_cut: false,
        }
    }
}

/// What an agent is to make its own and to write down, and when that was said.
#[derive(Debug)]
pub(crate) struct Own {
    pub(crate) joins: Vec<Join>,
    pub(crate) bases: Vec<Basis>,
    as_of: u64,
}

/// A message that comes a second time.
#[derive(Debug)]
enum Late {
    Hold { to: AgentId, life: u64, part: Part, delta: Delta },
    Told(ToRegistry),
}

/// All of them. Agent 0 is the driver's.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) setting: Setting,
    pub(crate) dice: Dice,
    pub(crate) hosts: Vec<Host>,
    pub(crate) registry: Registry,
    pub(crate) folder: Option<Folder>,
    pub(crate) now_ms: u64,
    late: Vec<Late>,
    requests: u64,
    pub(crate) trace: Vec<String>,
}

impl World {
    pub(crate) fn new(setting: &Setting) -> Self {
        let mut world = Self {
            setting: setting.clone(),
            dice: Dice::new(setting.seed),
            hosts: (0..setting.hosts).map(|number| Host::new(number, 0)).collect(),
            registry: Registry::new(),
            folder: setting.durable.then(Folder::default),
            now_ms: 1,
            late: Vec::new(),
            requests: 0,
            trace: Vec::new(),
        };
        world.begin_registry(Generation::NONE);
        world
    }

    pub(crate) fn is(&self, mutation: Mutation) -> bool {
        self.setting.mutation == mutation
    }

    pub(crate) fn note(&mut self, line: impl FnOnce() -> String) {
        if self.setting.traced {
            self.trace.push(line());
        }
    }

    fn begin_registry(&mut self, newest: Generation) {
        self.registry = Registry::new();
        self.registry.begin_after(newest);
        let Setting { copies, durable, .. } = self.setting;
        self.registry.keep_states(Keeping { copies, durable, begins_anew: false });
        for host in &self.hosts {
            self.registry.register(host.info.clone(), "", self.now_ms);
        }
    }

    /// The driver ends with all agents, and another takes its place. What was on its way to those is lost; what was on
    /// its way to the checkpoint folder is not.
    pub(crate) fn restart_driver(&mut self, newest: Generation) {
        for (number, host) in self.hosts.iter_mut().enumerate() {
            *host = Host::new(number, host.lives + 1);
        }
        self.late.clear();
        self.begin_registry(newest);
    }

    /// An agent ends with all that it holds, and another one comes up in its place.
    pub(crate) fn crash(&mut self, number: usize) {
        let lives = self.hosts[number].lives + 1;
        self.note(|| format!("agent {number} ends, {lives} comes"));
        self.hosts[number] = Host::new(number, lives);
        let info = self.hosts[number].info.clone();
        self.registry.register(info, "", self.now_ms);
    }

    /// A while passes. Agents that others have gone on without end when they hear of it.
    pub(crate) fn pass(&mut self, millis: u64) {
        self.now_ms += millis;
        self.registry.look_at_clock(self.now_ms);
        for number in 0..self.hosts.len() {
            if self.hosts[number].is_cut {
                continue;
            }
            let standing = self.registry.heartbeat(self.hosts[number].info.id, 0, self.now_ms).0;
            if standing == AgentStanding::Dead {
                self.crash(number);
            }
        }
    }

    /// Where an agent is, if it can be reached from there.
    pub(crate) fn reach(&mut self, from: usize, to: AgentId) -> Result<usize> {
        let there = self.hosts.iter().position(|host| host.info.id == to);
        let number = there.filter(|number| *number == from || !self.hosts[*number].is_cut);
        let number = number.filter(|number| *number == from || !self.hosts[from].is_cut);
        if number.is_some_and(|number| number != from) && self.dice.chance(LOST) {
            return Err(lost_on_the_way());
        }
        number.ok_or_else(lost_on_the_way)
    }

    /// Whether an agent would answer if it were asked often enough.
    pub(crate) fn is_there(&self, agent: AgentId) -> bool {
        self.hosts.iter().any(|host| host.info.id == agent && !host.is_cut)
    }

    /// Whether an agent that does not answer is known to be dead.
    pub(crate) fn is_dead(&mut self, from: usize, agent: AgentId) -> bool {
        !self.hosts[from].is_cut && self.registry.is_dead(agent, false, self.now_ms)
    }

    /// The next request of an agent.
    pub(crate) fn next_request(&mut self, number: usize) -> Sent {
        self.requests += 1;
        Sent { by: self.hosts[number].info.id, number: self.requests }
    }

    /// As `Handler::ask_states`.
    pub(crate) fn ask_registry(&mut self, from: usize, told: &ToRegistry) -> Result<FromRegistry> {
        if self.hosts[from].is_cut || self.dice.chance(LOST) {
            return Err(lost_on_the_way());
        }
        let may_come_twice =
            matches!(told, ToRegistry::Done(_) | ToRegistry::Lacks { .. } | ToRegistry::Joined { .. });
        if may_come_twice && self.dice.chance(LATE) {
            self.late.push(Late::Told(told.clone()));
            if self.dice.chance(50) {
                // It comes for the first time then.
                return Err(lost_on_the_way());
            }
        }
        self.registry.look_at_clock(self.now_ms);
        self.registry.state(told).unwrap_or_else(|| panic!("{told:?} is not for this"))
    }

    /// Something comes a second time.
    pub(crate) fn deliver_late(&mut self) {
        if self.late.is_empty() {
            return;
        }
        let at = self.dice.below(self.late.len());
        let came = self.late.swap_remove(at);
        self.note(|| format!("late: {came:?}"));
        match came {
            // Nobody waits for what becomes of it.
            Late::Told(told) => drop(self.registry.state(&told)),
            Late::Hold { to, life, part, delta } => {
                if let Some(host) = self.hosts.iter_mut().find(|host| host.info.id == to) {
                    drop(host.holdings.take(&state(), life, &part, delta));
                }
            }
        }
    }

    /// As `Handler::hold_part`, at another agent: it may come a second time, or not be answered.
    pub(crate) fn hold(
        &mut self,
        from: usize,
        to: AgentId,
        (life, part): (u64, &Part),
        delta: &Delta,
    ) -> Result<Took> {
        let at = self.reach(from, to)?;
        let delta = delta.of(&part.ranges)?;
        if self.dice.chance(LATE) {
            self.late.push(Late::Hold { to, life, part: *part, delta: delta.clone() });
            if self.dice.chance(50) {
                return Err(lost_on_the_way());
            }
        }
        let took = self.hosts[at].holdings.take(&state(), life, part, delta)?;
        if at != from && self.dice.chance(LOST) {
            return Err(lost_on_the_way());
        }
        Ok(took)
    }

    /// As `Handler::bring_up`: a holder is told what was committed since its version; whether it could follow.
    pub(crate) fn bring_up(
        &mut self,
        from: usize,
        holder: AgentId,
        life: u64,
        version: Version,
    ) -> Result<bool> {
        let told = ToRegistry::Points { state: state(), life, after: version };
        let points = match self.ask_registry(from, &told) {
            Ok(FromRegistry::Points(points)) => points,
            Ok(other) => panic!("{other:?}"),
            Err(Error::StateLost { .. }) => return Ok(false),
            Err(error) => return Err(error),
        };
        let at = self.reach(from, holder)?;
        Ok(self.advance(at, life, &points, RangeSet::EMPTY)?.is_some())
    }

    /// As `Handler::advance`.
    pub(crate) fn advance(
        &mut self,
        at: usize,
        life: u64,
        points: &[CommitPoint],
        mut given_up: RangeSet,
    ) -> Result<Option<Version>> {
        let id: StateId = state();
        let mut asked_as_of = None;
        loop {
            let ranges = match self.hosts[at].holdings.advance(&id, life, points, &given_up)? {
                Moved::To(version) => return Ok(Some(version)),
                Moved::Nothing => return Ok(None),
                Moved::Lacks(ranges) => ranges,
            };
            if let Some(as_of) = asked_as_of {
                self.note(|| format!("agent {at} gives up {} ranges", ranges.len()));
                self.hosts[at].untold.push((life, ranges, as_of));
                self.hosts[at].holdings.give_up(&id, life, &ranges);
                given_up = given_up.union(&ranges);
                self.tell_given_up(at)?;
            } else {
                asked_as_of = Some(self.forget_others(at)?.as_of);
            }
        }
    }

    /// As `Handler::tell_given_up`.
    pub(crate) fn tell_given_up(&mut self, at: usize) -> Result<()> {
        while let Some((life, ranges, as_of)) = self.hosts[at].untold.first().copied() {
            self.tell_lacks(at, self.hosts[at].info.id, life, &ranges, as_of)?;
            self.hosts[at].untold.remove(0);
        }
        Ok(())
    }

    /// As `Handler::tell_lacks`.
    pub(crate) fn tell_lacks(
        &mut self,
        from: usize,
        agent: AgentId,
        life: u64,
        ranges: &RangeSet,
        as_of: u64,
    ) -> Result<()> {
        let told = ToRegistry::Lacks { agent, state: state(), life, ranges: *ranges, as_of };
        self.ask_registry(from, &told).map(drop)
    }

    /// As `Handler::forget_others`.
    pub(crate) fn forget_others(&mut self, at: usize) -> Result<Own> {
        self.hosts[at].holdings.look_for_fresh();
        match self.ask_registry(at, &ToRegistry::Joins { agent: self.hosts[at].info.id })? {
            FromRegistry::Joins { own, joins, bases, as_of } => {
                self.hosts[at].holdings.forget_others(&own);
                Ok(Own { joins, bases, as_of })
            }
            other => panic!("{other:?}"),
        }
    }

    /// The fewest agents that have everything of any range; none if nothing is held yet.
    pub(crate) fn copies(&self) -> Option<u32> {
        self.registry.state_figures().first().map(|(_, figures)| figures.copies)
    }

    /// That each agent that the registry counts as ready has all that was committed of its ranges, applied or not, but for
    /// those that are about to say that they have not.
    pub(crate) fn audit(&mut self) {
        let Ok(cut) = self.registry.state_cut(QUERY) else { return };
        for located in cut {
            let mut points: BTreeMap<Version, Vec<CommitPoint>> = BTreeMap::new();
            for host in &self.hosts {
                let Some(version) = host.holdings.version(&located.state, located.life) else { continue };
                let told =
                    ToRegistry::Points { state: located.state.clone(), life: located.life, after: version };
                if let Some(Ok(FromRegistry::Points(after))) = self.registry.state(&told) {
                    points.insert(version, after);
                }
            }
            for Holding { agent, ready, .. } in &located.holders {
                let host = self.hosts.iter().find(|host| host.info.id == agent.id);
                if let Some(host) = host.filter(|host| host.untold.is_empty()) {
                    audited(&host.holdings, &points, &located, ready);
                }
            }
        }
    }
}

fn audited(
    holdings: &Holdings,
    points: &BTreeMap<Version, Vec<CommitPoint>>,
    located: &Located,
    ready: &RangeSet,
) {
    let (id, life) = (&located.state, located.life);
    let Some((version, held)) = holdings.view(id, life).map(|view| (view.version(), view.held())) else {
        assert!(ready.is_empty(), "who is ready of {ready:?} has nothing");
        return;
    };
    assert!(ready.without(&held).is_empty(), "who is ready of {ready:?} has {held:?}");
    let after = points.get(&version).expect("who is ready can be told what was committed since");
    for point in after {
        for (partition, generation) in point.tasks.iter().copied() {
            let wanted = partition_ranges(partition, point.partitions).intersection(ready);
            let name = (point.epoch, partition, generation);
            let parts = holdings.store.pending_parts(id, name, &wanted).expect("in memory");
            let there = parts.iter().fold(RangeSet::EMPTY, |all, part| all.union(&part.ranges));
            let lacks = wanted.without(&there);
            assert!(lacks.is_empty(), "who is ready lacks {name:?} of {lacks:?}");
        }
    }
}
