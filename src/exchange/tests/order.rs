//! Gather: whatever the order of arrival, what was recorded is taken as it was; what is missing is said.

use proptest::prelude::*;

use super::*;

/// What was taken: the sender, the frame's sum, its rows, and whether it was planned.
type Seen = (u32, u32, Vec<i64>, bool);

/// Offers all frames, taking after each as long as something is there; the runs as they are recorded.
fn run(orders: &[Order], arrival: &[Bytes], every: usize) -> (Vec<Seen>, Vec<Order>, Gather<InMemory>) {
    let mut gather = Gather::new(InMemory::default(), orders.to_vec());
    let (mut seen, mut recorded) = (Vec::new(), Vec::<Order>::new());
    for (number, frame) in arrival.iter().enumerate() {
        gather.offer(frame.clone()).unwrap();
        if (number + 1) % every != 0 && number + 1 < arrival.len() {
            continue;
        }
        while let Some(taken) = gather.take().unwrap() {
            seen.push((taken.order.channel, taken.sum, values(&taken.batches), taken.replayed));
            if taken.replayed {
                continue;
            }
            match recorded.last_mut() {
                Some(run) if run.channel == taken.order.channel => {
                    run.frames += 1;
                    run.version = taken.order.version;
                }
                _ => recorded.push(taken.order),
            }
        }
    }
    (seen, recorded, gather)
}

/// Some senders' frames, by sender.
fn senders(rounds: &[Vec<usize>]) -> Vec<Vec<Bytes>> {
    let tasks = u32::try_from(rounds.len()).ok();
    (0..).zip(rounds).map(|(sender, rounds)| frames_of(sender, tasks, rounds)).collect()
}

fn refusal<T: std::fmt::Debug>(result: crate::error::Result<T>) -> String {
    match result {
        Err(Error::CorruptFrame { reason }) => reason,
        other => panic!("not refused as a corrupt frame: {other:?}"),
    }
}

/// Offers frames and takes them; the first error.
fn first_refusal(frames: &[Bytes]) -> String {
    let mut gather = Gather::new(InMemory::default(), []);
    for frame in frames {
        gather.offer(frame.clone()).unwrap();
    }
    loop {
        match gather.take() {
            Ok(Some(_)) => {}
            other => return refusal(other),
        }
    }
}

fn missing(gather: &Gather<InMemory>, expected: Option<u32>) -> String {
    match gather.finish(expected) {
        Err(Error::InputCutShort { operator, missing }) => {
            assert_eq!(operator, gather.operator().unwrap_or_default());
            missing
        }
        other => panic!("the input is whole: {other:?}"),
    }
}

#[test]
fn input_without_a_last_frame_is_cut_short() {
    let mut frames = senders(&[vec![1, 2], vec![3]]);
    frames[1].pop();
    frames[0].pop();
    let (_, _, gather) = run(&[], &frames.concat(), 1);
    assert_eq!(missing(&gather, None), "the last frame of partition 0, and of 1 more");
}

#[test]
fn a_last_frame_that_came_and_was_not_taken_does_not_count() {
    let frames = frames_of(0, Some(1), &[2]);
    let mut gather = Gather::new(InMemory::default(), []);
    frames.iter().for_each(|frame| gather.offer(frame.clone()).unwrap());
    assert_eq!(gather.waiting(), 2);
    gather.take().unwrap().unwrap();
    missing(&gather, None);
    gather.take().unwrap().unwrap();
    assert_eq!(gather.waiting(), 0);
    let versions = gather.finish(None).unwrap();
    assert_eq!(versions.len(), 1);
    assert_ne!(versions[0].1, LogVersion::default());
}

#[test]
fn senders_that_did_not_come_at_all_are_missed() {
    let frames = senders(&[vec![1], vec![1], vec![1]]);
    let (_, _, gather) = run(&[], &frames[..2].concat(), 1);
    assert_eq!(missing(&gather, None), "1 of 3 partitions");
    // Where no frame says how many there are, the host may know.
    let (_, _, gather) = run(&[], &frames_of(0, None, &[1]), 1);
    assert_eq!(gather.finish(Some(1)).unwrap().len(), 1);
    assert_eq!(missing(&gather, Some(4)), "3 of 4 partitions");
    let nothing = Gather::new(InMemory::default(), []);
    assert_eq!(nothing.finish(None).unwrap(), []);
    assert_eq!(missing(&nothing, Some(2)), "2 of 2 partitions");
}

#[test]
fn a_frame_that_is_missing_comes_twice_or_follows_the_last_is_refused() {
    let frames = frames_of(4, None, &[1, 2, 3]);
    let pick = |order: &[usize]| -> Vec<Bytes> { order.iter().map(|at| frames[*at].clone()).collect() };
    assert_eq!(first_refusal(&pick(&[0, 2])), "frame 2 of partition 4 came where frame 1 was due");
    assert_eq!(first_refusal(&pick(&[1])), "frame 1 of partition 4 came where frame 0 was due");
    assert_eq!(first_refusal(&pick(&[0, 1, 1])), "frame 1 of partition 4 came where frame 2 was due");
    assert_eq!(first_refusal(&pick(&[0, 0])), "frame 0 of partition 4 came where frame 1 was due");
    assert_eq!(first_refusal(&pick(&[0, 1, 2, 3, 3])), "frame 3 of partition 4 follows the last one");
}

