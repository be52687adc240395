use std::fs;
use std::path::{Path, PathBuf};

use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;

use super::{Recovery, read_segment, recover, recover_log};
use crate::causal_log::Place;
use crate::determinant::{BlockBuilder, Determinant};
use crate::edge::disk::segment::store::{Folder, Store};
use crate::edge::disk::segment::testing::{AGENT, APP, epoch, record, task, writer};
use crate::edge::disk::segment::{DiskWriter, SegmentRecord, segment_files};
use crate::error::Error;
use crate::id::{AgentId, Epoch, Generation, TaskId};

/// A segment in memory, and where its records start (and the last ends).
struct Sample {
    bytes: Vec<u8>,
    starts: Vec<usize>,
    blocks: Vec<Vec<u8>>,
}

/// A real segment of one task: one record per group.
fn sample() -> Sample {
    let root = tempfile::tempdir().unwrap();
    let writer = writer(root.path());
    let sizes = [1_usize, 300, 17, 2_000, 64, 5];
    let block = |(index, size): (usize, &usize)| vec![u8::try_from(index).unwrap() + 1; *size];
    let blocks: Vec<Vec<u8>> = sizes.iter().enumerate().map(block).collect();
    let (mut offset, mut starts) = (0, Vec::new());
    for block in &blocks {
        let place = writer.submit(record(0, 1, offset, block)).wait().unwrap();
        starts.push(usize::try_from(place.pos).unwrap());
        offset += block.len() as u64;
    }
    let bytes = fs::read(&segment_files(&Folder::at(root.path())).unwrap()[0]).unwrap();
    starts.push(bytes.len());
    Sample { bytes, starts, blocks }
}

/// Puts a file where a segment would lie.
fn plant(root: &Path, bytes: &[u8]) -> PathBuf {
    let dir = root.join("0123456789abcdef").join("batch-7");
    fs::create_dir_all(&dir).unwrap();
    let path = dir.join("00-00.seg");
    fs::write(&path, bytes).unwrap();
    path
}

/// The blocks of the only task found.
fn blocks(found: &Recovery) -> Vec<Bytes> {
    assert!(found.tasks.len() <= 1);
    let all = found.tasks.iter().flat_map(|t| &t.blocks);
    all.map(|block| match &block.place {
        Place::Spilled(place, _) => found.files.read(place).unwrap(),
        Place::Memory(_) => panic!("recovered blocks are on disk"),
    })
    .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_file_cut_anywhere_gives_the_records_before_the_cut(at in any::<prop::sample::Index>()) {
        let (sample, root) = (sample_once(), tempfile::tempdir().unwrap());
        let cut = at.index(sample.bytes.len() + 1);
        plant(root.path(), &sample.bytes[..cut]);
        let found = recover(root.path()).unwrap();
        let whole = sample.starts.iter().skip(1).filter(|end| **end <= cut).count();
        prop_assert_eq!(blocks(&found), &sample.blocks[..whole]);
        let intact = if cut < sample.starts[0] { 0 } else { sample.starts[whole] };
        let torn: Vec<_> = found.torn.iter().map(|t| usize::try_from(t.offset).unwrap()).collect();
        prop_assert_eq!(torn, if intact == cut { vec![] } else { vec![intact] });
    }

    #[test]
    fn a_byte_changed_anywhere_is_told(at in any::<prop::sample::Index>(), with in 1_u8..) {
        let (sample, root) = (sample_once(), tempfile::tempdir().unwrap());
        let mut bytes = sample.bytes.clone();
        let at = at.index(bytes.len());
        bytes[at] ^= with;
        let path = plant(root.path(), &bytes);
        let record = sample.starts.iter().filter(|start| **start <= at).count();
        match (recover(root.path()), record) {
            // In the last group it looks like a crash: the records before it are intact.
            (Ok(found), last) if last == sample.blocks.len() => {
                prop_assert_eq!(blocks(&found), &sample.blocks[..last - 1]);
                prop_assert_eq!(found.torn[0].offset, sample.starts[last - 1] as u64);
            }
            (Err(Error::UnsupportedVersion { .. }), 0) => prop_assert!((4..6).contains(&at)),
            (Err(Error::CorruptSegment { file, offset, .. }), record) => {
                prop_assert_eq!(file, path.display().to_string());
                let start = if record == 0 { 0 } else { sample.starts[record - 1] };
                prop_assert_eq!(offset, start as u64);
            }
            (other, record) => prop_assert!(false, "{other:?} for a change in record {record}"),
        }
    }

    #[test]
    fn any_damage_gives_a_true_prefix_or_an_error(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..40),
        cut in any::<prop::sample::Index>(),
        more in prop::collection::vec(any::<u8>(), 0..60),
    ) {
        let (sample, root) = (sample_once(), tempfile::tempdir().unwrap());
        let mut bytes = sample.bytes[..=cut.index(sample.bytes.len())].to_vec();
        for (at, with) in changes {
            let at = at.index(bytes.len());
            bytes[at] = with;
        }
        bytes.extend(more);
        let path = plant(root.path(), &bytes);
        if let Ok(found) = recover(root.path()) {
            let blocks = blocks(&found);
            prop_assert_eq!(&blocks, &sample.blocks[..blocks.len()]);
        }
        let _refused_or_not = read_segment(&path);
    }

    #[test]
    fn bytes_that_are_no_segment_are_refused(bytes in prop::collection::vec(any::<u8>(), 1..200)) {
        prop_assume!(bytes[0] != b'C' && bytes.iter().take(14).any(|byte| *byte != 0));
        let root = tempfile::tempdir().unwrap();
        let path = plant(root.path(), &bytes);
        let error = read_segment(&path).unwrap_err();
        prop_assert!(matches!(error, Error::CorruptSegment { offset: 0, .. }), "{}", error);
    }
}

