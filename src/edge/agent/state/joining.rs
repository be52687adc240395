//! Making ranges this agent's own, in the background: one that has them gives them as they were at one version, and
//! what is decided from then on is sent here by the tasks.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::super::handler::{Handler, unexpected};
use super::super::registrar::Registrar;
use super::GivenUp;
use crate::agent::placement;
use crate::agent::protocol::AgentInfo;
use crate::agent::state::asking::{Basis, FromRegistry, Holding, Join, Located, ToRegistry};
use crate::agent::state::holders::{Answer, Asked, ToHolder};
use crate::agent::state::holdings::Moved;
use crate::agent::state::messages::Clock;
use crate::edge::locked;
use crate::edge::net::server::Server;
use crate::error::{Error, Result};
use crate::id::{AgentId, Generation};
use crate::state::{CommitPoint, DeltaPart, Page, Range, RangeSet, StateId, Version};

/// How soon a stopping agent is noticed.
const PAUSE: Duration = Duration::from_millis(50);
/// How often the driver's agent looks. Others are told with their beats.
const PERIOD: Duration = Duration::from_millis(250);
/// Work that is done at a time to keep what is held in order.
const TIDY_BYTES: u64 = 4 << 20;

/// Makes ranges this agent's own, until the server stops.
pub(in crate::edge::agent) fn join(server: &Arc<Server>) {
    let handler = server.handler();
    let mut next = Instant::now();
    while !server.is_stopping() {
        let told = handler.states.join_due.wait(PAUSE);
        if let Err(error) = handler.states.held.write().store.tidy(TIDY_BYTES) {
            tracing::warn!(%error, "state could not be put in order");
        }
        handler.states.views.sweep();
        handler.states.uploads.sweep();
        locked(&handler.store).leave_room(handler.states.memory.bytes());
        let has_joins = || match &handler.registrar {
            Registrar::Here(local) => locked(&local.registry).has_joins(handler.info.id),
            Registrar::There(_) => false,
        };
        // Of what could not be told nobody reminds it.
        let has_untold = || !locked(&handler.states.untold).is_empty();
        let looks = Instant::now() >= next && (has_untold() || has_joins());
        if !told && !looks {
            continue;
        }
        next = Instant::now() + PERIOD;
        // An unreachable registry has nothing to be told; the heartbeat notices if it stays so.
        if let Err(error) = handler.join_all(server) {
            tracing::info!(%error, "which ranges of state are this agent's could not be asked");
        }
    }
}

/// What the registry says that this agent is to do about what is its own.
pub(super) struct Own {
    /// What it is to make its own.
    joins: Vec<Join>,
    /// What it is to write down.
    bases: Vec<Basis>,
    /// When that was said.
    as_of: u64,
}

impl Handler {
    fn join_all(&self, server: &Server) -> Result<()> {
        self.tell_given_up()?;
        let Own { joins, bases, .. } = self.forget_others()?;
        keep_passed_over(&mut locked(&self.states.passed_over), &joins);
        for join in joins {
            if server.is_stopping() {
                break;
            }
            let (state, life) = (join.state.clone(), join.life);
            let joined = match join.sources.is_empty() {
                true => self.restore(&join),
                false => self.copy_from_all(&join, server),
            };
            if let Err(error) = joined {
                tracing::info!(%state, %error, "ranges could not be made this agent's own");
                // What came too late is told anew, and nobody is to hear of it.
                let is_over = matches!(error, Error::Protocol { .. });
                if join.sources.is_empty() && !is_over {
                    self.ask_states(ToRegistry::NotJoined { state, life, error })?;
                }
            }
        }
        for basis in bases {
            if server.is_stopping() {
                break;
            }
            if let Err(error) = self.write_base(&basis) {
                tracing::warn!(state = %basis.state, %error, "state could not be written to checkpoint_dir as it is");
            }
        }
        if let Registrar::Here(local) = &self.registrar {
            self.prune_states(local);
        }
        Ok(())
    }

    /// Tells the registry what was given up here: again until it has heard of it, as it would go on to count it.
    fn tell_given_up(&self) -> Result<()> {
        loop {
            let Some(first) = locked(&self.states.untold).first().cloned() else { return Ok(()) };
            let GivenUp { state, life, ranges, as_of } = first.clone();
            self.ask_states(ToRegistry::Lacks { agent: self.info.id, state, life, ranges, as_of })?;
            locked(&self.states.untold).retain(|other| *other != first);
        }
    }

    /// Asks the registry what is this agent's, and forgets the rest.
    pub(super) fn forget_others(&self) -> Result<Own> {
        // What is begun meanwhile may be on no list yet, and another list may be on its way.
        let _turn = locked(&self.states.listing);
        self.states.held.write().look_for_fresh();
        match self.ask_states(ToRegistry::Joins { agent: self.info.id })? {
            FromRegistry::Joins { own, joins, bases, as_of } => {
                self.states.held.write().forget_others(&own);
                Ok(Own { joins, bases, as_of })
            }
            _ => Err(unexpected()),
        }
    }

