//! The writer's thread: takes what is queued, writes it, syncs once per file, answers.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use super::disk::{Disk, FileTable};
use super::file::{SegmentFile, Unsynced};
use super::format::SegmentHeader;
use super::layout;
use super::queue::{Append, Message};
use crate::error::{Error, Result};
use crate::id::{AgentId, EpochKey};

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
    /// The error of everything from now on, once a sync has failed.
    pub(super) poison: Option<Error>,
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
                    Message::Drop { key, everybody, answer } => {
                        // What was submitted before is written before, what comes after, after.
                        drop_request = Some((key, everybody, answer));
                        break;
                    }
                }
                next = if bytes < GROUP_BYTES { queue.try_recv().ok() } else { None };
            }
            self.commit(groups.drain());
            if let Some((key, everybody, answer)) = drop_request {
                answer.give(self.drop_epoch(&key, everybody));
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
            let synced = self.sync(&key);
            for (answer, place) in unsynced {
                answer.give(synced.clone().map(|()| place));
            }
        }
    }

    fn write(&mut self, key: &EpochKey, group: Vec<Append>) -> Result<Vec<Unsynced>> {
        let file = match self.poison.clone() {
            Some(poison) => Err(poison),
            None => self.file(key),
        };
        let file = match file {
            Ok(file) => file,
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
        poison
    }

    fn file(&mut self, key: &EpochKey) -> Result<&mut SegmentFile> {
        if !self.files.contains_key(key) {
            let path = layout::segment_path(&self.root, self.agent, self.app, key);
            let header = SegmentHeader::new(self.agent, self.app, key);
            let file = SegmentFile::open(self.disk.as_ref(), &self.root, path, &header)?;
            self.table.insert(file.id(), file.for_readers());
            self.files.insert(key.clone(), file);
        }
        self.files.get_mut(key).ok_or_else(|| Error::Misuse { what: format!("no segment for epoch {key}") })
    }

    fn drop_epoch(&mut self, key: &EpochKey, everybody: bool) -> Result<()> {
        let mut doomed = vec![layout::segment_path(&self.root, self.agent, self.app, key)];
        if let Some(file) = self.files.remove(key) {
            self.table.remove(file.id());
        }
        let context = || format!("removing the segments of epoch {key}");
        if everybody {
            doomed.extend(layout::epoch_files(&self.root, key).map_err(|e| Error::io(context(), &e))?);
        }
        for path in &doomed {
            layout::unlink(path).map_err(|e| Error::io(context(), &e))?;
        }
        layout::prune(&self.root, key);
        Ok(())
    }
}
