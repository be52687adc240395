//! What of a batch the own log does not have yet.

use super::{Matcher, index_u32};
use crate::task::plan::{Plan, Run, Runs};
use crate::task::recorded::Copied;

impl Matcher {
    /// The part of a plan that the own log does not have, in input order, and its rows' indices in the
    /// batch; `None` for the indices if that is the whole batch. Live rows that were kept before are not
    /// in it.
    pub(in crate::task) fn unrecorded(&self, plan: &Plan) -> (Runs, Option<Vec<u32>>) {
        let (mut fresh_runs, mut rows, mut row) = (Runs::default(), Vec::new(), 0);
        let mut place = 0;
        for &run in plan.runs.as_slice() {
            if let (Run::Live { len }, false) = (run, plan.kept.is_empty()) {
                let kept = plan.kept.get(place..place + len).unwrap_or_default();
                for (at, _) in kept.iter().enumerate().filter(|(_, kept)| !**kept) {
                    fresh_runs.push(Run::Live { len: 1 });
                    rows.push(index_u32(row + at));
                }
                place += len;
                row += len;
                continue;
            }
            let fresh = match run {
                Run::Live { .. } => run,
                Run::Recorded { position, len } => {
                    let skip = self.own_part(position, len);
                    Run::Recorded { position: position + skip, len: len - skip }
                }
            };
            if fresh.len() == plan.rows {
                fresh_runs.push(fresh);
                return (fresh_runs, None);
            }
            fresh_runs.push(fresh);
            let end = row + run.len();
            rows.extend((end - fresh.len()..end).map(index_u32));
            row = end;
        }
        (fresh_runs, Some(rows))
    }

    /// Which rows of some runs, that the own log does not have, others have recorded.
    pub(in crate::task) fn copied(&self, runs: &Runs) -> Copied {
        let (mut copied, mut row) = (Copied::default(), 0_u64);
        for run in runs.as_slice() {
            if let Run::Recorded { position, len } = *run {
                for (at, row) in (position..position + len).zip(row..) {
                    let places =
                        if self.recorded.is_copy(at) { &mut copied.copies } else { &mut copied.of_uses };
                    places.push(row);
                }
            }
            row += run.len() as u64;
        }
        copied
    }
}
