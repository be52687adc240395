//! Piggybacked determinants against a model: plain lists of blocks.

use proptest::prelude::*;

use super::*;

fn group(log: &Log, hops: u32, first: usize, last: usize) -> Group {
    Group {
        operator: log.operator.clone(),
        partition: log.partition,
        hops,
        from: log.offset(first),
        blocks: log.blocks[first..last].to_vec(),
    }
}

/// Another task's log, as it is at its source.
#[derive(Debug, Clone)]
struct Log {
    operator: String,
    partition: Partition,
    blocks: Vec<Bytes>,
}

impl Log {
    fn new(number: usize, blocks: &[Vec<u8>]) -> Self {
        let blocks = blocks.iter().map(|block| Bytes::copy_from_slice(block)).collect();
        Self { operator: format!("up{}", number / 2), partition: Partition(number as u32 % 2), blocks }
    }

    fn offset(&self, block: usize) -> LogOffset {
        LogOffset(self.blocks[..block].iter().map(|block| block.len() as u64).sum())
    }

    fn version(&self, blocks: usize) -> LogVersion {
        self.blocks[..blocks].iter().fold(LogVersion::default(), |version, block| version.after(block))
    }
}

fn blocks(most: usize) -> impl Strategy<Value = Vec<Vec<u8>>> {
    prop::collection::vec(prop::collection::vec(any::<u8>(), 1..12), 1..most)
}

fn ours(depth: u32) -> Piggyback {
    Piggyback::new("score", Partition(3), depth)
}

#[test]
fn a_gap_is_refused_and_nothing_is_taken() {
    let log = Log::new(0, &[vec![1; 3], vec![2; 4]]);
    let mut piggyback = ours(2);
    let refused = piggyback.absorb(&group(&log, 1, 1, 2));
    assert!(matches!(refused, Err(Error::LogGap { from: LogOffset(3), end: LogOffset(0) })), "{refused:?}");
    assert_eq!(piggyback.absorb(&group(&log, 1, 0, 2)).unwrap(), Some(group(&log, 1, 0, 2)));
}

#[test]
fn blocks_with_other_borders_are_a_fork() {
    let log = Log::new(0, &[vec![1; 3]]);
    let mut piggyback = ours(2);
    piggyback.absorb(&group(&log, 1, 0, 1)).unwrap();
    let other = Log::new(0, &[vec![1; 2], vec![1; 2]]);
    let refused = piggyback.absorb(&group(&other, 1, 0, 2));
    assert!(matches!(refused, Err(Error::LogFork { at: LogOffset(3) })), "{refused:?}");
    assert_eq!(piggyback.version_of("up0", Partition(0)), log.version(1));
}

#[test]
fn determinants_travel_as_far_as_the_depth() {
    for (depth, hops_carried) in
        [(0, vec![]), (1, vec![1]), (2, vec![1, 2]), (u32::MAX, vec![1, 2, 3, u32::MAX])]
    {
        let mut piggyback = ours(depth);
        piggyback.record(&Bytes::from_static(b"own"));
        for (number, hops) in [1, 2, u32::MAX].into_iter().enumerate() {
            let log = Log::new(2 * number, &[vec![1; 5]]);
            // It is new, and the agent's to hold, however far it travels from here.
            assert!(piggyback.absorb(&group(&log, hops, 0, 1)).unwrap().is_some());
        }
        let delta = piggyback.delta(&mut Cursor::default());
        assert_eq!(delta.iter().map(|group| group.hops).collect::<Vec<_>>(), hops_carried, "depth {depth}");
        let bytes: usize = delta.iter().flat_map(|group| &group.blocks).map(Bytes::len).sum();
        assert_eq!(piggyback.pending_bytes(), bytes as u64);
        assert_eq!(piggyback.version(), LogVersion::default().after(b"own"));
    }
}

#[test]
fn logs_of_one_operator_are_told_apart_by_partition_and_by_operator() {
    let logs: Vec<Log> = (0..4).map(|number| Log::new(number, &[vec![number as u8; 3]])).collect();
    let mut piggyback = ours(2);
    for log in &logs {
        assert_eq!(piggyback.version_of(&log.operator, log.partition), LogVersion::default());
        piggyback.absorb(&group(log, 1, 0, 1)).unwrap();
    }
    for log in &logs {
        assert_eq!(piggyback.version_of(&log.operator, log.partition), log.version(1));
    }
    assert_eq!(piggyback.delta(&mut Cursor::default()).len(), 4);
}

