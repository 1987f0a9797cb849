//! The job's key, which proves that a rank may be here, and the job's id, which says where it belongs.
//!
//! The key itself never travels over a connection and is never printed. A user may have one key for several jobs, so
//! holding it does not say which job a rank is of; the [`JobId`] does. All ranks of a job know it before they contact
//! anybody. It is no secret. How key and id reach the ranks (environment, file, launcher) is not decided here.

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

/// Bytes of a job id: room for what launchers call their jobs, such as `Slurm step 1234567.0`.
pub const JOB_ID_BYTES: usize = 48;

/// Hexadecimal digits of a hash in a job id: enough that two jobs never have the same ones.
const HASH_DIGITS: usize = 16;

/// What tells a job from others that have the same key: a short text, the same on all its ranks.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct JobId([u8; JOB_ID_BYTES]);

impl JobId {
    /// The id of the job with this name. A name that is too long, or not printable, is cut and gets its hash appended.
    pub fn named(name: &str) -> JobId {
        let is_plain = !name.is_empty() && name.len() <= JOB_ID_BYTES && !name.chars().any(char::is_control);
        if is_plain {
            return JobId::padded(name);
        }
        let hash = blake3::hash(name.as_bytes()).to_hex();
        let mut text: String = name.chars().filter(|c| !c.is_control()).collect();
        while text.len() > JOB_ID_BYTES - HASH_DIGITS - 1 {
            text.pop();
        }
        JobId::padded(&format!("{text}-{}", &hash[..HASH_DIGITS]))
    }

    /// The id of the job that this key was made for, where nobody has named it.
    pub fn of_key(key: &Key) -> JobId {
        let hash = blake3::Hash::from(blake3::derive_key("farandole 2026 job id", key.bytes())).to_hex();
        JobId::padded(&format!("key-{}", &hash[..HASH_DIGITS]))
    }

    /// The id that these bytes are, if they are one: a printable text, then zeros.
    pub fn from_bytes(bytes: [u8; JOB_ID_BYTES]) -> Option<JobId> {
        let length = bytes.iter().position(|&byte| byte == 0).unwrap_or(JOB_ID_BYTES);
        let text = std::str::from_utf8(&bytes[..length]).ok()?;
        let is_plain = !text.is_empty() && !text.chars().any(char::is_control);
        (is_plain && bytes[length..].iter().all(|&byte| byte == 0)).then_some(JobId(bytes))
    }

    /// The id with this text, if it is one.
    pub fn from_text(text: &str) -> Option<JobId> {
        let fits = text.len() <= JOB_ID_BYTES && !text.contains('\0');
        if fits { JobId::from_bytes(JobId::padded(text).0) } else { None }
    }

    /// The id as bytes.
    pub fn to_bytes(&self) -> [u8; JOB_ID_BYTES] {
        self.0
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        let length = self.0.iter().position(|&byte| byte == 0).unwrap_or(JOB_ID_BYTES);
        std::str::from_utf8(&self.0[..length]).expect("invariant: a job id is made of text")
    }

    fn padded(text: &str) -> JobId {
        let mut bytes = [0; JOB_ID_BYTES];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        JobId(bytes)
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JobId({:?})", self.as_str())
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
    fn job_ids_differ_as_names_do() {
        let long = "x".repeat(JOB_ID_BYTES + 1);
        let names = ["Slurm step 7.0", "Slurm step 7.1", "", "a\tb", "ab", &long, &format!("{long}y"), &"ä".repeat(40)];
        let ids: std::collections::HashSet<JobId> = names.iter().map(|name| JobId::named(name)).collect();
        assert_eq!(ids.len(), names.len());
        assert_eq!(JobId::named("Slurm step 7.0").to_string(), "Slurm step 7.0");
        for id in ids {
            assert_eq!(JobId::from_bytes(id.to_bytes()), Some(id));
            assert_eq!(JobId::from_text(id.as_str()), Some(id));
            assert!(!id.as_str().is_empty() && !id.as_str().chars().any(char::is_control), "{id:?}");
        }
        let (one, other) = (Key::random().unwrap(), Key::random().unwrap());
        assert_ne!(JobId::of_key(&one), JobId::of_key(&other));
        assert!(!one.to_hex().contains(&JobId::of_key(&one).as_str()[4..]), "the id says nothing about the key");
    }

    #[test]
    fn other_bytes_are_no_job_id() {
        let mut gap = JobId::named("a").to_bytes();
        gap[2] = b'b';
        let mut bell = JobId::named("a").to_bytes();
        bell[1] = 7;
        for bytes in [[0; JOB_ID_BYTES], [0xff; JOB_ID_BYTES], gap, bell] {
            assert_eq!(JobId::from_bytes(bytes), None);
        }
        for text in ["", "a\0", "a\n", &"x".repeat(JOB_ID_BYTES + 1)] {
            assert_eq!(JobId::from_text(text), None);
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["", "12", &"g".repeat(64), &"ä".repeat(64), &"0".repeat(65)] {
            assert_eq!(text.parse::<Key>(), Err(NotAKey), "{text}");
        }
    }
}
