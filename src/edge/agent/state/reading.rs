//! Entries and timers of a task, from whoever has them at the version that it reads.

use std::thread::sleep;

use bytes::Bytes;

use super::super::asking::{Patience, SILENCE_PAUSE, at_once};
use super::super::handler::{Handler, unexpected};
use super::task::StateTask;
use crate::agent::placement;
use crate::agent::protocol::{AgentInfo, PIECE_BYTES, Silence};
use crate::agent::state::asking::{FromRegistry, Holding, Located, ToRegistry};
use crate::agent::state::holders::{Answer, Asked, ToHolder};
use crate::agent::state::messages::Found;
use crate::error::{Error, Result};
use crate::id::Generation;
use crate::state::{Entries, EntriesBuilder, Entry, KeyPrefix, Limits, Range, RangeSet, Version};

/// Timers that are asked for at a time.
pub(super) const TIMERS_MAX: u32 = 4_096;
/// The least that a holder is asked for: where there are many, each is asked for a part of a piece.
const SHARE_BYTES_MIN: u64 = 1 << 16;
/// How often a holder is brought up to date for one question.
const TRIES: usize = 3;

/// When a timer is due, and the key's [`KeyPrefix`].
type Timer = (i64, Bytes);
/// A holder, and the ranges that it is asked about.
type Share = (AgentInfo, RangeSet);

impl Handler {
    /// A piece of the entries of some keys.
    pub(super) fn read_state(
        &self,
        task: &mut StateTask,
        keys: Vec<Bytes>,
        from: Option<Bytes>,
        limits: Limits,
    ) -> Result<Found> {
        if task.located.version == Version::NONE {
            return Ok(Found::Entries { entries: Bytes::new(), cut: Vec::new(), next: None });
        }
        let keys = keys.into_iter().map(KeyPrefix::from_bytes).collect::<Result<Vec<_>>>()?;
        let ranges: RangeSet = keys.iter().map(|key| Range::of(key.hash())).collect();
        if !ranges.without(&task.ranges()).is_empty() {
            return Err(Error::Misuse { what: format!("{} asked for keys of another partition", task.task) });
        }
        let (version, now_ms) = (task.located.version, task.located.clock.now_ms);
        let ask = |ranges: &RangeSet, shares: u64| Asked::Read {
            version,
            keys: keys
                .iter()
                .filter(|key| ranges.contains(Range::of(key.hash())))
                .map(|key| key.as_bytes().clone())
                .collect(),
            from: from.clone(),
            now_ms,
            limits: Limits {
                bytes: limits.bytes.min((PIECE_BYTES / shares).max(SHARE_BYTES_MIN)),
                ..limits.clone()
            },
        };
        let mut answers = Vec::new();
        for answer in self.ask_shares(task, ranges, &ask)? {
            match answer {
                Answer::Entries { entries, cut, next } => answers.push(Piece { entries, cut, next }),
                _ => return Err(unexpected()),
            }
        }
        let Piece { entries, cut, next } = merged(answers, limits.bytes.min(PIECE_BYTES))?;
        Ok(Found::Entries { entries, cut, next })
    }

    /// Some of the timers of the task's partition that are due.
    pub(super) fn due_timers(
        &self,
        task: &mut StateTask,
        until_ms: i64,
        after: Option<(i64, Bytes)>,
        timers_max: u32,
    ) -> Result<(Vec<(i64, Bytes)>, bool)> {
        if task.located.version == Version::NONE || !task.located.has_timers {
            return Ok((Vec::new(), false));
        }
        let version = task.located.version;
        let hashes = hashes_of(task.partition, task.partitions);
        let ask = |ranges: &RangeSet, _shares: u64| Asked::Due {
            version,
            hashes,
            ranges: *ranges,
            until_ms,
            after: after.clone(),
            timers_max,
        };
        let (mut all, mut cut): (Vec<Timer>, Option<Timer>) = (Vec::new(), None);
        for answer in self.ask_shares(task, task.ranges(), &ask)? {
            let Answer::Due { timers, more } = answer else { return Err(unexpected()) };
            if let Some(last) = timers.last().filter(|_| more)
                && cut.as_ref().is_none_or(|cut| last < cut)
            {
                cut = Some(last.clone());
            }
            all.extend(timers);
        }
        all.sort_unstable();
        // Of what lies behind, some is missing.
        if let Some(cut) = &cut {
            all.truncate(all.partition_point(|timer| timer <= cut));
        }
        Ok((all, cut.is_some()))
    }

