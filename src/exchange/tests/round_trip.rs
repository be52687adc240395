//! Batches through a scatter and the gathers of its channels.

use arrow_array::{NullArray, StructArray};
use arrow_ipc::reader::StreamReader;
use arrow_schema::{DataType, Field};
use arrow_select::concat::concat_batches;
use proptest::prelude::*;

use super::columns::{KINDS, Kind, Table, ids};
use super::*;

/// How a table is sent.
#[derive(Debug, Clone)]
struct Way {
    keys: Vec<usize>,
    partitions: u32,
    compression: Compression,
    round_bytes: usize,
}

prop_compose! {
    fn tables()(
        kinds in prop::collection::vec(prop::sample::select(KINDS.to_vec()), 1..5),
        sizes in prop::collection::vec(
            prop_oneof![4 => 0_usize..20, 3 => 20_usize..300, 1 => 600_usize..1_400],
            0..7,
        ),
        seed in any::<u64>(),
    ) -> Table {
        Table { kinds, sizes, seed }
    }
}

prop_compose! {
    fn ways()(
        keys in prop::collection::vec(0_usize..4, 0..3),
        partitions in 1_u32..=9,
        compressed in any::<bool>(),
        round_bytes in prop_oneof![1_usize..200, 200_usize..20_000, Just(usize::MAX)],
    ) -> Way {
        let compression = if compressed { Compression::Lz4 } else { Compression::None };
        Way { keys, partitions, compression, round_bytes }
    }
}

impl Way {
    /// All rounds; each is led to by a block of its own.
    fn send(&self, table: &Table, batches: Vec<RecordBatch>) -> Vec<Round> {
        let keys = self.keys.iter().map(|key| key % table.kinds.len()).collect();
        let mut scatter = Scatter::new(ScatterOptions {
            keys,
            compression: self.compression,
            round_bytes: self.round_bytes,
            riding_bytes: u64::MAX,
            ..scatter_options(task("up", 0), Some(1), self.partitions)
        });
        let mut piggyback = Piggyback::new("up", Partition(0), 1);
        let mut rounds = Vec::new();
        for batch in batches {
            if scatter.push(batch).unwrap() {
                piggyback.record(&Bytes::from(format!("round {}", scatter.round())));
                rounds.push(scatter.cut(&mut piggyback).unwrap());
            }
        }
        rounds.push(scatter.finish(&mut piggyback).unwrap());
        let again = scatter.finish(&mut piggyback).unwrap_err();
        assert_eq!(again.condition(), "MISUSE");
        rounds
    }

    /// The frames of each channel.
    fn channels(&self, rounds: &[Round]) -> Vec<Vec<Frame>> {
        let mut channels = vec![Vec::new(); self.partitions as usize];
        for round in rounds {
            assert_eq!(round.ends.last().copied().unwrap_or_default(), round.bytes.len());
            assert!(round.channels.is_sorted_by(|a, b| a < b), "one frame for each channel: {round:?}");
            for (channel, bytes) in round.frames() {
                let frame = read(&bytes).unwrap();
                assert_eq!(frame.head.channel, Partition(channel));
                channels[channel as usize].push(frame);
            }
        }
        channels
    }
}

/// What the gather of each channel gives.
fn gathered(way: &Way, rounds: &[Round]) -> Vec<Vec<RecordBatch>> {
    let mut gathers: Vec<_> = (0..way.partitions).map(|_| Gather::new(InMemory::default(), [])).collect();
    let mut out = vec![Vec::new(); gathers.len()];
    for (channel, bytes) in rounds.iter().flat_map(Round::frames) {
        let gather = &mut gathers[channel as usize];
        gather.offer(bytes).unwrap();
        let taken = gather.take().unwrap().expect("a frame came");
        assert!(!taken.replayed);
        assert_eq!(taken.rows as usize, taken.batches.iter().map(RecordBatch::num_rows).sum::<usize>());
        out[channel as usize].extend(taken.batches);
    }
    for gather in &gathers {
        assert_eq!(gather.finish(None).unwrap().len(), 1);
    }
    out
}

fn check_frames(frames: &[Frame]) {
    for (number, frame) in frames.iter().enumerate() {
        assert_eq!(frame.head.sequence as usize, number);
        assert_eq!(frame.opening.is_some(), number == 0);
        assert_eq!(frame.head.closes, number + 1 == frames.len(), "the last frame, and no other, closes");
        assert!(frame.head.closes || frame.head.rows > 0, "a frame without rows before the end");
    }
    assert!(!frames.is_empty());
}

