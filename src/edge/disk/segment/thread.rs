//! The writer's thread: takes what is queued, writes it, syncs once per file, answers.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Receiver;

use super::claim::{self, Claim};
use super::disk::{Disk, FileTable};
use super::file::{SegmentFile, Unsynced};
use super::format::SegmentHeader;
use super::layout;
use super::queue::{Append, Message};
use crate::error::{Error, Result};
use crate::id::{AgentId, EpochKey, Generation};

/// Bytes after which a group is closed: more would only make its first member wait.
const GROUP_BYTES: usize = 16 << 20;

/// State of the thread.
pub(super) struct Writer {
    pub(super) root: PathBuf,
    pub(super) agent: AgentId,
    pub(super) app: u64,
    pub(super) disk: Arc<dyn Disk>,
    pub(super) table: Arc<FileTable>,
    /// Segments of the epochs that are not dropped.
    pub(super) files: HashMap<EpochKey, SegmentFile>,
    /// Number of the application among those that attached to the folder; 0: nobody owns anything here.
    pub(super) incarnation: Arc<AtomicU64>,
    /// The error of everything from now on, once a sync has failed.
    pub(super) poison: Option<Error>,
    /// Set with it, for others to see.
    pub(super) failed: Arc<AtomicBool>,
}

impl Writer {
    /// Serves until all senders are gone and the queue is empty.
    pub(super) fn run(mut self, queue: &Receiver<Message>) {
        let mut groups = HashMap::new();
        while let Ok(first) = queue.recv() {
            let (mut next, mut bytes) = (Some(first), 0);
            let mut drop_request = None;
            while let Some(message) = next.take() {
                match message {
                    Message::Append(append) => {
                        bytes += append.payload.len();
                        let group = groups.entry(append.task.epoch_key()).or_insert_with(Vec::new);
                        group.push(*append);
                    }
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
                answer.give(self.drop_epoch(&key, everybodys));
            }
        }
    }

    /// Writes all groups, then syncs each file and answers those who wait for it.
    fn commit(&mut self, groups: impl Iterator<Item = (EpochKey, Vec<Append>)>) {
        let mut written = Vec::new();
        for (key, group) in groups {
            match self.write(&key, group) {
                Ok(unsynced) if unsynced.is_empty() => {}
                Ok(unsynced) => written.push((key, unsynced)),
                // The group was answered; the other groups' files are sound.
                Err(error) => tracing::error!(%error, epoch = %key, "segment not written"),
            }
        }
        for (key, unsynced) in written {
            // In this order: what is acknowledged was on disk before anybody took the epoch over, or
            // committed it.
            let claimed = self.sync(&key).and_then(|()| match self.files.get(&key) {
                Some(file) => file.is_claimed(&self.root, &key),
                None => Ok(true),
            });
            for Unsynced { answer, place, task, generation } in unsynced {
                answer.give(match &claimed {
                    Ok(true) => Ok(place),
                    Ok(false) => Err(Error::Fenced { task, newer: Generation::NONE, ours: generation }),
                    Err(error) => Err(error.clone()),
                });
            }
        }
    }

    fn write(&mut self, key: &EpochKey, group: Vec<Append>) -> Result<Vec<Unsynced>> {
        let file = match self.poison.clone() {
            Some(poison) => Err(poison),
            None => self.file(key),
        };
        let file = match file {
            Ok(Some(file)) => file,
            Ok(None) => {
                for Append { answer, task, generation: ours, .. } in group {
                    answer.give(Err(Error::Fenced { task, newer: Generation::NONE, ours }));
                }
                return Ok(Vec::new());
            }
            Err(error) => {
                for append in group {
                    append.answer.give(Err(error.clone()));
                }
                return Err(error);
            }
        };
        match file.write(group) {
            Ok(unsynced) => Ok(unsynced),
            Err(error) => {
                let path = file.path().to_owned();
                Err(self.fail("cutting off a failed write of", &path, &error))
            }
        }
    }

    fn sync(&mut self, key: &EpochKey) -> Result<()> {
        if let Some(poison) = self.poison.clone() {
            return Err(poison);
        }
        let Some(file) = self.files.get_mut(key) else { return Ok(()) };
        let Err(error) = file.sync(self.disk.as_ref()) else { return Ok(()) };
        let path = file.path().to_owned();
        // After a failed fsync the kernel has dropped the pages and calls the file clean: a second
        // one succeeds without writing them (Rebello et al., "Can Applications Recover from fsync
        // Failures?", ATC 2020). Only a new process that reads the file can know what is there.
        Err(self.fail("fdatasync of", &path, &error))
    }

    fn fail(&mut self, what: &str, path: &Path, error: &io::Error) -> Error {
        let what = format!("the writer of segments ({what} {}: {error})", path.display());
        tracing::error!(%what, "no more segments are written");
        let poison = Error::Poisoned { what };
        self.poison = Some(poison.clone());
        self.failed.store(true, Ordering::Release);
        poison
    }

    /// The epoch's file; `None` if the epoch is nobody's, as it was committed.
    fn file(&mut self, key: &EpochKey) -> Result<Option<&mut SegmentFile>> {
        if !self.files.contains_key(key) {
            let claim = match self.incarnation.load(Ordering::Acquire) {
                0 => None,
                incarnation => match claim::find(&self.root, key, incarnation)? {
                    Some(claim) => Some((claim, claim.path(&self.root, key))),
                    None => return claim::check_attached(&self.root, incarnation).map(|()| None),
                },
            };
            let used = claim.as_ref().map_or(0, |(claim, _)| claim.used);
            let path = layout::segment_path(&self.root, self.agent, self.app, used, key);
            let header = SegmentHeader::new(self.agent, self.app, key);
            let file = SegmentFile::create(self.disk.as_ref(), &self.root, path, &header, claim)?;
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
            doomed.extend(layout::epoch_files(&self.root, key, used).map_err(|e| context(&e))?);
        }
        if doomed.is_empty() {
            return Ok(());
        }
        self.check_owner(key, claim.map(|claim| claim.used).or(everybodys))?;
        layout::remove(self.disk.as_ref(), &self.root, key, &doomed).map_err(|e| context(&e))
    }

    /// Refuses to touch what a newer application has taken over.
    fn check_owner(&self, key: &EpochKey, used: Option<u64>) -> Result<()> {
        let incarnation = self.incarnation.load(Ordering::Acquire);
        match claim::newest(&self.root, key)? {
            Some(Claim { used: now, .. }) if incarnation > 0 && used == Some(now) => {
                claim::find(&self.root, key, incarnation).map(drop)
            }
            _ => Ok(()),
        }
    }
}
