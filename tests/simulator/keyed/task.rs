//! One attempt of a task: it asks where its state is, reads it, and has its delta held by all who are to have it.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use clonos::agent::protocol::{AgentInfo, OpenTask, Use};
use clonos::agent::registry::Granted;
use clonos::agent::state::asking::{Done, FromRegistry, Holding, Located, ToRegistry};
use clonos::agent::state::holders::Part;
use clonos::agent::state::holdings::Took;
use clonos::agent::state::messages::Clock;
use clonos::agent::state::registry::Asker;
use clonos::error::{Error, Result};
use clonos::exchange::partition_of;
use clonos::id::{AgentId, Epoch, Generation, Partition, TaskId};
use clonos::state::kept::Written;
use clonos::state::{
    Delta, EntriesBuilder, EntryKey, KeyPrefix, Limits, Op, Range, RangeSet, Read, Slot, Version,
    partition_ranges,
};

use super::query::Known;
use super::world::World;
use super::{Mutation, QUERY, lost_on_the_way, state};

const CLOCK: Clock = Clock { now_ms: 0, watermark_ms: -1, late_ms: -1 };
/// How often an attempt waits for who does not answer.
const PATIENCE: usize = 6;
/// As in `edge::agent::state`.
const TRIES: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    Locate,
    Read,
    Write,
    Over,
}

#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) id: TaskId,
    pub(crate) epoch: u64,
    pub(crate) partition: u32,
    partitions: u32,
    pub(crate) host: usize,
    attempt: u64,
    app: u64,
    phase: Phase,
    pub(crate) generation: Generation,
    located: Option<Located>,
    silent: BTreeSet<AgentId>,
    unread: RangeSet,
    read: BTreeMap<KeyPrefix, u64>,
    delta: Option<(Delta, Done)>,
    is_kept: bool,
    /// Whom the delta was sent to in this round, and whether one of them is waited for.
    tried: BTreeSet<AgentId>,
    is_waiting: bool,
    patience: usize,
}

impl Task {
    pub(crate) fn new(
        epoch: u64,
        (partition, partitions): (u32, u32),
        host: usize,
        attempt: u64,
        app: u64,
    ) -> Self {
        let (query, operator, of) = (QUERY.into(), state().operator, Partition(partition));
        Self {
            id: TaskId { query, operator, epoch: Epoch::Batch(epoch), partition: of },
            epoch,
            partition,
            partitions,
            host,
            attempt,
            app,
            phase: Phase::Open,
            generation: Generation::NONE,
            located: None,
            silent: BTreeSet::new(),
            unread: RangeSet::EMPTY,
            read: BTreeMap::new(),
            delta: None,
            is_kept: false,
            tried: BTreeSet::new(),
            is_waiting: false,
            patience: PATIENCE,
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    fn asker(&self) -> Asker<'_> {
        Asker {
            task: &self.id,
            generation: self.generation,
            partition: self.partition,
            partitions: self.partitions,
        }
    }

    fn located(&self) -> &Located {
        self.located.as_ref().expect("it was located")
    }

    fn keys<'a>(&'a self, known: &'a Known) -> impl Iterator<Item = &'a KeyPrefix> {
        let is_its = |key: &&KeyPrefix| partition_of(key.hash(), self.partitions).0 == self.partition;
        known.keys.iter().filter(is_its)
    }

    fn fenced(&self) -> Error {
        Error::Fenced { task: self.id.clone(), newer: Generation::NONE, ours: self.generation }
    }

    /// As `writing::targets`.
    fn targets(&self, ready_only: bool) -> Vec<(AgentInfo, RangeSet)> {
        let (_, done) = self.delta.as_ref().expect("it was computed");
        let as_of = self.located().as_of;
        let has = |agent: AgentId| {
            let of = done.held.iter().filter(|(id, held, _)| *id == agent && *held == as_of);
            of.fold(RangeSet::EMPTY, |all, (_, _, ranges)| all.union(ranges))
        };
        let holders = self.located().holders.iter();
        let holders = holders.filter(|holding| !done.silent.contains(&holding.agent.id));
        let lacking = holders.map(|Holding { agent, ready, joining }| {
            let takes = if ready_only { *ready } else { ready.union(joining) };
            (agent.clone(), takes.without(&has(agent.id)))
        });
        lacking.filter(|(_, ranges)| !ranges.is_empty()).collect()
    }
}

impl World {
    /// The next thing that an attempt does.
    ///
    /// # Errors
    /// Whatever ends it.
    pub(crate) fn step(&mut self, task: &mut Task, known: &Known) -> Result<()> {
        if self.hosts[task.host].is_cut {
            // Its worker and its agent wait.
            return Ok(());
        }
        match task.phase {
            Phase::Open => self.open(task),
            Phase::Locate => self.begin(task, known),
            Phase::Read => self.read(task, known),
            Phase::Write => self.write(task),
            Phase::Over => Ok(()),
        }
    }

