//! Which attempts are on their way to this agent, being opened or open.
//!
//! Attempts of other stages wait for the end of one. That it was granted may never have been heard here, or its end have
//! been told in vain; so the registry says with a beat which ones are waited for, and hears of those that are not here.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use super::handler::Handler;
use crate::agent::protocol::{OpenTask, Request};
use crate::edge::locked;
use crate::id::{EpochKey, Generation, Partition, TaskId};

/// One attempt at a task.
type Attempt = (TaskId, Generation);

/// Where an attempt will be that is asked for: the registry gives it a log of its own choosing.
type Place = (EpochKey, Partition);

/// Who opens a task: application, attempt and worker.
type Opener = (u64, u64, u64);

/// The attempts here.
#[derive(Default)]
pub(super) struct Attempts {
    /// Those who ask in vain, as the driver is silent: since when, and when they asked last.
    unanswered: HashMap<Opener, (Instant, Instant)>,
    /// How many are being asked for.
    asked: HashMap<Place, usize>,
    opening: HashSet<Attempt>,
    open: HashSet<Attempt>,
}

impl Attempts {
    /// One is asked for.
    pub(super) fn asks(&mut self, open: &OpenTask) {
        *self.asked.entry(place(&open.task)).or_default() += 1;
    }

    /// One was granted.
    pub(super) fn opens(&mut self, attempt: Attempt) {
        self.opening.insert(attempt);
    }

    /// One was opened, or could not be.
    pub(super) fn opened(&mut self, attempt: &Attempt, is_open: bool) {
        let attempt = self.opening.take(attempt);
        self.open.extend(attempt.filter(|_| is_open));
    }

    /// What was asked for is here, or is not granted.
    pub(super) fn answered(&mut self, open: &OpenTask) {
        let place = place(&open.task);
        if let Some(asked) = self.asked.get_mut(&place) {
            *asked -= 1;
            if *asked == 0 {
                self.asked.remove(&place);
            }
        }
    }

    /// The driver was silent to who opens a task; for how long by now. Who has not asked for half of that `patience` is
    /// gone, or was as silent as the driver: a pause of this agent is none of the driver's.
    pub(super) fn silence(&mut self, open: &OpenTask, patience: Duration) -> Duration {
        self.unanswered.retain(|_, (_, last)| 2 * last.elapsed() < patience);
        let now = Instant::now();
        let (since, last) = self.unanswered.entry(opener(open)).or_insert((now, now));
        *last = now;
        now.duration_since(*since)
    }

    /// It has answered, or is not waited for any more.
    pub(super) fn heard(&mut self, open: &OpenTask) {
        self.unanswered.remove(&opener(open));
    }

    /// One has ended.
    pub(super) fn over(&mut self, attempt: &Attempt) {
        self.open.remove(attempt);
    }

    /// Logs that are open where an attempt will be that is asked for.
    pub(super) fn at(&self, task: &TaskId) -> Vec<TaskId> {
        let place = place(task);
        let open = self.open.iter().map(|(log, _)| log);
        open.filter(|log| self::place(log) == place).cloned().collect()
    }

    /// Whether one is being opened.
    pub(super) fn is_opening(&self, attempt: &Attempt) -> bool {
        self.opening.contains(attempt)
    }

    /// Whether one is not here, nor will be.
    fn lacks(&self, attempt: &Attempt) -> bool {
        let is_here = self.opening.contains(attempt) || self.open.contains(attempt);
        !is_here && !self.asked.contains_key(&place(&attempt.0))
    }
}

const fn opener(open: &OpenTask) -> Opener {
    (open.app, open.attempt, open.worker)
}

fn place(task: &TaskId) -> Place {
    (task.epoch_key(), task.partition)
}

impl Handler {
    /// Tells the registry which of these attempts, for which others wait, are not here.
    pub(super) fn look_for(&self, mut waited_for: Vec<Attempt>) {
        {
            let attempts = locked(&self.attempts);
            waited_for.retain(|attempt| attempts.lacks(attempt));
        }
        if waited_for.is_empty() {
            return;
        }
        tracing::info!(attempts = waited_for.len(), "others wait for attempts that are over");
        let over = Request::Over { agent: self.info.id, attempts: waited_for };
        if let Err(error) = self.registrar.tell(&self.connections, over) {
            tracing::info!(%error, "not told which attempts are over; it is asked again");
        }
    }
}