#[test]
fn a_frame_of_another_task_is_refused() {
    let mine = frames_of(1, None, &[1, 1]);
    let mut piggyback = Piggyback::new("other", Partition(1), 1);
    let mut scatter = Scatter::new(scatter_options(task("other", 1), None, 1));
    scatter.push(numbers(0..1)).unwrap();
    let first = scatter.cut(&mut piggyback).unwrap().bytes;
    scatter.push(numbers(0..1)).unwrap();
    let second = scatter.cut(&mut piggyback).unwrap().bytes;
    assert_eq!(first_refusal(&[mine[0].clone(), second]), "frame 1 of partition 1 is another task's");
    let forged = forge(&first, |head, opening| {
        head.task ^= 1;
        assert!(opening.is_some());
    });
    assert_eq!(first_refusal(&[forged]), "frame 0 of partition 1 opens a channel wrongly");
    let unopened = forge(&first, |_, opening| *opening = None);
    assert_eq!(first_refusal(&[unopened]), "frame 0 of partition 1 is another task's");
    let reopened =
        forge(&mine[1], |_, opening| *opening = Some(Opening { task: task("up", 1), tasks: None }));
    assert_eq!(first_refusal(&[mine[0].clone(), reopened]), "frame 1 of partition 1 opens a channel wrongly");
}

/// The frame with another head or opening.
fn forge(bytes: &Bytes, change: impl FnOnce(&mut crate::frame::Head, &mut Option<Opening>)) -> Bytes {
    let mut frame = read(bytes).unwrap();
    change(&mut frame.head, &mut frame.opening);
    with_payload(&frame, &frame.payload)
}

#[test]
fn a_frame_with_other_rows_than_it_announces_is_refused() {
    let frames = frames_of(0, None, &[5]);
    for rows in [0, 4, 6, u32::MAX] {
        let forged = forge(&frames[0], |head, _| head.rows = rows);
        assert_eq!(
            first_refusal(&[forged]),
            format!("frame 0 of partition 0 has 5 rows and announces {rows}")
        );
    }
}

#[test]
fn a_payload_that_is_no_arrow_is_refused() {
    let frames = frames_of(0, None, &[5]);
    for payload in [vec![0xff; 40], vec![7; 3], b"\xff\xff\xff\xff\x10\0\0\0abcdefghijklmnopqrst".to_vec()] {
        let reason = first_refusal(&[with_payload(&read(&frames[0]).unwrap(), &payload)]);
        assert!(reason.starts_with("frame 0 of partition 0"), "{reason}");
    }
}

#[test]
fn frames_of_two_channels_do_not_come_to_one_task() {
    let mut scatter = Scatter::new(scatter_options(task("up", 0), None, 2));
    let round = scatter.finish(&mut Piggyback::new("up", Partition(0), 1)).unwrap();
    let mut gather = Gather::new(InMemory::default(), []);
    let mut offered = round.frames().map(|(_, frame)| gather.offer(frame));
    offered.next().unwrap().unwrap();
    let reason = refusal(offered.next().unwrap());
    assert_eq!(reason, "partitions 0 and 1 of one exchange came to one task");
}

#[test]
fn bytes_that_are_no_frame_are_refused_when_they_come() {
    let mut gather = Gather::new(InMemory::default(), []);
    refusal(gather.offer(Bytes::from_static(b"no frame")));
    // What stands after the head is looked at when its turn comes.
    let mut bytes = frames_of(0, None, &[1])[0].to_vec();
    *bytes.last_mut().unwrap() ^= 1;
    gather.offer(Bytes::from(bytes)).unwrap();
    refusal(gather.take());
}

#[test]
fn a_plan_that_waits_for_a_sender_takes_nothing_else_meanwhile() {
    let frames = senders(&[vec![1], vec![1]]);
    let (_, orders, _) = run(&[], &[frames[1].clone(), frames[0].clone()].concat(), 1);
    let mut gather = Gather::new(InMemory::default(), orders);
    frames[0].iter().for_each(|frame| gather.offer(frame.clone()).unwrap());
    assert!(gather.take().unwrap().is_none());
    assert_eq!(gather.waiting(), 2);
    frames[1].iter().for_each(|frame| gather.offer(frame.clone()).unwrap());
    assert_eq!(gather.take().unwrap().unwrap().order.channel, 1);
}

#[test]
fn a_plan_that_is_longer_than_what_came_is_input_cut_short() {
    let frames = senders(&[vec![1], vec![1, 1]]);
    let (_, orders, _) = run(&[], &frames.concat(), 1);
    assert_eq!(orders.iter().map(|order| order.frames).collect::<Vec<_>>(), [2, 3]);
    // One more frame of sender 0 was recorded: those of sender 1 came, and have to wait.
    let mut longer = orders.clone();
    longer[0].frames += 1;
    let (seen, _, gather) = run(&longer, &frames.concat(), 1);
    assert_eq!(seen.len(), 2);
    missing(&gather, None);
}

