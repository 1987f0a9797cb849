//! What is asked of a server and what it answers: the portmapper (RFC 1833), MOUNT and NFS version 3 (RFC 1813).
//!
//! Functions with a verb in their name write arguments; [`Answer`]s are read by `decode`. Only procedures that reading
//! needs are here.
//!
//! **Invariant:** decoding ends for all input. What names files on the wire (a handle, a name) is within its limits
//! afterwards, and a name has no slash.

use bytes::Bytes;

use super::super::super::ObjectVersion;
use super::super::fetch::hash;
use super::rpc::Program;
use super::xdr::{Decoder, Encoder, Garbled};

pub(super) const PORTMAP: Program = Program { number: 100_000, version: 2, name: "portmapper" };
pub(super) const MOUNT: Program = Program { number: 100_005, version: 3, name: "mount" };
pub(super) const NFS: Program = Program { number: 100_003, version: 3, name: "NFS" };

/// Procedures of the three programs.
pub(super) const GETPORT: u32 = 3;
pub(super) const MNT: u32 = 1;
pub(super) const EXPORT: u32 = 5;
pub(super) const GETATTR: u32 = 1;
pub(super) const LOOKUP: u32 = 3;
pub(super) const READLINK: u32 = 5;
pub(super) const READ: u32 = 6;
pub(super) const READDIRPLUS: u32 = 17;
pub(super) const FSINFO: u32 = 19;

/// A handle of version 3 is no longer.
const MAX_HANDLE_BYTES: usize = 64;
/// The longest path of a mount, by RFC 1813.
const MAX_PATH_BYTES: usize = 1024;
/// Linux has names of up to 255 bytes, and targets of links of up to 4096.
const MAX_NAME_BYTES: usize = 4096;

/// What a server calls a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Handle(pub(super) Bytes);

/// What kind of file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileKind {
    File,
    Folder,
    Link,
    /// A pipe, a device, a socket.
    Other,
}

/// What of a file's attributes matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Attributes {
    pub(super) kind: FileKind,
    pub(super) bytes: u64,
    /// The number of the file in its file system.
    pub(super) file_id: u64,
    /// Seconds and nanoseconds.
    pub(super) modified: (u32, u32),
}

/// A file, and what it is like if the server said so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) handle: Handle,
    pub(super) attributes: Option<Attributes>,
}

/// An answer of NFS or MOUNT: results, or a status that is not 0.
pub(super) type Answer<T> = Result<Result<T, u32>, Garbled>;

/// Bytes of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReadBytes {
    pub(super) attributes: Option<Attributes>,
    pub(super) at_end: bool,
    pub(super) bytes: Bytes,
}

/// A part of a folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Page {
    pub(super) verifier: [u8; 8],
    pub(super) entries: Vec<Entry>,
    pub(super) at_end: bool,
}

/// A name in a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// As the server has it; it need not be UTF-8.
    pub(super) name: Bytes,
    /// Where the next page begins.
    pub(super) cookie: u64,
    pub(super) attributes: Option<Attributes>,
    pub(super) handle: Option<Handle>,
}

impl Attributes {
    /// Which content a file has: a file that was replaced has another number or another time.
    pub(super) fn version(&self) -> ObjectVersion {
        let (seconds, nanoseconds) = self.modified;
        ObjectVersion { bytes: self.bytes, tag: hash(format!("{} {seconds} {nanoseconds}", self.file_id).as_bytes()) }
    }
}

pub(super) fn ask_port(program: Program) -> Vec<u8> {
    const TCP: u32 = 6;
    Encoder::default().u32(program.number).u32(program.version).u32(TCP).u32(0).finish()
}

pub(super) fn name_path(path: &str) -> Vec<u8> {
    Encoder::default().opaque(path.as_bytes()).finish()
}

pub(super) fn name_file(handle: &Handle) -> Vec<u8> {
    Encoder::default().opaque(&handle.0).finish()
}

pub(super) fn look_up(folder: &Handle, name: &str) -> Vec<u8> {
    Encoder::default().opaque(&folder.0).opaque(name.as_bytes()).finish()
}

pub(super) fn read(handle: &Handle, offset: u64, count: u32) -> Vec<u8> {
    Encoder::default().opaque(&handle.0).u64(offset).u32(count).finish()
}

pub(super) fn list(folder: &Handle, cookie: u64, verifier: [u8; 8], most_bytes: u32) -> Vec<u8> {
    let encoder = Encoder::default().opaque(&folder.0).u64(cookie).fixed(&verifier);
    // Names alone, and all of the answer. Linux asks for an eighth, which is about what names are of it.
    encoder.u32(most_bytes / 8).u32(most_bytes).finish()
}

