//! Tar archives, as WebDataset keeps its samples in them.
//!
//! An archive is a row of blocks of 512 bytes: for each entry a header and its contents, filled up with zeros; two
//! blocks of zeros end it. Headers are those of POSIX (ustar), with the long names of GNU tar (`L`) and the extended
//! headers of POSIX (pax: `path` and `size`). Entries that are no files (folders, links, devices) are passed over.
//!
//! **Invariant:** the checksum of every header was compared before anything in it is believed. An archive without its
//! end mark was cut off, and is an error: it would look like a smaller data set.
//!
//! What is deliberately not here: owners, modes and times; sparse files; compression, for an entry of a compressed
//! archive has no place.

use super::{FormatError, NewFile, SequentialReader, StoredFile};
use crate::DataError;
use crate::limit::Limit;

/// Everything in an archive comes in blocks of this size.
const BLOCK_BYTES: usize = 512;

/// Bytes of a long name or an extended header, at most: names are paths, which the kernel limits to 4096.
const MAX_NAME_BYTES: u64 = 64 << 10;

/// Longest name that fits into a header's own field.
const SHORT_NAME_BYTES: usize = 100;

/// A file in an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TarEntry {
    /// Its path in the archive.
    pub name: String,
    /// Where its header lies.
    pub header: u64,
    /// Where its contents lie.
    pub offset: u64,
    /// How many bytes it has.
    pub bytes: u64,
}

/// Reads the files of an archive one after another.
#[derive(Debug)]
pub struct TarReader<'a> {
    reader: SequentialReader<'a>,
    /// What is left of the current entry, with what fills it up.
    rest: u64,
}

impl<'a> TarReader<'a> {
    /// Begins with the first entry, and reads pieces of so many bytes.
    pub fn new(file: &'a StoredFile, piece_bytes: usize) -> TarReader<'a> {
        TarReader { reader: SequentialReader::new(file, piece_bytes), rest: 0 }
    }

    /// The next file, if there is one.
    #[expect(clippy::should_implement_trait, reason = "its contents are lent until it is called again")]
    pub fn next(&mut self) -> Result<Option<TarEntry>, FormatError> {
        let file = self.reader.file();
        let (mut long_name, mut long_size) = (None, None);
        loop {
            self.reader.skip(std::mem::take(&mut self.rest))?;
            let at = self.reader.offset();
            if self.reader.left() == 0 {
                return Err(file.error(at, "the archive has no end mark: it was cut off"));
            }
            let block: &[u8; BLOCK_BYTES] =
                self.reader.take(BLOCK_BYTES)?.try_into().expect("invariant: a block was taken");
            if block.iter().all(|byte| *byte == 0) {
                return Ok(None);
            }
            let header = Header::parse(block).map_err(|cause| file.error(at, cause))?;
            let bytes = long_size.filter(|_| header.kind != b'x').unwrap_or(header.bytes);
            let filled = bytes.checked_next_multiple_of(BLOCK_BYTES as u64);
            let Some(filled) = filled.filter(|filled| *filled <= self.reader.left()) else {
                let left = self.reader.left();
                return Err(
                    file.error(at, format!("the archive ends within an entry: it should have {bytes} bytes of {left}"))
                );
            };
            self.rest = filled;
            match header.kind {
                b'L' => long_name = Some(trimmed(self.small(at, bytes)?).to_vec()),
                b'x' => {
                    let extended = extended(self.small(at, bytes)?).map_err(|cause| file.error(at, cause))?;
                    long_name = extended.path.or(long_name);
                    long_size = extended.bytes.or(long_size);
                }
                0 | b'0' | b'7' => {
                    let name = long_name.unwrap_or(header.name);
                    let name = String::from_utf8(name)
                        .map_err(|_| file.error(at, "the name of an entry is not written in UTF-8"))?;
                    Limit::of_process().check(bytes).map_err(|error| file.error(at, format!("{name}: {error}")))?;
                    return Ok(Some(TarEntry { name, header: at, offset: self.reader.offset(), bytes }));
                }
                b'S' => return Err(file.error(at, "sparse entries of GNU tar are not read: pack without --sparse")),
                // No file, and what was said about its name is not about the next one.
                b'1'..=b'6' => (long_name, long_size) = (None, None),
                // Headers about all entries, long names of links, and what others may have added.
                _ => {}
            }
        }
    }

    /// The contents of the entry that `next` has returned.
    pub fn contents(&mut self, entry: &TarEntry) -> Result<&[u8], FormatError> {
        assert_eq!(self.reader.offset(), entry.offset, "contents are taken once, before the next entry");
        self.rest -= entry.bytes;
        self.reader.take(entry.bytes as usize)
    }

    /// The contents of an entry that is about another one.
    fn small(&mut self, at: u64, bytes: u64) -> Result<&[u8], FormatError> {
        if bytes > MAX_NAME_BYTES {
            let cause = format!("a name or an extended header has {bytes} bytes; {MAX_NAME_BYTES} are read at most");
            return Err(self.reader.file().error(at, cause));
        }
        self.rest -= bytes;
        self.reader.take(bytes as usize)
    }
}

/// Whether a file begins with the header of an entry.
pub fn is_tar(head: &[u8]) -> bool {
    head.first_chunk::<BLOCK_BYTES>()
        .is_some_and(|block| block.iter().any(|byte| *byte != 0) && Header::parse(block).is_ok())
}

/// Writes files into a new archive.
#[derive(Debug)]
pub struct TarWriter {
    out: NewFile,
}

impl TarWriter {
    /// Writes into this file.
    pub fn new(out: NewFile) -> TarWriter {
        TarWriter { out }
    }

