//! Lines out of a stream of bytes: whole ones, whatever the pieces they come in.
//!
//! Lines end with `\n`; a `\r` before it belongs to the end. What is longer than allowed, or no UTF-8 where
//! that is not repaired, is not a row: it is counted, and its beginning handed out to be kept.
//!
//! Lines of JSON are rows of text like others: what is in them is Spark's to read (`from_json`), with a
//! schema that the user gives there.

use arrow_array::StringArray;
use arrow_buffer::{Buffer, OffsetBuffer, ScalarBuffer};

use crate::error::{Error, Result};

/// Bytes of a rejected line that are kept.
const KEPT_BYTES: usize = 4 << 10;

/// Why a line is not a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rejection {
    /// Longer than allowed.
    TooLong,
    /// Not UTF-8.
    NotUtf8,
}

impl Rejection {
    /// Its name in statistics and in the file of malformed lines.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::TooLong => "too-long",
            Self::NotUtf8 => "not-utf8",
        }
    }
}

/// A line that is not a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejected {
    /// Why.
    pub why: Rejection,
    /// Its length in bytes.
    pub len: u64,
    /// Its first bytes.
    pub head: Vec<u8>,
}

/// Lines that came to an end.
#[derive(Debug, Default)]
pub struct Lines {
    /// Those that are rows, in order.
    pub rows: Option<StringArray>,
    /// Those that are not.
    pub rejected: Vec<Rejected>,
    /// Both together.
    pub taken: u64,
    /// Lines in which bytes were replaced.
    pub repaired: u64,
}

/// Splits a stream of bytes into lines.
#[derive(Debug)]
pub struct Splitter {
    line_max: usize,
    repair: bool,
    /// Lines that came to an end, one after the other without their ends, and the one that is open.
    values: Vec<u8>,
    /// Where each line that came to an end ends.
    ends: Vec<i32>,
    /// Where the open line begins.
    open: usize,
    /// Bytes of the open line beyond what is allowed, which are not in `values`.
    beyond: u64,
    rejected: Vec<Rejected>,
    taken: u64,
}

impl Splitter {
    /// Lines of at most `line_max` bytes. With `repair` bytes that are no UTF-8 are replaced by U+FFFD, else
    /// the line is rejected.
    #[must_use]
    pub const fn new(line_max: usize, repair: bool) -> Self {
        Self {
            line_max,
            repair,
            values: Vec::new(),
            ends: Vec::new(),
            open: 0,
            beyond: 0,
            rejected: Vec::new(),
            taken: 0,
        }
    }

    /// Takes in the next bytes.
    pub fn push(&mut self, mut bytes: &[u8]) {
        while let Some(at) = memchr::memchr(b'\n', bytes) {
            let (line, rest) = bytes.split_at(at);
            self.extend(line);
            self.end_line();
            bytes = rest.get(1..).unwrap_or_default();
        }
        self.extend(bytes);
    }

    /// Takes in bytes as one line, whatever is in them.
    pub fn push_whole(&mut self, bytes: &[u8]) {
        self.extend(bytes);
        if self.values.len() > self.open || self.beyond > 0 {
            self.close();
        }
    }

    /// Bytes of lines that came to an end and were not taken yet.
    #[must_use]
    pub const fn ready_bytes(&self) -> usize {
        self.open
    }

    /// Whether lines came to an end that were not taken yet.
    #[must_use]
    pub const fn is_ready(&self) -> bool {
        self.taken > 0
    }

    /// The stream has ended. A line without an end counts if `whole`, else it is forgotten.
    pub fn end(&mut self, whole: bool) {
        if whole && (self.values.len() > self.open || self.beyond > 0) {
            self.end_line();
        }
        self.values.truncate(self.open);
        self.beyond = 0;
    }

    /// The lines that came to an end.
    ///
    /// # Errors
    /// [`Error::Arrow`] never, as far as is known: Arrow checks what was checked here.
    pub fn take(&mut self) -> Result<Lines> {
        let rest = self.values.split_off(self.open);
        let values = std::mem::replace(&mut self.values, rest);
        let ends = std::mem::take(&mut self.ends);
        let mut lines = Lines {
            rejected: std::mem::take(&mut self.rejected),
            taken: std::mem::take(&mut self.taken),
            ..Lines::default()
        };
        self.open = 0;
        if ends.is_empty() {
            return Ok(lines);
        }
        let offsets = offsets(std::iter::once(0).chain(ends).collect());
        let values = Buffer::from_vec(values);
        // Nearly always: Arrow checks all bytes at once, and the bounds of each line.
        lines.rows = match StringArray::try_new(offsets.clone(), values.clone(), None) {
            Ok(column) => Some(column),
            Err(_) => {
                let mut pieces = offsets.windows(2).map(|ends| piece(&values, ends));
                Some(self.one_by_one(&mut pieces, &mut lines)?)
            }
        };
        Ok(lines)
    }

    fn one_by_one(&self, pieces: &mut dyn Iterator<Item = &[u8]>, lines: &mut Lines) -> Result<StringArray> {
        let mut values = Vec::new();
        let mut ends = vec![0];
        for line in pieces {
            match std::str::from_utf8(line) {
                Ok(line) => values.extend_from_slice(line.as_bytes()),
                Err(_) if self.repair => {
                    lines.repaired += 1;
                    values.extend_from_slice(String::from_utf8_lossy(line).as_bytes());
                }
                Err(_) => {
                    lines.rejected.push(rejected(Rejection::NotUtf8, line, line.len() as u64));
                    continue;
                }
            }
            ends.push(position(values.len())?);
        }
        Ok(StringArray::try_new(offsets(ends), Buffer::from_vec(values), None)?)
    }

