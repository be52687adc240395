//! Telling workers that wait that their agent is at work.
//!
//! A worker takes an agent that says nothing for a while for one that hangs: its attempt fails, and the next begins from
//! the start. Where a log of gigabytes is moved each attempt would fail like the one before. So an agent that has not
//! answered, and gets on, says so; one that hangs says nothing.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::net::send;

use super::messages;
use super::stream::Stream;
use crate::agent::protocol::Reply;
use crate::edge::locked;
use crate::edge::platform::AT_ONCE;
use crate::edge::progress::Progress;
use crate::error::Result;

/// An answer is not waited for any longer, whatever is got done.
const LONGEST: Duration = Duration::from_secs(3600);

/// Those that wait for an answer, by their connections' numbers.
#[derive(Debug)]
pub(super) struct Working {
    waiting: Mutex<HashMap<usize, Arc<Waiting>>>,
    /// How often each is told.
    period: Duration,
}

/// A worker's connection.
#[derive(Debug)]
pub(super) struct Waiting {
    stream: Stream,
    progress: Progress,
    asked: Mutex<Option<Asked>>,
}

/// A request that is being answered.
#[derive(Debug)]
struct Asked {
    at: Instant,
    told: Instant,
    /// Steps made when the worker was told last.
    steps: u64,
}

/// Ends when the request is answered: from then on nothing is sent between answers.
pub(super) struct Answering<'a>(&'a Waiting);

impl Working {
    /// Each is told once per `period`.
    pub(super) fn new(period: Duration) -> Self {
        Self { waiting: Mutex::default(), period }
    }

    /// A worker's connection, whose requests are answered in this thread.
    ///
    /// # Errors
    /// [`crate::error::Error::Io`] if the system refuses another handle on it.
    pub(super) fn begin(&self, number: usize, stream: &Stream) -> Result<Arc<Waiting>> {
        let progress = Progress::default();
        Progress::count(Some(progress.clone()));
        let waiting = Arc::new(Waiting { stream: stream.try_clone()?, progress, asked: Mutex::default() });
        locked(&self.waiting).insert(number, Arc::clone(&waiting));
        Ok(waiting)
    }

    /// The connection has ended.
    pub(super) fn end(&self, number: usize) {
        locked(&self.waiting).remove(&number);
    }

    /// How long the next look may be put off.
    pub(super) const fn period(&self) -> Duration {
        self.period
    }

    /// Tells those that have waited for a while, if their agent has got on since.
    pub(super) fn tell(&self) {
        let all: Vec<_> = locked(&self.waiting).values().cloned().collect();
        for waiting in all {
            waiting.tell(self.period);
        }
    }
}

impl Waiting {
    /// A request has come.
    pub(super) fn asks(&self) -> Answering<'_> {
        let (at, steps) = (Instant::now(), self.progress.steps());
        *locked(&self.asked) = Some(Asked { at, told: at, steps });
        Answering(self)
    }

    /// The lock is held while it is sent, so that no answer comes in between.
    fn tell(&self, period: Duration) {
        let mut asked = locked(&self.asked);
        let Some(asked) = asked.as_mut() else { return };
        let steps = self.progress.steps();
        if asked.told.elapsed() < period || asked.at.elapsed() > LONGEST || steps == asked.steps {
            return;
        }
        // A few bytes go whole or not at all. There is no room for them if the worker reads nothing: then it does not wait.
        if let Stream::Unix(stream) = &self.stream
            && messages::frame(&Reply::Working).is_ok_and(|told| send(stream, &told, AT_ONCE).is_ok())
        {
            (asked.told, asked.steps) = (Instant::now(), steps);
        }
    }
}

impl Drop for Answering<'_> {
    fn drop(&mut self) {
        locked(&self.0.asked).take();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;

    /// What the other side is told by a look that comes after a period.
    fn told(working: &Working, theirs: &mut UnixStream) -> Vec<u8> {
        std::thread::sleep(2 * working.period());
        working.tell();
        theirs.set_nonblocking(true).unwrap();
        let mut said = Vec::new();
        assert!(theirs.read_to_end(&mut said).is_err(), "it is open");
        said
    }

    #[test]
    fn who_waits_is_told_while_its_agent_gets_on_and_nobody_else_is() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let working = Working::new(Duration::from_millis(5));
        let waiting = working.begin(1, &Stream::Unix(ours)).unwrap();
        Progress::step();
        assert_eq!(told(&working, &mut theirs), b"", "nothing is asked");
        let answering = waiting.asks();
        assert_eq!(told(&working, &mut theirs), b"", "nothing was got done since");
        for _ in 0..2 {
            Progress::step();
            assert_eq!(told(&working, &mut theirs), messages::frame(&Reply::Working).unwrap());
            assert_eq!(told(&working, &mut theirs), b"", "nothing more was got done");
        }
        Progress::step();
        drop(answering);
        assert_eq!(told(&working, &mut theirs), b"", "it is answered");
        let _answering = waiting.asks();
        Progress::step();
        working.end(1);
        assert_eq!(told(&working, &mut theirs), b"", "the connection has ended");
        Progress::count(None);
    }
}
