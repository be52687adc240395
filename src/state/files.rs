//! Where runs go that do not fit into memory.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{Error, Result};

/// Makes files. What is in them is of use to this process alone, and is never synced.
pub trait Files: Send + Sync + fmt::Debug {
    /// An empty file, which is gone when the last hold on it is dropped.
    ///
    /// # Errors
    /// [`Error::DiskBudget`], [`Error::DiskFull`], [`Error::Io`].
    fn create(&self) -> Result<Arc<dyn RunFile>>;
}

/// Bytes that are appended, and read by place.
pub trait RunFile: Send + Sync + fmt::Debug {
    /// Appends bytes; where they begin. After an error none of them are there.
    ///
    /// # Errors
    /// [`Error::DiskBudget`], [`Error::DiskFull`], [`Error::Io`].
    fn append(&self, bytes: &[u8]) -> Result<u64>;

    /// Fills `into` with what stands from `from` on.
    ///
    /// # Errors
    /// [`Error::Io`], also where less stands there.
    fn read(&self, into: &mut [u8], from: u64) -> Result<()>;
}

/// Files in memory, for tests.
#[derive(Debug, Clone, Copy, Default)]
pub struct MemoryFiles;

#[derive(Debug, Default)]
struct MemoryFile(Mutex<Vec<u8>>);

impl Files for MemoryFiles {
    fn create(&self) -> Result<Arc<dyn RunFile>> {
        Ok(Arc::new(MemoryFile::default()))
    }
}

impl RunFile for MemoryFile {
    fn append(&self, bytes: &[u8]) -> Result<u64> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let from = all.len() as u64;
        all.extend_from_slice(bytes);
        Ok(from)
    }

    fn read(&self, into: &mut [u8], from: u64) -> Result<()> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let from = usize::try_from(from).unwrap_or(usize::MAX);
        let bytes = all.get(from..).and_then(|rest| rest.get(..into.len()));
        let cut_off = || Error::Io { context: "reading a run".into(), message: "less stands there".into() };
        into.copy_from_slice(bytes.ok_or_else(cut_off)?);
        Ok(())
    }
}
