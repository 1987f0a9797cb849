//! Index files that claim more than they have: they are passed over, and the shard is looked through.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use farandole_data::source::{self, IndexPlace, RecordsConfig};
use farandole_data::storage::LocalFiles;
use farandole_testing::Folder;

use crate::{ALLOWED, LIMIT, measured};

/// A word and a checksum, before the body of an index.
const HEAD_BYTES: usize = 12;

/// A folder with an archive `a.tar` of one record, and one with the index that opening it has written.
fn indexed() -> (Folder, PathBuf) {
    let folder = Folder::new();
    let entry = |name, bytes: &[u8]| {
        let fill = vec![0; bytes.len().next_multiple_of(512) - bytes.len()];
        [crate::others::tar_header(name, bytes.len() as u64), bytes.to_vec(), fill].concat()
    };
    let file = [entry("a.ppm", b"P6 1 1 255\n\x01\x02\x03"), entry("a.cls", b"0"), vec![0; 1024]];
    std::fs::write(folder.join("a.tar"), file.concat()).unwrap();
    assert_eq!(open(&folder).0, Ok(1));
    let index = std::fs::read_dir(folder.join("index")).unwrap().next().unwrap().unwrap().path();
    (folder, index)
}

/// The number of records, and the bytes that were allocated at once.
fn open(folder: &Path) -> (Result<usize, String>, usize) {
    let index = IndexPlace::Folder(folder.join("index"));
    let config = RecordsConfig { index, threads: 1, ..RecordsConfig::default() };
    let files = Arc::new(LocalFiles::new(folder));
    measured(|| source::open(files, "a.tar", &config).map(|records| records.len()).map_err(|error| error.0))
}

/// Checks that the archive is read with this index, and costs little.
fn check(folder: &Path) {
    let (result, peak) = open(folder);
    assert!(peak <= ALLOWED, "{peak} bytes were allocated at once ({result:?})");
    assert_eq!(result, Ok(1));
}

#[test]
fn an_index_that_is_larger_than_the_limit_is_not_read_into_memory() {
    let (folder, index) = indexed();
    File::options().write(true).open(index).unwrap().set_len(1 << 40).unwrap();
    check(&folder);
}

/// Bytes of the text at the front, with its length.
fn text_bytes(bytes: &[u8]) -> usize {
    1 + usize::from(bytes[0])
}

/// Bytes of the number at the front.
fn number_bytes(bytes: &[u8]) -> usize {
    1 + bytes.iter().position(|byte| byte & 0x80 == 0).unwrap()
}

#[test]
fn an_index_whose_entries_take_more_memory_than_the_limit_is_not_decoded() {
    let (folder, index) = indexed();
    let good = std::fs::read(&index).unwrap();
    let body = &good[HEAD_BYTES..];
    // Which state of which archive it is about: a name, two numbers, and what was looked for.
    let mut end = text_bytes(body);
    end += number_bytes(&body[end..]);
    end += number_bytes(&body[end..]);
    end += text_bytes(&body[end..]);
    // Then the number of entries, of four bytes each: the file is smaller than the limit.
    let entries = LIMIT / 5;
    let number = [entries as u8 | 0x80, (entries >> 7) as u8 | 0x80, (entries >> 14) as u8 & 0x7f];
    let many = [&body[..end], &number, &vec![0; 4 * entries]].concat();
    let checksum = crc_fast::crc32_iscsi(&many).to_le_bytes();
    std::fs::write(&index, [&good[..8], &checksum, &many].concat()).unwrap();
    check(&folder);
}
