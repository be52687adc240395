//! A task's delta: held by all who hold its ranges before the registry is told, and told to the registry before the
//! worker goes on.

use std::collections::HashSet;
use std::panic::resume_unwind;
use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::Instant;

use bytes::Bytes;

use super::super::asking::{SILENCE_PAUSE, at_once};
use super::super::handler::{Handler, Session, unexpected};
use super::gathered::Gathered;
use super::reading::fenced;
use super::task::{StateTask, begun};
use crate::agent::protocol::{AgentInfo, PIECE_BYTES};
use crate::agent::state::asking::{Done, FromRegistry, ToRegistry};
use crate::agent::state::holders::{Answer, Asked, Part, ToHolder};
use crate::edge::disk::state::Kept;
use crate::error::{Error, Result};
use crate::state::{Delta, Encoded, Op, RangeSet, Slot};

/// Timers that are looked at at a time to find the first that stays.
const FIRST_TIMERS: u32 = 256;
/// How often a delta is sent to one holder before that counts as a failure.
const TRIES: usize = 4;

/// What became of a delta that was sent.
enum Sent {
    /// It is held.
    Held,
    /// The holder lacks something that was decided before: it is given it anew, and nobody waits for that.
    Lacks,
}

impl Handler {
    /// Has the delta that a worker has sent held; returns when it is, and the registry knows.
    pub(super) fn write_state(&self, session: &mut Session) -> Result<()> {
        begun(session)?;
        // What the delta depends on is stable before the delta is: it may be all that is left.
        self.append(session, &Bytes::new())?;
        let task = begun(session)?;
        let delta = std::mem::replace(&mut task.delta, Gathered::new(&self.states.memory));
        let (bytes, _taken) = delta.whole();
        let delta = Delta::decode(&bytes)?;
        if (delta.epoch, delta.base) != (task.epoch, task.located.version) {
            return Err(Error::Protocol { what: "a delta of another epoch".into() });
        }
        let due_ms = self.first_due(task, &delta)?;
        let mut done = done_of(task, &delta, bytes.len(), due_ms);
        // What an earlier attempt has decided is held; whether this is the same the registry says.
        if task.located.done.is_some() && self.tell_done(task, &done)? {
            return Ok(());
        }
        self.hold_everywhere(task, (&delta, &bytes), &mut done)
    }

    /// Sends the delta to all holders until the registry is content. With it comes all of it as it travels.
    fn hold_everywhere(
        &self,
        task: &mut StateTask,
        (delta, bytes): (&Delta, &Bytes),
        done: &mut Done,
    ) -> Result<()> {
        let deadline = Instant::now() + self.patience();
        let mut is_kept = self.disk.states().is_none();
        loop {
            let targets = targets(task, done);
            // While it is sent it is written, too.
            let (kept, sent) = std::thread::scope(|scope| {
                let keeping =
                    (!is_kept).then(|| scope.spawn(|| self.keep_delta(task, (delta, bytes), done.due_ms)));
                let sent = at_once(&targets, &|(holder, ranges)| self.hold_at(task, holder, ranges, delta));
                (keeping.map(|keeping| keeping.join().unwrap_or_else(|panic| resume_unwind(panic))), sent)
            });
            kept.unwrap_or(Ok(()))?;
            is_kept = true;
            let mut is_waiting = false;
            for ((holder, ranges), answer) in sent {
                match answer {
                    Ok(Sent::Held) => done.held.push((holder.id, task.located.as_of, *ranges)),
                    Ok(Sent::Lacks) => done.silent.push(holder.id),
                    Err(error) if error.is_silence() => {
                        tracing::info!(holder = %holder.addr, %error, "a holder of state does not answer");
                        if self.is_dead(holder) || Instant::now() >= deadline {
                            done.silent.push(holder.id);
                        } else {
                            is_waiting = true;
                        }
                    }
                    Err(error) => return Err(error),
                }
            }
            if !is_waiting && self.tell_done(task, done)? {
                return Ok(());
            }
            if is_waiting || targets.is_empty() {
                if targets.is_empty() && Instant::now() >= deadline {
                    return Err(self.nobody_holds(task));
                }
                sleep(SILENCE_PAUSE);
            }
        }
    }

