//! What the two ranks of a point-to-point message tell each other; encode beside decode.

use std::fmt;

use super::EAGER_BYTES;
use crate::message::Malformed;
use crate::request::Dtype;
use crate::wire::{Reader, put_u64};

/// What both sides of a message must agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    /// Element type.
    pub dtype: Dtype,
    /// Number of bytes.
    pub bytes: u64,
}

impl Form {
    pub(super) fn is_eager(self) -> bool {
        self.bytes <= EAGER_BYTES
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of {}", self.bytes, self.dtype)
    }
}

/// What the two ranks of a message tell each other. Bytes of the message may follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// A message waits to be received. If it is eager, all its bytes follow.
    Offer {
        /// Offers to one rank are counted.
        number: u64,
        /// The tag.
        tag: u32,
        /// What it is.
        form: Form,
    },
    /// A receive was found for the offer.
    Accept {
        /// The offer.
        number: u64,
    },
    /// The next bytes of an accepted offer follow.
    Piece {
        /// The offer.
        number: u64,
    },
    /// The receive that was found for the offer expects something else.
    Refuse {
        /// The offer.
        number: u64,
        /// What it expects.
        form: Form,
    },
}

impl Note {
    /// Appends the note; bytes of the message may be appended to it.
    pub fn encode(self, into: &mut Vec<u8>) {
        let (kind, number, form) = match self {
            Note::Offer { number, tag, form } => {
                into.push(0);
                put_u64(into, u64::from(tag));
                return put_rest(into, number, Some(form));
            }
            Note::Accept { number } => (1, number, None),
            Note::Piece { number } => (2, number, None),
            Note::Refuse { number, form } => (3, number, Some(form)),
        };
        into.push(kind);
        put_rest(into, number, form);
    }

    /// Reads a note, and returns it with the bytes that follow.
    ///
    /// # Errors
    /// Anything that `encode` would not have written.
    pub fn decode(bytes: &[u8]) -> Result<(Note, &[u8]), Malformed> {
        let mut reader = Reader::new(bytes);
        let kind = reader.byte("the kind of a note")?;
        let tag = if kind == 0 { reader.u32("a tag")? } else { 0 };
        let number = reader.u64("the number of an offer")?;
        let note = match kind {
            0 => Note::Offer { number, tag, form: read_form(&mut reader)? },
            1 => Note::Accept { number },
            2 => Note::Piece { number },
            3 => Note::Refuse { number, form: read_form(&mut reader)? },
            _ => return Err(reader.malformed("a kind of note")),
        };
        Ok((note, reader.rest()))
    }
}

fn put_rest(into: &mut Vec<u8>, number: u64, form: Option<Form>) {
    put_u64(into, number);
    if let Some(Form { dtype, bytes }) = form {
        into.push(dtype as u8);
        put_u64(into, bytes);
    }
}

fn read_form(reader: &mut Reader<'_>) -> Result<Form, Malformed> {
    let dtype = reader.byte("an element type")?;
    let dtype = Dtype::from_wire(dtype).ok_or_else(|| reader.malformed("an element type"))?;
    Ok(Form { dtype, bytes: reader.u64("a number of bytes")? })
}
