//! Applications that claim one name at once, each paused before any of its requests, and perhaps for ever: whatever the
//! order, an answer that one has shown stays until its use is committed, and then it is gone.

use std::collections::{HashMap, HashSet};
use std::io::Read;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::sync::Condvar;
use std::time::SystemTime;

use super::super::super::store::{Entry, Filling, Gathering, Measured, Piece, Segment, Sink};
use super::*;
use crate::task::RowRng;

const APPLICATIONS: usize = 3;

fn below(dice: &mut RowRng, n: u64) -> u64 {
    dice.next_u64() % n
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Doing {
    /// It is at work until its next request.
    Something,
    /// It has a request that was not let through.
    Nothing,
    Ended,
}

/// Lets one application at a time make one request.
struct Gate {
    doing: Mutex<([Doing; APPLICATIONS], Option<usize>)>,
    changed: Condvar,
}

/// An application that makes no more requests.
struct Dead;

impl Gate {
    fn request(&self, application: usize, is_last: bool) {
        let mut state = self.doing.lock().unwrap();
        state.0[application] = Doing::Nothing;
        self.changed.notify_all();
        state = self.changed.wait_while(state, |state| state.1 != Some(application)).unwrap();
        *state = (state.0, None);
        state.0[application] = Doing::Something;
        drop(state);
        if is_last {
            resume_unwind(Box::new(Dead));
        }
    }

    fn end(&self, application: usize) {
        self.doing.lock().unwrap().0[application] = Doing::Ended;
        self.changed.notify_all();
    }

    /// Lets requests through until all have ended.
    fn run(&self, dice: &mut RowRng) {
        // Some stories have long turns, some short ones.
        let turn = 1 + below(dice, 8);
        let mut last = None;
        loop {
            let mut state = self.doing.lock().unwrap();
            let is_at_work = |state: &mut ([Doing; APPLICATIONS], Option<usize>)| {
                state.1.is_some() || state.0.contains(&Doing::Something)
            };
            state = self.changed.wait_while(state, is_at_work).unwrap();
            let waiting: Vec<usize> = (0..APPLICATIONS).filter(|at| state.0[*at] == Doing::Nothing).collect();
            if waiting.is_empty() {
                return;
            }
            let stays = last.filter(|last| waiting.contains(last) && below(dice, turn) > 0);
            let next = stays.unwrap_or_else(|| waiting[below(dice, waiting.len() as u64) as usize]);
            (last, state.1) = (Some(next), Some(next));
            drop(state);
            self.changed.notify_all();
        }
    }
}

/// A folder of which each request waits for its turn.
struct Gated {
    folder: Folder,
    gate: Arc<Gate>,
    application: usize,
    /// Requests until it dies.
    left: Mutex<u64>,
}

impl std::fmt::Debug for Gated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gated").finish_non_exhaustive()
    }
}

impl Gated {
    fn folder(&self) -> &Folder {
        let left = {
            let mut left = self.left.lock().unwrap();
            *left = left.saturating_sub(1);
            *left
        };
        self.gate.request(self.application, left == 0);
        &self.folder
    }
}

impl Store for Gated {
    fn root(&self) -> &Path {
        self.folder.root()
    }

    fn numbers_segments(&self) -> bool {
        false
    }

    fn check(&self) -> Result<Duration> {
        self.folder().check()
    }

    fn readers(&self) -> usize {
        1
    }

    fn writers(&self) -> usize {
        1
    }

    fn entries(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        self.folder().entries(dir)
    }

    fn read(&self, path: &Path) -> io::Result<bytes::Bytes> {
        self.folder().read(path)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.folder().exists(path)
    }

    fn modified(&self, path: &Path) -> io::Result<SystemTime> {
        self.folder().modified(path)
    }

    fn size(&self, path: &Path) -> io::Result<u64> {
        self.folder().size(path)
    }

    fn create(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        self.folder().create(path, content)
    }

    fn renew(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        self.folder().renew(path, content)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.folder().remove(path)
    }

