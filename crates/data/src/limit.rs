//! How much memory decoding one item of a file may take.
//!
//! A file may claim any length, number of rows or size, and a few compressed bytes may unpack to gigabytes. Decoders
//! compare every claim with a [`Limit`] before they allocate for it, charge a [`Budget`] where many small allocations
//! add up, and let buffers grow with the bytes that arrive ([`Limit::read`]). A failed allocation aborts the process;
//! a limit is an error of the file.
//!
//! **Invariant:** an item is decoded within a small multiple of the limit, or is refused.
//!
//! What is deliberately not here: memory of several items at a time. Callers choose how many threads decode.

use std::io::{self, Read};
use std::sync::OnceLock;

use farandole_settings::DATA_ITEM_BYTES;

use crate::DataError;

/// The limit of this process: the setting, or what [`Limit::set`] chose before the first item was decoded.
static OF_PROCESS: OnceLock<Limit> = OnceLock::new();

/// Bytes that decoding one item may take, at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit(u64);

/// An item needs more memory than the limit allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLarge {
    needed: u64,
    limit: u64,
}

impl Limit {
    /// The limit of this process, `FARANDOLE_DATA_ITEM_BYTES`.
    pub fn of_process() -> Limit {
        // A value that the setting cannot have was refused when the data set was opened (`check_setting`).
        *OF_PROCESS.get_or_init(|| {
            let read = DATA_ITEM_BYTES.read(|name| std::env::var(name).ok());
            Limit(read.unwrap_or_else(|_| DATA_ITEM_BYTES.default_value()))
        })
    }

    /// Sets the limit of this process in place of the setting, and returns the limit that is in force: the first call
    /// decides.
    pub fn set(bytes: u64) -> Limit {
        *OF_PROCESS.get_or_init(|| Limit(bytes))
    }

    /// Whether the setting has a value that it can have.
    ///
    /// # Errors
    /// Names the variable and its value.
    pub(crate) fn check_setting() -> Result<(), DataError> {
        let read = DATA_ITEM_BYTES.read::<u64>(|name| std::env::var(name).ok());
        read.map(|_| ()).map_err(|wrong| DataError(wrong.to_string()))
    }

    /// A limit of this many bytes.
    pub const fn of(bytes: u64) -> Limit {
        Limit(bytes)
    }

    /// The bytes.
    pub fn bytes(self) -> u64 {
        self.0
    }

    /// A part of this limit.
    #[must_use]
    pub fn divided_by(self, parts: u64) -> Limit {
        Limit(self.0 / parts)
    }

    /// Compares a number of bytes with the limit.
    ///
    /// # Errors
    /// If there are more than the limit allows.
    pub fn check(self, needed: u64) -> Result<(), TooLarge> {
        if needed <= self.0 { Ok(()) } else { Err(TooLarge { needed, limit: self.0 }) }
    }

    /// Compares the bytes of `count` elements with the limit.
    ///
    /// # Errors
    /// If they have more than the limit allows.
    pub fn check_all(self, count: u64, bytes_each: usize) -> Result<(), TooLarge> {
        self.check(count.saturating_mul(bytes_each as u64))
    }

    /// Reads to the end. The buffer grows with what arrives.
    ///
    /// # Errors
    /// If reading fails, or more bytes arrive than the limit allows ([`TooLarge`] as the inner error).
    pub fn read(self, reader: impl Read) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        reader.take(self.0.saturating_add(1)).read_to_end(&mut bytes)?;
        self.check(bytes.len() as u64).map_err(io::Error::other)?;
        Ok(bytes)
    }

    /// The whole limit, to be used up step by step.
    pub fn budget(self) -> Budget {
        Budget { left: self.0, limit: self.0 }
    }
}

impl std::fmt::Display for TooLarge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let TooLarge { needed, limit } = self;
        let name = DATA_ITEM_BYTES.name;
        write!(f, "it needs {needed} bytes of memory or more, and {limit} are allowed; raise {name} if it is trusted")
    }
}

impl std::error::Error for TooLarge {}

/// Bytes that are left of a limit.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    left: u64,
    limit: u64,
}

impl Budget {
    /// Charges bytes before they are allocated.
    ///
    /// # Errors
    /// If fewer are left.
    pub fn take(&mut self, bytes: u64) -> Result<(), TooLarge> {
        let needed = (self.limit - self.left).saturating_add(bytes);
        self.left = self.left.checked_sub(bytes).ok_or(TooLarge { needed, limit: self.limit })?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_allowed_and_a_byte_more_is_refused() {
        let limit = Limit::of(8);
        assert_eq!((limit.check(8), limit.check_all(2, 4)), (Ok(()), Ok(())));
        let error = limit.check_all(u64::MAX, 4).unwrap_err();
        assert_eq!(error, TooLarge { needed: u64::MAX, limit: 8 });
        assert!(limit.check(9).unwrap_err().to_string().contains("raise FARANDOLE_DATA_ITEM_BYTES"));
        let mut budget = limit.budget();
        assert_eq!((budget.take(5), budget.take(3)), (Ok(()), Ok(())));
        assert_eq!(budget.take(1), Err(TooLarge { needed: 9, limit: 8 }));
    }

    #[test]
    fn a_reader_without_an_end_is_refused() {
        assert_eq!(Limit::of(3).read([1, 2, 3].as_slice()).unwrap(), [1, 2, 3]);
        let error = Limit::of(1 << 16).read(io::repeat(0)).unwrap_err();
        assert!(error.to_string().contains("65536 are allowed"), "{error}");
    }
}
