//! Two operators with an exchange between them. What the first recorded rides in frames, is named by them, or was
//! published by an attempt that failed; frames of older attempts are still about, and attempts that were taken for
//! dead write on. What a consumer has shown stays as it was, whatever is lost.

use std::collections::{BTreeMap, HashMap, HashSet};

use bytes::Bytes;
use clonos::agent::protocol::{Ending, OpenTask, Opened, Request};
use clonos::edge::net::client::Client;
use clonos::frame::Group;
use clonos::id::{Epoch, LogOffset, Partition, TaskId};
use clonos::task::Summary;
use tempfile::TempDir;

use crate::dice::Dice;
use crate::faults::Faults;
use crate::life::{Life, opening};

const NAME: &str = "chained";
const LIVES_MAX: usize = 4;
const TRIES_MAX: usize = 100;

type Told<T> = Result<T, String>;

/// What a sender's finished attempt left to its consumers.
#[derive(Clone)]
struct Sent {
    /// Its executor, whose files go with it.
    by: Option<usize>,
    answers: Vec<Bytes>,
    /// How many of them ride in the frames.
    riding: usize,
}

pub(crate) struct Chain {
    dice: Dice,
    folder: TempDir,
    lives: u64,
    attempts: u64,
    stages: u32,
    newest: u64,
    /// Answers of each sender.
    senders: Vec<usize>,
    /// By sender and place, what a consumer has shown; and of epochs that were committed.
    seen: HashMap<(usize, usize), Bytes>,
    gone: HashSet<(usize, usize, Bytes)>,
    /// Attempts that are over for everybody but themselves.
    late: Vec<(Client, u64)>,
    /// Is lost next.
    doomed: Option<usize>,
    pub(crate) trace: Vec<String>,
    pub(crate) replayed: usize,
    pub(crate) stale: usize,
}

fn task(operator: &str, partition: usize) -> TaskId {
    TaskId {
        query: "batch".into(),
        operator: operator.into(),
        epoch: Epoch::Named(NAME.into()),
        partition: Partition(partition as u32),
    }
}

fn keep(client: &mut Client, session: u64, block: &Bytes) -> clonos::error::Result<()> {
    let kept = client.start(&Request::Keep { session, block: block.clone() })?;
    client.wait(kept)
}

fn append(client: &mut Client, session: u64, block: &Bytes) -> clonos::error::Result<()> {
    let sent = client.send(session, block.clone())?;
    client.wait(sent)
}

impl Chain {
    pub(crate) fn new(seed: u64) -> Self {
        let mut chain = Self {
            dice: Dice::new(seed),
            folder: tempfile::tempdir().unwrap(),
            lives: 0,
            attempts: 0,
            stages: 0,
            newest: 0,
            senders: Vec::new(),
            seen: HashMap::new(),
            gone: HashSet::new(),
            late: Vec::new(),
            doomed: None,
            trace: Vec::new(),
            replayed: 0,
            stale: 0,
        };
        chain.fill();
        chain
    }

    fn fill(&mut self) {
        let senders = self.dice.between(1, 3);
        self.senders = (0..senders).map(|_| self.dice.between(1, 5)).collect();
    }

    pub(crate) fn tell(&mut self) -> Told<()> {
        for _ in 0..self.dice.between(1, LIVES_MAX) {
            self.live(true)?;
        }
        self.live(false)
    }

    fn live(&mut self, may_die: bool) -> Told<()> {
        self.lives += 1;
        let (depth, executors) = (self.dice.between(0, 2) as u32, self.dice.below(4));
        self.trace.push(format!("life {} begins, depth {depth}, {executors} executors", self.lives));
        let begun = Life::begin(self.folder.path(), &Faults::default(), self.lives, depth, executors);
        let mut life = begun.map_err(|error| error.to_string())?;
        let is_done = self.run(&mut life, may_die)?;
        if is_done && may_die && self.dice.chance(30) {
            self.trace.push("committed".into());
            let epoch = Epoch::Named(NAME.into());
            life.driver.commit_epoch("batch", &epoch).map_err(|error| error.to_string())?;
            self.gone.extend(self.seen.drain().map(|((sender, place), answer)| (sender, place, answer)));
            self.fill();
        }
        self.late.clear();
        self.doomed = None;
        life.end();
        Ok(())
    }

