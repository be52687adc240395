//! The recorded determinants of a services log, cut into the segments they belong to.
//!
//! ```text
//!  Header  time time │ Row a  call │ Row b  time ┃ Header │ Resume 2  time │ Row c  call
//!  part 0 (prologue) │ part 1      │ part 2      ┃        │ part 3         │ part 4
//!                                        └──────── one segment ───┘
//! ```
//!
//! Part 0 is what comes before the first row; for operators on whole partitions it is everything.
//! The last part of a generation is *open*: the attempt may have died in it. A later generation
//! that runs past an open part's end goes live there and says so with a Resume.

use std::collections::HashMap;

use bytes::Bytes;

use super::choice::{Choice, Chosen};
use super::header;
use super::options::TaskMode;
use super::recorded::Stage;
use crate::determinant::{BlockReader, Determinant, FingerprintMap};
use crate::error::{Error, Result};

/// One recorded service call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) name: u64,
    pub(super) ok: bool,
    /// A slice of the block.
    pub(super) value: Bytes,
}

/// One input batch that was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Input {
    pub(super) rows: u32,
    pub(super) fingerprint: u64,
}

/// Frames of one channel that were taken one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order {
    /// The channel: the upstream task's partition.
    pub channel: u32,
    /// How many frames.
    pub frames: u32,
    /// Version of the upstream task's log with the last of them.
    pub version: u64,
}

/// One determinant of a segment. Small, as there may be many millions of times.
#[derive(Debug, Clone, Copy)]
enum Event {
    /// A reading of the clock, and how many times it came.
    Times(i64, u32),
    /// Place in `calls`.
    Call(u32),
    /// Place in `inputs`.
    Input(u32),
}

/// One determinant of a segment, resolved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Recorded<'a> {
    Time(i64),
    Call(&'a Call),
    Input(Input),
}

#[derive(Debug, Clone, Copy)]
struct Part {
    start: usize,
    end: usize,
    next: Option<usize>,
    open: bool,
}

/// A place in a segment: before the event numbered `event` of `part`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cursor {
    part: usize,
    event: usize,
    /// Readings taken of the event, if it is one of several.
    taken: u32,
}

/// What stands at a cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next<'a> {
    Event(Recorded<'a>),
    /// The segment's end, where the recording attempt may have died; the number of its last part.
    Open(u32),
    /// The segment's end: the recording attempt went on to something else.
    Closed,
}

/// Rows from one header to the next.
#[derive(Debug)]
struct ChosenRows {
    choice: Choice,
    stage: Stage,
    start: usize,
}

/// A services log.
#[derive(Debug, Default)]
pub(super) struct ServiceLog {
    events: Vec<Event>,
    calls: Vec<Call>,
    inputs: Vec<Input>,
    parts: Vec<Part>,
    /// Per row in log order: its first part.
    rows: Vec<usize>,
    fingerprints: Vec<u64>,
    /// By what they were chosen.
    choices: Vec<ChosenRows>,
    seed: Option<u64>,
    orders: Vec<Order>,
    /// Per block, the round of frames it led to.
    rounds: Vec<Option<u32>>,
    /// What people call the services that were called, by the hash of the name.
    names: HashMap<u64, String>,
    /// The part being read.
    current: Option<usize>,
}

impl ServiceLog {
    /// Reads a task's own log. Returns it and the headers in order; stops at a header of another
    /// mode.
    pub(super) fn read(blocks: &[Bytes]) -> Result<(Self, Vec<header::Recorded>)> {
        let mut log = Self::default();
        log.parts.push(Part { start: 0, end: 0, next: None, open: false });
        log.current = Some(0);
        let mut headers = Vec::new();
        for block in blocks {
            log.rounds.push(None);
            for determinant in BlockReader::new(block)? {
                let determinant = determinant?;
                if let Determinant::Header { mode, code, python, label, stage, app, .. } = determinant {
                    let (python, label) = (python.to_owned(), label.to_owned());
                    if !headers.is_empty() {
                        log.end_generation();
                    }
                    headers.push(header::Recorded { mode, code, python, label, stage, app, before: 0 });
                    let start = log.fingerprints.len();
                    log.choices.push(ChosenRows { choice: Choice::UNKNOWN, stage: (app, stage), start });
                    if mode != TaskMode::Services.code() {
                        return Ok((log, headers));
                    }
                } else if headers.is_empty() {
                    return corrupt("a log without a header".to_owned());
                } else {
                    log.add(block, determinant)?;
                }
            }
        }
        log.end_generation();
        Ok((log, headers))
    }

