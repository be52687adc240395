//! Asking the holders of a log. Who does not answer is slow, cut off or dead, and only the registry can say
//! that it is dead: then it stays so. Until then nothing is decided without it.

use std::panic::resume_unwind;
use std::thread::{self, ScopedJoinHandle, sleep};
use std::time::{Duration, Instant};

use super::handler::Handler;
use crate::agent::protocol::AgentInfo;
use crate::agent::registry::AGENT_SILENCE_MS_MAX;
use crate::edge::net::nobody_listens;
use crate::error::{Error, Result};

/// Somebody who does not answer and is not dead is waited for so long, or as long as an answer may take if
/// that is more: long enough for the registry to know. Then the task fails, and Spark tries it again.
const PATIENCE_MIN: Duration = Duration::from_millis(AGENT_SILENCE_MS_MAX + 2_000);
/// Time between two tries.
pub(super) const SILENCE_PAUSE: Duration = Duration::from_millis(100);
/// Where hosts are cut off, each of their agents takes as long as a connection may: they are not asked one
/// after the other.
const ASKED_AT_ONCE: usize = 16;

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
        let deadline = Instant::now() + self.patience();
        loop {
            let mut silent = Vec::new();
            for asked in left.chunks(ASKED_AT_ONCE) {
                for (holder, answer) in at_once(asked, &|holder| match ask(holder) {
                    Ok(answer) => Some(Ok(answer)),
                    Err(error) => self.may_answer_yet(holder, &error).then_some(Err(())),
                }) {
                    match answer {
                        Some(Ok(answer)) => answers.push((holder.clone(), answer)),
                        Some(Err(())) => silent.push(holder.clone()),
                        None => {}
                    }
                }
            }
            left = silent;
            let Some(silent) = left.first() else { return Ok(answers) };
            if answers.iter().any(|(_, answer)| suffices(answer)) {
                return Ok(answers);
            }
            if Instant::now() >= deadline {
                return Err(self.no_answer(silent));
            }
            sleep(SILENCE_PAUSE);
        }
    }

    /// The first answer of any of them; `None` if none of them has one, nor will have.
    pub(super) fn first_of<T>(
        &self,
        holders: &[AgentInfo],
        ask: impl Fn(&AgentInfo) -> Result<T>,
    ) -> Result<Option<T>> {
        let mut left = holders.to_vec();
        let deadline = Instant::now() + self.patience();
        loop {
            let mut answer = None;
            left.retain(|holder| {
                answer.is_none()
                    && match ask(holder) {
                        Ok(given) => {
                            answer = Some(given);
                            false
                        }
                        Err(error) => self.may_answer_yet(holder, &error),
                    }
            });
            let Some(silent) = left.first().filter(|_| answer.is_none()) else { return Ok(answer) };
            if Instant::now() >= deadline {
                return Err(self.no_answer(silent));
            }
            sleep(SILENCE_PAUSE);
        }
    }

    /// Whether the question was not answered, and may be yet.
    fn may_answer_yet(&self, holder: &AgentInfo, error: &Error) -> bool {
        if !error.is_silence() {
            tracing::info!(holder = %holder.addr, %error, "a holder has no copy to give");
            return false;
        }
        tracing::info!(holder = %holder.addr, %error, "a holder does not answer");
        !self.is_dead(holder)
    }

    /// Whether who has not answered is dead, and so will not.
    pub(super) fn is_dead(&self, agent: &AgentInfo) -> bool {
        self.registrar.is_dead(&self.connections, agent.id, nobody_listens(&agent.addr))
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
