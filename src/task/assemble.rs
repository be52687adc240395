//! Puts the values of a batch together from recorded runs and live values.

use arrow_array::{Array, ArrayRef};
use arrow_schema::DataType;
use arrow_select::{concat::concat, interleave::interleave};

use super::plan::Run;
use super::recorded::{Piece, RecordedRows};
use crate::determinant::FingerprintMap;
use crate::error::Error;

/// Runs shorter than this on average are copied row by row, longer ones run by run.
const SHORT_RUN_ROWS: usize = 8;

/// Why values can't be put together.
#[derive(Debug)]
pub(super) enum AssembleError {
    /// Recorded values have this type instead of the expected one.
    Type(DataType),
    Other(Error),
}

impl<E: Into<Error>> From<E> for AssembleError {
    fn from(error: E) -> Self {
        Self::Other(error.into())
    }
}

/// The values of `runs` in order. Live runs take from `live`, front to back. One run inside one
/// recorded entry (or only live rows) is a slice without a copy; anything else is copied once.
///
/// `runs` must cover at least one row, and `live` have type `expected`.
pub(super) fn assemble(
    recorded: &mut RecordedRows,
    runs: &[Run],
    live: Option<&ArrayRef>,
    expected: &DataType,
) -> Result<ArrayRef, AssembleError> {
    let (pieces, sources) = gather(recorded, runs, live, expected)?;
    if let [piece] = pieces.as_slice() {
        let source = source_of(&sources, piece.entry)?;
        let whole = piece.offset == 0 && piece.len == source.len();
        return Ok(if whole { ArrayRef::clone(source) } else { source.slice(piece.offset, piece.len) });
    }
    let rows: usize = pieces.iter().map(|p| p.len).sum();
    if pieces.len().saturating_mul(SHORT_RUN_ROWS) <= rows {
        let slices = pieces
            .iter()
            .map(|p| Ok(source_of(&sources, p.entry)?.slice(p.offset, p.len)))
            .collect::<Result<Vec<_>, Error>>()?;
        let slices: Vec<&dyn Array> = slices.iter().map(AsRef::as_ref).collect();
        return Ok(concat(&slices)?);
    }
    let mut indices = Vec::with_capacity(rows);
    for piece in &pieces {
        indices.extend((piece.offset..piece.offset + piece.len).map(|row| (piece.entry, row)));
    }
    let sources: Vec<&dyn Array> = sources.iter().map(AsRef::as_ref).collect();
    Ok(interleave(&sources, &indices)?)
}

fn source_of(sources: &[ArrayRef], at: usize) -> Result<&ArrayRef, Error> {
    sources.get(at).ok_or_else(|| Error::Misuse { what: "a run without values".to_owned() })
}

/// The pieces of `runs`, their `entry` being a place in the returned sources.
fn gather(
    recorded: &mut RecordedRows,
    runs: &[Run],
    live: Option<&ArrayRef>,
    expected: &DataType,
) -> Result<(Vec<Piece>, Vec<ArrayRef>), AssembleError> {
    let mut pieces = Vec::with_capacity(runs.len());
    let mut sources: Vec<ArrayRef> = live.into_iter().cloned().collect();
    let mut places: FingerprintMap<usize> = FingerprintMap::default();
    let mut live_offset = 0;
    let mut found = Vec::new();
    for run in runs {
        match *run {
            Run::Live { len } => {
                pieces.push(Piece { entry: 0, offset: live_offset, len });
                live_offset += len;
            }
            Run::Recorded { position, len } => {
                recorded.pieces(position, len, |piece| found.push(piece));
                for piece in found.drain(..) {
                    let place = match places.get(&(piece.entry as u64)) {
                        Some(&place) => place,
                        None => {
                            let values = recorded.values(piece.entry)?;
                            if values.data_type() != expected {
                                return Err(AssembleError::Type(values.data_type().clone()));
                            }
                            sources.push(ArrayRef::clone(values));
                            places.insert(piece.entry as u64, sources.len() - 1);
                            sources.len() - 1
                        }
                    };
                    pieces.push(Piece { entry: place, ..piece });
                }
            }
        }
    }
    Ok((pieces, sources))
}
