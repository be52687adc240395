//! A disk that fills up, tears what is written, and fails to sync, when a story says so.

use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};

use clonos::edge::disk::segment::{FileSystem, RawFile, RealDisk};

use crate::dice::Dice;

const IO_ERROR: i32 = 5;
const NO_SPACE: i32 = 28;

/// What goes wrong next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// There is room for so many bytes more, and none behind them until somebody makes some.
    Full { left: u64 },
    /// As that, and what a failed write has left cannot be cut off.
    Stuck { left: u64 },
    /// One sync of a file fails, and those after it succeed without what it should have written: it is on disk or not.
    Unsynced { kept: bool },
    /// One sync of a folder fails.
    Unnamed,
}

impl Fault {
    pub(crate) fn drawn(dice: &mut Dice) -> Self {
        let left = dice.below(3_000) as u64;
        match dice.below(6) {
            0..=2 => Self::Full { left },
            3 => Self::Stuck { left },
            4 => Self::Unsynced { kept: dice.chance(50) },
            _ => Self::Unnamed,
        }
    }

    /// Whether all is well again once there is room.
    pub(crate) const fn passes(self) -> bool {
        matches!(self, Self::Full { .. })
    }
}

#[derive(Debug, Default)]
struct State {
    next: Option<Fault>,
    met: Option<Fault>,
}

/// The machine's file system with faults, for all agents of one life.
#[derive(Debug, Default, Clone)]
pub(crate) struct Faults(Arc<Mutex<State>>);

impl Faults {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    pub(crate) fn arm(&self, fault: Fault) {
        self.state().next = Some(fault);
    }

    /// The one that somebody ran into since the last time that this was called. What was to come does not come.
    pub(crate) fn mend(&self) -> Option<Fault> {
        let mut state = self.state();
        state.next = None;
        state.met.take()
    }

    /// Runs into the next fault if it is one that `is_it` knows.
    fn meet(&self, is_it: impl Fn(Fault) -> bool) -> Option<Fault> {
        let mut state = self.state();
        let fault = state.next.filter(|fault| is_it(*fault))?;
        state.met = Some(fault);
        // Without room it stays.
        if matches!(fault, Fault::Unsynced { .. } | Fault::Unnamed) {
            state.next = None;
        }
        Some(fault)
    }

    /// How many of so many bytes can be written.
    fn room_for(&self, bytes: u64) -> u64 {
        let mut state = self.state();
        let room = match &mut state.next {
            Some(Fault::Full { left } | Fault::Stuck { left }) => {
                let room = bytes.min(*left);
                *left -= room;
                room
            }
            _ => bytes,
        };
        if room < bytes {
            state.met = state.next;
        }
        room
    }
}

impl FileSystem for Faults {
    fn create(&self, path: &Path, mode: u32) -> io::Result<Arc<dyn RawFile>> {
        let raw = RealDisk.create(path, mode)?;
        Ok(Arc::new(File { raw, synced: AtomicU64::new(0), end: AtomicU64::new(0), faults: self.clone() }))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        RealDisk.remove(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        match self.meet(|fault| fault == Fault::Unnamed) {
            Some(_) => Err(io::Error::from_raw_os_error(IO_ERROR)),
            None => RealDisk.sync_dir(dir),
        }
    }
}

struct File {
    raw: Arc<dyn RawFile>,
    /// Bytes that are on disk, and bytes that were written.
    synced: AtomicU64,
    end: AtomicU64,
    faults: Faults,
}

impl RawFile for File {
    fn write_at(&self, pieces: &mut [IoSlice<'_>], offset: u64) -> io::Result<()> {
        let mut all: Vec<u8> = pieces.iter().flat_map(|piece| piece.iter().copied()).collect();
        let wanted = all.len();
        all.truncate(self.faults.room_for(wanted as u64) as usize);
        self.raw.write_at(&mut [IoSlice::new(&all)], offset)?;
        self.end.fetch_max(offset + all.len() as u64, Relaxed);
        if all.len() < wanted { Err(io::Error::from_raw_os_error(NO_SPACE)) } else { Ok(()) }
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.raw.read_at(buffer, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let is_stuck = |fault| matches!(fault, Fault::Stuck { left: 0 });
        match self.faults.meet(is_stuck) {
            Some(_) => Err(io::Error::from_raw_os_error(IO_ERROR)),
            None => {
                self.raw.set_len(len)?;
                self.end.store(len, Relaxed);
                Ok(())
            }
        }
    }

    fn sync(&self) -> io::Result<()> {
        match self.faults.meet(|fault| matches!(fault, Fault::Unsynced { .. })) {
            Some(Fault::Unsynced { kept: false }) => {
                self.raw.set_len(self.synced.load(Relaxed))?;
                Err(io::Error::from_raw_os_error(IO_ERROR))
            }
            Some(_) => Err(io::Error::from_raw_os_error(IO_ERROR)),
            None => {
                self.raw.sync()?;
                self.synced.store(self.end.load(Relaxed), Relaxed);
                Ok(())
            }
        }
    }
}
