//! The file of one rank's trace.
//!
//! A file begins with eight bytes that say what it is and four that give its version; then come *blocks*. A block is a
//! byte for its kind, four for the length of its content, four for a checksum over kind, length and content, and the
//! content:
//!
//! ```text
//! kind        content
//! 1 header    rank, host, clock and settings (the first block)
//! 2 names     first number, then texts with shapes
//! 3 threads   numbers and names
//! 4 groups    numbers and members
//! 5 records   32 bytes each, in any order
//! 6 dropped   how many more records were overwritten before they could be written
//! 7 end       why it was written (the last block)
//! 8 setting   one that became known after the header was written: name and value
//! ```
//!
//! Blocks are appended and never changed, so a file whose writer is killed is good up to its last whole block. Tables
//! may come in pieces, each before the first record that needs it. Numbers are of fixed size, least significant byte
//! first; texts start with their length.
//!
//! **Invariant:** decoding is total, and allocates in proportion to the bytes that are there, whatever they say. A
//! block of a kind that this version does not know is skipped, a record of an unknown kind is counted; what would
//! change the meaning of known ones gets a new version.

use std::fmt;

use crate::bytes::Bytes;
use crate::event::{GroupNumber, NameId, RECORD_BYTES, Record, ThreadId};
use crate::record::words_from_bytes;
use crate::trace::{NameEntry, Trace, TraceEnding, TraceHeader};

/// The first bytes of a trace.
pub const MAGIC: [u8; 8] = *b"FARANTRC";

/// The version that this program writes and reads.
pub const VERSION: u32 = 1;

/// How the names of traces end.
pub const EXTENSION: &str = "trace";

/// Bytes before a block's content.
const FRAME_BYTES: usize = 9;

/// No header is longer: a hundred settings have a few kilobytes.
pub(crate) const HEADER_MAX_BYTES: u64 = 64 << 10;

/// Records of one block: 128 KiB, a fraction of a millisecond of work that a kill can lose.
pub(crate) const BLOCK_RECORDS: usize = 4096;

/// The name of a rank's trace in a folder. A member of an elastic job has one for each generation, and so has each
/// rank: it is a different process in each.
pub fn name_of(header: &TraceHeader) -> String {
    match (header.rank, header.generation()) {
        (rank, 0) => format!("rank-{rank:05}.{EXTENSION}"),
        (rank, generation) => format!("rank-{rank:05}.generation-{generation}.{EXTENSION}"),
    }
}

/// Why something cannot be read as a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadError {
    /// The file system says no.
    Unreadable(String),
    /// It is something else.
    NotATrace,
    /// Its writer ended before it had written the header.
    NoHeader,
    /// It is of another version.
    Version(u32),
    /// A folder without traces.
    NoTraces,
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadError::Unreadable(why) => f.write_str(why),
            ReadError::NotATrace => f.write_str("this is not a trace of farandole"),
            ReadError::NoHeader => f.write_str("the trace is cut off before it says of which rank it is"),
            ReadError::Version(theirs) => {
                write!(f, "the trace is of version {theirs}, this program reads version {VERSION}")
            }
            ReadError::NoTraces => {
                write!(
                    f,
                    "there is no trace here (files rank-NNNNN.{EXTENSION}, as `farandole run --trace DIR` leaves them)"
                )
            }
        }
    }
}

impl std::error::Error for ReadError {}

/// What a block holds. The numbers lie in files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    Header = 1,
    Names = 2,
    Threads = 3,
    Groups = 4,
    Records = 5,
    Dropped = 6,
    End = 7,
    Setting = 8,
}

/// A file in the making: bytes that are appended to what has been written.
#[derive(Debug, Default)]
pub(crate) struct TraceEncoder {
    bytes: Vec<u8>,
}

impl TraceEncoder {
    /// The first bytes of a file.
    pub(crate) fn begin(header: &TraceHeader) -> TraceEncoder {
        let mut encoder = TraceEncoder::default();
        encoder.bytes.extend_from_slice(&MAGIC);
        encoder.bytes.extend_from_slice(&VERSION.to_le_bytes());
        encoder.block(Kind::Header, |into| {
            for number in [header.rank, header.size, header.pid] {
                put_u32(into, number);
            }
            for number in [header.anchor_ns, header.anchor_unix_ns] {
                put_u64(into, number);
            }
            for text in [&header.host, &header.clock, &header.version] {
                put_text(into, text);
            }
            put_u32(into, header.settings.len() as u32);
            for (name, value) in &header.settings {
                put_text(into, name);
                put_text(into, value);
            }
        });
        encoder
    }

