//! The job's key: whoever holds it belongs to the job.
//!
//! The key itself never travels over a connection and is never printed. How it reaches the ranks (environment, file, launcher) is
//! not decided here.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};

/// 32 secret bytes that all ranks of a job share.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; 32]);

impl Key {
    /// A new key from the operating system's randomness.
    pub fn random() -> Result<Key> {
        Ok(Key(random_bytes()?))
    }

    /// The key with these bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> Key {
        Key(bytes)
    }

    /// The secret, in hexadecimal, for handing it on to another rank. Do not log it.
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    pub(crate) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(secret)")
    }
}

/// A text is not 64 hexadecimal digits. Does not repeat the text, which may be a secret with a typing error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAKey;

impl fmt::Display for NotAKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a job key has 64 hexadecimal digits")
    }
}

impl std::error::Error for NotAKey {}

impl FromStr for Key {
    type Err = NotAKey;

    fn from_str(text: &str) -> std::result::Result<Key, NotAKey> {
        let digits: Vec<u32> = text.chars().map(|c| c.to_digit(16)).collect::<Option<_>>().ok_or(NotAKey)?;
        if digits.len() != 64 {
            return Err(NotAKey);
        }
        Ok(Key(std::array::from_fn(|index| (digits[2 * index] << 4 | digits[2 * index + 1]) as u8)))
    }
}

/// Bytes that nobody can guess.
pub(crate) fn random_bytes<const COUNT: usize>() -> Result<[u8; COUNT]> {
    let mut bytes = [0; COUNT];
    let mut filled = 0;
    while filled < COUNT {
        let got = rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())
            .map_err(|e| Error::local("asking the system for random bytes", e))?;
        filled += got;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_survives_its_text_and_stays_out_of_logs() {
        let key = Key::random().unwrap();
        assert_eq!(key.to_hex().parse::<Key>(), Ok(key.clone()));
        assert!(!format!("{key:?}").contains(&key.to_hex()[..8]));
        assert_ne!(key, Key::random().unwrap());
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["", "12", &"g".repeat(64), &"ä".repeat(64), &"0".repeat(65)] {
            assert_eq!(text.parse::<Key>(), Err(NotAKey), "{text}");
        }
    }
}
