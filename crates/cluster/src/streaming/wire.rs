//! What the two sides of a stream say, encode beside decode, in the alphabet of `encoding`.
//!
//! The follower says one thing, [`Ask`]; everything else comes from the source. A snapshot or an update is announced
//! with its length and follows in pieces; any other word in between means that the rest does not come. Every value has
//! one encoding, and decoders are total.

use farandole_transport::JobId;

use crate::encoding::{Reader, put_bytes, put_text, put_u64};

/// The most bytes of a piece.
pub(super) const PIECE_BYTES: usize = 1 << 20;

/// Who asks for a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ask {
    pub(super) job: JobId,
    pub(super) member: u64,
}

impl Ask {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        put_text(&mut bytes, self.job.as_str());
        put_u64(&mut bytes, self.member);
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Ask> {
        let mut reader = Reader::new(bytes);
        let ask = Ask { job: JobId::from_text(&reader.text()?)?, member: reader.u64()? };
        reader.end(ask)
    }
}

/// What is announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    Snapshot,
    Update,
}

/// One message of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// Nothing is ready to be sent.
    Wait,
    /// The stream is over.
    JoinNow {
        why: String,
    },
    /// The state has changed without an update: another snapshot follows.
    Again,
    /// So many bytes follow in pieces, and so many more wait behind them.
    Announce {
        content: Content,
        note: Vec<u8>,
        bytes: u64,
        left_bytes: u64,
    },
    Piece(Vec<u8>),
}

const PIECE: u8 = 4;

impl Word {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut into = Vec::new();
        match self {
            Word::Wait => into.push(0),
            Word::JoinNow { why } => {
                into.push(1);
                put_text(&mut into, why);
            }
            Word::Again => into.push(2),
            Word::Announce { content, note, bytes, left_bytes } => {
                into.push(3);
                into.push(match content {
                    Content::Snapshot => 0,
                    Content::Update => 1,
                });
                put_bytes(&mut into, note);
                put_u64(&mut into, *bytes);
                put_u64(&mut into, *left_bytes);
            }
            Word::Piece(piece) => into = Word::piece(piece),
        }
        into
    }

    /// A piece, without a copy of it before.
    pub(super) fn piece(piece: &[u8]) -> Vec<u8> {
        let mut into = Vec::with_capacity(1 + piece.len());
        into.push(PIECE);
        into.extend_from_slice(piece);
        into
    }

    /// The piece in a message, if it is one.
    pub(super) fn piece_of(bytes: &[u8]) -> Option<&[u8]> {
        bytes.split_first().filter(|(kind, _)| **kind == PIECE).map(|(_, piece)| piece)
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Word> {
        let mut reader = Reader::new(bytes);
        let word = match reader.byte()? {
            0 => Word::Wait,
            1 => Word::JoinNow { why: reader.text()? },
            2 => Word::Again,
            3 => Word::Announce {
                content: match reader.byte()? {
                    0 => Content::Snapshot,
                    1 => Content::Update,
                    _ => return None,
                },
                note: reader.bytes()?.to_vec(),
                bytes: reader.u64()?,
                left_bytes: reader.u64()?,
            },
            PIECE => return Some(Word::Piece(reader.rest().to_vec())),
            _ => return None,
        };
        reader.end(word)
    }
}

/// What must hold for any bytes that are taken for a message of a stream. The fuzzer calls it, and a test with the
/// fuzzer's seeds.
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub fn check_any_word(bytes: &[u8]) {
    if let Some(word) = Word::decode(bytes) {
        assert_eq!(word.encode(), bytes, "a word has one encoding");
        assert_eq!(Word::piece_of(bytes).is_some(), matches!(word, Word::Piece(_)));
    }
    if let Some(ask) = Ask::decode(bytes) {
        assert_eq!(ask.encode(), bytes, "a question has one encoding");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seeds;

    #[test]
    fn words_of_the_corpus_decode_or_are_refused() {
        let announce = |content| Word::Announce { content, note: vec![1, 2], bytes: 1 << 40, left_bytes: 7 }.encode();
        let made = [
            ("wait", Word::Wait.encode()),
            ("join_now", Word::JoinNow { why: "it is small: ö".into() }.encode()),
            ("again", Word::Again.encode()),
            ("snapshot", announce(Content::Snapshot)),
            ("update", announce(Content::Update)),
            ("piece", Word::Piece(vec![9; 300]).encode()),
            ("empty_piece", Word::piece(&[])),
            ("ask", Ask { job: JobId::named("Slurm step 7.0"), member: u64::MAX }.encode()),
            ("unknown_content", vec![3, 7, 0, 0, 0, 0]),
            ("unknown_word", vec![9]),
            ("longer_than_it_is", vec![0, 0]),
            ("empty", Vec::new()),
        ];
        for (name, bytes) in &made[..7] {
            assert!(Word::decode(bytes).is_some(), "{name}");
        }
        assert!(Ask::decode(&made[7].1).is_some());
        for (name, bytes) in &made[8..] {
            assert!(Word::decode(bytes).is_none() && Ask::decode(bytes).is_none(), "{name}");
        }
        for (name, bytes) in made.iter().take(8).filter(|(name, _)| !name.contains("piece")) {
            let cut = |end: usize| Word::decode(&bytes[..end]).is_none() || *name == "ask";
            assert!((0..bytes.len()).all(cut), "{name}");
        }
        seeds::replay("streaming", &made, check_any_word);
    }
}