    /// Names with consecutive numbers from `first`.
    pub(crate) fn names<'a>(&mut self, first: NameId, names: impl IntoIterator<Item = &'a NameEntry>) {
        let mut names = names.into_iter().peekable();
        if names.peek().is_none() {
            return;
        }
        self.block(Kind::Names, |into| {
            put_u32(into, first.0);
            for NameEntry { text, shape } in names {
                put_text(into, text);
                put_u32(into, shape.len() as u32);
                shape.iter().for_each(|dim| put_u64(into, *dim));
            }
        });
    }

    /// A thread and its name.
    pub(crate) fn thread(&mut self, thread: ThreadId, name: &str) {
        self.block(Kind::Threads, |into| {
            into.extend_from_slice(&thread.0.to_le_bytes());
            put_text(into, name);
        });
    }

    /// A group and its members.
    pub(crate) fn group(&mut self, group: GroupNumber, ranks: &[u32]) {
        self.block(Kind::Groups, |into| {
            into.extend_from_slice(&group.0.to_le_bytes());
            put_u32(into, ranks.len() as u32);
            ranks.iter().for_each(|rank| put_u32(into, *rank));
        });
    }

    /// A setting that counts from now on, whatever the header says.
    pub(crate) fn setting(&mut self, name: &str, value: &str) {
        self.block(Kind::Setting, |into| [name, value].into_iter().for_each(|text| put_text(into, text)));
    }

    /// Records, each given by its bytes.
    pub(crate) fn records(&mut self, records: impl IntoIterator<Item = [u8; RECORD_BYTES]>) {
        let mut records = records.into_iter().peekable();
        while records.peek().is_some() {
            let block = records.by_ref().take(BLOCK_RECORDS);
            self.block(Kind::Records, |into| block.for_each(|record| into.extend_from_slice(&record)));
        }
    }

    /// So many more records are lost.
    pub(crate) fn dropped(&mut self, count: u64) {
        if count > 0 {
            self.block(Kind::Dropped, |into| put_u64(into, count));
        }
    }

    /// The last block.
    pub(crate) fn end(&mut self, occasion: &str) {
        self.block(Kind::End, |into| put_text(into, occasion));
    }

    /// What is to be appended.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }

    fn block(&mut self, kind: Kind, fill: impl FnOnce(&mut Vec<u8>)) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; FRAME_BYTES]);
        fill(&mut self.bytes);
        let len = self.bytes.len() - start - FRAME_BYTES;
        let len = u32::try_from(len).expect("invariant: a block is far smaller than four gigabytes").to_le_bytes();
        let frame = &mut self.bytes[start..start + FRAME_BYTES];
        frame[0] = kind as u8;
        frame[1..5].copy_from_slice(&len);
        let sum = checksum(kind as u8, len, &self.bytes[start + FRAME_BYTES..]);
        self.bytes[start + 5..start + FRAME_BYTES].copy_from_slice(&sum.to_le_bytes());
    }
}

/// A trace as the bytes of a file.
pub(crate) fn encode(trace: &Trace) -> Vec<u8> {
    let mut encoder = TraceEncoder::begin(&trace.header);
    // Runs of consecutive numbers share a block.
    let names: Vec<(NameId, &NameEntry)> = trace.names.iter().collect();
    for run in names.chunk_by(|(a, _), (b, _)| a.0.checked_add(1) == Some(b.0)) {
        encoder.names(run[0].0, run.iter().map(|(_, named)| *named));
    }
    for (thread, name) in &trace.threads {
        encoder.thread(*thread, name);
    }
    for (group, ranks) in &trace.groups {
        encoder.group(*group, ranks);
    }
    encoder.records(trace.records.iter().map(Record::to_bytes));
    encoder.dropped(trace.dropped);
    if let TraceEnding::Complete(occasion) = &trace.ending {
        encoder.end(occasion);
    }
    encoder.take()
}

/// The trace that a file's bytes are.
pub(crate) fn decode(bytes: &[u8]) -> Result<Trace, ReadError> {
    let rest = bytes.strip_prefix(&MAGIC).ok_or(ReadError::NotATrace)?;
    let (version, rest) = rest.split_first_chunk().ok_or(ReadError::NoHeader)?;
    let version = u32::from_le_bytes(*version);
    if version != VERSION {
        return Err(ReadError::Version(version));
    }
    let mut reader = Bytes { rest };
    let header = match block(&mut reader) {
        Some(Block::Whole { kind, content }) if kind == Kind::Header as u8 => {
            header(&mut Bytes { rest: content }).ok_or(ReadError::NotATrace)?
        }
        Some(Block::Cut) | None => return Err(ReadError::NoHeader),
        _ => return Err(ReadError::NotATrace),
    };
    let mut trace = Trace { header, ..Trace::default() };
    loop {
        let at_byte = (bytes.len() - reader.rest.len()) as u64;
        let whole = match block(&mut reader) {
            Some(Block::Whole { kind, content }) => take_in(&mut trace, kind, content).is_some(),
            Some(Block::Cut) | None => break,
            Some(Block::Broken) => false,
        };
        if !whole {
            trace.ending = TraceEnding::Damaged { at_byte };
            break;
        }
    }
    trace.sort();
    Ok(trace)
}