    fn give_up(&self, path: &Path) -> io::Result<()> {
        self.folder().give_up(path)
    }

    fn settle(&self, dir: &Path) -> io::Result<()> {
        self.folder.settle(dir)
    }

    fn discard(&self, files: &[PathBuf], dirs: &[PathBuf]) -> io::Result<()> {
        self.folder().discard(files, dirs)
    }

    fn remove_segment(&self, path: &Path) -> io::Result<()> {
        self.folder().remove_segment(path)
    }

    fn measure(&self, segment: &Path) -> io::Result<Option<Measured>> {
        self.folder().measure(segment)
    }

    fn segment(&self, path: &Path) -> Result<Option<Segment>> {
        self.folder().segment(path)
    }

    fn scan(
        &self,
        segment: &Segment,
        end: Option<u64>,
        each: &mut dyn FnMut(Piece) -> Result<()>,
    ) -> Result<bool> {
        self.folder.scan(segment, end, each)
    }

    fn reader(&self, segment: &Segment) -> io::Result<Arc<dyn RawFile>> {
        self.folder.reader(segment)
    }

    fn stream(&self, path: &Path, bytes: Range<u64>) -> io::Result<Box<dyn Read + Send>> {
        self.folder().stream(path, bytes)
    }

    fn fill(&self, path: &Path, writer: &str) -> io::Result<Box<dyn Filling>> {
        self.folder().fill(path, writer)
    }

    fn gather(&self, dir: &Path, number: u64) -> io::Result<Box<dyn Gathering>> {
        self.folder().gather(dir, number)
    }

    fn begin(&self, path: &Path, header: Vec<u8>) -> io::Result<Box<dyn Sink>> {
        self.folder().begin(path, header)
    }
}

/// What anybody has seen of the one row there is.
#[derive(Default)]
struct Seen {
    answer: Option<String>,
    /// Answers of uses that are over.
    gone: HashSet<String>,
    /// Who has begun to commit an answer.
    commits: HashMap<String, Vec<usize>>,
    events: Vec<String>,
    wrong: Option<String>,
}

impl Seen {
    fn says(&mut self, application: usize, event: String) {
        self.events.push(format!("{application}: {event}"));
    }

    fn shows(&mut self, application: usize, answer: &str) {
        self.says(application, format!("shows {answer}"));
        if self.gone.contains(answer) {
            self.wrong = Some(format!("{answer} was committed"));
        }
        let before = self.answer.replace(answer.to_owned()).filter(|before| before != answer);
        if let Some(before) = before {
            if !self.commits.contains_key(&before) {
                self.wrong = Some(format!("it was {before} and is {answer}"));
            }
            self.gone.insert(before);
        }
    }

    fn commits(&mut self, application: usize, answer: &str) {
        self.says(application, format!("commits {answer}"));
        self.commits.entry(answer.to_owned()).or_default().push(application);
    }

    fn committed(&mut self, application: usize, answer: &str, done: &Result<()>) {
        self.says(application, format!("{done:?}"));
        match done {
            Ok(()) => {
                self.gone.insert(answer.to_owned());
                self.answer = self.answer.take().filter(|shown| shown != answer);
            }
            // It was not, unless another application has done so: what was shown is not gone because of this one.
            Err(Error::Config { .. }) => {
                let mut others = self.commits.remove(answer).unwrap_or_default();
                others.retain(|other| *other != application);
                if !others.is_empty() {
                    self.commits.insert(answer.to_owned(), others);
                } else if self.gone.contains(answer) {
                    self.wrong = Some("it was committed, and its application told that it was not".into());
                }
            }
            // It may have been.
            Err(_) => {}
        }
    }
}

/// The answer that whoever has claimed the use finds.
fn answer_in(store: &dyn Store, key: &EpochKey, claim: Claim) -> Result<Option<String>> {
    let counts = seal::ends(store, key, claim.used)?;
    let files = layout::claimed_files(store, key, claim.used).unwrap();
    let counting = files.iter().find(|file| counts(file) != Some(0));
    Ok(counting.map(|file| String::from_utf8(store.read(file).unwrap().to_vec()).unwrap()))
}

