//! Runs of keyed state in the spill folder.

use std::sync::Arc;

use super::{Scratch, SpillDir};
use crate::error::Result;
use crate::state::{Files, RunFile};

/// Makes files for the runs of keyed state, out of the budget of a folder.
#[derive(Debug, Clone)]
pub struct RunFiles(Arc<SpillDir>);

impl RunFiles {
    /// In a folder.
    #[must_use]
    pub const fn new(dir: Arc<SpillDir>) -> Self {
        Self(dir)
    }
}

impl Files for RunFiles {
    fn create(&self) -> Result<Arc<dyn RunFile>> {
        Ok(Arc::new(Scratch::create(&self.0)?))
    }
}

impl RunFile for Scratch {
    fn append(&self, bytes: &[u8]) -> Result<u64> {
        Self::append(self, bytes)
    }

    fn read(&self, into: &mut [u8], from: u64) -> Result<()> {
        Self::read(self, into, from)
    }
}
