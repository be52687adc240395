//! A file for as long as somebody works with it.

use std::fmt;
use std::io::{Error as IoError, ErrorKind, IoSlice, Result as IoResult};
use std::sync::{Arc, Mutex};

use super::pages::{Pieces, sealed_len};
use super::{SETTING, SpillDir};
use crate::edge::disk::segment::{RawFile, write_error};
use crate::edge::locked;
use crate::error::{Error, Result};

/// Bytes that are appended and read again, without a name, out of the budget of the folder. Its space is
/// free when it is dropped. Any number of threads may use it at once.
pub(in crate::edge::disk) struct Scratch {
    dir: Arc<SpillDir>,
    raw: Arc<dyn RawFile>,
    file: u64,
    written: Mutex<Written>,
}

#[derive(Default)]
struct Written {
    /// Bytes that were appended, and those that they take in the file.
    end: u64,
    stored: u64,
    /// Where what is encrypted stands; else positions are those in the file.
    pieces: Pieces,
}

impl Scratch {
    /// A new one.
    ///
    /// # Errors
    /// [`Error::DiskFull`], [`Error::Io`].
    pub(in crate::edge::disk) fn create(dir: &Arc<SpillDir>) -> Result<Self> {
        let (file, raw) = dir.unnamed().map_err(|e| write_error(&dir.path, SETTING, &e))?;
        Ok(Self { dir: Arc::clone(dir), raw, file, written: Mutex::default() })
    }

    /// Appends bytes; where they begin. After an error none of them are there.
    ///
    /// # Errors
    /// [`Error::DiskBudget`], [`Error::DiskFull`], [`Error::Io`].
    pub(in crate::edge::disk) fn append(&self, bytes: &[u8]) -> Result<u64> {
        let mut written = locked(&self.written);
        let more = if self.dir.sealer.is_some() { sealed_len(bytes.len()) } else { bytes.len() } as u64;
        self.dir.charge(more)?;
        let (from, at) = (written.end, written.stored);
        let appended = self.dir.sealer.as_ref().map_or_else(
            || self.write(bytes, at).map(|()| 0),
            |sealer| {
                let (nonce, sealed) = written.pieces.seal(sealer, self.file, bytes)?;
                self.write(&sealed, at).map(|()| nonce)
            },
        );
        let nonce = appended.inspect_err(|_| {
            let _in_use = self.raw.set_len(at);
            self.dir.give_back(more);
        })?;
        if self.dir.sealer.is_some() {
            written.pieces.add(from, bytes.len(), nonce);
        }
        (written.end, written.stored) = (from + bytes.len() as u64, at + more);
        Ok(from)
    }

    fn write(&self, bytes: &[u8], at: u64) -> Result<()> {
        let done: IoResult<()> = self.raw.write_at(&mut [IoSlice::new(bytes)], at);
        done.map_err(|error| write_error(&self.dir.path, SETTING, &error))
    }

    /// How much was appended.
    pub(in crate::edge::disk) fn end(&self) -> u64 {
        locked(&self.written).end
    }

    /// Takes back what was appended since [`Self::end`] was `to`, by whom nobody else appends beside.
    pub(in crate::edge::disk) fn cut(&self, to: u64) {
        let mut written = locked(&self.written);
        let end = to.min(written.end);
        let stored = if self.dir.sealer.is_some() {
            written.pieces.cut(end);
            written.pieces.sealed_end()
        } else {
            end
        };
        let _in_use = self.raw.set_len(stored);
        self.dir.give_back(written.stored.saturating_sub(stored));
        (written.end, written.stored) = (end, stored);
    }

    /// Fills `buffer` with what stands from `from` on.
    ///
    /// # Errors
    /// [`Error::Io`], also where less stands there; [`Error::CorruptSpill`] where it was encrypted and reads
    /// otherwise.
    pub(in crate::edge::disk) fn read(&self, mut buffer: &mut [u8], from: u64) -> Result<()> {
        let failed = |error: &IoError| Error::io(format!("reading from {}", self.dir.path.display()), error);
        let Some(sealer) = &self.dir.sealer else {
            return self.raw.read_at(buffer, from).map_err(|error| failed(&error));
        };
        let runs = locked(&self.written).pieces.find(from, buffer.len());
        let mut scratch = Vec::new();
        for run in runs.ok_or_else(|| failed(&ErrorKind::UnexpectedEof.into()))? {
            let left = run.read(&*self.raw, (sealer, self.file), &mut scratch, buffer);
            buffer = left.map_err(|error| failed(&error))?.ok_or_else(|| self.corrupt(from))?;
        }
        Ok(())
    }

    /// What does not fit to its checksum.
    pub(in crate::edge::disk) fn corrupt(&self, offset: u64) -> Error {
        Error::CorruptSpill { file: self.dir.path.display().to_string(), offset }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        self.dir.give_back(locked(&self.written).stored);
    }
}

impl fmt::Debug for Scratch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scratch").field("end", &self.end()).finish_non_exhaustive()
    }
}