    fn add(&mut self, block: &Bytes, determinant: Determinant<'_>) -> Result<()> {
        match determinant {
            Determinant::Time { unix_ns } => self.push(Event::Times(unix_ns, 1)),
            Determinant::TimeAgain { count } => self.again(count),
            Determinant::Order { channel, frames, version } => {
                self.orders.push(Order { channel, frames, version });
                Ok(())
            }
            Determinant::Output { round } => {
                if let Some(block) = self.rounds.last_mut() {
                    *block = Some(round);
                }
                Ok(())
            }
            Determinant::Call { name, ok, value } => {
                let event = Event::Call(number(self.calls.len())?);
                self.calls.push(Call { name, ok, value: block.slice_ref(value) });
                self.push(event)
            }
            Determinant::Service { name, text } => {
                self.name(name, text);
                Ok(())
            }
            Determinant::Input { rows, fingerprint } => {
                let event = Event::Input(number(self.inputs.len())?);
                self.inputs.push(Input { rows, fingerprint });
                self.push(event)
            }
            Determinant::Seed { seed } => {
                self.seed.get_or_insert(seed);
                Ok(())
            }
            Determinant::Row { fingerprint } => {
                let part = self.begin_part();
                self.rows.push(part);
                self.fingerprints.push(fingerprint);
                Ok(())
            }
            Determinant::Resume { segment } => {
                let part = self.begin_part();
                match self.parts.get_mut(segment as usize) {
                    Some(resumed) if resumed.open && resumed.next.is_none() => {
                        resumed.next = Some(part);
                        Ok(())
                    }
                    _ => corrupt(format!("part {segment} resumed, which no attempt died in")),
                }
            }
            Determinant::Choice { choice } => {
                if let Some(chosen) = self.choices.last_mut() {
                    chosen.choice = Choice(choice);
                }
                Ok(())
            }
            Determinant::EpochMark => Ok(()),
            other => corrupt(format!("{other:?} in a log of services")),
        }
    }

    /// The reading before came `count` more times.
    fn again(&mut self, count: u32) -> Result<()> {
        let within = self.current.and_then(|part| self.parts.get(part)).map_or(0, |part| part.start);
        match self.events.get_mut(within..).and_then(<[Event]>::last_mut) {
            Some(Event::Times(_, times)) => {
                *times = times.checked_add(count).map_or_else(|| corrupt("too many readings".into()), Ok)?;
                Ok(())
            }
            _ => corrupt("a reading of the clock again, and none before".to_owned()),
        }
    }

    fn push(&mut self, event: Event) -> Result<()> {
        self.events.push(event);
        let end = self.events.len();
        match self.current.and_then(|part| self.parts.get_mut(part)) {
            Some(part) => {
                part.end = end;
                Ok(())
            }
            None => corrupt("a determinant that belongs to no row".to_owned()),
        }
    }

    fn begin_part(&mut self) -> usize {
        let at = self.events.len();
        self.parts.push(Part { start: at, end: at, next: None, open: false });
        self.current = Some(self.parts.len() - 1);
        self.parts.len() - 1
    }

    fn end_generation(&mut self) {
        if let Some(part) = self.current.take().and_then(|part| self.parts.get_mut(part)) {
            part.open = true;
        }
    }

    /// The seed, wherever it was recorded.
    pub(super) const fn seed(&self) -> Option<u64> {
        self.seed
    }

    /// What people call a service, by the hash of its name.
    pub(super) fn name_of(&self, service: u64) -> Option<&str> {
        self.names.get(&service).map(String::as_str)
    }

    /// Keeps what people call a service.
    pub(super) fn name(&mut self, service: u64, text: &str) {
        self.names.entry(service).or_insert_with(|| text.to_owned());
    }