/// The payloads, joined, are one stream of Arrow.
fn check_stream(frames: &[Frame], batches: &[RecordBatch]) {
    let payloads: Vec<u8> = frames.iter().flat_map(|frame| frame.payload.clone()).collect();
    if payloads.is_empty() {
        assert!(batches.is_empty());
        return;
    }
    let read: Vec<_> = StreamReader::try_new(&payloads[..], None).unwrap().map(Result::unwrap).collect();
    assert_eq!(read, batches);
}

fn check_round_trip(way: &Way, table: &Table, batches: Vec<RecordBatch>) {
    let rounds = way.send(table, batches);
    let frames = way.channels(&rounds);
    let out = gathered(way, &rounds);
    let mut seen = Vec::new();
    let mut homes = std::collections::HashMap::new();
    for (channel, (frames, batches)) in frames.iter().zip(&out).enumerate() {
        check_frames(frames);
        check_stream(frames, batches);
        let Some(first) = batches.first() else { continue };
        let all = concat_batches(&first.schema(), batches).unwrap();
        let numbers = ids(&all);
        assert!(numbers.is_sorted_by(|a, b| a < b), "rows of one sender keep their order");
        assert_eq!(all, table.select(&numbers));
        for row in &numbers {
            let row = usize::try_from(*row).unwrap();
            let key: Vec<_> = way.keys.iter().map(|key| table.class(key % table.kinds.len(), row)).collect();
            let home = *homes.entry(key).or_insert(channel);
            assert!(way.keys.is_empty() || home == channel, "equal keys in channels {home} and {channel}");
        }
        if way.keys.is_empty() {
            let partitions = i64::from(way.partitions);
            assert!(numbers.iter().all(|row| row % partitions == channel as i64), "dealt out in turn");
        }
        seen.extend(numbers);
    }
    seen.sort_unstable();
    assert!(seen.iter().copied().eq(0..table.rows() as i64), "each row comes once");
}

fn bytes_of(rounds: &[Round]) -> Vec<(Bytes, Vec<usize>)> {
    rounds.iter().map(|round| (round.bytes.clone(), round.ends.clone())).collect()
}

/// Tables sent as they are and as slices of larger ones; whether the bytes are equal.
fn slices_are_the_same(way: &Way, table: &Table, around: usize) -> bool {
    let whole = bytes_of(&way.send(table, table.batches()));
    let slices = bytes_of(&way.send(table, table.slices(around)));
    whole == slices
}

#[test]
fn what_lies_below_nulls_is_in_no_frame() {
    for (seed, kind) in (0..).zip(KINDS) {
        // Other text below nulls makes another dictionary.
        if kind == Kind::Dictionary {
            continue;
        }
        let table = Table { kinds: vec![kind, Kind::Int], sizes: vec![40, 3_000, 7], seed };
        // The size of a struct counts what is below its nulls.
        let round_bytes = if kind == Kind::Struct { usize::MAX } else { 5_000 };
        let way = Way { keys: vec![0], partitions: 3, compression: Compression::None, round_bytes };
        let plain = bytes_of(&way.send(&table, table.batches()));
        for salt in [1, 2] {
            let batches = table.with_junk(salt);
            assert_eq!(batches, table.batches());
            assert!(bytes_of(&way.send(&table, batches)) == plain, "{kind:?}");
        }
    }
}

#[test]
fn a_large_batch_is_sorted_at_once_and_small_ones_together() {
    for sizes in [vec![20_000], vec![10; 2_000], vec![5_000, 1, 0, 9_000]] {
        let table = Table { kinds: vec![Kind::Int, Kind::Text], sizes, seed: 1 };
        for compression in [Compression::None, Compression::Lz4] {
            let way = Way { keys: vec![0], partitions: 4, compression, round_bytes: 100_000 };
            check_round_trip(&way, &table, table.batches());
        }
    }
}

#[test]
fn an_exchange_of_nothing_has_one_frame_for_each_channel() {
    let table = Table { kinds: vec![Kind::Int], sizes: Vec::new(), seed: 1 };
    let way = Way { keys: vec![], partitions: 5, compression: Compression::None, round_bytes: 1 };
    let rounds = way.send(&table, Vec::new());
    assert_eq!(rounds.len(), 1);
    assert_eq!((rounds[0].channels.as_slice(), rounds[0].payload_bytes), (&[0, 1, 2, 3, 4][..], 0));
}

#[test]
fn a_key_column_that_is_not_there_is_refused() {
    let options = ScatterOptions { keys: vec![3], ..scatter_options(task("up", 0), None, 2) };
    let mut scatter = Scatter::new(options);
    scatter.push(numbers(0..3)).unwrap();
    let refused = scatter.cut(&mut Piggyback::new("up", Partition(0), 1)).unwrap_err();
    assert_eq!(refused.condition(), "MISUSE");
}