fn sample_once() -> &'static Sample {
    static SAMPLE: std::sync::OnceLock<Sample> = std::sync::OnceLock::new();
    SAMPLE.get_or_init(sample)
}

/// Writes records with a writer of their own, as another agent would.
fn write_as(root: &Path, agent: u64, records: impl IntoIterator<Item = SegmentRecord>) {
    let writer = DiskWriter::start(root, AgentId(agent), APP).unwrap();
    for record in records {
        writer.submit(record).wait().unwrap();
    }
}

#[test]
fn the_longest_of_agreeing_copies_is_taken() {
    let root = tempfile::tempdir().unwrap();
    write_as(root.path(), 1, [record(0, 1, 0, b"ab"), record(0, 1, 2, b"cd")]);
    write_as(root.path(), 2, [record(0, 2, 0, b"ab"), record(0, 2, 2, b"cd"), record(0, 2, 4, b"e")]);
    write_as(root.path(), 3, [record(0, 2, 0, b"ab")]);
    let found = recover(root.path()).unwrap();
    assert_eq!(blocks(&found), ["ab", "cd", "e"]);
    assert_eq!(found.tasks[0].generation, Generation(2));
    assert_eq!(found.tasks[0].task, task(0));
    let offsets: Vec<_> = found.tasks[0].blocks.iter().map(|b| (b.offset.0, b.bytes())).collect();
    assert_eq!(offsets, [(0, 2), (2, 2), (4, 1)]);
}

#[test]
fn a_newer_generation_overrules_the_unacknowledged_end_of_an_older_one() {
    let root = tempfile::tempdir().unwrap();
    // The first agent wrote "XX", "YY" and died before it could replicate them.
    let old = [record(0, 1, 0, b"ab"), record(0, 1, 2, b"XX"), record(0, 1, 4, b"YY")];
    write_as(root.path(), 1, old);
    write_as(root.path(), 2, [record(0, 2, 0, b"ab"), record(0, 2, 2, b"c")]);
    assert_eq!(blocks(&recover(root.path()).unwrap()), ["ab", "c"]);
    // A third adopts that and goes on.
    write_as(root.path(), 3, [record(0, 3, 0, b"ab"), record(0, 3, 2, b"c"), record(0, 3, 3, b"d")]);
    assert_eq!(blocks(&recover(root.path()).unwrap()), ["ab", "c", "d"]);
}

