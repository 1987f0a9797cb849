//! File descriptors over a Unix connection, before it becomes a control line.
//!
//! A rank shows its shared memory and its bell to a rank of the same host by passing the descriptors (SCM_RIGHTS), with
//! a note of fixed size that says how to read the memory.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

use crate::awake::Countdown;
use crate::descriptors::no_room;
use crate::error::{Error, Result};

/// More descriptors than anybody passes at once.
const MOST_FDS: usize = 8;

/// Passes descriptors and a note. Both are small enough for the buffer of any socket, so this does not wait unless the
/// peer has never read anything.
pub fn send_fds(socket: impl AsFd, note: &[u8], fds: &[BorrowedFd<'_>], deadline: &Countdown) -> Result<()> {
    assert!(fds.len() <= MOST_FDS && !note.is_empty(), "a few descriptors travel with at least one byte");
    let failed = |e: Errno| Error::local("passing file descriptors", e);
    let mut left = note;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let pushed = control.push(SendAncillaryMessage::ScmRights(fds));
    assert!(pushed, "the buffer has room for the descriptors");
    while !left.is_empty() {
        match rustix::net::sendmsg(&socket, &[IoSlice::new(left)], &mut control, SendFlags::NOSIGNAL) {
            Ok(count) => {
                left = &left[count..];
                control.clear();
            }
            Err(Errno::AGAIN) => wait_for(&socket, PollFlags::OUT, deadline)?,
            Err(Errno::INTR) => {}
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(())
}

/// Takes what the peer passes with [`send_fds`]; its note must fill `note`. `check` is asked again and again whether
/// there is still use in waiting.
pub fn recv_fds(
    socket: impl AsFd,
    note: &mut [u8],
    deadline: &Countdown,
    check: impl Fn() -> Result<()>,
) -> Result<Vec<OwnedFd>> {
    let failed = |e: io::Error| Error::local("taking passed file descriptors", e);
    let (mut filled, mut fds) = (0, Vec::new());
    while filled < note.len() {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let place = &mut [IoSliceMut::new(&mut note[filled..])];
        match rustix::net::recvmsg(&socket, place, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(received) if received.bytes == 0 => return Err(failed(io::ErrorKind::UnexpectedEof.into())),
            // The kernel passes what there is room for and drops the rest.
            Ok(received) if received.flags.contains(ReturnFlags::CTRUNC) => {
                return Err(no_room(2, "taking the shared memory of a peer".to_owned()));
            }
            Ok(received) => filled += received.bytes,
            Err(Errno::AGAIN) => {
                check()?;
                wait_for(&socket, PollFlags::IN, deadline)?;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(failed(error.into())),
        }
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(passed) = message {
                fds.extend(passed);
            }
        }
    }
    Ok(fds)
}

/// Blocks until the socket is ready, for one step of the countdown at most; fails when time is up. The caller looks and
/// comes back.
pub(crate) fn wait_for(socket: impl AsFd, events: PollFlags, deadline: &Countdown) -> Result<()> {
    let left = deadline.step();
    if left.is_zero() {
        return Err(Error::local("waiting for a peer", io::Error::from(io::ErrorKind::TimedOut)));
    }
    let timeout = rustix::time::Timespec {
        tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(left.subsec_nanos()),
    };
    match poll(&mut [PollFd::new(&socket, events)], Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(Error::local("waiting for a peer", error)),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use super::*;

    fn pair() -> (UnixStream, UnixStream) {
        let (one, other) = UnixStream::pair().unwrap();
        one.set_nonblocking(true).unwrap();
        other.set_nonblocking(true).unwrap();
        (one, other)
    }

    fn soon() -> Countdown {
        Countdown::new(Duration::from_secs(5))
    }

    #[test]
    fn what_is_passed_is_the_same_file_and_the_stream_goes_on_behind_it() {
        let (one, mut other) = pair();
        let (near, far) = UnixStream::pair().unwrap();
        send_fds(&one, b"note", &[near.as_fd()], &soon()).unwrap();
        io::Write::write_all(&mut &one, b"next").unwrap();
        let mut note = [0; 4];
        let fds = recv_fds(&other, &mut note, &soon(), || Ok(())).unwrap();
        assert_eq!((&note, fds.len()), (b"note", 1));
        let mut next = [0; 4];
        other.read_exact(&mut next).unwrap();
        assert_eq!(&next, b"next");
        io::Write::write_all(&mut &far, b"!").unwrap();
        assert_eq!(rustix::io::read(&fds[0], &mut [0; 8]).unwrap(), 1);
    }

    #[test]
    fn a_silent_peer_and_a_dead_one_are_errors() {
        let (one, other) = pair();
        assert!(recv_fds(&other, &mut [0; 4], &Countdown::new(Duration::from_millis(20)), || Ok(())).is_err());
        let interrupted = || {
            Err(Error::Interrupted { peer: None, class: farandole_plan::ErrorClass::Other, cause: "enough".to_owned() })
        };
        let error = recv_fds(&other, &mut [0; 4], &soon(), interrupted).unwrap_err();
        assert_eq!(error.to_string(), "enough", "there is no use in waiting");
        drop(one);
        assert!(recv_fds(&other, &mut [0; 4], &soon(), || Ok(())).is_err());
    }
}
