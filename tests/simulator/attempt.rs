//! One attempt of a task, as a Python worker drives it: frames in, the user's function, frames or rows out.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Int64Array, RecordBatch};
use bytes::Bytes;
use clonos::agent::protocol::{Ending, Recovery};
use clonos::error::{Error, Result};
use clonos::exchange::{Compression, Gather, InMemory, Scatter, ScatterOptions, Stage};
use clonos::frame::{Group, Opening};
use clonos::id::{EpochKey, Partition, TaskId};
use clonos::task::{CallDecision, ServiceTask, TaskMode, TaskOptions};

use crate::Mutation;
use crate::cluster::{Cluster, Session, died};
use crate::dice::Dice;
use crate::uses::epoch;

/// Batches that a task of the first stage makes, and rows of each.
const BATCHES: usize = 3;
const ROWS: i64 = 6;
/// Bytes after which a round is cut: a batch or two.
const ROUND_BYTES: usize = 150;

/// Where a task stands in the job.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) stage: usize,
    /// Tasks of this stage, and of the one before.
    pub(crate) tasks: usize,
    pub(crate) senders: usize,
    /// 0 for the last stage.
    pub(crate) consumers: usize,
    pub(crate) depth: usize,
    /// Bytes of determinants that ride in its frames.
    pub(crate) riding: u64,
}

/// A message to the agent that is not waited for.
#[derive(Debug)]
enum Message {
    Keep(Bytes),
    Append(Bytes),
    Absorb(Vec<Group>),
}

/// What a step led to.
#[derive(Debug)]
pub(crate) enum Step {
    /// There is more to do.
    Going,
    /// Rows have left: their number in the task, and what they say.
    Rows(usize, i64),
    /// It is over; its frames by channel.
    Done(Vec<Vec<Bytes>>),
}

/// A running attempt.
pub(crate) struct Attempt {
    pub(crate) session: Session,
    pub(crate) partition: usize,
    pub(crate) shape: Shape,
    /// Frames that Spark has for it, with the host that each lies on.
    pub(crate) inputs: VecDeque<(usize, Bytes)>,
    /// Whether some of them were lost on the way.
    pub(crate) cut_short: bool,
    pub(crate) recorded: bool,
    /// Which use of the epoch's name it is of, and when that began.
    pub(crate) used: u64,
    pub(crate) since: i64,
    service: ServiceTask,
    stage: Stage<InMemory>,
    batches: VecDeque<RecordBatch>,
    made: usize,
    emitted: usize,
    state: i64,
    outbox: VecDeque<Message>,
    frames: Vec<Vec<Bytes>>,
    inputs_used: Option<(String, u64)>,
}

pub(crate) fn task_id(stage: usize, partition: usize) -> TaskId {
    let partition = Partition(partition as u32);
    let EpochKey { query, epoch } = epoch();
    TaskId { query, operator: format!("op{stage}").into(), epoch, partition }
}

fn mix(a: i64, b: i64) -> i64 {
    (a ^ b).wrapping_mul(0x2545_F491_4F6C_DD1D).rotate_left(23)
}

fn batch(ids: Vec<i64>, state: i64) -> RecordBatch {
    let states = Int64Array::from(vec![state; ids.len()]);
    let columns: [(&str, Arc<dyn arrow_array::Array>); 2] =
        [("id", Arc::new(Int64Array::from(ids))), ("state", Arc::new(states))];
    RecordBatch::try_from_iter(columns).unwrap()
}