/// Ten rows that have no bytes at all: of no column, of a void one, and of a struct of one.
fn without_bytes() -> [RecordBatch; 3] {
    let options = arrow_array::RecordBatchOptions::new().with_row_count(Some(10));
    let none =
        RecordBatch::try_new_with_options(numbers(0..1).project(&[]).unwrap().schema(), vec![], &options);
    let void: ArrayRef = Arc::new(NullArray::new(10));
    let field = Arc::new(Field::new("v", DataType::Null, true));
    let nested: ArrayRef = Arc::new(StructArray::from(vec![(field, void.clone())]));
    [
        none.unwrap(),
        RecordBatch::try_from_iter([("v", void)]).unwrap(),
        RecordBatch::try_from_iter([("s", nested)]).unwrap(),
    ]
}

#[test]
fn rows_without_bytes_arrive_in_each_frame() {
    let table = Table { kinds: vec![Kind::Int], sizes: Vec::new(), seed: 1 };
    for batch in without_bytes() {
        for partitions in [1, 3] {
            let way = Way { keys: vec![], partitions, compression: Compression::None, round_bytes: 1 };
            let rounds = way.send(&table, vec![batch.clone(), batch.clone()]);
            let out = gathered(&way, &rounds);
            assert_eq!(out.iter().flatten().map(RecordBatch::num_rows).sum::<usize>(), 20, "{batch:?}");
        }
    }
}

#[test]
fn slices_of_nested_columns_are_cut_into_the_same_rounds() {
    for kind in [Kind::List, Kind::Map] {
        let table = Table { kinds: vec![kind], sizes: vec![50; 6], seed: 3 };
        let way = Way { keys: vec![], partitions: 2, compression: Compression::None, round_bytes: 4_000 };
        assert!(slices_are_the_same(&way, &table, 500), "{kind:?}");
    }
}

#[test]
fn slices_sent_to_one_partition_give_the_same_bytes() {
    let way = Way { keys: vec![], partitions: 1, compression: Compression::None, round_bytes: 1 };
    let mut differ = Vec::new();
    for (kind, around) in KINDS.into_iter().flat_map(|kind| [8, 11].map(|around| (kind, around))) {
        let table = Table { kinds: vec![kind], sizes: vec![13, 5], seed: 3 };
        if kind != Kind::Dictionary && !slices_are_the_same(&way, &table, around) {
            differ.push((kind, around));
        }
    }
    assert_eq!(differ, []);
}

#[test]
fn a_null_mask_without_nulls_does_not_show_in_the_bytes() {
    let masked = arrow_buffer::NullBuffer::new_valid(20);
    let plain = Int64Array::from_iter_values(0..20);
    let with_mask = Int64Array::new(plain.values().clone(), Some(masked));
    for (partitions, round_bytes) in [(1, 1), (3, 1), (3, 161)] {
        let sent = [plain.clone(), with_mask.clone()].map(|column| {
            let column: ArrayRef = Arc::new(column);
            let batch = RecordBatch::try_from_iter_with_nullable([("n", column, true)]).unwrap();
            let table = Table { kinds: vec![Kind::Int], sizes: vec![], seed: 0 };
            let way = Way { keys: vec![], partitions, compression: Compression::None, round_bytes };
            bytes_of(&way.send(&table, vec![batch]))
        });
        assert_eq!(sent[0], sent[1], "{partitions} partitions, rounds of {round_bytes} bytes");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn what_is_sent_is_taken(table in tables(), way in ways()) {
        check_round_trip(&way, &table, table.batches());
    }

    #[test]
    fn slices_are_taken_like_what_they_are_slices_of(
        table in tables(),
        way in ways(),
        around in 0_usize..70,
    ) {
        check_round_trip(&way, &table, table.slices(around));
    }

    #[test]
    fn the_same_input_gives_the_same_bytes(table in tables(), way in ways()) {
        let first = bytes_of(&way.send(&table, table.batches()));
        prop_assert_eq!(first, bytes_of(&way.send(&table, table.batches())));
    }

    /// Rounds end with each batch here; see above for rounds that end by their bytes.
    #[test]
    fn slices_of_larger_batches_give_the_same_bytes(
        kinds in prop::collection::vec(prop::sample::select(KINDS.to_vec()), 1..5),
        sizes in prop::collection::vec(0_usize..200, 0..7),
        seed in any::<u64>(),
        way in ways(),
        around in 0_usize..70,
    ) {
        let kinds = kinds.into_iter().filter(|kind| *kind != Kind::Dictionary).chain([Kind::Text]).collect();
        let way = Way { partitions: way.partitions + 1, round_bytes: 1, ..way };
        let same = slices_are_the_same(&way, &Table { kinds, sizes, seed }, around);
        prop_assert!(same);
    }
}
