//! Who is at the other end of a Unix socket, as the kernel tells it (`SO_PEERCRED`).
//!
//! The kernel says whose process it is in terms of this process's own namespaces. A user that this user namespace does
//! not know is shown as the overflow user (65534), and a process that this PID namespace does not know has the number
//! 0: containers may share a network, and with it abstract sockets, without seeing each other's processes. So the user
//! decides who is trusted, and the number is for messages, where there is one. Binding crates take the number 0 for
//! impossible, which is why this asks the kernel itself.
//!
//! A number does not identify the process: the process may have exited, and another one may have got its number.
//! [`pidfd_of_peer`] gets a descriptor of the process itself, whatever its PID namespace.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// The socket option that gives a pidfd of the peer (`asm-generic/socket.h`; Linux 6.5 and later).
const SO_PEERPIDFD: libc::c_int = 77;

/// Whose process it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Its effective user when it connected or listened.
    pub uid: u32,
    /// Its number, if this process's PID namespace has one for it.
    pub pid: Option<u32>,
}

impl Credentials {
    /// Of the process that has the other end of a connected Unix socket.
    pub fn of_peer(socket: impl AsFd) -> io::Result<Credentials> {
        let mut found = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
        let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: the descriptor is borrowed and open; `found` is valid for writing `bytes` bytes, and `bytes` for
        // reading and writing. Any bytes are a valid `ucred`.
        let answer = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut found).cast(),
                &raw mut bytes,
            )
        };
        if answer != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Credentials { uid: found.uid, pid: u32::try_from(found.pid).ok().filter(|&pid| pid != 0) })
    }

    /// The process in words.
    pub fn process(&self) -> String {
        match self.pid {
            Some(pid) => format!("process {pid}"),
            None => "a process of another PID namespace (another container on this machine?)".to_owned(),
        }
    }
}

/// A pidfd of the process that has the other end of a connected Unix socket. `None` if it has exited; on kernels before
/// 6.5 also if it is in a PID namespace that this process does not see.
pub fn pidfd_of_peer(socket: impl AsFd) -> Option<OwnedFd> {
    match peer_pidfd(&socket) {
        Ok(pidfd) => Some(pidfd),
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => pidfd_by_number(socket),
        Err(_) => None,
    }
}

/// Whether the kernel gives pidfds of peers.
pub fn has_peer_pidfd() -> bool {
    std::os::unix::net::UnixStream::pair().is_ok_and(|(socket, _other)| peer_pidfd(socket).is_ok())
}

fn peer_pidfd(socket: impl AsFd) -> io::Result<OwnedFd> {
    let mut found: libc::c_int = -1;
    let mut bytes = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the descriptor is borrowed and open; `found` is valid for writing `bytes` bytes, and `bytes` for reading
    // and writing.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            (&raw mut found).cast(),
            &raw mut bytes,
        )
    };
    if answer != 0 || found < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just opened this descriptor for this process, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(found) })
}

/// The same by the number of the process, on older kernels.
fn pidfd_by_number(socket: impl AsFd) -> Option<OwnedFd> {
    let pid = Credentials::of_peer(&socket).ok()?.pid?;
    let pidfd = pidfd_open(Pid::from_raw(i32::try_from(pid).ok()?)?, PidfdFlags::empty()).ok()?;
    // The peer holds its end of the socket until it exits. An end that is open after the pidfd was opened means that
    // the peer had not exited before, so its number was not reused.
    let mut fds = [PollFd::new(&socket, PollFlags::RDHUP)];
    let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut fds, Some(&now)), Ok(0)).then_some(pidfd)
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

    use super::*;

    #[test]
    fn the_other_end_of_a_pair_is_this_process() {
        let (one, _other) = UnixStream::pair().unwrap();
        let peer = Credentials::of_peer(&one).unwrap();
        assert_eq!(peer, Credentials { uid: rustix::process::geteuid().as_raw(), pid: Some(std::process::id()) });
        assert_eq!(peer.process(), format!("process {}", std::process::id()));
    }

    #[test]
    fn what_is_no_unix_socket_has_no_credentials_of_anybody() {
        assert!(Credentials::of_peer(std::io::stdin()).is_err_and(|error| error.raw_os_error().is_some()));
        let unseen = Credentials { uid: 0, pid: None };
        assert!(unseen.process().contains("PID namespace"));
    }

    fn has_exited(pidfd: &OwnedFd, wait: rustix::time::Timespec) -> bool {
        poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&wait)).unwrap() > 0
    }

    #[test]
    fn the_pidfd_of_a_peer_tells_its_exit_in_both_ways_to_get_it() {
        type Way = fn(&UnixStream) -> Option<OwnedFd>;
        let ways: [Way; 2] = [|socket| pidfd_of_peer(socket), |socket| pidfd_by_number(socket)];
        for way in ways {
            let name = format!("farandole-peer-{}", std::process::id());
            let address = SocketAddr::from_abstract_name(&name).unwrap();
            let listener = UnixListener::bind_addr(&address).unwrap();
            let code = "import socket,sys; s=socket.socket(socket.AF_UNIX); s.connect('\\0'+sys.argv[1]); s.recv(1)";
            let mut child = std::process::Command::new("python3").args(["-c", code, &name]).spawn().unwrap();
            let (socket, _) = listener.accept().unwrap();
            let pidfd = way(&socket).unwrap();
            assert!(!has_exited(&pidfd, rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 }));
            child.kill().unwrap();
            assert!(has_exited(&pidfd, rustix::time::Timespec { tv_sec: 60, tv_nsec: 0 }));
            child.wait().unwrap();
            assert!(
                way(&socket).is_none_or(|pidfd| has_exited(&pidfd, rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 }))
            );
        }
    }
}