    fn open(&mut self, task: &mut Task) -> Result<()> {
        let open = OpenTask {
            task: task.id.clone(),
            used: Use::default(),
            execution: None,
            app: task.app,
            stage: 1,
            attempt: task.attempt,
            worker: task.attempt,
            inside: false,
            stamp: 0,
            of_rdd: None,
        };
        let sent = self.next_request(task.host);
        match self.registry.grant(&open, sent, 0, None, self.now_ms) {
            Granted::Yes(grant) => {
                (task.id, task.generation, task.phase) = (grant.task, grant.generation, Phase::Locate);
                Ok(())
            }
            Granted::Busy | Granted::Crossed | Granted::Twice => Ok(()),
            Granted::Left | Granted::Unknown | Granted::Refused(_) => Err(task.fenced()),
        }
    }

    /// As `Handler::locate`, in the driver.
    fn locate(&mut self, task: &Task) -> Result<Option<Located>> {
        let asker = task.asker();
        if let Some(after) = self.registry.wants_folder(&asker)? {
            let (epoch, mutation) = (task.epoch, self.setting.mutation);
            let folder = self.folder.as_mut().expect("there is one, or it is not wanted");
            let restored = folder.look(&asker, epoch, after, mutation)?;
            self.registry.state_found(&asker, restored);
        }
        match self.registry.locate_state(&asker, CLOCK)? {
            FromRegistry::Located(located) => Ok(Some(*located)),
            FromRegistry::IsRestored => Ok(None),
            other => panic!("{other:?}"),
        }
    }

    fn begin(&mut self, task: &mut Task, known: &Known) -> Result<()> {
        let Some(located) = self.locate(task)? else { return Ok(()) };
        assert_eq!(located.version, known.version, "epoch {} begins with another version", task.epoch);
        if located.version != Version::NONE {
            task.unread = task.keys(known).map(|key| Range::of(key.hash())).collect();
        }
        (task.located, task.phase) = (Some(located), Phase::Read);
        Ok(())
    }

