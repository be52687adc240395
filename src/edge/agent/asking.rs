//! Asking the holders of a log. Who does not answer is slow, cut off or dead, and only the registry can say
//! that it is dead: then it stays so. Until then nothing is decided without it.

use std::panic::resume_unwind;
use std::thread::{self, ScopedJoinHandle, sleep};
use std::time::{Duration, Instant};

use super::handler::Handler;
use crate::agent::protocol::{AgentInfo, Silence};
use crate::agent::registry::AGENT_SILENCE_MS_MAX;
use crate::edge::net::nobody_listens;
use crate::edge::progress::Progress;
use crate::error::{Error, Result};

/// Somebody who does not answer, and of whom others hear, is waited for so long, or as long as an answer may take if
/// that is more: long enough for the registry to know. Then the task fails, and Spark tries it again, perhaps where
/// that one can be reached.
const PATIENCE_MIN: Duration = Duration::from_millis(AGENT_SILENCE_MS_MAX + 2_000);
/// Time between two tries.
pub(super) const SILENCE_PAUSE: Duration = Duration::from_millis(100);
/// Where hosts are cut off, each of their agents takes as long as a connection may: they are not asked one
/// after the other.
const ASKED_AT_ONCE: usize = 16;

/// How long who does not answer is waited for.
pub(super) struct Patience {
    each: Duration,
    until: Instant,
    /// However often it is heard of meanwhile.
    at_most: Instant,
}

impl Patience {
    pub(super) fn of(handler: &Handler) -> Self {
        let (now, each) = (Instant::now(), handler.patience());
        let borne = Duration::from_millis(handler.config.network_timeout_ms);
        Self { each, until: now + each, at_most: now + borne + each }
    }

    /// Whether it is waited for on. Where something would be lost without it, as long as Spark bears the silence of anybody:
    /// the registry says when that is over. Its time begins once it is heard of again, as what it was asked just before that
    /// may stay without an answer.
    pub(super) fn lasts(&mut self, is_borne: bool) -> bool {
        let now = Instant::now();
        if is_borne {
            // Whoever waits for this waits on.
            Progress::step();
            self.until = (now + self.each).min(self.at_most);
        }
        now < self.until
    }
}

impl Handler {
    /// Asks all of them, some at a time. Who does not answer is asked again until it does, is dead, or the
    /// answers that there are suffice.
    pub(super) fn ask_all<T: Send>(
        &self,
        holders: &[AgentInfo],
        ask: impl Fn(&AgentInfo) -> Result<T> + Sync,
        suffices: impl Fn(&T) -> bool,
    ) -> Result<Vec<(AgentInfo, T)>> {
        let (mut answers, mut left) = (Vec::new(), holders.to_vec());
        let mut patience = Patience::of(self);
        loop {
            let (mut silent, mut is_borne) = (Vec::new(), false);
            for asked in left.chunks(ASKED_AT_ONCE) {
                for (holder, answer) in
                    at_once(asked, &|holder| ask(holder).map_err(|error| self.told_nothing(holder, &error)))
                {
                    match answer {
                        Ok(answer) => answers.push((holder.clone(), answer)),
                        Err(Silence::Dead) => {}
                        Err(why) => {
                            is_borne |= why == Silence::Borne;
                            silent.push(holder.clone());
                        }
                    }
                }
            }
            left = silent;
            let Some(silent) = left.first() else { return Ok(answers) };
            if answers.iter().any(|(_, answer)| suffices(answer)) {
                return Ok(answers);
            }
            self.bear(is_borne, &mut patience, silent)?;
        }
    }

    /// The first answer of any of them; `None` if none of them has one, nor will have.
    pub(super) fn first_of<T>(
        &self,
        holders: &[AgentInfo],
        ask: impl Fn(&AgentInfo) -> Result<T>,
    ) -> Result<Option<T>> {
        let mut left = holders.to_vec();
        let mut patience = Patience::of(self);
        loop {
            let (mut answer, mut is_borne) = (None, false);
            left.retain(|holder| {
                answer.is_none()
                    && match ask(holder) {
                        Ok(given) => {
                            answer = Some(given);
                            false
                        }
                        Err(error) => {
                            let why = self.told_nothing(holder, &error);
                            is_borne |= why == Silence::Borne;
                            why != Silence::Dead
                        }
                    }
            });
            let Some(silent) = left.first().filter(|_| answer.is_none()) else { return Ok(answer) };
            self.bear(is_borne, &mut patience, silent)?;
        }
    }

    /// Waits a little before who is silent is asked again, or says that it does not answer.
    fn bear(&self, is_borne: bool, patience: &mut Patience, silent: &AgentInfo) -> Result<()> {
        if !patience.lasts(is_borne) {
            return Err(self.no_answer(silent));
        }
        sleep(SILENCE_PAUSE);
        Ok(())
    }

    /// What a holder is taken for that has not answered; for one that will not, if it has no answer.
    fn told_nothing(&self, holder: &AgentInfo, error: &Error) -> Silence {
        if !error.is_silence() {
            tracing::info!(holder = %holder.addr, %error, "a holder has no copy to give");
            return Silence::Dead;
        }
        let silence = self.silence(holder);
        tracing::info!(holder = %holder.addr, %error, ?silence, "a holder does not answer");
        silence
    }

    /// What who has not answered is taken for.
    pub(super) fn silence(&self, agent: &AgentInfo) -> Silence {
        self.registrar.silence(&self.connections, agent.id, nobody_listens(&agent.addr))
    }

    /// Whether who has not answered is dead, and so will not.
    pub(super) fn is_dead(&self, agent: &AgentInfo) -> bool {
        self.silence(agent) == Silence::Dead
    }

    pub(super) fn patience(&self) -> Duration {
        Duration::from_millis(self.config.io_timeout_ms).max(PATIENCE_MIN)
    }

    /// How long what another agent asks may wait here: that one gives up a request after half a time-out.
    pub(super) const fn peer_patience(&self) -> Duration {
        Duration::from_millis(self.config.io_timeout_ms / 4)
    }

    fn no_answer(&self, silent: &AgentInfo) -> Error {
        Error::Timeout {
            what: format!("an answer from the agent at {}, which is not known to be dead,", silent.addr),
            millis: u64::try_from(self.patience().as_millis()).unwrap_or(u64::MAX),
        }
    }
}

/// Asks each of them in a thread of its own, but the last and those for which there is no thread.
pub(super) fn at_once<'a, H: Sync, T: Send>(
    holders: &'a [H],
    ask: &(impl Fn(&H) -> T + Sync),
) -> Vec<(&'a H, T)> {
    let Some((last, others)) = holders.split_last() else { return Vec::new() };
    thread::scope(|scope| {
        let asked: Vec<_> = others
            .iter()
            .map(|holder| (holder, thread::Builder::new().spawn_scoped(scope, move || ask(holder))))
            .collect();
        let answer = ask(last);
        let others = asked.into_iter().map(|(holder, thread)| match thread.map(ScopedJoinHandle::join) {
            Ok(Ok(answer)) => (holder, answer),
            Ok(Err(panic)) => resume_unwind(panic),
            Err(_no_thread) => (holder, ask(holder)),
        });
        let mut answers: Vec<_> = others.collect();
        answers.push((last, answer));
        answers
    })
}
