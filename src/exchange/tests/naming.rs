//! Logs that are too large to ride: frames name them, and bring no more than their beginning.

use proptest::prelude::*;

use super::*;

const CHANNELS: usize = 3;

/// What each channel's deltas bring of the log of a task that records `blocks`, one before each round.
fn sent(blocks: &[Bytes], room: u64) -> (Piggyback, Vec<Vec<Bytes>>) {
    let mut piggyback = Piggyback::new("score", Partition(3), 1).with_room(CHANNELS as u32, room);
    let mut cursors = [Cursor::default(); CHANNELS];
    let mut brought = vec![Vec::new(); CHANNELS];
    for (round, block) in blocks.iter().enumerate() {
        piggyback.record(block);
        // Not each round has rows for all; the last does.
        for (channel, cursor) in cursors.iter_mut().enumerate() {
            if round % CHANNELS == channel || round + 1 == blocks.len() {
                brought[channel].extend(piggyback.delta(cursor).into_iter().flat_map(|group| group.blocks));
            }
        }
    }
    (piggyback, brought)
}

proptest! {
    #[test]
    fn no_more_rides_than_there_is_room_for_and_without_gaps(
        sizes in prop::collection::vec(1_usize..40, 0..20),
        room in 0_u64..2_000,
    ) {
        let blocks: Vec<Bytes> = (0..).zip(&sizes).map(|(n, size)| Bytes::from(vec![n; *size])).collect();
        let (piggyback, brought) = sent(&blocks, room);
        let riding: usize = brought.iter().flatten().map(Bytes::len).sum();
        prop_assert!(riding as u64 <= room);
        for channel in &brought {
            prop_assert_eq!(channel, &blocks[..channel.len()], "the beginning of the log");
            prop_assert_eq!(channel.len() < blocks.len(), piggyback.is_named());
        }
        let whole = blocks.iter().fold(LogVersion::default(), |version, block| version.after(block));
        prop_assert_eq!(piggyback.version(), whole, "it stands for what is not brought, too");
    }
}

#[test]
fn what_carries_nothing_names_nothing() {
    let mut piggyback = Piggyback::new("score", Partition(3), 0).with_room(3, 0);
    piggyback.record(&Bytes::from_static(b"own"));
    assert!(!piggyback.is_named());
}

#[test]
fn what_is_not_sent_on_is_absorbed_all_the_same() {
    let log = |partition| Group {
        operator: "up".into(),
        partition: Partition(partition),
        hops: 1,
        from: LogOffset::START,
        blocks: vec![Bytes::from_static(b"0123456789")],
    };
    let mut piggyback = Piggyback::new("score", Partition(3), 2).with_room(3, 70);
    for partition in 0..4 {
        assert_eq!(piggyback.absorb(&log(partition)).unwrap(), Some(log(partition)));
    }
    let sent: Vec<_> =
        piggyback.delta(&mut Cursor::default()).iter().map(|group| group.partition.0).collect();
    assert_eq!(sent, [0, 1], "thirty bytes each on three channels");
    assert!(!piggyback.is_named(), "its own log still rides");
}

/// The frames of a sender whose log rides as far as there is room.
fn frames(room: u64) -> Vec<Bytes> {
    let options = ScatterOptions { riding_bytes: room, ..scatter_options(task("up", 0), Some(1), 1) };
    let mut piggyback = Piggyback::new("up", Partition(0), 1).with_room(1, room);
    let mut scatter = Scatter::new(options);
    let mut frames = Vec::new();
    for block in [&b"first"[..], b"second", b"third"] {
        piggyback.record(&Bytes::copy_from_slice(block));
        scatter.push(numbers([1, 2])).unwrap();
        frames.extend(scatter.cut(&mut piggyback).unwrap().frames().map(|(_, frame)| frame));
    }
    frames.extend(scatter.finish(&mut piggyback).unwrap().frames().map(|(_, frame)| frame));
    frames
}

#[test]
fn a_consumer_takes_frames_that_name_their_log() {
    for (room, brought) in [(0, 0), (5, 5), (12, 11), (100, 16)] {
        let gather = Gather::new(InMemory::default(), Vec::new());
        let mut stage = Stage::new(&task("down", 0), 1, Some(gather), None, None, &[]);
        let (mut absorbed, mut rows) = (0, Vec::new());
        for frame in frames(room) {
            assert_eq!(read(&frame).unwrap().head.named, brought < 16 && frame_is_behind(&frame, brought));
            stage.offer(frame).unwrap();
            let input = stage.take(None).unwrap().unwrap();
            rows.extend(values(&input.batches));
            absorbed += input.absorb.iter().flat_map(|group| &group.blocks).map(Bytes::len).sum::<usize>();
        }
        assert_eq!((absorbed, rows.len()), (brought, 6), "room for {room} bytes");
        let used = stage.end_input(None).unwrap();
        // Whether a log rides or is named, it is the same log.
        assert_eq!(used, other_used());
    }
}

/// Whether more led to a frame than the first `brought` bytes of the log.
fn frame_is_behind(frame: &Bytes, brought: usize) -> bool {
    let sequence = read(frame).unwrap().head.sequence as usize;
    [5, 11, 16, 16][sequence] > brought
}

fn other_used() -> Option<(String, u64)> {
    let gather = Gather::new(InMemory::default(), Vec::new());
    let mut stage = Stage::new(&task("down", 0), 1, Some(gather), None, None, &[]);
    for frame in frames(u64::MAX) {
        stage.offer(frame).unwrap();
        stage.take(None).unwrap();
    }
    stage.end_input(None).unwrap()
}
