//! The sender's side: rows sorted by target and cut into frames.

use std::io::Write;

use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions, UInt32Array};
use arrow_ipc::writer::{IpcWriteOptions, StreamWriter};
use arrow_ipc::{CompressionType, MetadataVersion};
use arrow_schema::SchemaRef;
use arrow_select::concat::concat_batches;
use arrow_select::take::take_arrays;
use bytes::Bytes;

use super::canonical::canonical;
use super::partition::partitions_of;
use super::piggyback::{Cursor, Piggyback};
use super::size::batch_bytes;
use crate::error::{Error, Result};
use crate::frame::{Head, Opening, encode_groups, seal};
use crate::id::Partition;

/// Rows that one channel gets of a sorted batch, on average, or more: below that the messages around them
/// would cost more than another copy.
const PART_ROWS: usize = 512;
/// Arrow buffers start at multiples of this many bytes in a payload.
const BUFFER_ALIGNMENT: usize = 8;

/// Whether payloads are compressed. Spark's shuffle compresses what it writes, too, unless told not to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compression {
    /// Not at all.
    #[default]
    None,
    /// Each Arrow buffer with LZ4.
    Lz4,
}

/// What a sender is told.
#[derive(Debug, Clone)]
pub struct ScatterOptions {
    /// Who sends.
    pub opening: Opening,
    /// Indices of the key columns; without any, rows are dealt out in turn.
    pub keys: Vec<usize>,
    /// Channels.
    pub partitions: u32,
    /// Compression of payloads.
    pub compression: Compression,
    /// Bytes of a round; it is over when this many or more have come.
    pub round_bytes: usize,
    /// Bytes of determinants that ride in all frames together: see [`RIDING_BYTES_MAX`](super::RIDING_BYTES_MAX).
    pub riding_bytes: u64,
}

/// One channel.
#[derive(Default)]
struct Channel {
    writer: Option<StreamWriter<Sink>>,
    sequence: u32,
    cursor: Cursor,
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Channel").field("sequence", &self.sequence).finish_non_exhaustive()
    }
}

/// Takes the buffer of frames while a writer writes, and gives it back.
#[derive(Debug, Default)]
struct Sink(Vec<u8>);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The frames of one round, back to back in one buffer.
#[derive(Debug, Clone, Default)]
pub struct Round {
    /// All bytes.
    pub bytes: Bytes,
    /// Channel of each frame.
    pub channels: Vec<u32>,
    /// Where each frame ends in `bytes`.
    pub ends: Vec<usize>,
    /// Bytes of deltas in them.
    pub delta_bytes: u64,
    /// Bytes of payloads in them.
    pub payload_bytes: u64,
}

impl Round {
    /// The frames, in order.
    pub fn frames(&self) -> impl Iterator<Item = (u32, Bytes)> + '_ {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let ranges = starts.zip(&self.ends);
        self.channels
            .iter()
            .zip(ranges)
            .map(|(channel, (start, end))| (*channel, self.bytes.slice(start..*end)))
    }
}

/// Sorts rows by target and cuts them into frames: one per channel that has rows, and round. How rows fall
/// into rounds depends on their number and size alone, so a replay cuts where the first run did.
#[derive(Debug)]
pub struct Scatter {
    options: ScatterOptions,
    task: u64,
    /// Batches of this round that were not sorted yet.
    pending: Vec<RecordBatch>,
    pending_rows: usize,
    /// Batches of this round whose rows stand in the order of their channels.
    sorted: Vec<Sorted>,
    round_bytes: usize,
    channels: Vec<Channel>,
    round: u32,
    dealt: u64,
    closed: bool,
    capacity: usize,
}

impl Scatter {
    /// A sender that has sent nothing.
    #[must_use]
    pub fn new(options: ScatterOptions) -> Self {
        let channels = (0..options.partitions).map(|_| Channel::default()).collect();
        let task = options.opening.task_hash();
        Self {
            options,
            task,
            pending: Vec::new(),
            pending_rows: 0,
            sorted: Vec::new(),
            round_bytes: 0,
            channels,
            round: 0,
            dealt: 0,
            closed: false,
            capacity: 0,
        }
    }

