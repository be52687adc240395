//! The file system as the writers need it: a trait, so that tests can let it fail.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::causal_log::SpillRef;
use crate::error::{Error, Result};

/// Pieces that one `pwritev` takes (`IOV_MAX` on Linux).
const PIECES_MAX: usize = 1024;

/// An open file.
pub trait RawFile: Send + Sync {
    /// Writes all pieces from `offset` on. After an error any part may have been written.
    fn write_at(&self, pieces: &mut [IoSlice<'_>], offset: u64) -> io::Result<()>;
    /// Fills `buffer` from `offset` on.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
    /// Cuts the file to `len` bytes.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Returns when all that was written, and the file's length, is on disk. After an error the
    /// file must not be synced again: the kernel forgets what it could not write.
    fn sync(&self) -> io::Result<()>;
}

/// A file system.
pub trait FileSystem: Send + Sync {
    /// Creates a file that must not exist yet.
    fn create(&self, path: &Path, mode: u32) -> io::Result<Arc<dyn RawFile>>;
    /// Unlinks a file; one that is gone already is no error.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Returns when the names in a folder are on disk.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// Gives a file another name, which must not be there yet.
    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        match std::fs::hard_link(from, to) {
            // Over a network the answer to a request may be lost, and this be that to its repetition.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists && std::fs::metadata(from)?.nlink() > 1 => {
                Ok(())
            }
            linked => linked,
        }
    }
}

/// The file system of the machine.
#[derive(Debug, Clone, Copy)]
pub struct RealDisk;

impl FileSystem for RealDisk {
    fn create(&self, path: &Path, mode: u32) -> io::Result<Arc<dyn RawFile>> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).mode(mode).open(path)?;
        Ok(Arc::new(file))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        match std::fs::remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }
}

impl RawFile for File {
    fn write_at(&self, mut pieces: &mut [IoSlice<'_>], mut offset: u64) -> io::Result<()> {
        // Drops leading empty pieces, of which pwritev would write 0 bytes.
        IoSlice::advance_slices(&mut pieces, 0);
        while !pieces.is_empty() {
            let some = pieces.get(..PIECES_MAX).unwrap_or(pieces);
            match rustix::io::pwritev(self, some, offset) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    offset += written as u64;
                    IoSlice::advance_slices(&mut pieces, written);
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_exact_at(buffer, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.set_len(len)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}

/// An open file and where it is, or was.
#[derive(Clone)]
pub(in crate::edge) struct OpenFile {
    /// For messages.
    pub(in crate::edge) path: PathBuf,
    /// The file.
    pub(in crate::edge) raw: Arc<dyn RawFile>,
}

/// The open files that readers may be sent to, by the number that a [`SpillRef`] names.
#[derive(Default)]
pub(in crate::edge) struct FileTable {
    files: RwLock<HashMap<u64, OpenFile>>,
}

impl FileTable {
    /// A number for a file, never given twice in this process: so a reference finds its owner.
    pub(in crate::edge) fn next_id() -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        NEXT.fetch_add(1, Ordering::Relaxed)
    }

    /// Lets readers find `file`.
    pub(in crate::edge) fn insert(&self, id: u64, file: OpenFile) {
        self.files.write().unwrap_or_else(PoisonError::into_inner).insert(id, file);
    }

    /// Forgets a file. Readers that have it already keep it open until they are done.
    pub(in crate::edge) fn remove(&self, id: u64) {
        self.files.write().unwrap_or_else(PoisonError::into_inner).remove(&id);
    }

    /// Whether the file of `place` is one of these.
    pub(in crate::edge) fn owns(&self, place: &SpillRef) -> bool {
        self.files.read().unwrap_or_else(PoisonError::into_inner).contains_key(&place.file)
    }

    /// The file of `place`.
    ///
    /// # Errors
    /// [`Error::Io`] (not found) if it was dropped with its epoch.
    pub(in crate::edge) fn get(&self, place: &SpillRef) -> Result<OpenFile> {
        let files = self.files.read().unwrap_or_else(PoisonError::into_inner);
        files.get(&place.file).cloned().ok_or_else(|| {
            let context = format!("reading a spilled block from file {}", place.file);
            Error::Io { context, message: "its epoch was dropped".to_owned() }
        })
    }
}

/// An error of writing below the path that `setting` names: a full disk is told from the rest.
pub(in crate::edge) fn write_error(path: &Path, setting: &str, source: &io::Error) -> Error {
    match source.kind() {
        // The second is a user's or project's quota: to the writer the same.
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            Error::DiskFull { path: path.display().to_string(), setting: setting.to_owned() }
        }
        _ => Error::io(format!("writing {}", path.display()), source),
    }
}