impl Attempt {
    pub(crate) fn new(
        session: Session,
        partition: usize,
        shape: Shape,
        prior: &[Bytes],
        inputs: VecDeque<(usize, Bytes)>,
        mutation: Mutation,
    ) -> Result<Self> {
        let id = session.task.clone();
        let service =
            ServiceTask::new(TaskOptions::new(id.clone(), TaskMode::Services, 1), prior.to_vec(), false)?;
        let orders = if mutation == Mutation::IgnoreOrder { Vec::new() } else { service.orders().to_vec() };
        let gather = (shape.stage > 0).then(|| Gather::new(InMemory::default(), orders));
        let scatter = (shape.consumers > 0).then(|| {
            Scatter::new(ScatterOptions {
                opening: Opening { task: id.clone(), tasks: Some(shape.tasks as u32) },
                keys: vec![0],
                partitions: shape.consumers as u32,
                compression: Compression::None,
                round_bytes: ROUND_BYTES,
                riding_bytes: shape.riding,
            })
        });
        let depth = if mutation == Mutation::ShortDepth { shape.depth - 1 } else { shape.depth };
        let stage = Stage::new(&id, depth as u32, gather, scatter, Some(&service), prior);
        Ok(Self {
            session,
            partition,
            shape,
            inputs,
            cut_short: false,
            recorded: !prior.is_empty(),
            used: 0,
            since: 0,
            service,
            stage,
            batches: VecDeque::new(),
            made: 0,
            emitted: 0,
            state: 0,
            outbox: VecDeque::new(),
            frames: vec![Vec::new(); shape.consumers],
            inputs_used: None,
        })
    }

    /// One message reaches the agent.
    pub(crate) fn deliver(&mut self, cluster: &mut Cluster, dies: &mut impl FnMut() -> bool) -> Result<bool> {
        match self.outbox.pop_front() {
            Some(Message::Keep(block)) => cluster.keep(&mut self.session, &block, dies).map(|()| true),
            Some(Message::Append(block)) => {
                cluster.append(&mut self.session, Some(&block), dies).map(|()| true)
            }
            Some(Message::Absorb(groups)) => cluster.absorb(&mut self.session, &groups).map(|()| true),
            None => Ok(false),
        }
    }

    fn settle(&mut self, cluster: &mut Cluster, dies: &mut impl FnMut() -> bool) -> Result<()> {
        while self.deliver(cluster, dies)? {}
        Ok(())
    }

    /// The next thing that the worker does.
    pub(crate) fn step(
        &mut self,
        cluster: &mut Cluster,
        dice: &mut Dice,
        clock: i64,
        dies: &mut impl FnMut() -> bool,
    ) -> Result<Step> {
        let Some(input) = self.next_input(cluster.mutation)? else { return self.end(cluster, dies) };
        let Some(batch) = input else { return Ok(Step::Going) };
        let output = self.function(&batch, dice, clock)?;
        // By all that it has seen, as a filter does, or a function that yields twice.
        let outputs = [0, 1, 1, 2][(self.state & 3) as usize];
        if self.shape.consumers > 0 {
            for _ in 0..outputs {
                if self.stage.push(output.clone())? {
                    self.cut(false, cluster)?;
                }
            }
            return Ok(Step::Going);
        }
        if outputs == 0 {
            return Ok(Step::Going);
        }
        self.leave(cluster, dies)?;
        let number = self.emitted;
        self.emitted += 1;
        Ok(Step::Rows(number, self.state))
    }

    /// The next batch; `Some(None)` if only a frame was taken; `None` at the end of input.
    fn next_input(&mut self, mutation: Mutation) -> Result<Option<Option<RecordBatch>>> {
        if self.shape.stage == 0 {
            if self.made == BATCHES {
                return Ok(None);
            }
            let first = (self.partition * BATCHES + self.made) as i64 * ROWS;
            self.made += 1;
            let made = batch((first..first + ROWS).collect(), 0);
            self.service.input(ROWS as u32, first as u64)?;
            return Ok(Some(Some(made)));
        }
        if let Some(batch) = self.batches.pop_front() {
            return Ok(Some(Some(batch)));
        }
        if let Some(input) = self.stage.take(Some(&mut self.service))? {
            if !input.absorb.is_empty() {
                self.outbox.push_back(Message::Absorb(input.absorb));
            }
            self.batches.extend(input.batches);
            return Ok(Some(self.batches.pop_front()));
        }
        if let Some((_, frame)) = self.inputs.pop_front() {
            self.stage.offer(frame)?;
            return Ok(Some(None));
        }
        // Where no frame came, the registry says whether there was anyone to send one.
        let expected = (!self.stage.has_input()).then_some(self.shape.senders as u32);
        match self.stage.end_input(expected) {
            Ok(used) => self.inputs_used = used,
            Err(error) if mutation != Mutation::AcceptCut => return Err(error),
            Err(_) => {}
        }
        assert!(
            !self.cut_short || mutation == Mutation::AcceptCut,
            "an input that was cut short was taken for whole"
        );
        Ok(None)
    }

