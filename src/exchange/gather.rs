//! The consumer's side: frames taken in an order that is recorded, and turned back into batches.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_ipc::reader::StreamDecoder;
use bytes::Bytes;

use crate::error::{Error, Result};
use crate::frame::{self, Frame, Group, LogVersion, Opening, decode_groups};
use crate::id::Partition;
use crate::task::Order;

/// Where frames wait that came before their turn. Memory is bounded, so an implementation may use disk.
pub trait FrameStore {
    /// Stores a frame; a number under which it is found again.
    ///
    /// # Errors
    /// If there is no room.
    fn put(&mut self, frame: Bytes) -> Result<u64>;

    /// Gets a frame back and forgets it.
    ///
    /// # Errors
    /// If it cannot be read.
    fn take(&mut self, number: u64) -> Result<Bytes>;
}

/// Keeps everything in memory.
#[derive(Debug, Default)]
pub struct InMemory {
    frames: BTreeMap<u64, Bytes>,
    next: u64,
}

impl FrameStore for InMemory {
    fn put(&mut self, frame: Bytes) -> Result<u64> {
        self.next += 1;
        self.frames.insert(self.next, frame);
        Ok(self.next)
    }

    fn take(&mut self, number: u64) -> Result<Bytes> {
        let frame = self.frames.remove(&number);
        frame.ok_or_else(|| Error::Misuse { what: format!("frame {number} was not stored") })
    }
}

/// One sender.
#[derive(Debug, Default)]
struct Sender {
    opening: Option<Opening>,
    decoder: StreamDecoder,
    /// Next frame to take.
    next: u32,
    closed: bool,
    version: LogVersion,
    /// Frames that came and were not taken.
    waiting: VecDeque<u64>,
}

/// A frame that was taken.
#[derive(Debug)]
pub struct Taken {
    /// Who sent it.
    pub opening: Opening,
    /// Its delta.
    pub groups: Vec<Group>,
    /// Its rows, in one batch or several.
    pub batches: Vec<RecordBatch>,
    /// Rows in it.
    pub rows: u32,
    /// Whether more of the sender's log led to it than its frames bring.
    pub named: bool,
    /// Checksum, which stands for its rows.
    pub sum: u32,
    /// The run that this frame extends or begins.
    pub order: Order,
    /// Whether the order was recorded by an earlier attempt.
    pub replayed: bool,
}

/// Takes frames in the recorded order as far as there is one, then in the order in which they come.
///
/// The end of input proves nothing: [`Gather::finish`] wants a last frame from each sender.
#[derive(Debug)]
pub struct Gather<P> {
    store: P,
    /// By the sender's partition.
    senders: BTreeMap<u32, Sender>,
    /// Operator and number of the senders, once known.
    tasks: Option<u32>,
    operator: Option<String>,
    /// The consumer's partition, as frames say.
    channel: Option<Partition>,
    plan: VecDeque<Order>,
    /// Came and can be taken next, when there is no plan.
    arrived: VecDeque<u32>,
    pending: usize,
}

impl<P: FrameStore> Gather<P> {
    /// A consumer with the order that earlier attempts recorded.
    pub fn new(store: P, orders: impl IntoIterator<Item = Order>) -> Self {
        Self {
            store,
            senders: BTreeMap::new(),
            tasks: None,
            operator: None,
            channel: None,
            plan: orders.into_iter().filter(|order| order.frames > 0).collect(),
            arrived: VecDeque::new(),
            pending: 0,
        }
    }

    /// A frame has come.
    ///
    /// # Errors
    /// [`Error::CorruptFrame`] if it does not check out or is not of this exchange; what [`FrameStore`] says.
    pub fn offer(&mut self, bytes: Bytes) -> Result<()> {
        let head = frame::read_head(&bytes)?;
        if *self.channel.get_or_insert(head.channel) != head.channel {
            return Err(corrupt(format!(
                "partitions {} and {} of one exchange came to one task",
                self.channel.unwrap_or_default(),
                head.channel
            )));
        }
        let number = self.store.put(bytes)?;
        self.senders.entry(head.partition.0).or_default().waiting.push_back(number);
        self.arrived.push_back(head.partition.0);
        self.pending += 1;
        Ok(())
    }

    /// Frames that came and were not taken.
    #[must_use]
    pub const fn waiting(&self) -> usize {
        self.pending
    }

    /// The next frame, if it is there.
    ///
    /// # Errors
    /// [`Error::CorruptFrame`]; [`Error::UpstreamChanged`] if a sender's log is not the one that this
    /// task's own log was recorded with.
    pub fn take(&mut self) -> Result<Option<Taken>> {
        let Some((partition, planned)) = self.next_sender() else { return Ok(None) };
        let Some(sender) = self.senders.get_mut(&partition) else { return Ok(None) };
        let Some(number) = sender.waiting.pop_front() else { return Ok(None) };
        self.pending -= 1;
        let frame = frame::read(&self.store.take(number)?)?;
        let batches = sender.accept(&frame)?;
        let opening = sender.opening.clone().ok_or_else(|| corrupt("no opening".into()))?;
        self.tasks = self.tasks.or(opening.tasks);
        self.operator.get_or_insert_with(|| opening.task.operator.to_string());
        let order = Order { channel: partition, frames: 1, version: frame.head.log.0 };
        if let Some(run) = planned {
            self.keep_to(run, &order, &opening)?;
        }
        Ok(Some(Taken {
            opening,
            groups: decode_groups(&frame.delta)?,
            batches,
            rows: frame.head.rows,
            named: frame.head.named,
            sum: frame.sum,
            order,
            replayed: planned.is_some(),
        }))
    }