    /// The services that have a name.
    pub(super) fn named(&self) -> impl Iterator<Item = u64> {
        self.names.keys().copied()
    }

    /// In which order frames were taken.
    pub(super) fn orders(&self) -> &[Order] {
        &self.orders
    }

    /// Per block, the round of frames it led to.
    pub(super) fn rounds(&self) -> &[Option<u32>] {
        &self.rounds
    }

    /// How often rows are recorded that others chose than those who come in this stage.
    pub(super) fn of_other_choices(&self, choice: Choice, stage: Stage) -> FingerprintMap<usize> {
        let mut counts = FingerprintMap::default();
        let ends = self.choices.iter().skip(1).map(|chosen| chosen.start).chain([self.fingerprints.len()]);
        for (chosen, end) in self.choices.iter().zip(ends) {
            if chosen.choice.compare(choice, chosen.stage == stage) == Chosen::Otherwise {
                let rows = self.fingerprints.get(chosen.start..end).unwrap_or_default();
                rows.iter().for_each(|fingerprint| *counts.entry(*fingerprint).or_default() += 1);
            }
        }
        counts
    }

    /// Fingerprints of the recorded rows in log order.
    pub(super) fn fingerprints(&self) -> &[u64] {
        &self.fingerprints
    }

    /// The start of what comes before the first row.
    pub(super) fn prologue(&self) -> Cursor {
        self.start_of(0)
    }

    /// The start of a recorded row.
    pub(super) fn row(&self, row: usize) -> Cursor {
        // A row past the end can't be asked for; it would read as an empty, closed segment.
        self.start_of(self.rows.get(row).copied().unwrap_or(usize::MAX))
    }

    fn start_of(&self, part: usize) -> Cursor {
        Cursor { part, event: self.parts.get(part).map_or(0, |p| p.start), taken: 0 }
    }

    /// What stands at the cursor, which is moved into a continuation if it is at a part's end.
    pub(super) fn peek(&self, cursor: &mut Cursor) -> Next<'_> {
        while let Some(part) = self.parts.get(cursor.part) {
            if cursor.event < part.end {
                return self.resolve(cursor.event).map_or(Next::Closed, Next::Event);
            }
            match part.next {
                Some(next) => *cursor = self.start_of(next),
                None if part.open => {
                    return Next::Open(u32::try_from(cursor.part).unwrap_or(u32::MAX));
                }
                None => return Next::Closed,
            }
        }
        Next::Closed
    }

    /// Moves past the event at the cursor.
    pub(super) fn advance(&self, cursor: &mut Cursor) {
        if let Some(Event::Times(_, times)) = self.events.get(cursor.event)
            && cursor.taken + 1 < *times
        {
            cursor.taken += 1;
            return;
        }
        cursor.event += 1;
        cursor.taken = 0;
    }

    fn resolve(&self, event: usize) -> Option<Recorded<'_>> {
        Some(match *self.events.get(event)? {
            Event::Times(unix_ns, _) => Recorded::Time(unix_ns),
            Event::Call(at) => Recorded::Call(self.calls.get(at as usize)?),
            Event::Input(at) => Recorded::Input(*self.inputs.get(at as usize)?),
        })
    }

    /// Whether two recorded rows hold equal determinants.
    pub(super) fn same_row(&self, a: usize, b: usize) -> bool {
        let (mut a, mut b) = (self.row(a), self.row(b));
        loop {
            match (self.peek(&mut a), self.peek(&mut b)) {
                (Next::Event(x), Next::Event(y)) if x == y => {
                    self.advance(&mut a);
                    self.advance(&mut b);
                }
                (Next::Open(_) | Next::Closed, Next::Open(_) | Next::Closed) => return true,
                _ => return false,
            }
        }
    }
}

fn number(len: usize) -> Result<u32> {
    u32::try_from(len).or_else(|_| corrupt("more than 2^32 determinants of one kind".to_owned()))
}

fn corrupt<T>(what: String) -> Result<T> {
    Err(Error::CorruptLog { what })
}