#[test]
fn two_logs_of_one_generation_are_an_error() {
    let root = tempfile::tempdir().unwrap();
    write_as(root.path(), 1, [record(0, 1, 0, b"ab"), record(0, 1, 2, b"cd")]);
    write_as(root.path(), 2, [record(0, 1, 0, b"ab"), record(0, 1, 2, b"xy")]);
    let error = recover(root.path()).unwrap_err();
    let Error::CorruptSegment { reason, .. } = &error else { panic!("{error}") };
    assert!(reason.contains("generation 1") && reason.contains(&task(0).to_string()), "{error}");
}

#[test]
fn one_log_is_recovered_whatever_happened_to_other_epochs() {
    let root = tempfile::tempdir().unwrap();
    write_as(root.path(), 1, [record(1, 1, 0, b"xy"), record(0, 1, 0, b"ab"), record(1, 1, 2, b"z")]);
    plant(root.path(), b"not a segment");
    assert!(recover(root.path()).is_err());
    let store: Arc<dyn Store> = Arc::new(Folder::at(root.path()));
    assert_eq!(blocks(&recover_log(&store, &task(0), 0).unwrap()), ["ab"]);
    let unknown = TaskId { epoch: Epoch::Batch(8), ..task(0) };
    assert!(recover_log(&store, &unknown, 0).unwrap().tasks.is_empty());
}

/// Changes a byte of a segment that holds a record of another log, and looks for the log of task 0.
fn looked_for_with(changed: impl Fn(&[u8]) -> usize) -> Result<Vec<Bytes>, Error> {
    let root = tempfile::tempdir().unwrap();
    let long = [b"long ".as_slice(), &[b'.'; 2_000]].concat();
    write_as(root.path(), 1, [record(0, 1, 0, b"ab"), record(1, 1, 0, &long), record(0, 1, 2, b"cd")]);
    let segment = &segment_files(&Folder::at(root.path())).unwrap()[0];
    let mut bytes = fs::read(segment).unwrap();
    let at = changed(&bytes);
    bytes[at] ^= 1;
    fs::write(segment, bytes).unwrap();
    let store: Arc<dyn Store> = Arc::new(Folder::at(root.path()));
    recover_log(&store, &task(0), 0).map(|found| blocks(&found))
}

#[test]
fn of_other_logs_only_whose_they_are_is_read() {
    let block = |bytes: &[u8]| bytes.windows(5).position(|found| found == b"long ").unwrap();
    assert_eq!(looked_for_with(|bytes| block(bytes) + 1_000).unwrap(), ["ab", "cd"]);
    // The last byte before the block: the offset. It is not believed to be another's.
    let damaged = looked_for_with(|bytes| block(bytes) - 1).unwrap_err();
    assert!(matches!(damaged, Error::CorruptSegment { .. }), "{damaged}");
}

#[test]
fn a_folder_that_is_missing_or_holds_other_things_has_no_logs() {
    let root = tempfile::tempdir().unwrap();
    assert!(recover(&root.path().join("missing")).unwrap().tasks.is_empty());
    fs::create_dir_all(root.path().join("offsets").join("batch-1")).unwrap();
    fs::write(root.path().join("metadata"), "spark's").unwrap();
    fs::write(root.path().join("offsets").join("0"), "v1").unwrap();
    fs::write(root.path().join("offsets").join("batch-1").join("x.tmp"), "v1").unwrap();
    let found = recover(root.path()).unwrap();
    assert!(found.tasks.is_empty() && found.torn.is_empty());
}

#[test]
fn a_file_removed_after_recovery_is_an_error_of_reading() {
    let root = tempfile::tempdir().unwrap();
    write_as(root.path(), 1, [record(0, 1, 0, b"ab")]);
    let found = recover(root.path()).unwrap();
    writer(root.path()).drop_epoch_all(&epoch(), 0).unwrap();
    let Place::Spilled(place, _) = &found.tasks[0].blocks[0].place else { panic!("not spilled") };
    assert!(found.files.owns(place));
    assert!(matches!(found.files.read(place), Err(Error::Io { .. })));
}

