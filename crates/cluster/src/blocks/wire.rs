//! What the two sides of an exchange of blocks say, encode beside decode, in the alphabet of `encoding`.
//!
//! The side that asks first says which job it belongs to ([`Hello`]), then sends questions as they are, one at a time.
//! The answer is a [`Word`]; an announced block follows in pieces, which are bytes as they are. Every value has one
//! encoding, and decoders are total.

use farandole_transport::JobId;

use crate::encoding::{Reader, put_text, put_u64};

/// The most bytes of a piece.
pub(super) const PIECE_BYTES: usize = 1 << 20;

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) job: JobId,
}

impl Hello {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        put_text(&mut bytes, self.job.as_str());
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Hello> {
        let mut reader = Reader::new(bytes);
        let hello = Hello { job: JobId::from_text(&reader.text()?)? };
        reader.end(hello)
    }
}

/// One message of the side that answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// It is being fetched.
    Wait,
    /// It is not to be had here.
    NotHere,
    /// So many bytes follow in pieces; it took so many microseconds until they were there.
    Block { bytes: u64, spent_us: u64 },
}

impl Word {
    pub(super) fn encode(self) -> Vec<u8> {
        match self {
            Word::Wait => vec![0],
            Word::NotHere => vec![1],
            Word::Block { bytes, spent_us } => {
                let mut into = vec![2];
                put_u64(&mut into, bytes);
                put_u64(&mut into, spent_us);
                into
            }
        }
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Word> {
        let mut reader = Reader::new(bytes);
        let word = match reader.byte()? {
            0 => Word::Wait,
            1 => Word::NotHere,
            2 => Word::Block { bytes: reader.u64()?, spent_us: reader.u64()? },
            _ => return None,
        };
        reader.end(word)
    }
}

/// What must hold for any bytes that are taken for a message of an exchange. The fuzzer calls it, and a test with the
/// fuzzer's seeds.
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub fn check_any_word(bytes: &[u8]) {
    if let Some(word) = Word::decode(bytes) {
        assert_eq!(word.encode(), bytes, "a word has one encoding");
    }
    if let Some(hello) = Hello::decode(bytes) {
        assert_eq!(hello.encode(), bytes, "a hello has one encoding");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seeds;

    #[test]
    fn words_of_the_corpus_decode_or_are_refused() {
        let made = [
            ("wait", Word::Wait.encode()),
            ("not_here", Word::NotHere.encode()),
            ("block", Word::Block { bytes: 4 << 20, spent_us: 31_000 }.encode()),
            ("hello", Hello { job: JobId::named("blocks") }.encode()),
        ];
        seeds::replay("blocks", &made, check_any_word);
    }

    #[test]
    fn parts_of_words_are_refused() {
        let whole = Word::Block { bytes: 7, spent_us: 9 }.encode();
        assert!((0..whole.len()).all(|end| Word::decode(&whole[..end]).is_none()));
        assert_eq!(Word::decode(&[&whole[..], &[0]].concat()), None);
        assert_eq!(Word::decode(&[3]), None);
    }
}
