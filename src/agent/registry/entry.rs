//! What is known of one log.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use super::{Entry, Opener, Recorded, Replaced};
use crate::agent::protocol::{Beginning, Layout, Sent};
use crate::id::{AgentId, Generation, LogOffset};
use crate::task::Ended;

/// Attempts of a task that are known by their agents: far more than Spark makes. Many in a row may come to nothing, and
/// the one before counts.
const ATTEMPTED_MAX: usize = 1_024;
/// Attempts at one task of which is known how many parts they opened, and nothing else: the newest. Older ones are refused.
const FORGOTTEN_MAX: usize = if cfg!(test) { 1 << 12 } else { 1 << 16 };
/// Openings of one partition of an RDD by one attempt that are known though they are over: `cartesian` has one for each
/// batch of its other side.
const OVER_MAX: usize = 64;

impl Entry {
    /// An attempt was granted, at an agent.
    pub(super) fn attempted_at(&mut self, generation: Generation, agent: AgentId) {
        self.attempted.retain(|(known, _)| *known != generation);
        self.attempted.push_back((generation, agent));
        if self.attempted.len() > ATTEMPTED_MAX {
            self.attempted.pop_front();
        }
        // They are asked for what they have now.
        self.claimants.clear();
    }

    /// An attempt, by its application and number, opened a part, or the whole of an RDD's partition. Of many attempts the
    /// older half is forgotten, but who has something open, and how many parts each had, as one may be long before its next:
    /// each job of an epoch over a frame has some.
    pub(super) fn opened_by(&mut self, attempt: (u64, u64), number: usize, granted: Opener, is_of_rdd: bool) {
        if self.attempts.len() >= ATTEMPTED_MAX && !self.attempts.contains_key(&attempt) {
            self.forget_old_attempts(is_of_rdd);
        }
        let number = number.saturating_sub(self.forgotten_parts(attempt));
        let openers = self.attempts.entry(attempt).or_default();
        match openers.get_mut(number) {
            Some(opener) => *opener = granted,
            None => {
                // Their places say nothing: all have the same log.
                let over = openers.iter().position(|opener| opener.is_over);
                if let Some(over) = over.filter(|_| is_of_rdd && openers.len() >= OVER_MAX) {
                    openers.remove(over);
                }
                openers.push(granted);
            }
        }
    }

    /// The newer ones may be about to open their next part, or ask again for what they have not heard.
    fn forget_old_attempts(&mut self, is_of_rdd: bool) {
        let newest = |openers: &Vec<Opener>| openers.iter().map(|opener| opener.generation).max();
        let mut all: Vec<_> = self.attempts.values().filter_map(newest).collect();
        all.sort_unstable();
        let newer = all.get(all.len() / 2).copied();
        let Self { attempts, forgotten, .. } = self;
        attempts.retain(|attempt, openers| {
            let is_kept = newest(openers) >= newer || openers.iter().any(|opener| !opener.is_over);
            if !is_kept && !is_of_rdd {
                let parts = u32::try_from(openers.len()).unwrap_or(u32::MAX);
                forgotten.entry(*attempt).and_modify(|before| *before += parts).or_insert(parts);
            }
            is_kept
        });
        let excess = forgotten.len().saturating_sub(FORGOTTEN_MAX);
        // Those with something open go by what is known here.
        let oldest = forgotten.keys().filter(|attempt| !attempts.contains_key(attempt));
        for attempt in oldest.take(excess).copied().collect::<Vec<_>>() {
            forgotten.remove(&attempt);
            self.unknown = self.unknown.max(Some(attempt));
        }
    }

    /// Whether an attempt may have opened parts of which nothing is known any more.
    pub(super) fn may_have_opened(&self, attempt: (u64, u64)) -> bool {
        let is_known = self.attempts.contains_key(&attempt) || self.forgotten.contains_key(&attempt);
        !is_known && Some(attempt) <= self.unknown
    }

    /// How many parts an attempt has opened of which nothing else is known any more.
    pub(super) fn forgotten_parts(&self, attempt: (u64, u64)) -> usize {
        self.forgotten.get(&attempt).map_or(0, |parts| *parts as usize)
    }

    /// As [`Registry::holding`].
    pub(super) fn holding(
        &mut self,
        holders: &[AgentId],
        adopted: Option<(LogOffset, Layout)>,
        whole: bool,
        sent: Sent,
    ) {
        // Who held it before a peer was replaced has not all that was published since.
        if sent.is_late(self.told) {
            return;
        }
        self.told = Some(sent);
        self.holders = holders.iter().copied().collect();
        self.published = true;
        self.whole |= whole;
        if let Some((length, _)) = adopted {
            self.ended_at(Some(length));
        }
        if let Some((length, layout)) = adopted
            && !self.layout.same_stage(&layout)
        {
            let Self { layout: before, before_layout, relaid, has_moved, .. } = *self;
            self.replaced = Some(Box::new(Replaced { layout: before, before_layout, relaid, has_moved }));
            // For good: rows of the layouts before stay in it, whichever comes again.
            self.relaid |= length > LogOffset::START && self.layout.tasks != layout.tasks;
            self.has_moved |= length > LogOffset::START && self.layout.has_other_borders(&layout);
            self.before_layout = length;
            self.layout = layout;
        }
    }

    /// An attempt is over, or the next begins, and the log is so long. A layout that has recorded nothing of it counts
    /// for nothing: else a run that was refused would change what becomes of the next.
    pub(super) fn ended_at(&mut self, end: Option<LogOffset>) {
        if end == Some(self.before_layout)
            && let Some(replaced) = self.replaced.take()
        {
            let Replaced { layout, before_layout, relaid, has_moved } = *replaced;
            (self.layout, self.before_layout) = (layout, before_layout);
            (self.relaid, self.has_moved) = (relaid, has_moved);
        }
    }

    /// Whether another stage than this one published some of it.
    pub(super) fn was_published_by_others(&self, layout: &Layout) -> bool {
        self.published && (!self.layout.same_stage(layout) || self.before_layout > LogOffset::START)
    }

    /// A log found in a checkpoint, whose rows were recorded so.
    pub(super) fn recovered(recorded: Recorded) -> Self {
        let Recorded { layout, relaid, has_moved } = recorded;
        Self { relaid, has_moved, ended: Ended::Unknown, ended_before: Ended::Unknown, ..Self::new(layout) }
    }

    pub(super) fn new(layout: Layout) -> Self {
        Self {
            generation: Generation::NONE,
            granted: Generation::NONE,
            holders: HashSet::new(),
            told: None,
            published: false,
            whole: false,
            shown: Beginning::default(),
            layout,
            before_layout: LogOffset::START,
            relaid: false,
            has_moved: false,
            replaced: None,
            live: None,
            attempts: HashMap::new(),
            forgotten: BTreeMap::new(),
            unknown: None,
            pooled: Vec::new(),
            uncertain: false,
            changed: false,
            replaces: None,
            opens: 0,
            rows: 0,
            replayed: 0,
            live_rows: 0,
            lost: 0,
            frames: None,
            discarded: None,
            came_back: None,
            ended: Ended::Never,
            ended_before: Ended::Never,
            ended_in: layout,
            before: Generation::NONE,
            attempted: VecDeque::new(),
            claimants: Vec::new(),
            used: Vec::new(),
            ran_live: 0,
            ran_replayed: 0,
            resent: 0,
            refused: None,
        }
    }
}
