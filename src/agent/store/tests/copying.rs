//! What a peer is sent, and which of its requests are carried out.

use super::*;
use crate::id::{AgentId, ChannelId};

const CHANNEL: ChannelId = ChannelId(5);

#[test]
fn a_copy_begun_anew_counts_when_it_has_all() {
    let mut store = Store::new(1_000);
    let (task, layout) = (task("f", 1, 0), LAYOUT);
    store.begin(&task, Generation(1), layout).unwrap();
    assert!(!store.is_whole(&task));
    store.complete(&task, Generation(2));
    assert!(!store.is_whole(&task), "that was another attempt's");
    store.complete(&task, Generation(1));
    assert!(store.fence(&task, Generation(2)).is_some_and(|copy| copy.whole));
    store.begin(&task, Generation(2), layout).unwrap();
    assert!(!store.is_whole(&task));
}

/// What is on its way to the channel: where it begins and ends.
fn lacks(store: &Store, task: &TaskId) -> Option<(u64, u64)> {
    store.outgoing(task, CHANNEL).map(|outgoing| (outgoing.part.from.0, outgoing.part.end.0))
}

#[test]
fn a_part_is_sent_until_it_is_answered() {
    let mut store = store();
    let score = task("score", 1, 0);
    with_log(&mut store, &score, &[10, 20]);
    let first = store.outgoing(&score, CHANNEL).unwrap();
    assert!(first.reset && first.all);
    assert_eq!(lacks(&store, &score), Some((0, 30)), "nobody has answered");
    store.arrived(&score, CHANNEL, first.part);
    assert_eq!(lacks(&store, &score), None);
}

#[test]
fn an_answer_says_nothing_of_a_log_that_was_begun_anew() {
    let mut store = store();
    let score = task("score", 1, 0);
    with_log(&mut store, &score, &[10, 20]);
    let first = store.outgoing(&score, CHANNEL).unwrap();
    with_log(&mut store, &score, &[5]);
    store.arrived(&score, CHANNEL, first.part);
    assert_eq!(lacks(&store, &score), Some((0, 5)));
}

/// A peer's request of this number brings what lies between two positions, each byte being `byte`.
fn bring(
    store: &mut Store,
    (generation, number): (u64, u64),
    (from, end): (u64, u64),
    all: bool,
    byte: u8,
) -> Result<()> {
    let (generation, sent) = (Generation(generation), Sent { by: AgentId(9), number });
    let arriving = Arriving { generation, reset: from == 0, all, sent, ..arriving(LogOffset(end)) };
    bring_it(store, &arriving, from, byte)
}

/// All of a log up to `end`, as whoever has all that was published sends it.
fn arriving(end: LogOffset) -> Arriving {
    Arriving {
        generation: Generation(2),
        over: Generation::NONE,
        layout: LAYOUT,
        reset: true,
        end,
        all: true,
        whole: true,
        sent: Sent { by: AgentId(9), number: 6 },
    }
}

fn bring_it(store: &mut Store, arriving: &Arriving, from: u64, byte: u8) -> Result<()> {
    let score = task("score", 1, 0);
    store.begin_copy(&score, arriving)?;
    for at in (from..arriving.end.0).step_by(10) {
        store.absorb_arriving(&score, arriving, LogOffset(at), &block(byte, 10))?;
    }
    if arriving.all {
        store.complete_copy(&score, arriving)?;
    }
    Ok(())
}

#[test]
fn a_late_request_is_answered_for_only_if_all_that_it_brings_is_here() {
    let mut store = store();
    let score = task("score", 1, 0);
    bring(&mut store, (1, 5), (0, 10), false, 7).unwrap();
    for (span, all) in [((0, 20), false), ((10, 20), false), ((0, 10), true)] {
        let late = bring(&mut store, (1, 4), span, all, 7);
        assert!(matches!(late, Err(Error::LogGap { end: LogOffset(10), .. })), "{span:?} {late:?}");
    }
    bring(&mut store, (1, 4), (0, 10), false, 7).unwrap();
    bring(&mut store, (1, 6), (10, 20), true, 7).unwrap();
    for span in [(0, 10), (10, 20), (0, 20)] {
        bring(&mut store, (1, 4), span, true, 7).unwrap();
        assert_eq!((store.end(&score), store.is_whole(&score)), (Some(LogOffset(20)), true));
        let other = bring(&mut store, (1, 4), span, true, 8);
        assert!(matches!(other, Err(Error::LogFork { .. })), "{span:?} {other:?}");
    }
    check(&store, &[]);
}

#[test]
fn a_request_that_is_repeated_takes_nothing_back() {
    let mut store = store();
    let score = task("score", 1, 0);
    bring(&mut store, (1, 5), (0, 10), true, 7).unwrap();
    let version = store.version(&score);
    bring(&mut store, (1, 5), (0, 10), true, 7).unwrap();
    assert_eq!((store.version(&score), store.is_whole(&score)), (version, true));
    // Broken off, it is carried out when it comes again.
    let broken_off = Arriving { generation: Generation(1), ..arriving(LogOffset(30)) };
    store.begin_copy(&score, &broken_off).unwrap();
    assert_eq!((store.end(&score), store.is_whole(&score)), (Some(LogOffset(10)), true));
    bring(&mut store, (1, 6), (0, 30), true, 7).unwrap();
    assert_eq!((store.end(&score), store.is_whole(&score)), (Some(LogOffset(30)), true));
}

