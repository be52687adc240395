//! Numbers of rows and their marks, as [`Determinant::Rows`](super::Determinant::Rows) and
//! [`Determinant::Marks`](super::Determinant::Marks) have them.

use super::codec::{Fields, corrupt, put_zigzag};
use crate::error::Result;

/// Bytes of some row numbers. Each is written as its distance from the one before.
#[must_use]
pub fn encode_row_numbers(numbers: &[u64]) -> Vec<u8> {
    let mut out = Vec::with_capacity(numbers.len() * 2);
    let mut before = 0_u64;
    for &number in numbers {
        put_zigzag(&mut out, number.wrapping_sub(before).cast_signed());
        before = number;
    }
    out
}

/// Inverse of [`encode_row_numbers`].
///
/// # Errors
/// [`Error::CorruptBlock`](crate::error::Error::CorruptBlock) if a number is cut off.
pub fn row_numbers(bytes: &[u8]) -> Result<Vec<u64>> {
    let mut fields = Fields::new(bytes);
    let (mut numbers, mut before) = (Vec::new(), 0_u64);
    while !fields.is_empty() {
        before =
            before.wrapping_add_signed(fields.zigzag().map_err(|_| corrupt("a row's number is cut off"))?);
        numbers.push(before);
    }
    Ok(numbers)
}

/// Bytes of some marks.
#[must_use]
pub fn encode_marks(marks: impl ExactSizeIterator<Item = u64>) -> Vec<u8> {
    let mut out = Vec::with_capacity(8 * marks.len());
    marks.for_each(|mark| out.extend_from_slice(&mark.to_le_bytes()));
    out
}

/// Inverse of [`encode_marks`].
///
/// # Errors
/// [`Error::CorruptBlock`](crate::error::Error::CorruptBlock) if a mark is cut off.
pub fn marks(bytes: &[u8]) -> Result<Vec<u64>> {
    match bytes.as_chunks::<8>() {
        (marks, []) => Ok(marks.iter().map(|mark| u64::from_le_bytes(*mark)).collect()),
        _ => Err(corrupt("a row's mark is cut off")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_and_cut_ones_are_refused() {
        let numbers = [7, 0, u64::MAX, 1 << 40, (1 << 40) + 1];
        let bytes = encode_row_numbers(&numbers);
        assert_eq!(row_numbers(&bytes).unwrap(), numbers);
        assert_eq!(encode_row_numbers(&[7, 3]), [14, 7]);
        assert!(row_numbers(&[0x80]).is_err());
    }

    #[test]
    fn marks_come_back_and_cut_ones_are_refused() {
        let some = [0, 1, u64::MAX];
        let bytes = encode_marks(some.into_iter());
        assert_eq!(marks(&bytes).unwrap(), some);
        assert!(marks(&bytes[1..]).is_err());
    }
}
