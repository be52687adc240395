//! What an agent that holds ranges does for the agents of tasks.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::super::handler::Handler;
use super::gathered::Gathered;
use crate::agent::protocol::PIECE_BYTES;
use crate::agent::state::holders::{Answer, Asked, Part, ToHolder};
use crate::agent::state::holdings::Took;
use crate::edge::locked;
use crate::error::{Error, Result};
use crate::id::AgentId;
use crate::state::memory::{Memory, Taken};
use crate::state::{Delta, Due, EntryKey, KeyPrefix, Range, RangeSet, Read, StateId, View};

/// How long a delta that is being sent may rest.
const UPLOAD_PATIENCE: Duration = Duration::from_secs(60);

/// Deltas that are being sent here in pieces.
pub(super) struct Uploads {
    memory: Memory,
    all: Mutex<HashMap<(AgentId, u64), Upload>>,
}

struct Upload {
    gathered: Gathered,
    touched: Instant,
}

impl Uploads {
    pub(super) fn new(memory: &Memory) -> Self {
        Self { memory: memory.clone(), all: Mutex::default() }
    }

    /// Drops those that nobody goes on with, also while no other comes.
    pub(super) fn sweep(&self) {
        Self::retain(&mut locked(&self.all));
    }

    fn retain(all: &mut HashMap<(AgentId, u64), Upload>) {
        all.retain(|_, upload| upload.touched.elapsed() < UPLOAD_PATIENCE);
    }

    /// Adds a piece; all of it, if that was the last.
    fn add(&self, name: (AgentId, u64), at: u64, piece: Bytes, last: bool) -> Result<Option<(Bytes, Taken)>> {
        let mut all = locked(&self.all);
        Self::retain(&mut all);
        let begin = || Upload { gathered: Gathered::new(&self.memory), touched: Instant::now() };
        let upload = all.entry(name).or_insert_with(begin);
        upload.touched = Instant::now();
        let len = upload.gathered.len();
        // A piece that comes twice is known.
        if at == len {
            upload.gathered.push(piece);
        } else if at + piece.len() as u64 != len {
            return Err(Error::Protocol { what: "a piece of a delta is missing".into() });
        }
        let whole = if last { all.remove(&name) } else { None };
        drop(all);
        Ok(whole.map(|upload| upload.gathered.whole()))
    }
}

impl Handler {
    /// Answers a question about ranges that are held here.
    pub(in crate::edge) fn state_asked(&self, asked: ToHolder) -> Result<Answer> {
        let ToHolder { state: id, life, asked } = asked;
        let view = || self.states.held.view(&id, life);
        match asked {
            Asked::Advance { points } => match self.advance(&id, life, &points, RangeSet::EMPTY)? {
                Some(version) => Ok(Answer::Advanced(version)),
                None => Ok(Answer::NotHeld(RangeSet::ALL)),
            },
            Asked::Read { version, keys, from, now_ms, limits } => {
                let keys = keys.into_iter().map(KeyPrefix::from_bytes).collect::<Result<Vec<_>>>()?;
                let ranges = || keys.iter().map(|key| Range::of(key.hash())).collect();
                let Some(view) = view() else { return Ok(Answer::NotHeld(ranges())) };
                let from = from.map(EntryKey::from_bytes).transpose()?;
                Ok(match view.read(version, &keys, from.as_ref(), now_ms, &limits)? {
                    Read::Entries { entries, cut, next } => Answer::Entries {
                        entries: entries.as_bytes().clone(),
                        cut: cut.into_iter().map(|at| at.as_bytes().clone()).collect(),
                        next: next.map(|next| next.as_bytes().clone()),
                    },
                    Read::Behind(version) => Answer::Behind(version),
                    Read::NotHeld(missing) => Answer::NotHeld(missing),
                })
            }
            Asked::Due { version, hashes, ranges, until_ms, after, timers_max } => {
                let Some(view) = view() else { return Ok(Answer::NotHeld(ranges)) };
                if view.version() != version {
                    return Ok(Answer::Behind(view.version()));
                }
                let after = after.map(|(at, key)| Ok::<_, Error>((at, KeyPrefix::from_bytes(key)?)));
                due(&view, hashes, &ranges, until_ms, after.transpose()?.as_ref(), timers_max as usize)
            }
            Asked::Hold { by, upload, at, piece, part } => {
                match self.states.uploads.add((by, upload), at, piece, part.is_some())?.zip(part) {
                    Some(((bytes, _taken), part)) => self.hold_part(&id, life, &part, Delta::decode(&bytes)?),
                    None => Ok(Answer::Held),
                }
            }
            asked => self.give(&id, life, asked),
        }
    }

    /// Holds a part of a delta here.
    pub(super) fn hold_part(&self, id: &StateId, life: u64, part: &Part, delta: Delta) -> Result<Answer> {
        Ok(match self.states.held.write().take(id, life, part, delta)? {
            Took::Held => Answer::Held,
            Took::Behind(version) => Answer::Behind(version),
        })
    }
}

