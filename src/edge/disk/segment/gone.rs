//! How much counts of the segments of agents that others have gone on without.
//!
//! ```text
//! <query>/<epoch>/<use>-<agent>-<application>.end
//! ```
//!
//! An agent that is declared dead may be at work still. It is told when it looks for its file (see [`super::alive`]), after
//! it has written: what it wrote was not acknowledged, and stands there all the same. Whoever went on without it has not
//! read it, and may have asked anew; whoever comes third would find both. So the first that reads notes how long the
//! segment was, when the file was removed and before it reads. What lies behind counts for nobody.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, SystemTime};

use super::disk::write_error;
use super::layout::{folders_in, is_segment};
use super::scan::{SegmentScan, Step};
use super::store::{Segment, Store};
use super::{SETTING, layout};
use crate::edge::progress::Progress;
use crate::error::{Error, Result};
use crate::id::EpochKey;

/// Ending of the name.
const END: &str = "end";
/// What stands behind the number: a file that ends without was not written to its end.
const WHOLE: u8 = b'\n';
/// How long whoever writes one may take. Who died while it did has read nothing.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(100);

/// Whether a file says how much of a segment counts, by its name.
pub(in crate::edge::disk) fn is_end(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == END)
}

/// Notes how long segments are of agents that are dead, unless that was done.
///
/// # Errors
/// [`Error::DiskFull`]; [`Error::Io`].
pub(in crate::edge::disk) fn note<'a>(
    store: &dyn Store,
    segments: impl Iterator<Item = &'a PathBuf>,
) -> Result<()> {
    for segment in segments {
        let path = segment.with_extension(END);
        // Whoever looks for one log of many after the other does not read all of them each time.
        if is_noted(store, &path)? {
            continue;
        }
        // One that is gone was committed.
        while let Some(found) = store.segment(segment)? {
            Progress::step();
            let text = format!("{}\n", intact(store, &found)?);
            match store.create(&path, text.as_bytes()) {
                Ok(()) => break,
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists && is_noted(store, &path)? => break,
                // It was removed, and is tried again.
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(write_error(&path, SETTING, &e)),
            }
        }
    }
    Ok(())
}

/// Where the last whole group of records ends: a write that failed behind it may be cut off, and written over. What lies
/// before is on disk afterwards, be it that its writer died before it was. What is damaged is said to be by whoever reads it.
///
/// # Errors
/// [`Error::Io`].
pub(super) fn intact(store: &dyn Store, segment: &Segment) -> Result<u64> {
    if store.numbers_segments() {
        // Of objects, each of which is put whole: there is no need to read them.
        return Ok(segment.len());
    }
    let mut end = 0;
    let scanned = store.scan(segment, None, &mut |piece| {
        let base = piece.base;
        let mut scan = SegmentScan::over(piece)?;
        loop {
            Progress::step();
            if let Step::End = scan.step()? {
                end = base + scan.whole_groups();
                return Ok(());
            }
        }
    });
    match scanned {
        Err(error @ Error::Io { .. }) => {
            // Its writer may have cut off what a failed write had left, since its length was asked for.
            let now = store.segment(&segment.path)?.filter(|now| now.len() < segment.len());
            return now.map_or(Err(error), |now| intact(store, &now));
        }
        // Whoever reads it says what is wrong with it.
        Err(_) => end = segment.len(),
        Ok(_) => {}
    }
    match store.reader(segment).and_then(|raw| raw.sync()) {
        // It was committed since, or is where nothing can be synced.
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidInput) => Ok(end),
        synced => {
            synced.map_err(|e| Error::io(format!("syncing {}", segment.path.display()), &e))?;
            Ok(end)
        }
    }
}

