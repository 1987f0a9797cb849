//! One rank's shared memory: an anonymous file that every rank of the host maps.
//!
//! A [`Segment`] is a memfd. It has no name in any file system, so it is gone as soon as the last process that holds or
//! maps it is gone, whatever killed it: there is nothing to clean up and nothing to leak. The owner decides its size;
//! peers get the descriptor over a Unix socket and map the same bytes.
//!
//! A page of the file costs memory only once it is there. It could come with the first access, but where there is no
//! memory for it that access ends the process (SIGBUS). So the owner *reserves* ([`Mapping::reserve`]) every part
//! before it hands it out or writes to it: the pages are there afterwards, or there is an error that says how much was
//! wanted and how much is left. Parts that are never used are never reserved.
//!
//! This file owns the raw mapping and nothing else. Who may read or write which bytes when is decided by the
//! protocols in `flags`, `windows`, `ring` and `mapped`, which alone turn parts of a mapping into references.

#![allow(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

use super::scarcity::{available, megabytes};
use crate::error::{Error, Result};

/// Alignment of everything that has a place of its own inside a segment.
pub(crate) const PAGE_BYTES: usize = 4096;

/// A shared memory file.
#[derive(Debug)]
pub struct Segment {
    /// Shared with its mappings, which reserve pages.
    fd: Arc<OwnedFd>,
}

impl Segment {
    /// A new segment of this many bytes. Pages cost memory only once they are reserved or touched.
    pub fn create(bytes: usize) -> Result<Segment> {
        let fd = rustix::fs::memfd_create("farandole", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(|e| Error::local("creating shared memory (memfd_create)", e))?;
        let segment = Segment { fd: Arc::new(fd) };
        segment.grow(bytes)?;
        // A peer that could shrink the file would turn our next access into SIGBUS.
        rustix::fs::fcntl_add_seals(&segment.fd, SealFlags::SHRINK)
            .map_err(|e| Error::local("sealing shared memory", e))?;
        Ok(segment)
    }

    /// A segment that a peer has passed to us.
    pub fn from_fd(fd: OwnedFd) -> Segment {
        Segment { fd: Arc::new(fd) }
    }

    /// Another handle on the same memory.
    pub fn duplicate(&self) -> Segment {
        Segment { fd: Arc::clone(&self.fd) }
    }

    /// The descriptor, to be passed to peers.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Makes the file at least this long.
    pub(crate) fn grow(&self, bytes: usize) -> Result<()> {
        if self.len()? < bytes {
            rustix::fs::ftruncate(&self.fd, bytes as u64)
                .map_err(|e| Error::local(format!("growing shared memory to {bytes} bytes"), e))?;
        }
        Ok(())
    }

    /// Length of the file.
    pub(crate) fn len(&self) -> Result<usize> {
        let stat = rustix::fs::fstat(&self.fd).map_err(|e| Error::local("looking at shared memory", e))?;
        Ok(stat.st_size as usize)
    }

    /// Gives a part of the file its pages, so that no later access finds none. Takes nothing if there are not enough.
    pub(crate) fn reserve(&self, offset: usize, bytes: usize) -> Result<()> {
        reserve(&self.fd, offset, bytes)
    }

    /// Maps a part of the file, page by page when it is touched.
    pub(crate) fn map(&self, offset: usize, bytes: usize) -> Result<Mapping> {
        self.map_with(offset, bytes, MapFlags::SHARED)
    }

    /// Maps a part of the file with all its pages in place, so that no later access faults.
    pub(crate) fn map_populated(&self, offset: usize, bytes: usize) -> Result<Mapping> {
        self.map_with(offset, bytes, MapFlags::SHARED | MapFlags::POPULATE)
    }

    /// Gives the pages of a part of the file back to the system.
    pub(crate) fn release(&self, offset: usize, bytes: usize) {
        use FallocateFlags as How;
        // Only memory is at stake: if the system refuses, the pages are freed with the segment.
        let _ = rustix::fs::fallocate(&self.fd, How::PUNCH_HOLE | How::KEEP_SIZE, offset as u64, bytes as u64);
    }

    fn map_with(&self, offset: usize, bytes: usize, flags: MapFlags) -> Result<Mapping> {
        let length = self.len()?;
        if !offset.is_multiple_of(PAGE_BYTES) || offset.checked_add(bytes).is_none_or(|end| end > length) {
            let source = std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
            return Err(Error::local(format!("mapping {bytes} bytes at {offset} of a segment of {length}"), source));
        }
        // SAFETY: a null hint lets the kernel choose a free range, so no existing mapping is replaced. The file is at
        // least this long (checked above) and sealed against shrinking by its owner.
        let start = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                flags,
                &self.fd,
                offset as u64,
            )
        }
        .map_err(|e| Error::local(format!("mapping {bytes} bytes of shared memory"), e))?;
        let start = NonNull::new(start.cast::<u8>()).expect("mmap does not return null");
        Ok(Mapping { start, bytes, file: Arc::clone(&self.fd), offset })
    }
}