    /// Applies commits to what is here of a state: its version then, if anything is left. What lacks a delta is given
    /// up, and is to be begun anew: nobody but the registry needs to know, unless it is in `given_up`.
    pub(super) fn advance(
        &self,
        id: &StateId,
        life: u64,
        points: &[CommitPoint],
        mut given_up: RangeSet,
    ) -> Result<Option<Version>> {
        let mut asked_as_of = None;
        loop {
            let moved = self.states.held.write().advance(id, life, points, &given_up)?;
            let ranges = match moved {
                Moved::To(version) => return Ok(Some(version)),
                Moved::Nothing => return Ok(None),
                Moved::Lacks(ranges) => ranges,
            };
            if let Some(as_of) = asked_as_of {
                let lacking = GivenUp { state: id.clone(), life, ranges, as_of };
                locked(&self.states.untold).push(lacking);
                // First, as what comes once the registry has heard of it is for what this agent is given anew.
                self.states.held.write().give_up(id, life, &ranges);
                given_up = given_up.union(&ranges);
                self.tell_given_up()?;
            } else {
                // Ranges that others have by now are sent no deltas any more, and this agent may not have heard of that.
                asked_as_of = Some(self.forget_others()?.as_of);
                self.states.join_due.give();
            }
        }
    }

    /// Copies ranges, each from one of those that have it.
    fn copy_from_all(&self, join: &Join, server: &Server) -> Result<()> {
        let mut failed = Ok(());
        let passed_over = locked(&self.states.passed_over).clone();
        let is_passed_over = |agent: &AgentInfo| passed_over.contains(&(join.state.clone(), agent.id));
        for (source, ranges) in by_source(join, &self.info, is_passed_over) {
            if server.is_stopping() {
                break;
            }
            let copied = self.copy_from(join, &source, &ranges, server);
            let mut passed_over = locked(&self.states.passed_over);
            match copied {
                Ok(()) => passed_over.remove(&(join.state.clone(), source.id)),
                // Whoever else has them is asked the next time: it may be for ever.
                Err(error) => {
                    tracing::info!(source = %source.addr, %error, "ranges of state could not be copied");
                    failed = Err(error);
                    passed_over.insert((join.state.clone(), source.id))
                }
            };
        }
        failed
    }

    fn copy_from(&self, join: &Join, source: &AgentInfo, ranges: &RangeSet, server: &Server) -> Result<()> {
        let located = located(join);
        self.follow(join, join.version)?;
        let here = self.states.held.read().version(&join.state, join.life);
        let wanted = here.map_or(join.version, |here| here.max(join.version));
        let opened =
            self.ask_up_to_date(&located, source, &Asked::Open { ranges: *ranges, version: wanted })?;
        let (view, version, pending) = match opened {
            Answer::Opened { view, version, pending } => (view, version, pending),
            Answer::NotHeld(missing) => {
                self.tell_lacks(&located, source, &missing)?;
                return Err(Error::Protocol { what: "a holder has given up what was to be copied".into() });
            }
            _ => return Err(unexpected()),
        };
        let copied = self.copy_view(join, (source, ranges), (view, version, &pending), server);
        // It is forgotten after a while, too.
        let _gone = self.ask_about(join, source, Asked::Close { view });
        copied
    }

    fn copy_view(
        &self,
        join: &Join,
        (source, ranges): (&AgentInfo, &RangeSet),
        (view, version, pending): (u64, Version, &[(u64, u32, Generation)]),
        server: &Server,
    ) -> Result<()> {
        self.follow(join, version)?;
        let mut parts = Vec::new();
        for name in pending {
            parts.extend(self.fetch_pending(join, source, (view, *name), ranges)?);
        }
        let missing = self.states.held.write().fill(&join.state, join.life, ranges, version, parts)?;
        for range in ranges.iter() {
            let mut from = None;
            while missing.contains(range) && !server.is_stopping() {
                let page = self.fetch_page(join, source, Asked::Page { view, range, from })?;
                from = page.next.as_ref().map(|next| next.as_bytes().clone());
                self.states.held.write().store.install(&join.state, &page)?;
                if from.is_none() {
                    break;
                }
            }
            if server.is_stopping() {
                return Ok(());
            }
            self.tell_joined(join, range)?;
        }
        tracing::info!(state = %join.state, ranges = ranges.len(), source = %source.addr, "made ranges its own");
        Ok(())
    }

    /// Tells the registry that a range is here.
    pub(super) fn tell_joined(&self, join: &Join, range: Range) -> Result<()> {
        let here = self.states.held.read().version(&join.state, join.life);
        let version = here.ok_or_else(|| Error::Misuse { what: "what was copied is gone".into() })?;
        let (agent, number, state) = (self.info.id, join.number, join.state.clone());
        self.ask_states(ToRegistry::Joined { agent, number, state, range, version }).map(drop)
    }

