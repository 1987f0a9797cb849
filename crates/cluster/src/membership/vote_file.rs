//! The file in which a member records its votes, and from which its agent reads them when the process has ended.
//!
//! It is a file in memory without a name. The agent makes it, the member inherits its descriptor, and it survives both
//! SIGKILL and the loss of all connections. It begins with a mark and the number of the member, so that a descriptor
//! that was closed and used again is not written to. Records are appended, each with its length and a checksum; a
//! record that its writer did not finish is not read, because no message of that vote was sent. The first record says
//! only that the member has opened the file: without one the agent does not know whether it votes.
//!
//! Not here: what a record proves (`farandole_plan::membership`).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use farandole_plan::membership::{MemberId, VoteRecord};
use rustix::fs::{MemfdFlags, memfd_create};

use super::wire::{put_vote_record, read_vote_record};
use crate::encoding::{Reader, put_bytes, put_u64};

const MARK: &[u8; 8] = b"frvotes1";

/// Mark and number.
const HEADER_BYTES: u64 = 16;

/// A member's end of the file.
#[derive(Debug)]
pub(super) struct VoteFile {
    file: File,
    at: u64,
}

impl VoteFile {
    /// Opens what a descriptor refers to, if it is the file of this member, and says so in it.
    pub(super) fn open(descriptor: u32, member: MemberId) -> io::Result<VoteFile> {
        let file = File::options().read(true).write(true).open(format!("/proc/self/fd/{descriptor}"))?;
        let mut found = vec![0; HEADER_BYTES as usize];
        file.read_exact_at(&mut found, 0)?;
        if found != header(member.0) {
            return Err(io::Error::other(format!("descriptor {descriptor} is not the vote file of member {member}")));
        }
        let mut votes = VoteFile { at: file.metadata()?.len(), file };
        votes.add(&VoteRecord::default())?;
        Ok(votes)
    }

    /// Adds a record. If this fails, the file is emptied: the agent then knows nothing of the votes.
    pub(super) fn record(&mut self, record: &VoteRecord) -> io::Result<()> {
        self.add(record).inspect_err(|_| self.file.set_len(0).expect("invariant: a file in memory can be emptied"))
    }

    fn add(&mut self, record: &VoteRecord) -> io::Result<()> {
        let mut votes = Vec::new();
        put_vote_record(&mut votes, record);
        let mut bytes = Vec::new();
        put_bytes(&mut bytes, &votes);
        put_u64(&mut bytes, checksum(&votes));
        self.file.write_all_at(&bytes, self.at)?;
        self.at += bytes.len() as u64;
        Ok(())
    }
}

/// An empty file for a member. Children inherit it while its descriptor is open without CLOEXEC.
pub(crate) fn make_vote_file(member: u32) -> io::Result<File> {
    let file = File::from(memfd_create("farandole-votes", MemfdFlags::CLOEXEC)?);
    rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty())?;
    file.write_all_at(&header(member.into()), 0)?;
    Ok(file)
}

/// The last record of a member whose process has ended; `None` if it has not opened the file.
pub(crate) fn votes_of(file: &File) -> Option<Vec<u8>> {
    let length = file.metadata().ok()?.len().checked_sub(HEADER_BYTES)?;
    let mut bytes = vec![0; usize::try_from(length).ok()?];
    file.read_exact_at(&mut bytes, HEADER_BYTES).ok()?;
    let mut reader = Reader::new(&bytes);
    let mut last = None;
    while let Some(votes) = reader.bytes() {
        match reader.u64() {
            Some(sum) if sum == checksum(votes) => last = Some(votes.to_vec()),
            _ => break,
        }
    }
    last
}

/// The record that these bytes are.
pub(super) fn decode_votes(bytes: &[u8]) -> Option<VoteRecord> {
    let mut reader = Reader::new(bytes);
    let record = read_vote_record(&mut reader)?;
    reader.end(record)
}

fn header(member: u64) -> Vec<u8> {
    let mut bytes = MARK.to_vec();
    put_u64(&mut bytes, member);
    bytes
}

fn checksum(bytes: &[u8]) -> u64 {
    let hash = blake3::hash(bytes);
    u64::from_le_bytes(*hash.as_bytes().first_chunk().expect("invariant: a hash has 32 bytes"))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;

    use super::*;

    fn record(base: u64, left_out: &[u64]) -> VoteRecord {
        VoteRecord { base, left_out: left_out.iter().map(|id| MemberId(*id)).collect() }
    }

    fn read(file: &File) -> Option<VoteRecord> {
        votes_of(file).map(|votes| decode_votes(&votes).unwrap())
    }

    #[test]
    fn the_agent_reads_the_last_whole_record() {
        let file = make_vote_file(7).unwrap();
        assert_eq!(read(&file), None, "the member has not opened it");
        let mut votes = VoteFile::open(file.as_raw_fd() as u32, MemberId(7)).unwrap();
        assert_eq!(read(&file), Some(VoteRecord::default()));
        votes.record(&record(3, &[1])).unwrap();
        votes.record(&record(3, &[1, 9])).unwrap();
        assert_eq!(read(&file), Some(record(3, &[1, 9])));
        let length = file.metadata().unwrap().len();
        votes.record(&record(4, &[2])).unwrap();
        for cut in length..file.metadata().unwrap().len() {
            let copy = make_vote_file(7).unwrap();
            let mut bytes = vec![0; cut as usize];
            file.read_exact_at(&mut bytes, 0).unwrap();
            copy.write_all_at(&bytes, 0).unwrap();
            assert_eq!(read(&copy), Some(record(3, &[1, 9])), "cut at {cut}");
        }
    }

    #[test]
    fn a_file_of_another_member_is_left_alone() {
        let file = make_vote_file(7).unwrap();
        let error = VoteFile::open(file.as_raw_fd() as u32, MemberId(8)).unwrap_err().to_string();
        assert!(error.contains("is not the vote file of member 8"), "{error}");
        let other = File::from(memfd_create("other", MemfdFlags::CLOEXEC).unwrap());
        assert!(VoteFile::open(other.as_raw_fd() as u32, MemberId(7)).is_err());
        assert_eq!((read(&file), other.metadata().unwrap().len()), (None, 0));
    }
}