    fn extend(&mut self, bytes: &[u8]) {
        let room = (self.line_max + 1).saturating_sub(self.values.len() - self.open);
        let (kept, beyond) = bytes.split_at(bytes.len().min(room));
        self.values.extend_from_slice(kept);
        self.beyond += beyond.len() as u64;
    }

    fn end_line(&mut self) {
        if self.beyond == 0 && self.values.len() > self.open && self.values.last() == Some(&b'\r') {
            self.values.pop();
        }
        self.close();
    }

    fn close(&mut self) {
        self.taken += 1;
        let line = self.values.get(self.open..).unwrap_or_default();
        if self.beyond > 0 || line.len() > self.line_max {
            let len = line.len() as u64 + std::mem::take(&mut self.beyond);
            self.rejected.push(rejected(Rejection::TooLong, line, len));
            self.values.truncate(self.open);
            return;
        }
        // Blocks are closed long before; a line that would not fit is too long.
        match i32::try_from(self.values.len()) {
            Ok(end) => {
                self.ends.push(end);
                self.open = self.values.len();
            }
            Err(_) => self.values.truncate(self.open),
        }
    }
}

fn rejected(why: Rejection, line: &[u8], len: u64) -> Rejected {
    Rejected { why, len, head: line.get(..KEPT_BYTES).unwrap_or(line).to_vec() }
}

fn piece<'a>(values: &'a [u8], ends: &[i32]) -> &'a [u8] {
    let at = |index: usize| ends.get(index).and_then(|end| usize::try_from(*end).ok()).unwrap_or_default();
    values.get(at(0)..at(1)).unwrap_or_default()
}

fn offsets(ends: Vec<i32>) -> OffsetBuffer<i32> {
    OffsetBuffer::new(ScalarBuffer::from(ends))
}

fn position(len: usize) -> Result<i32> {
    i32::try_from(len).map_err(|_| Error::Misuse { what: "more than 2 GiB of lines in one block".into() })
}

#[cfg(test)]
mod tests {
    use arrow_array::Array;
    use proptest::prelude::*;

    use super::*;

    fn split(pieces: &[Vec<u8>], line_max: usize, repair: bool) -> (Vec<String>, Vec<Rejected>, u64) {
        let mut splitter = Splitter::new(line_max, repair);
        let (mut rows, mut rejected, mut taken) = (Vec::new(), Vec::new(), 0);
        for (number, piece) in pieces.iter().enumerate() {
            splitter.push(piece);
            if number % 2 == 0 {
                let lines = splitter.take().unwrap();
                rows.extend(lines.rows.iter().flatten().flatten().map(str::to_owned));
                rejected.extend(lines.rejected);
                taken += lines.taken;
            }
        }
        splitter.end(true);
        let lines = splitter.take().unwrap();
        rows.extend(lines.rows.iter().flatten().flatten().map(str::to_owned));
        rejected.extend(lines.rejected);
        (rows, rejected, taken + lines.taken)
    }

    /// What splitting means, said in the shortest way.
    fn plain(bytes: &[u8], line_max: usize, repair: bool) -> (Vec<String>, usize) {
        let mut lines: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
        if lines.last().is_some_and(|last| last.is_empty()) {
            lines.pop();
        }
        let all = lines.len();
        let rows = lines.iter().filter_map(|line| {
            // Only a line that is too long as it came keeps its end.
            let whole = line.len() <= line_max + 1;
            let line = if whole { line.strip_suffix(b"\r").unwrap_or(line) } else { line };
            match String::from_utf8(line.to_vec()) {
                _ if line.len() > line_max => None,
                Ok(line) => Some(line),
                Err(_) if repair => Some(String::from_utf8_lossy(line).into_owned()),
                Err(_) => None,
            }
        });
        (rows.collect(), all)
    }

    proptest! {
        #[test]
        fn pieces_do_not_matter(
            pieces in prop::collection::vec(
                prop::collection::vec(prop::sample::select(b"ab\n\r\xc3\xa9\xff".to_vec()), 0..12), 0..12),
            line_max in 1..9_usize,
            repair in any::<bool>(),
        ) {
            let (rows, rejected, taken) = split(&pieces, line_max, repair);
            let (wanted, all) = plain(&pieces.concat(), line_max, repair);
            prop_assert_eq!(&rows, &wanted);
            prop_assert_eq!((rows.len() + rejected.len(), taken), (all, all as u64));
        }
    }

    #[test]
    fn a_line_that_is_too_long_is_rejected_with_its_length_and_its_beginning() {
        let (rows, rejected, _) =
            split(&[b"short\n".to_vec(), vec![b'x'; 9_000], b"\nnext\n".to_vec()], 100, true);
        assert_eq!(rows, ["short", "next"]);
        let [long] = rejected.as_slice() else { panic!("{rejected:?}") };
        assert_eq!((long.why, long.len, long.head.len()), (Rejection::TooLong, 9_000, 101));
    }

    #[test]
    fn a_line_without_an_end_counts_only_if_it_is_whole() {
        let mut splitter = Splitter::new(100, true);
        splitter.push(b"one\ntwo");
        splitter.end(false);
        assert_eq!(splitter.take().unwrap().rows.unwrap().len(), 1);
        splitter.push(b"three\n");
        assert_eq!(splitter.take().unwrap().rows.unwrap().value(0), "three");
    }

    #[test]
    fn text_cut_within_a_character_by_a_line_end_is_not_taken_for_text() {
        let (rows, rejected, _) = split(&[b"\xc3\n\xa9\n".to_vec()], 100, false);
        assert_eq!((rows.len(), rejected.len()), (0, 2));
    }
}
