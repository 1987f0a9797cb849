//! How a block lies in its file.
//!
//! A header with a mark, the block's key, its length and a CRC32C for each chunk of 64 KiB, and a CRC32C of the header;
//! then the block. A read checks the chunks that it touches, so that a small record costs a small read.
//!
//! **Invariant:** bytes that are handed out are those that were written under this key. Anything else in the file, and
//! a file that ends early, is [`Read::Broken`].

use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

use super::Key;

/// The mark also names the form: another form has another mark, and the folder another name.
const MARK: &[u8; 8] = b"FRDBLK01";

/// The length of what a checksum is about. Smaller ones make the header longer, larger ones small reads.
const CHUNK_BYTES: usize = 64 << 10;

/// What a file was found to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Read {
    /// The bytes are in the buffer.
    Done,
    /// It is not what was written.
    Broken,
}

fn header_bytes(block_bytes: usize) -> usize {
    MARK.len() + 16 + 8 + 4 * block_bytes.div_ceil(CHUNK_BYTES) + 4
}

/// How long the file of a block is.
pub(super) fn file_bytes(block_bytes: usize) -> u64 {
    (header_bytes(block_bytes) + block_bytes) as u64
}

/// Writes a block to a file.
pub(super) fn write(file: &mut impl Write, key: Key, block: &[u8]) -> io::Result<()> {
    let mut header = Vec::with_capacity(header_bytes(block.len()));
    header.extend_from_slice(MARK);
    header.extend_from_slice(&key.0.to_le_bytes());
    header.extend_from_slice(&(block.len() as u64).to_le_bytes());
    for chunk in block.chunks(CHUNK_BYTES) {
        header.extend_from_slice(&crc32c::crc32c(chunk).to_le_bytes());
    }
    let checksum = crc32c::crc32c(&header);
    header.extend_from_slice(&checksum.to_le_bytes());
    file.write_all(&header)?;
    file.write_all(block)
}

/// Reads a range of a block that has `block_bytes`.
pub(super) fn read(
    file: &File,
    key: Key,
    block_bytes: usize,
    range: Range<usize>,
    buffer: &mut [u8],
) -> io::Result<Read> {
    let mut header = vec![0; header_bytes(block_bytes)];
    if !read_whole(file, 0, &mut header)? {
        return Ok(Read::Broken);
    }
    let (fields, checksum) = header.split_at(header.len() - 4);
    let begin = [&MARK[..], &key.0.to_le_bytes(), &(block_bytes as u64).to_le_bytes()].concat();
    if !fields.starts_with(&begin) || crc32c::crc32c(fields).to_le_bytes() != checksum {
        return Ok(Read::Broken);
    }
    let first = range.start / CHUNK_BYTES;
    let end = range.end.next_multiple_of(CHUNK_BYTES).min(block_bytes);
    let mut chunks = vec![0; end - first * CHUNK_BYTES];
    if !read_whole(file, (header.len() + first * CHUNK_BYTES) as u64, &mut chunks)? {
        return Ok(Read::Broken);
    }
    let sums = fields[begin.len() + 4 * first..].chunks_exact(4);
    if !chunks.chunks(CHUNK_BYTES).zip(sums).all(|(chunk, sum)| crc32c::crc32c(chunk).to_le_bytes() == sum) {
        return Ok(Read::Broken);
    }
    let at = range.start - first * CHUNK_BYTES;
    buffer.copy_from_slice(&chunks[at..at + range.len()]);
    Ok(Read::Done)
}

/// Whether the file has all these bytes.
fn read_whole(file: &File, at: u64, buffer: &mut [u8]) -> io::Result<bool> {
    match file.read_exact_at(buffer, at) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(block: &[u8]) -> (farandole_testing::Folder, File) {
        let folder = farandole_testing::Folder::new();
        let options = File::options().read(true).write(true).create_new(true).open(folder.join("block"));
        let mut file = options.unwrap();
        write(&mut file, Key(7), block).unwrap();
        (folder, file)
    }

    fn block(bytes: usize) -> Vec<u8> {
        (0..bytes).map(|at| (at * 31 % 251) as u8).collect()
    }

    #[test]
    fn ranges_come_back() {
        let block = block(3 * CHUNK_BYTES + 17);
        let (_folder, file) = written(&block);
        let all = block.len();
        assert_eq!(file.metadata().unwrap().len(), file_bytes(all));
        for range in [0..all, 0..1, 5..CHUNK_BYTES, CHUNK_BYTES - 1..CHUNK_BYTES + 1, all - 1..all, CHUNK_BYTES..all] {
            let mut buffer = vec![0; range.len()];
            assert_eq!(read(&file, Key(7), all, range.clone(), &mut buffer).unwrap(), Read::Done);
            assert_eq!(buffer, block[range]);
        }
        let mut buffer = [0; 4];
        assert_eq!(read(&file, Key(8), all, 0..4, &mut buffer).unwrap(), Read::Broken);
        assert_eq!(read(&file, Key(7), all - 1, 0..4, &mut buffer).unwrap(), Read::Broken);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn damage_and_missing_ends_are_found(at in any::<prop::sample::Index>(), bit in 0u8..8, cut in any::<bool>()) {
            let block = block(CHUNK_BYTES + 900);
            let (_folder, file) = written(&block);
            let at = at.index(file_bytes(block.len()) as usize) as u64;
            if cut {
                file.set_len(at).unwrap();
            } else {
                let mut byte = [0];
                file.read_exact_at(&mut byte, at).unwrap();
                file.write_all_at(&[byte[0] ^ 1 << bit], at).unwrap();
            }
            let mut buffer = vec![0; block.len()];
            prop_assert_eq!(read(&file, Key(7), block.len(), 0..block.len(), &mut buffer).unwrap(), Read::Broken);
        }
    }
}
