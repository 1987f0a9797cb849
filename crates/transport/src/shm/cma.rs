//! Cross-memory attach (CMA): reading another process's memory, with one copy and no shared buffer.
//!
//! The kernel copies from the peer's pages to ours (`process_vm_readv`) if we may trace that process: the same user,
//! and nothing that forbids it (Yama's `ptrace_scope`, a container's seccomp filter, a user namespace). Whether it does
//! is found out by trying: a rank shows a [`Probe`], and a peer that reads its word back may read everything else.
//!
//! The peer's memory is never a reference here, so nothing that it does there can be undefined behaviour in this
//! process; what a read finds while the owner writes is the caller's concern.

#![allow(unsafe_code)]

use std::io;

/// A word in this process's memory that a peer reads to see whether it may.
#[derive(Debug)]
pub struct Probe {
    word: Box<u64>,
}

/// Where a peer finds a probe's word, and what the word is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    /// The process, as it counts itself.
    pub pid: u32,
    address: u64,
    word: u64,
}

/// Bytes of [`Shown`] on its way to a peer.
pub const SHOWN_BYTES: usize = 24;

impl Probe {
    /// A probe whose word no other process is likely to have at the same address.
    pub fn new() -> Probe {
        let mut word = [0; 8];
        // Without random bytes the address and the pid still tell processes apart.
        let _ = rustix::rand::getrandom(&mut word, rustix::rand::GetRandomFlags::NONBLOCK);
        Probe { word: Box::new(u64::from_ne_bytes(word) ^ u64::from(std::process::id())) }
    }

    /// What peers need to read it.
    pub fn shown(&self) -> Shown {
        Shown { pid: std::process::id(), address: address_of(std::slice::from_ref(&*self.word)), word: *self.word }
    }
}

impl Default for Probe {
    fn default() -> Probe {
        Probe::new()
    }
}

impl Shown {
    /// As bytes, for ranks of the same machine.
    pub fn to_bytes(self) -> [u8; SHOWN_BYTES] {
        let mut bytes = [0; SHOWN_BYTES];
        for (place, word) in bytes.chunks_exact_mut(8).zip([u64::from(self.pid), self.address, self.word]) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    /// What [`Shown::to_bytes`] gave.
    pub fn from_bytes(bytes: &[u8; SHOWN_BYTES]) -> Shown {
        let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        Shown { pid: word(0) as u32, address: word(8), word: word(16) }
    }

    /// Whether this process reads the word at its place: then it may read the peer's memory, and the peer has the
    /// number that it says.
    pub fn is_readable(&self) -> bool {
        let mut found = [0; 8];
        read(self.pid, self.address, &mut found).is_ok() && u64::from_ne_bytes(found) == self.word
    }
}

/// Where a slice lies, for peers that read it.
pub fn address_of<T>(slice: &[T]) -> u64 {
    slice.as_ptr().expose_provenance() as u64
}

/// Fills `target` with what process `pid` has at `address`.
///
/// # Errors
/// `ESRCH` if the process has gone, `EPERM` if it may not be read, `EFAULT` if it has no memory there.
pub fn read(pid: u32, address: u64, target: &mut [u8]) -> io::Result<()> {
    if cfg!(miri) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let mut done = 0;
    while done < target.len() {
        let rest = &mut target[done..];
        let local = libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() };
        let from = std::ptr::with_exposed_provenance_mut(address as usize + done);
        let remote = libc::iovec { iov_base: from, iov_len: rest.len() };
        // SAFETY: the local range is the rest of `target`, which is ours to write. The remote range is only a number to
        // the kernel, which checks it against the other process's mappings.
        let read = unsafe { libc::process_vm_readv(pid as libc::pid_t, &local, 1, &remote, 1, 0) };
        match usize::try_from(read) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => done += read,
            Err(_) => return Err(io::Error::last_os_error()),
        }
    }
    Ok(())
}

/// Whether a read failed because the process has ended.
pub fn is_gone(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ESRCH)
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn a_process_reads_what_it_may_and_learns_what_it_may_not() {
        let probe = Probe::new();
        let shown = Shown::from_bytes(&probe.shown().to_bytes());
        assert_eq!(shown, probe.shown());
        assert!(shown.is_readable());
        assert!(!Shown { word: shown.word ^ 1, ..shown }.is_readable(), "another word");
        assert!(!Shown { address: 8, ..shown }.is_readable(), "nothing is mapped there");
        assert!(!Shown { pid: u32::MAX >> 1, ..shown }.is_readable(), "no such process");
    }

    #[test]
    fn long_memory_is_read_whole() {
        let source: Vec<u32> = (0..1_000_000).collect();
        let mut target = vec![0; 4 * source.len()];
        read(std::process::id(), address_of(&source), &mut target).unwrap();
        assert!(target.chunks_exact(4).zip(&source).all(|(bytes, word)| bytes == word.to_ne_bytes()));
    }

    #[test]
    fn a_process_that_has_gone_is_told_from_memory_that_is_not_there() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let gone = read(child.id(), 4096, &mut [0; 8]).unwrap_err();
        assert!(is_gone(&gone), "{gone}");
        let unmapped = read(std::process::id(), 8, &mut [0; 8]).unwrap_err();
        assert_eq!(unmapped.raw_os_error(), Some(libc::EFAULT));
    }
}
