//! Numbers and strings as bytes; the alphabet in which `message` writes.
//!
//! Whole numbers are written seven bits at a time, least significant first, the top bit of each byte saying that more
//! follow (so small numbers take one byte); signed ones are folded first so that small negatives stay small;
//! floating-point numbers are eight bytes, least significant first; strings and lists start with their length.
//!
//! Reading never panics and never allocates more than a constant times the bytes that are left, whatever they say.

use std::sync::Arc;
use std::time::Duration;

use crate::message::Malformed;

pub(crate) fn put_u64(into: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        into.push(number as u8 | 0x80);
        number >>= 7;
    }
    into.push(number as u8);
}

pub(crate) fn put_i32(into: &mut Vec<u8>, number: i32) {
    put_u64(into, u64::from((number << 1 ^ number >> 31) as u32));
}

pub(crate) fn put_f64(into: &mut Vec<u8>, number: f64) {
    into.extend_from_slice(&number.to_bits().to_le_bytes());
}

pub(crate) fn put_str(into: &mut Vec<u8>, text: &str) {
    put_u64(into, text.len() as u64);
    into.extend_from_slice(text.as_bytes());
}

/// In milliseconds, which is as exact as anybody reads it.
pub(crate) fn put_time(into: &mut Vec<u8>, time: Duration) {
    put_u64(into, u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
}

pub(crate) fn put_u64s(into: &mut Vec<u8>, numbers: &[u64]) {
    put_u64(into, numbers.len() as u64);
    for number in numbers {
        put_u64(into, *number);
    }
}

/// Bytes that are being read from front to back.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes, offset: 0 }
    }

    pub(crate) fn malformed(&self, expected: &'static str) -> Malformed {
        Malformed { offset: self.offset, expected }
    }

    fn left(&self) -> usize {
        self.bytes.len() - self.offset
    }

    /// Checks that nothing is left.
    pub(crate) fn end(&self) -> Result<(), Malformed> {
        if self.left() == 0 { Ok(()) } else { Err(self.malformed("the end of the message")) }
    }

    /// All that is left.
    pub(crate) fn rest(self) -> &'a [u8] {
        &self.bytes[self.offset..]
    }

    pub(crate) fn take(&mut self, len: usize, expected: &'static str) -> Result<&'a [u8], Malformed> {
        if len > self.left() {
            return Err(self.malformed(expected));
        }
        let taken = &self.bytes[self.offset..self.offset + len];
        self.offset += len;
        Ok(taken)
    }

    pub(crate) fn byte(&mut self, expected: &'static str) -> Result<u8, Malformed> {
        Ok(self.take(1, expected)?[0])
    }

    pub(crate) fn u64(&mut self, expected: &'static str) -> Result<u64, Malformed> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte(expected)?;
            let bits = u64::from(byte & 0x7f);
            // The tenth byte has room for one bit only, and a last byte of zero would be a second way to write a
            // number.
            if shift == 63 && bits > 1 || shift > 0 && byte == 0 {
                return Err(self.malformed(expected));
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(self.malformed(expected))
    }

    pub(crate) fn u32(&mut self, expected: &'static str) -> Result<u32, Malformed> {
        u32::try_from(self.u64(expected)?).map_err(|_| self.malformed(expected))
    }

    pub(crate) fn i32(&mut self, expected: &'static str) -> Result<i32, Malformed> {
        let folded = self.u32(expected)?;
        Ok((folded >> 1) as i32 ^ -((folded & 1) as i32))
    }

    pub(crate) fn f64(&mut self, expected: &'static str) -> Result<f64, Malformed> {
        let bytes = self.take(8, expected)?;
        Ok(f64::from_bits(u64::from_le_bytes(bytes.try_into().expect("eight bytes were taken"))))
    }

    pub(crate) fn str(&mut self, expected: &'static str) -> Result<Arc<str>, Malformed> {
        let len = self.count(expected)?;
        let bytes = self.take(len, expected)?;
        std::str::from_utf8(bytes).map(Arc::from).map_err(|_| self.malformed(expected))
    }

    pub(crate) fn time(&mut self) -> Result<Duration, Malformed> {
        self.u64("a time").map(Duration::from_millis)
    }

    /// A length. Every element takes at least one byte, so more than there are bytes left is a lie.
    pub(crate) fn count(&mut self, expected: &'static str) -> Result<usize, Malformed> {
        let count = self.u64(expected)?;
        usize::try_from(count).ok().filter(|count| *count <= self.left()).ok_or(self.malformed(expected))
    }

    pub(crate) fn list<T>(
        &mut self,
        expected: &'static str,
        mut read: impl FnMut(&mut Reader<'a>) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        let count = self.count(expected)?;
        let mut items = Vec::new();
        for _ in 0..count {
            items.push(read(self)?);
        }
        Ok(items)
    }

    pub(crate) fn u64s(&mut self, expected: &'static str) -> Result<Vec<u64>, Malformed> {
        self.list(expected, |reader| reader.u64(expected))
    }
}
