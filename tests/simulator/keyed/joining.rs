//! An agent makes ranges its own, step by step, while tasks go on.

use std::collections::VecDeque;

use clonos::agent::state::asking::{Basis, FromRegistry, Join, ToRegistry};
use clonos::agent::state::holdings::Copied;
use clonos::error::{Error, Result};
use clonos::id::{AgentId, Generation};
use clonos::state::{DeltaPart, EntryKey, Range, RangeSet, Version, View};

use super::world::{Own, World};
use super::{Mutation, lost_on_the_way, state};

/// Ranges that are copied in one step; a copy takes several.
const RANGES_AT_ONCE: usize = 12;
/// Bytes of a page: less than a key's entry.
const PAGE_BYTES: usize = 1;

/// What an agent has still to do.
#[derive(Debug, Default)]
pub(crate) struct Work {
    joins: VecDeque<Join>,
    copying: Option<Copying>,
}

/// Ranges that are copied from one agent.
#[derive(Debug)]
struct Copying {
    join: Join,
    source: AgentId,
    ranges: RangeSet,
    /// What was copied; none if they were empty.
    view: Option<View>,
    version: Version,
    pending: VecDeque<(u64, u32, Generation)>,
    parts: Vec<DeltaPart>,
    is_filled: bool,
    /// Ranges whose pages are to be installed.
    missing: RangeSet,
    left: VecDeque<Range>,
    from: Option<EntryKey>,
}

impl World {
    /// The next thing that an agent does for what is to be its own; what fails it tries again.
    pub(crate) fn step_joining(&mut self, at: usize) {
        if self.hosts[at].is_cut {
            return;
        }
        if let Err(error) = self.try_joining(at) {
            self.note(|| format!("agent {at} does not join: {error}"));
            self.hosts[at].work.copying = None;
        }
    }

    fn try_joining(&mut self, at: usize) -> Result<()> {
        if let Some(mut copying) = self.hosts[at].work.copying.take() {
            let is_over = self.copy_on(at, &mut copying)?;
            if !is_over {
                self.hosts[at].work.copying = Some(copying);
            }
            return Ok(());
        }
        match self.hosts[at].work.joins.pop_front() {
            Some(join) if join.sources.is_empty() => self.restore(at, &join),
            Some(join) => self.open_copy(at, join),
            None => {
                self.tell_given_up(at)?;
                let Own { joins, bases, .. } = self.forget_others(at)?;
                self.hosts[at].work.joins = joins.into();
                bases.into_iter().try_for_each(|basis| self.write_base(at, basis))
            }
        }
    }

    /// As `Handler::write_base`.
    fn write_base(&mut self, at: usize, basis: Basis) -> Result<()> {
        let Basis { state, life, after, ranges } = basis;
        let view = self.hosts[at].holdings.view(&state, life);
        let Some((folder, view)) = self.folder.as_mut().zip(view) else { return Ok(()) };
        let ranges = ranges.intersection(&view.held());
        if ranges.is_empty() || view.version() == Version::NONE {
            return Ok(());
        }
        folder.write_base(after, &ranges, &view)?;
        self.note(|| format!("agent {at} wrote ranges down"));
        let version = view.version();
        self.ask_registry(at, &ToRegistry::Based { state, life, ranges, version, bytes: 1 }).map(drop)
    }

    /// As `Handler::follow`.
    fn follow(&mut self, at: usize, join: &Join, version: Version) -> Result<()> {
        let here = self.hosts[at].holdings.version(&state(), join.life);
        let Some(here) = here.filter(|here| *here < version) else { return Ok(()) };
        let told = ToRegistry::Points { state: state(), life: join.life, after: here };
        let FromRegistry::Points(mut points) = self.ask_registry(at, &told)? else {
            panic!("it was asked for points");
        };
        points.retain(|point| Version(Some(point.epoch)) <= version);
        self.advance(at, join.life, &points, join.ranges).map(drop)
    }

    /// As `Handler::copy_from`, as far as the view of the source.
    fn open_copy(&mut self, at: usize, join: Join) -> Result<()> {
        self.follow(at, &join, join.version)?;
        let own = self.hosts[at].info.id;
        let others: Vec<_> = join.sources.iter().filter(|holding| holding.agent.id != own).cloned().collect();
        if others.is_empty() {
            return Ok(());
        }
        let source = &others[self.dice.below(others.len())];
        let (ranges, source) = (source.ready.intersection(&join.ranges), source.agent.id);
        let here = self.hosts[at].holdings.version(&state(), join.life);
        let wanted = here.map_or(join.version, |here| here.max(join.version));
        for _ in 0..3 {
            let there = self.reach(at, source)?;
            let copied = self.hosts[there].holdings.copied(&state(), join.life, &ranges, wanted);
            let (view, version, pending) = match copied {
                Copied::Empty => (None, Version::NONE, Vec::new()),
                Copied::View(view, pending) => {
                    let version = view.version();
                    (Some(view), version, pending)
                }
                Copied::Behind(version) => {
                    if !self.bring_up(at, source, join.life, version)? {
                        return self.tell_lacks(at, source, join.life, &RangeSet::ALL, join.as_of);
                    }
                    continue;
                }
                Copied::NotHeld(missing) => {
                    return self.tell_lacks(at, source, join.life, &missing, join.as_of);
                }
            };
            self.follow(at, &join, version)?;
            let pending = if self.is(Mutation::PendingIsNotCopied) { Vec::new() } else { pending };
            let (pending, left) = (pending.into(), ranges.iter().collect());
            self.hosts[at].work.copying = Some(Copying {
                join,
                source,
                ranges,
                view,
                version,
                pending,
                parts: Vec::new(),
                is_filled: false,
                missing: RangeSet::EMPTY,
                left,
                from: None,
            });
            return Ok(());
        }
        Err(lost_on_the_way())
    }