#[test]
fn a_plan_whose_last_run_is_longer_than_what_came_is_input_cut_short() {
    let frames = senders(&[vec![1], vec![1, 1]]);
    let (_, mut orders, _) = run(&[], &frames.concat(), 1);
    orders.last_mut().unwrap().frames += 1;
    let (seen, _, gather) = run(&orders, &frames.concat(), 1);
    assert_eq!(seen.len(), 5);
    missing(&gather, None);
}

#[test]
fn a_run_that_ends_with_another_version_means_another_upstream() {
    let frames = senders(&[vec![1, 2], vec![3]]);
    let (_, orders, _) = run(&[], &frames.concat(), 1);
    let other = frames_with(0, Some(2), &[1, 2], b"other", 0);
    let mut gather = Gather::new(InMemory::default(), orders);
    other.iter().for_each(|frame| gather.offer(frame.clone()).unwrap());
    let changed = loop {
        match gather.take() {
            Ok(Some(_)) => {}
            other => break other,
        }
    };
    let Err(Error::UpstreamChanged { upstream }) = changed else { panic!("{changed:?}") };
    assert_eq!(upstream, task("up", 0));
}

proptest! {
    /// Whoever forges a frame has its checksums hold.
    #[test]
    fn a_forged_payload_makes_nothing_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5),
        cut in any::<prop::sample::Index>(),
    ) {
        let frame = read(&frames_of(0, None, &[5])[0]).unwrap();
        let mut payload = frame.payload.to_vec();
        for (at, byte) in &changes {
            payload[at.index(frame.payload.len())] = *byte;
        }
        payload.truncate(frame.payload.len() - cut.index(frame.payload.len()) / 4);
        let mut gather = Gather::new(InMemory::default(), []);
        gather.offer(with_payload(&frame, &payload)).unwrap();
        match gather.take() {
            Ok(taken) => prop_assert_eq!(values(&taken.unwrap().batches).len(), 5),
            Err(error) => prop_assert_eq!(error.condition(), "CORRUPT_FRAME"),
        }
    }

    #[test]
    fn the_recorded_order_is_kept_whatever_the_order_of_arrival(
        rounds in prop::collection::vec(prop::collection::vec(1_usize..4, 0..6), 1..5),
        seed in any::<u64>(),
        every in 1_usize..6,
        again_every in 1_usize..6,
    ) {
        let frames = senders(&rounds);
        let mut dice = Dice(seed);
        let (live, orders, gather) = run(&[], &dice.interleave(&frames), every);
        let versions = gather.finish(None).unwrap();
        prop_assert_eq!(live.len(), frames.concat().len());
        prop_assert!(live.iter().all(|(_, _, _, replayed)| !replayed));

        let (replay, recorded, gather) = run(&orders, &dice.interleave(&frames), again_every);
        prop_assert!(replay.iter().all(|(_, _, _, replayed)| *replayed));
        let content = |seen: &[Seen]| -> Vec<_> {
            seen.iter().map(|(sender, sum, rows, _)| (*sender, *sum, rows.clone())).collect()
        };
        prop_assert_eq!(content(&replay), content(&live));
        prop_assert_eq!(recorded, []);
        prop_assert_eq!(gather.finish(None).unwrap(), versions);
    }

    #[test]
    fn after_a_recorded_beginning_frames_are_taken_as_they_come(
        rounds in prop::collection::vec(prop::collection::vec(1_usize..4, 0..6), 1..5),
        seed in any::<u64>(),
        kept in 0_usize..20,
        every in 1_usize..6,
    ) {
        let frames = senders(&rounds);
        let mut dice = Dice(seed);
        let (live, mut orders, _) = run(&[], &dice.interleave(&frames), 1);
        orders.truncate(kept);
        let planned = orders.iter().map(|order| order.frames as usize).sum::<usize>();
        let (second, recorded, gather) = run(&orders, &dice.interleave(&frames), every);
        gather.finish(None).unwrap();
        for (number, (first, second)) in live.iter().zip(&second).enumerate() {
            prop_assert_eq!(second.3, number < planned);
            let same = (first.0, first.1, &first.2) == (second.0, second.1, &second.2);
            prop_assert!(same || number >= planned);
        }
        // Both together are the record of the second attempt.
        orders.extend(recorded);
        let (third, recorded, _) = run(&orders, &frames.concat(), every);
        prop_assert_eq!(recorded, []);
        let content = |seen: &[Seen]| seen.iter().map(|seen| (seen.0, seen.1)).collect::<Vec<_>>();
        prop_assert_eq!(content(&third), content(&second));
    }
}

#[test]
fn a_payload_that_lacks_its_last_byte_is_refused() {
    let frames = frames_of(0, Some(1), &[3]);
    let whole = read(&frames[0]).unwrap();
    let short = with_payload(&whole, &whole.payload[..whole.payload.len() - 1]);
    assert!(first_refusal(&[short]).contains("has 0 rows and announces 3"));
}
