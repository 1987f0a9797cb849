//! Arrays, archives and images that claim more than they have.

use std::io::Write as _;
use std::os::unix::fs::FileExt as _;

use farandole_data::decode;
use farandole_data::format::{npy, tiff};

use crate::{ALLOWED, LIMIT, check, peak_of};

/// An archive with one deflated member, and the size that its list claims.
fn archive(contents: &[u8], claimed: u32) -> Vec<u8> {
    let mut out = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::best());
    out.write_all(contents).unwrap();
    let packed = out.finish().unwrap();
    let name = b"images.npy";
    let mut checksum = flate2::Crc::new();
    checksum.update(contents);
    // Method, time and date; checksum, packed and unpacked bytes; bytes of the name and of the extra field.
    let about = [
        [8, 0, 0, 0, 0, 0].as_slice(),
        &checksum.sum().to_le_bytes(),
        &(packed.len() as u32).to_le_bytes(),
        &claimed.to_le_bytes(),
        &(name.len() as u16).to_le_bytes(),
        &[0, 0],
    ]
    .concat();
    let local = [b"PK\x03\x04\x14\0\0\0".as_slice(), &about, name, &packed].concat();
    let list = [b"PK\x01\x02\x14\0\x14\0\0\0".as_slice(), &about, &[0; 14], name].concat();
    let end = [
        b"PK\x05\x06\0\0\0\0\x01\0\x01\0".as_slice(),
        &(list.len() as u32).to_le_bytes(),
        &(local.len() as u32).to_le_bytes(),
        &[0, 0],
    ]
    .concat();
    [local, list, end].concat()
}

#[test]
fn a_member_of_an_archive_that_unpacks_to_more_than_the_limit_is_refused() {
    let rows = 20 * LIMIT as u64;
    let array = npy::encode("|u1", &[1, rows, 1], &vec![0; rows as usize]);
    check("bomb.npz", &archive(&array, array.len() as u32), &["images.npy", "are allowed", "numpy.savez"]);
    check("bomb.npz", &archive(&array, 100), &["images.npy", "its size or checksum is wrong"]);
}

#[test]
fn an_array_of_any_number_of_empty_rows_is_refused() {
    check("images.npy", &npy::encode("|u1", &[1 << 60, 0, 4], &[]), &["are empty"]);
    check("images.npy", &npy::encode("|u1", &[1 << 32, 1 << 32, 1 << 32], &[]), &["does not fit"]);
}

#[test]
fn rows_of_a_byte_whose_entries_exceed_the_limit_are_refused() {
    check("images.npy", &npy::encode("|u1", &[1 << 20, 1, 1], &vec![0; 1 << 20]), &["1048576 rows", "are allowed"]);
}

/// Checks that bytes are no image, and cost little.
fn refused(what: &str, bytes: &[u8], words: &str) {
    farandole_data::limit::Limit::set(LIMIT as u64);
    let (result, peak) = peak_of(|| decode::decode(bytes, 3).map(|image| image.bytes.len()));
    assert!(peak <= ALLOWED, "{what}: {peak} bytes were allocated at once ({result:?})");
    let error = result.unwrap_err();
    assert!(error.contains(words), "{what}: {error}");
}

/// A PNG without pixels that claims a size.
fn png(width: u32, height: u32) -> Vec<u8> {
    let chunk = |kind: &[u8], body: &[u8]| {
        let mut checksum = flate2::Crc::new();
        checksum.update(kind);
        checksum.update(body);
        [&(body.len() as u32).to_be_bytes(), kind, body, &checksum.sum().to_be_bytes()].concat()
    };
    let header = [width.to_be_bytes().as_slice(), &height.to_be_bytes(), &[8, 6, 0, 0, 0]].concat();
    let parts = [b"\x89PNG\r\n\x1a\n".to_vec(), chunk(b"IHDR", &header), chunk(b"IDAT", &[]), chunk(b"IEND", &[])];
    parts.concat()
}

/// One of our images with another size in its frame, whose marker is of this kind.
fn jpeg(file: &[u8], kind: u8, side: u16) -> Vec<u8> {
    let mut bytes = file.to_vec();
    let frame = bytes.windows(2).position(|pair| pair == [0xff, kind]).unwrap();
    bytes[frame + 5..frame + 7].copy_from_slice(&side.to_be_bytes());
    bytes[frame + 7..frame + 9].copy_from_slice(&side.to_be_bytes());
    bytes
}

#[test]
fn images_that_claim_more_pixels_than_the_limit_are_refused() {
    let progressive = include_bytes!("../images/grey-progressive.jpg");
    let usual = include_bytes!("../images/ramp.jpg");
    refused("PNG", &png(9_000, 9_000), "are allowed");
    refused("PNG", &png(u32::MAX >> 1, u32::MAX >> 1), "pixels");
    refused("progressive JPEG", &jpeg(progressive, 0xc2, 9_000), "are allowed");
    refused("JPEG", &jpeg(usual, 0xc0, 9_000), "are allowed");
    refused("PNM", b"P6 9000 9000 255\n", "are allowed");
}

#[test]
fn a_progressive_image_of_thousands_of_scans_is_refused() {
    let file = include_bytes!("../images/grey-progressive.jpg");
    let at = file.windows(2).rposition(|pair| pair == [0xff, 0xda]).unwrap();
    let scan = &file[at..file.len() - 2];
    let many = [&file[..at], &scan.repeat(5_000), &[0xff, 0xd9]].concat();
    refused("scans", &many, "scans");
}