#[test]
fn what_is_whole_is_not_given_up_for_another_copy_of_the_same_attempt() {
    let mut store = store();
    let score = task("score", 1, 0);
    bring(&mut store, (1, 5), (0, 30), true, 7).unwrap();
    // Somebody who does not know of it begins to send it, and dies.
    bring(&mut store, (1, 6), (0, 10), false, 7).unwrap();
    assert_eq!((store.end(&score), store.is_whole(&score)), (Some(LogOffset(30)), true));
    let other = bring(&mut store, (1, 7), (0, 10), false, 8);
    assert!(matches!(other, Err(Error::LogFork { .. })), "{other:?}");
    // Nor is one that cannot be read any good.
    store.spoil(&score, store.version(&score).unwrap());
    bring(&mut store, (2, 9), (0, 10), true, 9).unwrap();
    assert!(store.is_whole(&score));
    check(&store, &[]);
}

#[test]
fn a_copy_counts_until_another_attempts_is_there_in_its_place() {
    let mut store = store();
    let score = task("score", 1, 0);
    bring(&mut store, (1, 5), (0, 20), true, 7).unwrap();
    bring(&mut store, (1, 6), (20, 30), true, 8).unwrap();
    // The newer attempt's begins as it does: as much as that counts, should no more come.
    bring(&mut store, (2, 7), (0, 10), false, 7).unwrap();
    assert_eq!((store.end(&score), store.is_whole(&score)), (Some(LogOffset(30)), true));
    // Of its end nobody had been told, and the newer attempt has another.
    bring(&mut store, (2, 8), (10, 20), false, 7).unwrap();
    bring(&mut store, (2, 9), (20, 30), false, 9).unwrap();
    assert_eq!((store.end(&score), store.is_whole(&score)), (Some(LogOffset(30)), true));
    check(&store, &[]);
    // Or none.
    bring(&mut store, (3, 10), (0, 20), true, 7).unwrap();
    assert_eq!((store.end(&score), store.is_whole(&score)), (Some(LogOffset(20)), true));
    check(&store, &[]);
}

/// Two requests that are carried out side by side, as their sender has given the first one up.
#[test]
fn what_a_stale_request_has_all_of_is_not_all() {
    let mut store = store();
    let score = task("score", 1, 0);
    bring(&mut store, (1, 5), (0, 30), true, 8).unwrap();
    let stale = arriving(LogOffset(10));
    let newer = Arriving { sent: Sent { by: AgentId(9), number: 7 }, ..arriving(LogOffset(30)) };
    store.begin_copy(&score, &stale).unwrap();
    store.begin_copy(&score, &newer).unwrap();
    let refused = store.complete_copy(&score, &stale);
    assert!(matches!(refused, Err(Error::LogGap { .. })), "nothing has come: {refused:?}");
    for at in [0, 10, 20] {
        store.absorb_arriving(&score, &newer, LogOffset(at), &block(7, 10)).unwrap();
    }
    store.absorb_arriving(&score, &stale, LogOffset::START, &block(7, 10)).unwrap();
    store.complete_copy(&score, &stale).unwrap();
    store.complete_copy(&score, &newer).unwrap();
    assert_eq!((store.end(&score), store.is_whole(&score)), (Some(LogOffset(30)), true));
    // What was never compared is not gone on with.
    let next = Arriving { generation: Generation(3), sent: Sent { by: AgentId(9), number: 8 }, ..stale };
    store.begin_copy(&score, &next).unwrap();
    let gap = store.absorb_arriving(&score, &next, LogOffset(20), &block(9, 10));
    assert!(matches!(gap, Err(Error::LogGap { .. })), "{gap:?}");
    check(&store, &[]);
}

#[test]
fn what_a_committed_use_of_a_name_has_left_is_no_beginning_of_a_copy() {
    let mut store = store();
    let score = task("score", 1, 0);
    bring(&mut store, (1, 5), (0, 30), true, 7).unwrap();
    let (generation, over) = (Generation(6), Generation(5));
    let next = Arriving { generation, over, all: false, ..arriving(LogOffset(10)) };
    store.begin_copy(&score, &next).unwrap();
    assert_eq!((store.end(&score), store.is_whole(&score)), (Some(LogOffset::START), false));
    check(&store, &[]);
}

#[test]
fn what_consumers_have_absorbed_stands_until_a_copy_is_there_in_its_place() {
    let mut store = store();
    let score = task("score", 1, 0);
    for at in [0, 10, 20] {
        store.absorb_copy(&score, Generation(1), LogOffset(at), &block(7, 10)).unwrap();
    }
    bring(&mut store, (2, 5), (0, 10), false, 7).unwrap();
    assert_eq!((store.end(&score), store.is_whole(&score)), (Some(LogOffset(30)), false));
    assert!(!store.is_own(&score));
    bring(&mut store, (2, 6), (10, 20), true, 7).unwrap();
    assert_eq!((store.end(&score), store.is_whole(&score)), (Some(LogOffset(20)), true));
    assert!(store.is_own(&score));
    check(&store, &[]);
}

