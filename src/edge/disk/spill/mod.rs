//! Spilled blocks: what does not fit into an agent's memory budget, for as long as the agent lives.
//!
//! One file per epoch, which has no name: it is unlinked as soon as it is open. So nothing is left
//! behind however the agent ends, agents may share a folder, and the space is free once the epoch is
//! released. Nothing is synced: after a crash other agents and the segments have the logs, never
//! this folder.
//!
//! A block is stored as `len u32 | crc32 u32 | bytes`, numbers little-endian, or encrypted as
//! `nonce u64 | bytes and tag`. The format is private to the process that writes it, which alone has the key.

mod pages;
mod runs;
mod scratch;
mod sealing;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::fs::{self, DirBuilder};
use std::io::{self, IoSlice};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use super::segment::{FileSystem, FileTable, OpenFile, RawFile, RealDisk, write_error};
use crate::causal_log::SpillRef;
use crate::error::{Error, Result};
use crate::id::EpochKey;
pub use runs::RunFiles;
pub(super) use scratch::Scratch;
use sealing::{Sealer, Spot, TAG};

/// The setting whose path is written to, for error messages.
const SETTING: &str = "spill_dir";
/// Bytes before each block.
const FRAME: usize = 8;
/// Encrypted blocks are written together up to about so many bytes.
const SEALED_AT_ONCE: usize = 1 << 20;

/// Where an agent spills. Any number of threads may use it at once.
pub struct SpillDir {
    path: PathBuf,
    /// In the names of its files: agents of several hosts may share the folder.
    tag: u64,
    budget_bytes: u64,
    disk: Arc<dyn FileSystem>,
    /// Where what is spilled is encrypted.
    sealer: Option<Sealer>,
    table: FileTable,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    epochs: HashMap<EpochKey, SpillFile>,
    used_bytes: u64,
}

struct SpillFile {
    id: u64,
    raw: Arc<dyn RawFile>,
    end: u64,
}

impl SpillDir {
    /// Uses the folder at `path`, made (for this user alone) if need be, for at most
    /// `budget_bytes`. With `encrypt`, nobody reads there what is spilled, this process apart.
    ///
    /// # Errors
    /// [`Error::DiskFull`], [`Error::Io`] if the folder can't be made.
    pub fn create(path: &Path, budget_bytes: u64, encrypt: bool) -> Result<Self> {
        Self::create_on(Arc::new(RealDisk), path, budget_bytes, encrypt)
    }

    /// [`Self::create`] on a given file system.
    ///
    /// # Errors
    /// Those of [`Self::create`].
    pub fn create_on(
        disk: Arc<dyn FileSystem>,
        path: &Path,
        budget_bytes: u64,
        encrypt: bool,
    ) -> Result<Self> {
        let there = DirBuilder::new().recursive(true).mode(0o700).create(path);
        there.map_err(|e| write_error(path, SETTING, &e))?;
        let (table, state) = (FileTable::default(), Mutex::default());
        let mut tag = [0; 8];
        getrandom::fill(&mut tag)
            .map_err(|e| Error::Io { context: "drawing a name".into(), message: e.to_string() })?;
        let tag = u64::from_le_bytes(tag);
        let sealer = if encrypt { Some(Sealer::new()?) } else { None };
        Ok(Self { path: path.to_owned(), tag, budget_bytes, disk, sealer, table, state })
    }

    /// Writes blocks of an epoch; where each is. All of them are written, or none.
    ///
    /// # Errors
    /// - [`Error::DiskBudget`]: the budget does not allow it; releasing epochs does.
    /// - [`Error::DiskFull`], [`Error::Io`]: the system does not allow it. What was spilled before can
    ///   still be read.
    pub fn write(&self, key: &EpochKey, blocks: &[Bytes]) -> Result<Vec<SpillRef>> {
        let frames = blocks.iter().map(|block| frame(block)).collect::<Result<Vec<_>>>()?;
        let bytes: u64 = blocks.iter().map(|block| (self.extra() + block.len()) as u64).sum();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.used_bytes.saturating_add(bytes) > self.budget_bytes {
            return Err(Error::DiskBudget { limit: self.budget_bytes });
        }
        if !state.epochs.contains_key(key) {
            let file = self.open().map_err(|e| write_error(&self.path, SETTING, &e))?;
            state.epochs.insert(key.clone(), file);
        }
        let Some(file) = state.epochs.get_mut(key) else { return Ok(Vec::new()) };
        let appended = match &self.sealer {
            Some(sealer) => file.append_sealed(sealer, blocks),
            None => file.append(&frames, blocks),
        };
        let places = appended.map_err(|e| {
            // Gives the space back. If that fails too, the next write starts at the same place.
            let _in_use = file.raw.set_len(file.end);
            write_error(&self.path, SETTING, &e)
        })?;
        state.used_bytes += bytes;
        Ok(places)
    }

    /// Reads a block, and checks its sum.
    ///
    /// # Errors
    /// [`Error::CorruptSpill`] if the bytes changed on disk, [`Error::Io`], also when the epoch was
    /// released.
    pub fn read(&self, place: &SpillRef) -> Result<Bytes> {
        let file = self.table.get(place)?;
        let mut bytes = vec![0; self.extra() + place.len as usize];
        let read = file.raw.read_at(&mut bytes, place.pos);
        read.map_err(|e| Error::io(format!("reading from {}", file.path.display()), &e))?;
        let is_whole = match &self.sealer {
            Some(sealer) => open(sealer, place, &mut bytes),
            None => bytes
                .split_first_chunk()
                .is_some_and(|(head, block)| frame(block).is_ok_and(|expected| expected == *head)),
        };
        if is_whole {
            let mut block = Bytes::from(bytes).split_off(FRAME);
            block.truncate(place.len as usize);
            return Ok(block);
        }
        Err(Error::CorruptSpill { file: file.path.display().to_string(), offset: place.pos })
    }