    /// Takes a batch; whether a round is full, and [`Scatter::cut`] due.
    ///
    /// # Errors
    /// As [`Scatter::cut`].
    pub fn push(&mut self, batch: RecordBatch) -> Result<bool> {
        self.round_bytes += batch_bytes(&batch);
        self.pending_rows += batch.num_rows();
        if batch.num_rows() > 0 {
            self.pending.push(batch);
        }
        // Sorted while it is still in the processor's cache, but in parts that are worth a message each.
        if self.pending_rows >= PART_ROWS * self.options.partitions as usize {
            self.sort_pending()?;
        }
        Ok(self.round_bytes >= self.options.round_bytes)
    }

    fn sort_pending(&mut self) -> Result<()> {
        let batches = std::mem::take(&mut self.pending);
        self.pending_rows = 0;
        let Some(first) = batches.first() else { return Ok(()) };
        let whole = match batches.as_slice() {
            [only] => only.clone(),
            _ => concat_batches(&first.schema(), &batches)?,
        };
        let sorted = self.sort(&whole)?;
        self.sorted.push(sorted);
        Ok(())
    }

    /// What it was told.
    #[must_use]
    pub const fn options(&self) -> &ScatterOptions {
        &self.options
    }

    /// Number of the round that is cut next.
    #[must_use]
    pub const fn round(&self) -> u32 {
        self.round
    }

    /// Makes the frames of the round. `piggyback` has everything that led to it.
    ///
    /// # Errors
    /// [`Error::UnsupportedType`], [`Error::Arrow`] for columns that cannot be sent.
    pub fn cut(&mut self, piggyback: &mut Piggyback) -> Result<Round> {
        self.send(piggyback, false)
    }

    /// The last frames, one for each channel.
    ///
    /// # Errors
    /// As [`Scatter::cut`]; [`Error::Misuse`] the second time.
    pub fn finish(&mut self, piggyback: &mut Piggyback) -> Result<Round> {
        if std::mem::replace(&mut self.closed, true) {
            return Err(Error::Misuse { what: "an exchange was finished twice".into() });
        }
        self.send(piggyback, true)
    }

    fn send(&mut self, piggyback: &mut Piggyback, closes: bool) -> Result<Round> {
        self.sort_pending()?;
        let sorted = std::mem::take(&mut self.sorted);
        self.round_bytes = 0;
        self.round += 1;
        let mut out = Vec::with_capacity(self.capacity);
        let mut round = Round::default();
        for number in 0..self.options.partitions {
            let parts: Vec<_> = sorted.iter().filter_map(|sorted| sorted.part(number)).collect();
            if !parts.is_empty() || closes {
                self.frame(number, &parts, closes, piggyback, &mut out, &mut round)?;
            }
        }
        // The next round is about as large; growing a buffer step by step would copy it several times.
        self.capacity = out.len() + out.len() / 8;
        round.bytes = Bytes::from(out);
        piggyback.trim(self.channels.iter().map(|channel| channel.cursor));
        Ok(round)
    }

    fn frame(
        &mut self,
        number: u32,
        parts: &[RecordBatch],
        closes: bool,
        piggyback: &Piggyback,
        out: &mut Vec<u8>,
        round: &mut Round,
    ) -> Result<()> {
        let Some(channel) = self.channels.get_mut(number as usize) else { return Ok(()) };
        let mut delta = Vec::new();
        encode_groups(&piggyback.delta(&mut channel.cursor), &mut delta)?;
        let rows: usize = parts.iter().map(RecordBatch::num_rows).sum();
        let head = Head {
            task: self.task,
            partition: self.options.opening.task.partition,
            channel: Partition(number),
            sequence: channel.sequence,
            rows: u32::try_from(rows)
                .map_err(|_| Error::Misuse { what: "too many rows in a frame".into() })?,
            log: piggyback.version(),
            named: piggyback.is_named(),
            closes,
        };
        let opening = Some(&self.options.opening).filter(|_| channel.sequence == 0);
        channel.sequence += 1;
        let (writer, compression) = (&mut channel.writer, self.options.compression);
        let mut payload = 0;
        seal(out, &head, opening, &delta, |out| {
            let before = out.len();
            parts.iter().try_for_each(|part| write_part(writer, compression, part, out))?;
            payload = out.len() - before;
            Ok(())
        })?;
        round.delta_bytes += delta.len() as u64;
        round.payload_bytes += payload as u64;
        round.channels.push(number);
        round.ends.push(out.len());
        Ok(())
    }

