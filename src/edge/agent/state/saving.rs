//! Savepoints: all states of a query at one version.
//!
//! The registry tells the versions that the query's last commit left, all at one moment. Whoever holds ranges of them
//! keeps these as they are: the savepoint is begun when everything is kept at exactly those versions, or with the next
//! ones if something was committed meanwhile. From then on the query goes on as it likes. Ranges are read page by page,
//! each from one of those that keep it; if that one is lost, from another. If nobody is left who keeps some range, all
//! begins anew: what was lost with its holders comes back from the checkpoint folder.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::super::asking::{SILENCE_PAUSE, at_once};
use super::super::handler::{Handler, unexpected};
use super::super::registrar::LocalRegistry;
use crate::agent::protocol::AgentInfo;
use crate::agent::state::asking::Located;
use crate::agent::state::holders::{Answer, Asked, ToHolder};
use crate::edge::disk::Location;
use crate::edge::disk::savepoint::{Manifest, SavepointWriter};
use crate::edge::locked;
use crate::error::{Error, Result};
use crate::state::{Page, Range, RangeSet, Version};

/// How often whoever keeps ranges is asked to keep them for longer: sooner than they are forgotten.
const KEEP_PERIOD: Duration = Duration::from_secs(15);
/// How often it is said how far a savepoint is.
const TOLD_PERIOD: Duration = Duration::from_secs(10);
/// How often a savepoint is begun anew because nobody is left who keeps some range.
const TRIES: usize = 5;

/// Ranges of a state that an agent keeps as they are.
#[derive(Debug, Clone)]
struct Kept {
    holder: AgentInfo,
    view: u64,
    ranges: RangeSet,
}

/// A state, and who keeps it.
#[derive(Debug)]
struct Opened {
    located: Located,
    kept: Vec<Kept>,
}

/// What became of asking all who hold a query's states to keep them.
#[derive(Debug)]
enum Open {
    /// All of them do.
    All,
    /// Something was committed meanwhile, or some range is nobody's: again.
    Again,
}

/// What became of writing what is kept.
enum Written<T> {
    /// It is all there.
    All(T),
    /// Nobody is left who keeps some range; what was wrong with the last one.
    NobodyKeeps(Error),
}

impl Handler {
    /// Writes all states of a query to a folder of their own.
    pub(in crate::edge::agent) fn save(
        &self,
        local: &LocalRegistry,
        query: &str,
        location: &Location,
    ) -> Result<Manifest> {
        let mut tries = 0;
        loop {
            tries += 1;
            let opened = self.open_all(local, query)?;
            let saved = std::thread::scope(|scope| {
                // Dropped when everything is copied, or it failed.
                let (_until, ended) = mpsc::channel::<()>();
                let opened = &opened;
                scope.spawn(move || self.keep_open(opened, &ended));
                self.write_all(query, location, opened)
            });
            self.let_all_go(&opened);
            match saved {
                Ok(Written::All(manifest)) => return Ok(manifest),
                Ok(Written::NobodyKeeps(error)) if tries < TRIES => {
                    tracing::warn!(query, %error, "nobody is left who keeps some state for a savepoint; it is begun anew");
                    sleep(SILENCE_PAUSE);
                }
                Ok(Written::NobodyKeeps(error)) | Err(error) => return Err(error),
            }
        }
    }

    /// Has all states of a query kept at the versions of its last commit.
    fn open_all(&self, local: &LocalRegistry, query: &str) -> Result<Vec<Opened>> {
        let deadline = Instant::now() + self.patience();
        loop {
            let cut = {
                let mut registry = locked(&local.registry);
                registry.look_at_clock(local.now_ms());
                registry.state_cut(query)?
            };
            let mut all = Vec::new();
            let mut open = Open::All;
            for located in cut {
                let mut opened = Opened { located, kept: Vec::new() };
                let state = self.open_state(&mut opened);
                all.push(opened);
                match state {
                    Ok(Open::All) => {}
                    Ok(Open::Again) => {
                        open = Open::Again;
                        break;
                    }
                    Err(error) => {
                        self.let_all_go(&all);
                        return Err(error);
                    }
                }
            }
            if matches!(open, Open::All) {
                return Ok(all);
            }
            self.let_all_go(&all);
            if Instant::now() >= deadline {
                return Err(Error::Timeout {
                    what: format!("all who hold the state of query {query} to keep it at one version"),
                    millis: u64::try_from(self.patience().as_millis()).unwrap_or(u64::MAX),
                });
            }
            // Whoever is to make ranges its own may not have heard of that.
            self.states.join_due.give();
            sleep(SILENCE_PAUSE);
        }
    }

