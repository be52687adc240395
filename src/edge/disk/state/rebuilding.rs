//! States as they are at a version, out of their files; and which states there are.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::format::Head;
use super::pages::HEAD_BYTES_MAX;
use super::{StateFolder, names};
use crate::edge::disk::recovery::at_once;
use crate::edge::disk::segment::store::Store;
use crate::error::{Error, Result};
use crate::state::kept::{Base, Chain, Written};
use crate::state::{Advanced, DeltaPart, RangeSet, StateId, StateStore, Version, View, partition_ranges};

impl StateFolder {
    /// Some ranges as they are at a chain's version; all have a base of one version. They are put together in a store
    /// that is empty.
    ///
    /// # Errors
    /// [`Error::StateLost`] for files that are damaged, or do not fit together.
    pub(in crate::edge) fn rebuild(
        &self,
        id: &StateId,
        chain: &Chain,
        (base, ranges): (Version, &RangeSet),
        mut store: StateStore,
    ) -> Result<View> {
        match base {
            Version::NONE => store.begin(id, *ranges, base)?,
            _ => store.fill(id, *ranges, base)?,
        }
        for (epoch, file) in chain.bases.iter().filter(|(epoch, _)| Version(Some(*epoch)) == base) {
            let mut reader = self.base(id, *epoch, file)?;
            while let Some(page) = reader.next()? {
                if ranges.contains(page.range) {
                    store.install(id, &page)?;
                }
            }
        }
        for (epoch, tasks) in chain.epochs.iter().filter(|(epoch, _)| Version(Some(*epoch)) > base) {
            let parts = tasks
                .iter()
                .map(|task| (task, partition_ranges(task.partition, task.partitions).intersection(ranges)));
            let parts: Vec<_> = parts.filter(|(_, of)| !of.is_empty()).collect();
            let readers = self.store.readers();
            // No more than are read at once are in memory, besides what is put together.
            for parts in parts.chunks(readers) {
                let read = at_once(readers, parts, |(task, of)| {
                    let (partition, generation) = (task.partition, task.generation);
                    let delta = self.delta(id, *epoch, task)?.of(of)?;
                    Ok(DeltaPart { partition, generation, ranges: *of, delta })
                })?;
                for part in &read {
                    store.hold(id, part)?;
                }
            }
            let advanced = store.advance(id, &Chain::point(*epoch, tasks))?;
            if advanced != Advanced::Done {
                let what = format!("epoch {epoch} in {} does not follow the one before", self.place(id));
                return Err(Error::StateLost { state: id.to_string(), what });
            }
        }
        let lost = || Error::StateLost { state: id.to_string(), what: "nothing of it was found".into() };
        store.view(id).ok_or_else(lost)
    }
}

/// States in a checkpoint folder, by what their files say of themselves; or why nothing is known of one.
///
/// # Errors
/// [`Error::Io`].
pub(in crate::edge) fn found_states(store: &dyn Store) -> Result<Vec<Result<StateId, String>>> {
    let failed = |path: &Path, e: &io::Error| Error::io(format!("listing {}", path.display()), e);
    let list = |path: &Path| -> Result<Vec<PathBuf>> {
        let found = store.entries(path).map_err(|e| failed(path, &e))?;
        Ok(found.into_iter().map(|entry| entry.path).collect())
    };
    let folders = |path: &Path| -> Result<Vec<PathBuf>> {
        let found = store.entries(path).map_err(|e| failed(path, &e))?.into_iter();
        Ok(found.filter(|entry| entry.is_folder).map(|entry| entry.path).collect())
    };
    let mut found = Vec::new();
    for query in folders(store.root())? {
        for dir in folders(&query.join(names::FOLDER))? {
            let (mut id, mut problem) = (None, None);
            // One file is enough to know whose all are.
            for epoch in folders(&dir)? {
                let mut files = list(&epoch)?;
                files.retain(|file| {
                    let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
                    Written::parse(name).is_some() || Base::parse(name).is_some()
                });
                id = files.iter().find_map(|file| match head(store, file) {
                    Ok(head) => Some(head.id),
                    Err(why) => {
                        problem = Some(format!("{} cannot be read: {why}", file.display()));
                        None
                    }
                });
                if id.is_some() {
                    break;
                }
            }
            match (id, problem) {
                (Some(id), _) => found.push(Ok(id)),
                (None, Some(problem)) => found.push(Err(problem)),
                // It was begun, and nothing was written.
                (None, None) => {}
            }
        }
    }
    Ok(found)
}

/// What a file begins with.
fn head(store: &dyn Store, path: &Path) -> Result<Head, String> {
    let read = |range: Range<u64>, bytes: &mut [u8]| store.stream(path, range)?.read_exact(bytes);
    let mut bytes = vec![0; 12];
    read(0..12, &mut bytes).map_err(|e| e.to_string())?;
    let len = bytes.get(4..8).and_then(|len| len.try_into().ok()).map_or(0, u32::from_le_bytes) as usize;
    if len > HEAD_BYTES_MAX {
        return Err("its head has no end".into());
    }
    bytes.resize(12 + len, 0);
    let end = bytes.len() as u64;
    read(12..end, bytes.get_mut(12..).unwrap_or_default()).map_err(|e| e.to_string())?;
    Head::decode(&bytes).map(|(head, _)| head)
}