/// One thing that happens to a task.
#[derive(Debug, Clone)]
enum Op {
    /// Its own log grows.
    Record(Vec<u8>),
    /// A frame brings blocks of a log, up to so many.
    Absorb {
        log: usize,
        known: usize,
        up_to: usize,
    },
    /// A frame leaves on a channel.
    Send {
        channel: usize,
    },
    Trim,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        prop::collection::vec(any::<u8>(), 1..12).prop_map(Op::Record),
        (0_usize..4, 0_usize..9, 0_usize..9).prop_map(|(log, known, up_to)| Op::Absorb { log, known, up_to }),
        (0_usize..3).prop_map(|channel| Op::Send { channel }),
        Just(Op::Trim),
    ];
    prop::collection::vec(op, 0..60)
}

/// A task, the logs it hears of, and what each of its consumers was sent.
struct World {
    depth: u32,
    piggyback: Piggyback,
    own: Log,
    logs: Vec<Log>,
    known: Vec<usize>,
    cursors: [Cursor; 3],
    consumers: [Vec<(Log, u32)>; 3],
}

impl World {
    fn new(depth: u32, logs: Vec<Log>) -> Self {
        let own = Log { operator: "score".into(), partition: Partition(3), blocks: Vec::new() };
        let known = vec![0; logs.len()];
        let piggyback = ours(depth);
        Self {
            depth,
            piggyback,
            own,
            logs,
            known,
            cursors: Default::default(),
            consumers: Default::default(),
        }
    }

    /// A log's distance to this task follows from its number.
    const fn hops(log: usize) -> u32 {
        log as u32 + 1
    }

    fn apply(&mut self, op: &Op) {
        match op {
            Op::Record(block) => {
                let block = Bytes::copy_from_slice(block);
                self.piggyback.record(&block);
                self.own.blocks.push(block);
                assert_eq!(self.piggyback.version(), self.own.version(self.own.blocks.len()));
            }
            Op::Absorb { log, known, up_to } => {
                let source = &self.logs[*log];
                let last = (*up_to).min(source.blocks.len());
                let first = (*known).min(self.known[*log]).min(last);
                self.piggyback.absorb(&group(source, Self::hops(*log), first, last)).unwrap();
                self.known[*log] = self.known[*log].max(last);
            }
            Op::Send { channel } => self.send(*channel),
            Op::Trim => {
                self.piggyback.trim(self.cursors.iter().copied());
                assert_eq!(self.piggyback.pending_bytes(), self.not_with_all());
            }
        }
    }

    fn send(&mut self, channel: usize) {
        let consumer = &mut self.consumers[channel];
        let delta = self.piggyback.delta(&mut self.cursors[channel]);
        for (number, group) in delta.iter().enumerate() {
            assert!(group.hops <= self.depth && !group.blocks.is_empty());
            let same = |log: &Log| log.operator == group.operator && log.partition == group.partition;
            let twice = delta[..number]
                .iter()
                .any(|g| (&g.operator, g.partition) == (&group.operator, group.partition));
            assert!(!twice, "one group for each log");
            let at = consumer.iter().position(|(log, _)| same(log)).unwrap_or_else(|| {
                let (operator, partition) = (group.operator.clone(), group.partition);
                consumer.push((Log { operator, partition, blocks: Vec::new() }, group.hops));
                consumer.len() - 1
            });
            let (log, hops) = &mut consumer[at];
            assert_eq!(group.from, log.offset(log.blocks.len()), "no block twice and none left out");
            assert_eq!(group.hops, *hops);
            log.blocks.extend(group.blocks.iter().cloned());
        }
        assert_eq!(self.piggyback.delta(&mut self.cursors[channel]), [], "nothing is new");
        self.check(channel);
    }

