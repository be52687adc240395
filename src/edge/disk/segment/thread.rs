//! The writer's thread: takes what is queued, writes it, syncs once per file, answers.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::SETTING;
use super::alive;
use super::claim::{self, Claim};
use super::disk::{FileTable, write_error};
use super::file::{SegmentFile, Uncut, Unsynced};
use super::format::SegmentHeader;
use super::layout;
use super::queue::{Append, Message};
use super::store::Store;
use crate::agent::committed::Committed;
use crate::causal_log::SpillRef;
use crate::edge::disk::recovery::at_once;
use crate::edge::locked;
use crate::error::{Error, Result};
use crate::id::{AgentId, EpochKey, Generation};

/// Bytes after which a group is closed: more would only make its first member wait.
const GROUP_BYTES: usize = 16 << 20;

/// Whose an epoch is.
enum Owner {
    /// Nobody owns anything here.
    NotAsked,
    /// This application's.
    Claim(Claim),
    /// Nobody's any more: it was committed.
    Nobody,
}

fn owner(store: &dyn Store, incarnation: u64, key: &EpochKey) -> Result<Owner> {
    if incarnation == 0 {
        return Ok(Owner::NotAsked);
    }
    match claim::find(store, key, incarnation)? {
        Some(claim) => Ok(Owner::Claim(claim)),
        None => claim::check_attached(store, incarnation).map(|()| Owner::Nobody),
    }
}

/// Whether whoever reads from now on finds what was written, and not less.
enum Counts {
    Yes,
    /// The epoch is nobody's any more.
    IsOver,
    /// Others have gone on without this agent.
    IsGone,
}

fn counts(store: &dyn Store, alive: Option<&Path>, file: &SegmentFile, key: &EpochKey) -> Result<Counts> {
    if let Some(path) = alive
        && !alive::is_there(store, path)?
    {
        return Ok(Counts::IsGone);
    }
    Ok(if file.is_claimed(store, key)? { Counts::Yes } else { Counts::IsOver })
}

/// State of the thread.
pub(super) struct Writer {
    pub(super) store: Arc<dyn Store>,
    pub(super) agent: AgentId,
    pub(super) app: u64,
    pub(super) table: Arc<FileTable>,
    /// Segments of the epochs that are not dropped.
    pub(super) files: HashMap<EpochKey, SegmentFile>,
    /// Which of them are over.
    pub(super) over: Committed,
    /// Number of the application among those that attached to the folder; 0: nobody owns anything here.
    pub(super) incarnation: Arc<AtomicU64>,
    /// The error of everything from now on, once a sync has failed.
    pub(super) poison: Option<Error>,
    /// Set with it, or when others have gone on without this agent, which is to end then.
    pub(super) failed: Arc<AtomicBool>,
    /// Whether others may go on without this agent.
    pub(super) may_die: Arc<AtomicBool>,
    /// The file that says that they have not, once it is made.
    pub(super) alive: Option<PathBuf>,
    /// Least time from one group to the next.
    pub(super) interval: Duration,
}

impl Writer {
    /// Serves until all senders are gone and the queue is empty.
    pub(super) fn run(mut self, queue: &Receiver<Message>) {
        let mut groups = HashMap::new();
        let mut due = Instant::now();
        while let Ok(first) = queue.recv() {
            // What comes meanwhile is of the same group.
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            due = Instant::now() + self.interval;
            let (mut next, mut bytes) = (Some(first), 0);
            let mut drop_request = None;
            while let Some(message) = next.take() {
                match message {
                    Message::Append(appends) => {
                        for append in appends {
                            bytes += append.payload.len();
                            let group = groups.entry(append.task.epoch_key()).or_insert_with(Vec::new);
                            group.push(append);
                        }
                    }
                    Message::Over { key, below } => self.over.insert(&key, below),
                    Message::Drop { key, everybodys, answer } => {
                        // What was submitted before is written before, what comes after, after.
                        drop_request = Some((key, everybodys, answer));
                        break;
                    }
                }
                next = if bytes < GROUP_BYTES { queue.try_recv().ok() } else { None };
            }
            self.commit(groups.drain());
            if let Some((key, everybodys, answer)) = drop_request {
                let dropped = self.drop_epoch(&key, everybodys);
                if let Err(error) = &dropped {
                    // Nothing is lost: whoever finds it sees that nobody claims it, or, of a micro-batch, commits it
                    // again with the next.
                    tracing::warn!(epoch = %key, %error, "a committed segment could not be removed");
                }
                answer.give(dropped);
            }
        }
        if let Some(path) = self.alive {
            // It acknowledges nothing any more. What is left of those that are killed is removed when it is old.
            let _rubbish = self.store.remove(&path);
        }
    }

