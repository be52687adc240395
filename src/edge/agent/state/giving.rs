//! What an agent that holds ranges does for those that make them their own.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::super::handler::{Handler, unexpected};
use crate::agent::protocol::PIECE_BYTES;
use crate::agent::state::holders::{Answer, Asked};
use crate::agent::state::holdings::Copied;
use crate::edge::locked;
use crate::error::{Error, Result};
use crate::id::Generation;
use crate::state::{EntryKey, RangeSet, StateId, Version, View};

/// How long ranges are kept as they are for somebody who does not ask for more of them.
const VIEW_PATIENCE: Duration = Duration::from_secs(60);
/// Names what has nothing in it.
const NO_VIEW: u64 = 0;

/// States that are kept as they were when somebody began to copy them.
#[derive(Default)]
pub(super) struct Views {
    open: Mutex<HashMap<u64, (Instant, View)>>,
    numbers: AtomicU64,
    /// What was decided and not committed, as it was asked for last: it is given in pieces.
    pending: Mutex<Option<(Wanted, Bytes)>>,
}

/// A delta that counts, of some ranges, as it was with a view.
type Wanted = (u64, (u64, u32, Generation), RangeSet);

impl Views {
    fn keep(&self, view: View) -> u64 {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed) + 1;
        locked(&self.open).insert(number, (Instant::now(), view));
        number
    }

    fn get(&self, number: u64) -> Result<View> {
        let gone = || Error::Protocol { what: "what was to be copied is kept no more".into() };
        let mut open = locked(&self.open);
        let (touched, view) = open.get_mut(&number).ok_or_else(gone)?;
        *touched = Instant::now();
        Ok(view.clone())
    }

    /// Forgets those that nobody asks for any more.
    pub(super) fn sweep(&self) {
        let kept: HashSet<u64> = {
            let mut open = locked(&self.open);
            open.retain(|_, (touched, _)| touched.elapsed() < VIEW_PATIENCE);
            open.keys().copied().collect()
        };
        // Never with the others: whoever has it waits for states, and who has these opens views.
        locked(&self.pending).take_if(|((view, ..), _)| !kept.contains(view));
    }
}

impl Handler {
    /// Answers an agent that copies ranges.
    pub(super) fn give(&self, id: &StateId, life: u64, asked: Asked) -> Result<Answer> {
        match asked {
            Asked::Open { ranges, version } => Ok(self.open_view(id, life, &ranges, version)),
            Asked::Pending { view, name, ranges, at } => self.pending_piece(id, view, name, &ranges, at),
            Asked::Page { view, range, from } => {
                let from = from.map(EntryKey::from_bytes).transpose()?;
                let bytes_max = usize::try_from(PIECE_BYTES).unwrap_or(usize::MAX);
                self.states.views.get(view)?.page(range, from.as_ref(), bytes_max).map(Answer::Page)
            }
            Asked::Keep { view } => self.states.views.get(view).map(|_| Answer::Kept),
            Asked::Close { view } => {
                locked(&self.states.views.open).remove(&view);
                locked(&self.states.views.pending).take_if(|((of, ..), _)| *of == view);
                Ok(Answer::Closed)
            }
            _ => Err(unexpected()),
        }
    }

    fn open_view(&self, id: &StateId, life: u64, ranges: &RangeSet, wanted: Version) -> Answer {
        match self.states.held.read().copied(id, life, ranges, wanted) {
            Copied::Empty => Answer::Opened { view: NO_VIEW, version: wanted, pending: Vec::new() },
            Copied::Behind(version) => Answer::Behind(version),
            Copied::NotHeld(missing) => Answer::NotHeld(missing),
            Copied::View(view, pending) => {
                let version = view.version();
                Answer::Opened { view: self.states.views.keep(view), version, pending }
            }
        }
    }

    fn pending_piece(
        &self,
        id: &StateId,
        view: u64,
        name: (u64, u32, Generation),
        ranges: &RangeSet,
        at: u64,
    ) -> Result<Answer> {
        let bytes = self.pending_bytes(id, (view, name, *ranges))?;
        let from = bytes.len().min(usize::try_from(at).unwrap_or(usize::MAX));
        let end = bytes.len().min(from + usize::try_from(PIECE_BYTES).unwrap_or(usize::MAX));
        Ok(Answer::Piece(bytes.slice(from..end)))
    }

    fn pending_bytes(&self, id: &StateId, wanted: Wanted) -> Result<Bytes> {
        let (view, name, ranges) = wanted;
        let version = self.states.views.get(view)?.version();
        let mut last = locked(&self.states.views.pending);
        let parts = {
            let held = self.states.held.read();
            held.is_still(id, version)?;
            if let Some((_, bytes)) = last.as_ref().filter(|(of, _)| *of == wanted) {
                return Ok(bytes.clone());
            }
            held.store.pending_parts(id, name, &ranges)?
        };
        let bytes = postcard::to_allocvec(&parts).map_err(|e| Error::Protocol { what: e.to_string() })?;
        let bytes = Bytes::from(bytes);
        *last = Some((wanted, bytes.clone()));
        Ok(bytes)
    }
}