pub(super) fn port(results: Bytes) -> Result<u32, Garbled> {
    Decoder::new(results).u32()
}

/// The handle of an export's folder, and which kinds of credentials are taken there.
pub(super) fn mounted(results: Bytes) -> Answer<(Handle, Vec<u32>)> {
    let mut decoder = Decoder::new(results);
    match decoder.u32()? {
        0 => {}
        status => return Ok(Err(status)),
    }
    let handle = handle(&mut decoder)?;
    let count = decoder.u32()?;
    // Each takes four bytes of what has arrived, so a wrong number ends the loop soon.
    let flavors = (0..count).map(|_| decoder.u32()).collect::<Result<_, _>>()?;
    Ok(Ok((handle, flavors)))
}

/// The paths that are exported. Who may mount them is for the server to say.
pub(super) fn exports(results: Bytes) -> Result<Vec<String>, Garbled> {
    let mut decoder = Decoder::new(results);
    let mut found = Vec::new();
    while decoder.flag()? {
        found.push(String::from_utf8_lossy(&decoder.opaque(MAX_PATH_BYTES)?).into_owned());
        while decoder.flag()? {
            decoder.opaque(MAX_NAME_BYTES)?;
        }
    }
    Ok(found)
}

pub(super) fn found(results: Bytes) -> Answer<Found> {
    let mut decoder = Decoder::new(results);
    match decoder.u32()? {
        0 => Ok(Ok(Found { handle: handle(&mut decoder)?, attributes: maybe_attributes(&mut decoder)? })),
        status => Ok(Err(status)),
    }
}

pub(super) fn attributes_of(results: Bytes) -> Answer<Attributes> {
    let mut decoder = Decoder::new(results);
    match decoder.u32()? {
        0 => Ok(Ok(attributes(&mut decoder)?)),
        status => Ok(Err(status)),
    }
}

/// Where a link leads.
pub(super) fn link(results: Bytes) -> Answer<Bytes> {
    let mut decoder = Decoder::new(results);
    let status = decoder.u32()?;
    maybe_attributes(&mut decoder)?;
    if status != 0 { Ok(Err(status)) } else { Ok(Ok(decoder.opaque(MAX_NAME_BYTES)?)) }
}

/// How many bytes the server likes to be asked for at once.
pub(super) fn preferred_read_bytes(results: Bytes) -> Answer<u32> {
    let mut decoder = Decoder::new(results);
    let status = decoder.u32()?;
    maybe_attributes(&mut decoder)?;
    if status != 0 {
        return Ok(Err(status));
    }
    let (most, preferred) = (decoder.u32()?, decoder.u32()?);
    Ok(Ok(preferred.min(most)))
}

/// The bytes of an answer, or of the beginning of one: then those that arrived.
pub(super) fn read_bytes(results: Bytes) -> Answer<ReadBytes> {
    let mut decoder = Decoder::new(results);
    let status = decoder.u32()?;
    let attributes = maybe_attributes(&mut decoder)?;
    if status != 0 {
        return Ok(Err(status));
    }
    let (count, at_end, length) = (decoder.u32()?, decoder.flag()?, decoder.u32()?);
    if count != length {
        return Err(Garbled("it counts other bytes than it has"));
    }
    let mut bytes = decoder.rest();
    // What is missing follows in the next answer, and so does the end.
    let at_end = at_end && bytes.len() >= length as usize;
    bytes.truncate(length as usize);
    Ok(Ok(ReadBytes { attributes, at_end, bytes }))
}

pub(super) fn page(results: Bytes) -> Answer<Page> {
    let mut decoder = Decoder::new(results);
    let status = decoder.u32()?;
    maybe_attributes(&mut decoder)?;
    if status != 0 {
        return Ok(Err(status));
    }
    let verifier = decoder.fixed(8)?[..].try_into().expect("invariant: eight bytes were taken");
    let mut entries = Vec::new();
    while decoder.flag()? {
        let _file_id = decoder.u64()?;
        let name = decoder.opaque(MAX_NAME_BYTES)?;
        if name.contains(&b'/') {
            return Err(Garbled("a name has a slash in it"));
        }
        let cookie = decoder.u64()?;
        let attributes = maybe_attributes(&mut decoder)?;
        let handle = if decoder.flag()? { Some(handle(&mut decoder)?) } else { None };
        entries.push(Entry { name, cookie, attributes, handle });
    }
    Ok(Ok(Page { verifier, entries, at_end: decoder.flag()? }))
}