/// Waits for whoever writes a note; false if that one came to nothing.
fn is_noted(store: &dyn Store, path: &Path) -> Result<bool> {
    let failed = |e: &io::Error| Error::io(format!("reading {}", path.display()), e);
    loop {
        // Of several that wait, one removes it.
        let found = store.read(path).and_then(|text| match text.last() {
            Some(&WHOLE) => Ok(None),
            _ => store.modified(path).map(Some),
        });
        let at = match found {
            Ok(None) => return Ok(true),
            Ok(Some(at)) => at,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(e) => return Err(failed(&e)),
        };
        if SystemTime::now().duration_since(at).is_ok_and(|since| since > PATIENCE) {
            return match store.remove(path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => Err(write_error(path, SETTING, &e)),
                _ => Ok(false),
            };
        }
        sleep(PAUSE);
    }
}

/// How many bytes count of each segment of one epoch, or with `claimed` of all that its claim covers; all of those that are
/// not there.
pub(in crate::edge) fn ends(
    store: &dyn Store,
    key: &EpochKey,
    claimed: bool,
) -> Result<HashMap<PathBuf, u64>> {
    let dir = layout::claim_dir(store.root(), key);
    let listing = |e: io::Error| Error::io(format!("listing {}", dir.display()), &e);
    let [epoch, _query] = layout::dirs(store.root(), key);
    let mut dirs = vec![epoch];
    if claimed && !key.is_claimed_alone() {
        dirs = folders_in(store, &dir).map_err(listing)?;
    }
    let mut ends = HashMap::new();
    for dir in dirs {
        for path in ends_in(store, &dir).map_err(listing)? {
            let text = match store.read(&path) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                text => text.map_err(|e| Error::io(format!("reading {}", path.display()), &e))?,
            };
            // Whoever writes it has not read the segment yet.
            let end =
                text.strip_suffix(&[WHOLE]).and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
            if let Some(end) = end {
                ends.insert(path.with_extension(layout::ENDING), end);
            }
        }
    }
    Ok(ends)
}

/// The notes in an epoch's folder.
pub(in crate::edge::disk) fn ends_in(store: &dyn Store, dir: &Path) -> io::Result<Vec<PathBuf>> {
    let found = store.entries(dir)?.into_iter().map(|entry| entry.path);
    Ok(found.filter(|path| is_end(path) && !is_segment(path)).collect())
}

#[cfg(test)]
mod tests {
    use super::super::format::{Payload, SegmentHeader};
    use super::super::store::Folder;
    use super::super::testing::{epoch, record, writer};
    use super::*;
    use crate::edge::disk::recovery::recover_log;
    use crate::id::AgentId;
    use std::sync::Arc;

    #[test]
    fn what_was_written_after_the_note_counts_for_nobody() {
        let root = tempfile::tempdir().unwrap();
        let writer = writer(root.path());
        writer.submit(record(0, 1, 0, b"ab")).wait().unwrap();
        let store: Arc<dyn Store> = Arc::new(Folder::at(root.path()));
        let files = layout::epoch_files(store.as_ref(), &epoch(), 0).unwrap();
        note(store.as_ref(), files.iter()).unwrap();
        writer.submit(record(0, 1, 2, b"cd")).wait().unwrap();
        // Said twice, it is what was said first, and nothing is read for it.
        let progress = Progress::default();
        Progress::count(Some(progress.clone()));
        note(store.as_ref(), files.iter()).unwrap();
        assert_eq!(progress.steps(), 0);
        let found = recover_log(&store, &record(0, 1, 0, b"").task, 0).unwrap();
        assert_eq!(found.tasks[0].blocks.len(), 1);
        // And goes with the epoch.
        writer.drop_epoch_all(&epoch(), 0).unwrap();
        assert!(std::fs::read_dir(root.path()).unwrap().next().is_none(), "nothing is left");
    }

