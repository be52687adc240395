//! One attempt of a task that takes frames, sends frames, or both: what is recorded, absorbed and carried.

use std::collections::VecDeque;

use arrow_array::RecordBatch;
use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

use super::gather::{FrameStore, Gather};
use super::piggyback::Piggyback;
use super::scatter::{Round, Scatter};
use crate::error::{DivergenceKind, Error, Result};
use crate::frame::{Group, LogVersion};
use crate::id::TaskId;
use crate::task::ServiceTask;

/// The exchanges at both ends of a task. Sans I/O: the host moves frames, keeps blocks and holds copies.
///
/// ```text
///  frame ─offer─► take ─► absorb (to the agent, before the batch is used) ─► user's function
///                                                                              │
///  frames ◄─ cut ◄─────────────── push ◄───────────────────────────────────────┘
///    keep (to the agent), delta (in each frame): what the task recorded up to here
/// ```
#[derive(Debug)]
pub struct Stage<P> {
    gather: Option<Gather<P>>,
    scatter: Option<Scatter>,
    piggyback: Piggyback,
    /// Recorded blocks that no round has carried yet, with the round that carried them first.
    prior: VecDeque<(u32, Bytes)>,
    recorded_before: bool,
}

/// What a frame brought.
#[derive(Debug)]
pub struct Input {
    /// Its rows, in one batch or several.
    pub batches: Vec<RecordBatch>,
    /// Determinants to be held by the agent before anything that depends on them leaves the task.
    pub absorb: Vec<Group>,
}

/// What is to be sent.
#[derive(Debug)]
pub struct Cut {
    /// A block for the agent to keep; an empty one for it to see that others have those before.
    pub keep: Option<Bytes>,
    /// Whether frames name it: it is to be on other agents before the task ends.
    pub named: bool,
    /// The frames.
    pub round: Round,
}

impl<P: FrameStore> Stage<P> {
    /// A stage of `task`, whose log is `prior`: `service` was made of the same blocks.
    pub fn new(
        task: &TaskId,
        sharing_depth: u32,
        gather: Option<Gather<P>>,
        scatter: Option<Scatter>,
        service: Option<&ServiceTask>,
        prior: &[Bytes],
    ) -> Self {
        let rounds = service.map(ServiceTask::rounds).unwrap_or_default();
        let round = |index: usize| rounds.get(index).copied().flatten().unwrap_or_default();
        let mut piggyback = Piggyback::new(&task.operator, task.partition, sharing_depth);
        if let Some(options) = scatter.as_ref().map(Scatter::options) {
            piggyback = piggyback.with_room(options.partitions, options.riding_bytes);
        }
        Self {
            gather,
            scatter,
            piggyback,
            prior: prior.iter().enumerate().map(|(index, block)| (round(index), block.clone())).collect(),
            recorded_before: !prior.is_empty(),
        }
    }

    /// A frame has come.
    ///
    /// # Errors
    /// See [`Gather::offer`].
    pub fn offer(&mut self, frame: Bytes) -> Result<()> {
        self.gather()?.offer(frame)
    }

    /// The next frame's rows; `None` until more frames are offered.
    ///
    /// # Errors
    /// See [`Gather::take`]; [`Error::UpstreamChanged`] if the frame is not the recorded one.
    pub fn take(&mut self, service: Option<&mut ServiceTask>) -> Result<Option<Input>> {
        let Some(taken) = self.gather()?.take()? else { return Ok(None) };
        let mut absorb = Vec::new();
        for group in &taken.groups {
            absorb.extend(self.piggyback.absorb(group)?);
        }
        let sender = &taken.opening.task;
        let carried = taken.groups.iter().any(|group| group.hops == 1);
        let version = self.piggyback.version_of(&sender.operator, sender.partition);
        if carried && !taken.named && version != LogVersion(taken.order.version) {
            let reason = format!("a frame of {sender} does not bring the determinants that led to it");
            return Err(Error::CorruptFrame { reason });
        }
        if let Some(service) = service {
            if !taken.replayed {
                service.ordered(taken.order)?;
            }
            if taken.rows > 0 {
                let input = service.input(taken.rows, taken.sum.into());
                input.map_err(|error| upstream_changed(error, sender))?;
            }
        }
        Ok(Some(Input { batches: taken.batches, absorb }))
    }

