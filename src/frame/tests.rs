//! Frames: what goes in comes out, and no bytes are taken for a frame that is none.

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::error::Error;
use crate::id::{Epoch, LogOffset, Partition, TaskId};

const HEAD: Head = Head {
    task: 0x0123_4567_89ab_cdef,
    partition: Partition(3),
    channel: Partition(u32::MAX),
    sequence: 7,
    rows: 1_000,
    log: LogVersion(u64::MAX - 1),
    named: false,
    closes: false,
};

fn opening(query: &str, tasks: Option<u32>) -> Opening {
    let task = TaskId {
        query: query.into(),
        operator: "score".into(),
        epoch: Epoch::Batch(7),
        partition: Partition(3),
    };
    Opening { task, tasks }
}

fn group(operator: &str, from: u64, blocks: &[Vec<u8>]) -> Group {
    Group {
        operator: operator.to_owned(),
        partition: Partition(1),
        hops: 1,
        from: LogOffset(from),
        blocks: blocks.iter().map(|block| Bytes::copy_from_slice(block)).collect(),
    }
}

/// What a frame is made of.
#[derive(Debug, Clone)]
struct Parts {
    head: Head,
    opening: Option<Opening>,
    groups: Vec<Group>,
    payload: Vec<u8>,
}

impl Parts {
    fn seal_into(&self, out: &mut Vec<u8>) {
        let mut delta = Vec::new();
        encode_groups(&self.groups, &mut delta).unwrap();
        let fill = |out: &mut Vec<u8>| {
            out.extend_from_slice(&self.payload);
            Ok(())
        };
        seal(out, &self.head, self.opening.as_ref(), &delta, fill).unwrap();
    }

    fn sealed(&self) -> Bytes {
        let mut out = Vec::new();
        self.seal_into(&mut out);
        Bytes::from(out)
    }

    fn check(&self, bytes: &Bytes) {
        assert_eq!(read_head(bytes).unwrap(), self.head);
        let frame = read(bytes).unwrap();
        assert_eq!((&frame.head, &frame.opening), (&self.head, &self.opening));
        assert_eq!(decode_groups(&frame.delta).unwrap(), self.groups);
        assert_eq!(frame.payload, self.payload);
    }
}

/// A frame with all of its parts, none of a length that is a multiple of 8.
fn sample() -> Parts {
    Parts {
        head: HEAD,
        opening: Some(opening("orders", Some(4))),
        groups: vec![group("parse", 0, &[b"one".to_vec(), b"three".to_vec()])],
        payload: b"eleven byte".to_vec(),
    }
}

/// The bytes with another head, whose checksum holds.
fn with_head(bytes: &[u8], change: impl FnOnce(&mut [u8])) -> Bytes {
    let mut bytes = bytes.to_vec();
    change(&mut bytes[..HEAD_BYTES]);
    let sum = crc32fast::hash(&bytes[..HEAD_BYTES - 4]);
    bytes[HEAD_BYTES - 4..HEAD_BYTES].copy_from_slice(&sum.to_le_bytes());
    Bytes::from(bytes)
}

fn is_corrupt<T>(result: crate::error::Result<T>) -> bool {
    matches!(result, Err(Error::CorruptFrame { .. }))
}

prop_compose! {
    fn parts()(
        numbers in any::<(u64, u32, u32, u32, u32, u64, bool, bool)>(),
        opens in any::<bool>(),
        query in "\\PC{0,12}",
        tasks in any::<Option<u32>>(),
        groups in prop::collection::vec(
            (
                "[a-z]{0,9}",
                any::<u32>(),
                prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40), 0..4),
            ),
            0..4,
        ),
        payload in prop::collection::vec(any::<u8>(), 0..90),
    ) -> Parts {
        let (task, partition, channel, sequence, rows, log, named, closes) = numbers;
        let (partition, channel, log) = (Partition(partition), Partition(channel), LogVersion(log));
        Parts {
            head: Head { task, partition, channel, sequence, rows, log, named, closes },
            opening: opens.then(|| opening(&query, tasks)),
            groups: groups.iter().map(|(name, from, blocks)| group(name, (*from).into(), blocks)).collect(),
            payload,
        }
    }
}

