//! What was found in a shard, kept in a file.
//!
//! An index holds the shard's name, size and version (the time of its last change, or an ETag), what was looked for,
//! and for each record its place and what it says about itself. It begins with a word and a checksum (CRC32C) of the
//! rest.
//!
//! **Invariant:** an index that is damaged, of another shard, of a shard that has changed since, or of another way of
//! looking is no index: the shard is looked through again. That an index cannot be written is no error.
//!
//! An index is replaced in one step (`NewFile`), so processes that look through one shard at the same time do not
//! disturb each other.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::config::IndexPlace;
use super::labels::Marks;
use crate::format::{NewFile, StoredFile};
use crate::limit::Limit;
use crate::source::split::{NOTHING, hash};

/// A record of a shard, as looking through it has found it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// Where it lies; its number where a format has no better place.
    pub(crate) offset: u64,
    /// How many bytes it has there.
    pub(crate) bytes: u64,
    /// What it is called in its shard, if it has a name.
    pub(crate) key: Option<String>,
    /// What it says about itself.
    pub(crate) marks: Marks,
}

/// Which state of which shard an index is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct About {
    path: String,
    bytes: u64,
    version: u64,
    /// What was looked for, in words.
    sought: String,
}

impl About {
    /// What an index of this shard must say; nothing where the storage cannot tell.
    pub(crate) fn of(file: &StoredFile, sought: &str) -> Option<About> {
        let version = file.storage().version(file.path()).ok()?.tag;
        let name = file.path().rsplit('/').next().unwrap_or_default();
        Some(About { path: name.to_owned(), bytes: file.bytes(), version, sought: sought.to_owned() })
    }
}

/// How many times larger an entry is in memory than in its file, at most: four bytes say that there is nothing.
const ENTRY_GROWTH: u64 = size_of::<Entry>() as u64 / 4;

/// How an index begins: what it is, and the number of its layout.
const MAGIC: &[u8; 8] = b"FARINDX\x01";

/// Where the index of a shard lies, if it lies anywhere.
pub(crate) fn path(file: &StoredFile, place: &IndexPlace) -> Option<PathBuf> {
    match place {
        IndexPlace::Nowhere => None,
        IndexPlace::Beside => {
            let shard = file.storage().local_path(file.path())?;
            // Hidden: whoever lists the folder wants shards.
            Some(shard.with_file_name(format!(".{}.index", shard.file_name()?.to_string_lossy())))
        }
        IndexPlace::Folder(folder) => {
            // Shards of several storages may share a folder.
            let whole = hash(hash(NOTHING, file.storage().describe().as_bytes()), file.path().as_bytes());
            let name = file.path().rsplit('/').next().unwrap_or_default();
            Some(folder.join(format!("{name}-{whole:016x}.index")))
        }
    }
}

/// Reads an index, if it is a good one.
pub(crate) fn load(path: &Path, about: &About) -> Option<Vec<Entry>> {
    // An entry takes many times the bytes that it has in the file.
    let bytes = Limit::of_process().divided_by(ENTRY_GROWTH).read(std::fs::File::open(path).ok()?).ok()?;
    decode(&bytes, about)
}

/// Writes an index. Nothing depends on it, so nothing is said where it fails.
pub(crate) fn keep(path: &Path, about: &About, entries: &[Entry]) {
    let Ok(mut file) = NewFile::create(path) else { return };
    if file.write(&encode(about, entries)).is_ok() {
        let _ = file.finish();
    }
}

fn encode(about: &About, entries: &[Entry]) -> Vec<u8> {
    let body = postcard::to_stdvec(&(about, entries)).expect("invariant: plain values are encoded into memory");
    [MAGIC.as_slice(), &crc_fast::crc32_iscsi(&body).to_le_bytes(), &body].concat()
}

fn decode(bytes: &[u8], about: &About) -> Option<Vec<Entry>> {
    let (checksum, body) = bytes.strip_prefix(MAGIC)?.split_first_chunk::<4>()?;
    if crc_fast::crc32_iscsi(body).to_le_bytes() != *checksum {
        return None;
    }
    let (found, entries): (About, Vec<Entry>) = postcard::from_bytes(body).ok()?;
    // A record is read into memory as a whole.
    let limit = Limit::of_process();
    let within = |entry: &Entry| {
        limit.check(entry.bytes).is_ok() && entry.offset.checked_add(entry.bytes).is_some_and(|end| end <= about.bytes)
    };
    (found == *about && entries.iter().all(within)).then_some(entries)
}

