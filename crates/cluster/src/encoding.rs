//! Numbers, texts and bytes as they stand in the messages of this crate; the alphabet of `rendezvous::message` and
//! `failure_notice`.
//!
//! Numbers are little-endian and of fixed size; texts and byte strings start with their length as `u32`; what may be
//! missing starts with a byte 0 or 1. Every value has exactly one encoding. Reading never panics and allocates no more
//! than the bytes that are there, whatever they say.

pub(crate) fn put_u32(into: &mut Vec<u8>, number: u32) {
    into.extend(number.to_le_bytes());
}

pub(crate) fn put_u64(into: &mut Vec<u8>, number: u64) {
    into.extend(number.to_le_bytes());
}

pub(crate) fn put_bytes(into: &mut Vec<u8>, bytes: &[u8]) {
    let length = u32::try_from(bytes.len()).expect("invariant: nothing of 4 GB is put into a message");
    put_u32(into, length);
    into.extend_from_slice(bytes);
}

pub(crate) fn put_text(into: &mut Vec<u8>, text: &str) {
    put_bytes(into, text.as_bytes());
}

pub(crate) fn put_option<T>(into: &mut Vec<u8>, value: Option<T>, put: impl FnOnce(&mut Vec<u8>, T)) {
    into.push(u8::from(value.is_some()));
    if let Some(value) = value {
        put(into, value);
    }
}

/// Bytes that are being read from front to back. `None`: they are not what was expected.
#[derive(Debug)]
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader(bytes)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What is left.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.0
    }

    /// `value`, if nothing is left.
    pub(crate) fn end<T>(&self, value: T) -> Option<T> {
        self.is_empty().then_some(value)
    }

    pub(crate) fn array<const COUNT: usize>(&mut self) -> Option<[u8; COUNT]> {
        let (now, later) = self.0.split_first_chunk()?;
        self.0 = later;
        Some(*now)
    }

    pub(crate) fn byte(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = self.u32()? as usize;
        let (now, later) = self.0.split_at_checked(length)?;
        self.0 = later;
        Some(now)
    }

    pub(crate) fn text(&mut self) -> Option<String> {
        std::str::from_utf8(self.bytes()?).ok().map(str::to_string)
    }

    /// Reads what may be missing. The outer `None` is a mistake, the inner one a missing value.
    pub(crate) fn option<T>(&mut self, read: impl FnOnce(&mut Reader<'a>) -> Option<T>) -> Option<Option<T>> {
        match self.byte()? {
            0 => Some(None),
            1 => read(self).map(Some),
            _ => None,
        }
    }
}
