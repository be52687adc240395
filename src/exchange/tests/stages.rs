//! Whole attempts: what is kept of one makes the next send the same bytes.

use proptest::prelude::*;

use super::*;
use crate::error::DivergenceKind;
use crate::task::{CallDecision, ServiceTask, TaskMode, TaskOptions};

const LOOKUP: u64 = 0x100c;

/// The nondeterminism of one attempt: its clock, its services, and in which order frames reach it.
#[derive(Debug, Clone)]
struct Luck {
    dice: Dice,
    now: i64,
}

impl Luck {
    fn new(seed: u64) -> Self {
        Self { dice: Dice(seed), now: seed as i64 >> 8 }
    }

    /// Often the same reading again, as of a clock with a coarse resolution.
    fn clock(&mut self) -> i64 {
        self.now += [0, 0, 0, 1, -3, 1_000_000][self.dice.roll(6)];
        self.now
    }
}

/// What one attempt left.
#[derive(Debug, Default)]
struct Outcome {
    kept: Vec<Bytes>,
    rounds: Vec<Bytes>,
    absorbed: Vec<Group>,
    used: Option<(String, u64)>,
}

/// How far determinants travel, and how many in frames.
#[derive(Debug, Clone, Copy)]
struct Sharing {
    depth: u32,
    riding_bytes: u64,
}

impl From<u32> for Sharing {
    fn from(depth: u32) -> Self {
        Self { depth, riding_bytes: u64::MAX }
    }
}

/// The function under test. All it does follows from its input and the services.
struct Attempt {
    service: ServiceTask,
    stage: Stage<InMemory>,
    luck: Luck,
    out: Outcome,
}

impl Attempt {
    fn new(prior: &[Bytes], sharing: impl Into<Sharing>, luck: Luck) -> crate::error::Result<Self> {
        let Sharing { depth, riding_bytes } = sharing.into();
        let me = task("score", 2);
        let options = TaskOptions::new(me.clone(), TaskMode::Services, 0xc0de);
        let service = ServiceTask::new(options, prior.to_vec(), true)?;
        let options = scatter_options(me.clone(), Some(3), 3);
        let options = ScatterOptions { keys: vec![0], round_bytes: 60, riding_bytes, ..options };
        let gather = Gather::new(InMemory::default(), service.orders().to_vec());
        let stage = Stage::new(&me, depth, Some(gather), Some(Scatter::new(options)), Some(&service), prior);
        assert_eq!(stage.recorded_before(), !prior.is_empty());
        Ok(Self { service, stage, luck, out: Outcome::default() })
    }

    fn call(&mut self) -> crate::error::Result<i64> {
        let value = match self.service.call(LOOKUP)? {
            CallDecision::Replayed { value, .. } => value,
            CallDecision::Live => {
                let value = Bytes::copy_from_slice(&(self.luck.dice.roll(5) as i64).to_le_bytes());
                self.service.record_call(LOOKUP, true, value.clone())?;
                value
            }
        };
        Ok(i64::from_le_bytes(value[..].try_into().unwrap()))
    }

    fn cut(&mut self, last: bool) -> crate::error::Result<()> {
        let cut = self.stage.cut(Some(&mut self.service), last)?;
        // Also if all of it is replayed: the earlier attempt may not have come to publish it.
        assert!(!(last && cut.named) || cut.keep.is_some(), "who ends with a log that is named publishes it");
        self.out.kept.extend(cut.keep.filter(|block| !block.is_empty()));
        self.out.rounds.push(cut.round.bytes);
        Ok(())
    }

    /// Each row becomes itself and what the services said; each third batch is left out.
    fn process(&mut self, batches: &[RecordBatch]) -> crate::error::Result<()> {
        for number in values(batches) {
            let now = self.luck.clock();
            let mut row = number.wrapping_add(self.service.time(now)?);
            if number % 4 == 1 {
                row = row.wrapping_add(self.call()?);
            }
            if number % 3 != 2 && self.stage.push(numbers([row, number]))? {
                self.cut(false)?;
            }
        }
        Ok(())
    }

    fn run(mut self, frames: &[Vec<Bytes>]) -> crate::error::Result<Outcome> {
        for frame in self.luck.dice.interleave(frames) {
            self.stage.offer(frame)?;
            while let Some(input) = self.stage.take(Some(&mut self.service))? {
                self.out.absorbed.extend(input.absorb);
                self.process(&input.batches)?;
            }
        }
        self.out.used = self.stage.end_input(None)?;
        self.cut(true)?;
        assert!(self.service.take_block().is_none(), "the last cut leaves nothing behind");
        self.service.finish()?;
        Ok(self.out)
    }
}

fn attempt(
    prior: &[Bytes],
    sharing: impl Into<Sharing>,
    seed: u64,
    frames: &[Vec<Bytes>],
) -> crate::error::Result<Outcome> {
    Attempt::new(prior, sharing, Luck::new(seed))?.run(frames)
}