    /// Both stages; whether they came to their end before the application did.
    fn run(&mut self, life: &mut Life, may_die: bool) -> Told<bool> {
        self.stages += 2;
        life.has_stage(self.stages, self.senders.len() as u32);
        life.has_stage(self.stages + 1, 2);
        life.driver.begin_run("batch", Some(&Epoch::Named(NAME.into())));
        let (mut frames, mut older) = (BTreeMap::new(), Vec::new());
        let mut consumers = vec![0, 1];
        for _ in 0..TRIES_MAX {
            let missing: Vec<usize> = (0..self.senders.len()).filter(|p| !frames.contains_key(p)).collect();
            if let Some(&sender) = missing.first() {
                if let Some(sent) = self.send(life, sender)? {
                    frames.insert(sender, sent);
                }
            } else if let Some(&consumer) = consumers.last() {
                if self.take(life, consumer, &frames, &older)? {
                    consumers.pop();
                }
            } else {
                return Ok(true);
            }
            if may_die && self.dice.chance(4) {
                self.trace.push("everything dies".into());
                return Ok(false);
            }
            if self.doomed.is_some() || self.dice.chance(8) {
                self.lose(life, &mut frames, &mut older);
            }
            if self.dice.chance(20) {
                self.write_late();
            }
        }
        Err(format!("not done after {TRIES_MAX} tries"))
    }

    /// An executor is lost with its agent and its files; what was read of these before may still be taken.
    fn lose(&mut self, life: &mut Life, frames: &mut BTreeMap<usize, Sent>, older: &mut Vec<(usize, Sent)>) {
        let executors = life.executors();
        let Some(&some) = executors.get(self.dice.below(executors.len())) else { return };
        let lost = self.doomed.take().unwrap_or(some);
        self.trace.push(format!("executor {lost} is lost"));
        life.lose(lost);
        let gone: Vec<usize> =
            frames.iter().filter(|(_, sent)| sent.by == Some(lost)).map(|(p, _)| *p).collect();
        older.extend(gone.into_iter().filter_map(|sender| Some((sender, frames.remove(&sender)?))));
    }

    fn write_late(&mut self) {
        if let Some((mut client, session)) = self.late.pop() {
            let answer = self.ask();
            let refused = append(&mut client, session, &answer).err();
            self.trace.push(format!("late: {answer:?}, {refused:?}"));
        }
    }

    /// Another answer than any before.
    fn ask(&mut self) -> Bytes {
        self.newest += 1;
        Bytes::from(format!("answer {}", self.newest))
    }

    /// An attempt on some agent; `None` if none could be opened yet, as one that was lost is not known to be.
    fn open(
        &mut self,
        life: &Life,
        task: TaskId,
        stage: u32,
    ) -> Told<Option<(Client, Opened, Option<usize>)>> {
        self.attempts += 1;
        let (agent, by) = life.some_agent(self.dice.next());
        let what = format!("{} {} by executor {by:?}", task.operator, task.partition.0);
        let mut client = life.connect(agent).map_err(|error| error.to_string())?;
        let open = opening(life, task, stage, self.attempts);
        let inside = stage == self.stages;
        match client.open(OpenTask { inside, ..open }) {
            Ok(opened) if opened.lost => Err(format!("{what}: lost, and the folder has it")),
            Ok(opened) => {
                self.trace.push(format!("{what}: found {:?}", opened.prior));
                self.replayed += opened.prior.len();
                Ok(Some((client, opened, by)))
            }
            Err(error) if error.is_retryable() => {
                self.trace.push(format!("{what}: {error}"));
                std::thread::sleep(std::time::Duration::from_millis(100));
                Ok(None)
            }
            Err(error) => Err(format!("{what}: {error}")),
        }
    }

