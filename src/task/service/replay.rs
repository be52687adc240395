//! The steps of [`ServiceTask`] that read the recorded log and write the new one.

use super::{
    Choice, Claim, Determinant, DivergenceKind, Error, Found, Index, Input, KEY_ADVICE, LAYOUT_ADVICE,
    Matching, Next, Place, ROWS_ADVICE, Recorded, Result, SERVICE_ADVICE, ServiceTask, header, row_name,
};

impl ServiceTask {
    /// The recorded answer to what the function asks, as `pick` reads it. `None`: go live.
    pub(super) fn next<T>(
        &mut self,
        asked: impl FnOnce(&Self) -> String,
        pick: impl FnOnce(Recorded<'_>) -> Option<T>,
    ) -> Result<Option<T>> {
        let Place::Recorded(mut cursor) = self.place else {
            return Ok(None);
        };
        let recorded = match self.log.peek(&mut cursor) {
            Next::Event(event) => match pick(event) {
                Some(answer) => {
                    self.log.advance(&mut cursor);
                    self.place = Place::Recorded(cursor);
                    return Ok(Some(answer));
                }
                None => self.describe(event),
            },
            Next::Open(segment) => {
                self.place = Place::Live;
                self.record(&Determinant::Resume { segment })?;
                return Ok(None);
            }
            Next::Closed => "nothing more here".to_owned(),
        };
        let asked = asked(self);
        Err(self.mismatch(recorded, asked))
    }

    /// Of rows that another filter or join has chosen, nothing tells those apart that are given the same; nor any, of a
    /// function that is given nothing.
    pub(super) fn refuse_alike(&mut self, fingerprint: u64, row: u64) -> Result<()> {
        let Some(recorded) = self.others.get(&fingerprint) else { return Ok(()) };
        if !self.options.draws && *recorded == 1 && self.position.occurrence == 0 {
            return Ok(());
        }
        Err(self.diverge(Claim {
            kind: DivergenceKind::AmbiguousRows,
            row: Some(row),
            recorded: "the services of rows that another filter, join or limit below the function chose"
                .to_owned(),
            asked: row_name(row, fingerprint),
            advice: KEY_ADVICE,
        }))
    }

    /// The recorded row that is this one, used up from now on. `None`: not recorded.
    pub(super) fn find_row(&mut self, fingerprint: u64, row: u64) -> Result<Option<usize>> {
        if let Matching::Positional { next } = &mut self.matching {
            match self.log.fingerprints().get(*next) {
                None => return Ok(None),
                Some(&recorded) if recorded == fingerprint => {
                    *next += 1;
                    return Ok(Some(*next - 1));
                }
                Some(_) => {}
            }
            let mut index = Index::default();
            index.extend(self.log.fingerprints(), *next);
            self.matching = Matching::Indexed(index);
        }
        let Matching::Indexed(index) = &mut self.matching else {
            return Ok(None);
        };
        let log = &self.log;
        let same = self.options.checks_ambiguity().then_some(|a, b| Ok::<_, Error>(log.same_row(a, b)));
        match index.take(fingerprint, same)? {
            Found::At(recorded) => Ok(Some(recorded)),
            // What an equal live row will ask is not known yet, so it can't be compared.
            Found::Exhausted(_) | Found::Unknown => Ok(None),
            Found::Ambiguous(a, b) => Err(self.diverge(Claim {
                kind: DivergenceKind::AmbiguousRows,
                row: Some(row),
                recorded: format!("different services for equal rows, recorded rows {a} and {b}"),
                asked: row_name(row, fingerprint),
                advice: KEY_ADVICE,
            })),
        }
    }

    /// Under another layout, what is not recorded here may be recorded by another partition, with
    /// another seed: going live would answer it a second time.
    pub(super) fn refuse_other_layout(&mut self, asked: impl FnOnce() -> String) -> Result<()> {
        if !self.options.layout_changed {
            return Ok(());
        }
        Err(self.diverge(Claim {
            kind: DivergenceKind::LayoutChanged,
            row: self.current_row(),
            recorded: "this epoch, by another number of tasks or with other borders between them".to_owned(),
            asked: asked(),
            advice: LAYOUT_ADVICE,
        }))
    }

    /// What it was recorded over has not come again. Under another layout nothing else is to be expected.
    ///
    /// # Errors
    /// [`Error::Divergence`] if it is that.
    pub fn input_changed(&mut self) -> Result<()> {
        self.refuse_other_layout(|| "rows of other tasks than those that it was recorded over".to_owned())
    }

    /// At the end of input: the last row, or the last batch, must have asked for all that is
    /// recorded.
    pub(super) fn finish_inputs(&mut self) -> Result<()> {
        let Place::Recorded(mut cursor) = self.place else {
            return Ok(());
        };
        let Next::Event(event @ Recorded::Input(_)) = self.log.peek(&mut cursor) else {
            return self.end_row();
        };
        let recorded = self.describe(event);
        // What follows a batch that did not come is of no interest, except how many rows there are.
        let mut leftover = 0;
        while let Next::Event(event) = self.log.peek(&mut cursor) {
            if let Recorded::Input(input) = event {
                leftover += u64::from(input.rows);
            }
            self.log.advance(&mut cursor);
        }
        self.summary.leftover = leftover;
        if !self.same_stage || self.options.layout_changed {
            return Ok(());
        }
        let row = self.summary.rows;
        Err(self.diverge(Claim {
            kind: DivergenceKind::RowsMissing,
            row: Some(row),
            recorded,
            asked: format!("the end of input after {row} rows"),
            advice: ROWS_ADVICE,
        }))
    }

    /// Writes a determinant, after the header if it is the attempt's first.
    pub(super) fn record(&mut self, determinant: &Determinant<'_>) -> Result<()> {
        self.push_header()?;
        self.builder.push(determinant)
    }

    /// Before anything is written: the header, if this is the attempt's first, and the failed calls that
    /// what is written now depends on.
    pub(super) fn push_header(&mut self) -> Result<()> {
        if !self.has_header {
            self.builder.push(&header::ours(&self.options))?;
            if self.options.choice != Choice::UNKNOWN {
                self.builder.push(&Determinant::Choice { choice: self.options.choice.0 })?;
            }
            self.has_header = true;
        }
        for (name, value) in std::mem::take(&mut self.failed) {
            if let Some(text) = self.log.name_of(name).filter(|_| self.named.insert(name)) {
                self.builder.push(&Determinant::Service { name, text })?;
            }
            self.builder.push(&Determinant::Call { name, ok: false, value: &value })?;
        }
        Ok(())
    }

    pub(super) fn mismatch(&mut self, recorded: String, asked: String) -> Error {
        let row = self.current_row();
        let kind = DivergenceKind::ServiceMismatch;
        self.diverge(Claim { kind, row, recorded, asked, advice: SERVICE_ADVICE })
    }

    pub(super) fn rows_differ(&mut self, row: u64, recorded: String, asked: String) -> Error {
        let (kind, advice) = if self.options.layout_changed {
            (DivergenceKind::LayoutChanged, LAYOUT_ADVICE)
        } else {
            (DivergenceKind::RowsChanged, ROWS_ADVICE)
        };
        self.diverge(Claim { kind, row: Some(row), recorded, asked, advice })
    }

    pub(super) fn diverge(&mut self, claim: Claim) -> Error {
        self.standing.diverge(claim)
    }

    /// The last row taken.
    fn current_row(&self) -> Option<u64> {
        self.summary.rows.checked_sub(1)
    }

    /// Writes what people call a service, unless the log says so already.
    pub(super) fn record_name(&mut self, name: u64) -> Result<()> {
        let Some(text) = self.log.name_of(name).map(str::to_owned) else { return Ok(()) };
        if self.named.insert(name) {
            self.record(&Determinant::Service { name, text: &text })?;
        }
        Ok(())
    }

    /// A determinant as errors name it.
    pub(super) fn describe(&self, event: Recorded<'_>) -> String {
        match event {
            Recorded::Time(_) => "the time".to_owned(),
            Recorded::Call(call) => self.call_name(call.name),
            Recorded::Input(input) => input_name(input),
        }
    }

    /// A service call as errors name it.
    pub(super) fn call_name(&self, name: u64) -> String {
        match self.log.name_of(name) {
            Some(text) => format!("a call of service {text}"),
            None => format!("a call of service {name:016x}"),
        }
    }
}

/// An input batch as errors name it.
pub(super) fn input_name(input: Input) -> String {
    format!("an input batch of {} rows (fingerprint {:016x})", input.rows, input.fingerprint)
}