    /// Writes all groups, then syncs each file and answers those who wait for it.
    fn commit(&mut self, groups: impl Iterator<Item = (EpochKey, Vec<Append>)>) {
        let groups: Vec<_> = groups.collect();
        let mut owners = self.owners(groups.iter().map(|(key, _)| key));
        let mut written = Vec::new();
        for (key, group) in groups {
            match self.write(&key, group, &mut owners) {
                Ok(unsynced) if unsynced.is_empty() => {}
                Ok(unsynced) => written.push((key, unsynced)),
                // The group was answered; the other groups' files are sound.
                Err(error) => tracing::error!(%error, epoch = %key, "segment not written"),
            }
        }
        let keys: Vec<_> = written.iter().map(|(key, _)| key.clone()).collect();
        let counted = self.sync(&keys);
        for ((_, unsynced), counted) in written.into_iter().zip(counted) {
            for Unsynced { answer, place, task, generation } in unsynced {
                answer.give(match &counted {
                    Ok(Some(moved)) => Ok(SpillRef { pos: place.pos + moved, ..place }),
                    Ok(None) => Err(Error::Fenced { task, newer: Generation::NONE, ours: generation }),
                    Err(error) => Err(error.clone()),
                });
            }
        }
    }

    /// Whose the epochs are of which this agent has no file yet.
    fn owners<'a>(&self, keys: impl Iterator<Item = &'a EpochKey>) -> HashMap<EpochKey, Result<Owner>> {
        let new: Vec<_> = keys.filter(|key| !self.files.contains_key(key)).collect();
        let (store, incarnation) = (self.store.as_ref(), self.incarnation.load(Ordering::Acquire));
        let asked =
            at_once(store.writers(), &new, |key| Ok(((*key).clone(), owner(store, incarnation, key))));
        // Who is not among them is asked about when it is its turn.
        asked.unwrap_or_default().into_iter().collect()
    }

    /// Syncs files; how much further back what was written lies than was said, or nothing if it counts for nobody.
    fn sync(&mut self, keys: &[EpochKey]) -> Vec<Result<Option<u64>>> {
        let (store, alive) = (self.store.as_ref(), self.alive.as_deref());
        let wanted = self.files.iter_mut().filter(|(key, _)| keys.contains(key));
        let files: Vec<_> = wanted.map(|(key, file)| (key, Mutex::new(file))).collect();
        let synced = at_once(store.writers(), &files, |(key, file)| {
            let mut file = locked(file);
            // In this order: what is acknowledged was on disk before anybody took the epoch over, committed it, or read
            // it without this agent.
            let synced = file.sync().map(|moved| (moved, counts(store, alive, &file, key)));
            Ok(((*key).clone(), synced))
        });
        drop(files);
        let mut synced: HashMap<EpochKey, _> = match synced {
            Ok(synced) => synced.into_iter().collect(),
            Err(error) => return keys.iter().map(|_| Err(error.clone())).collect(),
        };
        keys.iter().map(|key| synced.remove(key).map_or(Ok(None), |done| self.counted(key, done))).collect()
    }

    fn counted(&mut self, key: &EpochKey, synced: io::Result<(u64, Result<Counts>)>) -> Result<Option<u64>> {
        if let Some(poison) = self.poison.clone() {
            return Err(poison);
        }
        match synced {
            Ok((moved, counts)) => match counts? {
                Counts::Yes => Ok(Some(moved)),
                Counts::IsOver => Ok(None),
                Counts::IsGone => {
                    tracing::error!(path = ?self.alive, "others have gone on without this agent: it writes no more");
                    self.failed.store(true, Ordering::Release);
                    Ok(None)
                }
            },
            Err(error) => Err(self.not_synced(key, &error)),
        }
    }

    fn write(
        &mut self,
        key: &EpochKey,
        mut group: Vec<Append>,
        owners: &mut HashMap<EpochKey, Result<Owner>>,
    ) -> Result<Vec<Unsynced>> {
        if let Some(below) = self.over.below(key) {
            group.extract_if(.., |append| append.generation < below).for_each(|append| append.refuse(below));
            if group.is_empty() {
                return Ok(Vec::new());
            }
        }
        let file = match self.poison.clone() {
            Some(poison) => Err(poison),
            None => self.drop_if_over(key, &group).and_then(|()| self.file(key, owners)),
        };
        let file = match file {
            Ok(Some(file)) => file,
            Ok(None) => {
                group.into_iter().for_each(|append| append.refuse(Generation::NONE));
                return Ok(Vec::new());
            }
            Err(error) => {
                for append in group {
                    append.answer.give(Err(error.clone()));
                }
                return Err(error);
            }
        };
        let claim = file.claim();
        group
            .extract_if(.., |append| !append.is_of(claim))
            .for_each(|append| append.refuse(Generation::NONE));
        match file.write(group) {
            Ok(unsynced) => Ok(unsynced),
            Err(Uncut { write, cut, waiting }) => {
                let path = file.path().to_owned();
                let poison = self.fail("cutting off a failed write of", &path, &cut);
                // They hear of it when the agent has failed: what they do next may depend on that.
                let error = write_error(&path, SETTING, &write);
                for append in waiting {
                    append.answer.give(Err(error.clone()));
                }
                Err(poison)
            }
        }
    }

    fn not_synced(&mut self, key: &EpochKey, error: &io::Error) -> Error {
        let Some(file) = self.files.get(key) else { return write_error(self.store.root(), SETTING, error) };
        let path = file.path().to_owned();
        if file.ends_with_a_failed_sync() {
            return self.fail("fdatasync of", &path, error);
        }
        tracing::warn!(%error, "what was to be written is not acknowledged");
        write_error(&path, SETTING, error)
    }

    fn fail(&mut self, what: &str, path: &Path, error: &io::Error) -> Error {
        let what = format!("the writer of segments ({what} {}: {error})", path.display());
        tracing::error!(%what, "no more segments are written");
        let poison = Error::Poisoned { what };
        self.poison = Some(poison.clone());
        self.failed.store(true, Ordering::Release);
        poison
    }

    /// Gives up the file of a use that was committed, of which this agent has not heard, if there is something of another.
    fn drop_if_over(&mut self, key: &EpochKey, group: &[Append]) -> Result<()> {
        let Some(file) = self.files.get(key) else { return Ok(()) };
        if group.iter().all(|append| append.is_of(file.claim()))
            || file.is_claimed(self.store.as_ref(), key)?
        {
            return Ok(());
        }
        // It lies there as what nobody claims, if it does.
        self.table.remove(file.id());
        self.files.remove(key);
        Ok(())
    }

    /// The epoch's file; `None` if the epoch is nobody's, as it was committed.
    fn file(
        &mut self,
        key: &EpochKey,
        owners: &mut HashMap<EpochKey, Result<Owner>>,
    ) -> Result<Option<&mut SegmentFile>> {
        if !self.files.contains_key(key) {
            let incarnation = self.incarnation.load(Ordering::Acquire);
            let owner = owners.remove(key).unwrap_or_else(|| owner(self.store.as_ref(), incarnation, key));
            let claim = match owner? {
                Owner::NotAsked => None,
                Owner::Claim(claim) => Some(claim),
                Owner::Nobody => return Ok(None),
            };
            // Once: who was gone on without does not come back.
            if let Some(claim) =
                claim.filter(|_| self.alive.is_none() && self.may_die.load(Ordering::Acquire))
            {
                self.alive = Some(alive::begin(self.store.as_ref(), claim.incarnation, self.agent)?);
            }
            let used = claim.map_or(0, |claim| claim.used);
            let number = self.store.numbers_segments().then(FileTable::next_id);
            let by = (self.agent, self.app, number);
            let path = layout::segment_path(self.store.root(), by, used, key);
            let header = SegmentHeader::new(self.agent, self.app, key);
            let file = SegmentFile::create(self.store.as_ref(), path, &header, claim)?;
            self.table.insert(file.id(), file.for_readers());
            self.files.insert(key.clone(), file);
        }
        Ok(self.files.get_mut(key))
    }

    fn drop_epoch(&mut self, key: &EpochKey, everybodys: Option<u64>) -> Result<()> {
        let file = self.files.remove(key);
        let claim = file.as_ref().and_then(SegmentFile::claim);
        let mut doomed = Vec::new();
        if let Some(file) = file {
            self.table.remove(file.id());
            doomed.push(file.path().to_owned());
        }
        let context = |e: &io::Error| Error::io(format!("removing the segments of epoch {key}"), e);
        if let Some(used) = everybodys {
            doomed.extend(layout::epoch_files(self.store.as_ref(), key, used).map_err(|e| context(&e))?);
            doomed.extend(layout::notes(self.store.as_ref(), key, used).map_err(|e| context(&e))?);
        }
        if doomed.is_empty() {
            return Ok(());
        }
        self.check_owner(key, claim.map(|claim| claim.used).or(everybodys))?;
        let dirs = layout::dirs(self.store.root(), key);
        self.store.discard(&doomed, &dirs).map_err(|e| context(&e))
    }

    /// Refuses to touch what a newer application has taken over.
    fn check_owner(&self, key: &EpochKey, used: Option<u64>) -> Result<()> {
        let incarnation = self.incarnation.load(Ordering::Acquire);
        match claim::newest(self.store.as_ref(), key)? {
            Some(Claim { used: now, .. }) if incarnation > 0 && used == Some(now) => {
                claim::find(self.store.as_ref(), key, incarnation).map(drop)
            }
            _ => Ok(()),
        }
    }
}