    /// Adds a file.
    pub fn write(&mut self, name: &str, contents: &[u8]) -> Result<(), DataError> {
        if name.len() > SHORT_NAME_BYTES {
            let extended = extended_path(name);
            self.entry(&shortened(name), b'x', extended.as_bytes())?;
        }
        self.entry(&shortened(name), b'0', contents)
    }

    /// Bytes so far.
    pub fn bytes(&self) -> u64 {
        self.out.bytes()
    }

    /// Ends the archive and gives it its name.
    pub fn finish(mut self) -> Result<(), DataError> {
        self.out.write(&[0; 2 * BLOCK_BYTES])?;
        self.out.finish()
    }

    fn entry(&mut self, name: &[u8], kind: u8, contents: &[u8]) -> Result<(), DataError> {
        self.out.write(&header_block(name, kind, contents.len() as u64))?;
        self.out.write(contents)?;
        let fill = contents.len().next_multiple_of(BLOCK_BYTES) - contents.len();
        self.out.write(&[0; BLOCK_BYTES][..fill])
    }
}

/// What of a header matters.
struct Header {
    name: Vec<u8>,
    bytes: u64,
    kind: u8,
}

impl Header {
    fn parse(block: &[u8; BLOCK_BYTES]) -> Result<Header, &'static str> {
        let checksum = number(&block[148..156]).ok_or("no header of an archive: its checksum is no number")?;
        if checksum != sum(block) {
            return Err("the checksum of a header is wrong: the archive is damaged, or none");
        }
        let bytes = number(&block[124..136]).ok_or("the size in a header is no number")?;
        let mut name = trimmed(&block[..SHORT_NAME_BYTES]).to_vec();
        // GNU tar has other things in the place of the prefix.
        if &block[257..263] == b"ustar\0" {
            let prefix = trimmed(&block[345..500]);
            if !prefix.is_empty() {
                name = [prefix, b"/", &name].concat();
            }
        }
        Ok(Header { name, bytes, kind: block[156] })
    }
}

/// The sum of a header's bytes, in which its checksum counts as spaces.
fn sum(block: &[u8; BLOCK_BYTES]) -> u64 {
    let place = 148..156;
    let byte = |(at, byte): (usize, &u8)| if place.contains(&at) { u64::from(b' ') } else { u64::from(*byte) };
    block.iter().enumerate().map(byte).sum()
}

/// A field with a number: octal digits, or binary where the first bit says so (GNU).
fn number(field: &[u8]) -> Option<u64> {
    if field[0] & 0x80 != 0 {
        let (head, tail) = field.split_at(field.len() - 8);
        let positive = head.iter().enumerate().all(|(at, byte)| *byte == if at == 0 { 0x80 } else { 0 });
        return positive.then(|| u64::from_be_bytes(tail.try_into().expect("invariant: eight bytes were split off")));
    }
    let text = std::str::from_utf8(field).ok()?.trim_matches(['\0', ' ']);
    if text.is_empty() { Some(0) } else { u64::from_str_radix(text, 8).ok() }
}

fn trimmed(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// What an extended header says about the next entry.
#[derive(Default)]
struct Extended {
    path: Option<Vec<u8>>,
    bytes: Option<u64>,
}

/// Lines `length key=value`, where the length is that of the whole line.
fn extended(mut rest: &[u8]) -> Result<Extended, &'static str> {
    let wrong = "an extended header is damaged";
    let mut found = Extended::default();
    while !rest.is_empty() {
        let space = rest.iter().position(|byte| *byte == b' ').ok_or(wrong)?;
        let length: usize = std::str::from_utf8(&rest[..space]).ok().and_then(|text| text.parse().ok()).ok_or(wrong)?;
        let line = rest.get(space + 1..length).and_then(|line| line.strip_suffix(b"\n")).ok_or(wrong)?;
        rest = &rest[length..];
        let equals = line.iter().position(|byte| *byte == b'=').ok_or(wrong)?;
        let (key, value) = (&line[..equals], &line[equals + 1..]);
        match key {
            b"path" => found.path = Some(value.to_vec()),
            b"size" => {
                found.bytes = Some(std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()).ok_or(wrong)?);
            }
            _ => {}
        }
    }
    Ok(found)
}

/// The line of an extended header with a name. Its length counts its own digits.
fn extended_path(name: &str) -> String {
    let rest = format!(" path={name}\n");
    let mut length = rest.len() + 1;
    while length != length.to_string().len() + rest.len() {
        length = length.to_string().len() + rest.len();
    }
    format!("{length}{rest}")
}

/// As much of a name as a header holds.
fn shortened(name: &str) -> Vec<u8> {
    name.as_bytes().iter().copied().take(SHORT_NAME_BYTES).collect()
}

fn header_block(name: &[u8], kind: u8, bytes: u64) -> [u8; BLOCK_BYTES] {
    let mut block = [0; BLOCK_BYTES];
    let mut put = |at: usize, field: &[u8]| block[at..at + field.len()].copy_from_slice(field);
    put(0, name);
    put(100, b"0000644\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    // Eleven octal digits; a record is smaller than the eight gigabytes that they can say.
    put(124, format!("{bytes:011o}\0").as_bytes());
    // The beginning of 1970: the same samples give the same archive.
    put(136, b"00000000000\0");
    put(156, &[kind]);
    put(257, b"ustar\x0000");
    let checksum = format!("{:06o}\0 ", sum(&block));
    block[148..156].copy_from_slice(checksum.as_bytes());
    block
}

#[cfg(test)]
mod tests;
