//! Who is at the other end of a Unix socket, as the kernel tells it (`SO_PEERCRED`).
//!
//! The kernel says whose process it is in terms of this process's own namespaces. A user that this user namespace does
//! not know is shown as the overflow user (65534), and a process that this PID namespace does not know has the number
//! 0: containers may share a network, and with it abstract sockets, without seeing each other's processes. So the user
//! decides who is trusted, and the number is for messages, where there is one. Binding crates take the number 0 for
//! impossible, which is why this asks the kernel itself.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

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

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

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
}