/// Timers that are due in some ranges, by time and key.
fn due(
    view: &View,
    (first, last): (u64, u64),
    ranges: &RangeSet,
    until_ms: i64,
    after: Option<&(i64, KeyPrefix)>,
    timers_max: usize,
) -> Result<Answer> {
    let mut all = Vec::new();
    let mut cut: Option<(i64, KeyPrefix)> = None;
    for (from, until) in runs_of(ranges) {
        let hashes =
            first.max(u64::from(from.0) << 56)..=last.min(u64::from(until.0) << 56 | (u64::MAX >> 8));
        match view.due(view.version(), &hashes, until_ms, after, timers_max)? {
            Due::Timers { timers, more } => {
                if let Some(end) = timers.last().filter(|_| more)
                    && cut.as_ref().is_none_or(|cut| end < cut)
                {
                    cut = Some(end.clone());
                }
                all.extend(timers);
            }
            Due::Behind(version) => return Ok(Answer::Behind(version)),
            Due::NotHeld(missing) => return Ok(Answer::NotHeld(missing)),
        }
    }
    all.sort_unstable();
    // Of what lies behind, some is missing.
    if let Some(cut) = &cut {
        all.truncate(all.partition_point(|timer| timer <= cut));
    }
    // However long keys are.
    let mut bytes = 0;
    let fits = |(_, key): &&(i64, KeyPrefix)| {
        bytes += key.as_bytes().len() as u64;
        bytes <= PIECE_BYTES
    };
    let count = all.iter().take_while(fits).count().max(1);
    let more = cut.is_some() || count < all.len();
    let timers = all.into_iter().take(count).map(|(at, key)| (at, key.as_bytes().clone())).collect();
    Ok(Answer::Due { timers, more })
}

/// Ranges that follow each other, as the first and the last of them.
fn runs_of(ranges: &RangeSet) -> Vec<(Range, Range)> {
    let mut runs: Vec<(Range, Range)> = Vec::new();
    for range in ranges.iter() {
        match runs.last_mut() {
            Some((_, last)) if u16::from(last.0) + 1 == u16::from(range.0) => *last = range,
            _ => runs.push((range, range)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Generation;
    use crate::state::{CommitPoint, DeltaPart, EntriesBuilder, Op, StateStore, Version};

    #[test]
    fn a_delta_that_comes_in_pieces_is_put_together_once() {
        let memory = Memory::default();
        let uploads = Uploads::new(&memory);
        let add =
            |name, at, piece, last| uploads.add(name, at, piece, last).map(|whole| whole.map(|(all, _)| all));
        let name = (AgentId(1), 7);
        let piece = |text: &'static str| Bytes::from_static(text.as_bytes());
        assert_eq!(add(name, 0, piece("whole"), true).unwrap().unwrap(), "whole");
        assert!(add(name, 0, piece("ab"), false).unwrap().is_none());
        assert!(add(name, 0, piece("ab"), false).unwrap().is_none(), "it came twice");
        assert!(add(name, 3, piece("d"), false).is_err(), "one is missing");
        assert!(add(name, 2, piece("c"), false).unwrap().is_none());
        assert_eq!(add(name, 3, piece("d"), true).unwrap().unwrap(), "abcd");
        assert!(add(name, 3, piece("d"), true).is_err(), "it was sent before, and begins anew");
        assert_eq!(memory.bytes(), 0);
    }

    #[test]
    fn a_delta_that_nobody_goes_on_with_is_dropped_though_no_other_comes() {
        let memory = Memory::default();
        let uploads = Uploads::new(&memory);
        let piece = || Bytes::from_static(b"ab");
        for upload in [1, 2] {
            assert!(uploads.add((AgentId(1), upload), 0, piece(), false).unwrap().is_none());
        }
        let of_one = memory.bytes() / 2;
        assert!(of_one > 0);
        let long_ago = Instant::now().checked_sub(UPLOAD_PATIENCE).expect("this machine runs for so long");
        locked(&uploads.all).get_mut(&(AgentId(1), 1)).unwrap().touched = long_ago;
        uploads.sweep();
        assert_eq!(memory.bytes(), of_one, "the other may come to its end");
    }

    #[test]
    fn timers_of_long_keys_come_in_several_answers() {
        let id = StateId { query: "q".into(), operator: "f".into() };
        let keys: Vec<KeyPrefix> = (0..6_u64).map(|n| KeyPrefix::new(n << 60, &[7; 400_000])).collect();
        let mut entries = EntriesBuilder::new();
        let put = Op::Put { expires_ms: 0, value: Bytes::new() };
        keys.iter().for_each(|key| entries.push(&EntryKey::timer(key, 5), &put));
        let (base, catalog, entries) = (Version::NONE, Bytes::new(), entries.finish());
        let delta = Delta { epoch: 0, base, now_ms: 0, catalog, entries };
        let mut store = StateStore::new();
        store.begin(&id, RangeSet::ALL, base).unwrap();
        let (ranges, generation) = (RangeSet::ALL, Generation(1));
        store.hold(&id, &DeltaPart { partition: 0, generation, ranges, delta }).unwrap();
        let tasks = vec![(0, generation)];
        store.advance(&id, &CommitPoint { epoch: 0, partitions: 1, tasks }).unwrap();
        let view = store.view(&id).unwrap();
        let mut found: Vec<(i64, KeyPrefix)> = Vec::new();
        loop {
            let answer = due(&view, (0, u64::MAX), &RangeSet::ALL, 9, found.last(), 4_096).unwrap();
            let Answer::Due { timers, more } = answer else { panic!("{answer:?}") };
            assert!(timers.len() < 3);
            found.extend(timers.into_iter().map(|(at, key)| (at, KeyPrefix::from_bytes(key).unwrap())));
            if !more {
                break;
            }
        }
        assert!(found.iter().map(|(_, key)| key).eq(&keys));
    }

    #[test]
    fn ranges_that_follow_each_other_are_one_run() {
        let ranges: RangeSet = [0, 1, 2, 7, 254, 255].map(Range).into_iter().collect();
        assert_eq!(runs_of(&ranges), [(0, 2), (7, 7), (254, 255)].map(|(a, b)| (Range(a), Range(b))));
        assert_eq!(runs_of(&RangeSet::ALL), [(Range(0), Range(255))]);
    }
}