#[test]
fn frames_that_differ_in_their_content_have_other_sums_and_equal_ones_the_same() {
    let mut other = sample();
    other.payload[3] ^= 1;
    let [one, again, other] = [sample(), sample(), other].map(|parts| read(&parts.sealed()).unwrap().sum);
    assert_eq!(one, again);
    assert_ne!(one, other);
}

#[test]
fn a_frame_after_an_odd_length_delta_has_an_aligned_payload() {
    let mut odd = 0;
    for len in 1..=24 {
        let parts = Parts { groups: vec![group("parse", 5, &[vec![1; len]])], ..sample() };
        let mut out = Vec::new();
        // The second of two in one buffer is aligned within it, too.
        parts.seal_into(&mut out);
        let first = out.len();
        parts.seal_into(&mut out);
        let bytes = Bytes::from(out);
        for bytes in [bytes.slice(..first), bytes.slice(first..)] {
            let frame = read(&bytes).unwrap();
            odd += frame.delta.len() % 2;
            assert_eq!(bytes.len() % 8, 0);
            assert_eq!((frame.payload.as_ptr() as usize - bytes.as_ptr() as usize) % 8, 0, "length {len}");
            parts.check(&bytes);
        }
    }
    assert!(odd >= 20, "half of the deltas have an odd length");
}

#[test]
fn another_version_is_refused_by_name_whatever_else_it_holds() {
    for version in [0, 2, 255] {
        let bytes = with_head(&sample().sealed(), |head| head[4] = version);
        for refused in [read_head(&bytes).map(drop), read(&bytes).map(drop)] {
            let Err(Error::UnsupportedVersion { what, found, known: 1 }) = refused else {
                panic!("{refused:?}")
            };
            assert_eq!((what.as_str(), found), ("a frame", u32::from(version)));
        }
    }
}

#[test]
fn unknown_flags_are_refused() {
    for bit in 3..8 {
        let bytes = with_head(&sample().sealed(), |head| head[5] |= 1 << bit);
        assert!(is_corrupt(read_head(&bytes)), "bit {bit}");
        assert!(is_corrupt(read(&bytes)), "bit {bit}");
    }
}

#[test]
fn an_opening_that_is_none_is_refused() {
    let parts = Parts { opening: None, groups: Vec::new(), payload: vec![0xff; 16], ..sample() };
    // Says that an opening of 16 bytes follows, where the payload stands.
    let bytes = with_head(&parts.sealed(), |head| {
        head[5] |= 1;
        head[40] = 16;
        head[48] = 0;
    });
    assert!(is_corrupt(read(&bytes)));
}

#[test]
fn an_error_of_whoever_writes_the_payload_is_handed_on() {
    let failed = seal(&mut Vec::new(), &HEAD, None, &[], |_| Err(Error::Misuse { what: "full".into() }));
    assert!(matches!(failed, Err(Error::Misuse { what }) if what == "full"));
}

#[test]
fn groups_followed_by_other_bytes_or_beyond_the_last_position_are_refused() {
    let mut bytes = Vec::new();
    encode_groups(&[], &mut bytes).unwrap();
    assert!(bytes.is_empty(), "no groups take no room");
    assert_eq!(decode_groups(&bytes).unwrap(), []);
    encode_groups(&[group("parse", 0, &[vec![7; 3]])], &mut bytes).unwrap();
    bytes.push(0);
    assert!(is_corrupt(decode_groups(&bytes)));
    for (from, fits) in [(u64::MAX - 3, true), (u64::MAX - 2, false), (u64::MAX, false)] {
        let mut bytes = Vec::new();
        encode_groups(&[group("parse", from, &[vec![7; 2], vec![8; 1]])], &mut bytes).unwrap();
        assert_eq!(decode_groups(&bytes).is_ok(), fits, "from {from}");
    }
}

