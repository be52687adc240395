//! The log against a model: a plain list of blocks.

use bytes::Bytes;
use proptest::prelude::*;

use super::log::block_len;
use super::{BlockHash, CausalLog, Place, SpillRef};
use crate::error::Error;
use crate::id::{ChannelId, LogOffset};

const CHANNEL: ChannelId = ChannelId(7);

fn block(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn contents(log: &CausalLog) -> Vec<Bytes> {
    let bytes = |place: &Place| match place {
        Place::Memory(bytes) => bytes.clone(),
        Place::Spilled(..) => panic!("nothing is spilled here"),
    };
    log.blocks(LogOffset::START).iter().map(|b| bytes(&b.place)).collect()
}

#[test]
fn a_channel_is_sent_nothing_twice() {
    let mut log = CausalLog::new();
    assert_eq!(log.delta(CHANNEL), None);
    log.append(block("one")).unwrap();
    log.append(block("three")).unwrap();
    let delta = log.delta(CHANNEL).expect("two blocks");
    assert_eq!((delta.from, delta.blocks.len()), (LogOffset::START, 2));
    assert_eq!(log.delta(CHANNEL), Some(delta), "what was not answered for is sent again");
    log.arrived(CHANNEL, LogOffset::START, LogOffset(8));
    assert_eq!(log.delta(CHANNEL), None);
    log.append(block("x")).unwrap();
    assert_eq!(log.delta(CHANNEL).expect("one more").from, LogOffset(8));
    assert_eq!(log.delta(ChannelId(8)).expect("another consumer").blocks.len(), 3);
    log.rewind(CHANNEL, LogOffset(3));
    assert_eq!(log.delta(CHANNEL).expect("it lost a block").blocks.len(), 2);
}

#[test]
fn an_answer_counts_only_where_what_lies_before_is_known() {
    let mut log = CausalLog::new();
    for text in ["one", "three", "x"] {
        log.append(block(text)).unwrap();
    }
    let next = |log: &CausalLog| log.delta(CHANNEL).map(|delta| delta.from.0);
    log.arrived(CHANNEL, LogOffset(3), LogOffset(8));
    assert_eq!(next(&log), Some(0), "nobody has answered for the first");
    log.arrived(CHANNEL, LogOffset(0), LogOffset(8));
    log.arrived(CHANNEL, LogOffset(0), LogOffset(3));
    assert_eq!(next(&log), Some(8), "an older answer takes nothing back");
    log.rewind(CHANNEL, LogOffset(5));
    log.arrived(CHANNEL, LogOffset(3), LogOffset(9));
    assert_eq!(next(&log), None);
}

#[test]
fn a_delta_starts_where_its_first_block_does() {
    let mut log = CausalLog::new();
    for text in ["one", "three", "x"] {
        log.append(block(text)).unwrap();
    }
    for (to, from) in [(0, 0), (2, 0), (3, 3), (5, 3), (8, 8)] {
        log.rewind(CHANNEL, LogOffset(to));
        let delta = log.delta(CHANNEL).expect("not all was sent");
        assert_eq!(
            (delta.from, delta.blocks[0].offset),
            (LogOffset(from), LogOffset(from)),
            "rewound to {to}"
        );
        let blocks: Vec<Bytes> = contents(&log).split_off(3 - delta.blocks.len());
        assert_eq!(log.absorb(delta.from, &blocks).expect("the same blocks at the same place"), 0);
    }
}

#[test]
fn a_block_whose_length_no_log_can_state_is_refused() {
    assert_eq!(block_len(u32::MAX as usize).expect("the longest"), u32::MAX);
    let refused = block_len(u32::MAX as usize + 1);
    assert!(matches!(refused, Err(Error::Misuse { what }) if what.contains("4294967296 bytes")));
}

#[test]
fn a_gap_is_refused() {
    let mut log = CausalLog::new();
    log.append(block("abc")).unwrap();
    let refused = log.absorb(LogOffset(4), &[block("z")]);
    assert!(matches!(refused, Err(Error::LogGap { from: LogOffset(4), end: LogOffset(3) })));
    assert_eq!(contents(&log), [block("abc")]);
}

#[test]
fn a_copy_that_differs_is_a_fork() {
    let mut log = CausalLog::new();
    log.append(block("abc")).unwrap();
    for other in [vec![block("abd")], vec![block("ab"), block("c")], vec![block("abcd")]] {
        let refused = log.absorb(LogOffset::START, &other);
        assert!(matches!(refused, Err(Error::LogFork { at: LogOffset(0) })), "{other:?}");
    }
    assert_eq!(contents(&log), [block("abc")]);
}

#[test]
fn spilling_the_oldest_frees_their_memory() {
    let mut log = CausalLog::new();
    for text in ["aaaa", "bbbb", "cccc"] {
        log.append(block(text)).unwrap();
    }
    log.mark_spilled(0, SpillRef { file: 1, pos: 0, len: 4 });
    log.mark_spilled(0, SpillRef { file: 1, pos: 0, len: 4 });
    assert_eq!((log.memory_bytes(), log.spilled_bytes()), (8, 4));
    assert_eq!(log.absorb(LogOffset::START, &[block("aaaa"), block("bbbb")]).expect("same"), 0);
}

#[test]
fn a_spilled_block_differs_from_another_of_its_length() {
    let mut spilled = CausalLog::new();
    spilled.append(block("aaaa")).unwrap();
    spilled.mark_spilled(0, SpillRef { file: 1, pos: 0, len: 4 });
    let place = SpillRef { file: 1, pos: 0, len: 4 };
    let recovered = CausalLog::from_spilled([(place, BlockHash::of(b"aaaa"))]);
    for mut log in [spilled, recovered] {
        assert_eq!(log.absorb(LogOffset::START, &[block("aaaa")]).expect("the same"), 0);
        let fork = log.absorb(LogOffset::START, &[block("bbbb")]);
        assert!(matches!(fork, Err(Error::LogFork { at: LogOffset(0) })), "{fork:?}");
    }
}

proptest! {
    #[test]
    fn absorbing_parts_in_any_order_gives_a_prefix_of_the_log(
        blocks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..20), 1..20),
        parts in prop::collection::vec((0usize..20, 0usize..20), 0..40),
    ) {
        let blocks: Vec<Bytes> = blocks.into_iter().map(Bytes::from).collect();
        let offset = |index: usize| {
            LogOffset(blocks.iter().take(index).map(|b| b.len() as u64).sum())
        };
        let mut log = CausalLog::new();
        let mut known = 0;
        for (a, b) in parts {
            let (first, last) = (a.min(blocks.len()), b.min(blocks.len()));
            let (first, last) = (first.min(last), first.max(last));
            let absorbed = log.absorb(offset(first), &blocks[first..last]);
            if first > known {
                let gap = matches!(absorbed, Err(Error::LogGap { .. }));
                prop_assert!(gap, "{:?}", absorbed);
            } else {
                let new = offset(last.max(known)).0 - offset(known).0;
                prop_assert_eq!(absorbed.expect("no gap"), new);
                known = known.max(last);
            }
            prop_assert_eq!(contents(&log), &blocks[..known]);
        }
    }
}
