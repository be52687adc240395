//! Logs on their way to a peer, and copies that arrive from one.

use bytes::Bytes;

use super::{Absorbed, Held, Outgoing, Part, Store, fenced, one_piece};
use crate::agent::protocol::{Layout, Sent};
use crate::error::{Error, Result};
use crate::id::{ChannelId, Generation, LogOffset, TaskId};

/// What a request to hold blocks of a copy says, besides the blocks.
#[derive(Debug, Clone, Copy)]
pub struct Arriving {
    /// Generation of the log.
    pub generation: Generation,
    /// Below which generation the epoch is over, as the sender knows.
    pub over: Generation,
    /// Its layout.
    pub layout: Layout,
    /// Whether the copy is begun anew, in place of any older.
    pub reset: bool,
    /// Position after the last block.
    pub end: LogOffset,
    /// Whether the sender has no more than that.
    pub all: bool,
    /// Whether the sender has all that was published of it, and not only what came with frames.
    pub whole: bool,
    /// Which request it is.
    pub sent: Sent,
}

impl Store {
    /// What `channel` does not have, at most one piece; the rest comes when that is [there](Self::arrived).
    #[must_use]
    pub fn outgoing(&self, task: &TaskId, channel: ChannelId) -> Option<Outgoing> {
        let held = self.held.get(task)?;
        let delta = held.log.delta(channel)?;
        let blocks = one_piece(&delta.blocks);
        let end = blocks.last()?.end();
        Some(Outgoing {
            reset: delta.from == LogOffset::START,
            part: Part { version: held.version, from: delta.from, end },
            all: blocks.len() == delta.blocks.len(),
            blocks,
            layout: held.layout,
        })
    }

    /// `channel` has answered for a part. Of a log that was replaced meanwhile that says nothing.
    pub fn arrived(&mut self, task: &TaskId, channel: ChannelId, part: Part) {
        if let Some(held) = self.held.get_mut(task).filter(|held| held.version == part.version) {
            held.log.arrived(channel, part.from, part.end);
        }
    }

    /// Notes what `channel` is known to have already.
    pub fn rewind(&mut self, task: &TaskId, channel: ChannelId, to: LogOffset) {
        if let Some(held) = self.held.get_mut(task) {
            held.log.rewind(channel, to);
        }
    }

    /// A request brings blocks of a copy, which are absorbed next. One that comes late, or again, must not
    /// take back what was acknowledged since: its blocks are only compared with what is here.
    ///
    /// # Errors
    /// [`Error::Fenced`] if a newer generation was here; [`Error::LogGap`] if the request comes late and not
    /// all that it brings is here, or goes on with a copy that is not here: whoever sent it must send again.
    pub fn begin_copy(&mut self, task: &TaskId, arriving: &Arriving) -> Result<()> {
        let Arriving { generation, over, reset, end, all, sent, .. } = *arriving;
        // What is here of a use of the epoch's name that is committed is nothing to this one.
        self.end_uses_below(&task.epoch_key(), over);
        let held = self.held.get(task);
        // Before its number is noted: it would stand for the newer generation's requests.
        if let Some(held) = held.filter(|held| held.generation > generation) {
            return Err(fenced(task, held.generation, generation));
        }
        // A copy that was sent before, and comes only now, is a dead attempt's; nothing here tells it from one that counts.
        if let Some(newest) = self.newest(task).filter(|newest| newest.generation > generation) {
            return Err(fenced(task, newest.generation, generation));
        }
        if let Some(held) = held.filter(|held| held.generation == generation) {
            let known = held.replaced.unwrap_or_else(|| held.log.end());
            let (is_whole, is_late) =
                (held.whole.is_some() && held.replaced.is_none(), sent.is_late(held.sent));
            if (is_late || held.sent == Some(sent)) && end <= known && (is_whole || !all) {
                return Ok(());
            }
            if is_late {
                return Err(Error::LogGap { from: end, end: known });
            }
        }
        if !reset && let Some(held) = held.filter(|held| held.generation < generation) {
            // The copy here is another attempt's, whose end is not where the sender believes this one to be.
            return Err(Error::LogGap { from: end, end: held.log.end() });
        }
        if reset {
            self.begin_anew(task, arriving)?;
        }
        if let Some(held) = self.held.get_mut(task) {
            held.sent = Some(sent);
        }
        Ok(())
    }

    /// A copy begins in place of the one here. That one may count as long as not all has come, and the rest may never
    /// come, so it stays but for what differs.
    fn begin_anew(&mut self, task: &TaskId, arriving: &Arriving) -> Result<()> {
        let Arriving { generation, layout, whole, .. } = *arriving;
        self.refuse_committed(task, generation)?;
        let stays = |held: &&mut Held| !held.spoiled && !held.in_flight;
        let Some(held) = self.held.get_mut(task).filter(stays) else {
            self.begin(task, generation, layout)?;
            if let Some(part) = self.held.get_mut(task).filter(|_| !whole) {
                // As what came with frames: nobody vouches for more than its beginning.
                part.absorbed = true;
            }
            return Ok(());
        };
        held.generation = generation;
        // What is whole of the same attempt does not differ, and is not changed. Nor does a part take anything's place.
        if whole && held.whole != Some(generation) {
            held.replaced = Some(LogOffset::START);
        }
        Ok(())
    }

    /// As [`Self::absorb`], of a block of a copy. Who has only what came with frames takes nothing from who may have more.
    ///
    /// # Errors
    /// As there; [`Error::LogGap`], too, if not all that lies before it has come, and if another copy stands here now.
    pub fn absorb_arriving(
        &mut self,
        task: &TaskId,
        arriving: &Arriving,
        from: LogOffset,
        block: &Bytes,
    ) -> Result<Absorbed> {
        let Arriving { generation, .. } = *arriving;
        let gap = |end| Error::LogGap { from, end };
        let held = self.held.get(task).filter(|held| held.generation >= generation);
        let upto = held.ok_or_else(|| gap(LogOffset::START))?.replaced;
        if let Some(upto) = upto.filter(|upto| from > *upto) {
            return Err(gap(upto));
        }
        let mut absorbed = self.absorb(task, generation, from, block);
        if matches!(absorbed, Err(Error::LogFork { .. })) && upto == Some(from) {
            // From here on it was never acknowledged, or is of an attempt that does not count.
            self.cut(task, from);
            absorbed = self.absorb(task, generation, from, block);
        }
        if matches!(absorbed, Ok(Absorbed::At(_)))
            && let Some(upto) = self.held.get_mut(task).and_then(|held| held.replaced.as_mut())
        {
            *upto = (*upto).max(from.plus(block.len() as u64));
        }
        absorbed
    }

    /// All of a copy is here.
    ///
    /// # Errors
    /// [`Error::LogGap`] if it is not, as another stands here now, or is coming.
    pub fn complete_copy(&mut self, task: &TaskId, arriving: &Arriving) -> Result<()> {
        let Arriving { generation, layout, end, whole, .. } = *arriving;
        let gap = |known| Error::LogGap { from: end, end: known };
        let held = self.held.get_mut(task).filter(|held| held.generation == generation && !held.spoiled);
        let held = held.ok_or_else(|| gap(LogOffset::START))?;
        let known = held.replaced.unwrap_or_else(|| held.log.end());
        if known < end {
            return Err(gap(known));
        }
        if held.replaced.take().is_some() {
            (held.layout, held.absorbed) = (layout, false);
            if held.log.end() > known {
                self.cut(task, known);
            }
        }
        if whole {
            self.complete(task, generation);
        }
        Ok(())
    }
}
