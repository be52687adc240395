//! Numbers of rows, as [`Determinant::Rows`](super::Determinant::Rows) has them.

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
}