    /// Whether [`Self::read`] knows the file of this reference.
    #[must_use]
    pub fn owns(&self, place: &SpillRef) -> bool {
        self.table.owns(place)
    }

    /// Forgets an epoch: its space is free when readers that are at it are done.
    pub fn release(&self, key: &EpochKey) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = state.epochs.remove(key) {
            self.table.remove(file.id);
            state.used_bytes = state.used_bytes.saturating_sub(file.end);
        }
    }

    /// Bytes on disk, of all epochs that are not released and all that is worked with.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).used_bytes
    }

    /// Bytes that a block takes besides its own.
    const fn extra(&self) -> usize {
        if self.sealer.is_some() { FRAME + TAG } else { FRAME }
    }

    fn open(&self) -> io::Result<SpillFile> {
        let (id, raw) = self.unnamed()?;
        self.table.insert(id, OpenFile { path: self.path.clone(), raw: Arc::clone(&raw) });
        Ok(SpillFile { id, raw, end: 0 })
    }

    /// Opens a file that has no name any more when this returns.
    fn unnamed(&self) -> io::Result<(u64, Arc<dyn RawFile>)> {
        let id = FileTable::next_id();
        let path = self.path.join(format!("clonos-{:016x}-{id}.spill", self.tag));
        let raw = self.disk.create(&path, 0o600)?;
        fs::remove_file(&path)?;
        Ok((id, raw))
    }

    /// Takes bytes out of the budget.
    fn charge(&self, bytes: u64) -> Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.used_bytes.saturating_add(bytes) > self.budget_bytes {
            return Err(Error::DiskBudget { limit: self.budget_bytes });
        }
        state.used_bytes += bytes;
        Ok(())
    }

    fn give_back(&self, bytes: u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.used_bytes = state.used_bytes.saturating_sub(bytes);
    }
}

impl SpillFile {
    fn append(&mut self, frames: &[[u8; FRAME]], blocks: &[Bytes]) -> io::Result<Vec<SpillRef>> {
        let mut pieces = Vec::with_capacity(2 * blocks.len());
        let mut places = Vec::with_capacity(blocks.len());
        let mut pos = self.end;
        for (frame, block) in frames.iter().zip(blocks) {
            pieces.push(IoSlice::new(frame));
            pieces.push(IoSlice::new(block));
            let len = u32::try_from(block.len()).unwrap_or(u32::MAX);
            places.push(SpillRef { file: self.id, pos, len });
            pos += (FRAME + block.len()) as u64;
        }
        self.raw.write_at(&mut pieces, self.end)?;
        self.end = pos;
        Ok(places)
    }

    fn append_sealed(&mut self, sealer: &Sealer, blocks: &[Bytes]) -> io::Result<Vec<SpillRef>> {
        let (mut places, mut sealed) = (Vec::with_capacity(blocks.len()), Vec::new());
        let mut written = self.end;
        for (block, nonce) in blocks.iter().zip(sealer.nonces(blocks.len() as u64)..) {
            let pos = written + sealed.len() as u64;
            let len = u32::try_from(block.len()).unwrap_or(u32::MAX);
            places.push(SpillRef { file: self.id, pos, len });
            sealed.extend(nonce.to_le_bytes());
            let done = sealer.seal(nonce, Spot { file: self.id, pos }, block, &mut sealed);
            done.map_err(io::Error::other)?;
            if sealed.len() >= SEALED_AT_ONCE {
                self.raw.write_at(&mut [IoSlice::new(&sealed)], written)?;
                written += sealed.len() as u64;
                sealed.clear();
            }
        }
        self.raw.write_at(&mut [IoSlice::new(&sealed)], written)?;
        self.end = written + sealed.len() as u64;
        Ok(places)
    }
}

impl fmt::Debug for SpillDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpillDir")
            .field("path", &self.path)
            .field("budget_bytes", &self.budget_bytes)
            .field("used_bytes", &self.used_bytes())
            .finish_non_exhaustive()
    }
}

/// Opens an encrypted block behind its nonce; whether it is what was written there.
fn open(sealer: &Sealer, place: &SpillRef, bytes: &mut [u8]) -> bool {
    let Some((nonce, sealed)) = bytes.split_first_chunk_mut::<FRAME>() else { return false };
    let spot = Spot { file: place.file, pos: place.pos };
    sealer.open(u64::from_le_bytes(*nonce), spot, sealed).is_some()
}

/// What stands before a block.
fn frame(block: &[u8]) -> Result<[u8; FRAME]> {
    let len = u32::try_from(block.len()).map_err(|_| Error::Io {
        context: "spilling a block".to_owned(),
        message: format!("{} bytes are too many", block.len()),
    })?;
    let mut bytes = [0; FRAME];
    let (length, sum) = bytes.split_at_mut(4);
    length.copy_from_slice(&len.to_le_bytes());
    sum.copy_from_slice(&crc32fast::hash(block).to_le_bytes());
    Ok(bytes)
}