    #[test]
    fn what_was_counted_and_is_damaged_or_missing_is_no_torn_write() {
        let root = tempfile::tempdir().unwrap();
        let writer = writer(root.path());
        writer.submit(record(0, 1, 0, b"ab")).wait().unwrap();
        let store: Arc<dyn Store> = Arc::new(Folder::at(root.path()));
        let files = layout::epoch_files(store.as_ref(), &epoch(), 0).unwrap();
        let whole = std::fs::read(&files[0]).unwrap();
        let recover = || recover_log(&store, &record(0, 1, 0, b"").task, 0);
        let mut damaged = whole.clone();
        *damaged.last_mut().unwrap() ^= 1;
        std::fs::write(&files[0], &damaged).unwrap();
        assert_eq!(recover().unwrap().torn.len(), 1, "nobody knows that it was whole");
        std::fs::write(&files[0], &whole).unwrap();
        note(store.as_ref(), files.iter()).unwrap();
        for found in [&damaged[..], &whole[..whole.len() - 1]] {
            std::fs::write(&files[0], found).unwrap();
            let error = recover().unwrap_err();
            assert!(matches!(error, Error::CorruptSegment { .. }), "{error}");
        }
    }

    #[test]
    fn of_records_that_are_written_at_once_none_counts_before_all_are_there() {
        let root = tempfile::tempdir().unwrap();
        let store = Folder::at(root.path());
        let (path, record) = (root.path().join("1-1-1.seg"), record(0, 1, 0, b"ab"));
        let header = SegmentHeader {
            agent: AgentId(1),
            app: 1,
            query: record.task.query.to_string(),
            epoch: record.task.epoch.clone(),
        };
        let mut sink = store.begin(&path, header.encode().unwrap()).unwrap();
        let payload = Payload::new(&record).unwrap();
        let ends = [1, 3, 2].map(|records| {
            sink.write(&vec![&payload; records]).unwrap();
            std::fs::metadata(&path).unwrap().len()
        });
        let counts = |len: u64| {
            std::fs::File::options().write(true).open(&path).unwrap().set_len(len).unwrap();
            intact(&store, &store.segment(&path).unwrap().unwrap()).unwrap()
        };
        let one = (ends[2] - ends[1]) / 2;
        // All; without some of the last; without all of it; and the second without its last.
        let found = [ends[2], ends[2] - 1, ends[2] - one, ends[1], ends[1] - one].map(counts);
        assert_eq!(found, [ends[2], ends[1], ends[1], ends[1], ends[0]]);
    }

    #[test]
    fn what_was_cut_off_meanwhile_is_no_damage() {
        let root = tempfile::tempdir().unwrap();
        let writer = writer(root.path());
        writer.submit(record(0, 1, 0, b"ab")).wait().unwrap();
        let store = Folder::at(root.path());
        let file = layout::epoch_files(&store, &epoch(), 0).unwrap().remove(0);
        let whole = std::fs::metadata(&file).unwrap().len();
        // A failed write had left something when its length was asked for.
        let open = std::fs::File::options().write(true).open(&file).unwrap();
        open.set_len(whole + 100_000).unwrap();
        let longer = store.segment(&file).unwrap().unwrap();
        open.set_len(whole).unwrap();
        assert_eq!(intact(&store, &longer).unwrap(), whole);
    }

    #[test]
    fn a_note_whose_writer_died_is_written_again() {
        let root = tempfile::tempdir().unwrap();
        let writer = writer(root.path());
        writer.submit(record(0, 1, 0, b"ab")).wait().unwrap();
        let store = Folder::at(root.path());
        let files = layout::epoch_files(&store, &epoch(), 0).unwrap();
        let path = files[0].with_extension(END);
        std::fs::write(&path, b"1").unwrap();
        let long_ago = SystemTime::now() - 2 * PATIENCE;
        std::fs::File::options().write(true).open(&path).unwrap().set_modified(long_ago).unwrap();
        assert!(ends(&store, &epoch(), false).unwrap().is_empty(), "it says nothing");
        note(&store, files.iter()).unwrap();
        let all = ends(&store, &epoch(), true).unwrap();
        assert_eq!(all[&files[0]], std::fs::metadata(&files[0]).unwrap().len());
    }
}
