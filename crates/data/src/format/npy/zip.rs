//! The members of a zip archive, as `numpy.savez` writes them.
//!
//! The end of an archive says where the list of its members lies, and the list where each member does. Members are
//! stored as they are or deflated; anything else is refused by its number. Sizes beyond 4 GB (zip64) are read.

use std::io::Read as _;

use flate2::Crc;
use flate2::read::DeflateDecoder;

use crate::format::{FormatError, StoredFile};
use crate::limit::Limit;

/// The fixed part of the record at the end.
const END_BYTES: usize = 22;

/// Where the record at the end can begin, at most: a comment of 64 KB may follow it.
const TAIL_BYTES: u64 = END_BYTES as u64 + u16::MAX as u64;

/// Members of an archive and bytes of their list, at most. Nobody keeps as many arrays in one.
const MAX_LIST_BYTES: u64 = 16 << 20;

/// A member of an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZipMember {
    /// Its name.
    pub name: String,
    /// Where its bytes lie.
    pub offset: u64,
    /// How many it has in the archive.
    pub packed_bytes: u64,
    /// How many it has unpacked.
    pub bytes: u64,
    /// Whether it is compressed.
    pub is_packed: bool,
    checksum: u32,
}

/// All members of an archive.
pub fn members(file: &StoredFile) -> Result<Vec<ZipMember>, FormatError> {
    let tail_bytes = file.bytes().min(TAIL_BYTES);
    let tail_offset = file.bytes() - tail_bytes;
    let mut tail = vec![0; tail_bytes as usize];
    file.read_at(tail_offset, &mut tail)?;
    let no_end = || file.error(tail_offset, "the archive has no list of its members: it was cut off, or is none");
    let end = tail.windows(END_BYTES).rposition(|window| window.starts_with(b"PK\x05\x06")).ok_or_else(no_end)?;
    let end_record = &tail[end..];
    let (mut list_bytes, mut list_offset) = (u64::from(u32_at(end_record, 12)), u64::from(u32_at(end_record, 16)));
    if list_offset == u64::from(u32::MAX) || list_bytes == u64::from(u32::MAX) {
        (list_bytes, list_offset) = large_end(file, &tail[..end])?;
    }
    if list_bytes > MAX_LIST_BYTES {
        return Err(file.error(list_offset, format!("the list of members should have {list_bytes} bytes")));
    }
    let mut list = vec![0; list_bytes as usize];
    file.read_at(list_offset, &mut list)?;
    let mut members = Vec::new();
    let mut rest = list.as_slice();
    while !rest.is_empty() {
        let at = list_offset + (list.len() - rest.len()) as u64;
        let (member, after) = member(file, rest).map_err(|cause| file.error(at, cause))?;
        members.push(member);
        rest = after;
    }
    Ok(members)
}

/// The bytes of a compressed member.
pub fn unpacked(file: &StoredFile, member: &ZipMember) -> Result<Vec<u8>, FormatError> {
    let fail = |cause: String| file.error(member.offset, format!("the member {}: {cause}", member.name));
    // It stays in memory, at first beside its packed bytes.
    let limit = Limit::of_process();
    limit
        .check(member.bytes.max(member.packed_bytes))
        .map_err(|error| fail(format!("{error}, or save it uncompressed (numpy.savez)")))?;
    if member.offset.checked_add(member.packed_bytes).is_none_or(|end| end > file.bytes()) {
        return Err(fail("the archive ends within it".to_owned()));
    }
    let mut packed = vec![0; member.packed_bytes as usize];
    file.read_at(member.offset, &mut packed)?;
    // At most a byte more than is claimed, which is refused below.
    let mut bytes = Vec::new();
    let read = DeflateDecoder::new(packed.as_slice()).take(member.bytes + 1).read_to_end(&mut bytes);
    read.map_err(|error| fail(format!("it cannot be unpacked: {error}")))?;
    let mut checksum = Crc::new();
    checksum.update(&bytes);
    if bytes.len() as u64 != member.bytes || checksum.sum() != member.checksum {
        return Err(fail("its size or checksum is wrong: it is damaged".to_owned()));
    }
    Ok(bytes)
}

/// Where the list of a large archive lies: `tail` ends with the place of the record that says so.
fn large_end(file: &StoredFile, tail: &[u8]) -> Result<(u64, u64), FormatError> {
    let locator = tail.len().checked_sub(20).map(|at| &tail[at..]).filter(|found| found.starts_with(b"PK\x06\x07"));
    let locator = locator.ok_or_else(|| file.error_of_all("the archive has no list of its members"))?;
    let offset = u64_at(locator, 8);
    let mut record = [0; 56];
    file.read_at(offset, &mut record)?;
    if !record.starts_with(b"PK\x06\x06") {
        return Err(file.error(offset, "the archive has no list of its members"));
    }
    Ok((u64_at(&record, 40), u64_at(&record, 48)))
}

/// The first member of a list, and the rest of the list.
fn member<'a>(file: &StoredFile, list: &'a [u8]) -> Result<(ZipMember, &'a [u8]), String> {
    let wrong = "the list of members is damaged";
    let fixed = list.get(..46).filter(|fixed| fixed.starts_with(b"PK\x01\x02")).ok_or(wrong)?;
    let (name_bytes, extra_bytes, comment_bytes) = (u16_at(fixed, 28), u16_at(fixed, 30), u16_at(fixed, 32));
    let name = list.get(46..46 + name_bytes).ok_or(wrong)?;
    let extra = list.get(46 + name_bytes..46 + name_bytes + extra_bytes).ok_or(wrong)?;
    let after = list.get(46 + name_bytes + extra_bytes + comment_bytes..).ok_or(wrong)?;
    let name = String::from_utf8(name.to_vec()).map_err(|_| "the name of a member is not written in UTF-8")?;
    let is_packed = match u16_at(fixed, 10) {
        0 => false,
        8 => true,
        method => return Err(format!("the member {name} is compressed by method {method}; deflate is read")),
    };
    if u16_at(fixed, 8) & 1 != 0 {
        return Err(format!("the member {name} is encrypted"));
    }
    let mut large = large_sizes(extra);
    let mut size = |at: usize| match u32_at(fixed, at) {
        u32::MAX => large.next().ok_or(wrong),
        small => Ok(u64::from(small)),
    };
    let (bytes, packed_bytes, header) = (size(24)?, size(20)?, size(42)?);
    let mut local = [0; 30];
    file.read_at(header, &mut local).map_err(|error| format!("the member {name}: {error}"))?;
    if !local.starts_with(b"PK\x03\x04") {
        return Err(format!("the member {name} does not begin at byte {header}, where it should"));
    }
    let offset = header + 30 + (u16_at(&local, 26) + u16_at(&local, 28)) as u64;
    Ok((ZipMember { name, offset, packed_bytes, bytes, is_packed, checksum: u32_at(fixed, 16) }, after))
}

/// The numbers of the extra field for sizes beyond 4 GB, in their order.
fn large_sizes(mut extra: &[u8]) -> impl Iterator<Item = u64> {
    let mut sizes = Vec::new();
    while extra.len() >= 4 {
        let (kind, bytes) = (u16_at(extra, 0), u16_at(extra, 2));
        let Some(field) = extra.get(4..4 + bytes) else { break };
        if kind == 1 {
            sizes.extend(field.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes)));
        }
        extra = &extra[4 + bytes..];
    }
    sizes.into_iter()
}

fn u16_at(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("invariant: four bytes were taken"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("invariant: eight bytes were taken"))
}