    /// When the first timer of the task's partition is due after its delta.
    fn first_due(&self, task: &mut StateTask, delta: &Delta) -> Result<Option<i64>> {
        let timers = Timers::of(delta)?;
        let mut after = None;
        loop {
            let (some, more) = self.due_timers(task, i64::MAX, after, FIRST_TIMERS)?;
            if let Some((at, _)) = some.iter().find(|timer| timers.leaves(timer)) {
                return Ok(Some(timers.added_ms.map_or(*at, |added| added.min(*at))));
            }
            after = some.last().cloned();
            if !more || after.is_none() {
                return Ok(timers.added_ms);
            }
        }
    }

    /// Writes the delta to the checkpoint folder.
    fn keep_delta(
        &self,
        task: &StateTask,
        (delta, bytes): (&Delta, &Bytes),
        due_ms: Option<i64>,
    ) -> Result<()> {
        let Some(folder) = self.disk.states() else { return Ok(()) };
        let kept = Kept {
            id: &task.located.state,
            epoch: task.epoch,
            partition: task.partition,
            partitions: task.partitions,
            generation: task.generation,
            base: delta.base,
            due_ms,
        };
        folder.keep(self.disk.incarnation(), &kept, bytes)
    }

    /// Tells the registry; whether that counts. If not, others are to have the delta, too.
    fn tell_done(&self, task: &mut StateTask, done: &Done) -> Result<bool> {
        match self.ask_states(ToRegistry::Done(done.clone()))? {
            FromRegistry::Counts => Ok(true),
            FromRegistry::Also { holders, as_of } => {
                (task.located.holders, task.located.as_of) = (holders, as_of);
                Ok(false)
            }
            _ => Err(unexpected()),
        }
    }

    /// Has one holder hold its part.
    fn hold_at(
        &self,
        task: &StateTask,
        holder: &AgentInfo,
        ranges: &RangeSet,
        delta: &Delta,
    ) -> Result<Sent> {
        let part = Part {
            epoch: task.epoch,
            base: delta.base,
            partition: task.partition,
            generation: task.generation,
            ranges: *ranges,
        };
        for _ in 0..TRIES {
            let answer = match holder.id == self.info.id {
                true => self.hold_here(task, &part, delta),
                false => self.send_delta(task, holder, part, &delta.encode_of(ranges)?),
            };
            match answer {
                Ok(Answer::Held) => return Ok(Sent::Held),
                Ok(Answer::Behind(version)) if version > delta.base => return Err(fenced(task)),
                Ok(Answer::Behind(version)) => {
                    if !self.bring_up(&task.located, holder, version)? {
                        self.tell_lacks(&task.located, holder, &RangeSet::ALL)?;
                        return Ok(Sent::Lacks);
                    }
                }
                Ok(_) => return Err(unexpected()),
                // Another try was in its way.
                Err(Error::Protocol { what }) => tracing::info!(holder = %holder.addr, what, "sent again"),
                Err(error) => return Err(error),
            }
        }
        Err(Error::Timeout { what: format!("the agent at {} to hold a delta", holder.addr), millis: 0 })
    }

    fn hold_here(&self, task: &StateTask, part: &Part, delta: &Delta) -> Result<Answer> {
        let delta = match task.ranges().without(&part.ranges).is_empty() {
            true => delta.clone(),
            false => delta.of(&part.ranges)?,
        };
        self.hold_part(&task.located.state, task.located.life, part, delta)
    }

