//! The seal of a published file: its [`Token`] and a checksum of its whole content.
//!
//! A published file is a safetensors file. The seal is the first entry of `__metadata__` in its header, under the key
//! `farandole.seal`, so every reader of safetensors reads the file:
//!
//! ```text
//! 8 bytes: length of the header | {"__metadata__":{"farandole.seal":"run 1, generation 3, step 400, crc32c 0a1b2c3d",…
//! ```
//!
//! The checksum is the CRC-32C of all bytes of the file except its own eight digits. The header keeps its alignment:
//! spaces after the entry round its length up to a multiple of eight.
//!
//! **Invariant:** sealing adds the entry and the spaces and changes nothing else but the length of the header.
//!
//! Pure: bytes go in and come out.

use std::fmt;

/// The key of the seal in `__metadata__`.
const KEY: &str = "farandole.seal";

/// A published file begins with its length and this text.
const OPENING: &str = "{\"__metadata__\":{";

/// Bytes of the length of the header.
const LENGTH_BYTES: usize = 8;

/// Digits of the checksum.
const DIGITS: usize = 8;

/// The seal ends within this many bytes of the file: the opening, the key and three numbers of at most 20 digits.
pub const SEAL_BYTES: usize = 256;

/// Which of two files of one name is the newer one. Ordered by run, then generation, then step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Token {
    /// Counts the jobs that have written this file: a job takes the run of the file that it finds, plus one.
    pub run: u64,
    /// The generation of the writer's job; 0 in a job of a fixed size.
    pub generation: u64,
    /// The writer's progress, in a unit of its choice.
    pub step: u64,
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Token { run, generation, step } = self;
        write!(f, "run {run}, generation {generation}, step {step}")
    }
}

impl Token {
    fn parse(text: &str) -> Option<Token> {
        let mut numbers = text.split(", ").zip(["run ", "generation ", "step "]).map(|(part, name)| {
            let digits = part.strip_prefix(name)?;
            let is_plain = digits.bytes().all(|byte| byte.is_ascii_digit());
            if is_plain { digits.parse().ok() } else { None }
        });
        let mut next = || numbers.next().flatten();
        let token = Token { run: next()?, generation: next()?, step: next()? };
        (token.to_string() == text).then_some(token)
    }
}

/// The content of a file with its seal, in two pieces so that large tensors are not copied.
#[derive(Debug)]
pub struct SealedFile {
    token: Token,
    head: Vec<u8>,
    content: Vec<u8>,
    /// Bytes of `content` that `head` replaces.
    replaced: usize,
}

impl SealedFile {
    /// Seals a safetensors file that has metadata.
    ///
    /// # Errors
    /// If `content` does not begin as such a file, or has a seal.
    pub fn new(content: Vec<u8>, token: Token) -> Result<SealedFile, NotSealable> {
        let replaced = LENGTH_BYTES + OPENING.len();
        let length = content.first_chunk().map(|length| u64::from_le_bytes(*length)).ok_or(NotSealable)?;
        let begins = content.get(LENGTH_BYTES..replaced) == Some(OPENING.as_bytes());
        let has_entry = content.get(replaced) == Some(&b'"');
        if !begins || !has_entry || find(&content).is_some() {
            return Err(NotSealable);
        }
        let mut entry = format!("\"{KEY}\":\"{token}, crc32c {:0DIGITS$x}\",", 0);
        entry.push_str(&" ".repeat(entry.len().next_multiple_of(LENGTH_BYTES) - entry.len()));
        let length = length.checked_add(entry.len() as u64).ok_or(NotSealable)?;
        let mut head = [&length.to_le_bytes()[..], OPENING.as_bytes(), entry.as_bytes()].concat();
        let digits = find(&head).ok_or(NotSealable)?.digits;
        let before = crc32c::crc32c(&head[..digits]);
        let after = crc32c::crc32c_append(before, &head[digits + DIGITS..]);
        let checksum = crc32c::crc32c_append(after, &content[replaced..]);
        head[digits..digits + DIGITS].copy_from_slice(format!("{checksum:0DIGITS$x}").as_bytes());
        Ok(SealedFile { token, head, content, replaced })
    }

    /// The token in the seal.
    pub fn token(&self) -> Token {
        self.token
    }

    /// Bytes of the file.
    pub fn len(&self) -> usize {
        self.head.len() + self.content.len() - self.replaced
    }

    /// A file has at least a header.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The bytes from `offset` on, as far as they are contiguous; empty at the end of the file.
    pub fn from(&self, offset: usize) -> &[u8] {
        match offset.checked_sub(self.head.len()) {
            None => &self.head[offset..],
            Some(behind) => &self.content[self.replaced + behind..],
        }
    }
}