    fn send(&mut self, life: &Life, sender: usize) -> Told<Option<Sent>> {
        let Some((mut client, opened, by)) = self.open(life, task("f", sender), self.stages)? else {
            return Ok(None);
        };
        let (session, mut answers) = (opened.session, opened.prior);
        for ((_, place), answer) in self.seen.iter().filter(|((other, _), _)| *other == sender) {
            if answers.get(*place) != Some(answer) {
                return Err(format!("sender {sender} had {answer:?} at {place}, and has {answers:?}"));
            }
        }
        // Frames name the log from here on.
        let riding = self.dice.between(0, 2 * self.senders[sender]);
        for place in answers.len()..self.senders[sender] {
            let answer = self.ask();
            let recorded = match place < riding {
                true => keep(&mut client, session, &answer),
                false => append(&mut client, session, &answer),
            };
            if let Err(error) = recorded {
                self.trace.push(format!("sender {sender} at {place}: {error}"));
                return Ok(None);
            }
            answers.push(answer);
            if self.dice.chance(10) {
                self.trace.push(format!("sender {sender} fails at {place}, {riding} ride"));
                match self.dice.chance(40) {
                    true => self.refuse(life, sender, &mut client, session)?,
                    false => self.late.push((client, session)),
                }
                self.doomed = by.filter(|_| self.dice.chance(50));
                return Ok(None);
            }
        }
        if riding < self.senders[sender]
            && let Err(error) = append(&mut client, session, &Bytes::new())
        {
            self.trace.push(format!("sender {sender} at its end: {error}"));
            return Ok(None);
        }
        let ending = Ending { done: true, ..Ending::default() };
        if client.close(session, Summary::default(), ending).is_err() {
            return Ok(None);
        }
        // A late attempt may have written behind what this one was to record.
        answers.truncate(self.senders[sender]);
        let riding = riding.min(answers.len());
        self.trace.push(format!("sender {sender} is done, {riding} ride: {answers:?}"));
        Ok(Some(Sent { by, answers, riding }))
    }

    /// What an attempt publishes is refused, and may stand in the folder: another was opened that it has not heard of.
    fn refuse(&mut self, life: &Life, sender: usize, client: &mut Client, session: u64) -> Told<()> {
        self.attempts += 1;
        let open = opening(life, task("f", sender), self.stages, self.attempts);
        life.grant_to_nobody(OpenTask { inside: true, ..open }).map_err(|error| error.to_string())?;
        let answer = self.ask();
        let refused = append(client, session, &answer).err();
        self.trace.push(format!("refused: {answer:?}, {refused:?}"));
        Ok(())
    }

    /// A consumer takes the frames, and shows what they led to.
    fn take(
        &mut self,
        life: &Life,
        consumer: usize,
        frames: &BTreeMap<usize, Sent>,
        older: &[(usize, Sent)],
    ) -> Told<bool> {
        let Some((mut client, opened, _)) = self.open(life, task("g", consumer), self.stages + 1)? else {
            return Ok(false);
        };
        let session = opened.session;
        let mut taken = frames.clone();
        if let Some((sender, sent)) = older.last().filter(|_| self.dice.chance(30)) {
            taken.insert(*sender, sent.clone());
        }
        let group = |(sender, sent): (&usize, &Sent)| Group {
            operator: "f".into(),
            partition: Partition(*sender as u32),
            hops: 1,
            from: LogOffset::START,
            blocks: sent.answers[..sent.riding].to_vec(),
        };
        let groups: Vec<Group> = taken.iter().map(group).filter(|group| !group.blocks.is_empty()).collect();
        let visible = client
            .start(&Request::Absorb { session, groups })
            .and_then(|absorbed| client.wait(absorbed))
            .and_then(|()| match opened.prior.is_empty() {
                true => append(&mut client, session, &Bytes::from(format!("consumer {consumer}"))),
                false => client.start(&Request::Commit { session }).and_then(|shared| client.wait(shared)),
            });
        if let Err(error) = visible {
            self.trace.push(format!("consumer {consumer}: {error}"));
            self.stale += 1;
            return Ok(false);
        }
        for (sender, sent) in &taken {
            self.see(*sender, &sent.answers)?;
        }
        self.trace.push(format!("consumer {consumer} has shown what it took"));
        let ending = Ending { done: true, ..Ending::default() };
        Ok(client.close(session, Summary::default(), ending).is_ok())
    }

    fn see(&mut self, sender: usize, answers: &[Bytes]) -> Told<()> {
        for (place, answer) in answers.iter().enumerate() {
            if self.gone.contains(&(sender, place, answer.clone())) {
                return Err(format!("{answer:?} of sender {sender} is of a committed use"));
            }
            let before = self.seen.entry((sender, place)).or_insert_with(|| answer.clone());
            if before != answer {
                return Err(format!("place {place} of sender {sender} was {before:?} and is {answer:?}"));
            }
        }
        Ok(())
    }
}