fn senders(rounds: &[Vec<usize>]) -> Vec<Vec<Bytes>> {
    let tasks = u32::try_from(rounds.len()).ok();
    (0..).zip(rounds).map(|(sender, rounds)| frames_of(sender, tasks, rounds)).collect()
}

/// Rounds whose determinants are all in `kept`.
fn covered(kept: &[Bytes]) -> usize {
    let options = TaskOptions::new(task("score", 2), TaskMode::Services, 0xc0de);
    let service = ServiceTask::new(options, kept.to_vec(), true).unwrap();
    assert_eq!(service.rounds().len(), kept.len());
    let last = service.rounds().last().copied();
    last.map_or(0, |round| 1 + round.expect("each block was kept for a round") as usize)
}

#[test]
fn another_content_in_a_frame_means_another_upstream() {
    let frames = senders(&[vec![3, 4], vec![2]]);
    let first = attempt(&[], 1, 5, &frames).unwrap();
    let mut base = frames.clone();
    // The same determinants, and so the same versions, but other rows.
    base[0] = frames_with(0, Some(2), &[3, 4], b"block", 1);
    // Other determinants; the rows are the same.
    let mut version = frames.clone();
    version[0] = frames_with(0, Some(2), &[3, 4], b"other", 0);
    // Fewer rows, and more.
    let mut rows = frames.clone();
    rows[0] = frames_of(0, Some(2), &[3, 5]);
    for other in [base, version, rows] {
        let changed = attempt(&first.kept, 1, 6, &other).unwrap_err();
        let Error::UpstreamChanged { upstream } = changed else { panic!("{changed:?}") };
        assert_eq!(upstream, task("up", 0));
    }
    attempt(&first.kept, 1, 6, &frames).unwrap();
}

#[test]
fn a_replay_is_not_finished_before_all_of_its_recorded_input_came() {
    let frames = senders(&[vec![3, 4], vec![2]]);
    let first = attempt(&[], 1, 5, &frames).unwrap();
    let mut fewer = frames;
    fewer[1].remove(0);
    assert!(attempt(&first.kept, 1, 6, &fewer).is_err());
}

#[test]
fn a_frame_without_the_determinants_that_led_to_it_is_refused() {
    let frames = frames_of(0, Some(1), &[2]);
    let mut frame = read(&frames[0]).unwrap();
    frame.head.log = LogVersion(7);
    let forged = with_payload(&frame, &frame.payload);
    let refused = attempt(&[], 1, 5, &[vec![forged]]).unwrap_err();
    assert!(refused.to_string().contains("does not bring the determinants"), "{refused}");
}

#[test]
fn a_stage_says_what_it_does_not_do() {
    let mut nothing: Stage<InMemory> = Stage::new(&task("score", 2), 1, None, None, None, &[]);
    for refused in [
        nothing.offer(Bytes::new()).unwrap_err(),
        nothing.take(None).unwrap_err(),
        nothing.push(numbers([1])).unwrap_err(),
        nothing.cut(None, true).unwrap_err(),
    ] {
        assert_eq!(refused.condition(), "MISUSE");
    }
    assert!(nothing.end_input(None).unwrap().is_none());
    assert!(!nothing.has_input());
}

#[test]
fn a_changed_function_is_a_divergence_and_no_change_upstream() {
    let frames = senders(&[vec![3]]);
    let first = attempt(&[], 1, 5, &frames).unwrap();
    let mut second = Attempt::new(&first.kept, 1, Luck::new(6)).unwrap();
    second.service.call(LOOKUP).unwrap_err();
    let mut third = Attempt::new(&first.kept, 1, Luck::new(6)).unwrap();
    third.stage.offer(frames[0][0].clone()).unwrap();
    third.stage.take(Some(&mut third.service)).unwrap().unwrap();
    let refused = third.service.call(LOOKUP).unwrap_err();
    assert!(
        matches!(refused, Error::Divergence(divergence) if divergence.kind == DivergenceKind::ServiceMismatch)
    );
}

#[test]
fn each_reading_of_the_clock_is_given_again() {
    let readings = [5, 5, 5, 6, 6, 5, i64::MIN, i64::MAX, i64::MAX, 0, 0, 0, 0, -1];
    let options = || TaskOptions::new(task("score", 2), TaskMode::Services, 0xc0de);
    // Cut before each reading in turn: a run of equal readings may lie across blocks and batches.
    for cut in 0..readings.len() {
        let mut first = ServiceTask::new(options(), Vec::new(), true).unwrap();
        let mut blocks = Vec::new();
        for (number, reading) in readings.iter().enumerate() {
            if number == cut {
                blocks.extend(first.take_block_for(0));
            }
            if number % 4 == 2 {
                first.input(1, number as u64).unwrap();
            }
            assert_eq!(first.time(*reading).unwrap(), *reading);
        }
        blocks.extend(first.take_block_for(1));
        let mut second = ServiceTask::new(options(), blocks, true).unwrap();
        for (number, reading) in readings.iter().enumerate() {
            if number % 4 == 2 {
                second.input(1, number as u64).unwrap();
            }
            assert!(second.is_replaying());
            assert_eq!(second.time(77).unwrap(), *reading, "reading {number}, cut at {cut}");
        }
        assert_eq!(second.time(77).unwrap(), 77);
    }
}