fn reserve(file: &OwnedFd, offset: usize, bytes: usize) -> Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    rustix::fs::fallocate(file, FallocateFlags::empty(), offset as u64, bytes as u64).map_err(|error| {
        let doing = format!("reserving {} ({bytes} bytes) of shared memory; {}", megabytes(bytes as u64), available());
        Error::local(doing, error)
    })
}

/// A mapped part of a segment, unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
    file: Arc<OwnedFd>,
    /// Where in the file it begins.
    offset: usize,
}

// SAFETY: a mapping is plain memory that stays where it is until dropped; which thread holds the handle is irrelevant.
// Access to the bytes goes through raw pointers, whose users keep their own protocol.
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Mapping` gives out raw pointers only.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Gives a part of the mapping its pages. Only the owner of the segment does this, before it writes there.
    pub(crate) fn reserve(&self, offset: usize, bytes: usize) -> Result<()> {
        assert!(offset.checked_add(bytes).is_some_and(|end| end <= self.bytes), "access stays inside its mapping");
        reserve(&self.file, self.offset + offset, bytes)
    }

    /// Pointer to the byte at `offset`, with at least `bytes` bytes behind it.
    pub(crate) fn at(&self, offset: usize, bytes: usize) -> NonNull<u8> {
        assert!(offset.checked_add(bytes).is_some_and(|end| end <= self.bytes), "access stays inside its mapping");
        // SAFETY: the offset was checked to lie inside the mapping.
        unsafe { self.start.add(offset) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly this range was mapped in `map_with`, it is unmapped only here, and references into it borrow
        // from structures that own the mapping.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_mappings_show_the_same_bytes() {
        let segment = Segment::create(2 * PAGE_BYTES).unwrap();
        let (one, two) = (segment.map(0, 2 * PAGE_BYTES).unwrap(), segment.map(PAGE_BYTES, PAGE_BYTES).unwrap());
        // SAFETY: both pointers are inside live mappings, and nobody else has them.
        let seen = unsafe {
            one.at(PAGE_BYTES + 7, 1).write(42);
            two.at(7, 1).read()
        };
        assert_eq!(seen, 42);
    }

    /// Bytes of pages that the file has.
    fn resident_bytes(segment: &Segment) -> i64 {
        rustix::fs::fstat(segment.fd()).unwrap().st_blocks as i64 * 512
    }

    #[test]
    fn only_what_is_reserved_has_pages() {
        let segment = Segment::create(64 * PAGE_BYTES).unwrap();
        assert_eq!(resident_bytes(&segment), 0);
        segment.reserve(PAGE_BYTES, 3 * PAGE_BYTES).unwrap();
        assert_eq!(resident_bytes(&segment), 3 * PAGE_BYTES as i64);
        let mapping = segment.map(8 * PAGE_BYTES, 8 * PAGE_BYTES).unwrap();
        mapping.reserve(PAGE_BYTES, PAGE_BYTES).unwrap();
        mapping.reserve(PAGE_BYTES, PAGE_BYTES).unwrap();
        mapping.reserve(0, 0).unwrap();
        assert_eq!(resident_bytes(&segment), 4 * PAGE_BYTES as i64);
        assert_eq!(segment.len().unwrap(), 64 * PAGE_BYTES);
    }

    #[test]
    fn a_reservation_that_fails_takes_nothing_and_says_how_much_is_left() {
        let segment = Segment::create(2 * PAGE_BYTES).unwrap();
        // The kernel refuses to give this file more pages than it has now.
        rustix::fs::fcntl_add_seals(segment.fd(), SealFlags::GROW).unwrap();
        let words = segment.reserve(0, 100 * PAGE_BYTES).unwrap_err().to_string();
        assert!(words.contains("reserving 409 kB (409600 bytes) of shared memory; left: "), "{words}");
        assert!(words.contains(" on this host"), "{words}");
        assert_eq!(resident_bytes(&segment), 0);
        segment.reserve(0, 2 * PAGE_BYTES).unwrap();
    }

    #[test]
    fn mapping_beyond_the_end_is_refused() {
        let segment = Segment::create(PAGE_BYTES).unwrap();
        assert!(segment.map(0, PAGE_BYTES + 1).is_err());
        assert!(segment.map(PAGE_BYTES, usize::MAX).is_err());
    }

    #[test]
    fn a_segment_cannot_be_shrunk_by_a_peer() {
        let segment = Segment::create(2 * PAGE_BYTES).unwrap();
        assert!(rustix::fs::ftruncate(segment.fd(), 0).is_err());
        segment.grow(4 * PAGE_BYTES).unwrap();
        assert_eq!(segment.len().unwrap(), 4 * PAGE_BYTES);
    }
}