    /// Asks a holder of each range, all at once. Where one does not answer, or cannot read what it has, another that has
    /// the range is asked.
    fn ask_shares(
        &self,
        task: &mut StateTask,
        mut ranges: RangeSet,
        ask: &(impl Fn(&RangeSet, u64) -> Asked + Sync),
    ) -> Result<Vec<Answer>> {
        let mut patience = Patience::of(self);
        let (mut answers, mut failed) = (Vec::new(), None);
        while !ranges.is_empty() {
            let (shares, nobodys) = self.shares(task, &ranges);
            if !nobodys.is_empty() {
                if let Some(error) = failed {
                    return Err(error);
                }
                self.look_for_others(task, &nobodys, &mut patience)?;
                continue;
            }
            let (located, count) = (&task.located, shares.len() as u64);
            let asked = at_once(&shares, &|(holder, ranges)| {
                self.ask_up_to_date(located, holder, &ask(ranges, count))
            });
            let mut silent = Vec::new();
            for ((holder, of), answer) in asked {
                match answer {
                    Ok(Answer::NotHeld(missing)) => {
                        self.tell_lacks(located, holder, &missing)?;
                        silent.push(holder.id);
                    }
                    Ok(answer) => {
                        ranges = ranges.without(of);
                        answers.push(answer);
                    }
                    Err(error) if error.is_silence() => {
                        tracing::info!(holder = %holder.addr, %error, "a holder of state does not answer");
                        silent.push(holder.id);
                    }
                    Err(error) if error.is_its_disks() => {
                        tracing::warn!(holder = %holder.addr, %error, "a holder cannot read its state");
                        silent.push(holder.id);
                        failed = Some(error);
                    }
                    Err(error) => return Err(error),
                }
            }
            task.silent.extend(silent);
        }
        Ok(answers)
    }

    /// Whom to ask about which ranges; and ranges of which nobody is known who answers.
    fn shares(&self, task: &StateTask, ranges: &RangeSet) -> (Vec<Share>, RangeSet) {
        let (mut shares, mut nobodys): (Vec<Share>, RangeSet) = (Vec::new(), RangeSet::EMPTY);
        let answers = |id| !task.silent.contains(&id);
        for range in ranges.iter() {
            let ready = task.located.holders.iter().filter(|holding| holding.ready.contains(range));
            let ready: Vec<AgentInfo> = ready
                .filter(|holding| answers(holding.agent.id))
                .map(|holding| holding.agent.clone())
                .collect();
            let mut ready = placement::holders(&task.located.state, range, &ready);
            // This agent itself, if it may; and who did not answer another task lately only if nobody else does.
            let is_slow = |agent: &AgentInfo| self.connections.failed_lately(&agent.addr);
            ready.sort_by_key(|agent| (agent.id != self.info.id, is_slow(agent)));
            let Some(holder) = ready.into_iter().next().cloned() else {
                nobodys.insert(range);
                continue;
            };
            match shares.iter_mut().find(|(known, _)| known.id == holder.id) {
                Some((_, ranges)) => ranges.insert(range),
                None => shares.push((holder, [range].into_iter().collect())),
            }
        }
        (shares, nobodys)
    }