    /// Rows in the order of their channels, and within one in their own.
    fn sort(&mut self, batch: &RecordBatch) -> Result<Sorted> {
        let partitions = self.options.partitions;
        let mut targets = Vec::with_capacity(batch.num_rows());
        if self.options.keys.is_empty() {
            let first = self.dealt;
            targets.extend((first..).take(batch.num_rows()).map(|row| (row % u64::from(partitions)) as u32));
            self.dealt += batch.num_rows() as u64;
        } else {
            let keys = self.options.keys.iter().map(|&key| column(batch, key)).collect::<Result<Vec<_>>>()?;
            partitions_of(&keys, partitions, &mut targets)?;
        }
        let (order, starts) = counting_sort(&targets, partitions)?;
        // With one channel, too: what a slice has behind its end would get into the frame, and into its checksum.
        let columns = take_arrays(batch.columns(), &order, None)?;
        let columns = columns.into_iter().map(canonical).collect::<Result<Vec<_>>>()?;
        let rows = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        Ok(Sorted { batch: RecordBatch::try_new_with_options(batch.schema(), columns, &rows)?, starts })
    }
}

fn column(batch: &RecordBatch, index: usize) -> Result<ArrayRef> {
    let found = batch.columns().get(index).cloned();
    found.ok_or_else(|| Error::Misuse { what: format!("key column {index} of {}", batch.num_columns()) })
}

/// A batch whose rows stand in the order of their channels.
#[derive(Debug)]
struct Sorted {
    batch: RecordBatch,
    /// Where each channel's rows start, and where the last one's end.
    starts: Vec<usize>,
}

impl Sorted {
    fn part(&self, number: u32) -> Option<RecordBatch> {
        let start = *self.starts.get(number as usize)?;
        let end = *self.starts.get(number as usize + 1)?;
        (end > start).then(|| self.batch.slice(start, end - start))
    }
}

/// Row numbers ordered by target, stable; and where each target starts.
fn counting_sort(targets: &[u32], partitions: u32) -> Result<(UInt32Array, Vec<usize>)> {
    let rows = u32::try_from(targets.len());
    let rows = rows.map_err(|_| Error::Misuse { what: "a round of more than 2^32 rows".into() })?;
    let mut starts = vec![0_usize; partitions as usize + 1];
    for &target in targets {
        if let Some(count) = starts.get_mut(target as usize + 1) {
            *count += 1;
        }
    }
    let mut sum = 0;
    for start in &mut starts {
        sum += *start;
        *start = sum;
    }
    let mut next = starts.clone();
    let mut order = vec![0_u32; targets.len()];
    for (row, &target) in (0..rows).zip(targets) {
        if let Some(place) = next.get_mut(target as usize) {
            if let Some(slot) = order.get_mut(*place) {
                *slot = row;
            }
            *place += 1;
        }
    }
    Ok((UInt32Array::from(order), starts))
}

/// Writes a batch of a channel, after the schema if it is the first.
fn write_part(
    writer: &mut Option<StreamWriter<Sink>>,
    compression: Compression,
    part: &RecordBatch,
    out: &mut Vec<u8>,
) -> Result<()> {
    let sink = Sink(std::mem::take(out));
    let writer = match writer {
        Some(writer) => {
            *writer.get_mut() = sink;
            writer
        }
        None => writer.insert(new_writer(sink, &part.schema(), compression)?),
    };
    let written = writer.write(part);
    *out = std::mem::take(&mut writer.get_mut().0);
    Ok(written?)
}

fn new_writer(sink: Sink, schema: &SchemaRef, compression: Compression) -> Result<StreamWriter<Sink>> {
    let kind = match compression {
        Compression::None => None,
        Compression::Lz4 => Some(CompressionType::LZ4_FRAME),
    };
    let options = IpcWriteOptions::try_new(BUFFER_ALIGNMENT, false, MetadataVersion::V5)?;
    Ok(StreamWriter::try_new_with_options(sink, schema, options.try_with_compression(kind)?)?)
}