    /// As `Handler::copy_view`; whether all of it is there.
    fn copy_on(&mut self, at: usize, copying: &mut Copying) -> Result<bool> {
        let (id, life) = (state(), copying.join.life);
        if let Some(name) = copying.pending.pop_front() {
            let there = self.reach(at, copying.source)?;
            let holdings = &self.hosts[there].holdings;
            holdings.is_still(&id, copying.version)?;
            copying.parts.extend(holdings.store.pending_parts(&id, name, &copying.ranges)?);
            return Ok(false);
        }
        if !copying.is_filled {
            copying.is_filled = true;
            let parts = std::mem::take(&mut copying.parts);
            copying.missing =
                self.hosts[at].holdings.fill(&id, life, &copying.ranges, copying.version, parts)?;
            if self.is(Mutation::ReadyAtOnce) {
                for range in copying.ranges.iter() {
                    self.tell_joined(at, &copying.join, range)?;
                }
            }
            return Ok(false);
        }
        for _ in 0..RANGES_AT_ONCE {
            let Some(range) = copying.left.front().copied() else { break };
            if let Some(view) = copying.view.as_ref().filter(|_| copying.missing.contains(range)) {
                self.reach(at, copying.source)?;
                let page = view.page(range, copying.from.as_ref(), PAGE_BYTES)?;
                copying.from.clone_from(&page.next);
                self.hosts[at].holdings.store.install(&id, &page)?;
                if copying.from.is_some() {
                    return Ok(false);
                }
            }
            copying.left.pop_front();
            self.tell_joined(at, &copying.join, range)?;
        }
        if copying.left.is_empty() {
            self.note(|| format!("agent {at} made {} ranges its own", copying.ranges.len()));
            self.audit();
        }
        Ok(copying.left.is_empty())
    }

    /// As `Handler::tell_joined`.
    fn tell_joined(&mut self, at: usize, join: &Join, range: Range) -> Result<()> {
        let here = self.hosts[at].holdings.version(&state(), join.life);
        let version = here.ok_or_else(|| Error::Misuse { what: "what was copied is gone".into() })?;
        let (agent, number, state) = (self.hosts[at].info.id, join.number, state());
        self.ask_registry(at, &ToRegistry::Joined { agent, number, state, range, version }).map(drop)
    }

    /// As `Handler::restore`, with what `Handler::join_all` makes of a failure.
    fn restore(&mut self, at: usize, join: &Join) -> Result<()> {
        let restored = self.try_to_restore(at, join);
        self.note(|| format!("agent {at} restored {} ranges: {restored:?}", join.ranges.len()));
        if let Err(error) = restored.as_ref()
            && !matches!(error, Error::Protocol { .. })
        {
            let (state, life, error) = (state(), join.life, error.clone());
            self.ask_registry(at, &ToRegistry::NotJoined { state, life, error })?;
        }
        restored
    }

    fn try_to_restore(&mut self, at: usize, join: &Join) -> Result<()> {
        let (id, life) = (state(), join.life);
        let nowhere =
            || Error::StateLost { state: id.to_string(), what: "there is no checkpoint_dir".into() };
        let folder = self.folder.as_ref().ok_or_else(nowhere)?;
        let pending = folder.pending(join)?;
        let Version(Some(version)) = join.version else {
            self.hosts[at].holdings.fill(&id, life, &join.ranges, join.version, pending)?;
            return join.ranges.iter().try_for_each(|range| self.tell_joined(at, join, range));
        };
        let chain = folder.chain(version, &join.ranges)?;
        for (base, ranges) in chain.by_base() {
            let folder = self.folder.as_ref().ok_or_else(nowhere)?;
            let view = folder.rebuild(&chain, base, &ranges)?;
            self.follow(at, join, join.version)?;
            let part = |part: &DeltaPart| -> Result<DeltaPart> {
                let ranges = part.ranges.intersection(&ranges);
                Ok(DeltaPart { delta: part.delta.of(&ranges)?, ranges, ..part.clone() })
            };
            let parts = pending.iter().map(part).collect::<Result<Vec<_>>>()?;
            let missing = self.hosts[at].holdings.fill(&id, life, &ranges, join.version, parts)?;
            for range in ranges.iter() {
                if missing.contains(range) {
                    let page = view.page(range, None, usize::MAX)?;
                    self.hosts[at].holdings.store.install(&id, &page)?;
                }
                self.tell_joined(at, join, range)?;
            }
        }
        Ok(())
    }
}