/// The body of an index of a shard `a.tar` with 4096 bytes, for [`check_any_index`] to begin with.
#[doc(hidden)]
pub fn any_index() -> Vec<u8> {
    let about = About { path: "a.tar".to_owned(), bytes: 4096, version: 0, sought: "images".to_owned() };
    let marks = [Marks::Ints(vec![3]), Marks::Names(vec!["cat".to_owned()]), Marks::Floats(vec![0.5]), Marks::Nothing];
    let entry = |(offset, marks)| Entry { offset, bytes: 512, key: Some("key".to_owned()), marks };
    let entries: Vec<Entry> = (0..).step_by(512).zip(marks).map(entry).collect();
    encode(&about, &entries).split_off(MAGIC.len() + 4)
}

/// What must hold for any bytes that are taken for an index, and for the same with a right beginning and checksum. The
/// fuzzer calls it, and a test with the fuzzer's seeds. How many entries there are.
#[doc(hidden)]
pub fn check_any_index(bytes: &[u8], shard: &StoredFile) -> usize {
    let Some(about) = About::of(shard, "images") else { return 0 };
    let mut entries = 0;
    let checked = [MAGIC.as_slice(), &crc_fast::crc32_iscsi(bytes).to_le_bytes(), bytes].concat();
    for bytes in [bytes, &checked] {
        for entry in decode(bytes, &about).into_iter().flatten() {
            assert!(entry.offset + entry.bytes <= shard.bytes(), "an entry lies within its shard");
            entries += 1;
        }
    }
    entries
}

#[cfg(test)]
mod tests {
    use farandole_testing::Folder;
    use proptest::prelude::*;

    use super::*;

    fn about() -> About {
        About { path: "a".into(), bytes: 100, version: 7, sought: "images".into() }
    }

    fn entries() -> Vec<Entry> {
        let marks = [Marks::Ints(vec![3]), Marks::Names(vec!["cat".into()]), Marks::Floats(vec![0.5]), Marks::Nothing];
        let entry = |(offset, marks)| Entry { offset, bytes: 5, key: Some("k".into()), marks };
        (0..).zip(marks).map(entry).collect()
    }

    #[test]
    fn an_index_comes_back_and_a_stale_or_cut_one_does_not() {
        let folder = Folder::new();
        let path = folder.join("cache/a.index");
        keep(&path, &about(), &entries());
        assert_eq!(load(&path, &about()), Some(entries()));
        let good = std::fs::read(&path).unwrap();
        for other in [
            About { bytes: 101, ..about() },
            About { version: 8, ..about() },
            About { path: "b".into(), ..about() },
            About { sought: "others".into(), ..about() },
        ] {
            assert_eq!(load(&path, &other), None, "{other:?}");
        }
        for end in 0..good.len() {
            assert_eq!(decode(&good[..end], &about()), None, "{end}");
        }
        let outside = [Entry { offset: 99, bytes: 2, ..Entry::default() }];
        assert_eq!(decode(&encode(&about(), &outside), &about()), None);
        let (large, about) = ([Entry { bytes: 2 << 30, ..Entry::default() }], About { bytes: 4 << 30, ..about() });
        assert_eq!(decode(&encode(&about, &large), &about), None, "a record is at most as large as the limit");
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_no_error() {
        let folder = Folder::new();
        std::fs::write(folder.join("file"), "").unwrap();
        keep(&folder.join("file/a.index"), &about(), &entries());
        assert_eq!(load(&folder.join("file/a.index"), &about()), None);
    }

    proptest! {
        #[test]
        fn garbage_is_no_index(bytes in proptest::collection::vec(any::<u8>(), 0..200), at in 0usize..500, byte: u8) {
            prop_assert_eq!(decode(&bytes, &about()), None);
            // With a good checksum the rest is decoded.
            let checked = [MAGIC.as_slice(), &crc_fast::crc32_iscsi(&bytes).to_le_bytes(), &bytes].concat();
            let _ = decode(&checked, &about());
            let mut damaged = encode(&about(), &entries());
            let at = at % damaged.len();
            prop_assume!(damaged[at] != byte);
            damaged[at] = byte;
            prop_assert_eq!(decode(&damaged, &about()), None);
        }
    }
}