    /// Nobody who is known to have some ranges answers: others may have them by now, or those are dead.
    fn look_for_others(
        &self,
        task: &mut StateTask,
        ranges: &RangeSet,
        patience: &mut Patience,
    ) -> Result<()> {
        let had = |holding: &&Holding| !holding.ready.intersection(ranges).is_empty();
        let silent: Vec<AgentInfo> =
            task.located.holders.iter().filter(had).map(|holding| holding.agent.clone()).collect();
        // All are asked about: who is dead is found so.
        let others = silent.iter().filter(|holder| holder.id != self.info.id);
        let is_borne =
            others.fold(false, |is_borne, holder| is_borne | (self.silence(holder) == Silence::Borne));
        if !patience.lasts(is_borne) {
            let addr = silent.first().map_or("(nowhere)", |holder| holder.addr.as_str());
            return Err(Error::Timeout {
                what: format!(
                    "an answer from the agent at {addr}, which has state and is not known to be dead,"
                ),
                millis: u64::try_from(self.patience().as_millis()).unwrap_or(u64::MAX),
            });
        }
        sleep(SILENCE_PAUSE);
        self.locate_again(task)?;
        task.silent.clear();
        Ok(())
    }

    /// Asks a holder, and tells it what was committed if it has not heard of that.
    pub(super) fn ask_up_to_date(
        &self,
        located: &Located,
        holder: &AgentInfo,
        asked: &Asked,
    ) -> Result<Answer> {
        let (state, life) = (&located.state, located.life);
        for _ in 0..TRIES {
            let asked = ToHolder { state: state.clone(), life, asked: asked.clone() };
            match self.ask_holder(holder, asked)? {
                Answer::Behind(version) if version > located.version => {
                    return Err(Error::StateLost {
                        state: state.to_string(),
                        what: format!("version {} is over, as {version} was committed", located.version),
                    });
                }
                Answer::Behind(version) => {
                    if !self.bring_up(located, holder, version)? {
                        return Ok(Answer::NotHeld(RangeSet::ALL));
                    }
                }
                answer => return Ok(answer),
            }
        }
        Err(Error::Timeout { what: format!("the agent at {} to be up to date", holder.addr), millis: 0 })
    }

    /// Tells a holder what was committed since the version that it has; whether it could follow.
    pub(super) fn bring_up(&self, located: &Located, holder: &AgentInfo, version: Version) -> Result<bool> {
        let (state, life) = (located.state.clone(), located.life);
        let points = match self.ask_states(ToRegistry::Points { state: state.clone(), life, after: version })
        {
            Ok(FromRegistry::Points(points)) => points,
            Ok(_) => return Err(unexpected()),
            Err(Error::StateLost { .. }) => return Ok(false),
            Err(error) => return Err(error),
        };
        let answer = self.ask_holder(holder, ToHolder { state, life, asked: Asked::Advance { points } })?;
        Ok(matches!(answer, Answer::Advanced(_)))
    }

    /// Tells the registry that a holder has not what it should have.
    pub(super) fn tell_lacks(&self, located: &Located, holder: &AgentInfo, ranges: &RangeSet) -> Result<()> {
        let (state, life, as_of) = (located.state.clone(), located.life, located.as_of);
        let (agent, ranges) = (holder.id, *ranges);
        tracing::warn!(%state, holder = %holder.addr, "a holder lacks something, and is given it anew");
        self.ask_states(ToRegistry::Lacks { agent, state, life, ranges, as_of }).map(drop)
    }
}

/// The first and the last hash of a partition.
fn hashes_of(partition: u32, partitions: u32) -> (u64, u64) {
    let partitions = u128::from(partitions.max(1));
    let start = |partition: u128| (partition << 64).div_ceil(partitions);
    let (first, end) = (start(u128::from(partition)), start(u128::from(partition) + 1));
    let hash = |hash: u128| u64::try_from(hash).unwrap_or(u64::MAX);
    (hash(first), hash(end.saturating_sub(1)))
}

/// Some entries, as [`Answer::Entries`] has them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Piece {
    entries: Bytes,
    cut: Vec<Bytes>,
    next: Option<Bytes>,
}

