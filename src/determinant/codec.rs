//! Fields of determinants: varints and byte strings, with every read bounded.

use crate::error::{Error, Result};

/// Bytes of the longest varint.
pub(crate) const VARINT_MAX: usize = 10;

/// Appends an unsigned varint.
#[inline]
pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value as u8) | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a signed varint, small for small magnitudes.
#[inline]
pub(crate) fn put_zigzag(out: &mut Vec<u8>, value: i64) {
    put_varint(out, ((value << 1) ^ (value >> 63)) as u64);
}

/// Appends a length and the bytes.
pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Reads fields from a body, never past its end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Bytes that are not read yet.
    pub(crate) const fn len(&self) -> usize {
        self.rest.len()
    }

    pub(crate) fn raw(&mut self, len: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or_else(|| corrupt("a field is cut off"))?;
        self.rest = rest;
        Ok(taken)
    }

    pub(crate) fn byte(&mut self) -> Result<u8> {
        let (first, rest) = self.rest.split_first().ok_or_else(|| corrupt("a field is cut off"))?;
        self.rest = rest;
        Ok(*first)
    }

    pub(crate) fn fixed(&mut self) -> Result<u64> {
        let (number, rest) =
            self.rest.split_first_chunk::<8>().ok_or_else(|| corrupt("a number is cut off"))?;
        self.rest = rest;
        Ok(u64::from_le_bytes(*number))
    }

    pub(crate) fn varint(&mut self) -> Result<u64> {
        let mut value = 0_u64;
        for place in 0..VARINT_MAX {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if place == VARINT_MAX - 1 && bits > 1 {
                break;
            }
            value |= bits << (7 * place);
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(corrupt("a varint is too long"))
    }

    pub(crate) fn small<T: TryFrom<u64>>(&mut self) -> Result<T> {
        T::try_from(self.varint()?).map_err(|_| corrupt("a number is out of range"))
    }

    pub(crate) fn zigzag(&mut self) -> Result<i64> {
        let value = self.varint()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    pub(crate) fn bytes(&mut self) -> Result<&'a [u8]> {
        let len = self.small::<usize>()?;
        self.raw(len)
    }

    pub(crate) fn text(&mut self) -> Result<&'a str> {
        std::str::from_utf8(self.bytes()?).map_err(|_| corrupt("a name is not UTF-8"))
    }
}

pub(crate) fn corrupt(reason: &str) -> Error {
    Error::CorruptBlock { reason: reason.into() }
}