/// A TIFF file of one pixel in a tile of this width, with floats whose bytes are shuffled for compression.
fn tile(width: u32) -> Vec<u8> {
    let tags = [
        (256u16, 4u16, 1u32),
        (257, 4, 1),
        (258, 3, 32),
        (259, 3, 1),
        (262, 3, 1),
        (277, 3, 1),
        (317, 3, 3),
        (322, 4, width),
        (323, 4, 16),
        (324, 4, 8),
        (325, 4, 64),
        (339, 3, 3),
    ];
    let mut bytes = b"II\x2a\0\x08\0\0\0".to_vec();
    bytes.extend((tags.len() as u16).to_le_bytes());
    for (tag, kind, value) in tags {
        bytes.extend([tag.to_le_bytes(), kind.to_le_bytes()].concat());
        bytes.extend([1u32.to_le_bytes(), value.to_le_bytes()].concat());
    }
    bytes.extend([0; 80]);
    bytes
}

#[test]
fn a_tile_that_is_wider_than_any_image_is_refused() {
    farandole_data::limit::Limit::set(LIMIT as u64);
    let (result, peak) = peak_of(|| tiff::decode_band(&tile(1 << 30)).map(|band| band.values.len()));
    assert!(peak <= ALLOWED, "{peak} bytes were allocated at once ({result:?})");
    assert!(result.clone().unwrap_err().contains("are allowed"), "{result:?}");
}

#[test]
fn a_tag_that_claims_more_values_than_the_file_has_is_refused() {
    let mut bytes = tile(16);
    // Bits of each sample: six million numbers of two bytes.
    let at = bytes.windows(4).position(|tag| tag == [2, 1, 3, 0]).unwrap();
    bytes[at + 4..at + 8].copy_from_slice(&6_000_000u32.to_le_bytes());
    let (result, peak) = peak_of(|| tiff::decode_band(&bytes).map(|band| band.values.len()));
    assert!(peak <= ALLOWED, "{peak} bytes were allocated at once ({result:?})");
    assert!(result.clone().unwrap_err().contains("the tag 258 claims"), "{result:?}");
}

/// The header of an entry in an archive, whose size is written as GNU tar writes large ones.
pub(crate) fn tar_header(name: &str, bytes: u64) -> Vec<u8> {
    let mut header = vec![0; 512];
    header[..name.len()].copy_from_slice(name.as_bytes());
    header[124] = 0x80;
    header[128..136].copy_from_slice(&bytes.to_be_bytes());
    header[156] = b'0';
    header[257..263].copy_from_slice(b"ustar\0");
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    header
}

/// Writes a file with this head that is otherwise empty blocks: it claims and has this many bytes, and takes none.
fn check_sparse(name: &str, head: &[u8], bytes: u64, words: &[&str]) {
    crate::check_file(name, words, |path| {
        let mut file = std::fs::File::create(path).unwrap();
        file.write_all(head).unwrap();
        file.set_len(bytes).unwrap();
    });
}

#[test]
fn records_that_are_larger_than_the_limit_are_refused_although_the_file_has_them() {
    let bytes = 1 << 40;
    check_sparse("a.tar", &tar_header("a.jpg", bytes), bytes + 4096, &["a.jpg", "are allowed"]);
    let masked = |data: &[u8]| crc_fast::crc32_iscsi(data).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes();
    let length = bytes.to_le_bytes();
    let head = [length.as_slice(), &masked(&length)].concat();
    check_sparse("a.tfrecord", &head, bytes + 4096, &["at byte 0", "are allowed"]);
    // A member of three gigabytes that claims to unpack to a hundred bytes, before the list of members.
    let mut list = archive(&[0; 100], 100);
    let begin = list.windows(4).position(|mark| mark == b"PK\x01\x02").unwrap();
    let end = list.windows(4).position(|mark| mark == b"PK\x05\x06").unwrap();
    let place = 4u32 << 29;
    list[begin + 20..begin + 24].copy_from_slice(&(3u32 << 29).to_le_bytes());
    list[end + 16..end + 20].copy_from_slice(&place.to_le_bytes());
    crate::check_file("sparse.npz", &["images.npy", "are allowed"], |path| {
        let file = std::fs::File::create(path).unwrap();
        file.write_all_at(&list[..begin], 0).unwrap();
        file.write_all_at(&list[begin..], place.into()).unwrap();
    });
    let tail = [&0xf000_0000u32.to_le_bytes(), b"PAR1".as_slice()].concat();
    crate::check_file("sparse.parquet", &["the footer", "are allowed"], |path| {
        let file = std::fs::File::create(path).unwrap();
        file.write_all_at(b"PAR1", 0).unwrap();
        file.write_all_at(&tail, bytes).unwrap();
    });
    let array = npy::encode("|u1", &[1, 1 << 20, 1 << 20], &[]);
    check_sparse("images.npy", &array, bytes + 4096, &["a row", "are allowed"]);
}

#[test]
fn an_example_of_any_number_of_features_is_refused() {
    let mut example = Vec::new();
    for number in 0..200_000u32 {
        let name = format!("{number:06}");
        let entry = [&[0x0a, 6], name.as_bytes(), &[0x12, 2, 0x1a, 0]].concat();
        example.extend([0x0a, entry.len() as u8]);
        example.extend(entry);
    }
    let mut features = vec![0x0a];
    let mut length = example.len();
    while length >= 0x80 {
        features.push(length as u8 | 0x80);
        length >>= 7;
    }
    features.push(length as u8);
    features.extend(example);
    let error = farandole_data::format::example::Example::decode(&features).unwrap_err();
    assert!(error.cause.contains("features"), "{error:?}");
}