    /// As `Handler::ask_shares`, one holder at a time.
    fn read(&mut self, task: &mut Task, known: &Known) -> Result<()> {
        let Some(range) = task.unread.iter().next() else {
            self.compute(task, known);
            return Ok(());
        };
        let is_asked =
            |holding: &&Holding| holding.ready.contains(range) && !task.silent.contains(&holding.agent.id);
        let asked: Vec<&Holding> = task.located().holders.iter().filter(is_asked).collect();
        let own = self.hosts[task.host].info.id;
        let nearest = asked.iter().find(|holding| holding.agent.id == own).copied();
        let Some(holding) = nearest.or_else(|| asked.get(self.dice.below(asked.len())).copied()) else {
            return self.look_for_others(task, range);
        };
        let (holder, ranges) = (holding.agent.id, holding.ready.intersection(&task.unread));
        let keys: Vec<KeyPrefix> =
            task.keys(known).filter(|key| ranges.contains(Range::of(key.hash()))).cloned().collect();
        match self.read_at(task, holder, &keys) {
            Ok(Read::Entries { entries, .. }) => {
                for entry in entries.iter() {
                    let entry = entry?;
                    let Op::Put { value, .. } = entry.op else { continue };
                    let value = u64::from_le_bytes(value.as_ref().try_into().expect("eight bytes"));
                    task.read.insert(entry.key.prefix(), value);
                }
                task.unread = task.unread.without(&ranges);
            }
            Ok(Read::NotHeld(missing)) => {
                let (life, as_of) = (task.located().life, task.located().as_of);
                self.note(|| format!("{holder} has not {} ranges", missing.len()));
                self.tell_lacks(task.host, holder, life, &missing, as_of)?;
                task.silent.insert(holder);
            }
            Ok(Read::Behind(version)) => {
                panic!("{holder} is at {version:?} though it was brought up to date")
            }
            Err(error) if error.is_silence() => drop(task.silent.insert(holder)),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// As `Handler::ask_up_to_date`.
    fn read_at(&mut self, task: &Task, holder: AgentId, keys: &[KeyPrefix]) -> Result<Read> {
        let (life, version) = (task.located().life, task.located().version);
        for _ in 0..TRIES {
            let at = self.reach(task.host, holder)?;
            let ranges = || keys.iter().map(|key| Range::of(key.hash())).collect();
            let Some(view) = self.hosts[at].holdings.view(&state(), life) else {
                return Ok(Read::NotHeld(ranges()));
            };
            let asked = if self.is(Mutation::StaleIsRead) { view.version() } else { version };
            match view.read(asked, keys, None, 0, &Limits::whole(u64::MAX))? {
                Read::Behind(here) if here > version => {
                    let (state, what) = (state().to_string(), "an epoch is over".into());
                    return Err(Error::StateLost { state, what });
                }
                Read::Behind(here) => {
                    if !self.bring_up(task.host, holder, life, here)? {
                        return Ok(Read::NotHeld(RangeSet::ALL));
                    }
                }
                read => return Ok(read),
            }
        }
        Err(lost_on_the_way())
    }

    fn look_for_others(&mut self, task: &mut Task, range: Range) -> Result<()> {
        let had = |holding: &&Holding| holding.ready.contains(range);
        let silent: Vec<AgentId> =
            task.located().holders.iter().filter(had).map(|holding| holding.agent.id).collect();
        let own = self.hosts[task.host].info.id;
        for holder in silent.into_iter().filter(|holder| *holder != own) {
            self.is_dead(task.host, holder);
        }
        self.waits(task)?;
        let Some(located) = self.locate(task)? else { return Ok(()) };
        if (located.life, located.version) != (task.located().life, task.located().version) {
            return Err(task.fenced());
        }
        task.located = Some(located);
        task.silent.clear();
        Ok(())
    }

    fn waits(&mut self, task: &mut Task) -> Result<()> {
        task.patience = task.patience.checked_sub(1).ok_or_else(lost_on_the_way)?;
        self.pass(1_500);
        Ok(())
    }

    /// What was read is what the last epoch has left; what is decided depends on it, and on what was drawn.
    fn compute(&mut self, task: &mut Task, known: &Known) {
        let (mut entries, base) = (EntriesBuilder::new(), task.located().version);
        for key in task.keys(known) {
            let (read, left) = (task.read.get(key).copied().unwrap_or(0), known.value(key));
            assert_eq!(read, left, "epoch {} finds another value of key {key:?} at {base:?}", task.epoch);
            if let Some(value) = known.decided(key) {
                let value = Bytes::copy_from_slice(&value.to_le_bytes());
                entries.push(&EntryKey::new(key, Slot(1), b""), &Op::Put { expires_ms: 0, value });
            }
        }
        let delta =
            Delta { epoch: task.epoch, base, now_ms: 0, catalog: Bytes::new(), entries: entries.finish() };
        let done = Done {
            task: task.id.clone(),
            generation: task.generation,
            partition: task.partition,
            partitions: task.partitions,
            life: task.located().life,
            base,
            fingerprint: delta.fingerprint(),
            bytes: delta.entries.as_bytes().len() as u64,
            catalog: None,
            due_ms: None,
            held: Vec::new(),
            silent: Vec::new(),
        };
        (task.delta, task.phase) = (Some((delta, done)), Phase::Write);
    }

    /// As `Handler::write_state`, one holder at a time.
    fn write(&mut self, task: &mut Task) -> Result<()> {
        if !task.is_kept {
            task.is_kept = true;
            self.keep(task);
            // What an earlier attempt has decided is held.
            if task.located().done.is_some() {
                return self.tell_done(task);
            }
        }
        let targets = task.targets(self.is(Mutation::JoinersGetNothing));
        let mut next = targets.iter().filter(|(holder, _)| !task.tried.contains(&holder.id));
        if let Some((holder, ranges)) = next.next().cloned() {
            task.tried.insert(holder.id);
            return self.send(task, holder.id, &ranges);
        }
        drop(next);
        task.tried.clear();
        if std::mem::take(&mut task.is_waiting) {
            if task.patience > 0 {
                self.waits(task)?;
            }
            return Ok(());
        }
        self.tell_done(task)?;
        if task.phase == Phase::Write && targets.is_empty() {
            self.waits(task)?;
        }
        Ok(())
    }

    fn keep(&mut self, task: &Task) {
        if self.is(Mutation::NothingIsKept) && self.dice.chance(20) {
            return;
        }
        let Some((folder, (delta, _))) = self.folder.as_mut().zip(task.delta.as_ref()) else { return };
        let written = Written {
            generation: task.generation,
            partition: task.partition,
            partitions: task.partitions,
            base: delta.base,
        };
        folder.keep(task.epoch, written, delta.clone());
    }

    /// As `Handler::hold_at`, and what `Handler::hold_everywhere` makes of it.
    fn send(&mut self, task: &mut Task, holder: AgentId, ranges: &RangeSet) -> Result<()> {
        let (life, as_of) = (task.located().life, task.located().as_of);
        let sent = self.sent(task, holder, ranges);
        let (_, done) = task.delta.as_mut().expect("it was computed");
        match sent {
            Ok(true) => done.held.push((holder, as_of, *ranges)),
            Ok(false) => done.silent.push(holder),
            Err(error) if error.is_silence() && self.is(Mutation::SentIsThere) => {
                done.held.push((holder, as_of, *ranges));
            }
            Err(error) if error.is_silence() => {
                // One message that is lost after the other is not as long a silence.
                let is_silent = task.patience == 0 && !self.is_there(holder);
                if is_silent || self.is_dead(task.host, holder) {
                    self.note(|| format!("{holder} is not waited for, life {life}"));
                    done.silent.push(holder);
                } else {
                    task.is_waiting = true;
                }
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn sent(&mut self, task: &Task, holder: AgentId, ranges: &RangeSet) -> Result<bool> {
        let (delta, _) = task.delta.as_ref().expect("it was computed");
        let (life, as_of) = (task.located().life, task.located().as_of);
        let (epoch, base) = (task.epoch, delta.base);
        let (partition, generation) = (task.partition, task.generation);
        let part = Part { epoch, base, partition, generation, ranges: *ranges };
        for _ in 0..TRIES {
            match self.hold(task.host, holder, (life, &part), delta)? {
                Took::Held => return Ok(true),
                Took::Behind(version) if version > delta.base => return Err(task.fenced()),
                Took::Behind(version) => {
                    if !self.bring_up(task.host, holder, life, version)? {
                        self.tell_lacks(task.host, holder, life, &RangeSet::ALL, as_of)?;
                        return Ok(false);
                    }
                }
            }
        }
        Err(lost_on_the_way())
    }

    /// As `Handler::tell_done`.
    fn tell_done(&mut self, task: &mut Task) -> Result<()> {
        let (_, done) = task.delta.as_ref().expect("it was computed");
        let mut done = done.clone();
        if self.is(Mutation::JoinersGetNothing) {
            let all = partition_ranges(task.partition, task.partitions);
            let holders = task.located().holders.iter();
            done.held.extend(holders.map(|holding| (holding.agent.id, task.located().as_of, all)));
        }
        if self.is(Mutation::HeldBeforeCounts) {
            done.held.iter_mut().for_each(|(_, as_of, _)| *as_of = u64::MAX);
        }
        match self.ask_registry(task.host, &ToRegistry::Done(done)) {
            Ok(FromRegistry::Counts) => task.phase = Phase::Over,
            Ok(FromRegistry::Also { holders, as_of }) => {
                let located = task.located.as_mut().expect("it was located");
                (located.holders, located.as_of) = (holders, as_of);
            }
            Ok(other) => panic!("{other:?}"),
            Err(error) if error.is_silence() => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}
