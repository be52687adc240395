//! Work that may take longer than whoever needs it waits: a thread does it, once for all who ask.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use crate::edge::locked;
use crate::error::{Error, Result};

/// What is being done for each thing, and what failed and was not told to anybody yet.
pub(super) struct Works<K, T> {
    under_way: UnderWay<K, T>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// How long a failure is kept for who asks again.
    kept: Duration,
}

/// Who waits asks again at once.
const KEPT: Duration = Duration::from_secs(10);

type UnderWay<K, T> = Arc<Mutex<HashMap<K, Arc<Work<T>>>>>;

struct Work<T> {
    outcome: Mutex<Option<Result<T>>>,
    ended: Condvar,
    ended_at: OnceLock<Instant>,
}

impl<K, T> Default for Works<K, T> {
    fn default() -> Self {
        Self { under_way: Arc::default(), threads: Mutex::default(), kept: KEPT }
    }
}

impl<K: Clone + Eq + Hash + Send + 'static, T: Clone + Send + 'static> Works<K, T> {
    /// What comes of the work for this thing, begun now unless it is under way. `None` if that is not known in time: who
    /// asks again is told. What came of it is told to those who wait then; a failure, if nobody does, to the next who asks soon.
    pub(super) fn wait(
        &self,
        thing: &K,
        patience: Duration,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<Option<T>> {
        let under_way = self.begun(thing, work)?;
        let outcome = locked(&under_way.outcome);
        let waited = under_way.ended.wait_timeout_while(outcome, patience, |outcome| outcome.is_none());
        let (outcome, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let outcome = outcome.clone();
        if outcome.is_some() {
            forget(&self.under_way, thing, &under_way);
        }
        outcome.transpose()
    }

    fn begun(&self, thing: &K, work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<Arc<Work<T>>> {
        let mut all = locked(&self.under_way);
        all.retain(|_, work| work.ended_at.get().is_none_or(|at| at.elapsed() < self.kept));
        if let Some(known) = all.get(thing) {
            return Ok(Arc::clone(known));
        }
        let (outcome, ended, ended_at) = (Mutex::default(), Condvar::new(), OnceLock::new());
        let begun = Arc::new(Work { outcome, ended, ended_at });
        let doing =
            Doing { under_way: Arc::clone(&self.under_way), thing: thing.clone(), work: Arc::clone(&begun) };
        let thread = Builder::new().name("clonos-work".to_owned()).spawn(move || doing.end(work()));
        let thread = thread.map_err(|error| Error::io("starting a thread", &error))?;
        all.insert(thing.clone(), Arc::clone(&begun));
        let mut threads = locked(&self.threads);
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
        Ok(begun)
    }
}

impl<K, T> Works<K, T> {
    /// Waits for all that is under way.
    pub(super) fn finish(&self) {
        let threads = std::mem::take(&mut *locked(&self.threads));
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("a thread of the agent panicked");
            }
        }
    }
}

fn forget<K: Eq + Hash, T>(under_way: &UnderWay<K, T>, thing: &K, work: &Arc<Work<T>>) {
    let mut all = locked(under_way);
    if all.get(thing).is_some_and(|known| Arc::ptr_eq(known, work)) {
        all.remove(thing);
    }
}

/// Work in its thread. Whoever waits is told of its end, also if it panics.
struct Doing<K: Eq + Hash, T> {
    under_way: UnderWay<K, T>,
    thing: K,
    work: Arc<Work<T>>,
}

impl<K: Eq + Hash, T> Doing<K, T> {
    fn end(&self, outcome: Result<T>) {
        if outcome.is_ok() {
            // From now on it is found where the work has put it.
            forget(&self.under_way, &self.thing, &self.work);
        }
        locked(&self.work.outcome).get_or_insert(outcome);
        self.work.ended_at.get_or_init(Instant::now);
        self.work.ended.notify_all();
    }
}

impl<K: Eq + Hash, T> Drop for Doing<K, T> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.end(Err(Error::Protocol { what: "a thread of the agent panicked".into() }));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc::channel;

    use super::*;

    const SHORT: Duration = Duration::from_millis(10);
    const LONG: Duration = Duration::from_secs(20);

    fn failed() -> Error {
        Error::Protocol { what: "in vain".into() }
    }

    #[test]
    fn it_is_done_once_and_whoever_asks_again_is_told() {
        let works = Works::default();
        let (done, times) = (channel(), Arc::new(AtomicU32::new(0)));
        let (go, wait) = done;
        let counted = Arc::clone(&times);
        let work = move || {
            counted.fetch_add(1, Ordering::Relaxed);
            wait.recv_timeout(LONG).unwrap();
            Ok(7)
        };
        assert_eq!(works.wait(&"a", SHORT, work).unwrap(), None);
        assert_eq!(works.wait(&"a", SHORT, || unreachable!()).unwrap(), None);
        // Another thing does not wait for it.
        assert_eq!(works.wait(&"b", LONG, || Ok(8)).unwrap(), Some(8));
        go.send(()).unwrap();
        assert_eq!(works.wait(&"a", LONG, || Ok(7)).unwrap(), Some(7));
        works.finish();
        assert_eq!(times.load(Ordering::Relaxed), 1);
        assert!(locked(&works.under_way).is_empty());
        assert_eq!(works.wait(&"a", LONG, || Ok(9)).unwrap(), Some(9), "what was done is not kept here");
    }

    #[test]
    fn a_failure_that_nobody_asks_about_is_not_kept() {
        let works: Works<u8, u8> = Works { kept: SHORT, ..Works::default() };
        for thing in 0..3 {
            let (go, wait) = channel::<()>();
            let work = move || {
                wait.recv_timeout(LONG).unwrap();
                Err(failed())
            };
            assert_eq!(works.wait(&thing, Duration::ZERO, work).unwrap(), None);
            go.send(()).unwrap();
            works.finish();
        }
        std::thread::sleep(2 * SHORT);
        assert_eq!(works.wait(&2, LONG, || Ok(2)).unwrap(), Some(2));
        assert!(locked(&works.under_way).is_empty());
    }

    #[test]
    fn a_failure_is_told_once_and_then_it_is_tried_again() {
        let works: Works<u8, u8> = Works::default();
        let (go, wait) = channel::<()>();
        let work = move || {
            wait.recv_timeout(LONG).unwrap();
            Err(failed())
        };
        assert_eq!(works.wait(&1, SHORT, work).unwrap(), None);
        go.send(()).unwrap();
        works.finish();
        assert!(works.wait(&1, LONG, || unreachable!()).unwrap_err().to_string().contains("in vain"));
        assert_eq!(works.wait(&1, LONG, || Ok(1)).unwrap(), Some(1));
        assert!(works.wait(&2, LONG, || panic!("on purpose")).is_err());
        assert_eq!(works.wait(&2, LONG, || Ok(2)).unwrap(), Some(2));
    }
}