    /// The end of input.
    ///
    /// # Errors
    /// [`Error::InputCutShort`] unless each sender's last frame came and was taken. `expected`: the number
    /// of senders, where no frame says it.
    pub fn finish(&self, expected: Option<u32>) -> Result<Vec<(Partition, LogVersion)>> {
        let cut_short = |missing: String| {
            let operator = self.operator.clone().unwrap_or_default();
            Err(Error::InputCutShort { operator, missing })
        };
        let open: Vec<u32> = self.senders.iter().filter(|(_, s)| !s.closed).map(|(p, _)| *p).collect();
        if let Some(first) = open.first() {
            return cut_short(format!("the last frame of partition {first}, and of {} more", open.len() - 1));
        }
        let came = u32::try_from(self.senders.len()).unwrap_or(u32::MAX);
        if let Some(tasks) = self.tasks.or(expected).filter(|tasks| *tasks > came) {
            return cut_short(format!("{} of {tasks} partitions", tasks - came));
        }
        if self.pending > 0 {
            return cut_short(format!("what was recorded before {} frames that came", self.pending));
        }
        if let Some(run) = self.plan.front() {
            return cut_short(format!("{} recorded frames of partition {}", run.frames, run.channel));
        }
        Ok(self.senders.iter().map(|(partition, sender)| (Partition(*partition), sender.version)).collect())
    }

    /// Operator of the senders, once a frame came.
    #[must_use]
    pub fn operator(&self) -> Option<&str> {
        self.operator.as_deref()
    }

    /// Whose turn it is, and the rest of the recorded run, if it is recorded.
    fn next_sender(&mut self) -> Option<(u32, Option<Order>)> {
        if let Some(run) = self.plan.front() {
            return Some((run.channel, Some(*run)));
        }
        loop {
            // Frames taken out of turn, at replay, left their places behind.
            let partition = self.arrived.pop_front()?;
            if self.senders.get(&partition).is_some_and(|sender| !sender.waiting.is_empty()) {
                return Some((partition, None));
            }
        }
    }

    /// Notes that one frame of the recorded run was taken.
    fn keep_to(&mut self, run: Order, taken: &Order, opening: &Opening) -> Result<()> {
        let Some(front) = self.plan.front_mut() else { return Ok(()) };
        front.frames -= 1;
        if front.frames > 0 {
            return Ok(());
        }
        self.plan.pop_front();
        if run.version == taken.version {
            return Ok(());
        }
        Err(Error::UpstreamChanged { upstream: opening.task.clone() })
    }
}

impl Sender {
    /// Checks a frame's place and decodes it.
    fn accept(&mut self, frame: &Frame) -> Result<Vec<RecordBatch>> {
        let head = &frame.head;
        let place = format!("frame {} of partition {}", head.sequence, head.partition);
        if self.closed {
            return Err(corrupt(format!("{place} follows the last one")));
        }
        if head.sequence != self.next {
            return Err(corrupt(format!("{place} came where frame {} was due", self.next)));
        }
        if let Some(opening) = &frame.opening {
            if self.opening.is_some() || opening.task_hash() != head.task {
                return Err(corrupt(format!("{place} opens a channel wrongly")));
            }
            self.opening = Some(opening.clone());
        }
        if self.opening.as_ref().is_none_or(|opening| opening.task_hash() != head.task) {
            return Err(corrupt(format!("{place} is another task's")));
        }
        self.next += 1;
        self.closed = head.closes;
        self.version = head.log;
        let mut payload = Buffer::from(frame.payload.clone());
        let mut batches = Vec::new();
        while !payload.is_empty() {
            batches.extend(self.decode(&mut payload, &place)?);
        }
        let mut rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
        if rows < head.rows as usize {
            // Rows of columns without buffers (void) have no bytes behind their message. The decoder gives them
            // once it sees that a byte follows, which it takes only where something else is missing.
            let mut behind = Buffer::from(&[0xff]);
            let last = self.decode(&mut behind, &place)?.filter(|_| !behind.is_empty());
            rows += last.as_ref().map_or(0, RecordBatch::num_rows);
            batches.extend(last);
        }
        if rows == head.rows as usize {
            return Ok(batches);
        }
        Err(corrupt(format!("{place} has {rows} rows and announces {}", head.rows)))
    }

    fn decode(&mut self, payload: &mut Buffer, place: &str) -> Result<Option<RecordBatch>> {
        // Arrow panics on some messages that contradict themselves; the sums hold, so a sender wrote them.
        let decoded = catch_unwind(AssertUnwindSafe(|| self.decoder.decode(payload)));
        let decoded = decoded.map_err(|_| corrupt(format!("{place} is no Arrow stream")))?;
        decoded.map_err(|error| corrupt(format!("{place}: {error}")))
    }
}

fn corrupt(reason: String) -> Error {
    Error::CorruptFrame { reason }
}