#[test]
fn a_version_depends_on_the_blocks_and_their_order_alone() {
    let version = |blocks: &[&[u8]]| blocks.iter().fold(LogVersion::default(), |log, block| log.after(block));
    assert_eq!(version(&[]), LogVersion(0));
    assert_eq!(version(&[b"one", b"two"]), version(&[b"one", b"two"]));
    let others: [&[&[u8]]; 4] = [&[b"two", b"one"], &[b"onetwo"], &[b"one"], &[b"one", b"two", b""]];
    for other in others {
        assert_ne!(version(&[b"one", b"two"]), version(other), "{other:?}");
    }
}

proptest! {
    #[test]
    fn what_is_sealed_is_read_back(
        parts in prop::collection::vec(parts(), 1..4),
        before in prop::collection::vec(any::<u8>(), 0..20),
    ) {
        let mut out = before;
        let mut places = Vec::new();
        for parts in &parts {
            let start = out.len();
            parts.seal_into(&mut out);
            places.push((start, out.len()));
        }
        let bytes = Bytes::from(out);
        for (parts, (start, end)) in parts.iter().zip(places) {
            parts.check(&bytes.slice(start..end));
            // Whatever stands before a frame does not show in it.
            prop_assert_eq!(&bytes[start..end], &parts.sealed()[..]);
        }
    }

    #[test]
    fn a_flipped_byte_is_an_error_wherever_it_is(parts in parts(), mask in 1_u8..) {
        let bytes = parts.sealed();
        for at in 0..bytes.len() {
            let mut bytes = bytes.to_vec();
            bytes[at] ^= mask;
            let bytes = Bytes::from(bytes);
            prop_assert!(read(&bytes).is_err(), "byte {}", at);
            prop_assert_eq!(read_head(&bytes).is_err(), at < HEAD_BYTES, "byte {}", at);
        }
    }

    #[test]
    fn a_frame_cut_off_anywhere_is_an_error(parts in parts()) {
        let bytes = parts.sealed();
        for len in 0..bytes.len() {
            prop_assert!(is_corrupt(read(&bytes.slice(..len))), "{} of {} bytes", len, bytes.len());
        }
    }

    #[test]
    fn a_frame_followed_by_other_bytes_is_an_error(
        parts in parts(),
        more in prop_oneof![prop::collection::vec(any::<u8>(), 1..40), prop::collection::vec(Just(0), 1..20)],
    ) {
        let mut bytes = parts.sealed().to_vec();
        bytes.extend_from_slice(&more);
        prop_assert!(is_corrupt(read(&Bytes::from(bytes))));
    }

    #[test]
    fn bytes_of_any_kind_make_nothing_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let bytes = Bytes::from(bytes);
        prop_assert!(read_head(&bytes).is_err());
        prop_assert!(read(&bytes).is_err());
        if let Ok(groups) = decode_groups(&bytes) {
            prop_assert!(groups.iter().all(|group| group.end() >= group.from));
        }
    }

    /// Both checksums hold, as whoever forges a frame would have it.
    #[test]
    fn forged_lengths_make_nothing_panic(
        lengths in prop::collection::vec(prop_oneof![0_u32..130, any::<u32>()], 3),
        flags in 0_u8..4,
        body in prop::collection::vec(any::<u8>(), 0..130),
    ) {
        let mut bytes = sample().sealed()[..HEAD_BYTES].to_vec();
        bytes.extend_from_slice(&body);
        let bytes = with_head(&bytes, |head| {
            head[5] = flags;
            let numbers = lengths.iter().copied().chain([crc32fast::hash(&body)]);
            for (at, number) in [40, 44, 48, 52].into_iter().zip(numbers) {
                head[at..at + 4].copy_from_slice(&number.to_le_bytes());
            }
        });
        if let Ok(frame) = read(&bytes) {
            prop_assert_eq!(frame.delta.len(), lengths[1] as usize);
            prop_assert_eq!(frame.payload.len(), lengths[2] as usize);
            drop(decode_groups(&frame.delta));
        }
    }
}