    /// The user's function: what it makes of a batch depends on the clock, a service, and on everything that
    /// came before, in that order.
    fn function(&mut self, batch: &RecordBatch, dice: &mut Dice, clock: i64) -> Result<RecordBatch> {
        let ids = batch.column(0).as_primitive::<Int64Type>().values().to_vec();
        let states = batch.column(1).as_primitive::<Int64Type>();
        for (id, state) in ids.iter().zip(states.values()) {
            self.state = mix(self.state, mix(*id, *state));
        }
        let time = self.service.time(clock)?;
        assert!(
            time >= self.since,
            "what was recorded in a use of the name that was committed is read again"
        );
        self.state = mix(self.state, time);
        if self.state & 1 == 0 {
            let answer = match self.service.call(9)? {
                CallDecision::Replayed { value, .. } => value,
                CallDecision::Live => {
                    let answer = Bytes::copy_from_slice(&dice.next().to_le_bytes());
                    self.service.record_call(9, true, answer.clone())?;
                    answer
                }
            };
            self.state = mix(self.state, i64::from_le_bytes(answer[..8].try_into().unwrap()));
        }
        Ok(self::batch(ids, self.state))
    }

    fn cut(&mut self, last: bool, cluster: &mut Cluster) -> Result<()> {
        let cut = self.stage.cut(Some(&mut self.service), last)?;
        cluster.count.piggyback += cut.round.delta_bytes;
        if let Some(block) = cut.keep {
            let names = cut.named && cluster.mutation != Mutation::NamedIsKept;
            self.outbox.push_back(if names { Message::Append(block) } else { Message::Keep(block) });
        }
        for (channel, frame) in cut.round.frames() {
            cluster.count.frames += 1;
            self.frames[channel as usize].push(frame);
        }
        Ok(())
    }

    /// Output commit, before rows leave the causal domain.
    fn leave(&mut self, cluster: &mut Cluster, dies: &mut impl FnMut() -> bool) -> Result<()> {
        self.settle(cluster, dies)?;
        let block = self.service.take_block();
        cluster.append(&mut self.session, block.as_ref(), dies)
    }

    /// The function raises: what was answered until then is kept, and the attempt is over.
    pub(crate) fn raise(&mut self, cluster: &mut Cluster) -> std::result::Result<(), String> {
        let answers = self.stage.answers(&mut self.service);
        let alive = &mut || false;
        let kept = self.settle(cluster, alive);
        let kept = kept.and_then(|()| cluster.append(&mut self.session, answers.as_ref(), alive));
        match kept {
            Ok(())
            | Err(Error::Fenced { .. } | Error::StaleFrame { .. } | Error::Timeout { .. })
            | Err(Error::AgentUnreachable { .. } | Error::DiskBudget { .. }) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    fn end(&mut self, cluster: &mut Cluster, dies: &mut impl FnMut() -> bool) -> Result<Step> {
        if self.shape.consumers > 0 {
            self.cut(true, cluster)?;
            self.settle(cluster, dies)?;
            cluster.spread(&self.session)?;
        } else {
            self.leave(cluster, dies)?;
        }
        if dies() {
            return Err(died());
        }
        self.service.finish()?;
        let recovery = if self.recorded { Recovery::Replayed } else { Recovery::Live };
        let used = self.inputs_used.take().into_iter().collect();
        cluster.close(&self.session, Ending { done: true, recovery, used, ..Ending::default() })?;
        Ok(Step::Done(std::mem::take(&mut self.frames)))
    }
}
