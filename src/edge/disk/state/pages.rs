//! Bases: ranges as they were, page by page.

use std::io::{self, BufReader, Read};
use std::path::PathBuf;

use bytes::Bytes;

use super::format::{Head, Kind};
use super::{File, StateFolder, damaged, unread};
use crate::error::{Error, Result};
use crate::state::kept::Base;
use crate::state::{Entries, Page, Range, RangeSet, StateId, Version, View};

/// Bytes of a page, about.
const PAGE_BYTES: usize = 1 << 20;
/// Bytes that are read ahead.
const BUFFER_BYTES: usize = 64 << 10;
/// Bytes before a page: its length and its checksum.
const FRAME: usize = 8;
/// Bytes of a page before its entries: the clock, and the range.
const PAGE_HEAD: usize = 8 + 1;
/// A head is never longer: it holds two names and a catalog.
pub(super) const HEAD_BYTES_MAX: usize = 64 << 20;

/// Writes ranges of a view.
pub(super) fn write(file: &mut File, id: &StateId, epoch: u64, ranges: &RangeSet, view: &View) -> Result<()> {
    let mut has_head = false;
    let due_ms = view.next_due()?;
    for range in ranges.iter() {
        let mut from = None;
        loop {
            let page = view.page(range, from.as_ref(), PAGE_BYTES)?;
            if !has_head {
                let catalog = page.catalog.clone().unwrap_or_default();
                file.push(&Head::of_base(id, epoch, catalog, due_ms).encode()?)?;
                has_head = true;
            }
            file.push(&framed(&page))?;
            from = page.next;
            if from.is_none() {
                break;
            }
        }
    }
    file.push(&[0; FRAME])
}

/// A page as it stands in a file.
pub(in crate::edge::disk) fn framed(page: &Page) -> Vec<u8> {
    let entries = page.entries.as_bytes();
    let mut bytes = Vec::with_capacity(FRAME + PAGE_HEAD + entries.len());
    bytes.resize(FRAME, 0);
    bytes.extend_from_slice(&page.now_ms.to_le_bytes());
    bytes.push(page.range.0);
    bytes.extend_from_slice(entries);
    let (frame, body) = bytes.split_at_mut(FRAME);
    let (len, sum) = frame.split_at_mut(4);
    len.copy_from_slice(&u32::try_from(body.len()).unwrap_or(u32::MAX).to_le_bytes());
    sum.copy_from_slice(&crc32fast::hash(body).to_le_bytes());
    bytes
}

/// Reads the next page of a file, which is at this version and has this catalog; none at its end.
///
/// # Errors
/// `InvalidData` if it is damaged, `UnexpectedEof` if the file ends in it.
pub(in crate::edge::disk) fn read_page(
    file: &mut impl Read,
    version: Version,
    catalog: &Bytes,
) -> io::Result<Option<Page>> {
    let wrong = |why: &str| Err(io::Error::new(io::ErrorKind::InvalidData, why));
    let mut frame = [0; FRAME];
    file.read_exact(&mut frame)?;
    let [l0, l1, l2, l3, sum @ ..] = frame;
    let len = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
    if len == 0 {
        return Ok(None);
    }
    let mut body = Vec::new();
    let read = file.take(len as u64).read_to_end(&mut body)?;
    if read < len {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "a page is cut off"));
    }
    if crc32fast::hash(&body) != u32::from_le_bytes(sum) {
        return wrong("a checksum does not fit");
    }
    let body = Bytes::from(body);
    let (Some(now_ms), Some(range)) = (body.first_chunk::<8>(), body.get(8)) else {
        return wrong("a page has nothing in it");
    };
    Ok(Some(Page {
        range: Range(*range),
        version,
        now_ms: i64::from_le_bytes(*now_ms),
        catalog: Some(catalog.clone()).filter(|catalog| !catalog.is_empty()),
        entries: Entries::from_bytes(body.slice(PAGE_HEAD..)),
        next: None,
    }))
}

/// A base that is being read.
pub(in crate::edge) struct BaseReader {
    id: StateId,
    path: PathBuf,
    file: BufReader<Box<dyn Read + Send>>,
    version: Version,
    catalog: Bytes,
    due_ms: Option<i64>,
}

impl StateFolder {
    /// Begins to read a base.
    ///
    /// # Errors
    /// [`Error::StateLost`] if it is not there, or damaged; [`Error::Io`].
    pub(in crate::edge) fn base(&self, id: &StateId, epoch: u64, base: &Base) -> Result<BaseReader> {
        let path = self.dir(id).join(epoch.to_string()).join(base.to_string());
        self.open(id, path, Kind::Base, epoch)
    }

    /// Opens a file of state and reads what it begins with.
    pub(super) fn open(&self, id: &StateId, path: PathBuf, kind: Kind, epoch: u64) -> Result<BaseReader> {
        let file = self.store.stream(&path, 0..u64::MAX).map_err(|e| unread(id, &path, &e))?;
        let mut reader = BaseReader {
            id: id.clone(),
            path,
            file: BufReader::with_capacity(BUFFER_BYTES, file),
            version: Version(Some(epoch)),
            catalog: Bytes::new(),
            due_ms: None,
        };
        let mut head = vec![0; 12];
        reader.fill(&mut head)?;
        let len = head.get(4..8).and_then(|len| len.try_into().ok()).map_or(0, u32::from_le_bytes) as usize;
        if len > HEAD_BYTES_MAX {
            return Err(reader.damaged("its head has no end"));
        }
        let mut rest = vec![0; len];
        reader.fill(&mut rest)?;
        head.extend_from_slice(&rest);
        let (head, _) = Head::decode(&head).map_err(|why| reader.damaged(&why))?;
        head.check(kind, id, epoch).map_err(|why| reader.damaged(&why))?;
        reader.catalog = head.catalog;
        reader.due_ms = head.due_ms;
        Ok(reader)
    }
}

impl BaseReader {
    /// What the operator said of its variables.
    pub(in crate::edge) const fn catalog(&self) -> &Bytes {
        &self.catalog
    }

    /// When the first timer is due.
    pub(in crate::edge) const fn due_ms(&self) -> Option<i64> {
        self.due_ms
    }

    /// The next page; none at the end. Which page is a range's last is not known: `next` is always some place.
    ///
    /// # Errors
    /// [`Error::StateLost`] if the file is damaged; [`Error::Io`].
    pub(in crate::edge) fn next(&mut self) -> Result<Option<Page>> {
        let page = read_page(&mut self.file, self.version, &self.catalog);
        page.map_err(|e| unread(&self.id, &self.path, &e))
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<()> {
        self.file.read_exact(bytes).map_err(|e| unread(&self.id, &self.path, &e))
    }

    fn damaged(&self, why: &str) -> Error {
        damaged(&self.id, &self.path, why)
    }
}
