//! Where a task's frames wait that came before their turn: in memory, past a limit in a file.

use std::collections::HashMap;
use std::path::PathBuf;

use bytes::Bytes;

use crate::causal_log::SpillRef;
use crate::config::SessionConfig;
use crate::edge::disk::spill::SpillDir;
use crate::error::{Error, Result};
use crate::exchange::FrameStore;
use crate::id::EpochKey;

/// Bytes of frames that wait in memory; a task that runs for the first time has one waiting at a time.
const MEMORY_BYTES: u64 = 64 << 20;

/// Frames that wait, of one task.
#[derive(Debug)]
pub struct PendingFrames {
    memory: HashMap<u64, Bytes>,
    memory_bytes: u64,
    disk: HashMap<u64, SpillRef>,
    spill: Option<SpillDir>,
    folder: PathBuf,
    disk_bytes: u64,
    encrypt: bool,
    key: EpochKey,
    next: u64,
}

impl PendingFrames {
    /// Nothing waits. The file goes where the session's spilled logs go, if one is needed.
    #[must_use]
    pub fn new(config: Option<&SessionConfig>, key: EpochKey) -> Self {
        let root = config.and_then(|config| config.spill_dir.as_ref());
        let folder = root.map_or_else(std::env::temp_dir, PathBuf::from);
        Self {
            memory: HashMap::new(),
            memory_bytes: 0,
            disk: HashMap::new(),
            spill: None,
            folder,
            disk_bytes: config.map_or(u64::MAX, |config| config.disk_bytes),
            encrypt: config.is_some_and(|config| config.encrypt_spill),
            key,
            next: 0,
        }
    }

    fn spill(&mut self) -> Result<&SpillDir> {
        if self.spill.is_none() {
            self.spill = Some(SpillDir::create(&self.folder, self.disk_bytes, self.encrypt)?);
        }
        self.spill.as_ref().ok_or_else(|| Error::Misuse { what: "no folder for waiting frames".into() })
    }
}

impl FrameStore for PendingFrames {
    fn put(&mut self, frame: Bytes) -> Result<u64> {
        self.next += 1;
        let number = self.next;
        let bytes = frame.len() as u64;
        if self.memory_bytes + bytes > MEMORY_BYTES && !self.memory.is_empty() {
            let key = self.key.clone();
            let places = self.spill()?.write(&key, std::slice::from_ref(&frame))?;
            self.disk.extend(places.first().map(|place| (number, *place)));
            return Ok(number);
        }
        self.memory_bytes += bytes;
        self.memory.insert(number, frame);
        Ok(number)
    }

    fn take(&mut self, number: u64) -> Result<Bytes> {
        if let Some(frame) = self.memory.remove(&number) {
            self.memory_bytes -= frame.len() as u64;
            return Ok(frame);
        }
        match self.disk.remove(&number) {
            Some(place) => self.spill()?.read(&place),
            None => Err(Error::Misuse { what: format!("frame {number} does not wait here") }),
        }
    }
}