/// Adds a block's content; `None` if it is not what its kind says.
fn take_in(trace: &mut Trace, kind: u8, content: &[u8]) -> Option<()> {
    // Nothing follows the end in a file of ours.
    if matches!(trace.ending, TraceEnding::Complete(_)) {
        return None;
    }
    let mut reader = Bytes { rest: content };
    match kind {
        kind if kind == Kind::Header as u8 => return None,
        kind if kind == Kind::Names as u8 => {
            let mut next = Some(reader.u32()?);
            while !reader.rest.is_empty() {
                let number = next?;
                let text = text(&mut reader)?;
                let dims = reader.u32()? as usize;
                let shape = reader.take(dims.checked_mul(8)?)?;
                let shape = shape.as_chunks::<8>().0.iter().map(|dim| u64::from_le_bytes(*dim)).collect();
                trace.names.insert(NameId(number), NameEntry { text: text.into(), shape });
                next = number.checked_add(1);
            }
        }
        kind if kind == Kind::Threads as u8 => {
            let thread = ThreadId(reader.u16()?);
            trace.threads.insert(thread, text(&mut reader)?.to_owned());
        }
        kind if kind == Kind::Groups as u8 => {
            let group = GroupNumber(reader.u16()?);
            let members = reader.u32()? as usize;
            let members = reader.take(members.checked_mul(4)?)?;
            let members = members.as_chunks::<4>().0.iter().map(|rank| u32::from_le_bytes(*rank)).collect();
            trace.groups.insert(group, members);
        }
        kind if kind == Kind::Records as u8 => {
            let (records, left) = reader.rest.as_chunks::<RECORD_BYTES>();
            if !left.is_empty() {
                return None;
            }
            trace.records.reserve(records.len());
            for bytes in records {
                match Record::from_words(words_from_bytes(bytes)) {
                    Some(record) => trace.records.push(record),
                    None => trace.unknown += 1,
                }
            }
            reader.rest = &[];
        }
        kind if kind == Kind::Dropped as u8 => trace.dropped = trace.dropped.saturating_add(reader.u64()?),
        kind if kind == Kind::Setting as u8 => {
            let (name, value) = (text(&mut reader)?.to_owned(), text(&mut reader)?.to_owned());
            trace.header.set(name, value);
        }
        kind if kind == Kind::End as u8 => trace.ending = TraceEnding::Complete(text(&mut reader)?.to_owned()),
        _ => return Some(()),
    }
    reader.rest.is_empty().then_some(())
}

fn header(reader: &mut Bytes<'_>) -> Option<TraceHeader> {
    let (rank, size, pid) = (reader.u32()?, reader.u32()?, reader.u32()?);
    let (anchor_ns, anchor_unix_ns) = (reader.u64()?, reader.u64()?);
    let owned = |reader: &mut Bytes<'_>| text(reader).map(str::to_owned);
    let (host, clock, version) = (owned(reader)?, owned(reader)?, owned(reader)?);
    let count = reader.u32()?;
    let mut settings = Vec::new();
    for _ in 0..count {
        settings.push((owned(reader)?, owned(reader)?));
    }
    reader.rest.is_empty().then_some(())?;
    Some(TraceHeader { rank, size, host, pid, clock, anchor_ns, anchor_unix_ns, version, settings })
}

/// What stands at a place where a block is expected.
enum Block<'a> {
    Whole {
        kind: u8,
        content: &'a [u8],
    },
    /// The file ends inside of it.
    Cut,
    /// The checksum says that this is not what was written.
    Broken,
}

/// The next block; `None` at the end of the file.
fn block<'a>(bytes: &mut Bytes<'a>) -> Option<Block<'a>> {
    if bytes.rest.is_empty() {
        return None;
    }
    let Some((frame, behind)) = bytes.rest.split_first_chunk::<FRAME_BYTES>() else { return Some(Block::Cut) };
    let [kind, l0, l1, l2, l3, s0, s1, s2, s3] = *frame;
    let len = [l0, l1, l2, l3];
    let Some((content, behind)) = behind.split_at_checked(u32::from_le_bytes(len) as usize) else {
        return Some(Block::Cut);
    };
    if checksum(kind, len, content) != u32::from_le_bytes([s0, s1, s2, s3]) {
        return Some(Block::Broken);
    }
    bytes.rest = behind;
    Some(Block::Whole { kind, content })
}

