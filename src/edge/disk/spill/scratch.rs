//! A file for as long as somebody works with it.

use std::fmt;
use std::io::{IoSlice, Result as IoResult};
use std::sync::{Arc, Mutex};

use super::{SETTING, SpillDir};
use crate::edge::disk::segment::{RawFile, write_error};
use crate::edge::locked;
use crate::error::{Error, Result};

/// Bytes that are appended and read again, without a name, out of the budget of the folder. Its space is
/// free when it is dropped. Any number of threads may use it at once.
pub(in crate::edge::disk) struct Scratch {
    dir: Arc<SpillDir>,
    raw: Arc<dyn RawFile>,
    end: Mutex<u64>,
}

impl Scratch {
    /// A new one.
    ///
    /// # Errors
    /// [`Error::DiskFull`], [`Error::Io`].
    pub(in crate::edge::disk) fn create(dir: &Arc<SpillDir>) -> Result<Self> {
        let (_, raw) = dir.unnamed().map_err(|e| write_error(&dir.path, SETTING, &e))?;
        Ok(Self { dir: Arc::clone(dir), raw, end: Mutex::new(0) })
    }

    /// Appends bytes; where they begin. After an error none of them are there.
    ///
    /// # Errors
    /// [`Error::DiskBudget`], [`Error::DiskFull`], [`Error::Io`].
    pub(in crate::edge::disk) fn append(&self, bytes: &[u8]) -> Result<u64> {
        let mut end = locked(&self.end);
        let more = bytes.len() as u64;
        self.dir.charge(more)?;
        let from = *end;
        let written: IoResult<()> = self.raw.write_at(&mut [IoSlice::new(bytes)], from);
        written.map_err(|error| {
            let _in_use = self.raw.set_len(from);
            self.dir.give_back(more);
            write_error(&self.dir.path, SETTING, &error)
        })?;
        *end = from + more;
        Ok(from)
    }

    /// How much was appended.
    pub(in crate::edge::disk) fn end(&self) -> u64 {
        *locked(&self.end)
    }

    /// Takes back what was appended behind `to`, which nobody else appends to.
    pub(in crate::edge::disk) fn cut(&self, to: u64) {
        let mut end = locked(&self.end);
        let _in_use = self.raw.set_len(to);
        self.dir.give_back(end.saturating_sub(to));
        *end = to.min(*end);
    }

    /// Fills `buffer` with what stands from `from` on.
    ///
    /// # Errors
    /// [`Error::Io`], also where less stands there.
    pub(in crate::edge::disk) fn read(&self, buffer: &mut [u8], from: u64) -> Result<()> {
        let read = self.raw.read_at(buffer, from);
        read.map_err(|error| Error::io(format!("reading from {}", self.dir.path.display()), &error))
    }

    /// What does not fit to its checksum.
    pub(in crate::edge::disk) fn corrupt(&self, offset: u64) -> Error {
        Error::CorruptSegment {
            file: self.dir.path.display().to_string(),
            offset,
            reason: "what was written to a file in the spill folder reads otherwise".to_owned(),
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        self.dir.give_back(*locked(&self.end));
    }
}

impl fmt::Debug for Scratch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scratch").field("end", &*locked(&self.end)).finish_non_exhaustive()
    }
}
