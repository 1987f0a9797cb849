//! Archives that we write, that others write, and that nobody should have written.

use std::sync::Arc;

use farandole_testing::Folder;
use proptest::prelude::*;

use super::*;
use crate::storage::LocalFiles;

fn written(entries: &[(String, Vec<u8>)]) -> (Folder, Vec<u8>) {
    let folder = Folder::new();
    let path = folder.join("a.tar");
    let mut writer = TarWriter::new(NewFile::create(&path).unwrap());
    entries.iter().for_each(|(name, contents)| writer.write(name, contents).unwrap());
    writer.finish().unwrap();
    let bytes = std::fs::read(path).unwrap();
    (folder, bytes)
}

fn file(folder: &Folder, bytes: &[u8]) -> StoredFile {
    std::fs::write(folder.join("b.tar"), bytes).unwrap();
    StoredFile::open(Arc::new(LocalFiles::new(&**folder)), "b.tar").unwrap()
}

fn all(file: &StoredFile) -> Result<Vec<(String, Vec<u8>)>, FormatError> {
    let mut reader = TarReader::new(file, 64);
    let mut found = Vec::new();
    while let Some(entry) = reader.next()? {
        let contents = reader.contents(&entry)?.to_vec();
        found.push((entry.name, contents));
    }
    Ok(found)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn entries_come_back_with_long_names_too(
        entries in proptest::collection::vec(
            ("[a-zä/]{1,140}", proptest::collection::vec(any::<u8>(), 0..1500)), 0..8)
    ) {
        let (folder, bytes) = written(&entries);
        prop_assert_eq!(bytes.len() % BLOCK_BYTES, 0);
        let file = file(&folder, &bytes);
        prop_assert_eq!(all(&file).unwrap(), entries.clone());
        // By place, without the contents of others having been read.
        let mut reader = TarReader::new(&file, 512);
        for (name, contents) in entries {
            let entry = reader.next().unwrap().unwrap();
            prop_assert_eq!(entry.name, name);
            let mut found = vec![0; entry.bytes as usize];
            file.read_at(entry.offset, &mut found).unwrap();
            prop_assert_eq!(found, contents);
        }
        prop_assert!(reader.next().unwrap().is_none());
    }

    #[test]
    fn garbage_is_an_error_and_no_more(mut bytes in proptest::collection::vec(any::<u8>(), 1..1600), whole: bool) {
        let folder = Folder::new();
        bytes[0] |= 1;
        if whole && bytes.len() >= BLOCK_BYTES {
            // With a checksum that holds, the rest of the header is looked at.
            let block: &mut [u8; BLOCK_BYTES] = (&mut bytes[..BLOCK_BYTES]).try_into().unwrap();
            let checksum = format!("{:06o}\0 ", sum(block));
            block[148..156].copy_from_slice(checksum.as_bytes());
        }
        prop_assert!(all(&file(&folder, &bytes)).is_err());
    }

    #[test]
    fn a_changed_header_is_noticed(at in 0usize..BLOCK_BYTES, byte: u8) {
        let (folder, mut bytes) = written(&[("a.jpg".to_owned(), vec![1; 600])]);
        prop_assume!(bytes[at] != byte);
        bytes[at] = byte;
        let found = all(&file(&folder, &bytes));
        // Spaces and zeros after the checksum mean the same.
        if !(154..156).contains(&at) {
            prop_assert!(found.is_err());
        }
    }
}

#[test]
fn an_archive_that_ends_too_early_is_an_error_at_every_byte() {
    let (folder, bytes) = written(&[("a.jpg".to_owned(), vec![1; 600]), ("a.cls".to_owned(), b"3".to_vec())]);
    let end_mark = bytes.len() - 2 * BLOCK_BYTES;
    // One block of zeros is enough of an end mark.
    for end in 0..end_mark + BLOCK_BYTES {
        let error = all(&file(&folder, &bytes[..end])).unwrap_err();
        assert!(error.cause.contains("end"), "{end}: {error}");
        assert!(error.offset.is_some_and(|offset| offset <= end as u64), "{end}: {error}");
    }
}

#[test]
fn long_names_of_gnu_and_prefixes_of_posix_are_read() {
    let folder = Folder::new();
    let mut bytes = Vec::new();
    let long = "deep/".repeat(30) + "1.jpg\0";
    bytes.extend(header_block(b"././@LongLink", b'L', long.len() as u64));
    bytes.extend(long.as_bytes());
    bytes.resize(bytes.len().next_multiple_of(BLOCK_BYTES), 0);
    bytes.extend(header_block(b"deep/deep", b'0', 0));
    let mut prefixed = header_block(b"2.jpg", 0, 0);
    prefixed[345..349].copy_from_slice(b"fold");
    let checksum = format!("{:06o}\0 ", sum(&prefixed));
    prefixed[148..156].copy_from_slice(checksum.as_bytes());
    bytes.extend(header_block(b"fold/", b'5', 0));
    bytes.extend(prefixed);
    bytes.extend([0; BLOCK_BYTES]);
    let names: Vec<String> = all(&file(&folder, &bytes)).unwrap().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, [long.trim_end_matches('\0'), "fold/2.jpg"]);
}

#[test]
fn sizes_in_binary_and_in_extended_headers_are_read() {
    let folder = Folder::new();
    let mut block = header_block(b"a", b'0', 0);
    block[124..136].copy_from_slice(&[0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3]);
    let checksum = format!("{:06o}\0 ", sum(&block));
    block[148..156].copy_from_slice(checksum.as_bytes());
    let mut bytes = block.to_vec();
    bytes.extend(b"abc");
    bytes.resize(2 * BLOCK_BYTES, 0);
    bytes.extend(header_block(b"b", b'x', 9));
    bytes.extend(b"9 size=2\n");
    bytes.resize(4 * BLOCK_BYTES, 0);
    bytes.extend(header_block(b"b", b'0', 0));
    bytes.extend(b"de");
    bytes.resize(7 * BLOCK_BYTES, 0);
    let found = all(&file(&folder, &bytes)).unwrap();
    assert_eq!(found, [("a".to_owned(), b"abc".to_vec()), ("b".to_owned(), b"de".to_vec())]);
}

#[test]
fn absurd_sizes_are_refused_before_anything_is_allocated() {
    let folder = Folder::new();
    for (kind, bytes, word) in [(b'0', 1 << 32, "ends within"), (b'L', 1 << 20, "ends within"), (b'S', 0, "sparse")] {
        let error = all(&file(&folder, &header_block(b"a", kind, bytes))).unwrap_err();
        assert!(error.cause.contains(word), "{error}");
    }
    let mut long = header_block(b"a", b'L', MAX_NAME_BYTES + 1).to_vec();
    long.resize(200 << 10, 0);
    assert!(all(&file(&folder, &long)).unwrap_err().cause.contains("read at most"));
}
