//! What [`ServiceTask`] records for an exchange: the order of frames, and where blocks were cut.

use bytes::Bytes;

use super::{Order, Result, ServiceTask};

impl ServiceTask {
    /// In which order earlier attempts took their frames.
    #[must_use]
    pub fn orders(&self) -> &[Order] {
        self.log.orders()
    }

    /// Per recorded block, the round of frames that it led to.
    #[must_use]
    pub fn rounds(&self) -> &[Option<u32>] {
        self.log.rounds()
    }

    /// A frame was taken that no earlier attempt took: `order` is a run of one.
    ///
    /// # Errors
    /// The task's divergence, if it has diverged.
    pub fn ordered(&mut self, order: Order) -> Result<()> {
        self.standing.check()?;
        self.push_header()?;
        match &mut self.run {
            Some(run) if run.channel == order.channel => {
                run.frames += order.frames;
                run.version = order.version;
            }
            _ => {
                self.end_run();
                self.run = Some(order);
            }
        }
        Ok(())
    }

    /// What must be published before anything caused by it leaves. `None`: nothing new.
    pub fn take_block(&mut self) -> Option<Bytes> {
        self.record_failed();
        self.take_answers()
    }

    /// What was recorded, without the failed calls that nothing depends on yet: to be published while a
    /// function runs, or when it has failed. `None`: nothing new.
    pub fn take_answers(&mut self) -> Option<Bytes> {
        self.end_run();
        if self.builder.is_empty() {
            return None;
        }
        let block = self.builder.finish();
        self.summary.bytes += block.len() as u64;
        Some(block)
    }

    /// As [`ServiceTask::take_block`], for what led to a round of frames: a replay finds there where the
    /// block was cut.
    pub fn take_block_for(&mut self, round: u32) -> Option<Bytes> {
        self.record_failed();
        self.take_answers_for(round)
    }

    /// As [`ServiceTask::take_answers`], where a round of frames is being made. Without its number a replay would
    /// send the block with the first round, of which others may have the frames without it.
    pub fn take_answers_for(&mut self, round: u32) -> Option<Bytes> {
        self.end_run();
        if !self.builder.is_empty() {
            self.builder.push_output(round);
        }
        self.take_answers()
    }

    /// What leaves now depends on the calls that failed.
    fn record_failed(&mut self) {
        if !self.failed.is_empty() {
            // A block refuses nothing but results that are too large, and there are none here.
            let _ = self.push_header();
        }
    }

    fn end_run(&mut self) {
        if let Some(Order { channel, frames, version }) = self.run.take() {
            self.builder.push_order(channel, frames, version);
        }
    }
}