fn handle(decoder: &mut Decoder) -> Result<Handle, Garbled> {
    let bytes = decoder.opaque(MAX_HANDLE_BYTES)?;
    // A copy: what is kept must not keep the whole answer.
    Ok(Handle(Bytes::copy_from_slice(&bytes)))
}

fn maybe_attributes(decoder: &mut Decoder) -> Result<Option<Attributes>, Garbled> {
    if decoder.flag()? { attributes(decoder).map(Some) } else { Ok(None) }
}

fn attributes(decoder: &mut Decoder) -> Result<Attributes, Garbled> {
    let kind = match decoder.u32()? {
        1 => FileKind::File,
        2 => FileKind::Folder,
        5 => FileKind::Link,
        _ => FileKind::Other,
    };
    // Mode, links, user and group.
    decoder.fixed(16)?;
    let bytes = decoder.u64()?;
    // What it takes on disk, the device that it is, and its file system.
    decoder.fixed(24)?;
    let file_id = decoder.u64()?;
    // When it was last read.
    decoder.fixed(8)?;
    let modified = (decoder.u32()?, decoder.u32()?);
    // When its attributes last changed: also by a chmod or a new link, which change no byte.
    decoder.fixed(8)?;
    Ok(Attributes { kind, bytes, file_id, modified })
}