/// The content is not a safetensors file with metadata and without a seal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotSealable;

impl fmt::Display for NotSealable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the content is not a safetensors file with metadata and without a seal")
    }
}

impl std::error::Error for NotSealable {}

/// What the seal of a file says about its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SealCheck {
    /// The content is the one that was sealed.
    Intact(Token),
    /// The content differs from the one that was sealed.
    Differs {
        /// The checksum in the seal.
        expected: u32,
        /// The checksum of the content.
        found: u32,
    },
    /// The file has no seal: it is of an earlier version, or not published by this crate.
    Unsealed,
}

impl SealCheck {
    /// Checks a whole file.
    pub fn of(content: &[u8]) -> SealCheck {
        let mut check = RunningCheck::default();
        check.take(content);
        check.finish()
    }
}

/// Checks a file that is read piece by piece. The first piece has at least [`SEAL_BYTES`] bytes, or all of the file.
#[derive(Clone, Copy, Debug, Default)]
pub struct RunningCheck {
    seal: Option<Seal>,
    found: u32,
    taken: usize,
}

impl RunningCheck {
    /// Takes the next piece.
    pub fn take(&mut self, piece: &[u8]) {
        let mut rest = piece;
        if self.taken == 0 {
            self.seal = find(piece);
            if let Some(seal) = &self.seal {
                self.found = crc32c::crc32c(&piece[..seal.digits]);
                rest = &piece[seal.digits + DIGITS..];
            }
        }
        self.taken += piece.len();
        self.found = crc32c::crc32c_append(self.found, rest);
    }

    /// The result, after the last piece.
    pub fn finish(self) -> SealCheck {
        match self.seal {
            None => SealCheck::Unsealed,
            Some(seal) if seal.checksum == self.found => SealCheck::Intact(seal.token),
            Some(seal) => SealCheck::Differs { expected: seal.checksum, found: self.found },
        }
    }
}

/// The token in the seal of a file of which these are the first [`SEAL_BYTES`] bytes, or all. Its content is not
/// checked.
pub fn token_of(start: &[u8]) -> Option<Token> {
    find(start).map(|seal| seal.token)
}

/// A seal, and where its checksum begins.
#[derive(Clone, Copy, Debug)]
struct Seal {
    token: Token,
    checksum: u32,
    digits: usize,
}

fn find(start: &[u8]) -> Option<Seal> {
    let start = &start[..start.len().min(SEAL_BYTES)];
    let before = LENGTH_BYTES + OPENING.len() + KEY.len() + "\"\":\"".len();
    let opening = format!("{OPENING}\"{KEY}\":\"");
    let value = start.get(LENGTH_BYTES..)?.strip_prefix(opening.as_bytes())?;
    let value = std::str::from_utf8(&value[..value.iter().position(|&byte| byte == b'"')?]).ok()?;
    let (token, digits) = value.split_once(", crc32c ")?;
    let is_plain = digits.len() == DIGITS && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let checksum = if is_plain { u32::from_str_radix(digits, 16).ok()? } else { return None };
    Some(Seal { token: Token::parse(token)?, checksum, digits: before + value.len() - DIGITS })
}