    /// Applies what was committed up to a version to what is here of the state.
    pub(super) fn follow(&self, join: &Join, version: Version) -> Result<()> {
        let (state, life) = (&join.state, join.life);
        let here = self.states.held.read().version(state, life);
        let Some(here) = here.filter(|here| *here < version) else { return Ok(()) };
        let told = ToRegistry::Points { state: state.clone(), life, after: here };
        let FromRegistry::Points(points) = self.ask_states(told)? else { return Err(unexpected()) };
        let points: Vec<_> =
            points.into_iter().filter(|point| Version(Some(point.epoch)) <= version).collect();
        // Those that are to be had anew may lack something.
        self.advance(state, life, &points, join.ranges).map(drop)
    }

    fn fetch_pending(
        &self,
        join: &Join,
        source: &AgentInfo,
        (view, name): (u64, (u64, u32, Generation)),
        ranges: &RangeSet,
    ) -> Result<Vec<DeltaPart>> {
        let mut bytes = Vec::new();
        loop {
            let asked = Asked::Pending { view, name, ranges: *ranges, at: bytes.len() as u64 };
            let Answer::Piece(piece) = self.ask_about(join, source, asked)? else { return Err(unexpected()) };
            if piece.is_empty() {
                break;
            }
            bytes.extend_from_slice(&piece);
        }
        postcard::from_bytes(&bytes).map_err(|error| Error::Protocol { what: error.to_string() })
    }

    fn fetch_page(&self, join: &Join, source: &AgentInfo, asked: Asked) -> Result<Page> {
        match self.ask_about(join, source, asked)? {
            Answer::Page(page) => Ok(page),
            _ => Err(unexpected()),
        }
    }

    fn ask_about(&self, join: &Join, source: &AgentInfo, asked: Asked) -> Result<Answer> {
        self.ask_holder(source, ToHolder { state: join.state.clone(), life: join.life, asked })
    }
}

/// Whom to ask for which ranges: one that was asked in vain only where nobody else has them.
fn by_source(
    join: &Join,
    own: &AgentInfo,
    is_passed_over: impl Fn(&AgentInfo) -> bool,
) -> Vec<(AgentInfo, RangeSet)> {
    let mut sources: Vec<(AgentInfo, RangeSet)> = Vec::new();
    for range in join.ranges.iter() {
        let has = |holding: &&Holding| holding.ready.contains(range) && holding.agent.id != own.id;
        let mut ready: Vec<AgentInfo> =
            join.sources.iter().filter(has).map(|holding| holding.agent.clone()).collect();
        if !ready.iter().all(&is_passed_over) {
            ready.retain(|agent| !is_passed_over(agent));
        }
        let first = placement::holders(&join.state, range, &ready).into_iter().next().cloned();
        let Some(source) = first else {
            continue;
        };
        match sources.iter_mut().find(|(known, _)| known.id == source.id) {
            Some((_, ranges)) => ranges.insert(range),
            None => sources.push((source, [range].into_iter().collect())),
        }
    }
    sources
}

/// Who was asked in vain is remembered as long as something is to be had from it.
fn keep_passed_over(passed_over: &mut HashSet<(StateId, AgentId)>, joins: &[Join]) {
    let is_source = |join: &Join, agent| join.sources.iter().any(|holding| holding.agent.id == agent);
    passed_over
        .retain(|(state, agent)| joins.iter().any(|join| join.state == *state && is_source(join, *agent)));
}

/// The state as whoever copies it asks for it.
fn located(join: &Join) -> Located {
    Located {
        state: join.state.clone(),
        life: join.life,
        version: Version(Some(u64::MAX)),
        holders: Vec::new(),
        as_of: join.as_of,
        clock: Clock { now_ms: 0, watermark_ms: -1, late_ms: -1 },
        catalog: Bytes::new(),
        done: None,
        has_timers: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_asked_in_vain_is_forgotten_once_nothing_is_to_be_had_from_it() {
        let state = |operator: &str| StateId { query: "q".into(), operator: operator.into() };
        let info =
            |id| AgentInfo { id: AgentId(id), addr: String::new(), host: String::new(), driver: false };
        let holding = |id| Holding { agent: info(id), ready: RangeSet::ALL, joining: RangeSet::EMPTY };
        let join = Join {
            number: 1,
            state: state("f"),
            life: 1,
            version: Version::NONE,
            ranges: RangeSet::ALL,
            sources: vec![holding(1), holding(2)],
            as_of: 1,
            pending: Vec::new(),
        };
        // One is left, the second is dead, and nothing is to be copied of the last.
        let mut passed_over =
            HashSet::from([("f", 1), ("f", 3), ("g", 1)].map(|(of, id)| (state(of), AgentId(id))));
        keep_passed_over(&mut passed_over, &[join]);
        assert_eq!(passed_over, HashSet::from([(state("f"), AgentId(1))]));
    }
}