/// The block of the golden segments' first task.
fn golden_block() -> Bytes {
    let mut block = BlockBuilder::new();
    block.push(&Determinant::Seed { seed: 42 }).unwrap();
    block.push_time(1_000);
    block.push_time(1_500);
    block.push(&Determinant::Call { name: 5, ok: true, value: b"answer" }).unwrap();
    block.finish()
}

/// The golden segments by name, as this version writes them.
fn golden() -> [(&'static str, Vec<u8>); 7] {
    let root = tempfile::tempdir().unwrap();
    let block = golden_block();
    let end = block.len() as u64;
    let records = [record(0, 1, 0, &block), record(1, 1, 0, b"opaque"), record(0, 2, end, &block)];
    write_as(root.path(), AGENT.0, records);
    let whole = fs::read(&segment_files(&Folder::at(root.path())).unwrap()[0]).unwrap();
    let changed = |at: usize, to: u8| {
        let mut bytes = whole.clone();
        bytes[at] = to;
        bytes
    };
    [
        ("whole", whole.clone()),
        ("torn", whole[..whole.len() - 10].to_vec()),
        ("torn_header", whole[..9].to_vec()),
        ("corrupt_record", changed(100, 0xEE)),
        ("corrupt_header", changed(12, whole[12] ^ 1)),
        ("newer_version", changed(4, 5)),
        ("older_version", changed(4, 3)),
    ]
}

fn golden_path(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/segments/v4");
    folder.join(format!("{name}.seg"))
}

#[test]
fn segments_are_still_written_as_version_4_was() {
    for (name, bytes) in golden() {
        let path = golden_path(name);
        if std::env::var_os("CLONOS_BLESS").is_some() {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, &bytes).unwrap();
        }
        let stored = fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        assert!(stored == bytes, "{name}: the format changed without a new version");
    }
}

#[test]
fn golden_segments_are_read_or_refused_by_name() {
    let whole = read_segment(&golden_path("whole")).unwrap();
    assert_eq!((whole.version, whole.records, whole.torn_at), (4, 3, None));
    assert_eq!((whole.agent, whole.app), (Some(AGENT), Some(APP)));
    assert_eq!(whole.query.as_deref(), Some("clicks"));
    let [first, second] = whole.tasks.as_slice() else { panic!("{whole:?}") };
    assert_eq!((first.generation, first.blocks, first.undecodable), (2, 2, 0));
    assert_eq!(first.bytes, 2 * golden_block().len() as u64);
    let counts: Vec<_> = first.determinants.iter().map(|(kind, n)| (*kind, *n)).collect();
    assert_eq!(counts, [("call", 2), ("seed", 2), ("time", 4)]);
    assert_eq!((second.blocks, second.bytes, second.undecodable), (1, 6, 1));

    let torn = read_segment(&golden_path("torn")).unwrap();
    assert_eq!((torn.records, torn.tasks[0].blocks), (2, 1));
    assert!(torn.torn_at.is_some_and(|at| at < torn.bytes));
    let torn = read_segment(&golden_path("torn_header")).unwrap();
    assert_eq!((torn.records, torn.torn_at, torn.agent), (0, Some(0), None));

    let refusal = |name| read_segment(&golden_path(name)).unwrap_err();
    let record = refusal("corrupt_record");
    assert!(matches!(record, Error::CorruptSegment { offset, .. } if offset > 0), "{record}");
    assert!(record.to_string().contains("corrupt_record.seg"), "{record}");
    let header = refusal("corrupt_header");
    assert!(matches!(header, Error::CorruptSegment { offset: 0, .. }), "{header}");
    let (newer, older) = (refusal("newer_version"), refusal("older_version"));
    assert!(matches!(newer, Error::UnsupportedVersion { found: 5, known: 4, .. }), "{newer}");
    assert!(matches!(older, Error::UnsupportedVersion { found: 3, known: 4, .. }), "{older}");
}
