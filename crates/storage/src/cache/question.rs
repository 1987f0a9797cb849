//! What a rank asks another one for: [`Question`].
//!
//! ```text
//! the storage's identity (32 bytes) · the block's key (16) · its number (8) · the path (the rest, UTF-8)
//! ```
//! Numbers are little-endian. Decoding is total: any bytes give a question or nothing.

/// A block of an object, as another process finds it: the storage and the object by their names, the content by the
/// key, which both sides compute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The hash of what the storage is called.
    pub storage: [u8; 32],
    /// The block's name.
    pub key: u128,
    /// Its number within the object.
    pub number: u64,
    /// The object's path.
    pub path: String,
}

impl Question {
    /// Writes it down.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(56 + self.path.len());
        bytes.extend_from_slice(&self.storage);
        bytes.extend_from_slice(&self.key.to_le_bytes());
        bytes.extend_from_slice(&self.number.to_le_bytes());
        bytes.extend_from_slice(self.path.as_bytes());
        bytes
    }

    /// The same again; none if it is something else.
    pub fn decode(bytes: &[u8]) -> Option<Question> {
        let (storage, rest) = bytes.split_first_chunk()?;
        let (key, rest) = rest.split_first_chunk()?;
        let (number, path) = rest.split_first_chunk()?;
        let path = String::from_utf8(path.to_vec()).ok()?;
        Some(Question { storage: *storage, key: u128::from_le_bytes(*key), number: u64::from_le_bytes(*number), path })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_are_one_question_or_none(bytes in prop::collection::vec(any::<u8>(), 0..90)) {
            if let Some(question) = Question::decode(&bytes) {
                prop_assert_eq!(question.encode(), bytes);
            }
        }

        #[test]
        fn questions_come_back(storage in any::<[u8; 32]>(), key: u128, number: u64, path in ".{0,40}") {
            let question = Question { storage, key, number, path };
            prop_assert_eq!(Question::decode(&question.encode()), Some(question));
        }
    }
}