/// What must hold for any bytes that are taken for an answer. The fuzzer calls it, and a test with the fuzzer's seeds.
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub fn check_any_answer(bytes: &[u8]) {
    let answer = Bytes::copy_from_slice(bytes);
    // As it arrives, and as results without what RPC puts before them: the fuzzer finds more in these.
    let results = super::rpc::results(answer.clone()).ok();
    for results in [Some(answer), results].into_iter().flatten() {
        let _ = (port(results.clone()), attributes_of(results.clone()), preferred_read_bytes(results.clone()));
        if let Ok(Ok((handle, flavors))) = mounted(results.clone()) {
            assert!(handle.0.len() <= MAX_HANDLE_BYTES && 4 * flavors.len() <= bytes.len());
        }
        if let Ok(exports) = exports(results.clone()) {
            assert!(4 * exports.len() <= bytes.len(), "an export takes bytes of the answer");
        }
        if let Ok(Ok(found)) = found(results.clone()) {
            assert!(found.handle.0.len() <= MAX_HANDLE_BYTES);
        }
        if let Ok(Ok(target)) = link(results.clone()) {
            assert!(target.len() <= MAX_NAME_BYTES);
        }
        if let Ok(Ok(read)) = read_bytes(results.clone()) {
            assert!(read.bytes.len() <= results.len());
        }
        if let Ok(Ok(page)) = page(results.clone()) {
            let is_right = |entry: &Entry| entry.name.len() <= MAX_NAME_BYTES && !entry.name.contains(&b'/');
            assert!(page.entries.iter().all(is_right) && 4 * page.entries.len() <= bytes.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encoded_attributes(encoder: Encoder) -> Encoder {
        let encoder = encoder.u32(1).fixed(&[0; 16]).u64(1000).fixed(&[0; 24]).u64(77).fixed(&[0; 8]);
        encoder.u32(5).u32(6).fixed(&[0; 8])
    }

    fn read_answer() -> Vec<u8> {
        encoded_attributes(Encoder::default().u32(0).u32(1)).u32(5).u32(1).opaque(b"hello").finish()
    }

    #[test]
    fn the_beginning_of_an_answer_has_the_bytes_that_arrived() {
        let whole = read_answer();
        let got = read_bytes(whole.clone().into()).unwrap().unwrap();
        let wanted = Attributes { kind: FileKind::File, bytes: 1000, file_id: 77, modified: (5, 6) };
        assert_eq!((got.attributes, got.at_end, &got.bytes[..]), (Some(wanted), true, &b"hello"[..]));
        let cut = whole.len() - 3 - 2;
        let got = read_bytes(Bytes::copy_from_slice(&whole[..cut])).unwrap().unwrap();
        assert_eq!((got.at_end, &got.bytes[..]), (false, &b"hel"[..]));
        assert!(read_bytes(Bytes::copy_from_slice(&whole[..50])).is_err());
        assert_eq!(read_bytes(Encoder::default().u32(70).u32(0).finish().into()), Ok(Err(70)));
    }

    #[test]
    fn folders_and_exports_are_read() {
        let entry = Encoder::default().u32(0).u32(0).fixed(&[9; 8]).u32(1).u64(3).opaque(b"name").u64(12).u32(1);
        let entry = encoded_attributes(entry).u32(1).opaque(b"handle");
        let got = page(entry.u32(0).u32(1).finish().into()).unwrap().unwrap();
        assert_eq!((got.verifier, got.at_end, got.entries.len()), ([9; 8], true, 1));
        assert_eq!((&got.entries[0].name[..], got.entries[0].cookie), (&b"name"[..], 12));
        assert_eq!(got.entries[0].handle, Some(Handle(Bytes::from_static(b"handle"))));
        let slash = Encoder::default().u32(0).u32(0).fixed(&[9; 8]).u32(1).u64(3).opaque(b"../x").finish();
        assert_eq!(page(slash.into()), Err(Garbled("a name has a slash in it")));
        let list = Encoder::default().u32(1).opaque(b"/data").u32(1).opaque(b"host").u32(0).u32(1).opaque(b"/b");
        assert_eq!(exports(list.u32(0).u32(0).finish().into()).unwrap(), ["/data", "/b"]);
    }

    #[test]
    fn a_file_with_another_time_or_number_has_another_version() {
        let one = Attributes { kind: FileKind::File, bytes: 10, file_id: 1, modified: (1, 1) };
        let others = [(2, (1, 1)), (1, (1, 2)), (1, (2, 1))];
        for (file_id, modified) in others {
            assert_ne!(Attributes { file_id, modified, ..one }.version(), one.version());
        }
        assert_ne!(Attributes { bytes: 11, ..one }.version(), one.version());
        assert_eq!(one.version(), one.version());
    }

    #[test]
    fn answers_of_the_corpus_decode_or_are_refused() {
        let framed = |results: &[u8]| {
            let head = Encoder::default().u32(9).u32(1).u32(0).u32(0).u32(0).u32(0).finish();
            [&head, results].concat()
        };
        let entry = Encoder::default().u32(0).u32(0).fixed(&[9; 8]).u32(1).u64(3).opaque(b"name").u64(12).u32(1);
        let folder = encoded_attributes(entry).u32(1).opaque(b"handle").u32(0).u32(1).finish();
        let slash = Encoder::default().u32(0).u32(0).fixed(&[9; 8]).u32(1).u64(3).opaque(b"../x").finish();
        let exports = Encoder::default().u32(1).opaque(b"/data").u32(1).opaque(b"host").u32(0).u32(0).finish();
        let mounted = Encoder::default().u32(0).opaque(b"handle").u32(2).u32(1).u32(390_003).finish();
        let found = encoded_attributes(Encoder::default().u32(0).opaque(b"handle").u32(1)).finish();
        let link = Encoder::default().u32(0).u32(0).opaque(b"../other/file").finish();
        let info = Encoder::default().u32(0).u32(0).u32(1 << 20).u32(1 << 16).finish();
        let read = read_answer();
        let made = [
            ("read", framed(&read)),
            ("read_begun", framed(&read[..read.len() - 5])),
            ("folder", framed(&folder)),
            ("folder_without_frame", folder.clone()),
            ("slash", framed(&slash)),
            ("exports", framed(&exports)),
            ("mounted", framed(&mounted)),
            ("found", framed(&found)),
            ("link", framed(&link)),
            ("info", framed(&info)),
            ("port", framed(&2049_u32.to_be_bytes())),
            ("stale", framed(&Encoder::default().u32(70).u32(0).finish())),
            ("other_versions", Encoder::default().u32(9).u32(1).u32(0).u64(0).u32(2).u32(4).u32(4).finish()),
            ("denied", Encoder::default().u32(9).u32(1).u32(1).u32(1).u32(5).finish()),
            ("long", framed(&[0xff; 40])),
            ("empty", Vec::new()),
        ];
        crate::seeds::replay("nfs_answer", &made, check_any_answer);
    }

    proptest! {
        #[test]
        fn decoders_end_for_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            check_any_answer(&bytes);
        }

        /// Small numbers are flags, lengths and kinds, so that more of the decoders is reached.
        #[test]
        fn decoders_end_for_any_words(words in proptest::collection::vec(0_u32..9, 0..80)) {
            check_any_answer(&words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<u8>>());
        }

        #[test]
        fn decoders_end_for_answers_with_a_wrong_byte(at in 0_usize..200, byte: u8, length in 0_usize..200) {
            let mut answer = read_answer();
            let at = at % answer.len();
            answer[at] = byte;
            answer.truncate(length);
            check_any_answer(&answer);
        }
    }
}