/// Runs the epoch, as often as `rounds` says, and commits it or not.
fn run(store: &Gated, incarnation: u64, seen: &Mutex<Seen>, commits: [bool; 2]) -> Result<()> {
    let (key, at) = (named("daily"), store.application);
    for (round, commits) in commits.into_iter().enumerate() {
        let claim = take(store, &key, incarnation, ("app", APP + incarnation))?;
        let found = answer_in(store, &key, claim)?;
        let answer = found.clone().unwrap_or_else(|| format!("answer {incarnation}.{round}"));
        if found.is_none() {
            let by = (AgentId(100 + incarnation), APP + incarnation, None);
            let path = layout::segment_path(store.root(), by, claim.used, &key);
            store.create(&path, answer.as_bytes()).unwrap();
        }
        for _ in 0..2 {
            if !is_there(store, &key, claim)? {
                seen.lock().unwrap().says(at, "is told".into());
                return Ok(());
            }
            seen.lock().unwrap().shows(at, &answer);
        }
        if commits {
            seen.lock().unwrap().commits(at, &answer);
            let done = give_up(store, &key, claim);
            seen.lock().unwrap().committed(at, &answer, &done);
            done?;
        }
    }
    Ok(())
}

fn story(seed: u64) -> Seen {
    let dice = &mut RowRng::new(seed);
    let root = tempfile::tempdir().unwrap();
    let seen = Mutex::new(Seen::default());
    let gate = Arc::new(Gate {
        doing: Mutex::new(([Doing::Something; APPLICATIONS], None)),
        changed: Condvar::new(),
    });
    let applications: Vec<_> = (0..APPLICATIONS)
        .map(|application| {
            let lives = if below(dice, 3) == 0 { 1 + below(dice, 30) } else { u64::MAX };
            let gate = Arc::clone(&gate);
            let store = Gated { folder: Folder::at(root.path()), gate, application, left: Mutex::new(lives) };
            (store, [below(dice, 2) == 0, below(dice, 2) == 0])
        })
        .collect();
    std::thread::scope(|scope| {
        for (incarnation, (store, commits)) in (1..).zip(&applications) {
            let (seen, gate) = (&seen, &gate);
            scope.spawn(move || {
                let ran = catch_unwind(AssertUnwindSafe(|| run(store, incarnation, seen, *commits)));
                let mut said = seen.lock().unwrap();
                match ran {
                    Ok(Ok(())) => said.says(store.application, "ends".into()),
                    Ok(Err(error)) => said.says(store.application, format!("is told: {error}")),
                    Err(panic) if panic.is::<Dead>() => said.says(store.application, "dies".into()),
                    Err(_) => said.wrong = Some("a panic".into()),
                }
                drop(said);
                gate.end(store.application);
            });
        }
        gate.run(dice);
    });
    let mut seen = seen.into_inner().unwrap();
    // Who comes last finds what was shown, unless it was committed.
    let last = Folder::at(root.path());
    let claim = take(&last, &named("daily"), 9, ("last", APP)).unwrap();
    let found = answer_in(&last, &named("daily"), claim).unwrap();
    seen.shows(9, &found.unwrap_or_else(|| "answer 9".into()));
    seen
}

#[test]
fn whatever_the_order_an_answer_stays_until_its_use_is_committed() {
    let seeds = std::env::var("CLONOS_CLAIM_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(300);
    let (mut took_over, mut committed) = (0, 0);
    for seed in 0..seeds {
        let seen = story(seed);
        if let Some(wrong) = seen.wrong {
            panic!("seed {seed}: {wrong}\n{}", seen.events.join("\n"));
        }
        took_over += seen.events.iter().filter(|event| event.contains("was taken over")).count();
        committed += seen.events.iter().filter(|event| event.ends_with("Ok(())")).count();
    }
    // Else nothing was tried.
    assert!(took_over > 30 && committed > 30, "told: {took_over}, committed: {committed}");
}