#[test]
fn what_comes_from_who_has_a_part_takes_nothing_from_who_has_more() {
    let mut store = store();
    let score = task("score", 1, 0);
    let part = Arriving { whole: false, ..arriving(LogOffset(20)) };
    bring(&mut store, (1, 5), (0, 30), true, 7).unwrap();
    // It holds that much, and more.
    bring_it(&mut store, &part, 0, 7).unwrap();
    assert_eq!((store.end(&score), store.is_whole(&score)), (Some(LogOffset(30)), true));
    let other = Arriving { sent: Sent { by: AgentId(9), number: 7 }, ..part };
    let refused = bring_it(&mut store, &other, 0, 8);
    assert!(matches!(refused, Err(Error::LogFork { .. })), "{refused:?}");
    assert_eq!((store.end(&score), store.is_whole(&score)), (Some(LogOffset(30)), true));
    // Where there is nothing, it is a copy.
    store.forget(&score, Generation(9));
    bring_it(&mut store, &Arriving { generation: Generation(10), ..part }, 0, 8).unwrap();
    assert_eq!((store.end(&score), store.is_whole(&score)), (Some(LogOffset(20)), false));
    assert!(!store.is_own(&score));
    check(&store, &[]);
}

#[test]
fn a_copy_whose_beginning_was_dropped_meanwhile_is_not_all_there() {
    let mut store = store();
    let score = task("score", 1, 0);
    for at in [0, 10, 20] {
        store.absorb_copy(&score, Generation(1), LogOffset(at), &block(7, 10)).unwrap();
    }
    let copy = arriving(LogOffset(20));
    store.begin_copy(&score, &copy).unwrap();
    for at in [0, 10] {
        store.absorb_arriving(&score, &copy, LogOffset(at), &block(7, 10)).unwrap();
    }
    // Whoever confirms frames says that it is another run's from there on.
    store.drop_stale(&score, store.version(&score), LogOffset(10));
    let gap = store.complete_copy(&score, &copy);
    assert!(matches!(gap, Err(Error::LogGap { end: LogOffset(10), .. })), "{gap:?}");
    check(&store, &[]);
}

#[test]
fn what_a_fence_was_raised_for_is_gone_on_with_where_a_copy_was_on_its_way() {
    let mut store = store();
    let score = task("score", 1, 0);
    bring(&mut store, (1, 5), (0, 20), true, 7).unwrap();
    bring(&mut store, (2, 6), (0, 10), false, 7).unwrap();
    let copy = store.fence(&score, Generation(3)).unwrap();
    assert_eq!((copy.end, copy.whole), (LogOffset(20), true));
    bring(&mut store, (3, 7), (20, 30), true, 8).unwrap();
    assert_eq!((store.end(&score), store.is_whole(&score)), (Some(LogOffset(30)), true));
    check(&store, &[]);
}

#[test]
fn a_dead_attempts_copy_that_comes_late_is_refused_where_nothing_was() {
    let mut store = store();
    let score = task("score", 1, 0);
    let at = AgentInfo { id: AgentId(7), addr: "there".into(), host: "h".into(), driver: false };
    assert!(store.reopened(&score, Generation(2), at).is_none(), "nothing is here");
    let late = bring(&mut store, (1, 5), (0, 10), true, 7);
    assert!(matches!(late, Err(Error::Fenced { newer: Generation(2), .. })), "{late:?}");
    assert_eq!(store.end(&score), None);
    bring(&mut store, (2, 6), (0, 10), true, 8).unwrap();
}

#[test]
fn a_fenced_request_does_not_make_those_of_the_newer_generation_late() {
    let mut store = store();
    bring(&mut store, (2, 5), (0, 10), false, 7).unwrap();
    let fenced = bring(&mut store, (1, 9), (10, 20), false, 7);
    assert!(matches!(fenced, Err(Error::Fenced { .. })), "{fenced:?}");
    bring(&mut store, (2, 6), (10, 20), true, 7).unwrap();
    assert_eq!(store.end(&task("score", 1, 0)), Some(LogOffset(20)));
}

#[test]
fn a_copy_of_an_older_generation_is_not_gone_on_with() {
    let mut store = store();
    let score = task("score", 1, 0);
    bring(&mut store, (1, 5), (0, 10), true, 7).unwrap();
    let goes_on = bring(&mut store, (2, 6), (10, 20), true, 8);
    assert!(matches!(goes_on, Err(Error::LogGap { end: LogOffset(10), .. })), "{goes_on:?}");
    assert_eq!((store.end(&score), store.generation(&score)), (Some(LogOffset(10)), Some(Generation(1))));
    // Fenced, it is what the newer attempt has found and adopted.
    store.fence(&score, Generation(2));
    bring(&mut store, (2, 7), (10, 20), true, 8).unwrap();
    assert_eq!(store.end(&score), Some(LogOffset(20)));
}