    /// A consumer that was just sent a frame has all that it should have.
    fn check(&self, channel: usize) {
        let found = |log: &Log| {
            let mut all = self.consumers[channel].iter();
            all.find(|(found, _)| (&found.operator, found.partition) == (&log.operator, log.partition))
        };
        if self.depth > 0 && !self.own.blocks.is_empty() {
            let (log, hops) = found(&self.own).expect("the task's own log");
            assert_eq!((&log.blocks, *hops), (&self.own.blocks, 1));
        }
        for (number, log) in self.logs.iter().enumerate() {
            let carried = Self::hops(number) < self.depth && self.known[number] > 0;
            assert_eq!(found(log).is_some(), carried);
            if let Some((found, hops)) = found(log) {
                assert_eq!(found.blocks, log.blocks[..self.known[number]]);
                assert_eq!(*hops, Self::hops(number) + 1);
            }
        }
    }

    /// Bytes that some consumer has not been sent.
    fn not_with_all(&self) -> u64 {
        let with = |log: &Log, channel: usize| {
            let mut all = self.consumers[channel].iter();
            let same = |found: &&(Log, u32)| {
                (&found.0.operator, found.0.partition) == (&log.operator, log.partition)
            };
            all.find(same).map_or(0, |(log, _)| log.blocks.len())
        };
        let own = (&self.own, self.own.blocks.len(), 1);
        let others = self.logs.iter().enumerate();
        let others = others.map(|(number, log)| (log, self.known[number], Self::hops(number) + 1));
        let carried = std::iter::once(own).chain(others).filter(|(_, _, hops)| *hops <= self.depth);
        let bytes = carried.map(|(log, known, _)| {
            let least = (0..3).map(|channel| with(log, channel)).min().unwrap_or_default();
            log.offset(known).0 - log.offset(least).0
        });
        bytes.sum()
    }
}

proptest! {
    #[test]
    fn absorbing_parts_in_any_order_gives_a_prefix_of_the_log(
        blocks in blocks(20),
        parts in prop::collection::vec((0_usize..20, 0_usize..20), 0..40),
    ) {
        let log = Log::new(0, &blocks);
        let mut piggyback = ours(u32::MAX);
        let (mut known, mut all) = (0, Vec::new());
        for (a, b) in parts {
            let (a, b) = (a.min(log.blocks.len()), b.min(log.blocks.len()));
            let (first, last) = (a.min(b), a.max(b));
            let absorbed = piggyback.absorb(&group(&log, 1, first, last));
            if first > known {
                let gap = matches!(absorbed, Err(Error::LogGap { .. }));
                prop_assert!(gap, "{:?}", absorbed);
            } else {
                let new = (last > known).then(|| group(&log, 1, known, last));
                prop_assert_eq!(absorbed.unwrap(), new.clone());
                all.extend(new.into_iter().flat_map(|group| group.blocks));
                known = known.max(last);
            }
            prop_assert_eq!(&all, &log.blocks[..known]);
            prop_assert_eq!(piggyback.version_of("up0", Partition(0)), log.version(known));
        }
    }

    #[test]
    fn each_consumer_is_sent_everything_once_and_in_order(
        depth in prop::sample::select(vec![0, 1, 2, 3, u32::MAX]),
        logs in prop::collection::vec(blocks(9), 4),
        ops in ops(),
    ) {
        let logs = logs.iter().enumerate().map(|(number, blocks)| Log::new(number, blocks)).collect();
        let mut world = World::new(depth, logs);
        ops.iter().for_each(|op| world.apply(op));
        (0..3).for_each(|channel| world.send(channel));
        world.apply(&Op::Trim);
        prop_assert_eq!(world.piggyback.pending_bytes(), 0);
    }

    #[test]
    fn a_replay_that_hears_the_same_in_the_same_order_sends_the_same(
        depth in prop::sample::select(vec![1, 2, u32::MAX]),
        logs in prop::collection::vec(blocks(9), 4),
        ops in ops(),
    ) {
        let logs = logs.iter().enumerate().map(|(number, blocks)| Log::new(number, blocks));
        let logs: Vec<Log> = logs.collect();
        let deltas = |trims: bool| {
            let mut world = World::new(depth, logs.clone());
            let mut deltas = Vec::new();
            for op in &ops {
                match op {
                    Op::Send { channel } => deltas.push(world.piggyback.delta(&mut world.cursors[*channel])),
                    Op::Trim if trims => world.piggyback.trim(world.cursors.iter().copied()),
                    Op::Trim => {}
                    op => world.apply(op),
                }
            }
            deltas
        };
        prop_assert_eq!(deltas(true), deltas(false));
    }
}