/// What must hold for any bytes that are taken for a published file, or that are to be sealed. The fuzzer calls it, and
/// a test with the fuzzer's seeds.
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub fn check_any_content(bytes: &[u8]) {
    let whole = SealCheck::of(bytes);
    let mut check = RunningCheck::default();
    bytes.chunks(SEAL_BYTES).for_each(|piece| check.take(piece));
    assert_eq!(check.finish(), whole, "pieces give the check of the whole");
    assert_eq!(token_of(bytes).is_none(), whole == SealCheck::Unsealed, "a file with a token is sealed");
    let token = Token { run: 1, generation: 2, step: 3 };
    let Ok(sealed) = SealedFile::new(bytes.to_vec(), token) else { return };
    assert_eq!(whole, SealCheck::Unsealed, "no file is sealed twice");
    let mut all = Vec::new();
    while !sealed.from(all.len()).is_empty() {
        all.extend_from_slice(sealed.from(all.len()));
    }
    assert_eq!(SealCheck::of(&all), SealCheck::Intact(token));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seeds;

    /// A safetensors file with one tensor of these bytes.
    fn file(tensor: &[u8]) -> Vec<u8> {
        let end = tensor.len();
        let mut header = format!(
            "{{\"__metadata__\":{{\"farandole\":\"{{}}\"}},\"a\":{{\"dtype\":\"U8\",\"shape\":[{end}],\
             \"data_offsets\":[0,{end}]}}}}"
        );
        header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), tensor].concat()
    }

    fn bytes(sealed: &SealedFile) -> Vec<u8> {
        let mut bytes = Vec::new();
        while !sealed.from(bytes.len()).is_empty() {
            bytes.extend_from_slice(sealed.from(bytes.len()));
        }
        assert_eq!(bytes.len(), sealed.len());
        bytes
    }

    const TOKEN: Token = Token { run: 1, generation: 3, step: 400 };

    #[test]
    fn a_sealed_file_is_the_same_safetensors_file_with_one_more_entry() {
        for token in [TOKEN, Token { run: u64::MAX, generation: u64::MAX, step: u64::MAX }, Token::default()] {
            let sealed = bytes(&SealedFile::new(file(&[7; 1000]), token).unwrap());
            assert_eq!(SealCheck::of(&sealed), SealCheck::Intact(token));
            assert_eq!(token_of(&sealed[..SEAL_BYTES]), Some(token));
            let length = u64::from_le_bytes(*sealed.first_chunk().unwrap()) as usize;
            assert!(length.is_multiple_of(8));
            let header: serde_json::Value = serde_json::from_slice(&sealed[8..8 + length]).unwrap();
            assert_eq!(header["__metadata__"]["farandole"], "{}");
            assert!(header["__metadata__"][KEY].as_str().unwrap().starts_with(&token.to_string()));
            assert_eq!(sealed[8 + length..], [7; 1000]);
            assert_eq!(SealedFile::new(sealed, token).unwrap_err(), NotSealable);
        }
    }

    #[test]
    fn tokens_are_ordered_by_run_then_generation_then_step() {
        let token = |run, generation, step| Token { run, generation, step };
        let ordered = [token(1, 1, 900), token(1, 2, 5), token(1, 2, 6), token(2, 0, 0)];
        assert!(ordered.is_sorted());
        for text in ["run 1, generation 2", "run 01, generation 2, step 3", "run +1, generation 2, step 3", ""] {
            assert_eq!(Token::parse(text), None, "{text}");
        }
    }

    #[test]
    fn every_changed_byte_is_noticed() {
        let sealed = bytes(&SealedFile::new(file(&[7; 300]), TOKEN).unwrap());
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert_ne!(SealCheck::of(&changed), SealCheck::Intact(TOKEN), "byte {at}");
        }
        for length in 0..sealed.len() {
            assert!(!matches!(SealCheck::of(&sealed[..length]), SealCheck::Intact(_)), "{length} bytes");
        }
    }

    /// Two writers of one unfinished file left a mixture of two states that had the length of either.
    #[test]
    fn a_mixture_of_two_files_of_equal_length_is_noticed() {
        let [one, two] = [1, 2].map(|value| bytes(&SealedFile::new(file(&[value; 5000]), TOKEN).unwrap()));
        assert_eq!(one.len(), two.len());
        let mixture = [&one[..3000], &two[3000..]].concat();
        assert!(matches!(SealCheck::of(&mixture), SealCheck::Differs { .. }));
    }

    #[test]
    fn pieces_of_any_size_give_the_check_of_the_whole() {
        let sealed = bytes(&SealedFile::new(file(&[9; 2000]), TOKEN).unwrap());
        for size in [SEAL_BYTES, 999, sealed.len()] {
            let mut check = RunningCheck::default();
            sealed.chunks(size).for_each(|piece| check.take(piece));
            assert_eq!(check.finish(), SealCheck::Intact(TOKEN));
        }
    }

    #[test]
    fn any_content_is_sealed_and_checked() {
        let sealed = bytes(&SealedFile::new(file(&[7; 40]), TOKEN).unwrap());
        let opening = [&[255; 8][..], OPENING.as_bytes(), b"\""].concat();
        let made = [
            ("sealed", sealed.clone()),
            ("unsealed", file(&[7; 40])),
            ("cut", sealed[..100].to_vec()),
            ("endless_header", opening),
            ("empty", Vec::new()),
        ];
        seeds::replay("data_checkpoint", &made, check_any_content);
    }

    #[test]
    fn files_of_other_forms_have_no_seal() {
        for content in [&b""[..], b"garbage", &[0xff; 400], &file(&[1; 50])] {
            assert_eq!(SealCheck::of(content), SealCheck::Unsealed);
            assert_eq!(token_of(content), None);
        }
        for content in [&b""[..], b"garbage", &[0xff; 400]] {
            assert_eq!(SealedFile::new(content.to_vec(), TOKEN).unwrap_err(), NotSealable);
        }
    }
}