    /// The end of input: the senders' operator, and a hash over the versions of their logs.
    ///
    /// # Errors
    /// [`Error::InputCutShort`]; `expected` is the number of senders where no frame came to say it.
    pub fn end_input(&mut self, expected: Option<u32>) -> Result<Option<(String, u64)>> {
        let Some(gather) = &self.gather else { return Ok(None) };
        let versions = gather.finish(expected)?;
        let mut bytes = Vec::with_capacity(12 * versions.len());
        for (partition, version) in versions {
            bytes.extend_from_slice(&partition.0.to_le_bytes());
            bytes.extend_from_slice(&version.0.to_le_bytes());
        }
        Ok(gather.operator().map(|operator| (operator.to_owned(), xxh3_64(&bytes))))
    }

    /// Takes a batch to be sent; whether [`Stage::cut`] is due.
    ///
    /// # Errors
    /// [`Error::Misuse`] if this stage does not send; see [`Scatter::cut`].
    pub fn push(&mut self, batch: RecordBatch) -> Result<bool> {
        self.scatter()?.push(batch)
    }

    /// The frames of all batches since the last cut, with everything that led to them; if `last`, one for
    /// each channel, which closes it.
    ///
    /// # Errors
    /// See [`Scatter::cut`].
    pub fn cut(&mut self, service: Option<&mut ServiceTask>, last: bool) -> Result<Cut> {
        let round = self.scatter()?.round();
        let keep = service.and_then(|service| service.take_block_for(round));
        // Before a block is recorded live, all recorded ones have had their turn.
        while self.prior.front().is_some_and(|(first, _)| *first <= round || keep.is_some()) {
            if let Some((_, block)) = self.prior.pop_front() {
                self.piggyback.record(&block);
            }
        }
        if let Some(block) = &keep {
            self.piggyback.record(block);
        }
        let Self { scatter: Some(scatter), piggyback, .. } = self else { return Err(no_scatter()) };
        let round = if last { scatter.finish(piggyback) } else { scatter.cut(piggyback) };
        let named = piggyback.is_named();
        // An earlier attempt may have died while it published what this one replays.
        let keep = keep.or_else(|| (last && named).then(Bytes::new));
        Ok(Cut { keep, named, round: round? })
    }

    /// What was recorded since the last cut, without the failed calls that nothing depends on: to be published when
    /// the function has failed.
    pub fn answers(&self, service: &mut ServiceTask) -> Option<Bytes> {
        match &self.scatter {
            Some(scatter) => service.take_answers_for(scatter.round()),
            None => service.take_answers(),
        }
    }

    /// Whether any frame came.
    #[must_use]
    pub fn has_input(&self) -> bool {
        self.gather.as_ref().is_some_and(|gather| gather.operator().is_some())
    }

    /// Whether some attempt before this one recorded something.
    #[must_use]
    pub const fn recorded_before(&self) -> bool {
        self.recorded_before
    }

    fn gather(&mut self) -> Result<&mut Gather<P>> {
        let none = || Error::Misuse { what: "this stage takes no frames".into() };
        self.gather.as_mut().ok_or_else(none)
    }

    fn scatter(&mut self) -> Result<&mut Scatter> {
        self.scatter.as_mut().ok_or_else(no_scatter)
    }
}

fn no_scatter() -> Error {
    Error::Misuse { what: "this stage sends no frames".into() }
}

/// A frame differs from the recorded one only if its sender ran again with other outcomes.
fn upstream_changed(error: Error, sender: &TaskId) -> Error {
    match error {
        Error::Divergence(divergence) if divergence.kind == DivergenceKind::RowsChanged => {
            Error::UpstreamChanged { upstream: sender.clone() }
        }
        other => other,
    }
}
