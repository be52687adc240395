//! What the targets share: checksums made right again after a mutation, so that what they guard is
//! explored too, and what must hold of everything that decodes.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::LazyLock;

use bytes::Bytes;
use clonos::determinant::{BLOCK_HEADER_BYTES, BlockBuilder, BlockReader, Determinant};
use clonos::edge::disk::recovery::read_segment;
use clonos::exchange::{Gather, InMemory};
use clonos::frame::{HEAD_BYTES, decode_groups, read, read_head};

/// Bytes of a segment's header before its body.
const SEGMENT_FIXED: usize = 14;
/// Bytes of a record before its payload.
const RECORD_FIXED: usize = 24;
/// Results of more rows than this are not written again: they may be 12 bytes that stand for 512 MiB.
const ROWS_MAX: usize = 1 << 16;

/// Gives `block` a header that fits its body; all else, the count included, stays as it is.
#[must_use]
pub fn with_block_sums(block: &[u8]) -> Option<Bytes> {
    let mut block = block.to_vec();
    let (header, body) = block.split_first_chunk_mut::<BLOCK_HEADER_BYTES>()?;
    header[..4].copy_from_slice(b"CB\x01\x00");
    header[4..8].copy_from_slice(&u32::try_from(body.len()).ok()?.to_le_bytes());
    let mut sum = crc32fast::Hasher::new();
    sum.update(&header[3..4]);
    sum.update(&header[8..12]);
    sum.update(body);
    header[12..].copy_from_slice(&sum.finalize().to_le_bytes());
    Some(block.into())
}

/// Gives `segment` marks, lengths that end within it, and checksums that fit.
#[must_use]
pub fn with_segment_sums(segment: &[u8]) -> Option<Vec<u8>> {
    let mut segment = segment.to_vec();
    let (fixed, rest) = segment.split_first_chunk_mut::<SEGMENT_FIXED>()?;
    fixed[..6].copy_from_slice(b"CLSG\x01\x00");
    let (body, mut rest) = rest.split_at_mut(within(&mut fixed[6..10], rest.len()));
    fixed[10..].copy_from_slice(&crc32fast::hash(body).to_le_bytes());
    while let Some((frame, after)) = rest.split_first_chunk_mut::<RECORD_FIXED>() {
        frame[..4].copy_from_slice(b"\xC1REC");
        let len = within(&mut frame[4..8], after.len());
        let (payload, after) = after.split_at_mut(len);
        frame[8..12].copy_from_slice(&crc32fast::hash(payload).to_le_bytes());
        let sum = crc32fast::hash(&frame[..20]);
        frame[20..].copy_from_slice(&sum.to_le_bytes());
        rest = after;
    }
    Some(segment)
}

/// The length in `field`, made smaller if there are only `most` bytes.
fn within(field: &mut [u8], most: usize) -> usize {
    let stated = field.iter().rev().fold(0, |len, byte| len << 8 | usize::from(*byte));
    let len = stated.min(most);
    field.copy_from_slice(&(len as u32).to_le_bytes());
    len
}

/// Reads all of a block.
///
/// # Panics
/// If it gives more than it counts, or if it cannot be written and read again as the same.
pub fn check_block(block: &Bytes) {
    let Ok(reader) = BlockReader::new(block) else { return };
    let [.., c0, c1, c2, c3] = block[..12] else { return };
    let count = u32::from_le_bytes([c0, c1, c2, c3]) as usize;
    let read: Vec<_> = reader.take(count.saturating_add(2)).collect();
    assert!(read.len() <= count + 1, "{} determinants of {count}", read.len());
    let Ok(read) = read.into_iter().collect::<Result<Vec<_>, _>>() else { return };
    let many = |d: &Determinant<'_>| matches!(d, Determinant::Results { fingerprints, .. } if fingerprints.len() > ROWS_MAX);
    if read.iter().any(many) {
        return;
    }
    // The first time may differ from the block: varints may be longer than they need to be.
    let again = write(&read);
    let reread: Vec<_> =
        BlockReader::new(&again).expect("just written").map(|d| d.expect("just written")).collect();
    assert_eq!(write(&reread), again);
}

fn write(determinants: &[Determinant<'_>]) -> Bytes {
    let mut builder = BlockBuilder::new();
    for determinant in determinants {
        builder.push(determinant).expect("it was read");
    }
    builder.finish()
}

/// Reads `bytes` as a segment file.
///
/// # Panics
/// If no file can be made or written.
pub fn read_as_segment(bytes: &[u8]) {
    static FILE: LazyLock<File> = LazyLock::new(nameless_file);
    FILE.set_len(0).and_then(|()| FILE.write_all_at(bytes, 0)).expect("a file in memory");
    let path = format!("/proc/self/fd/{}", FILE.as_raw_fd());
    let _ = read_segment(Path::new(&path));
}

/// A file without a name, which nobody has to remove; in memory where the system has that.
fn nameless_file() -> File {
    let memory = Path::new("/dev/shm");
    let folder = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    let path = folder.join(format!("clonos-fuzz-{}", std::process::id()));
    let file = File::create(&path).expect("a folder to write to");
    std::fs::remove_file(path).expect("the file just made");
    file
}

/// Gives `frame` lengths that end within it, and checksums that fit.
#[must_use]
pub fn with_frame_sums(frame: &[u8]) -> Option<Vec<u8>> {
    let mut frame = frame.to_vec();
    let (head, rest) = frame.split_first_chunk_mut::<HEAD_BYTES>()?;
    head[..5].copy_from_slice(b"CLFR\x01");
    head[5] &= 3;
    head[6..8].fill(0);
    if head[5] & 1 == 0 {
        head[40..44].fill(0);
    }
    let whole = rest.len() & !7;
    let before = within(&mut head[40..44], whole);
    let delta = within(&mut head[44..48], whole - before);
    let payload = whole - (before + delta).next_multiple_of(8).min(whole);
    head[48..52].copy_from_slice(&(payload as u32).to_le_bytes());
    head[52..56].copy_from_slice(&crc32fast::hash(&rest[..whole]).to_le_bytes());
    head[56..60].fill(0);
    let sum = crc32fast::hash(&head[..60]);
    head[60..].copy_from_slice(&sum.to_le_bytes());
    frame.truncate(HEAD_BYTES + whole);
    Some(frame)
}

/// Reads `bytes` as a frame, its delta too, and takes it in as a consumer would.
pub fn check_frame(bytes: &[u8]) {
    let bytes = Bytes::copy_from_slice(bytes);
    if let Ok(frame) = read(&bytes) {
        assert_eq!(read_head(&bytes).expect("the whole frame was read"), frame.head);
        // Errors are what is wanted.
        let _ = decode_groups(&frame.delta);
    }
    let mut gather = Gather::new(InMemory::default(), []);
    if gather.offer(bytes).is_ok() {
        let _ = gather.take();
        let _ = gather.finish(Some(1));
    }
}

/// The fuzzer's own hook ends the process at every panic, also at Arrow's, which decoding catches. A panic
/// that nobody catches still ends it, further out.
pub fn let_panics_be_caught() {
    std::panic::set_hook(Box::new(|panic| {
        let by_arrow = panic.location().is_some_and(|at| at.file().contains("/arrow-"));
        if !by_arrow {
            eprintln!("{panic}");
        }
    }));
}