#[test]
fn equal_readings_of_the_clock_take_no_room() {
    let options = || TaskOptions::new(task("score", 2), TaskMode::Services, 0xc0de);
    let mut first = ServiceTask::new(options(), Vec::new(), true).unwrap();
    for _ in 0..100_000 {
        first.time(1_700_000_000_000_000_000).unwrap();
    }
    let block = first.take_block().unwrap();
    assert!(block.len() < 80, "{} bytes", block.len());
    let mut second = ServiceTask::new(options(), vec![block], true).unwrap();
    for _ in 0..100_000 {
        assert_eq!(second.time(7).unwrap(), 1_700_000_000_000_000_000);
    }
    assert!(!second.is_replaying());
}

/// Senders with rounds of a few rows.
fn inputs() -> impl Strategy<Value = Vec<Vec<usize>>> {
    prop::collection::vec(prop::collection::vec(1_usize..9, 0..6), 1..4)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_replay_of_any_beginning_sends_the_same_bytes_as_far_as_it_goes(
        rounds in inputs(),
        depth in prop::sample::select(vec![0, 1, 2, u32::MAX]),
        riding_bytes in prop::sample::select(vec![0, 200, 600, u64::MAX]),
        seed in any::<u64>(),
    ) {
        let frames = senders(&rounds);
        let sharing = Sharing { depth, riding_bytes };
        let first = attempt(&[], sharing, seed, &frames).unwrap();
        for kept in 0..=first.kept.len() {
            let prior = &first.kept[..kept];
            let second = attempt(prior, sharing, seed ^ 0xff, &frames).unwrap();
            let covered = covered(prior);
            prop_assert_eq!(&second.rounds[..covered], &first.rounds[..covered]);
            if kept == first.kept.len() {
                prop_assert_eq!(&second.kept, &Vec::<Bytes>::new());
                prop_assert_eq!(&second.rounds, &first.rounds);
                prop_assert_eq!(&second.absorbed, &first.absorbed);
                prop_assert_eq!(&second.used, &first.used);
            }
            // What both recorded is the log of the second attempt.
            let whole = [prior, &second.kept[..]].concat();
            let third = attempt(&whole, sharing, seed ^ 0xf0f0, &frames).unwrap();
            prop_assert_eq!(third.kept, Vec::<Bytes>::new());
            prop_assert_eq!(third.rounds, second.rounds);
        }
    }

    #[test]
    fn what_a_failed_attempt_was_answered_changes_no_frame_that_was_sent_before(
        rounds in inputs(),
        frames_taken in 0_usize..20,
        kept in 0_usize..4,
        seed in any::<u64>(),
    ) {
        let frames = senders(&rounds);
        let first = attempt(&[], 1, seed, &frames).unwrap();
        let prior = &first.kept[..kept.min(first.kept.len())];
        // It replays what is known, goes on live, and fails somewhere.
        let mut failing = Attempt::new(prior, 1, Luck::new(seed ^ 0xff)).unwrap();
        let in_turn: Vec<Bytes> = failing.luck.dice.interleave(&frames);
        for frame in in_turn.into_iter().take(frames_taken) {
            failing.stage.offer(frame).unwrap();
            while let Some(input) = failing.stage.take(Some(&mut failing.service)).unwrap() {
                failing.process(&input.batches).unwrap();
            }
        }
        let answers = failing.stage.answers(&mut failing.service);
        let sent = covered(prior).min(failing.out.rounds.len());
        let log: Vec<Bytes> = prior.iter().cloned().chain(failing.out.kept).chain(answers).collect();
        let third = attempt(&log, 1, seed ^ 0xf0f0, &frames).unwrap();
        prop_assert_eq!(&third.rounds[..sent], &first.rounds[..sent]);
        prop_assert_eq!(&third.rounds[..failing.out.rounds.len()], &failing.out.rounds[..]);
    }

    #[test]
    fn everything_that_senders_recorded_is_absorbed_once(rounds in inputs(), seed in any::<u64>()) {
        let frames = senders(&rounds);
        let out = attempt(&[], 1, seed, &frames).unwrap();
        let mut ends = std::collections::HashMap::new();
        for group in &out.absorbed {
            let end = ends.entry(group.partition).or_insert(LogOffset::START);
            prop_assert_eq!(group.from, *end);
            *end = group.end();
        }
        for (sender, rounds) in (0..).zip(&rounds) {
            let bytes = ends.get(&Partition(sender)).copied().unwrap_or_default().0;
            prop_assert_eq!(bytes, 6 * rounds.len() as u64);
        }
    }
}