/// Entries of several holders in one order, as far as all of them have answered; about `bytes_max`, but one at least.
fn merged(mut answers: Vec<Piece>, bytes_max: u64) -> Result<Piece> {
    if answers.len() < 2 {
        return Ok(answers.pop().unwrap_or_default());
    }
    let mut next = answers.iter().filter_map(|some| some.next.clone()).min();
    let (mut all, mut cut) = (Vec::new(), Vec::new());
    for Piece { entries, cut: of_these, .. } in answers {
        cut.extend(of_these);
        for entry in Entries::from_bytes(entries).iter() {
            let entry = entry?;
            if next.as_ref().is_some_and(|next| entry.key.as_bytes() >= next) {
                break;
            }
            all.push(entry);
        }
    }
    all.sort_unstable_by(|a: &Entry, b| a.key.cmp(&b.key));
    let mut entries = EntriesBuilder::new();
    for entry in all {
        // Each has given an entry at least, however large it is.
        if entries.len() as u64 >= bytes_max && !entries.is_empty() {
            next = Some(entry.key.as_bytes().clone());
            break;
        }
        entries.push(&entry.key, &entry.op);
    }
    // Of what lies behind, all comes again.
    cut.retain(|at| next.as_ref().is_none_or(|next| at < next));
    cut.sort_unstable();
    Ok(Piece { entries: entries.finish().as_bytes().clone(), cut, next })
}

/// The attempt is not wanted any more.
pub(super) fn fenced(task: &StateTask) -> Error {
    Error::Fenced { task: task.task.clone(), newer: Generation::NONE, ours: task.generation }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exchange::partition_of;
    use crate::state::{EntryKey, Op, Slot};

    fn entries(hashes: &[u64]) -> Bytes {
        let mut builder = EntriesBuilder::new();
        for hash in hashes {
            let key = EntryKey::new(&KeyPrefix::new(*hash, b"k"), Slot(1), b"");
            builder.push(&key, &Op::Put { expires_ms: 0, value: Bytes::from_static(b"v") });
        }
        builder.finish().as_bytes().clone()
    }

    fn key(hash: u64) -> Bytes {
        EntryKey::new(&KeyPrefix::new(hash, b"k"), Slot(1), b"").as_bytes().clone()
    }

    #[test]
    fn entries_of_several_are_in_order_up_to_where_one_has_more() {
        let some = |hashes: &[u64], cut: &[u64], next: Option<u64>| Piece {
            entries: entries(hashes),
            cut: cut.iter().copied().map(key).collect(),
            next: next.map(key),
        };
        let answers =
            vec![some(&[1, 4, 9], &[10, 2], Some(12)), some(&[2, 3], &[4], Some(5)), some(&[6], &[7], None)];
        assert_eq!(merged(answers.clone(), 1_000).unwrap(), some(&[1, 2, 3, 4], &[2, 4], Some(5)));
        assert_eq!(merged(answers.clone(), 1).unwrap(), some(&[1], &[], Some(2)));
        let bytes = entries(&[1, 2]).len() as u64;
        assert_eq!(merged(answers, bytes).unwrap(), some(&[1, 2], &[2], Some(3)));
        let answers = vec![some(&[1, 4], &[9], None), some(&[2, 3], &[8], None)];
        assert_eq!(merged(answers, 1_000).unwrap(), some(&[1, 2, 3, 4], &[8, 9], None));
    }

    #[test]
    fn a_partitions_hashes_are_those_that_are_sent_to_it() {
        for partitions in [1, 2, 3, 7, 200, 5_000] {
            for partition in [0, 1, partitions / 2, partitions - 1].into_iter().filter(|at| *at < partitions)
            {
                let (first, last) = hashes_of(partition, partitions);
                let of = |hash| partition_of(hash, partitions).0;
                assert_eq!((of(first), of(last)), (partition, partition));
                assert!(first == 0 || of(first - 1) != partition);
                assert!(last == u64::MAX || of(last + 1) != partition);
            }
        }
    }
}
