//! Callers that have not proved to hold the job's key, at every listener of this crate.
//!
//! Abstract Unix sockets have no permissions, so the kernel is asked first whose process calls ([`is_trusted`]): a
//! process of another user is turned away before anything is read. Callers over TCP, and processes of this user, then
//! have the time of a handshake; there are at most [`MOST_STRANGERS`] of them at each listener. Beyond that the oldest
//! is dropped ([`make_room`]), so a caller that holds the key and needs one round trip gets in while strangers arrive.
//!
//! **Invariant:** a stranger costs a descriptor or two, at most one thread and 64 bytes, until it is dropped.
//!
//! Not here: the handshake (`channel`) and its time limits.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use farandole_transport::{Countdown, Credentials};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{self, AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Uid, geteuid};

/// The most callers in the handshake at one listener. Members of a large job that arrive together may be dropped by
/// others like them, and call again.
pub(crate) const MOST_STRANGERS: usize = 256;

/// Whether the process at the other end of a Unix socket is one of this user or of root.
pub(crate) fn is_trusted(socket: impl AsFd) -> bool {
    Credentials::of_peer(socket).is_ok_and(|caller| is_own_or_root(Uid::from_raw(caller.uid)))
}

/// Whether a user is the one of this process, or root.
pub(crate) fn is_own_or_root(caller: Uid) -> bool {
    caller == geteuid() || caller == Uid::ROOT
}

/// Makes room for one more connection among those of strangers, which are numbered by age. Returns the one to drop.
pub(crate) fn make_room<C>(connections: &mut BTreeMap<u64, C>, is_stranger: impl Fn(&C) -> bool) -> Option<C> {
    let strangers = || connections.iter().filter(|(_, connection)| is_stranger(connection));
    let oldest = strangers().next().map(|(id, _)| *id)?;
    if strangers().count() < MOST_STRANGERS { None } else { connections.remove(&oldest) }
}

/// The strangers of a server that has a thread for each of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Strangers(Arc<Mutex<Sockets>>);

/// Locked for moments: by the thread that accepts, and by each other thread when its caller has proved itself or is
/// gone.
#[derive(Debug, Default)]
struct Sockets {
    next_id: u64,
    open: BTreeMap<u64, OwnedFd>,
}

/// A place among the strangers, until it is dropped.
#[derive(Debug)]
pub(crate) struct Stranger {
    all: Strangers,
    id: u64,
}

impl Strangers {
    /// Enters a caller. If there are too many, the oldest one finds its connection closed.
    pub(crate) fn enter(&self, socket: impl AsFd) -> io::Result<Stranger> {
        let socket = socket.as_fd().try_clone_to_owned()?;
        let mut sockets = self.sockets();
        if let Some(oldest) = make_room(&mut sockets.open, |_| true) {
            let _ = net::shutdown(oldest, Shutdown::Both);
        }
        let id = sockets.next_id;
        sockets.next_id += 1;
        sockets.open.insert(id, socket);
        Ok(Stranger { all: self.clone(), id })
    }

    fn sockets(&self) -> MutexGuard<'_, Sockets> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.all.sockets().open.remove(&self.id);
    }
}

/// Connects to a Unix socket. A listener whose backlog is full keeps a caller waiting until the deadline and no longer.
pub(crate) fn connect(address: &SocketAddrUnix, deadline: &Countdown) -> io::Result<OwnedFd> {
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    loop {
        let step = deadline.step();
        // A limit of zero would mean none.
        set_socket_timeout(&socket, Timeout::Send, Some(step.max(Duration::from_millis(1))))?;
        match net::connect(&socket, address) {
            Ok(()) => break,
            Err(Errno::AGAIN) if step.is_zero() => {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the other side accepts no connections"));
            }
            // The kernel's word for a step that is over.
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    set_socket_timeout(&socket, Timeout::Send, None)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn beyond_the_limit_the_oldest_stranger_goes() {
        let strangers = Strangers::default();
        let mut pairs: Vec<(UnixStream, UnixStream)> =
            (0..MOST_STRANGERS + 1).map(|_| UnixStream::pair().unwrap()).collect();
        pairs.iter().for_each(|(_, far)| far.set_nonblocking(true).unwrap());
        let mut places: Vec<Stranger> =
            pairs[..MOST_STRANGERS].iter().map(|(near, _)| strangers.enter(near).unwrap()).collect();
        assert!(pairs.iter_mut().all(|(_, far)| far.read(&mut [0]).is_err()), "all are open");
        // One that has proved itself is not counted any more, and its connection stays open.
        places.remove(0);
        places.push(strangers.enter(&pairs[MOST_STRANGERS].0).unwrap());
        assert!(pairs.iter_mut().all(|(_, far)| far.read(&mut [0]).is_err()), "all are open");
        let (near, _far) = UnixStream::pair().unwrap();
        places.push(strangers.enter(&near).unwrap());
        let closed: Vec<usize> =
            (0..pairs.len()).filter(|at| pairs[*at].1.read(&mut [0]).is_ok_and(|count| count == 0)).collect();
        assert_eq!(closed, [1]);
    }

    #[test]
    fn a_process_of_this_user_is_trusted() {
        let (near, _far) = UnixStream::pair().unwrap();
        assert!(is_trusted(&near) && !is_own_or_root(Uid::from_raw(geteuid().as_raw() + 1)));
    }

    /// Once a full backlog kept a caller for ever.
    #[test]
    fn a_full_backlog_outlasted_every_deadline() {
        let name = format!("farandole-full-{}", std::process::id());
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
        let listener = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        net::bind(&listener, &address).unwrap();
        net::listen(&listener, 0).unwrap();
        let _waiting = connect(&address, &Countdown::new(Duration::from_secs(20))).unwrap();
        let (teller, told) = mpsc::channel();
        std::thread::spawn(move || teller.send(connect(&address, &Countdown::new(Duration::from_millis(300)))));
        let error = told.recv_timeout(Duration::from_secs(20)).expect("the deadline counts").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
