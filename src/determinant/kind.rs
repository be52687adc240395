//! What can be recorded.

/// Version of the determinants' meaning, written into each [`Determinant::Header`].
pub const FORMAT: u16 = 1;

/// Fingerprints of the rows of a [`Determinant::Results`], as they stand in the block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fingerprints<'a> {
    pub(super) rows: usize,
    /// One fingerprint for all rows, or one each.
    pub(super) raw: &'a [u8],
}

impl Fingerprints<'_> {
    /// Number of rows.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.rows
    }

    /// Whether there are no rows.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Appends one fingerprint per row.
    pub fn extend_into(&self, out: &mut Vec<u64>) {
        let (numbers, _) = self.raw.as_chunks::<8>();
        if let ([only], true) = (numbers, self.rows > 1) {
            out.resize(out.len() + self.rows, u64::from_le_bytes(*only));
        } else {
            out.extend(numbers.iter().map(|bytes| u64::from_le_bytes(*bytes)));
        }
    }
}

/// The recorded outcome of one nondeterministic event, borrowed from its block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Determinant<'a> {
    /// First of what a generation writes: who recorded it, with which code.
    Header {
        /// [`FORMAT`] of the writer.
        format: u16,
        /// Record mode, as the task machines number it.
        mode: u8,
        /// Fingerprint of the user's code.
        code: u64,
        /// Python version, such as `3.11`; fingerprints of code compare within one.
        python: &'a str,
        /// The function's name, for people.
        label: &'a str,
        /// Spark stage.
        stage: u32,
        /// Hash of the application id.
        app: u64,
    },
    /// By what the rows are chosen that this generation records.
    Choice {
        /// As [`Choice`](crate::task::Choice) has it.
        choice: u16,
    },
    /// A reading of the clock.
    Time {
        /// Nanoseconds since 1970.
        unix_ns: i64,
    },
    /// The seed of a task's random numbers.
    Seed {
        /// The seed.
        seed: u64,
    },
    /// Results of a whole function for some rows.
    Results {
        /// One fingerprint per input row.
        fingerprints: Fingerprints<'a>,
        /// The results as an Arrow IPC stream.
        arrow: &'a [u8],
    },
    /// The outcome of one service call.
    Call {
        /// Hash of the service's name.
        name: u64,
        /// Whether it returned (or raised).
        ok: bool,
        /// The serialised result or exception.
        value: &'a [u8],
    },
    /// What people call a service, before its first call.
    Service {
        /// Hash of the name, as in [`Determinant::Call`].
        name: u64,
        /// The name.
        text: &'a str,
    },
    /// What follows belongs to the row with this fingerprint.
    Row {
        /// Fingerprint of the row.
        fingerprint: u64,
    },
    /// A batch of the partition was taken.
    Input {
        /// Its rows.
        rows: u32,
        /// Its fingerprint.
        fingerprint: u64,
    },
    /// An epoch ended here.
    EpochMark,
    /// Frames of one channel were taken, after those of the `Order` before.
    Order {
        /// The channel: the upstream task's partition.
        channel: u32,
        /// How many frames.
        frames: u32,
        /// Version of the upstream task's log that the last of them was made of.
        version: u64,
    },
    /// What stands before this in its block led to this round of frames.
    Output {
        /// The round, from 0.
        round: u32,
    },
    /// The reading of the clock before this came again.
    TimeAgain {
        /// How many times more.
        count: u32,
    },
    /// Rows of the input that the results after this belong to, where they are not the ones that follow
    /// the rows before.
    Rows {
        /// One number per row; see [`row_numbers`](super::row_numbers).
        numbers: &'a [u8],
    },
    /// What can be seen, besides a function's arguments, of the rows that the results after this belong to.
    Marks {
        /// One per row; see [`marks`](super::marks).
        marks: &'a [u8],
    },
    /// Which rows of the results after this others have recorded, from whom they were copied.
    Copies {
        /// Places among them, in growing order; see [`row_numbers`](super::row_numbers).
        places: &'a [u8],
    },
    /// Which rows of the results after this tasks of other uses of the operator have recorded, from whom they were copied.
    OfOtherUses {
        /// As in [`Determinant::Copies`].
        places: &'a [u8],
    },
    /// What follows goes on with a row segment that an earlier generation left incomplete.
    Resume {
        /// Number of Row and Resume determinants before the segment's own; 0 before the first.
        segment: u32,
    },
}