/// A text with its length in four bytes.
fn text<'a>(bytes: &mut Bytes<'a>) -> Option<&'a str> {
    let len = bytes.u32()? as usize;
    bytes.text(len)
}

fn checksum(kind: u8, len: [u8; 4], content: &[u8]) -> u32 {
    let [l0, l1, l2, l3] = len;
    crc32c::crc32c_append(crc32c::crc32c(&[kind, l0, l1, l2, l3]), content)
}

fn put_u32(into: &mut Vec<u8>, number: u32) {
    into.extend_from_slice(&number.to_le_bytes());
}

fn put_u64(into: &mut Vec<u8>, number: u64) {
    into.extend_from_slice(&number.to_le_bytes());
}

fn put_text(into: &mut Vec<u8>, text: &str) {
    put_u32(into, text.len() as u32);
    into.extend_from_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Collective, Dtype, Event, OperationNumber, Phase};

    fn sample() -> Trace {
        let header = TraceHeader {
            rank: 3,
            size: 4,
            host: "a".to_owned(),
            pid: 77,
            clock: "boot".to_owned(),
            anchor_ns: 5,
            anchor_unix_ns: 1_700_000_000_000_000_000,
            version: "0.1.0".to_owned(),
            settings: vec![("replay".to_owned(), "1".to_owned())],
        };
        let mut trace = Trace::new(header);
        let name = trace.names.intern("layer1.weight");
        trace.threads.insert(ThreadId(0), "main".to_owned());
        let (group, collective, dtype) = (GroupNumber::WORLD, Collective::Allreduce, Dtype::F32);
        trace.push(10, ThreadId(0), Event::Submitted { name, group, collective, dtype, bytes: 400 });
        for number in 0..5000 {
            let operation = OperationNumber(number);
            let started = Event::Started { group, operation, collective, dtype, requests: 1, bytes: 400 };
            trace.push(20 + number, ThreadId(0), started);
        }
        trace.push_phase(ThreadId(0), Phase::Forward, 6000, 7000);
        trace
    }

    #[test]
    fn a_trace_survives_its_bytes() {
        let mut trace = sample();
        trace.dropped = 9;
        assert_eq!(Trace::decode(&trace.encode()), Ok(trace));
    }

    #[test]
    fn a_file_cut_off_anywhere_is_read_as_far_as_it_goes() {
        let whole = sample();
        let bytes = whole.encode();
        let header_end = TraceEncoder::begin(&whole.header).take().len();
        for len in (0..bytes.len()).step_by(97).chain([header_end, bytes.len() - 1]) {
            match Trace::decode(&bytes[..len]) {
                Ok(trace) => {
                    assert!(len >= header_end && trace.ending == TraceEnding::CutOff, "{len}");
                    assert!(trace.records == whole.records[..trace.records.len()], "{len}");
                    assert!(
                        [0, BLOCK_RECORDS, whole.records.len()].contains(&trace.records.len()),
                        "whole blocks only"
                    );
                }
                Err(error) => {
                    assert!(len < header_end, "{len}");
                    assert!(matches!(error, ReadError::NotATrace | ReadError::NoHeader), "{error}");
                }
            }
        }
    }

    #[test]
    fn a_flipped_bit_is_found_and_what_stands_before_it_is_kept() {
        let whole = sample();
        let mut bytes = whole.encode();
        let last = bytes.len() - 40;
        bytes[last] ^= 1;
        let trace = Trace::decode(&bytes).unwrap();
        assert!(matches!(trace.ending, TraceEnding::Damaged { .. }), "{:?}", trace.ending);
        assert_eq!(trace.records[..], whole.records[..trace.records.len()]);
        assert!(!trace.records.is_empty());
    }

    #[test]
    fn other_files_and_versions_are_refused_by_name() {
        assert_eq!(Trace::decode(b"{\"traceEvents\": []}"), Err(ReadError::NotATrace));
        let mut bytes = sample().encode();
        bytes[8] = 2;
        let error = Trace::decode(&bytes).unwrap_err();
        assert_eq!(error.to_string(), "the trace is of version 2, this program reads version 1");
    }

    #[test]
    fn what_a_later_version_adds_is_skipped() {
        let mut encoder = TraceEncoder::begin(&sample().header);
        let mut bytes = encoder.take();
        let content = b"something new";
        let len = (content.len() as u32).to_le_bytes();
        bytes.push(200);
        bytes.extend_from_slice(&len);
        bytes.extend_from_slice(&checksum(200, len, content).to_le_bytes());
        bytes.extend_from_slice(content);
        encoder.records([[200; RECORD_BYTES]]);
        encoder.end("test");
        bytes.extend_from_slice(&encoder.take());
        let trace = Trace::decode(&bytes).unwrap();
        assert_eq!((trace.unknown, trace.ending), (1, TraceEnding::Complete("test".to_owned())));
    }
}
