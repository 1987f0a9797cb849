//! XDR (RFC 4506), as much of it as NFS needs: [`Encoder`] and [`Decoder`].
//!
//! Numbers are big-endian; texts and bytes have their length before them and are padded to four bytes.
//!
//! **Invariant:** decoding ends for all input, reads nothing behind its end, and allocates no more than the input has.

use bytes::Bytes;

/// Bytes that cannot be what they should be, and what that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Garbled(pub(super) &'static str);

/// What is sent.
#[derive(Debug, Default)]
pub(super) struct Encoder(Vec<u8>);

/// What arrived. Parts of it are handed out without copying.
#[derive(Clone, Debug)]
pub(super) struct Decoder(Bytes);

impl Encoder {
    pub(super) fn u32(mut self, value: u32) -> Encoder {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    pub(super) fn u64(mut self, value: u64) -> Encoder {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    /// Bytes whose length both sides know.
    pub(super) fn fixed(mut self, bytes: &[u8]) -> Encoder {
        self.0.extend_from_slice(bytes);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    /// Bytes, or a text, with their length. None that we send comes near 4 GiB.
    pub(super) fn opaque(self, bytes: &[u8]) -> Encoder {
        self.u32(bytes.len() as u32).fixed(bytes)
    }

    pub(super) fn finish(self) -> Vec<u8> {
        self.0
    }
}

impl Decoder {
    pub(super) fn new(bytes: Bytes) -> Decoder {
        Decoder(bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Garbled> {
        let bytes = self.take(4)?;
        Ok(u32::from_be_bytes(bytes[..].try_into().expect("invariant: four bytes were taken")))
    }

    pub(super) fn u64(&mut self) -> Result<u64, Garbled> {
        let high = self.u32()?;
        Ok(u64::from(high) << 32 | u64::from(self.u32()?))
    }

    pub(super) fn flag(&mut self) -> Result<bool, Garbled> {
        match self.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Garbled("a truth value is neither 0 nor 1")),
        }
    }

    /// Bytes whose length both sides know.
    pub(super) fn fixed(&mut self, bytes: usize) -> Result<Bytes, Garbled> {
        let mut taken = self.take(bytes.next_multiple_of(4))?;
        taken.truncate(bytes);
        Ok(taken)
    }

    /// Bytes with their length, which is at most this.
    pub(super) fn opaque(&mut self, most: usize) -> Result<Bytes, Garbled> {
        let bytes = self.u32()? as usize;
        if bytes > most {
            return Err(Garbled("a text or handle is longer than it may be"));
        }
        self.fixed(bytes)
    }

    /// All that is left.
    pub(super) fn rest(self) -> Bytes {
        self.0
    }

    fn take(&mut self, bytes: usize) -> Result<Bytes, Garbled> {
        if bytes > self.0.len() {
            return Err(Garbled("it ends too early"));
        }
        Ok(self.0.split_to(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let bytes = Encoder::default().u32(7).u64(1 << 40).opaque(b"hello").fixed(b"abcd").finish();
        assert_eq!(bytes.len(), 4 + 8 + 4 + 8 + 4);
        let mut decoder = Decoder::new(bytes.into());
        assert_eq!((decoder.u32(), decoder.u64()), (Ok(7), Ok(1 << 40)));
        assert_eq!(decoder.opaque(5).unwrap(), &b"hello"[..]);
        assert_eq!(decoder.fixed(4).unwrap(), &b"abcd"[..]);
        assert_eq!(decoder.u32(), Err(Garbled("it ends too early")));
    }

    #[test]
    fn lengths_are_not_believed() {
        let long = Encoder::default().u32(u32::MAX).finish();
        assert!(Decoder::new(long.clone().into()).opaque(64).is_err());
        assert!(Decoder::new(long.clone().into()).opaque(usize::MAX).is_err());
        assert!(Decoder::new(long.into()).flag().is_err());
    }
}
