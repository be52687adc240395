//! A folder that is written under another name, and has its own when all of it is on disk.

use std::fs;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::super::disk::{FileSystem, RawFile};
use super::Gathering;
use super::folder::UNFINISHED;

/// A folder without its name.
pub(super) struct Gathered {
    disk: Arc<dyn FileSystem>,
    path: PathBuf,
    unfinished: PathBuf,
    /// Folders above it that were not there.
    made: usize,
    /// The file that is being written, and its bytes.
    file: Option<(Arc<dyn RawFile>, u64)>,
    is_done: bool,
}

impl Gathered {
    pub(super) fn create(disk: Arc<dyn FileSystem>, path: &Path, number: u64) -> io::Result<Self> {
        check_free(path)?;
        let no_name = || io::Error::new(io::ErrorKind::InvalidInput, "it is no folder's name");
        let name = path.file_name().ok_or_else(no_name)?;
        let unfinished =
            path.with_file_name(format!("{}.{number:016x}.{UNFINISHED}", name.to_string_lossy()));
        let made = above(path).take_while(|folder| !folder.exists()).count();
        fs::create_dir_all(&unfinished)?;
        Ok(Self { disk, path: path.to_owned(), unfinished, made, file: None, is_done: false })
    }

    fn end(&mut self) -> io::Result<()> {
        self.file.take().map_or(Ok(()), |(raw, _)| raw.sync())
    }
}

impl Gathering for Gathered {
    fn number(&self) -> Option<u64> {
        None
    }

    fn begin(&mut self, name: &str) -> io::Result<()> {
        self.end()?;
        self.file = Some((self.disk.create(&self.unfinished.join(name), 0o666)?, 0));
        Ok(())
    }

    fn push(&mut self, bytes: &[u8]) -> io::Result<()> {
        let (raw, end) = self.file.as_mut().ok_or(io::ErrorKind::InvalidInput)?;
        raw.write_at(&mut [IoSlice::new(bytes)], *end)?;
        *end += bytes.len() as u64;
        Ok(())
    }

    fn finish(mut self: Box<Self>, name: &str, content: &[u8]) -> io::Result<()> {
        self.begin(name)?;
        self.push(content)?;
        self.end()?;
        self.disk.sync_dir(&self.unfinished)?;
        check_free(&self.path)?;
        fs::rename(&self.unfinished, &self.path)?;
        self.is_done = true;
        above(&self.path).take(self.made + 1).try_for_each(|folder| self.disk.sync_dir(folder))
    }
}

impl Drop for Gathered {
    fn drop(&mut self) {
        if !self.is_done {
            let _rubbish = fs::remove_dir_all(&self.unfinished);
        }
    }
}

/// The folders above a path, the nearest first.
fn above(path: &Path) -> impl Iterator<Item = &Path> {
    let here = |folder: &Path| folder.as_os_str().is_empty();
    path.ancestors().skip(1).map(move |folder| if here(folder) { Path::new(".") } else { folder })
}

/// That nothing is at a path.
fn check_free(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(_) => Err(io::ErrorKind::AlreadyExists.into()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e),
    }
}
