//! The end of an attempt.

use super::{CameBack, Opener, Registry, first_part};
use crate::agent::protocol::{Ending, Left, Recovery};
use crate::error::Result;
use crate::id::{Generation, TaskId};
use crate::task::Summary;

impl Registry {
    /// An attempt is over.
    ///
    /// # Errors
    /// [`Error::Divergence`] if the attempt came to its end and rows have moved from one task to another;
    /// [`Error::AgentUnreachable`] if its agent was declared dead: others may have gone on without it, otherwise.
    pub fn closed(
        &mut self,
        task: &TaskId,
        generation: Generation,
        summary: &Summary,
        ending: Ending,
        left: Left,
    ) -> Result<()> {
        self.figures.closed(&task.operator, summary, left.lost);
        self.totals.closed += 1;
        self.totals.rows += summary.rows;
        self.totals.replayed += summary.replayed;
        self.totals.live += summary.live;
        self.totals.calls += summary.calls;
        self.totals.bytes += summary.bytes;
        self.totals.lost += u64::from(left.lost);
        if ending.done {
            self.totals.ran_replayed += u64::from(ending.recovery == Recovery::Replayed);
            self.totals.resent += u64::from(ending.recovery == Recovery::Resent);
        }
        self.note_refused(task, generation, &ending);
        let opener = self.opener_is_over(task, generation);
        // Others may have gone on without an agent that was declared dead, and the attempt is told that it has failed.
        let standing = if ending.done { self.is_not_dead(left.by) } else { Ok(()) };
        let ending = Ending { done: ending.done && standing.is_ok(), ..ending };
        let live = self.change(task, |entry| {
            entry.rows = entry.rows.max(summary.rows);
            entry.replayed += summary.replayed;
            entry.live_rows += summary.live;
            entry.lost += u64::from(left.lost);
            if entry.generation == generation { entry.live.take() } else { None }
        });
        let Some(entry) = self.tasks.get_mut(task) else { return Ok(()) };
        let Some(uses) = self.uses.get_mut(&task.epoch_key()) else { return Ok(()) };
        let ending_done = ending.done;
        if entry.generation == generation {
            let live = live.flatten().map(|live| live.layout);
            if let Some(layout) = live {
                uses.moved.closed(task, &layout, ending.done, summary.rows);
            }
            let ended = live.filter(|_| ending.done);
            if let Some(layout) = ended.filter(|_| summary.leftover == 0) {
                entry.came_back = Some(CameBack { run: uses.run, layout });
            }
            if let Some(layout) = ended.filter(|_| uses.is_again) {
                uses.moved.ended(task, &layout, summary);
            }
            if let Some(layout) = ended {
                uses.accepted(first_part(&task.operator), layout.code);
                uses.moved.took(task, &layout, summary, &entry.pooled);
                entry.ended(ending, (left.by, layout), summary.input);
            }
            self.change(task, |entry| entry.ended_at(left.end));
        } else if let Some(Opener { layout, is_over, .. }) = opener.filter(|_| ending_done) {
            // Spark tries one twice at the same time, and takes what comes to its end first: not always the newest.
            uses.moved.done_beside(task, &layout, summary.rows);
            if uses.is_again {
                uses.moved.ended(task, &layout, summary);
            }
            uses.moved.took(task, &layout, summary, &entry.pooled);
            if !is_over && entry.ended_in.same_stage(&layout) {
                entry.ended(ending, (left.by, layout), summary.input);
            }
        }
        self.look_if_short(task);
        standing?;
        let Some(uses) = self.uses.get(&task.epoch_key()) else { return Ok(()) };
        // Also if the end is told again, as its answer was lost.
        if ending_done { uses.moved.check(task) } else { Ok(()) }
    }
}