    /// Asks all who hold a state to keep it at its version.
    fn open_state(&self, opened: &mut Opened) -> Result<Open> {
        let Opened { located, kept } = opened;
        let located = &*located;
        let ready: Vec<(AgentInfo, RangeSet)> = located
            .holders
            .iter()
            .filter(|holding| !holding.ready.is_empty())
            .map(|holding| (holding.agent.clone(), holding.ready))
            .collect();
        let asked = at_once(&ready, &|(holder, ranges)| {
            let asked = Asked::Open { ranges: *ranges, version: located.version };
            self.ask_up_to_date(located, holder, &asked)
        });
        let (mut silent, mut failed) = (Vec::new(), None);
        // All answers are looked at, whatever is wrong with one: what is kept is to be let go.
        for ((holder, ranges), answer) in asked {
            let seen = match answer {
                Ok(Answer::Opened { view, version, .. }) => {
                    let keeper = Kept { holder: holder.clone(), view, ranges: *ranges };
                    match version == located.version {
                        true => kept.push(keeper),
                        // It has gone on, and others may not have.
                        false => self.let_go(located, &keeper),
                    }
                    Ok(())
                }
                Ok(Answer::NotHeld(missing)) => self.tell_lacks(located, holder, &missing),
                Ok(_) => Err(unexpected()),
                Err(Error::StateLost { .. }) => Ok(()),
                Err(error) if error.is_silence() => {
                    tracing::info!(holder = %holder.addr, %error, "a holder of state does not answer");
                    silent.push(holder);
                    Ok(())
                }
                Err(error) => Err(error),
            };
            failed = failed.or(seen.err());
        }
        if let Some(error) = failed {
            return Err(error);
        }
        let covered = kept.iter().fold(RangeSet::EMPTY, |all, kept| all.union(&kept.ranges));
        if covered == RangeSet::ALL {
            return Ok(Open::All);
        }
        // Who is slow is let off as long as others keep what it has: to ask would make it dead for good.
        for holder in silent {
            self.is_dead(holder);
        }
        Ok(Open::Again)
    }

    /// Has everything kept until the other end of the channel is gone.
    fn keep_open(&self, opened: &[Opened], ended: &mpsc::Receiver<()>) {
        while matches!(ended.recv_timeout(KEEP_PERIOD), Err(RecvTimeoutError::Timeout)) {
            for state in opened {
                for kept in &state.kept {
                    // Who does not answer is noticed when it is asked for more.
                    let _answer = self.ask_kept(&state.located, kept, Asked::Keep { view: kept.view });
                }
            }
        }
    }

    /// Writes what is kept.
    fn write_all(&self, query: &str, location: &Location, opened: &[Opened]) -> Result<Written<Manifest>> {
        let epoch = opened.iter().filter_map(|state| state.located.version.0).max().unwrap_or_default();
        let mut writer = SavepointWriter::create(
            location.clone(),
            query,
            epoch,
            self.info.id.0.wrapping_add(self.next_request().number),
        )?;
        for state in opened {
            let (operator, Version(Some(version))) = (&state.located.state.operator, state.located.version)
            else {
                return Err(Error::Misuse { what: "a state without a version was to be saved".into() });
            };
            writer.begin_state(operator, version, state.located.catalog.clone())?;
            if let Written::NobodyKeeps(error) = self.write_pages(&mut writer, state)? {
                return Ok(Written::NobodyKeeps(error));
            }
            tracing::info!(state = %state.located.state, version, bytes = writer.bytes(), "saved");
        }
        let manifest = writer.finish()?;
        tracing::info!(query, epoch, path = %location, "a savepoint is made");
        Ok(Written::All(manifest))
    }

    /// Writes the pages of a state.
    fn write_pages(&self, writer: &mut SavepointWriter, state: &Opened) -> Result<Written<()>> {
        let mut keepers: Vec<&Kept> = state.kept.iter().collect();
        // This agent itself, if it may.
        keepers.sort_by_key(|kept| kept.holder.id != self.info.id);
        let mut failed = Error::Protocol { what: "nobody keeps a range of state".into() };
        let mut told = Instant::now();
        for range in Range::all() {
            let mut from: Option<Bytes> = None;
            loop {
                let keeper = keepers.iter().position(|kept| kept.ranges.contains(range));
                let Some((place, keeper)) = keeper.and_then(|at| Some((at, *keepers.get(at)?))) else {
                    return Ok(Written::NobodyKeeps(failed));
                };
                // All of them are at one version, so it does not matter who gives which page.
                match self.fetch_kept(&state.located, keeper, range, from.clone()) {
                    Ok(page) => {
                        writer.push(&page)?;
                        from = page.next.as_ref().map(|next| next.as_bytes().clone());
                        if from.is_none() {
                            break;
                        }
                    }
                    Err(error) => {
                        let holder = &keeper.holder.addr;
                        tracing::warn!(%holder, %error, "state for a savepoint is read from another agent");
                        keepers.remove(place);
                        failed = error;
                    }
                }
                if told.elapsed() >= TOLD_PERIOD {
                    told = Instant::now();
                    let (bytes, ranges) = (writer.bytes(), u32::from(range.0));
                    tracing::info!(state = %state.located.state, bytes, ranges, "being saved");
                }
            }
        }
        Ok(Written::All(()))
    }

    fn fetch_kept(&self, located: &Located, kept: &Kept, range: Range, from: Option<Bytes>) -> Result<Page> {
        match self.ask_kept(located, kept, Asked::Page { view: kept.view, range, from })? {
            Answer::Page(page) => Ok(page),
            _ => Err(unexpected()),
        }
    }

    fn let_all_go(&self, opened: &[Opened]) {
        for state in opened {
            state.kept.iter().for_each(|kept| self.let_go(&state.located, kept));
        }
    }

    fn let_go(&self, located: &Located, kept: &Kept) {
        // It is forgotten after a while, too.
        let _gone = self.ask_kept(located, kept, Asked::Close { view: kept.view });
    }

    fn ask_kept(&self, located: &Located, kept: &Kept, asked: Asked) -> Result<Answer> {
        self.ask_holder(&kept.holder, ToHolder { state: located.state.clone(), life: located.life, asked })
    }
}

#[cfg(test)]
mod tests;