    /// Sends a delta, piece by piece.
    fn send_delta(
        &self,
        task: &StateTask,
        holder: &AgentInfo,
        part: Part,
        delta: &Encoded,
    ) -> Result<Answer> {
        let (state, life) = (&task.located.state, task.located.life);
        let (by, upload) = (self.info.id, self.next_request().number);
        let piece_bytes = usize::try_from(PIECE_BYTES).unwrap_or(usize::MAX);
        let mut at = 0;
        loop {
            let piece = delta.piece(at, piece_bytes);
            let end = at + piece.len();
            let is_last = end == delta.size();
            let part = is_last.then_some(part);
            let asked = Asked::Hold { by, upload, at: at as u64, piece, part };
            let answer = self.ask_holder(holder, ToHolder { state: state.clone(), life, asked })?;
            self.sent_bytes.fetch_add((end - at) as u64, Ordering::Relaxed);
            if is_last || !matches!(answer, Answer::Held) {
                return Ok(answer);
            }
            at = end;
        }
    }

    fn nobody_holds(&self, task: &StateTask) -> Error {
        Error::Timeout {
            what: format!("agents to hold what {} decides", task.task),
            millis: u64::try_from(self.patience().as_millis()).unwrap_or(u64::MAX),
        }
    }
}

/// What the registry is told, but for who holds it.
fn done_of(task: &StateTask, delta: &Delta, bytes: usize, due_ms: Option<i64>) -> Done {
    let is_new = !delta.catalog.is_empty() && delta.catalog != task.located.catalog;
    Done {
        task: task.task.clone(),
        generation: task.generation,
        partition: task.partition,
        partitions: task.partitions,
        life: task.located.life,
        base: delta.base,
        fingerprint: delta.fingerprint(),
        bytes: bytes as u64,
        catalog: is_new.then(|| delta.catalog.clone()),
        due_ms,
        held: Vec::new(),
        silent: Vec::new(),
    }
}

/// What a delta does to timers.
#[derive(Default)]
struct Timers {
    added_ms: Option<i64>,
    deleted: HashSet<(i64, Bytes)>,
    /// Keys all of whose timers are gone.
    cleared: HashSet<Bytes>,
}

impl Timers {
    fn of(delta: &Delta) -> Result<Self> {
        let mut timers = Self::default();
        for entry in delta.entries.iter() {
            let entry = entry?;
            if entry.key.slot() != Slot::TIMERS {
                continue;
            }
            let key = || entry.key.prefix().as_bytes().clone();
            match (&entry.op, entry.key.expiry_ms()) {
                (Op::Put { .. }, Some(at)) => {
                    timers.added_ms = Some(timers.added_ms.map_or(at, |first| first.min(at)));
                }
                (Op::Delete, Some(at)) => drop(timers.deleted.insert((at, key()))),
                (Op::Clear, _) => drop(timers.cleared.insert(key())),
                _ => {}
            }
        }
        Ok(timers)
    }

    fn leaves(&self, timer: &(i64, Bytes)) -> bool {
        !self.deleted.contains(timer) && !self.cleared.contains(&timer.1)
    }
}

/// Who is still to have the delta of those that the registry has told of last, and which ranges of it.
fn targets(task: &StateTask, done: &Done) -> Vec<(AgentInfo, RangeSet)> {
    let has = |holder: &AgentInfo| {
        let is_of_now = |as_of: u64| as_of == task.located.as_of;
        let of = done.held.iter().filter(|(id, as_of, _)| *id == holder.id && is_of_now(*as_of));
        of.fold(RangeSet::EMPTY, |all, (_, _, ranges)| all.union(ranges))
    };
    let holders = task.located.holders.iter().filter(|holding| !done.silent.contains(&holding.agent.id));
    let lacking = holders.map(|holding| {
        let takes = holding.ready.union(&holding.joining);
        (holding.agent.clone(), takes.without(&has(&holding.agent)))
    });
    lacking.filter(|(_, ranges)| !ranges.is_empty()).collect()
}
